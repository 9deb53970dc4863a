//! Clients that leave, take too long or send on: what becomes of their connections, and what the log says.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};
use weir_testkit::{Dir, PATIENCE, Server, listen};

use super::WEIR;

fn ask(port: u16, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    set_socket_recv_buffer_size(&stream, 16 << 10).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
    stream
}

/// Whether the connection ends with a reset.
fn is_reset(mut stream: TcpStream) -> bool {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => false,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_client_that_takes_too_long_or_gets_no_answer_is_reset_where_that_is_said() {
    let dir = Dir::new();
    dir.write("big", vec![b'x'; 8 << 20]);
    let conf = "events { } http { access_log off; send_timeout 300ms; tcp_nodelay on;
        server { listen 127.0.0.1:%%PORT%% sndbuf=16k; location / { root %%DIR%%; }
            location /on/ { reset_timedout_connection on; alias %%DIR%%/; }
            location /none { return 444; }
            location /on/none { reset_timedout_connection on; return 444; } } }";
    let server = Server::start_in(dir, WEIR, conf);
    assert!(is_reset(ask(server.port(), "/on/none")));
    assert!(!is_reset(ask(server.port(), "/none")));
    for (n, path, reset) in [(1, "/on/big", true), (2, "/big", false)] {
        let stalled = ask(server.port(), path);
        let late = "client timed out (110: Connection timed out) while sending response to client";
        server.wait_log(late, n);
        assert_eq!(is_reset(stalled), reset, "{path}");
    }
}

