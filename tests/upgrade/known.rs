//! Everything that a worker has learned, over a reload and a binary upgrade, while its source is
//! up, slow or dead. There is a load of HTTP/1.1, TLS and HTTP/2 meanwhile, with a tunnel that
//! stays.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use weir_testkit::{Client, Dir, PATIENCE, Response, ask_until, free_port, listen, wait_end};

use super::Daemon;
use super::ask::{self, Ask};

/// How the servers are that workers have learned from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Up,
    Slow,
    Dead,
}

/// Servers and a name server that turn slow or dead when they are told to.
struct Sources {
    state: Arc<AtomicU8>,
    /// Two that answer, one that is ill to its checks, and the name server.
    good: u16,
    other: u16,
    ill: u16,
    names: u16,
}

impl Sources {
    fn new() -> Sources {
        let state = Arc::new(AtomicU8::new(0));
        let serve = |name: &'static str| {
            let state = state.clone();
            listen(move |stream| {
                answer(stream, name, &state);
            })
        };
        let (good, other, ill) = (serve("good"), serve("other"), serve("ill"));
        Sources { good, other, ill, names: names(state.clone()), state }
    }

    fn turn(&self, source: Source) {
        self.state.store(source as u8, Ordering::SeqCst);
    }
}

/// Waits as the state says; false if there is no answer.
#[allow(clippy::disallowed_methods, reason = "a source that is slow")]
fn is_answered(state: &AtomicU8) -> bool {
    match state.load(Ordering::SeqCst) {
        0 => true,
        // Much longer than a reload takes to be asked for something.
        1 => {
            thread::sleep(Duration::from_millis(300));
            true
        }
        _ => false,
    }
}

fn answer(mut stream: TcpStream, name: &str, state: &AtomicU8) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    if head.contains("Upgrade:") {
        write!(stream, "HTTP/1.1 101 Echo\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").ok()?;
        let mut byte = [0];
        while reader.read(&mut byte).ok()? > 0 {
            stream.write_all(&byte).ok()?;
        }
        return None;
    }
    is_answered(state).then_some(())?;
    let status = if name == "ill" { "500 Ill" } else { "200 OK" };
    let fields = "Connection: close\r\nCache-Control: max-age=3600\r\nSet-Cookie: s=1";
    write!(stream, "HTTP/1.1 {status}\r\n{fields}\r\nX-By: {name}\r\nContent-Length: 2\r\n\r\nok")
        .ok()
}

/// A name server that knows all names as 127.0.0.1.
fn names(state: Arc<AtomicU8>) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buf = [0; 512];
        while let Ok((n, from)) = socket.recv_from(&mut buf) {
            if !is_answered(&state) {
                continue;
            }
            let mut answer = buf[..n].to_vec();
            answer[2..4].copy_from_slice(&[0x81, 0x80]);
            answer[7] = 1;
            answer.extend_from_slice(b"\xc0\x0c\0\x01\0\x01\0\0\0\x01\0\x04\x7f\0\0\x01");
            let _ = socket.send_to(&answer, from);
        }
    });
    port
}

