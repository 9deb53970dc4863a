//! A configuration that changes while it runs: `PUT /config` of `weir_api`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use rustix::process::Signal;
use serde_json::Value;
use weir_testkit::{Client, Response, Server, free_port, listen};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// What stands around the locations of a server; `PORT` is where it listens.
fn conf(main: &str, http: &str, locations: &str) -> String {
    format!(
        "worker_processes 2; worker_threads 2; {main} events {{ }}
         http {{ {http}
         server {{ listen 127.0.0.1:%%PORT%%; {locations}
             location /api {{ weir_api config; allow 127.0.0.1; deny all; }}
             location = /metrics {{ weir_status; }} }} }}"
    )
}

fn put(server: &Server, text: &str) -> Response {
    let text = text.replace("%%PORT%%", &server.port().to_string());
    let headers = format!("Content-Type: text/plain\r\nContent-Length: {}\r\n", text.len());
    server.ask("PUT /api/config", &headers, &text)
}

fn json(response: &Response) -> Value {
    serde_json::from_str(&response.body()).unwrap_or_else(|e| panic!("{e}: {}", response.body()))
}

/// The configuration is in use, without a new process.
fn take(server: &Server, text: &str) {
    let answer = put(server, text);
    assert_eq!(answer.status, 200, "{}\n{}", answer.body(), server.log());
    assert_eq!(json(&answer)["taken_by"], "running workers", "{}", answer.body());
}

fn says(word: &str) -> String {
    conf("", "", &format!("location / {{ return 200 {word}; }}"))
}

#[test]
fn requests_that_begin_after_a_change_are_served_by_it_on_kept_connections_too() {
    let server = Server::start(WEIR, &says("old"));
    let workers = server.workers();
    let mut kept: Vec<Client> = (0..16).map(|_| server.connect()).collect();
    for client in &mut kept {
        assert_eq!(client.get("/").body(), "old");
    }
    // Some have been parked, others still pause with their tasks.
    for word in ["new", "newer"] {
        take(&server, &says(word));
        for client in &mut kept {
            assert_eq!(client.get("/").body(), word);
        }
    }
    assert_eq!(server.workers(), workers);
    // A reload means the file.
    server.reload();
    assert_eq!(server.get("/").body(), "old");
}

#[test]
fn a_wrong_text_changes_nothing_and_is_told_with_its_line() {
    let server = Server::start(WEIR, &says("old"));
    let workers = server.workers();
    let answer = put(&server, &says("old").replace("return 200", "retrun 200"));
    let error = json(&answer)["error"].clone();
    assert_eq!((answer.status, &error["line"]), (422, &Value::from(3)), "{error}");
    let text = error["text"].as_str().unwrap();
    assert!(text.contains("unknown directive \"retrun\"") && text.contains('^'), "{text}");
    // What the master alone may decide.
    let answer = put(&server, &conf("user nobody;", "", ""));
    assert_eq!(answer.status, 403, "{}", answer.body());
    assert!(answer.body().contains("\\\"user\\\""), "{}", answer.body());
    let answer = server.ask(
        "PUT /api/config",
        "Content-Type: application/json\r\nContent-Length: 2\r\n",
        "{}",
    );
    assert_eq!(answer.status, 415);
    assert_eq!(server.get("/").body(), "old");
    assert_eq!(server.workers(), workers);
}

#[test]
fn a_location_without_the_word_takes_no_configuration() {
    let text = says("old").replace("weir_api config", "weir_api");
    let server = Server::start(WEIR, &text);
    assert_eq!(put(&server, &says("new")).status, 403);
    assert_eq!(server.get("/").body(), "old");
}

#[test]
fn new_workers_take_what_running_ones_cannot() {
    let server = Server::start(WEIR, &says("old"));
    let workers = server.workers();
    let other = free_port();
    let more = format!("listen 127.0.0.1:{other}; location / {{ return 200 new; }}");
    let answer = put(&server, &conf("", "", &more));
    assert_eq!(answer.status, 200, "{}", answer.body());
    assert_eq!(json(&answer)["taken_by"], "new workers", "{}", answer.body());
    workers.iter().for_each(|pid| server.wait_gone(*pid));
    assert_eq!(server.get("/").body(), "new");
    assert_eq!(Client::connect(other).get("/").body(), "new");
    // A zone that is not open, and then one that is.
    let zone = |word: &str| {
        let location = format!("location / {{ limit_req zone=z burst=9; return 200 {word}; }}");
        conf(
            "",
            "limit_req_zone $uri zone=z:1m rate=9r/s;",
            &(more.replace("location", "#") + "\n" + &location),
        )
    };
    assert_eq!(json(&put(&server, &zone("a")))["taken_by"], "new workers");
    assert_eq!(json(&put(&server, &zone("b")))["taken_by"], "running workers");
    assert_eq!(server.get("/").body(), "b");
}

#[test]
fn the_successor_of_a_killed_worker_begins_with_the_newest() {
    let server = Server::start(WEIR, &says("old"));
    take(&server, &says("new"));
    for pid in server.workers() {
        server.signal_worker(pid, Signal::KILL);
        server.wait_gone(pid);
        server.wait_log("start worker process ", 3);
    }
    for _ in 0..20 {
        assert_eq!(server.get("/").body(), "new");
    }
    take(&server, &says("newer"));
    assert_eq!(server.get("/").body(), "newer");
}

