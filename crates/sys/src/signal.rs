//! Signals that the process receives by system calls, never in a handler. sigprocmask(2),
//! sigtimedwait(2), signalfd(2).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A set of signals, by number.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

/// A signal that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The number of the signal.
    pub number: i32,
    /// The process that sent it; 0 is the kernel.
    pub sender: i32,
}

impl SignalSet {
    /// The set of these signals. Invalid numbers are ignored.
    pub fn new(numbers: &[i32]) -> SignalSet {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set it is given.
        let mut set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        };
        for number in numbers {
            // SAFETY: the set is initialised; a number out of range is refused.
            unsafe { libc::sigaddset(&mut set, *number) };
        }
        SignalSet(set)
    }

    /// Blocks these signals: they stay pending for [`SignalSet::wait`] or [`Descriptor`]. Children
    /// and threads that start later inherit this.
    pub fn block(&self) -> io::Result<()> {
        self.mask(libc::SIG_BLOCK)
    }

    /// Undoes [`SignalSet::block`].
    pub fn unblock(&self) -> io::Result<()> {
        self.mask(libc::SIG_UNBLOCK)
    }

    fn mask(&self, how: i32) -> io::Result<()> {
        // SAFETY: the set is initialised and the old mask is not asked for.
        match unsafe { libc::pthread_sigmask(how, &self.0, std::ptr::null_mut()) } {
            0 => Ok(()),
            e => Err(io::Error::from_raw_os_error(e)),
        }
    }

    /// Waits at most `timeout` for one of these blocked signals.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<Arrived>> {
        let limit = timeout.map(|t| libc::timespec {
            tv_sec: t.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the three pointers are valid for the call; a null limit means no limit.
        let number = unsafe { libc::sigtimedwait(&self.0, info.as_mut_ptr(), limit) };
        if number < 0 {
            let e = io::Error::last_os_error();
            return match e.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(e),
            };
        }
        // SAFETY: the kernel filled `info`, which was zeroed before. For a signal that was sent
        // by kill(2) or by a child's end si_pid is its process; other kinds leave it 0.
        let sender = unsafe { info.assume_init().si_pid() };
        Ok(Some(Arrived { number, sender }))
    }
}

impl std::fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Set")
    }
}

/// Restores the default action of a signal, even if the parent process ignored it.
pub fn restore(number: i32) -> io::Result<()> {
    set_action(number, libc::SIG_DFL)
}

/// Ignores a signal. Programs that are started later inherit this.
pub fn ignore(number: i32) -> io::Result<()> {
    set_action(number, libc::SIG_IGN)
}

fn set_action(number: i32, action: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: neither the default action nor none runs code of this process; callers give no other.
    if unsafe { libc::signal(number, action) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A descriptor that is readable while one of its signals is pending.
#[derive(Debug)]
pub struct Descriptor(Arc<OwnedFd>);

impl Descriptor {
    /// A non-blocking descriptor for a set of signals, which all threads must block.
    pub fn new(set: &SignalSet) -> io::Result<Descriptor> {
        let flags = libc::SFD_NONBLOCK | libc::SFD_CLOEXEC;
        // SAFETY: the set is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set.0, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made this descriptor and no other code knows it.
        Ok(Descriptor(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// The descriptor, for a loop that watches it.
    pub fn shared(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0)
    }

    /// Takes the next pending signal, if there is one.
    pub fn take(&self) -> io::Result<Option<Arrived>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is as large as said, and all bytes are valid in its type.
        let n = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if n != size as isize {
            let e = io::Error::last_os_error();
            return match e.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(e),
            };
        }
        // SAFETY: the kernel filled the whole structure, which is plain old data.
        let info = unsafe { info.assume_init() };
        Ok(Some(Arrived { number: info.ssi_signo as i32, sender: info.ssi_pid as i32 }))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signal for this thread alone: threads have their own pending signals.
    fn raise(number: i32) {
        // SAFETY: a thread sends itself a signal that it blocks.
        unsafe { libc::raise(number) };
    }

    #[test]
    fn a_blocked_signal_is_waited_for() {
        let set = SignalSet::new(&[libc::SIGUSR1, 1000]);
        set.block().unwrap();
        assert_eq!(set.wait(Some(Duration::ZERO)).unwrap(), None);
        raise(libc::SIGUSR1);
        let arrived = set.wait(None).unwrap().unwrap();
        assert_eq!(arrived.number, libc::SIGUSR1);
        assert_eq!(arrived.sender, std::process::id() as i32);
        set.unblock().unwrap();
    }

    #[test]
    fn a_descriptor_tells_number_and_sender() {
        let set = SignalSet::new(&[libc::SIGUSR2]);
        set.block().unwrap();
        let fd = Descriptor::new(&set).unwrap();
        assert_eq!(fd.take().unwrap(), None);
        raise(libc::SIGUSR2);
        let arrived = fd.take().unwrap().unwrap();
        assert_eq!(arrived.number, libc::SIGUSR2);
        assert_eq!(arrived.sender, std::process::id() as i32);
    }
}
