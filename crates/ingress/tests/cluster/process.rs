//! The process itself: its port of probes, and its end.

use std::io::ErrorKind;

use rustix::process::Signal;

use super::*;

#[test]
fn clients_that_say_nothing_keep_no_probe_out() {
    let dir = Dir::new();
    let health = format!("127.0.0.1:{}", free_port());
    let (_process, told) = start(&dir, BTreeMap::new(), &["--health", &health]);
    // The port is open before the Lease is asked for.
    written(&told, "POST", "/apis/coordination.k8s.io/v1/namespaces/own/leases");
    let connect = || {
        let stream = TcpStream::connect(&health).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let mut silent: Vec<TcpStream> = (0..64).map(|_| connect()).collect();
    let mut probe = connect();
    probe.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    probe.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // The oldest one made room, and the others stay.
    let newest = silent.pop().unwrap();
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
    newest.set_nonblocking(true).unwrap();
    assert_eq!((&newest).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn an_api_server_that_is_overloaded_is_named_by_the_probe() {
    let dir = Dir::new();
    let health = format!("127.0.0.1:{}", free_port());
    let busy = BTreeMap::from([("/api/v1/secrets busy".to_owned(), Vec::new())]);
    let (_process, told) = start(&dir, busy, &["--health", &health]);
    // Other kinds are listed and watched.
    come(&told, "WATCH", &["/api/v1/services"]);
    let end = Instant::now() + PATIENCE;
    let mut answer = String::new();
    while !answer.contains("not ready: Secret: ") {
        assert!(Instant::now() < end, "{answer}");
        let mut probe = TcpStream::connect(&health).unwrap();
        probe.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        answer.clear();
        probe.read_to_string(&mut answer).unwrap();
        thread::yield_now();
    }
    assert!(answer.contains("no (503 ServiceUnavailable)"), "{answer}");
}

#[test]
fn a_pod_that_ends_gives_its_lease_up_and_serves_on() {
    let dir = Dir::new();
    let (mut process, told) = start(&dir, BTreeMap::new(), &["--drain", "3600"]);
    let path = "/apis/coordination.k8s.io/v1/namespaces/own/leases";
    let holder = |asked: &Asked| {
        let lease: Value = serde_json::from_str(&asked.body).unwrap();
        lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
    };
    let own = Some("weir-ingress".to_owned());
    assert_eq!(holder(&written(&told, "POST", path)), own);
    // It knows that it has the Lease when it renews it.
    assert_eq!(holder(&written(&told, "PUT", path)), own);
    process.signal(Signal::TERM);
    // A renewal may have been on its way.
    assert!((0..3).any(|_| holder(&written(&told, "PUT", path)).is_none()));
    assert!(process.is_running());
    process.signal(Signal::TERM);
    assert!(process.wait().success());
}
