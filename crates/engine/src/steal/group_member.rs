//! A loop as a member of its steal group: what it publishes, and how it steals.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};

use super::{
    MemberAddress, Shared, SharedMember, StallProbe, StealCounts, StealGroup, Stealable, Stolen,
    nanos,
};
use crate::clock;
use crate::ready::Ready;
use crate::remote::{Mailbox, StealNotice};
use crate::token::{Token, TokenKind};

/// How often a loop reads the other loops' words at most. Each read fetches a cache line from
/// another processor.
const LOOK_INTERVAL: Duration = Duration::from_micros(250);
/// A loop that was stalled keeps its connections easy to steal for this long.
const RECENT_STALL: Duration = Duration::from_secs(10);
/// The most events that one look fetches from a stalled loop.
const MAX_FETCHED: usize = 8;
/// The weight of the last turn in the mean time of an event is one in this many.
const MEAN_WEIGHT: u64 = 8;
/// A turn's time for an event counts as twice the mean plus this at most. A turn in which the loop lost its processor
/// says little about its events.
const MAX_JUMP: Duration = Duration::from_micros(10);

pub(crate) struct GroupMember {
    shared: Arc<Shared>,
    me: usize,
    /// When the turn began, and when the others' words were last read, by [`clock::nanos`].
    began: Cell<u64>,
    read: Cell<u64>,
    /// The mean time of an event, in nanoseconds.
    mean: Cell<u64>,
    /// When this loop's last long turn ended.
    stalled: Cell<Option<u64>>,
    /// Connections with an event in this turn.
    ready: Cell<usize>,
    steals: Cell<StealCounts>,
}

impl GroupMember {
    /// Joins with a loop that waits in `instance`. None if the group is full.
    pub(crate) fn join(
        group: &StealGroup,
        instance: Arc<OwnedFd>,
        mailbox: Arc<Mailbox>,
    ) -> Option<GroupMember> {
        let shared = Arc::clone(&group.0);
        let me = group.1.unwrap_or_else(|| shared.joined.fetch_add(1, Relaxed));
        let address = MemberAddress { instance, mailbox, thread: StallProbe::own() };
        shared.members.get(me)?.address.set(address).ok()?;
        let (began, read) = (Cell::new(clock::nanos()), Cell::new(0));
        let (mean, stalled, ready, steals) = Default::default();
        Some(GroupMember { shared, me, began, read, mean, stalled, ready, steals })
    }

    fn own(&self) -> &SharedMember {
        &self.shared.members[self.me]
    }

    /// The connections of this loop that others may steal.
    pub(crate) fn stealable(&self) -> &Stealable {
        &self.own().stealable
    }

    /// The timer that wakes one sleeping loop of the group.
    pub(crate) fn timer(&self) -> &Arc<OwnedFd> {
        &self.shared.timer.timer
    }

    pub(crate) fn steal_counts(&self) -> StealCounts {
        self.steals.get()
    }

    /// A turn with so many events has ended. Returns how many events the next one may fetch. Events that a loop has
    /// fetched cannot be stolen, so it fetches no more than it handles before it counts as stalled.
    pub(crate) fn event_limit(&self, events: usize, now: u64) -> usize {
        if let Ok(events @ 1..) = u64::try_from(events) {
            let whole = now.saturating_sub(self.began.get());
            if whole > nanos(StealGroup::STALLED) {
                self.stalled.set(Some(now));
            }
            let (took, mean) = (whole / events, self.mean.get());
            let took = took.min(2 * mean + nanos(MAX_JUMP));
            self.mean.set((mean * (MEAN_WEIGHT - 1) + took) / MEAN_WEIGHT);
        }
        let most = nanos(StealGroup::STALLED) / self.mean.get().max(1);
        usize::try_from(most).unwrap_or(usize::MAX).max(StealGroup::MIN_EVENTS)
    }

    /// Whether a turn of this loop was long lately, so that another stall is likely.
    pub(crate) fn has_stalled_lately(&self) -> bool {
        let since = |at| self.began.get().saturating_sub(at);
        self.stalled.get().is_some_and(|at| since(at) < nanos(RECENT_STALL))
    }

    /// Records the number of connections with an event in this turn.
    pub(crate) fn note_ready(&self, ready: usize) {
        self.ready.set(ready);
    }

    /// Whether connections that are accepted in this turn may wait behind others for long.
    pub(crate) fn others_come_first(&self) -> bool {
        self.ready.get() > 0 && self.has_stalled_lately()
    }

