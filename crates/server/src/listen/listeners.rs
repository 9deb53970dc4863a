//! The listening sockets of one loop, and their registration with its backend.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};
use weir_balance::{SocketLayout, Stance};
use weir_engine::{Arm, Handle, ListenerKey};
use weir_log::{Cause, Log, log};
use weir_sys::sockdiag;

use super::deferral::Deferral;
use super::{CycleShared, LoopPosition};
use crate::cycle::Cycle;
use crate::service::Service;

/// How long a retired loop still accepts from its own socket, if that has no successor. Handshakes
/// that began before the others took over complete in this time.
const LINGER: Duration = Duration::from_secs(1);
/// How long a deferred socket stays open at most when the server ends. A second after a handshake
/// the kernel asks the client again and stops waiting for first bytes.
const DEFERRED: Duration = Duration::from_millis(1500);
/// The interval at which the loop then asks the kernel whether it still holds connections back.
const ASK: Duration = Duration::from_millis(50);
/// The most events that a turn fetches from the shared epoll instance.
const POOLED: usize = 64;

/// A listening socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listener {
    pub(super) key: ListenerKey,
    /// The number of its address.
    pub(super) number: usize,
    /// The index among the sockets of the address.
    copy: usize,
    /// Only this loop accepts from it, so policies do not decide about it.
    pub(super) own: bool,
    /// Datagrams arrive that begin QUIC connections.
    pub(super) quic: bool,
    /// A connection was accepted from it since it was last added to the backend.
    used: bool,
    /// When the socket closes, if it has no successor.
    closes: Option<Instant>,
    /// The socket's address, and until when it stays open at most because the kernel may hold
    /// connections back.
    kept: Option<(SocketAddr, Instant)>,
    deferral: Deferral,
}

impl Listener {
    /// When to ask again whether the kernel holds connections back. None if it holds none, or if
    /// the time is over.
    fn asks_again(&self, now: Instant) -> Option<Instant> {
        let (address, until) = self.kept.filter(|(_, until)| now < *until)?;
        // The kernel does not know the sockets of the simulated world.
        let is_real = !cfg!(feature = "sim");
        match is_real.then(|| sockdiag::has_handshakes(address)).flatten() {
            Some(false) => None,
            Some(true) => Some(until.min(now + ASK)),
            None => Some(until),
        }
    }
}

/// All listening sockets of a loop.
pub(super) struct Listeners {
    list: Vec<Listener>,
    /// Sockets of other loops, by their rows, if loops empty each other's queues.
    others: Vec<(usize, Listener)>,
    mode: Arm,
    /// Acceptor threads accept from the shared sockets.
    by_others: bool,
    /// The shared epoll instance, which is registered instead of the shared sockets.
    pool: Option<ListenerKey>,
    /// The loop's handover socket.
    handover: Option<ListenerKey>,
    /// Whether the backend has the shared sockets, and the loop's own ones. None if a registration
    /// failed.
    armed: Option<(bool, bool)>,
    /// A registration has changed since the last [`Listeners::take_change`].
    changed: bool,
    /// The number of declines at the last look.
    declines: u64,
}

