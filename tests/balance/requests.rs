//! Requests that wait for a stalled loop: loops of the same process steal them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use weir_proto::http2::frame;
use weir_testkit::{Client, Dir, PATIENCE, Server, ask_until, certified};

use super::threads::{wait_asleep, wait_blocked, wait_still, wait_stopped};
use super::{PROCESSES, TRIES, WEIR, wait_idle};

const LOOPS: usize = 4;
/// The loop to which all connections come that are not spread.
const FIRST: &str = "0";
const TAKEN: &str = "weir_taken_over_connections_total";

fn conf(events: &str) -> String {
    format!(
        "worker_processes 1; worker_threads {LOOPS};
        events {{ {events} }}
        http {{ log_format who '$arg_n'; access_log %%DIR%%/log who; server {{
            listen 127.0.0.1:%%PORT%%;
            location / {{ access_log off; return 200 $loop; }}
            location /echo {{ return 200 $arg_n; }}
            location /short {{ work sleep 3ms; return 200 $arg_n; }}
            location /held {{ work sleep 30ms; return 200 $arg_n; }}
            location /hold {{ access_log off; work sleep 2s; return 200 $loop; }}
            location /status {{ access_log off; weir_status; }}
        }} }}"
    )
}

fn start(events: &str) -> Server {
    let server = Server::start(WEIR, &conf(events));
    wait_asleep(&server, LOOPS);
    server
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

/// A value of the status page.
fn status(server: &Server, name: &str) -> u64 {
    status_by(&mut server.connect(), name)
}

/// The same, asked on a connection that is there.
fn status_by(client: &mut Client, name: &str) -> u64 {
    let page = client.get("/status").body();
    let value = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
    page.lines().find_map(value).unwrap_or_else(|| panic!("no {name} in {page}"))
}

/// So many connections that have been answered once and are kept, by their loops.
fn kept(server: &Server, n: usize) -> BTreeMap<String, Vec<Client>> {
    let mut by_loop: BTreeMap<String, Vec<Client>> = BTreeMap::new();
    for _ in 0..n {
        let mut client = server.connect();
        by_loop.entry(client.get("/").body()).or_default().push(client);
    }
    by_loop
}

/// So many connections that the server has accepted, and of which nothing has come.
fn accepted(server: &Server, n: usize) -> Vec<Client> {
    let clients = (0..n).map(|_| server.connect()).collect();
    let all = || status(server, "weir_waiting_connections") >= n as u64;
    assert!(ask_until(all), "they are not accepted");
    clients
}

/// The loop with most of them.
fn crowded(server: &Server, n: usize) -> (String, Vec<Client>) {
    let most = kept(server, n).into_iter().max_by_key(|(_, clients)| clients.len());
    most.expect("some loop has them")
}

/// Has the first connection stall its loop, and asks over the others. Returns the stalled loop, and
/// the loops that answer. It may be another loop than before, since that request can be taken over
/// itself.
fn ask_beside_a_held_one(server: &Server, clients: &mut [Client]) -> (String, Vec<String>) {
    let (holder, others) = clients.split_first_mut().expect("some");
    holder.send(request("/hold"));
    wait_blocked(server);
    others.iter_mut().for_each(|client| _ = client.send(request("/")));
    let answers = others.iter_mut().map(|client| client.response().body()).collect();
    (holder.response().body(), answers)
}

#[test]
fn idle_loops_steal_requests_of_a_stalled_loop() {
    let server = start("");
    let (_, mut clients) = crowded(&server, 4 * LOOPS);
    assert!(clients.len() > 2, "{}", clients.len());
    let (held, answers) = ask_beside_a_held_one(&server, &mut clients);
    assert!(!answers.contains(&held), "loop {held} was held up: {answers:?}");
    assert!(status(&server, TAKEN) > 0);
}

/// Where a connection is open that was taken over, and where none is any more.
#[test]
fn what_was_taken_over_is_not_open_where_it_came_from() {
    let server = start("");
    let (_, mut clients) = crowded(&server, 4 * LOOPS);
    ask_beside_a_held_one(&server, &mut clients);
    assert!(status(&server, TAKEN) > 0);
    drop(clients);
    let open = || -> u64 {
        let page = server.get("/status?loops=1").body();
        let of_loops = page.lines().filter(|line| line.starts_with("weir_loop_open{"));
        of_loops.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    // But for the connection that asks.
    assert!(ask_until(|| open() <= 1), "{}", server.get("/status").body());
}

#[test]
fn without_request_balance_requests_wait_for_a_stalled_loop() {
    let server = start("request_balance off;");
    let (home, mut clients) = crowded(&server, 4 * LOOPS);
    let (held, answers) = ask_beside_a_held_one(&server, &mut clients);
    assert_eq!(held, home);
    assert!(answers.iter().all(|answer| *answer == held), "loop {held}: {answers:?}");
    assert_eq!(status(&server, TAKEN), 0);
}

/// All connections come to the first loop; `how` follows the first address.
fn start_on_one(dir: Dir, how: &str) -> Server {
    let conf = conf("accept_balance single;").replace("%%PORT%%;", &format!("%%PORT%%{how}"));
    let server = Server::start_in(dir, WEIR, &conf);
    wait_asleep(&server, LOOPS);
    server
}

/// Connections of which nothing has come yet have no task, and wait in another way.
#[test]
fn first_requests_do_not_wait_for_a_held_loop() {
    let server = start_on_one(Dir::new(), ";");
    for _ in 0..TRIES {
        let (mut holder, mut silent) = (server.connect(), accepted(&server, LOOPS));
        wait_asleep(&server, LOOPS);
        holder.send(request("/hold"));
        wait_blocked(&server);
        silent.iter_mut().for_each(|client| _ = client.send(request("/")));
        let answers: Vec<String> = silent.iter_mut().map(|c| c.response().body()).collect();
        // It may have been taken over itself.
        if holder.response().body() == FIRST {
            return assert!(!answers.contains(&FIRST.to_owned()), "{answers:?}");
        }
    }
    panic!("the first loop is never held up");
}

/// Whatever these do comes to the server at once.
fn at_once<T>(server: &Server, what: impl FnOnce() -> T) -> T {
    let worker = server.workers()[0];
    server.signal_worker(worker, Signal::STOP);
    wait_stopped(server);
    let out = what();
    server.signal_worker(worker, Signal::CONT);
    out
}

/// What its loop has accepted, in a turn that begins with another connection's long handler.
#[test]
fn a_connection_that_was_accepted_and_not_reached_is_served_by_another_loop() {
    /// After so many that speak at once, a loop asks each new connection at once.
    const PUNCTUAL: usize = 20;
    let server = start_on_one(Dir::new(), ";");
    for _ in 0..TRIES {
        let mut punctual: Vec<Client> = at_once(&server, || {
            let speaks = |_| {
                let mut client = server.connect();
                client.send(request("/"));
                client
            };
            (0..PUNCTUAL).map(speaks).collect()
        });
        punctual.iter_mut().for_each(|client| assert_eq!(client.response().status, 200));
        // New connections that are silent at first would teach it otherwise.
        let [holder, asker, ..] = &mut punctual[..] else { unreachable!() };
        // A loop with short turns expects nothing of the kind.
        assert_eq!(holder.get("/held?n=1").body(), "1");
        wait_asleep(&server, LOOPS);
        let taken = status_by(asker, TAKEN);
        wait_asleep(&server, LOOPS);
        let mut new = at_once(&server, || {
            holder.send(request("/hold"));
            let mut new = server.connect();
            new.send(request("/"));
            new
        });
        let (answered, held) = (new.response().body(), holder.response().body());
        // Another loop may have accepted it, or taken the holder.
        if held == FIRST && (answered == FIRST || status_by(asker, TAKEN) > taken) {
            return assert_ne!(answered, held, "the loop that was held up");
        }
    }
    panic!("it never comes to a loop that is held up");
}

/// The first answer's body of a stream that asks for a path.
fn over_http2(socket: &mut TcpStream, stream: u32, path: &str) -> String {
    // GET, http, a path and a host as they are (RFC 7541, appendix A).
    let mut head = vec![0x82, 0x86, 0x04, path.len() as u8];
    head.extend_from_slice(path.as_bytes());
    head.extend_from_slice(&[0x01, 1, b'a']);
    let mut out = vec![0, 0, head.len() as u8, 1, 0x05];
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(&head);
    socket.write_all(&out).unwrap();
    loop {
        let mut frame = [0; 9];
        socket.read_exact(&mut frame).unwrap();
        let len = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]) as usize;
        let mut payload = vec![0; len];
        socket.read_exact(&mut payload).unwrap();
        if frame[3] == 0 && len > 0 {
            return String::from_utf8(payload).unwrap();
        }
    }
}

