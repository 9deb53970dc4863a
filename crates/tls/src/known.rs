//! Certificates with their keys that this process uses, by a digest of the texts that they were
//! read from.
//!
//! A new configuration with the same files reuses them. To read a key and compare it with its
//! certificate takes a multiplication on its curve. With hundreds of certificates, that is a good
//! part of a reload. The references are weak: a key that nothing else uses is dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use aws_lc_rs::digest::{Context, SHA256};
use rustls::sign::CertifiedKey;

use crate::x509::CertificateKind;

/// The number of entries at which dropped ones are removed for the first time.
const FIRST_SWEEP: usize = 64;

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// A digest of the texts that an identity was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin([u8; 32]);

impl Origin {
    /// The digest of these PEM texts and passwords.
    pub fn of(chain: &[u8], key: &[u8], passwords: &[Vec<u8>]) -> Origin {
        let mut context = Context::new(&SHA256);
        let parts = [chain, key].into_iter().chain(passwords.iter().map(Vec::as_slice));
        for part in parts {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let mut bytes = [0; 32];
        let digest = context.finish();
        bytes.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
        Origin(bytes)
    }
}

struct Known {
    all: HashMap<Origin, (Weak<CertifiedKey>, Option<CertificateKind>)>,
    /// The number of entries at which dropped ones are removed next.
    sweep_at: usize,
}

/// The certificate and key of this origin, if they are in use.
pub fn find(origin: &Origin) -> Option<(Arc<CertifiedKey>, Option<CertificateKind>)> {
    let known = lock();
    let (key, described) = known.as_ref()?.all.get(origin)?;
    Some((key.upgrade()?, *described))
}

/// Remembers a certificate and its key while they are in use.
pub fn keep(origin: Origin, key: &Arc<CertifiedKey>, described: Option<CertificateKind>) {
    let mut known = lock();
    let known = known.get_or_insert_with(|| Known { all: HashMap::new(), sweep_at: FIRST_SWEEP });
    if known.all.len() >= known.sweep_at {
        known.all.retain(|_, (key, _)| key.strong_count() > 0);
        known.sweep_at = FIRST_SWEEP.max(2 * known.all.len());
    }
    known.all.insert(origin, (Arc::downgrade(key), described));
}

fn lock() -> MutexGuard<'static, Option<Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}
