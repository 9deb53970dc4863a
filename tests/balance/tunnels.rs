//! Tunnels of a stalled loop: other loops of the same process steal them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use weir_testkit::{Client, PATIENCE, Server, ask_until, certified, listen};

use super::WEIR;
use super::threads::{wait_asleep, wait_blocked};

const LOOPS: usize = 4;
/// A request that is to hold the tunnel's loop up may be taken over itself.
const TRIES: usize = 10;

/// All connections come to the first loop. What goes to `/outer` comes back over TLS, so that there are two tunnels.
fn start() -> Server {
    let back = listen(echo);
    let pass = "proxy_http_version 1.1; proxy_set_header Upgrade echo;
        proxy_set_header Connection upgrade; add_header X-Loop $loop always;
        access_log %%DIR%%/log told;";
    let conf = format!(
        "worker_processes 1; worker_threads {LOOPS};
        events {{ accept_balance single; }}
        http {{
            log_format told '$arg_n $uri $status $body_bytes_sent $bytes_sent $upstream_bytes_sent '
                '$upstream_bytes_received $upstream_response_length $upstream_status '
                '$ssl_protocol $server_addr';
            access_log off;
            server {{
                listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:%%PORT1%% ssl;
                ssl_certificate chain.pem; ssl_certificate_key leaf.key;
                location / {{ return 200 $loop; }}
                location /hold {{ work sleep 2s; return 200 $loop; }}
                location /status {{ weir_status; }}
                location /tunnel {{ {pass} proxy_pass http://127.0.0.1:{back}; }}
                location /outer {{ {pass} proxy_pass https://127.0.0.1:%%PORT1%%/tunnel; }}
            }}
        }}"
    );
    let server = Server::start_in(certified(), WEIR, &conf);
    wait_asleep(&server, LOOPS);
    server
}

/// Agrees to another protocol, in which each line is answered with itself, and `bye` ends it.
fn echo(mut socket: TcpStream) {
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
    }
    let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n";
    let mut said = socket.write_all(head.as_bytes());
    while said.is_ok() && line != "bye\n" {
        line.clear();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        said = socket.write_all(line.as_bytes());
    }
}

trait Talk: Read + Write {}

impl<T: Read + Write> Talk for T {}

/// A client's end.
struct Tunnel {
    /// By which it is known in the log.
    name: String,
    talk: Box<dyn Talk>,
    socket: TcpStream,
    rounds: usize,
}

/// How one is opened.
type Open = fn(&Server, &str) -> (Tunnel, String);

impl Tunnel {
    /// A tunnel with both parts in the first loop: before they are tunnels, another loop may have
    /// taken them.
    fn on_the_first(server: &Server, open: Open) -> Tunnel {
        static NAMES: AtomicUsize = AtomicUsize::new(1000);
        for _ in 0..TRIES {
            let name = NAMES.fetch_add(1, Ordering::Relaxed).to_string();
            let (tunnel, head) = open(server, &name);
            let mut loops = head.lines().filter_map(|line| line.strip_prefix("X-Loop: "));
            if loops.all(|number| number == "0") {
                return tunnel;
            }
        }
        panic!("the first loop has none");
    }

    /// The head of the answer comes with it.
    fn open(port: u16, to: &str, tls: Option<ClientConnection>) -> (Tunnel, String) {
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let own = socket.try_clone().unwrap();
        let talk: Box<dyn Talk> = match tls {
            None => Box::new(own),
            Some(tls) => Box::new(StreamOwned::new(tls, own)),
        };
        let name = to.rsplit('=').next().unwrap().to_owned();
        let mut tunnel = Tunnel { name, talk, socket, rounds: 0 };
        let head = format!("GET {to} HTTP/1.1\r\nHost: a\r\nUpgrade: echo\r\n\r\n");
        tunnel.talk.write_all(head.as_bytes()).unwrap();
        let answer = tunnel.read_to("\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        (tunnel, answer)
    }

    fn plain(server: &Server, name: &str) -> (Tunnel, String) {
        Tunnel::open(server.port(), &format!("/tunnel?n={name}"), None)
    }

    /// TLS to this server, which goes through another tunnel to itself.
    fn secured(server: &Server, name: &str) -> (Tunnel, String) {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata/root.pem");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(data).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let host = ServerName::try_from("www.example.org").unwrap();
        let tls = ClientConnection::new(Arc::new(config), host).unwrap();
        Tunnel::open(server.port_at(1), &format!("/outer?n={name}"), Some(tls))
    }

    fn read_to(&mut self, end: &str) -> String {
        let (mut text, mut byte) = (String::new(), [0]);
        while !text.ends_with(end) {
            self.talk.read_exact(&mut byte).unwrap();
            text.push(byte[0].into());
        }
        text
    }

    fn round(&mut self) {
        self.rounds += 1;
        let line = format!("{:06}\n", self.rounds);
        self.talk.write_all(line.as_bytes()).unwrap();
        assert_eq!(self.read_to("\n"), line);
    }

    /// Makes it so many rounds, and has one of the ends leave.
    fn end(mut self, rounds: usize, client_leaves: bool) -> String {
        assert!(self.rounds <= rounds, "{}", self.rounds);
        while self.rounds < rounds {
            self.round();
        }
        if client_leaves {
            self.socket.shutdown(Shutdown::Write).unwrap();
        } else {
            self.talk.write_all(b"bye\n").unwrap();
            assert_eq!(self.read_to("\n"), "bye\n");
        }
        // With TLS, a client that leaves without a word is not told goodbye either.
        let mut rest = Vec::new();
        let _ = self.talk.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{rest:?}");
        self.name
    }
}

/// A connection that was there before, for questions.
struct Asker<'s>(&'s Server, Client);

impl Asker<'_> {
    fn new(server: &Server) -> Asker<'_> {
        let mut client = server.connect();
        client.get("/");
        Asker(server, client)
    }

    /// A value of the status page, of all loops together.
    fn sum(&mut self, name: &str) -> u64 {
        let page = self.1.get("/status?loops=1").body();
        let lines = page.lines().filter_map(|line| line.strip_prefix(name));
        let values = lines.filter(|rest| rest.starts_with([' ', '{']));
        values.map(|rest| rest.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// Waits until only so many connections besides this one are there.
    fn wait_active(&mut self, n: u64) {
        assert!(ask_until(|| self.sum("weir_active_connections") == n + 1), "they do not end");
    }

    /// How many tunnels are in another loop than the one that has their request: both count them.
    fn away(&mut self) -> u64 {
        wait_asleep(self.0, LOOPS);
        self.sum("weir_loop_open") - self.sum("weir_active_connections")
    }

    /// Holds the first loop up until all of the tunnels that this one consists of have gone elsewhere, which takes a
    /// few rounds.
    fn send_away(&mut self, tunnel: &mut Tunnel, parts: u64, connections: u64) {
        for _ in 0..TRIES {
            let mut holder = self.0.connect();
            holder.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
            wait_blocked(self.0);
            tunnel.round();
            assert_eq!(holder.response().status, 200);
            drop(holder);
            self.wait_active(connections);
            if self.away() == parts {
                return;
            }
        }
        panic!("nobody takes it");
    }
}

/// What was logged of a tunnel, which consists of so many.
fn logged(server: &Server, name: &str, parts: usize) -> Vec<String> {
    let read = || -> Vec<String> {
        let log = server.dir().read("log");
        let own = log.lines().filter_map(|line| line.strip_prefix(name));
        own.map(str::to_owned).collect()
    };
    assert!(ask_until(|| read().len() >= parts), "{}", server.dir().read("log"));
    let mut lines = read();
    lines.sort_unstable();
    lines
}

#[test]
fn a_tunnel_of_a_held_loop_goes_on_in_another_and_is_logged_as_if_it_had_not() {
    const ROUNDS: usize = 20;
    let server = start();
    let mut asker = Asker::new(&server);
    let both: [(Open, usize); 2] = [(Tunnel::plain, 1), (Tunnel::secured, 2)];
    for client_leaves in [true, false] {
        for (open, parts) in both {
            let stayed = Tunnel::on_the_first(&server, open).end(ROUNDS, client_leaves);
            asker.wait_active(0);
            let mut tunnel = Tunnel::on_the_first(&server, open);
            tunnel.round();
            asker.wait_active(parts as u64);
            asker.send_away(&mut tunnel, parts as u64, parts as u64);
            let moved = tunnel.end(ROUNDS, client_leaves);
            asker.wait_active(0);
            assert_eq!(asker.away(), 0);
            let stayed = logged(&server, &stayed, parts);
            assert_eq!(stayed, logged(&server, &moved, parts));
            assert_eq!(stayed.len(), parts);
            assert!(stayed.iter().all(|line| line.contains(" 101 ")), "{stayed:?}");
        }
    }
    assert_eq!(server.logged("recv()"), 0, "{}", server.log());
}

/// The loops of an old worker stay as long as its tunnels, wherever these are.
#[test]
fn a_worker_that_is_to_end_waits_for_tunnels_that_went_to_other_loops() {
    let mut server = start();
    let mut asker = Asker::new(&server);
    let open = || Tunnel::on_the_first(&server, Tunnel::plain);
    let (mut first, mut second) = (open(), open());
    asker.wait_active(2);
    asker.send_away(&mut first, 1, 2);
    drop(asker);
    let old = server.workers();
    server.reload();
    second.round();
    let name = first.end(20, true);
    second.round();
    assert_eq!(logged(&server, &name, 1).len(), 1);
    let name = second.end(20, false);
    old.into_iter().for_each(|worker| server.wait_gone(worker));
    assert_eq!(logged(&server, &name, 1).len(), 1);
    let mut last = open();
    let mut asker = Asker::new(&server);
    asker.wait_active(1);
    asker.send_away(&mut last, 1, 1);
    drop(asker);
    server.signal(Signal::QUIT);
    let name = last.end(20, true);
    assert!(server.wait().success());
    assert_eq!(logged(&server, &name, 1).len(), 1);
}

/// When the worker has no more time, its tunnels end at once, and are logged once.
#[test]
fn a_worker_that_ends_at_once_ends_tunnels_that_went_to_other_loops() {
    let mut server = start();
    let mut tunnel = Tunnel::on_the_first(&server, Tunnel::plain);
    let mut asker = Asker::new(&server);
    asker.wait_active(1);
    asker.send_away(&mut tunnel, 1, 1);
    drop(asker);
    server.signal(Signal::TERM);
    let mut rest = Vec::new();
    let _ = tunnel.talk.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{rest:?}");
    assert!(server.wait().success());
    assert_eq!(logged(&server, &tunnel.name, 1).len(), 1);
    assert_eq!(server.logged("[alert]"), 0, "{}", server.log());
}
