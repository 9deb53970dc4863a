//! `memcached_pass`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_testkit::{Client, Process, ask_until, examples, free_port, listen};

use crate::start;

#[test]
fn values_are_answers() {
    if Command::new("memcached").arg("-V").output().is_err() {
        return eprintln!("skipped: memcached is not installed");
    }
    let port = free_port();
    let mut command = Command::new("memcached");
    command.args(["-l", "127.0.0.1", "-u", "nobody", "-p", &port.to_string()]);
    let _server = Process::start(&mut command);
    assert!(ask_until(|| Client::try_connect(port).is_ok()), "memcached does not start");
    let page = include_str!("../../docs/memcached.md");
    let example = examples(page).next();
    let example =
        example.expect("its example").replace("127.0.0.1:11211", &format!("127.0.0.1:{port}"));
    let server = start("", &format!("{example} location @fallback {{ return 200 'made anew'; }}"));
    let mut client = Client::connect(port);
    let long = "x".repeat(300_000);
    for (key, flags, value) in [
        ("/a.txt", 0, "a value"),
        ("/with%20space.txt", 0, "spaced"),
        ("/long.txt", 0, &long),
        ("/empty.txt", 0, ""),
        ("/z.txt", 2, "compressed"),
    ] {
        client.send(format!("set {key} {flags} 0 {}\r\n{value}\r\n", value.len()));
        assert_eq!(client.try_line().expect("an answer"), "STORED");
    }
    let mut kept = server.connect();
    let said = kept.get("/a.txt");
    assert_eq!((said.body(), said.header("Content-Type")), ("a value".into(), Some("text/plain")));
    assert_eq!(kept.get("/with%20space.txt").body(), "spaced");
    assert_eq!(kept.get("/long.txt").body(), long);
    assert_eq!(kept.get("/empty.txt").body(), "");
    assert_eq!(kept.get("/missing.txt").body(), "made anew");
    assert_eq!(kept.get("/z.txt").header("Content-Encoding"), Some("gzip"));
    let part = kept.ask("GET /a.txt", "Range: bytes=2-4\r\n", "");
    assert_eq!((part.status, part.body()), (206, "val".into()));
    assert_eq!(kept.ask("POST /a.txt", "Content-Length: 0\r\n", "").status, 405);
}

/// A memcached that says this of a key, and counts connections. It says nothing behind an endless line.
fn saying(connections: &'static AtomicUsize, said: fn(&str) -> String) -> u16 {
    listen(move |stream| {
        connections.fetch_add(1, Ordering::Relaxed);
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while stream.read_line(&mut line).is_ok_and(|n| n > 0) {
            let key = line.trim_end().strip_prefix("get ").expect("a get");
            let said = said(key);
            let _ = stream.get_mut().write_all(said.as_bytes());
            if !said.contains('\n') {
                let _ = stream.read(&mut [0]);
            }
            line.clear();
        }
    })
}

#[test]
fn a_connection_is_kept_and_lies_are_told() {
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    let port = saying(&CONNECTIONS, |key| match key {
        "/missing" => "END\r\n".to_owned(),
        "/key" => "VALUE /other 0 1\r\nx\r\nEND\r\n".to_owned(),
        "/length" => "VALUE /length 0 many\r\n".to_owned(),
        "/error" => "SERVER_ERROR out of memory\r\n".to_owned(),
        "/line" => "x".repeat(100_000),
        "/trailer" => "VALUE /trailer 0 3\r\nyes no end at all".to_owned(),
        _ => format!("VALUE {key} 0 2\r\nok\r\nEND\r\n"),
    });
    let server = start(
        &format!("upstream m {{ server 127.0.0.1:{port}; keepalive 1; }}"),
        "set $memcached_key $uri; location / { memcached_pass m; }",
    );
    for path in ["/a", "/missing", "/b"] {
        assert_eq!(server.get(path).status, if path == "/missing" { 404 } else { 200 });
    }
    assert_eq!(CONNECTIONS.load(Ordering::Relaxed), 1);
    let cases = [
        ("/key", "memcached sent invalid key in response"),
        ("/length", "memcached sent invalid length in response"),
        ("/error", "memcached sent invalid response: \"SERVER_ERROR out of memory\""),
        ("/line", "upstream sent too big header"),
    ];
    for (path, line) in cases {
        assert_eq!(server.get(path).status, 502, "{path}");
        server.wait_log(line, 1);
    }
    assert_eq!(server.get("/trailer").body(), "yes");
    let told = server.wait_line("memcached sent invalid trailer");
    assert!(told.contains("[error]"), "{}", server.log());
}

