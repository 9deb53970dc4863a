//! The ClientHello on the server's side, read before a configuration is chosen.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustls::server::{Acceptor, ClientHello};
use rustls::{CipherSuite, ServerConfig, SupportedCipherSuite};
use weir_engine::{Chain, Stream};
use weir_proto::client_hello::{self, HelloProgress, RawHello};

use crate::chosen::for_resumption;
use crate::connection::TlsConnection;
use crate::server::Identity;
use crate::stream::{PendingHandshake, Secured};
use crate::words::Reason;

/// Room for a usual ClientHello.
const FIRST_READ: usize = 4096;

/// The ALPN protocol of an ACME server that validates a TLS-ALPN-01 challenge (RFC 8737).
pub const ACME: &[u8] = b"acme-tls/1";

/// TLS_FALLBACK_SCSV, a signal among the cipher suites (RFC 7507).
const FALLBACK: u16 = 0x5600;

const UNEXPECTED_MESSAGE: u8 = 10;
const HANDSHAKE_FAILURE: u8 = 40;
const PROTOCOL_VERSION: u8 = 70;
const INTERNAL_ERROR: u8 = 80;
const INAPPROPRIATE_FALLBACK: u8 = 86;
const UNRECOGNIZED_NAME: u8 = 112;

/// What a client sends first on a TLS port.
#[derive(Debug)]
pub enum FirstBytes {
    /// No handshake: the bytes received so far.
    Plain(Vec<u8>),
    /// A ClientHello.
    Hello(Hello),
}

/// What the client asks for in its ClientHello.
#[derive(Debug)]
pub struct Hello {
    /// The requested host (SNI), as the client wrote it. It may be an address, although RFC 6066
    /// forbids that.
    pub server_name: Option<String>,
    /// The offered cipher suites, by number.
    pub ciphers: Vec<u16>,
    /// The offered curves (named groups), by number.
    pub curves: Vec<u16>,
    /// The offered signature schemes, by number.
    pub schemes: Vec<u16>,
    /// ALPN offers `acme-tls/1` and nothing else: an ACME server validates a challenge (RFC 8737).
    pub is_acme: bool,
    /// The client's highest version, if the client says that a higher one has failed (RFC 7507).
    falls_back_to: Option<[u8; 2]>,
    /// All bytes received so far.
    bytes: Vec<u8>,
}

/// Why a handshake failed.
#[derive(Debug)]
pub enum HandshakeError {
    /// The peer closed the connection before its first byte.
    Silent,
    /// The peer closed the connection.
    Closed,
    /// The deadline passed.
    TimedOut,
    /// The socket failed.
    Io(io::Error),
    /// The peer sent no TLS, or the handshake failed.
    Tls(rustls::Error),
}

/// Kinds of failed handshakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// The peer closed the connection, or was silent for too long.
    Abandoned,
    /// The peer did not accept the certificate.
    Distrusted,
    /// The peers have no version, cipher suite, curve or protocol in common.
    Incompatible,
    /// Anything else.
    Other,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::Silent | HandshakeError::Closed => {
                f.write_str("peer closed connection in SSL handshake")
            }
            HandshakeError::TimedOut => f.write_str("timed out (110: Connection timed out)"),
            HandshakeError::Io(error) => write!(f, "SSL_do_handshake() failed ({error})"),
            HandshakeError::Tls(error) => match refused(error) {
                Some(refused) => refused.fmt(f),
                None => write!(f, "SSL_do_handshake() failed (SSL: {})", Reason(error)),
            },
        }
    }
}

impl HandshakeError {
    /// The cause is in this process or its system, not in the peer.
    pub fn is_ours(&self) -> bool {
        use rustls::Error::{FailedToGetCurrentTime, FailedToGetRandomBytes, UnsupportedNameType};
        let HandshakeError::Tls(error) = self else { return false };
        matches!(error, FailedToGetCurrentTime | FailedToGetRandomBytes | UnsupportedNameType)
    }

    /// The kind of failure, for counters.
    pub fn kind(&self) -> HandshakeFailure {
        use rustls::AlertDescription as Alert;
        use rustls::Error::{AlertReceived, NoApplicationProtocol, PeerIncompatible};
        match self {
            HandshakeError::Silent
            | HandshakeError::Closed
            | HandshakeError::TimedOut
            | HandshakeError::Io(_) => HandshakeFailure::Abandoned,
            HandshakeError::Tls(AlertReceived(
                Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA,
            )) => HandshakeFailure::Distrusted,
            HandshakeError::Tls(
                PeerIncompatible(_)
                | NoApplicationProtocol
                | AlertReceived(Alert::ProtocolVersion | Alert::InsufficientSecurity),
            ) => HandshakeFailure::Incompatible,
            HandshakeError::Tls(_) => HandshakeFailure::Other,
        }
    }

