//! The interface of a simulated world that replaces the kernel: see [`SimulatedWorld`].

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

/// How long a loop rests.
pub struct Rest<'a> {
    /// When the loop looks for events in any case.
    pub until: Option<u64>,
    /// The loop has looked for events since it last rested, and found none.
    pub looked: bool,
    /// A descriptor that is readable when there are events. None if the backend has none.
    pub news: Option<BorrowedFd<'a>>,
}

/// The simulated world in which all loops of a process run. Loop threads run one at a time. The
/// world chooses the one that returns from [`SimulatedWorld::begin`], [`SimulatedWorld::rest`],
/// [`SimulatedWorld::block`] or [`SimulatedWorld::call`]. So it decides the order of events.
pub trait SimulatedWorld: Send + Sync {
    /// The time since the world began, in nanoseconds.
    fn nanos(&self) -> u64;
    /// The seconds since 1970 at which the world began.
    fn secs(&self) -> i64;
    /// This thread becomes loop `number`, counted from the server's first loop.
    fn born(&self, number: usize);
    /// The number of this thread's loop.
    fn me(&self) -> usize;
    /// Whether the thread of loop `number` runs or waits for a processor.
    fn is_runnable(&self, number: usize) -> bool;
    /// The CPU time of the thread of loop `number`, in nanoseconds.
    fn has_used(&self, number: usize) -> u64;
    /// Runs `job` after this many nanoseconds, whatever loops do.
    fn after(&self, nanos: u64, job: Job);
    /// Reserves a number for a helper thread of this thread's loop.
    fn beside(&self) -> usize;
    /// This thread is the helper thread with that number.
    fn begin_beside(&self, number: usize);
    /// Makes this loop's helper thread check again what it waits for.
    fn call_beside(&self);
    /// This thread waits until `until`, until it is called, or until the thread that it depends on
    /// has ended.
    fn wait(&self, until: Option<u64>);
    /// A loop is about to run its first turn.
    fn begin(&self);
    /// A loop has no work left, or has found no events. It looks for events again when this
    /// returns. It may return early.
    fn rest(&self, rest: Rest<'_>);
    /// A handler blocks its loop, or computes.
    fn block(&self, time: Duration, computes: bool);
    /// A loop is about to rest with this many tasks and sockets.
    fn holds(&self, tasks: usize, sockets: usize);
    /// This thread has ended, with all that it held.
    fn end(&self);
    /// A system call is about to be made. It takes time and may fail.
    fn call(&self, call: Call) -> Result<(), Errno>;
    /// Runs a job of the file pool at a time of the world's choice.
    fn later(&self, job: Job);
    /// A random number below `n`, which is not 0.
    fn below(&self, n: usize) -> usize;
    /// A random number, which depends only on this thread and on how often it has called this.
    fn any(&self) -> u64;
    /// The send buffer of a new connection of the server, in bytes.
    fn send_buffer(&self) -> usize;
    /// How long an event is held back from its loop, in nanoseconds.
    fn hold_back(&self) -> Option<u64>;
    /// Adds this thread to the wait list of a listening socket. Returns the list's number, or none
    /// if the kernel has to report the socket.
    fn enlist(&self, socket: BorrowedFd<'_>, arm: Arm) -> Option<usize>;
    /// Removes this thread from the wait list.
    fn leave(&self, list: usize);
    /// Whether this thread's wait reports the listening socket.
    fn reports(&self, list: usize) -> bool;
    /// This thread has accepted the connection that had waited longest.
    fn accepted(&self, socket: BorrowedFd<'_>);
}

static WORLD: OnceLock<Box<dyn SimulatedWorld>> = OnceLock::new();

thread_local! {
    /// Initialized first in each thread, so it is dropped last.
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

/// Installs `world` for the rest of the process. Only the first call has an effect.
pub fn install(world: Box<dyn SimulatedWorld>) {
    let _ = WORLD.set(world);
    // The world's time begins here.
    weir_sys::beginning::beginning();
}

pub(crate) fn world() -> Option<&'static dyn SimulatedWorld> {
    WORLD.get().map(|world| &**world)
}

/// The sockets of all loops.
static SOCKETS: Mutex<Sockets> = Mutex::new(Sockets { by_fd: BTreeMap::new(), opened: 0 });

struct Sockets {
    /// Each socket's loop, and how many sockets had been opened before it.
    by_fd: BTreeMap<RawFd, (usize, u64)>,
    opened: u64,
}

/// The sockets of these loops in the order in which they were opened. Descriptor numbers would not
/// repeat from run to run, since they depend on what else the process opens.
pub fn sockets_of(loops: &Range<usize>) -> Vec<RawFd> {
    let sockets = SOCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    let theirs = sockets.by_fd.iter().filter(|(_, (owner, _))| loops.contains(owner));
    let mut theirs: Vec<(u64, RawFd)> = theirs.map(|(fd, (_, before))| (*before, *fd)).collect();
    theirs.sort_unstable();
    theirs.into_iter().map(|(_, fd)| fd).collect()
}

/// The engine's calls, each of which asks the world first if there is one.
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
            // The socket counts as this loop's until a loop takes it.
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

    /// Jobs run when the world chooses, without threads of their own.
    pub(crate) fn start_worker(thread: Builder, work: Job) -> io::Result<()> {
        match world() {
            Some(world) => world.later(work),
            None => kernel::start_worker(thread, work)?,
        }
        Ok(())
    }

    /// The world runs jobs one by one.
    pub(crate) fn worker_stays() -> bool {
        world().is_none()
    }

    /// [`at`] decides whether an operation has to wait, not the kernel.
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

    /// Addresses differ from run to run, but a run must be repeatable.
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

    /// The entry of a socket in the list of the loops' sockets.
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
            // Another loop may have taken the socket over.
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
