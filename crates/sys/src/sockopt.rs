//! Options of listening sockets that rustix does not name. tcp(7).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Wakes the acceptor only when a new connection has data, waiting `seconds` for it at most;
/// 0 turns it off. TCP_DEFER_ACCEPT.
pub fn set_defer_accept(socket: BorrowedFd<'_>, seconds: i32) -> io::Result<()> {
    set_tcp(socket, libc::TCP_DEFER_ACCEPT, seconds)
}

/// Allows `queue` connections that carried data in their SYN and have not finished the
/// handshake. TCP_FASTOPEN.
pub fn set_fast_open(socket: BorrowedFd<'_>, queue: i32) -> io::Result<()> {
    set_tcp(socket, libc::TCP_FASTOPEN, queue)
}

fn set_tcp(socket: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the value is read during the call only, and its size is said.
    let r = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            std::ptr::from_ref(&value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_listening_socket_takes_them() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        set_defer_accept(socket.as_fd(), 1).unwrap();
        set_defer_accept(socket.as_fd(), 0).unwrap();
        set_fast_open(socket.as_fd(), 8).unwrap();
    }
}
