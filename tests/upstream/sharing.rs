//! `zone`, `max_conns`, `queue`: state that is shared.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::process::Signal;
use weir_testkit::{Client, Dir, Server, ask_until};

use super::origin::{Slow, forgetful, serve_counted};
use super::{conf, start};

fn ask(server: &Server) -> Client {
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client
}

const WORKERS: &str = "worker_processes 3; worker_threads 2;";

#[test]
fn max_conns_is_exact_over_workers_and_reloads() {
    let origin = Slow::new();
    let port = origin.port;
    let http = format!("upstream u {{ zone u 64k; server 127.0.0.1:{port} max_conns=2; }}");
    let server = start(WORKERS, &http);
    let held = [ask(&server), ask(&server)];
    let answers = [origin.asked(), origin.asked()];
    for _ in 0..10 {
        assert_eq!(ask(&server).response().status, 502);
    }
    // Connections of workers that the configuration before has left count, too.
    server.reload();
    for _ in 0..10 {
        assert_eq!(ask(&server).response().status, 502);
    }
    assert!(origin.is_idle());
    drop(answers);
    for mut client in held {
        assert_eq!(client.response().status, 200);
    }
    let mut next = ask(&server);
    drop(origin.asked());
    assert_eq!(next.response().status, 200);
}

#[test]
fn a_killed_worker_gives_its_connections_back() {
    let origin = Slow::new();
    let port = origin.port;
    let http = format!("upstream u {{ zone u 64k; server 127.0.0.1:{port} max_conns=1; }}");
    let server = start("worker_processes 1;", &http);
    let _lost = ask(&server);
    let _answer = origin.asked();
    assert_eq!(ask(&server).response().status, 502);
    let worker = server.workers()[0];
    server.signal_worker(worker, Signal::KILL);
    server.wait_gone(worker);
    let mut next = ask(&server);
    drop(origin.asked());
    assert_eq!(next.response().status, 200);
}

#[test]
fn what_one_worker_knows_of_a_failure_all_know() {
    let dead = weir_testkit::free_port();
    let http = format!(
        "upstream u {{
             zone u 64k;
             server 127.0.0.1:{dead} max_fails=1 fail_timeout=1h;
             server 127.0.0.1:{dead} backup fail_timeout=1h;
         }}"
    );
    let server = start("worker_processes 4;", &http);
    for _ in 0..12 {
        assert_eq!(ask(&server).response().status, 502);
    }
    let failed = "upstream server temporarily disabled while connecting to upstream";
    // Each of the two failed once.
    server.wait_log(failed, 2);
    // What comes later in the log came later.
    server.wait_log("no live upstreams", 11);
    assert_eq!(server.logged(failed), 2, "{}", server.log());
}

#[test]
fn a_zone_may_be_sized_elsewhere_but_somewhere() {
    let ok =
        "upstream u { zone z; server 127.0.0.1:1; } upstream v { zone z 64k; server 127.0.0.1:1; }";
    let server = start("", ok);
    let bad = conf("", "upstream u { zone z; server 127.0.0.1:1; }");
    server.configure(&bad);
    let out = server.command(&["-t"]);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(text.contains("[emerg] zero size shared memory zone \"z\""), "{text}");
}

