//! `health_check` and `match`: servers that fail their checks get no sessions.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use weir_testkit::{Server, ask_until, examples, listen};

use super::{datagrams, heard, stream, tls};

/// A server that says its name to a silent client, and `ill` or `well` to a check.
struct Patient {
    port: u16,
    ill: Arc<AtomicBool>,
}

/// What a check asks for; other sessions are told the name.
const QUESTION: &[u8] = b"how\0are you";

impl Patient {
    fn state(&self) -> impl Fn() -> &'static [u8] + Send + Sync + use<> {
        let ill = self.ill.clone();
        move || if ill.load(Ordering::SeqCst) { b"\x80ill\r\n" } else { b"\x80well\r\n" }
    }

    /// Of connections, after this line.
    fn behind(name: &'static str, line: &'static [u8]) -> Patient {
        let mut this = Patient { port: 0, ill: Arc::default() };
        let state = this.state();
        this.port = listen(move |mut socket| {
            let mut heard = vec![0; line.len()];
            let mut rest = [0; 64];
            let n = socket.read_exact(&mut heard).and_then(|()| socket.read(&mut rest));
            let n = n.unwrap_or_default();
            let answer = match &rest[..n] {
                _ if heard != line => b"no introduction",
                // It comes in two pieces.
                text if text == QUESTION => {
                    let _ = socket.write_all(&state()[..2]);
                    &state()[2..]
                }
                _ => name.as_bytes(),
            };
            let _ = socket.write_all(answer);
        });
        this
    }

    fn new(name: &'static str) -> Patient {
        Patient::behind(name, b"")
    }

    /// Of datagrams.
    fn of_datagrams(name: &'static str) -> Patient {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let this = Patient { port, ill: Arc::default() };
        let state = this.state();
        std::thread::spawn(move || {
            let mut buf = [0; 64];
            while let Ok((n, from)) = socket.recv_from(&mut buf) {
                let answer = if &buf[..n] == QUESTION { state() } else { name.as_bytes() };
                let _ = socket.send_to(answer, from);
            }
        });
        this
    }
}

const MATCH: &str = r#"match well { send "how\x00are you"; expect "\x80well"; }"#;

fn upstream(a: u16, b: u16) -> String {
    format!("upstream u {{ zone u 64k; server 127.0.0.1:{a}; server 127.0.0.1:{b}; }}")
}

/// The servers that answer sessions.
fn names(ask: impl Fn() -> String) -> Vec<String> {
    let mut all: Vec<String> = (0..6).map(|_| ask()).collect();
    all.sort();
    all.dedup();
    all
}

fn said(s: &Server) -> String {
    String::from_utf8(heard(s.port_at(1), b"name")).unwrap()
}

#[test]
fn the_ill_get_no_sessions_until_they_are_well() {
    let (a, b) = (Patient::new("a"), Patient::new("b"));
    let s = stream(&format!(
        "{MATCH} {}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass u;
             health_check match=well interval=20ms jitter=5ms fails=2 passes=2; }}",
        upstream(a.port, b.port)
    ));
    assert_eq!(names(|| said(&s)), ["a", "b"]);
    a.ill.store(true, Ordering::SeqCst);
    let about = format!("health check \"well\" of peer 127.0.0.1:{} in upstream \"u\"", a.port);
    s.wait_log(&format!("peer is unhealthy while checking data, {about}"), 1);
    assert_eq!(names(|| said(&s)), ["b"]);
    a.ill.store(false, Ordering::SeqCst);
    s.wait_log(&format!("peer is healthy, {about}"), 1);
    assert_eq!(names(|| said(&s)), ["a", "b"]);
}

#[test]
fn datagrams_are_checked_by_datagrams() {
    let (a, b) = (Patient::of_datagrams("a"), Patient::of_datagrams("b"));
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let closed = nobody.local_addr().unwrap().port();
    drop(nobody);
    let s = stream(&format!(
        "match well {{ send \"how\\x00are you\"; expect ~ ^.well; }} {}
         upstream v {{ zone v 64k; server 127.0.0.1:{closed}; server 127.0.0.1:{}; }}
         server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass u; proxy_responses 1;
             health_check udp match=well interval=20ms; }}
         server {{ listen 127.0.0.1:%%PORT2%% udp; proxy_pass v;
             health_check udp match=well interval=20ms; }}",
        upstream(a.port, b.port),
        b.port
    ));
    let ask = || {
        let client = datagrams::client(s.port_at(1));
        datagrams::asked(&client, "name")
    };
    let text = format!(
        "failed (111: Connection refused) while reading from upstream, health check \
         \"well\" of peer 127.0.0.1:{closed}"
    );
    s.wait_log(&text, 1);
    s.wait_log(&format!("peer is unhealthy while reading from upstream, health check \"well\" of peer 127.0.0.1:{closed} in upstream \"v\""), 1);
    assert_eq!(names(ask), ["a", "b"]);
    b.ill.store(true, Ordering::SeqCst);
    s.wait_log("peer is unhealthy while checking data", 2);
    assert_eq!(names(ask), ["a"]);
    b.ill.store(false, Ordering::SeqCst);
    s.wait_log("peer is healthy", 2);
    assert_eq!(names(ask), ["a", "b"]);
}

