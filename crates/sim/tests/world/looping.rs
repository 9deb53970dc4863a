//! The state of each loop, and which of them have a processor.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_testkit::Dice;

use crate::accept_queue::AcceptQueues;

/// How long a handler computes before another loop may have its processor.
const SLICE: u64 = 3_000_000;
/// A woken loop has a processor within this time, if one is free.
const WAKE: usize = 30_000;

/// What the thread that has run wants next.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    /// To wait for events, at most until this time.
    Rest(Option<u64>),
    /// To sleep in a handler.
    Sleep(u64),
    /// To compute in a handler.
    Compute(u64),
    /// To go on.
    Run,
    /// Nothing: its process was killed.
    Die,
}

#[derive(Clone, Copy, Debug)]
pub enum State {
    /// The thread waits for events.
    Rests { until: Option<u64> },
    /// The thread has work and no processor. `left`: what is left of a computation.
    Wants { at: u64, left: u64 },
    /// The thread has a processor until this time.
    Works { until: u64, then: Then },
    /// A handler sleeps until this time.
    Sleeps { until: u64 },
}

pub struct Looping {
    pub began: bool,
    pub gone: bool,
    pub state: State,
    /// When the loop last went on after a rest. `fetches`: whether it does so the next time. It has
    /// fetched what had come by then, and nothing that came later.
    pub fetched: u64,
    pub rested: bool,
    /// The loop's process is stopped until this time.
    pub stopped: u64,
    /// The loop accepts nothing before this time: descriptors have run out, or its listener could
    /// not be armed.
    pub unable: u64,
    /// How long the thread has had a processor, the current time included.
    used: u64,
    /// The tasks and sockets that it has.
    pub holds: (usize, usize),
    /// Readable when there is an event for the loop.
    pub news: Option<OwnedFd>,
    /// The thread is beside a loop: it waits for what it registered, and for calls.
    beside: bool,
    pub called: bool,
    /// System calls of this turn. `fresh`: the loop begins another turn.
    pub calls: u64,
    pub fresh: bool,
}

impl Looping {
    /// A thread beside a loop starts only when the loop needs it.
    fn new(beside: bool) -> Looping {
        Looping {
            began: beside,
            gone: beside,
            state: State::Wants { at: 0, left: 0 },
            fetched: 0,
            rested: true,
            stopped: 0,
            unable: 0,
            used: 0,
            holds: (0, 0),
            news: None,
            beside,
            called: false,
            calls: 0,
            fresh: true,
        }
    }

    /// The thread was asked for, and is about to begin.
    pub fn expect(&mut self) {
        *self = Looping { began: false, gone: false, ..Looping::new(true) };
    }

    /// Whether the loop sleeps in its wait, in the kernel's eyes: a stopped process waits for
    /// nothing.
    pub fn is_asleep(&self, now: u64) -> bool {
        matches!(self.state, State::Rests { .. }) && !self.gone && self.stopped <= now
    }

    /// Gives the thread a processor until this time.
    pub fn works(&mut self, now: u64, until: u64, then: Then) {
        self.used += until - now;
        self.state = State::Works { until, then };
    }

    /// How long the thread has had a processor.
    pub fn used(&self, now: u64) -> u64 {
        match self.state {
            State::Works { until, .. } => self.used - until.saturating_sub(now),
            _ => self.used,
        }
    }

    /// Whether the thread has a processor, or waits for one.
    pub fn is_runnable(&self, now: u64) -> bool {
        let waits = matches!(self.state, State::Rests { .. } | State::Sleeps { .. });
        !waits && self.stopped <= now
    }

    /// The next time at which the thread's state changes by itself.
    fn next(&self, now: u64) -> Option<u64> {
        let at = match self.state {
            State::Rests { until } => until?,
            State::Wants { at, .. } => at,
            State::Works { until, .. } => return Some(until),
            State::Sleeps { until } => until,
        };
        Some(at.max(self.stopped)).filter(|at| *at > now)
    }

    fn wake(&mut self, now: u64, dice: &mut Dice) {
        self.state = State::Wants { at: now + dice.below(WAKE) as u64, left: 0 };
    }
}

/// All loops, and the number of processors.
pub struct Loops {
    /// Each loop, followed by the thread beside it.
    pub list: Vec<Looping>,
    pub cpus: usize,
    /// Events may have come for resting loops.
    pub may_have_events: bool,
}

impl Loops {
    pub fn new(loops: usize, cpus: usize) -> Loops {
        let mut all = Loops { list: Vec::new(), cpus, may_have_events: false };
        all.add(loops);
        all
    }

