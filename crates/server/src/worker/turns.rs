//! What a loop does in its turns: accept as the policy says, and end when it is time.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weir_engine::{Driver, Handle, ListenerKey, Turn};

use super::Shared;
use crate::listen::Listening;
use weir_http::{Retire, Worker};
use weir_metrics::Metric;

thread_local! {
    /// How the loop of this thread is to end, once it is to.
    static END: Cell<Option<Retire>> = const { Cell::new(None) };
}

/// Tells the loop of this thread to finish what it has and to end.
pub fn finish(how: Retire) {
    END.set(Some(how));
}

/// The driver of one loop.
pub struct Turns {
    service: Option<Service>,
    told: Option<Retire>,
    /// Of loop 0: it ends after all others, since it takes signals for them.
    others: Option<Arc<Shared>>,
}

/// What a loop serves.
struct Service {
    listening: Listening,
    http: Rc<Worker>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.http.finish_logs();
    }
}

impl Turns {
    /// A loop that accepts and serves.
    pub fn new(listening: Listening, http: Rc<Worker>, others: Option<Arc<Shared>>) -> Turns {
        Turns { service: Some(Service { listening, http }), told: None, others }
    }

    /// A loop of a configuration that serves nothing.
    pub fn idle(others: Option<Arc<Shared>>) -> Turns {
        Turns { service: None, told: None, others }
    }

    /// Passes the word on that the loop is to end.
    fn tell(&mut self, h: &Handle) {
        let end = END.get();
        if end == self.told {
            return;
        }
        self.told = end;
        if let (Some(service), Some(how)) = (&mut self.service, end) {
            service.listening.retire(h, how);
            service.http.retire(how);
        }
    }

    fn is_done(&self) -> bool {
        let alone =
            self.others.as_ref().is_none_or(|shared| shared.others.load(Ordering::SeqCst) == 0);
        let served = self.service.as_ref().is_none_or(|service| {
            service.http.connections() == 0 && service.listening.is_drained()
        });
        self.told.is_some() && alone && served
    }
}

impl Driver for Turns {
    fn before_wait(&mut self, h: &Handle, now: Instant) -> Option<Duration> {
        self.tell(h);
        if self.is_done() {
            h.stop();
        }
        self.service.as_mut().and_then(|service| service.listening.before_wait(h, now))
    }

    fn after_wait(&mut self, h: &Handle, now: Instant) {
        if let Some(service) = &mut self.service {
            service.listening.after_wait(h, now);
        }
    }

    fn acceptable(&mut self, h: &Handle, listener: ListenerKey) {
        if let Some(service) = &mut self.service {
            service.listening.acceptable(h, listener);
        }
    }

    fn after_accepts(&mut self, h: &Handle, now: Instant) {
        if let Some(service) = &mut self.service {
            service.listening.after_accepts(h, now);
        }
    }

    fn end_of_turn(&mut self, h: &Handle, turn: &Turn) {
        if let Some(service) = &mut self.service {
            service.http.end_of_turn();
            service.listening.end_of_turn(h, turn);
            match weir_log::take_left_out() {
                0 => {}
                n => service.http.metrics.add(Metric::LogLeftOut, n),
            }
        }
    }
}
