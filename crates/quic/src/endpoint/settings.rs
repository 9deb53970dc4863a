//! What holds for all connections of an endpoint.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::{hkdf, hmac, rand};
use quinn_proto::congestion::{BbrConfig, ControllerFactory, CubicConfig};
use quinn_proto::{MtuDiscoveryConfig, ServerConfig, TimeSource, TransportConfig, VarInt};
use weir_tls::quic::InitialLimits;

use crate::congestion::Releasable;
use crate::crypto::{Initial, OneSession};
use crate::ids::{Place, Steering};
use crate::links::Links;

/// Streams of the client's that carry no request.
const UNI_STREAMS: u64 = 16;
/// A connection's window is that of so many streams.
const STREAMS_AT_ONCE: u64 = 16;
/// What a connection takes at first to be sent; it grows with what the path holds: see [`Connection::grow_window`].
pub(super) const SEND_WINDOW: u64 = 256 << 10;
/// Handshakes that have just begun.
const MOST_INCOMING: usize = 4096;
/// Early packets of one of them that are kept.
const INCOMING: u64 = 64 * 1024;

/// A secret that all workers of a server share, and keep over reloads: what ids, tokens and resets are made with.
#[derive(Clone)]
pub struct HostKey([u8; 32]);

impl HostKey {
    /// From a file's bytes, whatever their length.
    pub fn new(bytes: &[u8]) -> HostKey {
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
        HostKey(hash.as_ref().first_chunk().copied().unwrap_or_default())
    }

    /// One that nobody knows.
    ///
    /// # Errors
    ///
    /// The system gives no randomness.
    pub fn random() -> io::Result<HostKey> {
        let mut key = [0; 32];
        rand::fill(&mut key).map_err(|_| io::Error::other("no randomness"))?;
        Ok(HostKey(key))
    }

    /// It, for another process.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// How the kernel finds the loop of an id among so many.
    pub fn steering(&self, loops: usize) -> Steering {
        Steering::new(&self.derive(b"steering"), u16::try_from(loops).unwrap_or(u16::MAX))
    }

    /// A secret for one purpose.
    pub(super) fn derive<const N: usize>(&self, purpose: &[u8]) -> [u8; N] {
        let key = hmac::Key::new(hmac::HMAC_SHA512, &self.0);
        let tag = hmac::sign(&key, purpose);
        let mut out = [0; N];
        for (to, from) in out.iter_mut().zip(tag.as_ref()) {
            *to = *from;
        }
        out
    }
}

impl From<[u8; 32]> for HostKey {
    fn from(bytes: [u8; 32]) -> HostKey {
        HostKey(bytes)
    }
}

impl std::fmt::Debug for HostKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostKey")
    }
}

/// What decides how fast a connection sends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Congestion {
    /// Loss says that the path is full. RFC 9438.
    #[default]
    Cubic,
    /// The path's rate and round-trip time are measured.
    Bbr,
}

/// What holds for all connections of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointSettings {
    /// The loop's place.
    pub place: Place,
    /// How many loops the server has.
    pub loops: usize,
    /// What tokens and ids are made with.
    pub host_key: HostKey,
    /// A connection that is silent for so long is closed.
    pub idle_timeout: Duration,
    /// Streams for requests at once.
    pub streams: u64,
    /// What a client may send on a stream before it is read.
    pub stream_window: u64,
    /// Sends many datagrams with one call, where the kernel can.
    pub gso: bool,
    /// What decides how fast connections send.
    pub congestion: Congestion,
    /// Connections at once, and handshakes among them.
    pub connections: usize,
}

impl EndpointSettings {
    /// What a client may do before it knows the limits of its connection: those of its last one.
    pub(super) const fn limits(&self) -> InitialLimits {
        InitialLimits { streams: self.streams, window: self.stream_window }
    }

    /// What a client may send on a connection before it is read.
    pub(super) const fn window(&self) -> u64 {
        self.stream_window.saturating_mul(STREAMS_AT_ONCE)
    }
}

/// The clock that the times of tokens are of.
struct WallClock;

impl TimeSource for WallClock {
    fn now(&self) -> SystemTime {
        weir_engine::system_time()
    }
}

/// What is said and kept of a connection, for each length that [`Links`] gives.
pub(super) struct Transports(BTreeMap<u16, Arc<TransportConfig>>);

impl Transports {
    pub(super) fn new(settings: &EndpointSettings) -> Transports {
        let lengths = Links::of_this_machine().lengths();
        Transports(lengths.into_iter().map(|n| (n, Arc::new(transport(settings, n)))).collect())
    }

    /// That of connections of this client.
    pub(super) fn to(&self, client: SocketAddr) -> Option<&Arc<TransportConfig>> {
        self.0.get(&Links::of_this_machine().longest_to(client))
    }
}

/// `longest`: the longest datagrams that are tried.
fn transport(settings: &EndpointSettings, longest: u16) -> TransportConfig {
    let mut transport = TransportConfig::default();
    let varint = |n: u64| VarInt::from_u64(n).unwrap_or(VarInt::MAX);
    let idle = settings.idle_timeout.try_into().ok();
    transport.max_idle_timeout(idle);
    transport.max_concurrent_bidi_streams(varint(settings.streams));
    // Control, and the two of QPACK; some more for those that mean nothing.
    transport.max_concurrent_uni_streams(varint(UNI_STREAMS));
    transport.stream_receive_window(varint(settings.stream_window));
    transport.receive_window(varint(settings.window()));
    transport.send_window(SEND_WINDOW);
    let controller: Arc<dyn ControllerFactory + Send + Sync> = match settings.congestion {
        Congestion::Cubic => Arc::new(CubicConfig::default()),
        Congestion::Bbr => Arc::new(BbrConfig::default()),
    };
    transport.congestion_controller_factory(Arc::new(Releasable(controller)));
    transport.datagram_receive_buffer_size(None);
    transport.enable_segmentation_offload(settings.gso);
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(longest);
    transport.mtu_discovery_config(Some(discovery));
    transport
}

pub(super) fn server_config(settings: &EndpointSettings, initial: &Initial) -> ServerConfig {
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]);
    let tokens = salt.extract(&settings.host_key.derive::<64>(b"tokens"));
    let mut config = ServerConfig::new(OneSession::none(initial.clone()), Arc::new(tokens));
    config.time_source(Arc::new(WallClock));
    config.max_incoming(settings.connections.clamp(1, MOST_INCOMING));
    config.incoming_buffer_size(INCOMING).incoming_buffer_size_total(INCOMING * 256);
    config
}
