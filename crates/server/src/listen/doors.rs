//! The listening sockets of one loop, as its backend knows them.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};
use weir_balance::{Shape, Stance};
use weir_engine::{Arm, Handle, ListenerKey};
use weir_log::{Cause, Log, log};

use super::{Commons, Place};
use crate::cycle::Cycle;

/// For how long a loop goes on to accept from a socket of its own that has no successor, so that
/// handshakes that began before the others took over come to their end.
const LINGER: Duration = Duration::from_secs(1);
/// Sockets of the one epoll instance that are looked at in a turn.
const POOLED: usize = 64;

/// A listening socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Door {
    pub(super) key: ListenerKey,
    /// Its address' number.
    pub(super) number: usize,
    /// Which of its address' sockets it is.
    copy: usize,
    /// Nobody else accepts from it, so no policy is asked about it.
    pub(super) own: bool,
    /// It was accepted from since it was last added.
    used: bool,
    /// It is open until then.
    closes: Option<Instant>,
}

/// All of a loop's sockets.
pub(super) struct Doors {
    list: Vec<Door>,
    /// Those of other loops, by their rows, where loops come to each other's help.
    others: Vec<(usize, Door)>,
    mode: Arm,
    /// Threads accept from the shared ones for the loop, as long as it is not retired.
    by_others: bool,
    /// Stands for all shared sockets: the one epoll instance.
    pool: Option<ListenerKey>,
    /// Where connections come from that an acceptor hands over.
    line: Option<ListenerKey>,
    /// The backend has the shared ones, and those of the loop's own.
    armed: Option<(bool, bool)>,
    /// Since somebody asked, the backend was told of a socket, or to forget one.
    told: bool,
}

impl Doors {
    pub(super) fn new(h: &Handle, cycle: &Cycle, place: Place, shape: Shape) -> Doors {
        let mut list = Vec::new();
        for (number, socket) in cycle.sockets.iter().enumerate().filter(|(_, s)| !s.listen.udp) {
            let own = socket.is_each_loops_own();
            let copy = if own { place.row } else { 0 };
            if let Some(fd) = socket.copy(copy) {
                let key = h.add_listener(Arc::clone(fd));
                list.push(Door { key, number, copy, own, used: false, closes: None });
            }
        }
        let others = others(h, cycle, place);
        let mode = match shape {
            Shape::Shared { exclusive: true } => Arm::Exclusive,
            _ => Arm::Shared,
        };
        let pool = cycle.load.pool().map(|fd| h.add_listener(Arc::clone(fd)));
        let line = cycle.load.line(place.row).map(|line| h.add_listener(Arc::clone(line.end())));
        let by_others = matches!(shape, Shape::AcceptorEach | Shape::AcceptorOne);
        Doors { list, others, mode, by_others, pool, line, armed: None, told: false }
    }

    /// The sockets of another loop's own.
    pub(super) fn of(&self, row: usize) -> Vec<Door> {
        let of_row = self.others.iter().filter(|(of, _)| *of == row);
        of_row.map(|(_, door)| *door).collect()
    }

