//! What bounds all attempts of a request together.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use weir_testkit::{Server, listen};

use super::start;

/// An origin that counts its requests and hands each to `serve`.
fn origin(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> (u16, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let port = listen(move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        counted.fetch_add(1, Ordering::SeqCst);
        serve(stream);
    });
    (port, count)
}

/// Says nothing until the other side has gone.
fn silent(mut stream: TcpStream) {
    let _ = stream.read(&mut [0; 100]);
}

fn broken(mut stream: TcpStream) {
    let _ =
        stream.write_all(b"HTTP/1.1 500 Wrong\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

/// Passes on to these servers in turn, each request from the first one on.
fn with(servers: &[u16], how: &str) -> Server {
    let servers: String = servers.iter().map(|port| format!("server 127.0.0.1:{port};")).collect();
    let group = format!("upstream u {{ {servers} }}");
    start("", &format!("{group} proxy_next_upstream error timeout http_500; {how}"))
}

fn status(server: &Server) -> u16 {
    server.ask("GET /", "", "").status
}

#[test]
fn all_attempts_together_have_a_time_for_the_head_of_an_answer() {
    let limit = "proxy_answer_timeout 150ms; proxy_read_timeout 1h;";
    let (quiet, asked) = origin(silent);
    assert_eq!(status(&with(&[quiet], limit)), 504);
    // What is left of the time after a failure is that of the next server.
    let (wrong, _) = origin(broken);
    assert_eq!(status(&with(&[wrong, quiet], limit)), 504);
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    // A body that comes later than that is whole.
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let (slow, _) = origin(move |mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nsl");
        let _ = wait.lock().unwrap().recv();
        let _ = stream.write_all(b"ow");
    });
    let server = with(&[slow], &format!("{limit} proxy_buffering off;"));
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let line = client.try_line().unwrap();
    assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
    // Another request has needed all of its time meanwhile.
    assert_eq!(status(&with(&[quiet], limit)), 504);
    drop(go);
    assert!(client.rest().ends_with("slow"));
}

#[test]
fn another_server_is_asked_after_a_pause() {
    let (wrong, _) = origin(broken);
    let (well, asked) = origin(|mut stream| {
        let _ =
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    });
    assert_eq!(status(&with(&[wrong, well], "proxy_next_upstream_delay 1ms;")), 200);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    // A pause that would end after the time for the answer is none.
    let long = "proxy_next_upstream_delay 1h; proxy_answer_timeout 100ms;";
    assert_eq!(status(&with(&[wrong, well], long)), 504);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}
