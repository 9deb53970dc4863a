//! What the kernel knows of a TCP connection's way. tcp(7), TCP_INFO.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The part of the kernel's `tcp_info` that servers show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time, microseconds.
    pub rtt: u32,
    /// Its variation, microseconds.
    pub rttvar: u32,
    /// Congestion window, segments.
    pub snd_cwnd: u32,
    /// Room that the receiver announces, bytes.
    pub rcv_space: u32,
}

/// Asks about a connected TCP socket.
pub fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of what `info` has room for.
    let r = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if r != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: tcp_info is plain old data; it was zeroed, and an older kernel leaves its end so.
    let info = unsafe { info.assume_init() };
    Ok(TcpInfo {
        rtt: info.tcpi_rtt,
        rttvar: info.tcpi_rttvar,
        snd_cwnd: info.tcpi_snd_cwnd,
        rcv_space: info.tcpi_rcv_space,
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::tcp_info;

    #[test]
    fn a_connection_has_a_window() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(tcp_info(stream.as_fd()).unwrap().snd_cwnd > 0);
    }

    #[test]
    fn other_sockets_have_none() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(tcp_info(a.as_fd()).is_err());
    }
}
