//! `health_check` and `match`: servers that fail their checks get no requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use weir_testkit::{Dir, Server, ask_until, listen};

use super::WEIR;
use super::connections::limit_descriptors;
use super::origin::{Slow, named, serve};

/// An origin that is ill when it is told to be; it counts its checks.
struct Patient {
    port: u16,
    ill: Arc<AtomicBool>,
    checks: Arc<AtomicUsize>,
}

impl Patient {
    fn new(name: &'static str) -> Patient {
        let (ill, checks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (is_ill, counted) = (ill.clone(), checks.clone());
        let port = serve(move |head| {
            if head.starts_with("GET /check") {
                assert!(head.contains("Host: u\r\n"), "{head}");
                counted.fetch_add(1, Ordering::SeqCst);
            }
            let state = if is_ill.load(Ordering::SeqCst) { "ill" } else { "well" };
            Some(format!("X-Origin: {name}\r\nX-State: {state}\r\n"))
        });
        Patient { port, ill, checks }
    }
}

fn start(peers: [u16; 2], check: &str) -> Server {
    let [a, b] = peers;
    let conf = format!(
        "worker_processes 2; events {{ }}
         http {{
             match well {{ status 200-299; header X-State ~ ^we; header ! X-Absent; }}
             upstream u {{ zone u 64k; server 127.0.0.1:{a}; server 127.0.0.1:{b}; }}
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 location / {{
                     proxy_pass http://u;
                     health_check uri=/check match=well interval=20ms {check};
                 }}
             }}
         }}"
    );
    Server::start_in(Dir::new(), WEIR, &conf)
}

fn origins(server: &Server) -> Vec<String> {
    let one = |_| server.get("/").header("X-Origin").unwrap_or("-").to_owned();
    let mut all: Vec<String> = (0..8).map(one).collect();
    all.sort();
    all.dedup();
    all
}

#[test]
fn the_ill_get_no_requests_until_they_are_well() {
    let (a, b) = (Patient::new("a"), Patient::new("b"));
    let server = start([a.port, b.port], "fails=2 passes=2 keepalive_time=1h");
    assert_eq!(origins(&server), ["a", "b"]);
    a.ill.store(true, Ordering::SeqCst);
    let about = format!("health check \"well\" of peer 127.0.0.1:{} in upstream \"u\"", a.port);
    server.wait_log(&format!("peer is unhealthy while checking header, {about}"), 1);
    assert_eq!(origins(&server), ["b"]);
    a.ill.store(false, Ordering::SeqCst);
    server.wait_log(&format!("peer is healthy, {about}"), 1);
    assert_eq!(origins(&server), ["a", "b"]);
    assert!(a.checks.load(Ordering::SeqCst) > 4);
}

#[test]
fn a_mandatory_check_comes_first() {
    let a = Patient::new("a");
    a.ill.store(true, Ordering::SeqCst);
    let server = start([a.port, named("b", "X-State: well\r\n")], "mandatory");
    server.wait_log("peer is healthy", 1);
    assert_eq!(origins(&server), ["b"]);
    assert_eq!(server.logged("peer is unhealthy"), 1);
}

#[test]
fn a_server_that_does_not_answer_is_unhealthy() {
    let dead = weir_testkit::free_port();
    let server = start([dead, named("b", "X-State: well\r\n")], "");
    server.wait_log("peer is unhealthy while connecting to upstream", 1);
    let text = "connect() failed (111: Connection refused) while connecting to upstream";
    server.wait_log(text, 1);
    assert_eq!(origins(&server), ["b"]);
}

/// An origin that gives no answer to checks that come while it hangs, not even after that.
#[derive(Default)]
struct Hanging {
    hangs: AtomicBool,
    /// Checks that got an answer.
    answered: AtomicUsize,
    /// Checks that did not, and how many of them were given up.
    hung: AtomicUsize,
    ended: AtomicUsize,
}

impl Hanging {
    fn start() -> (u16, Arc<Hanging>) {
        let this = Arc::new(Hanging::default());
        let own = this.clone();
        (listen(move |socket| own.talk(socket)), this)
    }

    fn talk(&self, mut socket: TcpStream) {
        let mut head = [0; 4096];
        let n = socket.read(&mut head).unwrap_or(0);
        if head[..n].starts_with(b"GET /check") && self.hangs.load(Ordering::SeqCst) {
            self.hung.fetch_add(1, Ordering::SeqCst);
            let _ = socket.read_to_end(&mut Vec::new());
            self.ended.fetch_add(1, Ordering::SeqCst);
            return;
        }
        self.answered.fetch_add(1, Ordering::SeqCst);
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    }

    /// Hangs until a check has come to it.
    fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
        assert!(ask_until(|| self.hung.load(Ordering::SeqCst) > 0));
    }

    /// Works again, until all checks that hang were given up, and some later ones were answered.
    fn recover(&self) {
        self.hangs.store(false, Ordering::SeqCst);
        let number = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
        assert!(ask_until(|| number(&self.ended) == number(&self.hung)));
        self.wait_answered(2);
    }

    fn wait_answered(&self, more: usize) {
        let before = self.answered.load(Ordering::SeqCst);
        assert!(ask_until(|| self.answered.load(Ordering::SeqCst) >= before + more));
    }
}

