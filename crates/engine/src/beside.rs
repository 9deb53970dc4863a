//! Helper threads of a loop, which may block where the loop may not.
//!
//! Outside of the simulated world such a thread is an ordinary thread, and these functions are thin
//! wrappers. In the simulated world, the thread takes turns with the loops. Before it would block
//! it says what it waits for, and others run until that is so.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::Event;
use rustix::net::SocketFlags;

use crate::clock;
use crate::seam::{self, Call};

/// The identity of a helper thread of the calling loop.
#[derive(Clone, Copy, Debug)]
pub struct Beside(usize);

impl Beside {
    /// Reserves an identity for a thread that this loop is about to start.
    #[must_use]
    pub fn this_loop() -> Beside {
        Beside(seam::beside())
    }

    /// Called first by the helper thread itself.
    pub fn begin(self) {
        seam::begin_beside(self.0);
    }
}

/// Makes this loop's helper thread check again what it waits for. Called after whatever else wakes
/// it.
pub fn call() {
    seam::call_beside();
}

/// In the simulated world: waits until `is` holds, or until `time` has passed. The caller then
/// blocks by itself.
pub fn wait(time: Option<Duration>, is: impl FnMut() -> bool) {
    seam::wait(time, is);
}

/// As [`wait`], for less than a second. Ends early when `end` is readable, which it is when
/// `is_over` holds.
pub fn pause(time: Duration, end: BorrowedFd<'_>, is_over: impl FnMut() -> bool) {
    seam::pause(time, end, is_over);
}

/// Waits in the wait lists of these sockets and adds the events to `events`. All sockets are in the
/// epoll instance, with a descriptor that is readable when `is_over` holds.
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

/// The time at this moment.
#[must_use]
pub fn now() -> Instant {
    clock::read()
}
