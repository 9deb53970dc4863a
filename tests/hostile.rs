//! Clients and configurations that try to keep the server busy: the work ends soon and is logged.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;

use weir_testkit::{Client, Dir, Server, ask_until};

const CATASTROPHIC: &str = "/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!";

fn server(http: &str, locations: &str) -> Server {
    let conf = format!(
        "events {{ }} http {{ {http} server {{ listen 127.0.0.1:%%PORT%%; {locations}
         location = /ok {{ return 200 ok; }} }} }}"
    );
    Server::start(env!("CARGO_BIN_EXE_weir"), &conf)
}

#[test]
fn a_pattern_that_cannot_be_decided_lets_no_client_in() {
    for pattern in ["^/(a+)+$", "^/(?:a+)+$"] {
        let s = server(
            "",
            &format!("location ~ {pattern} {{ deny all; }} location / {{ return 200 in; }}"),
        );
        assert_eq!(s.get("/aaaa").status, 403);
        assert_eq!(s.get("/aaaa!").status, 200);
        // As in nginx: neither the location that may be meant, nor another one.
        assert_eq!(s.get(CATASTROPHIC).status, 500);
        s.wait_log("pcre2_match() failed: -47 on \"/aaaa", 1);
        assert_eq!(s.get("/ok").status, 200);
    }
}

