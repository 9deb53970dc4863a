//! A world in the kernel's place: see [`SimulatedWorld`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use weir_sys::pagecache::Framing;

use super::Call;
pub use super::Job;
use crate::Arm;

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
/// lets return from [`SimulatedWorld::begin`], [`SimulatedWorld::rest`], [`SimulatedWorld::block`] or [`SimulatedWorld::call`]; so the order in which things
/// happen is the world's choice.
pub trait SimulatedWorld: Send + Sync {
    /// The time since the world began, in nanoseconds.
    fn nanos(&self) -> u64;
    /// The seconds since 1970 at which the world began.
    fn secs(&self) -> i64;
    /// This thread is to be that loop's, counted from the server's first.
    fn born(&self, number: usize);
    /// Which one it is.
    fn me(&self) -> usize;
    /// Whether that loop's thread has a processor or waits for one.
    fn is_runnable(&self, number: usize) -> bool;
    /// For how many nanoseconds that loop's thread has had a processor.
    fn has_used(&self, number: usize) -> u64;
    /// After so many nanoseconds this is done, whatever loops do.
    fn after(&self, nanos: u64, job: Job);
    /// A thread beside the loop of this one is about to begin: a number for it.
    fn beside(&self) -> usize;
    /// This thread is the one that was given that number.
    fn begin_beside(&self, number: usize);
    /// The thread beside this loop looks again.
    fn call_beside(&self);
    /// This thread has nothing to do until then, or until it is called, or until the thread that it waits for is gone.
    fn wait(&self, until: Option<u64>);
    /// A loop is about to begin its first turn.
    fn begin(&self);
    /// A loop has done what there was, or has found nothing to do. It looks for events when the world says so; looking too
    /// often does no harm.
    fn rest(&self, rest: Rest<'_>);
    /// A handler holds its loop up, computing or not.
    fn block(&self, time: Duration, computes: bool);
    /// A loop is about to rest with so many tasks and sockets.
    fn holds(&self, tasks: usize, sockets: usize);
    /// This thread is gone, and all that it held.
    fn end(&self);
    /// A system call is about to be made: it takes its time, and may fail.
    fn call(&self, call: Call) -> Result<(), Errno>;
    /// A job of the file pool is to be done at a time that the world chooses.
    fn later(&self, job: Job);
    /// A number below `n`, which is not 0.
    fn below(&self, n: usize) -> usize;
    /// Any number; which one depends on this thread, and on how often it has asked.
    fn any(&self) -> u64;
    /// The size of the send buffer of a new connection of the server, in bytes.
    fn send_buffer(&self) -> usize;
    /// For how many nanoseconds the news of a socket are kept from its loop.
    fn hold_back(&self) -> Option<u64>;
    /// This thread enters a listening socket's list of waiters: which one that is, if it is the world's at all.
    fn enlist(&self, socket: BorrowedFd<'_>, arm: Arm) -> Option<usize>;
    /// This thread leaves it.
    fn leave(&self, list: usize);
    /// Whether this thread's wait reports the listening socket.
    fn reports(&self, list: usize) -> bool;
    /// This thread took the connection that waited longest.
    fn accepted(&self, socket: BorrowedFd<'_>);
}

static WORLD: OnceLock<Box<dyn SimulatedWorld>> = OnceLock::new();

thread_local! {
    /// The first that a thread has is the last to go.
    static LAST: Last = const { Last };
}

struct Last;

impl Drop for Last {
    fn drop(&mut self) {
        if let Some(world) = world() {
            world.end();
        }
    }
}

/// Puts `world` in the kernel's place, for the rest of the process. The first one stays.
pub fn install(world: Box<dyn SimulatedWorld>) {
    let _ = WORLD.set(world);
    // Its time counts from here.
    weir_sys::beginning::beginning();
}

pub(crate) fn world() -> Option<&'static dyn SimulatedWorld> {
    WORLD.get().map(|world| &**world)
}

/// Which loop has which socket.
static SOCKETS: Mutex<Sockets> = Mutex::new(Sockets { by_fd: BTreeMap::new(), opened: 0 });

struct Sockets {
    /// A socket's loop, and how many sockets were opened before it.
    by_fd: BTreeMap<RawFd, (usize, u64)>,
    opened: u64,
}

/// The sockets of these loops, in the order in which they were opened. Their numbers depend on what
/// else the process opens at the time, so these would not give the same course twice.
pub fn sockets_of(loops: &Range<usize>) -> Vec<RawFd> {
    let sockets = SOCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    let theirs = sockets.by_fd.iter().filter(|(_, (owner, _))| loops.contains(owner));
    let mut theirs: Vec<(u64, RawFd)> = theirs.map(|(fd, (_, before))| (*before, *fd)).collect();
    theirs.sort_unstable();
    theirs.into_iter().map(|(_, fd)| fd).collect()
}

/// What the engine asks of the world, if there is one.
pub(crate) mod seam {
    use std::fs::File;
    use std::io;
    use std::thread::Builder;
    use std::time::Instant;

    use rustix::buffer::spare_capacity;
    use rustix::event::epoll::{self, Event};
    use rustix::event::{EventfdFlags, Timespec, eventfd};
    use rustix::fs::ResolveFlags;

    use super::super::kernel;
    use super::*;

    pub(crate) fn instant() -> Instant {
        world().map_or_else(kernel::instant, |world| {
            weir_sys::beginning::beginning() + Duration::from_nanos(world.nanos())
        })
    }

    pub(crate) fn nanos() -> u64 {
        world().map_or_else(kernel::nanos, SimulatedWorld::nanos)
    }

    pub(crate) fn coarse_nanos() -> u64 {
        world().map_or_else(kernel::coarse_nanos, SimulatedWorld::nanos)
    }

    pub(crate) fn wall_nanos() -> u64 {
        world().map_or_else(kernel::wall_nanos, |world| {
            world.secs() as u64 * 1_000_000_000 + world.nanos()
        })
    }

    pub(crate) fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
        let Some(world) = world() else { return kernel::fill_random(bytes) };
        for word in bytes.chunks_mut(8) {
            word.iter_mut().zip(world.any().to_ne_bytes()).for_each(|(to, from)| *to = from);
        }
        Ok(())
    }

    pub(crate) fn at(call: Call) -> Result<(), Errno> {
        world().map_or(Ok(()), |world| world.call(call))
    }

    pub(crate) fn connected(socket: impl AsFd) {
        if let Some(world) = world() {
            let _ = sockopt::set_socket_send_buffer_size(socket, world.send_buffer());
        }
    }

    pub(crate) fn accepted(from: impl AsFd, socket: impl AsFd) {
        if let Some(world) = world() {
            world.accepted(from.as_fd());
            // Until it is some loop's, it is this one's.
            std::mem::forget(opened(socket.as_fd()));
        }
        connected(socket);
    }

    pub(crate) fn block(time: Duration, computes: bool) {
        match world() {
            Some(world) => world.block(time, computes),
            None => kernel::block(time, computes),
        }
    }

    /// A worker is a job of the world's, which chooses when it runs.
    pub(crate) fn start_worker(thread: Builder, work: Job) -> io::Result<()> {
        match world() {
            Some(world) => world.later(work),
            None => kernel::start_worker(thread, work)?,
        }
        Ok(())
    }

    /// The world orders jobs one by one.
    pub(crate) fn worker_stays() -> bool {
        world().is_none()
    }

    /// Calls are made to wait by [`at`], not by the kernel.
    pub(crate) fn cached_flags() -> ResolveFlags {
        world().map_or_else(kernel::cached_flags, |_| ResolveFlags::empty())
    }

    pub(crate) fn read_now(file: &File, buf: &mut Vec<u8>, offset: u64) -> io::Result<usize> {
        match world() {
            Some(_) => Ok(rustix::io::pread(file, spare_capacity(buf), offset)?),
            None => kernel::read_now(file, buf, offset),
        }
    }

    pub(crate) fn read_framed_now(
        file: &File,
        buf: &mut Vec<u8>,
        offset: u64,
        most: usize,
        framing: Framing,
    ) -> io::Result<usize> {
        if world().is_none() {
            return kernel::read_framed_now(file, buf, offset, most, framing);
        }
        let mut read = Vec::with_capacity(most);
        rustix::io::pread(file, spare_capacity(&mut read), offset)?;
        read.truncate(most);
        for body in read.chunks(framing.body) {
            buf.resize(buf.len() + framing.head, 0);
            buf.extend_from_slice(body);
        }
        Ok(read.len())
    }

    /// Addresses differ from process to process, a course does not.
    pub(crate) fn is_behind(look: impl FnOnce() -> bool) -> bool {
        world().map_or_else(look, |world| world.below(4) == 0)
    }

    pub(crate) fn is_resident(look: impl FnOnce() -> bool) -> bool {
        at(Call::FromMemory).is_ok() && (world().is_some() || look())
    }

    pub(crate) fn thread_count(read: impl FnOnce() -> Option<u64>) -> Option<u64> {
        world().is_none().then(read).flatten()
    }

    pub(crate) fn timer() -> io::Result<OwnedFd> {
        match world() {
            Some(_) => Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            None => kernel::timer(),
        }
    }

    pub(crate) fn set_timer(timer: &Arc<OwnedFd>, nanos: u64) -> io::Result<()> {
        let Some(world) = world() else { return kernel::set_timer(timer, nanos) };
        let timer = Arc::clone(timer);
        let fire = move || {
            let _ = rustix::io::write(&timer, &1u64.to_ne_bytes());
        };
        world.after(nanos, Box::new(fire));
        Ok(())
    }

    pub(crate) fn pause(time: Duration, end: BorrowedFd<'_>, is_over: impl FnMut() -> bool) {
        match world() {
            Some(_) => wait(Some(time), is_over),
            None => kernel::pause(time, end, is_over),
        }
    }

    pub(crate) fn unix_sockets_share_addresses() -> bool {
        world().is_some()
    }

    pub(crate) fn born(number: usize) {
        LAST.with(|_| {});
        if let Some(world) = world() {
            world.born(number);
        }
    }

    pub(crate) fn begin() {
        if let Some(world) = world() {
            world.begin();
        }
    }

    pub(crate) fn me() -> usize {
        world().map_or(0, SimulatedWorld::me)
    }

    pub(crate) fn is_runnable(number: usize) -> Option<bool> {
        world().map(|world| world.is_runnable(number))
    }

    pub(crate) fn has_used(number: usize) -> Option<Duration> {
        world().map(|world| Duration::from_nanos(world.has_used(number)))
    }

    pub(crate) fn beside() -> usize {
        world().map_or(0, SimulatedWorld::beside)
    }

    pub(crate) fn begin_beside(number: usize) {
        LAST.with(|_| {});
        if let Some(world) = world() {
            world.begin_beside(number);
        }
    }

    pub(crate) fn call_beside() {
        if let Some(world) = world() {
            world.call_beside();
        }
    }

    pub(crate) fn wait(time: Option<Duration>, mut is: impl FnMut() -> bool) {
        let Some(world) = world() else { return };
        let until = time.map(|time| world.nanos().saturating_add(super::nanos(time)));
        while !is() && until.is_none_or(|until| world.nanos() < until) {
            world.wait(until);
        }
    }

    pub(crate) fn wait_at<'a>(
        instance: &OwnedFd,
        sockets: impl Iterator<Item = BorrowedFd<'a>>,
        mut is_over: impl FnMut() -> bool,
        events: &mut Vec<Event>,
    ) -> Result<usize, Errno> {
        let Some(world) = world() else {
            return kernel::wait_at(instance, sockets, is_over, events);
        };
        let lists = sockets.filter_map(|socket| world.enlist(socket, Arm::Exclusive));
        let lists: Vec<usize> = lists.collect();
        wait(None, || is_over() || lists.iter().any(|list| world.reports(*list)));
        lists.iter().for_each(|list| world.leave(*list));
        epoll::wait(instance, spare_capacity(events), Some(&Timespec::default()))
    }

    /// A socket is in the list of the loops' sockets.
    pub(crate) struct Known(RawFd, usize);

    pub(crate) fn opened(socket: BorrowedFd<'_>) -> Known {
        let known = Known(socket.as_raw_fd(), me());
        if world().is_some() {
            let mut sockets = SOCKETS.lock().unwrap_or_else(PoisonError::into_inner);
            let before = sockets.opened;
            sockets.opened += 1;
            sockets.by_fd.insert(known.0, (known.1, before));
        }
        known
    }

    impl Drop for Known {
        fn drop(&mut self) {
            let mut sockets = SOCKETS.lock().unwrap_or_else(PoisonError::into_inner);
            // Another loop may have taken it over.
            if sockets.by_fd.get(&self.0).is_some_and(|(owner, _)| *owner == self.1) {
                sockets.by_fd.remove(&self.0);
            }
        }
    }

    pub(crate) fn holds(what: impl FnOnce() -> (usize, usize)) {
        if let Some(world) = world() {
            let (tasks, sockets) = what();
            world.holds(tasks, sockets);
        }
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
