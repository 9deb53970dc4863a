//! The beginning of a handshake on the server's side: what the client asks for, before anything is chosen.

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
use crate::stream::{Halfway, Secured};
use crate::words::Reason;

/// Room for a usual first message.
const FIRST_READ: usize = 4096;

/// The protocol that ACME servers ask for a proof by.
pub const ACME: &[u8] = b"acme-tls/1";

/// TLS_FALLBACK_SCSV: no cipher, but what a client says with it.
const FALLBACK: u16 = 0x5600;

const UNEXPECTED_MESSAGE: u8 = 10;
const HANDSHAKE_FAILURE: u8 = 40;
const PROTOCOL_VERSION: u8 = 70;
const INTERNAL_ERROR: u8 = 80;
const INAPPROPRIATE_FALLBACK: u8 = 86;
const UNRECOGNIZED_NAME: u8 = 112;

/// How a connection to a TLS port begins.
#[derive(Debug)]
pub enum Begin {
    /// With something else: these are its first bytes.
    Plain(Vec<u8>),
    /// With a handshake.
    Hello(Hello),
}

/// A client's first message.
#[derive(Debug)]
pub struct Hello {
    /// The host that it wants (SNI), as it wrote it; an address too, though RFC 6066 has none.
    pub server_name: Option<String>,
    /// Its ciphers, by number.
    pub ciphers: Vec<u16>,
    /// Its curves, by number.
    pub curves: Vec<u16>,
    /// Its signature schemes, by number.
    pub schemes: Vec<u16>,
    /// It speaks `acme-tls/1` and nothing else: an ACME server that asks for a proof (RFC 8737).
    pub is_acme: bool,
    /// It has tried a newer version before, in vain, and now asks for this one at most (RFC 7507).
    falls_back_to: Option<[u8; 2]>,
    /// All that came so far.
    bytes: Vec<u8>,
}

/// Why there is no connection.
#[derive(Debug)]
pub enum HandshakeError {
    /// The peer went away before its first byte.
    Silent,
    /// The peer went away.
    Closed,
    /// The deadline passed.
    TimedOut,
    /// The socket failed.
    Io(io::Error),
    /// The peer spoke no TLS, or none that we take.
    Tls(rustls::Error),
}

/// Kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// The peer left, or was silent for too long.
    Abandoned,
    /// The peer did not accept the certificate.
    Distrusted,
    /// Both sides speak no version, cipher, curve or protocol in common.
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
    /// This process or its system lacks something: the peer has no part in it.
    pub fn is_ours(&self) -> bool {
        use rustls::Error::{FailedToGetCurrentTime, FailedToGetRandomBytes, UnsupportedNameType};
        let HandshakeError::Tls(error) = self else { return false };
        matches!(error, FailedToGetCurrentTime | FailedToGetRandomBytes | UnsupportedNameType)
    }

    /// What kind of failure it is, for counters.
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

    /// The peer speaks TLS, but not for what it was asked for: it refused by an alert, or its certificate is for another
    /// name.
    pub fn is_refusal(&self) -> bool {
        match self {
            HandshakeError::Tls(rustls::Error::AlertReceived(_)) => true,
            HandshakeError::Tls(error) => refused(error).is_some_and(|refused| refused.name),
            _ => false,
        }
    }
}

/// What our own check of a certificate said.
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

/// Reads the client's first message, until then at the latest. `bytes` is what was read of it before.
///
/// rustls' `Acceptor` reads it: piece by piece, with rustls' alerts for what is no hello. It cannot go on to the
/// connection, which is one without buffers (`UnbufferedServerConnection`). `weir_proto::client_hello` reads what it does not
/// show: the name as written here; for `ssl_preread` also hellos of versions that rustls refuses.
/// That reader begins anew with each piece and sends no alert, so it does not replace the `Acceptor` either.
pub async fn begin(
    stream: &Stream,
    mut bytes: Vec<u8>,
    until: Instant,
) -> Result<Begin, HandshakeError> {
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
        // A handshake record, or the old hello of SSL 2, which rustls refuses in its own words.
        if bytes.first().is_some_and(|b| *b != 0x16 && b & 0x80 == 0) {
            return Ok(Begin::Plain(bytes));
        }
        let mut rest = bytes.get(seen..).unwrap_or_default();
        seen = bytes.len();
        while !rest.is_empty() {
            acceptor.read_tls(&mut rest)?;
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    return Ok(Begin::Hello(hello_of(&accepted.client_hello(), bytes)));
                }
                Err((error, mut alert)) => {
                    if is_too_old(&bytes) {
                        say(stream, fatal(PROTOCOL_VERSION));
                        let error = rustls::PeerIncompatible::Tls12NotOffered;
                        return Err(rustls::Error::from(error).into());
                    }
                    let mut bytes = Vec::new();
                    alert.write_all(&mut bytes)?;
                    say(stream, bytes);
                    return Err(error.into());
                }
            }
        }
    }
}

