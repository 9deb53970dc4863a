//! A certificate that a keeper manages: its order, its newest file, the pace of its attempts, and
//! when it is to be renewed.

use std::sync::Arc;
use std::time::Duration;

use crate::policy::{Interval, Pace, due};
use crate::settings::CertificateOrder;
use crate::standing::Standing;
use crate::state::StoredCertificate;

/// A managed certificate.
pub(crate) struct ManagedCertificate {
    pub(crate) order: Arc<CertificateOrder>,
    /// When a configuration first had this order, in seconds since 1970. It may have corrected
    /// earlier errors.
    pub(crate) read_at: i64,
    pub(crate) stored: Option<StoredCertificate>,
    /// The pace of the attempts, in the process with the lock.
    pub(crate) pace: Pace,
    /// The renewal window that the authority suggests.
    pub(crate) suggested: Option<Interval>,
    /// When to request the renewal window again.
    pub(crate) next_window_request: Duration,
    /// The standing that was last posted to the other processes.
    pub(crate) posted: Option<Standing>,
}

impl ManagedCertificate {
    pub(crate) fn new(
        order: &Arc<CertificateOrder>,
        read_at: i64,
        pace: Pace,
        next_window_request: Duration,
    ) -> ManagedCertificate {
        let order = Arc::clone(order);
        ManagedCertificate {
            order,
            read_at,
            stored: None,
            pace,
            suggested: None,
            next_window_request,
            posted: None,
        }
    }

    /// This certificate, with the order of another configuration.
    pub(crate) fn of(self, order: &Arc<CertificateOrder>) -> ManagedCertificate {
        let path = self.stored.as_ref().map(StoredCertificate::shared_path);
        if order.file() != path {
            order.set_file(path);
        }
        ManagedCertificate { order: Arc::clone(order), ..self }
    }

    /// When it is to be renewed. None if there is no certificate.
    pub(crate) fn due_at(&self, uri: &String) -> Option<i64> {
        self.stored.as_ref().map(|stored| {
            // A certificate of another authority is to be replaced now.
            let is_foreign = stored.uri.as_ref().is_some_and(|from| from != uri);
            if is_foreign { i64::MIN } else { due_of(stored, self.suggested) }
        })
    }
}

/// When a certificate is to be renewed. All processes compute the same time.
pub(crate) fn due_of(stored: &StoredCertificate, suggested: Option<Interval>) -> i64 {
    let mut dice = [0; 8];
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &stored.der);
    dice.iter_mut().zip(hash.as_ref()).for_each(|(to, from)| *to = *from);
    due(stored.validity, suggested, u64::from_ne_bytes(dice))
}
