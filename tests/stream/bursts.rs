//! Datagrams that come together, before the server of their session is known.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use rustix::process::Signal;
use weir_testkit::{NameRecord, NameReply, PATIENCE, Server, ask_until, name_server};

use super::datagrams::{asked, client, echo, heard};

/// A server with these lines in its `stream` block, and its counters.
fn stream(lines: &str) -> Server {
    let conf = format!(
        "error_log %%DIR%%/error.log info; events {{ }}
         http {{ server {{ listen 127.0.0.1:%%PORT%%; weir_status json; }} }}
         stream {{ {lines} }}"
    );
    Server::start(env!("CARGO_BIN_EXE_weir"), &conf)
}

/// Sends all of it to a worker that is stopped, so that it is there at once.
fn burst(s: &Server, n: usize, datagrams: &[String]) -> UdpSocket {
    let client = client(s.port_at(n));
    let pid = s.workers()[0];
    s.signal_worker(pid, Signal::STOP);
    for text in datagrams {
        assert_eq!(client.send(text.as_bytes()).unwrap(), text.len());
    }
    s.signal_worker(pid, Signal::CONT);
    client
}

/// The server has dropped so many datagrams.
fn wait_dropped(s: &Server, n: usize) {
    let json = || s.get("/").body().to_owned();
    assert!(ask_until(|| json().contains(&format!("\"dropped_datagrams\":{n},"))), "{}", json());
}

/// A server whose address stands in the configuration is known as soon as the session runs, so nothing is to be dropped.
#[test]
fn a_burst_passes_whole() {
    let to = echo();
    let s =
        stream(&format!("server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass 127.0.0.1:{to}; }}"));
    for (count, length) in [(20, 1400), (3, 9000), (2, 20_000)] {
        let texts: Vec<String> = (0..count).map(|n| format!("{n:0length$}")).collect();
        let client = burst(&s, 1, &texts);
        let back: Vec<String> = texts.iter().map(|_| heard(&client)).collect();
        assert!(back == texts, "{count} of {length}");
    }
}

/// A datagram that comes too early is dropped, whether or not the server was known when it came.
#[test]
fn a_rate_holds_for_a_burst() {
    let to = echo();
    let s = stream(&format!(
        "server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass 127.0.0.1:{to}; proxy_timeout 1s;
             proxy_upload_rate 1000; }}
         server {{ listen 127.0.0.1:%%PORT2%% udp; proxy_pass 127.0.0.1:{to}; proxy_timeout 1s;
             proxy_upload_rate 10; }}"
    ));
    // The second one takes a second of the rate.
    let texts = ["a".to_owned(), "b".repeat(999), "c".to_owned(), "d".to_owned()];
    let client = burst(&s, 1, &texts);
    assert_eq!([heard(&client), heard(&client)], texts[..2]);
    s.wait_log("udp timed out, packets from/to client:2/2, bytes from/to client:1000/1000, ", 1);
    wait_dropped(&s, 2);
    // The first takes two.
    let client = burst(&s, 2, &["a".repeat(20), "b".to_owned()]);
    assert_eq!(heard(&client), "a".repeat(20));
    s.wait_log("udp timed out, packets from/to client:1/1, bytes from/to client:20/20, ", 1);
    wait_dropped(&s, 3);
}

/// While a name is resolved, one datagram waits, and as many more as there is room for.
#[test]
fn what_comes_before_the_server_is_known_waits_within_bounds() {
    for buffer in ["proxy_buffer_size", "proxy_downstream_buffer", "proxy_upstream_buffer"] {
        waits_within_the_buffer(buffer);
    }
}

/// `buffer` is a name of the directive that says how much may wait.
fn waits_within_the_buffer(buffer: &str) {
    let (asked_for, asks) = channel();
    let (answer, answers) = channel();
    let (asked_for, answers) = (Mutex::new(asked_for), Mutex::new(answers));
    let names = name_server(move |name| {
        asked_for.lock().unwrap().send(name.to_owned()).unwrap();
        answers.lock().unwrap().recv().unwrap()
    });
    let to = echo();
    let s = stream(&format!(
        "resolver 127.0.0.1:{names} ipv6=off; resolver_timeout 1h; proxy_timeout 1s;
         map $server_port $name {{ default late.test; }}
         server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass $name:{to}; {buffer} 1k; }}"
    ));
    let client = client(s.port_at(1));
    client.send(b"first").unwrap();
    asks.recv_timeout(PATIENCE).unwrap();
    let long = "x".repeat(2000);
    for text in [&long, "small"] {
        client.send(text.as_bytes()).unwrap();
    }
    wait_dropped(&s, 1);
    let here = NameReply::Records(3600, vec![NameRecord::Address(Ipv4Addr::LOCALHOST)]);
    answer.send(here).unwrap();
    assert_eq!([heard(&client), heard(&client)], ["first", &long]);
    assert_eq!(asked(&client, "more"), "more");
    s.wait_log("udp timed out, packets from/to client:3/3, ", 1);
}

#[test]
fn old_names_of_the_buffers_size_are_warned_of() {
    let s = stream("server { listen 127.0.0.1:%%PORT1%%; return x; }");
    for old in ["proxy_downstream_buffer", "proxy_upstream_buffer"] {
        let path = s.configure(&format!("events {{ }} stream {{ {old} 1k; }}"));
        let tested = s.command(&["-t", "-c", path.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&tested.stderr).into_owned();
        let text = format!(
            "the \"{old}\" directive is deprecated, use the \"proxy_buffer_size\" directive instead"
        );
        assert!(tested.status.success() && said.contains(&text), "{said}");
    }
}