/// What a client's first message says, of which these are the records.
pub(crate) fn hello_of(hello: &ClientHello<'_>, bytes: Vec<u8>) -> Hello {
    let ciphers = hello.cipher_suites().iter().map(|id| u16::from(*id));
    let curves = hello.named_groups().unwrap_or_default();
    let schemes = hello.signature_schemes();
    let is_acme = hello.alpn().is_some_and(|all| all.eq([ACME]));
    // rustls shows the name in lower case only, and no addresses.
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

/// Whether a client speaks nothing newer than TLS 1.1. rustls finds that an extension is missing before it looks at the
/// version.
fn is_too_old(bytes: &[u8]) -> bool {
    let HelloProgress::Hello(hello) = client_hello::parse(bytes) else { return false };
    hello.version < [3, 3]
}

impl Hello {
    /// Goes through the handshake, until then at the latest. With `offload`, the private key's work is done by the file pool's threads, so that the
    /// loop is free meanwhile.
    pub async fn accept(
        self,
        stream: &Stream,
        config: Arc<ServerConfig>,
        offload: bool,
        until: Instant,
    ) -> Result<Secured, HandshakeError> {
        self.halfway(config, offload)?.finish(stream, until).await
    }

    /// The same, step by step.
    pub fn halfway(
        self,
        config: Arc<ServerConfig>,
        offload: bool,
    ) -> Result<Halfway, HandshakeError> {
        let mut connection = TlsConnection::server(config)?;
        connection.incoming = self.bytes;
        Ok(Halfway::new(connection, offload))
    }

    /// Refuses the handshake: the name is not one that is served here.
    pub fn reject(self, stream: &Stream) {
        say(stream, fatal(UNRECOGNIZED_NAME));
    }
}

impl Hello {
    /// All of it as it stands on the wire.
    pub fn raw(&self) -> RawHello {
        client_hello::raw(&self.bytes).unwrap_or_default()
    }

    /// Answers a client that resumes a session; none if it does not, or its session is not good any more. `shown` is a
    /// certificate of the configuration.
    pub fn resume(&self, config: &ServerConfig, shown: &Identity) -> Option<Halfway> {
        let mut connection = TlsConnection::server(for_resumption(config, shown)).ok()?;
        connection.feed(&self.bytes);
        let (mut plain, mut answer) = (Vec::new(), Vec::new());
        connection.advance(&mut plain, &mut answer).ok()?;
        let is_resumed = connection.negotiated().is_resumed();
        connection.early = plain;
        is_resumed.then(|| Halfway::answered(connection, answer))
    }

    /// Whether the client has given up a version that this configuration has. Someone in between may have made it do so.
    pub fn falls_back_from(&self, config: &ServerConfig) -> bool {
        let suites = &config.crypto_provider().cipher_suites;
        let newest = if suites.iter().any(|suite| matches!(suite, SupportedCipherSuite::Tls13(_))) {
            [3, 4]
        } else {
            [3, 3]
        };
        self.falls_back_to.is_some_and(|version| version < newest)
    }

    /// Refuses the handshake: see [`Hello::falls_back_from`].
    pub fn refuse_fallback(self, stream: &Stream) {
        say(stream, fatal(INAPPROPRIATE_FALLBACK));
    }

    /// Refuses the handshake: no version of TLS is left.
    pub fn refuse_version(self, stream: &Stream) {
        say(stream, fatal(PROTOCOL_VERSION));
    }

    /// Refuses the handshake: there is no certificate for it.
    pub fn refuse(self, stream: &Stream) {
        say(stream, fatal(HANDSHAKE_FAILURE));
    }

    /// Ends the handshake: the fault is the server's.
    pub fn fail(self, stream: &Stream) {
        say(stream, fatal(INTERNAL_ERROR));
    }
}

/// Refuses a client that began with these bytes, which are no handshake. A record of TLS is answered with an alert. Returns
/// OpenSSL's words for what the client did.
pub fn refuse_plain(stream: &Stream, bytes: &[u8]) -> &'static str {
    const REQUESTS: [&[u8]; 4] = [b"GET ", b"POST ", b"HEAD ", b"PUT "];
    if bytes.get(1) == Some(&3) {
        say(stream, fatal(UNEXPECTED_MESSAGE));
        return "unexpected message";
    }
    match bytes {
        bytes if REQUESTS.iter().any(|method| bytes.starts_with(method)) => "http request",
        bytes if bytes.starts_with(b"CONNECT ") => "https proxy request",
        _ => "wrong version number",
    }
}

/// A record with a fatal alert, of TLS 1.2.
fn fatal(alert: u8) -> Vec<u8> {
    vec![21, 3, 3, 0, 2, 2, alert]
}

/// Sends a last word, if there is room for it.
fn say(stream: &Stream, bytes: Vec<u8>) {
    let mut chain = Chain::new();
    chain.push(bytes);
    let _ = stream.try_send(&mut chain);
}
