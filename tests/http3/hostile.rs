//! Datagrams that no honest client sends.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use weir_testkit::{Dir, PATIENCE, Server, ask_until, certified, memory_of, run};

use super::{WEIR, ask, begin, bytes, conf, hq, long, start};

/// How long nothing more may come before no more is expected. Too short a time finds less; it fails nothing.
const SILENCE: Duration = Duration::from_millis(300);

/// A request for `/` in one frame of fields.
const HEAD: &[u8] = b"\x01\x10\x00\x00\xd1\xc1\xd7\x50\x09localhost";

pub fn socket(server: &Server) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", server.port())).unwrap();
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    socket
}

/// Bytes that come until nothing more comes.
fn answers(socket: &UdpSocket) -> usize {
    let mut buf = [0; 65_536];
    std::iter::from_fn(|| socket.recv(&mut buf).ok()).sum()
}

#[test]
fn datagrams_that_are_no_quic_get_nothing_larger() {
    let server = start("", "return 200 fine;");
    let mut unknown = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 8];
    unknown.resize(1200, 7);
    let mut of_nobody = vec![0x40];
    of_nobody.extend(long(200));
    let mut initial = vec![0xc0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0x9e];
    initial.resize(1200, 9);
    let short_initial = initial[..300].to_vec();
    for datagram in
        [&b""[..], b"x", &[0x40; 30], &long(1200), &unknown, &of_nobody, &initial, &short_initial]
    {
        let socket = socket(&server);
        socket.send(datagram).unwrap();
        let got = answers(&socket);
        assert!(got <= datagram.len(), "{got} bytes for {}", datagram.len());
    }
    // Whatever the first bytes are.
    let socket = socket(&server);
    let noise = long(40_000);
    for piece in noise.chunks(97) {
        socket.send(piece).unwrap();
    }
    assert!(answers(&socket) <= noise.len());
    let Some(got) = ask(&server, server.port(), &[], &["/said"]) else { return };
    assert_eq!(got.read("said"), "fine");
    assert!(server.logged("[alert]") == 0 && server.logged("panicked") == 0);
}

/// Each packet of a handshake comes twice, the second time as one that only servers send: with the type of a Retry. One bit that changes
/// on its way does that, and so does an attacker that sees a client's first packet.
#[test]
fn a_packet_that_only_servers_send_ends_no_handshake() {
    let server = start("", "return 200 fine;");
    let (front, back) = (UdpSocket::bind("127.0.0.1:0").unwrap(), socket(&server));
    front.set_nonblocking(true).unwrap();
    back.set_nonblocking(true).unwrap();
    let got = Dir::new();
    let port = front.local_addr().unwrap().port();
    let Some(_client) = begin(port, &[], &["/said"], &got) else { return };
    let (mut buf, mut forged, mut client) = ([0; 65_536], 0, None);
    assert!(ask_until(|| {
        while let Ok((len, from)) = front.recv_from(&mut buf) {
            client = Some(from);
            back.send(&buf[..len]).unwrap();
            if buf[0] & 0x80 > 0 {
                buf[0] |= 0x30;
                forged += 1;
                back.send(&buf[..len]).unwrap();
            }
        }
        while let (Ok(len), Some(client)) = (back.recv(&mut buf), client) {
            front.send_to(&buf[..len], client).unwrap();
        }
        bytes(&got, "said") == b"fine"
    }));
    assert!(forged > 0);
}

