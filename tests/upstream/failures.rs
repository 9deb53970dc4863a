//! Two servers that fail, each in its own way, under one request: what the client gets, which
//! servers were asked, and what an older answer in the cache is good for. Drawn at random; nginx,
//! where there is one, decides the same.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use weir_testkit::{Dice, Oracle, Server, ask_until, free_port, listen, number, seed};

use super::WEIR;
use super::connections::limit_descriptors;
use super::origin::{Slow, serve};

/// How a server fails, and what it sends.
const FAILURES: &[(&str, &str)] = &[
    ("refuses", ""),
    ("closes", ""),
    ("is silent", "-"),
    ("breaks off", "HTTP/1.1 200 OK\r\nX-Own: 3\r\nContent-Le"),
    ("says garbage", "no HTTP\r\n\r\n"),
    ("has a bad head", "HTTP/1.1 200 OK\r\nX-Own: 2\r\nA\0B: c\r\nContent-Length: 1\r\n\r\nx"),
    ("500", "HTTP/1.1 500 Bad\r\nContent-Length: 3\r\nX-Own: 1\r\n\r\n500"),
    ("503", "HTTP/1.1 503 Bad\r\nContent-Length: 3\r\nX-Own: 1\r\n\r\n503"),
    ("404", "HTTP/1.1 404 None\r\nContent-Length: 3\r\n\r\n404"),
    ("429", "HTTP/1.1 429 Many\r\nContent-Length: 3\r\n\r\n429"),
];

const WELL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nCache-Control: max-age=1\r\n\r\nwell";

const NEXT: &[&str] = &[
    "off",
    "error timeout",
    "error off timeout",
    "error timeout invalid_header",
    "http_500 http_503",
    "error http_404 http_429 non_idempotent",
    "timeout invalid_header http_500 http_503 non_idempotent",
];

const STALE: &[&str] = &[
    "off",
    "error timeout",
    "updating error http_500 off",
    "invalid_header http_500 http_503",
    "http_404 http_429 error",
    "updating error timeout invalid_header http_500 http_502 http_503 http_504 http_404 http_429",
];

/// One request and the servers that it meets.
#[derive(Debug, Clone, Copy)]
struct Case {
    first: usize,
    second: usize,
    next: &'static str,
    tries: usize,
    stale: Option<&'static str>,
    /// There is an older answer.
    known: bool,
    method: &'static str,
    intercepts: bool,
}

impl Case {
    fn draw(dice: &mut Dice) -> Case {
        let stale = dice.one_in(2).then(|| dice.pick(STALE));
        let first = dice.below(FAILURES.len());
        Case {
            first,
            second: dice.below(FAILURES.len()),
            next: dice.pick(NEXT),
            tries: dice.below(3),
            stale,
            // A server that refuses from the first has no older answer.
            known: stale.is_some() && FAILURES[first].0 != "refuses" && dice.one_in(2),
            method: if stale.is_some() {
                "GET"
            } else {
                dice.pick(&["GET", "GET", "POST", "HEAD"])
            },
            intercepts: dice.one_in(4),
        }
    }

    fn location(&self, n: usize) -> String {
        let Case { first, second, next, tries, stale, intercepts, .. } = self;
        let cache = stale.map_or(String::new(), |stale| {
            format!("proxy_cache c; proxy_cache_key $uri; proxy_cache_use_stale {stale};")
        });
        let intercepts = if *intercepts { "proxy_intercept_errors on;" } else { "" };
        format!(
            "location /c{n}/ {{ proxy_pass http://u{first}_{second}; proxy_next_upstream {next};
                proxy_next_upstream_tries {tries}; {cache} {intercepts} }}\n"
        )
    }
}

/// The ports of servers that are well until they are told to fail, each in its way.
fn origins(fails: &Arc<AtomicBool>) -> Vec<u16> {
    let origin = |(name, answer): &'static (&str, &str)| {
        if *name == "refuses" {
            return free_port();
        }
        let fails = fails.clone();
        listen(move |stream| talk(stream, answer, &fails))
    };
    FAILURES.iter().map(origin).collect()
}

fn talk(mut stream: TcpStream, answer: &str, fails: &AtomicBool) {
    let (mut buf, mut head) = ([0; 4096], Vec::new());
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buf) {
            Ok(n) if n > 0 => head.extend_from_slice(&buf[..n]),
            _ => return,
        }
    }
    let answer = if fails.load(Ordering::SeqCst) { answer } else { WELL };
    if answer == "-" {
        let _ = stream.read(&mut buf);
    } else {
        let _ = stream.write_all(answer.as_bytes());
    }
}

