//! TLS as `quinn-proto` wants it: a session that begins without a configuration, and asks for one once the client has said
//! whom it wants.

use std::any::Any;
use std::fmt;
use std::io::Cursor;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
    UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use weir_tls::quic::{
    HelloReader, InitialLimits, KeyChange, PacketKeySet, QuicAlert, QuicHandshake, Secrets, alert,
};
use weir_tls::{Hello, Negotiated};

use crate::paths::{PathWatch, Watched};

/// The configuration for a client.
pub type ChosenConfig = Result<Arc<weir_tls::ServerConfig>, QuicAlert>;
/// Chooses it by the client's first message.
pub type Chooser = Box<dyn FnOnce(Hello) -> ChosenConfig + Send>;
/// Chooses it as well, and may take time for that: it may load certificates.
pub type Asker = Box<dyn FnOnce(Hello) -> Pin<Box<dyn Future<Output = ChosenConfig>>>>;

/// What packets need before there is a session: keys that anybody can compute.
#[derive(Clone)]
pub struct Initial {
    config: Arc<QuicServerConfig>,
    limits: InitialLimits,
}

impl Initial {
    /// They need no certificate. `limits` are those of connections that begin.
    pub fn new(limits: InitialLimits) -> Result<Initial, &'static str> {
        const MISSING: &str = "TLS_AES_128_GCM_SHA256 is missing";
        let suite = weir_tls::quic::initial_suite().ok_or(MISSING)?;
        let any = weir_tls::quic::without_certificate().map_err(|_| MISSING)?;
        let config = QuicServerConfig::with_initial(any, suite).map_err(|_| MISSING)?;
        Ok(Initial { config: Arc::new(config), limits })
    }

    fn hello(&self, parameters: Vec<u8>, chooser: Option<Chooser>) -> State {
        State::Hello { reader: HelloReader::default(), parameters, limits: self.limits, chooser }
    }

    /// For what comes before there is a connection.
    pub fn any(&self) -> Arc<QuicServerConfig> {
        self.config.clone()
    }
}

/// The TLS of one connection, which quinn and the connection's owner share.
pub struct Secure {
    state: Mutex<State>,
    /// Which address is the client's.
    pub paths: Arc<PathWatch>,
}

enum State {
    /// The client's first message is not whole yet.
    Hello {
        reader: HelloReader,
        parameters: Vec<u8>,
        limits: InitialLimits,
        chooser: Option<Chooser>,
    },
    Open {
        handshake: Box<QuicHandshake>,
        next: Option<Secrets>,
    },
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

    /// Looks at what both ends have agreed on, once there is a handshake.
    pub fn with<T>(&self, look: impl FnOnce(&Negotiated<'_>) -> T) -> Option<T> {
        match &*self.state() {
            State::Hello { .. } => None,
            State::Open { handshake, .. } => Some(look(&handshake.negotiated())),
        }
    }
}

/// What quinn makes one session of.
pub struct OneSession {
    initial: Initial,
    chooser: Mutex<Option<Chooser>>,
    secure: Arc<Secure>,
}

impl OneSession {
    /// For one connection; the second value is its TLS.
    pub fn new(initial: Initial, chooser: Chooser) -> (Arc<OneSession>, Arc<Secure>) {
        let state = initial.hello(Vec::new(), None);
        let secure = Arc::new(Secure { state: Mutex::new(state), paths: Arc::default() });
        let chooser = Mutex::new(Some(chooser));
        (Arc::new(OneSession { initial, chooser, secure: secure.clone() }), secure)
    }
}

impl ServerConfig for OneSession {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.initial.config.initial_keys(version, id)
    }

    fn retry_tag(&self, version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.initial.config.retry_tag(version, id, packet)
    }

    fn start_session(
        self: Arc<Self>,
        _version: u32,
        parameters: &TransportParameters,
    ) -> Box<dyn Session> {
        let mut bytes = Vec::new();
        parameters.write(&mut bytes);
        let chooser = self.chooser.lock().unwrap_or_else(PoisonError::into_inner).take();
        *self.secure.state() = self.initial.hello(bytes, chooser);
        Box::new(OwnSession {
            initial: self.initial.clone(),
            secure: self.secure.clone(),
            told: false,
        })
    }
}

