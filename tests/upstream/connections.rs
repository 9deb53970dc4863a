//! Connections to servers: which requests may use a kept one, and what is at fault if there is
//! none.

use std::fs;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use weir_testkit::Server;

use super::origin::serve;
use super::{WEIR, start};

/// The server's view of a request: from which process it came, and on which connection.
fn seen(server: &Server, path: &str) -> (String, String) {
    let text = server.get(path).body();
    let (from, connection) = text.split_once(' ').unwrap_or_else(|| panic!("{path}: {text}"));
    (from.to_owned(), connection.to_owned())
}

fn bound(keepalive: &str) -> Server {
    let conf = format!(
        "worker_processes 1; events {{ }} http {{
             upstream u {{ server 127.0.0.1:%%PORT1%%; {keepalive} }}
             server {{ listen 127.0.0.1:%%PORT1%%; return 200 \"$remote_addr $connection\"; }}
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 proxy_http_version 1.1; proxy_set_header Connection \"\";
                 location /a {{ proxy_bind 127.0.0.2; proxy_pass http://u; }}
                 location /b {{ proxy_bind 127.0.0.3; proxy_pass http://u; }}
                 location /any {{ proxy_bind $arg_ip; proxy_pass http://u; }}
                 location /c {{ proxy_pass http://u; }}
                 location /d {{ proxy_pass http://u; }}
             }} }}"
    );
    Server::start(WEIR, &conf)
}

#[test]
fn a_kept_connection_comes_from_the_address_that_was_asked_for() {
    for (keepalive, local) in [("", true), ("keepalive 8 local;", true), ("keepalive 8;", false)] {
        let server = bound(keepalive);
        for round in 0..2 {
            for (path, from) in [
                ("/a", "127.0.0.2"),
                ("/b", "127.0.0.3"),
                ("/any?ip=127.0.0.4", "127.0.0.4"),
                ("/any?ip=127.0.0.5", "127.0.0.5"),
                ("/c", "127.0.0.1"),
            ] {
                assert_eq!(seen(&server, path).0, from, "{keepalive} {round} {path}");
            }
        }
        let (c, d) = (seen(&server, "/c"), seen(&server, "/d"));
        assert_eq!(seen(&server, "/c"), c, "{keepalive}: it is kept");
        assert_eq!(c.1 != d.1, local, "{keepalive} {c:?} {d:?}");
    }
}

#[test]
fn an_address_that_is_not_ours_is_not_the_servers_fault() {
    let (one, two) = (serve(|_| Some(String::new())), serve(|_| Some(String::new())));
    let conf = format!(
        "worker_processes 1; events {{ }} http {{
             upstream u {{ server 127.0.0.1:{one}; server 127.0.0.1:{two}; keepalive 0; }}
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 location / {{ proxy_pass http://u; }}
                 location /bad {{ proxy_bind 192.0.2.1; proxy_pass http://u; }}
                 location /busy {{ proxy_bind 127.0.0.1:%%PORT%%; proxy_pass http://u; }}
                 location /six {{ proxy_bind [::1]; proxy_pass http://u; }}
             }} }}"
    );
    let server = Server::start(WEIR, &conf);
    assert_eq!((server.get("/bad").status, server.get("/busy").status), (500, 500));
    server.wait_log("[crit]", 2);
    server.wait_log("bind(192.0.2.1) failed (99: Cannot assign requested address)", 1);
    assert_eq!(server.get("/six").status, 500);
    server.wait_log("bind([::1]) failed (97: Address family not supported by protocol)", 1);
    assert_eq!(server.get("/").status, 200, "{}", server.log());
}

/// How many descriptors a worker may open; `None`: as many as before.
pub fn limit_descriptors(worker: i32, soft: Option<u64>) {
    let limits = fs::read_to_string(format!("/proc/{worker}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let hard: u64 = line.split_whitespace().nth(4).unwrap().parse().unwrap();
    let new = Rlimit { current: soft.or(Some(hard)), maximum: Some(hard) };
    prlimit(Pid::from_raw(worker), Resource::Nofile, new).unwrap();
}

#[test]
fn no_descriptors_are_not_the_servers_fault() {
    let (one, two) = (serve(|_| Some(String::new())), serve(|_| Some(String::new())));
    // Not every user may change the limits of another user's process.
    let server = start(
        "user root; worker_processes 1;",
        &format!("upstream u {{ server 127.0.0.1:{one}; server 127.0.0.1:{two}; keepalive 0; }}"),
    );
    // A connection ends with an answer of 500.
    let (mut first, mut second) = (server.connect(), server.connect());
    assert_eq!((first.get("/").status, second.get("/").status), (200, 200));
    let worker = server.workers()[0];
    limit_descriptors(worker, Some(3));
    assert_eq!(first.get("/").status, 500);
    limit_descriptors(worker, None);
    assert_eq!(second.get("/").status, 200, "{}", server.log());
}