    /// How many sockets a policy decides about.
    pub(super) fn shared(&self) -> usize {
        self.list.iter().filter(|door| !door.own).count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn is_line(&self, key: ListenerKey) -> bool {
        self.line == Some(key)
    }

    /// The sockets that other loops accept from as well.
    pub(super) fn shared_doors(&self) -> Vec<Door> {
        self.list.iter().copied().filter(|door| !door.own).collect()
    }

    /// The sockets that an event of the backend is about.
    pub(super) fn behind(&self, key: ListenerKey, commons: &Commons) -> Vec<Door> {
        match commons.pool().filter(|_| self.pool == Some(key)) {
            Some(pool) => {
                let mut space = [MaybeUninit::uninit(); POOLED];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                let ready: &[Event] = match epoll::wait(pool, &mut space, Some(&now)) {
                    Ok((ready, _)) => ready,
                    Err(_) => &[],
                };
                let is_ready =
                    |door: &Door| ready.iter().any(|e| e.data.u64() == door.number as u64);
                self.list.iter().copied().filter(|d| !d.own && is_ready(d)).collect()
            }
            None => self.list.iter().copied().filter(|door| door.key == key).collect(),
        }
    }

    /// A connection was accepted from it.
    pub(super) fn accepted(&mut self, key: ListenerKey) {
        if let Some(door) = self.list.iter_mut().find(|door| door.key == key) {
            door.used = true;
        }
    }

    /// To the end of the kernel's list.
    pub(super) fn readd(&mut self, h: &Handle, key: ListenerKey, log: &Log) {
        if let Some(door) = self.list.iter_mut().find(|door| door.key == key && !door.own) {
            door.used = false;
            self.told = true;
            if !told(h.rearm(key), log) {
                self.armed = None;
            }
        }
    }

    /// Does what the policy decided; a loop that is not able to take anything takes nothing. False if the kernel
    /// refuses it: then some door is deaf, and the same is to be asked for again.
    pub(super) fn arm(&mut self, h: &Handle, stance: Stance, able: bool, log: &Log) -> bool {
        let shared = stance != Stance::Disarmed && able;
        let last = shared && stance == Stance::ArmedLast;
        let before = self.armed.replace((shared, able));
        if before == Some((shared, able)) && !last {
            return true;
        }
        let mut heard = true;
        self.told |= before != Some((shared, able));
        let (mode, pool) = (self.mode, self.pool);
        let as_one = self.by_others || pool.is_some();
        for door in self.list.iter_mut().filter(|door| door.own || !as_one) {
            if door.own {
                heard &= set(h, door.key, able, Arm::Shared, log);
            } else if last && std::mem::take(&mut door.used) && h.is_armed(door.key) {
                self.told = true;
                heard &= told(h.rearm(door.key), log);
            } else {
                heard &= set(h, door.key, shared, mode, log);
            }
        }
        if let Some(key) = pool {
            heard &= set(h, key, shared, Arm::Shared, log);
        }
        if let Some(key) = self.line {
            heard &= set(h, key, able, Arm::Shared, log);
        }
        if !heard {
            self.armed = None;
        }
        heard
    }

    /// Whether the loop's place in the kernel's lists has changed since this was asked, and whether it has one.
    pub(super) fn take_told(&mut self) -> Option<bool> {
        let has_own = self.list.iter().any(|door| door.own);
        let armed = |(shared, able)| shared || able && has_own;
        std::mem::take(&mut self.told).then(|| self.armed.is_none_or(armed))
    }

    /// The loop's end: what it has to take to the last connection is returned, and what it has to
    /// go on with stays. Where it was told of somebody whom it cannot take before `owes`, nobody else may hear of them until
    /// another one comes: it looks then.
    pub(super) fn leave(
        &mut self,
        h: &Handle,
        commons: &Commons,
        owes: Option<Instant>,
    ) -> Vec<Door> {
        self.forget_others(h);
        let mut last = Vec::new();
        let until = h.now() + LINGER;
        self.list.retain_mut(|door| {
            let (left, others) = commons.is_left(door.number, door.copy);
            if !left && !door.own && owes.is_some() {
                door.closes = owes;
            } else if !left {
                h.remove_listener(door.key);
            } else if door.own && others {
                door.closes = Some(until);
            } else {
                last.push(*door);
            }
            door.closes.is_some()
        });
        self.forget_pool(h);
        // The own ones that stay are armed whatever the policy of a retired loop says.
        self.armed = None;
        last
    }

    /// The server's end.
    pub(super) fn close(&mut self, h: &Handle) -> Vec<Door> {
        for door in self.list.drain(..) {
            h.remove_listener(door.key);
        }
        self.forget_others(h);
        self.forget_pool(h);
        Vec::new()
    }

    /// When the next of the sockets closes that have no successor.
    pub(super) fn next_close(&self) -> Option<Instant> {
        self.list.iter().filter_map(|door| door.closes).min()
    }

    /// What is owed at it could not be taken: it is open until then.
    pub(super) fn stay(&mut self, door: Door, until: Instant) {
        self.list.push(Door { closes: Some(until), ..door });
    }

    /// Those whose time has come.
    pub(super) fn closing(&mut self, now: Instant) -> Vec<Door> {
        if self.next_close().is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.list.extract_if(.., |door| door.closes.is_some_and(|at| now >= at)).collect()
    }

    /// A queue must not outlive the one who accepts from it.
    fn forget_others(&mut self, h: &Handle) {
        self.others.drain(..).for_each(|(_, door)| h.remove_listener(door.key));
    }

    fn forget_pool(&mut self, h: &Handle) {
        if let Some(pool) = self.pool.take() {
            h.remove_listener(pool);
        }
    }
}

/// The sockets that other loops have, which no backend is told of.
fn others(h: &Handle, cycle: &Cycle, place: Place) -> Vec<(usize, Door)> {
    let mut others = Vec::new();
    for (number, socket) in cycle.sockets.iter().enumerate().filter(|(_, s)| s.steered) {
        for (copy, fd) in socket.copies.iter().enumerate().filter(|(copy, _)| *copy != place.row) {
            let key = h.add_listener(Arc::clone(fd));
            let door = Door { key, number, copy, own: true, used: false, closes: None };
            others.push((copy, door));
        }
    }
    others
}

fn set(h: &Handle, key: ListenerKey, on: bool, mode: Arm, log: &Log) -> bool {
    if on {
        return told(h.arm(key, mode), log);
    }
    h.disarm(key);
    true
}

fn told(done: std::io::Result<()>, log: &Log) -> bool {
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

    use super::*;
    use crate::sockets::Sockets;

    /// One shared door.
    fn one(key: ListenerKey) -> Doors {
        let door = Door { key, number: 0, copy: 0, own: false, used: false, closes: None };
        let (pool, line) = (None, None);
        Doors {
            list: vec![door],
            others: Vec::new(),
            mode: Arm::Exclusive,
            by_others: false,
            pool,
            line,
            armed: None,
            told: false,
        }
    }

    fn listener() -> Arc<OwnedFd> {
        Arc::new(OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap()))
    }

