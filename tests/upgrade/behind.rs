//! What workers have from other servers, over a reload and a binary upgrade: idle connections to
//! servers, and OCSP responses for the server's own certificate; while those servers are up, do not
//! answer, or are dead.

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use weir_testkit::{Client, Dir, Server, ask_until, free_port, wait_end};

use super::anybody::Anybody;
use super::{Daemon, WEIR};

/// A server behind, of which it is known how many connections it has.
fn origin() -> Server {
    Server::start(
        WEIR,
        "events { }
         http {
             keepalive_timeout 1h; keepalive_requests 1000000; http2 on;
             server { listen 127.0.0.1:%%PORT%%; return 200 ok; }
             server { listen 127.0.0.1:%%PORT1%%; keepalive_timeout 0; location / { stub_status; } }
         }",
    )
}

/// Connections that it has, beside the one that asks.
fn open(origin: &Server) -> usize {
    let said = Client::connect(origin.port_at(1)).get("/").body();
    let active = said.lines().next().and_then(|line| line.rsplit(' ').find_map(|w| w.parse().ok()));
    active.map_or(usize::MAX, |active: usize| active.saturating_sub(1))
}

/// Ways on which connections are kept, one each.
const WAYS: [&str; 3] = ["/http1", "/http2", "/script"];

fn keeping(origin: u16) -> Daemon {
    let http = format!(
        "upstream kept {{ zone kept 64k; server 127.0.0.1:{origin}; keepalive 8; }}
         upstream frames {{ zone frames 64k; server 127.0.0.1:{origin}; keepalive 8; }}"
    );
    let server = format!(
        "location /http1 {{ proxy_pass http://kept; proxy_http_version 1.1; proxy_set_header Connection ''; }}
         location /http2 {{ proxy_pass http://frames; proxy_http_version 2; }}
         location /script {{ content_by_lua_block {{
             local to = ngx.socket.tcp()
             assert(to:connect('127.0.0.1', {origin}))
             assert(to:send('GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n'))
             assert(to:receiveuntil('\\r\\n\\r\\nok')())
             assert(to:setkeepalive(3600000, 8))
             ngx.print('ok')
         }} }}"
    );
    Daemon::with(Dir::new(), 1, "", &http, &server)
}

fn ask_all(daemon: &Daemon) {
    for way in WAYS {
        assert_eq!(Client::connect(daemon.port).get(way).body(), "ok", "{way}");
    }
}

/// A request that keeps its worker until it is ended.
fn hold(daemon: &Daemon) -> Client {
    let mut held = Client::connect(daemon.port);
    let head = "Host: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\nx";
    held.deliver(format!("POST /http1 HTTP/1.1\r\n{head}"));
    held
}

/// A reload or a binary upgrade; the old master's process id, or 0.
fn turn(daemon: &Daemon, upgrades: bool, meanwhile: impl FnOnce()) -> i32 {
    let told = || daemon.dir.read("error.log").matches(": gracefully shutting down").count();
    let before = told();
    let old = if upgrades { daemon.upgrade().0 } else { 0 };
    meanwhile();
    match old {
        0 => daemon.signal(daemon.pid("nginx.pid"), Signal::HUP),
        old => daemon.signal(old, Signal::WINCH),
    }
    daemon.wait("old workers stay", || told() > before);
    old
}

fn quit(daemon: &Daemon, old: i32) {
    if old != 0 {
        daemon.signal(old, Signal::QUIT);
        wait_end(old);
    }
}

#[test]
fn connections_to_servers_that_rest_are_closed_though_their_worker_stays() {
    for (upgrades, answers) in [(false, true), (false, false), (true, true), (true, false)] {
        let what = format!("upgrade: {upgrades}, the server behind answers: {answers}");
        let origin = origin();
        let daemon = keeping(origin.port());
        ask_all(&daemon);
        ask_all(&daemon);
        assert_eq!(open(&origin), WAYS.len(), "{what}: kept");
        let mut held = hold(&daemon);
        let worker = origin.workers()[0];
        let old = turn(&daemon, upgrades, || {
            if !answers {
                origin.signal_worker(worker, Signal::STOP);
            }
        });
        if !answers {
            origin.signal_worker(worker, Signal::CONT);
        }
        assert!(ask_until(|| open(&origin) == 0), "{what}: {} stay", open(&origin));
        // The new workers have connections of their own.
        ask_all(&daemon);
        assert_eq!(open(&origin), WAYS.len(), "{what}: kept anew");
        // No worker keeps what the old one opens for requests that it had begun.
        held.send("xxx");
        assert_eq!(held.response().body(), "ok", "{what}");
        assert!(ask_until(|| open(&origin) == WAYS.len()), "{what}: {} stay", open(&origin));
        quit(&daemon, old);
    }
}

/// A responder for the server's certificate.
fn responder() -> Server {
    let dir = Dir::new();
    dir.write("good.ocsp", testdata("good.ocsp"));
    Server::start_in(
        dir,
        WEIR,
        "events { }
         http { server { listen 127.0.0.1:%%PORT%%; root %%DIR%%; access_log %%DIR%%/asked;
             default_type application/ocsp-response; location / { try_files /good.ocsp =404; } } }",
    )
}

fn testdata(name: &str) -> Vec<u8> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata").join(name);
    std::fs::read(data).unwrap()
}

fn stapling(responder: u16, tls: u16) -> Daemon {
    let dir = Dir::new();
    for file in ["leaf.pem", "leaf.key", "root.pem"] {
        dir.write(file, testdata(file));
    }
    dir.write("chain.pem", [testdata("leaf.pem"), testdata("inter.pem")].concat());
    let server = format!(
        "listen 127.0.0.1:{tls} ssl; ssl_certificate chain.pem; ssl_certificate_key leaf.key;
         ssl_stapling on; ssl_stapling_verify on; ssl_trusted_certificate root.pem;
         ssl_stapling_responder http://127.0.0.1:{responder}/; return 200 ok;"
    );
    Daemon::with(dir, 1, "", "", &server)
}

/// What comes along with the certificate in a whole handshake.
fn stapled(tls: u16) -> Vec<u8> {
    let seen = Arc::new(Anybody::default());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(seen.clone())
        .with_no_client_auth();
    let name = ServerName::try_from("www.example.org").unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = TcpStream::connect(("127.0.0.1", tls)).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).expect("a handshake");
    }
    seen.0.lock().unwrap().clone()
}

