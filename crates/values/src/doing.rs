//! The current activity of this thread's loop, for messages about handlers that stall it.
//!
//! What begins something notes it here, with a look at the kernel's coarse clock. That costs a few
//! nanoseconds and is exact enough for what is worth a warning. What took longest of a handler is
//! named at its lap ([`weir_engine::Timekeeper`]), so that no handler is blamed for another one's
//! work.

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

use crate::told::{Again, PAUSE, RepeatFilter};

/// A block of the configuration, for which something is done.
pub trait Blamed: Debug {
    /// Its directive and its name.
    fn name(&self) -> (&'static str, Cow<'_, str>);
    /// Its `error_log`.
    fn log(&self) -> &Arc<Log>;
    /// Its `blocked_threshold`.
    fn threshold(&self) -> Duration;
}

/// What `blocked_threshold` is where nothing is said.
pub const THRESHOLD: Duration = Duration::from_millis(20);

/// Where messages go about work for no block in particular.
#[derive(Debug, Clone)]
pub struct Usual {
    /// `error_log`
    pub log: Arc<Log>,
    /// `blocked_threshold`
    pub threshold: Duration,
}

/// The module with code that runs, and for what.
#[derive(Clone, Copy, Debug)]
struct Doing {
    /// Empty where nothing was noted.
    phase: &'static str,
    module: &'static str,
    block: Option<&'static dyn Blamed>,
}

impl Doing {
    /// A number of its own. Addresses are enough: should the same words stand at two, they have two.
    #[inline]
    fn sum(self) -> u64 {
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

/// Forgets what this thread was at: blocks of the configuration that were noted may be freed from now on, and others come where
/// they stood.
pub fn forget() {
    DOING.set((NOTHING, 0));
    LONGEST.set((NOTHING, 0));
    NUMBERS.with(|numbers| numbers.iter().for_each(|number| number.set((0, 0))));
    ALL_NUMBERS.with_borrow_mut(HashMap::clear);
}

/// Nothing was noted.
const NOTHING: Doing = Doing { phase: "", module: "", block: None };

thread_local! {
    /// What is being done, and since when, by the coarse clock.
    static DOING: Cell<(Doing, u64)> = const { Cell::new((NOTHING, 0)) };
    /// What took longest of what this handler did before, and how many nanoseconds.
    static LONGEST: Cell<(Doing, u64)> = const { Cell::new((NOTHING, 0)) };
}

/// Notes the module that runs, its phase and its block; the module is empty if there is none in
/// particular.
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
    /// Where the loop of this thread shows what it is at.
    static ROW: Cell<Option<Activity>> = const { Cell::new(None) };
    /// The numbers of what it was at before. Each has one of two neighbouring places, by its sum: two activities of a request
    /// that would have the same place do not drive each other out.
    static NUMBERS: [Cell<(u64, u32)>; PLACES] = const { [const { Cell::new((0, 0)) }; PLACES] };
    /// The numbers of all, by the same sums, for those that find no place.
    static ALL_NUMBERS: RefCell<HashMap<u64, u32>> = RefCell::default();
}

/// More than the activities of a busy loop.
const PLACES: usize = 256;

/// Shows the other threads and processes what the loop is at.
#[inline]
fn publish(doing: Doing) {
    let Some(row) = ROW.get() else { return };
    let sum = doing.sum();
    let number = NUMBERS.with(|numbers| {
        let place = (sum >> 56) as usize;
        let (known, number) = numbers[place].get();
        if known == sum {
            return number;
        }
        let (known, number) = numbers[place ^ 1].get();
        if known == sum { number } else { remember(doing, sum) }
    });
    row.doing(number);
}

/// Keeps the number of what the loop does, for the next time.
#[cold]
#[inline(never)]
fn remember(doing: Doing, sum: u64) -> u32 {
    let new = || name(&HeldUp { doing, operation: None, preempted: false }.to_string()).0;
    let number = ALL_NUMBERS.with_borrow_mut(|all| *all.entry(sum).or_insert_with(new));
    NUMBERS.with(|numbers| {
        let place = (sum >> 56) as usize;
        let is_free = numbers[place].get().0 == 0;
        numbers[if is_free { place } else { place ^ 1 }].set((sum, number));
    });
    number
}

/// The names of a process' activities, each with its number.
#[derive(Default)]
struct Names {
    numbers: HashMap<Arc<str>, u32>,
    list: Vec<Arc<str>>,
}

static NAMES: Mutex<Option<Names>> = Mutex::new(None);

/// So many names are kept: there may be no end of scripts whose path has variables.
const NAMES_KEPT: usize = 65_536;

fn names() -> MutexGuard<'static, Option<Names>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of an activity's name in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivityName(u32);

/// Keeps the name of an activity. Takes a lock: not for each request.
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

/// Runs a script, and shows meanwhile that the loop is at it.
#[inline]
pub fn running<T>(script: ActivityName, work: impl FnOnce() -> T) -> T {
    let Some(row) = ROW.get() else { return work() };
    row.script(script.0);
    let out = work();
    row.script(0);
    out
}

/// What a loop of this process is at.
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

/// What took longest of what the handler did that has just ended.
fn blame(took: Duration) -> Doing {
    let nothing = (NOTHING, 0);
    if let Some(row) = ROW.get() {
        row.doing(0);
    }
    let ((last, _), (longest, time)) = (DOING.replace(nothing), LONGEST.replace(nothing));
    let time = Duration::from_nanos(time);
    if 2 * time >= took && !time.is_zero() { longest } else { last }
}

/// Runs a future, and notes its module at each of its steps.
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

/// Puts the times of a loop into its counters, and tells of handlers that hold it up.
pub struct Keeper {
    metrics: Rc<Tally>,
    usual: Usual,
    told: RefCell<RepeatFilter<Told>>,
    /// When there is something to sum up, by the monotonic clock in nanoseconds.
    next: Cell<u64>,
}

/// What held the loop up.
#[derive(Clone, Copy, PartialEq, Debug)]
struct HeldUp {
    doing: Doing,
    operation: Option<&'static str>,
    /// It was held up itself: its thread waited for a processor.
    preempted: bool,
}

/// What the log was told of, or its repetition: the block may be freed before that.
#[derive(Clone, Debug)]
struct Told {
    what: String,
    preempted: bool,
    log: Arc<Log>,
}

impl PartialEq for Told {
    fn eq(&self, other: &Told) -> bool {
        (self.preempted, &self.what) == (other.preempted, &other.what)
            && Arc::ptr_eq(&self.log, &other.log)
    }
}

impl Keeper {
    /// The keeper of a loop.
    pub fn new(metrics: Rc<Tally>, usual: Usual) -> Rc<Keeper> {
        ROW.set(metrics.activity());
        Rc::new(Keeper { metrics, usual, told: RefCell::default(), next: Cell::new(u64::MAX) })
    }

