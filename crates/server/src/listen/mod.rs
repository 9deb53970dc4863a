//! Carries out the accept policy's decisions by calls of the engine.
//!
//! A [`Listening`] has a loop's listening sockets and its row of the load table, and connects them
//! in each turn. [`cycle_shared`] has what loops share, [`acceptor`] the threads that accept for
//! loops, and [`handover`] the socket pairs to other processes.

mod acceptor;
mod cycle_shared;
mod deferral;
mod handover;
mod listeners;
mod loop_listeners;
mod post;
mod steered;

pub use cycle_shared::CycleShared;
pub use post::{Post, upgrade};

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weir_balance::{AcceptDriver, AcceptPolicy, LoopPolicy, LoopSetup, SocketLayout, Stance};
use weir_engine::{Driver, Handle, ListenerKey};
use weir_log::{Cause, Level, Log, log};
use weir_metrics::{Metric, Tally};
use weir_values::Retire;

use self::acceptor::{Acceptor, Duty};
use self::handover::Handover;
use self::loop_listeners::LoopListeners;
use crate::cycle::Cycle;
use crate::service::Service;
use crate::sockets::ListenSockets;

/// The interval at which a loop that ends checks for handed-over connections. An acceptor that dies
/// while it hands one over reports nothing.
const LAST: Duration = Duration::from_millis(5);
/// The longest wait of a loop that ends for a connection that an acceptor is handing to it. The
/// limit is needed because the word that says so may be spoilt.
const LONGEST_LAST: Duration = Duration::from_secs(10);

/// The position of a loop among all loops of the server.
#[derive(Clone, Copy, Debug)]
pub struct LoopPosition {
    /// The number of its worker, from 0.
    pub worker: usize,
    /// The number of the loop within its worker, from 0.
    pub index: usize,
    /// The row of the load table: the number of the loop within the server.
    pub row: usize,
}

/// The listening sockets of one loop, and the driver of its policy.
pub struct Listening {
    driver: AcceptDriver,
    listeners: LoopListeners,
    cycle_shared: Arc<CycleShared>,
    acceptor: Option<Acceptor>,
    /// The loop's UDP sockets: the number of the address, and the index of the socket.
    datagrams: Vec<(usize, usize)>,
    /// When the loop retired.
    retired: Option<Instant>,
}

impl Listening {
    /// With the shared sockets and the loop's own ones.
    pub fn new(
        h: &Handle,
        cycle: &Cycle,
        place: LoopPosition,
        service: Rc<Service>,
    ) -> io::Result<Listening> {
        let events = &cycle.config.events;
        let cycle_shared = Arc::clone(&cycle.load);
        let listeners = LoopListeners::new(cycle, place, service);
        // Without a shared socket there is nothing for a policy to decide.
        let decides = |s: &ListenSockets| s.is_shared() || s.shares_first || s.steered;
        let decides = cycle.sockets.iter().any(decides);
        let kind = if decides { events.balance } else { AcceptPolicy::Reuseport };
        let setup = LoopSetup {
            me: place.row,
            sockets: listeners.sockets.shared(),
            connections: events.connections as u64,
            mutex_delay: events.accept_mutex_delay,
        };
        let policy = LoopPolicy::take(kind, setup, h.now(), &cycle_shared.table());
        let driver = AcceptDriver::new(policy, events.multi_accept);
        let (acceptor, datagrams, retired) = (None, Vec::new(), None);
        let mut listening =
            Listening { driver, listeners, cycle_shared, acceptor, datagrams, retired };
        listening.start_acceptor(cycle, place, kind, setup)?;
        listening.receive(cycle, place);
        Ok(listening)
    }

