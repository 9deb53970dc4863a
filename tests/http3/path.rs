//! What lies between a client and the server: a relay swallows long datagrams, looks at marks of congestion, and sets them.

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use quinn::EndpointConfig;
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};

use super::hostile::memory;
use super::hq::{client, client_with, request, run_client};
use super::*;

/// Heads of IP version 4 and UDP are not counted.
const OF_ETHERNET: usize = 1472;
/// What a connection begins with.
const AT_FIRST: usize = 1200;

#[derive(Default)]
struct Seen {
    /// The longest datagram of the server that has passed, and how many of its and the client's latest were marked.
    longest: AtomicUsize,
    servers: [AtomicUsize; 2],
    clients: [AtomicUsize; 2],
}

/// Carries datagrams of one client up to this length, and marks those of the server where it is to. It ends with the test.
fn relay(server: u16, longest: usize, congested: bool) -> (SocketAddr, Arc<Seen>) {
    let [front, back] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let (address, seen) = (front.local_addr().unwrap(), Arc::new(Seen::default()));
    back.connect(("127.0.0.1", server)).unwrap();
    let sockets = Arc::new([front, back]);
    let states = Arc::new([0, 1].map(|n| UdpSocketState::new((&sockets[n]).into()).unwrap()));
    let to = Arc::new(std::sync::Mutex::new(None));
    for from in [0, 1] {
        let (sockets, states) = (sockets.clone(), states.clone());
        let (to, seen) = (to.clone(), seen.clone());
        sockets[from].set_nonblocking(false).unwrap();
        std::thread::spawn(move || {
            let mut buf = vec![0; 65_536];
            loop {
                let mut meta = [RecvMeta::default()];
                let mut parts = [IoSliceMut::new(&mut buf)];
                if states[from].recv((&sockets[from]).into(), &mut parts, &mut meta).is_err() {
                    continue;
                }
                let [meta] = meta;
                if from == 0 {
                    *to.lock().unwrap() = Some(meta.addr);
                }
                let destination = match from {
                    0 => SocketAddr::from(([127, 0, 0, 1], server)),
                    _ => to.lock().unwrap().unwrap(),
                };
                let mark = meta.ecn;
                for datagram in buf[..meta.len].chunks(meta.stride.max(1)) {
                    if datagram.len() > longest {
                        continue;
                    }
                    let counts = if from == 0 { &seen.clients } else { &seen.servers };
                    counts[usize::from(mark == Some(EcnCodepoint::Ect0))].fetch_add(1, Relaxed);
                    if from == 1 {
                        seen.longest.fetch_max(datagram.len(), Relaxed);
                    }
                    let ecn = if from == 1 && congested { Some(EcnCodepoint::Ce) } else { mark };
                    let transmit = Transmit {
                        destination,
                        ecn,
                        contents: datagram,
                        segment_size: None,
                        src_ip: None,
                    };
                    let _ = states[1 - from].try_send((&sockets[1 - from]).into(), &transmit);
                }
            }
        });
    }
    (address, seen)
}

/// Takes a file through a relay: what that has seen.
fn transfer(server: &Server, longest: usize, congested: bool) -> Arc<Seen> {
    transfer_to(server, EndpointConfig::default(), longest, congested)
}

fn transfer_to(
    server: &Server,
    config: EndpointConfig,
    longest: usize,
    congested: bool,
) -> Arc<Seen> {
    let (address, seen) = relay(server.port(), longest, congested);
    run_client(async {
        let endpoint = client_with(server, "hq-interop", config);
        let connection = endpoint.connect(address, "www.example.org").unwrap().await.unwrap();
        let mut receive = request(&connection, b"GET /long\r\n").await;
        assert!(receive.read_to_end(1 << 24).await.unwrap() == long(3_000_000));
        connection.close(0u32.into(), b"");
        endpoint.wait_idle().await;
    });
    seen
}

fn start() -> Server {
    let http = "log_format window '$tcpinfo_snd_cwnd';";
    let server =
        super::start(http, "http3_hq on; quic_gso off; root .; access_log window.log window;");
    server.dir().write("long", long(3_000_000));
    server
}

#[test]
fn datagrams_are_as_long_as_the_path_permits() {
    let server = start();
    for (most, least) in [(OF_ETHERNET, OF_ETHERNET), (1_350, 1_301), (AT_FIRST, AT_FIRST)] {
        let longest = transfer(&server, most, false).longest.load(Relaxed);
        assert!((least..=most).contains(&longest), "{longest} where {most} pass");
    }
}

/// The network of the client is one of this machine's: nothing on the way carries less than its interface.
#[test]
fn datagrams_to_a_neighbour_are_longer_than_those_of_ethernet() {
    let server = start();
    // A probe that is lost leaves the search a little below the longest.
    for (most, least) in [(65_507, 16_000), (9_000, 8_000)] {
        let mut config = EndpointConfig::default();
        config.max_udp_payload_size(65_527).unwrap();
        let seen = transfer_to(&server, config, most, false);
        let longest = seen.longest.load(Relaxed);
        assert!((least..=most).contains(&longest), "{longest} where {most} pass");
    }
}