    /// The peer speaks TLS and refuses this request: it sent an alert, or its certificate is for
    /// another name.
    pub fn is_refusal(&self) -> bool {
        match self {
            HandshakeError::Tls(rustls::Error::AlertReceived(_)) => true,
            HandshakeError::Tls(error) => refused(error).is_some_and(|refused| refused.name),
            _ => false,
        }
    }
}

/// The refusal by weir's own verifier, if it was one.
fn refused(error: &rustls::Error) -> Option<&crate::verifier::RefusedCertificate> {
    let rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other)) = error else {
        return None;
    };
    other.0.downcast_ref()
}

impl std::error::Error for HandshakeError {}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => HandshakeError::TimedOut,
            _ => HandshakeError::Io(error),
        }
    }
}

impl From<rustls::Error> for HandshakeError {
    fn from(error: rustls::Error) -> Self {
        HandshakeError::Tls(error)
    }
}

/// Reads the ClientHello, by `until` at the latest. `bytes` are those that were received before.
///
/// rustls' `Acceptor` reads it in pieces, and has rustls' alerts for what is no ClientHello. It
/// cannot go on to the connection, which is an `UnbufferedServerConnection`.
/// `weir_proto::client_hello` reads what the `Acceptor` does not show: the name as written here;
/// for `ssl_preread` also hellos of versions that rustls refuses. That parser begins anew with each
/// piece and sends no alert, so it does not replace the `Acceptor` either.
pub async fn read_hello(
    stream: &Stream,
    mut bytes: Vec<u8>,
    until: Instant,
) -> Result<FirstBytes, HandshakeError> {
    stream.set_deadline(Some(until));
    let mut acceptor = Acceptor::default();
    let mut seen = 0;
    loop {
        if bytes.len() == seen {
            bytes.reserve(FIRST_READ);
            let (result, back) = stream.recv(bytes).await;
            bytes = back;
            match result? {
                0 if bytes.is_empty() => return Err(HandshakeError::Silent),
                0 => return Err(HandshakeError::Closed),
                _ => {}
            }
        }
        // 0x16 begins a handshake record. The high bit is set in the hello of SSL 2, which rustls
        // refuses itself.
        if bytes.first().is_some_and(|b| *b != 0x16 && b & 0x80 == 0) {
            return Ok(FirstBytes::Plain(bytes));
        }
        let mut rest = bytes.get(seen..).unwrap_or_default();
        seen = bytes.len();
        while !rest.is_empty() {
            acceptor.read_tls(&mut rest)?;
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    return Ok(FirstBytes::Hello(hello_of(&accepted.client_hello(), bytes)));
                }
                Err((error, mut alert)) => {
                    if is_too_old(&bytes) {
                        send_alert(stream, fatal(PROTOCOL_VERSION));
                        let error = rustls::PeerIncompatible::Tls12NotOffered;
                        return Err(rustls::Error::from(error).into());
                    }
                    let mut bytes = Vec::new();
                    alert.write_all(&mut bytes)?;
                    // rustls leaves this alert to its caller.
                    if let (true, rustls::Error::InappropriateHandshakeMessage { .. }) =
                        (bytes.is_empty(), &error)
                    {
                        bytes = fatal(UNEXPECTED_MESSAGE);
                    }
                    send_alert(stream, bytes);
                    return Err(error.into());
                }
            }
        }
    }
}

/// The fields of a ClientHello, of which `bytes` are the records.
pub(crate) fn hello_of(hello: &ClientHello<'_>, bytes: Vec<u8>) -> Hello {
    let ciphers = hello.cipher_suites().iter().map(|id| u16::from(*id));
    let curves = hello.named_groups().unwrap_or_default();
    let schemes = hello.signature_schemes();
    let is_acme = hello.alpn().is_some_and(|all| all.eq([ACME]));
    // rustls shows the name in lower case only, and hides addresses.
    let read = match client_hello::parse(&bytes) {
        HelloProgress::Hello(hello) => hello,
        HelloProgress::More | HelloProgress::Other => client_hello::Hello::default(),
    };
    let falls_back = hello.cipher_suites().contains(&CipherSuite::from(FALLBACK));
    Hello {
        server_name: String::from_utf8(read.server_name).ok().filter(|name| !name.is_empty()),
        falls_back_to: falls_back.then_some(read.version),
        ciphers: ciphers.collect(),
        curves: curves.iter().map(|id| u16::from(*id)).collect(),
        schemes: schemes.iter().map(|id| u16::from(*id)).collect(),
        is_acme,
        bytes,
    }
}