#[test]
fn a_request_without_a_free_server_waits_in_the_queue() {
    let origin = Slow::new();
    let port = origin.port;
    let http = format!(
        "upstream u {{ zone u 64k; server 127.0.0.1:{port} max_conns=1; queue 2 timeout=1m; }}
         server {{ listen 127.0.0.1:%%PORT1%%; location / {{ stub_status; }} location /json {{ weir_status json; }} }}"
    );
    let server = start("worker_threads 1;", &http);
    let mut first = ask(&server);
    let answer = origin.asked();
    let waiting = [ask(&server), ask(&server)];
    // The first one, those that wait, and the one that asks for this.
    let status = || Client::connect(server.port_at(1)).get("/").body();
    assert!(ask_until(|| status().contains("Writing: 4 ")), "{}", status());
    // The third one finds the queue full.
    assert_eq!(ask(&server).response().status, 502);
    let queue = || {
        let page: serde_json::Value =
            serde_json::from_str(&Client::connect(server.port_at(1)).get("/json").body()).unwrap();
        let queue = &page["queues"]["u"];
        let counted =
            ["waiting", "limit", "entered", "refused", "late"].map(|name| queue[name].as_u64());
        (counted.map(Option::unwrap), queue["wait"]["count"].as_u64().unwrap())
    };
    assert_eq!(queue(), ([2, 2, 2, 1, 0], 0));
    drop(answer);
    assert_eq!(first.response().status, 200);
    for _ in &waiting {
        drop(origin.asked());
    }
    for mut client in waiting {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(queue(), ([0, 2, 2, 1, 0], 2));
}

/// Only the first request of a queue looks for a server from time to time. Thousands that wait would
/// keep a loop busy.
#[test]
#[allow(clippy::disallowed_methods, reason = "it measures what a loop does in a time")]
fn those_that_wait_sleep() {
    const CLIENTS: usize = 50;
    const COPIES: usize = 100;
    let origin = Slow::new();
    let port = origin.port;
    let mirrors = "mirror /copy;".repeat(COPIES);
    let http = format!(
        "upstream u {{ zone u 64k; server 127.0.0.1:{port} max_conns=1; queue 10000 timeout=1m; }}
         server {{ listen 127.0.0.1:%%PORT1%%; location /json {{ weir_status json; }}
             location / {{ {mirrors} empty_gif; }} location /copy {{ proxy_pass http://u; }} }}"
    );
    let server = start("worker_processes 1; worker_threads 1;", &http);
    let _first = ask(&server);
    let _answer = origin.asked();
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|_| Client::connect(server.port_at(1))).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    let waiting = || {
        let text = Client::connect(server.port_at(1)).get("/json").body();
        let page: serde_json::Value = serde_json::from_str(&text).unwrap();
        page["queues"]["u"]["waiting"].as_u64()
    };
    assert!(ask_until(|| waiting() == Some((CLIENTS * COPIES) as u64)), "{:?}", waiting());
    let worker = server.workers()[0];
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{worker}/stat")).unwrap();
        let numbers = stat.rsplit_once(')').unwrap().1.split_whitespace();
        numbers.skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum::<u64>()
    };
    let before = ticks();
    std::thread::sleep(Duration::from_secs(1));
    let used = ticks() - before;
    assert!(used < 30, "{used} hundredths of a second");
}

#[test]
fn waiting_has_its_time() {
    let origin = Slow::new();
    let port = origin.port;
    let http =
        format!("upstream u {{ server 127.0.0.1:{port} max_conns=1; queue 1 timeout=50ms; }}");
    let page = "server { listen 127.0.0.1:%%PORT1%%; weir_status; }";
    let server = start("", &format!("{http} {page}"));
    let _first = ask(&server);
    let _answer = origin.asked();
    assert_eq!(ask(&server).response().status, 502);
    server.wait_log("no live upstreams while connecting to upstream", 1);
    let text = Client::connect(server.port_at(1)).get("/").body();
    assert!(text.contains("weir_upstream_queue_late_total{upstream=\"u\"} 1\n"), "{text}");
}

#[test]
fn loops_share_what_they_keep() {
    let (port, opened) = serve_counted(|_| Some(String::new()));
    let http = format!("upstream u {{ server 127.0.0.1:{port}; keepalive 4; }}");
    let main = "worker_processes 1; worker_threads 4;";
    let server =
        start(main, &http.replace("upstream", "log_format l $loop; access_log loops l; upstream"));
    asks_two_loops(&server, |client| assert_eq!(client.response().status, 200));
    assert_eq!(opened.load(std::sync::atomic::Ordering::SeqCst), 1);
}

/// Asks until requests have come to two loops, at intervals after which a loop may take another one's connection.
#[allow(clippy::disallowed_methods, reason = "a connection is unused once time has passed")]
fn asks_two_loops(server: &Server, mut answered: impl FnMut(&mut Client)) {
    let loops = || server.dir().read("loops").lines().collect::<HashSet<_>>().len();
    let asked = (0..10).any(|n| {
        if n > 0 {
            std::thread::sleep(UNUSED);
        }
        answered(&mut ask(server));
        loops() > 1
    });
    assert!(asked, "all requests came to one loop");
}

/// A loop may take a connection that another one has not used for half a second. As much again is for a busy machine, where it
/// may become free later than its client has the answer.
const UNUSED: Duration = Duration::from_secs(1);

/// Each of them takes two calls of epoll_ctl and wakes a loop.
#[test]
fn loops_in_traffic_keep_their_connections() {
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 200;
    let origin = Server::start(
        super::WEIR,
        "events { } http { server {
             listen 127.0.0.1:%%PORT%%; add_header X-Connection $connection; return 204;
         } }",
    );
    let http = format!(
        "log_format l '$loop $upstream_http_x_connection'; access_log uses l;
         upstream u {{ server 127.0.0.1:{}; keepalive 16; }}",
        origin.port()
    );
    let server = start("worker_processes 1; worker_threads 4;", &http);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
    for n in 0..REQUESTS {
        let client = &mut clients[n % CLIENTS];
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response().status, 204);
    }
    let (log, mut used, mut moves) = (server.dir().read("uses"), HashMap::new(), 0);
    for (user, connection) in log.lines().filter_map(|line| line.split_once(' ')) {
        let before = used.insert(connection, user);
        moves += usize::from(before.is_some_and(|before| before != user));
    }
    assert!(!used.is_empty() && moves < REQUESTS / 20, "{moves} moves");
}

