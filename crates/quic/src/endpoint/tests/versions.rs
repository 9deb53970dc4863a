//! Clients of version 2, and clients of version 1 that prefer version 2.

use std::any::Any;

use quinn_proto::crypto::{
    self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{
    ConnectError, ConnectionError, ConnectionId, Side, TransportError, TransportErrorCode,
};
use rustls::pki_types::ServerName;
use rustls::quic::{self, ClientConnection, DirectionalKeys, KeyChange, Secrets};

use super::*;
use crate::keys::VersionKey;
use crate::packet::for_quinn;
use crate::version::LongKind;

/// A client's TLS for one version; quinn's own knows version 1 alone.
pub struct ClientTls {
    pub tls: Arc<rustls::ClientConfig>,
    pub version: Version,
    /// Transport parameters in addition to quinn's.
    pub more: Vec<u8>,
    /// Makes a packet key of one that is for sent or received packets.
    pub wrap: WrapKey,
}

/// The key, and whether it is for sent packets.
pub type WrapKey = Arc<dyn Fn(VersionKey, bool) -> Box<dyn PacketKey> + Send + Sync>;

struct ClientSession {
    connection: ClientConnection,
    version: Version,
    wrap: WrapKey,
    next: Option<Secrets>,
    told: bool,
}

fn initial(id: &ConnectionId, version: Version) -> quic::Keys {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let mut suites = provider.cipher_suites.iter().filter_map(|suite| suite.tls13());
    let aes_128 = rustls::CipherSuite::TLS13_AES_128_GCM_SHA256;
    let suite = suites.find(|suite| suite.common.suite == aes_128).unwrap();
    suite.quic_suite().unwrap().keys(id, rustls::Side::Client, version.tls())
}

fn unwrapped() -> WrapKey {
    Arc::new(|key, _| Box::new(key))
}

fn keys(keys: quic::Keys, version: Version, wrap: &WrapKey) -> Keys {
    let split = |keys: DirectionalKeys, sends| -> (Box<dyn HeaderKey>, Box<dyn PacketKey>) {
        (Box::new(keys.header), wrap(VersionKey::new(keys.packet, version), sends))
    };
    let (local, remote) = (split(keys.local, true), split(keys.remote, false));
    Keys {
        header: KeyPair { local: local.0, remote: remote.0 },
        packet: KeyPair { local: local.1, remote: remote.1 },
    }
}

impl crypto::ClientConfig for ClientTls {
    fn start_session(
        self: Arc<Self>,
        _: u32,
        server: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let mut bytes = Vec::new();
        parameters.write(&mut bytes);
        bytes.extend_from_slice(&self.more);
        let name = ServerName::try_from(server.to_owned()).unwrap();
        let (tls, version, wrap) = (self.tls.clone(), self.version, self.wrap.clone());
        let connection = ClientConnection::new(tls, version.tls(), name, bytes).unwrap();
        Ok(Box::new(ClientSession { connection, version, wrap, next: None, told: false }))
    }
}

impl Session for ClientSession {
    fn initial_keys(&self, id: &ConnectionId, _: Side) -> Keys {
        keys(initial(id, self.version), self.version, &self.wrap)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        Some(false)
    }

    fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.connection.read_hs(bytes).unwrap();
        let open = self.connection.quic_transport_parameters().is_some();
        Ok(open && !std::mem::replace(&mut self.told, open))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let bytes = self.connection.quic_transport_parameters();
        let read = |mut bytes| TransportParameters::read(Side::Client, &mut bytes).unwrap();
        Ok(bytes.map(read))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        Some(match self.connection.write_hs(out)? {
            KeyChange::Handshake { keys: changed } => keys(changed, self.version, &self.wrap),
            KeyChange::OneRtt { keys: changed, next } => {
                self.next = Some(next);
                keys(changed, self.version, &self.wrap)
            }
        })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let next = self.next.as_mut()?.next_packet_keys();
        let key = |key, sends| (self.wrap)(VersionKey::new(key, self.version), sends);
        Some(KeyPair { local: key(next.local, true), remote: key(next.remote, false) })
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        false
    }

    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}

fn client_of(version: Version, more: &[u8], cert: &CertificateDer<'static>) -> ClientConfig {
    let tls = Arc::new(client_tls(Some(cert)));
    let tls = ClientTls { tls, version, more: more.to_vec(), wrap: unwrapped() };
    let mut config = ClientConfig::new(Arc::new(tls));
    config.version(version.number());
    config
}

#[test]
fn a_client_of_version_2_gets_its_answer() {
    let (tls, cert) = server_tls();
    let (answered, _) = serve(
        |handle| answers(handle, tls, Rc::default()),
        move |server, _| {
            let mut client = Client::of(server, client_of(Version::Two, &[], &cert));
            client.wait_for(|event| matches!(event, Event::Connected).then_some(())).unwrap();
            client.send_request();
            client.wait_for(|event| {
                matches!(event, Event::Stream(StreamEvent::Readable { .. })).then_some(())
            })
        },
    );
    assert!(answered.is_some());
}

