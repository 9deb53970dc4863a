//! TLS sessions for `quinn-proto`. A session begins without a TLS configuration, and chooses one by the ClientHello.

use std::any::Any;
use std::fmt;
use std::io::Cursor;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quinn_proto::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
    UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use weir_tls::quic::{
    CompleteHandshake, FirstMessage, HelloReader, InitialLimits, InitialSuite, KeyChange,
    PacketKeySet, QuicAlert, QuicHandshake, Secrets, alert,
};
use weir_tls::{Hello, Negotiated};

use crate::keys::{self, Agreed, VersionKey};
use crate::paths::{PathValidation, WatchedKey};
use crate::updates::SecondKey;
use crate::version::{Agreement, Version};

/// The TLS configuration for a client.
pub type ChosenConfig = Result<Arc<weir_tls::ServerConfig>, QuicAlert>;
/// Chooses the TLS configuration by the ClientHello.
pub type Chooser = Box<dyn FnOnce(Hello) -> ChosenConfig + Send>;
/// Chooses the TLS configuration by the ClientHello. It may wait, for certificates to be loaded.
pub type AsyncChooser = Box<dyn FnOnce(Hello) -> Pin<Box<dyn Future<Output = ChosenConfig>>>>;

/// The state that all sessions of an endpoint begin with. It needs no certificate.
#[derive(Clone)]
pub struct Initial {
    suite: InitialSuite,
    limits: InitialLimits,
}

impl Initial {
    /// `limits` are those of new connections.
    pub fn new(limits: InitialLimits) -> Result<Initial, &'static str> {
        let suite = InitialSuite::new().ok_or("TLS_AES_128_GCM_SHA256 is missing")?;
        Ok(Initial { suite, limits })
    }

    fn hello(&self, first: Version, parameters: Vec<u8>, chooser: Option<Chooser>) -> State {
        State::Hello {
            reader: HelloReader::default(),
            first,
            parameters,
            limits: self.limits,
            chooser,
        }
    }
}

/// The TLS state of one connection. quinn's session and the [`Connection`](crate::Connection) share it.
pub struct Secure {
    state: Mutex<State>,
    pub paths: Arc<PathValidation>,
    version: Agreed,
}

enum State {
    /// The ClientHello is incomplete.
    Hello {
        reader: HelloReader,
        /// The version of the client's first packet.
        first: Version,
        parameters: Vec<u8>,
        limits: InitialLimits,
        chooser: Option<Chooser>,
    },
    /// The handshake goes on. It may have 1-RTT keys already.
    Open { handshake: Box<QuicHandshake>, updates: Option<Updates> },
    /// The handshake is complete, and its last messages are written.
    Complete { handshake: Box<CompleteHandshake>, updates: Option<Updates> },
}

/// The 1-RTT keys to come.
struct Updates {
    secrets: Secrets,
    /// The first key for sent packets, until quinn asks for the second pair. `None` if quinn's first change of keys is to be seen.
    first: Option<VersionKey>,
}

impl fmt::Debug for Secure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secure")
    }
}

impl Secure {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn handshake_is_dropped(&self) -> bool {
        matches!(&*self.state(), State::Complete { .. })
    }

    /// Calls `look` with the negotiated TLS parameters. `None` before the ClientHello is complete.
    pub fn with<T>(&self, look: impl FnOnce(&Negotiated<'_>) -> T) -> Option<T> {
        match &*self.state() {
            State::Hello { .. } => None,
            State::Open { handshake, .. } => Some(look(&handshake.negotiated())),
            State::Complete { handshake, .. } => Some(look(&handshake.negotiated())),
        }
    }
}

/// A `quinn_proto` configuration for a single session.
pub struct OneSession {
    initial: Initial,
    chooser: Mutex<Option<Chooser>>,
    secure: Arc<Secure>,
}

impl OneSession {
    /// A configuration for one connection, and the TLS state of that.
    pub fn new(initial: Initial, chooser: Chooser) -> (Arc<OneSession>, Arc<Secure>) {
        let session = OneSession::with(initial, Some(chooser));
        let secure = session.secure.clone();
        (Arc::new(session), secure)
    }

