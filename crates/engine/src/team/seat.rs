//! A loop's place in its team: what it says of itself, and how it looks after others.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};

use super::{Member, Offers, Place, Relief, Shared, Suspect, Taken, Team, nanos};
use crate::backend::{Kind, Token};
use crate::clock;
use crate::remote::{Mailbox, News};
use crate::source::Ready;

/// A loop reads the others' words no more often than this, since each costs it a line of another processor's cache.
const LOOK_AGAIN: Duration = Duration::from_micros(250);
/// A loop one of whose turns has lasted for long makes it easy for others for so long.
const LATELY: Duration = Duration::from_secs(10);
/// So many events of one loop are looked at before something else is tried.
const LOOKS: usize = 8;
/// A turn's mean time for an event counts for so much of the mean,
const PART: u64 = 8;
/// and for no more than twice the mean and this: a turn in which the loop lost its processor says little of its events.
const JUMP: Duration = Duration::from_micros(10);

pub(crate) struct Seat {
    shared: Arc<Shared>,
    me: usize,
    /// When the turn began, and the others' words were read last, by [`clock::nanos`].
    began: Cell<u64>,
    read: Cell<u64>,
    /// Of an event lately, in nanoseconds.
    mean: Cell<u64>,
    /// When a turn has lasted for long last.
    held_up: Cell<Option<u64>>,
    /// Connections of which something has come in this turn.
    ready: Cell<usize>,
    relief: Cell<Relief>,
}

impl Seat {
    /// The place of a loop that waits in `instance`; none if there are as many as were to come.
    pub(crate) fn join(team: &Team, instance: Arc<OwnedFd>, mailbox: Arc<Mailbox>) -> Option<Seat> {
        let shared = Arc::clone(&team.0);
        let me = team.1.unwrap_or_else(|| shared.joined.fetch_add(1, Relaxed));
        let place = Place { instance, mailbox, thread: Suspect::own() };
        shared.members.get(me)?.place.set(place).ok()?;
        let (began, read) = (Cell::new(clock::nanos()), Cell::new(0));
        let (mean, held_up, ready, relief) = Default::default();
        Some(Seat { shared, me, began, read, mean, held_up, ready, relief })
    }

    fn own(&self) -> &Member {
        &self.shared.members[self.me]
    }

    /// The connections of this loop that others may take.
    pub(crate) fn offers(&self) -> &Offers {
        &self.own().offers
    }

    /// The timer that wakes one sleeper of the team.
    pub(crate) fn timer(&self) -> &Arc<OwnedFd> {
        &self.shared.watch.timer
    }

    pub(crate) fn relief(&self) -> Relief {
        self.relief.get()
    }

    /// A turn with so many events is over: how many the next one may fetch. More than a loop handles in the time after
    /// which others come to its help would be kept from them.
    pub(crate) fn turned(&self, events: usize, now: u64) -> usize {
        if let Ok(events @ 1..) = u64::try_from(events) {
            let whole = now.saturating_sub(self.began.get());
            if whole > nanos(Team::HELD_UP) {
                self.held_up.set(Some(now));
            }
            let (took, mean) = (whole / events, self.mean.get());
            let took = took.min(2 * mean + nanos(JUMP));
            self.mean.set((mean * (PART - 1) + took) / PART);
        }
        let most = nanos(Team::HELD_UP) / self.mean.get().max(1);
        usize::try_from(most).unwrap_or(usize::MAX).max(Team::LEAST)
    }

    /// A turn has lasted for long lately, so that others may be wanted.
    pub(crate) fn needs_relief(&self) -> bool {
        let since = |at| self.began.get().saturating_sub(at);
        self.held_up.get().is_some_and(|at| since(at) < nanos(LATELY))
    }

    /// Of so many connections something has come in this turn.
    pub(crate) fn found(&self, ready: usize) {
        self.ready.set(ready);
    }

    /// What is accepted in this turn may wait for others who are handled before.
    pub(crate) fn others_come_first(&self) -> bool {
        self.ready.get() > 0 && self.needs_relief()
    }

    /// The loop is about to wait.
    pub(crate) fn waits(&self) {
        self.own().turn.0.store(0, SeqCst);
    }

