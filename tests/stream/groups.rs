//! How sessions are spread over the servers of a group.

use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_testkit::{NameRecord, NameReply, listen};

use super::{connect, heard, stream, tls};

/// How long slow servers take: much longer than the first session did, which was with a quick one, however busy the
/// machine is.
#[derive(Clone, Default)]
struct Pace(Arc<AtomicU64>);

impl Pace {
    #[allow(clippy::disallowed_methods, reason = "a slow server is what the test is about")]
    fn wait(&self) {
        sleep(Duration::from_millis(self.0.load(Ordering::SeqCst)));
    }

    /// Which servers of a group answer one session after the other.
    fn answers(&self, port: u16) -> Vec<String> {
        let ask = || String::from_utf8(heard(port, b"")).unwrap();
        let began = Instant::now();
        let first = ask();
        let took = began.elapsed().as_millis() as u64;
        self.0.store(20 * took + 500, Ordering::SeqCst);
        std::iter::once(first).chain((1..6).map(|_| ask())).collect()
    }
}

/// A server that says these words, and takes its time before some.
fn speaker(words: [&'static str; 2], waits: [bool; 2], pace: &Pace) -> u16 {
    let pace = pace.clone();
    listen(move |mut socket| {
        for (word, waits) in words.iter().zip(waits) {
            if waits {
                pace.wait();
            }
            let _ = socket.write_all(word.as_bytes());
        }
    })
}

fn count(answers: &[String], text: &str) -> usize {
    answers.iter().filter(|answer| *answer == text).count()
}

#[test]
fn a_slow_server_is_asked_less() {
    let pace = Pace::default();
    let quick = speaker(["qu", "ick"], [false, false], &pace);
    let late = speaker(["la", "te"], [true, false], &pace);
    let long = speaker(["lo", "ng"], [false, true], &pace);
    let s = stream(&format!(
        "upstream first {{ least_time first_byte; server 127.0.0.1:{quick}; server 127.0.0.1:{late}; }}
         upstream last {{ least_time last_byte inflight;
             server 127.0.0.1:{quick}; server 127.0.0.1:{long}; }}
         upstream heard {{ least_time first_byte inflight;
             server 127.0.0.1:{quick}; server 127.0.0.1:{late}; }}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass first; }}
         server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass last; }}
         server {{ listen 127.0.0.1:%%PORT3%%; proxy_pass heard; }}"
    ));
    for (n, slow) in [(1, "late"), (2, "long"), (3, "late")] {
        let answers = pace.answers(s.port_at(n));
        assert_eq!((count(&answers, "quick"), count(&answers, slow)), (5, 1), "{answers:?}");
    }
}

/// The time to a connection is that to the end of the handshake.
#[test]
fn a_server_that_connects_slowly_is_asked_less() {
    let (to, pace) = (Arc::new(AtomicU16::new(0)), Pace::default());
    let (behind, slow) = (to.clone(), pace.clone());
    let late = listen(move |mut socket| {
        slow.wait();
        let mut server = connect(behind.load(Ordering::SeqCst));
        let (mut up, mut there) = (socket.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut up, &mut there));
        let _ = std::io::copy(&mut server, &mut socket);
        let _ = socket.shutdown(std::net::Shutdown::Both);
    });
    for method in ["least_time connect", "least_time connect inflight"] {
        let s = tls::start(&format!(
            "upstream u {{ {method}; server 127.0.0.1:%%PORT1%%; server 127.0.0.1:{late}; }}
             server {{ listen 127.0.0.1:%%PORT1%% ssl; return quick; }}
             server {{ listen 127.0.0.1:%%PORT2%% ssl; return late; }}
             server {{ listen 127.0.0.1:%%PORT3%%; proxy_pass u; proxy_ssl on; }}"
        ));
        to.store(s.port_at(2), Ordering::SeqCst);
        let answers = pace.answers(s.port_at(3));
        assert_eq!((count(&answers, "quick"), count(&answers, "late")), (5, 1), "{answers:?}");
    }
}

/// `service=`: the servers of a service, those of later priorities as backups, as long as the name server says so.
#[test]
fn a_service_has_the_servers_that_its_records_name() {
    let [a, b] = ["a", "b"].map(|name| speaker([name, ""], [false, false], &Pace::default()));
    let (moved, nobody) = (Arc::new(AtomicBool::new(false)), weir_testkit::free_port());
    let has_moved = moved.clone();
    let names = weir_testkit::name_server(move |name| {
        let service =
            |priority, port| NameRecord::Service { priority, weight: 1, port, target: "s.test" };
        let first = if has_moved.load(Ordering::SeqCst) { nobody } else { a };
        match name {
            "_game._tcp.up.test" => NameReply::Records(1, vec![service(1, first), service(2, b)]),
            "s.test" => NameReply::Records(60, vec![NameRecord::Address(Ipv4Addr::LOCALHOST)]),
            _ => NameReply::NoSuchName,
        }
    });
    let s = stream(&format!(
        "resolver 127.0.0.1:{names} ipv6=off;
         upstream u {{ zone u 64k; server up.test service=game resolve; }}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass u; }}"
    ));
    let answer = || String::from_utf8(heard(s.port_at(1), b"")).unwrap();
    assert!(weir_testkit::ask_until(|| answer() == "a"), "{}", s.log());
    assert!((0..4).all(|_| answer() == "a"));
    moved.store(true, Ordering::SeqCst);
    assert!(weir_testkit::ask_until(|| answer() == "b"), "{}", s.log());
}
