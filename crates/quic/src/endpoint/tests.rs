//! An endpoint on a real loop and a real socket, and clients of quinn-proto.

use std::future::pending;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::mpsc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, ConnectionError, DatagramEvent, Dir, Event, StreamEvent};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ConfigBuilder, RootCertStore, WantsVerifier, WantsVersions};
use weir_engine::{Driver, ListenerKey, Loop, Options, Remote, spend};

use super::*;
use crate::Place;
use crate::crypto::ChosenConfig;
use crate::ids::ANY_GENERATION;
use crate::packet::for_quinn;

mod updates;
mod versions;

const LOOPBACK: &str = "127.0.0.1:0";
/// The longest wait for a datagram of the server.
const LONG: Duration = Duration::from_secs(10);

struct Nothing;

impl Driver for Nothing {
    fn before_wait(&mut self, _: &Handle, _: Instant) -> Option<Duration> {
        None
    }

    fn acceptable(&mut self, _: &Handle, _: ListenerKey) {}
}

/// Accepts all clients. The first connection panics in [`Events::negotiated`].
struct PanicsOnce {
    first: Cell<bool>,
    tls: Arc<rustls::ServerConfig>,
}

struct PanickingEvents {
    panics: bool,
}

impl Events for PanickingEvents {
    fn negotiated(&self) {
        assert!(!self.panics, "on purpose");
    }
}

impl Accepts for PanicsOnce {
    fn admit(&self, _: &NewConnection) -> Admission {
        let (panics, tls) = (self.first.replace(false), self.tls.clone());
        Admission::Accept(
            Box::new(|_| Ok(tls)),
            Box::new(move |_| Rc::new(PanickingEvents { panics })),
        )
    }
}

fn builder_of<S: rustls::ConfigSide>(
    make: impl FnOnce(Arc<CryptoProvider>) -> ConfigBuilder<S, WantsVersions>,
) -> ConfigBuilder<S, WantsVerifier> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    make(provider).with_protocol_versions(&[&rustls::version::TLS13]).unwrap()
}

/// A server's TLS configuration, and its certificate.
fn server_tls() -> (Arc<rustls::ServerConfig>, CertificateDer<'static>) {
    let own = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()).into();
    let builder = builder_of(rustls::ServerConfig::builder_with_provider).with_no_client_auth();
    let cert = own.cert.der().clone();
    (Arc::new(builder.with_single_cert(vec![cert.clone()], key).unwrap()), cert)
}

/// A client on a blocking socket.
struct Client {
    endpoint: quinn_proto::Endpoint,
    connection: quinn_proto::Connection,
    socket: UdpSocket,
    server: SocketAddr,
}

fn client_tls(trusted: Option<&CertificateDer<'static>>) -> rustls::ClientConfig {
    let mut roots = RootCertStore::empty();
    trusted.into_iter().for_each(|cert| roots.add(cert.clone()).unwrap());
    let tls = builder_of(rustls::ClientConfig::builder_with_provider);
    tls.with_root_certificates(roots).with_no_client_auth()
}

impl Client {
    fn connect(server: SocketAddr, trusted: Option<&CertificateDer<'static>>) -> Client {
        let tls = QuicClientConfig::try_from(client_tls(trusted)).unwrap();
        Client::of(server, ClientConfig::new(Arc::new(tls)))
    }

    fn of(server: SocketAddr, config: ClientConfig) -> Client {
        let mut client = Client::silent(server, config);
        client.send_all();
        client
    }

    /// One that has sent nothing yet.
    fn silent(server: SocketAddr, config: ClientConfig) -> Client {
        let mut own = EndpointConfig::default();
        own.supported_versions(Version::ALL.map(Version::number).to_vec());
        let mut endpoint = quinn_proto::Endpoint::new(Arc::new(own), None, true, None);
        let (_, connection) = endpoint.connect(Instant::now(), config, server, "h").unwrap();
        let socket = UdpSocket::bind(LOOPBACK).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        Client { endpoint, connection, socket, server }
    }

