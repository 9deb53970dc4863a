//! Threads that accept for loops: one per loop, or one for all.
//!
//! Such a thread has a place in the kernel's wait list, like a thread that is blocked in accept(2).
//! It joins at the end when it begins to wait, and leaves when it is woken. It waits in its own
//! epoll instance. A blocked accept(2) ends only when the socket is shut down, and then for all
//! processes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use weir_balance::Policy;
use weir_engine::beside::{self, Beside};
use weir_log::{Cause, Log, log};

use super::cycle_shared::CycleShared;

/// The pause after accept failed for lack of descriptors, or a wait for lack of memory; nginx:
/// accept_mutex_delay.
const SHORTAGE: Duration = Duration::from_millis(500);
/// The pause when no loop can take a connection, or its handover socket is full.
const NO_LOOP: Duration = Duration::from_millis(5);
/// The most failed accepts that are kept until the loop counts them.
const FAILURES: usize = 1024;
/// The event number of the end notifier. Sockets have their addresses' numbers.
const END: u64 = u64::MAX;

/// An accepted connection, with the number of its address.
pub(super) type Accepted = (OwnedFd, usize);

/// A running acceptor thread.
pub(super) struct Acceptor {
    turnstile: Arc<Turnstile>,
    thread: Option<JoinHandle<()>>,
}

/// The shared state of a loop and its acceptor.
struct Turnstile {
    state: Mutex<AcceptorState>,
    opened: Condvar,
    end: OwnedFd,
}

#[derive(Default)]
struct AcceptorState {
    /// The loop sleeps, so the thread may wait for a connection.
    open: bool,
    ending: bool,
    ended: bool,
    accepted: VecDeque<Accepted>,
    /// The kernel woke only this thread for a connection that it could not accept.
    recheck: bool,
    /// Failed accepts that the loop has not counted yet.
    failed: Vec<Errno>,
}

/// What the thread does with connections.
pub(super) enum Duty {
    /// Gives them to one loop. It accepts only while that loop sleeps.
    ForLoop(usize),
    /// Hands them to the loops that the policy chooses.
    Place(Box<dyn Policy>),
}

struct AcceptorWork {
    turnstile: Arc<Turnstile>,
    cycle_shared: Arc<CycleShared>,
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
        cycle_shared: Arc<CycleShared>,
        log: Arc<Log>,
    ) -> io::Result<Acceptor> {
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let turnstile =
            Arc::new(Turnstile { state: Mutex::default(), opened: Condvar::new(), end });
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &turnstile.end, EventData::new_u64(END), EventFlags::IN)?;
        let mut work = AcceptorWork {
            turnstile: Arc::clone(&turnstile),
            cycle_shared,
            log,
            sockets,
            duty,
            epoll,
        };
        let builder = std::thread::Builder::new().name("weir: acceptor".into());
        let place = Beside::this_loop();
        let thread = builder.spawn(move || {
            place.begin();
            work.run();
            work.turnstile.lock().ended = true;
        })?;
        Ok(Acceptor { turnstile, thread: Some(thread) })
    }

    /// The loop is about to sleep, so the thread may accept for it. True if a connection waits already.
    pub(super) fn open(&self) -> bool {
        let mut state = self.turnstile.lock();
        if !state.open {
            state.open = true;
            self.turnstile.opened.notify_one();
            beside::call();
        }
        !state.accepted.is_empty()
    }

    /// The loop is awake. A thread that is not waiting yet must not begin to. Returns the failed
    /// accepts since the last call.
    pub(super) fn close(&self) -> Vec<Errno> {
        let mut state = self.turnstile.lock();
        state.open = false;
        std::mem::take(&mut state.failed)
    }

    /// Takes the next connection for the loop.
    pub(super) fn take(&self) -> Option<Accepted> {
        self.turnstile.lock().accepted.pop_front()
    }

    /// Ends the thread. Returns the connections that no loop has taken. The flag says whether the
    /// thread was woken for a connection that it could not accept.
    pub(super) fn end(mut self) -> (VecDeque<Accepted>, bool) {
        self.turnstile.lock().ending = true;
        self.turnstile.opened.notify_one();
        // A write fails only if the counter is full, which wakes the thread, too.
        let _ = rustix::io::write(&self.turnstile.end, &1u64.to_ne_bytes());
        beside::call();
        beside::wait(None, || self.turnstile.lock().ended);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported.
            let _ = thread.join();
        }
        let mut state = self.turnstile.lock();
        (std::mem::take(&mut state.accepted), state.recheck)
    }
}

