//! The server's part of status pages: loops, their balance, and listening sockets.

pub mod machine;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_acme::Standings;
use weir_engine::coarse_nanos;
use weir_metrics::subjects;
use weir_metrics::{
    ACME, AllCounted, BALANCE, BUILD, CERTIFICATES, Culprit, Histogram, LISTENERS, LOOPS,
    LoopTally, Metric, MetricValue, MetricsPage, POOL_SUMS, POOLS, PROCESSES, Registry, SERVER,
    SHARED, TallyOwner, Times, WINDOW, quoted,
};
use weir_ssl::CertificateFacts;
use weir_sys::sockdiag;
use weir_sys::tcpinfo::accept_queue;
use weir_values::{Address, Identity};
use weir_zone::Zones;

use crate::cycle::Cycle;
use crate::health;
use crate::service::Sites;
use crate::sockets::Sockets;
use crate::version;

/// From this coefficient of variation on, the loops' work is uneven.
const UNEVEN: f64 = 0.5;
/// Uneven work does not matter if no loop is busy for a larger share of the time than this.
const MATTERS: f64 = 0.5;

/// What a loop needs to show the status of the server.
pub struct StatusInputs {
    /// All counters.
    pub registry: Registry,
    /// The loop that shows it.
    pub owner: TallyOwner,
    policy: &'static str,
    /// Whether all loops wait for the same connections, so that one of them accepts next.
    has_next: bool,
    listeners: Vec<ListenStatus>,
    zones: RefCell<Zones>,
    pools: Vec<String>,
    workers: usize,
    connections: usize,
    sites: RefCell<Sites>,
}

/// The name under which a worker's file pool is counted.
pub fn pool_name(pool: &str, worker: usize) -> String {
    format!("{pool}\n{worker}")
}

/// Zones that consist of rows.
const ROWS: [&str; 4] = ["status_zone", "upstream", "upstream names", Standings::TAG];

/// A listening address. The sockets belong to the loops; these references must not keep them open.
struct ListenStatus {
    address: Address,
    sockets: Vec<Weak<OwnedFd>>,
    /// Whether each loop has its own socket, including loops of other processes.
    each: bool,
}

impl StatusInputs {
    /// For a loop of this cycle.
    pub fn new(cycle: &Cycle, registry: Registry, of: Identity, generation: u64) -> StatusInputs {
        let tid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let owner = TallyOwner { worker: of.worker, index: of.index, pid: of.pid, tid, generation };
        let streams = cycle.sockets.iter().filter(|socket| !socket.listen.udp);
        let listeners = streams.map(|socket| ListenStatus {
            address: socket.listen.address.clone(),
            sockets: socket.copies.iter().map(Arc::downgrade).collect(),
            each: socket.is_each_loops_own(),
        });
        let named = cycle.config.pools.iter().map(|(name, _)| name);
        StatusInputs {
            registry,
            owner,
            policy: cycle.config.events.balance.name(),
            has_next: cycle.sockets.iter().any(|socket| socket.is_shared()),
            listeners: listeners.collect(),
            zones: RefCell::new(cycle.zones.clone()),
            pools: std::iter::once("default".to_owned()).chain(named.cloned()).collect(),
            workers: cycle.config.processes,
            connections: cycle.config.events.connections,
            sites: RefCell::new(cycle.sites.clone()),
        }
    }

    /// The loop serves these sites from now on.
    pub fn now(&self, sites: &Sites, zones: &Zones) {
        self.sites.replace(sites.clone());
        self.zones.replace(zones.clone());
    }

