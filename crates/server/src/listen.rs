//! Turns what the accept policy decides into calls of the engine.

use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_balance::{After, Arm as Decision, Load, Probe, Seat, Setup, Shape};
use weir_engine::{Arm, Driver, Handle, ListenerKey};
use weir_http::{Address, Worker};

use crate::cycle::{self, Cycle};

/// Where a loop stands among all loops of the server.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its worker, from 0.
    pub worker: usize,
    /// The loop within its worker, from 0.
    pub index: usize,
    /// Its row of the load table: the loop's number in the whole server.
    pub row: usize,
}

/// The listening sockets of one loop, and what its policy says about them.
pub struct Listening {
    listeners: HashMap<ListenerKey, usize>,
    http: Rc<Worker>,
    load: Arc<cycle::Load>,
    seat: Seat,
    mode: Arm,
    multi_accept: bool,
}

impl Listening {
    /// Takes the loop's sockets: the shared ones, and of those that every loop has its own.
    pub fn new(h: &Handle, cycle: &Cycle, place: Place, http: Rc<Worker>) -> io::Result<Listening> {
        let mut listeners = HashMap::new();
        for (number, socket) in cycle.sockets.iter().enumerate() {
            let own = if socket.copies.len() > 1 { place.row } else { 0 };
            if let Some(fd) = socket.copies.get(own) {
                listeners.insert(h.add_listener(Arc::clone(fd)), number);
            }
        }
        let events = &cycle.config.events;
        let setup = Setup {
            me: place.row,
            sockets: listeners.len(),
            connections: events.connections as u64,
            mutex_delay: events.accept_mutex_delay,
        };
        let load = Arc::clone(&cycle.load);
        let seat = Seat::take(events.balance, setup, h.now(), &load.table());
        let mode = match events.balance.shape() {
            Shape::Shared { exclusive: false } => Arm::Shared,
            _ => Arm::Exclusive,
        };
        Ok(Listening { listeners, http, load, seat, mode, multi_accept: events.multi_accept })
    }

    /// Takes nothing new from now on.
    pub fn retire(&mut self, h: &Handle) {
        self.seat.retire(h.now(), &self.load.table());
        for (key, _) in self.listeners.drain() {
            h.remove_listener(key);
        }
    }

    /// Whether nothing is left to accept.
    pub fn is_drained(&self) -> bool {
        self.listeners.is_empty()
    }

    fn carried(&self) -> Load {
        Load { inflight: self.http.inflight() as u64, open: self.http.connections() as u64 }
    }

    /// Accepts what one socket has, at most one connection unless `multi_accept` is on.
    fn accept(&mut self, h: &Handle, listener: ListenerKey) {
        let Some(number) = self.listeners.get(&listener).copied() else { return };
        let mut accepted = 0;
        while let Ok(Some((fd, peer))) = h.accept(listener) {
            self.http.accepted(fd, Address::from_any(Some(peer)), number);
            accepted += 1;
            if !self.multi_accept {
                break;
            }
        }
        let load = self.carried();
        if accepted > 0
            && self.seat.accepted(h.now(), &self.load.table(), load, accepted) == After::Readd
        {
            // Not registered is registered at the next wait.
            let _ = h.rearm(listener);
        }
    }
}

impl Driver for Listening {
    fn before_wait(&mut self, h: &Handle, now: Instant) -> Option<Duration> {
        let load = self.carried();
        let wait = self.seat.before_wait(now, &self.load.table(), load);
        for listener in self.listeners.keys() {
            match wait.arm {
                Decision::Disarmed => h.disarm(*listener),
                // What cannot be registered now is tried again before the next wait.
                Decision::Armed => drop(h.arm(*listener, self.mode)),
                Decision::ArmedLast => {
                    h.disarm(*listener);
                    drop(h.arm(*listener, self.mode));
                }
            }
        }
        wait.at_most
    }

    fn after_wait(&mut self, h: &Handle, now: Instant) {
        if self.seat.after_wait(now, &self.load.table()) == Probe::Try {
            let listeners: Vec<_> = self.listeners.keys().copied().collect();
            listeners.into_iter().for_each(|listener| self.accept(h, listener));
        }
    }

    fn acceptable(&mut self, h: &Handle, listener: ListenerKey) {
        self.accept(h, listener);
    }
}