    /// The kernel refuses a second registration of the same socket.
    #[test]
    fn a_door_that_the_kernel_refuses_is_asked_for_again() {
        let own = Loop::new(&Options::default()).unwrap();
        let (h, log) = (own.handle(), Log::new(Vec::new()));
        let socket = listener();
        let key = h.add_listener(Arc::clone(&socket));
        let mut doors = one(key);
        let arms = |doors: &mut Doors, stance| doors.arm(&h, stance, true, &log);

        let other = h.add_listener(socket);
        h.arm(other, Arm::Shared).unwrap();
        assert!(!arms(&mut doors, Stance::Armed) && !h.is_armed(key));
        h.disarm(other);
        assert!(arms(&mut doors, Stance::Armed) && h.is_armed(key));

        assert!(arms(&mut doors, Stance::Disarmed) && !h.is_armed(key));
    }

    /// Those who come after it were not told of whom it was told and could not take.
    #[test]
    fn who_owes_somebody_an_accept_leaves_when_it_has_looked_again() {
        let own = Loop::new(&Options::default()).unwrap();
        let (h, log) = (own.handle(), Log::new(Vec::new()));
        let commons =
            Commons::new(1, Shape::Shared { exclusive: true }, &Sockets::default()).unwrap();
        let mut doors = one(h.add_listener(listener()));
        assert!(doors.leave(&h, &commons, None).is_empty() && doors.is_empty());

        let key = h.add_listener(listener());
        let (mut doors, until) = (one(key), h.now() + LINGER);
        assert!(doors.arm(&h, Stance::Armed, true, &log) && h.is_armed(key));
        assert!(doors.leave(&h, &commons, Some(until)).is_empty() && !doors.is_empty());
        assert!(doors.arm(&h, Stance::Disarmed, true, &log) && !h.is_armed(key));
        assert!(doors.closing(h.now()).is_empty() && doors.next_close() == Some(until));
        let looks = doors.closing(until);
        assert!(looks.len() == 1 && doors.is_empty());
        doors.stay(looks[0], until + LINGER);
        assert_eq!(doors.next_close(), Some(until + LINGER));
    }
}
