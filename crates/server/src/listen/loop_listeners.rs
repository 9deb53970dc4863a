//! The listening sockets and connections of one loop, as its [`AcceptDriver`](weir_balance::AcceptDriver) uses them.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use weir_balance::{AcceptOutcome, ListenerSet, Load, Stance};
use weir_engine::{Handle, Wake};
use weir_log::{Cause, Log, OncePerSecond, log};
use weir_metrics::Metric;
use weir_sys::beginning::beginning;
use weir_upstream::close_idle;
use weir_values::Address;

use super::acceptor::Accepted;
use super::listeners::{Listener, Listeners};
use super::{CycleShared, LoopPosition, accept_failed, count_failure, is_the_connections};
use crate::cycle::Cycle;
use crate::service::Service;

/// A full loop closes one in `EVICT_PART` idle connections, at most `EVICT_MOST`. nginx:
/// ngx_drain_connections.
const EVICT_PART: usize = 8;
const EVICT_MOST: usize = 32;

pub(super) struct LoopListeners {
    pub(super) sockets: Listeners,
    pub(super) service: Rc<Service>,
    cycle_shared: Arc<CycleShared>,
    log: Arc<Log>,
    row: usize,
    room: Rc<ConnectionLimit>,
}

impl LoopListeners {
    pub(super) fn new(cycle: &Cycle, place: LoopPosition, service: Rc<Service>) -> LoopListeners {
        let events = &cycle.config.events;
        let room = Rc::new(ConnectionLimit::new(events.connections, &cycle.log));
        let making = Rc::clone(&room);
        service.handle.limit_sockets(events.connections, Rc::new(move |h| _ = making.make(h)));
        LoopListeners {
            sockets: Listeners::new(&service, cycle, place, events.balance.shape()),
            service,
            cycle_shared: Arc::clone(&cycle.load),
            log: Arc::clone(&cycle.log),
            row: place.row,
            room,
        }
    }

    fn h(&self) -> &Handle {
        &self.service.handle
    }

    /// Starts a connection that an acceptor has accepted.
    pub(super) fn admit(&self, (fd, number): Accepted) {
        let peer = rustix::net::getpeername(&fd).ok();
        self.begin(fd, Address::from_any(peer.flatten()), number);
    }

    /// A panic ends the connection, and the counters stay right.
    fn begin(&self, fd: OwnedFd, peer: Address, number: usize) {
        self.h().guard(|| self.service.accepted(fd, peer, number));
    }
}

/// Limits the connections of a loop; nginx: `worker_connections`. Connections to upstream servers
/// count as well.
struct ConnectionLimit {
    most: usize,
    log: Arc<Log>,
    log_gate: OncePerSecond,
}

impl ConnectionLimit {
    fn new(most: usize, log: &Arc<Log>) -> ConnectionLimit {
        ConnectionLimit { most, log: Arc::clone(log), log_gate: OncePerSecond::default() }
    }

    /// Closes idle connections, the longest idle first: clients' connections, then one connection
    /// to an upstream server. False if none was idle.
    fn make(&self, h: &Handle) -> bool {
        let parked = h.parked();
        let mut ended = h.unpark_oldest((parked / EVICT_PART).clamp(1, EVICT_MOST), Wake::Evicted);
        if h.sockets() >= self.most || ended == 0 {
            ended += close_idle(1);
        }
        if ended > 0 && self.log_gate.lets_through(h.now()) {
            let text = "worker_connections are not enough, reusing connections";
            log!(self.log, Warn, None, "{} {text}", self.most);
        }
        ended > 0
    }

    fn say_full(&self, h: &Handle) {
        if self.log_gate.lets_through(h.now()) {
            log!(self.log, Alert, None, "{} worker_connections are not enough", self.most);
        }
    }
}

impl ListenerSet for LoopListeners {
    type Listener = Listener;

    fn now(&self) -> Instant {
        self.h().now()
    }

    fn this_moment(&self) -> Instant {
        self.h().lately()
    }

    fn load(&self) -> Load {
        Load { inflight: self.service.inflight() as u64, open: self.service.connections() as u64 }
    }

    fn has_room(&self) -> bool {
        self.h().sockets() < self.room.most
    }

    fn is_full(&mut self) -> bool {
        let full = !self.has_room() && self.h().parked() == 0;
        if full {
            self.make_room();
        }
        full && !self.has_room()
    }

    fn make_room(&mut self) {
        if !self.room.make(self.h()) {
            self.service.metrics.add(Metric::ConnectionsFull, 1);
            self.room.say_full(self.h());
        }
    }

    fn shared(&self) -> Vec<Listener> {
        self.sockets.shared_listeners()
    }

    fn is_shared(&self, listener: Listener) -> bool {
        !listener.own
    }

    fn accept(&mut self, listener: Listener) -> AcceptOutcome {
        if listener.quic {
            // A panic ends the connection.
            let mut taken = true;
            self.h().guard(|| taken = self.service.take_first(listener.number));
            self.sockets.accepted(listener.key);
            return if taken { AcceptOutcome::Accepted } else { AcceptOutcome::Empty };
        }
        loop {
            match self.h().accept(listener.key) {
                Ok(Some((fd, peer))) => {
                    self.sockets.accepted(listener.key);
                    self.begin(fd, Address::from_any(Some(peer)), listener.number);
                    let spoke = self.service.spoke_soon(listener.number);
                    self.sockets.defer_in_a_rush(
                        &self.service.handle,
                        listener.key,
                        spoke,
                        &self.log,
                    );
                    return AcceptOutcome::Accepted;
                }
                Ok(None) => return AcceptOutcome::Empty,
                Err(e) => {
                    let e = Errno::from_io_error(&e).unwrap_or(Errno::IO);
                    accept_failed(&self.log, e);
                    count_failure(&self.service.metrics, e);
                    if !is_the_connections(e) {
                        return AcceptOutcome::Shortage;
                    }
                }
            }
        }
    }

    fn found_empty(&mut self) {
        self.service.metrics.add(Metric::EmptyAccepts, 1);
    }

    fn take_handed(&mut self) -> AcceptOutcome {
        let Some(handover) = self.cycle_shared.handover(self.row) else {
            return AcceptOutcome::Empty;
        };
        match handover.take() {
            Ok(Some(accepted)) => {
                self.admit(accepted);
                AcceptOutcome::Accepted
            }
            Ok(None) => AcceptOutcome::Empty,
            // The connection stays in the handover socket.
            Err(e) => {
                log!(self.log, Crit, None, "recvmsg() failed {}", Cause(&e));
                AcceptOutcome::Shortage
            }
        }
    }

    fn arm(&mut self, stance: Stance, able: bool) -> bool {
        self.sockets.take_left(&self.cycle_shared);
        let heard = self.sockets.arm(&self.service.handle, stance, able, &self.log);
        if let Some(armed) = self.sockets.take_change() {
            let since = || self.this_moment().saturating_duration_since(beginning());
            self.service.metrics.set_armed(armed.then(|| since().as_nanos() as u64));
        }
        heard
    }

    fn readd(&mut self, listener: Listener) {
        self.sockets.readd(&self.service.handle, listener.key, &self.log);
    }

    fn notify(&mut self, i: usize) {
        self.cycle_shared.notify(i);
    }

    fn of(&self, i: usize) -> Vec<Listener> {
        self.sockets.of(i)
    }
}