    fn threshold(&self, doing: Doing) -> Duration {
        doing.block.map_or(self.usual.threshold, Blamed::threshold)
    }

    /// Work that was slow only for lack of a processor is not to blame.
    fn held_up(&self, doing: Doing, operation: Option<&'static str>, took: Duration) {
        let waited = waited_for_processor().unwrap_or_default().min(took);
        let preempted = took - waited <= self.threshold(doing);
        let what = HeldUp { doing, operation, preempted }.to_string();
        let log = doing.block.map_or(&self.usual.log, Blamed::log);
        let held_up = Told { what: what.clone(), preempted, log: Arc::clone(log) };
        self.metrics.add(Metric::SlowHandlers, 1);
        self.metrics.add(Metric::Preempted, preempted.into());
        let now = coarse_nanos();
        self.metrics.culprit(&Culprit { at: now, took, waited, preempted, what: what.clone() });
        let mut told = self.told.borrow_mut();
        if !told.is_news(held_up, took, now) {
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
        self.next.set(told.next());
    }

    /// Tells of what was left out until `now`.
    fn sum_up(&self, now: u64) {
        let mut told = self.told.borrow_mut();
        let within = PAUSE.as_secs();
        for Again { what, times, worst } in told.over(now) {
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
        let others = told.take_others(now);
        if others > 0 {
            let text = format_args!(
                "the event loop was held up {others} more times within {within} s by others"
            );
            self.usual.log.write(Level::Error, None, text);
        }
        self.next.set(told.next());
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.sum_up(u64::MAX);
    }
}

impl std::fmt::Display for HeldUp {
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
            self.held_up(doing, operation, took);
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
        let place = |doing: Doing| (doing.sum() >> 56) as usize;
        let mut seen = HashMap::new();
        // There are more of them than places.
        let pair = (0..=PLACES).find_map(|from| Some((seen.insert(place(at(from)), from)?, from)));
        let (one, other) = pair.unwrap();
        let kept =
            || NUMBERS.with(|numbers| [0, 1].map(|near| numbers[place(at(one)) ^ near].get().0));
        for from in [one, other] {
            remember(at(from), at(from).sum());
        }
        assert_eq!(kept(), [at(one).sum(), at(other).sum()]);
    }

    #[test]
    fn a_message_names_what_is_known() {
        let nothing = HeldUp { doing: NOTHING, operation: None, preempted: false };
        let held_up = HeldUp { operation: Some("TLS handshake"), ..nothing };
        assert_eq!(held_up.to_string(), "something else, operation: \"TLS handshake\"");
        let doing = Doing { phase: "the content phase", module: "static", block: None };
        let held_up = HeldUp { doing, ..nothing };
        assert_eq!(held_up.to_string(), "the content phase, module: \"static\"");
    }
}
