//! The rules. Each is a function over two snapshots and has a row in docs/health.md. The files below
//! have the rules by what they are about.

use crate::Level;
use crate::judge::{Held, Looks};

mod certificates;
mod disks;
mod limits;
mod loops;
mod servers;
mod workers;

pub use certificates::CERTIFICATE_ENDS;

/// A rule.
pub(crate) struct Rule {
    /// Its name in pages and metrics.
    pub(crate) name: &'static str,
    /// Its condition becomes a finding after so many further looks: 0 if it cannot flicker.
    pub(crate) appears: u64,
    /// How many looks a finding outlives its condition: 0 if the condition cannot flicker, or is a rate over some
    /// seconds.
    pub(crate) stays: u64,
    /// What it finds.
    pub(crate) find: fn(Looks<'_>) -> Vec<Held>,
}

/// All rules.
pub(crate) const RULES: &[Rule] = &[
    Rule { name: "no_live_server", appears: 2, stays: 1, find: servers::no_live_server },
    Rule { name: "server_failing", appears: 2, stays: 1, find: servers::server_failing },
    Rule { name: "server_errors", appears: 2, stays: 0, find: servers::server_errors },
    Rule { name: "stuck_loop", appears: 0, stays: 1, find: loops::stuck_loop },
    Rule { name: "worker_killed", appears: 0, stays: 0, find: workers::worker_killed },
    Rule { name: "worker_missing", appears: 0, stays: 0, find: workers::worker_missing },
    Rule { name: "reload_failed", appears: 0, stays: 0, find: workers::reload_failed },
    Rule { name: "accept_queue", appears: 2, stays: 1, find: loops::accept_queue },
    Rule { name: "connections", appears: 2, stays: 1, find: loops::connections },
    Rule { name: "uneven_loops", appears: 1, stays: 0, find: loops::uneven_loops },
    Rule { name: "flood", appears: 2, stays: 0, find: limits::flood },
    Rule { name: "cache_disk", appears: 0, stays: 0, find: disks::cache_disk },
    Rule { name: "log_disk", appears: 0, stays: 0, find: disks::log_disk },
    Rule { name: "blocked_disk", appears: 0, stays: 1, find: disks::blocked_disk },
    Rule { name: "descriptors", appears: 0, stays: 1, find: limits::descriptors },
    Rule { name: "memory", appears: 2, stays: 1, find: limits::memory },
    Rule { name: "certificate", appears: 0, stays: 0, find: certificates::certificate },
    Rule { name: "acme", appears: 0, stays: 0, find: certificates::acme },
    Rule { name: "name_server", appears: 0, stays: 0, find: servers::name_server },
    Rule { name: "old_worker", appears: 2, stays: 1, find: workers::old_worker },
];

/// A queue or table is nearly full from this share on.
const NEARLY: f64 = 0.9;

/// The share of a queue or table that is used.
fn share(n: u64, most: u64) -> f64 {
    n as f64 / most.max(1) as f64
}

/// A finding without a known beginning, if its condition holds.
fn when(holds: bool, level: Level, subject: &str, text: &str) -> Vec<Held> {
    let held = || Held { level, subject: subject.to_owned(), text: text.to_owned(), since: None };
    holds.then(held).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Judge;
    use crate::snapshot::Snapshot;

    pub(super) const NOW: u64 = 1_790_000_000_000;

    /// What the first looks find.
    pub(super) fn finds(snapshot: &Snapshot) -> Vec<(String, Level, String)> {
        let mut judge = Judge::default();
        let mut found = Vec::new();
        for second in 0..4 {
            let (at, now) = (snapshot.at + second * 1000, second * 1000);
            found = judge.look(Snapshot { at, now, ..snapshot.clone() });
        }
        found.into_iter().map(|f| (f.rule.into_owned(), f.level, f.text)).collect()
    }

    /// The counters stand in memory that a worker may spoil.
    #[test]
    fn counters_of_any_size_are_judged() {
        for limited in [0, 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX] {
            let mut judge = Judge::default();
            let mut found = Vec::new();
            for second in 0..10 {
                let most = u64::MAX * second.min(1);
                let (limited, requests) = (limited * second.min(1), most);
                let counters = Snapshot {
                    limited,
                    requests,
                    errors: most,
                    cache_faults: most,
                    unstored: most,
                    ..Snapshot::default()
                };
                let (log_lost, accepts_failed, lookups_timed_out) = (most, most, most);
                let (at, now) = (NOW + second * 1000, second * 1000);
                found.push(judge.look(Snapshot {
                    at,
                    now,
                    log_lost,
                    accepts_failed,
                    lookups_timed_out,
                    ..counters
                }));
            }
            let floods = found.iter().flatten().any(|one| one.rule == "flood");
            assert_eq!(floods, limited > u64::MAX / 2, "{limited}");
        }
    }
}
