//! What a handshake has come to, over TCP or over QUIC.

use rustls::{CommonState, HandshakeKind};

use crate::notes::Notes;
use crate::x509::CertificateKind;

/// What both ends of a connection have agreed on so far.
pub struct Negotiated<'c> {
    pub(crate) common: &'c CommonState,
    pub(crate) notes: &'c Notes,
}

impl<'c> Negotiated<'c> {
    /// The handshake is not complete: what came so far may have been played again. `$ssl_early_data`
    pub fn is_early(&self) -> bool {
        self.common.is_handshaking()
    }

    /// `$ssl_protocol`
    pub fn protocol(&self) -> &'static str {
        self.common.protocol_version().map_or("", crate::names::protocol)
    }

    /// `$ssl_cipher`
    pub fn cipher(&self) -> Option<String> {
        let suite = self.common.negotiated_cipher_suite()?;
        Some(crate::names::cipher(u16::from(suite.suite())))
    }

    /// `$ssl_curve`
    pub fn curve(&self) -> Option<String> {
        let group = self.common.negotiated_key_exchange_group()?;
        Some(crate::names::curve(u16::from(group.name())))
    }

    /// `$ssl_alpn_protocol`
    pub fn alpn(&self) -> Option<&'c [u8]> {
        self.common.alpn_protocol()
    }

    /// `$ssl_session_reused`
    pub fn is_resumed(&self) -> bool {
        self.common.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// `$ssl_session_id`: it names the session that was resumed, or one that may be.
    pub fn session_id(&self) -> Option<&'c [u8; 32]> {
        self.notes.session.as_ref()
    }

    /// `$ssl_sigalg`, unless a session was resumed.
    pub fn signature_scheme(&self) -> Option<String> {
        let ours = self.notes.ours.filter(|_| !self.is_resumed())?;
        Some(crate::schemes::scheme(u16::from(ours)))
    }

    /// `$ssl_client_sigalg`, unless a session was resumed.
    pub fn peer_signature_scheme(&self) -> Option<String> {
        self.notes.theirs.map(|theirs| crate::schemes::scheme(u16::from(theirs)))
    }

    /// Of what kind the certificate is that goes with this end of a connection, if it is a server's.
    pub fn own_certificate(&self) -> Option<CertificateKind> {
        self.notes.certificate
    }

    /// The peer's chain, its own certificate first.
    pub fn peer_certificates(&self) -> &'c [rustls::pki_types::CertificateDer<'static>] {
        self.common.peer_certificates().unwrap_or_default()
    }
}
