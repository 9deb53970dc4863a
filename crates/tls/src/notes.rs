//! What rustls asks for, or decides, in the midst of a step of the handshake and does not tell
//! afterwards. The code that makes that step takes the notes right after it, on the same thread.

use std::cell::Cell;

use aws_lc_rs::digest;
use rustls::SignatureScheme;

use crate::session::first_32;
use crate::x509::CertificateKind;

/// What was noted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Notes {
    /// Which session a client brought, or was given. The first counts: one that is resumed comes before one that
    /// is given for the next time.
    pub session: Option<[u8; 32]>,
    /// How we have signed.
    pub ours: Option<SignatureScheme>,
    /// How the peer has signed.
    pub theirs: Option<SignatureScheme>,
    /// Which certificate of ours was chosen.
    pub certificate: Option<CertificateKind>,
}

thread_local! {
    static NOTES: Cell<Notes> = const {
        Cell::new(Notes { session: None, ours: None, theirs: None, certificate: None })
    };
}

fn change(with: impl FnOnce(&mut Notes)) {
    let mut notes = NOTES.get();
    with(&mut notes);
    NOTES.set(notes);
}

/// A session by its identifier or ticket.
pub fn session(id: &[u8]) {
    change(|notes| {
        let hash = || first_32(digest::digest(&digest::SHA256, id));
        notes.session.get_or_insert_with(hash);
    });
}

/// Our signature's scheme.
pub fn ours(scheme: SignatureScheme) {
    change(|notes| notes.ours = Some(scheme));
}

/// The peer's signature's scheme.
pub fn theirs(scheme: SignatureScheme) {
    change(|notes| notes.theirs = Some(scheme));
}

/// The certificate that is shown, or was when the session began.
pub fn certificate(kind: Option<CertificateKind>) {
    change(|notes| notes.certificate = kind);
}

/// All notes since the last time.
pub fn take() -> Notes {
    NOTES.take()
}

impl Notes {
    /// Adds what was noted later; what was known before stays.
    pub fn add(&mut self, later: Notes) {
        self.session = self.session.or(later.session);
        self.ours = self.ours.or(later.ours);
        self.theirs = self.theirs.or(later.theirs);
        self.certificate = self.certificate.or(later.certificate);
    }
}
