//! The current activity of this thread's loop, for messages about handlers that stall it.
//!
//! The code that begins an activity notes it here, with the time of the kernel's coarse clock. That
//! costs a few nanoseconds and is exact enough for warnings. When a handler ends
//! ([`weir_engine::Timekeeper`]), its longest activity is named. So no handler is blamed for the
//! work of another one.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_engine::{Timekeeper, coarse_nanos, longest_operation, waited_for_processor};
use weir_log::{Level, Log};
use weir_metrics::{Activity, Culprit, Histogram, LoopTally, Metric, Tally};

use crate::repeat_filter::{PAUSE, RepeatFilter, Repeated};

/// A block of the configuration that work is done for.
pub trait Blamed: Debug {
    /// Its directive and its name.
    fn name(&self) -> (&'static str, Cow<'_, str>);
    /// Its `error_log`.
    fn log(&self) -> &Arc<Log>;
    /// Its `blocked_threshold`.
    fn threshold(&self) -> Duration;
}

/// The default of `blocked_threshold`.
pub const THRESHOLD: Duration = Duration::from_millis(20);

/// The settings for work that belongs to no particular block.
#[derive(Debug, Clone)]
pub struct StallDefaults {
    /// `error_log`
    pub log: Arc<Log>,
    /// `blocked_threshold`
    pub threshold: Duration,
}

/// An activity: phase, module, and the block that it is for.
#[derive(Clone, Copy, Debug)]
struct Doing {
    /// Empty if nothing was noted.
    phase: &'static str,
    module: &'static str,
    block: Option<&'static dyn Blamed>,
}

impl Doing {
    /// A hash that identifies the activity. It hashes addresses: equal texts at two addresses count
    /// as two activities.
    #[inline]
    fn fingerprint(self) -> u64 {
        let block = self.block.map_or(0, |block| std::ptr::from_ref(block).cast::<()>().addr());
        let addresses = [block, self.module.as_ptr().addr(), self.phase.as_ptr().addr()];
        let odd = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9_u64];
        let parts = addresses.into_iter().zip(odd).map(|(a, odd)| (a as u64).wrapping_mul(odd));
        parts.fold(0, u64::wrapping_add)
    }
}

impl PartialEq for Doing {
    fn eq(&self, other: &Self) -> bool {
        let block = |d: &Doing| d.block.map(|block| std::ptr::from_ref(block).cast::<()>());
        (self.phase, self.module, block(self)) == (other.phase, other.module, block(other))
    }
}

/// Forgets this thread's activities. From now on, blocks that were noted may be freed, and others
/// may be allocated at their addresses.
pub fn forget() {
    DOING.set((NOTHING, 0));
    LONGEST.set((NOTHING, 0));
    NUMBERS.with(|numbers| numbers.iter().for_each(|number| number.set((0, 0))));
    ALL_NUMBERS.with_borrow_mut(HashMap::clear);
}

/// The activity when nothing was noted.
const NOTHING: Doing = Doing { phase: "", module: "", block: None };

thread_local! {
    /// The present activity and the time it began, by the coarse clock.
    static DOING: Cell<(Doing, u64)> = const { Cell::new((NOTHING, 0)) };
    /// The longest earlier activity of this handler, and its nanoseconds.
    static LONGEST: Cell<(Doing, u64)> = const { Cell::new((NOTHING, 0)) };
}

/// Notes the present phase, module and block. The module is empty if there is none in particular.
#[inline]
pub fn note(phase: &'static str, module: &'static str, block: &'static dyn Blamed) {
    begin(Doing { phase, module, block: Some(block) });
}

#[inline]
fn begin(doing: Doing) {
    let now = coarse_nanos();
    publish(doing);
    let (before, since) = DOING.replace((doing, now));
    let took = now.saturating_sub(since);
    if before.block.is_some() && took > LONGEST.get().1 {
        LONGEST.set((before, took));
    }
}

thread_local! {
    /// Where this thread's loop publishes its activity.
    static ACTIVITY: Cell<Option<Activity>> = const { Cell::new(None) };
    /// The numbers of recent activities. The hash of an activity selects two neighbouring places.
    /// So two activities of a request that share a place do not evict each other.
    static NUMBERS: [Cell<(u64, u32)>; PLACES] = const { [const { Cell::new((0, 0)) }; PLACES] };
    /// The numbers of all activities by their hashes, for those without a place in `NUMBERS`.
    static ALL_NUMBERS: RefCell<HashMap<u64, u32>> = RefCell::default();
}

/// More than the number of activities of a busy loop.
const PLACES: usize = 256;

/// Publishes the activity of the loop for other threads and processes.
#[inline]
fn publish(doing: Doing) {
    let Some(activity) = ACTIVITY.get() else { return };
    let fingerprint = doing.fingerprint();
    let number = NUMBERS.with(|numbers| {
        let place = (fingerprint >> 56) as usize;
        let (known, number) = numbers[place].get();
        if known == fingerprint {
            return number;
        }
        let (known, number) = numbers[place ^ 1].get();
        if known == fingerprint { number } else { remember(doing, fingerprint) }
    });
    activity.doing(number);
}

