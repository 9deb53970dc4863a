//! What an error says of the server that was spoken to.

use std::io;

use rustix::io::Errno;
use weir_engine::Unbound;

/// This process or its system lacks something, descriptors, memory or watches, or the address that it is to speak from:
/// asking another server takes the same.
pub fn is_ours(error: &io::Error) -> bool {
    if unbound(error).is_some() {
        return true;
    }
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::NOSPC];
    Errno::from_io_error(error).is_some_and(|errno| lacking.contains(&errno))
}

/// There is no free port, or no address of our own, for this server; there may be one for another.
pub fn is_without_way(error: &io::Error) -> bool {
    let ways = [Errno::ADDRINUSE, Errno::ADDRNOTAVAIL];
    Errno::from_io_error(error).is_some_and(|errno| ways.contains(&errno))
}

/// The address that was to be spoken from, where that cannot be had.
pub fn unbound(error: &io::Error) -> Option<&Unbound> {
    error.get_ref()?.downcast_ref()
}

/// The kernel says that nobody answers, and no more. EAGAIN is a Unix socket's whose queue is full.
pub fn is_usual(error: &io::Error) -> bool {
    let usual = [
        Errno::CONNRESET,
        Errno::NOTCONN,
        Errno::TIMEDOUT,
        Errno::CONNREFUSED,
        Errno::NETDOWN,
        Errno::NETUNREACH,
        Errno::HOSTDOWN,
        Errno::HOSTUNREACH,
        Errno::AGAIN,
    ];
    Errno::from_io_error(error).is_some_and(|errno| usual.contains(&errno))
}

/// A deadline of weir's own passed, not one of the kernel's.
pub fn is_late(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none()
}

/// ETIMEDOUT: nginx shows it with time-outs of its own.
pub fn late() -> io::Error {
    Errno::TIMEDOUT.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_not_the_kernels() {
        assert!(is_late(&io::ErrorKind::TimedOut.into()));
        assert!(!is_late(&late()) && !is_late(&io::ErrorKind::InvalidData.into()));
    }

    #[test]
    fn what_is_lacking_here_is_ours() {
        assert!(is_ours(&Errno::MFILE.into()) && is_ours(&Errno::NOSPC.into()));
        assert!(!is_ours(&Errno::CONNREFUSED.into()));
        assert!(is_usual(&Errno::CONNREFUSED.into()) && !is_usual(&Errno::NOENT.into()));
        assert!(!is_ours(&io::ErrorKind::TimedOut.into()));
    }
}
