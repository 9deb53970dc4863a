//! What a sandbox, a limit or the kernel refuses.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use rustix::fs::{FileType, Mode};
use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use weir_testkit::{Client, Dir, Process, Server, free_port, under_strace, until};

use super::WEIR;

/// Old container runtimes answer so to each call that they do not know.
#[test]
fn a_sandbox_that_forbids_new_calls_is_served_in() {
    for call in ["openat2", "memfd_create"] {
        let dir = Dir::new();
        let Some(weir) = under_strace(&dir, WEIR, call, "error=EPERM") else { return };
        dir.write("page", "text");
        let conf = "events { } http { access_log %%DIR%%/access.log;
            server { listen 127.0.0.1:%%PORT%%; root %%DIR%%; } }";
        let server = Server::start_in(dir, &weir, conf);
        assert_eq!(server.get("/page").body(), "text", "{call}: {}", server.log());
        assert!(until(server.dir().path(), || server.dir().read("access.log").contains(" 200 4 ")));
    }
}

#[test]
fn root_that_stays_root_needs_no_right_to_change_groups() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = Dir::new();
    let Some(weir) = under_strace(&dir, WEIR, "setgroups", "error=EPERM") else { return };
    let conf =
        "user root; events { } http { server { listen 127.0.0.1:%%PORT%%; return 200 ok; } }";
    let server = Server::start_in(dir, &weir, conf);
    assert_eq!(server.get("/").body(), "ok");
    server.wait_log("initgroups(root, 0) failed, ignored (1: ", 1);
    assert_eq!(server.logged("[warn] "), 1, "{}", server.log());
}

/// The kernel ends a process that writes past RLIMIT_FSIZE by SIGXFSZ, unless it ignores the signal.
#[test]
fn a_limit_on_the_size_of_files_costs_one_request() {
    let conf = "events { } http { client_max_body_size 10m; server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid; }
        location /up { client_body_in_file_only clean; proxy_pass http://127.0.0.1:%%PORT1%%; } }
        server { listen 127.0.0.1:%%PORT1%%; return 200; } }";
    let server = Server::start(WEIR, conf);
    let limit = Rlimit { current: Some(100_000), maximum: Some(100_000) };
    prlimit(Pid::from_raw(server.pid()), Resource::Fsize, limit).unwrap();
    server.reload();
    let mut kept = Client::connect(server.port());
    let worker = kept.get("/").body();
    let upload = |length: usize| {
        let head = format!(
            "POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        let mut client = Client::connect(server.port());
        client.send([head.as_bytes(), &vec![b'x'; length]].concat());
        client.response().status
    };
    assert_eq!(upload(200_000), 500);
    server.wait_log("failed (27: File too large)", 1);
    assert_eq!(upload(50_000), 200);
    assert_eq!(kept.get("/").body(), worker);
}

#[test]
fn a_master_that_cannot_start_leaves_no_pid_file() {
    let dir = Dir::new();
    let Some(weir) = under_strace(&dir, WEIR, "signalfd4", "error=EMFILE") else { return };
    let pid = dir.file("nginx.pid");
    let conf = format!(
        "pid {}; daemon off; events {{ }} http {{ server {{ listen 127.0.0.1:{}; }} }}",
        pid.display(),
        free_port()
    );
    let file = dir.write("nginx.conf", conf);
    let mut command = Command::new(weir);
    command.arg("-e").arg(dir.file("error.log")).arg("-c").arg(&file).stderr(Stdio::null());
    let mut process = Process::start(&mut command);
    assert!(!process.wait().success());
    assert!(dir.read("error.log").contains("the master cannot start (24: "));
    assert!(!pid.exists());
}

#[test]
fn a_line_that_a_busy_syslog_server_has_no_room_for_is_told_of() {
    let dir = Dir::new();
    let _busy = UnixDatagram::bind(dir.file("log")).unwrap();
    fs::set_permissions(dir.file("log"), fs::Permissions::from_mode(0o777)).unwrap();
    let conf = "error_log %%DIR%%/error.log info; events { }
        http { access_log syslog:server=unix:%%DIR%%/log; server { listen 127.0.0.1:%%PORT%%; return 200 ok; } }";
    let server = Server::start_in(dir, WEIR, conf);
    let mut client = Client::connect(server.port());
    let told = "send() to syslog failed while logging request, client: 127.0.0.1";
    let asked = (0..10_000).find(|_| {
        assert_eq!(client.get("/").body(), "ok");
        server.logged(told) > 0
    });
    assert!(asked.is_some(), "{}", server.log());
}

/// The reader of a log may stand still, as a disk may.
#[test]
fn a_worker_ends_though_its_log_takes_no_lines() {
    let dir = Dir::new();
    let pipe = dir.file("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .unwrap();
    let reader = File::options().read(true).write(true).open(&pipe).unwrap();
    let size = fcntl_setpipe_size(&reader, 4096).unwrap();
    let conf = "events { } http { error_log %%DIR%%/pipe;
        server { listen 127.0.0.1:%%PORT%%; root %%DIR%%; } }";
    let server = Server::start_in(dir, WEIR, conf);
    let path = format!("/{}", "x".repeat(200));
    // Each path is in its line twice.
    for _ in 0..size / 200 {
        assert_eq!(server.get(&path).status, 404);
    }
    let worker = server.workers()[0];
    server.signal(Signal::QUIT);
    server.wait_gone(worker);
    drop(reader);
}
