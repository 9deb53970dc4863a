//! How connections are spread over the loops, seen from outside: each answer names its loop.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustls::pki_types::ServerName;
use weir_testkit::{Client, Server};

#[path = "balance/requests.rs"]
mod requests;
#[path = "balance/rushes.rs"]
mod rushes;
#[path = "balance/steered.rs"]
mod steered;
#[path = "balance/threads.rs"]
mod threads;
#[path = "balance/tunnels.rs"]
mod tunnels;

use threads::{wait_asleep, wait_blocked, wait_still};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Processes and loops of each.
type Layout = (usize, usize);

/// A loop above the mean load rechecks the sockets now and then. It finds connections of a loop
/// that has no processor. A loop that a timer wakes just before a connection comes is not asleep then.
/// So on a busy machine the spread may need another try.
const TRIES: usize = 5;

const PROCESSES: Layout = (3, 1);
const THREADS: Layout = (1, 3);

fn conf(policy: &str, (processes, threads): Layout) -> String {
    format!(
        "worker_processes {processes}; worker_threads {threads};
        events {{ accept_balance {policy}; }}
        http {{ access_log off; server {{
            listen 127.0.0.1:%%PORT%%;
            location / {{ return 200 $pid-$loop; }}
            location /brief {{ work sleep 4ms; return 200 $pid-$loop; }}
            location /slow {{ work sleep 400ms; return 200 $pid-$loop; }}
            location /stuck {{ work sleep 10s; }}
        }} }}"
    )
}

/// Starts a server and waits until all its loops wait for connections.
fn start(policy: &str, layout: Layout) -> Server {
    let server = Server::start(WEIR, &conf(policy, layout));
    wait_idle(&server, policy, layout);
    server
}

/// Waits until every loop, and every thread that accepts, sleeps in its epoll_wait.
fn wait_idle(server: &Server, policy: &str, layout: Layout) {
    wait_asleep(server, waiters(policy, layout));
}

/// How many threads wait for events when nothing happens.
fn waiters(policy: &str, (processes, threads): Layout) -> usize {
    let acceptors = match policy {
        "blocking" => processes * threads,
        "dispatch" => 1,
        _ => 0,
    };
    processes * threads + acceptors
}

/// How many answers each loop gave, most first; a loop that gave none is not there.
fn spread(answers: impl IntoIterator<Item = String>) -> Vec<usize> {
    let mut counts = BTreeMap::new();
    for loop_ in answers {
        *counts.entry(loop_).or_insert(0) += 1;
    }
    let mut counts: Vec<usize> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

fn six(policy: &str, layout: Layout) -> Vec<usize> {
    let server = start(policy, layout);
    let answers = (0..6).map(|_| {
        wait_idle(&server, policy, layout);
        server.get("/").body()
    });
    spread(answers)
}

/// Six connections, each of which finds all loops asleep, are spread so in either layout.
fn assert_six(policy: &str, expected: &[usize]) {
    for layout in [PROCESSES, THREADS] {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|last| last != expected) {
            assert!(seen.len() < TRIES, "{policy} {layout:?}: {seen:?}, not {expected:?}");
            seen.push(six(policy, layout));
        }
    }
}

#[test]
fn exclusive_gives_six_connections_to_one_loop() {
    assert_six("exclusive", &[6]);
}

#[test]
fn rotate_leaves_the_first_loop_after_its_first() {
    assert_six("rotate", &[4, 1, 1]);
    assert_six("rotate=1", &[2, 2, 2]);
}

#[test]
fn blocking_gives_two_to_each() {
    assert_six("blocking", &[2, 2, 2]);
}

#[test]
fn dispatch_gives_two_to_each() {
    assert_six("dispatch", &[2, 2, 2]);
}

#[test]
fn fair_gives_two_to_each() {
    assert_six("fair", &[2, 2, 2]);
}

#[test]
fn the_others_serve_all_six() {
    for policy in ["single", "herd", "shared_epoll", "mutex", "reuseport", "reuseport_load"] {
        for layout in [PROCESSES, THREADS] {
            assert_eq!(six(policy, layout).iter().sum::<usize>(), 6, "{policy} {layout:?}");
        }
    }
}

