//! `zone`, `max_conns`, `queue`: state that is shared.

use rustix::process::Signal;
use weir_testkit::{Client, Server};

use super::origin::{Slow, serve_counted};
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
fn who_finds_no_server_waits_in_line() {
    let origin = Slow::new();
    let port = origin.port;
    let http = format!(
        "upstream u {{ zone u 64k; server 127.0.0.1:{port} max_conns=1; queue 2 timeout=10s; }}"
    );
    let server = start("worker_threads 1;", &http);
    let mut first = ask(&server);
    let answer = origin.asked();
    let mut waiting = [ask(&server), ask(&server)];
    // The third one finds the queue full.
    assert_eq!(ask(&server).response().status, 502);
    drop(answer);
    assert_eq!(first.response().status, 200);
    for client in &mut waiting {
        drop(origin.asked());
        assert_eq!(client.response().status, 200);
    }
}

#[test]
fn waiting_has_its_time() {
    let origin = Slow::new();
    let port = origin.port;
    let http =
        format!("upstream u {{ server 127.0.0.1:{port} max_conns=1; queue 1 timeout=50ms; }}");
    let server = start("", &http);
    let _first = ask(&server);
    let _answer = origin.asked();
    assert_eq!(ask(&server).response().status, 502);
    server.wait_log("no live upstreams while connecting to upstream", 1);
}

#[test]
fn loops_share_what_they_keep() {
    let (port, opened) = serve_counted(|_| Some(String::new()));
    let http = format!("upstream u {{ server 127.0.0.1:{port}; keepalive 4; }}");
    let main = "worker_processes 1; worker_threads 4;";
    let server =
        start(main, &http.replace("upstream", "log_format l $loop; access_log loops l; upstream"));
    for _ in 0..40 {
        assert_eq!(ask(&server).response().status, 200);
    }
    assert_eq!(opened.load(std::sync::atomic::Ordering::SeqCst), 1);
    let loops: std::collections::HashSet<String> =
        server.dir().read("loops").lines().map(str::to_owned).collect();
    assert!(loops.len() > 1, "{loops:?}");
}

#[test]
fn a_connection_that_closed_is_no_connection() {
    let close = std::sync::atomic::AtomicUsize::new(0);
    let (port, opened) = serve_counted(move |_| {
        // Says that it keeps the connection, and closes it before the second request.
        let n = close.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        n.is_multiple_of(2).then(String::new)
    });
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
