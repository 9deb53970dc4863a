//! A thread beside a loop, which waits for it where a loop may not.
//!
//! Outside of the simulated world, such a thread is one like any other, and of this there is but a name for each thing. There it has its
//! turns as loops have them: before it would wait it says for what, and others go on until that is so.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::Event;
use rustix::net::SocketFlags;

use crate::clock;
use crate::seam::{self, Call};

/// The identity of a thread beside the calling loop.
#[derive(Clone, Copy, Debug)]
pub struct Beside(usize);

impl Beside {
    /// The loop of this thread is about to have one.
    #[must_use]
    pub fn this_loop() -> Beside {
        Beside(seam::beside())
    }

    /// This thread is the one.
    pub fn begin(self) {
        seam::begin_beside(self.0);
    }
}

/// The thread beside this loop looks again. Called after whatever else wakes it.
pub fn call() {
    seam::call_beside();
}

/// What the caller is about to wait for, for so long.
pub fn wait(time: Option<Duration>, is: impl FnMut() -> bool) {
    seam::wait(time, is);
}

/// As [`wait`], for less than a second: until `end` is readable, which is when `is_over`.
pub fn pause(time: Duration, end: BorrowedFd<'_>, is_over: impl FnMut() -> bool) {
    seam::pause(time, end, is_over);
}

/// As [`wait`], in the wait lists of these sockets. The epoll instance has them all, and a descriptor that is readable when
/// `is_over`. What is found is added to `events`.
///
/// # Errors
///
/// As epoll_wait(2).
pub fn wait_at<'a>(
    instance: &OwnedFd,
    sockets: impl Iterator<Item = BorrowedFd<'a>>,
    is_over: impl FnMut() -> bool,
    events: &mut Vec<Event>,
) -> rustix::io::Result<usize> {
    seam::wait_at(instance, sockets, is_over, events)
}

/// Accepts a connection.
///
/// # Errors
///
/// As accept4(2).
pub fn accept(socket: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    seam::at(Call::Accept)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let accepted = rustix::net::accept_with(socket, flags)?;
    seam::accepted(socket, &accepted);
    Ok(accepted)
}

/// The time now.
#[must_use]
pub fn now() -> Instant {
    clock::read()
}