/// It was silent for less than a second, so its task would be there still.
#[test]
fn http2_is_taken_over_as_soon_as_it_is_silent() {
    let server = start_on_one(Dir::new(), "; http2 on;");
    for _ in 0..TRIES {
        let mut silent = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        silent.set_read_timeout(Some(PATIENCE)).unwrap();
        silent.write_all(frame::PREFACE).unwrap();
        silent.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
        let mut holder = server.connect();
        // A loop with short turns expects nothing of the kind.
        assert_eq!(holder.get("/held?n=1").body(), "1");
        let home = over_http2(&mut silent, 1, "/");
        wait_asleep(&server, LOOPS);
        holder.send(request("/hold"));
        wait_blocked(&server);
        let answered = over_http2(&mut silent, 3, "/");
        // One of both may have been taken over before.
        if holder.response().body() == home {
            return assert_ne!(answered, home, "the loop that was held up");
        }
    }
    panic!("the two were never in the same loop");
}

/// A client that has sent the first of its words, and sends the others when its loop is held up.
#[test]
fn a_handshake_that_has_begun_is_taken_over() {
    let how = " ssl; listen 127.0.0.1:%%PORT1%%;
        ssl_certificate chain.pem; ssl_certificate_key leaf.key;";
    let server = start_on_one(certified(), how);
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata/root.pem");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(data).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let name = ServerName::try_from("www.example.org").unwrap();
        let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        while tls.wants_write() {
            tls.write_tls(&mut socket).unwrap();
        }
        // The server's words in whole: then it is the client's turn.
        while !tls.wants_write() {
            tls.read_tls(&mut socket).unwrap();
            tls.process_new_packets().unwrap();
        }
        wait_asleep(&server, LOOPS);
        let mut holder = Client::connect(server.port_at(1));
        holder.send(request("/hold"));
        wait_blocked(&server);
        let mut tls = rustls::StreamOwned::new(tls, socket);
        tls.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        tls.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let held = holder.response().body();
        assert!(!answer.ends_with(&format!("\r\n\r\n{held}")), "the loop that was held up");
    }
}

