//! Connections to servers: which requests may use a kept one, and what is at fault if there is
//! none.

use std::fs;
use std::net::SocketAddr;

use rustix::net::{getpeername, sockopt};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, pidfd_getfd, pidfd_open, prlimit,
};
use weir_testkit::Server;

use super::bodies::certified;
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

/// TCP_NODELAY of a worker's connection to this port. `None` if the kernel does not let the test look.
fn sends_at_once(server: &Server, port: u16) -> Option<bool> {
    let worker = server.workers()[0];
    let process = pidfd_open(Pid::from_raw(worker)?, PidfdFlags::empty()).ok()?;
    let numbers = fs::read_dir(format!("/proc/{worker}/fd"))
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut sockets =
        numbers.filter_map(|n| pidfd_getfd(&process, n, PidfdGetfdFlags::empty()).ok());
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let socket = sockets.find(|socket| {
        let peer = getpeername(socket).ok().flatten();
        peer.and_then(|peer| SocketAddr::try_from(peer).ok()) == Some(address)
    })?;
    sockopt::tcp_nodelay(&socket).ok()
}

/// The server need not answer the end of a handshake, so a request behind it would wait for the
/// kernel's delayed acknowledgement.
#[test]
fn a_request_over_tls_does_not_wait_for_the_end_of_the_handshake() {
    let conf = "worker_processes 1; user root; events { } http {
             upstream at_once { server 127.0.0.1:%%PORT1%%; keepalive 1; }
             upstream later { server 127.0.0.1:%%PORT2%%; keepalive 1; }
             server {
                 listen 127.0.0.1:%%PORT1%% ssl; listen 127.0.0.1:%%PORT2%% ssl;
                 ssl_certificate self.pem; ssl_certificate_key self.key;
                 return 200 ok;
             }
             server {
                 listen 127.0.0.1:%%PORT%%;
                 proxy_http_version 1.1; proxy_set_header Connection \"\";
                 location / { proxy_pass https://at_once; }
                 location /later { tcp_nodelay off; proxy_pass https://later; }
             } }";
    let server = Server::start_in(certified(), WEIR, conf);
    for (path, n, expected) in [("/", 1, true), ("/later", 2, false)] {
        assert_eq!(server.get(path).body(), "ok");
        let Some(found) = sends_at_once(&server, server.port_at(n)) else {
            return println!("not run: no look at the sockets of another process");
        };
        assert_eq!(found, expected, "{path}");
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
