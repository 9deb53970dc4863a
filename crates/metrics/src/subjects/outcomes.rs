//! The last success and the last failure under a name, in a cell and over all loops.

use std::sync::atomic::AtomicU64;

use super::{FAILING, FAILURE, IN_A_ROW, REASON, SUCCESS, load, store};

/// The last success and failure of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// The last success, in milliseconds since 1970.
    pub success: Option<u64>,
    /// The last failure, in milliseconds since 1970, and its reason.
    pub failure: Option<(u64, u64)>,
    /// Failures since the last success.
    pub in_a_row: u64,
    /// The first of these failures.
    pub failing: Option<u64>,
}

impl Outcomes {
    /// Whether it has failed since its last success.
    pub fn is_failing(&self) -> bool {
        self.failure.is_some_and(|(at, _)| self.success.is_none_or(|success| success < at))
    }

    /// The outcomes in a cell.
    pub(super) fn of(words: &[AtomicU64]) -> Outcomes {
        let [success, failure, reason, in_a_row, failing] =
            [SUCCESS, FAILURE, REASON, IN_A_ROW, FAILING].map(|at| load(words, at));
        Outcomes {
            success: Some(success).filter(|at| *at > 0),
            failure: Some((failure, reason)).filter(|(at, _)| *at > 0),
            in_a_row,
            failing: Some(failing).filter(|_| in_a_row > 0),
        }
    }

    /// Merges the outcomes of two loops. Failures before the other loop's success do not count.
    pub(super) fn merged(self, other: Outcomes) -> Outcomes {
        let success = self.success.max(other.success);
        let rows = [self, other].map(|one| match (Outcomes { success, ..one }).is_failing() {
            true => (one.in_a_row, one.failing),
            false => (0, None),
        });
        Outcomes {
            success,
            failure: self.failure.max(other.failure),
            in_a_row: rows[0].0.wrapping_add(rows[1].0),
            failing: rows.iter().filter_map(|(_, failing)| *failing).min(),
        }
    }

    pub(super) fn store(self, words: &[AtomicU64]) {
        let (failure, reason) = self.failure.unwrap_or_default();
        let (success, failing) = (self.success.unwrap_or(0), self.failing.unwrap_or(0));
        let values = [success, failure, reason, self.in_a_row, failing];
        for (at, value) in [SUCCESS, FAILURE, REASON, IN_A_ROW, FAILING].into_iter().zip(values) {
            store(words, at, value);
        }
    }
}