    /// A turn begins.
    pub(crate) fn begins(&self, now: u64) {
        self.began.set(now);
        self.own().turn.0.store(now.max(1), SeqCst);
    }

    /// The turn is about to run tasks: somebody is to watch. A loop that woke up for nothing of the kind, such as for its
    /// policy, needs nobody, or the watch and the policies would keep each other awake.
    #[inline]
    pub(crate) fn works(&self) {
        if self.shared.members.len() > 1 {
            self.shared.watch.set();
        }
    }

    /// The watch's timer has come. Whoever wakes up says so before asking whether it is set, and here both are in the
    /// other order: so either it is set again, or there was nobody. If this turn has tasks, they are yet to come.
    pub(crate) fn watch_came(&self) {
        if self.shared.watch.came() {
            self.read.set(0);
            let now = self.began.get();
            self.shared.watch.seen(self.others().any(|other| other.is_held_up(now).is_some()));
            if self.others().any(|other| other.turn.0.load(SeqCst) != 0) {
                self.shared.watch.set();
            }
        }
    }

    fn others(&self) -> impl Iterator<Item = &Member> {
        let (before, rest) = self.shared.members.split_at(self.me);
        rest.iter().skip(1).chain(before)
    }

    /// Whether it is time to look after the others, and somebody may be held up.
    pub(crate) fn somebody_is_late(&self, now: u64) -> bool {
        if now.saturating_sub(self.read.get()) < nanos(LOOK_AGAIN) {
            return false;
        }
        self.read.set(now);
        self.others().any(|other| other.is_late(now).is_some())
    }

    /// Takes a connection from a loop that is held up.
    pub(crate) fn take(&self, now: u64) -> Option<Taken> {
        let mut held = self.others().filter_map(|other| other.is_held_up(now)).peekable();
        held.peek()?;
        self.shared.watch.seen(true);
        let taken = held.find_map(|(other, place)| self.take_from(other, place));
        let mut relief = self.relief.get();
        match &taken {
            Some(_) => {
                relief.taken += 1;
                // There may be more where it came from.
                self.read.set(0);
            }
            None => relief.in_vain += 1,
        }
        self.relief.set(relief);
        taken
    }

    fn take_from(&self, other: &Member, place: &Place) -> Option<Taken> {
        for _ in 0..LOOKS {
            let (token, ready) = look(&place.instance)?;
            if token.kind() != Kind::Stream {
                // It is reported as long as it is ready, the next time behind others.
                continue;
            }
            let taken = match ready.any(Ready::READABLE) {
                true => other.offers.take(token, &place.instance, &self.shared.dummy),
                false => None,
            };
            if let Some((of, taken)) = taken {
                place.mailbox.tell(News::Taken(of));
                return Some(taken);
            }
            place.mailbox.tell(News::Ready(token, ready));
            let relief = self.relief.get();
            self.relief.set(Relief { passed_on: relief.passed_on + 1, ..relief });
        }
        None
    }

    /// The loop ends: nobody finds it any more.
    pub(crate) fn leave(&self) {
        self.waits();
        self.offers().clear();
    }
}

impl Member {
    /// The turn, by its beginning, that lasts for long.
    fn is_late(&self, now: u64) -> Option<u64> {
        let since = self.turn.0.load(Relaxed);
        (since != 0 && now.saturating_sub(since) > nanos(Team::HELD_UP)).then_some(since)
    }

    /// It and its place, if a handler holds it up.
    fn is_held_up(&self, now: u64) -> Option<(&Member, &Place)> {
        let (turn, place) = (self.is_late(now)?, self.place.get()?);
        // A loop that has begun to wait meanwhile is blocked, too, but has said so before.
        let is_held_up = place.thread.is_held_up(turn) && self.turn.0.load(SeqCst) == turn;
        is_held_up.then_some((self, place))
    }
}

/// The first of what is ready for another loop. An edge is reported to whoever asks first, and only once.
fn look(instance: &OwnedFd) -> Option<(Token, Ready)> {
    let mut room = [MaybeUninit::<Event>::uninit(); 1];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let (found, _) = epoll::wait(instance, &mut room[..], Some(&now)).ok()?;
    let &Event { flags, data } = found.first()?;
    Some((Token(data.u64()), Ready::from_bits(flags.bits() as u16)))
}