impl AcceptorState {
    /// Bounded, for a loop in a long turn.
    fn note_failure(&mut self, e: Errno) {
        if self.failed.len() < FAILURES {
            self.failed.push(e);
        }
    }
}

impl Turnstile {
    fn lock(&self) -> MutexGuard<'_, AcceptorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the loop sleeps. False if the thread must end.
    fn pass(&self) -> bool {
        let shut = |state: &mut AcceptorState| !state.open && !state.ending;
        beside::wait(None, || !shut(&mut self.lock()));
        let state = self.lock();
        let state = self.opened.wait_while(state, shut).unwrap_or_else(PoisonError::into_inner);
        !state.ending
    }

    /// Sleeps for `time`, or until the thread must end.
    fn pause(&self, time: Duration) {
        beside::pause(time, self.end.as_fd(), || self.lock().ending);
    }
}

impl AcceptorWork {
    fn run(&mut self) {
        let mut events = Vec::with_capacity(self.sockets.len() + 1);
        let mut is_told = false;
        loop {
            if matches!(self.duty, Duty::ForLoop(_)) && !self.turnstile.pass() {
                return;
            }
            if let Err(e) = self.wait(&mut events) {
                if !std::mem::replace(&mut is_told, true) {
                    log!(
                        self.log,
                        Alert,
                        None,
                        "an acceptor cannot wait, trying again {}",
                        Cause(&e)
                    );
                }
                self.turnstile.pause(SHORTAGE);
                if self.turnstile.lock().ending {
                    return;
                }
                continue;
            }
            is_told = false;
            for event in events.drain(..) {
                let number = event.data.u64();
                if number == END {
                    return;
                }
                match self.accept(number as usize) {
                    Ok(Some(connection)) => self.deliver(connection, number as usize),
                    Ok(None) => {}
                    Err(e) => self.failed(e),
                }
                if matches!(self.duty, Duty::ForLoop(_)) {
                    break; // the next connection is for another loop
                }
            }
        }
    }