/// A server that says how many connections it has had, and echoes what comes over a tunnel.
fn behind() -> u16 {
    let connections = AtomicUsize::new(0);
    listen(move |mut stream| {
        let number = connections.fetch_add(1, Ordering::SeqCst) + 1;
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = stream.read(&mut buf) {
            let head = String::from_utf8_lossy(&buf[..n]).to_ascii_lowercase();
            if head.contains("upgrade: echo") {
                let answer = "HTTP/1.1 101 x\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n";
                stream.write_all(answer.as_bytes()).unwrap();
                while let Ok(n @ 1..) = stream.read(&mut buf) {
                    stream.write_all(&buf[..n]).unwrap();
                }
                return;
            }
            let body = number.to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            if stream.write_all((head + &body).as_bytes()).is_err() {
                return;
            }
        }
    })
}

fn proxied(to: u16, n: usize) -> String {
    let http = format!("upstream u {{ server 127.0.0.1:{to}; keepalive 16; }}");
    let pass = "proxy_pass http://u; proxy_http_version 1.1;";
    let tunnel = "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;";
    let locations = format!(
        "add_header X-Site {n};
         location / {{ {pass} proxy_set_header Connection ''; }}
         location = /tunnel {{ {pass} {tunnel} }}"
    );
    conf("", &http, &locations)
}

#[test]
fn no_request_is_lost_while_the_configuration_changes_a_hundred_times() {
    const CHANGES: usize = 100;
    let to = behind();
    let server = Server::start(WEIR, &proxied(to, 0));
    let mut tunnel = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let ask = "GET /tunnel HTTP/1.1\r\nHost: x\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n";
    tunnel.write_all(ask.as_bytes()).unwrap();
    let mut head = [0; 4096];
    let n = tunnel.read(&mut head).unwrap();
    assert!(head[..n].starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head[..n]));
    let over = Arc::new(AtomicBool::new(false));
    let (served, counts) = mpsc::channel();
    for kept in [true, true, false] {
        let (over, served, port) = (over.clone(), served.clone(), server.port());
        thread::spawn(move || {
            let (mut n, mut last) = (0, 0);
            let mut client = Client::connect(port);
            while !over.load(Ordering::SeqCst) {
                if !kept {
                    client = Client::connect(port);
                }
                let answer = client.get("/");
                assert_eq!(answer.status, 200);
                let site: usize = answer.header("x-site").unwrap().parse().unwrap();
                // Another loop may not have taken a change whose answer has not come.
                assert!(site + 1 >= last, "{site} after {last}");
                (n, last) = (n + 1, site);
                // Workers that retire announce the end of a connection.
                if answer.header("connection") == Some("close") {
                    client = Client::connect(port);
                }
            }
            served.send((n, last)).unwrap();
        });
    }
    drop(served);
    for n in 1..=CHANGES {
        let answer = put(&server, &proxied(to, n));
        assert_eq!(answer.status, 200, "{n}: {}\n{}", answer.body(), server.log());
        // It is in all loops when the answer comes.
        assert_eq!(server.get("/").header("x-site"), Some(n.to_string().as_str()));
        tunnel.write_all(&[n as u8]).unwrap();
        let mut echo = [0];
        tunnel.read_exact(&mut echo).unwrap();
        assert_eq!(echo, [n as u8]);
    }
    over.store(true, Ordering::SeqCst);
    let all: Vec<(usize, usize)> = counts.iter().collect();
    assert_eq!(all.len(), 3, "a client has failed");
    assert!(all.iter().all(|(n, last)| *n > CHANGES && last + 1 >= CHANGES), "{all:?}");
}

#[test]
fn connections_to_servers_behind_are_kept_where_the_group_stays() {
    let to = behind();
    let server =
        Server::start(WEIR, &proxied(to, 0).replace("worker_processes 2; worker_threads 2;", ""));
    let mut client = server.connect();
    assert_eq!(client.get("/").body(), "1");
    for n in 1..5 {
        take(&server, &proxied(to, n).replace("worker_processes 2; worker_threads 2;", ""));
        assert_eq!(client.get("/").body(), "1");
    }
}

#[test]
fn servers_come_to_a_group_and_leave_it() {
    let ports: Vec<u16> = (0..2).map(|_| behind()).collect();
    let http = format!("upstream u {{ server 127.0.0.1:{}; keepalive 4; }}", ports[0]);
    let place = "location / { proxy_pass http://u; add_header X-To $upstream_addr; }";
    let server = Server::start(WEIR, &conf("", &http, place));
    let workers = server.workers();
    let ask = |method: &str, body: &str| {
        let length = body.len();
        let headers = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
        server.ask(&format!("{method} /api/upstreams/u/servers"), &headers, body)
    };
    let asked = || -> std::collections::BTreeSet<String> {
        let mut client = server.connect();
        let to = |_| client.get("/").header("x-to").unwrap().to_owned();
        (0..16).map(to).collect()
    };
    let name = |n: usize| format!("127.0.0.1:{}", ports[n]);
    let added = ask("POST", &format!("{{\"server\": \"{}\", \"weight\": 2}}", name(1)));
    assert_eq!(added.status, 200, "{}", added.body());
    assert_eq!(asked(), [name(0), name(1)].into());
    let again = ask("POST", &format!("{{\"server\": \"{}\"}}", name(1)));
    assert_eq!(again.status, 403, "{}", again.body());
    let removed = ask("DELETE", &format!("{{\"server\": \"{}\"}}", name(0)));
    assert_eq!(removed.status, 200, "{}", removed.body());
    assert_eq!(asked(), [name(1)].into());
    // A group needs a server.
    let last = ask("DELETE", &format!("{{\"server\": \"{}\"}}", name(1)));
    assert_eq!(last.status, 422, "{}", last.body());
    assert_eq!(asked(), [name(1)].into());
    assert_eq!(server.workers(), workers);
}
