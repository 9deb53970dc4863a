//! Loops of one process that relieve each other: requests are balanced, not only connections.
//!
//! A connection that waits at a request boundary is *offered*: its value lies in a table of its loop, and whoever takes
//! it out, under that table's lock, owns the connection. A loop that has nothing to do, before it sleeps, looks into
//! the kernel's list of what is ready for a loop whose turn has lasted for long. A connection that is offered it takes;
//! readiness of anything else it passes on to the owner's mailbox, since an edge is reported once. Doors and bells are
//! reported as long as they are ready, so looking takes nothing away from them.
//!
//! - The kernel's list is the queue that others take from, so a loop fetches no more events at once than it handles
//!   in about [`Team::HELD_UP`], as far as the last turns tell.
//! - One sleeper watches while others are awake: a timer of the team stands in every loop's list with exclusive wake-up,
//!   and the kernel chooses whom it wakes. Who wakes up to work sets it if it is not set, and who was woken by it sets
//!   it again while others are awake. So nothing wakes up while nothing happens, and seldom while nobody is held up.
//! - Where processors are scarce the turns of all loops last, and only some of them are held up ([`Suspect`]).
//! - A tunnel in which nothing is on its way is two connections that go together ([`crate::Joined`]).
//! - A connection that was taken leaves its number to a dummy ([`weir_sys::descriptor::replace`]), so that its first
//!   owner, who hears of it later, neither touches the socket nor keeps it open.

#[cfg(test)]
mod laws;
mod offers;
mod seat;
mod suspect;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::remote::Mailbox;
use crate::seam;
use offers::Offers;
pub(crate) use offers::Taken;
pub(crate) use seat::Seat;
use suspect::Suspect;

/// The loops of one process; each gets a clone ([`crate::Options::team`]), which may say which one it is.
#[derive(Clone)]
pub struct Team(Arc<Shared>, Option<usize>);

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Team").field(&self.0.members.len()).finish()
    }
}

impl Team {
    /// A loop whose turn has lasted for longer may be held up by a handler.
    pub const HELD_UP: Duration = Duration::from_micros(300);
    /// While some loop is held up, one sleeper looks so often,
    pub const WATCH: Duration = Duration::from_millis(1);
    /// and while loops are awake and none is, more and more seldom up to this: a sleeper that wakes up takes a processor from
    /// those that work.
    pub const SELDOM: Duration = Duration::from_millis(8);
    /// A loop fetches as many events at any rate: where processors are scarce all of them seem to take long, and turns for
    /// one event each would make it worse.
    pub const LEAST: usize = 4;

    /// For so many loops.
    pub fn new(loops: usize) -> io::Result<Team> {
        let dummy = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let members = (0..loops).map(|_| Member::default()).collect();
        let (joined, watch) = (AtomicUsize::new(0), Watch::new()?);
        Ok(Team(Arc::new(Shared { members, joined, watch, dummy }), None))
    }

    /// For that one of the loops. All are numbered, or none.
    #[must_use]
    pub fn of(&self, number: usize) -> Team {
        Team(Arc::clone(&self.0), Some(number))
    }
}

/// What a loop did for others of its team.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relief {
    /// Connections that it took over.
    pub taken: u64,
    /// Readiness of something that cannot be taken, passed on to its loop.
    pub passed_on: u64,
    /// Looks that found nothing.
    pub in_vain: u64,
}

struct Shared {
    members: Box<[Member]>,
    /// So many have come.
    joined: AtomicUsize,
    watch: Watch,
    /// What stands behind the number of a connection that was taken.
    dummy: OwnedFd,
}

#[derive(Default)]
struct Member {
    turn: TurnWord,
    place: OnceLock<Place>,
    offers: Offers,
}

/// Since when a loop's turn lasts, by [`crate::clock::nanos`]; 0 while it waits. The one word that others read often,
/// on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct TurnWord(AtomicU64);

/// Where a loop is to be found.
struct Place {
    /// Its epoll instance.
    instance: Arc<OwnedFd>,
    mailbox: Arc<Mailbox>,
    thread: Suspect,
}

/// The timer that wakes one sleeper.
struct Watch {
    timer: Arc<OwnedFd>,
    set: AtomicBool,
    /// In nanoseconds, how long after it is set it comes.
    after: AtomicU64,
}

impl Watch {
    fn new() -> io::Result<Watch> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = match seam::is_simulated() {
            true => eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            false => timerfd_create(TimerfdClockId::Monotonic, flags)?,
        };
        let timer = Arc::new(timer);
        Ok(Watch { timer, set: AtomicBool::new(false), after: AtomicU64::new(nanos(Team::WATCH)) })
    }

    /// Sets the timer, unless it is set.
    fn set(&self) {
        if self.set.load(SeqCst) || self.set.swap(true, SeqCst) {
            return;
        }
        let after = self.after.load(Relaxed);
        if seam::ring_after(&self.timer, after) {
            return;
        }
        let in_time = Timespec { tv_sec: 0, tv_nsec: after as i64 };
        let once = Itimerspec { it_value: in_time, it_interval: Timespec::default() };
        if timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).is_err() {
            self.set.store(false, SeqCst);
        }
    }

    /// A look has shown whether somebody is held up: when the next one is due.
    fn seen(&self, held_up: bool) {
        let before = self.after.load(Relaxed);
        let after = if held_up { nanos(Team::WATCH) } else { nanos(Team::SELDOM).min(2 * before) };
        if after != before {
            self.after.store(after, Relaxed);
        }
    }

    /// The timer has come; false if another loop has heard of it first.
    fn came(&self) -> bool {
        let mut count = [0u8; 8];
        let first = rustix::io::read(&self.timer, &mut count).is_ok();
        if first {
            self.set.store(false, SeqCst);
        }
        first
    }
}

const fn nanos(d: Duration) -> u64 {
    d.as_nanos() as u64
}