impl Listeners {
    pub(super) fn new(
        service: &Service,
        cycle: &Cycle,
        place: LoopPosition,
        shape: SocketLayout,
    ) -> Listeners {
        let h = &service.handle;
        let mut list = Vec::new();
        let declined = service.declined();
        declined.iter().for_each(|number| cycle.load.decline(*number));
        for (number, socket) in cycle.sockets.iter().enumerate().filter(|(_, s)| !s.listen.udp) {
            if declined.contains(&number) {
                continue;
            }
            let own = socket.is_each_loops_own();
            let copy = if own { place.row } else { 0 };
            if let Some(fd) = socket.copy(copy) {
                let key = h.add_listener(Arc::clone(fd));
                let is_http = service.is_http(number);
                let deferral = Deferral::new(&socket.listen, is_http);
                list.push(Listener {
                    key,
                    number,
                    copy,
                    own,
                    quic: false,
                    used: false,
                    closes: None,
                    kept: None,
                    deferral,
                });
            }
        }
        for (number, socket) in cycle.sockets.iter().enumerate() {
            if let Some(fd) = socket.shared_quic() {
                let (key, copy, own) = (h.add_listener(Arc::clone(fd)), 0, false);
                let deferral = Deferral::new(&socket.listen, false);
                let (quic, used, closes, kept) = (true, false, None, None);
                list.push(Listener { key, number, copy, own, quic, used, closes, kept, deferral });
            }
        }
        let others = others(h, cycle, place);
        let mode = match shape {
            SocketLayout::Shared { exclusive: true } => Arm::Exclusive,
            _ => Arm::Shared,
        };
        let pool = cycle.load.pool().map(|fd| h.add_listener(Arc::clone(fd)));
        let handover = cycle
            .load
            .handover(place.row)
            .map(|handover| h.add_listener(Arc::clone(handover.end())));
        let by_others = matches!(shape, SocketLayout::AcceptorEach | SocketLayout::AcceptorOne);
        let (armed, changed, declines) = (None, false, 0);
        Listeners { list, others, mode, by_others, pool, handover, armed, changed, declines }
    }

    /// Sockets that other loops have declined become this loop's own, so that no policy can leave
    /// them to those loops.
    pub(super) fn take_left(&mut self, cycle_shared: &CycleShared) {
        let declines = cycle_shared.declines();
        if std::mem::replace(&mut self.declines, declines) == declines {
            return;
        }
        let left = |listener: &&mut Listener| cycle_shared.is_declined(listener.number);
        for listener in self.list.iter_mut().filter(left) {
            listener.own = true;
            self.armed = None;
        }
    }

    /// The own sockets of the loop with this row.
    pub(super) fn of(&self, row: usize) -> Vec<Listener> {
        let of_row = self.others.iter().filter(|(of, _)| *of == row);
        of_row.map(|(_, listener)| *listener).collect()
    }

    /// The number of sockets that policies decide about.
    pub(super) fn shared(&self) -> usize {
        self.list.iter().filter(|listener| !listener.own).count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn is_handover(&self, key: ListenerKey) -> bool {
        self.handover == Some(key)
    }

    /// The sockets from which other loops accept as well.
    pub(super) fn shared_listeners(&self) -> Vec<Listener> {
        self.list.iter().copied().filter(|listener| !listener.own).collect()
    }

    /// The sockets that an event of the backend is for.
    pub(super) fn behind(&self, key: ListenerKey, cycle_shared: &CycleShared) -> Vec<Listener> {
        match cycle_shared.pool().filter(|_| self.pool == Some(key)) {
            Some(pool) => {
                let mut space = [MaybeUninit::uninit(); POOLED];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                let ready: &[Event] = match epoll::wait(pool, &mut space, Some(&now)) {
                    Ok((ready, _)) => ready,
                    Err(_) => &[],
                };
                let is_ready = |listener: &Listener| {
                    ready.iter().any(|e| e.data.u64() == listener.number as u64)
                };
                self.list.iter().copied().filter(|d| !d.own && is_ready(d)).collect()
            }
            None => self.list.iter().copied().filter(|listener| listener.key == key).collect(),
        }
    }

    /// Records that a connection was accepted from this socket.
    pub(super) fn accepted(&mut self, key: ListenerKey) {
        if let Some(listener) = self.list.iter_mut().find(|listener| listener.key == key) {
            listener.used = true;
        }
    }

    /// Counts an accepted connection. `spoke` is how many clients of the socket have sent bytes
    /// soon so far. In a rush, sets the option that makes the kernel hold connections back until
    /// their first bytes arrive.
    pub(super) fn defer_in_a_rush(&mut self, h: &Handle, key: ListenerKey, spoke: u64, log: &Log) {
        if let Some(listener) = self.list.iter_mut().find(|listener| listener.key == key)
            && listener.deferral.accepted(spoke, h.now())
            && let Err(e) = h.defer(key, true)
        {
            listener.deferral.leave();
            log!(log, Alert, None, "setsockopt(TCP_DEFER_ACCEPT, 1) failed {}", Cause(&e));
        }
    }

    /// When to check next whether a rush is over.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.list.iter().filter_map(|listener| listener.deferral.next_check()).min()
    }

