//! Checks the server's health once a second, outside of its loops, and publishes the findings.
//!
//! The master does it, or a thread if there is no master, since a stuck loop could not report
//! itself. Once nothing has happened for some seconds, the master sleeps. A loop that works wakes
//! it by its [`JudgeWaker`].

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Pid;
use weir_acme::{CertificateOrder, Issuer, Listener, Standing};
use weir_engine::coarse_nanos;
use weir_health::{
    AcceptQueue, BlockedFile, CERTIFICATE_ENDS, EndingCertificate, FailingOrder, FailingServer,
    Judge, LoopState, MemoryUse, OldWorker, ProcessState, ServerBehind, Snapshot, Uneven,
};
use weir_metrics::{BlockedOperation, LoopTally, Metric, ProcessFigures, Registry, TallyOwner};
use weir_ssl::CertificateFacts;
use weir_upstream::counts::{self, ServerOutcome};

use crate::channel::{ChannelEnd, WorkerReport};
use crate::service::Sites;
use crate::status::{WorkSpread, machine};

/// The interval of checks.
const PERIOD: Duration = Duration::from_secs(1);
/// After this many checks without activity, the watch sleeps. A loop reports at most once in
/// [`PERIOD`], which is shorter. So after the checks every loop reports as soon as it works again.
const QUIET_CHECKS: u32 = 3;
/// While there are no findings, descriptors and memory are read in every fifth check only. Kernels
/// before 6.2 list descriptors one by one.
const SYSTEM_EVERY: u32 = 5;
/// How long the death of a worker stays a finding, in milliseconds.
const DEATH_REMEMBERED: u64 = 60_000;

/// The state of the health checks.
#[derive(Debug, Default)]
pub struct HealthWatch {
    judge: Judge,
    next: Option<Instant>,
    has_given_up: bool,
    /// No more checks until something happens.
    sleeps: bool,
    /// The loops' sleeping and working time at the last check, and for how many checks it has not
    /// changed.
    turns: Option<u64>,
    still: u32,
    failed_reload: Option<u64>,
    deaths: Vec<u64>,
    last_death: String,
    missing: usize,
    headline: String,
    looks: u32,
    memory: Option<MemoryUse>,
}

/// The input of a check.
pub struct Seen<'s> {
    /// All counters.
    pub registry: Registry,
    /// The sites that are served.
    pub sites: &'s Sites,
    /// Workers that were told to end.
    pub old: Vec<RetiredWorker>,
    /// The fullest accept queue of each address: its waiting connections and its backlog.
    pub queues: Vec<(String, u32, u32)>,
    /// The most connections of a loop.
    pub connections: usize,
}

/// A worker that was told to end.
#[derive(Debug)]
pub struct RetiredWorker {
    /// The process id.
    pub pid: Pid,
    /// When it was told to end.
    pub notified_at: Instant,
}

impl HealthWatch {
    /// When the next check is due. None while the watch sleeps.
    pub fn next(&self) -> Option<Instant> {
        self.next.filter(|_| !self.sleeps && !self.has_given_up)
    }

    /// Whether a check is due.
    pub fn is_due(&self) -> bool {
        !self.has_given_up && !self.sleeps && self.next.is_none_or(|next| Instant::now() >= next)
    }

    /// Ends all checks. Pages show that by the time of the last check.
    pub fn give_up(&mut self) {
        self.has_given_up = true;
    }

    /// A loop works again.
    pub fn woken(&mut self) {
        if self.sleeps {
            self.judge.skip_to(now_millis());
            (self.sleeps, self.next) = (false, Some(Instant::now() + PERIOD));
        }
    }

    /// Runs a check. Returns the text to show after the process's name, if it has changed.
    pub fn look(&mut self, seen: Seen<'_>) -> Option<String> {
        self.next = Some(Instant::now() + PERIOD);
        if self.looks.is_multiple_of(SYSTEM_EVERY) || !self.judge.is_calm() {
            machine::note_processes(&seen.registry);
            self.memory = machine::memory();
        }
        self.looks = self.looks.wrapping_add(1);
        let (registry, sites) = (seen.registry, seen.sites);
        let snapshot = self.snapshot(seen);
        let (at, no_old_workers) = (snapshot.at, snapshot.old_workers.is_empty());
        let findings = self.judge.look(snapshot);
        weir_health::post(registry.board(), at, &findings);
        let turns = turns(registry);
        let is_still = turns.is_some() && turns == self.turns;
        (self.still, self.turns) = (if is_still { self.still + 1 } else { 0 }, turns);
        if self.still >= QUIET_CHECKS && self.judge.is_calm() && no_old_workers {
            self.fall_asleep(registry, sites);
        }
        let headline = weir_health::behind_name(&findings);
        (headline != self.headline).then(|| {
            self.headline.clone_from(&headline);
            headline
        })
    }

