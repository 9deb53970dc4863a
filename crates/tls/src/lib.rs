//! TLS over rustls: certificates, SNI, sessions, ALPN.
//!
//! [`ServerSettings`] and [`ClientSettings`] say what TLS is to be and become configurations that
//! connections share. A [`TlsConnection`] is the state of one of them without a socket; a [`Wire`] is a socket
//! with or without TLS, for a protocol above that works alike over both. Certificates are read and verified
//! by OpenSSL's rules ([`x509`]), cryptography is aws-lc's, and the protocol rustls', but for the records of a server's connection after
//! the handshake (`records`).
//!
//! - In: settings with certificates and keys; bytes of a peer.
//! - Out: plain bytes, what the handshake showed, or a failure in OpenSSL's words.
//! - Callers: `ssl`, which reads the directives, then `http`, `stream` and `upstream` for each connection; and `bench`.

mod chosen;
mod client;
mod connection;
mod handed;
mod hello;
mod inquiry;
mod key;
mod known;
mod limits;
mod names;
mod negotiated;
mod notes;
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
pub use handed::HandedSessions;
pub use hello::{ACME, Begin, HandshakeError, HandshakeFailure, Hello, begin, refuse_plain};
pub use inquiry::{Believe, Inquiry, is_response, issuer, responder};
pub use key::{KeyError, passwords};
pub use names::{BadCurve, Chosen, Ciphers, Curves, Versions, cipher, curve, seed_random};
pub use negotiated::Negotiated;
pub use pem::{PemError, write as write_pem};
pub use proxy_header::ProxyHeaderError;
pub use rustls::{Error as TlsError, ServerConfig};
pub use schemes::scheme;
pub use server::{
    ComingIdentity, Identity, IdentityError, ServerSettings, Staple, certificates,
    check_dh_parameters, out_of_date, revocation_lists,
};
pub use session::SessionCache;
pub use stream::{Advanced, Halfway, Inspected, Secured, TlsStream};
pub use ticket::{TicketSecret, turn_ticket_keys};
pub use trust::{CertificateTrust, TrustError};
pub use verifier::{Authorities, CertificateName, machine_store, sha1};
pub use weir_proto::client_hello::{RawHello, is_grease};
pub use wire::Wire;
pub use words::failed_call;

#[cfg(test)]
mod tests;
