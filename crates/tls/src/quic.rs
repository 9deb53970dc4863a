//! TLS within QUIC (RFC 9001): handshake messages in CRYPTO frames go in and out, and keys come
//! out. Nothing here knows packets.

use std::fmt;
use std::sync::Arc;

use rustls::quic::{Connection, ServerConnection, Suite};
use rustls::server::Acceptor;
use rustls::{CipherSuite, ServerConfig, Side};
use weir_proto::client_hello::{self, HelloProgress};

use crate::hello::{Hello, hello_of};
pub use crate::limits::InitialLimits;
use crate::names::provider;
use crate::negotiated::{Agreed, Negotiated};
use crate::notes::{self, Notes};
use crate::words::Reason;

pub use rustls::quic::{
    DirectionalKeys, HeaderProtectionKey, KeyChange, Keys, PacketKey, PacketKeySet, Secrets,
    Version as TlsVersion,
};

/// The longest ClientHello that is accepted.
const LONGEST_HELLO: usize = 64 * 1024;
/// The most bytes in a TLS record.
const RECORD: usize = 16 * 1024;

/// Why a handshake has failed: a TLS alert, which becomes an error code of QUIC.
#[derive(Debug, Clone)]
pub struct QuicAlert {
    /// RFC 8446, section 6.
    pub code: u8,
    /// The reason, for the log.
    pub text: String,
}

impl QuicAlert {
    /// With the alert's number.
    pub fn new(code: u8, text: impl Into<String>) -> QuicAlert {
        QuicAlert { code, text: text.into() }
    }
}

impl fmt::Display for QuicAlert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Alerts that servers send: RFC 8446, section 6.2.
pub mod alert {
    /// unexpected_message
    pub const UNEXPECTED_MESSAGE: u8 = 10;
    /// handshake_failure
    pub const HANDSHAKE_FAILURE: u8 = 40;
    /// decode_error
    pub const DECODE_ERROR: u8 = 50;
    /// protocol_version
    pub const PROTOCOL_VERSION: u8 = 70;
    /// internal_error
    pub const INTERNAL_ERROR: u8 = 80;
    /// missing_extension
    pub const MISSING_EXTENSION: u8 = 109;
    /// unrecognized_name
    pub const UNRECOGNIZED_NAME: u8 = 112;
}

/// The cipher suite of Initial packets. Their keys are derived from a public salt and a connection ID
/// (RFC 9001, section 5.2).
#[derive(Clone, Copy)]
pub struct InitialSuite(Suite);

impl InitialSuite {
    /// `None` if the provider lacks TLS_AES_128_GCM_SHA256.
    pub fn new() -> Option<InitialSuite> {
        provider().cipher_suites.iter().find_map(|suite| match (suite.suite(), suite.tls13()) {
            (CipherSuite::TLS13_AES_128_GCM_SHA256, Some(suite)) => {
                suite.quic_suite().map(InitialSuite)
            }
            _ => None,
        })
    }

    /// A server's keys for a client that chose this connection ID.
    pub fn keys(&self, id: &[u8], version: TlsVersion) -> Keys {
        self.0.keys(id, Side::Server, version)
    }
}

/// What a server needs of a ClientHello.
#[derive(Debug)]
pub struct FirstMessage {
    /// The fields that a configuration is chosen by.
    pub hello: Hello,
    /// The client's transport parameters, encoded. RFC 9000, section 18.
    pub parameters: Vec<u8>,
    /// The client offers to resume a session.
    pub resumes: bool,
}

/// Collects a ClientHello, before a configuration is chosen.
#[derive(Debug, Default)]
pub struct HelloReader {
    bytes: Vec<u8>,
}