/// Without rules, a connection is all that is asked for, on the port that is said.
#[test]
fn a_mandatory_check_comes_first() {
    let (a, b, nobody) = (Patient::new("a"), Patient::new("b"), weir_testkit::free_port());
    let s = stream(&format!(
        "upstream u {{ zone u 64k; server 127.0.0.1:{nobody}; server 127.0.0.1:{}; }}
         upstream v {{ zone v 64k; server 127.0.0.1:{}; server 127.0.0.1:{}; }}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass u;
             health_check mandatory persistent interval=20ms; }}
         server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass v;
             health_check mandatory port={nobody} interval=20ms; }}",
        b.port, a.port, b.port
    ));
    s.wait_log("peer is healthy", 1);
    assert_eq!(names(|| said(&s)), ["b"]);
    s.wait_log(
        "connect() failed (111: Connection refused) while connecting to upstream, health",
        3,
    );
    s.wait_log("peer is unhealthy while connecting to upstream", 3);
    assert_eq!(heard(s.port_at(2), b""), b"");
}

/// A server that says nothing in time, or closes the connection, is ill.
#[test]
fn silence_is_no_answer() {
    let silent = listen(|mut socket| {
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let closing = listen(|mut socket| {
        let _ = socket.read(&mut [0; 64]);
    });
    let s = stream(&format!(
        "health_check_timeout 1h; {MATCH} {}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass u; health_check_timeout 50ms;
             health_check match=well interval=20ms; }}",
        upstream(silent, closing)
    ));
    let of = |port| format!("health check \"well\" of peer 127.0.0.1:{port}");
    s.wait_log(
        &format!(
            "timed out (110: Connection timed out) while reading from upstream, {}",
            of(silent)
        ),
        1,
    );
    s.wait_log(&format!("upstream closed connection while checking data, {}", of(closing)), 1);
    s.wait_log("peer is unhealthy", 2);
    assert_eq!(heard(s.port_at(1), b""), b"");
}

/// The interval is shorter than the time-out: a server that hangs has one check at a time, and none that was asked
/// before it recovered declares it ill afterwards.
#[test]
fn a_server_that_hung_and_recovered_stays_healthy() {
    let hangs = Arc::new(AtomicBool::new(false));
    let (hung, ended, answered) =
        <(Arc<AtomicUsize>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let all = (hangs.clone(), hung.clone(), ended.clone(), answered.clone());
    let a = listen(move |mut socket| {
        let (hangs, hung, ended, answered) = &all;
        let _ = socket.read(&mut [0; 64]);
        if hangs.load(Ordering::SeqCst) {
            hung.fetch_add(1, Ordering::SeqCst);
            let _ = socket.read_to_end(&mut Vec::new());
            ended.fetch_add(1, Ordering::SeqCst);
            return;
        }
        answered.fetch_add(1, Ordering::SeqCst);
        let _ = socket.write_all(b"\x80well");
    });
    let s = stream(&format!(
        "{MATCH} upstream u {{ zone u 64k; server 127.0.0.1:{a}; }}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass u; health_check_timeout 1s;
             health_check match=well interval=20ms; }}"
    ));
    let wait_answered = |more| {
        let before = answered.load(Ordering::SeqCst);
        assert!(ask_until(|| answered.load(Ordering::SeqCst) >= before + more));
    };
    wait_answered(2);
    hangs.store(true, Ordering::SeqCst);
    s.wait_log("peer is unhealthy", 1);
    let at_once = hung.load(Ordering::SeqCst);
    assert!(at_once <= 2, "{at_once} checks at once");
    hangs.store(false, Ordering::SeqCst);
    s.wait_log("peer is healthy", 1);
    assert!(ask_until(|| ended.load(Ordering::SeqCst) == hung.load(Ordering::SeqCst)));
    wait_answered(2);
    let log = s.log();
    let (_, after) = log.split_once("peer is healthy").unwrap();
    assert!(!after.contains("peer is unhealthy"), "{log}");
}