    fn fall_asleep(&mut self, registry: Registry, sites: &Sites) {
        weir_health::fall_asleep(registry.board());
        // A loop that began a turn before this point does not wake the watch, nor does an ACME
        // order that failed before.
        let is_quiet = turns(registry) == self.turns && orders(sites).is_empty();
        self.sleeps = is_quiet || !weir_health::wake_up(registry.board(), wall_millis());
        self.still = 0;
    }

    /// A worker has died. If that is `fatal`, it has no successor.
    pub fn died(&mut self, how: String, fatal: bool) {
        self.deaths.push(now_millis());
        self.last_death = how;
        self.missing += usize::from(fatal);
        self.look_at_once();
    }

    /// A configuration could not be applied.
    pub fn reload_failed(&mut self) {
        self.failed_reload = Some(wall_millis());
        self.look_at_once();
    }

    /// A configuration was applied.
    pub fn reloaded(&mut self) {
        (self.failed_reload, self.missing) = (None, 0);
        self.look_at_once();
    }

    fn look_at_once(&mut self) {
        (self.sleeps, self.next) = (false, None);
    }

    fn snapshot(&mut self, seen: Seen<'_>) -> Snapshot {
        let Seen { registry, sites, old, queues, connections } = seen;
        let (now, loops) = (now_millis(), registry.loops());
        self.deaths.retain(|at| now.saturating_sub(*at) < DEATH_REMEMBERED);
        let newest = loops.iter().map(|tally| tally.owner.generation).max().unwrap_or(0);
        let limited = registry.sum(Metric::LimitedErrors);
        Snapshot {
            at: wall_millis(),
            now,
            requests: registry.sum(Metric::Requests),
            errors: registry.sum(Metric::ServerErrors).saturating_sub(limited),
            limited: registry.sum(Metric::Limited),
            cache_faults: registry.sum(Metric::CacheFaults),
            log_lost: registry.sum(Metric::LogLost),
            accepts_failed: registry.sum(Metric::AcceptFailed),
            lookups_timed_out: registry.sum(Metric::LookupTimedOut),
            unstored: registry.sum(Metric::CacheUnstored),
            blocked: loops.iter().filter_map(blocked_file).collect(),
            connections: connections as u64,
            queues: queues
                .into_iter()
                .map(|(address, n, most)| AcceptQueue { address, n, most })
                .collect(),
            processes: loops.iter().filter_map(process).collect(),
            memory: self.memory,
            certificates: certificates(sites, wall_millis()),
            orders: orders(sites),
            uneven: uneven(&loops),
            servers: servers(registry, sites),
            failed_reload: self.failed_reload,
            deaths: self.deaths.clone(),
            last_death: self.last_death.clone(),
            missing: self.missing,
            old_workers: old.iter().map(|worker| old_worker(worker, &loops, now)).collect(),
            loops: loops.iter().map(|tally| loop_state(tally, newest)).collect(),
        }
    }
}

/// Runs checks on a thread of its own, as long as the process lives.
pub fn watch(registry: Registry, sites: Sites, connections: usize) {
    let mut watch = HealthWatch::default();
    let look = move || {
        loop {
            // A single loop cannot be uneven, and its sockets belong to it alone.
            let (old, queues) = Default::default();
            let _ = watch.look(Seen { registry, sites: &sites, old, queues, connections });
            #[expect(clippy::disallowed_methods, reason = "there is no loop on this thread")]
            std::thread::sleep(PERIOD);
        }
    };
    // If the thread cannot be started, pages show no health.
    let _ = std::thread::Builder::new().name("weir: health".to_owned()).spawn(look);
}

/// Reports a loop's activity to the health watch.
#[derive(Debug)]
pub struct JudgeWaker {
    board: &'static [AtomicU64],
    channel: Option<ChannelEnd>,
    next: Instant,
}

impl JudgeWaker {
    /// For a loop that starts now. Without a master, the watch never sleeps.
    pub fn new(registry: Registry, channel: Option<ChannelEnd>, now: Instant) -> JudgeWaker {
        JudgeWaker { board: registry.board(), channel, next: now }
    }

    /// A turn has begun. This costs a comparison, except once a second.
    #[inline]
    pub fn wake(&mut self, now: Instant) {
        if now >= self.next {
            self.next = now + PERIOD;
            self.ask();
        }
    }

    fn ask(&self) {
        if weir_health::wake_up(self.board, wall_millis())
            && let Some(channel) = &self.channel
        {
            // If the master has gone, there are no more checks, which pages show by the time of the
            // last one.
            let _ = channel.report(WorkerReport::Working);
        }
    }
}

/// Wakes the watch from a thread without a loop.
pub fn waker(registry: Registry, channel: Option<ChannelEnd>) -> Listener {
    let waker = JudgeWaker::new(registry, channel, Instant::now());
    Arc::new(move || waker.ask())
}

