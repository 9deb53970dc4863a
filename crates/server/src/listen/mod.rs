//! Turns what the accept policy decides into calls of the engine.
//!
//! [`Listening`] is a loop's door: its listening sockets, its seat at the load table, and how the
//! two act on each other in a turn. What loops share is in [`commons`]; threads that accept for loops
//! are in [`acceptor`], and how a connection gets to another process is in [`line`].

mod acceptor;
mod commons;
mod doors;
mod gate;
mod line;
mod steered;

pub use commons::Commons;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weir_balance::{Kind, Porter, Seat, Setup, Shape, Stance};
use weir_engine::{Driver, Handle, ListenerKey};
use weir_log::{Cause, Level, Log};
use weir_metrics::Metric;
use weir_stream::Leaving;
use weir_values::Retire;

use self::acceptor::{Acceptor, Duty};
use self::gate::Gate;
use self::line::Line;
use crate::cycle::Cycle;
use crate::service::Service;
use crate::sockets::Socket;

/// An acceptor that dies with a connection in its hands tells nobody: who ends looks again after this time.
const LAST: Duration = Duration::from_millis(5);
/// A loop that ends waits no longer for a connection that an acceptor is about to hand to it: the word that says so may be
/// spoilt.
const LONGEST_LAST: Duration = Duration::from_secs(10);

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
    porter: Porter,
    gate: Gate,
    commons: Arc<Commons>,
    acceptor: Option<Acceptor>,
    /// The sockets that datagrams come to: their numbers, and which of theirs are this loop's.
    datagrams: Vec<(usize, usize)>,
    /// When it took the last new connection, if it ends.
    retired: Option<Instant>,
}

impl Listening {
    /// Takes the loop's sockets: the shared ones, and of those that every loop has its own.
    pub fn new(
        h: &Handle,
        cycle: &Cycle,
        place: Place,
        service: Rc<Service>,
    ) -> io::Result<Listening> {
        let events = &cycle.config.events;
        let commons = Arc::clone(&cycle.load);
        let gate = Gate::new(cycle, place, service);
        // With nothing to share there is nothing to decide.
        let decides = |socket: &Socket| socket.is_shared() || socket.steered;
        let decides = cycle.sockets.iter().any(decides);
        let kind = if decides { events.balance } else { Kind::Reuseport };
        let setup = Setup {
            me: place.row,
            sockets: gate.doors.shared(),
            connections: events.connections as u64,
            mutex_delay: events.accept_mutex_delay,
        };
        let seat = Seat::take(kind, setup, h.now(), &commons.table());
        let porter = Porter::new(seat, events.multi_accept);
        let (acceptor, datagrams, retired) = (None, Vec::new(), None);
        let mut listening = Listening { porter, gate, commons, acceptor, datagrams, retired };
        listening.start_acceptor(cycle, place, kind, setup)?;
        listening.receive(cycle, place);
        Ok(listening)
    }

    /// Receives from the loop's sockets of datagrams. Anybody may send in anybody's name, so their sessions have no more
    /// than half of the room; the other half is for who has completed a handshake.
    fn receive(&mut self, cycle: &Cycle, place: Place) {
        let most = cycle.config.events.connections / 2;
        for (number, socket) in cycle.sockets.iter().enumerate().filter(|(_, s)| s.listen.udp) {
            if let Some(fd) = socket.copy(place.row) {
                self.gate.service.receives(Arc::clone(fd), number, most);
                self.datagrams.push((number, place.row));
            }
        }
    }

    /// Takes nothing new from now on, but what waits in queues that nobody else will see.
    pub fn retire(&mut self, h: &Handle, how: Retire) {
        self.retired = Some(h.now());
        self.porter.retire(&mut self.gate, &self.commons.table());
        let mut owes = self.porter.owes_until(&self.gate);
        if let Some(acceptor) = self.acceptor.take() {
            let (accepted, could_not) = acceptor.end();
            accepted.into_iter().for_each(|accepted| self.gate.admit(accepted));
            owes = owes.or(could_not.then(|| h.now()));
        }
        let left = match how {
            Retire::Reload => self.gate.doors.leave(h, &self.commons, owes),
            Retire::Quit => self.gate.doors.close(h),
        };
        for (number, copy) in self.datagrams.drain(..) {
            let left = how == Retire::Quit || self.commons.is_left(number, copy).0;
            let how = if left { Leaving::ForGood } else { Leaving::ToOthers };
            self.gate.service.leaves(number, how);
        }
        for door in left {
            self.porter.drain(&mut self.gate, door);
            h.remove_listener(door.key);
        }
    }

