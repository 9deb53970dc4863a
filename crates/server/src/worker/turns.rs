//! The driver of a loop: accepts as the policy says, and ends the loop when it is time.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weir_engine::{Driver, Handle, ListenerKey, StealCounts, Turn, yield_now};

use super::LoopParts;
use super::evenness::Evenness;
use crate::health::JudgeWaker;
use crate::listen::Listening;
use crate::service::{Served, Service, Sites};
use weir_metrics::Metric;
use weir_values::Retire;
use weir_values::log::Writers;
use weir_zone::Zones;

/// The time in which final messages of connections are sent.
const LAST_WORD: Duration = Duration::from_millis(20);
/// The interval at which a loop that is to end checks whether it can. A disk that does not respond
/// causes no event.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The turns in which final messages are sent at least.
const LAST_TURNS: usize = 4;

thread_local! {
    /// How this thread's loop is to end, once it was told.
    static END: Cell<Option<Retire>> = const { Cell::new(None) };
}

thread_local! {
    /// Called once this thread's loop has obeyed the order to end.
    static OBEYED: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

thread_local! {
    /// The service of this thread's loop.
    static SERVICE: RefCell<Weak<Service>> = const { RefCell::new(Weak::new()) };
}

/// Sets the service of this thread's loop.
pub fn serves(service: &Rc<Service>) {
    SERVICE.set(Rc::downgrade(service));
}

/// Starts to write the access log lines of this thread's loop. Returns the queues that write them.
pub fn flush_logs() -> Vec<Writers> {
    let service = SERVICE.with_borrow(Weak::upgrade);
    service.map(|service| service.flush_logs()).unwrap_or_default()
}

/// Makes requests of this thread's loop that wait for an upstream server try again.
pub fn look() {
    if let Some(service) = SERVICE.with_borrow(Weak::upgrade) {
        service.look();
    }
}

/// This thread's loop serves other sites from now on.
pub fn take(served: Served, sites: &Sites, zones: &Zones) {
    if let Some(service) = SERVICE.with_borrow(Weak::upgrade) {
        service.take(served, sites, zones);
    }
}

/// Tells this thread's loop to finish its requests and end. `obeyed` is called once it accepts
/// nothing new.
pub fn finish(how: Retire, obeyed: impl FnOnce() + 'static) {
    END.set(Some(how));
    OBEYED.set(Some(Box::new(obeyed)));
}

/// Ends this thread's loop now, whatever it has. Connections that can notify their clients do so
/// first.
pub fn shut_down(h: &Handle) {
    let service = SERVICE.with_borrow(Weak::upgrade);
    if !service.is_some_and(|service| service.shut_down()) {
        return h.stop();
    }
    let handle = h.clone();
    h.spawn(async move {
        handle.sleep(LAST_WORD).await;
        // The time may pass before the loop has had a turn.
        for _ in 0..LAST_TURNS {
            yield_now().await;
        }
        handle.stop();
    });
}

/// The driver of one loop.
pub struct Turns {
    serving: Option<Serving>,
    ending: Option<Retire>,
    /// For loop 0, which receives signals and therefore ends after all others.
    others: Option<Arc<LoopParts>>,
}

/// What a loop serves.
pub struct Serving {
    listening: Listening,
    service: Rc<Service>,
    /// The steal counts that were already added to the metrics.
    steals: StealCounts,
    /// None if there are no other loops.
    evenness: Option<Evenness>,
    judge: JudgeWaker,
}

impl Serving {
    /// For a loop that accepts and serves. `evenness` is None if there are no other loops.
    pub fn new(
        listening: Listening,
        service: Rc<Service>,
        evenness: Option<Evenness>,
        judge: JudgeWaker,
    ) -> Serving {
        Serving { listening, service, steals: StealCounts::default(), evenness, judge }
    }

    fn relieved(&mut self, steals: StealCounts) {
        let before = std::mem::replace(&mut self.steals, steals);
        if steals != before {
            let metrics = &self.service.metrics;
            metrics.add(Metric::TakenOver, steals.taken - before.taken);
            metrics.add(Metric::PassedOn, steals.passed_on - before.passed_on);
            metrics.add(Metric::LookedInVain, steals.in_vain - before.in_vain);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.service.finish_logs();
    }
}

impl Turns {
    /// The driver of a loop that accepts and serves.
    pub fn new(serving: Serving, others: Option<Arc<LoopParts>>) -> Turns {
        Turns { serving: Some(serving), ending: None, others }
    }

    /// The driver of a loop whose configuration serves nothing.
    pub fn idle(others: Option<Arc<LoopParts>>) -> Turns {
        Turns { serving: None, ending: None, others }
    }

    /// Tells the service that the loop is to end.
    fn notify_service(&mut self, h: &Handle) {
        let end = END.get();
        if end != self.ending {
            self.ending = end;
            if let (Some(serving), Some(how)) = (&mut self.serving, end) {
                serving.listening.retire(h, how);
                serving.service.retire(how);
            }
        }
        // An order that arrives twice is confirmed twice, since the first confirmation may be lost.
        if let Some(obeyed) = OBEYED.take() {
            obeyed();
        }
    }

    fn is_done(&self) -> bool {
        let alone =
            self.others.as_ref().is_none_or(|shared| shared.others.load(Ordering::SeqCst) == 0);
        let served = || {
            self.serving.as_ref().is_none_or(|Serving { service, listening, .. }| {
                service.connections() == 0 && listening.is_drained() && service.is_flushed()
            })
        };
        self.ending.is_some() && served() && alone
    }
}

impl Driver for Turns {
    fn before_wait(&mut self, h: &Handle, now: Instant) -> Option<Duration> {
        self.notify_service(h);
        if self.is_done() {
            h.stop();
        }
        let again = self.ending.map(|_| LOOK_AGAIN);
        let serving = self.serving.as_mut()?;
        let patience = serving.evenness.as_ref().and_then(|evenness| evenness.patience(now));
        let allowed = serving.listening.before_wait(h, now);
        [allowed, patience, again].into_iter().flatten().min()
    }

    fn after_wait(&mut self, h: &Handle, now: Instant) {
        if let Some(serving) = &mut self.serving {
            serving.judge.wake(now);
            serving.listening.after_wait(h, now);
        }
    }

    fn acceptable(&mut self, h: &Handle, listener: ListenerKey) {
        if let Some(serving) = &mut self.serving {
            serving.listening.acceptable(h, listener);
        }
    }

    /// A loop that is to end steals nothing.
    fn has_room(&mut self) -> bool {
        let is_ending = self.ending.is_some();
        !is_ending && self.serving.as_mut().is_some_and(|serving| serving.listening.has_room())
    }

    fn after_accepts(&mut self, h: &Handle, now: Instant) {
        if let Some(serving) = &mut self.serving {
            serving.listening.after_accepts(h, now);
        }
    }

    fn end_of_turn(&mut self, h: &Handle, turn: &Turn) {
        if let Some(serving) = &mut self.serving {
            serving.service.end_of_turn();
            serving.listening.end_of_turn(h, turn);
            match weir_log::take_left_out() {
                0 => {}
                n => serving.service.metrics.add(Metric::LogLeftOut, n),
            }
            match weir_log::take_lost() {
                0 => {}
                n => serving.service.metrics.add(Metric::LogLost, n),
            }
            if let Some(counts) = weir_resolver::take_counts() {
                let metrics = &serving.service.metrics;
                metrics.add(Metric::LookupAsked, counts.asked);
                metrics.add(Metric::LookupFailed, counts.failed);
                metrics.add(Metric::LookupNotFound, counts.not_found);
                metrics.add(Metric::LookupTimedOut, counts.timed_out);
            }
            serving.relieved(h.steal_counts());
            serving.service.metrics.set_open(serving.service.connections() as u64);
            serving.evenness.iter_mut().for_each(|evenness| evenness.look(turn.woke));
        }
    }
}