    /// Receives from the loop's UDP sockets. Sources of datagrams can be forged, so their sessions
    /// get at most half of `worker_connections`. The rest is for clients that have completed a
    /// handshake.
    fn receive(&mut self, cycle: &Cycle, place: LoopPosition) {
        let most = cycle.config.events.connections / 2;
        if let Err(e) = self.listeners.service.serves_quic(place.row, &cycle.post) {
            log!(cycle.log, Alert, None, "QUIC is not served {}", Cause(&e));
        }
        for (number, socket) in cycle.sockets.iter().enumerate().filter(|(_, s)| s.listen.udp) {
            if let Some(fd) = socket.copy(place.row) {
                self.listeners.service.receives(Arc::clone(fd), number, most);
                self.datagrams.push((number, socket.index(place.row).unwrap_or_default()));
                if let Some(shared) = socket.shared_quic() {
                    self.listeners.service.shares(shared, number);
                }
            }
        }
    }

    /// Accepts no new connections from now on, except from queues that no other loop will accept
    /// from.
    pub fn retire(&mut self, h: &Handle, how: Retire) {
        self.retired = Some(h.now());
        self.driver.retire(&mut self.listeners, &self.cycle_shared.table());
        let mut recheck = self.driver.recheck_at(&self.listeners);
        if let Some(acceptor) = self.acceptor.take() {
            let (accepted, could_not) = acceptor.end();
            accepted.into_iter().for_each(|accepted| self.listeners.admit(accepted));
            recheck = recheck.or(could_not.then(|| h.now()));
        }
        let left = match how {
            Retire::Reload => self.listeners.sockets.leave(h, &self.cycle_shared, recheck),
            Retire::Quit => self.listeners.sockets.close(h),
            Retire::Yield => self.listeners.sockets.yield_all(h),
        };
        for &(number, copy) in &self.datagrams {
            let left = self.cycle_shared.is_left(number, copy).0;
            self.listeners.service.leaves(number, how, left);
        }
        for listener in left {
            // First QUIC datagrams are left to a loop that will serve their connections.
            if !listener.quic {
                self.driver.drain(&mut self.listeners, listener);
            }
            h.remove_listener(listener.key);
        }
    }

    /// Whether no connection is left to accept.
    pub fn is_drained(&self) -> bool {
        // Once no acceptor is handing a connection to the loop, the remaining ones are in its
        // handover socket.
        self.listeners.sockets.is_empty()
            && !self.is_handed_its_last()
            && self.cycle_shared.handover(self.driver.me()).is_none_or(Handover::is_empty)
    }

    /// Whether an acceptor is handing a connection to this loop, which ends.
    fn is_handed_its_last(&self) -> bool {
        let (me, now) = (self.driver.me(), weir_balance::ListenerSet::now(&self.listeners));
        let is_soon = |at: Instant| now.saturating_duration_since(at) < LONGEST_LAST;
        self.listeners.sockets.is_empty()
            && self.cycle_shared.handover(me).is_some()
            && self.retired.is_some_and(is_soon)
            && self.cycle_shared.table().hands_to(me)
    }

    fn start_acceptor(
        &mut self,
        cycle: &Cycle,
        place: LoopPosition,
        kind: AcceptPolicy,
        setup: LoopSetup,
    ) -> io::Result<()> {
        let duty = match kind.shape() {
            SocketLayout::AcceptorEach => Duty::ForLoop(place.row),
            SocketLayout::AcceptorOne if place.row == 0 => Duty::Place(kind.policy(setup)),
            _ => return Ok(()),
        };
        let shared = cycle.sockets.iter().enumerate().filter(|(_, s)| s.is_shared());
        let sockets =
            shared.filter_map(|(number, s)| Some((number, Arc::clone(s.copies.first()?))));
        let (cycle_shared, log) = (Arc::clone(&self.cycle_shared), Arc::clone(&cycle.log));
        self.acceptor = Some(Acceptor::start(sockets.collect(), duty, cycle_shared, log)?);
        Ok(())
    }