    /// Removes the option from sockets whose rush is over.
    pub(super) fn end_deferrals(&mut self, h: &Handle, now: Instant) {
        for listener in &mut self.list {
            if listener.deferral.ends(now) {
                // An error means that the option was not set.
                let _ = h.defer(listener.key, false);
            }
        }
    }

    /// Moves the loop to the end of the socket's wait list.
    pub(super) fn readd(&mut self, h: &Handle, key: ListenerKey, log: &Log) {
        if let Some(listener) =
            self.list.iter_mut().find(|listener| listener.key == key && !listener.own)
        {
            listener.used = false;
            self.changed = true;
            if !logged(h.rearm(key), log) {
                self.armed = None;
            }
        }
    }

    /// Registers sockets as the policy decided, and none if the loop is not `able` to accept. False
    /// if the kernel refused a registration; the caller then tries again.
    pub(super) fn arm(&mut self, h: &Handle, stance: Stance, able: bool, log: &Log) -> bool {
        let shared = stance != Stance::Disarmed && able;
        let last = shared && stance == Stance::ArmedLast;
        let before = self.armed.replace((shared, able));
        if before == Some((shared, able)) && !last {
            return true;
        }
        let mut heard = true;
        self.changed |= before != Some((shared, able));
        let (mode, pool) = (self.mode, self.pool);
        let as_one = self.by_others || pool.is_some();
        for listener in self.list.iter_mut().filter(|listener| listener.own || !as_one) {
            if listener.own {
                heard &= set(h, listener.key, able, Arm::Shared, log);
            } else if last && std::mem::take(&mut listener.used) && h.is_armed(listener.key) {
                self.changed = true;
                heard &= logged(h.rearm(listener.key), log);
            } else {
                heard &= set(h, listener.key, shared, mode, log);
            }
        }
        if let Some(key) = pool {
            heard &= set(h, key, shared, Arm::Shared, log);
        }
        if let Some(key) = self.handover {
            heard &= set(h, key, able, Arm::Shared, log);
        }
        if !heard {
            self.armed = None;
        }
        heard
    }

    /// Whether the loop is armed, if its registrations have changed since the last call.
    pub(super) fn take_change(&mut self) -> Option<bool> {
        let has_own = self.list.iter().any(|listener| listener.own);
        let armed = |(shared, able)| shared || able && has_own;
        std::mem::take(&mut self.changed).then(|| self.armed.is_none_or(armed))
    }

    /// The loop retires at a reload. Returns the sockets to drain now; sockets that the loop still accepts from stay.
    /// A shared socket stays until `recheck`, if only this loop was woken for a connection that it could not accept:
    /// other loops may not see it until the next one arrives.
    pub(super) fn leave(
        &mut self,
        h: &Handle,
        cycle_shared: &CycleShared,
        recheck: Option<Instant>,
    ) -> Vec<Listener> {
        self.forget_others(h);
        self.leave_deferrals(h);
        let mut last = Vec::new();
        let until = h.now() + LINGER;
        self.list.retain_mut(|listener| {
            let (left, others) = cycle_shared.is_left(listener.number, listener.copy);
            if !left && !listener.own && recheck.is_some() {
                listener.closes = recheck;
            } else if !left {
                h.remove_listener(listener.key);
            } else if listener.own && others {
                listener.closes = Some(until);
            } else {
                last.push(*listener);
            }
            listener.closes.is_some()
        });
        self.forget_pool(h);
        // Own sockets that stay are armed, whatever the policy of a retired loop says.
        self.armed = None;
        last
    }