struct OwnSession {
    initial: Initial,
    secure: Arc<Secure>,
    /// quinn was told that the handshake has something to show.
    told: bool,
}

fn transport_error(alert: QuicAlert) -> TransportError {
    TransportError { code: TransportErrorCode::crypto(alert.code), frame: None, reason: alert.text }
}

/// Keys that look at paths, too; for packets of the handshake, and for those that carry requests.
fn watched(keys: PacketKeySet, secure: &Secure) -> KeyPair<Box<dyn PacketKey>> {
    let watch = |key, shows| Box::new(Watched { key, watch: secure.paths.clone(), shows });
    KeyPair { local: watch(keys.local, false), remote: watch(keys.remote, true) }
}

impl State {
    fn read(&mut self, bytes: &[u8]) -> Result<(), QuicAlert> {
        match self {
            State::Open { handshake, .. } => handshake.read(bytes),
            State::Hello { reader, parameters, limits, chooser } => {
                let Some(hello) = reader.read(bytes)? else { return Ok(()) };
                let spent = || QuicAlert::new(alert::INTERNAL_ERROR, "a second first message");
                let config = chooser.take().ok_or_else(spent)?(hello)?;
                let parameters = std::mem::take(parameters);
                let mut handshake = QuicHandshake::new(config, parameters, *limits)
                    .map_err(|error| QuicAlert::new(alert::HANDSHAKE_FAILURE, error.to_string()))?;
                let first = std::mem::take(reader).into_bytes();
                let read = handshake.read(&first);
                *self = State::Open { handshake: Box::new(handshake), next: None };
                read
            }
        }
    }
}

impl Session for OwnSession {
    fn initial_keys(&self, id: &ConnectionId, _: Side) -> Keys {
        const VERSION_1: u32 = 1;
        match self.initial.config.initial_keys(VERSION_1, id) {
            Ok(keys) => keys,
            Err(UnsupportedVersion) => unreachable!("version 1 is supported"),
        }
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
        Some((Box::new(keys.header), Box::new(keys.packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        match &*self.secure.state() {
            State::Hello { .. } => true,
            State::Open { handshake, .. } => handshake.is_handshaking(),
        }
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let mut state = self.secure.state();
        state.read(bytes).map_err(transport_error)?;
        let open = matches!(&*state, State::Open { .. });
        Ok(open && !std::mem::replace(&mut self.told, open))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let State::Open { handshake, .. } = &*self.secure.state() else { return Ok(None) };
        let Some(bytes) = handshake.parameters() else { return Ok(None) };
        Ok(Some(TransportParameters::read(Side::Server, &mut Cursor::new(bytes))?))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let mut state = self.secure.state();
        let State::Open { handshake, next } = &mut *state else { return None };
        let keys = match handshake.write(out)? {
            KeyChange::Handshake { keys } => keys,
            KeyChange::OneRtt { keys, next: secrets } => {
                *next = Some(secrets);
                keys
            }
        };
        let (local, remote) = (keys.local, keys.remote);
        let header = KeyPair {
            local: Box::new(local.header) as Box<dyn HeaderKey>,
            remote: Box::new(remote.header) as Box<dyn HeaderKey>,
        };
        let packet = PacketKeySet { local: local.packet, remote: remote.packet };
        Some(Keys { header, packet: watched(packet, &self.secure) })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let mut state = self.secure.state();
        let State::Open { next: Some(secrets), .. } = &mut *state else { return None };
        Some(watched(secrets.next_packet_keys(), &self.secure))
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        // Servers get none.
        false
    }

    fn export_keying_material(
        &self,
        out: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        match &*self.secure.state() {
            State::Open { handshake, .. } if handshake.export(out, label, context) => Ok(()),
            _ => Err(ExportKeyingMaterialError),
        }
    }
}