/// To close with bytes unread is a reset, which may reach the client before it has read why it was refused.
#[test]
fn a_refused_client_reads_the_reason_though_it_sent_more() {
    let s = server("large_client_header_buffers 2 1k;", "location / { return 200 in; }");
    let more = "a".repeat(70_000);
    for (request, status) in [
        (format!("GET /{more} HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
        (format!("{more}\r\n\r\n"), 400),
        (format!("POST / HTTP/1.1\r\nHost: a b\r\nContent-Length: 70000\r\n\r\n{more}"), 400),
        (format!("POST /%2e%2e/ HTTP/1.1\r\nHost: a\r\nContent-Length: 70000\r\n\r\n{more}"), 400),
    ] {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", s.port())).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        let end = stream.read_to_string(&mut answer);
        assert!(end.is_ok(), "{end:?}: {answer}");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
}

/// Many clients read nothing before they have sent all.
#[test]
fn a_refused_client_may_send_its_body_to_the_end() {
    let s = server(
        "client_max_body_size 8m;",
        "location / { return 200 in; } location /no { return 400; }",
    );
    let body = vec![b'a'; 4 << 20];
    for (line, field) in [
        ("POST /no HTTP/1.1", "X: y"),
        ("POST / HTTP/1.1", "Host: b"),
        ("POST / HTTP/1.1", "X\0: b"),
        ("POST /%zz HTTP/1.1", "X: y"),
    ] {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", s.port())).unwrap();
        let head =
            format!("{line}\r\nHost: a\r\n{field}\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{line} {field}: {answer}");
        let sent = stream.write_all(&body);
        assert!(sent.is_ok(), "{line} {field}: {sent:?}");
    }
}

#[test]
fn a_name_that_cannot_be_decided_belongs_to_no_server() {
    // A request of this name is another server's to answer, perhaps: not the default server's.
    let s = Server::start(
        env!("CARGO_BIN_EXE_weir"),
        "events { } http {
             log_format status \"$status $request\"; access_log %%DIR%%/access.log status;
             server { listen 127.0.0.1:%%PORT%%; server_name x; return 200 default; }
             server { listen 127.0.0.1:%%PORT%%; server_name ~^(a+)+$; return 200 $1; }
             server { listen 127.0.0.1:%%PORT%%; server_name ~^(?:b+)+$; return 200 b; } }",
    );
    for letter in ["a", "b"] {
        let ask = |host: &str| {
            let mut client = s.connect();
            client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            client.try_response().map(|answer| answer.body()).ok()
        };
        assert_eq!(ask(&letter.repeat(4)), Some(letter.repeat(if letter == "a" { 4 } else { 1 })));
        assert_eq!(ask(&format!("{letter}-")), Some("default".to_owned()));
        assert_eq!(ask(&format!("{}-", letter.repeat(48))), None);
    }
    s.wait_log("while reading client request headers", 2);
    s.wait_file("access.log", "500 GET / HTTP/1.1", 2);
}

#[test]
fn conditions_and_maps_have_the_limit_too() {
    let s = server(
        "map $uri $allowed { default yes; ~^/(a+)+$ no; }",
        "location / { if ($uri ~ ^/(a+)+$) { return 403; } return 200 in; }
         location ~ !$ { return 200 \"$allowed\"; }
         location = /if { rewrite ^ /x; }",
    );
    assert_eq!(s.get("/x!").body(), "yes");
    assert_eq!(s.get(CATASTROPHIC).body(), "");
    assert_eq!(s.get(&format!("{CATASTROPHIC}/")).status, 500);
    s.wait_log("pcre2_match() failed: -47", 2);
}

#[test]
fn routes_have_the_limit_too() {
    for condition in ["uri~^/(a+)+$", "header~X:^/(?:a+)+$", "arg~x:^/(?:a+)+$"] {
        let s = server(
            "",
            &format!(
                "location / {{ route {condition} @no; return 200 in; }}
                 location @no {{ return 403; }}"
            ),
        );
        let ask = |value: &str| {
            let line = format!("GET {value}?x={value}");
            s.ask(&line, &format!("X: {value}\r\n"), "").status
        };
        assert_eq!((ask("/aaaa"), ask("/b")), (403, 200), "{condition}");
        assert_eq!(ask(CATASTROPHIC), 500, "{condition}");
        s.wait_log("pcre2_match() failed: -47 on", 1);
    }
}

#[test]
fn redirects_inside_that_go_in_circles_end() {
    let s = server(
        "",
        "location /a { rewrite ^ /b last; } location /b { rewrite ^ /a last; }
         location /c { error_page 404 /c; recursive_error_pages on; return 404; }
         location /d { try_files /none /d; }",
    );
    for path in ["/a", "/d"] {
        assert_eq!(s.get(path).status, 500, "{path}");
    }
    assert!(matches!(s.get("/c").status, 404 | 500));
    s.wait_log("rewrite or internal redirection cycle", 2);
    assert_eq!(s.get("/ok").status, 200);
}

/// The last line of what `-t` says.
fn test(conf: &str) -> (bool, String) {
    let dir = Dir::new();
    std::fs::create_dir_all(dir.file("logs")).unwrap();
    std::fs::write(dir.file("c.conf"), conf).unwrap();
    let prefix = dir.path().to_str().unwrap().to_owned();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["-t", "-p", &prefix, "-c", "c.conf"])
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn large_tables_are_read_and_wrong_ones_refused() {
    let map: String = (0..200_000).map(|n| format!("key{n} {n};\n")).collect();
    let geo: String = (0..200_000u32)
        .map(|n| format!("10.{}.{}.{}/32 {n};\n", n >> 16, n >> 8 & 255, n & 255))
        .collect();
    let http = |inside: &str| format!("events {{ }} http {{ {inside} }}");
    let (fine, said) = test(&http(&format!("map $uri $a {{ {map} }} geo $b {{ {geo} }}")));
    assert!(fine, "{said}");
    let all = "geo $b { ranges; 0.0.0.0-255.255.255.254 all; }";
    assert!(test(&http(all)).0);
    for (inside, message) in [
        ("geo $b { ranges; 1.0.0.9-1.0.0.1 a; }", "invalid range \"1.0.0.9-1.0.0.1\""),
        ("geo $b { 1.2.3.4/33 a; }", "invalid network \"1.2.3.4/33\""),
        ("geo $b { include c.conf; }", "unexpected"),
        ("map $uri $a { ~(a 1; }", "pcre2_compile() failed"),
        ("map $uri $a { include none; }", "open()"),
        ("limit_req_zone $uri zone=z:99999999g rate=1r/s;", "invalid zone size"),
        ("error_log memory:1;", "invalid buffer size \"1\""),
    ] {
        let (fine, said) = test(&http(inside));
        assert!(!fine && said.contains("[emerg]") && said.contains(message), "{inside}: {said}");
    }
}

/// More than any of it is worth.
const ENDLESS: usize = 64 << 20;
const EXTENSION: &str = "5;";
const TRAILERS: &str = "5\r\nhello\r\n0\r\nX: ";

#[test]
fn a_body_whose_framing_does_not_end_is_refused() {
    let s = server(
        "lingering_close off; client_max_body_size 0;",
        "location /up { proxy_pass http://127.0.0.1:%%PORT%%/ok; }
         location /streamed { proxy_pass http://127.0.0.1:%%PORT%%/ok; proxy_request_buffering off; }",
    );
    let mut refused = 0;
    for path in ["/up", "/streamed", "/ok"] {
        for first in [EXTENSION, TRAILERS] {
            let mut client = s.connect();
            let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked");
            client.send(format!("{head}\r\n\r\n{first}"));
            let piece = [b'a'; 1 << 16];
            let closed = (0..ENDLESS / piece.len()).any(|_| client.try_send(piece).is_err());
            assert!(closed, "{path} took all of {first:?}");
            refused += 1;
            s.wait_log("client sent too big chunk extensions or trailers", refused);
        }
    }
    assert_eq!(s.get("/ok").status, 200);
}

/// A server that answers each request with `first`, and then with `more` without end.
fn endless(first: &'static str, more: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let more = more.repeat((1 << 16) / more.len());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let mut sent = stream.write_all(first.as_bytes());
            while sent.is_ok() {
                sent = stream.write_all(more.as_bytes());
            }
        }
    });
    port
}

#[test]
fn a_server_whose_answer_does_not_come_is_given_up() {
    let chunked = |first: &str| -> &'static str {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        format!("{head}{first}").leak()
    };
    let big = "upstream sent too big chunk extensions or trailers";
    let cases = [
        (endless(chunked(EXTENSION), "e"), 200, big),
        (endless(chunked(TRAILERS), "t"), 200, big),
        (
            endless("", "HTTP/1.1 100 Continue\r\n\r\n"),
            502,
            "upstream sent too many interim responses",
        ),
        (
            endless("", "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"),
            502,
            "upstream sent too many interim",
        ),
    ];
    for (port, status, text) in cases {
        for buffering in ["on", "off"] {
            let s = server(
                "proxy_http_version 1.1;",
                &format!(
                    "location / {{ proxy_pass http://127.0.0.1:{port}; proxy_buffering {buffering}; }}"
                ),
            );
            let mut client = s.connect();
            client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            let said = client.rest();
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{port}: {said}");
            s.wait_log(text, 1);
            assert_eq!(s.get("/ok").status, 200);
        }
    }
}

