//! Rates and percentiles over the interval between two snapshots.

use std::collections::{BTreeMap, BTreeSet};

use crate::snapshot::{Balance, Cache, Histogram, Loop, Peer, Snapshot, Zone};
use crate::words::{age, bytes, count, percent, time};

/// The values to show.
#[derive(Debug, Default)]
pub(crate) struct ShownValues {
    pub about: String,
    /// The health or the balance, and whether it is alarming.
    pub state: (String, bool),
    pub requests: f64,
    pub accepted: f64,
    pub open: f64,
    pub sent: f64,
    /// Connections that wait to be accepted, and the sum of the backlogs.
    pub waiting: (u64, u64),
    /// The loops that would be woken next, in order.
    pub next: String,
    pub loops: Vec<LoopRow>,
    pub culprits: Vec<BlockCause>,
    pub tables: Vec<TextTable>,
}

/// A loop.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoopRow {
    pub name: String,
    pub pid: i32,
    /// The share of its time that it works, 0 to 1.
    pub share: f64,
    pub requests: f64,
    pub open: u64,
    pub inflight: u64,
    /// The longest time that an event waited for the loop, in microseconds.
    pub blocked: f64,
    pub armed: bool,
    pub state: String,
    pub key: (u32, u32),
}

/// A cause that blocked loops.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BlockCause {
    pub what: String,
    /// Whether it is still running.
    pub running: bool,
    /// The longest time that it blocked a loop, in microseconds.
    pub longest: f64,
    pub times: usize,
    pub loops: usize,
    /// Seconds since it last ended.
    pub last: f64,
}

/// A table as text.
#[derive(Debug, Clone)]
pub(crate) struct TextTable {
    pub title: &'static str,
    pub columns: &'static [TextColumn],
    pub rows: Vec<TextRow>,
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextColumn {
    pub name: &'static str,
    /// Whether cells are text, aligned to the left. Numbers are aligned to the right.
    pub words: bool,
    /// On a narrow screen, columns with the highest rank are dropped first. Those with rank 0 stay.
    pub rank: u8,
}

/// A row of a table.
#[derive(Debug, Clone)]
pub(crate) struct TextRow {
    pub cells: Vec<String>,
    /// Whether the row shows a problem.
    pub alarm: bool,
}

const fn words(name: &'static str, rank: u8) -> TextColumn {
    TextColumn { name, words: true, rank }
}

const fn number(name: &'static str, rank: u8) -> TextColumn {
    TextColumn { name, words: false, rank }
}

/// The growth of a counter per second. If it has decreased, it was reset. NaN without an earlier
/// snapshot.
fn rate(now: f64, then: f64, seconds: f64) -> f64 {
    (if now >= then { now - then } else { now }) / if seconds > 0.0 { seconds } else { f64::NAN }
}

/// A quantile of the values between two histograms, in microseconds.
fn quantile(now: &Histogram, then: Option<&Histogram>, share: f64) -> Option<f64> {
    let Some(steps) = &now.steps else {
        let known = if share <= 0.5 {
            now.p50_us
        } else if share <= 0.9 {
            now.p90_us
        } else {
            now.p99_us
        };
        return (now.count > 0.0).then_some(known);
    };
    let then = then.filter(|then| then.count <= now.count);
    let before = then.and_then(|then| then.steps.as_deref()).unwrap_or_default();
    let under = |end: f64| {
        let at = before.partition_point(|(other, _)| *other <= end);
        at.checked_sub(1).map_or(0.0, |at| before[at].1)
    };
    let grown: Vec<(f64, f64)> = steps.iter().map(|(end, n)| (*end, n - under(*end))).collect();
    let total = grown.last().filter(|(_, n)| *n > 0.0)?.1;
    let rank = (total * share).ceil().max(1.0);
    grown.iter().find(|(_, n)| *n >= rank).map(|(end, _)| *end)
}

/// The longest value between two histograms. Their mean if the server sends no buckets.
fn worst(now: &Histogram, then: &Histogram) -> f64 {
    if now.count <= then.count {
        return 0.0;
    }
    match now.steps {
        Some(_) => quantile(now, Some(then), 1.0).unwrap_or(0.0),
        None => (now.sum_us - then.sum_us) / (now.count - then.count),
    }
}

fn names(loops: &[&Loop]) -> Vec<String> {
    let one_each = loops.iter().all(|l| l.number == 0);
    let one_worker = loops.iter().all(|l| l.worker == loops[0].worker);
    let name = |l: &&Loop| match (one_worker, one_each) {
        (true, _) => l.number.to_string(),
        (_, true) => l.worker.to_string(),
        _ => format!("{}.{}", l.worker, l.number),
    };
    loops.iter().map(name).collect()
}

impl ShownValues {
    /// The values of the first snapshot. Without an earlier one, rates are those of the server for
    /// its last seconds.
    pub(crate) fn first(now: &Snapshot) -> ShownValues {
        let mut values = ShownValues::of(now, now);
        let seconds = now.lately.max(0.001);
        let lately = |of: fn(&Loop) -> f64| now.loops.iter().map(of).sum::<f64>() / seconds;
        values.requests = lately(|l| l.lately_requests);
        values.accepted = lately(|l| l.lately_accepted);
        values.sent = lately(|l| l.lately_sent);
        for row in &mut values.loops {
            let is = |l: &&Loop| (l.worker, l.number) == row.key && !l.finishing;
            let found = now.loops.iter().find(is);
            row.requests = found.map_or(0.0, |l| l.lately_requests / seconds);
            row.share = found.map_or(0.0, |l| l.share_busy);
        }
        values.state = headline(now, state(&now.balance, &values.loops, values.requests));
        values
    }

