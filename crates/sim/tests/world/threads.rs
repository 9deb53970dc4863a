//! The scheduler: the state of each thread, and which of them have a processor.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_testkit::Dice;

use crate::accept_queue::AcceptQueues;

/// How long a handler computes before another thread may have its processor.
const SLICE: u64 = 3_000_000;
/// The longest time from a wake-up until a loop runs, if a processor is free.
const WAKE: usize = 30_000;

/// What a thread does after its turn.
#[derive(Clone, Copy, Debug)]
pub enum AfterTurn {
    /// Waits for events, at most until this time.
    Rest(Option<u64>),
    /// Sleeps in a handler.
    Sleep(u64),
    /// Computes in a handler.
    Compute(u64),
    /// Goes on.
    Run,
    /// Its process was killed.
    Die,
}

#[derive(Clone, Copy, Debug)]
pub enum State {
    /// Waits for events.
    Waiting { until: Option<u64> },
    /// Waits for a processor. `left` is the rest of a computation.
    Runnable { at: u64, left: u64 },
    /// Has a processor until this time.
    Running { until: u64, then: AfterTurn },
    /// Sleeps in a handler until this time.
    Sleeping { until: u64 },
}

pub struct LoopThread {
    pub started: bool,
    pub gone: bool,
    pub state: State,
    /// When the loop last resumed after a wait, and whether its last turn ended with one. It has
    /// fetched all events up to this time and no later ones.
    pub fetched: u64,
    pub rested: bool,
    /// The end of the time for which its process is stopped.
    pub stopped: u64,
    /// The loop accepts nothing before this time, since descriptors have run out or its listener
    /// could not be armed.
    pub cannot_accept_until: u64,
    /// The processor time of the thread, including that of its current work.
    used: u64,
    /// The numbers of its tasks and sockets.
    pub holds: (usize, usize),
    /// Its epoll instance or notifier: readable when the loop has an event.
    pub wakeup_fd: Option<OwnedFd>,
    /// Whether this is the helper thread of a loop. It waits for sockets that it registered, and
    /// for calls.
    is_helper: bool,
    pub called: bool,
    /// System calls of this turn, and whether the next step begins another turn.
    pub calls: u64,
    pub new_turn: bool,
}

impl LoopThread {
    /// The helper thread of a loop starts only when the loop needs it.
    fn new(is_helper: bool) -> LoopThread {
        LoopThread {
            started: is_helper,
            gone: is_helper,
            state: State::Runnable { at: 0, left: 0 },
            fetched: 0,
            rested: true,
            stopped: 0,
            cannot_accept_until: 0,
            used: 0,
            holds: (0, 0),
            wakeup_fd: None,
            is_helper,
            called: false,
            calls: 0,
            new_turn: true,
        }
    }

    /// Marks the thread as about to start.
    pub fn expect(&mut self) {
        *self = LoopThread { started: false, gone: false, ..LoopThread::new(true) };
    }

    /// Whether the loop sleeps in its wait. To the kernel, a stopped process does not.
    pub fn is_asleep(&self, now: u64) -> bool {
        matches!(self.state, State::Waiting { .. }) && !self.gone && self.stopped <= now
    }

    /// Gives the thread a processor until this time.
    pub fn works(&mut self, now: u64, until: u64, then: AfterTurn) {
        self.used += until - now;
        self.state = State::Running { until, then };
    }

    /// The processor time of the thread up to now.
    pub fn used(&self, now: u64) -> u64 {
        match self.state {
            State::Running { until, .. } => self.used - until.saturating_sub(now),
            _ => self.used,
        }
    }

    /// Whether the thread has a processor or waits for one.
    pub fn is_runnable(&self, now: u64) -> bool {
        let waits = matches!(self.state, State::Waiting { .. } | State::Sleeping { .. });
        !waits && self.stopped <= now
    }

