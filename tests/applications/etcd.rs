//! etcd: its calls are gRPC, and a watch is a stream that stays open.

use std::process::Command;

use weir_testkit::{Dir, free_port};

use crate::{client, program, start, wait_port, weir, went_well};

const SITE: &str = "
    http2 on;
    location / {
        grpc_pass grpc://127.0.0.1:ETCD;
        grpc_read_timeout 1h;
        grpc_send_timeout 1h;
        client_body_timeout 1h;
    }";

#[test]
fn etcd_tells_a_watch_of_changes_across_a_reload() {
    let (Some(etcd), Some(etcdctl)) = (program("etcd"), program("etcdctl")) else { return };
    let dir = Dir::new();
    let (port, peer) = (free_port(), free_port());
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let mut command = Command::new(etcd);
    command.args(["--data-dir", &dir.file("etcd").display().to_string()]);
    command.args(["--listen-client-urls", &url(port), "--advertise-client-urls", &url(port)]);
    command.args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)]);
    command.args(["--initial-cluster", &format!("default={}", url(peer)), "--unsafe-no-fsync"]);
    let _etcd = start(&mut command, &dir, "etcd.log");
    wait_port(port, &dir, "etcd.log");
    let server = weir(dir, "", &SITE.replace("ETCD", &port.to_string()));
    let endpoint = format!("--endpoints={}", url(server.port()));
    let ask = |args: &[&str]| client(&etcdctl, [&[endpoint.as_str()], args].concat());

    let long = "x".repeat(100_000);
    assert_eq!(ask(&["put", "key", "first"]).trim(), "OK");
    assert_eq!(ask(&["put", "long", &long]).trim(), "OK");
    assert!(ask(&["get", "long", "--print-value-only"]).trim() == long);
    // A watch from an older revision tells what was, too: so it is known to have begun.
    let mut command = Command::new(&etcdctl);
    command.args([&endpoint, "watch", "key", "--rev=1"]);
    let mut watch = start(&mut command, server.dir(), "watch");
    server.wait_file("watch", "first", 1);
    let old = server.workers();
    server.reload();
    assert_eq!(ask(&["put", "key", "second"]).trim(), "OK");
    server.wait_file("watch", "second", 1);
    assert!(watch.is_running());
    assert_eq!(server.dir().read("watch"), "PUT\nkey\nfirst\nPUT\nkey\nsecond\n");
    assert!(server.workers().iter().any(|pid| old.contains(pid)), "the stream was begun anew");
    drop(watch);
    old.into_iter().for_each(|pid| server.wait_gone(pid));
    went_well(&server);
}