/// Memory of the server's only worker that stands in no file, in KiB.
fn memory_of_worker(s: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", s.workers()[0])).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn nothing_is_kept_of_blank_lines_before_a_request() {
    let s = server("", "location / { return 200 $request_length; }");
    let before = memory_of_worker(&s);
    let mut client = s.connect();
    let blank = b"\r\n".repeat(32 * 1024);
    for _ in 0..512 {
        client.send(&blank);
    }
    // As if they had not come, wherever they were cut.
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    client.send(format!("\r\n\n{request}"));
    assert_eq!(client.response().body(), request.len().to_string());
    let grown = memory_of_worker(&s).saturating_sub(before);
    assert!(grown < 8 * 1024, "{grown} KiB more after 32 MiB of blank lines");
    client.send(format!("\r\n{request}"));
    assert_eq!(client.response().body(), request.len().to_string());
}

#[test]
fn memory_is_given_back_after_a_rush() {
    let s = Server::start(
        env!("CARGO_BIN_EXE_weir"),
        "events { worker_connections 1000; } http { server { listen 127.0.0.1:%%PORT%%; return 200; } }",
    );
    assert_eq!(s.get("/").status, 200);
    let before = memory_of_worker(&s);
    let line = "a".repeat(7000);
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nA: {line}\r\nB: {line}\r\nC: {line}\r\n");
    let clients: Vec<_> = (0..900)
        .map(|_| {
            let mut client = s.connect();
            client.send(&head);
            client
        })
        .collect();
    assert!(weir_testkit::ask_until(|| memory_of_worker(&s) > before + 16 * 1024));
    let held = memory_of_worker(&s);
    drop(clients);
    let little = before + (held - before) / 2;
    assert!(
        weir_testkit::ask_until(|| memory_of_worker(&s) < little),
        "{} KiB, {held} in the rush, {before} before",
        memory_of_worker(&s)
    );
    assert_eq!(s.get("/").status, 200);
}

