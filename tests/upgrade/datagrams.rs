//! Sockets of datagrams over a binary upgrade.

use std::net::UdpSocket;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::Signal;
use weir_testkit::{Dir, wait_end};

use super::Daemon;

fn client(port: u16) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    client
}

fn heard(client: &UdpSocket) -> String {
    let mut buf = [0; 64];
    let n = client.recv(&mut buf).unwrap();
    String::from_utf8_lossy(&buf[..n]).into_owned()
}

/// Which workers answer twenty clients. Each client must hear something.
fn answers(port: u16) -> Vec<i32> {
    let clients = (0..20).map(|_| client(port));
    let answers = clients.map(|client| {
        client.send(b"?").unwrap();
        heard(&client).parse().unwrap()
    });
    answers.collect()
}

/// The successor has the same sockets: whatever is sent is answered, by one of both, and what the old one was asked is,
/// too.
#[test]
fn datagrams_outlive_an_upgrade() {
    let (hold, held) = channel::<()>();
    let (came, has_come) = channel();
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buf = [0; 64];
        while let Ok((n, from)) = server.recv_from(&mut buf) {
            let _ = came.send(());
            let _ = held.recv();
            let _ = server.send_to(&buf[..n], from);
        }
    });
    // They are free for datagrams, too.
    let [passed, answered] = [(); 2].map(|()| client(1).local_addr().unwrap().port());
    let blocks = format!(
        "events {{ }} stream {{
             server {{ listen 127.0.0.1:{passed} udp; proxy_pass 127.0.0.1:{to}; proxy_responses 1; }}
             server {{ listen 127.0.0.1:{answered} udp; return $pid; }} }}"
    );
    let daemon = Daemon::serving(Dir::new(), answered, 2, &blocks);
    let slow = client(passed);
    slow.send(b"slow").unwrap();
    has_come.recv().unwrap();
    let before = answers(answered);

    let (old, _) = daemon.upgrade();
    answers(answered);
    hold.send(()).unwrap();
    assert_eq!(heard(&slow), "slow");

    daemon.signal(old, Signal::WINCH);
    let gone = || daemon.dir.read("error.log").matches("exited with code 0").count();
    daemon.wait("old workers stay", || {
        answers(answered);
        gone() >= 2
    });
    assert!(answers(answered).iter().all(|pid| !before.contains(pid)));
    daemon.signal(old, Signal::QUIT);
    wait_end(old);
    assert!(answers(answered).iter().all(|pid| !before.contains(pid)));
    assert!(!daemon.dir.read("error.log").contains("[alert]"));
}