impl HelloReader {
    /// Takes the next bytes of the handshake. Returns the ClientHello once it is whole.
    ///
    /// # Errors
    ///
    /// The client sends something else.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<FirstMessage>, QuicAlert> {
        self.bytes.extend_from_slice(bytes);
        let Some([kind, a, b, c]) = self.bytes.first_chunk::<4>() else { return Ok(None) };
        if *kind != 1 {
            return Err(QuicAlert::new(alert::UNEXPECTED_MESSAGE, "no ClientHello"));
        }
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        if length > LONGEST_HELLO {
            return Err(QuicAlert::new(alert::DECODE_ERROR, "too long a ClientHello"));
        }
        if self.bytes.len() < 4 + length {
            return Ok(None);
        }
        let bad = || QuicAlert::new(alert::DECODE_ERROR, "bad ClientHello");
        let mut records = Vec::with_capacity(self.bytes.len() + 64);
        for part in self.bytes.chunks(RECORD) {
            let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
            records.extend_from_slice(&[22, 3, 1]);
            records.extend_from_slice(&length.to_be_bytes());
            records.extend_from_slice(part);
        }
        let HelloProgress::Hello(said) = client_hello::parse(&records) else { return Err(bad()) };
        let Some(parameters) = said.quic_parameters else {
            // rustls would accept the extension of old drafts as well.
            return Err(QuicAlert::new(alert::MISSING_EXTENSION, "no transport parameters"));
        };
        let (mut acceptor, mut rest) = (Acceptor::default(), &records[..]);
        while !rest.is_empty() {
            acceptor.read_tls(&mut rest).map_err(|_| bad())?;
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let hello = hello_of(&accepted.client_hello(), records);
                    return Ok(Some(FirstMessage { hello, parameters, resumes: said.resumes }));
                }
                Err((error, _)) => {
                    return Err(QuicAlert::new(
                        alert::HANDSHAKE_FAILURE,
                        Reason(&error).to_string(),
                    ));
                }
            }
        }
        Err(bad())
    }

    /// All bytes received so far, for the connection.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// A server's end of a handshake.
pub struct QuicHandshake {
    connection: Connection,
    notes: Notes,
}

impl QuicHandshake {
    /// A handshake with the server's transport parameters. `limits` are those that early data
    /// depends on.
    ///
    /// # Errors
    ///
    /// The configuration has no TLS 1.3.
    pub fn new(
        config: Arc<ServerConfig>,
        version: TlsVersion,
        parameters: Vec<u8>,
        limits: InitialLimits,
    ) -> Result<QuicHandshake, rustls::Error> {
        let config = limits.bind(version, config);
        let connection = ServerConnection::new(config, version, parameters)?;
        let connection = Connection::Server(connection);
        Ok(QuicHandshake { connection, notes: Notes::default() })
    }

    /// Processes bytes of the handshake.
    ///
    /// # Errors
    ///
    /// The alert for the client, with a reason for the log.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), QuicAlert> {
        let read = self.connection.read_hs(bytes);
        self.notes.add(notes::take());
        read.map_err(|error| {
            let code = self.connection.alert().map_or(alert::INTERNAL_ERROR, u8::from);
            QuicAlert::new(code, Reason(&error).to_string())
        })
    }

    /// Appends bytes to send, up to the next change of keys.
    pub fn write(&mut self, out: &mut Vec<u8>) -> Option<KeyChange> {
        let change = self.connection.write_hs(out);
        self.notes.add(notes::take());
        change
    }

    /// The client's transport parameters, once they have arrived.
    pub fn parameters(&self) -> Option<&[u8]> {
        self.connection.quic_transport_parameters()
    }

    /// The keys of 0-RTT packets, if early data of a resumed session is accepted.
    pub fn early_keys(&self) -> Option<DirectionalKeys> {
        self.connection.zero_rtt_keys()
    }

    /// The handshake is not complete.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// What both ends have negotiated so far.
    pub fn negotiated(&self) -> Negotiated<'_> {
        Negotiated::of(&self.connection, &self.notes)
    }

    /// What remains of a complete handshake. It takes a tenth of the memory.
    pub fn complete(&self) -> CompleteHandshake {
        CompleteHandshake { agreed: Agreed::of(&self.connection), notes: self.notes }
    }
}

impl fmt::Debug for QuicHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuicHandshake")
    }
}

/// What both ends have negotiated in a complete handshake.
pub struct CompleteHandshake {
    agreed: Agreed,
    notes: Notes,
}

impl CompleteHandshake {
    /// What both ends have negotiated.
    pub fn negotiated(&self) -> Negotiated<'_> {
        self.agreed.negotiated(&self.notes)
    }
}
