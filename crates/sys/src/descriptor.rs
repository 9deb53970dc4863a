//! Descriptor numbers: replaces the file behind a number that is in use, and takes over descriptors
//! that another program left open for this one. dup3(2), execve(2).

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::{SocketType, sockopt};

/// Takes over sockets that the previous program left open at `execve`: listening sockets and
/// datagram sockets. Sets close-on-exec on each, and lets no call on it block. Other numbers are
/// ignored.
///
/// This works once; later calls return nothing. Sockets that this program made are recognized by
/// close-on-exec.
pub fn inherited_listeners(numbers: &BTreeSet<i32>) -> Vec<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Vec::new();
    }
    numbers.iter().filter(|n| **n > 2).filter_map(|n| adopt(*n).ok()).collect()
}

/// Takes over a listening or datagram socket by its number.
fn adopt(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: the number is borrowed for two questions to the kernel, which refuses one that is
    // not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let made_here = fcntl_getfd(borrowed)?.contains(FdFlags::CLOEXEC);
    let datagrams = || Ok::<_, io::Error>(sockopt::socket_type(borrowed)? == SocketType::DGRAM);
    if made_here || !(sockopt::socket_acceptconn(borrowed)? || datagrams()?) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // systemd leaves sockets that block. A loop would wait in accept() for the next client.
    fcntl_setfl(borrowed, fcntl_getfl(borrowed)? | OFlags::NONBLOCK)?;
    // SAFETY: it stays open over execve, which no socket does that Rust's libraries make, so no
    // code in this program owns the number; each is taken once, since the caller gives a set, once,
    // and the mark of those that were taken is set above.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Puts `with`'s open file behind `target`'s number and closes `with`.
///
/// This is atomic: a concurrent `write` on `target` goes to the old file or to the new one. The
/// number stays the same, so its holders need not know. `target` gets close-on-exec.
pub fn replace(target: BorrowedFd<'_>, with: OwnedFd) -> io::Result<()> {
    loop {
        // SAFETY: both numbers are open for the whole call, since `target` borrows an owner and
        // `with` is owned here. dup3 leaves `target`'s number open, so its owner stays right.
        let r = unsafe { libc::dup3(with.as_raw_fd(), target.as_raw_fd(), libc::O_CLOEXEC) };
        if r >= 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_sockets_are_taken_and_only_once() {
        let left_open = |fd: OwnedFd| std::os::fd::IntoRawFd::into_raw_fd(fd);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        fcntl_setfd(&listener, FdFlags::empty()).unwrap();
        let listener = left_open(listener.into());
        let own = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let numbers = [0, listener, own.as_raw_fd(), other.as_raw_fd(), 100_000, -1].into();
        let taken = inherited_listeners(&numbers);
        assert_eq!(taken.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>(), [listener]);
        assert!(fcntl_getfl(&taken[0]).unwrap().contains(OFlags::NONBLOCK));
        assert!(inherited_listeners(&numbers).is_empty());
    }
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;

    #[test]
    fn the_number_stays_and_the_file_changes() {
        let dir = std::env::temp_dir();
        let path = dir.join(format!("weir-sys-descriptor-{}", std::process::id()));
        let open = |p: &std::path::Path| {
            std::fs::OpenOptions::new().create(true).append(true).read(true).open(p)
        };
        let mut first = open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut second = open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let number = first.as_raw_fd();

        replace(first.as_fd(), second.try_clone().unwrap().into()).unwrap();
        first.write_all(b"late").unwrap();

        assert_eq!(first.as_raw_fd(), number);
        let mut text = String::new();
        second.rewind().unwrap();
        second.read_to_string(&mut text).unwrap();
        assert_eq!(text, "late");
    }
}
