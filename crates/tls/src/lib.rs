//! TLS over rustls: certificates, SNI, sessions, ALPN.
//!
//! [`ServerSettings`] and [`ClientSettings`] describe how TLS is spoken, and are built into
//! configurations that connections share. A [`TlsConnection`] is the state of one connection
//! without a socket. A [`Wire`] is a socket with or without TLS, for protocols that work alike over
//! both. Certificates are read and verified by OpenSSL's rules ([`x509`]). Cryptography is
//! AWS-LC's. The protocol is rustls', except for the records of a server's connection after the
//! handshake (`records`).
//!
//! - In: settings with certificates and keys; bytes of a peer.
//! - Out: plaintext, the result of the handshake, or a failure in OpenSSL's words.
//! - Callers: `ssl`, which reads the directives; then `http`, `stream` and `upstream` for each
//!   connection; and `bench`.

mod chosen;
mod client;
mod connection;
mod external_sessions;
mod hello;
mod inquiry;
mod key;
mod known;
mod limits;
mod names;
mod negotiated;
mod notes;
mod offload;
mod peers;
mod pem;
mod proxy_header;
pub mod quic;
mod records;
mod schemes;
mod server;
mod session;
mod stream;
mod ticket;
mod trust;
mod verifier;
mod wire;
mod words;
pub mod x509;

pub use chosen::{Chain, IdentitySet, KeyCache, PrivateKey, key_to_der, with_identities};
pub use client::{ClientSessions, ClientSettings, TlsClient};
pub use connection::{ConnectionProgress, TlsConnection};
pub use external_sessions::ExternalSessions;
pub use hello::{
    ACME, FirstBytes, HandshakeError, HandshakeFailure, Hello, read_hello, refuse_plain,
};
pub use inquiry::{Inquiry, SignerTrust, is_response, issuer, responder};
pub use key::{KeyError, passwords};
pub use names::{BadCurve, Chosen, Ciphers, Curves, Versions, cipher, curve, seed_random};
pub use negotiated::Negotiated;
pub use pem::{PemError, write as write_pem};
pub use proxy_header::ProxyHeaderError;
pub use rustls::{Error as TlsError, ServerConfig};
pub use schemes::scheme;
pub use server::{
    Identity, IdentityError, ReplaceableIdentity, ServerSettings, Staple, certificates,
    dh_parameter_bits, out_of_date, revocation_lists,
};
pub use session::SessionCache;
pub use stream::{HandshakeProgress, Inspected, PendingHandshake, Secured, TlsStream};
pub use ticket::{TicketSecret, ticket_secrets_made, turn_ticket_keys};
pub use trust::{CertificateTrust, TrustError};
pub use verifier::{Authorities, CertificateName, machine_store, sha1};
pub use weir_proto::client_hello::{RawHello, is_grease};
pub use wire::Wire;
pub use words::failed_call;

#[cfg(test)]
mod tests;