    /// The server ends. Returns the sockets to drain now. A deferred socket stays until the kernel
    /// has delivered the connections that it holds back.
    pub(super) fn close(&mut self, h: &Handle) -> Vec<Listener> {
        let until = h.now() + DEFERRED;
        let mut last = Vec::new();
        self.list.retain_mut(|listener| {
            if let Some(address) = listener.deferral.leave() {
                let _ = h.defer(listener.key, false);
                listener.kept = Some((address, until));
                listener.closes = listener.asks_again(h.now());
            }
            if listener.closes.is_none() {
                last.push(*listener);
            }
            listener.closes.is_some()
        });
        self.forget_others(h);
        self.forget_pool(h);
        last
    }

    /// Another process accepts from all sockets from now on. Returns the sockets to drain now.
    pub(super) fn yield_all(&mut self, h: &Handle) -> Vec<Listener> {
        self.leave_deferrals(h);
        self.forget_others(h);
        self.forget_pool(h);
        std::mem::take(&mut self.list)
    }

    /// When the next socket without a successor closes.
    pub(super) fn next_close(&self) -> Option<Instant> {
        self.list.iter().filter_map(|listener| listener.closes).min()
    }

    /// Keeps a socket until `until`, since its connection could not be accepted.
    pub(super) fn stay(&mut self, listener: Listener, until: Instant) {
        self.list.push(Listener { closes: Some(until), ..listener });
    }

    /// Removes and returns the sockets that close now.
    #[inline]
    pub(super) fn closing(&mut self, now: Instant) -> Vec<Listener> {
        if self.next_close().is_none_or(|at| now < at) {
            return Vec::new();
        }
        let closes = |listener: &mut Listener| {
            if listener.closes.is_none_or(|at| now < at) {
                return false;
            }
            let again = listener.asks_again(now);
            listener.closes = again.or(listener.closes);
            again.is_none()
        };
        self.list.extract_if(.., closes).collect()
    }

    /// Removes the option from all sockets, since other loops or programs may accept from them
    /// later.
    fn leave_deferrals(&mut self, h: &Handle) {
        for listener in &mut self.list {
            if listener.deferral.leave().is_some() {
                let _ = h.defer(listener.key, false);
            }
        }
    }

    /// Removes the sockets of other loops. A queue must not outlive the loop that accepts from it.
    fn forget_others(&mut self, h: &Handle) {
        self.others.drain(..).for_each(|(_, listener)| h.remove_listener(listener.key));
    }

    fn forget_pool(&mut self, h: &Handle) {
        if let Some(pool) = self.pool.take() {
            h.remove_listener(pool);
        }
    }
}

/// The sockets of other loops, which are not registered with this loop's backend.
fn others(h: &Handle, cycle: &Cycle, place: LoopPosition) -> Vec<(usize, Listener)> {
    let mut others = Vec::new();
    for (number, socket) in cycle.sockets.iter().enumerate().filter(|(_, s)| s.steered) {
        for (copy, fd) in socket.copies.iter().enumerate().filter(|(copy, _)| *copy != place.row) {
            let key = h.add_listener(Arc::clone(fd));
            let deferral = Deferral::new(&socket.listen, false);
            let listener = Listener {
                key,
                number,
                copy,
                own: true,
                quic: false,
                used: false,
                closes: None,
                kept: None,
                deferral,
            };
            others.push((copy, listener));
        }
    }
    others
}

fn set(h: &Handle, key: ListenerKey, on: bool, mode: Arm, log: &Log) -> bool {
    if on {
        return logged(h.arm(key, mode), log);
    }
    h.disarm(key);
    true
}

