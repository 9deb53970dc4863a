//! Sessions of every kind come to an end with their worker.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::process::Signal;
use weir_proto::http2::frame;
use weir_testkit::{Dice, PATIENCE, Server, number, seed};

/// What a client has with the server when its worker is to end.
#[derive(Debug, Clone, Copy)]
enum Session {
    /// Ends by itself, as in nginx.
    IdleHttp1,
    IdleHttp2,
    Datagrams,
    /// Ends with `worker_shutdown_timeout`.
    Tunnel,
    Upgraded,
    Endless,
    SlowUpload,
}

const SESSIONS: [Session; 7] = [
    Session::IdleHttp1,
    Session::IdleHttp2,
    Session::Datagrams,
    Session::Tunnel,
    Session::Upgraded,
    Session::Endless,
    Session::SlowUpload,
];

impl Session {
    fn ends_alone(self) -> bool {
        matches!(self, Session::IdleHttp1 | Session::IdleHttp2 | Session::Datagrams)
    }

    /// Begins one, and returns when the server is in the middle of it.
    fn begin(self, server: &Server) -> Box<dyn Send> {
        let connect = |n: usize, text: &str| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port_at(n))).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            stream
        };
        let heard = |stream: &mut TcpStream, end: &str| {
            let mut all = Vec::new();
            while !String::from_utf8_lossy(&all).contains(end) {
                let mut buf = [0; 4096];
                let n = stream.read(&mut buf).unwrap();
                assert!(n > 0, "{self:?}: closed behind {all:?}");
                all.extend_from_slice(&buf[..n]);
            }
        };
        match self {
            Session::IdleHttp1 => {
                let mut stream = connect(0, "GET /short HTTP/1.1\r\nHost: a\r\n\r\n");
                heard(&mut stream, "short");
                Box::new(stream)
            }
            Session::IdleHttp2 => {
                let mut hello = frame::PREFACE.to_vec();
                frame::write_settings(&[], &mut hello);
                // GET /short, by the static table and a literal path.
                let block = b"\x82\x86\x04\x06/short\x41\x01a";
                let begin = frame::leave_head(&mut hello);
                hello.extend_from_slice(block);
                let most = frame::MAX_PAYLOAD;
                frame::finish_headers(&mut hello, begin, 1, frame::END_STREAM, most);
                let mut stream = connect(0, "");
                stream.write_all(&hello).unwrap();
                heard(&mut stream, "short");
                Box::new(stream)
            }
            Session::Datagrams => {
                let client = UdpSocket::bind("127.0.0.1:0").unwrap();
                client.connect(("127.0.0.1", server.port_at(1))).unwrap();
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                client.send(b"?").unwrap();
                client.recv(&mut [0; 16]).unwrap();
                Box::new(client)
            }
            Session::Tunnel => {
                let mut stream = connect(2, "\r\n\r\n");
                heard(&mut stream, "more");
                Box::new(stream)
            }
            Session::Upgraded => {
                let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\n";
                let mut stream =
                    connect(0, &format!("GET /upgrade HTTP/1.1\r\nHost: a\r\n{upgrade}\r\n"));
                heard(&mut stream, "more");
                Box::new(stream)
            }
            Session::Endless => {
                let mut stream = connect(0, "GET /endless HTTP/1.1\r\nHost: a\r\n\r\n");
                heard(&mut stream, "more");
                Box::new(stream)
            }
            Session::SlowUpload => {
                let head = "POST /endless HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n";
                let mut stream = connect(0, &format!("{head}Expect: 100-continue\r\n\r\n"));
                heard(&mut stream, "100 Continue");
                Box::new(stream)
            }
        }
    }
}

/// The time from one piece to the next of a server that never stops.
#[expect(clippy::disallowed_methods, reason = "a server of the test, on a thread of its own")]
fn pace() {
    std::thread::sleep(Duration::from_millis(20));
}

/// A server that never comes to the end of what it says, over HTTP or without.
fn endless() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buf = [0; 4096];
                let n = stream.read(&mut buf).unwrap_or_default();
                let upgrades = String::from_utf8_lossy(&buf[..n]).contains("/upgrade");
                let head: &[u8] = match upgrades {
                    true => b"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
                    false => b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
                };
                let _ = stream.write_all(head);
                while stream.write_all(b"more\n").is_ok() {
                    pace();
                }
            });
        }
    });
    port
}

/// The same for datagrams.
fn talker() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 16]) {
            let socket = socket.try_clone().unwrap();
            std::thread::spawn(move || {
                // For a minute at most: it is not told that the session is over.
                for _ in 0..3000 {
                    let _ = socket.send_to(b"more", from);
                    pace();
                }
            });
        }
    });
    port
}

/// An old worker ends when its idle connections have been idle for `keepalive_timeout` and its datagrams are answered, and
/// else after `worker_shutdown_timeout`.
#[test]
fn old_workers_end_whatever_their_sessions_do() {
    let (seed, cases) = (seed(), number("WEIR_CASES").unwrap_or(4));
    let mut dice = Dice::new(seed);
    for case in 0..cases {
        let alone = case % 2 == 0;
        let fits = |session: &&Session| !alone || session.ends_alone();
        let all: Vec<Session> = SESSIONS.iter().filter(fits).copied().collect();
        let drawn: Vec<Session> = (0..4).map(|_| dice.pick(&all)).collect();
        let quits = dice.below(2) == 0;
        let timeout = if alone { "" } else { "worker_shutdown_timeout 300ms;" };
        let (to, udp) = (endless(), talker());
        let conf = format!(
            "{timeout} events {{ }}
             http {{ keepalive_timeout 500ms; server {{ listen 127.0.0.1:%%PORT%%; http2 on;
                 location /short {{ return 200 short; }}
                 location / {{ proxy_pass http://127.0.0.1:{to}; proxy_http_version 1.1;
                     proxy_buffering off; proxy_set_header Upgrade $http_upgrade;
                     proxy_set_header Connection $http_connection; }} }} }}
             stream {{ server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass 127.0.0.1:{udp}; }}
                 server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass 127.0.0.1:{to}; }} }}"
        );
        let mut server = Server::start(env!("CARGO_BIN_EXE_weir"), &conf);
        println!("{drawn:?}, quits: {quits}");
        let sessions: Vec<_> = drawn.iter().map(|session| session.begin(&server)).collect();
        let old = server.workers();
        if quits {
            server.signal(Signal::QUIT);
        } else {
            server.reload();
        }
        old.into_iter().for_each(|pid| server.wait_gone(pid));
        if quits {
            server.wait();
        }
        drop(sessions);
    }
}