    /// Adds the server's rows to a page, with the counters under names.
    pub fn show(&self, counted: &AllCounted, page: &mut MetricsPage) {
        let mut loops = self.registry.loops();
        loops.sort_by_key(|tally| (tally.owner.generation, tally.owner.worker, tally.owner.index));
        self.show_server(&loops, page);
        machine::show(page);
        show_processes(&loops, page);
        show_certificates(&self.sites.borrow(), page);
        show_orders(&self.sites.borrow(), page);
        self.show_loops(&loops, page);
        for listener in &self.listeners {
            listener.show(page);
        }
        weir_health::show(self.registry.board(), health::wall_millis(), page);
        page.add_json("culprits", culprits(&loops));
        for name in &self.pools {
            let (mut queues, mut waits) = (0, Times::default());
            let values = |queue, times| {
                vec![("queue", MetricValue::Number(queue)), ("wait", MetricValue::Times(times))]
            };
            for worker in 0..self.workers {
                let counted = counted.of(subjects::SubjectKind::Pool, &pool_name(name, worker));
                queues += counted.gauge();
                waits.merge(&counted.times);
                let labels = vec![name.clone(), worker.to_string()];
                page.add(&POOLS, labels, values(counted.gauge(), counted.times));
            }
            page.add(&POOL_SUMS, vec![name.clone()], values(queues, waits));
        }
        for zone in self.zones.borrow().iter().filter(|zone| !ROWS.contains(&zone.tag())) {
            let (size, table) = (zone.size(), zone.lock());
            let values = vec![
                ("kind", MetricValue::Word(zone.tag().to_owned())),
                ("size", MetricValue::Number(size)),
                ("used", MetricValue::Number(size.saturating_sub(table.free()))),
                ("entries", MetricValue::Number(table.len())),
            ];
            page.add(&SHARED, vec![zone.name().to_owned()], values);
        }
    }