/// Which loop answers each of twelve connections that stay, one after another.
fn twelve_kept(policy: &str, layout: Layout) -> Vec<String> {
    let server = start(policy, layout);
    let (mut clients, mut answers): (Vec<Client>, Vec<String>) = Default::default();
    while answers.len() < 12 {
        wait_idle(&server, policy, layout);
        let mut client = server.connect();
        answers.push(client.get("/").body());
        clients.push(client);
    }
    answers
}

#[test]
fn kept_connections_are_three_each_give_or_take_one() {
    for policy in ["fair", "dispatch"] {
        for layout in [(4, 1), (1, 4), (2, 2)] {
            let even = || {
                let spread = spread(twelve_kept(policy, layout));
                eprintln!("{policy} {layout:?}: {spread:?}");
                spread.len() == 4 && spread[0] <= 4
            };
            assert!((0..TRIES).any(|_| even()));
        }
    }
}

/// Silent kept connections make the loads uneven, and still no loop has to recheck anything.
#[test]
fn nothing_runs_while_nothing_happens() {
    for layout in [PROCESSES, THREADS] {
        let server = start("fair", layout);
        let mut client = server.connect();
        assert_eq!(client.get("/").status, 200);
        wait_still(&server);
        server.wait_for_news();
        assert_eq!(client.get("/").status, 200);
    }
}