/// Many connections with two or three requests at once, while loops are stalled now and then.
#[test]
fn nothing_is_lost_or_served_twice_and_pipelines_keep_their_order() {
    const CLIENTS: usize = 12;
    const ROUNDS: usize = 12;
    let mut server = start("");
    let mut connections: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
    connections.iter_mut().for_each(|connection| _ = connection.get("/"));
    // One loop has no time for its own all the while.
    let mut holder = server.connect();
    holder.send(request("/hold"));
    wait_blocked(&server);
    std::thread::scope(|scope| {
        for (client, mut connection) in connections.into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let paths = [
                        "/echo",
                        if round % 4 == client % 4 { "/held" } else { "/short" },
                        "/echo",
                    ];
                    let numbers: Vec<String> =
                        (0..3).map(|i| format!("{client}-{round}-{i}")).collect();
                    let all = paths.iter().zip(&numbers);
                    let all: String =
                        all.map(|(path, n)| request(&format!("{path}?n={n}"))).collect();
                    connection.send(all);
                    for n in &numbers {
                        assert_eq!(connection.response().body(), *n);
                    }
                }
            });
        }
    });
    assert_eq!(holder.response().status, 200);
    drop(holder);
    assert!(status(&server, TAKEN) > 0);
    // Only the loop that took a connection counts it.
    assert!(ask_until(|| status(&server, "weir_active_connections") == 1));
    wait_idle(&server, "fair", (1, LOOPS));
    wait_still(&server);
    assert!(server.stop().success());
    let log = server.dir().read("log");
    let mut logged: Vec<&str> = log.lines().collect();
    logged.sort_unstable();
    let before = logged.len();
    logged.dedup();
    assert_eq!((before, logged.len()), (CLIENTS * ROUNDS * 3, CLIENTS * ROUNDS * 3));
}

