//! From an accepted socket to a TLS connection.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use weir_engine::{Handle, Stream};
use weir_log::{Cause, Level};
use weir_metrics::{Metric, Tally};
use weir_tls::x509::{Purpose, VerifyError};
use weir_tls::{
    HandshakeError, HandshakeFailure, Hello, Negotiated, PendingHandshake, Secured, ServerConfig,
    Wire,
};
use weir_values::Subject;
use weir_values::regex::GaveUp;

use super::Verify;
use super::context::{Certificates, ServerContext};
use super::decided::Decided;
use crate::certificate_cache::CertificateCache;
use crate::load::LoadError;
use crate::ocsp::WaitingConnection;

/// The result of a handshake. It lives as long as the connection.
#[derive(Debug, Default)]
pub struct Shown {
    /// The requested name (SNI), as the client wrote it.
    pub server_name: Option<Box<str>>,
    /// The settings of the handshake, by which the client's certificate was verified.
    pub context: Option<Arc<ServerContext>>,
    /// What is wrong with the client's certificate.
    pub fault: Option<VerifyError>,
    /// The offered cipher suites, by number.
    pub ciphers: Box<[u16]>,
    /// The offered curves, by number.
    pub curves: Box<[u16]>,
    /// The offered signature schemes, by number.
    pub schemes: Box<[u16]>,
}

impl Shown {
    /// Takes the fields of a ClientHello.
    pub fn take(hello: &mut Hello) -> Shown {
        Shown {
            server_name: hello.server_name.take().map(Into::into),
            ciphers: std::mem::take(&mut hello.ciphers).into(),
            curves: std::mem::take(&mut hello.curves).into(),
            schemes: std::mem::take(&mut hello.schemes).into(),
            ..Shown::default()
        }
    }

    /// The requested name as servers have it: in lower case, without a trailing dot. `None` if it
    /// cannot be a server's name.
    pub fn host(&self) -> Option<String> {
        let name = self.server_name.as_deref().filter(|name| !name.contains(':'))?;
        Some(name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase())
    }
}

/// Why a connection has no TLS.
#[derive(Debug)]
pub enum AcceptError {
    /// The handshake failed.
    Handshake(HandshakeError),
    /// The client's first bytes are no handshake. OpenSSL's reason.
    Plain(&'static str),
    /// The server has no certificate.
    NoCertificate,
    /// A certificate with variables in its name could not be loaded.
    Certificate(LoadError),
    /// `ssl_reject_handshake`
    Rejected,
    /// A regular expression among the server names was given up.
    NameUndecided(GaveUp),
    /// A script has ended the handshake. OpenSSL's reason.
    Script(&'static str),
    /// A script has left no version of TLS.
    NoVersion,
    /// The client has given up a version that is enabled here.
    Fallback,
}

impl AcceptError {
    /// The level of the log line.
    pub fn level(&self) -> Level {
        match self {
            AcceptError::Certificate(LoadError::Unnamed) => Level::Info,
            AcceptError::Certificate(_) => Level::Error,
            AcceptError::NameUndecided(_) => Level::Alert,
            _ => Level::Info,
        }
    }
}

impl AcceptError {
    /// Counts a failed handshake, by its kind.
    pub fn count(&self, metrics: &Tally) {
        metrics.add(Metric::TlsFailed, 1);
        let AcceptError::Handshake(error) = self else { return };
        match error.kind() {
            HandshakeFailure::Abandoned => metrics.add(Metric::TlsAbandoned, 1),
            HandshakeFailure::Distrusted => metrics.add(Metric::TlsDistrusted, 1),
            HandshakeFailure::Incompatible => metrics.add(Metric::TlsIncompatible, 1),
            HandshakeFailure::Other => {}
        }
    }
}

impl AcceptError {
    /// Sends the client an alert.
    pub fn send_alert(&self, hello: Hello, socket: &Stream) {
        match self {
            AcceptError::NoVersion => hello.refuse_version(socket),
            AcceptError::Fallback => hello.refuse_fallback(socket),
            AcceptError::NoCertificate => hello.refuse(socket),
            _ => hello.fail(socket),
        }
    }
}

impl From<HandshakeError> for AcceptError {
    fn from(error: HandshakeError) -> Self {
        AcceptError::Handshake(error)
    }
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcceptError::Handshake(error @ HandshakeError::TimedOut) => {
                write!(f, "client {error} while SSL handshaking")
            }
            AcceptError::Handshake(HandshakeError::Io(error)) => {
                write!(f, "{} {} while SSL handshaking", HandshakeError::Closed, Cause(error))
            }
            AcceptError::Handshake(error) => write!(f, "{error} while SSL handshaking"),
            AcceptError::Certificate(error) => write!(f, "{error} while SSL handshaking"),
            AcceptError::NameUndecided(text) => write!(f, "{text} while SSL handshaking"),
            AcceptError::NoCertificate => f.write_str(
                "SSL_do_handshake() failed (SSL: no suitable certificate) while SSL handshaking",
            ),
            AcceptError::Plain(what) | AcceptError::Script(what) => {
                write!(f, "SSL_do_handshake() failed (SSL: {what}) while SSL handshaking")
            }
            AcceptError::NoVersion => f.write_str(
                "SSL_do_handshake() failed (SSL: unsupported protocol) while SSL handshaking",
            ),
            AcceptError::Fallback => f.write_str(
                "SSL_do_handshake() failed (SSL: inappropriate fallback) while SSL handshaking",
            ),
            AcceptError::Rejected => f.write_str("handshake rejected while SSL handshaking"),
        }
    }
}