    /// A configuration for packets before a connection. It has no chooser, so that each handshake fails.
    pub fn none(initial: Initial) -> Arc<OneSession> {
        Arc::new(OneSession::with(initial, None))
    }

    fn with(initial: Initial, chooser: Option<Chooser>) -> OneSession {
        let state = Mutex::new(initial.hello(Version::One, Vec::new(), None));
        let secure = Secure { state, paths: Arc::default(), version: Arc::default() };
        OneSession { initial, chooser: Mutex::new(chooser), secure: Arc::new(secure) }
    }
}

impl ServerConfig for OneSession {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        let version = Version::of(version).ok_or(UnsupportedVersion)?;
        Ok(keys::initial(self.initial.suite, version, id, Agreed::default()))
    }

    fn retry_tag(&self, version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        Version::of(version).map(|version| keys::retry_tag(version, id, packet)).unwrap_or_default()
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        parameters: &TransportParameters,
    ) -> Box<dyn Session> {
        // `initial_keys` has refused unknown versions.
        let first = Version::of(version).unwrap_or(Version::One);
        let mut bytes = Vec::new();
        parameters.write(&mut bytes);
        let chooser = self.chooser.lock().unwrap_or_else(PoisonError::into_inner).take();
        *self.secure.state() = self.initial.hello(first, bytes, chooser);
        Box::new(OwnSession {
            suite: self.initial.suite,
            first,
            secure: self.secure.clone(),
            reported: false,
        })
    }
}

struct OwnSession {
    suite: InitialSuite,
    first: Version,
    secure: Arc<Secure>,
    /// quinn was told that handshake data is ready.
    reported: bool,
}

fn transport_error(alert: QuicAlert) -> TransportError {
    TransportError { code: TransportErrorCode::crypto(alert.code), frame: None, reason: alert.text }
}

impl Secure {
    /// The negotiated version. Handshake, 0-RTT and 1-RTT keys exist only after the negotiation.
    fn version(&self) -> Version {
        self.version.get().copied().unwrap_or(Version::One)
    }

    /// Keys of the negotiated version.
    fn of_version(&self, keys: PacketKeySet) -> KeyPair<VersionKey> {
        let key = |key| VersionKey::new(key, self.version());
        KeyPair { local: key(keys.local), remote: key(keys.remote) }
    }

    /// Wraps Handshake or 1-RTT keys for [`PathValidation`].
    fn watched<K: PacketKey + 'static>(&self, keys: KeyPair<K>) -> KeyPair<Box<dyn PacketKey>> {
        let watch =
            |key, validates| Box::new(WatchedKey { key, paths: self.paths.clone(), validates });
        KeyPair { local: watch(keys.local, false), remote: watch(keys.remote, true) }
    }
}

impl State {
    fn read(&mut self, bytes: &[u8], agreed: &Agreed) -> Result<(), TransportError> {
        match self {
            State::Open { handshake, .. } => handshake.read(bytes).map_err(transport_error),
            State::Hello { reader, .. } => match reader.read(bytes).map_err(transport_error)? {
                Some(first) => self.open(first, agreed),
                None => Ok(()),
            },
            // RFC 9001, section 6: KeyUpdate, for instance.
            State::Complete { .. } => Err(transport_error(QuicAlert::new(
                alert::UNEXPECTED_MESSAGE,
                "a TLS message after the handshake",
            ))),
        }
    }

    /// Writes handshake messages, up to the next change of keys. Once there are no more, the
    /// handshake is dropped.
    fn write(&mut self, out: &mut Vec<u8>) -> Option<KeyChange> {
        let State::Open { handshake, updates } = self else { return None };
        let change = handshake.write(out);
        if change.is_none() && out.is_empty() && !handshake.is_handshaking() {
            let handshake = Box::new(handshake.complete());
            *self = State::Complete { handshake, updates: updates.take() };
        }
        change
    }