/// Keeps the number of an activity for the next time.
#[cold]
#[inline(never)]
fn remember(doing: Doing, fingerprint: u64) -> u32 {
    let new = || name(&Stall { doing, operation: None, preempted: false }.to_string()).0;
    let number = ALL_NUMBERS.with_borrow_mut(|all| *all.entry(fingerprint).or_insert_with(new));
    NUMBERS.with(|numbers| {
        let place = (fingerprint >> 56) as usize;
        let is_free = numbers[place].get().0 == 0;
        numbers[if is_free { place } else { place ^ 1 }].set((fingerprint, number));
    });
    number
}

/// The names of a process' activities. A name's number is its index plus one.
#[derive(Default)]
struct Names {
    numbers: HashMap<Arc<str>, u32>,
    list: Vec<Arc<str>>,
}

static NAMES: Mutex<Option<Names>> = Mutex::new(None);

/// The most names that are kept. Scripts whose path has variables would add names without end.
const NAMES_KEPT: usize = 65_536;

fn names() -> MutexGuard<'static, Option<Names>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a name in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivityName(u32);

/// Keeps a name and returns its number. Takes a lock, so it must not be called for each request.
pub fn name(name: &str) -> ActivityName {
    let mut names = names();
    let names = names.get_or_insert_default();
    if let Some(number) = names.numbers.get(name) {
        return ActivityName(*number);
    }
    if names.list.len() >= NAMES_KEPT {
        return ActivityName(0);
    }
    let name: Arc<str> = name.into();
    names.list.push(Arc::clone(&name));
    let number = names.list.len() as u32;
    names.numbers.insert(name, number);
    ActivityName(number)
}

/// Runs a script and publishes its name meanwhile.
#[inline]
pub fn running<T>(script: ActivityName, work: impl FnOnce() -> T) -> T {
    let Some(activity) = ACTIVITY.get() else { return work() };
    activity.script(script.0);
    let out = work();
    activity.script(0);
    out
}

/// The present activity of a loop of this process.
pub fn current(of: &LoopTally) -> String {
    let [doing, script] = of.activity();
    let names = names();
    let name = |number: u32| names.as_ref()?.list.get((number as usize).checked_sub(1)?).cloned();
    let doing = name(doing).unwrap_or_else(|| "something else".into());
    match name(script) {
        Some(script) => format!("{doing}, script: \"{script}\""),
        None => doing.to_string(),
    }
}

/// The longest activity of the handler that has just ended, if it took half of its time, or else
/// the last one.
fn blame(took: Duration) -> Doing {
    let nothing = (NOTHING, 0);
    if let Some(activity) = ACTIVITY.get() {
        activity.doing(0);
    }
    let ((last, _), (longest, time)) = (DOING.replace(nothing), LONGEST.replace(nothing));
    let time = Duration::from_nanos(time);
    if 2 * time >= took && !time.is_zero() { longest } else { last }
}

/// Polls a future, and notes its phase and module before each poll.
pub async fn noting<T>(
    phase: &'static str,
    module: &'static str,
    block: &'static dyn Blamed,
    future: impl Future<Output = T>,
) -> T {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        note(phase, module, block);
        future.as_mut().poll(cx)
    })
    .await
}

/// Counts the times of a loop, and logs handlers that stall it.
pub struct Keeper {
    metrics: Rc<Tally>,
    usual: StallDefaults,
    recent: RefCell<RepeatFilter<LoggedStall>>,
    /// When the next summary is due, in nanoseconds of the monotonic clock.
    next: Cell<u64>,
}

/// A stall: what the loop did meanwhile.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Stall {
    doing: Doing,
    operation: Option<&'static str>,
    /// Without the wait for a processor, the handler would have stayed within the threshold.
    preempted: bool,
}

/// A stall that was logged. It keeps the text and the log, since the block may be freed before a
/// repetition is logged.
#[derive(Clone, Debug)]
struct LoggedStall {
    what: String,
    preempted: bool,
    log: Arc<Log>,
}

impl PartialEq for LoggedStall {
    fn eq(&self, other: &LoggedStall) -> bool {
        (self.preempted, &self.what) == (other.preempted, &other.what)
            && Arc::ptr_eq(&self.log, &other.log)
    }
}

impl Keeper {
    /// The keeper of a loop.
    pub fn new(metrics: Rc<Tally>, usual: StallDefaults) -> Rc<Keeper> {
        ACTIVITY.set(metrics.activity());
        Rc::new(Keeper { metrics, usual, recent: RefCell::default(), next: Cell::new(u64::MAX) })
    }

    fn threshold(&self, doing: Doing) -> Duration {
        doing.block.map_or(self.usual.threshold, Blamed::threshold)
    }