/// Once an eighth of `worker_connections` may be forged, new clients have to show their address first. They cost nothing until then.
#[test]
fn first_packets_of_forged_addresses_do_not_take_all_connections() {
    let conf = "user root; worker_processes 1; worker_threads 1; events { worker_connections 32; }
         http { ssl_certificate chain.pem; ssl_certificate_key leaf.key;
             server { listen 127.0.0.1:%%PORT%% quic; listen 127.0.0.1:%%PORT%% ssl; return 200 fine; }
             server { listen 127.0.0.1:%%PORT1%%; weir_status; } }";
    let server = Server::start_in(certified(), WEIR, conf);
    for _ in 0..8 {
        let Some(first) = first_datagram(&Dir::new()) else { return };
        socket(&server).send(&first).unwrap();
    }
    let got = ask(&server, server.port(), &[], &["/said"]).unwrap();
    assert_eq!(got.read("said"), "fine");
    let url = format!("http://127.0.0.1:{}/", server.port_at(1));
    let page = String::from_utf8_lossy(&run("curl", ["-s", &url]).stdout).into_owned();
    let line = page.lines().find_map(|line| line.strip_prefix("weir_quic_retries_total "));
    let retries: u64 = line.unwrap_or_default().parse().unwrap();
    assert!((4..=9).contains(&retries), "{retries} of 9 clients were asked for their address");
}

/// Datagrams of many forged addresses, each of a kind that the server could answer: versions that it does not speak, ids of its own making
/// with a bit changed (other loops, other generations), and ids of no connection.
#[test]
fn floods_get_less_than_they_send_and_cost_no_memory() {
    let server = start("", "return 200 fine;");
    let Some(first) = first_datagram(&Dir::new()) else { return };
    let (one, mut buf) = (socket(&server), [0; 65_536]);
    one.send(&first).unwrap();
    one.recv(&mut buf).unwrap();
    let id = id_of_server(&buf).to_vec();
    let datagram = |n: usize| match n % 3 {
        0 => {
            let version = [0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8];
            let mut all = [&version[..], &n.to_be_bytes(), &[8], &n.to_be_bytes()].concat();
            all.resize(1200, 0);
            all
        }
        1 => {
            let mut id = id.clone();
            id[12 + n / 3 % 5] ^= 1 << (n / 15 % 8);
            [&[0x40], &id[..], &long(60)].concat()
        }
        _ => [&[0x40], &n.to_be_bytes()[..], &long(60)].concat(),
    };
    let addresses: Vec<UdpSocket> = (1..=60)
        .map(|n| {
            let socket = UdpSocket::bind((format!("127.9.0.{n}"), 0)).unwrap();
            socket.connect(("127.0.0.1", server.port())).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        })
        .collect();
    let flood = || {
        let (mut sent, mut got) = (0, 0);
        for n in 0..20_000 {
            let (socket, datagram) = (&addresses[n % addresses.len()], datagram(n));
            sent += socket.send(&datagram).unwrap_or_default();
            got += std::iter::from_fn(|| socket.recv(&mut [0; 65_536]).ok()).sum::<usize>();
        }
        (sent, got)
    };
    flood();
    let before = memory(&server);
    let (sent, got) = flood();
    assert!(got <= sent, "{got} bytes for {sent}");
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 8 << 10, "{grown} KiB more");
    let got = ask(&server, server.port(), &[], &["/said"]).unwrap();
    assert_eq!(got.read("said"), "fine");
    assert!(server.logged("[alert]") == 0 && server.logged("panicked") == 0);
}

/// KiB that the workers have to themselves.
pub fn memory(server: &Server) -> u64 {
    server.workers().into_iter().map(|pid| memory_of(pid, "Private_Dirty")).sum()
}

/// The server's id in its first datagram: the client's id and the server's stand behind their lengths (RFC 9000, section 17.2).
fn id_of_server(datagram: &[u8]) -> &[u8] {
    let at = 6 + usize::from(datagram[5]);
    &datagram[at + 1..][..usize::from(datagram[at])]
}

