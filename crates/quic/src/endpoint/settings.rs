//! Settings of an endpoint, and quinn's configuration made of them.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::{hkdf, hmac, rand};
use quinn_proto::congestion::{BbrConfig, ControllerFactory, CubicConfig};
use quinn_proto::{MtuDiscoveryConfig, ServerConfig, TimeSource, TransportConfig, VarInt};
use weir_tls::quic::InitialLimits;

use crate::congestion::ReleasableFactory;
use crate::crypto::{Initial, OneSession};
use crate::ids::{Place, Steering};
use crate::links::Links;

/// The limit of the client's unidirectional streams.
const UNI_STREAMS: u64 = 16;
/// The ratio of a connection's flow-control window to a stream's.
const STREAMS_AT_ONCE: u64 = 16;
/// The initial and least send window: see [`Connection::adjust_send_window`].
pub(super) const SEND_WINDOW: u64 = 256 << 10;
/// The most connection attempts that are neither accepted nor refused yet.
const MOST_INCOMING: usize = 4096;
/// Bytes of packets that are buffered for a connection attempt.
const INCOMING: u64 = 64 * 1024;

/// The secret that connection IDs, tokens and stateless resets are derived from. All workers share it, and reloads keep it.
#[derive(Clone)]
pub struct HostKey([u8; 32]);

impl HostKey {
    /// Derives the key from a file's bytes, whatever their length.
    pub fn new(bytes: &[u8]) -> HostKey {
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
        HostKey(hash.as_ref().first_chunk().copied().unwrap_or_default())
    }

    /// A random key.
    ///
    /// # Errors
    ///
    /// The system gives no randomness.
    pub fn random() -> io::Result<HostKey> {
        let mut key = [0; 32];
        rand::fill(&mut key).map_err(|_| io::Error::other("no randomness"))?;
        Ok(HostKey(key))
    }

    /// The key's bytes, for another process.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// The parameters by which the kernel finds the loop of a connection ID, for this number of loops.
    pub fn steering(&self, loops: usize) -> Steering {
        Steering::new(&self.derive(b"steering"), u16::try_from(loops).unwrap_or(u16::MAX))
    }

    /// Derives a secret for one purpose.
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

/// The congestion controller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Congestion {
    /// CUBIC, which reacts to loss: RFC 9438.
    #[default]
    Cubic,
    /// BBR, which measures the path's bandwidth and round-trip time.
    Bbr,
}

/// The settings of an endpoint, for all its connections.
#[derive(Clone, Debug)]
pub struct EndpointSettings {
    /// The loop's place.
    pub place: Place,
    /// How many loops the server has.
    pub loops: usize,
    /// The secret of connection IDs, tokens and stateless resets.
    pub host_key: HostKey,
    /// The max_idle_timeout.
    pub idle_timeout: Duration,
    /// The limit of the client's bidirectional streams at a time.
    pub streams: u64,
    /// The flow-control window of a stream, in bytes.
    pub stream_window: u64,
    /// Sends many datagrams with one call, where the kernel supports UDP_SEGMENT.
    pub gso: bool,
    /// The congestion controller of all connections.
    pub congestion: Congestion,
    /// The limit of connections at a time, handshakes included.
    pub connections: usize,
}

impl EndpointSettings {
    /// The limits that 0-RTT data of a later connection must keep (RFC 9000, section 7.4.1).
    pub(super) const fn limits(&self) -> InitialLimits {
        InitialLimits { streams: self.streams, window: self.stream_window }
    }

    /// The flow-control window of a connection, in bytes.
    pub(super) const fn window(&self) -> u64 {
        self.stream_window.saturating_mul(STREAMS_AT_ONCE)
    }
}

/// The loop's wall clock, for the times in tokens.
struct WallClock;

impl TimeSource for WallClock {
    fn now(&self) -> SystemTime {
        weir_engine::system_time()
    }
}

/// quinn's transport configuration for each datagram size of [`Links`].
pub(super) struct Transports(BTreeMap<u16, Arc<TransportConfig>>);

impl Transports {
    pub(super) fn new(settings: &EndpointSettings) -> Transports {
        let lengths = Links::of_this_machine().lengths();
        Transports(lengths.into_iter().map(|n| (n, Arc::new(transport(settings, n)))).collect())
    }

    /// The configuration for a client's connections.
    pub(super) fn to(&self, client: SocketAddr) -> Option<&Arc<TransportConfig>> {
        self.0.get(&Links::of_this_machine().longest_to(client))
    }
}

/// The initial congestion window of ordinary paths: ten datagrams of 1,200 bytes.
const LEAST_WINDOW: u64 = 12_000;

/// `longest` is the upper bound of path MTU discovery.
fn transport(settings: &EndpointSettings, longest: u16) -> TransportConfig {
    let mut transport = TransportConfig::default();
    let varint = |n: u64| VarInt::from_u64(n).unwrap_or(VarInt::MAX);
    let idle = settings.idle_timeout.try_into().ok();
    transport.max_idle_timeout(idle);
    transport.max_concurrent_bidi_streams(varint(settings.streams));
    // HTTP/3 needs three: the control stream and two of QPACK. The others are for streams of reserved types.
    transport.max_concurrent_uni_streams(varint(UNI_STREAMS));
    transport.stream_receive_window(varint(settings.stream_window));
    transport.receive_window(varint(settings.window()));
    transport.send_window(SEND_WINDOW);
    // A probe of path MTU discovery is in flight like data. It must leave room for data, so the initial window has two datagrams of
    // the longest size at least (RFC 9002, section 7.2).
    let window = LEAST_WINDOW.max(2 * u64::from(longest));
    let mut cubic = CubicConfig::default();
    cubic.initial_window(window);
    let controller: Arc<dyn ControllerFactory + Send + Sync> = match settings.congestion {
        Congestion::Cubic => Arc::new(cubic),
        // Its window has room for 200 datagrams.
        Congestion::Bbr => Arc::new(BbrConfig::default()),
    };
    transport.congestion_controller_factory(Arc::new(ReleasableFactory(controller)));
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
