//! The master where the kernel or a container offers less than usual.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use rustix::process::geteuid;
use weir_testkit::{Dir, Server, run, traced, under_strace};

use super::WEIR;

/// Linux also lets others join a port that was bound alone. gVisor refuses them.
#[test]
fn a_port_of_datagrams_is_shared_from_the_beginning() {
    for workers in [3, 1] {
        a_port_is_shared_from_the_beginning(workers);
    }
}

/// Also that of one loop, since a reload may want more.
fn a_port_is_shared_from_the_beginning(workers: usize) {
    let dir = Dir::new();
    let Some(weir) = traced(&dir, WEIR, "socket,bind,setsockopt") else { return };
    let conf = "events { }
        http { server { listen 127.0.0.1:%%PORT%%; return 200 ok; } }
        stream { server { listen 127.0.0.1:%%PORT1%% udp; return ok; } }";
    let conf = format!("worker_processes {workers}; {conf}");
    let server = Server::start_in(dir, &weir, &conf);
    let port = format!("htons({})", server.port_at(1));
    server.wait_file("trace", "SO_REUSEPORT", workers);
    let trace = server.dir().read("trace");
    let mut bound = HashSet::new();
    for line in trace.lines() {
        let descriptor = |call: &str| line.split_once(call)?.1.split(',').next();
        if line.contains(" socket(") {
            bound.remove(line.rsplit(' ').next().unwrap());
        } else if let Some(fd) = descriptor(" bind(") {
            bound.insert(fd);
        } else if line.contains("SO_REUSEPORT") {
            let fd = descriptor(" setsockopt(").unwrap();
            assert!(!bound.contains(fd), "{trace}");
        }
    }
    // The first tells whether another server has the port.
    let bound = trace.lines().filter(|line| line.contains(&port)).count();
    assert_eq!(bound, workers + 1, "{trace}");
}

/// The mode of a socket is set by way of its descriptor, which needs /proc.
#[test]
fn all_users_may_connect_to_a_socket_where_there_is_no_proc() {
    let dir = Dir::new();
    let inject = "error=ENOENT:when=1";
    let Some(weir) = under_strace(&dir, WEIR, "fchmodat", inject) else { return };
    let conf = "events { } http { server { listen 127.0.0.1:%%PORT%%; listen unix:%%DIR%%/socket;
        return 200 ok; } }";
    let server = Server::start_in(dir, &weir, conf);
    assert_eq!(server.get("/").body(), "ok");
    let mode = fs::metadata(server.dir().file("socket")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666, "{}", server.log());
    assert_eq!(server.logged("chmod()"), 0, "{}", server.log());
}

/// A container may have root without CAP_DAC_OVERRIDE. It started once and not again, since the
/// directories of temporary files are the workers' by then.
#[test]
fn root_without_rights_to_files_of_others_starts_again() {
    const ROOT: [&str; 2] = ["--bounding-set", "-all,+chown,+setuid,+setgid,+kill"];
    let can = Command::new("setpriv").args(ROOT).arg("true").status();
    if !geteuid().is_root() || !can.is_ok_and(|status| status.success()) {
        println!("not run: this is not root with setpriv");
        return;
    }
    let dir = Dir::new();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let script = format!("#!/bin/sh\nexec setpriv {} {WEIR} \"$@\"\n", ROOT.join(" "));
    let weir = dir.write("weir", script).display().to_string();
    fs::set_permissions(&weir, fs::Permissions::from_mode(0o755)).unwrap();
    let conf = "user daemon; events { } http { client_body_temp_path %%DIR%%/temp;
        server { listen 127.0.0.1:%%PORT%%; return 200 ok; } }";
    let mut server = Server::start_in(dir, &weir, conf);
    let temp = fs::metadata(server.dir().file("temp")).unwrap();
    assert_eq!((temp.permissions().mode() & 0o777, temp.uid()), (0o700, 1));
    server.reload();
    assert_eq!(server.get("/").body(), "ok");
    assert_eq!(server.logged("[emerg]"), 0, "{}", server.log());
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_server_that_cannot_go_to_the_background_names_the_call_that_failed() {
    let dir = Dir::new();
    let Some(weir) = under_strace(&dir, WEIR, "setsid", "error=EPERM") else { return };
    let conf = dir.write("nginx.conf", "daemon on; pid weir.pid; error_log stderr; events { }");
    let args = ["-p", dir.path().to_str().unwrap(), "-c", conf.to_str().unwrap()];
    let ran = run(&weir, args);
    let said = String::from_utf8_lossy(&ran.stderr);
    let failed = "cannot go to the background: setsid() failed (1: Operation not permitted)";
    assert!(said.contains(failed), "{said}");
    assert_eq!(ran.status.code(), Some(1));
}
