//! Threads that accept for loops: one per loop, or one for all.
//!
//! Such a thread stands in the kernel's list of waiters as a blocked accept(2) does: it joins at
//! the end when it begins to wait and leaves when it is woken. It waits in an epoll instance of
//! its own, because a thread that is blocked in accept(2) itself could only be told to end by
//! shutting the socket down, for all processes that share it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use weir_balance::Policy;
use weir_engine::beside::{self, Beside};
use weir_log::{Cause, Log, log};

use super::commons::Commons;

/// After accept failed for want of descriptors; nginx: accept_mutex_delay.
const SHORTAGE: Duration = Duration::from_millis(500);
/// When no loop can take a connection, or its line is full.
const NOBODY: Duration = Duration::from_millis(5);
/// The end bell's number; sockets have those of their addresses.
const END: u64 = u64::MAX;

/// An accepted connection, with its address' number.
pub(super) type Accepted = (OwnedFd, usize);

/// A running acceptor thread.
pub(super) struct Acceptor {
    turnstile: Arc<Turnstile>,
    thread: Option<JoinHandle<()>>,
}

/// Where a loop and its acceptor meet.
struct Turnstile {
    state: Mutex<State>,
    opened: Condvar,
    end: OwnedFd,
}

#[derive(Default)]
struct State {
    /// The loop sleeps: the thread may wait for a connection.
    open: bool,
    ending: bool,
    ended: bool,
    accepted: VecDeque<Accepted>,
    /// Somebody waits of whom this thread alone was told, and whom it could not take.
    owes: bool,
}

/// What becomes of connections.
pub(super) enum Duty {
    /// They are for one loop, and accepted while it sleeps.
    ForLoop(usize),
    /// They are for the loops that the policy places.
    Place(Box<dyn Policy>),
}

struct Work {
    turnstile: Arc<Turnstile>,
    commons: Arc<Commons>,
    log: Arc<Log>,
    sockets: Vec<(usize, Arc<OwnedFd>)>,
    duty: Duty,
    epoll: OwnedFd,
}

impl Acceptor {
    /// Starts a thread that accepts from these sockets.
    pub(super) fn start(
        sockets: Vec<(usize, Arc<OwnedFd>)>,
        duty: Duty,
        commons: Arc<Commons>,
        log: Arc<Log>,
    ) -> io::Result<Acceptor> {
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let turnstile =
            Arc::new(Turnstile { state: Mutex::default(), opened: Condvar::new(), end });
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &turnstile.end, EventData::new_u64(END), EventFlags::IN)?;
        let mut work =
            Work { turnstile: Arc::clone(&turnstile), commons, log, sockets, duty, epoll };
        let builder = std::thread::Builder::new().name("weir: acceptor".into());
        let place = Beside::this_loop();
        let thread = builder.spawn(move || {
            place.begin();
            if let Err(e) = work.run() {
                log!(work.log, Alert, None, "an acceptor ended {}", Cause(&e));
            }
            work.turnstile.lock().ended = true;
        })?;
        Ok(Acceptor { turnstile, thread: Some(thread) })
    }

    /// The loop is about to sleep: the thread may accept for it. Answers whether something was
    /// accepted before.
    pub(super) fn open(&self) -> bool {
        let mut state = self.turnstile.lock();
        if !state.open {
            state.open = true;
            self.turnstile.opened.notify_one();
            beside::call();
        }
        !state.accepted.is_empty()
    }

    /// The loop is awake: a thread that does not wait yet need not begin.
    pub(super) fn close(&self) {
        self.turnstile.lock().open = false;
    }

    /// The next connection for the loop.
    pub(super) fn take(&self) -> Option<Accepted> {
        self.turnstile.lock().accepted.pop_front()
    }

    /// Ends the thread; what it accepted and nobody took is returned, and whether it was told of somebody whom it could not
    /// take.
    pub(super) fn end(mut self) -> (VecDeque<Accepted>, bool) {
        self.turnstile.lock().ending = true;
        self.turnstile.opened.notify_one();
        // It fails only when the counter is full.
        let _ = rustix::io::write(&self.turnstile.end, &1u64.to_ne_bytes());
        beside::call();
        beside::wait(None, || self.turnstile.lock().ended);
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
        let mut state = self.turnstile.lock();
        (std::mem::take(&mut state.accepted), state.owes)
    }
}

