//! Sessions of datagrams, seen by their clients and servers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::time::Duration;

use rustix::process::Signal;
use weir_testkit::{Oracle, Server, ask_until, examples};

/// A server with these lines in its `stream` block, and so many loops.
fn started(program: &str, lines: &str, around: &str) -> Server {
    let conf = configuration(lines, around);
    Server::start(program, &conf)
}

fn configuration(lines: &str, around: &str) -> String {
    format!(
        "error_log %%DIR%%/error.log info; {around}
         http {{ server {{ listen 127.0.0.1:%%PORT%%; location / {{ return 200 http; }} }} }}
         stream {{ {lines} }}"
    )
}

fn stream(lines: &str) -> Server {
    started(env!("CARGO_BIN_EXE_weir"), lines, "events { }")
}

fn client_at(ip: &str, port: u16) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect((ip, port)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    client
}

pub fn client(port: u16) -> UdpSocket {
    client_at("127.0.0.1", port)
}

pub fn heard(client: &UdpSocket) -> String {
    let mut buf = [0; 65_535];
    let n = client.recv(&mut buf).unwrap();
    String::from_utf8_lossy(&buf[..n]).into_owned()
}

pub fn asked(client: &UdpSocket, text: &str) -> String {
    client.send(text.as_bytes()).unwrap();
    heard(client)
}

/// A server that says these datagrams to each that it hears: of its own, it is told from where it came.
pub fn server(answers: impl Fn(&[u8], SocketAddr) -> Vec<String> + Send + 'static) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buf = [0; 65_535];
        while let Ok((n, from)) = socket.recv_from(&mut buf) {
            for answer in answers(&buf[..n], from) {
                let _ = socket.send_to(answer.as_bytes(), from);
            }
        }
    });
    port
}

/// A server that says what it hears.
pub fn echo() -> u16 {
    server(|heard, _| vec![String::from_utf8_lossy(heard).into_owned()])
}

/// A server that says from which port it was asked.
fn port_of() -> u16 {
    server(|_, from| vec![from.port().to_string()])
}

#[test]
fn datagrams_pass_whole_and_the_log_counts_them() {
    let to = echo();
    let s = stream(&format!(
        "log_format line '$protocol $status $bytes_received $bytes_sent $upstream_addr \
             $upstream_bytes_sent $upstream_bytes_received $remote_addr $server_port';
         server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass 127.0.0.1:{to};
             proxy_requests 4; proxy_responses 1; access_log %%DIR%%/a.log line; }}"
    ));
    let port = s.port_at(1);
    let client = client(port);
    let long = "x".repeat(60_000);
    for text in ["one", "", &long, "four"] {
        assert_eq!(asked(&client, text), text);
    }
    s.wait_file("a.log", "UDP", 1);
    let line = std::fs::read_to_string(s.dir().file("a.log")).unwrap();
    let n = long.len() + 7;
    assert_eq!(line, format!("UDP 200 {n} {n} 127.0.0.1:{to} {n} {n} 127.0.0.1 {port}\n"));
    s.wait_log(&format!("udp done, packets from/to client:4/4, bytes from/to client:{n}/{n}"), 1);
}

#[test]
fn sessions_may_have_the_same_local_port() {
    let local = UdpSocket::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
    let lines: Vec<_> = [1, 2]
        .map(|n| {
            let to = port_of();
            format!(
                "server {{ listen 127.0.0.1:%%PORT{n}%% udp; proxy_bind {local}; proxy_pass 127.0.0.1:{to}; }}"
            )
        })
        .into();
    let s = stream(&lines.concat());
    let clients = [1, 2, 1].map(|n| client(s.port_at(n)));
    for client in &clients {
        assert_eq!(asked(client, "?"), local.port().to_string());
    }
}

