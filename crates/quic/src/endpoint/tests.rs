//! An endpoint on a real loop and a real socket, and clients that only begin.

use std::net::UdpSocket;
use std::time::Duration;

use bytes::BytesMut;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, ConnectionError, DatagramEvent, Event};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ConfigBuilder, RootCertStore, WantsVerifier, WantsVersions};
use weir_engine::{Driver, ListenerKey, Loop, Options};

use super::*;
use crate::Place;

const LOOPBACK: &str = "127.0.0.1:0";
/// A server that says nothing for so long says nothing.
const LONG: Duration = Duration::from_secs(10);

struct Nothing;

impl Driver for Nothing {
    fn before_wait(&mut self, _: &Handle, _: Instant) -> Option<Duration> {
        None
    }

    fn acceptable(&mut self, _: &Handle, _: ListenerKey) {}
}

/// Takes all clients, and panics once the handshake with the first one goes on.
struct PanicsOnce {
    first: Cell<bool>,
    tls: Arc<rustls::ServerConfig>,
}

struct Hears {
    panics: bool,
}

impl Events for Hears {
    fn negotiated(&self) {
        assert!(!self.panics, "on purpose");
    }
}

impl Accepts for PanicsOnce {
    fn admit(&self, _: &NewConnection) -> Admission {
        let (panics, tls) = (self.first.replace(false), self.tls.clone());
        Admission::Accept(Box::new(|_| Ok(tls)), Box::new(move |_| Rc::new(Hears { panics })))
    }
}

fn builder_of<S: rustls::ConfigSide>(
    make: impl FnOnce(Arc<CryptoProvider>) -> ConfigBuilder<S, WantsVersions>,
) -> ConfigBuilder<S, WantsVerifier> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    make(provider).with_protocol_versions(&[&rustls::version::TLS13]).unwrap()
}

fn server_tls() -> Arc<rustls::ServerConfig> {
    let own = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()).into();
    let builder = builder_of(rustls::ServerConfig::builder_with_provider).with_no_client_auth();
    Arc::new(builder.with_single_cert(vec![own.cert.der().clone()], key).unwrap())
}

/// A client that trusts no server, and says what it is told.
struct Client {
    endpoint: quinn_proto::Endpoint,
    connection: quinn_proto::Connection,
    socket: UdpSocket,
    server: SocketAddr,
}

impl Client {
    fn begins(server: SocketAddr) -> Client {
        let tls = builder_of(rustls::ClientConfig::builder_with_provider);
        let tls = tls.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        let mut endpoint = quinn_proto::Endpoint::new(Arc::default(), None, true, None);
        let (_, connection) = endpoint.connect(Instant::now(), config, server, "h").unwrap();
        let socket = UdpSocket::bind(LOOPBACK).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        let mut client = Client { endpoint, connection, socket, server };
        client.speaks();
        client
    }

    fn speaks(&mut self) {
        let mut out = Vec::new();
        while let Some(transmit) = self.connection.poll_transmit(Instant::now(), 1, &mut out) {
            self.socket.send_to(&out[..transmit.size], self.server).unwrap();
            out.clear();
        }
    }

    /// Why it has no connection; none if the server is silent.
    fn refuses(&mut self) -> Option<ConnectionError> {
        let (mut room, mut out) = ([0; 2048], Vec::new());
        loop {
            let n = self.socket.recv(&mut room).ok()?;
            let (now, bytes) = (Instant::now(), BytesMut::from(&room[..n]));
            let event = self.endpoint.handle(now, self.server, None, None, bytes, &mut out);
            if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                self.connection.handle_event(event);
            }
            while let Some(event) = self.connection.poll() {
                if let Event::ConnectionLost { reason } = event {
                    return Some(reason);
                }
            }
            self.speaks();
        }
    }
}

#[test]
fn a_panic_ends_one_connection_and_no_other() {
    let mut event_loop = Loop::new(&Options::default()).unwrap();
    let handle = event_loop.handle();
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    let server = socket.local_addr().unwrap();
    let settings = EndpointSettings {
        place: Place::default(),
        loops: 1,
        host_key: HostKey::new(b"secret"),
        idle_timeout: Duration::from_secs(60),
        streams: 1,
        stream_window: 1024,
        gso: false,
        congestion: Congestion::Cubic,
        longest: 1472,
        connections: 8,
    };
    let endpoint = Endpoint::new(&handle, &Arc::new(socket.into()), settings).unwrap();
    endpoint.start(Rc::new(PanicsOnce { first: Cell::new(true), tls: server_tls() }));
    let remote = handle.remote();
    let clients = std::thread::spawn(move || {
        let _first = Client::begins(server);
        let heard = Client::begins(server).refuses();
        remote.post(Box::new(|h| h.stop()));
        heard
    });
    event_loop.run(&mut Nothing).unwrap();
    let heard = clients.join().unwrap();
    assert!(matches!(heard, Some(ConnectionError::TransportError(_))), "{heard:?}");
    assert_eq!(handle.panics(), 1);
    assert_eq!(endpoint.connections(), 1, "the first one is forgotten");
}
