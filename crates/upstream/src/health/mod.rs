//! Active checks: servers are asked regularly, and one that does not answer as it should gets
//! nothing to do until it does. nginx: `health_check`. How a server is asked depends on the
//! protocol's module.

use std::time::Instant;

pub mod contact;
mod line;
mod watch;

pub use line::{HealthCheckOptions, time};
pub use watch::{CheckFailure, CheckSettings, Watcher, start};

/// A peer's state of health.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    /// Nothing speaks against it.
    #[default]
    Healthy,
    /// It must pass its checks before it is used for the first time.
    Checking,
    /// It has failed its checks.
    Unhealthy,
}

/// Checks in a row that came out otherwise than the state says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    /// The state.
    pub health: Health,
    /// How many in a row speak against it.
    pub against: u32,
    /// When the newest check that counts was asked. Verdicts on older questions are ignored.
    pub asked: Option<Instant>,
}

/// What one check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckResult {
    /// The server answered as it should.
    pub passed: bool,
    /// When the check began. The verdict tells of this moment, however late it comes.
    pub asked: Instant,
}

/// How many checks in a row change the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// So many failures make a peer unhealthy.
    pub fails: u32,
    /// So many successes make it healthy.
    pub passes: u32,
}

impl Health {
    /// It may be used.
    pub fn allows(self) -> bool {
        self == Health::Healthy
    }

    /// As a word of shared memory.
    pub fn to_word(self) -> u64 {
        match self {
            Health::Healthy => 0,
            Health::Checking => 1,
            Health::Unhealthy => 2,
        }
    }

    /// From such a word.
    pub fn from_word(word: u64) -> Health {
        match word {
            1 => Health::Checking,
            2 => Health::Unhealthy,
            _ => Health::Healthy,
        }
    }
}

impl Record {
    /// Peers must pass a check that is asked from `since` on; none: any check.
    pub fn checking(since: Option<Instant>) -> Record {
        Record { health: Health::Checking, against: 0, asked: since }
    }

    /// A check was made; true if it changed the state.
    pub fn checked(&mut self, verdict: CheckResult, thresholds: Thresholds) -> bool {
        let CheckResult { passed, asked } = verdict;
        if self.asked > Some(asked) {
            return false;
        }
        self.asked = Some(asked);
        let (agrees, needed, other) = match self.health {
            Health::Healthy => (passed, thresholds.fails, Health::Unhealthy),
            // One failure answers the question; as many passes as it takes.
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
        /// The state is what the last long enough run of equal outcomes said.
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

        /// Verdicts come in any order. The state is what they say in the order of their questions, without those that
        /// a newer one overtook.
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