#[test]
fn so_many_datagrams_are_a_session() {
    let to = port_of();
    let lines = "server { listen 127.0.0.1:%%PORT1%% udp; to }
         server { listen 127.0.0.1:%%PORT2%% udp; to proxy_requests 1; }
         server { listen 127.0.0.1:%%PORT3%% udp; to proxy_requests 2; }
         server { listen 127.0.0.1:%%PORT4%% udp; to proxy_responses 1; }";
    let s = stream(&lines.replace(" to ", &format!(" proxy_pass 127.0.0.1:{to}; ")));
    let of = |n: usize| {
        let client = client(s.port_at(n));
        let ports: Vec<String> = (0..4).map(|_| asked(&client, "?")).collect();
        let same = |i: usize| ports[i] == ports[i - 1];
        [same(1), same(2), same(3)]
    };
    assert_eq!(of(1), [true, true, true]);
    assert_eq!(of(2), [false, false, false]);
    assert_eq!(of(3), [true, false, true]);
    assert_eq!(of(4), [false, false, false]);
}

/// What a server has sent by then passes, though the first datagram made the session complete.
#[test]
fn answers_that_came_together_pass_together() {
    let origin = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = origin.local_addr().unwrap().port();
    let s = started(
        env!("CARGO_BIN_EXE_weir"),
        &format!(
            "server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_responses 1; proxy_pass 127.0.0.1:{port}; }}"
        ),
        "worker_processes 1; events { }",
    );
    let client = client(s.port_at(1));
    client.send(b"question").unwrap();
    let (_, from) = origin.recv_from(&mut [0; 100]).unwrap();
    let worker = s.workers()[0];
    s.signal_worker(worker, Signal::STOP);
    for answer in ["one", "two"] {
        origin.send_to(answer.as_bytes(), from).unwrap();
    }
    s.signal_worker(worker, Signal::CONT);
    assert_eq!([heard(&client), heard(&client)], ["one", "two"]);
}

/// Datagrams that come at once are as many sessions as those that come one after the other.
#[test]
fn a_burst_is_as_many_sessions() {
    let to = port_of();
    let s = stream(&format!(
        "server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass 127.0.0.1:{to}; proxy_requests 2; }}"
    ));
    let client = client(s.port_at(1));
    // What comes while the loop has stopped is there at once.
    let pid = s.workers()[0];
    s.signal_worker(pid, Signal::STOP);
    (0..5).for_each(|_| assert_eq!(client.send(b"?").unwrap(), 1));
    s.signal_worker(pid, Signal::CONT);
    let ports: Vec<String> = (0..5).map(|_| heard(&client)).collect();
    let mut counts = BTreeMap::<&str, usize>::new();
    ports.iter().for_each(|port| *counts.entry(port).or_default() += 1);
    let mut counts: Vec<usize> = counts.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2, 2]);
}

/// Each has an answer of its own, also where none is waited for.
#[test]
fn each_datagram_of_a_burst_is_a_session_that_leads_nowhere() {
    let s = stream(
        "log_format line '$status $bytes_received $bytes_sent;'; access_log %%DIR%%/a.log line;
         server { listen 127.0.0.1:%%PORT1%% udp; return pong; }",
    );
    let client = client(s.port_at(1));
    let pid = s.workers()[0];
    s.signal_worker(pid, Signal::STOP);
    (0..20).for_each(|_| assert_eq!(client.send(b"?").unwrap(), 1));
    s.signal_worker(pid, Signal::CONT);
    (0..20).for_each(|_| assert_eq!(heard(&client), "pong"));
    s.wait_file("a.log", "200 1 4;", 20);
}

