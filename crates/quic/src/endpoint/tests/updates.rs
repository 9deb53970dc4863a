//! The first change of keys.

use std::sync::Mutex;

use quinn_proto::TransportConfig;
use quinn_proto::crypto::{self, CryptoError, PacketKey};

use super::versions::ClientTls;
use super::*;
use crate::keys::VersionKey;

/// More than quinn sends before its first change, and fewer than this server does.
const DOWNLOAD: usize = 1_800_000;
const LEAST_PACKETS: u64 = 1_001;

/// The changes of the Key Phase bit that a client has seen: the side that sent the packet, and the bit.
type Changes = Arc<Mutex<Vec<(Side, bool)>>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// A client's key that records changes of the bit.
struct PhaseKey {
    key: VersionKey,
    changes: Changes,
}

impl PhaseKey {
    fn record(&self, side: Side, first: u8) {
        let (is_short, bit) = (first & 0x80 == 0, first & 0x04 != 0);
        let mut changes = self.changes.lock().unwrap();
        let before = changes.iter().rev().find(|(of, _)| *of == side).is_some_and(|(_, bit)| *bit);
        if is_short && bit != before {
            changes.push((side, bit));
        }
    }
}

impl PacketKey for PhaseKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        self.record(Side::Client, buf[0]);
        self.key.encrypt(packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.key.decrypt(packet, header, payload)?;
        self.record(Side::Server, header[0]);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}

/// Answers each request with [`DOWNLOAD`] bytes.
struct Download {
    handle: Handle,
    connection: Rc<Connection>,
}

fn downloads(tls: Arc<rustls::ServerConfig>) -> impl FnOnce(&Handle) -> Rc<dyn Accepts> {
    |handle| {
        let handle = handle.clone();
        accepts_all(tls, move |connection| Download { handle: handle.clone(), connection })
    }
}

impl Events for Download {
    fn opened(&self, dir: Dir) {
        let (connection, handle) = (self.connection.clone(), self.handle.clone());
        let id = connection.accept(dir).unwrap();
        self.handle.spawn(async move {
            let mut rest = [Bytes::from(vec![b'!'; DOWNLOAD])];
            while !rest[0].is_empty() {
                if connection.write(id, &mut rest).unwrap() == 0 {
                    handle.sleep(Duration::from_millis(1)).await;
                }
            }
        });
    }
}

impl Client {
    /// Receives until `more` further datagrams came.
    fn receive(&mut self, more: u64) {
        let until = self.connection.stats().udp_rx.datagrams + more;
        while self.connection.stats().udp_rx.datagrams < until {
            self.receive_one().expect("the server is silent");
        }
    }
}

/// A client takes a whole download without reading it.
fn config(tls: Arc<dyn crypto::ClientConfig>) -> ClientConfig {
    let mut config = ClientConfig::new(tls);
    let mut transport = TransportConfig::default();
    transport.stream_receive_window((2 * DOWNLOAD as u32).into());
    config.transport_config(Arc::new(transport));
    config
}

/// A client of a new connection, whose packets are recorded.
fn client(server: SocketAddr, cert: &CertificateDer<'static>, changes: &Changes) -> Client {
    let changes = changes.clone();
    let wrap = move |key, _| -> Box<dyn PacketKey> {
        Box::new(PhaseKey { key, changes: changes.clone() })
    };
    let (tls, wrap) = (Arc::new(client_tls(Some(cert))), Arc::new(wrap));
    let tls = ClientTls { tls, version: Version::One, more: Vec::new(), wrap };
    let mut client = Client::of(server, config(Arc::new(tls)));
    client.wait_for(|event| matches!(event, Event::Connected).then_some(())).unwrap();
    client
}

#[test]
fn keys_change_with_the_client_and_not_before() {
    let (tls, cert) = server_tls();
    let download = move |server: SocketAddr, _: &Remote| {
        // The client, too, draws when it changes its keys, and may do so before it is told. Not four times in a row.
        [(); 4].map(|()| {
            let changes = Changes::default();
            let mut client = client(server, &cert, &changes);
            client.send_request();
            client.receive(LEAST_PACKETS);
            client.connection.force_key_update();
            client.connection.ping();
            client.send_all();
            while !changes.lock().unwrap().iter().any(|(side, _)| *side == Side::Server) {
                client.receive_one().expect("the server does not follow");
            }
            client.connection.close(Instant::now(), 0u8.into(), Bytes::new());
            client.send_all();
            let changes = changes.lock().unwrap();
            changes.iter().copied().take(2).collect::<Vec<_>>()
        })
    };
    let (seen, _) = serve(downloads(tls), download);
    for changes in seen {
        assert_eq!(changes, [(Side::Client, true), (Side::Server, true)]);
    }
}

#[test]
fn a_client_with_0_rtt_is_understood_after_a_change_of_keys() {
    let (tls, cert) = server_tls();
    let mut tls = Arc::unwrap_or_clone(tls);
    tls.max_early_data_size = u32::MAX;
    let tls = Arc::new(tls);
    let download = move |server: SocketAddr, _: &Remote| {
        let mut tls = client_tls(Some(&cert));
        tls.enable_early_data = true;
        let tls = Arc::new(QuicClientConfig::try_from(tls).unwrap());
        let connect = || Client::silent(server, config(tls.clone()));
        let mut first = connect();
        first.send_all();
        first.wait_for(|event| matches!(event, Event::Connected).then_some(())).unwrap();
        // The server's tickets come with what it sends next.
        first.send_request();
        first.receive(100);
        let mut client = connect();
        assert!(client.connection.has_0rtt());
        client.send_request();
        client.receive(LEAST_PACKETS);
        // The server drops old keys after three probe timeouts without a packet.
        client.socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        while client.receive_one().is_some() {}
        client.socket.set_read_timeout(Some(LONG)).unwrap();
        client.connection.ping();
        client.send_all();
        client.receive_one()
    };
    let (answer, _) = serve(downloads(tls), download);
    assert!(answer.is_some(), "the server has dropped the client's packet");
}
