//! The rules. Each is a function over two snapshots and has a row in docs/health.md.

use crate::Level::{self, Red, Yellow};
use crate::judge::{Held, Looks};
use crate::snapshot::{
    BlockedFile, EndingCertificate, FailingOrder, FailingServer, LoopState, MemoryUse,
    ServerBehind, Snapshot, Uneven,
};

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

/// All of them.
pub(crate) const RULES: &[Rule] = &[
    Rule { name: "no_live_server", appears: 2, stays: 1, find: no_live_server },
    Rule { name: "server_failing", appears: 2, stays: 1, find: server_failing },
    Rule { name: "server_errors", appears: 2, stays: 0, find: server_errors },
    Rule { name: "stuck_loop", appears: 0, stays: 1, find: stuck_loop },
    Rule { name: "worker_killed", appears: 0, stays: 0, find: worker_killed },
    Rule { name: "worker_missing", appears: 0, stays: 0, find: worker_missing },
    Rule { name: "reload_failed", appears: 0, stays: 0, find: reload_failed },
    Rule { name: "accept_queue", appears: 2, stays: 1, find: accept_queue },
    Rule { name: "connections", appears: 2, stays: 1, find: connections },
    Rule { name: "uneven_loops", appears: 1, stays: 0, find: uneven_loops },
    Rule { name: "flood", appears: 2, stays: 0, find: flood },
    Rule { name: "cache_disk", appears: 0, stays: 0, find: cache_disk },
    Rule { name: "log_disk", appears: 0, stays: 0, find: log_disk },
    Rule { name: "blocked_disk", appears: 0, stays: 1, find: blocked_disk },
    Rule { name: "descriptors", appears: 0, stays: 1, find: descriptors },
    Rule { name: "memory", appears: 2, stays: 1, find: memory },
    Rule { name: "certificate", appears: 0, stays: 0, find: certificate },
    Rule { name: "acme", appears: 0, stays: 0, find: acme },
    Rule { name: "name_server", appears: 0, stays: 0, find: name_server },
    Rule { name: "old_worker", appears: 2, stays: 1, find: old_worker },
];

/// Failures in a row from which on a reachable server counts as broken. A single one may be a bad request's.
const FAILURES: u64 = 3;

fn is_broken(server: &ServerBehind) -> Option<&FailingServer> {
    let failing = server.failing.as_ref().filter(|_| !server.is_out)?;
    (failing.unreachable || failing.in_a_row >= FAILURES).then_some(failing)
}

/// Whether all servers of a group that are to serve are broken.
fn is_lost(group: &str, all: &[ServerBehind]) -> bool {
    let mut own = all.iter().filter(|server| server.group == group && !server.is_out);
    own.all(|server| is_broken(server).is_some())
}

/// No server of a group works: its requests fail.
fn no_live_server(looks: Looks<'_>) -> Vec<Held> {
    let all = &looks.now.servers;
    let mut found: Vec<Held> = Vec::new();
    for server in all {
        let Some(failing) = is_broken(server) else { continue };
        if found.iter().any(|held| held.subject == server.group) || !is_lost(&server.group, all) {
            continue;
        }
        let (group, name) = (&server.group, &server.server);
        let own = all.iter().filter(|other| other.group == *group && !other.is_out);
        let n = own.count();
        let text = match n {
            1 => format!("{group}: {name} fails: {}", failing.reason),
            _ => format!("{group}: all {n} servers fail, {name}: {}", failing.reason),
        };
        let (subject, since) = (group.clone(), failing.since);
        found.push(Held { level: Red, subject, text, since });
    }
    found
}

/// A server behind fails, others of its group do not.
fn server_failing(looks: Looks<'_>) -> Vec<Held> {
    let all = &looks.now.servers;
    let broken = all.iter().filter_map(|server| Some((server, is_broken(server)?)));
    let some = broken.filter(|(server, _)| !is_lost(&server.group, all));
    let held = some.map(|(server, failing)| {
        let subject = format!("{}: {}", server.group, server.server);
        let text = format!("{subject} fails: {}", failing.reason);
        Held { level: Yellow, subject, text, since: failing.since }
    });
    held.collect()
}

/// The least errors within the window that count.
const ERRORS: u64 = 5;
/// The shares of failed requests from which on the finding is yellow and red.
const SOME_ERRORS: f64 = 0.05;
const MANY_ERRORS: f64 = 0.25;