fn checked_quickly(port: u16, read_timeout: &str, held: u16) -> Server {
    let conf = format!(
        "worker_processes 2; events {{ }}
         http {{
             upstream u {{ zone u 64k; server 127.0.0.1:{port}; }}
             server {{ listen 127.0.0.1:%%PORT%%; proxy_read_timeout {read_timeout};
                 location / {{ proxy_pass http://u; health_check uri=/check interval=20ms; }}
                 location /held {{ proxy_pass http://127.0.0.1:{held}; proxy_read_timeout 1h; }} }}
         }}"
    );
    Server::start(WEIR, &conf)
}

/// The interval is shorter than the time-out: a server that hangs has one check at a time, and none that was asked
/// before it recovered declares it ill afterwards.
#[test]
fn a_server_that_hung_and_recovered_stays_healthy() {
    let (port, a) = Hanging::start();
    let server = checked_quickly(port, "1s", port);
    a.wait_answered(2);
    a.hang();
    server.wait_log("peer is unhealthy", 1);
    let hung = a.hung.load(Ordering::SeqCst);
    assert!(hung <= 2, "{hung} checks at once");
    a.recover();
    server.wait_log("peer is healthy", 1);
    assert_eq!(server.logged("peer is unhealthy"), 1, "{}", server.log());
    assert_eq!(server.get("/").status, 200);
}

/// A reload leaves a worker behind with a check that hangs. What that check finds later is older
/// than what the new worker knows.
#[test]
fn a_check_of_an_old_worker_says_nothing_of_a_recovered_server() {
    let ((port, a), slow) = (Hanging::start(), Slow::new());
    let server = checked_quickly(port, "2s", slow.port);
    // Requests that are under way keep the old workers, so one of them is that which checks.
    let held: Vec<_> = (0..8)
        .map(|_| {
            let mut client = server.connect();
            client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
            (client, slow.asked())
        })
        .collect();
    a.wait_answered(2);
    a.hang();
    a.hangs.store(false, Ordering::SeqCst);
    server.reload();
    a.recover();
    assert_eq!(server.logged("peer is unhealthy"), 0, "{}", server.log());
    drop(held);
}

/// A check that this process had no means to make says nothing of the server.
#[test]
fn our_own_shortage_makes_no_server_unhealthy() {
    let (a, b) = (Patient::new("a"), Patient::new("b"));
    let peers = format!("server 127.0.0.1:{}; server 127.0.0.1:{};", a.port, b.port);
    let conf = format!(
        "user root; worker_processes 1; events {{ }}
         http {{
             upstream u {{ zone u 64k; {peers} }}
             server {{ listen 127.0.0.1:%%PORT%%;
                 location / {{ proxy_pass http://u; health_check uri=/check interval=10ms; }} }}
         }}"
    );
    let server = Server::start(WEIR, &conf);
    assert_eq!(origins(&server), ["a", "b"]);
    let worker = server.workers()[0];
    limit_descriptors(worker, Some(3));
    server.wait_log("failed (24: Too many open files) while connecting to upstream, health", 4);
    limit_descriptors(worker, None);
    let checked = a.checks.load(Ordering::SeqCst);
    assert!(ask_until(|| a.checks.load(Ordering::SeqCst) > checked + 1));
    assert_eq!(origins(&server), ["a", "b"]);
    assert_eq!(server.logged("peer is unhealthy"), 0);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let ok = Server::start(WEIR, "events { } http { server { listen 127.0.0.1:%%PORT%%; } }");
    let complaint = |http: &str, location: &str| {
        ok.configure(&format!(
            "events {{ }} http {{ {http} server {{ listen 127.0.0.1:%%PORT%%;
             location / {{ {location} }} }} }}"
        ));
        let out = ok.command(&["-t"]);
        String::from_utf8_lossy(&out.stderr).lines().next().unwrap_or_default().to_owned()
    };
    let zoned = "upstream u { zone u 64k; server 127.0.0.1:1; }";
    for (http, location, text) in [
        (zoned, "health_check;", "\"health_check\" requires \"proxy_pass\" to an upstream"),
        ("", "proxy_pass http://127.0.0.1; health_check;", "to have a \"zone\""),
        (zoned, "proxy_pass http://u; health_check match=m;", "unknown match \"m\""),
        (
            zoned,
            "proxy_pass http://u; health_check interval=0;",
            "invalid parameter \"interval=0\"",
        ),
        (zoned, "proxy_pass http://u; health_check persistent;", "requires \"mandatory\""),
        ("match m { status 99; }", "", "invalid parameter \"99\""),
        ("match m { require $a; }", "", "\"$a\" is no variable of an answer"),
        ("match m { require word; }", "", "invalid parameter \"word\""),
    ] {
        let found = complaint(http, location);
        assert!(found.contains(text), "{found}");
    }
}

/// By the level that error logs have where nothing is said; a check that comes out the same way again is no news.
#[test]
fn a_refused_check_is_told_of_once() {
    let (a, nobody) = (Patient::new("a"), weir_testkit::free_port());
    let conf = format!(
        "error_log %%DIR%%/default.log; worker_processes 1; events {{ }}
         http {{
             upstream u {{ zone u 64k; server 127.0.0.1:{}; server 127.0.0.1:{nobody}; }}
             server {{ listen 127.0.0.1:%%PORT%%;
                 location / {{ proxy_pass http://u; health_check uri=/check interval=10ms; }} }}
         }}",
        a.port
    );
    let server = Server::start(WEIR, &conf);
    server.wait_file("default.log", "peer is unhealthy", 1);
    let checked = a.checks.load(Ordering::SeqCst);
    assert!(ask_until(|| a.checks.load(Ordering::SeqCst) > checked + 10));
    let log = server.dir().read("default.log");
    let about = format!("health check \"\" of peer 127.0.0.1:{nobody} in upstream \"u\"");
    assert_eq!(log.matches(&about).count(), 2, "{log}");
    let refused = "connect() failed (111: Connection refused) while connecting to upstream, ";
    assert!(log.contains(&format!("{refused}{about}")), "{log}");
    assert!(log.contains("[error] ") && log.contains("peer is unhealthy while "), "{log}");
}
