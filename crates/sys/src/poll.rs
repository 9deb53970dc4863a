//! `poll(2)` over a reused list of descriptors.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// The events to wait for, or the events that were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polled(libc::c_short);

impl Polled {
    /// No events.
    pub const NONE: Polled = Polled(0);
    /// `POLLIN`
    pub const READ: Polled = Polled(libc::POLLIN);
    /// `POLLOUT`
    pub const WRITE: Polled = Polled(libc::POLLOUT);
    /// `POLLRDHUP`: the peer will send no more.
    pub const RDHUP: Polled = Polled(libc::POLLRDHUP);
    /// `POLLPRI`: reported by some files of `/proc` when they change.
    pub const PRIORITY: Polled = Polled(libc::POLLPRI);
    /// `POLLHUP`, always reported.
    pub const HUP: Polled = Polled(libc::POLLHUP);
    /// `POLLERR`, always reported, also for a descriptor that is not open.
    pub const ERR: Polled = Polled(libc::POLLERR);

    /// The union of both.
    pub const fn and(self, other: Polled) -> Polled {
        Polled(self.0 | other.0)
    }

    /// The kernel's bits, which are the same for epoll.
    pub const fn bits(self) -> u16 {
        self.0 as u16
    }

    /// Whether `self` has any of `of`.
    pub const fn any(self, of: Polled) -> bool {
        self.0 & of.0 != 0
    }
}

/// A list of descriptors to wait for.
#[derive(Default)]
pub struct PollSet {
    fds: Vec<libc::pollfd>,
}

impl PollSet {
    /// Empties the list and keeps its allocation.
    pub fn clear(&mut self) {
        self.fds.clear();
    }

    /// Adds a descriptor. If it is not open, it is reported as [`Polled::ERR`].
    pub fn push(&mut self, fd: RawFd, interest: Polled) {
        self.fds.push(libc::pollfd { fd, events: interest.0, revents: 0 });
    }

    /// Waits at most `timeout`, rounded up to milliseconds. A signal ends the wait early without
    /// results.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let millis = timeout
            .map_or(-1, |t| i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        // SAFETY: the pointer and the length are those of a live vector of `pollfd`; the kernel
        // checks each descriptor and writes only `revents`.
        let n =
            unsafe { libc::poll(self.fds.as_mut_ptr(), self.fds.len() as libc::nfds_t, millis) };
        if n >= 0 {
            return Ok(n as usize);
        }
        self.fds.iter_mut().for_each(|fd| fd.revents = 0);
        match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => Ok(0),
            e => Err(e),
        }
    }

    /// The results of the last wait, in the order of [`PollSet::push`].
    pub fn results(&self) -> impl Iterator<Item = Polled> + '_ {
        self.fds.iter().map(|fd| match fd.revents {
            bits if bits & libc::POLLNVAL != 0 => Polled::ERR,
            bits => Polled(bits),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_written_pipe_is_readable_and_a_closed_one_hangs_up() {
        let (reader, writer) = io::pipe().unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        let mut set = PollSet::default();
        set.push(reader.as_raw_fd(), Polled::READ);
        assert_eq!(set.wait(None).unwrap(), 1);
        assert!(set.results().all(|r| r.any(Polled::READ) && !r.any(Polled::HUP)));
        drop(writer);
        assert_eq!(set.wait(Some(Duration::ZERO)).unwrap(), 1);
        assert!(set.results().all(|r| r.any(Polled::HUP)));
    }

    #[test]
    fn a_descriptor_that_is_not_open_is_an_error_not_a_failure() {
        let mut set = PollSet::default();
        set.push(i32::MAX - 7, Polled::READ);
        assert_eq!(set.wait(Some(Duration::ZERO)).unwrap(), 1);
        assert!(set.results().all(|r| r.any(Polled::ERR)));
    }
}