    fn show_server(&self, loops: &[LoopTally], page: &mut MetricsPage) {
        let (version, nginx) = (version::VERSION.to_owned(), version::NGINX.to_owned());
        page.add(&BUILD, vec![version, nginx], vec![("info", MetricValue::Number(1))]);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = self.registry.started();
        let uptime = now.saturating_sub(started);
        let nanos = |time: Duration| MetricValue::Nanos(time.as_nanos() as u64);
        let (configured, succeeded) = self.registry.last_configured();
        let newest = newest(loops);
        let processes = |is_new: bool| {
            let of = loops.iter().filter(|tally| (tally.owner.generation == newest) == is_new);
            let pids: BTreeSet<u32> = of.map(|tally| tally.owner.pid).collect();
            MetricValue::Number(pids.len() as u64)
        };
        let most = loops.iter().map(LoopTally::open).max().unwrap_or(0);
        let blocked = loops.iter().filter_map(LoopTally::blocked).map(|one| one.since).min();
        let blocked = blocked.map_or(0, |since| coarse_nanos().saturating_sub(since));
        let values = vec![
            ("start_time", nanos(started)),
            ("uptime", nanos(uptime)),
            ("last_reload", MetricValue::Number(configured.as_secs())),
            ("last_reload_succeeded", MetricValue::Number(succeeded.into())),
            ("workers", processes(true)),
            ("old_workers", processes(false)),
            ("connections_limit", MetricValue::Number(self.connections as u64)),
            ("most_loop_connections", MetricValue::Number(most)),
            ("blocked_file_operation", MetricValue::Nanos(blocked)),
        ];
        page.add(&SERVER, Vec::new(), values);
        let seconds = |time: Duration| format!("{:.3}", time.as_secs_f64());
        page.add_json("now", seconds(now));
        page.add_json("started", seconds(started));
        page.add_json("uptime", seconds(uptime));
        // The length of the period of `lately_` values, to compute rates.
        page.add_json("lately", seconds(uptime.min(weir_metrics::window(coarse_nanos()))));
        page.add_json("generation", self.owner.generation.to_string());
        let TallyOwner { worker, index, pid, .. } = self.owner;
        page.add_json(
            "answered_by",
            format!(r#"{{"worker":{worker},"loop":{index},"pid":{pid}}}"#),
        );
    }

    fn show_loops(&self, loops: &[LoopTally], page: &mut MetricsPage) {
        let now = coarse_nanos();
        let newest = newest(loops);
        let is_new = |tally: &LoopTally| tally.owner.generation == newest;
        let work = WorkSpread::of(loops);
        let longest =
            loops.iter().filter_map(LoopTally::awake_since).map(|at| now.saturating_sub(at)).max();
        let values = vec![
            ("policy", MetricValue::Word(self.policy.to_owned())),
            ("imbalance", MetricValue::Ratio(work.imbalance)),
            ("mean_busy", MetricValue::Ratio(work.mean)),
            ("most_busy", MetricValue::Ratio(work.most)),
            ("alarm", MetricValue::Number(work.is_uneven().into())),
            ("running", MetricValue::Number(loops.len() as u64)),
            ("longest_turn", MetricValue::Nanos(longest.unwrap_or(0))),
            ("window", MetricValue::Number(WINDOW)),
            ("threshold", MetricValue::Ratio(UNEVEN)),
            ("next", MetricValue::Json(self.next(loops, &is_new))),
        ];
        page.add(&BALANCE, Vec::new(), values);
        for tally in loops {
            show_loop(tally, !is_new(tally), now, page);
        }
    }

    /// The numbers of the loops that sleep armed, in the order in which they will be woken.
    fn next(&self, loops: &[LoopTally], is_new: &impl Fn(&LoopTally) -> bool) -> String {
        let waits =
            |tally: &LoopTally| is_new(tally) && tally.is_armed() && tally.awake_since().is_none();
        let all = loops.iter().enumerate().filter(|(_, tally)| self.has_next && waits(tally));
        let mut next: Vec<(u64, usize)> = all.map(|(i, tally)| (tally.armed_since(), i)).collect();
        next.sort_unstable();
        let next: Vec<_> = next.iter().map(|(_, i)| i.to_string()).collect();
        format!("[{}]", next.join(","))
    }
}

/// Adds a row for each process, from its first loop.
fn show_processes(loops: &[LoopTally], page: &mut MetricsPage) {
    let newest = newest(loops);
    for tally in loops {
        let Some(figures) = tally.process() else { continue };
        let TallyOwner { worker, pid, generation, .. } = tally.owner;
        let values = vec![
            ("pid", MetricValue::Number(pid.into())),
            ("finishing", MetricValue::Json((generation < newest).to_string())),
            ("open_descriptors", MetricValue::Number(figures.descriptors)),
            ("descriptors_limit", MetricValue::Number(figures.descriptors_limit)),
            ("resident", MetricValue::Number(figures.resident)),
        ];
        page.add(&PROCESSES, vec![worker.to_string()], values);
    }
}

/// Adds a row for each file and name. `http` and `stream` may have read different versions of a
/// file.
fn show_certificates(sites: &Sites, page: &mut MetricsPage) {
    let mut first: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for CertificateFacts { file, name, not_after } in sites.certificates() {
        let known = first.entry((file, name)).or_insert(*not_after);
        *known = (*known).min(*not_after);
    }
    for ((file, name), not_after) in first {
        let last = MetricValue::Number(not_after.max(0).cast_unsigned());
        page.add(&CERTIFICATES, vec![file.to_owned(), name.to_owned()], vec![("not_after", last)]);
    }
}

/// Adds a row for each certificate that an ACME server is asked for. Unknown values are left out.
fn show_orders(sites: &Sites, page: &mut MetricsPage) {
    let seconds = |at: Option<i64>| MetricValue::Number(at.unwrap_or(0).max(0).cast_unsigned());
    for (issuer, order, standing) in sites.orders() {
        let name = order.identifiers.first().cloned().unwrap_or_default();
        let mut values = vec![
            ("not_after", seconds(standing.not_after)),
            ("failures", MetricValue::Number(standing.failures)),
            ("failing_since", seconds(standing.since)),
            ("names", MetricValue::Word(order.shown())),
            ("reason", MetricValue::Word(standing.reason)),
        ];
        if standing.next.is_some() {
            values.push(("next_attempt", seconds(standing.next)));
        }
        page.add(&ACME, vec![issuer.name.clone(), name, order.id.clone()], values);
    }
}

/// What stalls loops now and stalled them lately, the newest first. This is no metric, since the
/// number of names is unlimited.
fn culprits(loops: &[LoopTally]) -> String {
    let all =
        loops.iter().flat_map(|tally| tally.culprits().into_iter().map(|who| (tally.owner, who)));
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(_, culprit)| std::cmp::Reverse(culprit.at));
    let (now, wall) = (coarse_nanos(), SystemTime::now().duration_since(UNIX_EPOCH));
    // An unfinished turn has taken the time until now.
    let running = loops.iter().filter_map(|tally| Some((tally.owner, tally.stalled()?)));
    let running = running.map(|(owner, culprit)| {
        let took = Duration::from_nanos(now.saturating_sub(culprit.at));
        (owner, "running", Culprit { at: now, took, ..culprit })
    });
    let ended = all.into_iter().map(|(owner, culprit)| {
        (owner, if culprit.preempted { "preempted" } else { "held" }, culprit)
    });
    let each = running.chain(ended).take(CULPRITS).map(|(TallyOwner { worker, index, .. }, kind, culprit)| {
        let ago = Duration::from_nanos(now.saturating_sub(culprit.at));
        let at = wall.as_ref().map_or(0.0, |wall| wall.saturating_sub(ago).as_secs_f64());
        let (took, waited) = (culprit.took.as_micros(), culprit.waited.as_micros());
        let what = quoted(&culprit.what);
        format!(
            r#"{{"at":{at:.3},"worker":{worker},"loop":{index},"kind":"{kind}","took_us":{took},"waited_us":{waited},"what":{what}}}"#
        )
    });
    format!("[{}]", each.collect::<Vec<_>>().join(",\n"))
}

