//! No loop ever waits for a file: a server runs under strace through everything that touches files,
//! and each system call of a loop is checked.
//!
//! A call may stay on a loop if the kernel answers it from memory or not at all: `openat2` with
//! `RESOLVE_CACHED`, `preadv2` with `RWF_NOWAIT`, `sendfile` of bytes that one of these has found
//! in memory. A `thread_pool` makes all other calls on files.

mod calls;
mod rules;
mod site;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use weir_testkit::{Dir, Server, until};

/// What strace is asked for.
const TRACED: &str = "trace=%file,%desc,%process";

/// A program that runs weir under strace and is, for all others, weir: strace stands beside it.
fn traced(dir: &Dir) -> String {
    let (trace, weir) = (dir.file("trace"), env!("CARGO_BIN_EXE_weir"));
    let script = format!(
        "#!/bin/sh\nexec strace --seccomp-bpf -D -f -y -q -s 4 -e {TRACED} -o {} {weir} \"$@\"\n",
        trace.display()
    );
    let path = dir.write("weir", script);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).unwrap();
    path.display().to_string()
}

/// The trace, when all that was traced has ended.
fn trace(dir: &Path, pid: i32) -> String {
    let path = dir.join("trace");
    let is_end = |line: &str| {
        let words: Vec<_> = line.split_whitespace().take(3).collect();
        words == [pid.to_string().as_str(), "+++", "exited"]
    };
    let whole = until(dir, || {
        let mut tail = [0; 200];
        let file = std::fs::File::open(&path).unwrap();
        let at = file.metadata().unwrap().len().saturating_sub(tail.len() as u64);
        let n = file.read_at(&mut tail, at).unwrap();
        String::from_utf8_lossy(&tail[..n]).lines().any(is_end)
    });
    assert!(whole, "the trace has no end");
    String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned()
}

/// Whether there is a strace that may trace here; says so if not.
fn can_trace() -> bool {
    let tried = Command::new("strace").args(["-o", "/dev/null", "true"]).status();
    let can = tried.is_ok_and(|status| status.success());
    if !can {
        eprintln!("skipped: strace is missing, or may not trace here");
    }
    can
}

/// Ends a server that was traced; what its loops did.
fn verdict(mut server: Server) -> rules::Verdict {
    let pid = server.pid();
    assert!(server.stop().success());
    rules::judge(&calls::read(&trace(server.dir().path(), pid)))
}

#[test]
fn no_loop_waits_for_a_file() {
    if !can_trace() {
        return;
    }
    let dir = site::dir();
    let program = traced(&dir);
    let server = Server::start_in(dir, &program, &site::conf(""));
    site::visit(&server);
    let logs = server.logged("reopening logs");
    server.signal(Signal::USR1);
    server.wait_log("reopening logs", logs + 2);
    site::visit(&server);
    server.configure(&site::conf("# another configuration"));
    server.reload();
    site::visit(&server);

    let verdict = verdict(server);
    assert!(verdict.loops >= 4, "{} loops", verdict.loops);
    assert!(verdict.calls > 1000, "{} calls", verdict.calls);
    assert!(verdict.sent > 0, "nothing was sent by sendfile()");
    let all = verdict.blocking.join("\n");
    assert!(all.is_empty(), "{} calls may block:\n{all}", verdict.blocking.len());
}

#[test]
fn a_loop_that_waits_for_files_is_found() {
    if !can_trace() {
        return;
    }
    let dir = site::dir();
    let program = traced(&dir);
    let conf = "events { }
                http {
                    server { listen 127.0.0.1:%%PORT%%; root %%DIR%%/site; aio off; }
                }";
    let server = Server::start_in(dir, &program, conf);
    assert_eq!(server.get("/a.txt").body(), "small");
    let blocking = verdict(server).blocking;
    for call in [" open", " pread64("] {
        let of_file = |line: &&String| line.contains(call) && line.contains("/site/a.txt");
        assert!(blocking.iter().any(|line| of_file(&line)), "no {call} in {blocking:?}");
    }
}