/// Many requests end in 5xx.
fn server_errors(looks: Looks<'_>) -> Vec<Held> {
    let (errors, requests) = (looks.grown(|s| s.errors), looks.grown(|s| s.requests));
    // A request is counted at its beginning, its error at its end.
    let requests = requests.max(errors);
    let share = errors as f64 / requests.max(1) as f64;
    if errors < ERRORS || share < SOME_ERRORS {
        return Vec::new();
    }
    let level = if share < MANY_ERRORS { Yellow } else { Red };
    let errors = looks.rate(|s| s.errors).round();
    let requests = looks.rate(|s| s.requests).round().max(errors);
    let text = format!("{errors} of {requests} requests a second end in 5xx");
    vec![Held { level, subject: "requests".to_owned(), text, since: None }]
}

/// The longest turn of a loop that is not a finding, in milliseconds.
const LONG_TURN: u64 = 1000;

/// A handler has blocked its loop for long.
fn stuck_loop(looks: Looks<'_>) -> Vec<Held> {
    let stuck = looks.now.loops.iter().filter(|one| one.awake_for > LONG_TURN);
    let held = stuck.map(|one| {
        let subject = match one.is_old {
            false => format!("loop {} of worker {}", one.index, one.worker),
            true => format!("loop {} of old worker process {}", one.index, one.pid),
        };
        // Without the duration, which would change the text at each look.
        let at = one.stalled.as_ref().map_or(String::new(), |at| format!(": {at}"));
        let text =
            format!("{subject} (process {}) is stuck in one turn, its requests wait{at}", one.pid);
        Held { level: Red, subject, text, since: Some(looks.now.at.saturating_sub(one.awake_for)) }
    });
    held.collect()
}

/// How long the end of a worker is a finding, in milliseconds, once it was replaced.
const DEATH_SHOWN: u64 = 3500;
/// The least ends of workers within the remembered time that make the finding red.
const ROW: usize = 3;

