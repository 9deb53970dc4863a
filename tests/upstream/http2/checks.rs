//! `health_check` over HTTP/2.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use weir_testkit::PATIENCE;

use super::peer::Peer;
use super::{ask, start};

/// A server that is ill when it is told to be, and says when it is checked.
fn patient() -> (Peer, Arc<AtomicBool>, Receiver<()>) {
    let ill = Arc::new(AtomicBool::new(false));
    let (tell, checked) = channel();
    let (is_ill, tell) = (ill.clone(), Mutex::new(tell));
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        loop {
            let head = talk.head()?;
            if head.field(":path") == "/check" {
                let _ = tell.lock().unwrap().send(());
                assert_eq!((head.field(":authority"), head.field("x-checks")), ("u", "yes"));
                assert!(head.field("user-agent").ends_with("(health check)") && head.ended);
            }
            let status = if is_ill.load(Ordering::SeqCst) { "503" } else { "200" };
            talk.fields(head.id, &[(":status", status)], false);
            talk.data(head.id, b"body", true);
        }
    });
    (peer, ill, checked)
}

const CHECKED: &str = "proxy_set_header Connection ''; proxy_set_header X-Checks yes;
                       health_check uri=/check interval=20ms";

#[test]
fn a_server_is_checked_in_the_version_that_it_speaks() {
    let (peer, ill, checked) = patient();
    let inside = format!("{CHECKED} keepalive_time=1h;");
    let server = start(&peer, "zone u 64k;", &inside);
    for _ in 0..3 {
        checked.recv_timeout(PATIENCE).unwrap();
    }
    assert_eq!(ask(&server, "/").response().status, 200);
    // One for the checks, one for requests.
    assert_eq!(peer.opened(), 2);
    ill.store(true, Ordering::SeqCst);
    server.wait_log("peer is unhealthy while checking status code", 1);
    assert_eq!(ask(&server, "/").response().status, 502);
    ill.store(false, Ordering::SeqCst);
    server.wait_log("peer is healthy", 1);
    assert_eq!(ask(&server, "/").response().status, 200);
}

#[test]
fn each_check_has_a_connection() {
    let (peer, _, checked) = patient();
    let _server = start(&peer, "zone u 64k;", &format!("{CHECKED};"));
    for _ in 0..3 {
        checked.recv_timeout(PATIENCE).unwrap();
    }
    assert!(peer.opened() >= 3);
}

#[test]
fn a_server_without_the_protocol_is_unhealthy() {
    let peer = Peer::new(|_, talk| {
        talk.write(|out| out.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
        Some(())
    });
    let server = start(&peer, "zone u 64k;", &format!("{CHECKED};"));
    server.wait_log("peer is unhealthy while reading response header from upstream", 1);
    server.wait_log("upstream sent too large http2 frame", 1);
}