/// A datagram of a connection that is unknown is answered by a token for its id.
#[test]
fn servers_of_one_host_key_reset_connections_of_each_other() {
    let start = |byte: u8| {
        let dir = certified();
        dir.write("key", [byte; 64]);
        Server::start_in(dir, WEIR, &conf("quic_host_key key;", "return 200;"))
    };
    let (one, same, other) = (start(1), start(1), start(2));
    let Some(first) = first_datagram(&Dir::new()) else { return };
    let (socket, mut buf) = (socket(&one), [0; 65_536]);
    socket.send(&first).unwrap();
    socket.recv(&mut buf).unwrap();
    let datagram = [&[0x40], id_of_server(&buf), &long(200)].concat();
    let reset = |server: &Server| {
        let socket = self::socket(server);
        socket.send(&datagram).unwrap();
        answers(&socket)
    };
    assert!((21..=datagram.len()).contains(&reset(&same)));
    assert_eq!(reset(&other), 0);
}

/// What a client sends first, with nothing else from it.
pub fn first_datagram(got: &Dir) -> Option<Vec<u8>> {
    let middle = UdpSocket::bind("127.0.0.1:0").unwrap();
    middle.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = middle.local_addr().unwrap().port();
    let _client = begin(port, &["--handshake-timeout=1s"], &["/"], got)?;
    let mut first = vec![0; 65_536];
    let len = middle.recv(&mut first).unwrap();
    first.truncate(len);
    Some(first)
}

/// The first datagram of a client, from an address that receives and does not answer.
#[test]
fn a_forged_address_gets_at_most_three_times_what_came() {
    let server = start("", "return 200;");
    let Some(first) = first_datagram(&Dir::new()) else { return };
    let socket = socket(&server);
    socket.send(&first).unwrap();
    // Beyond the times at which what is lost is sent again.
    socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let answered = answers(&socket);
    assert!((1..=3 * first.len()).contains(&answered), "{answered} bytes for {}", first.len());
}

/// The client would be waited for as long as it sends a packet now and then.
#[test]
fn a_handshake_has_a_time_as_a_whole() {
    let server = start("", "client_header_timeout 300ms; return 200;");
    let Some(first) = first_datagram(&Dir::new()) else { return };
    socket(&server).send(&first).unwrap();
    server.wait_log("client timed out (110: Connection timed out) in the handshake while", 1);
}

/// Carries a client's datagrams to the server and back, until it forges the sender of each.
struct Forger {
    address: SocketAddr,
    forges: AtomicBool,
    /// Bytes of the client.
    sent: AtomicUsize,
    forged: Mutex<Vec<UdpSocket>>,
}

/// It ends with the test. A word comes for each forged datagram.
fn forger(server: u16) -> (Arc<Forger>, UnboundedReceiver<()>) {
    let [front, back] = [(); 2].map(|()| Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap()));
    back.connect(("127.0.0.1", server)).unwrap();
    let forger = Arc::new(Forger {
        address: front.local_addr().unwrap(),
        forges: AtomicBool::new(false),
        sent: AtomicUsize::new(0),
        forged: Mutex::default(),
    });
    let (word, words) = unbounded_channel();
    let (this, to, from) = (forger.clone(), back.clone(), front.clone());
    std::thread::spawn(move || {
        let mut buf = [0; 65_536];
        while let Ok((n, client)) = from.recv_from(&mut buf) {
            this.sent.fetch_add(n, Relaxed);
            if !this.forges.load(Relaxed) {
                from.connect(client).unwrap();
                to.send(&buf[..n]).unwrap();
                continue;
            }
            let forged = UdpSocket::bind("127.0.0.1:0").unwrap();
            forged.set_nonblocking(true).unwrap();
            forged.send_to(&buf[..n], ("127.0.0.1", server)).unwrap();
            this.forged.lock().unwrap().push(forged);
            let _ = word.send(());
        }
    });
    std::thread::spawn(move || {
        let mut buf = [0; 65_536];
        while let Ok(n) = back.recv(&mut buf) {
            let _ = front.send(&buf[..n]);
        }
    });
    (forger, words)
}