    /// The next time at which the thread's state changes by itself.
    fn next(&self, now: u64) -> Option<u64> {
        let at = match self.state {
            State::Waiting { until } => until?,
            State::Runnable { at, .. } => at,
            State::Running { until, .. } => return Some(until),
            State::Sleeping { until } => until,
        };
        Some(at.max(self.stopped)).filter(|at| *at > now)
    }

    fn wake(&mut self, now: u64, dice: &mut Dice) {
        self.state = State::Runnable { at: now + dice.below(WAKE) as u64, left: 0 };
    }
}

/// All threads, and the number of processors.
pub struct Loops {
    /// Each loop, followed by its helper thread.
    pub list: Vec<LoopThread>,
    pub cpus: usize,
    /// Whether waiting loops may have events.
    pub may_have_events: bool,
}

impl Loops {
    pub fn new(loops: usize, cpus: usize) -> Loops {
        let mut all = Loops { list: Vec::new(), cpus, may_have_events: false };
        all.add(loops);
        all
    }

    pub fn add(&mut self, loops: usize) {
        self.list.extend((0..2 * loops).map(|i| LoopThread::new(i % 2 == 1)));
    }

    /// The loops without their helper threads.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = &LoopThread> + ExactSizeIterator {
        self.list.iter().step_by(2)
    }

    /// Updates the states of all threads to this time.
    pub fn settle(&mut self, now: u64, accept_queues: &mut AcceptQueues, dice: &mut Dice) {
        let mut fell_asleep = false;
        for l in self.list.iter_mut().filter(|l| !l.gone) {
            match l.state {
                State::Running { until, then } if until <= now => {
                    l.state = match then {
                        AfterTurn::Rest(until) => State::Waiting { until },
                        AfterTurn::Sleep(time) => State::Sleeping { until: until + time },
                        AfterTurn::Compute(left) => State::Runnable { at: until, left },
                        AfterTurn::Run | AfterTurn::Die => State::Runnable { at: until, left: 0 },
                    };
                    fell_asleep |= matches!(l.state, State::Waiting { .. });
                }
                State::Sleeping { until } if until <= now => l.wake(now, dice),
                _ => {}
            }
            if let State::Waiting { until: Some(until) } = l.state
                && until <= now
            {
                l.state = State::Runnable { at: now, left: 0 };
            }
        }
        if std::mem::take(&mut self.may_have_events) || fell_asleep {
            self.wake_ready(now, accept_queues, dice);
        }
    }

    /// Wakes the loops that have events.
    fn wake_ready(&mut self, now: u64, accept_queues: &mut AcceptQueues, dice: &mut Dice) {
        let rests = |l: &LoopThread| !l.gone && matches!(l.state, State::Waiting { .. });
        let resting: Vec<usize> = (0..self.list.len()).filter(|i| rests(&self.list[*i])).collect();
        let mut fds = Vec::with_capacity(resting.len());
        let mut whose = Vec::with_capacity(resting.len());
        let mut heard = Vec::new();
        for i in resting {
            match &self.list[i].wakeup_fd {
                _ if accept_queues.reports_any(i) || self.list[i].called => heard.push(i),
                _ if self.list[i].is_helper => {}
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

    /// Adds a connection. The kernel walks the wait list.
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

    /// Gives a free processor to a waiting thread. Returns the loop whose thread is to run.
    pub fn dispatch(&mut self, now: u64, dice: &mut Dice) -> Option<usize> {
        loop {
            let works = |l: &&LoopThread| !l.gone && matches!(l.state, State::Running { .. });
            if self.list.iter().filter(works).count() >= self.cpus {
                return None;
            }
            let wants = |l: &LoopThread| {
                !l.gone
                    && l.stopped <= now
                    && matches!(l.state, State::Runnable { at, .. } if at <= now)
            };
            let wanting: Vec<usize> =
                (0..self.list.len()).filter(|i| wants(&self.list[*i])).collect();
            if wanting.is_empty() {
                return None;
            }
            let i = wanting[dice.below(wanting.len())];
            match self.list[i].state {
                State::Runnable { left, .. } if left > 0 => {
                    let piece = left.min(SLICE);
                    let then = AfterTurn::Compute(left - piece);
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