/// The most culprits that are shown.
const CULPRITS: usize = 64;

fn show_loop(tally: &LoopTally, finishing: bool, now: u64, page: &mut MetricsPage) {
    let TallyOwner { worker, index, pid, tid, .. } = tally.owner;
    let state = match (tally.awake_since(), finishing, tally.is_armed()) {
        (Some(_), ..) => "awake",
        (None, true, _) => "finishing",
        (None, false, true) => "armed",
        (None, false, false) => "disarmed",
    };
    let number = |metric| MetricValue::Number(tally.get(metric));
    let nanos = |metric| MetricValue::Nanos(tally.get(metric));
    let times = |histogram| MetricValue::Times(tally.times(histogram));
    let life = tally.get(Metric::Busy).saturating_add(tally.get(Metric::Slept));
    let armed = tally.get(Metric::Armed) as f64 / life.max(1) as f64;
    let awake_for = tally.awake_since().map_or(0, |since| now.saturating_sub(since));
    let lately = tally.lately(now);
    let mut values = vec![
        ("pid", MetricValue::Number(pid.into())),
        ("tid", MetricValue::Number(tid.into())),
        ("finishing", MetricValue::Json(finishing.to_string())),
        ("state", MetricValue::Word(state.to_owned())),
        ("accepted", number(Metric::Accepted)),
        ("requests", number(Metric::Requests)),
        ("open", MetricValue::Number(tally.open())),
        ("inflight", MetricValue::Number(tally.gauge(Metric::Writing))),
        ("received", number(Metric::Received)),
        ("sent", number(Metric::Sent)),
        ("turns", number(Metric::Turns)),
        ("busy", nanos(Metric::Busy)),
        ("slept", nanos(Metric::Slept)),
        ("armed", nanos(Metric::Armed)),
        ("awake_for", MetricValue::Nanos(awake_for)),
        ("share_busy", MetricValue::Ratio(tally.busy_lately(now))),
        ("lately_requests", MetricValue::Number(lately.requests)),
        ("lately_accepted", MetricValue::Number(lately.accepted)),
        ("lately_sent", MetricValue::Number(lately.sent)),
        ("share_armed", MetricValue::Ratio(armed)),
        ("slow_handlers", number(Metric::SlowHandlers)),
        ("blocked", times(Histogram::Blocked)),
        ("handler", times(Histogram::Handler)),
        ("turn", times(Histogram::Turn)),
        ("stalled", MetricValue::Json(stalled(tally, now))),
    ];
    if let Some((cpu, waited)) = processor_time(pid, tid) {
        values.push(("cpu", MetricValue::Nanos(cpu)));
        values.push(("runqueue", MetricValue::Nanos(waited)));
    }
    page.add(&LOOPS, vec![worker.to_string(), index.to_string()], values);
}

/// What a loop in an unfinished turn is doing.
fn stalled(tally: &LoopTally, now: u64) -> String {
    let Some(culprit) = tally.stalled() else { return "null".to_owned() };
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = wall.saturating_sub(Duration::from_nanos(now.saturating_sub(culprit.at)));
    let activity = quoted(&culprit.what);
    format!(r#"{{"since":{:.3},"activity":{activity}}}"#, since.as_secs_f64())
}

/// How long a thread has run, and how long it has waited for a processor, in nanoseconds: proc(5),
/// `schedstat`.
fn processor_time(pid: u32, tid: u32) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    let mut words = text.split_ascii_whitespace().map(|word| word.parse().ok());
    Some((words.next()??, words.next()??))
}

/// The fullest accept queue of each address: its waiting connections, and its backlog.
pub fn queues(sockets: &Sockets) -> Vec<(String, u32, u32)> {
    let streams = sockets.iter().filter(|socket| !socket.listen.udp);
    let inet = streams.filter(|socket| matches!(socket.listen.address, Address::Inet(_)));
    let fullest = inet.filter_map(|socket| {
        let all = socket.copies.iter().filter_map(|fd| accept_queue(fd.as_fd()).ok());
        let (waiting, most) = all.max()?;
        Some((socket.listen.address.to_string(), waiting, most))
    });
    fullest.collect()
}

