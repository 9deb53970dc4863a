//! Reports loops in a long turn and long file operations while they last.
//!
//! A thread of the worker sleeps until the master rings its [`Bell`], which it does once a second
//! while a loop is in a long turn or a file operation takes long. The thread logs it after a second
//! and then every ten. It also writes it to the loop's tally, where status pages of all processes
//! find it. The bell also says that the worker is to end, which a stuck loop would not notice. The
//! thread then changes the name in ps(1), and ends the process if a loop is still stuck after
//! `worker_shutdown_timeout`.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::Timespec;
use weir_engine::{Rank, RunningOperation, WeakFilePool, coarse_nanos, file_operation};
use weir_log::{Log, log};
use weir_metrics::{BlockedOperation, Culprit, LoopTally, Registry};
use weir_sys::title::Title;
use weir_values::doing;

use super::BROKEN;

/// A turn that lasts longer than this is reported.
pub const LONG: Duration = Duration::from_secs(1);
/// The interval of reports about the same turn.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// A loop that becomes free within this time after `worker_shutdown_timeout` closes its connections
/// itself.
const GRACE: Duration = Duration::from_secs(1);
/// Added to the bell's counter if the worker is to end.
const ENDS: u64 = 1 << 32;

/// Wakes the thread of a worker that reports stalls: an eventfd(2).
#[derive(Clone, Debug)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// A bell that has not been rung.
    pub fn new() -> io::Result<Bell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Bell(Arc::new(eventfd(0, flags)?)))
    }

    /// A loop is in a long turn, or a file operation takes long.
    pub fn ring(&self) {
        self.add(1);
    }

    /// The worker has been reported to end.
    pub fn ends(&self) {
        self.add(ENDS);
    }

    fn add(&self, n: u64) {
        // If the counter is full, the bell has been rung anyway.
        let _ = rustix::io::write(&self.0, &n.to_ne_bytes());
    }

    /// Waits until the bell is rung or until `until`. Returns whether the worker is to end.
    fn wait(&self, until: Option<Instant>) -> bool {
        let timeout = until.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout.as_ref());
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.0, &mut counter);
        u64::from_ne_bytes(counter) >= ENDS
    }
}

/// The thread that watches a worker's loops.
pub struct StallWatch {
    /// All rows.
    pub registry: Registry,
    /// Where stalls are logged.
    pub log: Arc<Log>,
    /// The name in ps.
    pub title: Arc<Mutex<Option<Title>>>,
    /// None without a master: the thread then checks once a second.
    pub bell: Option<Bell>,
    /// The file pools.
    pub pools: Vec<WeakFilePool>,
    /// nginx: `worker_shutdown_timeout`
    pub timeout: Option<Duration>,
}

/// A turn or file operation that was reported.
#[derive(Clone, Copy)]
struct ReportedStall {
    /// The loop's thread; 0 for a file operation.
    tid: u32,
    since: u64,
    at: Duration,
}

impl StallWatch {
    /// Starts the thread, which runs as long as the process.
    #[expect(clippy::disallowed_methods, reason = "the thread is none of a loop")]
    pub fn start(self) -> io::Result<()> {
        let watch = move || {
            self.never_waits_for_a_log();
            let (mut reported, mut end) = (Vec::new(), None);
            loop {
                match &self.bell {
                    Some(bell) if bell.wait(end) => {
                        retitle(&self.title);
                        let timeout = self.timeout.filter(|timeout| !timeout.is_zero());
                        end = timeout.map(|timeout| Instant::now() + timeout + GRACE);
                    }
                    Some(_) => {}
                    None => thread::sleep(LONG),
                }
                self.look(&mut reported);
                if let Some(at) = end.filter(|at| Instant::now() >= *at) {
                    self.end_if_stuck();
                    end = Some(at + LONG);
                }
            }
        };
        thread::Builder::new().name("weir: stalls".to_owned()).spawn(watch).map(drop)
    }

    /// Log writes go to file pools, since the disk that blocks may be that of a log.
    fn never_waits_for_a_log(&self) {
        let pools = self.pools.clone();
        weir_log::never_wait(Some(Box::new(move |path, job| {
            let gone = || io::Error::from(io::ErrorKind::ResourceBusy);
            let pool = pools.iter().find_map(WeakFilePool::upgrade).ok_or_else(gone)?;
            let path = path.to_owned();
            pool.hand_over(Rank::Write, move || file_operation("write", &*path, job))
        })));
    }