#[test]
fn a_client_gets_100_before_the_value_is_asked_for() {
    let server = start(
        &format!("upstream m {{ server 127.0.0.1:{}; }}", named("m")),
        "set $memcached_key $uri; location / { memcached_pass m; }
         location /unset { set $memcached_key ''; memcached_pass m; }",
    );
    for (path, status) in [("/a", 200), ("/unset", 500)] {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n"));
        assert_eq!(client.response().status, 100, "{path}");
        assert_eq!(client.response().status, status, "{path}");
    }
}

/// A server that has every key and answers with its own name.
fn named(name: &'static str) -> u16 {
    listen(move |stream| {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while stream.read_line(&mut line).is_ok_and(|n| n > 0) {
            let key = line.trim_end().strip_prefix("get ").expect("a get").to_owned();
            let said = format!("VALUE {key} 0 {}\r\n{name}\r\nEND\r\n", name.len());
            let _ = stream.get_mut().write_all(said.as_bytes());
            line.clear();
        }
    })
}

#[test]
fn each_key_has_its_server_and_only_those_of_one_that_is_gone_move() {
    let ports = [named("one"), named("two"), named("three")];
    let group = |name: &str, gone: Option<usize>| {
        let line = |(i, port)| {
            let down = if Some(i) == gone { " down" } else { "" };
            format!("server 127.0.0.1:{port}{down}; ")
        };
        let servers: String = ports.iter().enumerate().map(line).collect();
        format!("upstream {name} {{ hash $memcached_key consistent; {servers} keepalive 4; }} ")
    };
    let http = group("all", None) + &group("less", Some(1));
    let server = start(
        &http,
        "location /all/ { set $memcached_key $args; memcached_pass all; }
         location /less/ { set $memcached_key $args; memcached_pass less; }",
    );
    let mut client = server.connect();
    let mut count = [0; 3];
    for key in 0..300 {
        let all = client.get(&format!("/all/?{key}")).body();
        let less = client.get(&format!("/less/?{key}")).body();
        match all.as_str() {
            "two" => assert_ne!(less, "two", "{key}"),
            other => assert_eq!(less, other, "{key} moves"),
        }
        count[["one", "two", "three"].iter().position(|name| *name == all).expect("a server")] += 1;
        assert_eq!(client.get(&format!("/all/?{key}")).body(), all, "{key} stays");
    }
    assert!(count.iter().all(|n| *n > 40), "{count:?}");
}

#[test]
fn a_connection_is_kept_after_head() {
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    let port = saying(&CONNECTIONS, |key| format!("VALUE {key} 0 2\r\nok\r\nEND\r\n"));
    let server = start(
        &format!("upstream m {{ server 127.0.0.1:{port}; keepalive 1; }}"),
        "set $memcached_key $uri; location / { memcached_pass m; }",
    );
    for _ in 0..3 {
        let mut client = server.connect();
        client.send("HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = client.try_response_to("HEAD").unwrap();
        assert_eq!((answer.status, answer.header("Content-Length")), (200, Some("2")));
        assert_eq!(server.get("/a").body(), "ok");
    }
    assert_eq!(CONNECTIONS.load(Ordering::Relaxed), 1);
}