impl ListenStatus {
    fn show(&self, page: &mut MetricsPage) {
        let unix = matches!(self.address, Address::Unix(_));
        let kind = if unix { "unix" } else { "tcp" };
        let mut values = vec![("kind", MetricValue::Word(kind.to_owned()))];
        let queues = self.queues();
        if !queues.is_empty() {
            values.push(("sockets", MetricValue::Number(queues.len() as u64)));
            let number = |n: u32| MetricValue::Number(n.into());
            let each: Vec<_> = queues.iter().map(|(waiting, _)| waiting.to_string()).collect();
            values.extend([
                ("queue", number(queues.iter().map(|(waiting, _)| *waiting).sum())),
                ("queue_longest", number(queues.iter().map(|(n, _)| *n).max().unwrap_or(0))),
                ("backlog", number(queues.iter().map(|(_, most)| *most).max().unwrap_or(0))),
                ("queues", MetricValue::Json(format!("[{}]", each.join(",")))),
            ]);
        }
        if let Address::Inet(address) = self.address {
            let dropped = sockdiag::dropped(address).map(MetricValue::Number);
            values.extend(dropped.map(|n| ("dropped", n)));
        }
        page.add(&LISTENERS, vec![self.address.to_string()], values);
    }

    /// For each socket, the number of waiting connections and the backlog.
    fn queues(&self) -> Vec<(u32, u32)> {
        let all = match &self.address {
            Address::Inet(address) if self.each => sockdiag::of(*address),
            _ => None,
        };
        let of = |fd: Arc<OwnedFd>| match self.address {
            Address::Unix(_) => sockdiag::of_unix(fd.as_fd()),
            _ => accept_queue(fd.as_fd()).ok(),
        };
        all.unwrap_or_else(|| {
            self.sockets.iter().filter_map(Weak::upgrade).filter_map(of).collect()
        })
    }
}

/// The generation of the newest configuration.
fn newest(loops: &[LoopTally]) -> u64 {
    loops.iter().map(|tally| tally.owner.generation).max().unwrap_or(0)
}

/// How the work of the last [`WINDOW`] seconds spreads over the loops of the newest configuration.
#[derive(Debug)]
pub struct WorkSpread {
    /// The number of loops.
    pub loops: usize,
    imbalance: f64,
    /// The mean share of the time in which the loops were busy.
    pub mean: f64,
    /// The share of the busiest loop.
    pub most: f64,
    /// The busiest loop.
    pub busiest: TallyOwner,
}

impl WorkSpread {
    /// The spread of the work of these loops.
    pub fn of(loops: &[LoopTally]) -> WorkSpread {
        let (now, newest) = (coarse_nanos(), newest(loops));
        let new = loops.iter().filter(|tally| tally.owner.generation == newest);
        let shares: Vec<_> = new.map(|tally| (tally.busy_lately(now), tally.owner)).collect();
        let busy: Vec<f64> = shares.iter().map(|(share, _)| *share).collect();
        let most = shares.iter().max_by(|a, b| a.0.total_cmp(&b.0)).copied().unwrap_or_default();
        WorkSpread {
            loops: busy.len(),
            imbalance: imbalance(&busy),
            mean: mean(&busy),
            most: most.0,
            busiest: most.1,
        }
    }

    /// Whether the work is uneven and that matters.
    pub fn is_uneven(&self) -> bool {
        self.imbalance >= UNEVEN && self.most > MATTERS
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The coefficient of variation; 0 if all values are equal.
fn imbalance(values: &[f64]) -> f64 {
    let mean = mean(values);
    if mean <= 0.0 {
        return 0.0;
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / values.len() as f64).sqrt() / mean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_works_alone_is_the_worst() {
        assert_eq!(imbalance(&[]), 0.0);
        assert_eq!(imbalance(&[0.0, 0.0]), 0.0);
        assert_eq!(imbalance(&[0.3, 0.3, 0.3]), 0.0);
        assert_eq!(imbalance(&[0.8, 0.0]), 1.0);
        assert!(imbalance(&[0.9, 0.0, 0.0, 0.0, 0.0]) == 2.0);
        assert!(imbalance(&[0.5, 0.4]) < UNEVEN);
    }
}
