//! The rights that a worker has: no capability but the one that `transparent` needs, and the groups
//! of its user.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;

use weir_testkit::{Dir, PATIENCE, Process, Server, run, until};

use super::{WEIR, is_root, statuses, strace};

#[test]
fn workers_have_no_capability_and_cannot_get_one() {
    if !is_root() {
        return;
    }
    let server = Server::start(
        WEIR,
        "user daemon; worker_processes 1; worker_threads 2; events { }
         http { server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid; } } }",
    );
    assert_eq!(server.get("/").status, 200);
    let worker = server.workers()[0];
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let found = statuses(worker, set);
        assert!(found.len() > 1, "the threads are to be looked at, too");
        assert!(found.iter().all(|bits| bits.trim_matches('0').is_empty()), "{set}: {found:?}");
    }
    let found = statuses(worker, "NoNewPrivs");
    assert!(found.iter().all(|is| is == "1"), "{found:?}");
    let ids = statuses(worker, "Uid");
    assert!(ids.iter().all(|ids| *ids == "1\t1\t1\t1"), "{ids:?}");
    // The master may have to start a new binary with the rights that are its file's.
    assert_eq!(statuses(server.pid(), "NoNewPrivs"), ["0"]);
}

/// Like [`Server::start`], in a network of its own in which 192.0.2.0/24 and 2001:db8::/32 belong to none of the addresses, and
/// packets to them come back; none where that cannot be made.
fn start_apart(conf: &str) -> Option<(Dir, Process)> {
    let network = "ip link set lo up
        ip route add local 192.0.2.0/24 dev lo table 100 && ip rule add to 192.0.2.0/24 lookup 100
        ip -6 route add local 2001:db8::/32 dev lo table 100 && ip -6 rule add to 2001:db8::/32 lookup 100";
    if !run("unshare", ["-n", "sh", "-e", "-c", network]).status.success() {
        println!("not run: no network of its own can be made");
        return None;
    }
    let dir = Dir::new();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let at = dir.path().display().to_string();
    let file = dir.write("nginx.conf", conf.replace("%%DIR%%", &at));
    let start = format!("{network}\nexec {WEIR} -p {at} -e {at}/error.log -c {}", file.display());
    let mut command = Command::new("unshare");
    let server = Process::start(command.args(["-n", "sh", "-e", "-c", &start]));
    Some((dir, server))
}

#[test]
fn a_transparent_bind_takes_addresses_of_others() {
    if !is_root() {
        return;
    }
    let conf = "daemon off; user daemon; pid %%DIR%%/pid; worker_processes 1; events { }
         http {
             server { listen 127.0.0.1:8080; listen [::1]:8080; return 200 \"[$remote_addr]\"; }
             server { listen unix:%%DIR%%/http;
                 location /4 { proxy_bind 192.0.2.7 transparent; proxy_pass http://127.0.0.1:8080; }
                 location /6 { proxy_bind 2001:db8::7 transparent; proxy_pass http://[::1]:8080; } }
         }
         stream {
             server { listen unix:%%DIR%%/stream; proxy_bind 192.0.2.8 transparent; proxy_pass 127.0.0.1:8080; }
         }";
    let Some((dir, _server)) = start_apart(conf) else { return };
    let path = |name: &str| dir.file(name);
    assert!(until(dir.path(), || path("pid").exists()), "{}", dir.read("error.log"));
    for (socket, uri, address) in
        [("http", "/4", "192.0.2.7"), ("http", "/6", "2001:db8::7"), ("stream", "/", "192.0.2.8")]
    {
        let mut client = UnixStream::connect(path(socket)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let ask = format!("GET {uri} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        client.write_all(ask.as_bytes()).unwrap();
        let mut got = String::new();
        client.read_to_string(&mut got).unwrap();
        assert!(got.contains(&format!("[{address}]")), "{got}\n{}", dir.read("error.log"));
    }
    let master: i32 = dir.read("pid").trim().parse().unwrap();
    let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap();
    let worker: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
    // CAP_NET_RAW, and no way to another or for a program.
    for (set, bits) in [("CapPrm", "2000"), ("CapEff", "2000"), ("CapInh", ""), ("CapBnd", "")] {
        let found = statuses(worker, set);
        assert!(found.iter().all(|is| is.trim_start_matches('0') == bits), "{set}: {found:?}");
    }
}

/// Without the groups of its user a worker would have root's.
#[test]
fn a_worker_that_cannot_take_its_groups_does_not_serve() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let Some(mut command) = strace(&dir, "setgroups", "error=EPERM") else { return };
    let conf = format!("daemon off; user daemon; pid {0}/pid; events {{ }}", dir.path().display());
    let file = dir.write("nginx.conf", conf);
    let _server = Process::start(command.arg("-c").arg(&file));
    let ended = || dir.read("error.log").contains("fatal code 2 and cannot be respawned");
    assert!(until(dir.path(), ended), "{}", dir.read("error.log"));
    assert!(dir.read("error.log").contains("initgroups(daemon, 1) failed (1: "));
}