#[test]
fn a_connection_that_closed_is_no_connection() {
    let (port, opened) = forgetful();
    let http = format!("upstream u {{ server 127.0.0.1:{port}; keepalive 4; }}");
    let server = start("worker_processes 1; worker_threads 3;", &http);
    for _ in 0..20 {
        assert_eq!(ask(&server).response().status, 200);
    }
    assert!(opened.load(std::sync::atomic::Ordering::SeqCst) >= 20);
}

#[test]
fn a_name_that_is_not_found_does_not_stop_the_start() {
    let origin = super::origin::named("here", "");
    let http = format!(
        "upstream u {{ server nowhere.invalid:80; server 127.0.0.1:{origin}; }}
         server {{ listen 127.0.0.1:%%PORT1%%; location / {{ proxy_pass http://nowhere.invalid; }} }}"
    );
    let server = start("", &http);
    assert_eq!(ask(&server).response().header("X-Origin"), Some("here"));
    let mut client = Client::connect(server.port_at(1));
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 502);
}

#[test]
fn loops_share_connections_in_tls() {
    for version in ["TLSv1.2", "TLSv1.3"] {
        let conf = format!(
            "user root; worker_processes 1; worker_threads 4; events {{ }}
             http {{
                 log_format l $loop; access_log loops l;
                 upstream u {{ server 127.0.0.1:%%PORT1%%; keepalive 4; }}
                 server {{
                     listen 127.0.0.1:%%PORT%%;
                     location / {{ proxy_pass https://u; proxy_ssl_protocols {version}; }}
                 }}
                 server {{
                     listen 127.0.0.1:%%PORT1%% ssl; access_log off;
                     ssl_certificate self.pem; ssl_certificate_key self.key;
                     add_header X-Connection \"$connection $ssl_protocol\"; return 204;
                 }}
             }}"
        );
        let server = Server::start_in(super::bodies::certified(), super::WEIR, &conf);
        // Without a body, a connection is free before the client has the answer.
        let mut answers = HashSet::new();
        asks_two_loops(&server, |client| {
            answers.extend(client.response().header("X-Connection").map(str::to_owned));
        });
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert!(answers.iter().all(|answer| answer.ends_with(version)), "{answers:?}");
    }
}

/// A script that runs weir with a table of hosts of its own; none where that takes rights that this test has not.
fn with_hosts(dir: &Dir) -> Option<String> {
    let hosts = dir.write("hosts", "127.0.0.1 localhost\n");
    let inner = format!("mount --bind {} /etc/hosts && exec \"$@\"", hosts.display());
    let script = format!("#!/bin/sh\nexec unshare -m sh -c '{inner}' sh {} \"$@\"\n", super::WEIR);
    let script = dir.write("weir", script);
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let out = std::process::Command::new(&script).arg("-v").output().ok()?;
    out.status.success().then(|| script.display().to_string())
}

#[test]
fn a_name_that_is_found_later_begins_to_serve() {
    let origin = super::origin::named("late", "");
    let dir = Dir::new();
    let Some(program) = with_hosts(&dir) else {
        println!("not run: no rights for a table of hosts");
        return;
    };
    let http = format!("upstream u {{ server later.invalid:{origin}; }}");
    let server = Server::start_in(dir, &program, &conf("worker_processes 1;", &http));
    assert_eq!(ask(&server).response().status, 502);
    server.dir().write("hosts", "127.0.0.1 localhost later.invalid\n");
    let found = ask_until(|| ask(&server).response().header("X-Origin") == Some("late"));
    assert!(found, "{}", server.log());
}
