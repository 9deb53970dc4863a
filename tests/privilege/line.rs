//! The line between a worker and the master: a worker that an attacker has taken over may send
//! any message on it. The links that it has planted at the logs lead outside.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use rustix::net::{SendFlags, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use weir_testkit::{Dir, Server, ask_until};

use super::{WEIR, is_root, outside, state, theirs};

/// Workers of the server that is attacked by its own workers.
const WORKERS: usize = 6;

/// Sends a worker's message to the master.
#[expect(clippy::disallowed_methods, reason = "the test has no loop")]
fn say(line: &OwnedFd, message: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(line, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// A worker's end of the line to its master, taken as any process of its user can take it.
fn line_of(worker: i32) -> OwnedFd {
    let process = pidfd_open(Pid::from_raw(worker).unwrap(), PidfdFlags::empty()).unwrap();
    let lines = || -> Vec<OwnedFd> {
        let entries = fs::read_dir(format!("/proc/{worker}/fd")).unwrap();
        let numbers = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
        let copies =
            numbers.filter_map(|n| pidfd_getfd(&process, n, PidfdGetfdFlags::empty()).ok());
        let is_line = |fd: &OwnedFd| sockopt::socket_type(fd) == Ok(SocketType::SEQPACKET);
        copies.filter(is_line).collect()
    };
    // A worker that has just been made has those of others as well.
    assert!(ask_until(|| lines().len() == 1), "no line to the master, or several");
    lines().remove(0)
}

/// A server with workers of the user `daemon`. Its logs are in a directory of that user, where
/// links now lead outside.
fn with_planted_logs(http: &str) -> (Server, PathBuf) {
    let dir = Dir::new();
    let (theirs, outside) = (theirs(&dir, "theirs"), outside(&dir));
    let server = Server::start_in(
        dir,
        WEIR,
        &format!(
            "user daemon; worker_processes {WORKERS}; error_log %%DIR%%/theirs/error.log; events {{ }}
             http {{ access_log %%DIR%%/theirs/access.log;
                     server {{ listen 127.0.0.1:%%PORT%%; location / {{ return 200 $pid; }} {http} }} }}"
        ),
    );
    for name in ["error.log", "access.log"] {
        fs::remove_file(theirs.join(name)).unwrap();
        symlink(outside.join(format!("made-{name}")), theirs.join(name)).unwrap();
    }
    (server, outside)
}

#[test]
fn a_worker_has_the_master_do_nothing_without_an_api() {
    if !is_root() {
        return;
    }
    let (server, outside) = with_planted_logs("");
    let before = state(&outside);
    let workers = server.workers();
    // What the master would obey, what means nothing, and what is too long; then everything else.
    let first: [&[u8]; WORKERS] = [b"o", b"7", b"l", b"+", &[0], &[b'o'; 64]];
    for (worker, first) in workers.iter().zip(first) {
        let line = line_of(*worker);
        let all = (0..=255).map(|byte| [byte]);
        for message in std::iter::once(first.to_vec()).chain(all.map(|byte| byte.to_vec())) {
            // The master may have stopped reading.
            let _ = say(&line, &message);
        }
    }
    for worker in workers {
        server.wait_log(&format!("worker process {worker} sent "), 1);
    }
    assert_eq!(server.logged("the level of error logs is now"), 0);
    assert_eq!(server.logged(": reopening logs"), 0);
    assert_eq!(server.logged("nothing more is read from it"), WORKERS);
    assert_eq!(server.get("/").status, 200);
    assert_eq!(state(&outside), before);
}

#[test]
fn a_worker_with_an_api_opens_no_log_outside() {
    if !is_root() {
        return;
    }
    let (mut server, outside) =
        with_planted_logs("location /api/ { weir_api; allow 127.0.0.1; deny all; }");
    let before = state(&outside);
    let line = line_of(server.workers()[0]);
    for _ in 0..8 {
        say(&line, b"o").unwrap();
    }
    let master = server.pid();
    let refused = |name: &str| {
        format!(
            "{master}#{master}: open() \"{}/theirs/{name}\" failed",
            server.dir().path().display()
        )
    };
    server.wait_log(&refused("error.log"), 1);
    server.wait_log(&refused("access.log"), 1);
    assert_eq!(state(&outside), before);
    assert!(server.stop().success());
}
