//! Every way to wait serves alike: plainly, over TLS, through an upstream, and across a reload.

use std::path::Path;
use std::process::Command;

use weir_testkit::{Dir, Server, run};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Longer than the kernel's buffers of a connection, so that its sender has to wait for room.
const LONG: usize = 16 << 20;

fn dir() -> Dir {
    let dir = Dir::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    for name in ["self.pem", "self.key"] {
        dir.write(name, std::fs::read(data.join(name)).unwrap());
    }
    dir.write("long", vec![b'x'; LONG]);
    dir
}

fn conf(events: &str, answer: &str) -> String {
    format!(
        "user root; worker_processes 2; worker_threads 2; events {{ {events} }}
         http {{
             access_log off;
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 root %%DIR%%;
                 location = / {{ return 200 {answer}; }}
                 location /behind/ {{ proxy_pass http://127.0.0.1:%%PORT1%%/; }}
             }}
             server {{ listen 127.0.0.1:%%PORT1%%; root %%DIR%%; }}
             server {{
                 listen 127.0.0.1:%%PORT2%% ssl; http2 on;
                 ssl_certificate self.pem; ssl_certificate_key self.key;
                 root %%DIR%%;
             }}
         }}"
    )
}

/// Whether the kernel has a backend, or weir says why not.
fn is_there(backend: &str) -> bool {
    let dir = Dir::new();
    dir.write("nginx.conf", format!("events {{ use {backend}; }} http {{ }}"));
    let prefix = format!("{}/", dir.path().display());
    let out = run(WEIR, ["-t", "-p", &prefix, "-c", "nginx.conf", "-e", "error.log"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() || said.contains("is not available ("), "{said}");
    if !out.status.success() {
        eprintln!("not tried: {said}");
    }
    out.status.success()
}

fn serves(backend: &str) {
    if !is_there(backend) {
        return;
    }
    let uses = format!("use {backend};");
    let mut server = Server::start_in(dir(), WEIR, &conf(&uses, "before"));
    server.wait_log(&format!("using the \"{backend}\" event method"), 1);
    let mut kept = server.connect();
    for _ in 0..5 {
        assert_eq!(kept.get("/").body(), "before");
        assert_eq!(server.get("/").body(), "before");
    }
    for path in ["/long", "/behind/long"] {
        // A client that reads nothing for a while fills the buffers on the way.
        let mut slow = server.connect();
        slow.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
        assert_eq!(kept.get("/").body(), "before");
        assert_eq!(slow.response().bytes.len(), LONG, "{path}");
        assert!(slow.is_closed());
    }
    for version in ["--http1.1", "--http2"] {
        let url = format!("https://127.0.0.1:{}/long", server.port_at(2));
        let Ok(out) = Command::new("curl").args(["-sSk", version, &url]).output() else {
            eprintln!("not tried over TLS: curl is missing");
            break;
        };
        assert_eq!(out.stdout.len(), LONG, "{version}: {}", String::from_utf8_lossy(&out.stderr));
    }
    let old = server.workers();
    server.configure(&conf(&uses, "after"));
    server.reload();
    drop(kept);
    // Until then, loops that have yet to hear of it accept as well.
    old.into_iter().for_each(|pid| server.wait_gone(pid));
    assert_eq!(server.get("/").body(), "after");
    assert_eq!(server.stop().code(), Some(0));
    assert!(!server.log().contains("[alert]"), "{}", server.log());
}

#[test]
fn epoll_serves() {
    serves("epoll");
}

#[test]
fn poll_serves() {
    serves("poll");
}

#[test]
fn select_serves() {
    serves("select");
}

#[test]
fn io_uring_serves() {
    serves("io_uring");
}

#[test]
fn io_uring_is_refused_where_the_kernel_has_none() {
    let dir = Dir::new();
    dir.write("nginx.conf", "events {\n    use io_uring;\n}\nhttp { }\n");
    let prefix = format!("{}/", dir.path().display());
    let strace = |error: &str| {
        let inject = format!("inject=io_uring_setup:error={error}");
        let trace = dir.file("trace").display().to_string();
        let args = ["-f", "-o", &trace, "-e", &inject, WEIR, "-t", "-p", &prefix];
        let rest = ["-c", "nginx.conf", "-e", "error.log"];
        Command::new("strace").args(args.into_iter().chain(rest)).output()
    };
    for (error, why) in [
        ("ENOSYS", "(38: Function not implemented)"),
        ("EPERM", "(1: Operation not permitted)"),
        ("EINVAL", "(the kernel's io_uring is older than Linux 6.0)"),
    ] {
        let Ok(out) = strace(error) else {
            eprintln!("skipped: strace is missing");
            return;
        };
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        if said.contains("strace:") {
            eprintln!("skipped: strace may not trace here");
            return;
        }
        assert_eq!(out.status.code(), Some(1), "{said}");
        let text = format!("[emerg] event type \"io_uring\" is not available {why} in ");
        assert!(said.contains(&text) && said.contains("nginx.conf:2"), "{said}");
    }
}