/// The settings for the rest of the handshake: those of the requested server if it has a
/// certificate, otherwise the default server's. A refused client gets an alert.
pub fn choose(
    own: Option<&Arc<ServerContext>>,
    default: Option<&Arc<ServerContext>>,
    hello: Hello,
    socket: &Stream,
) -> Result<(Arc<ServerContext>, Hello), AcceptError> {
    if own.is_some_and(|context| context.reject) {
        hello.reject(socket);
        return Err(AcceptError::Rejected);
    }
    match own.filter(|context| context.has_certificates()).or(default) {
        Some(context) => Ok((Arc::clone(context), hello)),
        None => Err(AcceptError::NoCertificate),
    }
}

/// The path from a client's certificate to a root, in DER, or the fault. The path is empty if OCSP
/// does not need it.
pub type ClientVerdict = Result<Vec<Vec<u8>>, VerifyError>;

/// The names of a chain and its key, for each kind of key.
pub type FileNames = Vec<(Vec<u8>, Vec<u8>)>;

impl Certificates {
    /// Whether the names of the files depend on the client.
    pub fn is_computed(&self) -> bool {
        matches!(self, Certificates::Computed(_))
    }

    /// The names of the files for this client. Empty if they do not depend on the client.
    pub fn names(&self, client: &mut impl Subject) -> FileNames {
        match self {
            Certificates::Computed(computed) => computed.names(client),
            _ => FileNames::new(),
        }
    }

    /// The configuration for a client whose files have these names.
    ///
    /// # Errors
    ///
    /// There is no certificate, or a file cannot be loaded.
    pub async fn config(
        &self,
        names: FileNames,
        handle: &Handle,
        loaded: &CertificateCache<Arc<ServerConfig>>,
    ) -> Result<Arc<ServerConfig>, AcceptError> {
        match self {
            Certificates::None => Err(AcceptError::NoCertificate),
            Certificates::Fixed(config) => Ok(config.clone()),
            Certificates::Computed(computed) => {
                computed.config(names, handle, loaded).await.map_err(AcceptError::Certificate)
            }
        }
    }
}

impl ServerContext {
    /// Runs the rest of the handshake, by `until` at the latest. `names`: see
    /// [`Certificates::names`].
    pub async fn accept(
        &self,
        hello: Hello,
        socket: &Stream,
        names: FileNames,
        loaded: &CertificateCache<Arc<ServerConfig>>,
        until: Instant,
    ) -> Result<Secured, AcceptError> {
        let pending =
            self.start_handshake(hello, socket, names, loaded, Decided::default()).await?;
        Ok(pending.finish(socket, until).await?)
    }

