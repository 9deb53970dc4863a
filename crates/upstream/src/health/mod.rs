//! Active health checks: servers are asked regularly. A server that fails gets no requests until it
//! passes again. nginx: `health_check`. The request and the expected answer belong to the
//! protocol's module.

use std::time::Instant;

pub mod contact;
mod line;
mod watch;

pub use line::{HealthCheckOptions, time};
pub use watch::{CheckFailure, CheckSettings, Watcher, start};

/// The health of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    /// The peer passed its checks, or there are none.
    #[default]
    Healthy,
    /// The peer must pass its checks before it is used for the first time.
    Checking,
    /// The peer failed its checks.
    Unhealthy,
}

/// The health of a peer, with the results in a row that contradict it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    /// The health.
    pub health: Health,
    /// How many results in a row contradict `health`.
    pub against: u32,
    /// When the newest check that counts began. Results of checks that began earlier are ignored.
    pub asked: Option<Instant>,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckResult {
    /// Whether the server answered as expected.
    pub passed: bool,
    /// When the check began. The result describes the server at this time.
    pub asked: Instant,
}

/// How many equal results in a row change the health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// How many failures make a peer unhealthy.
    pub fails: u32,
    /// How many successes make it healthy.
    pub passes: u32,
}

impl Health {
    /// Whether the peer may be used.
    pub fn allows(self) -> bool {
        self == Health::Healthy
    }

    /// Encodes the health as a word of shared memory.
    pub fn to_word(self) -> u64 {
        match self {
            Health::Healthy => 0,
            Health::Checking => 1,
            Health::Unhealthy => 2,
        }
    }

    /// Decodes a word of shared memory.
    pub fn from_word(word: u64) -> Health {
        match word {
            1 => Health::Checking,
            2 => Health::Unhealthy,
            _ => Health::Healthy,
        }
    }
}

impl Record {
    /// A peer that must pass a check that begins at `since` or later; `None` for any check.
    pub fn checking(since: Option<Instant>) -> Record {
        Record { health: Health::Checking, against: 0, asked: since }
    }

    /// Applies the result of a check. True if the health changed.
    pub fn checked(&mut self, verdict: CheckResult, thresholds: Thresholds) -> bool {
        let CheckResult { passed, asked } = verdict;
        if self.asked > Some(asked) {
            return false;
        }
        self.asked = Some(asked);
        let (agrees, needed, other) = match self.health {
            Health::Healthy => (passed, thresholds.fails, Health::Unhealthy),
            // The first failure makes the peer unhealthy. To become healthy, it needs the usual
            // number of passes.
            Health::Checking if !passed => (false, 1, Health::Unhealthy),
            Health::Checking => (false, thresholds.passes, Health::Healthy),
            Health::Unhealthy => (!passed, thresholds.passes, Health::Healthy),
        };
        if agrees {
            self.against = 0;
            return false;
        }
        self.against += 1;
        let changes = self.against >= needed;
        if changes {
            *self = Record { health: other, against: 0, ..*self };
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn now(passed: bool) -> CheckResult {
        CheckResult { passed, asked: Instant::now() }
    }

    #[test]
    fn a_mandatory_check_decides_at_once_against_and_in_time_for() {
        let thresholds = Thresholds { fails: 3, passes: 2 };
        let new = Record::checking(None);
        let mut bad = new;
        assert!(bad.checked(now(false), thresholds));
        assert_eq!(bad.health, Health::Unhealthy);
        let mut good = new;
        assert!(!good.checked(now(true), thresholds));
        assert!(good.checked(now(true), thresholds));
        assert_eq!(good.health, Health::Healthy);
    }

    proptest! {
        /// The last run of equal results that is long enough decides.
        #[test]
        fn runs_decide(
            outcomes in prop::collection::vec(any::<bool>(), 0..60),
            fails in 1u32..4,
            passes in 1u32..4,
        ) {
            let mut record = Record::default();
            let (mut expected, mut run, mut last) = (true, 0, true);
            for passed in outcomes {
                run = if passed == last { run + 1 } else { 1 };
                last = passed;
                if run >= if passed { passes } else { fails } {
                    expected = passed;
                }
                let before = record.health;
                let changed = record.checked(now(passed), Thresholds { fails, passes });
                prop_assert_eq!(changed, before != record.health);
                prop_assert_eq!(record.health.allows(), expected);
            }
        }

        /// Results arrive in any order. The health is that of the results in the order in which
        /// their checks began. Results that a newer one has overtaken are left out.
        #[test]
        fn a_verdict_on_an_older_question_is_ignored(
            checks in prop::collection::vec((0u64..40, any::<bool>()), 0..40),
            fails in 1u32..4,
            passes in 1u32..4,
        ) {
            let (begin, thresholds) = (Instant::now(), Thresholds { fails, passes });
            let (mut record, mut expected, mut newest) = (Record::default(), Record::default(), 0);
            for (asked, passed) in checks {
                let verdict = CheckResult { passed, asked: begin + Duration::from_secs(asked) };
                let before = record;
                record.checked(verdict, thresholds);
                if asked < newest {
                    prop_assert_eq!(record, before);
                } else {
                    newest = asked;
                    expected.checked(verdict, thresholds);
                }
                prop_assert_eq!(record, expected);
            }
        }
    }
}