/// A group of processes with so much memory together, the kernel's pages of files among it.
struct Cgroup {
    place: PathBuf,
}

impl Cgroup {
    /// `None` where groups cannot be made.
    fn new(bytes: usize) -> Option<Cgroup> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let of = |name: &str| {
            let line = own.lines().find(|line| line.split(':').nth(1) == Some(name))?;
            line.splitn(3, ':').nth(2).map(|path| path.trim_start_matches('/').to_owned())
        };
        let (parent, limit) = match of("memory") {
            Some(path) => (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"),
            None => (Path::new("/sys/fs/cgroup").join(of("")?), "memory.max"),
        };
        let place = parent.join(format!("weir-test-{}", std::process::id()));
        fs::create_dir(&place).ok()?;
        let group = Cgroup { place };
        let written = fs::write(group.place.join(limit), bytes.to_string());
        written.is_ok().then_some(group)
    }

    fn add(&self, pid: i32) -> bool {
        fs::write(self.place.join("cgroup.procs"), pid.to_string()).is_ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Empty once its processes have ended.
        ask_until(|| fs::remove_dir(&self.place).is_ok());
    }
}

#[test]
fn a_limit_of_memory_costs_only_the_client_over_it() {
    const LARGE: usize = 24 << 20;
    let Some(group) = Cgroup::new(64 << 20) else {
        return eprintln!("skipped: no group of processes can be made here");
    };
    let dir = Dir::new();
    for n in 0..4 {
        dir.write(&format!("files/{n}"), vec![b'x'; LARGE]);
    }
    let conf = "user root; worker_processes 1; events { }
         http {
             access_log off; client_max_body_size 0;
             proxy_cache_path %%DIR%%/cache keys_zone=c:1m;
             server {
                 listen 127.0.0.1:%%PORT%%;
                 location = /ok { return 200 ok; }
                 location /files/ { root %%DIR%%; }
                 location /cached/ { proxy_pass http://127.0.0.1:%%PORT%%/files/; proxy_cache c; proxy_cache_valid 1h; }
                 location /body { proxy_pass http://127.0.0.1:%%PORT%%/ok; }
                 location /held { proxy_pass http://127.0.0.1:%%PORT%%/ok; client_body_buffer_size 1024m; }
             }
         }";
    let s = Server::start_in(dir, env!("CARGO_BIN_EXE_weir"), conf);
    let worker = s.workers()[0];
    if !group.add(s.pid()) || !group.add(worker) {
        return eprintln!("skipped: processes cannot be put into groups here");
    }
    // Files, a cache and temporary files are more than there is: the kernel lets go of them.
    thread::scope(|scope| {
        for n in 0..4 {
            let s = &s;
            scope.spawn(move || {
                for place in ["files", "cached", "cached"] {
                    assert_eq!(s.get(&format!("/{place}/{n}")).bytes.len(), LARGE);
                }
                let length = format!("Connection: close\r\nContent-Length: {LARGE}\r\n");
                assert_eq!(s.ask("PUT /body", &length, &"x".repeat(LARGE)).status, 200);
            });
        }
    });
    assert_eq!(s.workers(), [worker]);
    // What is held in memory is the process's own.
    let mut client = s.connect();
    client.send(format!("PUT /held HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 1 << 30));
    let piece = vec![b'x'; 1 << 20];
    let sent = (0..1 << 10).take_while(|_| client.try_send(&piece).is_ok()).count();
    assert!(sent < 1 << 8, "{sent} MiB were held");
    s.wait_gone(worker);
    assert!(ask_until(|| {
        let asked = Client::try_connect(s.port()).and_then(|mut client| {
            client.try_send("GET /ok HTTP/1.1\r\nHost: a\r\n\r\n")?;
            client.try_response()
        });
        asked.is_ok_and(|answer| answer.status == 200)
    }));
    s.wait_log("exited on signal 9", 1);
}