impl Turnstile {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the loop sleeps; false when the thread is to end.
    fn pass(&self) -> bool {
        let shut = |state: &mut State| !state.open && !state.ending;
        beside::wait(None, || !shut(&mut self.lock()));
        let state = self.lock();
        let state = self.opened.wait_while(state, shut).unwrap_or_else(PoisonError::into_inner);
        !state.ending
    }

    /// Sleeps, unless the thread is to end.
    fn pause(&self, time: Duration) {
        if weir_engine::is_simulated() {
            return beside::wait(Some(time), || self.lock().ending);
        }
        let time = Timespec { tv_sec: 0, tv_nsec: time.as_nanos() as i64 };
        let _ = poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&time));
    }
}

impl Work {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(self.sockets.len() + 1);
        loop {
            if matches!(self.duty, Duty::ForLoop(_)) && !self.turnstile.pass() {
                return Ok(());
            }
            self.wait(&mut events)?;
            for event in events.drain(..) {
                let number = event.data.u64();
                if number == END {
                    return Ok(());
                }
                match self.accept(number as usize) {
                    Ok(Some(connection)) => self.deliver(connection, number as usize),
                    Ok(None) => {}
                    Err(e) => self.failed(e),
                }
                if matches!(self.duty, Duty::ForLoop(_)) {
                    break; // the next one is for somebody else
                }
            }
        }
    }

    /// One wait in the kernel's list, from its end.
    fn wait(&self, events: &mut Vec<Event>) -> io::Result<()> {
        for (number, socket) in &self.sockets {
            let data = EventData::new_u64(*number as u64);
            epoll::add(&self.epoll, socket, data, EventFlags::IN | EventFlags::EXCLUSIVE)?;
        }
        let sockets = self.sockets.iter().map(|(_, socket)| socket.as_fd());
        beside::wait_at(sockets, || self.turnstile.lock().ending);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let most = weir_engine::is_simulated().then_some(&now);
        let waited = epoll::wait(&self.epoll, spare_capacity(events), most);
        for (_, socket) in &self.sockets {
            epoll::delete(&self.epoll, socket)?;
        }
        match waited {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn accept(&self, number: usize) -> rustix::io::Result<Option<OwnedFd>> {
        let Some((_, socket)) = self.sockets.iter().find(|(n, _)| *n == number) else {
            return Ok(None);
        };
        match beside::accept(socket.as_fd()) {
            Ok(connection) => Ok(Some(connection)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn failed(&self, e: Errno) {
        super::accept_failed(&self.log, e);
        if !super::is_the_connections(e) {
            self.turnstile.lock().owes = true;
            self.turnstile.pause(SHORTAGE);
            let mut state = self.turnstile.lock();
            // Whoever ends in its pause has not looked again.
            state.owes = state.ending;
        }
    }

    fn deliver(&mut self, connection: OwnedFd, number: usize) {
        match &mut self.duty {
            Duty::ForLoop(row) => {
                let mut state = self.turnstile.lock();
                state.accepted.push_back((connection, number));
                state.open = false;
                drop(state);
                self.commons.ring(*row);
            }
            Duty::Place(policy) => {
                let mut connection = Some(connection);
                while let Some(waiting) = connection.take() {
                    if self.commons.hand(policy.as_mut(), &waiting, number, &self.log) {
                        return;
                    }
                    if self.turnstile.lock().ending {
                        self.turnstile.lock().accepted.push_back((waiting, number));
                        return;
                    }
                    self.turnstile.pause(NOBODY);
                    connection = Some(waiting);
                }
            }
        }
    }
}

impl Commons {
    /// Hands a connection to the loop that the policy places; false when that is nobody now.
    fn hand(
        &self,
        policy: &mut dyn Policy,
        connection: &OwnedFd,
        number: usize,
        log: &Log,
    ) -> bool {
        let table = self.table();
        let Some(i) = policy.place(beside::now(), &table) else { return false };
        let handed = match self.line(i) {
            Some(line) => line.hand(connection.as_fd(), number),
            None => Ok(false),
        };
        table.handed(i, matches!(handed, Ok(true)));
        handed.unwrap_or_else(|e| {
            log!(log, Alert, None, "sendmsg() to a loop failed {}", Cause(&e));
            false
        })
    }
}