    /// Takes the connections that this loop's acceptor thread has accepted.
    fn take_from_acceptor(&mut self) {
        while let Some(accepted) = self.acceptor.as_ref().and_then(Acceptor::take) {
            self.listeners.admit(accepted);
            self.driver.acceptor_accepted(&mut self.listeners, &self.cycle_shared.table());
        }
    }
}

impl Driver for Listening {
    fn has_room(&mut self) -> bool {
        weir_balance::ListenerSet::has_room(&self.listeners)
    }

    fn before_wait(&mut self, h: &Handle, _: Instant) -> Option<Duration> {
        let (stance, mut at_most) =
            self.driver.before_wait(&mut self.listeners, &self.cycle_shared.table());
        if let Some(acceptor) = &self.acceptor {
            let waits = if stance == Stance::Disarmed {
                let metrics = &self.listeners.service.metrics;
                acceptor.close().into_iter().for_each(|e| count_failure(metrics, e));
                false
            } else {
                acceptor.open()
            };
            if waits {
                at_most = Some(Duration::ZERO);
            }
        }
        let closes = self.listeners.sockets.next_close();
        let closes = closes.map(|at| at.saturating_duration_since(h.now()));
        let calm = self.listeners.sockets.next_check();
        let calm = calm.map(|at| at.saturating_duration_since(h.now()));
        let last = self.is_handed_its_last().then_some(LAST);
        at_most.into_iter().chain(closes).chain(calm).chain(last).min()
    }

    fn after_wait(&mut self, h: &Handle, now: Instant) {
        if let Some(acceptor) = &self.acceptor {
            let metrics = &self.listeners.service.metrics;
            acceptor.close().into_iter().for_each(|e| count_failure(metrics, e));
        }
        self.driver.after_wait(&mut self.listeners, &self.cycle_shared.table());
        self.take_from_acceptor();
        self.listeners.sockets.end_deferrals(h, now);
        for listener in self.listeners.sockets.closing(now) {
            let recheck = !self.driver.drain(&mut self.listeners, listener) && !listener.own;
            match self.driver.recheck_at(&self.listeners).filter(|_| recheck) {
                Some(until) => self.listeners.sockets.stay(listener, until),
                None => h.remove_listener(listener.key),
            }
        }
    }

    fn acceptable(&mut self, _: &Handle, listener: ListenerKey) {
        let table = self.cycle_shared.table();
        if self.listeners.sockets.is_handover(listener) {
            return self.driver.take_handed(&mut self.listeners, &table);
        }
        for listener in self.listeners.sockets.behind(listener, &self.cycle_shared) {
            self.listeners.service.metrics.add(Metric::AcceptEvents, 1);
            self.driver.accept(&mut self.listeners, &table, listener);
        }
    }

    fn after_accepts(&mut self, _: &Handle, _: Instant) {
        self.driver.after_accepts(&mut self.listeners, &self.cycle_shared.table());
    }
}

/// Whether accept(2) failed because of the connection itself, which has then left the queue. The
/// next accept may succeed. Other errors last for a while, so an immediate retry could repeat
/// endlessly.
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

/// Whether descriptors or memory have run out.
fn is_short(e: Errno) -> bool {
    matches!(e, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)
}

/// Counts a failed accept.
fn count_failure(metrics: &Tally, e: Errno) {
    metrics.add(Metric::AcceptFailed, is_short(e).into());
    metrics.add(Metric::AcceptNoMemory, matches!(e, Errno::NOMEM | Errno::NOBUFS).into());
    metrics.add(Metric::AcceptAborted, is_the_connections(e).into());
}

/// Logs a failed accept in nginx's words.
fn accept_failed(log: &Log, e: Errno) {
    let level = match e {
        Errno::CONNABORTED => Level::Error,
        Errno::MFILE | Errno::NFILE => Level::Crit,
        _ => Level::Alert,
    };
    log.write(level, None, format_args!("accept4() failed {}", Cause(&e.into())));
}