#[test]
fn rules_texts_and_balancers() {
    let to = echo();
    let s = stream(&format!(
        "limit_conn_zone $binary_remote_addr zone=z:64k;
         geo $near {{ 127.0.0.0/8 near; default far; }}
         server {{ listen 127.0.0.1:%%PORT1%% udp; return \"$near $remote_addr $protocol\"; }}
         server {{ listen 127.0.0.1:%%PORT2%% udp; deny 127.0.0.1; return no; }}
         server {{ listen 127.0.0.1:%%PORT3%% udp; proxy_protocol on; proxy_pass 127.0.0.1:{to}; }}
         server {{ listen 127.0.0.1:%%PORT4%% udp; proxy_protocol v2; proxy_pass 127.0.0.1:{to}; }}
         server {{ listen 127.0.0.1:%%PORT5%% udp; limit_conn z 1; proxy_pass 127.0.0.1:{to}; }}
         server {{ listen 127.0.0.1:%%PORT6%% udp; pass 127.0.0.1:%%PORT1%%; }}
         server {{ listen 127.0.0.1:%%PORT1%%; return connected; }}"
    ));
    assert_eq!(asked(&client(s.port_at(1)), "?"), "near 127.0.0.1 UDP");
    client(s.port_at(2)).send(b"?").unwrap();
    s.wait_log("access forbidden by rule while initializing session, udp client: 127.0.0.1", 1);
    let first = client(s.port_at(3));
    let (from, port) = (first.local_addr().unwrap().port(), s.port_at(3));
    let head = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {from} {port}\r\none");
    assert_eq!(asked(&first, "one"), head);
    assert_eq!(asked(&first, "two"), "two");
    let told = asked(&client(s.port_at(4)), "data");
    assert!(
        told.starts_with("\r\n\r\n\0\r\nQUIT\n!\x12\0\x13") && told.ends_with("data"),
        "{told:?}"
    );
    let first = client(s.port_at(5));
    assert_eq!(asked(&first, "one"), "one");
    client(s.port_at(5)).send(b"?").unwrap();
    s.wait_log(
        "limiting connections by zone \"z\" while initializing session, udp client: 127.0.0.1",
        1,
    );
    client(s.port_at(6)).send(b"?").unwrap();
    s.wait_log("cannot pass udp connection while passing connection to port, udp client: ", 1);
    // A port of TCP is another.
    let mut tcp = std::net::TcpStream::connect(("127.0.0.1", s.port_at(1))).unwrap();
    let mut all = String::new();
    std::io::Read::read_to_string(&mut tcp, &mut all).unwrap();
    assert_eq!(all, "connected");
}

#[test]
fn answers_come_from_the_address_that_was_asked() {
    let to = echo();
    let s = stream(&format!(
        "server {{ listen %%PORT1%% udp; proxy_pass 127.0.0.1:{to}; }}
         server {{ listen 127.0.0.3:%%PORT1%% udp; return third; }}
         server {{ listen %%PORT2%% udp; return $server_addr; }}"
    ));
    // A connected client hears only the server that it asked.
    let client = client_at("127.0.0.2", s.port_at(1));
    assert_eq!(asked(&client, "hello"), "hello");
    assert_eq!(asked(&client, "again"), "again");
    assert_eq!(asked(&client_at("127.0.0.3", s.port_at(1)), "?"), "third");
    assert_eq!(asked(&client_at("127.0.0.9", s.port_at(2)), "?"), "127.0.0.9");
}

/// The example of the page, with a server for each name.
#[test]
fn the_example_of_datagrams_works() {
    let (first, second) = (echo(), echo());
    let page = include_str!("../../docs/stream.md");
    let example = examples(page).find(|example| example.contains(" udp;")).unwrap();
    let example = example
        .replace(":5300", ":%%PORT%%")
        .replace(":5301", &format!(":{first}"))
        .replace(":5302", &format!(":{second}"));
    let s = Server::start(env!("CARGO_BIN_EXE_weir"), &example);
    assert_eq!(asked(&client(s.port()), "weir.example"), "weir.example");
}

/// What becomes of sessions with servers that are not there, or do not answer. The second of a
/// group is not asked for the datagram that the first has not taken: it is lost, as on any way.
#[test]
fn a_server_that_is_not_there_is_left_alone_for_a_while() {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (to, silent) = (echo(), server(|_, _| Vec::new()));
    let s = stream(&format!(
        "upstream u {{ server 127.0.0.1:{nobody}; server 127.0.0.1:{to} backup; }}
         log_format line '$server_port $status';
         access_log %%DIR%%/a.log line;
         proxy_responses 1;
         server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass u; }}
         server {{ listen 127.0.0.1:%%PORT2%% udp; proxy_pass 127.0.0.1:{silent}; proxy_timeout 50ms; }}
         server {{ listen 127.0.0.1:%%PORT3%% udp; proxy_pass 127.0.0.1:{silent}; proxy_responses 0; }}"
    ));
    let asker = client(s.port_at(1));
    asker.send(b"lost").unwrap();
    s.wait_log(
        "recv() failed (111: Connection refused) while proxying and reading from upstream",
        1,
    );
    s.wait_log("upstream server temporarily disabled while proxying connection, udp client", 1);
    s.wait_file("a.log", &format!("{} 200", s.port_at(1)), 1);
    assert_eq!(asked(&asker, "heard"), "heard");
    client(s.port_at(2)).send(b"?").unwrap();
    s.wait_file("a.log", &format!("{} 502", s.port_at(2)), 1);
    s.wait_log(
        "upstream timed out (110: Connection timed out) while proxying connection, udp client",
        1,
    );
    client(s.port_at(3)).send(b"?").unwrap();
    s.wait_file("a.log", &format!("{} 200", s.port_at(3)), 1);
}

