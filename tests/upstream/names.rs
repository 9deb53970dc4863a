//! Servers known by name: what a reload keeps of them, and how soon a name server that was away is asked again.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use weir_testkit::Server;

use super::origin::serve;
use super::{WEIR, start};

/// A name server that knows all names as 127.0.0.1, and does not answer as long as it is told to be silent.
struct Names {
    port: u16,
    silent: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Names {
    fn new() -> Names {
        Names::that_miss(0)
    }

    /// It misses the first datagrams.
    fn that_miss(first: usize) -> Names {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let (silent, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (is_silent, count) = (silent.clone(), asked.clone());
        thread::spawn(move || {
            let mut buf = [0; 512];
            while let Ok((n, from)) = socket.recv_from(&mut buf) {
                if count.fetch_add(1, Ordering::SeqCst) < first || is_silent.load(Ordering::SeqCst)
                {
                    continue;
                }
                let mut answer = buf[..n].to_vec();
                answer[2..4].copy_from_slice(&[0x81, 0x80]);
                answer[7] = 1;
                answer.extend_from_slice(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x7f\0\0\x01");
                let _ = socket.send_to(&answer, from);
            }
        });
        Names { port, silent, asked }
    }

    fn resolver(&self) -> String {
        format!("resolver 127.0.0.1:{} ipv6=off;", self.port)
    }
}

#[test]
fn a_reload_keeps_the_addresses_until_the_name_server_answers() {
    let (names, port) = (Names::new(), serve(|_| Some(String::new())));
    let upstream =
        format!("{} upstream u {{ zone u 64k; server up.test:{port} resolve; }}", names.resolver());
    let server = start("worker_processes 1;", &upstream);
    assert!(weir_testkit::ask_until(|| server.get("/").status == 200), "{}", server.log());
    names.silent.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let (old, asked) = (server.workers(), names.asked.load(Ordering::SeqCst));
        server.reload();
        // The new worker asks, and serves without an answer.
        assert!(weir_testkit::ask_until(|| names.asked.load(Ordering::SeqCst) > asked));
        assert_eq!(server.get("/").status, 200, "{}", server.log());
        assert!(!server.workers().iter().any(|worker| old.contains(worker)));
    }
}

#[test]
fn a_name_server_that_is_back_is_asked_at_once() {
    let (names, port) = (Names::that_miss(2), serve(|_| Some(String::new())));
    let conf = format!(
        "events {{ }} http {{ {} resolver_timeout 500ms;
             server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://$arg_h:{port}; }} }} }}",
        names.resolver()
    );
    // Long before the time of the first datagram is over, 5 seconds.
    let server = Server::start(WEIR, &conf);
    assert_eq!(server.get("/?h=up.test").status, 502);
    assert_eq!(server.get("/?h=up.test").status, 502);
    assert_eq!(server.get("/?h=up.test").status, 200, "{}", server.log());
    assert_eq!(names.asked.load(Ordering::SeqCst), 3);
}
