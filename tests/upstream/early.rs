//! Servers that answer and close before they have read all of a request.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::process::Signal;
use weir_testkit::{PATIENCE, Server, fastcgi, listen, wait_delivered};

use super::bodies::LONG;
use super::http2::peer::Peer;
use super::{WEIR, grpc};

/// Dropping the first makes the server answer; the second breaks off when it has closed.
type Asked = (Sender<()>, Receiver<()>);

/// A server that reads the beginning of each request, says that it has it, and answers when it is told to.
fn origin(answer: Vec<u8>, ends: bool) -> (u16, Receiver<Asked>) {
    let (tell, asked) = channel();
    let tell = Mutex::new(tell);
    let port = listen(move |mut stream| {
        let mut some = [0; 16];
        if stream.read(&mut some).is_err() {
            return;
        }
        let ((go, wait), (closed, watch)) = (channel(), channel());
        tell.lock().unwrap().send((go, watch)).unwrap();
        let _ = wait.recv();
        let _ = stream.write_all(&answer);
        wait_delivered(&stream);
        if ends {
            let _ = stream.shutdown(Shutdown::Write);
        }
        // What it has not read makes a reset of this.
        drop(stream);
        drop(closed);
    });
    (port, asked)
}

/// What a client gets if its server answers and closes while all else stands still, so that the
/// next piece cannot be sent; and the log.
fn ask(pass: &str, how: &str, answer: &[u8], ends: bool) -> (String, String) {
    let (port, asked) = origin(answer.to_vec(), ends);
    let conf = format!(
        "user root; worker_processes 1; events {{ }}
         http {{
             client_max_body_size 0; blocked_threshold 1h; {how}
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 location / {{ {pass}_pass {}127.0.0.1:{port}; }}
             }}
         }}",
        if pass == "proxy" { "http://" } else { "" }
    );
    let server = Server::start(WEIR, &conf);
    let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut sends = client.try_clone().unwrap();
    let sending = thread::spawn(move || {
        let head = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {LONG}\r\n\r\n"
        );
        // The server may stop reading before the end.
        let _ = sends.write_all(head.as_bytes()).and_then(|()| sends.write_all(&vec![b'x'; LONG]));
    });
    let (go, closed) = asked.recv_timeout(PATIENCE).expect("a request");
    let worker = server.workers()[0];
    server.wait_asleep(worker);
    server.signal_worker(worker, Signal::STOP);
    drop(go);
    let _ = closed.recv_timeout(PATIENCE);
    server.signal_worker(worker, Signal::CONT);
    let (mut got, mut buf) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = client.read(&mut buf) {
        got.extend_from_slice(&buf[..n]);
    }
    drop(client);
    sending.join().unwrap();
    (String::from_utf8_lossy(&got).into_owned(), server.log())
}

#[test]
fn an_answer_that_came_before_sending_failed_is_the_answer() {
    let page = b"Status: 200 OK\r\nContent-Length: 5\r\n\r\nwhole";
    let http = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole";
    let records = fastcgi::answer("Status: 200 OK\r\n\r\nwhole");
    let answers: [(&str, &[u8]); 4] =
        [("proxy", http), ("fastcgi", &records), ("scgi", page), ("uwsgi", page)];
    for (pass, answer) in answers {
        for streams in ["on", "off"] {
            let how = format!("{pass}_request_buffering {streams}; proxy_http_version 1.1;");
            let (got, log) = ask(pass, &how, answer, false);
            assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "{pass}, {streams}: {got}\n{log}");
            assert!(got.contains("whole"), "{pass}, {streams}: {got}\n{log}");
            assert!(!log.contains("[error]"), "{pass}, {streams}: {log}");
        }
    }
}

#[test]
fn an_answer_that_a_reset_may_have_cut_is_not_taken_for_whole() {
    let answer = b"HTTP/1.1 200 OK\r\n\r\npart";
    for streams in ["on", "off"] {
        let how = format!("proxy_request_buffering {streams};");
        let (got, log) = ask("proxy", &how, answer, false);
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.contains("part"), "{got}\n{log}");
        assert!(!got.ends_with("0\r\n\r\n"), "{got}\n{log}");
        let failed = "readv() failed (104: Connection reset by peer) while reading upstream";
        assert!(log.contains(failed), "{log}");
        let (got, log) = ask("proxy", &how, answer, true);
        assert!(got.ends_with("4\r\npart\r\n0\r\n\r\n"), "{got}\n{log}");
        assert!(!log.contains("[error]"), "{log}");
    }
}