/// The server asks each new address with a datagram of 1,200 bytes whether the client is there.
#[test]
fn a_client_that_moves_with_each_packet_has_no_more_sent_than_three_times_its_own() {
    let server = start("", "return 200 fine;");
    let (forger, mut words) = forger(server.port());
    hq::run_client(async {
        let endpoint = hq::client(&server, "h3");
        let connect = |to| endpoint.connect(to, "www.example.org").unwrap();
        let honest = connect(([127, 0, 0, 1], server.port()).into()).await.unwrap();
        let connection = connect(forger.address).await.unwrap();
        let mut stream = connection.open_uni().await.unwrap();
        // A client may not move before the server has the last message of its handshake.
        hq::request(&connection, HEAD).await.read_to_end(1 << 16).await.unwrap();
        forger.forges.store(true, Relaxed);
        for _ in 0..100 {
            // A stream of a kind that means nothing.
            stream.write_all(b"!").await.unwrap();
            words.recv().await.unwrap();
            // The loop has answered that once it has answered this.
            hq::request(&honest, HEAD).await.read_to_end(1 << 16).await.unwrap();
        }
    });
    let (sent, forged) = (forger.sent.load(Relaxed), forger.forged.lock().unwrap());
    let got: usize = forged.iter().map(answers).sum();
    assert!((1200..=3 * sent).contains(&got), "{got} bytes for {sent}");
}

/// A stream that has begun waits for the rest of its head for `client_header_timeout`, its connection does not stay for it.
#[test]
fn connections_that_end_in_a_head_leave_nothing_in_memory() {
    let server = start("", "location / { return 200 ok; }");
    let address: std::net::SocketAddr = ([127, 0, 0, 1], server.port()).into();
    let load = || {
        hq::run_client(async {
            let endpoint = hq::client(&server, "h3");
            for _ in 0..300 {
                let connection =
                    endpoint.connect(address, "www.example.org").unwrap().await.unwrap();
                let (mut send, _receive) = connection.open_bi().await.unwrap();
                // A frame of fields that has a KiB, of which one byte comes.
                send.write_all(b"\x01\x44\x00\x00").await.unwrap();
                // The server has read it once it has answered what came behind it.
                let (mut send, mut receive) = connection.open_bi().await.unwrap();
                send.write_all(HEAD).await.unwrap();
                send.finish().unwrap();
                receive.read_to_end(1 << 16).await.unwrap();
                connection.close(0x0100u32.into(), b"");
            }
            endpoint.wait_idle().await;
        });
    };
    load();
    let before = memory(&server);
    load();
    let grown = || memory(&server).saturating_sub(before);
    assert!(ask_until(|| grown() < 4 << 10), "{} KiB more after 300 connections", grown());
}

/// Streams that are reset within their heads, some after others on one connection.
#[test]
fn heads_that_are_given_up_leave_nothing_in_memory() {
    let server = start("", "keepalive_requests 1000000; return 200 ok;");
    hq::run_client(async {
        let endpoint = hq::client(&server, "h3");
        let address: SocketAddr = ([127, 0, 0, 1], server.port()).into();
        let connection = endpoint.connect(address, "www.example.org").unwrap().await.unwrap();
        let load = async || {
            for _ in 0..40 {
                let mut begun = Vec::new();
                for _ in 0..100 {
                    let (mut send, answer) = connection.open_bi().await.unwrap();
                    send.write_all(b"\x01\x44\x00\x00").await.unwrap();
                    begun.push((send, answer));
                }
                // The server has read these once it has answered what came behind them.
                let (mut send, mut answer) = connection.open_bi().await.unwrap();
                send.write_all(HEAD).await.unwrap();
                send.finish().unwrap();
                assert!(answer.read_to_end(1000).await.unwrap().ends_with(b"ok"));
                for (mut send, mut answer) in begun {
                    send.reset(0x10c_u32.into()).unwrap();
                    let _ = answer.stop(0x10c_u32.into());
                }
            }
        };
        load().await;
        let before = memory(&server);
        load().await;
        let grown = || memory(&server).saturating_sub(before);
        assert!(ask_until(|| grown() < 1 << 10), "{} KiB more after 4,000 streams", grown());
    });
}