/// Whether the client offers no version above TLS 1.1. rustls reports a missing extension before it
/// looks at the version.
fn is_too_old(bytes: &[u8]) -> bool {
    let HelloProgress::Hello(hello) = client_hello::parse(bytes) else { return false };
    hello.version < [3, 3]
}

impl Hello {
    /// Runs the handshake, by `until` at the latest. With `offload`, threads of the file pool do
    /// the private key's work, so that the loop is free meanwhile.
    pub async fn accept(
        self,
        stream: &Stream,
        config: Arc<ServerConfig>,
        offload: bool,
        until: Instant,
    ) -> Result<Secured, HandshakeError> {
        self.start(config, offload)?.finish(stream, until).await
    }

    /// Begins the handshake, whose steps the caller takes.
    pub fn start(
        self,
        config: Arc<ServerConfig>,
        offload: bool,
    ) -> Result<PendingHandshake, HandshakeError> {
        let mut own = config.crypto_provider().cipher_suites.iter();
        let shares_cipher = own.any(|own| self.ciphers.contains(&u16::from(own.suite())));
        let mut connection = TlsConnection::server(config)?;
        if !shares_cipher {
            connection.lacks_cipher();
        }
        connection.incoming = self.bytes;
        Ok(PendingHandshake::new(connection, offload))
    }

    /// Refuses the handshake with unrecognized_name: no server here has the name.
    pub fn reject(self, stream: &Stream) {
        send_alert(stream, fatal(UNRECOGNIZED_NAME));
    }
}

impl Hello {
    /// The parts of the ClientHello as they stand on the wire.
    pub fn raw(&self) -> RawHello {
        client_hello::raw(&self.bytes).unwrap_or_default()
    }

    /// Answers a client that resumes a session. `None` if it resumes none, or its session is not
    /// valid any more. `shown` is a certificate of the configuration.
    pub fn resume(&self, config: &ServerConfig, shown: &Identity) -> Option<PendingHandshake> {
        let mut connection = TlsConnection::server(for_resumption(config, shown)).ok()?;
        connection.feed(&self.bytes);
        let (mut plain, mut answer) = (Vec::new(), Vec::new());
        connection.advance(&mut plain, &mut answer).ok()?;
        let is_resumed = connection.negotiated().is_resumed();
        connection.unread = plain;
        is_resumed.then(|| PendingHandshake::answered(connection, answer))
    }

    /// Whether the client has given up a version that this configuration has. An attacker between
    /// the two may have caused that.
    pub fn falls_back_from(&self, config: &ServerConfig) -> bool {
        let suites = &config.crypto_provider().cipher_suites;
        let newest = if suites.iter().any(|suite| matches!(suite, SupportedCipherSuite::Tls13(_))) {
            [3, 4]
        } else {
            [3, 3]
        };
        self.falls_back_to.is_some_and(|version| version < newest)
    }

    /// Refuses the handshake with inappropriate_fallback: see [`Hello::falls_back_from`].
    pub fn refuse_fallback(self, stream: &Stream) {
        send_alert(stream, fatal(INAPPROPRIATE_FALLBACK));
    }

    /// Refuses the handshake with protocol_version: no version is enabled.
    pub fn refuse_version(self, stream: &Stream) {
        send_alert(stream, fatal(PROTOCOL_VERSION));
    }

    /// Refuses the handshake with handshake_failure: there is no certificate for it.
    pub fn refuse(self, stream: &Stream) {
        send_alert(stream, fatal(HANDSHAKE_FAILURE));
    }

    /// Ends the handshake with internal_error: the fault is the server's.
    pub fn fail(self, stream: &Stream) {
        send_alert(stream, fatal(INTERNAL_ERROR));
    }
}

/// Refuses a client whose first bytes are no handshake. A TLS record is answered with an alert.
/// Returns OpenSSL's reason, for the log.
pub fn refuse_plain(stream: &Stream, bytes: &[u8]) -> &'static str {
    const REQUESTS: [&[u8]; 4] = [b"GET ", b"POST ", b"HEAD ", b"PUT "];
    if bytes.get(1) == Some(&3) {
        send_alert(stream, fatal(UNEXPECTED_MESSAGE));
        return "unexpected message";
    }
    match bytes {
        bytes if REQUESTS.iter().any(|method| bytes.starts_with(method)) => "http request",
        bytes if bytes.starts_with(b"CONNECT ") => "https proxy request",
        _ => "wrong version number",
    }
}

/// A plaintext record with a fatal alert.
fn fatal(alert: u8) -> Vec<u8> {
    vec![21, 3, 3, 0, 2, 2, alert]
}

/// Sends an alert if the socket has room. Failures are ignored, since the connection ends anyway.
fn send_alert(stream: &Stream, bytes: Vec<u8>) {
    let mut chain = Chain::new();
    chain.push(bytes);
    let _ = stream.try_send(&mut chain);
}
