//! Turns what the accept policy decides into calls of the engine.
//!
//! [`Listening`] is a loop's door: its listening sockets, its seat at the load table, and how the
//! two act on each other in a turn. What loops share is in [`load`]; threads that accept for loops
//! are in [`acceptor`], and how a connection gets to another process is in [`line`].

mod acceptor;
mod doors;
mod line;
mod load;

pub use load::Load;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weir_balance::{After, Arm as Decision, Kind, Load as Carried, Probe, Seat, Setup, Shape};
use weir_engine::{Driver, Handle, ListenerKey, Wake};
use weir_http::{Address, Retire, Worker};
use weir_log::{Cause, Level, Log, log};
use weir_metrics::Metric;

use self::acceptor::{Accepted, Acceptor, Duty};
use self::doors::{Door, Doors};
use crate::cycle::Cycle;

/// After accept failed for want of descriptors; nginx: accept_mutex_delay.
const SHORTAGE: Duration = Duration::from_millis(500);
/// How often a loop says that it has no room.
const SAY_AGAIN: Duration = Duration::from_secs(1);
/// Of the idle connections, this part is closed when there is no room for new ones, and at most
/// so many at a time. nginx: ngx_drain_connections.
const EVICT_PART: usize = 8;
const EVICT_MOST: usize = 32;

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
    doors: Doors,
    http: Rc<Worker>,
    load: Arc<Load>,
    log: Arc<Log>,
    seat: Seat,
    acceptor: Option<Acceptor>,
    multi_accept: bool,
    connections: usize,
    /// Descriptors ran out: nothing is accepted before that time.
    paused: Option<Instant>,
    /// It looks for connections of which it was not told.
    looks: bool,
    said_full: Option<Instant>,
}

impl Listening {
    /// Takes the loop's sockets: the shared ones, and of those that every loop has its own.
    pub fn new(h: &Handle, cycle: &Cycle, place: Place, http: Rc<Worker>) -> io::Result<Listening> {
        let events = &cycle.config.events;
        let load = Arc::clone(&cycle.load);
        let shape = events.balance.shape();
        let doors = Doors::new(h, cycle, place, shape);
        // With nothing to share there is nothing to decide.
        let kind = if cycle.sockets.iter().any(|s| !s.is_each_loops_own()) {
            events.balance
        } else {
            Kind::Reuseport
        };
        let setup = Setup {
            me: place.row,
            sockets: doors.shared(),
            connections: events.connections as u64,
            mutex_delay: events.accept_mutex_delay,
        };
        let seat = Seat::take(kind, setup, h.now(), &load.table());
        if let Some(bell) = load.bell(place.row) {
            let own = Arc::clone(bell);
            h.add_watch(Arc::clone(bell), move |_| load::silence(own.as_fd()))?;
        }
        let mut listening = Listening {
            doors,
            http,
            load,
            log: Arc::clone(&cycle.log),
            seat,
            acceptor: None,
            multi_accept: events.multi_accept,
            connections: events.connections,
            paused: None,
            looks: false,
            said_full: None,
        };
        listening.start_acceptor(cycle, place, kind, setup)?;
        Ok(listening)
    }