/// Workers ended without being told to.
fn worker_killed(looks: Looks<'_>) -> Vec<Held> {
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
fn worker_missing(looks: Looks<'_>) -> Vec<Held> {
    let n = looks.now.missing;
    if n == 0 {
        return Vec::new();
    }
    let text =
        format!("{n} workers could not start; the error log has the reason, a reload tries again");
    vec![Held { level: Red, subject: "workers".to_owned(), text, since: None }]
}

/// The last reload failed: the configuration in use is not that of the file.
fn reload_failed(looks: Looks<'_>) -> Vec<Held> {
    let failed = looks.now.failed_reload.map(|at| Held {
        level: Yellow,
        subject: "configuration".to_owned(),
        text: "the last reload failed, the configuration before it serves on; the error log has the reason"
            .to_owned(),
        since: Some(at),
    });
    failed.into_iter().collect()
}

/// A queue or table is nearly full from this share on.
const NEARLY: f64 = 0.9;

fn share(n: u64, most: u64) -> f64 {
    n as f64 / most.max(1) as f64
}

/// Connections come faster than they are accepted.
fn accept_queue(looks: Looks<'_>) -> Vec<Held> {
    let full = looks
        .now
        .queues
        .iter()
        .filter(|queue| queue.most > 0 && share(queue.n.into(), queue.most.into()) >= NEARLY);
    let held = full.map(|queue| {
        let (subject, n, most) = (queue.address.clone(), queue.n, queue.most);
        let level = if n < most { Yellow } else { Red };
        let text =
            format!("{n} connections to {subject} wait to be accepted, the queue takes {most}");
        Held { level, subject, text, since: None }
    });
    held.collect()
}

/// A loop has nearly as many connections as it may have.
fn connections(looks: Looks<'_>) -> Vec<Held> {
    let most = looks.now.connections;
    let all = looks.now.loops.iter().filter(|one| most > 0 && share(one.open, most) >= NEARLY);
    let held = all.map(|one| {
        let subject = format!("loop {} of worker {}", one.index, one.worker);
        let text =
            format!("{subject} has {} connections, worker_connections allows {most}", one.open);
        Held { level: Yellow, subject, text, since: None }
    });
    held.collect()
}

/// An imbalance goes on if the busiest loop has worked for this share of the last seconds.
const STILL: f64 = 0.5;

/// The least share of the time between two looks that the busiest loop worked.
const NEARLY_ALWAYS: f64 = 0.8;
/// The least time between two looks over which a short imbalance is judged, in milliseconds.
const LEAST_WORK: u64 = 1900;
/// The least coefficient of variation of the loops' shares of work.
const DIFFERENT: f64 = 0.5;

/// One loop has most of the work for ten seconds, or nearly all of it for some seconds.
fn uneven_loops(looks: Looks<'_>) -> Vec<Held> {
    let Some(Uneven { worker, index, most, mean, loops, .. }) =
        lately_uneven(looks).or_else(|| now_uneven(looks))
    else {
        return Vec::new();
    };
    let text = format!(
        "loop {index} of worker {worker} is busy for {most} % of the time, the mean of {loops} loops is {mean} %"
    );
    vec![Held { level: Yellow, subject: "loops".to_owned(), text, since: None }]
}

/// The share of the time between two looks in which a loop was busy; none if it is new.
fn worked(looks: Looks<'_>, pid: u32, index: u32) -> Option<f64> {
    let is = |one: &&LoopState| one.pid == pid && one.index == index;
    let busy = |of: &Snapshot| Some(of.loops.iter().find(is)?.busy);
    let elapsed = looks.now.now.saturating_sub(looks.before.now);
    Some(share(busy(looks.now)?.saturating_sub(busy(looks.before)?), elapsed).min(1.0))
}

/// The imbalance of ten seconds, if it goes on.
fn lately_uneven(looks: Looks<'_>) -> Option<Uneven> {
    let uneven = looks.now.uneven.as_ref()?;
    (worked(looks, uneven.pid, uneven.index)? >= STILL).then(|| uneven.clone())
}

/// The imbalance between two looks, by a stricter measure. A loop that is stuck in one turn has a rule of its own.
fn now_uneven(looks: Looks<'_>) -> Option<Uneven> {
    if looks.now.now.saturating_sub(looks.before.now) < LEAST_WORK {
        return None;
    }
    let new = looks.now.loops.iter().filter(|one| !one.is_old);
    let all = new.filter_map(|one| Some((worked(looks, one.pid, one.index)?, one)));
    let all: Vec<(f64, &LoopState)> = all.collect();
    let (most, busiest) = all.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let n = all.len() as f64;
    let mean = all.iter().map(|(share, _)| share).sum::<f64>() / n;
    let variance = all.iter().map(|(share, _)| (share - mean).powi(2)).sum::<f64>() / n;
    if *most < NEARLY_ALWAYS || variance.sqrt() < DIFFERENT * mean || busiest.awake_for > LONG_TURN
    {
        return None;
    }
    let percent = |share: f64| (share * 100.0).round() as u32;
    let LoopState { worker, index, pid, .. } = **busiest;
    let (most, mean) = (percent(*most), percent(mean));
    Some(Uneven { worker, index, pid, most, mean, loops: all.len() })
}

/// The least refused requests within the window that count.
const REFUSED: u64 = 30;

/// Limits refuse most requests.
fn flood(looks: Looks<'_>) -> Vec<Held> {
    let (limited, requests) = (looks.grown(|s| s.limited), looks.grown(|s| s.requests));
    if limited < REFUSED || limited.saturating_mul(2) < requests {
        return Vec::new();
    }
    let limited = looks.rate(|s| s.limited).round();
    let requests = looks.rate(|s| s.requests).round().max(limited);
    let text = format!(
        "a flood: limit_req or limit_conn refuses {limited} of {requests} requests a second; the error log names clients and zones"
    );
    vec![Held { level: Yellow, subject: "limits".to_owned(), text, since: None }]
}

/// Files of caches cannot be read or written.
fn cache_disk(looks: Looks<'_>) -> Vec<Held> {
    let (faults, unstored) = (looks.grown(|s| s.cache_faults), looks.grown(|s| s.unstored));
    let text = match (faults, unstored) {
        (0, 0) => return Vec::new(),
        (0, _) => "the disk of a cache is too slow: answers pass unstored".to_owned(),
        _ => "files of a cache cannot be written or read; the error log has the reason".to_owned(),
    };
    vec![Held { level: Yellow, subject: "caches".to_owned(), text, since: None }]
}

/// Log files do not take lines: their disk is full, too slow or broken.
fn log_disk(looks: Looks<'_>) -> Vec<Held> {
    let text = "log files do not take lines, which are lost: their disk is full or too slow";
    when(looks.grown(|s| s.log_lost) > 0, Yellow, "logs", text)
}

/// The longest call on a file that is not a finding, in milliseconds.
const LONG_CALL: u64 = 2000;

/// Threads wait for a disk that does not answer.
fn blocked_disk(looks: Looks<'_>) -> Vec<Held> {
    let all = || looks.now.blocked.iter().filter(|one| one.lasts > LONG_CALL);
    let Some(oldest) = all().max_by_key(|one| one.lasts) else { return Vec::new() };
    let BlockedFile { pid, lasts, what, .. } = oldest;
    let others = match all().count() - 1 {
        0 => String::new(),
        1 => ", and one in another worker".to_owned(),
        n => format!(", and one in each of {n} other workers"),
    };
    let text = format!("a disk blocks: {what} does not end in worker process {pid}{others}");
    let level = if all().any(|one| one.reads) { Red } else { Yellow };
    let since = Some(looks.now.at.saturating_sub(*lasts));
    vec![Held { level, subject: "disk".to_owned(), text, since }]
}

/// Workers cannot open more, or soon cannot.
fn descriptors(looks: Looks<'_>) -> Vec<Held> {
    let text =
        "connections cannot be accepted: descriptors or memory are short (worker_rlimit_nofile)";
    let mut found = when(looks.grown(|s| s.accepts_failed) > 0, Red, "accept", text);
    for process in &looks.now.processes {
        let (n, most) = (process.descriptors, process.descriptors_limit);
        if most > 0 && share(n, most) >= NEARLY {
            let subject = format!("worker process {}", process.pid);
            let text =
                format!("{subject} has {n} of {most} descriptors open (worker_rlimit_nofile)");
            found.push(Held { level: Yellow, subject, text, since: None });
        }
    }
    found
}

/// The kernel is about to kill processes for want of memory.
fn memory(looks: Looks<'_>) -> Vec<Held> {
    let Some(MemoryUse { used, limit }) = looks.now.memory else { return Vec::new() };
    // Rounded, so that the text does not change with every look.
    let percent = (share(used, limit) * 100.0).floor();
    let text = format!(
        "{percent} % of the {} MiB of memory that this container or unit may have are used",
        limit >> 20
    );
    when(share(used, limit) >= NEARLY, Yellow, "memory", &text)
}

const DAY: u64 = 24 * 60 * 60 * 1000;
/// How long before its end a certificate is a finding, in milliseconds. Automatic renewal comes earlier.
pub const CERTIFICATE_ENDS: u64 = 14 * DAY;

/// A certificate ends soon, or has ended.
fn certificate(looks: Looks<'_>) -> Vec<Held> {
    let at = looks.now.at;
    let all = looks.now.certificates.iter();
    let ending = || all.clone().filter(|one| one.not_after < at.saturating_add(CERTIFICATE_ENDS));
    let Some(first) = ending().min_by_key(|one| one.not_after) else { return Vec::new() };
    let EndingCertificate { file, name, not_after } = first;
    let (level, since) = match not_after.checked_sub(at) {
        Some(_) => (Yellow, not_after.saturating_sub(CERTIFICATE_ENDS)),
        None => (Red, *not_after),
    };
    let when = match (not_after.saturating_sub(at) / DAY, level) {
        (_, Red) => "has ended".to_owned(),
        (0, _) => "ends within a day".to_owned(),
        (days, _) => format!("ends in {days} days"),
    };
    let others = match ending().count() - 1 {
        0 => String::new(),
        n => format!(", and {n} more end within 14 days"),
    };
    let text = format!("the certificate {file} ({name}) {when}{others}");
    vec![Held { level, subject: "certificates".to_owned(), text, since: Some(since) }]
}

/// An authority does not give certificates. Clients notice it once one is missing or has ended.
fn acme(looks: Looks<'_>) -> Vec<Held> {
    let (at, all) = (looks.now.at, &looks.now.orders);
    let level = |order: &FailingOrder| if order.not_after > at { Yellow } else { Red };
    let mut found: Vec<Held> = Vec::new();
    for FailingOrder { issuer, .. } in all {
        if found.iter().any(|held| held.subject == *issuer) {
            continue;
        }
        let own = || all.iter().filter(|order| order.issuer == *issuer);
        // The worst of them: without a certificate, or the one that ends first.
        let Some(worst) = own().min_by_key(|order| order.not_after) else { continue };
        let what = match (level(worst), worst.not_after) {
            (Red, 0) => "there is no certificate",
            (Red, _) => "no new certificate comes in place of the ended one",
            _ => "the certificate is not renewed",
        };
        let next = worst.next.as_ref().map_or_else(String::new, |at| format!(", next try {at}"));
        let others = match own().count() - 1 {
            0 => String::new(),
            n => format!(", nor for {n} more"),
        };
        let (names, reason) = (&worst.names, &worst.reason);
        let text = format!("{issuer}: {what} for {names}{others}{next}: {reason}");
        let since = own().map(|order| order.since).min();
        found.push(Held { level: level(worst), subject: issuer.clone(), text, since });
    }
    found
}

/// Names cannot be looked up.
fn name_server(looks: Looks<'_>) -> Vec<Held> {
    let text = "a name server does not answer in time: requests to names fail or wait";
    when(looks.grown(|s| s.lookups_timed_out) > 0, Yellow, "resolver", text)
}

fn when(holds: bool, level: Level, subject: &str, text: &str) -> Vec<Held> {
    let held = || Held { level, subject: subject.to_owned(), text: text.to_owned(), since: None };
    holds.then(held).into_iter().collect()
}

/// A worker without connections ends within this time, in milliseconds.
const LEAVES: u64 = 10_000;

/// A worker was told to end, has nothing to do and does not.
fn old_worker(looks: Looks<'_>) -> Vec<Held> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Judge, ProcessState};

    const NOW: u64 = 1_790_000_000_000;

    /// What the first looks find.
    fn finds(snapshot: &Snapshot) -> Vec<(String, Level, String)> {
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

    fn certificate(name: &str, not_after: u64) -> EndingCertificate {
        EndingCertificate { file: format!("/etc/{name}.pem"), name: name.to_owned(), not_after }
    }

    #[test]
    fn a_certificate_is_named_in_its_last_fortnight() {
        let with = |certificates| finds(&Snapshot { at: NOW, certificates, ..Snapshot::default() });
        assert_eq!(with(vec![certificate("a", NOW + 15 * DAY)]), []);
        let found = with(vec![certificate("a", NOW + 14 * DAY - 1)]);
        let text = "the certificate /etc/a.pem (a) ends in 13 days";
        assert_eq!(found, [("certificate".to_owned(), Yellow, text.to_owned())]);
        let found = with(vec![certificate("a", NOW + DAY / 2)]);
        assert!(found[0].2.ends_with(" ends within a day"), "{found:?}");
        let found = with(vec![certificate("a", NOW + 9 * DAY), certificate("b", NOW - 1)]);
        let text = "the certificate /etc/b.pem (b) has ended, and 1 more end within 14 days";
        assert_eq!(found, [("certificate".to_owned(), Red, text.to_owned())]);
    }

    #[test]
    fn an_authority_that_gives_no_certificate_is_named_with_its_reason_and_the_next_try() {
        let order = |issuer: &str, names: &str, not_after| FailingOrder {
            issuer: issuer.to_owned(),
            names: names.to_owned(),
            not_after,
            since: NOW - 5000,
            next: Some("at noon".to_owned()),
            reason: "no such zone (dns)".to_owned(),
        };
        let with = |orders| finds(&Snapshot { at: NOW, orders, ..Snapshot::default() });
        assert_eq!(with(vec![]), []);
        let found = with(vec![order("ca", "a.org", NOW + DAY)]);
        let text =
            "ca: the certificate is not renewed for a.org, next try at noon: no such zone (dns)";
        assert_eq!(found, [("acme".to_owned(), Yellow, text.to_owned())]);
        let found = with(vec![
            order("ca", "a.org", NOW + DAY),
            order("other", "c.org", NOW - 1),
            order("ca", "b.org, d.org", 0),
        ]);
        let text = "ca: there is no certificate for b.org, d.org, nor for 1 more, next try at noon: no such zone (dns)";
        assert_eq!(found[0], ("acme".to_owned(), Red, text.to_owned()));
        assert!(found[1].2.starts_with("other: no new certificate comes in place of"), "{found:?}");
        assert_eq!(found.len(), 2);
    }

    /// What looks of four loops find, a second apart. Each has worked for so many milliseconds in each second.
    fn looks_at_work(seconds: &[[u64; 4]]) -> Vec<bool> {
        let (mut judge, mut busy) = (Judge::default(), [0; 4]);
        let look = |(second, work): (usize, &[u64; 4])| {
            busy.iter_mut().zip(work).for_each(|(busy, work)| *busy += work);
            let of = |i: usize| LoopState {
                pid: 7,
                index: i as u32,
                busy: busy[i],
                ..LoopState::default()
            };
            let (now, loops) = (second as u64 * 1000, (0..4).map(of).collect());
            let found = judge.look(Snapshot { at: NOW + now, now, loops, ..Snapshot::default() });
            found.iter().any(|found| found.rule == "uneven_loops")
        };
        seconds.iter().enumerate().map(look).collect()
    }

    #[test]
    fn a_loop_with_all_the_work_is_named_within_five_looks_and_forgotten_within_five() {
        let (calm, uneven) = ([30, 20, 10, 40], [990, 0, 5, 0]);
        let course = [[calm; 5].as_slice(), &[uneven; 10], &[calm; 10]].concat();
        let found = looks_at_work(&course);
        let first = found.iter().position(|found| *found).unwrap();
        assert!((5..10).contains(&first), "{found:?}");
        let over = found[first..].iter().position(|found| !found).unwrap() + first;
        assert!((15..20).contains(&over), "{found:?}");
        assert!(!found[over..].contains(&true), "{found:?}");
    }

    #[test]
    fn loops_that_differ_for_a_moment_or_all_work_are_even() {
        let never = |course: &[[u64; 4]]| !looks_at_work(course).contains(&true);
        assert!(never(&[[900, 850, 990, 800]; 20]));
        assert!(never(&[[700, 100, 0, 0]; 20]));
        // Two seconds of work for one loop, such as a large page that is compressed.
        let burst = [[[0; 4]; 5].as_slice(), &[[1000, 0, 0, 0]; 2], &[[0; 4]; 5]].concat();
        assert!(never(&[&burst[..], &burst[..], &burst[..]].concat()));
        // One loop after another works, as a single client comes again and again.
        let turns = (0..20).map(|i| std::array::from_fn(|j| if i / 2 % 4 == j { 950 } else { 0 }));
        assert!(never(&turns.collect::<Vec<_>>()));
    }

    #[test]
    fn the_oldest_operation_that_a_disk_blocks_is_named() {
        let of = |pid, lasts, reads| {
            let what = format!("open \"/disk/{pid}\"");
            BlockedFile { pid, lasts, reads, what }
        };
        let with = |blocked| finds(&Snapshot { at: NOW, blocked, ..Snapshot::default() });
        assert_eq!(with(vec![of(7, 1900, true)]), []);
        let text = "a disk blocks: open \"/disk/7\" does not end in worker process 7";
        let found = with(vec![of(7, 2100, false), of(8, 1500, true)]);
        assert_eq!(found, [("blocked_disk".to_owned(), Yellow, text.to_owned())]);
        let found = with(vec![of(7, 2200, false), of(8, 2100, true)]);
        let text = format!("{text}, and one in another worker");
        assert_eq!(found, [("blocked_disk".to_owned(), Red, text)]);
    }

    #[test]
    fn memory_is_named_from_nine_tenths_of_the_limit_on() {
        let with = |used| {
            let memory = Some(MemoryUse { used, limit: 1000 << 20 });
            finds(&Snapshot { at: NOW, memory, ..Snapshot::default() })
        };
        assert_eq!(with(899 << 20), []);
        let text = "91 % of the 1000 MiB of memory that this container or unit may have are used";
        assert_eq!(with(919 << 20), [("memory".to_owned(), Yellow, text.to_owned())]);
    }

    #[test]
    fn descriptors_are_named_from_nine_tenths_of_the_limit_on() {
        let with = |descriptors, descriptors_limit| {
            let processes = vec![ProcessState { pid: 7, descriptors, descriptors_limit }];
            finds(&Snapshot { at: NOW, processes, ..Snapshot::default() })
        };
        assert_eq!(with(89, 100), []);
        assert_eq!(with(5000, 0), []);
        let text = "worker process 7 has 90 of 100 descriptors open (worker_rlimit_nofile)";
        assert_eq!(with(90, 100), [("descriptors".to_owned(), Yellow, text.to_owned())]);
    }
}