/// A stopped loop gets nothing, and no client waits for it.
#[test]
fn a_stopped_worker_is_left_out() {
    for policy in ["fair", "exclusive", "rotate", "herd"] {
        let server = start(policy, (4, 1));
        let stopped = server.workers()[1];
        server.signal_worker(stopped, Signal::STOP);
        let answers: Vec<String> = std::thread::scope(|scope| {
            let clients = (0..20).map(|_| {
                scope.spawn(|| (0..10).map(|_| server.get("/").body()).collect::<Vec<_>>())
            });
            let clients: Vec<_> = clients.collect();
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        assert_eq!(answers.len(), 200);
        let own = format!("{stopped}-");
        assert!(!answers.iter().any(|answer| answer.starts_with(&own)), "{policy}");
        server.signal_worker(stopped, Signal::CONT);
    }
}

/// A connection in its handshake will need more of its loop than an idle one. Of two loops with as
/// many connections, the one without handshakes takes the next, though they come one at a time.
#[test]
fn handshakes_weigh_more_than_idle_connections() {
    const EACH: usize = 6;
    let keys = format!("{}/../tls/testdata", env!("CARGO_MANIFEST_DIR"));
    let secured = format!(
        "server {{ listen 127.0.0.1:%%PORT1%% ssl;
         ssl_certificate {keys}/leaf.pem; ssl_certificate_key {keys}/leaf.key; }} server {{"
    );
    let layout = (2, 1);
    let server = Server::start(WEIR, &conf("fair", layout).replace("server {", &secured));
    wait_idle(&server, "fair", layout);
    let free = server.workers()[0];
    server.signal_worker(free, Signal::STOP);
    let _shaking: Vec<TcpStream> = (0..EACH).map(|_| half_a_handshake(server.port_at(1))).collect();
    server.signal_worker(free, Signal::CONT);
    let free = format!("{free}-0");
    let mut kept: Vec<Client> = Vec::new();
    while kept.len() < EACH {
        wait_idle(&server, "fair", layout);
        let mut client = server.connect();
        // The machine may leave a loop without a processor for a moment.
        if client.get("/").body() == free {
            kept.push(client);
        }
    }
    // The other loop stands in for a free loop that lacks a processor for a millisecond. So on a
    // busy machine only prompt answers show the choice.
    let prompt = |_| {
        wait_idle(&server, "fair", layout);
        let began = Instant::now();
        let answer = server.get("/").body();
        (began.elapsed() < Duration::from_millis(1)).then_some(answer)
    };
    let spared = || {
        let answers: Vec<String> = (0..400).filter_map(prompt).take(40).collect();
        let by_others = answers.iter().filter(|answer| **answer != free).count();
        eprintln!("{by_others} of {} went to the loop with handshakes", answers.len());
        // Of loops that count the same each takes its turn: half.
        by_others * 4 <= answers.len()
    };
    assert!((0..TRIES).any(|_| spared()));
}

/// A client that has been answered, and says no more.
fn half_a_handshake(port: u16) -> TcpStream {
    let name = ServerName::try_from("www.example.org").unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let mut hello = Vec::new();
    let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    connection.write_tls(&mut hello).unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(weir_testkit::PATIENCE)).unwrap();
    client.write_all(&hello).unwrap();
    assert!(client.peek(&mut [0]).unwrap() > 0);
    client
}

/// The connection that the worker was at is gone, those that wait are not: in the queue, or on their way to a loop.
#[test]
fn waiting_connections_survive_a_killed_worker() {
    let each = ["reuseport", "reuseport_load"];
    let shared = ["fair", "exclusive", "rotate", "mutex", "shared_epoll", "dispatch"];
    for policy in shared.into_iter().chain(each) {
        let server = start(policy, (1, 1));
        let killed = server.workers()[0];
        let mut at_work = server.connect();
        at_work.send("GET /stuck HTTP/1.0\r\n\r\n");
        wait_blocked(&server);
        let mut waiting: Vec<Client> = (0..5).map(|_| server.connect()).collect();
        for client in &mut waiting {
            client.send("GET / HTTP/1.0\r\n\r\n");
        }
        // What an acceptor has in its hands would go with it.
        wait_asleep(&server, waiters(policy, (1, 1)) - 1);
        server.signal_worker(killed, Signal::KILL);
        assert!(at_work.try_response().is_err(), "{policy}");
        for client in &mut waiting {
            let answer = client.response().body();
            assert!(!answer.starts_with(&format!("{killed}-")), "{policy}: {answer}");
        }
    }
}

/// Calls of write(2) that a process has made; loops wake each other by nothing else here, and answer by other calls.
fn writes(pid: i32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    let count = io.lines().find_map(|line| line.strip_prefix("syscw: "));
    count.and_then(|count| count.trim().parse().ok()).unwrap()
}

/// All loops look for the connections that a killed worker was told of. Under overload each look finds one, and none
/// wakes the other loops again.
#[test]
fn loops_do_not_wake_each_other_under_overload_after_a_worker_was_killed() {
    const CLIENTS: usize = 40;
    const EACH: usize = 30;
    let server = start("fair", (2, 4));
    let [killed, left] = server.workers()[..] else { panic!("two workers") };
    let rush = || {
        let before = writes(left);
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let mut client = server.connect();
                        client.send("GET /brief HTTP/1.0\r\n\r\n");
                        // The killed worker takes the connections that it had along.
                        let _ = client.try_response();
                    }
                });
            }
            scope.spawn(|| server.signal_worker(killed, Signal::KILL));
        });
        writes(left) - before
    };
    let (written, requests) = (rush(), (CLIENTS * EACH) as u64);
    assert!(written < requests / 4, "{written} writes for {requests} requests");
}

