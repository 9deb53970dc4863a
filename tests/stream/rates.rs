//! `proxy_upload_rate` and `proxy_download_rate`.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use weir_testkit::listen;

use super::{connect, datagrams, echo, echoed, stream};

/// More than passes in two seconds at a rate of 10k.
const MUCH: usize = 25_000;

/// Hears that much, says as much at once, and waits for the end.
fn answers(mut socket: TcpStream) {
    let mut taken = vec![0; MUCH];
    if socket.read_exact(&mut taken).and_then(|()| socket.write_all(&taken)).is_ok() {
        let _ = socket.read(&mut [0]);
    }
}

/// The time-out does not run while the rate holds a side back, and runs again behind it.
#[test]
fn a_side_that_is_held_back_is_not_late() {
    let to = listen(answers);
    let s = stream(&format!(
        "proxy_timeout 700ms;
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass 127.0.0.1:{to}; proxy_download_rate 10k; }}
         server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass 127.0.0.1:{to}; proxy_upload_rate 10k; }}"
    ));
    let passed = |n: usize| {
        let mut client = connect(s.port_at(n));
        client.write_all(&vec![b'x'; MUCH]).unwrap();
        let mut back = Vec::new();
        client.read_to_end(&mut back).unwrap();
        back.len()
    };
    thread::scope(|all| {
        let [down, up] = [1, 2].map(|n| all.spawn(move || passed(n)));
        assert_eq!((down.join().unwrap(), up.join().unwrap()), (MUCH, MUCH));
    });
    s.wait_log("connection timed out (110: Connection timed out) while proxying connection", 2);
}

/// The other side goes on meanwhile, and is not late either: neither sends more than a byte before the time-out.
#[test]
fn a_word_that_is_held_back_arrives() {
    let to = echo();
    let s = stream(&format!(
        "proxy_timeout 700ms;
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass 127.0.0.1:{to}; proxy_download_rate 1; }}"
    ));
    let mut client = connect(s.port_at(1));
    echoed(&mut client, b"abc");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_rate_that_is_no_size_is_logged_and_is_no_limit() {
    let to = echo();
    let s = stream(&format!(
        "map $server_port $bad {{ default bad; }} map $server_port $none {{ default ''; }}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass 127.0.0.1:{to};
             proxy_upload_rate $bad; proxy_download_rate $none; }}
         server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass 127.0.0.1:{to}; }}"
    ));
    echoed(&mut connect(s.port_at(1)), &[b'x'; 1000]);
    echoed(&mut connect(s.port_at(2)), &[b'x'; 1000]);
    s.wait_log("[error]", 2);
    for rate in ["bad", ""] {
        s.wait_log(&format!("invalid size \"{rate}\" while connecting to upstream, client: "), 1);
    }
}

/// The time-out of datagrams begins anew as well.
#[test]
fn the_wait_for_a_datagram_begins_behind_the_pause() {
    let to = datagrams::server(|_, _| vec!["x".repeat(1000)]);
    let s = stream(&format!(
        "log_format l '$session_time;'; access_log %%DIR%%/seen l;
         server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass 127.0.0.1:{to}; proxy_timeout 500ms;
             proxy_download_rate 1000; }}"
    ));
    assert_eq!(datagrams::asked(&datagrams::client(s.port_at(1)), "?").len(), 1000);
    s.wait_file("seen", ";", 1);
    let time = s.dir().read("seen");
    let seconds: f64 = time.trim_end().trim_end_matches(';').parse().unwrap();
    // A second of the rate, and the time-out.
    assert!(seconds >= 1.4, "{time}");
}

/// So it does while the client is held back.
#[test]
fn the_server_of_datagrams_has_all_of_its_time_behind_a_client_that_is_held_back() {
    let to = datagrams::server(|_, _| vec!["x".to_owned()]);
    let s = stream(&format!(
        "log_format l '$session_time;'; access_log %%DIR%%/seen l;
         server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass 127.0.0.1:{to}; proxy_timeout 500ms;
             proxy_upload_rate 1000; }}"
    ));
    let client = datagrams::client(s.port_at(1));
    assert_eq!(datagrams::asked(&client, "?"), "x");
    assert_eq!(datagrams::asked(&client, &"y".repeat(900)), "x");
    s.wait_file("seen", ";", 1);
    let time = s.dir().read("seen");
    let seconds: f64 = time.trim_end().trim_end_matches(';').parse().unwrap();
    assert!(seconds >= 1.3, "{time}");
}
