//! What the loop of this thread is at, for the warning about handlers that hold it up.
//!
//! Whoever begins something notes it here, with a look at the kernel's coarse clock, which costs a few
//! nanoseconds and is exact enough for what is worth a warning. What took longest of a handler is named at its
//! lap ([`weir_engine::Timekeeper`]), so that nobody is blamed for another one's work.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use weir_engine::{Timekeeper, coarse_nanos, longest_operation};
use weir_log::{Level, Log};
use weir_metrics::{Histogram, Metric};

use crate::config::location::Location;
use crate::event_loop::LoopState;
use crate::request::Request;

/// How often a loop warns of the same.
const PAUSE: Duration = Duration::from_secs(1);

/// Of no more does it warn within that time.
const WARNINGS: usize = 64;

/// Whose code runs, and for what.
#[derive(Clone, Copy, Debug)]
struct Doing {
    /// Empty where nothing was noted.
    phase: &'static str,
    module: &'static str,
    location: Option<&'static Location>,
}

impl PartialEq for Doing {
    fn eq(&self, other: &Self) -> bool {
        let place = |d: &Doing| d.location.map(std::ptr::from_ref);
        (self.phase, self.module, place(self)) == (other.phase, other.module, place(other))
    }
}

/// Nothing was noted.
const NOTHING: Doing = Doing { phase: "", module: "", location: None };

thread_local! {
    /// What is being done, and since when, by the coarse clock.
    static DOING: Cell<(Doing, u64)> = const { Cell::new((NOTHING, 0)) };
    /// What took longest of what this handler did before, and how many nanoseconds.
    static LONGEST: Cell<(Doing, u64)> = const { Cell::new((NOTHING, 0)) };
}

/// Notes whose code runs for a request, and in which phase; the module is empty where it is nobody's in particular.
#[inline]
pub fn note(phase: &'static str, module: &'static str, r: &Request) {
    begin(Doing { phase, module, location: Some(r.location) });
}

#[inline]
fn begin(doing: Doing) {
    let now = coarse_nanos();
    let (before, since) = DOING.replace((doing, now));
    let took = now.saturating_sub(since);
    if before.location.is_some() && took > LONGEST.get().1 {
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
    location: &'static Location,
    future: impl Future<Output = T>,
) -> T {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        begin(Doing { phase, module, location: Some(location) });
        future.as_mut().poll(cx)
    })
    .await
}

/// Runs a future; also says how long, at worst, the event that it waited for waited for it.
pub async fn blocked<T>(
    event_loop: &LoopState,
    mut future: Pin<&mut impl Future<Output = T>>,
) -> (T, Duration) {
    let mut worst = Duration::ZERO;
    let out = std::future::poll_fn(|cx| {
        worst = worst.max(event_loop.handle.blocked());
        future.as_mut().poll(cx)
    })
    .await;
    (out, worst)
}

/// Puts the times of a loop into its counters, and warns of handlers that hold it up.
pub struct Keeper {
    event_loop: Weak<LoopState>,
    warned: RefCell<Vec<Warned>>,
}

/// What was warned of, and when.
struct Warned {
    held_up: HeldUp,
    at: Instant,
}

/// What held the loop up.
#[derive(Clone, Copy, PartialEq, Debug)]
struct HeldUp {
    doing: Doing,
    operation: Option<&'static str>,
}

impl Keeper {
    /// The keeper of a worker's loop.
    pub fn new(event_loop: &Rc<LoopState>) -> Rc<Keeper> {
        Rc::new(Keeper { event_loop: Rc::downgrade(event_loop), warned: RefCell::default() })
    }

    fn held_up(&self, event_loop: &LoopState, held_up: HeldUp, took: Duration) {
        event_loop.metrics.add(Metric::SlowHandlers, 1);
        if !is_news(&mut self.warned.borrow_mut(), held_up, event_loop.handle.now()) {
            return;
        }
        let log: &Log = match held_up.doing.location {
            Some(location) => &location.conf.core.error_log,
            None => &event_loop.site.main.core.error_log,
        };
        let millis = took.as_millis();
        let text = format_args!("the event loop was held up for {millis} ms by {held_up}");
        log.write(Level::Warn, None, text);
    }
}

/// Whether the last warning of the same is long enough ago; notes that there is one now.
fn is_news(warned: &mut Vec<Warned>, held_up: HeldUp, now: Instant) -> bool {
    warned.retain(|w| now.saturating_duration_since(w.at) < PAUSE);
    if warned.len() >= WARNINGS || warned.iter().any(|w| w.held_up == held_up) {
        return false;
    }
    warned.push(Warned { held_up, at: now });
    true
}

impl std::fmt::Display for HeldUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Doing { phase, module, location } = self.doing;
        f.write_str(if phase.is_empty() { "something else" } else { phase })?;
        if !module.is_empty() {
            write!(f, ", module: \"{module}\"")?;
        }
        if let Some(operation) = self.operation {
            write!(f, ", operation: \"{operation}\"")?;
        }
        match location {
            Some(location) => {
                write!(f, ", location: \"{}\"", String::from_utf8_lossy(&location.name))
            }
            None => Ok(()),
        }
    }
}

impl Timekeeper for Keeper {
    fn handled(&self, blocked: Duration, took: Duration) {
        let (doing, operation) = (blame(took), longest_operation(took));
        let Some(event_loop) = self.event_loop.upgrade() else { return };
        event_loop.metrics.record(Histogram::Blocked, blocked);
        event_loop.metrics.record(Histogram::Handler, took);
        let conf = doing.location.map_or(&event_loop.site.main, |l| &l.conf);
        if took > conf.event_loop.threshold {
            self.held_up(&event_loop, HeldUp { doing, operation }, took);
        }
    }

    fn turned(&self, took: Duration) {
        let Some(event_loop) = self.event_loop.upgrade() else { return };
        event_loop.metrics.add(Metric::Turns, 1);
        event_loop.metrics.record(Histogram::Turn, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_warned_of_once_a_second() {
        let (mut warned, start) = (Vec::new(), Instant::now());
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
        let doing = Doing { phase: "the content phase", module: "static", location: None };
        let held_up = HeldUp { doing, operation: None };
        assert_eq!(held_up.to_string(), "the content phase, module: \"static\"");
    }
}
