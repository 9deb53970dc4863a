//! A world in the kernel's place: see [`World`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;

use super::Call;
use crate::Arm;
use crate::backend::{Backend, Events, Kind, Token};
use crate::source::{Ready, Source};

/// What a thread of the file pool would do.
pub type Job = Box<dyn FnOnce() + Send>;

/// For how long a loop has nothing to do.
pub struct Rest<'a> {
    /// It looks for events by itself then.
    pub until: Option<u64>,
    /// It has looked for events since it last rested, and found none.
    pub looked: bool,
    /// Readable when there are events to be found; none if that cannot be told.
    pub news: Option<BorrowedFd<'a>>,
}

/// What the loops of a process live in. Of all its threads that are loops one runs at a time, the one that the world
/// lets return from [`World::begin`], [`World::rest`], [`World::block`] or [`World::call`]; so the order in which things
/// happen is the world's choice.
pub trait World: Send + Sync {
    /// The time since the world began, in nanoseconds.
    fn nanos(&self) -> u64;
    /// The seconds since 1970 at which the world began.
    fn secs(&self) -> i64;
    /// A loop is about to begin its first turn.
    fn begin(&self);
    /// A loop has done what there was, or has found nothing to do. It looks for events when the world says so; looking too
    /// often does no harm.
    fn rest(&self, rest: Rest<'_>);
    /// A handler holds its loop up, computing or not.
    fn block(&self, time: Duration, computes: bool);
    /// A loop is about to rest with so many tasks and sockets.
    fn holds(&self, tasks: usize, sockets: usize);
    /// The loop of this thread is gone.
    fn end(&self);
    /// A system call is about to be made: it takes its time, and may fail.
    fn call(&self, call: Call) -> Result<(), Errno>;
    /// A job of the file pool is to be done at a time that the world chooses.
    fn later(&self, job: Job);
    /// A number below `n`, which is not 0.
    fn below(&self, n: usize) -> usize;
    /// How many bytes a new connection of the server's has room for.
    fn room(&self) -> usize;
    /// For how many nanoseconds the news of a socket are kept from its loop.
    fn hold_back(&self) -> Option<u64>;
    /// This loop enters a listening socket's list of waiters.
    fn enlist(&self, arm: Arm);
    /// This loop leaves it.
    fn leave(&self);
    /// Whether this loop's wait reports the listening socket.
    fn is_told(&self) -> bool;
    /// This loop took the connection that waited longest.
    fn accepted(&self);
}

static WORLD: OnceLock<Box<dyn World>> = OnceLock::new();

/// Puts `world` in the kernel's place, for the rest of the process. The first one stays.
pub fn install(world: Box<dyn World>) {
    let _ = WORLD.set(world);
    // Its time counts from here.
    weir_sys::beginning::beginning();
}

fn world() -> Option<&'static dyn World> {
    WORLD.get().map(|world| &**world)
}

/// What the engine asks of the world, if there is one.
pub(crate) mod seam {
    use super::*;

    pub(crate) fn simulated_nanos() -> Option<u64> {
        world().map(World::nanos)
    }

    pub(crate) fn simulated_secs() -> i64 {
        world().map_or(0, World::secs)
    }

    pub(crate) fn at(call: Call) -> Result<(), Errno> {
        world().map_or(Ok(()), |world| world.call(call))
    }

    pub(crate) fn connected(socket: impl AsFd) {
        if let Some(world) = world() {
            let _ = sockopt::set_socket_send_buffer_size(socket, world.room());
        }
    }

    pub(crate) fn accepted(socket: impl AsFd) {
        if let Some(world) = world() {
            world.accepted();
        }
        connected(socket);
    }

    pub(crate) fn block(time: Duration, computes: bool) -> bool {
        world().is_some_and(|world| {
            world.block(time, computes);
            true
        })
    }

    pub(crate) fn is_simulated() -> bool {
        world().is_some()
    }