#[test]
fn a_body_that_goes_on_as_it_comes_has_no_more_time_than_another() {
    let (asked, heard) = mpsc::channel();
    let asked = Mutex::new(asked);
    let port = listen(move |mut stream| {
        let _ = stream.read(&mut [0]);
        let _ = asked.lock().unwrap().send(());
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let conf = format!(
        "worker_processes 1; events {{ }} http {{
         log_format l '$uri $status'; access_log %%DIR%%/seen l;
         server {{ listen 127.0.0.1:%%PORT%%; client_body_timeout 450ms;
             location / {{ proxy_pass http://127.0.0.1:{port}; }}
             location /now {{ client_body_timeout 300ms; proxy_request_buffering off;
                 proxy_pass http://127.0.0.1:{port}; }} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    let post = |path: &str| {
        let mut client = server.connect();
        let head = "Host: a\r\nContent-Length: 3\r\n\r\nab";
        client.send(format!("POST {path} HTTP/1.1\r\n{head}"));
        client
    };
    let mut first = post("/now");
    heard.recv_timeout(PATIENCE).unwrap();
    let mut second = post("/later");
    assert!(first.is_closed() && second.is_closed());
    server.wait_file("seen", "/now 408\n/later 408\n", 1);

    let mut odd = server.connect();
    odd.send("POST /now HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n");
    heard.recv_timeout(PATIENCE).unwrap();
    odd.send("odd\r\n");
    server.wait_log("client sent invalid chunked body while sending request to upstream", 1);
}

#[test]
fn a_client_that_leaves_while_it_is_held_back_is_noticed() {
    let conf = "events { } http { log_format l '$uri $status $request_completion.';
        access_log %%DIR%%/seen l;
        server { listen 127.0.0.1:%%PORT%%; location / { limit_rate 1; return 200 text; }
            location /later { auth_delay 1h; auth_basic a; auth_basic_user_file users; } } }";
    let dir = Dir::new();
    dir.write("users", "");
    let server = Server::start_in(dir, WEIR, conf);
    let mut slow = ask(server.port(), "/");
    slow.read_exact(&mut [0]).unwrap();
    drop(slow);
    server.wait_log("client prematurely closed connection while sending response to client", 1);
    server.wait_file("seen", "/ 200 .\n", 1);
    let held = ask(server.port(), "/later");
    server.wait_log("delaying unauthorized request", 1);
    drop(held);
    server.wait_log("client prematurely closed connection, client: ", 1);
    server.wait_file("seen", "/later 499 .\n", 1);
}

#[test]
fn the_log_tells_what_was_understood() {
    let conf = "events { } http {
        log_format l '\"$request\" $status $server_protocol \"$request_body\" $http_host';
        access_log %%DIR%%/seen l;
        server { listen 127.0.0.1:%%PORT%%; location / { proxy_pass http://127.0.0.1:%%PORT1%%; } }
        server { listen 127.0.0.1:%%PORT1%%; access_log off; return 200; } }";
    let server = Server::start(WEIR, conf);
    for (request, line) in [
        ("\r\n\r\nGET * HTTP/1.1\r\nHost: a\r\n\r\n", "\"GET * HTTP/1.1\" 400 - \"-\" -\n"),
        ("GET / HTP/1.1\r\n\r\n", "\"GET / HTP/1.1\" 400  \"-\" -\n"),
        ("GET /\r\n", "\"GET /\" 200 - \"-\" -\n"),
        ("HEAD /\r\n", "\"HEAD /\" 400 - \"-\" -\n"),
        ("GET / HTTP/1.0\r\n\r\n", "\"GET / HTTP/1.0\" 200 HTTP/1.0 \"-\" -\n"),
        (
            "GET /x HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
            "\"GET /x HTTP/1.0\" 400 HTTP/1.0 \"-\" a\n",
        ),
        (
            "POST / HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
            "\"POST / HTTP/1.0\" 200 HTTP/1.0 \"\" -\n",
        ),
    ] {
        server.connect().send(request).rest();
        server.wait_file("seen", line, 1);
    }
}

/// A reset is logged with the system's word for it, whether the client's body or its answer is on its way.
#[test]
fn a_client_that_resets_its_connection_is_logged() {
    let dir = Dir::new();
    dir.write("big", vec![b'x'; 8 << 20]);
    let conf = "events { } http { access_log off; error_log %%DIR%%/info info;
        server { listen 127.0.0.1:%%PORT%% sndbuf=16k; root %%DIR%%; client_body_in_file_only on;
            location /body { proxy_pass http://127.0.0.1:1; } } }";
    let server = Server::start_in(dir, WEIR, conf);
    let reset = |stream: TcpStream| {
        set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    };
    let mut reader = ask(server.port(), "/big");
    reader.read_exact(&mut [0; 12]).unwrap();
    reset(reader);
    let cause = "(104: Connection reset by peer)";
    let sending = format!("client prematurely closed connection {cause} while sending response");
    server.wait_file("info", &sending, 1);
    let mut writer = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let head = "Host: a\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n";
    write!(writer, "POST /body HTTP/1.1\r\n{head}").unwrap();
    writer.read_exact(&mut [0; 25]).unwrap();
    reset(writer);
    server.wait_file("info", &format!("recv() failed {cause}, client: "), 1);
}

#[test]
fn bytes_behind_a_request_do_not_reset_the_connection_before_the_part_of_an_answer_that_came() {
    let (more, rest) = mpsc::channel::<()>();
    let rest = Mutex::new(rest);
    let port = listen(move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhead");
        let _ = rest.lock().unwrap().recv_timeout(PATIENCE);
    });
    let conf = format!(
        "events {{ }} http {{ access_log off; server {{ listen 127.0.0.1:%%PORT%%;
             location / {{ proxy_pass http://127.0.0.1:{port}; proxy_buffering off; }} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    let mut client = ask(server.port(), "/");
    let answer = read_to(&mut client, b"head");
    client.write_all(b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    more.send(()).unwrap();
    assert!(!is_reset(client), "{}", String::from_utf8_lossy(&answer));
    server.wait_log("upstream prematurely closed connection", 1);
}

fn read_to(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut read = Vec::new();
    while !read.ends_with(end) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
    }
    read
}

#[test]
fn bytes_behind_a_request_do_not_reset_the_connection_before_its_answer() {
    let (more, rest) = mpsc::channel();
    let rest = Mutex::new(rest);
    let port = listen(move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhead");
        let _ = rest.lock().unwrap().recv_timeout(PATIENCE);
        let _ = stream.write_all(b"tail");
    });
    let conf = format!(
        "events {{ }} http {{ access_log off; server {{ listen 127.0.0.1:%%PORT%%;
             location / {{ proxy_pass http://127.0.0.1:{port}; proxy_buffering off; }} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    for head in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"]
    {
        let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(head.as_bytes()).unwrap();
        let mut answer = read_to(&mut client, b"head");
        // Some clients end a request with one line more.
        client.write_all(b"\r\nmore").unwrap();
        more.send(()).unwrap();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.ends_with(b"headtail"), "{}", String::from_utf8_lossy(&answer));
    }
}
