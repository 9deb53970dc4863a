//! What rustls passes to callbacks, or decides in them, during a step of the handshake and does not
//! report afterwards. The callbacks leave notes for their thread. The code that takes the step
//! collects them right after it.

use std::cell::Cell;

use aws_lc_rs::digest;
use rustls::SignatureScheme;

use crate::session::first_32;
use crate::x509::CertificateKind;

/// The notes of a connection, or of one step.
#[derive(Debug, Clone, Copy, Default)]
pub struct Notes {
    /// The SHA-256 of the session's ID or ticket. The first note counts: a resumed session is noted
    /// before a new one is issued.
    pub session: Option<[u8; 32]>,
    /// The scheme of this end's signature.
    pub own_scheme: Option<SignatureScheme>,
    /// The scheme of the peer's signature.
    pub peer_scheme: Option<SignatureScheme>,
    /// The kind of this server's certificate.
    pub certificate: Option<CertificateKind>,
}

thread_local! {
    static NOTES: Cell<Notes> = const {
        Cell::new(Notes { session: None, own_scheme: None, peer_scheme: None, certificate: None })
    };
}

fn change(with: impl FnOnce(&mut Notes)) {
    let mut notes = NOTES.get();
    with(&mut notes);
    NOTES.set(notes);
}

/// Notes a session by its ID or ticket.
pub fn session(id: &[u8]) {
    change(|notes| {
        let hash = || first_32(digest::digest(&digest::SHA256, id));
        notes.session.get_or_insert_with(hash);
    });
}

/// Notes the scheme of this end's signature.
pub fn own_scheme(scheme: SignatureScheme) {
    change(|notes| notes.own_scheme = Some(scheme));
}

/// Notes the scheme of the peer's signature.
pub fn peer_scheme(scheme: SignatureScheme) {
    change(|notes| notes.peer_scheme = Some(scheme));
}

/// Notes the certificate that was chosen. rustls also asks for one if it resumes a session.
pub fn certificate(kind: Option<CertificateKind>) {
    change(|notes| notes.certificate = kind);
}

/// Takes this thread's notes.
pub fn take() -> Notes {
    NOTES.take()
}

impl Notes {
    /// Adds later notes. Earlier ones stay.
    pub fn add(&mut self, later: Notes) {
        self.session = self.session.or(later.session);
        self.own_scheme = self.own_scheme.or(later.own_scheme);
        self.peer_scheme = self.peer_scheme.or(later.peer_scheme);
        self.certificate = self.certificate.or(later.certificate);
    }
}
