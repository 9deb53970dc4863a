//! Changes that nothing comes of: the new workers cannot start, or the master ends.

use super::*;

#[test]
fn a_change_whose_new_workers_cannot_start_leaves_what_serves() {
    let dir = Dir::new();
    let place = dir.file("place");
    std::fs::create_dir(&place).unwrap();
    let in_place = format!("working_directory {};", place.display());
    let with = |more: &str| conf(&in_place, "", &format!("{more} location / {{ return 200 a; }}"));
    let server = Server::start_in(dir, WEIR, &with(""));
    server.wait_log("start worker process ", 2);
    let workers = server.workers();
    // They are in the directory.
    workers.iter().for_each(|pid| server.wait_asleep(*pid));
    std::fs::remove_dir(&place).unwrap();
    let other = free_port();
    let answer = put(&server, &with(&format!("listen 127.0.0.1:{other};")));
    assert_eq!(answer.status, 422, "{}", answer.body());
    assert!(answer.body().contains("the previous one stays in use"), "{}", answer.body());
    assert_eq!(server.workers(), workers);
    take(&server, &with("").replace("200 a", "200 b"));
    assert_eq!(server.get("/").body(), "b");
}

#[test]
fn a_request_for_a_change_ends_with_the_master() {
    let text = says("old")
        .replace("worker_processes 2; worker_threads 2;", "worker_processes 1; worker_threads 1;");
    let server = Server::start(WEIR, &text);
    let mut client = server.connect();
    assert_eq!(client.get("/").body(), "old");
    let workers = server.workers();
    server.signal(Signal::STOP);
    let headers = "Host: localhost\r\nContent-Type: text/plain\r\nContent-Length: 10";
    client.send(format!("PUT /api/config HTTP/1.1\r\n{headers}\r\n\r\nevents {{ }}"));
    // The only loop takes the request before the second one of another connection.
    let mut other = server.connect();
    for _ in 0..2 {
        assert_eq!(other.get("/").body(), "old");
    }
    assert_eq!(put(&server, &text).status, 409);
    server.signal(Signal::KILL);
    let answer = client.response();
    assert_eq!(answer.status, 503, "{}", answer.body());
    assert!(answer.body().contains("the master process has ended"), "{}", answer.body());
    for worker in workers {
        server.signal_worker(worker, Signal::KILL);
    }
}

#[test]
fn changes_continue_from_what_serves_if_new_workers_cannot_start() {
    let server = Server::start(WEIR, &says("old"));
    let workers = server.workers();
    server.configure(&conf("working_directory /no/such/place;", "", ""));
    server.signal(Signal::HUP);
    server.wait_log("cannot be respawned", 2);
    take(&server, &says("new"));
    assert_eq!(server.get("/").body(), "new");
    assert_eq!(server.workers(), workers);
}

/// A configuration whose only worker waits at its start until the pipe `name` is opened.
fn gated(name: &str, and_then: &str) -> String {
    let dir = "%%DIR%%";
    // The master tries the script first.
    let http = format!(
        "init_by_lua_block {{
            local tried = io.open('{dir}/{name}.tried')
            if not tried then io.open('{dir}/{name}.tried', 'w'):close() return end
            io.open('{dir}/{name}'):read('*a')
            {and_then}
        }}"
    );
    one_loop(&conf("user root;", &http, &format!("location / {{ return 200 {name}; }}")))
}

fn one_loop(text: &str) -> String {
    text.replace("worker_processes 2; worker_threads 2;", "worker_processes 1; worker_threads 1;")
}

#[test]
fn the_newest_of_three_configurations_may_fail_while_the_second_begins_to_serve() {
    let dir = Dir::new();
    for name in ["second", "third"] {
        let made = run("mkfifo", [dir.file(name)]);
        assert!(made.status.success());
    }
    let first = one_loop(&conf("user root;", "", "location / { return 200 first; }"));
    let server = Server::start_in(dir, WEIR, &first);
    let open = |name: &str| std::fs::write(server.dir().file(name), "").unwrap();
    let workers = server.workers();
    server.configure(&gated("second", ""));
    server.signal(Signal::HUP);
    server.wait_log("start worker process ", 2);
    let ends = "local ffi = require 'ffi' ffi.cdef 'void _exit(int);' ffi.C._exit(2)";
    server.configure(&gated("third", ends));
    server.signal(Signal::HUP);
    server.wait_log("start worker process ", 3);
    assert_eq!(server.get("/").body(), "first");
    open("second");
    server.wait_gone(workers[0]);
    assert_eq!(server.get("/").body(), "second");
    open("third");
    server.wait_log("the previous one stays in use", 1);
    // It continues from the second one.
    let answer = put(&server, &first.replace("200 first", "200 fourth"));
    assert_eq!(answer.status, 200, "{}", answer.body());
    assert_eq!(server.get("/").body(), "fourth");
}