/// Sockets come and go with the number of loops; no request is refused, reset or lost.
#[test]
fn a_reload_with_other_numbers_of_loops_loses_nothing() {
    for policy in ["reuseport", "reuseport_load", "fair", "dispatch", "blocking", "shared_epoll"] {
        let server = start(policy, (4, 1));
        let (done, served) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        assert_eq!(server.get("/").status, 200, "{policy}");
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for layout in [(2, 1), (1, 3), (1, 1), (3, 1)] {
                let old = server.workers();
                server.configure(&conf(policy, layout));
                server.reload();
                old.into_iter().for_each(|pid| server.wait_gone(pid));
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(served.into_inner() > 0);
    }
}

/// An address goes with a reload while connections wait at it: they are served.
#[test]
fn connections_that_wait_at_a_removed_address_are_served() {
    for policy in ["fair", "reuseport", "blocking", "dispatch", "shared_epoll"] {
        let one = conf(policy, (1, 1));
        let two = one.replace("listen", "listen 127.0.0.1:%%PORT1%%; listen");
        let server = Server::start(WEIR, &two);
        wait_idle(&server, policy, (1, 1));
        let mut at_work = server.connect();
        at_work.send("GET /slow HTTP/1.0\r\n\r\n");
        wait_blocked(&server);
        let mut waiting: Vec<Client> = (0..5).map(|_| Client::connect(server.port_at(1))).collect();
        for client in &mut waiting {
            client.send("GET / HTTP/1.0\r\n\r\n");
        }
        let old = server.workers();
        server.configure(&one);
        server.reload();
        assert_eq!(at_work.response().status, 200, "{policy}");
        for client in &mut waiting {
            assert_eq!(client.response().status, 200, "{policy}");
        }
        // A worker with an acceptor keeps the address until it has ended.
        old.into_iter().for_each(|pid| server.wait_gone(pid));
        assert!(Client::try_connect(server.port_at(1)).is_err(), "{policy}");
    }
}

#[test]
fn a_loop_without_room_closes_idle_connections() {
    let text = conf("fair", (1, 1)).replace("events {", "events { worker_connections 8;");
    let server = Server::start(WEIR, &text);
    let mut idle: Vec<Client> = (0..8).map(|_| server.connect()).collect();
    for client in &mut idle {
        assert_eq!(client.get("/").status, 200);
    }
    assert_eq!(server.get("/").status, 200);
    server.wait_log("8 worker_connections are not enough, reusing connections", 1);
    assert!(idle[0].is_closed(), "the one that was idle longest");
    assert_eq!(idle[7].get("/").status, 200);
}

#[test]
fn a_loop_without_descriptors_pauses_and_goes_on() {
    let text = conf("fair", (1, 1)).replace("events {", "worker_rlimit_nofile 48; events {");
    let server = Server::start(WEIR, &text);
    let crowd: Vec<Client> = (0..60).map(|_| server.connect()).collect();
    server.wait_log("accept4() failed (24: Too many open files)", 1);
    drop(crowd);
    assert_eq!(server.get("/").status, 200);
}

/// A connection that is handed to a loop without descriptors waits for one and is served. The
/// server then ends in order, since no connection is missing.
#[test]
fn a_connection_handed_to_a_loop_without_descriptors_waits() {
    let text = conf("dispatch", (2, 1)).replace("events {", "worker_rlimit_nofile 48; events {");
    let mut server = Server::start(WEIR, &text);
    let mut crowd: Vec<Client> = (0..80).map(|_| server.connect()).collect();
    // None of them goes before descriptors are short.
    server.wait_log("failed (24", 1);
    for client in &mut crowd {
        client.send("GET / HTTP/1.0\r\n\r\n");
    }
    let answered = crowd.iter_mut().filter_map(|client| client.try_response().ok()).count();
    assert_eq!(answered, crowd.len());
    assert!(server.stop().success());
}

/// Two connections one after another, each with its request: the second is not served first, though the loop asks
/// the one for its first bytes when it accepts it, and not the other.
#[test]
fn the_first_connection_is_served_first() {
    let log = "log_format uri $uri; access_log %%DIR%%/served uri;";
    let server = Server::start(WEIR, &conf("fair", (1, 1)).replace("access_log off;", log));
    let mut blocker = server.connect();
    assert_eq!(blocker.get("/").status, 200);
    blocker.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_blocked(&server);
    // A silent client teaches the loop not to ask the next one at once.
    let _silent = server.connect();
    let names = ["first", "second", "third", "fourth"];
    let mut clients: Vec<Client> = names
        .iter()
        .map(|name| {
            let mut client = server.connect();
            client.send(format!("GET /{name} HTTP/1.0\r\n\r\n"));
            client
        })
        .collect();
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
    server.wait_file("served", "/fourth", 1);
    let served = server.dir().read("served");
    let served: Vec<&str> = served.lines().filter_map(|uri| uri.strip_prefix('/')).collect();
    assert_eq!(served[served.len() - 4..], names, "{served:?}");
}