    /// Whether nothing is left to accept.
    pub fn is_drained(&self) -> bool {
        // Once nobody hands anything to it, all that it will get is in its line.
        self.gate.doors.is_empty()
            && !self.is_handed_its_last()
            && self.commons.line(self.porter.me()).is_none_or(Line::is_empty)
    }

    /// Whether it ends, and an acceptor is about to hand one more connection to it.
    fn is_handed_its_last(&self) -> bool {
        let (me, now) = (self.porter.me(), weir_balance::Entrance::now(&self.gate));
        let is_soon = |at: Instant| now.saturating_duration_since(at) < LONGEST_LAST;
        self.gate.doors.is_empty()
            && self.commons.line(me).is_some()
            && self.retired.is_some_and(is_soon)
            && self.commons.table().hands_to(me)
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
        let shared = cycle.sockets.iter().enumerate().filter(|(_, s)| s.is_shared());
        let sockets =
            shared.filter_map(|(number, s)| Some((number, Arc::clone(s.copies.first()?))));
        let (commons, log) = (Arc::clone(&self.commons), Arc::clone(&cycle.log));
        self.acceptor = Some(Acceptor::start(sockets.collect(), duty, commons, log)?);
        Ok(())
    }

    /// Connections that this loop's acceptor has for it.
    fn take_from_acceptor(&mut self) {
        while let Some(accepted) = self.acceptor.as_ref().and_then(Acceptor::take) {
            self.gate.admit(accepted);
            self.porter.was_given(&mut self.gate, &self.commons.table());
        }
    }
}

impl Driver for Listening {
    fn has_room(&mut self) -> bool {
        weir_balance::Entrance::has_room(&self.gate)
    }

    fn before_wait(&mut self, h: &Handle, _: Instant) -> Option<Duration> {
        let (stance, mut at_most) = self.porter.before_wait(&mut self.gate, &self.commons.table());
        if let Some(acceptor) = &self.acceptor {
            let waits = if stance == Stance::Disarmed {
                acceptor.close();
                false
            } else {
                acceptor.open()
            };
            if waits {
                at_most = Some(Duration::ZERO);
            }
        }
        let closes = self.gate.doors.next_close();
        let closes = closes.map(|at| at.saturating_duration_since(h.now()));
        let last = self.is_handed_its_last().then_some(LAST);
        at_most.into_iter().chain(closes).chain(last).min()
    }

    fn after_wait(&mut self, h: &Handle, now: Instant) {
        if let Some(acceptor) = &self.acceptor {
            acceptor.close();
        }
        self.porter.after_wait(&mut self.gate, &self.commons.table());
        self.take_from_acceptor();
        for door in self.gate.doors.closing(now) {
            let owes = !self.porter.drain(&mut self.gate, door) && !door.own;
            match self.porter.owes_until(&self.gate).filter(|_| owes) {
                Some(until) => self.gate.doors.stay(door, until),
                None => h.remove_listener(door.key),
            }
        }
    }

    fn acceptable(&mut self, _: &Handle, listener: ListenerKey) {
        let table = self.commons.table();
        if self.gate.doors.is_line(listener) {
            return self.porter.take_handed(&mut self.gate, &table);
        }
        for door in self.gate.doors.behind(listener, &self.commons) {
            self.gate.service.metrics.add(Metric::AcceptEvents, 1);
            self.porter.accept(&mut self.gate, &table, door);
        }
    }

    fn after_accepts(&mut self, _: &Handle, _: Instant) {
        self.porter.after_accepts(&mut self.gate, &self.commons.table());
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