    /// Takes nothing new from now on, but what waits in queues that nobody else will see.
    pub fn retire(&mut self, h: &Handle, how: Retire) {
        for i in self.seat.retire(h.now(), &self.load.table()) {
            self.load.ring(i);
        }
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.end().into_iter().for_each(|accepted| self.admit(accepted));
        }
        let left = match how {
            Retire::Reload => self.doors.leave(h, &self.load),
            Retire::Quit => self.doors.close(h),
        };
        for door in left {
            while self.accept_from(h, door.key, door.number) {}
            h.remove_listener(door.key);
        }
    }

    /// Whether nothing is left to accept.
    pub fn is_drained(&self) -> bool {
        self.doors.is_empty() && self.load.table().row(self.seat.me()).pending() == 0
    }

    fn start_acceptor(
        &mut self,
        cycle: &Cycle,
        place: Place,
        kind: Kind,
        setup: Setup,
    ) -> io::Result<()> {
        let duty = match kind.shape() {
            Shape::AcceptorEach => Duty::ForLoop(place.row),
            Shape::AcceptorOne if place.row == 0 => Duty::Place(kind.policy(setup)),
            _ => return Ok(()),
        };
        let shared = cycle.sockets.iter().enumerate().filter(|(_, s)| !s.is_each_loops_own());
        let sockets =
            shared.filter_map(|(number, s)| Some((number, Arc::clone(s.copies.first()?))));
        let (load, log) = (Arc::clone(&self.load), Arc::clone(&self.log));
        self.acceptor = Some(Acceptor::start(sockets.collect(), duty, load, log)?);
        Ok(())
    }

    fn carried(&self) -> Carried {
        Carried { inflight: self.http.inflight() as u64, open: self.http.connections() as u64 }
    }

    fn has_room(&self) -> bool {
        self.http.connections() < self.connections
    }

    /// Accepts what one door has, at most one connection unless `multi_accept` is on.
    fn accept(&mut self, h: &Handle, door: Door) {
        let mut accepted = 0;
        if !self.has_room() {
            self.make_room(h);
        }
        while self.takes() && self.accept_from(h, door.key, door.number) {
            accepted += 1;
            if !self.multi_accept {
                break;
            }
        }
        if !door.own && (!self.takes() || accepted > 0 && self.looks) {
            self.pass_baton(h.now());
        }
        if accepted == 0 {
            self.http.metrics.add(Metric::EmptyAccepts, 1);
            return;
        }
        self.doors.accepted(door.key);
        let (table, load) = (self.load.table(), self.carried());
        if self.seat.accepted(h.now(), &table, load, accepted) == After::Readd {
            self.doors.readd(h, door.key, &self.log);
        }
    }

    /// Whether it can take one more, now.
    fn takes(&self) -> bool {
        self.has_room() && self.paused.is_none()
    }

    /// Of this connection, or of one that may be there, only this loop was told: somebody else looks.
    fn pass_baton(&self, now: Instant) {
        if let Some(i) = self.seat.pass_baton(now, &self.load.table()) {
            self.load.ring(i);
        }
    }

    /// One accept; false when there was nothing to take.
    fn accept_from(&mut self, h: &Handle, key: ListenerKey, number: usize) -> bool {
        loop {
            match h.accept(key) {
                Ok(Some((fd, peer))) => {
                    self.begin(fd, Address::from_any(Some(peer)), number);
                    return true;
                }
                Ok(None) => return false,
                Err(e) => {
                    let e = Errno::from_io_error(&e).unwrap_or(Errno::IO);
                    accept_failed(&self.log, e);
                    if !is_the_connections(e) {
                        self.paused = Some(h.now() + SHORTAGE);
                        return false;
                    }
                }
            }
        }
    }

    /// Connections that came over this loop's line.
    fn take_from_line(&mut self, h: &Handle) {
        if !self.has_room() {
            self.make_room(h);
        }
        while self.takes()
            && let Some(line) = self.load.line(self.seat.me())
        {
            match line.take() {
                Ok(Some(accepted)) => {
                    self.admit(accepted);
                    self.seat.taken(&self.load.table(), self.carried());
                }
                Ok(None) => return,
                // It stays in the line.
                Err(e) => {
                    log!(self.log, Crit, None, "recvmsg() failed {}", Cause(&e));
                    self.paused = Some(h.now() + SHORTAGE);
                }
            }
        }
    }

    /// Connections that this loop's acceptor has for it.
    fn take_from_acceptor(&mut self, now: Instant) {
        while let Some(accepted) = self.acceptor.as_ref().and_then(Acceptor::take) {
            self.admit(accepted);
            // This loop's place in the list is its acceptor's, which leaves it by itself.
            let _ = self.seat.accepted(now, &self.load.table(), self.carried(), 1);
        }
    }

    fn admit(&self, (fd, number): Accepted) {
        let fd: OwnedFd = fd;
        let peer = rustix::net::getpeername(&fd).ok();
        self.begin(fd, Address::from_any(peer.flatten()), number);
    }

    /// A panic costs the connection, and nothing of what is noted about it.
    fn begin(&self, fd: OwnedFd, peer: Address, number: usize) {
        self.http.handle.guard(|| self.http.accepted(fd, peer, number));
    }

    /// Makes room by closing idle connections; says so, or that it cannot.
    fn make_room(&mut self, h: &Handle) {
        let evicted = (h.parked() / EVICT_PART).clamp(1, EVICT_MOST).min(h.parked());
        let now = h.now();
        if self.said_full.is_none_or(|at| now >= at + SAY_AGAIN) {
            self.said_full = Some(now);
            let n = self.connections;
            if evicted > 0 {
                let text = "worker_connections are not enough, reusing connections";
                log!(self.log, Warn, None, "{n} {text}");
            } else {
                log!(self.log, Alert, None, "{n} worker_connections are not enough");
            }
        }
        h.unpark_oldest(evicted, Wake::Evicted);
    }

    /// Whether the loop can take something: not while descriptors have run out, nor without room
    /// and without idle connections that would make some.
    fn is_able(&mut self, h: &Handle, now: Instant) -> bool {
        self.paused = self.paused.filter(|until| now < *until);
        let room = self.has_room() || h.parked() > 0;
        if !room {
            self.make_room(h);
        }
        self.paused.is_none() && room
    }
}

