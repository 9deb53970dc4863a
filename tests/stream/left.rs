//! Clients that have sent all and ended before there is a server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use rustix::process::Signal;
use weir_testkit::{NameRecord, NameReply, PATIENCE, listen, name_server};

use super::{connect, stream};

#[test]
fn what_a_client_sent_arrives_though_it_left_while_a_name_was_resolved() {
    let (asked, asks) = channel();
    let (answer, answers) = channel();
    // It says nothing until it may.
    let names = name_server(move |name| {
        asked.send(name.to_owned()).unwrap();
        answers.recv().unwrap()
    });
    let (told, hears) = channel();
    let told = Mutex::new(told);
    let to = listen(move |mut socket| {
        let mut text = String::new();
        let _ = socket.read_to_string(&mut text);
        let _ = told.lock().unwrap().send(text);
    });
    let s = stream(&format!(
        "log_format l '$status $bytes_received;'; access_log %%DIR%%/seen l;
         resolver 127.0.0.1:{names} ipv6=off; resolver_timeout 1h;
         map $server_port $half {{ default half.test; }} map $server_port $whole {{ default whole.test; }}
         map $server_port $none {{ default none.test; }}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass $half:{to}; }}
         server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass $whole:{to}; }}
         server {{ listen 127.0.0.1:%%PORT3%%; proxy_pass $none:{to}; }}"
    ));
    let here = || NameReply::Records(3600, vec![NameRecord::Address(Ipv4Addr::LOCALHOST)]);
    let left = |port, whole: bool| {
        let mut client = connect(s.port_at(port));
        client.write_all(b"a line").unwrap();
        asks.recv_timeout(PATIENCE).unwrap();
        if whole {
            drop(client);
        } else {
            client.shutdown(Shutdown::Write).unwrap();
            // It stays until the server has heard it.
            std::thread::spawn(move || client.read_to_end(&mut Vec::new()));
        }
        // What came of that has been seen.
        s.wait_asleep(s.workers()[0]);
    };
    left(1, false);
    answer.send(here()).unwrap();
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), "a line");
    left(2, true);
    answer.send(here()).unwrap();
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), "a line");
    s.wait_file("seen", "200 6;", 2);
    left(3, false);
    answer.send(NameReply::NoSuchName).unwrap();
    s.wait_log("none.test could not be resolved (3: Host not found), client: 127.0.0.1", 1);
    s.wait_file("seen", "500 ", 1);
}

/// A client that has sent something sees the end of a session without a server, and no reset. As in nginx, it counts only where
/// something is read before a server is looked for.
#[test]
fn what_came_before_there_was_no_server_is_read() {
    let s = stream(
        "log_format l '$status $bytes_received;'; access_log %%DIR%%/seen l;
         server { listen 127.0.0.1:%%PORT1%%; proxy_pass 127.0.0.1:1; }
         server { listen 127.0.0.1:%%PORT2%%; proxy_pass 127.0.0.1:1; ssl_preread on; }
         server { listen 127.0.0.1:%%PORT3%% proxy_protocol; proxy_pass 127.0.0.1:1; }",
    );
    let pid = s.workers()[0];
    for (n, text, line) in [
        (1, "a line", "502 0;"),
        (2, "a line", "502 6;"),
        (3, "PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\na line", "502 6;"),
    ] {
        s.signal_worker(pid, Signal::STOP);
        let mut client = connect(s.port_at(n));
        client.write_all(text.as_bytes()).unwrap();
        s.signal_worker(pid, Signal::CONT);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        let lines = std::fs::read_to_string(s.dir().file("seen")).unwrap();
        assert_eq!(lines.lines().last(), Some(line), "{n}");
        if n == 2 {
            // The error log counts what was looked at, too.
            s.wait_log("upstream: \"127.0.0.1:1\", bytes from/to client:6/0,", 1);
        }
    }
}
