//! The result of a handshake over TCP or QUIC.

use rustls::pki_types::CertificateDer;
use rustls::{CommonState, HandshakeKind, ProtocolVersion};

use crate::notes::Notes;
use crate::x509::CertificateKind;

/// What both ends have negotiated so far.
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

/// What both ends have negotiated in a complete handshake.
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

    /// For a connection that has failed.
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

    /// The handshake is not complete, so data received so far may be a replay. `$ssl_early_data`
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

    /// `$ssl_session_id`: identifies the session that was resumed, or else one that can be resumed
    /// later.
    pub fn session_id(&self) -> Option<&'c [u8; 32]> {
        self.notes.session.as_ref()
    }

    /// `$ssl_sigalg`, unless a session was resumed.
    pub fn signature_scheme(&self) -> Option<String> {
        let ours = self.notes.own_scheme.filter(|_| !self.is_resumed())?;
        Some(crate::schemes::scheme(u16::from(ours)))
    }

    /// `$ssl_client_sigalg`, unless a session was resumed.
    pub fn peer_signature_scheme(&self) -> Option<String> {
        self.notes.peer_scheme.map(|theirs| crate::schemes::scheme(u16::from(theirs)))
    }

    /// The kind of this server's certificate. `None` at a client's end.
    pub fn own_certificate(&self) -> Option<CertificateKind> {
        self.notes.certificate
    }

    /// The peer's chain, its own certificate first.
    pub fn peer_certificates(&self) -> &'c [CertificateDer<'static>] {
        self.certificates
    }
}
