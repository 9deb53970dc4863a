//! Runs a plan: the threads, each with an event loop, and their watcher.

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
use crate::thread_state::{ThreadMessage, ThreadState};
use crate::{LoadPlan, Protocol, Sample, Tally, client, http3, streams};

/// How often progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunProgress {
    /// Time since the start of the run.
    pub elapsed: Duration,
    /// Completed requests, failed ones included.
    pub done: u64,
}

/// Observes a run. All methods are optional.
pub trait RunWatcher {
    /// Called about ten times a second.
    fn progress(&mut self, progress: &RunProgress) {
        let _ = progress;
    }

    /// Called with completed requests, if the plan wants samples.
    fn samples(&mut self, samples: &[Sample]) {
        let _ = samples;
    }

    /// Whether to end the run now. Asked about ten times a second.
    fn interrupts(&mut self) -> bool {
        false
    }
}

impl RunWatcher for () {}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// Times and counts of all threads.
    pub tally: Tally,
    /// Time from the first due request to the last response.
    pub elapsed: Duration,
    /// The planned duration, if the run has one and was not interrupted.
    pub planned_duration: Option<Duration>,
    /// Requested rate of an open loop, per second.
    pub rate: Option<f64>,
    /// CPU use of each thread of this client.
    pub threads: Vec<CpuUse>,
    /// Whether the watcher ended the run early.
    pub interrupted: bool,
}

impl RunOutcome {
    /// Responses per second. For a run with a duration, only responses within it count, if there
    /// are any.
    pub fn requests_per_second(&self) -> f64 {
        match self.planned_duration {
            Some(planned_duration) if planned_duration < self.elapsed && self.tally.in_time > 0 => {
                per(self.tally.in_time, planned_duration)
            }
            _ => per(self.tally.requests(), self.elapsed.max(self.scheduled())),
        }
    }

    /// How long the schedule of an open loop is. The last response may arrive long before its end.
    fn scheduled(&self) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let starts = (self.tally.requests() + self.tally.errors()) as f64;
        self.planned_duration
            .unwrap_or_else(|| Duration::try_from_secs_f64(starts / rate).unwrap_or_default())
    }

    /// Responses per second of this client's CPU time.
    pub fn requests_per_cpu_second(&self) -> f64 {
        per(self.tally.requests(), self.threads.iter().map(|t| t.busy).sum())
    }
}

fn per(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Runs the plan. Returns when the last request has ended.
///
/// # Errors
///
/// A plan without requests or peers, or a failure of the system to create a thread or an epoll
/// instance.
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
    let (sender, messages) = channel();
    let mut done = Vec::with_capacity(threads);
    for n in 0..threads {
        let count = Arc::new(AtomicU64::new(0));
        done.push(Arc::clone(&count));
        // The first threads take the remainder of the division.
        let share = connections / threads + usize::from(n < connections % threads);
        let (plan, schedule, sender) = (plan.clone(), Arc::clone(&schedule), sender.clone());
        std::thread::Builder::new().name(format!("bench {n}")).spawn(move || {
            let end = thread(plan, schedule, &sender, share, n as u64, count);
            let _ = sender.send(ThreadMessage::Done(end));
        })?;
    }
    drop(sender);
    let (tally, threads) = watch(&messages, &done, &schedule, watcher)?;
    let interrupted = schedule.is_interrupted();
    let planned_duration = plan.duration.filter(|_| !interrupted);
    let rate = match plan.pace {
        crate::Pace::Closed => None,
        crate::Pace::Open { rate } => Some(rate),
    };
    Ok(RunOutcome { tally, elapsed: began.elapsed(), planned_duration, rate, threads, interrupted })
}

fn connections(plan: &LoadPlan) -> usize {
    let most = plan.requests.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    plan.connections.min(most).max(1)
}

/// Receives the results of all threads, and reports progress meanwhile.
fn watch(
    messages: &Receiver<ThreadMessage>,
    done: &[Arc<AtomicU64>],
    schedule: &Schedule,
    watcher: &mut dyn RunWatcher,
) -> io::Result<(Tally, Vec<CpuUse>)> {
    let (mut tally, mut threads) = (Tally::new(), Vec::new());
    let began = schedule.began;
    // The run may begin later, once all connections are open. An interrupt ends it before that, too.
    let mut reported_at = Instant::now();
    loop {
        match messages.recv_timeout(PROGRESS_INTERVAL) {
            Ok(ThreadMessage::Samples(samples)) => watcher.samples(&samples),
            Ok(ThreadMessage::Done(end)) => {
                let (part, cpu) = *end?;
                tally.merge(&part);
                threads.push(cpu);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok((tally, threads)),
        }
        if reported_at.elapsed() >= PROGRESS_INTERVAL {
            reported_at = Instant::now();
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
    messages: &Sender<ThreadMessage>,
    connections: usize,
    n: u64,
    done: Arc<AtomicU64>,
) -> io::Result<Box<(Tally, CpuUse)>> {
    let meter = Rc::new(Cell::new(Meter::start()));
    let mut event_loop = Loop::new(&Options::default())?;
    let h = event_loop.handle();
    let state = Rc::new(ThreadState {
        alarm: Alarm::new(&h)?,
        h: h.clone(),
        plan,
        schedule,
        tally: RefCell::new(Tally::new()),
        samples: RefCell::default(),
        messages: messages.clone(),
        memo: RefCell::default(),
        datagrams: RefCell::default(),
        live: Cell::new(0),
    });
    for i in 0..connections as u64 {
        // Orders interleave the connections of all threads.
        let order = u32::try_from(i * state.plan.threads.max(1) as u64 + n).unwrap_or(u32::MAX);
        match state.plan.protocol {
            Protocol::Http1 => {
                state.live.set(state.live.get() + 1);
                h.spawn(client::run(Rc::clone(&state), order));
            }
            Protocol::Http2(n) => streams::spawn::<SendRequest<Bytes>>(&state, order, n),
            Protocol::Http3(n) => streams::spawn::<http3::Sender>(&state, order, n),
        }
    }
    if state.plan.connect_first.is_some() {
        h.spawn(measure_from_the_first_request(Rc::clone(&state), Rc::clone(&meter)));
    }
    event_loop.run(&mut TurnCounter { state: Rc::clone(&state), done })?;
    state.hand_over(state.samples.take());
    let cpu = meter.get().stop();
    Ok(Box::new((state.tally.replace(Tally::new()), cpu)))
}

/// Connections that were opened before the first request are no part of the measurement.
async fn measure_from_the_first_request(state: Rc<ThreadState>, meter: Rc<Cell<Meter>>) {
    state.h.sleep_until(state.schedule.began).await;
    meter.set(Meter::start());
}

/// Publishes a thread's count of completed requests after each turn.
struct TurnCounter {
    state: Rc<ThreadState>,
    done: Arc<AtomicU64>,
}

impl Driver for TurnCounter {
    fn before_wait(&mut self, _: &Handle, _: Instant) -> Option<Duration> {
        // Bounds the wait, so that a loop without events also notices an interrupt.
        Some(PROGRESS_INTERVAL)
    }

    fn acceptable(&mut self, _: &Handle, _: ListenerKey) {}

    fn end_of_turn(&mut self, h: &Handle, _: &Turn) {
        if self.state.schedule.is_interrupted() {
            h.stop();
        }
        let tally = self.state.tally.borrow();
        self.done.store(tally.requests() + tally.errors(), Ordering::Relaxed);
    }
}