fn conf(cases: &[Case], ports: &[u16]) -> String {
    let mut groups = String::new();
    for (i, a) in ports.iter().enumerate() {
        for (j, b) in ports.iter().enumerate() {
            groups += &format!(
                "upstream u{i}_{j} {{ server 127.0.0.1:{a} max_fails=0;
                    server 127.0.0.1:{b} max_fails=0 backup; }}\n"
            );
        }
    }
    let locations: String = cases.iter().enumerate().map(|(n, case)| case.location(n)).collect();
    format!(
        "user root; worker_processes 1; events {{ }}
         http {{
             access_log off; error_log logs/all crit; proxy_cache_path %%DIR%%/cache keys_zone=c:1m;
             proxy_temp_path %%DIR%%/proxied; proxy_http_version 1.0; proxy_set_header Connection close;
             proxy_read_timeout 1s;
             {groups}
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 add_header X-Asked \"$upstream_addr\" always; add_header X-Said \"$upstream_status\" always;
                 add_header X-Cache \"$upstream_cache_status\" always;
                 add_header X-Heard \"$upstream_http_x_own\" always;
                 error_page 500 /page; location = /page {{ return 200 page; }}
                 {locations}
             }}
         }}"
    )
}

/// What the client gets and what the server says of it, servers by their number.
fn outcome(server: &Server, n: usize, case: &Case, ports: &[u16]) -> String {
    let body = if case.method == "POST" { "Content-Length: 1\r\n\r\nx" } else { "\r\n" };
    let mut client = server.connect();
    client
        .send(format!("{} /c{n}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{body}", case.method));
    let text = client.rest();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut seen: Vec<String> = head.split("\r\n").take(1).map(str::to_owned).collect();
    seen.extend(head.split("\r\n").filter(|line| line.starts_with("X-")).map(str::to_owned));
    let body = if body.contains("<center>") { "a page" } else { body };
    let mut seen = format!("{}\n{body}", seen.join("\n"));
    for (name, port) in FAILURES.iter().zip(ports) {
        seen = seen.replace(&format!("127.0.0.1:{port}"), name.0);
    }
    seen
}

