//! What a handshake has come to, over TCP or over QUIC.

use rustls::pki_types::CertificateDer;
use rustls::{CommonState, HandshakeKind, ProtocolVersion};

use crate::notes::Notes;
use crate::x509::CertificateKind;

/// What both ends of a connection have agreed on so far.
pub struct Negotiated<'c> {
    early: bool,
    resumed: bool,
    version: Option<ProtocolVersion>,
    suite: Option<u16>,
    group: Option<u16>,
    alpn: Option<&'c [u8]>,
    certificates: &'c [CertificateDer<'static>],
    notes: &'c Notes,
}

/// What both ends have agreed on in a handshake that is done.
pub(crate) struct Agreed {
    resumed: bool,
    version: Option<ProtocolVersion>,
    suite: Option<u16>,
    group: Option<u16>,
    alpn: Option<Box<[u8]>>,
    certificates: Box<[CertificateDer<'static>]>,
}

impl Agreed {
    pub(crate) fn of(common: &CommonState) -> Agreed {
        let notes = Notes::default();
        let Negotiated { resumed, version, suite, group, alpn, certificates, .. } =
            Negotiated::of(common, &notes);
        let (alpn, certificates) = (alpn.map(Box::from), Box::from(certificates));
        Agreed { resumed, version, suite, group, alpn, certificates }
    }

    pub(crate) fn negotiated<'c>(&'c self, notes: &'c Notes) -> Negotiated<'c> {
        let Agreed { resumed, version, suite, group, .. } = *self;
        let (alpn, certificates) = (self.alpn.as_deref(), &*self.certificates);
        Negotiated { early: false, resumed, version, suite, group, alpn, certificates, notes }
    }
}

impl<'c> Negotiated<'c> {
    pub(crate) fn of(common: &'c CommonState, notes: &'c Notes) -> Negotiated<'c> {
        Negotiated {
            early: common.is_handshaking(),
            resumed: common.handshake_kind() == Some(HandshakeKind::Resumed),
            version: common.protocol_version(),
            suite: common.negotiated_cipher_suite().map(|suite| u16::from(suite.suite())),
            group: common.negotiated_key_exchange_group().map(|group| u16::from(group.name())),
            alpn: common.alpn_protocol(),
            certificates: common.peer_certificates().unwrap_or_default(),
            notes,
        }
    }

    /// Of a connection that has failed.
    pub(crate) fn none(notes: &'c Notes) -> Negotiated<'c> {
        Negotiated {
            early: false,
            resumed: false,
            version: None,
            suite: None,
            group: None,
            alpn: None,
            certificates: &[],
            notes,
        }
    }

    /// The handshake is not complete: what came so far may have been played again. `$ssl_early_data`
    pub fn is_early(&self) -> bool {
        self.early
    }

    /// `$ssl_protocol`
    pub fn protocol(&self) -> &'static str {
        self.version.map_or("", crate::names::protocol)
    }

    /// `$ssl_cipher`
    pub fn cipher(&self) -> Option<String> {
        self.suite.map(crate::names::cipher)
    }

    /// `$ssl_curve`
    pub fn curve(&self) -> Option<String> {
        self.group.map(crate::names::curve)
    }

    /// `$ssl_alpn_protocol`
    pub fn alpn(&self) -> Option<&'c [u8]> {
        self.alpn
    }

    /// `$ssl_session_reused`
    pub fn is_resumed(&self) -> bool {
        self.resumed
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
    pub fn peer_certificates(&self) -> &'c [CertificateDer<'static>] {
        self.certificates
    }
}