/// Every loop has a socket of its own, and a client's datagrams come to the same one.
#[test]
fn a_session_stays_with_its_loop() {
    let to = port_of();
    let s = started(
        env!("CARGO_BIN_EXE_weir"),
        &format!("server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass 127.0.0.1:{to}; }}"),
        "worker_processes 2; worker_threads 2; events { }",
    );
    let clients: Vec<UdpSocket> = (0..24).map(|_| client(s.port_at(1))).collect();
    let mut ports = BTreeMap::<usize, BTreeSet<String>>::new();
    for _ in 0..5 {
        for (i, client) in clients.iter().enumerate() {
            ports.entry(i).or_default().insert(asked(client, "?"));
        }
    }
    assert!(ports.values().all(|ports| ports.len() == 1), "{ports:?}");
    s.wait_log(" connected to 127.0.0.1:", 24 * 2);
    let workers: BTreeSet<String> = (s.log().lines())
        .filter(|line| line.contains("udp client"))
        .filter_map(|line| Some(line.split('#').next()?.rsplit(' ').next()?.to_owned()))
        .collect();
    assert_eq!(workers.len(), 2, "both processes have some");
    // Another server of the same port is told that it is taken.
    let conf = "events { } stream { server { listen 127.0.0.1:%%PORT1%% udp; return x; } }";
    let other = s.configure(conf);
    let refused = s.command(&["-c", other.to_str().unwrap(), "-g", "pid other.pid; daemon off;"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("bind() to 127.0.0.1:"), "{said}");
}

/// What comes at once is received at once, and answered so: to each its own, in its order, and counted.
#[test]
fn many_datagrams_at_once_go_each_to_its_own() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let to = server.local_addr().unwrap();
    let s = stream(&format!(
        "server {{ listen 127.0.0.1:%%PORT1%% udp; listen 127.0.0.1:%%PORT2%% udp;
             proxy_pass {to}; proxy_timeout 3s; }}"
    ));
    let clients: Vec<UdpSocket> = (0..40).map(|i| client(s.port_at(1 + i % 2))).collect();
    let worker = s.workers()[0];
    // While it stands still, all that is sent to it waits.
    let standing = |act: &dyn Fn()| {
        s.signal_worker(worker, Signal::STOP);
        act();
        s.signal_worker(worker, Signal::CONT);
    };
    let text = |i: usize, k: usize| format!("{i:02}-{k}").repeat(1 + i % 3);
    let send = |k| {
        for (i, client) in clients.iter().enumerate() {
            client.send(text(i, k).as_bytes()).unwrap();
        }
    };
    for ks in [0..1, 1..4] {
        standing(&|| ks.clone().for_each(&send));
        let mut heard = Vec::new();
        for _ in 0..clients.len() * ks.len() {
            let mut buf = [0; 64];
            let (n, from) = server.recv_from(&mut buf).unwrap();
            heard.push((buf[..n].to_vec(), from));
        }
        standing(&|| {
            for (bytes, from) in &heard {
                server.send_to(bytes, from).unwrap();
            }
        });
        for k in ks {
            for (i, client) in clients.iter().enumerate() {
                assert_eq!(self::heard(client), text(i, k));
            }
        }
    }
    for (n, times) in [(16, 14), (32, 13), (48, 13)] {
        let bytes = format!("bytes from/to client:{n}/{n}, bytes from/to upstream:{n}/{n}");
        s.wait_log(&format!("udp timed out, packets from/to client:4/4, {bytes}"), times);
    }
}