/// A number that grows with every turn of a loop. None while a loop is in a turn or a file
/// operation runs.
fn turns(registry: Registry) -> Option<u64> {
    let sleeps =
        |tally: &LoopTally| tally.awake_since().is_none() && tally.oldest_operation().is_none();
    let all_sleep = registry.loops().iter().all(sleeps);
    let turns = registry.sum(Metric::Slept).wrapping_add(registry.sum(Metric::Busy));
    all_sleep.then_some(turns)
}

fn old_worker(worker: &RetiredWorker, loops: &[LoopTally], now: u64) -> OldWorker {
    let pid = worker.pid.as_raw_nonzero().get().cast_unsigned();
    let open = loops.iter().filter(|tally| tally.owner.pid == pid).map(LoopTally::open).sum();
    let told = now.saturating_sub(worker.notified_at.elapsed().as_millis() as u64);
    OldWorker { pid, told, open }
}

fn loop_state(tally: &LoopTally, newest: u64) -> LoopState {
    let awake = tally.awake_since().map_or(0, |at| coarse_nanos().saturating_sub(at));
    LoopState {
        worker: tally.owner.worker,
        index: tally.owner.index,
        pid: tally.owner.pid,
        is_old: tally.owner.generation < newest,
        awake_for: awake / 1_000_000,
        stalled: tally.stalled().map(|culprit| culprit.what),
        busy: tally.get(Metric::Busy).saturating_add(awake) / 1_000_000,
        open: tally.open(),
    }
}

/// File operations are recorded with the first loop of a process.
fn blocked_file(tally: &LoopTally) -> Option<BlockedFile> {
    let BlockedOperation { since, reads, what } = tally.blocked()?;
    let lasts = coarse_nanos().saturating_sub(since) / 1_000_000;
    Some(BlockedFile { pid: tally.owner.pid, lasts, reads, what })
}

/// Figures of a process are recorded with its first loop.
fn process(tally: &LoopTally) -> Option<ProcessState> {
    let ProcessFigures { descriptors, descriptors_limit, .. } = tally.process()?;
    Some(ProcessState { pid: tally.owner.pid, descriptors, descriptors_limit })
}

/// Certificates that expire soon.
fn certificates(sites: &Sites, at: u64) -> Vec<EndingCertificate> {
    let millis = |seconds: i64| seconds.max(0).cast_unsigned().saturating_mul(1000);
    let latest = at.saturating_add(CERTIFICATE_ENDS);
    let soon = sites.certificates().filter(|facts| millis(facts.not_after) < latest);
    let ending = soon.map(|CertificateFacts { file, name, not_after }| EndingCertificate {
        file: file.clone(),
        name: name.clone(),
        not_after: millis(*not_after),
    });
    ending.collect()
}

/// Certificates that an ACME server refuses to issue.
fn orders(sites: &Sites) -> Vec<FailingOrder> {
    let millis = |seconds: i64| seconds.max(0).cast_unsigned().saturating_mul(1000);
    let failing = |(issuer, order, standing): (&Issuer, &CertificateOrder, Standing)| {
        Some(FailingOrder {
            issuer: issuer.name.clone(),
            names: order.shown(),
            not_after: standing.not_after.map_or(0, millis),
            since: millis(standing.since?),
            next: standing.next_shown(),
            reason: standing.reason,
        })
    };
    sites.orders().filter_map(failing).collect()
}

fn uneven(loops: &[LoopTally]) -> Option<Uneven> {
    let work = WorkSpread::of(loops);
    let TallyOwner { worker, index, pid, .. } = work.busiest;
    let percent = |share: f64| (share * 100.0).round() as u32;
    let (most, mean) = (percent(work.most), percent(work.mean));
    work.is_uneven().then_some(Uneven { worker, index, pid, most, mean, loops: work.loops })
}

fn servers(registry: Registry, sites: &Sites) -> Vec<ServerBehind> {
    let (groups, now) = (sites.groups(), Instant::now());
    if groups.iter().all(|(_, groups)| groups.is_empty()) {
        return Vec::new();
    }
    let all = registry.counted();
    let outcomes =
        groups.iter().flat_map(|(kind, groups)| counts::outcomes(groups, (&all, *kind), now));
    outcomes.map(server).collect()
}

fn server(of: ServerOutcome) -> ServerBehind {
    let (since, in_a_row) = (of.outcomes.failing, of.outcomes.in_a_row);
    let failing = match of.failure {
        _ if of.is_unhealthy => Some((true, "its health checks fail".to_owned())),
        Some(reason) => Some((reason.is_unreachable(), reason.to_string())),
        None => None,
    };
    let failing =
        failing.map(|(unreachable, reason)| FailingServer { since, in_a_row, unreachable, reason });
    ServerBehind { group: of.group, server: of.server, is_out: of.is_out, failing }
}

fn now_millis() -> u64 {
    coarse_nanos() / 1_000_000
}

/// Milliseconds since 1970.
pub fn wall_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |at| at.as_millis() as u64)
}
