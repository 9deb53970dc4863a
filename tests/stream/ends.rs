//! Sessions of every kind come to an end with their worker.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::process::Signal;
use weir_proto::http2::frame;
use weir_testkit::{Dice, PATIENCE, Server, listen, number, seed};

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
    /// Calls of gRPC to a server that says more and more, and to one that stands still. The client
    /// does not end them.
    Call,
    SilentCall,
    /// Scripts that sleep in a loop, read from a server that stands still, wait for a light thread, and a timer that sleeps in a loop
    /// beside one of these.
    SleepingScript,
    ReadingScript,
    WaitingScript,
    Timer,
}

const SESSIONS: [Session; 13] = [
    Session::IdleHttp1,
    Session::IdleHttp2,
    Session::Datagrams,
    Session::Tunnel,
    Session::Upgraded,
    Session::Endless,
    Session::SlowUpload,
    Session::Call,
    Session::SilentCall,
    Session::SleepingScript,
    Session::ReadingScript,
    Session::WaitingScript,
    Session::Timer,
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
                let mut stream = connect(0, "");
                // GET, by the static table.
                stream.write_all(&asked(2, "/short", frame::END_STREAM)).unwrap();
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
            Session::Call | Session::SilentCall => {
                let mut stream = connect(0, "");
                let silent = matches!(self, Session::SilentCall);
                // POST, by the static table.
                let path = if silent { "/call/silent" } else { "/call/" };
                stream.write_all(&asked(3, path, 0)).unwrap();
                heard(&mut stream, if silent { "begun" } else { "more" });
                Box::new(stream)
            }
            Session::SleepingScript
            | Session::ReadingScript
            | Session::WaitingScript
            | Session::Timer => {
                let what = format!("{self:?}").to_lowercase();
                let mut stream = connect(0, &format!("GET /{what} HTTP/1.1\r\nHost: a\r\n\r\n"));
                heard(&mut stream, "begun");
                Box::new(stream)
            }
        }
    }
}

/// The beginning of a connection of HTTP/2, with a request of this method (a place in the static table).
fn asked(method: u8, path: &str, flags: u8) -> Vec<u8> {
    let mut hello = frame::PREFACE.to_vec();
    frame::write_settings(&[], &mut hello);
    let begin = frame::leave_head(&mut hello);
    hello.extend_from_slice(&[0x80 | method, 0x86, 0x04, path.len() as u8]);
    hello.extend_from_slice(path.as_bytes());
    hello.extend_from_slice(b"\x41\x01a");
    frame::finish_headers(&mut hello, begin, 1, flags, frame::MAX_PAYLOAD);
    hello
}

/// A server of calls: it says "begun", and then more and more unless it is to be silent.
fn callee() -> u16 {
    listen(|mut stream| {
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).unwrap();
        let _ = stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
        let (mut head, mut silent) = ([0; frame::HEAD], false);
        loop {
            if stream.read_exact(&mut head).is_err() {
                return;
            }
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            stream.read_exact(&mut payload).unwrap();
            silent |= String::from_utf8_lossy(&payload).contains("/silent");
            if head[3] == 1 {
                break;
            }
        }
        let data = |text: &[u8]| [&[0, 0, text.len() as u8, 0, 0, 0, 0, 0, 1], text].concat();
        // `:status: 200`, by the static table.
        let mut sent = stream.write_all(b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\x88");
        sent = sent.and_then(|()| stream.write_all(&data(b"begun")));
        while sent.is_ok() && !silent {
            pace();
            sent = stream.write_all(&data(b"more\n"));
        }
        while let Ok(1..) = stream.read(&mut [0; 4096]) {}
    })
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

/// As in nginx, with what has passed so far.
#[test]
fn a_session_that_the_shutdown_ends_is_in_the_log() {
    let to = endless();
    let mut s = super::stream_after(
        "worker_shutdown_timeout 100ms;",
        &format!(
            "log_format l '$protocol $status $upstream_bytes_sent $upstream_bytes_received
                $upstream_first_byte_time $upstream_session_time'; access_log %%DIR%%/seen l;
             server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass 127.0.0.1:{to}; }}"
        ),
    );
    let _tunnel = Session::Tunnel.begin(&s);
    s.signal(Signal::QUIT);
    s.wait();
    let port = s.port_at(2);
    let text = "shutdown timeout while proxying connection, client: 127.0.0.1, server: 127.0.0.1:";
    s.wait_log(&format!("{text}{port}, upstream: \"127.0.0.1:{to}\", bytes from/to client:4/"), 1);
    let seen = s.dir().read("seen");
    let words: Vec<&str> = seen.split_whitespace().collect();
    assert_eq!(words[..3], ["TCP", "200", "4"], "{seen}");
    let [received, first, whole] = words[3..] else { panic!("{seen}") };
    assert!(received.parse::<u64>().unwrap() >= 4, "{seen}");
    assert!([first, whole].iter().all(|time| time.parse::<f64>().is_ok()), "{seen}");
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
        let (to, udp, calls) = (endless(), talker(), callee());
        let conf = format!(
            "{timeout} events {{ }}
             http {{ keepalive_timeout 500ms; server {{ listen 127.0.0.1:%%PORT%%; http2 on;
                 location /short {{ return 200 short; }}
                 location /call/ {{ grpc_pass grpc://127.0.0.1:{calls}; }}
                 location /sleepingscript {{ content_by_lua_block {{
                     ngx.say('begun') ngx.flush(true) while true do ngx.sleep(0.02) end }} }}
                 location /readingscript {{ content_by_lua_block {{
                     local s = ngx.socket.tcp() s:connect('127.0.0.1', {calls}) ngx.say('begun') ngx.flush(true) s:receive() }} }}
                 location /waitingscript {{ content_by_lua_block {{
                     local t = ngx.thread.spawn(function() while true do ngx.sleep(3600) end end)
                     ngx.say('begun') ngx.flush(true) ngx.thread.wait(t) }} }}
                 location /timer {{ content_by_lua_block {{
                     ngx.timer.at(0, function() while not ngx.worker.exiting() do ngx.sleep(0.02) end end)
                     ngx.timer.at(3600, function() end)
                     ngx.say('begun') ngx.flush(true) ngx.sleep(3600) }} }}
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
