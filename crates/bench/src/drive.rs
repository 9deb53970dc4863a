//! Runs a plan: threads, each with a loop, and the thread that watches them.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use weir_engine::{Driver, Handle, ListenerKey, Loop, Options, Turn};

use crate::machine::{CpuUse, Meter};
use crate::pace::{Alarm, Schedule};
use crate::site::{News, ThreadPlan};
use crate::{LoadPlan, Protocol, Sample, Tally, client, http3, streams};

/// How often the watcher hears of progress.
const BEAT: Duration = Duration::from_millis(100);

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct RunProgress {
    /// Time since its beginning.
    pub elapsed: Duration,
    /// Requests that are over, failed ones included.
    pub done: u64,
}

/// Hears of a run while it goes on. Both calls default to nothing.
pub trait RunWatcher {
    /// About ten times a second.
    fn progress(&mut self, progress: &RunProgress) {
        let _ = progress;
    }

    /// Some answers, if the plan asks for samples.
    fn samples(&mut self, samples: &[Sample]) {
        let _ = samples;
    }

    /// Whether the run is to end now; asked about ten times a second.
    fn interrupts(&mut self) -> bool {
        false
    }
}

impl RunWatcher for () {}

/// What a run saw.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// Times and counts of all threads.
    pub tally: Tally,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    /// The time that was given, if the run was to end by it.
    pub given: Option<Duration>,
    /// Requests a second that were asked for, in an open loop.
    pub rate: Option<f64>,
    /// What each thread of this client cost.
    pub threads: Vec<CpuUse>,
    /// It was ended before its time.
    pub interrupted: bool,
}

impl RunOutcome {
    /// Answers per second; of a run that ends by time, those within it, if there are any.
    pub fn requests_per_second(&self) -> f64 {
        match self.given {
            Some(given) if given < self.elapsed && self.tally.in_time > 0 => {
                per(self.tally.in_time, given)
            }
            _ => per(self.tally.requests(), self.elapsed.max(self.scheduled())),
        }
    }

    /// How long the starts of an open loop take. The last answer may come long before that time is over.
    fn scheduled(&self) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let starts = (self.tally.requests() + self.tally.errors()) as f64;
        self.given.unwrap_or_else(|| Duration::try_from_secs_f64(starts / rate).unwrap_or_default())
    }

    /// Answers per second of this client's CPU time.
    pub fn requests_per_cpu_second(&self) -> f64 {
        per(self.tally.requests(), self.threads.iter().map(|t| t.busy).sum())
    }
}

fn per(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Does what the plan says. Returns when the last request is over.
///
/// # Errors
///
/// A plan without requests or peers, and a system that gives no thread or no epoll instance.
pub fn run(plan: &LoadPlan, watcher: &mut dyn RunWatcher) -> io::Result<RunOutcome> {
    if plan.calls.is_empty() || plan.peers.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is nothing to request"));
    }
    let connections = connections(plan);
    let threads = plan.threads.clamp(1, connections);
    let now = Instant::now();
    let gap = plan.connect_first.unwrap_or_default();
    let ahead = gap.saturating_mul(u32::try_from(connections).unwrap_or(u32::MAX));
    let began = now.checked_add(ahead).unwrap_or(now);
    let schedule = Arc::new(Schedule::new(plan, began));
    let (sender, news) = channel();
    let mut done = Vec::with_capacity(threads);
    for n in 0..threads {
        let count = Arc::new(AtomicU64::new(0));
        done.push(Arc::clone(&count));
        // The first threads take what does not divide evenly.
        let share = connections / threads + usize::from(n < connections % threads);
        let (plan, schedule, sender) = (plan.clone(), Arc::clone(&schedule), sender.clone());
        std::thread::Builder::new().name(format!("bench {n}")).spawn(move || {
            let end = thread(plan, schedule, &sender, share, n as u64, count);
            let _ = sender.send(News::Done(end));
        })?;
    }
    drop(sender);
    let (tally, threads) = watch(&news, &done, &schedule, watcher)?;
    let interrupted = schedule.is_interrupted();
    let given = plan.duration.filter(|_| !interrupted);
    let rate = match plan.pace {
        crate::Pace::Closed => None,
        crate::Pace::Open { rate } => Some(rate),
    };
    Ok(RunOutcome { tally, elapsed: began.elapsed(), given, rate, threads, interrupted })
}