    fn send_all(&mut self) {
        let mut out = Vec::new();
        while let Some(transmit) = self.connection.poll_transmit(Instant::now(), 1, &mut out) {
            self.socket.send_to(&out[..transmit.size], self.server).unwrap();
            out.clear();
        }
    }

    /// Receives until an event is of interest. `None` if the server sends nothing for [`LONG`].
    fn wait_for<T>(&mut self, of_interest: impl Fn(Event) -> Option<T>) -> Option<T> {
        loop {
            while let Some(event) = self.connection.poll() {
                if let Some(found) = of_interest(event) {
                    return Some(found);
                }
            }
            self.receive_one()?;
        }
    }

    /// Takes the next datagram, and sends what follows from it. `None` if the server sends nothing for [`LONG`].
    fn receive_one(&mut self) -> Option<()> {
        let (mut room, mut out) = ([0; 2048], Vec::new());
        let n = self.socket.recv(&mut room).ok()?;
        let (now, bytes) = (Instant::now(), for_quinn(&room[..n]));
        let event = self.endpoint.handle(now, self.server, None, None, bytes, &mut out);
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            self.connection.handle_event(event);
        }
        self.send_all();
        Some(())
    }

    /// Sends a request in two packets. The server must acknowledge after the second (RFC 9000, section 13.2.2).
    fn send_request(&mut self) {
        let id = self.connection.streams().open(Dir::Bi).unwrap();
        for _ in 0..2 {
            self.connection.send_stream(id).write(b"?").unwrap();
            self.send_all();
        }
    }
}

fn settings() -> EndpointSettings {
    EndpointSettings {
        place: Place::default(),
        loops: 1,
        host_key: HostKey::new(b"secret"),
        idle_timeout: Duration::from_secs(60),
        streams: 1,
        stream_window: 1024,
        gso: false,
        congestion: Congestion::Cubic,
        connections: 8,
    }
}

/// Runs a loop with an endpoint while `clients` use it. Returns their result, and the endpoint.
fn serve<T: Send + 'static>(
    accepts: impl FnOnce(&Handle) -> Rc<dyn Accepts>,
    clients: impl FnOnce(SocketAddr, &Remote) -> T + Send + 'static,
) -> (T, Rc<Endpoint>) {
    let mut event_loop = Loop::new(&Options::default()).unwrap();
    let handle = event_loop.handle();
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    let server = socket.local_addr().unwrap();
    let endpoint = Endpoint::new(&handle, &Arc::new(socket.into()), settings()).unwrap();
    endpoint.start(accepts(&handle));
    let remote = handle.remote();
    let clients = std::thread::spawn(move || {
        let heard = clients(server, &remote);
        remote.post(Box::new(|h| h.stop()));
        heard
    });
    event_loop.run(&mut Nothing).unwrap();
    (clients.join().unwrap(), endpoint)
}

/// Collects the places of packets for other loops.
struct Forwards(Rc<RefCell<Vec<Place>>>);

impl Accepts for Forwards {
    fn admit(&self, _: &NewConnection) -> Admission {
        Admission::Ignore
    }

    fn misplaced(&self, place: Place, _: &Packet<'_>) {
        self.0.borrow_mut().push(place);
    }
}

#[test]
fn packets_of_newer_configurations_are_passed_on() {
    let passed = Rc::new(RefCell::default());
    let accepts = Rc::new(Forwards(Rc::clone(&passed)));
    let (_, endpoint) = serve(|_| accepts, |_, _| ());
    let place = |generation| Place { generation, row: 3 };
    for generation in [0, 1, 2, u16::MAX - 1, ANY_GENERATION] {
        let bytes = [&[0x40][..], &endpoint.ids.write(place(generation)), &[0; 32]].concat();
        let from = "127.0.0.1:1".parse().unwrap();
        endpoint.deliver(&Packet { from, to: None, ecn: 0, bytes: &bytes });
    }
    assert_eq!(*passed.borrow(), [place(1), place(2)]);
}