    /// The loop is about to wait.
    pub(crate) fn clear_turn(&self) {
        self.own().turn.0.store(0, SeqCst);
    }

    /// A turn begins.
    pub(crate) fn publish_turn(&self, now: u64) {
        self.began.set(now);
        self.own().turn.0.store(now.max(1), SeqCst);
    }

    /// The turn is about to run tasks, so the timer is set. A loop that wakes up without tasks, such as for its policy,
    /// does not set it. Otherwise the timer and the policies would keep each other awake.
    #[inline]
    pub(crate) fn set_timer(&self) {
        if self.shared.members.len() > 1 {
            self.shared.timer.set();
        }
    }

    /// The timer has fired. A loop that wakes up publishes its turn before it reads whether the timer is set. This one
    /// clears the timer before it reads the others' turns. So the timer is set again unless all others sleep.
    pub(crate) fn timer_fired(&self) {
        if self.shared.timer.read_fired() {
            self.read.set(0);
            let now = self.began.get();
            self.shared.timer.adapt(self.others().any(|other| other.is_stalled(now).is_some()));
            if self.others().any(|other| other.turn.0.load(SeqCst) != 0) {
                self.shared.timer.set();
            }
        }
    }

    fn others(&self) -> impl Iterator<Item = &SharedMember> {
        let (before, rest) = self.shared.members.split_at(self.me);
        rest.iter().skip(1).chain(before)
    }

    /// Whether it is time to look at the others, and one of them may be stalled.
    pub(crate) fn any_is_late(&self, now: u64) -> bool {
        if now.saturating_sub(self.read.get()) < nanos(LOOK_INTERVAL) {
            return false;
        }
        self.read.set(now);
        self.others().any(|other| other.is_late(now).is_some())
    }

    /// Steals a connection from a stalled loop.
    pub(crate) fn steal(&self, now: u64) -> Option<Stolen> {
        let mut held = self.others().filter_map(|other| other.is_stalled(now)).peekable();
        held.peek()?;
        self.shared.timer.adapt(true);
        let taken = held.find_map(|(other, address)| self.steal_from(other, address));
        let mut steals = self.steals.get();
        match &taken {
            Some(_) => {
                steals.taken += 1;
                // That loop may have more to steal.
                self.read.set(0);
            }
            None => steals.in_vain += 1,
        }
        self.steals.set(steals);
        taken
    }

    fn steal_from(&self, other: &SharedMember, address: &MemberAddress) -> Option<Stolen> {
        for _ in 0..MAX_FETCHED {
            let (token, ready) = look(&address.instance)?;
            if token.kind() != TokenKind::Stream {
                // It is level-triggered: the kernel moves it to the end of the ready list and reports it again.
                continue;
            }
            let taken = match ready.any(Ready::READABLE) {
                true => other.stealable.steal(token, &address.instance, &self.shared.dummy),
                false => None,
            };
            if let Some((of, taken)) = taken {
                address.mailbox.notify(StealNotice::Stolen(of));
                return Some(taken);
            }
            address.mailbox.notify(StealNotice::Ready(token, ready));
            let steals = self.steals.get();
            self.steals.set(StealCounts { passed_on: steals.passed_on + 1, ..steals });
        }
        None
    }

    /// The loop ends, and no other loop looks at it any more.
    pub(crate) fn leave(&self) {
        self.clear_turn();
        self.stealable().clear();
    }
}

impl SharedMember {
    /// The beginning of the loop's turn, if the turn is long.
    fn is_late(&self, now: u64) -> Option<u64> {
        let since = self.turn.0.load(Relaxed);
        (since != 0 && now.saturating_sub(since) > nanos(StealGroup::STALLED)).then_some(since)
    }

    /// The loop and its address, if it is stalled.
    fn is_stalled(&self, now: u64) -> Option<(&SharedMember, &MemberAddress)> {
        let (turn, address) = (self.is_late(now)?, self.address.get()?);
        // A loop that waits for events is blocked, too. It clears its turn before it waits.
        let is_stalled = address.thread.is_stalled(turn) && self.turn.0.load(SeqCst) == turn;
        is_stalled.then_some((self, address))
    }
}

/// The first event that is ready for another loop. The kernel reports an edge once, to the loop that asks first.
fn look(instance: &OwnedFd) -> Option<(Token, Ready)> {
    let mut one = [MaybeUninit::<Event>::uninit(); 1];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let (found, _) = epoll::wait(instance, &mut one[..], Some(&now)).ok()?;
    let &Event { flags, data } = found.first()?;
    Some((Token(data.u64()), Ready::from_bits(flags.bits() as u16)))
}