/// Old loops take over from each other while they finish, and each request that was promised an
/// answer gets it.
#[test]
fn reloads_and_the_end_lose_nothing() {
    const CLIENTS: usize = 8;
    let mut server = start("");
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let port = server.port();
                scope.spawn(move || {
                    let mut connection = Client::connect(port);
                    for round in 0..30 {
                        let n = format!("{number}-{round}");
                        let path = if round % 5 == number % 5 { "/held" } else { "/short" };
                        let answer = connection.get(&format!("{path}?n={n}"));
                        assert_eq!(answer.body(), n);
                        if answer.header("Connection") == Some("close") {
                            connection = Client::connect(port);
                        }
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            let old = server.workers();
            server.reload();
            old.into_iter().for_each(|worker| server.wait_gone(worker));
        }
        clients.into_iter().for_each(|client| client.join().expect("a client"));
    });
    assert!(status(&server, TAKEN) > 0);
    let mut clients = accepted(&server, CLIENTS);
    clients.iter_mut().for_each(|client| client.deliver(request("/held?n=last")));
    server.signal(Signal::QUIT);
    for client in &mut clients {
        assert_eq!(client.response().body(), "last");
    }
    assert!(server.wait().success());
}

/// Loops of other processes are no team.
#[test]
fn loops_in_processes_of_their_own_take_over_nothing() {
    let server = super::start("fair", PROCESSES);
    let mut clients: Vec<Client> = (0..6).map(|_| server.connect()).collect();
    let homes: Vec<String> = clients.iter_mut().map(|client| client.get("/").body()).collect();
    clients[0].send(request("/slow"));
    wait_blocked(&server);
    clients[1..].iter_mut().for_each(|client| _ = client.send(request("/")));
    let answers: Vec<String> = clients[1..].iter_mut().map(|c| c.response().body()).collect();
    assert_eq!(answers, homes[1..]);
}

/// What came in time is answered, though its connection's time ran out before the loop has heard of it: it hears of one
/// connection in a turn here.
#[test]
fn a_request_in_the_socket_of_a_stalled_loop_is_in_time() {
    let conf =
        conf("epoll_events 1;").replace(&format!("worker_threads {LOOPS}"), "worker_threads 1");
    let soon = "http { client_header_timeout 1s; keepalive_timeout 1s;";
    let server = Server::start(WEIR, &conf.replace("http {", soon));
    wait_asleep(&server, 1);
    let (mut new, mut kept, mut holder) = (server.connect(), server.connect(), server.connect());
    assert_eq!(kept.get("/").body(), FIRST);
    holder.send(request("/hold"));
    wait_blocked(&server);
    new.deliver(request("/echo?n=new"));
    kept.deliver(request("/echo?n=kept"));
    assert_eq!(holder.response().body(), FIRST);
    assert_eq!(new.response().body(), "new");
    assert_eq!(kept.response().body(), "kept");
}