#[test]
fn a_panic_ends_one_connection_and_no_other() {
    let (tls, _) = server_tls();
    let (heard, endpoint) = serve(
        |_| Rc::new(PanicsOnce { first: Cell::new(true), tls }),
        |server, _| {
            let _first = Client::connect(server, None);
            Client::connect(server, None).wait_for(|event| match event {
                Event::ConnectionLost { reason } => Some(reason),
                _ => None,
            })
        },
    );
    assert!(matches!(heard, Some(ConnectionError::TransportError(_))), "{heard:?}");
    assert_eq!(endpoint.handle.panics(), 1);
    assert_eq!(endpoint.connections(), 1, "the first one is forgotten");
}

/// Accepts each client, with these events.
struct AcceptsAll<B> {
    tls: Arc<rustls::ServerConfig>,
    begin: B,
}

impl<B: Fn(&Rc<Connection>) -> Rc<dyn Events> + Clone + 'static> Accepts for AcceptsAll<B> {
    fn admit(&self, _: &NewConnection) -> Admission {
        let (tls, begin) = (self.tls.clone(), self.begin.clone());
        Admission::Accept(Box::new(|_| Ok(tls)), Box::new(begin))
    }
}

/// Accepts each client. `events` makes the events of its connection.
fn accepts_all<E: Events + 'static>(
    tls: Arc<rustls::ServerConfig>,
    events: impl Fn(Rc<Connection>) -> E + Clone + 'static,
) -> Rc<dyn Accepts> {
    let begin = move |connection: &Rc<Connection>| -> Rc<dyn Events> {
        Rc::new(events(connection.clone()))
    };
    Rc::new(AcceptsAll { tls, begin })
}

/// Answers each request in a task of its own, after the endpoint's task has spent its budget. `early` counts the datagrams that
/// were sent between the request and its answer.
struct Answerer {
    handle: Handle,
    connection: Rc<Connection>,
    early: Rc<Cell<u64>>,
}

fn answers(
    handle: &Handle,
    tls: Arc<rustls::ServerConfig>,
    early: Rc<Cell<u64>>,
) -> Rc<dyn Accepts> {
    let handle = handle.clone();
    accepts_all(tls, move |connection| {
        let (handle, early) = (handle.clone(), early.clone());
        Answerer { handle, connection, early }
    })
}

impl Events for Answerer {
    fn opened(&self, dir: Dir) {
        spend(u32::MAX);
        let (connection, early) = (self.connection.clone(), self.early.clone());
        let id = connection.accept(dir).unwrap();
        let before = connection.stats().udp_tx.datagrams;
        self.handle.spawn(async move {
            early.update(|early| early + connection.stats().udp_tx.datagrams - before);
            connection.write(id, &mut [Bytes::from_static(b"!")]).unwrap();
        });
    }
}

#[test]
fn answers_leave_with_acknowledgements_when_a_turn_is_used_up() {
    let (tls, cert) = server_tls();
    let early = Rc::new(Cell::new(0));
    let seen = early.clone();
    let (answered, _) = serve(
        |handle| answers(handle, tls, seen),
        move |server, remote| {
            let mut clients = [(); 4].map(|()| Client::connect(server, Some(&cert)));
            let connected = |event| matches!(event, Event::Connected).then_some(());
            let all = clients.iter_mut().all(|client| client.wait_for(connected).is_some());
            assert!(all, "a client has no connection");
            // The loop is blocked until all requests are in its socket.
            let (stands, standing) = mpsc::channel();
            let (go, goes) = mpsc::channel();
            remote.post(Box::new(move |_| {
                stands.send(()).unwrap();
                goes.recv_timeout(LONG).unwrap();
            }));
            standing.recv_timeout(LONG).unwrap();
            clients.iter_mut().for_each(Client::send_request);
            go.send(()).unwrap();
            let answer =
                |event| matches!(event, Event::Stream(StreamEvent::Readable { .. })).then_some(());
            clients.iter_mut().all(|client| client.wait_for(answer).is_some())
        },
    );
    assert!(answered);
    assert_eq!(early.get(), 0, "a datagram has left before an answer that could be in it");
}

