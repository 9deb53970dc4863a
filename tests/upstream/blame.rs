//! A fault of weir or of a client must not count as a server's failure: a check that draws its
//! cases.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use weir_testkit::{
    Client, Dice, NameReply, PATIENCE, Server, ServerSide, ask_until, certified, listen,
    name_server, number, seed, server_side,
};

use super::WEIR;
use super::connections::limit_descriptors;
use super::origin::serve;

/// A server with groups of two servers each, over HTTP and TCP, plain and in TLS. One failure takes a server out for an
/// hour.
struct Trial {
    server: Server,
    /// The requests that an origin leaves without an answer; what comes is dropped to end it.
    silent: Receiver<Sender<()>>,
}

/// What goes wrong, and that this is so.
type Case = (&'static str, fn(&Trial));

const CASES: &[Case] = &[
    ("http: a certificate that cannot be loaded", |t| {
        assert_eq!(t.server.get("/certificate?n=missing").status, 500);
    }),
    ("http: a name that no certificate is for", |t| {
        assert_eq!(t.server.get("/name?n=other.example").status, 502);
    }),
    ("http: a name that does not resolve", |t| {
        assert_eq!(t.server.get("/resolved?n=missing.example").status, 502);
    }),
    ("http: no descriptors", |t| {
        let mut client = t.server.connect();
        assert_eq!(client.get("/").status, 200);
        let status = t.without_descriptors(|| client.get("/").status);
        assert_eq!(status, 500);
    }),
    ("http: no connections left", |t| {
        let mut client = t.server.connect();
        assert_eq!(client.get("/").status, 200);
        let others: Vec<_> =
            (0..CONNECTIONS).map(|_| TcpStream::connect(("127.0.0.1", t.server.port()))).collect();
        // Whether it has a connection to a server is another matter.
        let _ = client
            .try_send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .and_then(|()| client.try_response());
        drop(others);
    }),
    ("http: a client that leaves", |t| {
        let mut client = t.server.connect();
        client.send("GET /silent HTTP/1.1\r\nHost: a\r\n\r\n");
        let held = t.silent.recv_timeout(PATIENCE).unwrap();
        let before = t.server.logged(GONE);
        drop(client);
        t.server.wait_log(GONE, before + 1);
        drop(held);
    }),
    ("http: a body that is no body", |t| t.bad_body("/")),
    ("http: a body that is no body, and is not waited for", |t| t.bad_body("/unbuffered")),
    ("http: no disk for a body", |t| {
        let answer =
            t.server.ask("POST /spilled", "Content-Length: 100000\r\n", &"x".repeat(100_000));
        assert_eq!(answer.status, 500);
    }),
    ("stream: a certificate that cannot be loaded", |t| assert_eq!(t.secured(5, "2"), "")),
    ("stream: a name that no certificate is for", |t| assert_eq!(t.secured(6, "2"), "")),
    ("stream: a name that does not resolve", |t| assert_eq!(t.secured(7, "2"), "")),
    ("stream: no descriptors", |t| {
        let mut client = TcpStream::connect(("127.0.0.1", t.server.port_at(5))).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(ask_until(|| server_side(&client) == Some(ServerSide::Accepted)));
        let said = t.without_descriptors(|| {
            client.write_all(proxied("1").as_bytes()).unwrap();
            let mut said = Vec::new();
            let _ = client.read_to_end(&mut said);
            said
        });
        assert_eq!(said, b"");
    }),
    ("stream: a client that leaves", |t| {
        let mut client = TcpStream::connect(("127.0.0.1", t.server.port_at(5))).unwrap();
        client.write_all(proxied("1").as_bytes()).unwrap();
        drop(client);
    }),
    ("stream: a datagram that is too long with what goes before it", |t| {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let before = t.server.logged("Message too long");
        client.send_to(&[b'x'; 65_507], ("127.0.0.1", t.server.port_at(8))).unwrap();
        t.server.wait_log("Message too long", before + 1);
    }),
];

/// So many connections a worker may have.
const CONNECTIONS: usize = 48;
const GONE: &str = "client prematurely closed connection";

/// What a balancer says of a client. The tests choose names by its port.
fn proxied(port: &str) -> String {
    format!("PROXY TCP4 127.0.0.1 127.0.0.1 {port} 80\r\n")
}

impl Trial {
    fn start() -> Trial {
        let (tell, silent) = channel();
        let tell = Arc::new(Mutex::new(tell));
        let origin = |name: &'static str| {
            let tell = tell.clone();
            serve(move |head| {
                if head.starts_with("GET /silent") {
                    let (end, ended) = channel::<()>();
                    tell.lock().unwrap().send(end).ok()?;
                    let _ = ended.recv();
                    return None;
                }
                Some(format!("X-Origin: {name}\r\n"))
            })
        };
        let echo = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let port = socket.local_addr().unwrap().port();
            std::thread::spawn(move || {
                let mut buf = [0; 1 << 16];
                while let Ok((n, from)) = socket.recv_from(&mut buf) {
                    let _ = socket.send_to(&buf[..n], from);
                }
            });
            port
        };
        let group = |name: &str, a: String, b: String| {
            let limits = "max_fails=1 fail_timeout=1h";
            format!(
                "upstream {name} {{ zone {name} 64k; server {a} {limits}; server {b} {limits}; }}"
            )
        };
        let local = |port: u16| format!("127.0.0.1:{port}");
        let ours = |port: u16| format!("127.0.0.1:%%PORT{port}%%");
        let plain = group("plain", local(origin("a")), local(origin("b")));
        // Each request opens a connection.
        let plain = plain.replace("zone", "keepalive 0; zone");
        let sessions = group("sessions", ours(2), ours(3));
        let datagrams = group("datagrams", local(echo()), local(echo()));
        let secured = group("secured", ours(2), ours(3));
        let dns = name_server(|_| NameReply::NoSuchName);
        let certificate = "certificate %%DIR%%";
        let conf = format!(
            "user root; worker_processes 1; events {{ worker_connections {CONNECTIONS}; }}
             http {{
                 resolver 127.0.0.1:{dns} ipv6=off; ssl_certificate chain.pem; ssl_certificate_key leaf.key;
                 {plain} {secured}
                 server {{
                     listen 127.0.0.1:%%PORT%%; client_body_buffer_size 8k;
                     proxy_http_version 1.1; proxy_set_header Connection close;
                     location / {{ proxy_pass http://plain; health_check uri=/check interval=10ms; }}
                     location /unbuffered {{ proxy_pass http://plain; proxy_request_buffering off; }}
                     location /spilled {{ proxy_pass http://plain; client_body_temp_path %%DIR%%/temporary; }}
                     location /resolved {{ proxy_pass http://$arg_n; }}
                     location /certificate {{ proxy_pass https://secured;
                         proxy_ssl_{certificate}/$arg_n.pem; proxy_ssl_certificate_key %%DIR%%/$arg_n.key; }}
                     location /name {{ proxy_pass https://secured; proxy_ssl_name $arg_n; proxy_ssl_verify on;
                         proxy_ssl_verify_depth 3; proxy_ssl_trusted_certificate root.pem; }}
                 }}
                 server {{ listen 127.0.0.1:%%PORT2%% ssl; return 200 '[a]'; }}
                 server {{ listen 127.0.0.1:%%PORT3%% ssl; return 200 '[b]'; }}
                 server {{ listen 127.0.0.1:%%PORT4%%; weir_status json; }}
             }}
             stream {{
                 resolver 127.0.0.1:{dns} ipv6=off;
                 map $proxy_protocol_port $file {{ 1 client; default missing; }}
                 map $proxy_protocol_port $name {{ 1 www.example.org; default other.example; }}
                 map $proxy_protocol_port $where {{ 1 sessions; default missing.example:80; }}
                 proxy_ssl on; proxy_ssl_verify_depth 3; proxy_ssl_trusted_certificate root.pem;
                 {sessions} {datagrams}
                 server {{ listen 127.0.0.1:%%PORT5%% proxy_protocol; proxy_pass sessions;
                     health_check interval=10ms;
                     proxy_ssl_{certificate}/$file.pem; proxy_ssl_certificate_key %%DIR%%/$file.key; }}
                 server {{ listen 127.0.0.1:%%PORT6%% proxy_protocol; proxy_pass sessions;
                     proxy_ssl_verify on; proxy_ssl_name $name; }}
                 server {{ listen 127.0.0.1:%%PORT7%% proxy_protocol; proxy_pass $where; }}
                 server {{ listen 127.0.0.1:%%PORT8%% udp; proxy_pass datagrams; proxy_ssl off;
                     proxy_protocol on; proxy_responses 1; }}
             }}"
        );
        let server = Server::start_in(certified(), WEIR, &conf);
        fs::remove_dir_all(server.dir().file("temporary")).unwrap();
        server.dir().write("temporary", "no directory");
        Trial { server, silent }
    }

    /// What `run` comes to while the worker can open nothing.
    fn without_descriptors<T>(&self, run: impl FnOnce() -> T) -> T {
        let worker = self.server.workers()[0];
        limit_descriptors(worker, Some(3));
        let done = run();
        limit_descriptors(worker, None);
        done
    }

    fn bad_body(&self, path: &str) {
        let mut client = self.server.connect();
        client.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
        ));
        assert_eq!(client.response().status, 400);
    }

    /// What a session of a client with this port is told between brackets.
    fn secured(&self, port: usize, from: &str) -> String {
        let mut client = TcpStream::connect(("127.0.0.1", self.server.port_at(port))).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let text = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let mut said = Vec::new();
        let _ = client.write_all((proxied(from) + text).as_bytes());
        let _ = client.read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said).into_owned();
        said.split('[').nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("").to_owned()
    }

    fn datagram(&self) -> bool {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.send_to(b"text", ("127.0.0.1", self.server.port_at(8))).unwrap();
        client.recv(&mut [0; 512]).is_ok()
    }

    /// No server is blamed, and other clients are served by all of them.
    fn all_is_well(&self, case: &str) {
        let asked = |ask: &dyn Fn() -> String| {
            let mut all: Vec<String> = (0..4).map(|_| ask()).collect();
            all.sort();
            all.dedup();
            all.concat()
        };
        let http = |path: &'static str| {
            move || {
                let answer = self.server.get(path);
                let body = answer.body();
                answer.header("X-Origin").map_or(body, str::to_owned)
            }
        };
        for (what, served, by) in [
            ("requests", asked(&http("/")), "ab"),
            ("requests in TLS", asked(&http("/certificate?n=client")), "[a][b]"),
            ("requests for a name", asked(&http("/name?n=www.example.org")), "[a][b]"),
            ("sessions", asked(&|| self.secured(5, "1")), "ab"),
            ("sessions for a name", asked(&|| self.secured(6, "1")), "ab"),
        ] {
            assert_eq!(served, by, "{what} after {case:?}: {}", self.server.log());
        }
        assert!((0..4).all(|_| self.datagram()), "datagrams after {case:?}");
        blamed_none(&Client::connect(self.server.port_at(4)).get("/").body(), case);
    }
}

/// The page that tells of groups says that no server has failed.
fn blamed_none(page: &str, case: &str) {
    let page: Value = serde_json::from_str(page).unwrap();
    for groups in ["upstreams", "stream_upstreams"] {
        for (name, servers) in page[groups].as_object().into_iter().flatten() {
            for server in servers.as_array().into_iter().flatten() {
                let state = (&server["availability"], &server["fails"]);
                assert_eq!(state, (&"up".into(), &0.into()), "{name} after {case:?}: {server}");
                assert_ne!(server["state"], "failing", "{name} after {case:?}: {server}");
            }
        }
    }
}

#[test]
fn our_own_failures_are_no_servers_failures() {
    let trial = Trial::start();
    trial.all_is_well("the start");
    let mut dice = Dice::salted(seed(), "blame");
    let mut cases: Vec<Case> = CASES.to_vec();
    let more = number("WEIR_CASES").unwrap_or(0) as usize;
    cases.extend((0..more).map(|_| dice.pick(CASES)));
    while !cases.is_empty() {
        let (name, run) = cases.swap_remove(dice.below(cases.len()));
        run(&trial);
        trial.all_is_well(name);
    }
    for text in ["peer is unhealthy", "temporarily disabled"] {
        assert_eq!(trial.server.logged(text), 0, "{}", trial.server.log());
    }
}

/// Set in a network namespace of the test's own.
const INSIDE: &str = "WEIR_TEST_INSIDE";

/// Without local ports for connections to servers, requests and sessions fail, and checks cannot be made. With ports
/// again, all servers serve. It needs a network namespace, and so root.
#[test]
fn a_want_of_ports_is_no_servers_failure() {
    if std::env::var_os(INSIDE).is_none() {
        let this = std::env::current_exe().unwrap();
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]).arg(this);
        command.args(["--exact", "blame::a_want_of_ports_is_no_servers_failure", "--nocapture"]);
        let Ok(done) = command.env(INSIDE, "1").output() else { return };
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        if said.contains("Operation not permitted") || said.contains("ip: not found") {
            return println!("not run: no network namespace");
        }
        return assert!(done.status.success(), "{said}");
    }
    let ports = |few| {
        let range = if few { "40000 40003" } else { "41000 49999" };
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).unwrap();
    };
    ports(false);
    let origin = || {
        listen(|mut socket| {
            let mut buf = [0; 4096];
            while let Ok(n) = socket.read(&mut buf)
                && n > 0
            {
                let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
                let _ = socket.write_all(ok);
                if buf[..n].windows(7).any(|end| end == b" close\r") {
                    return;
                }
            }
        })
    };
    let (a, b) = (origin(), origin());
    let limits = "max_fails=1 fail_timeout=1h";
    let group = |name| {
        format!(
            "upstream {name} {{ zone {name} 64k; server 127.0.0.1:{a} {limits}; server 127.0.0.1:{b} {limits}; }}"
        )
    };
    let conf = format!(
        "user root; worker_processes 1; events {{ }}
         http {{ {} server {{ listen unix:%%DIR%%/http;
             location / {{ proxy_pass http://requests; proxy_set_header Connection close;
                 health_check interval=10ms; }}
             location /status {{ weir_status json; }} }} }}
         stream {{ {} server {{ listen unix:%%DIR%%/stream; proxy_pass sessions;
             health_check interval=10ms; }} }}",
        group("requests"),
        group("sessions")
    );
    let server = Server::start(WEIR, &conf);
    let connect = |name| {
        let client = UnixStream::connect(server.dir().file(name)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    };
    let ask = |name, path: &str| {
        let mut client = connect(name);
        let text = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let _ = client.write_all(text.as_bytes());
        let mut said = String::new();
        let _ = client.read_to_string(&mut said);
        said
    };
    let hold = || {
        let mut client = connect("stream");
        let _ = client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let held = client.read(&mut [0; 512]).unwrap_or(0) > 0;
        held.then_some(client)
    };
    ports(true);
    // Each connection of a check is gone sooner or later, and another one holds its port instead.
    let mut held: Vec<UnixStream> = Vec::new();
    let refused = || server.logged("(99: Cannot assign requested address)");
    assert!(ask_until(|| {
        held.extend(hold());
        held.len() >= 8
    }));
    assert!(ask("http", "/").starts_with("HTTP/1.1 502 "), "{}", server.log());
    assert_eq!(ask("stream", "/"), "");
    assert!(refused() > 0);
    let checks = "while connecting to upstream, health check";
    server.wait_log(checks, 2);
    for client in held {
        client.shutdown(Shutdown::Both).unwrap();
    }
    ports(false);
    for _ in 0..4 {
        assert!(ask("http", "/").ends_with("ok"), "{}", server.log());
        assert!(ask("stream", "/").ends_with("ok"), "{}", server.log());
    }
    let page = ask("http", "/status");
    blamed_none(page.split_once("\r\n\r\n").unwrap().1, "a want of ports");
    for text in ["peer is unhealthy", "temporarily disabled"] {
        assert_eq!(server.logged(text), 0, "{}", server.log());
    }
}