fn logged(done: std::io::Result<()>, log: &Log) -> bool {
    if let Err(e) = &done {
        log!(log, Alert, None, "a listening socket could not be watched {}", Cause(e));
    }
    done.is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;

    use weir_engine::{Loop, Options};
    use weir_values::Address;
    use weir_values::listen::Listen;

    use super::*;
    use crate::sockets::Sockets;

    /// Listeners with one shared socket.
    fn one(key: ListenerKey) -> Listeners {
        let deferral = Deferral::new(&Listen::new(Address::Unknown), true);
        let listener = Listener {
            key,
            number: 0,
            copy: 0,
            own: false,
            quic: false,
            used: false,
            closes: None,
            kept: None,
            deferral,
        };
        let (pool, handover) = (None, None);
        Listeners {
            list: vec![listener],
            others: Vec::new(),
            mode: Arm::Exclusive,
            by_others: false,
            pool,
            handover,
            armed: None,
            changed: false,
            declines: 0,
        }
    }

    fn listener() -> Arc<OwnedFd> {
        Arc::new(OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap()))
    }

    /// The kernel refuses a second registration of the same socket.
    #[test]
    fn a_refused_registration_is_retried() {
        let own = Loop::new(&Options::default()).unwrap();
        let (h, log) = (own.handle(), Log::new(Vec::new()));
        let socket = listener();
        let key = h.add_listener(Arc::clone(&socket));
        let mut listeners = one(key);
        let arms = |listeners: &mut Listeners, stance| listeners.arm(&h, stance, true, &log);

        let other = h.add_listener(socket);
        h.arm(other, Arm::Shared).unwrap();
        assert!(!arms(&mut listeners, Stance::Armed) && !h.is_armed(key));
        h.disarm(other);
        assert!(arms(&mut listeners, Stance::Armed) && h.is_armed(key));

        assert!(arms(&mut listeners, Stance::Disarmed) && !h.is_armed(key));
    }

    #[test]
    fn a_socket_that_others_leave_is_armed_whatever_the_policy_says() {
        let own = Loop::new(&Options::default()).unwrap();
        let (h, log) = (own.handle(), Log::new(Vec::new()));
        let exclusive = SocketLayout::Shared { exclusive: true };
        let cycle_shared = CycleShared::new(2, exclusive, &Sockets::default()).unwrap();
        let key = h.add_listener(listener());
        let mut listeners = one(key);
        listeners.take_left(&cycle_shared);
        assert!(listeners.arm(&h, Stance::Disarmed, true, &log) && !h.is_armed(key));
        cycle_shared.decline(0);
        listeners.take_left(&cycle_shared);
        assert!(listeners.arm(&h, Stance::Disarmed, true, &log) && h.is_armed(key));
    }

    /// The kernel woke only this loop for the connection, so its successors may not see it.
    #[test]
    fn a_loop_that_could_not_accept_keeps_its_socket_until_it_has_rechecked() {
        let own = Loop::new(&Options::default()).unwrap();
        let (h, log) = (own.handle(), Log::new(Vec::new()));
        let cycle_shared =
            CycleShared::new(1, SocketLayout::Shared { exclusive: true }, &Sockets::default())
                .unwrap();
        let mut listeners = one(h.add_listener(listener()));
        assert!(listeners.leave(&h, &cycle_shared, None).is_empty() && listeners.is_empty());

        let key = h.add_listener(listener());
        let (mut listeners, until) = (one(key), h.now() + LINGER);
        assert!(listeners.arm(&h, Stance::Armed, true, &log) && h.is_armed(key));
        assert!(
            listeners.leave(&h, &cycle_shared, Some(until)).is_empty() && !listeners.is_empty()
        );
        assert!(listeners.arm(&h, Stance::Disarmed, true, &log) && !h.is_armed(key));
        assert!(listeners.closing(h.now()).is_empty() && listeners.next_close() == Some(until));
        let looks = listeners.closing(until);
        assert!(looks.len() == 1 && listeners.is_empty());
        listeners.stay(looks[0], until + LINGER);
        assert_eq!(listeners.next_close(), Some(until + LINGER));
    }
}