    fn open(&mut self, first: FirstMessage, agreed: &Agreed) -> Result<(), TransportError> {
        let State::Hello { reader, first: version, parameters, limits, chooser } = self else {
            return Ok(());
        };
        let agreement = Agreement::new(*version, &first.parameters, first.resumes)?;
        let mut handshake = {
            let missing =
                || QuicAlert::new(alert::INTERNAL_ERROR, "no TLS configuration can be chosen");
            let config = chooser.take().ok_or_else(missing).and_then(|choose| choose(first.hello));
            let mut parameters = std::mem::take(parameters);
            agreement.write(&mut parameters);
            let version = agreement.version.tls();
            let config = config.map_err(transport_error)?;
            QuicHandshake::new(config, version, parameters, *limits).map_err(|error| {
                transport_error(QuicAlert::new(alert::HANDSHAKE_FAILURE, error.to_string()))
            })?
        };
        let _ = agreed.set(agreement.version);
        let read = handshake.read(&std::mem::take(reader).into_bytes());
        *self = State::Open { handshake: Box::new(handshake), updates: None };
        read.map_err(transport_error)
    }
}

impl Session for OwnSession {
    fn initial_keys(&self, id: &ConnectionId, _: Side) -> Keys {
        keys::initial(self.suite, self.first, id, self.secure.version.clone())
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let State::Open { handshake, .. } = &*self.secure.state() else { return None };
        let keys = handshake.early_keys()?;
        let packet = VersionKey::new(keys.packet, self.secure.version());
        Some((Box::new(keys.header), Box::new(packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        match &*self.secure.state() {
            State::Hello { .. } => true,
            State::Open { handshake, .. } => handshake.is_handshaking(),
            State::Complete { .. } => false,
        }
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let mut state = self.secure.state();
        state.read(bytes, &self.secure.version)?;
        let open = !matches!(&*state, State::Hello { .. });
        Ok(open && !std::mem::replace(&mut self.reported, open))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let State::Open { handshake, .. } = &*self.secure.state() else { return Ok(None) };
        let Some(bytes) = handshake.parameters() else { return Ok(None) };
        Ok(Some(TransportParameters::read(Side::Server, &mut Cursor::new(bytes))?))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let mut state = self.secure.state();
        let (keys, secrets) = match state.write(out)? {
            KeyChange::Handshake { keys } => (keys, None),
            KeyChange::OneRtt { keys, next } => (keys, Some(next)),
        };
        let (local, remote) = (keys.local, keys.remote);
        let header = KeyPair {
            local: Box::new(local.header) as Box<dyn HeaderKey>,
            remote: Box::new(remote.header) as Box<dyn HeaderKey>,
        };
        let packet = PacketKeySet { local: local.packet, remote: remote.packet };
        let packet = self.secure.of_version(packet);
        if let (Some(secrets), State::Open { handshake, updates }) = (secrets, &mut *state) {
            // With the keys of 0-RTT, quinn also drops those from before a change, which the client may still use.
            let first = handshake.early_keys().is_none().then(|| packet.local.clone());
            *updates = Some(Updates { secrets, first });
        }
        Some(Keys { header, packet: self.secure.watched(packet) })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let mut state = self.secure.state();
        let (State::Open { updates: Some(updates), .. }
        | State::Complete { updates: Some(updates), .. }) = &mut *state
        else {
            return None;
        };
        let keys = self.secure.of_version(updates.secrets.next_packet_keys());
        Some(match updates.first.take() {
            Some(first) => self.secure.watched(SecondKey::pair(first, keys)),
            None => self.secure.watched(keys),
        })
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        // A server receives no Retry packets.
        false
    }

    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        // Nothing here needs any.
        Err(ExportKeyingMaterialError)
    }
}
