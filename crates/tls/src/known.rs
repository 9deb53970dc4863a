//! Certificates with their keys that are in use in this process, by a digest of the texts that they were made of.
//!
//! Another configuration with the same files takes them as they are. To read a key, and to see that it belongs to its
//! certificate, takes a multiplication on its curve: with hundreds of certificates, a good part of a change of the configuration.
//! Only what something else owns is found here: a key that nothing uses any more is not kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use aws_lc_rs::digest::{Context, SHA256};
use rustls::sign::CertifiedKey;

use crate::x509::CertificateKind;

/// So many stand here before the first look for those that are gone.
const FIRST_LOOK: usize = 64;

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// What an identity was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin([u8; 32]);

impl Origin {
    /// Of these texts and passwords.
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
    /// When so many stand here, those that are gone are looked for.
    look: usize,
}

/// What was made of this and is in use.
pub fn find(origin: &Origin) -> Option<(Arc<CertifiedKey>, Option<CertificateKind>)> {
    let known = lock();
    let (key, described) = known.as_ref()?.all.get(origin)?;
    Some((key.upgrade()?, *described))
}

/// Takes note of it.
pub fn keep(origin: Origin, key: &Arc<CertifiedKey>, described: Option<CertificateKind>) {
    let mut known = lock();
    let known = known.get_or_insert_with(|| Known { all: HashMap::new(), look: FIRST_LOOK });
    if known.all.len() >= known.look {
        known.all.retain(|_, (key, _)| key.strong_count() > 0);
        known.look = FIRST_LOOK.max(2 * known.all.len());
    }
    known.all.insert(origin, (Arc::downgrade(key), described));
}

fn lock() -> MutexGuard<'static, Option<Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}