/// Whether the handshake is dropped, whether data may be a replay, and the protocol.
type TlsState = (bool, bool, &'static str);

/// Looks at the TLS state once a request comes.
struct Looker {
    connection: Rc<Connection>,
    seen: Rc<Cell<Option<TlsState>>>,
}

impl Events for Looker {
    fn opened(&self, _: Dir) {
        let dropped = self.connection.handshake_is_dropped();
        self.seen.set(self.connection.tls(|tls| (dropped, tls.is_early(), tls.protocol())));
        self.connection.close(0, b"");
    }
}

#[test]
fn a_complete_handshake_leaves_what_it_has_agreed_on_alone() {
    let (tls, cert) = server_tls();
    let seen = Rc::new(Cell::new(None));
    let looked = seen.clone();
    let (closed, _) = serve(
        |_| accepts_all(tls, move |connection| Looker { connection, seen: looked.clone() }),
        move |server, _| {
            let mut client = Client::connect(server, Some(&cert));
            let connected = |event| matches!(event, Event::Connected).then_some(());
            client.wait_for(connected).unwrap();
            client.send_request();
            let closed = |event| matches!(event, Event::ConnectionLost { .. }).then_some(());
            client.wait_for(closed)
        },
    );
    assert!(closed.is_some());
    assert_eq!(seen.get(), Some((true, false, "TLSv1.3")));
}

#[test]
fn versions_1_and_2_are_offered() {
    let (tls, _) = server_tls();
    let draft_29 = 0xff00_001d_u32.to_be_bytes();
    let (answer, _) = serve(
        |_| Rc::new(PanicsOnce { first: Cell::new(false), tls }),
        move |server, _| {
            let socket = UdpSocket::bind(LOOPBACK).unwrap();
            socket.set_read_timeout(Some(LONG)).unwrap();
            // Connection IDs of eight bytes, and the padding of an Initial packet.
            let mut packet = [&[0xc0][..], &draft_29, &[8], &[1; 8], &[8], &[2; 8]].concat();
            packet.resize(1200, 0);
            socket.send_to(&packet, server).unwrap();
            let mut room = [0; 2048];
            let n = socket.recv(&mut room).unwrap();
            room[..n].to_vec()
        },
    );
    assert_eq!(answer[1..5], [0; 4], "no version negotiation");
    let is_grease = |version: &[u8]| version.iter().all(|byte| byte & 0xf == 0xa);
    let offered: Vec<_> = answer[23..].chunks(4).filter(|version| !is_grease(version)).collect();
    assert_eq!(offered, [[0, 0, 0, 1], [0x6b, 0x33, 0x43, 0xcf]]);
}

/// Fills the congestion window, and closes the connection before the client acknowledges.
struct Flood {
    handle: Handle,
    connection: Rc<Connection>,
}

impl Events for Flood {
    fn opened(&self, dir: Dir) {
        let (connection, handle) = (self.connection.clone(), self.handle.clone());
        let id = connection.accept(dir).unwrap();
        self.handle.spawn(async move {
            let before = connection.stats().udp_tx.bytes;
            connection.write(id, &mut [Bytes::from(vec![b'!'; 60_000])]).unwrap();
            let is_full = |stats: quinn_proto::ConnectionStats| {
                let room = stats.path.cwnd.saturating_sub(stats.udp_tx.bytes - before);
                room <= u64::from(stats.path.current_mtu)
            };
            while !is_full(connection.stats()) {
                handle.sleep(Duration::from_millis(1)).await;
            }
            connection.close(7, b"over");
        });
    }
}

#[test]
fn a_close_leaves_though_the_window_is_full() {
    let (tls, cert) = server_tls();
    let (reason, _) = serve(
        |handle| {
            let handle = handle.clone();
            accepts_all(tls, move |connection| Flood { handle: handle.clone(), connection })
        },
        move |server, _| {
            let mut client = Client::connect(server, Some(&cert));
            let connected = |event| matches!(event, Event::Connected).then_some(());
            client.wait_for(connected).unwrap();
            client.send_request();
            // The client receives all datagrams before it sends an acknowledgement.
            let mut came = Vec::new();
            let mut room = [0; 2048];
            client.socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            while let Ok(n) = client.socket.recv(&mut room) {
                came.push(BytesMut::from(&room[..n]));
            }
            came.into_iter().find_map(|bytes| {
                let (now, mut out) = (Instant::now(), Vec::new());
                let event = client.endpoint.handle(now, server, None, None, bytes, &mut out);
                if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                    client.connection.handle_event(event);
                }
                std::iter::from_fn(|| client.connection.poll()).find_map(|event| match event {
                    Event::ConnectionLost { reason } => Some(reason),
                    _ => None,
                })
            })
        },
    );
    let Some(ConnectionError::ApplicationClosed(close)) = reason else { panic!("{reason:?}") };
    assert_eq!((close.error_code.into_inner(), &close.reason[..]), (7, &b"over"[..]));
}

