//! The master where the kernel or a container offers less than usual.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use weir_testkit::{Dir, Server, traced, under_strace};

use super::WEIR;

/// Linux also lets others join a port that was bound alone. gVisor refuses them.
#[test]
fn a_port_of_datagrams_is_shared_from_the_beginning() {
    let dir = Dir::new();
    let Some(weir) = traced(&dir, WEIR, "socket,bind,setsockopt") else { return };
    let conf = "worker_processes 3; events { }
        http { server { listen 127.0.0.1:%%PORT%%; return 200 ok; } }
        stream { server { listen 127.0.0.1:%%PORT1%% udp; return ok; } }";
    let server = Server::start_in(dir, &weir, conf);
    let port = format!("htons({})", server.port_at(1));
    server.wait_file("trace", "SO_REUSEPORT", 3);
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
    assert_eq!(trace.lines().filter(|line| line.contains(&port)).count(), 4, "{trace}");
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
