//! Workers that cannot start, and which worker takes the place of one that has died.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rustix::process::Signal;
use weir_testkit::{Client, Server, free_port};

use super::{HELLO, TWO_WORKERS, WEIR};

#[test]
fn a_worker_that_cannot_start_is_not_started_again() {
    let server = Server::start(WEIR, &format!("working_directory /no/such/place; {HELLO}"));
    server.wait_log("exited with fatal code 2 and cannot be respawned", 1);
    assert!(server.log().contains("chdir(\"/no/such/place\") failed (2:"));
    assert_eq!(server.logged("start worker process "), 1);
}

#[test]
fn old_workers_stay_when_new_ones_cannot_start() {
    let server = Server::start(WEIR, HELLO);
    assert_eq!(server.get("/").status, 200);
    let workers = server.workers();
    server.configure(&format!("working_directory /no/such/place; {HELLO}"));
    server.signal(Signal::HUP);
    server.wait_log("cannot be respawned", 1);
    assert_eq!(server.workers(), workers);
    assert_eq!(server.get("/").body(), "hello");
}

#[test]
fn an_old_worker_is_replaced_while_new_ones_cannot_start() {
    let server = Server::start(WEIR, TWO_WORKERS);
    server.wait_log("start worker process ", 2);
    server.configure(&format!("working_directory /no/such/place; {HELLO}"));
    server.signal(Signal::HUP);
    server.wait_log("cannot be respawned", 1);
    // Also where a further reload fails in the same way.
    server.signal(Signal::HUP);
    server.wait_log("cannot be respawned", 2);
    for (died, victim) in server.workers().into_iter().enumerate() {
        server.signal_worker(victim, Signal::KILL);
        server.wait_log("start worker process ", 4 + died + 1);
        server.wait_gone(victim);
    }
    let successors = server.workers();
    assert_eq!(successors.len(), 2);
    let said = server.get("/").body();
    assert!(successors.iter().any(|pid| pid.to_string() == said), "{said}");
    // They finish as their predecessors would have.
    server.configure(HELLO);
    server.signal(Signal::HUP);
    for worker in successors {
        server.wait_gone(worker);
    }
    assert_eq!(server.get("/").body(), "hello");
    assert_eq!(server.workers().len(), 1);
}

#[test]
fn a_configuration_whose_workers_cannot_start_leaves_the_port_of_the_previous_one() {
    let other = free_port();
    let both = HELLO.replace("%%PORT%%;", &format!("%%PORT%%; listen 127.0.0.1:{other};"));
    assert_ne!(both, HELLO);
    let server = Server::start(WEIR, &both);
    server.configure(&format!("working_directory /no/such/place; {HELLO}"));
    server.signal(Signal::HUP);
    server.wait_log("the previous one stays in use", 1);
    assert_eq!(Client::connect(other).get("/").body(), "hello");
    // The port is not taken by another server, but by the workers that still serve.
    server.configure(&both.replace("hello", "again"));
    server.reload();
    assert_eq!(Client::connect(other).get("/").body(), "again");
    assert_eq!(server.get("/").body(), "again");
}

#[test]
fn a_configuration_whose_workers_cannot_start_leaves_the_unix_socket_of_the_previous_one() {
    let with = HELLO.replace("%%PORT%%;", "%%PORT%%; listen unix:%%DIR%%/sock;");
    assert_ne!(with, HELLO);
    let server = Server::start(WEIR, &with);
    let path = server.dir().file("sock");
    let ask = || {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let broken = HELLO.replace("%%PORT%%;", "%%PORT%%; listen unix:%%DIR%%/other;");
    server.configure(&format!("working_directory /no/such/place; {broken}"));
    server.signal(Signal::HUP);
    server.wait_log("the previous one stays in use", 1);
    assert!(ask().ends_with("hello") && !server.dir().file("other").exists());
    // It is the same socket that a further reload takes over.
    server.configure(&with.replace("hello", "again"));
    server.reload();
    assert!(ask().ends_with("again"));
    server.configure(HELLO);
    server.reload();
    assert!(!path.exists());
}

/// Fewer loops would have had fewer sockets of their own.
#[test]
fn a_configuration_whose_workers_cannot_start_takes_no_connections_from_loops() {
    let own = |workers: usize| {
        TWO_WORKERS
            .replace("worker_processes 2", &format!("worker_processes {workers}"))
            .replace("%%PORT%%;", "%%PORT%% reuseport;")
    };
    let server = Server::start(WEIR, &own(4));
    server.wait_log("start worker process ", 4);
    let workers: BTreeSet<_> = server.workers().iter().map(i32::to_string).collect();
    server.configure(&format!("working_directory /no/such/place; {}", own(2)));
    server.signal(Signal::HUP);
    server.wait_log("the previous one stays in use", 1);
    let said: BTreeSet<_> = (0..100).map(|_| server.connect().get("/").body()).collect();
    assert_eq!(said, workers);
}
