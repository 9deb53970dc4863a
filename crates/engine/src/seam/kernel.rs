//! The engine's calls, without a simulated world.

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

/// The time of the monotonic clock.
#[inline]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// The monotonic clock's time in nanoseconds.
#[inline]
pub(crate) fn nanos() -> u64 {
    in_nanos(clock_gettime(ClockId::Monotonic))
}

/// As [`nanos`], by the coarse clock, which advances with the kernel's timer ticks.
#[inline]
pub(crate) fn coarse_nanos() -> u64 {
    in_nanos(clock_gettime(ClockId::MonotonicCoarse))
}

/// Nanoseconds since 1970; 0 for earlier times.
pub(crate) fn wall_nanos() -> u64 {
    let t = clock_gettime(ClockId::Realtime);
    if t.tv_sec < 0 { 0 } else { in_nanos(t) }
}

/// Fills a buffer with random bytes.
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

/// Blocks this thread for `time`, or computes all the while.
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

/// Whether a thread of the file pool stays for further jobs.
#[inline(always)]
pub(crate) fn worker_stays() -> bool {
    true
}

/// The flag that makes `openat2` answer from memory or fail.
#[inline(always)]
pub(crate) fn cached_flags() -> ResolveFlags {
    ResolveFlags::CACHED
}

/// Reads cached bytes of a file into the spare capacity of `buf`.
#[inline]
pub(crate) fn read_now(file: &File, buf: &mut Vec<u8>, offset: u64) -> io::Result<usize> {
    weir_sys::pagecache::read_nowait(file, buf, offset)
}

/// As [`read_now`], with space for the head of each frame.
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

/// The result of `look`: whether an address is a little behind another one modulo the page size.
#[inline(always)]
pub(crate) fn is_behind(look: impl FnOnce() -> bool) -> bool {
    look()
}

/// The result of `look`: whether bytes of a file are in memory.
#[inline(always)]
pub(crate) fn is_resident(look: impl FnOnce() -> bool) -> bool {
    look()
}

/// The result of `read`, a count that the kernel keeps of this thread.
#[inline(always)]
pub(crate) fn thread_count(read: impl FnOnce() -> Option<u64>) -> Option<u64> {
    read()
}

/// A timer for [`set_timer`]. It is readable once it has fired.
pub(crate) fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    Ok(timerfd_create(TimerfdClockId::Monotonic, flags)?)
}

/// Makes the timer fire once, after `nanos`, which is less than a second.
pub(crate) fn set_timer(timer: &Arc<OwnedFd>, nanos: u64) -> io::Result<()> {
    let in_time = Timespec { tv_sec: 0, tv_nsec: nanos as i64 };
    let once = Itimerspec { it_value: in_time, it_interval: Timespec::default() };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?;
    Ok(())
}

/// Sleeps for less than a second, or until `end` is readable, which it is when `is_over` holds.
pub(crate) fn pause(time: Duration, end: BorrowedFd<'_>, _: impl FnMut() -> bool) {
    let time = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    let _ = poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&time));
}

/// Waits in an epoll instance that has these listening sockets. It also has a descriptor that is
/// readable when `is_over` holds.
pub(crate) fn wait_at<'a>(
    instance: &OwnedFd,
    _: impl Iterator<Item = BorrowedFd<'a>>,
    _: impl FnMut() -> bool,
    events: &mut Vec<Event>,
) -> Result<usize, Errno> {
    epoll::wait(instance, rustix::buffer::spare_capacity(events), None)
}

/// Whether several Unix-domain sockets may listen at one address.
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

/// Registers an open socket with the simulated world. Nothing without it.
pub(crate) struct Known;

#[inline(always)]
pub(crate) fn opened(_: BorrowedFd<'_>) -> Known {
    Known
}