/// `version_information` with these versions: the chosen one, then the available ones.
fn list(versions: &[u32]) -> Vec<u8> {
    let numbers: Vec<u8> = versions.iter().flat_map(|number| number.to_be_bytes()).collect();
    [&[0x11, numbers.len() as u8][..], &numbers].concat()
}

/// Reads a server's long header: the offset of the packet number, and the length of the packet. There is no token, and the length
/// field has two bytes.
fn measure(packet: &[u8], kind: LongKind) -> (usize, usize) {
    let ids = 5 + 1 + usize::from(packet[5]);
    let token = usize::from(kind == LongKind::Initial);
    let length = ids + 1 + usize::from(packet[ids]) + token;
    let number = length + 2;
    (number, number + usize::from(u16::from_be_bytes([packet[length] & 0x3f, packet[length + 1]])))
}

/// The versions and types of the packets in a server's first datagram, and whether the Initial keys of its version decrypt the
/// first packet.
fn look_into(datagram: &[u8], id: &ConnectionId) -> (Vec<(Version, LongKind)>, bool) {
    let (mut packets, mut rest) = (Vec::new(), datagram);
    while let Some(version) = Version::of_packet(rest) {
        let kind = version.kind(rest[0]);
        packets.push((version, kind));
        rest = &rest[measure(rest, kind).1..];
    }
    let (version, kind) = packets[0];
    let mut packet = for_quinn(datagram);
    let (number, end) = measure(&packet, kind);
    packet.truncate(end);
    let keys = keys(initial(id, version), version, &unwrapped());
    keys.header.remote.decrypt(number, &mut packet);
    let mut payload = packet.split_off(number + usize::from(packet[0] & 3) + 1);
    (packets, keys.packet.remote.decrypt(0, &packet, &mut payload).is_ok())
}

/// The same for the answer to a client of version 1 that adds these transport parameters.
fn first_answer(more: Vec<u8>) -> (Vec<(Version, LongKind)>, bool) {
    let (tls, cert) = server_tls();
    let ((sent, came), _) = serve(
        |handle| answers(handle, tls, Rc::default()),
        move |server, _| {
            let relay = UdpSocket::bind(LOOPBACK).unwrap();
            relay.set_read_timeout(Some(LONG)).unwrap();
            let config = client_of(Version::One, &more, &cert);
            let _client = Client::of(relay.local_addr().unwrap(), config);
            let receive = || {
                let mut room = [0; 2048];
                let n = relay.recv(&mut room).unwrap();
                room[..n].to_vec()
            };
            let sent = receive();
            relay.send_to(&sent, server).unwrap();
            (sent, receive())
        },
    );
    look_into(&came, &ConnectionId::new(&sent[6..6 + usize::from(sent[5])]))
}

#[test]
fn the_first_version_that_a_client_lists_is_spoken_if_it_is_known() {
    let (one, two, other) = (1, 0x6b33_43cf, 0x1a2a_3a4a);
    for (more, version) in [
        (Vec::new(), Version::One),
        (list(&[one, one]), Version::One),
        (list(&[one, two, one]), Version::Two),
        (list(&[one, other, two, one]), Version::Two),
        (list(&[one, one, two]), Version::One),
        (list(&[one, other, one]), Version::One),
    ] {
        let (packets, opens) = first_answer(more.clone());
        assert_eq!(packets[0], (version, LongKind::Initial), "{more:?}");
        assert_eq!(packets[1], (version, LongKind::Handshake), "{more:?}");
        assert!(opens, "{more:?}: the keys are others");
    }
}

/// RFC 9368, section 4: a list that cannot be read, and one that names another version than that of the connection.
#[test]
fn a_list_of_versions_that_is_wrong_ends_the_handshake() {
    let (one, two) = (1, 0x6b33_43cf);
    let (malformed, other) = (TransportErrorCode::TRANSPORT_PARAMETER_ERROR.into(), 0x11);
    for (more, code) in [
        (list(&[two, two, one]), other),
        (list(&[one, 0]), malformed),
        (list(&[0]), malformed),
        (list(&[one]), malformed),
        (list(&[one, two]), malformed),
        (vec![0x11, 3, 0, 0, 1], malformed),
        (vec![0x11, 0], malformed),
    ] {
        let (packets, opens) = first_answer(more.clone());
        assert_eq!(packets, [(Version::One, LongKind::Initial)], "{more:?}");
        assert!(opens);
        assert_eq!(refusal(more.clone()), Some(code), "{more:?}");
    }
}

/// The code of the error that ends the handshake of a client of version 1 with these transport parameters.
fn refusal(more: Vec<u8>) -> Option<u64> {
    let (tls, cert) = server_tls();
    let (code, _) = serve(
        |handle| answers(handle, tls, Rc::default()),
        move |server, _| {
            let mut client = Client::of(server, client_of(Version::One, &more, &cert));
            client.wait_for(|event| match event {
                Event::ConnectionLost { reason: ConnectionError::ConnectionClosed(close) } => {
                    Some(close.error_code.into())
                }
                _ => None,
            })
        },
    );
    code
}