    fn look(&self, reported: &mut Vec<ReportedStall>) {
        let (mut all, own) = (self.registry.loops(), std::process::id());
        all.retain(|tally| tally.owner.pid == own);
        let now = coarse_nanos();
        let before = std::mem::take(reported);
        for tally in &all {
            let Some(since) = tally.awake_since() else { continue };
            let took = Duration::from_nanos(now.saturating_sub(since));
            if took < LONG {
                continue;
            }
            let (tid, what) = (tally.owner.tid, publish(tally, since, took));
            let at = reported_at(&before, (tid, since), took).unwrap_or_else(|| {
                let (index, seconds) = (tally.owner.index, took.as_secs());
                log!(
                    self.log,
                    Error,
                    None,
                    "loop {index} of process {own} has been in one turn for {seconds} s: {what}"
                );
                took
            });
            reported.push(ReportedStall { tid, since, at });
        }
        if let Some(first) = all.iter().find(|tally| tally.owner.index == 0) {
            reported.extend(self.look_at_files(first, now, &before));
        }
    }

    /// Ends the process if a loop is in a long turn. Other loops have closed their connections by
    /// then.
    fn end_if_stuck(&self) {
        let (all, own, now) = (self.registry.loops(), std::process::id(), coarse_nanos());
        let lasts = |tally: &LoopTally| {
            let since = tally.awake_since().filter(|_| tally.owner.pid == own)?;
            Some(Duration::from_nanos(now.saturating_sub(since))).filter(|took| *took >= LONG)
        };
        let Some((stuck, took)) = all.iter().find_map(|tally| Some((tally, lasts(tally)?))) else {
            return;
        };
        let (index, seconds, what) = (stuck.owner.index, took.as_secs(), doing::current(stuck));
        log!(
            self.log,
            Error,
            None,
            "process {own} ends after worker_shutdown_timeout, with loop {index} in one turn for {seconds} s: {what}"
        );
        weir_log::flush();
        std::process::exit(BROKEN);
    }

    /// The longest running file operation, if it takes long.
    fn look_at_files(
        &self,
        first: &LoopTally,
        now: u64,
        before: &[ReportedStall],
    ) -> Option<ReportedStall> {
        let pools = self.pools.iter().filter_map(WeakFilePool::upgrade);
        let oldest = pools.filter_map(|pool| pool.oldest_operation()).min_by_key(|one| one.since);
        let lasts = |one: &RunningOperation| Duration::from_nanos(now.saturating_sub(one.since));
        let long = oldest.filter(|one| lasts(one) >= LONG);
        let blocked = long.as_ref().map(|one| {
            let (name, path) = (one.name, one.path.display());
            let (since, reads) = (one.since, one.rank == Rank::Read);
            BlockedOperation { since, reads, what: format!("{name} \"{path}\"") }
        });
        first.publish_blocked(blocked.as_ref());
        let (took, BlockedOperation { since, what, .. }) = (lasts(&long?), blocked?);
        let at = reported_at(before, (0, since), took).unwrap_or_else(|| {
            let (own, seconds) = (first.owner.pid, took.as_secs());
            log!(
                self.log,
                Error,
                None,
                "a file operation of process {own} has lasted for {seconds} s: {what}"
            );
            took
        });
        Some(ReportedStall { tid: 0, since, at })
    }
}

/// When the turn was last reported, unless another report is due.
fn reported_at(before: &[ReportedStall], what: (u32, u64), took: Duration) -> Option<Duration> {
    let last = before.iter().find(|reported| (reported.tid, reported.since) == what)?;
    (took < last.at + REPORT_INTERVAL).then_some(last.at)
}

/// Publishes what the loop is doing in its tally.
fn publish(tally: &LoopTally, since: u64, took: Duration) -> String {
    let what = doing::current(tally);
    let waited = Duration::ZERO;
    tally.publish_stall(&Culprit { at: since, took, waited, preempted: false, what: what.clone() });
    what
}

/// Shows in ps(1) that the worker retires.
pub fn retitle(title: &Mutex<Option<Title>>) {
    if let Some(mut title) = title.lock().ok().and_then(|mut title| title.take()) {
        title.set("weir: worker process is shutting down");
    }
}