/// A loop has at most half as many sessions as connections, whichever clients send. The oldest
/// makes room, unless its client has come back after an answer.
#[test]
fn a_flood_from_many_addresses_stays_within_bounds() {
    let to = port_of();
    let s = started(
        env!("CARGO_BIN_EXE_weir"),
        &format!("server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass 127.0.0.1:{to}; }}"),
        "worker_rlimit_nofile 1024; events { worker_connections 20; }",
    );
    let (friend, quiet) = (client(s.port_at(1)), client(s.port_at(1)));
    let port = asked(&friend, "?");
    assert_eq!(asked(&friend, "?"), port);
    let before = asked(&quiet, "?");
    let open = |s: &Server| {
        let pid = s.workers()[0];
        std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
    };
    let few = open(&s);
    let flood: Vec<UdpSocket> = (0..100).map(|_| client(s.port_at(1))).collect();
    for one in &flood {
        asked(one, "?");
    }
    assert!(open(&s) <= few + 8, "{few} before, {} now", open(&s));
    assert_eq!(asked(&friend, "?"), port, "who has come back is there");
    assert_ne!(asked(&quiet, "?"), before, "who has not may be anybody");
    s.wait_log("10 sessions of datagrams are as many as worker_connections allow", 1);
    s.wait_log("udp session makes room for another, packets from/to client:1/1", 92);
    // Connections have their half.
    assert!(s.get("/").body().ends_with("http"));
}

/// Answers to what was asked before a reload arrive, and what is asked after it is answered by the new configuration.
#[test]
fn datagrams_outlive_a_reload() {
    let (hold, held) = channel::<()>();
    let to = server(move |heard, _| {
        if heard == b"slow" {
            let _ = held.recv();
        }
        vec![String::from_utf8_lossy(heard).into_owned()]
    });
    let quick = echo();
    let conf = |to: u16, other: &str| {
        configuration(
            &format!(
                "proxy_responses 1; server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass 127.0.0.1:{to}; }}
                 server {{ listen 127.0.0.1:%%PORT2%% udp; return {other}; }}"
            ),
            "worker_processes 2; events { }",
        )
    };
    let mut s = Server::start(env!("CARGO_BIN_EXE_weir"), &conf(to, "old"));
    let slow = client(s.port_at(1));
    slow.send(b"slow").unwrap();
    s.wait_log("udp proxy 127.0.0.1:", 1);
    assert_eq!(asked(&client(s.port_at(2)), "?"), "old");
    let before = s.workers();
    s.configure(&conf(quick, "new"));
    s.reload();
    // Where the old loop looks at what has come before it hears that it is to end, it answers once more.
    let all_are_new = || (0..20).all(|_| asked(&client(s.port_at(2)), "?") == "new");
    assert!(ask_until(all_are_new));
    assert_eq!(asked(&client(s.port_at(1)), "quick"), "quick");
    hold.send(()).unwrap();
    assert_eq!(heard(&slow), "slow");
    before.into_iter().for_each(|pid| s.wait_gone(pid));
    s.signal(Signal::QUIT);
    s.wait();
}

/// A server that goes on sending to each that it has heard, until the sender is dropped.
fn talker() -> (u16, Sender<()>) {
    let (stop, stopped) = channel();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut heard = BTreeSet::new();
        while stopped.try_recv() == Err(TryRecvError::Empty) {
            heard.extend(socket.recv_from(&mut [0; 16]).map(|(_, from)| from));
            for to in &heard {
                let _ = socket.send_to(b"tick", to);
            }
        }
    });
    (port, stop)
}