/// Sends an answer that fits the initial congestion window.
struct Fit(Rc<Connection>);

/// The length of the answer.
const FITS: usize = 11_000;

impl Events for Fit {
    fn opened(&self, dir: Dir) {
        let id = self.0.accept(dir).unwrap();
        self.0.write(id, &mut [Bytes::from(vec![b'!'; FITS])]).unwrap();
    }
}

/// The probe of path MTU discovery is longer than the client's buffer, so it is never acknowledged.
#[test]
fn a_probe_for_longer_datagrams_leaves_room_for_an_answer() {
    let (tls, cert) = server_tls();
    let (received, _) = serve(
        |_| accepts_all(tls, Fit),
        move |server, _| {
            let mut client = Client::connect(server, Some(&cert));
            client.wait_for(|event| matches!(event, Event::Connected).then_some(())).unwrap();
            let mut room = [0; 2048];
            client.socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            // The probe comes once nothing else is to be sent.
            while client.socket.recv(&mut room).is_ok_and(|n| n < room.len()) {}
            client.send_request();
            // From now on the client acknowledges nothing.
            let mut received = 0;
            while received < FITS {
                let Ok(n) = client.socket.recv(&mut room) else { break };
                received += n;
            }
            received
        },
    );
    assert!(received >= FITS, "{received} bytes of {FITS}");
}

/// Would accept each client once its ClientHello is whole. Tells whether there were many already.
struct Later(mpsc::Sender<bool>);

impl Accepts for Later {
    fn admit(&self, new: &NewConnection) -> Admission {
        self.0.send(new.crowded).unwrap();
        let never = |_| -> Pin<Box<dyn Future<Output = ChosenConfig>>> { Box::pin(pending()) };
        let begin = |_: &Rc<Connection>| -> Rc<dyn Events> { unreachable!() };
        Admission::AcceptLater(Box::new(never), Box::new(begin))
    }
}

/// A client whose ClientHello takes several datagrams.
fn talkative(server: SocketAddr) -> Client {
    let mut tls = client_tls(None);
    tls.alpn_protocols = (0..100).map(|n| format!("{n:0>40}").into_bytes()).collect();
    let tls = QuicClientConfig::try_from(tls).unwrap();
    Client::silent(server, ClientConfig::new(Arc::new(tls)))
}

#[test]
fn attempts_that_wait_are_counted() {
    for whole in [false, true] {
        let (tell, told) = mpsc::channel();
        let (crowded, endpoint) = serve(
            |_| Rc::new(Later(tell)),
            move |server, _| {
                [(); 3].map(|()| {
                    let mut out = Vec::new();
                    let mut client = talkative(server);
                    let first = client.connection.poll_transmit(Instant::now(), 1, &mut out);
                    client.socket.send_to(&out[..first.unwrap().size], server).unwrap();
                    if whole {
                        client.send_all();
                    }
                    told.recv_timeout(LONG).unwrap()
                })
            },
        );
        // A quarter of eight.
        assert_eq!(crowded, [false, false, true]);
        assert_eq!(endpoint.connections(), 0);
    }
}