    /// Logs and counts a stall. Work that was slow only for lack of a processor is not blamed.
    fn report_stall(&self, doing: Doing, operation: Option<&'static str>, took: Duration) {
        let waited = waited_for_processor().unwrap_or_default().min(took);
        let preempted = took - waited <= self.threshold(doing);
        let what = Stall { doing, operation, preempted }.to_string();
        let log = doing.block.map_or(&self.usual.log, Blamed::log);
        let stall = LoggedStall { what: what.clone(), preempted, log: Arc::clone(log) };
        self.metrics.add(Metric::SlowHandlers, 1);
        self.metrics.add(Metric::Preempted, preempted.into());
        let now = coarse_nanos();
        self.metrics.culprit(&Culprit { at: now, took, waited, preempted, what: what.clone() });
        let mut recent = self.recent.borrow_mut();
        if !recent.should_log(stall, took, now) {
            self.metrics.add(Metric::SlowLeftOut, 1);
        } else if preempted {
            let (millis, waited) = (took.as_millis(), waited.as_millis());
            let text = format_args!(
                "for {waited} of {millis} ms the event loop waited for a processor, at {what}"
            );
            log.write(Level::Info, None, text);
        } else {
            let millis = took.as_millis();
            let text = format_args!("the event loop was held up for {millis} ms by {what}");
            log.write(Level::Error, None, text);
        }
        self.next.set(recent.next_due());
    }

    /// Logs the repetitions until `now`.
    fn sum_up(&self, now: u64) {
        let mut recent = self.recent.borrow_mut();
        let within = PAUSE.as_secs();
        for Repeated { what, times, worst } in recent.take_repeated(now) {
            let millis = worst.as_millis();
            let (level, what_happened) = match what.preempted {
                true => (Level::Info, "waited for a processor"),
                false => (Level::Error, "was held up"),
            };
            let text = format_args!(
                "the event loop {what_happened} {times} more times within {within} s, for up to {millis} ms: {}",
                what.what
            );
            what.log.write(level, None, text);
        }
        let others = recent.take_others(now);
        if others > 0 {
            let text = format_args!(
                "the event loop was held up {others} more times within {within} s by others"
            );
            self.usual.log.write(Level::Error, None, text);
        }
        self.next.set(recent.next_due());
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.sum_up(u64::MAX);
    }
}

impl std::fmt::Display for Stall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Doing { phase, module, block } = self.doing;
        f.write_str(if phase.is_empty() { "something else" } else { phase })?;
        if !module.is_empty() {
            write!(f, ", module: \"{module}\"")?;
        }
        if let Some(operation) = self.operation {
            write!(f, ", operation: \"{operation}\"")?;
        }
        match block.map(Blamed::name) {
            Some((directive, name)) => write!(f, ", {directive}: \"{name}\""),
            None => Ok(()),
        }
    }
}

impl Timekeeper for Keeper {
    fn handled(&self, blocked: Duration, took: Duration) {
        let (doing, operation) = (blame(took), longest_operation(took));
        self.metrics.record(Histogram::Blocked, blocked);
        self.metrics.record(Histogram::Handler, took);
        if took > self.threshold(doing) {
            self.report_stall(doing, operation, took);
        }
    }

    fn woke(&self, at: u64, slept: u64) {
        self.metrics.begin_turn(at, slept);
        if at >= self.next.get() {
            self.sum_up(at);
        }
    }

    fn turned(&self, took: Duration) {
        self.metrics.end_turn(took.as_nanos() as u64);
        if !took.is_zero() {
            self.metrics.add(Metric::Turns, 1);
            self.metrics.record(Histogram::Turn, took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_activities_of_one_place_are_both_found() {
        static NAMES: [u8; PLACES + 1] = [b'a'; PLACES + 1];
        let names = std::str::from_utf8(&NAMES).unwrap();
        let at = |from: usize| Doing { phase: &names[from..], module: "", block: None };
        let place = |doing: Doing| (doing.fingerprint() >> 56) as usize;
        let mut seen = HashMap::new();
        // There is one more activity than places.
        let pair = (0..=PLACES).find_map(|from| Some((seen.insert(place(at(from)), from)?, from)));
        let (one, other) = pair.unwrap();
        let kept =
            || NUMBERS.with(|numbers| [0, 1].map(|near| numbers[place(at(one)) ^ near].get().0));
        for from in [one, other] {
            remember(at(from), at(from).fingerprint());
        }
        assert_eq!(kept(), [at(one).fingerprint(), at(other).fingerprint()]);
    }

    #[test]
    fn a_message_names_what_is_known() {
        let nothing = Stall { doing: NOTHING, operation: None, preempted: false };
        let stall = Stall { operation: Some("TLS handshake"), ..nothing };
        assert_eq!(stall.to_string(), "something else, operation: \"TLS handshake\"");
        let doing = Doing { phase: "the content phase", module: "static", block: None };
        let stall = Stall { doing, ..nothing };
        assert_eq!(stall.to_string(), "the content phase, module: \"static\"");
    }
}