    pub fn add(&mut self, loops: usize) {
        self.list.extend((0..2 * loops).map(|i| Looping::new(i % 2 == 1)));
    }

    /// The loops without the threads beside them.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = &Looping> + ExactSizeIterator {
        self.list.iter().step_by(2)
    }

    /// Brings all threads up to this moment.
    pub fn settle(&mut self, now: u64, accept_queues: &mut AcceptQueues, dice: &mut Dice) {
        let mut fell_asleep = false;
        for l in self.list.iter_mut().filter(|l| !l.gone) {
            match l.state {
                State::Works { until, then } if until <= now => {
                    l.state = match then {
                        Then::Rest(until) => State::Rests { until },
                        Then::Sleep(time) => State::Sleeps { until: until + time },
                        Then::Compute(left) => State::Wants { at: until, left },
                        Then::Run | Then::Die => State::Wants { at: until, left: 0 },
                    };
                    fell_asleep |= matches!(l.state, State::Rests { .. });
                }
                State::Sleeps { until } if until <= now => l.wake(now, dice),
                _ => {}
            }
            if let State::Rests { until: Some(until) } = l.state
                && until <= now
            {
                l.state = State::Wants { at: now, left: 0 };
            }
        }
        if std::mem::take(&mut self.may_have_events) || fell_asleep {
            self.hear(now, accept_queues, dice);
        }
    }

    /// Wakes the loops that have events.
    fn hear(&mut self, now: u64, accept_queues: &mut AcceptQueues, dice: &mut Dice) {
        let rests = |l: &Looping| !l.gone && matches!(l.state, State::Rests { .. });
        let resting: Vec<usize> = (0..self.list.len()).filter(|i| rests(&self.list[*i])).collect();
        let mut fds = Vec::with_capacity(resting.len());
        let mut whose = Vec::with_capacity(resting.len());
        let mut heard = Vec::new();
        for i in resting {
            match &self.list[i].news {
                _ if accept_queues.reports_any(i) || self.list[i].called => heard.push(i),
                _ if self.list[i].beside => {}
                Some(fd) => {
                    fds.push(PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
                    whose.push(i);
                }
                None => heard.push(i),
            }
        }
        if !fds.is_empty() {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let _ = poll(&mut fds, Some(&now));
            let ready = fds.iter().zip(whose).filter(|(fd, _)| !fd.revents().is_empty());
            heard.extend(ready.map(|(_, i)| i));
        }
        drop(fds);
        heard.sort_unstable();
        for i in heard {
            self.list[i].called = false;
            self.list[i].wake(now, dice);
        }
    }

    /// A connection comes: the kernel walks along the wait list.
    pub fn arrive(
        &mut self,
        accept_queue: usize,
        now: u64,
        accept_queues: &mut AcceptQueues,
        dice: &mut Dice,
    ) {
        self.may_have_events = true;
        self.settle(now, accept_queues, dice);
        for who in accept_queues.arrive(accept_queue, now, |i| self.list[i].is_asleep(now)) {
            self.list[who].wake(now, dice);
        }
    }

    /// Gives a free processor to a thread that wants one. Returns the loop, if its thread is to
    /// run.
    pub fn dispatch(&mut self, now: u64, dice: &mut Dice) -> Option<usize> {
        loop {
            let works = |l: &&Looping| !l.gone && matches!(l.state, State::Works { .. });
            if self.list.iter().filter(works).count() >= self.cpus {
                return None;
            }
            let wants = |l: &Looping| {
                !l.gone
                    && l.stopped <= now
                    && matches!(l.state, State::Wants { at, .. } if at <= now)
            };
            let wanting: Vec<usize> =
                (0..self.list.len()).filter(|i| wants(&self.list[*i])).collect();
            if wanting.is_empty() {
                return None;
            }
            let i = wanting[dice.below(wanting.len())];
            match self.list[i].state {
                State::Wants { left, .. } if left > 0 => {
                    let piece = left.min(SLICE);
                    let then = Then::Compute(left - piece);
                    self.list[i].works(now, now + piece, then);
                }
                _ => return Some(i),
            }
        }
    }

    /// The next time at which a thread's state changes by itself.
    pub fn next(&self, now: u64) -> Option<u64> {
        self.list.iter().filter(|l| !l.gone).filter_map(|l| l.next(now)).min()
    }

    pub fn are_gone(&self) -> bool {
        self.list.iter().all(|l| l.gone)
    }
}