    /// Starts the handshake with the scripts' decisions. The caller takes its steps. A client gets
    /// an alert if there is no certificate for it.
    pub async fn start_handshake(
        &self,
        hello: Hello,
        socket: &Stream,
        names: FileNames,
        loaded: &CertificateCache<Arc<ServerConfig>>,
        decided: Decided,
    ) -> Result<PendingHandshake, AcceptError> {
        let handle = socket.handle();
        let config = match decided.is_certified() {
            true => Ok(None),
            false => self.certificates.config(names, handle, loaded).await.map(Some),
        };
        let chosen = config.and_then(|config| self.decide(&self.certificates, config, decided));
        let chosen = chosen.and_then(|(config, slow)| match hello.falls_back_from(&config) {
            true => Err(AcceptError::Fallback),
            false => Ok((config, slow)),
        });
        let (config, slow) = match chosen {
            Ok(chosen) => chosen,
            Err(failure) => {
                failure.send_alert(hello, socket);
                return Err(failure);
            }
        };
        let others_wait = handle.tasks() + handle.parked() > 1;
        Ok(hello.start(config, slow && others_wait)?)
    }

    /// The fault of the client's certificate. `None` if none was requested or sent. OCSP responders
    /// may take until the deadline of `waiting`.
    pub async fn judge(&self, wire: &Wire, waiting: WaitingConnection<'_>) -> Option<VerifyError> {
        let judged = wire.tls(|connection| self.verify_client(connection)).flatten();
        self.ask_responders(judged, waiting).await
    }

    /// Verifies the client's certificate, without OCSP. `None` if none was requested or sent.
    pub fn verify_client(&self, connection: &Negotiated<'_>) -> Option<ClientVerdict> {
        if self.verify == Verify::Off {
            return None;
        }
        let chain = connection.peer_certificates();
        let judged = (!chain.is_empty()).then(|| self.authorities.check(chain, Purpose::Client));
        // OCSP needs the whole path.
        let kept = |path: Vec<&[u8]>| match &self.ocsp {
            Some(_) => path.into_iter().map(<[u8]>::to_vec).collect(),
            None => Vec::new(),
        };
        judged.map(|path| path.map(kept))
    }

    /// Whether these settings come to the same verdict on the client's certificate as `earlier`
    /// ones of the same server, which found `fault`. Responders are not asked again.
    pub fn agrees_with(
        &self,
        earlier: &ServerContext,
        fault: Option<VerifyError>,
        connection: &Negotiated<'_>,
    ) -> bool {
        if earlier.judges_like(self) {
            return true;
        }
        let asked = self.ocsp.is_none() || earlier.ocsp.is_some();
        asked && self.verify_client(connection).is_none_or(|judged| judged.err() == fault)
    }

    /// Asks responders about a path without a fault.
    pub async fn ask_responders(
        &self,
        judged: Option<ClientVerdict>,
        waiting: WaitingConnection<'_>,
    ) -> Option<VerifyError> {
        match (judged, &self.ocsp) {
            (None, _) | (Some(Ok(_)), None) => None,
            (Some(Err(fault)), _) => Some(fault),
            (Some(Ok(path)), Some(ocsp)) => {
                Box::pin(ocsp.check(&path, &self.authorities, &waiting)).await.err()
            }
        }
    }

    /// Why a client is not served: its certificate has this fault, or it has sent none.
    pub fn refusal(&self, fault: Option<VerifyError>, shown: bool) -> Option<ClientRefusal> {
        if self.verify == Verify::Shown {
            return None;
        }
        if let Some(fault) = fault
            && !(self.verify == Verify::OptionalNoCa && fault.only_unknown_root())
        {
            return Some(ClientRefusal::Bad(fault));
        }
        (self.verify == Verify::On && !shown).then_some(ClientRefusal::Missing)
    }
}

/// Why a client is not served after its handshake.
#[derive(Debug, Clone, Copy)]
pub enum ClientRefusal {
    /// Its certificate has a fault.
    Bad(VerifyError),
    /// It has sent no certificate.
    Missing,
}

impl fmt::Display for ClientRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientRefusal::Bad(fault) => write!(f, "client SSL certificate verify error: {fault}"),
            ClientRefusal::Missing => f.write_str("client sent no required SSL certificate"),
        }
    }
}