    /// The values between two snapshots.
    pub(crate) fn of(now: &Snapshot, then: &Snapshot) -> ShownValues {
        let seconds = now.now - then.now;
        let own: Vec<&Loop> = now.loops.iter().filter(|l| !l.finishing).collect();
        let before: BTreeMap<(i32, i32), &Loop> =
            then.loops.iter().map(|l| ((l.pid, l.tid), l)).collect();
        let armed: BTreeSet<usize> = now.balance.next.iter().copied().collect();
        let is_next =
            |l: &Loop| now.loops.iter().position(|o| o == l).is_some_and(|i| armed.contains(&i));
        let mut sent = 0.0;
        let mut loops = Vec::new();
        for (l, name) in own.iter().zip(names(&own)) {
            let old = before.get(&(l.pid, l.tid)).copied();
            let grown = |of: fn(&Loop) -> f64| old.map_or(0.0, |old| rate(of(l), of(old), seconds));
            sent += grown(|l| l.sent);
            let share = old.map(|old| {
                let worked = (l.busy_us + l.awake_for_us) - (old.busy_us + old.awake_for_us);
                (worked / 1e6 / seconds.max(0.001)).clamp(0.0, 1.0)
            });
            loops.push(LoopRow {
                name,
                pid: l.pid,
                share: share.unwrap_or(l.share_busy),
                requests: grown(|l| l.requests),
                open: l.open,
                inflight: l.inflight,
                blocked: old.map_or(0.0, |old| worst(&l.blocked, &old.blocked)).max(l.awake_for_us),
                armed: is_next(l),
                state: l.state.clone(),
                key: (l.worker, l.number),
            });
        }
        let total = |name: &str| now.totals.get(name).copied().unwrap_or(0.0);
        let past = |name: &str| then.totals.get(name).copied().unwrap_or(0.0);
        let grown = |name: &str| rate(total(name), past(name), seconds);
        let queued = |l: &crate::snapshot::Listener| match l.queues.is_empty() {
            true => l.queue,
            false => l.queues.iter().sum(),
        };
        let name_of = |i: &usize| {
            let l = now.loops.get(*i)?;
            loops.iter().find(|row| row.key == (l.worker, l.number)).map(|row| row.name.clone())
        };
        let next: Vec<String> = now.balance.next.iter().filter_map(name_of).take(6).collect();
        ShownValues {
            about: about(now, &own),
            state: headline(now, state(&now.balance, &loops, grown("requests"))),
            requests: grown("requests"),
            accepted: grown("accepted_connections"),
            open: total("active_connections"),
            sent,
            waiting: (
                now.listeners.iter().map(queued).sum(),
                now.listeners.iter().map(|l| l.backlog).sum(),
            ),
            next: next.join(", then "),
            loops,
            culprits: culprits(now),
            tables: [
                peers(now, then, seconds),
                zones(now, then, seconds),
                caches(now, then, seconds),
            ]
            .into_iter()
            .filter(|table| !table.rows.is_empty())
            .collect(),
        }
    }
}

fn about(now: &Snapshot, loops: &[&Loop]) -> String {
    let workers = loops.iter().map(|l| l.worker).collect::<BTreeSet<_>>().len();
    let s = |n: usize| if n == 1 { "" } else { "s" };
    format!(
        "weir {} · {} loop{} in {workers} worker{} · up {}",
        now.build.version,
        loops.len(),
        s(loops.len()),
        s(workers),
        age(now.uptime)
    )
}

/// The headline: the health if it is not green, otherwise the balance.
fn headline(now: &Snapshot, balance: (String, bool)) -> (String, bool) {
    let health = &now.health;
    let glyph = match health.state.as_str() {
        "red" => "✕ RED",
        "yellow" => "▲ yellow",
        _ => return balance,
    };
    let ago =
        health.since.map_or(String::new(), |at| format!(", {}", age((now.now - at).max(0.0))));
    (format!("{glyph}{ago}: {}", health.text), true)
}

/// The balance, in the same words as the dashboard's. One request per second is this tool's own.
fn state(balance: &Balance, loops: &[LoopRow], requests: f64) -> (String, bool) {
    let mean = loops.iter().map(|l| l.share).sum::<f64>() / loops.len().max(1) as f64;
    let busiest = loops.iter().max_by(|a, b| a.share.total_cmp(&b.share));
    let most = busiest.map_or(0.0, |l| l.share);
    let index = format!("imbalance {:.2}, {}", balance.imbalance, balance.policy);
    let word = match balance {
        _ if requests < 2.0 && most < 0.2 => "○ idle",
        _ if most < 0.02 => "○ light load",
        Balance { alarm: true, .. } => {
            let most = busiest.filter(|_| mean > 0.0).map_or(String::new(), |l| {
                format!(": loop {} works {:.1} times the mean", l.name, l.share / mean)
            });
            return (format!("▲ UNEVEN{most} ({index})"), true);
        }
        _ if balance.threshold > 0.0 && balance.imbalance >= balance.threshold => "◐ loops differ",
        _ => "● even",
    };
    (format!("{word} ({index})"), false)
}

fn culprits(now: &Snapshot) -> Vec<BlockCause> {
    type Blamed = (BlockCause, BTreeSet<(u32, u32)>);
    let mut found: BTreeMap<(bool, String), Blamed> = BTreeMap::new();
    for c in &now.culprits {
        let what = match c.kind.as_str() {
            "preempted" => format!("the machine, which took the processor away (from {})", c.what),
            _ => c.what.clone(),
        };
        let running = c.kind == "running";
        let fresh = || {
            let what = what.clone();
            let blame =
                BlockCause { what, running, longest: 0.0, times: 0, loops: 0, last: f64::MAX };
            (blame, BTreeSet::new())
        };
        let (blame, loops) = found.entry((running, what.clone())).or_insert_with(fresh);
        blame.times += 1;
        blame.longest = blame.longest.max(c.took_us);
        blame.last = blame.last.min((now.now - c.at).max(0.0));
        loops.insert((c.worker, c.number));
        blame.loops = loops.len();
    }
    let mut all: Vec<BlockCause> = found.into_values().map(|(blame, _)| blame).collect();
    all.sort_by(|a, b| b.running.cmp(&a.running).then(b.longest.total_cmp(&a.longest)));
    all
}

/// Formats a percentile: the upper bound of its bucket.
fn percentile_text(micros: Option<f64>) -> String {
    micros.map_or("-".to_owned(), |micros| format!("≤ {}", time(micros)))
}

fn zones(now: &Snapshot, then: &Snapshot, seconds: f64) -> TextTable {
    let row = |(name, zone): (&String, &Zone)| {
        let old = then.status_zones.get(name).unwrap_or(zone);
        let of = |zone: &Zone, what: &str| {
            zone.requests.get(what).or(zone.sessions.get(what)).copied().unwrap_or(0.0)
        };
        let at = |share| percentile_text(quantile(&zone.latency, Some(&old.latency), share));
        let failed = rate(of(zone, "5xx"), of(old, "5xx"), seconds);
        let cells = vec![
            name.clone(),
            count(rate(of(zone, "total"), of(old, "total"), seconds)),
            at(0.5),
            at(0.9),
            at(0.99),
            count(failed),
            bytes(rate(zone.sent, old.sent, seconds)),
        ];
        TextRow { cells, alarm: failed > 0.0 }
    };
    TextTable {
        title: "Latency",
        columns: const {
            &[
                words("zone", 0),
                number("requests/s", 0),
                number("p50", 1),
                number("p90", 3),
                number("p99", 0),
                number("5xx/s", 0),
                number("sent/s", 2),
            ]
        },
        rows: now.status_zones.iter().map(row).collect(),
    }
}

fn peers(now: &Snapshot, then: &Snapshot, seconds: f64) -> TextTable {
    let mut rows = Vec::new();
    let (groups, before) = (now.groups(), then.groups());
    for (group, peers) in &groups {
        for peer in peers {
            let is = |old: &&Peer| (&old.server, &old.name) == (&peer.server, &peer.name);
            let old = before.get(group).into_iter().flatten().find(is).unwrap_or(peer);
            let total = |peer: &Peer| peer.requests.get("total").copied().unwrap_or(0.0);
            let at = |share| percentile_text(quantile(&peer.latency, Some(&old.latency), share));
            let alarm =
                peer.state.split([' ', ',']).any(|word| ["failing", "down"].contains(&word));
            let failure = peer.last_failure.map_or(String::new(), |at| {
                let what = peer.failure.as_deref().unwrap_or("failed");
                format!("{what} {} ago", age(now.now - at))
            });
            let cells = vec![
                format!("{group}: {}", peer.server),
                format!("{}{}", peer.state, if peer.backup { ", backup" } else { "" }),
                count(rate(total(peer), total(old), seconds)),
                peer.active.to_string(),
                at(0.5),
                at(0.99),
                count(rate(peer.fails, old.fails, seconds)),
                failure,
            ];
            rows.push(TextRow { cells, alarm });
        }
    }
    // Failed servers are shown first, since the end of the table may be cut off.
    rows.sort_by_key(|row| !row.alarm);
    TextTable {
        title: "Upstream servers",
        columns: const {
            &[
                words("group and server", 0),
                words("state", 0),
                number("requests/s", 0),
                number("in flight", 4),
                number("p50", 3),
                number("p99", 2),
                number("failures/s", 1),
                words("last failure", 0),
            ]
        },
        rows,
    }
}

fn caches(now: &Snapshot, then: &Snapshot, seconds: f64) -> TextTable {
    let row = |(name, cache): (&String, &Cache)| {
        let old = then.caches.get(name).unwrap_or(cache);
        let n = |what: &str| {
            let of = |cache: &Cache| cache.requests.get(what).copied().unwrap_or(0.0);
            rate(of(cache), of(old), seconds)
        };
        let stale = n("stale") + n("updating");
        let (served, missed) = (n("hit") + stale + n("revalidated"), n("miss") + n("expired"));
        let asked = served + missed + n("bypass");
        let fill = match cache.max_size {
            Some(most) if most > 0.0 => format!("{} of {}", bytes(cache.size), bytes(most)),
            _ => bytes(cache.size),
        };
        let cells = vec![
            name.clone(),
            count(asked),
            if asked > 0.0 { percent(served / asked) } else { "-".to_owned() },
            count(missed),
            count(stale),
            count(rate(cache.evicted, old.evicted, seconds)),
            cache.entries.to_string(),
            fill,
        ];
        TextRow { cells, alarm: false }
    };
    TextTable {
        title: "Caches",
        columns: const {
            &[
                words("cache", 0),
                number("requests/s", 0),
                number("hits", 0),
                number("misses/s", 1),
                number("stale/s", 3),
                number("evicted/s", 2),
                number("entries", 4),
                number("fill", 0),
            ]
        },
        rows: now.caches.iter().map(row).collect(),
    }
}