fn start(sources: &Sources, tls: u16) -> Daemon {
    let dir = Dir::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    for file in ["leaf.pem", "leaf.key"] {
        dir.write(file, std::fs::read(data.join(file)).unwrap());
    }
    let Sources { good, other, ill, names, .. } = sources;
    let (path, dead) = (dir.path().display().to_string(), free_port());
    let http = format!(
        "log_format n '$arg_n $status'; access_log {path}/a.log n;
         proxy_cache_path {path}/cache keys_zone=c:1m; lua_shared_dict d 64k;
         limit_req_zone $arg_k zone=l:64k rate=1r/m; limit_conn_zone $arg_k zone=m:64k;
         ssl_certificate {path}/leaf.pem; ssl_certificate_key {path}/leaf.key;
         resolver 127.0.0.1:{names} ipv6=off; resolver_timeout 30s; proxy_connect_timeout 30s;
         upstream named {{ zone named 64k; server up.test:{good} resolve; }}
         upstream failed {{ zone failed 64k; server 127.0.0.1:{dead} max_fails=1 fail_timeout=1h;
             server 127.0.0.1:{good} max_fails=0 backup; }}
         upstream learned {{ zone learned 64k; server 127.0.0.1:{good} max_fails=0;
             server 127.0.0.1:{other} max_fails=0;
             sticky learn create=$upstream_cookie_s lookup=$cookie_s zone=s:64k; }}
         upstream checked {{ zone checked 64k; server 127.0.0.1:{good} max_fails=0;
             server 127.0.0.1:{ill} max_fails=0; }}"
    );
    let server = format!(
        "listen 127.0.0.1:{tls} ssl; http2 on; proxy_next_upstream error timeout;
         add_header X-By $upstream_http_x_by always; add_header X-Asked $upstream_addr always;
         location /load {{ return 200 $pid; }}
         location /cached {{ proxy_pass http://127.0.0.1:{good}; proxy_cache c;
             proxy_cache_key $uri; proxy_ignore_headers Set-Cookie; add_header X-Cache $upstream_cache_status; }}
         location /rate {{ limit_req zone=l; empty_gif; }}
         location /most {{ limit_conn m 1; empty_gif; }}
         location /hold {{ limit_conn m 2; proxy_pass http://127.0.0.1:{good}; }}
         location /dict {{ content_by_lua 'ngx.print((ngx.shared.d:incr(\"x\", 1, 0)))'; }}
         location /named {{ proxy_pass http://named; }}
         location /failed {{ proxy_pass http://failed; }}
         location /learned {{ proxy_pass http://learned; }}
         location /checked {{ proxy_pass http://checked;
             health_check interval=10ms uri=/check; proxy_read_timeout 30s; }}
         location /tunnel {{ proxy_pass http://127.0.0.1:{good}; proxy_http_version 1.1;
             proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }}"
    );
    Daemon::of(dir, &http, &server)
}

/// One client's requests and what is known by them.
struct World {
    daemon: Daemon,
    tls: u16,
    sent: Mutex<Vec<String>>,
    next: AtomicUsize,
}

impl World {
    /// A number for a request, under which it stands in the log.
    fn number(&self, status: u16) -> String {
        let n = format!("n{}", self.next.fetch_add(1, Ordering::Relaxed));
        self.sent.lock().unwrap().push(format!("{n} {status}"));
        n
    }

    fn ask(&self, path: &str, headers: &str) -> Response {
        let n = format!("n{}", self.next.fetch_add(1, Ordering::Relaxed));
        let mut client = Client::connect(self.daemon.port);
        let said = client.ask(&format!("GET {path}?k=x&n={n}"), headers, "");
        self.sent.lock().unwrap().push(format!("{n} {}", said.status));
        said
    }

    fn field(&self, path: &str, headers: &str, name: &str) -> String {
        self.ask(path, headers).header(name).unwrap_or("-").to_owned()
    }

    /// What is known, each by what it makes of a request; `named` only where it can be known at once.
    fn known(&self, with_names: bool) -> Vec<(&'static str, String)> {
        let asked = self.field("/failed", "", "X-Asked");
        let mut by = Vec::from_iter((0..4).map(|_| self.field("/checked", "", "X-By")));
        by.sort_unstable();
        by.dedup();
        let session = |_| self.field("/learned", "Cookie: s=1\r\n", "X-By");
        let mut sessions = Vec::from_iter((0..3).map(session));
        sessions.dedup();
        let mut known = vec![
            ("cached", self.field("/cached", "", "X-Cache")),
            ("rate", self.ask("/rate", "").status.to_string()),
            ("most", self.ask("/most", "").status.to_string()),
            (
                "failed",
                if asked.contains(", ") { "tried".to_owned() } else { "left out".to_owned() },
            ),
            ("checked", by.join(" ")),
            ("learned", sessions.len().to_string()),
        ];
        if with_names {
            known.push(("named", self.ask("/named", "").status.to_string()));
        }
        known
    }
}

/// What is known before, and after a reload.
const KNOWN: &[(&str, &str)] = &[
    ("cached", "HIT"),
    ("rate", "503"),
    ("most", "503"),
    ("failed", "left out"),
    ("checked", "good"),
    ("learned", "1"),
    ("named", "200"),
];

/// Requests over one protocol, one after another, all of which are answered; each has a connection of its own, or one
/// that stays while the server lets it.
fn load(world: &World, mut client: ask::Client, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let n = world.number(200);
        let target = format!("/load?n={n}");
        let (method, headers) = ("GET".to_owned(), Vec::new());
        let ask = Ask { method, target, headers, body: "", chunked: false };
        // A connection that the server has left may end under a request, which may go to another one then; that one
        // may be of the other worker that leaves.
        let said = (0..=2).find_map(|_| client.ask(&ask).ok());
        assert_eq!(said.map(|said| said.0), Some(200), "{}: {n}", client.name());
    }
}

/// A tunnel that echoes.
struct Tunnel(TcpStream);

impl Tunnel {
    fn open(world: &World) -> Tunnel {
        let mut stream = TcpStream::connect(("127.0.0.1", world.daemon.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let n = world.number(101);
        let head = "Host: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
        write!(stream, "GET /tunnel?n={n} HTTP/1.1\r\n{head}").unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        Tunnel(stream)
    }

    fn echoes(&mut self) {
        self.0.write_all(b"echo").unwrap();
        let mut back = [0; 4];
        self.0.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"echo");
    }
}

fn generation(upgrades: bool, source: Source) {
    let what = format!("{}, {source:?}", if upgrades { "an upgrade" } else { "a reload" });
    let (sources, tls) = (Sources::new(), free_port());
    let daemon = start(&sources, tls);
    let world = World { daemon, tls, sent: Mutex::default(), next: AtomicUsize::new(0) };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _until = super::Ends(&stop);
        // All is learned while the sources are up, and by each worker.
        let is_named = || (0..16).all(|_| world.ask("/named", "").status == 200);
        assert!(ask_until(is_named), "{what}");
        assert!(ask_until(|| world.field("/checked", "", "X-By") == "good"
            && world.field("/checked", "", "X-By") == "good"));
        world.daemon.wait("nobody is ill", || {
            world.daemon.dir.read("error.log").contains("peer is unhealthy")
        });
        for path in ["/cached", "/rate", "/failed", "/learned"] {
            world.ask(path, "");
        }
        // An answer may be with its client before it is kept.
        assert!(ask_until(|| world.field("/cached", "", "X-Cache") == "HIT"), "{what}");
        let n = world.number(200);
        let mut held = Client::connect(world.daemon.port);
        held.send(format!(
            "POST /hold?k=x&n={n} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\nx"
        ));
        assert!(ask_until(|| world.ask("/most", "").status == 503), "{what}");
        let dict: u32 = world.ask("/dict", "").body().parse().unwrap();
        assert_eq!(world.known(true), expected(KNOWN), "{what}: before it");

        let port = world.daemon.port;
        let clients = [
            ask::Client::Plain(port, None),
            ask::Client::Tls(world.tls),
            ask::Client::Http2(world.tls, None),
        ];
        let (world, stop) = (&world, &stop);
        let loads: Vec<_> =
            clients.map(|client| scope.spawn(move || load(world, client, stop))).into();
        let mut tunnel = Tunnel::open(world);
        tunnel.echoes();
        sources.turn(source);
        let before = world.daemon.dir.read("error.log").matches(TOLD).count();
        let old = if upgrades {
            let (old, _) = world.daemon.upgrade();
            world.daemon.signal(old, Signal::WINCH);
            old
        } else {
            world.daemon.signal(world.daemon.pid("nginx.pid"), Signal::HUP);
            0
        };
        world.daemon.wait("old workers stay", || {
            world.daemon.dir.read("error.log").matches(TOLD).count() >= before + 2
        });
        after(world, upgrades, source, dict, &what);
        tunnel.echoes();
        // What the old workers had begun they end.
        sources.turn(Source::Up);
        held.send("xxx");
        assert_eq!(held.response().status, 200, "{what}");
        drop(tunnel);
        if upgrades {
            world.daemon.signal(old, Signal::QUIT);
            wait_end(old);
        }
        stop.store(true, Ordering::Relaxed);
        for load in loads {
            load.join().unwrap();
        }
    });
    let last = world.daemon.pid("nginx.pid");
    world.daemon.signal(last, Signal::QUIT);
    wait_end(last);
    let log = world.daemon.dir.read("a.log");
    let mut lines: Vec<&str> = log.lines().collect();
    let mut sent = world.sent.into_inner().unwrap();
    lines.sort_unstable();
    sent.sort_unstable();
    assert_eq!(lines, sent, "{what}: one line for each request");
}

const TOLD: &str = ": gracefully shutting down";

fn expected(known: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    known.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

/// What the new workers know.
fn after(world: &World, upgrades: bool, source: Source, dict: u32, what: &str) {
    // Workers that learn anew need servers to learn from.
    if !upgrades {
        let known: &[_] = KNOWN;
        let mut known = expected(known);
        if source == Source::Dead {
            // No server answers. The request to the server shows that the name is known.
            known.retain(|(name, _)| ["cached", "rate", "most"].contains(name));
            let seen = world.known_without_servers();
            assert_eq!(seen, known, "{what}");
            let asked = world.ask("/named", "");
            assert!(asked.header("X-Asked").is_some_and(|to| to.contains("127.0.0.1")), "{what}");
        } else {
            assert_eq!(world.known(true), known, "{what}");
        }
        assert_eq!(world.ask("/dict", "").body(), (dict + 1).to_string(), "{what}");
        return;
    }
    assert_eq!(world.field("/cached", "", "X-Cache"), "HIT", "{what}");
    for path in ["/rate", "/most"] {
        assert_eq!(world.ask(path, "").status, 200, "{what}: {path} begins anew");
    }
    assert_eq!(world.ask("/dict", "").body(), "1", "{what}");
    if source != Source::Dead {
        assert!(ask_until(|| world.ask("/named", "").status == 200), "{what}");
    }
}

impl World {
    fn known_without_servers(&self) -> Vec<(&'static str, String)> {
        vec![
            ("cached", self.field("/cached", "", "X-Cache")),
            ("rate", self.ask("/rate", "").status.to_string()),
            ("most", self.ask("/most", "").status.to_string()),
        ]
    }
}

#[test]
fn a_reload_knows_what_was_known() {
    generations(false);
}

#[test]
fn an_upgrade_keeps_what_it_promises() {
    generations(true);
}

/// Each is mostly one wait after another, so that they take their time at once.
fn generations(upgrades: bool) {
    thread::scope(|scope| {
        for source in [Source::Up, Source::Slow, Source::Dead] {
            scope.spawn(move || generation(upgrades, source));
        }
    });
}