    pub(crate) fn later(job: Job) {
        if let Some(world) = world() {
            world.later(job);
        }
    }

    pub(crate) fn backend(real: Box<dyn Backend>) -> Box<dyn Backend> {
        match world() {
            Some(world) => {
                let (held, doors, found) = (Vec::new(), Vec::new(), Events::default());
                Box::new(Simulated { world, real, held, doors, found })
            }
            None => real,
        }
    }

    pub(crate) fn begin() {
        if let Some(world) = world() {
            world.begin();
        }
    }

    pub(crate) fn holds(what: impl FnOnce() -> (usize, usize)) {
        if let Some(world) = world() {
            let (tasks, sockets) = what();
            world.holds(tasks, sockets);
        }
    }

    pub(crate) fn end() {
        if let Some(world) = world() {
            world.end();
        }
    }
}

/// A backend that is asked what has come, and never sleeps: the world does that. What it reports comes in another
/// order, and some of it later. Of listening sockets the kernel is not asked, since whom it tells depends on who sleeps.
struct Simulated {
    world: &'static dyn World,
    real: Box<dyn Backend>,
    /// News that are kept back, and until when.
    held: Vec<(u64, Token, Ready)>,
    /// Listening sockets in whose list this loop is.
    doors: Vec<Token>,
    found: Events,
}

impl Simulated {
    /// What the kernel has to report, and what was kept back long enough.
    fn look(&mut self, events: &mut Events) -> io::Result<()> {
        self.found.clear();
        self.real.wait(Some(Duration::ZERO), &mut self.found)?;
        let now = self.world.nanos();
        for (token, ready) in self.found.streams.drain(..) {
            match self.world.hold_back() {
                Some(time) => self.held.push((now + time, token, ready)),
                None => events.streams.push((token, ready)),
            }
        }
        events.doors.append(&mut self.found.doors);
        if self.world.is_told() {
            events.doors.extend_from_slice(&self.doors);
        }
        self.held.retain(|(until, token, ready)| {
            let due = *until <= now;
            if due {
                events.streams.push((*token, *ready));
            }
            !due
        });
        Ok(())
    }

    fn shuffle<T>(&self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.world.below(i + 1));
        }
    }
}

impl Backend for Simulated {
    fn add(&mut self, source: &Rc<Source>) -> io::Result<()> {
        self.real.add(source)
    }

    fn report_room(&mut self, source: &Source) -> io::Result<()> {
        self.real.report_room(source)
    }

    fn remove(&mut self, source: &Source) {
        self.real.remove(source);
    }

    fn detach(&mut self, source: &Source) {
        self.real.detach(source);
    }

    fn watch(&mut self, fd: &Arc<OwnedFd>, token: Token, arm: Arm) -> io::Result<()> {
        if token.kind() != Kind::Listener {
            return self.real.watch(fd, token, arm);
        }
        self.doors.push(token);
        self.world.enlist(arm);
        Ok(())
    }

    fn unwatch(&mut self, fd: &OwnedFd, token: Token) {
        let before = self.doors.len();
        self.doors.retain(|door| *door != token);
        match before == self.doors.len() {
            true => self.real.unwatch(fd, token),
            false => self.world.leave(),
        }
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        self.real.news()
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Events) -> io::Result<()> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let until = timeout.map(|time| self.world.nanos().saturating_add(nanos(time)));
        for looked in [false].into_iter().chain(std::iter::repeat(true)) {
            let held = self.held.iter().map(|(until, ..)| *until).min();
            let (until, news) = (until.into_iter().chain(held).min(), self.real.news());
            self.world.rest(Rest { until, looked, news });
            self.look(events)?;
            if events.len() > 0 || until.is_some_and(|until| until <= self.world.nanos()) {
                break;
            }
        }
        self.shuffle(&mut events.streams);
        self.shuffle(&mut events.doors);
        Ok(())
    }
}