fn connections(plan: &LoadPlan) -> usize {
    let most = plan.requests.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    plan.connections.min(most).max(1)
}

/// Hears all threads out.
fn watch(
    news: &Receiver<News>,
    done: &[Arc<AtomicU64>],
    schedule: &Schedule,
    watcher: &mut dyn RunWatcher,
) -> io::Result<(Tally, Vec<CpuUse>)> {
    let (mut tally, mut threads) = (Tally::new(), Vec::new());
    let began = schedule.began;
    let mut told = began;
    loop {
        match news.recv_timeout(BEAT) {
            Ok(News::Samples(samples)) => watcher.samples(&samples),
            Ok(News::Done(end)) => {
                let (part, cpu) = *end?;
                tally.merge(&part);
                threads.push(cpu);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok((tally, threads)),
        }
        if told.elapsed() >= BEAT {
            told = Instant::now();
            let done = done.iter().map(|count| count.load(Ordering::Relaxed)).sum();
            watcher.progress(&RunProgress { elapsed: began.elapsed(), done });
            if watcher.interrupts() {
                schedule.interrupt();
            }
        }
    }
}

fn thread(
    plan: LoadPlan,
    schedule: Arc<Schedule>,
    news: &Sender<News>,
    connections: usize,
    n: u64,
    done: Arc<AtomicU64>,
) -> io::Result<Box<(Tally, CpuUse)>> {
    let meter = Meter::start();
    let mut event_loop = Loop::new(&Options::default())?;
    let h = event_loop.handle();
    let site = Rc::new(ThreadPlan {
        alarm: Alarm::new(&h)?,
        h: h.clone(),
        plan,
        schedule,
        tally: RefCell::new(Tally::new()),
        samples: RefCell::default(),
        news: news.clone(),
        memo: RefCell::default(),
        datagrams: RefCell::default(),
        live: Cell::new(0),
    });
    for i in 0..connections as u64 {
        // Connections of all threads take turns in their order.
        let order = u32::try_from(i * site.plan.threads.max(1) as u64 + n).unwrap_or(u32::MAX);
        match site.plan.protocol {
            Protocol::Http1 => {
                site.live.set(site.live.get() + 1);
                h.spawn(client::run(Rc::clone(&site), order));
            }
            Protocol::Http2(n) => streams::spawn::<SendRequest<Bytes>>(&site, order, n),
            Protocol::Http3(n) => streams::spawn::<http3::Sender>(&site, order, n),
        }
    }
    event_loop.run(&mut TurnCounter { site: Rc::clone(&site), done })?;
    site.hand_over(site.samples.take());
    let cpu = meter.stop();
    Ok(Box::new((site.tally.replace(Tally::new()), cpu)))
}

/// Publishes a thread's count after each turn.
struct TurnCounter {
    site: Rc<ThreadPlan>,
    done: Arc<AtomicU64>,
}

impl Driver for TurnCounter {
    fn before_wait(&mut self, _: &Handle, _: Instant) -> Option<Duration> {
        // A loop that waits for a slow answer hears of an interrupt, too.
        Some(BEAT)
    }

    fn acceptable(&mut self, _: &Handle, _: ListenerKey) {}

    fn end_of_turn(&mut self, h: &Handle, _: &Turn) {
        if self.site.schedule.is_interrupted() {
            h.stop();
        }
        let tally = self.site.tally.borrow();
        self.done.store(tally.requests() + tally.errors(), Ordering::Relaxed);
    }
}
