//! What is wrong with a running server, in sentences.
//!
//! Once a second the master takes a [`Snapshot`] of the counters. A [`Judge`] compares it with one
//! of some seconds before, by the rules of `rules`. Findings are written to the board in shared
//! memory, so that the pages of all workers show the same. While nothing is wrong and no loop works,
//! the judge sleeps. The first loop that works again wakes it.
//!
//! - In: snapshots. Out: findings, the worst first; their rows of a page.
//! - Callers: `server`, whose master judges and whose loops show it.

mod board;
mod judge;
mod page;
mod rules;
mod snapshot;

pub use board::{fall_asleep, post, posted, wake_up};
pub use judge::Judge;
pub use page::{behind_name, show};
pub use rules::CERTIFICATE_ENDS;
pub use snapshot::{
    AcceptQueue, BlockedFile, EndingCertificate, FailingOrder, FailingServer, LoopState, MemoryUse,
    OldWorker, ProcessState, ServerBehind, Snapshot, Uneven,
};

use std::borrow::Cow;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing is wrong.
    #[default]
    Green,
    /// Clients may not notice it yet.
    Yellow,
    /// Clients notice it.
    Red,
}

impl Level {
    /// Its name on pages.
    pub fn word(self) -> &'static str {
        match self {
            Level::Green => "green",
            Level::Yellow => "yellow",
            Level::Red => "red",
        }
    }

    fn of(byte: u8) -> Level {
        match byte {
            0 => Level::Green,
            1 => Level::Yellow,
            _ => Level::Red,
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule that found it.
    pub rule: Cow<'static, str>,
    /// Its severity.
    pub level: Level,
    /// The server, loop or zone that it is about. Rule and subject together identify a finding.
    pub subject: String,
    /// What is wrong and where.
    pub text: String,
    /// Since when, in milliseconds since 1970.
    pub since: u64,
}