#[test]
fn two_failures_under_one_request_end_as_in_nginx() {
    let mut dice = Dice::salted(seed(), "failures");
    let cases: Vec<Case> =
        (0..number("WEIR_CASES").unwrap_or(100)).map(|_| Case::draw(&mut dice)).collect();
    let fails = Arc::new(AtomicBool::new(false));
    let ports = origins(&fails);
    let conf = conf(&cases, &ports);
    let mut servers = vec![Server::start(WEIR, &conf)];
    servers.extend(Oracle::find().map(|nginx| Server::start(&nginx.path, &conf)));
    for server in &servers {
        for (n, _) in cases.iter().enumerate().filter(|(_, case)| case.known) {
            server.get(&format!("/c{n}/"));
        }
    }
    // All of them were put there before the last one, which grows old.
    if let Some((n, _)) = cases.iter().enumerate().rfind(|(_, case)| case.known) {
        for server in &servers {
            let state = || server.get(&format!("/c{n}/")).header("X-Cache").map(str::to_owned);
            // What is not stored yet is not old.
            assert!(ask_until(|| state().as_deref() == Some("HIT")));
            assert!(ask_until(|| !matches!(state().as_deref(), Some("HIT" | "MISS"))));
        }
    }
    fails.store(true, Ordering::SeqCst);
    // The last one was asked for again, and is as young as it was.
    let judged = cases.iter().rposition(|case| case.known).unwrap_or(usize::MAX);
    let ask = |server: &Server, n: usize| outcome(server, n, &cases[n], &ports);
    let all: Vec<usize> = (0..cases.len()).filter(|n| *n != judged).collect();
    // Requests to silent servers wait beside one another.
    let seen: Vec<Vec<String>> = thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = servers
            .iter()
            .map(|server| {
                let parts: Vec<_> = all
                    .chunks(all.len().div_ceil(16).max(1))
                    .map(|part| {
                        scope
                            .spawn(move || part.iter().map(|n| ask(server, *n)).collect::<Vec<_>>())
                    })
                    .collect();
                parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
            })
            .collect();
        threads
    });
    let mut different = Vec::new();
    for (i, n) in all.iter().enumerate() {
        let (case, ours) = (&cases[*n], &seen[0][i]);
        let names = (FAILURES[case.first].0, FAILURES[case.second].0);
        assert!(ours.starts_with("HTTP/1.1 "), "{names:?} {case:?}: {ours:?}");
        // What is no HTTP is an answer of HTTP/0.9, which nginx hands to clients without a head.
        let theirs = seen.get(1).map(|theirs| &theirs[i]).filter(|it| it.starts_with("HTTP/"));
        if let Some(theirs) = theirs.filter(|theirs| ours != *theirs) {
            different.push(format!("{names:?} {case:?}\n weir: {ours:?}\nnginx: {theirs:?}"));
        }
    }
    println!("{} cases beside {} other servers", all.len(), servers.len() - 1);
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// It is no answer to a client, whom only a head of this server's own making would reach; another server may have one.
#[test]
fn what_is_no_http_is_a_bad_gateway_and_another_server_may_answer() {
    let well = serve(|_| Some("X-Origin: well\r\n".to_owned()));
    let ill = listen(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9\r\n");
    });
    let conf = format!(
        "events {{ }} http {{
             add_header X-Said $upstream_status always;
             upstream u {{ server 127.0.0.1:{ill} max_fails=0; server 127.0.0.1:{well} backup; }}
             server {{ listen 127.0.0.1:%%PORT%%; proxy_intercept_errors on; error_page 502 =503 /page;
                 location / {{ proxy_pass http://u; }}
                 location = /page {{ return 503 page; }}
                 location /next {{ proxy_pass http://u; proxy_next_upstream invalid_header; }} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    let answer = server.get("/");
    assert_eq!((answer.status, answer.body().as_str()), (503, "page"));
    assert_eq!(answer.header("X-Said"), Some("502"));
    let answer = server.get("/next");
    assert_eq!(
        (answer.header("X-Origin"), answer.header("X-Said")),
        (Some("well"), Some("502, 200"))
    );
    server.wait_log(
        "upstream sent no valid HTTP/1.0 header while reading response header from upstream",
        2,
    );
}

#[test]
fn off_among_other_words_holds_alone() {
    let fails = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&fails);
    let ill = listen(move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let bad = "HTTP/1.1 503 Bad\r\nContent-Length: 3\r\n\r\n503";
        let _ = stream.write_all(if now.load(Ordering::Relaxed) { bad } else { WELL }.as_bytes());
    });
    let well = serve(|_| Some("X-Origin: well\r\n".to_owned()));
    let conf = format!(
        "events {{ }} http {{ proxy_cache_path %%DIR%%/cache keys_zone=z:1m;
             add_header X-Cache $upstream_cache_status always;
             upstream u {{ server 127.0.0.1:{ill} max_fails=0; server 127.0.0.1:{well} backup; }}
             server {{ listen 127.0.0.1:%%PORT%%; proxy_next_upstream error off http_503;
                 location / {{ proxy_pass http://u; }}
                 location /kept {{ proxy_pass http://u; proxy_cache z; proxy_cache_use_stale http_503 updating off; }} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    assert_eq!(server.get("/kept").header("X-Cache"), Some("MISS"));
    fails.store(true, Ordering::Relaxed);
    assert_eq!(server.get("/").status, 503);
    // Once the answer is too old, nothing but the server's own is sent.
    assert!(ask_until(|| server.get("/kept").header("X-Cache") != Some("HIT")));
    let answer = server.get("/kept");
    assert_eq!((answer.status, answer.header("X-Cache")), (503, Some("EXPIRED")));
}

/// A fault of ours under a fault of a server's: the server that was never asked is not blamed, and neither is one more
/// than once.
#[test]
fn our_own_fault_blames_only_the_server_that_failed() {
    let well = serve(|_| Some("X-Origin: well\r\n".to_owned()));
    let ill = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = ill.local_addr().unwrap().port();
    let conf = format!(
        "user root; worker_processes 1; events {{ }} http {{
             upstream u {{ server 127.0.0.1:{port} max_fails=1 fail_timeout=1h;
                 server 127.0.0.1:{well} max_fails=1 fail_timeout=1h backup; }}
             server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://u; }} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (asked, _) = ill.accept().unwrap();
    // The first has the request, and from here on nothing can be opened; then it fails.
    let worker = server.workers()[0];
    limit_descriptors(worker, Some(3));
    drop((asked, ill));
    assert_eq!(client.response().status, 500);
    limit_descriptors(worker, None);
    let answer = server.get("/");
    assert_eq!((answer.status, answer.header("X-Origin")), (200, Some("well")), "{}", server.log());
}

/// A worker that stands still for longer than others may take: what they have said in time counts, though it is heard late.
#[test]
fn a_server_in_time_is_not_blamed_for_a_stopped_worker() {
    // On a busy machine the deadlines may come before the worker stands still.
    assert!((0..10).any(|_| stands_still()));
}

/// False if it did so too late.
#[expect(clippy::disallowed_methods, reason = "a time has to pass in which nothing happens")]
fn stands_still() -> bool {
    const TIME: Duration = Duration::from_secs(2);
    let slow = Slow::new();
    let spare = serve(|_| Some("X-Origin: spare\r\n".to_owned()));
    let (time, port) = (format!("{}s", TIME.as_secs()), slow.port);
    let http = format!(
        "client_header_timeout {time}; client_body_timeout {time}; proxy_read_timeout {time};
         upstream u {{ server 127.0.0.1:{port} max_fails=1 fail_timeout=1h; server 127.0.0.1:{spare} backup; }}"
    );
    let server = super::start("worker_processes 1;", &http);
    let worker = server.workers()[0];
    let began = Instant::now();
    let (mut asked, mut head, mut body) = (server.connect(), server.connect(), server.connect());
    asked.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = slow.asked();
    head.deliver("GET / HTTP/1.1\r\nHost: a\r\n");
    body.deliver("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n1");
    server.wait_asleep(worker);
    server.signal_worker(worker, Signal::STOP);
    let in_time = began.elapsed() < TIME * 3 / 4;
    drop(answer);
    if !in_time {
        server.signal_worker(worker, Signal::CONT);
        return false;
    }
    head.deliver("\r\n");
    body.deliver("2");
    // All that it waits for has come, and so have its deadlines.
    thread::sleep(TIME + TIME / 4);
    server.signal_worker(worker, Signal::CONT);
    for _ in 0..2 {
        drop(slow.asked());
    }
    for client in [&mut asked, &mut head, &mut body] {
        let answer = client.response();
        assert_eq!((answer.status, answer.header("X-Origin")), (200, None), "{}", server.log());
    }
    true
}

#[test]
fn a_request_goes_on_without_its_client_only_where_that_is_said() {
    for (line, status) in [("", "499"), ("proxy_ignore_client_abort on;", "200")] {
        let slow = Slow::new();
        let http = format!(
            "log_format s '$status'; access_log %%DIR%%/seen s; {line}
             upstream u {{ server 127.0.0.1:{}; }} server {{ listen 127.0.0.1:%%PORT1%%; access_log off; return 204; }}",
            slow.port
        );
        let server = super::start("", &http);
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = slow.asked();
        drop(client);
        // The loop has heard of it before it answers these.
        for _ in 0..3 {
            assert_eq!(weir_testkit::Client::connect(server.port_at(1)).get("/").status, 204);
        }
        if status == "200" {
            drop(answer);
        } else {
            let text = "client prematurely closed connection, so upstream connection is closed too \
                        while sending request to upstream";
            server.wait_log(text, 1);
        }
        server.wait_file("seen", &format!("{status}\n"), 1);
    }
}

/// An endless answer does not go on without its client, even where its server is not to be disturbed before it.
#[test]
fn an_answer_that_cannot_be_sent_ends_with_its_client() {
    for buffering in ["on", "off"] {
        let (tell, ended) = channel();
        let port = listen(move |mut stream| {
            let _ = stream.read(&mut [0; 4096]);
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let _ = stream.write_all(head.as_bytes());
            stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            let until = Instant::now() + Duration::from_secs(20);
            let goes_on = |stream: &mut TcpStream| {
                stream.write_all(b"4\r\nmore\r\n").is_ok()
                    && stream.read(&mut [0; 1]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
            };
            while Instant::now() < until {
                if !goes_on(&mut stream) {
                    return tell.send(()).unwrap();
                }
            }
        });
        let server = super::start(
            "",
            &format!(
                "upstream u {{ server 127.0.0.1:{port}; }} proxy_ignore_client_abort on; proxy_buffering {buffering};"
            ),
        );
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.try_line().is_ok());
        drop(client);
        ended.recv_timeout(Duration::from_secs(20)).expect("the server is left alone");
    }
}
