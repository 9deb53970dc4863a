//! Loops of one process steal requests from stalled loops, so that requests are balanced and not only connections.
//!
//! A connection that waits at a request boundary is *stealable*: its value lies in a table of its loop. The loop that
//! takes it out, under the table's lock, owns the connection. An idle loop looks for stalled loops before it sleeps. It
//! fetches an event from a stalled loop's epoll instance. If the event's connection is stealable, it steals it. Other
//! events go to the owner's mailbox, since the kernel reports an edge once. Listening sockets and notifiers are
//! level-triggered, so a look takes nothing away from them.
//!
//! - The kernel's ready list is the queue that others steal from. So a loop fetches no more events at once than it
//!   handles in about [`StealGroup::STALLED`], judged by its last turns.
//! - One sleeper checks while other loops are awake. The group's timer is in every loop's epoll instance with exclusive
//!   wake-up, and the kernel chooses the loop that it wakes. A loop that wakes up to work sets the timer; the loop that
//!   it woke sets it again while others are awake. So an idle process does not wake up, and checks are rare while no
//!   loop is stalled.
//! - Where processors are scarce, the turns of all loops are long, and only some loops are stalled ([`StallProbe`]).
//! - A tunnel with nothing in flight is two connections that are stolen together ([`crate::Joined`]).
//! - A stolen connection leaves a dummy behind its descriptor number ([`weir_sys::descriptor::replace`]). The previous
//!   owner may still receive an event for it; it then neither touches the socket nor keeps it open.

mod group_member;
#[cfg(test)]
mod laws;
mod stall_probe;
mod stealable;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::remote::Mailbox;
use crate::seam;
pub(crate) use group_member::GroupMember;
use stall_probe::{StallProbe, nanos};
use stealable::Stealable;
pub(crate) use stealable::Stolen;

/// The loops of one process. Each gets a clone ([`crate::Options::steal_group`]), which may carry the loop's number.
#[derive(Clone)]
pub struct StealGroup(Arc<Shared>, Option<usize>);

impl std::fmt::Debug for StealGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StealGroup").field(&self.0.members.len()).finish()
    }
}

impl StealGroup {
    /// A loop may be stalled when its turn has lasted longer than this.
    pub const STALLED: Duration = stall_probe::STALLED;
    /// The interval of checks while some loop is stalled.
    pub const CHECK: Duration = Duration::from_millis(1);
    /// The longest interval of checks while loops are awake and none is stalled. The interval grows up to this, since a
    /// sleeper that wakes up takes a processor from loops that work.
    pub const RARE_CHECK: Duration = Duration::from_millis(8);
    /// A loop fetches at least this many events. Where processors are scarce all events seem slow, and turns with one
    /// event each would cost more.
    pub const MIN_EVENTS: usize = 4;

    /// A group of `loops` loops.
    pub fn new(loops: usize) -> io::Result<StealGroup> {
        let dummy = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let members = (0..loops).map(|_| SharedMember::default()).collect();
        let (joined, timer) = (AtomicUsize::new(0), StallTimer::new()?);
        Ok(StealGroup(Arc::new(Shared { members, joined, timer, dummy }), None))
    }

    /// The clone for loop `number`. Either all loops are numbered, or none is.
    #[must_use]
    pub fn of(&self, number: usize) -> StealGroup {
        StealGroup(Arc::clone(&self.0), Some(number))
    }
}

/// What a loop did for the others of its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StealCounts {
    /// Connections that it stole.
    pub taken: u64,
    /// Events of something that cannot be stolen, passed on to their loop.
    pub passed_on: u64,
    /// Looks at stalled loops that stole nothing.
    pub in_vain: u64,
}

struct Shared {
    members: Box<[SharedMember]>,
    /// The number of loops that have joined without a number of their own.
    joined: AtomicUsize,
    timer: StallTimer,
    /// The descriptor that replaces a stolen connection's.
    dummy: OwnedFd,
}

#[derive(Default)]
struct SharedMember {
    turn: TurnStart,
    address: OnceLock<MemberAddress>,
    stealable: Stealable,
}

/// When a loop's turn began, by [`crate::clock::nanos`]; 0 while it waits. Other loops read this word often, so it has a
/// cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct TurnStart(AtomicU64);

/// How other loops reach a loop.
struct MemberAddress {
    /// Its epoll instance.
    instance: Arc<OwnedFd>,
    mailbox: Arc<Mailbox>,
    thread: StallProbe,
}

/// The timer that wakes one sleeping loop to check for stalled loops.
struct StallTimer {
    timer: Arc<OwnedFd>,
    set: AtomicBool,
    /// The interval in nanoseconds.
    after: AtomicU64,
}

impl StallTimer {
    fn new() -> io::Result<StallTimer> {
        Ok(StallTimer {
            timer: Arc::new(seam::timer()?),
            set: AtomicBool::new(false),
            after: AtomicU64::new(nanos(StealGroup::CHECK)),
        })
    }

    /// Sets the timer, unless it is set.
    fn set(&self) {
        if self.set.load(SeqCst) || self.set.swap(true, SeqCst) {
            return;
        }
        if seam::set_timer(&self.timer, self.after.load(Relaxed)).is_err() {
            self.set.store(false, SeqCst);
        }
    }

    /// A check has shown whether a loop is stalled. Sets the interval to the next one.
    fn adapt(&self, stalled: bool) {
        let before = self.after.load(Relaxed);
        let after = if stalled {
            nanos(StealGroup::CHECK)
        } else {
            nanos(StealGroup::RARE_CHECK).min(2 * before)
        };
        if after != before {
            self.after.store(after, Relaxed);
        }
    }

    /// The timer has fired. False if another loop has read it first.
    fn read_fired(&self) -> bool {
        let mut count = [0u8; 8];
        let first = rustix::io::read(&self.timer, &mut count).is_ok();
        if first {
            self.set.store(false, SeqCst);
        }
        first
    }
}