#[test]
fn without_an_answer_it_is_sending_that_failed() {
    for (ends, failed) in [
        (false, "failed (104: Connection reset by peer) while sending request to upstream"),
        (true, "failed (32: Broken pipe) while sending request to upstream"),
    ] {
        let (got, log) = ask("proxy", "", b"", ends);
        assert!(got.starts_with("HTTP/1.1 502 "), "{got}\n{log}");
        assert!(log.contains(failed), "{log}");
    }
}

/// A server that answers at once, and then sends back each byte that comes.
fn echo(mut stream: TcpStream, head: &str) {
    let (mut asked, mut buf) = (Vec::new(), [0; 65536]);
    let end = loop {
        match stream.read(&mut buf) {
            Ok(n @ 1..) => asked.extend_from_slice(&buf[..n]),
            _ => return,
        }
        if let Some(at) = asked.windows(4).position(|end| end == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let mut came = asked.split_off(end);
    let mut sent = stream.write_all(head.as_bytes());
    while sent.is_ok() {
        if !came.is_empty() && head.contains("chunked") {
            let length = format!("{:x}\r\n", came.len());
            came = [length.as_bytes(), &came, b"\r\n"].concat();
        }
        sent = stream.write_all(&came);
        match stream.read(&mut buf) {
            Ok(n @ 1..) => came = buf[..n].to_vec(),
            _ => return,
        }
    }
}

/// As a source of icecast does, which has its answer before it sends anything. A cache and a store let such an answer pass.
#[test]
fn a_body_that_streams_goes_on_behind_an_answer_that_has_begun() {
    for head in [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.0 200 OK\r\nContent-Type: audio/mpeg\r\n\r\n",
    ] {
        let port = listen(move |stream| echo(stream, head));
        comes_back(port, "1.1", 2_000_000);
    }
    // The server of this one does not look after windows.
    comes_back(Peer::new(grpc::echo).port, "2", 20_000);
}

/// Sends pieces of a body to a server that sends back what comes, in locations that differ in what becomes of the answer.
fn comes_back(port: u16, version: &str, long: usize) {
    let conf = format!(
        "worker_processes 1; events {{ }}
         http {{
             proxy_cache_path %%DIR%%/cache keys_zone=z:1m; proxy_cache_methods POST; proxy_cache_valid any 1h;
             client_max_body_size 0; proxy_request_buffering off; proxy_http_version {version};
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 location / {{ proxy_pass http://127.0.0.1:{port}; }}
                 location /direct/ {{ proxy_pass http://127.0.0.1:{port}; proxy_buffering off; }}
                 location /cached/ {{ proxy_pass http://127.0.0.1:{port}; proxy_cache z; }}
                 location /stored/ {{ proxy_pass http://127.0.0.1:{port}; proxy_store %%DIR%%/stored; }}
             }}
         }}"
    );
    let server = Server::start(WEIR, &conf);
    for path in ["/", "/direct/", "/cached/", "/stored/"] {
        let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let ask = format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.write_all(ask.as_bytes()).unwrap();
        let (mut got, mut buf) = (String::new(), vec![0; 65536]);
        // A piece is sent when the one before has come back; the last is longer than a socket's buffer.
        for n in 0..6 {
            let piece = if n < 5 { format!("piece{n}") } else { "long".repeat(long / 4) + "end" };
            let mut sends = client.try_clone().unwrap();
            let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
            let sending = thread::spawn(move || sends.write_all(chunk.as_bytes()));
            let expected = if n < 5 { piece.as_str() } else { "end" };
            while !got.contains(expected) {
                let n = client.read(&mut buf).unwrap_or(0);
                let begun = &got[..got.len().min(500)];
                assert!(n > 0, "{version} {path}: no {expected:?} behind {begun:?}");
                got.push_str(&String::from_utf8_lossy(&buf[..n]));
            }
            sending.join().unwrap().unwrap();
        }
    }
}
