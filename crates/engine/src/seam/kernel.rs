//! The kernel as it is.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::ResolveFlags;
use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, clock_gettime,
    timerfd_create, timerfd_settime,
};
use weir_sys::pagecache::Framing;

use super::{Call, Job};

/// The time by the monotonic clock.
#[inline]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// The same in nanoseconds since the system started.
#[inline]
pub(crate) fn nanos() -> u64 {
    in_nanos(clock_gettime(ClockId::Monotonic))
}

/// As [`nanos`], by the clock that the kernel moves on at its ticks.
#[inline]
pub(crate) fn coarse_nanos() -> u64 {
    in_nanos(clock_gettime(ClockId::MonotonicCoarse))
}

/// The nanoseconds since 1970; earlier times are 0.
pub(crate) fn wall_nanos() -> u64 {
    let t = clock_gettime(ClockId::Realtime);
    if t.tv_sec < 0 { 0 } else { in_nanos(t) }
}

/// Bytes that cannot be foreseen.
pub(crate) fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += getrandom(rest, GetRandomFlags::empty())?;
    }
    Ok(())
}

#[inline]
fn in_nanos(time: Timespec) -> u64 {
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Blocks this thread for so long, or computes.
#[allow(clippy::disallowed_methods, reason = "a handler that blocks is what was asked for")]
pub(crate) fn block(time: Duration, computes: bool) {
    if !computes {
        return std::thread::sleep(time);
    }
    let start = instant();
    while instant().saturating_duration_since(start) < time {
        std::hint::spin_loop();
    }
}

/// Starts a thread of the file pool.
pub(crate) fn start_worker(thread: Builder, work: Job) -> io::Result<()> {
    thread.spawn(work).map(drop)
}

/// Whether a thread of the file pool takes another job after the first.
#[inline(always)]
pub(crate) fn worker_stays() -> bool {
    true
}

/// How `openat2` is told to answer from memory or not at all.
#[inline(always)]
pub(crate) fn cached_flags() -> ResolveFlags {
    ResolveFlags::CACHED
}

/// Reads what is in memory of a file into the spare capacity of `buf`.
#[inline]
pub(crate) fn read_now(file: &File, buf: &mut Vec<u8>, offset: u64) -> io::Result<usize> {
    weir_sys::pagecache::read_nowait(file, buf, offset)
}

/// The same, cut into frames.
#[inline]
pub(crate) fn read_framed_now(
    file: &File,
    buf: &mut Vec<u8>,
    offset: u64,
    most: usize,
    framing: Framing,
) -> io::Result<usize> {
    weir_sys::pagecache::read_framed_nowait(file, buf, offset, most, framing)
}

/// Whether a place in memory is a little behind another, which `look` compares.
#[inline(always)]
pub(crate) fn is_behind(look: impl FnOnce() -> bool) -> bool {
    look()
}

/// Whether bytes of a file are in memory, which `look` asks of the kernel.
#[inline(always)]
pub(crate) fn is_resident(look: impl FnOnce() -> bool) -> bool {
    look()
}

/// What `read` finds in the kernel's counts of this thread.
#[inline(always)]
pub(crate) fn thread_count(read: impl FnOnce() -> Option<u64>) -> Option<u64> {
    read()
}

/// A timer for [`set_timer`], readable once it has fired.
pub(crate) fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    Ok(timerfd_create(TimerfdClockId::Monotonic, flags)?)
}

/// The timer fires once, after so many nanoseconds below a second.
pub(crate) fn set_timer(timer: &Arc<OwnedFd>, nanos: u64) -> io::Result<()> {
    let in_time = Timespec { tv_sec: 0, tv_nsec: nanos as i64 };
    let once = Itimerspec { it_value: in_time, it_interval: Timespec::default() };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?;
    Ok(())
}

/// Sleeps for less than a second, or until `end` is readable, which is when `is_over`.
pub(crate) fn pause(time: Duration, end: BorrowedFd<'_>, _: impl FnMut() -> bool) {
    let time = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    let _ = poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&time));
}

/// Waits in an epoll instance that has these listening sockets, and a descriptor that is readable when `is_over`.
pub(crate) fn wait_at<'a>(
    instance: &OwnedFd,
    _: impl Iterator<Item = BorrowedFd<'a>>,
    _: impl FnMut() -> bool,
    events: &mut Vec<Event>,
) -> Result<usize, Errno> {
    epoll::wait(instance, rustix::buffer::spare_capacity(events), None)
}

/// Whether Unix-domain sockets may listen at one address together.
#[inline(always)]
pub(crate) fn unix_sockets_share_addresses() -> bool {
    false
}

#[inline(always)]
pub(crate) fn at(_: Call) -> Result<(), Errno> {
    Ok(())
}

#[inline(always)]
pub(crate) fn connected(_: impl AsFd) {}

#[inline(always)]
pub(crate) fn accepted(_: impl AsFd, _: impl AsFd) {}

#[inline(always)]
pub(crate) fn born(_: usize) {}

#[inline(always)]
pub(crate) fn begin() {}

#[inline(always)]
pub(crate) fn me() -> usize {
    0
}

#[inline(always)]
pub(crate) fn is_runnable(_: usize) -> Option<bool> {
    None
}

#[inline(always)]
pub(crate) fn has_used(_: usize) -> Option<Duration> {
    None
}

#[inline(always)]
pub(crate) fn beside() -> usize {
    0
}

#[inline(always)]
pub(crate) fn begin_beside(_: usize) {}

#[inline(always)]
pub(crate) fn call_beside() {}

#[inline(always)]
pub(crate) fn wait(_: Option<Duration>, _: impl FnMut() -> bool) {}

#[inline(always)]
pub(crate) fn holds(_: impl FnOnce() -> (usize, usize)) {}

/// A socket. No list is kept of them.
pub(crate) struct Known;

#[inline(always)]
pub(crate) fn opened(_: BorrowedFd<'_>) -> Known {
    Known
}