/// A server that goes on sending does not keep an old worker: not at a reload, not where the new configuration leaves
/// the port, and not at QUIT. Nor is it marked as failed for answers that it had no time to send.
#[test]
fn a_server_that_goes_on_sending_keeps_no_old_worker() {
    let ends = |expected: &str, end: &str| {
        let (to, _stop) = talker();
        let conf = |lines: &str| configuration(lines, "events { }");
        let udp = format!(
            "server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass 127.0.0.1:{to}; {expected} }}"
        );
        let mut s = Server::start(env!("CARGO_BIN_EXE_weir"), &conf(&udp));
        let client = client(s.port_at(1));
        assert_eq!(asked(&client, "?"), "tick");
        let old = s.workers();
        match end {
            "reload" => s.reload(),
            "left" => {
                s.configure(&conf("server { listen 127.0.0.1:%%PORT2%% udp; return x; }"));
                s.reload();
            }
            _ => s.signal(Signal::QUIT),
        }
        old.into_iter().for_each(|pid| s.wait_gone(pid));
        let log = s.log();
        assert!(log.contains("disconnected on shutdown"), "{expected} {end}: {log}");
        assert!(!log.contains("[error]") && !log.contains("[warn]"), "{expected} {end}: {log}");
        if end == "quit" {
            s.wait();
        }
    };
    std::thread::scope(|scope| {
        // Any number of answers, and more than ever come.
        for expected in ["proxy_timeout 1h;", "proxy_timeout 1s; proxy_responses 1000000;"] {
            for end in ["reload", "left", "quit"] {
                scope.spawn(move || ends(expected, end));
            }
        }
    });
}

/// The same sessions over weir and nginx leave the same lines.
#[test]
fn nginx_logs_the_same() {
    let fits = |nginx: &Oracle| {
        !nginx.is_old() && nginx.has("--with-stream") && !nginx.has("--with-stream=dynamic")
    };
    let Some(nginx) = Oracle::find().filter(fits) else {
        println!("not run: no nginx 1.31 with sessions to compare with");
        return;
    };
    let lines = |program: &str| {
        let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let twice = server(|heard, _| vec![String::from_utf8_lossy(heard).into_owned(); 2]);
        let ports =
            (1..=6).map(|n| format!("server {{ listen 127.0.0.1:%%PORT{n}%% udp; conf{n} }}"));
        let mut conf: String = ports.collect();
        for (n, with) in [
            (1, format!("proxy_pass 127.0.0.1:{twice}; proxy_requests 2; proxy_responses 2;")),
            (2, format!("proxy_pass 127.0.0.1:{twice}; proxy_timeout 100ms;")),
            (3, format!("proxy_pass 127.0.0.1:{twice}; proxy_responses 0;")),
            (4, format!("proxy_pass 127.0.0.1:{gone}; proxy_responses 1;")),
            (5, format!("proxy_pass 127.0.0.1:{twice}; proxy_responses 3; proxy_timeout 100ms;")),
            (6, "return text;".to_owned()),
        ] {
            conf = conf.replace(&format!("conf{n}"), &with);
        }
        let format = "log_format l '$protocol $status $bytes_received $bytes_sent \
                      $upstream_bytes_sent $upstream_bytes_received'; access_log %%DIR%%/a.log l;";
        let s = started(program, &format!("{format} {conf}"), "events { }");
        for n in 1..=6 {
            let client = client(s.port_at(n));
            for _ in 0..if n == 1 { 2 } else { 1 } {
                client.send(b"hello").unwrap();
            }
            s.wait_file("a.log", "UDP", n);
        }
        let log = s.log();
        let said = log.lines().filter(|line| line.contains("udp"));
        let said =
            said.filter_map(|line| Some(line.split_once('*')?.1.split_once(' ')?.1.to_owned()));
        let said: Vec<String> = said.filter(|line| !line.contains("connected")).collect();
        (std::fs::read_to_string(s.dir().file("a.log")).unwrap(), digits(&said))
    };
    assert_eq!(lines(env!("CARGO_BIN_EXE_weir")), lines(&nginx.path));
}

/// Lines without their ports.
fn digits(lines: &[String]) -> Vec<String> {
    let cut = |line: &String| {
        let words = line.split(' ').map(|word| match word.rsplit_once(':') {
            Some((host, port)) if host.ends_with("127.0.0.1") => {
                format!("{host}:{}", port.trim_start_matches(|c: char| c.is_ascii_digit()))
            }
            _ => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    lines.iter().map(cut).collect()
}
