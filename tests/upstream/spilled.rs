//! Answers that come faster than their clients read them: what does not fit into memory goes
//! through a file.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::net::sockopt::set_socket_recv_buffer_size;
use weir_testkit::{Dir, PATIENCE, Server};

use super::WEIR;

/// An origin that sends its answer when it is told to, and its client, which reads when it is told
/// to.
struct Download {
    origin: TcpStream,
    client: BufReader<TcpStream>,
    sent: u64,
    read: u64,
    wrong: Option<u64>,
}

impl Download {
    fn start(server: &Server, listener: &TcpListener, length: u64) -> Download {
        let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let (mut origin, _) = listener.accept().unwrap();
        for stream in [&origin, &client] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        assert!(origin.read(&mut [0; 4096]).unwrap() > 0, "a request");
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        origin.write_all(head.as_bytes()).unwrap();
        let client = BufReader::with_capacity(64 << 10, client);
        Download { origin, client, sent: 0, read: 0, wrong: None }
    }

    fn read_head(&mut self) {
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert!(self.client.read_line(&mut line).unwrap() > 0, "a head");
        }
    }

    fn send_to(&mut self, end: u64) {
        let body: Vec<u8> = (self.sent..end).map(byte).collect();
        self.origin.write_all(&body).unwrap();
        self.sent = end;
    }

    fn read_to(&mut self, end: u64) {
        while self.read < end {
            let room = self.client.fill_buf().unwrap();
            assert!(!room.is_empty(), "closed after {} bytes", self.read);
            let n = room.len().min((end - self.read) as usize);
            let wrong = (self.read..).zip(&room[..n]).find(|(at, came)| byte(*at) != **came);
            self.wrong = self.wrong.or(wrong.map(|(at, _)| at));
            self.client.consume(n);
            self.read += n as u64;
        }
    }
}

/// What stands at a place; no page is like another.
fn byte(at: u64) -> u8 {
    (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[(at % 8) as usize]
}

fn conf(settings: &str) -> String {
    format!(
        "events {{ }}
         http {{
             sendfile on; {settings}
             server {{
                 listen 127.0.0.1:%%PORT%% sndbuf=256k;
                 location / {{ proxy_pass http://127.0.0.1:%%PORT1%%; }}
             }}
         }}"
    )
}

#[test]
fn every_byte_is_right_however_the_client_pauses() {
    // As usual, and with a file that is full again and again.
    for settings in ["", "proxy_max_temp_file_size 256k;"] {
        let server = Server::start_in(Dir::new(), WEIR, &conf(settings));
        let listener = TcpListener::bind(("127.0.0.1", server.port_at(1))).unwrap();
        const LENGTH: u64 = 16 << 20;
        let mut download = Download::start(&server, &listener, LENGTH);
        download.send_to(64 << 10);
        download.read_head();
        // A full socket, a file behind it, and then a client that takes so much that the file is empty and the
        // socket is not.
        for (round, left) in (0..).zip([128u64, 256, 384, 512, 640, 768, 896].into_iter().cycle()) {
            let end = ((round + 1) << 21).min(LENGTH);
            if settings.is_empty() {
                download.send_to(end);
            } else {
                // More than file and sockets hold does not go out before it is read.
                let step = end - download.sent;
                download.send_to(end - step / 2);
                download.read_to((end - step).saturating_sub(left << 10));
                download.send_to(end);
            }
            if end == LENGTH {
                break;
            }
            download.read_to(end - (left << 10));
        }
        download.read_to(LENGTH);
        assert_eq!(download.wrong, None, "the first wrong byte, {settings}");
        assert_eq!(server.logged("buffered to a temporary file"), 1, "{}", server.log());
    }
}

#[test]
fn a_server_is_done_before_its_client_where_answers_are_read_ahead() {
    const MUCH: usize = 16 << 20;
    let (tell, done) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let port = weir_testkit::listen(move |mut stream| {
        let mut head = [0; 4096];
        let n = stream.read(&mut head).unwrap_or(0);
        let path = String::from_utf8_lossy(&head[..n]).split(' ').nth(1).map(str::to_owned);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {MUCH}\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(&vec![b'x'; MUCH]);
        let _ = tell.lock().unwrap().send(path.unwrap_or_default());
    });
    let conf = format!(
        "events {{ }}
         http {{ server {{ listen 127.0.0.1:%%PORT%%;
             location /ahead {{ proxy_pass http://127.0.0.1:{port}; }}
             location /unbuffered {{ proxy_pass http://127.0.0.1:{port}; proxy_buffering off; }}
             location /memory {{ proxy_pass http://127.0.0.1:{port}; proxy_max_temp_file_size 0; }} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    let mut waiting = Vec::new();
    for path in ["/unbuffered", "/memory"] {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        waiting.push(client);
    }
    // As long as it takes a server to be done twice, the others are not.
    for _ in 0..2 {
        let mut client = server.connect();
        client.send("GET /ahead HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(done.recv_timeout(PATIENCE).as_deref(), Ok("/ahead"));
        waiting.push(client);
    }
    for mut client in waiting {
        assert_eq!(client.response().bytes.len(), MUCH);
    }
}

#[test]
fn an_answer_whose_client_does_not_read_has_the_memory_of_its_buffers() {
    let port = weir_testkit::listen(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n");
        let _ = stream.write_all(&[b'x'; 1 << 20]);
    });
    let conf = format!(
        "events {{ }}
         http {{
             log_format f '$upstream_bytes_received $body_bytes_sent'; access_log held f;
             proxy_buffer_size 1k; proxy_buffers 2 2k; proxy_busy_buffers_size 2k;
             proxy_max_temp_file_size 0;
             server {{ listen 127.0.0.1:%%PORT%% sndbuf=8k;
                 location / {{ proxy_pass http://127.0.0.1:{port}; }} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    set_socket_recv_buffer_size(&client, 4096).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(client.peek(&mut [0]).unwrap(), 1, "a head");
    server.wait_asleep(server.workers()[0]);
    drop(client);
    server.wait_file("held", "\n", 1);
    let line = server.dir().read("held");
    let (received, sent) = line.trim().split_once(' ').unwrap();
    let held = received.parse::<u64>().unwrap() - sent.parse::<u64>().unwrap();
    // What is being sent, as much behind it, and the head.
    assert!(held < 16 << 10, "{held} bytes with buffers of 4096: {line}");
}