    /// Waits once in the kernel's wait list, at its end. Also after an error, the thread has left the
    /// list.
    fn wait(&self, events: &mut Vec<Event>) -> io::Result<()> {
        let add = |(number, socket): &(usize, Arc<OwnedFd>)| {
            let data = EventData::new_u64(*number as u64);
            epoll::add(&self.epoll, socket, data, EventFlags::IN | EventFlags::EXCLUSIVE)
        };
        let mut added = 0;
        let joined = self.sockets.iter().try_for_each(|socket| {
            add(socket)?;
            added += 1;
            Ok(())
        });
        let waited = joined.and_then(|()| {
            let sockets = self.sockets.iter().map(|(_, socket)| socket.as_fd());
            let is_over = || self.turnstile.lock().ending;
            beside::wait_at(&self.epoll, sockets, is_over, events)
        });
        for (_, socket) in self.sockets.iter().take(added) {
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
        self.turnstile.lock().note_failure(e);
        if !super::is_the_connections(e) {
            self.turnstile.lock().recheck = true;
            self.turnstile.pause(SHORTAGE);
            let mut state = self.turnstile.lock();
            // A thread that ends during its pause has not tried again.
            state.recheck = state.ending;
        }
    }

    fn deliver(&mut self, connection: OwnedFd, number: usize) {
        match &mut self.duty {
            Duty::ForLoop(row) => {
                let mut state = self.turnstile.lock();
                state.accepted.push_back((connection, number));
                state.open = false;
                drop(state);
                self.cycle_shared.notify(*row);
            }
            Duty::Place(policy) => {
                let mut connection = Some(connection);
                while let Some(waiting) = connection.take() {
                    if self.cycle_shared.hand(policy.as_mut(), &waiting, number, &self.log) {
                        return;
                    }
                    if self.turnstile.lock().ending {
                        self.turnstile.lock().accepted.push_back((waiting, number));
                        return;
                    }
                    self.turnstile.pause(NO_LOOP);
                    connection = Some(waiting);
                }
            }
        }
    }
}

impl CycleShared {
    /// Hands a connection to the loop that the policy chooses. False if no loop can take it now.
    fn hand(
        &self,
        policy: &mut dyn Policy,
        connection: &OwnedFd,
        number: usize,
        log: &Log,
    ) -> bool {
        let table = self.table();
        let Some(i) = policy.place(beside::now(), &table) else { return false };
        let handed = match self.handover(i) {
            Some(handover) => handover.hand(connection.as_fd(), number),
            None => Ok(false),
        };
        table.end_handover(i, matches!(handed, Ok(true)));
        handed.unwrap_or_else(|e| {
            log!(log, Alert, None, "sendmsg() to a loop failed {}", Cause(&e));
            false
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::path::Path;

    use rustix::event::{PollFd, PollFlags, poll};
    use weir_balance::SocketLayout;
    use weir_log::OpenLogs;

    use super::*;
    use crate::sockets::Sockets;

    /// A log whose lines arrive at the socket.
    fn log_to_socket() -> (UdpSocket, Arc<Log>) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let word = format!("syslog:server={}", socket.local_addr().unwrap());
        let sink = weir_log::sink(&[&word, "alert"], Path::new("/"), &OpenLogs::new()).unwrap();
        (socket, Arc::new(Log::new(vec![sink])))
    }

    #[test]
    fn an_acceptor_goes_on_after_a_wait_that_failed() {
        let (lines, log) = log_to_socket();
        let bind = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            (listener.local_addr().unwrap(), Arc::new(OwnedFd::from(listener)))
        };
        let [(address, first), (_, second)] = [bind(), bind()];
        let layout = SocketLayout::SocketEach;
        let cycle_shared = Arc::new(CycleShared::new(1, layout, &Sockets::default()).unwrap());
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let state = Mutex::new(AcceptorState { open: true, ..AcceptorState::default() });
        let turnstile = Arc::new(Turnstile { state, opened: Condvar::new(), end });
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        epoll::add(&epoll, &turnstile.end, EventData::new_u64(END), EventFlags::IN).unwrap();
        // The second socket cannot be added now.
        epoll::add(&epoll, &second, EventData::new_u64(1), EventFlags::empty()).unwrap();
        let waits_in = epoll.try_clone().unwrap();
        let mut work = AcceptorWork {
            turnstile: Arc::clone(&turnstile),
            cycle_shared: Arc::clone(&cycle_shared),
            log,
            sockets: vec![(0, first), (1, Arc::clone(&second))],
            duty: Duty::ForLoop(0),
            epoll,
        };
        let thread = std::thread::spawn(move || work.run());
        lines.recv(&mut [0; 200]).unwrap();
        epoll::delete(&waits_in, &second).unwrap();
        let _client = TcpStream::connect(address).unwrap();
        let notifier = cycle_shared.notifier(0).unwrap();
        poll(&mut [PollFd::new(notifier, PollFlags::IN)], None).unwrap();
        let mut state = turnstile.lock();
        assert!(state.accepted.pop_front().is_some_and(|(_, number)| number == 0));
        state.ending = true;
        drop(state);
        turnstile.opened.notify_one();
        thread.join().unwrap();
    }
}