#[test]
fn marks_of_congestion_are_set_counted_and_obeyed() {
    let server = start();
    let seen = transfer(&server, OF_ETHERNET, false);
    let [unmarked, marked] = [&seen.servers[0], &seen.servers[1]].map(|n| n.load(Relaxed));
    assert!(
        marked > 1000 && unmarked * 50 < marked,
        "{marked} of the server's are marked, {unmarked} not"
    );
    // A client whose marks are not counted back leaves them out from then on.
    let [unmarked, marked] = [&seen.clients[0], &seen.clients[1]].map(|n| n.load(Relaxed));
    assert!(
        marked > 50 && unmarked * 5 < marked,
        "{marked} of the client's are marked, {unmarked} not"
    );
    server.wait_file("window.log", "\n", 1);
    transfer(&server, OF_ETHERNET, true);
    server.wait_file("window.log", "\n", 2);
    let windows = server.dir().read("window.log");
    let windows: Vec<u64> = windows.lines().map(|line| line.parse().unwrap()).collect();
    assert!(windows[1] * 2 < windows[0], "{windows:?} datagrams, without and with congestion");
}

/// What a stream has not sent when it is given up will never leave.
#[test]
fn a_client_that_gives_up_many_answers_still_gets_the_next() {
    let server = start();
    server.dir().write("short", long(1000));
    // The server sends little at a time, so that most of what answers write has not left.
    let (address, _) = relay(server.port(), OF_ETHERNET, true);
    run_client(async {
        let endpoint = client(&server, "hq-interop");
        let connection = endpoint.connect(address, "www.example.org").unwrap().await.unwrap();
        for _ in 0..10 {
            let mut receive = request(&connection, b"GET /long\r\n").await;
            receive.read_exact(&mut [0; 10_000]).await.unwrap();
            receive.stop(0u32.into()).unwrap();
        }
        let mut receive = request(&connection, b"GET /short\r\n").await;
        assert!(receive.read_to_end(1 << 12).await.unwrap() == long(1000));
    });
}

/// The connection id that a server chose in a Retry, which is the client's destination from then on (RFC 9000, section 17.2.5).
fn chosen_by_retry(packet: &[u8]) -> Option<&[u8]> {
    let (first, rest) = packet.split_first()?;
    let (length, rest) = rest.get(4..)?.split_first()?;
    let (length, rest) = rest.get(usize::from(*length)..)?.split_first()?;
    rest.get(..usize::from(*length)).filter(|_| first & 0xf0 == 0xf0)
}

#[test]
fn a_client_that_shows_its_address_after_a_reload_is_served() {
    let server = super::start("quic_retry on;", "http3_hq on; root .;");
    server.dir().write("short", long(1000));
    let [front, back] = [(); 2].map(|()| Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap()));
    let address = front.local_addr().unwrap();
    back.connect(("127.0.0.1", server.port())).unwrap();
    let (told, holds) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel::<()>();
    let chosen = Arc::new(std::sync::Mutex::new((None, Vec::new())));
    let (to, from, seen) = (back.clone(), front.clone(), chosen.clone());
    std::thread::spawn(move || {
        let (mut buf, mut held) = ([0; 2048], false);
        while let Ok((n, client)) = from.recv_from(&mut buf) {
            let shows = |id: &[u8]| !id.is_empty() && buf[..n].get(6..6 + id.len()) == Some(id);
            let is_shown = {
                let mut seen = seen.lock().unwrap();
                seen.0 = Some(client);
                shows(&seen.1)
            };
            if is_shown && !std::mem::replace(&mut held, true) {
                told.send(()).unwrap();
                goes.recv().unwrap();
            }
            let _ = to.send(&buf[..n]);
        }
    });
    std::thread::spawn(move || {
        let mut buf = [0; 2048];
        while let Ok(n) = back.recv(&mut buf) {
            let mut seen = chosen.lock().unwrap();
            if let Some(id) = chosen_by_retry(&buf[..n]) {
                seen.1 = id.to_vec();
            }
            let _ = seen.0.map(|client| front.send_to(&buf[..n], client));
        }
    });
    run_client(async {
        let endpoint = client(&server, "hq-interop");
        let connecting = endpoint.connect(address, "www.example.org").unwrap();
        let answer = tokio::spawn(async move {
            let connection = connecting.await.unwrap();
            let mut receive = request(&connection, b"GET /short\r\n").await;
            receive.read_to_end(1 << 12).await.unwrap()
        });
        while holds.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        let old = server.workers();
        server.reload();
        old.into_iter().for_each(|worker| server.wait_gone(worker));
        go.send(()).unwrap();
        assert!(answer.await.unwrap() == long(1000));
    });
}

/// A file is read once its stream may write, so answers that wait for the path do not fill memory.
#[test]
fn many_answers_on_a_slow_path_take_little_memory() {
    let server = start();
    transfer(&server, OF_ETHERNET, false);
    let before = memory(&server);
    run_client(async {
        let endpoint = client(&server, "hq-interop");
        let mut kept = Vec::new();
        for _ in 0..2 {
            let (address, _) = relay(server.port(), OF_ETHERNET, true);
            let connection = endpoint.connect(address, "www.example.org").unwrap().await.unwrap();
            for _ in 0..64 {
                let receive = request(&connection, b"GET /long\r\n").await;
                kept.push(receive);
            }
        }
        // Some answers have begun, and all others wait for their turn.
        for receive in kept.iter_mut().take(16) {
            receive.read_exact(&mut [0; 1]).await.unwrap();
        }
        let grown = memory(&server).saturating_sub(before);
        assert!(grown < 6 << 10, "{grown} KiB more");
    });
}