/// A check sends an unknown client's PROXY line, and speaks TLS, where sessions do.
#[test]
fn checks_speak_as_sessions_do() {
    let (a, b) = (Patient::new("a"), Patient::behind("b", b"PROXY UNKNOWN\r\n"));
    let s = tls::start(&format!(
        "{MATCH} {}
         upstream v {{ zone v 64k; server 127.0.0.1:%%PORT2%%; server 127.0.0.1:{}; }}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass u; proxy_protocol on;
             health_check match=well interval=20ms mandatory; }}
         server {{ listen 127.0.0.1:%%PORT2%% ssl; proxy_pass 127.0.0.1:{}; }}
         server {{ listen 127.0.0.1:%%PORT3%%; proxy_pass v; proxy_ssl on;
             health_check match=well interval=20ms mandatory; }}",
        upstream(a.port, b.port),
        a.port,
        a.port
    ));
    let healthy = |port| format!("peer is healthy, health check \"well\" of peer 127.0.0.1:{port}");
    s.wait_log(&healthy(b.port), 1);
    s.wait_log(&healthy(s.port_at(2)), 1);
    s.wait_log("peer is unhealthy while checking data", 1);
    s.wait_log("peer is unhealthy while SSL handshaking to upstream", 1);
    assert_eq!(names(|| String::from_utf8(heard(s.port_at(3), b"name")).unwrap()), ["a"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let s = stream("");
    let complaint = |lines: &str| {
        s.configure(&format!("events {{ }} stream {{ {lines} }}"));
        let out = s.command(&["-t"]);
        String::from_utf8_lossy(&out.stderr).lines().next().unwrap_or_default().to_owned()
    };
    let zoned = |line: &str| {
        format!(
            "match m {{ send x; }} upstream u {{ zone u 64k; server 127.0.0.1:1; }}
             server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass u; {line} }}"
        )
    };
    let own = |line: &str| format!("server {{ listen 127.0.0.1:%%PORT1%%; {line} }}");
    for (lines, text) in [
        (own("return x; health_check;"), "\"health_check\" requires \"proxy_pass\" to an upstream"),
        (own("proxy_pass 127.0.0.1:1; health_check;"), "to have a \"zone\""),
        (zoned("health_check match=n;"), "unknown match \"n\""),
        (zoned("health_check udp;"), "\"udp\" requires a \"match\""),
        (zoned("health_check udp match=m;"), "\"udp\" requires a \"match\""),
        (zoned("health_check interval=0;"), "invalid parameter \"interval=0\""),
        (zoned("health_check uri=/;"), "invalid parameter \"uri=/\""),
        (zoned("health_check persistent;"), "requires \"mandatory\""),
        ("match m { status 200; }".to_owned(), "unknown directive \"status\""),
        ("match m { send a; send b; }".to_owned(), "\"send\" directive is duplicate"),
        ("match m { expect ~ \"(\"; }".to_owned(), "pcre2_compile() failed"),
        ("match m { } match m { }".to_owned(), "duplicate match \"m\""),
    ] {
        let found = complaint(&lines);
        assert!(found.contains(text), "{lines}: {found}");
    }
}

#[test]
fn the_example_of_the_page_works() {
    let says = |text: &'static [u8]| {
        listen(move |mut socket| {
            let mut heard = [0; 64];
            while let Ok(n) = socket.read(&mut heard)
                && n > 0
            {
                let _ = socket.write_all(if &heard[..n] == b"PING\r\n" { text } else { b"here" });
            }
        })
    };
    let (store, ill) = (says(b"+PONG\r\n"), says(b"-LOADING\r\n"));
    let question = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01";
    let name_server = |answer: &'static [u8]| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let mut buf = [0; 64];
            while let Ok((n, from)) = socket.recv_from(&mut buf) {
                assert_eq!(&buf[..n], question);
                let _ = socket.send_to(answer, from);
            }
        });
        port
    };
    let (knows, refuses) = (name_server(b"\0\x01\x81\x80"), name_server(b"\0\x01\x01\x05"));
    let example = examples(include_str!("../../docs/stream.md"))
        .find(|example| example.contains("health_check "))
        .unwrap()
        .replace("events { }", "error_log %%DIR%%/error.log info; events { }")
        .replace(":8080", ":%%PORT%%")
        .replace(":5300", ":%%PORT1%%")
        .replace(":6379", &format!(":{store}"))
        .replace(":6380", &format!(":{ill}"))
        .replace(":5301", &format!(":{knows}"))
        .replace(":5302", &format!(":{refuses}"));
    let s = Server::start(env!("CARGO_BIN_EXE_weir"), &example);
    let about = |state, port| format!("\" of peer 127.0.0.1:{port} in upstream \"{state}\"");
    s.wait_log(&format!("peer is healthy, health check \"pong{}", about("stores", store)), 1);
    let said = "while checking data, health check";
    s.wait_log(&format!("peer is unhealthy {said} \"pong{}", about("stores", ill)), 1);
    s.wait_log(&format!("peer is unhealthy {said} \"found{}", about("names", refuses)), 1);
    assert_eq!(s.logged(&about("names", knows)), 0, "{}", s.log());
}
