//! What the loop of this thread is at, for the warning about handlers that hold it up.
//!
//! Whoever begins something notes it here, with a look at the kernel's coarse clock, which costs a few
//! nanoseconds and is exact enough for what is worth a warning. What took longest of a handler is named at its
//! lap ([`weir_engine::Timekeeper`]), so that nobody is blamed for another one's work.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::{Timekeeper, coarse_nanos, longest_operation};
use weir_log::{Level, Log};
use weir_metrics::{Histogram, Metric, Row};

/// How often a loop warns of the same.
const PAUSE: Duration = Duration::from_secs(1);

/// Of no more does it warn within that time.
const WARNINGS: usize = 64;

/// A block of the configuration, for which something is done.
pub trait Blamed: Debug {
    /// Its directive and its name.
    fn name(&self) -> (&'static str, Cow<'_, str>);
    /// Its `error_log`.
    fn log(&self) -> &Log;
    /// Its `blocked_threshold`.
    fn threshold(&self) -> Duration;
}

/// What `blocked_threshold` is where nothing is said.
pub const THRESHOLD: Duration = Duration::from_millis(20);

/// Who hears of what was done for no block in particular.
#[derive(Debug, Clone)]
pub struct Usual {
    /// `error_log`
    pub log: Arc<Log>,
    /// `blocked_threshold`
    pub threshold: Duration,
}

/// Whose code runs, and for what.
#[derive(Clone, Copy, Debug)]
struct Doing {
    /// Empty where nothing was noted.
    phase: &'static str,
    module: &'static str,
    block: Option<&'static dyn Blamed>,
}

impl PartialEq for Doing {
    fn eq(&self, other: &Self) -> bool {
        let block = |d: &Doing| d.block.map(|block| std::ptr::from_ref(block).cast::<()>());
        (self.phase, self.module, block(self)) == (other.phase, other.module, block(other))
    }
}

/// Nothing was noted.
const NOTHING: Doing = Doing { phase: "", module: "", block: None };

thread_local! {
    /// What is being done, and since when, by the coarse clock.
    static DOING: Cell<(Doing, u64)> = const { Cell::new((NOTHING, 0)) };
    /// What took longest of what this handler did before, and how many nanoseconds.
    static LONGEST: Cell<(Doing, u64)> = const { Cell::new((NOTHING, 0)) };
}

/// Notes whose code runs, in which phase and for which block; the module is empty where it is nobody's in particular.
#[inline]
pub fn note(phase: &'static str, module: &'static str, block: &'static dyn Blamed) {
    begin(Doing { phase, module, block: Some(block) });
}

#[inline]
fn begin(doing: Doing) {
    let now = coarse_nanos();
    let (before, since) = DOING.replace((doing, now));
    let took = now.saturating_sub(since);
    if before.block.is_some() && took > LONGEST.get().1 {
        LONGEST.set((before, took));
    }
}

/// What took longest of what the handler did that has just ended.
fn blame(took: Duration) -> Doing {
    let nothing = (NOTHING, 0);
    let ((last, _), (longest, time)) = (DOING.replace(nothing), LONGEST.replace(nothing));
    let time = Duration::from_nanos(time);
    if 2 * time >= took && !time.is_zero() { longest } else { last }
}

/// Runs a future, and notes at each of its steps whose it is.
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

/// Puts the times of a loop into its counters, and warns of handlers that hold it up.
pub struct Keeper {
    metrics: Rc<Row>,
    usual: Usual,
    warned: RefCell<Vec<Warned>>,
}

/// What was warned of, and when.
struct Warned {
    held_up: HeldUp,
    /// By the coarse clock.
    at: Duration,
}

/// What held the loop up.
#[derive(Clone, Copy, PartialEq, Debug)]
struct HeldUp {
    doing: Doing,
    operation: Option<&'static str>,
}

impl Keeper {
    /// The keeper of a loop.
    pub fn new(metrics: Rc<Row>, usual: Usual) -> Rc<Keeper> {
        Rc::new(Keeper { metrics, usual, warned: RefCell::default() })
    }

    fn held_up(&self, held_up: HeldUp, took: Duration) {
        self.metrics.add(Metric::SlowHandlers, 1);
        let now = Duration::from_nanos(coarse_nanos());
        if !is_news(&mut self.warned.borrow_mut(), held_up, now) {
            return;
        }
        let log = held_up.doing.block.map_or(&*self.usual.log, Blamed::log);
        let millis = took.as_millis();
        let text = format_args!("the event loop was held up for {millis} ms by {held_up}");
        log.write(Level::Warn, None, text);
    }
}

/// Whether the last warning of the same is long enough ago; notes that there is one now.
fn is_news(warned: &mut Vec<Warned>, held_up: HeldUp, now: Duration) -> bool {
    warned.retain(|w| now.saturating_sub(w.at) < PAUSE);
    if warned.len() >= WARNINGS || warned.iter().any(|w| w.held_up == held_up) {
        return false;
    }
    warned.push(Warned { held_up, at: now });
    true
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
        if took > doing.block.map_or(self.usual.threshold, Blamed::threshold) {
            self.held_up(HeldUp { doing, operation }, took);
        }
    }

    fn turned(&self, took: Duration) {
        self.metrics.add(Metric::Turns, 1);
        self.metrics.record(Histogram::Turn, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_warned_of_once_a_second() {
        let (mut warned, start) = (Vec::new(), Duration::from_secs(9));
        let of = |module, operation| HeldUp { doing: Doing { module, ..NOTHING }, operation };
        let (gzip, lua) = (of("gzip_filter", None), of("lua", None));
        assert!(is_news(&mut warned, gzip, start));
        assert!(!is_news(&mut warned, gzip, start));
        assert!(is_news(&mut warned, lua, start), "another module");
        assert!(is_news(&mut warned, of("lua", Some("regex")), start), "another operation");
        assert!(!is_news(&mut warned, gzip, start + PAUSE / 2));
        assert!(is_news(&mut warned, gzip, start + PAUSE));
        assert_eq!(warned.len(), 1, "what is past is forgotten");
    }

    #[test]
    fn a_warning_names_what_is_known() {
        let held_up = HeldUp { doing: NOTHING, operation: Some("TLS handshake") };
        assert_eq!(held_up.to_string(), "something else, operation: \"TLS handshake\"");
        let doing = Doing { phase: "the content phase", module: "static", block: None };
        let held_up = HeldUp { doing, operation: None };
        assert_eq!(held_up.to_string(), "the content phase, module: \"static\"");
    }
}
