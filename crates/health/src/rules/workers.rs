//! Rules about worker processes, and about the configuration that they serve.

use crate::Level::{Red, Yellow};
use crate::judge::{Held, Looks};

/// How long the end of a worker is a finding, in milliseconds, once it was replaced.
const DEATH_SHOWN: u64 = 3500;
/// The least ends of workers within the remembered time that make the finding red.
const ROW: usize = 3;

/// Workers ended without being told to.
pub(super) fn worker_killed(looks: Looks<'_>) -> Vec<Held> {
    let now = looks.now;
    let Some(last) = now.deaths.last() else { return Vec::new() };
    let n = now.deaths.len();
    let is_row = n >= ROW;
    if !is_row && now.now.saturating_sub(*last) > DEATH_SHOWN {
        return Vec::new();
    }
    let (level, text) = match is_row {
        true => (Red, format!("{n} workers ended within a minute, the last: {}", now.last_death)),
        false => (Yellow, format!("{}, and was replaced", now.last_death)),
    };
    let ago = now.now.saturating_sub(*now.deaths.first().unwrap_or(last));
    let since = Some(now.at.saturating_sub(ago));
    vec![Held { level, subject: "workers".to_owned(), text, since }]
}

/// Workers could not start, and the master does not try again.
pub(super) fn worker_missing(looks: Looks<'_>) -> Vec<Held> {
    let n = looks.now.missing;
    if n == 0 {
        return Vec::new();
    }
    let text =
        format!("{n} workers could not start; the error log has the reason, a reload tries again");
    vec![Held { level: Red, subject: "workers".to_owned(), text, since: None }]
}

/// The last reload failed: the configuration in use is not that of the file.
pub(super) fn reload_failed(looks: Looks<'_>) -> Vec<Held> {
    let failed = looks.now.failed_reload.map(|at| Held {
        level: Yellow,
        subject: "configuration".to_owned(),
        text: "the last reload failed, the configuration before it serves on; the error log has the reason"
            .to_owned(),
        since: Some(at),
    });
    failed.into_iter().collect()
}

/// A worker without connections ends within this time, in milliseconds.
const LEAVES: u64 = 10_000;

/// A worker was told to end, has nothing to do and does not.
pub(super) fn old_worker(looks: Looks<'_>) -> Vec<Held> {
    let now = looks.now.now;
    let late = |told: u64| now.saturating_sub(told) > LEAVES;
    let all = looks.now.old_workers.iter();
    let held = all.filter(|worker| worker.open == 0 && late(worker.told)).map(|worker| {
        let subject = format!("old worker process {}", worker.pid);
        let text = format!("{subject} has no connections and does not end");
        let since = Some(looks.now.at.saturating_sub(now.saturating_sub(worker.told)));
        Held { level: Yellow, subject, text, since }
    });
    held.collect()
}
