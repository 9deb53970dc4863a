//! `select(2)` over two sets of descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// The descriptors to wait for; after the wait, those that are ready.
pub struct SelectSet {
    read: libc::fd_set,
    write: libc::fd_set,
    bound: i32,
}

impl Default for SelectSet {
    fn default() -> Self {
        SelectSet { read: empty(), write: empty(), bound: 0 }
    }
}

impl SelectSet {
    /// Fails for a descriptor that `select` cannot watch: 1024 and above.
    pub fn fits(fd: BorrowedFd<'_>) -> io::Result<()> {
        if slot(fd).is_some() {
            return Ok(());
        }
        let text = "the maximum number of descriptors supported by select() is 1024";
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }

    /// Empties both sets.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Waits for `fd` to be readable. Descriptors that do not fit are ignored.
    pub fn want_read(&mut self, fd: BorrowedFd<'_>) {
        if let Some(n) = slot(fd) {
            // SAFETY: `n` is below FD_SETSIZE and the set is live and exclusively borrowed.
            unsafe { libc::FD_SET(n, &mut self.read) };
            self.bound = self.bound.max(n + 1);
        }
    }

    /// Waits for `fd` to be writable. Descriptors that do not fit are ignored.
    pub fn want_write(&mut self, fd: BorrowedFd<'_>) {
        if let Some(n) = slot(fd) {
            // SAFETY: as in `want_read`.
            unsafe { libc::FD_SET(n, &mut self.write) };
            self.bound = self.bound.max(n + 1);
        }
    }

    /// Waits at most `timeout`. Returns the number of ready entries; a signal ends the wait with 0.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        // Rounded up to milliseconds, as in the other backends, and at most a day, since some
        // kernels refuse long timeouts.
        let timeout = timeout.map(|t| t.min(Duration::from_secs(86_400)).as_nanos());
        let mut timeout = timeout.map(|nanos| {
            let millis = nanos.div_ceil(1_000_000) as i64;
            libc::timeval { tv_sec: millis / 1000, tv_usec: millis % 1000 * 1000 }
        });
        let timeout = timeout.as_mut().map_or(std::ptr::null_mut(), |t| t as *mut _);
        // SAFETY: both sets and the timeout (or null) are live; `bound` is at most FD_SETSIZE.
        let n = unsafe {
            let (read, write) = (&mut self.read, &mut self.write);
            libc::select(self.bound, read, write, std::ptr::null_mut(), timeout)
        };
        if n >= 0 {
            return Ok(n as usize);
        }
        let error = io::Error::last_os_error();
        self.clear();
        if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) }
    }

    /// Whether the last wait found `fd` readable.
    pub fn readable(&self, fd: BorrowedFd<'_>) -> bool {
        // SAFETY: the number is below FD_SETSIZE and the set is live.
        slot(fd).is_some_and(|n| unsafe { libc::FD_ISSET(n, &self.read) })
    }

    /// Whether the last wait found `fd` writable.
    pub fn writable(&self, fd: BorrowedFd<'_>) -> bool {
        // SAFETY: the number is below FD_SETSIZE and the set is live.
        slot(fd).is_some_and(|n| unsafe { libc::FD_ISSET(n, &self.write) })
    }
}

fn slot(fd: BorrowedFd<'_>) -> Option<i32> {
    Some(fd.as_raw_fd()).filter(|n| (0..libc::FD_SETSIZE as i32).contains(n))
}

fn empty() -> libc::fd_set {
    let mut set = MaybeUninit::uninit();
    // SAFETY: FD_ZERO initializes the whole set.
    unsafe {
        libc::FD_ZERO(set.as_mut_ptr());
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn only_the_ready_ones_remain() {
        let (reader, writer) = io::pipe().unwrap();
        let mut set = SelectSet::default();
        set.want_read(reader.as_fd());
        assert_eq!(set.wait(Some(Duration::ZERO)).unwrap(), 0);
        assert!(!set.readable(reader.as_fd()));
        rustix::io::write(&writer, b"x").unwrap();
        set.want_read(reader.as_fd());
        set.want_write(writer.as_fd());
        assert_eq!(set.wait(None).unwrap(), 2);
        assert!(set.readable(reader.as_fd()) && set.writable(writer.as_fd()));
        assert!(!set.writable(reader.as_fd()));
    }

    #[test]
    fn a_large_descriptor_is_refused() {
        let (reader, _writer) = io::pipe().unwrap();
        SelectSet::fits(reader.as_fd()).unwrap();
        // Raises the soft limit, so that a descriptor above the limit of `select` can exist.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let wide = rustix::process::Rlimit { current: limit.maximum, ..limit };
        if rustix::process::setrlimit(rustix::process::Resource::Nofile, wide).is_err() {
            return;
        }
        let Ok(high) = rustix::io::fcntl_dupfd_cloexec(&reader, 1500) else { return };
        let error = SelectSet::fits(high.as_fd()).unwrap_err();
        assert!(error.to_string().contains("1024"));
    }
}
