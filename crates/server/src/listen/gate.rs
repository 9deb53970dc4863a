//! The listening sockets and connections of one loop, as its [`Porter`](weir_balance::Porter) sees them.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weir_balance::{Entrance, Load, Stance, Taken};
use weir_engine::{Handle, Wake};
use weir_log::{Cause, Log, log};
use weir_metrics::Metric;
use weir_sys::beginning::beginning;
use weir_upstream::close_idle;
use weir_values::Address;

use super::acceptor::Accepted;
use super::doors::{Door, Doors};
use super::{Commons, Place, accept_failed, is_the_connections};
use crate::cycle::Cycle;
use crate::service::Service;

/// How often a loop says that it has no room.
const SAY_AGAIN: Duration = Duration::from_secs(1);
/// Of the idle connections, this part is closed when there is no room for new ones, and at most
/// so many at a time. nginx: ngx_drain_connections.
const EVICT_PART: usize = 8;
const EVICT_MOST: usize = 32;

pub(super) struct Gate {
    pub(super) doors: Doors,
    pub(super) service: Rc<Service>,
    commons: Arc<Commons>,
    log: Arc<Log>,
    row: usize,
    room: Rc<Room>,
}

impl Gate {
    pub(super) fn new(cycle: &Cycle, place: Place, service: Rc<Service>) -> Gate {
        let events = &cycle.config.events;
        let room = Rc::new(Room::new(events.connections, &cycle.log));
        let making = Rc::clone(&room);
        service.handle.limit_sockets(events.connections, Rc::new(move |h| _ = making.make(h)));
        Gate {
            doors: Doors::new(&service.handle, cycle, place, events.balance.shape()),
            service,
            commons: Arc::clone(&cycle.load),
            log: Arc::clone(&cycle.log),
            row: place.row,
            room,
        }
    }

    fn h(&self) -> &Handle {
        &self.service.handle
    }

    /// A connection that somebody else accepted.
    pub(super) fn admit(&self, (fd, number): Accepted) {
        let peer = rustix::net::getpeername(&fd).ok();
        self.begin(fd, Address::from_any(peer.flatten()), number);
    }

    /// A panic costs the connection, and nothing of what is noted about it.
    fn begin(&self, fd: OwnedFd, peer: Address, number: usize) {
        self.h().guard(|| self.service.accepted(fd, peer, number));
    }
}

/// `worker_connections`: connections to servers count as those of clients do.
struct Room {
    most: usize,
    log: Arc<Log>,
    said: Cell<Option<Instant>>,
}

impl Room {
    fn new(most: usize, log: &Arc<Log>) -> Room {
        Room { most, log: Arc::clone(log), said: Cell::new(None) }
    }

    /// Ends some idle connections, the longest idle first: those of clients, then those to servers, of which one is closed
    /// at once. False if there are none.
    fn make(&self, h: &Handle) -> bool {
        let parked = h.parked();
        let mut ended = h.unpark_oldest((parked / EVICT_PART).clamp(1, EVICT_MOST), Wake::Evicted);
        if h.sockets() >= self.most || ended == 0 {
            ended += close_idle(1);
        }
        if ended > 0 && self.says_again(h) {
            let text = "worker_connections are not enough, reusing connections";
            log!(self.log, Warn, None, "{} {text}", self.most);
        }
        ended > 0
    }

    fn say_full(&self, h: &Handle) {
        if self.says_again(h) {
            log!(self.log, Alert, None, "{} worker_connections are not enough", self.most);
        }
    }

    fn says_again(&self, h: &Handle) -> bool {
        let now = h.now();
        let again = self.said.get().is_none_or(|at| now >= at + SAY_AGAIN);
        if again {
            self.said.set(Some(now));
        }
        again
    }
}

impl Entrance for Gate {
    type Door = Door;

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
            self.room.say_full(self.h());
        }
    }

    fn shared(&self) -> Vec<Door> {
        self.doors.shared_doors()
    }

    fn is_shared(&self, door: Door) -> bool {
        !door.own
    }

    fn accept(&mut self, door: Door) -> Taken {
        loop {
            match self.h().accept(door.key) {
                Ok(Some((fd, peer))) => {
                    self.doors.accepted(door.key);
                    self.begin(fd, Address::from_any(Some(peer)), door.number);
                    return Taken::One;
                }
                Ok(None) => return Taken::Nobody,
                Err(e) => {
                    let e = Errno::from_io_error(&e).unwrap_or(Errno::IO);
                    accept_failed(&self.log, e);
                    if !is_the_connections(e) {
                        return Taken::Shortage;
                    }
                }
            }
        }
    }

    fn found_nobody(&mut self) {
        self.service.metrics.add(Metric::EmptyAccepts, 1);
    }

    fn take_handed(&mut self) -> Taken {
        let Some(line) = self.commons.line(self.row) else { return Taken::Nobody };
        match line.take() {
            Ok(Some(accepted)) => {
                self.admit(accepted);
                Taken::One
            }
            Ok(None) => Taken::Nobody,
            // It stays in the line.
            Err(e) => {
                log!(self.log, Crit, None, "recvmsg() failed {}", Cause(&e));
                Taken::Shortage
            }
        }
    }

    fn arm(&mut self, stance: Stance, able: bool) -> bool {
        let heard = self.doors.arm(&self.service.handle, stance, able, &self.log);
        if let Some(armed) = self.doors.take_told() {
            let since = || self.this_moment().saturating_duration_since(beginning());
            self.service.metrics.arms(armed.then(|| since().as_nanos() as u64));
        }
        heard
    }

    fn readd(&mut self, door: Door) {
        self.doors.readd(&self.service.handle, door.key, &self.log);
    }

    fn ring(&mut self, i: usize) {
        self.commons.ring(i);
    }

    fn of(&self, i: usize) -> Vec<Door> {
        self.doors.of(i)
    }
}