#[test]
fn a_new_ocsp_response_is_fetched_without_a_waiting_client() {
    let good = testdata("good.ocsp");
    for upgrades in [false, true] {
        let what = format!("upgrade: {upgrades}");
        let (responder, tls) = (responder(), free_port());
        let daemon = stapling(responder.port(), tls);
        // A line comes after what it tells of.
        let asked = |times| {
            responder.wait_file("asked", "\n", times);
            responder.dir().read("asked").lines().count()
        };
        assert!(ask_until(|| stapled(tls) == good), "{what}");
        assert_eq!(asked(1), 1, "{what}");
        let old = turn(&daemon, upgrades, || {});
        assert!(ask_until(|| stapled(tls) == good), "{what}: after it");
        assert_eq!(asked(2), 2, "{what}");
        quit(&daemon, old);

        // The new workers' question gets no answer yet. Clients are served, and get the answer as
        // soon as there is one.
        let worker = responder.workers()[0];
        responder.signal_worker(worker, Signal::STOP);
        let old = turn(&daemon, upgrades, || {});
        // A worker that says that it goes may still take a connection.
        assert!(ask_until(|| stapled(tls).is_empty()), "{what}: the old workers stay");
        for _ in 0..4 {
            assert_eq!(stapled(tls), b"", "{what}: nothing was said yet");
        }
        responder.signal_worker(worker, Signal::CONT);
        assert!(ask_until(|| stapled(tls) == good), "{what}: once it is said");
        quit(&daemon, old);

        drop(responder);
        let old = turn(&daemon, upgrades, || {});
        assert!(ask_until(|| stapled(tls).is_empty()), "{what}: nobody says anything");
        quit(&daemon, old);
    }
}