impl Driver for Listening {
    fn before_wait(&mut self, h: &Handle, _: Instant) -> Option<Duration> {
        // The turn's time is that of its start; a policy compares how long loops sleep.
        let now = h.this_moment();
        let able = self.is_able(h, now);
        let table = self.load.table();
        let mut wait = self.seat.before_wait(now, &table, self.carried(), able);
        if !self.doors.arm(h, wait.arm, able, &self.log) {
            self.seat.deaf(now, &table);
            self.pass_baton(now);
            wait.at_most = Some(wait.at_most.map_or(SHORTAGE, |time| time.min(SHORTAGE)));
        }
        if let Some(i) = wait.wake {
            self.load.ring(i);
        }
        if let Some(acceptor) = &self.acceptor {
            let waits = if wait.arm == Decision::Disarmed {
                acceptor.close();
                false
            } else {
                acceptor.open()
            };
            if waits {
                wait.at_most = Some(Duration::ZERO);
            }
        }
        let resumes = self.paused.map(|until| until.saturating_duration_since(now));
        let closes = self.doors.next_close().map(|at| at.saturating_duration_since(now));
        [wait.at_most, resumes, closes].into_iter().flatten().min()
    }

    fn after_wait(&mut self, h: &Handle, now: Instant) {
        let probe = self.seat.after_wait(now, &self.load.table());
        if let Some(acceptor) = &self.acceptor {
            acceptor.close();
        }
        self.take_from_acceptor(now);
        if probe == Probe::Try {
            self.looks = true;
            for door in self.doors.shared_doors() {
                self.accept(h, door);
            }
            self.looks = false;
        }
        for door in self.doors.closing(now) {
            while self.accept_from(h, door.key, door.number) {}
            h.remove_listener(door.key);
        }
    }

    fn acceptable(&mut self, h: &Handle, listener: ListenerKey) {
        if self.doors.is_line(listener) {
            return self.take_from_line(h);
        }
        for door in self.doors.behind(listener, &self.load) {
            self.http.metrics.add(Metric::AcceptEvents, 1);
            self.accept(h, door);
        }
    }

    fn after_accepts(&mut self, _: &Handle, now: Instant) {
        while let Some(i) = self.seat.next_to_wake(now, &self.load.table()) {
            self.load.ring(i);
        }
    }
}

/// Whether accept(2) failed because of the connection, which is out of the queue then, and the next one is another
/// matter. Whatever else it is, it stays for a while, and to ask again at once would be to ask for ever.
fn is_the_connections(e: Errno) -> bool {
    matches!(
        e,
        Errno::CONNABORTED
            | Errno::PROTO
            | Errno::NOPROTOOPT
            | Errno::NETDOWN
            | Errno::NONET
            | Errno::NETUNREACH
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
    )
}

/// The line that nginx writes for a failed accept.
fn accept_failed(log: &Log, e: Errno) {
    let level = match e {
        Errno::CONNABORTED => Level::Error,
        Errno::MFILE | Errno::NFILE => Level::Crit,
        _ => Level::Alert,
    };
    log.write(level, None, format_args!("accept4() failed {}", Cause(&e.into())));
}
