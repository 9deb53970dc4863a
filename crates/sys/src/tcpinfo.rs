//! The kernel's figures of a TCP connection. tcp(7), TCP_INFO.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The figures of `tcp_info` that servers show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// The smoothed round-trip time in microseconds.
    pub rtt: u32,
    /// The variation of the round-trip time in microseconds.
    pub rttvar: u32,
    /// The congestion window in segments.
    pub snd_cwnd: u32,
    /// The receiver's buffer space in bytes.
    pub rcv_space: u32,
}

/// The figures of a connected TCP socket.
pub fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let info = ask(socket)?;
    Ok(TcpInfo {
        rtt: info.tcpi_rtt,
        rttvar: info.tcpi_rttvar,
        snd_cwnd: info.tcpi_snd_cwnd,
        rcv_space: info.tcpi_rcv_space,
    })
}

/// The number of connections in a listening socket's accept queue, and its backlog.
pub fn accept_queue(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    // tcp_get_info in net/ipv4/tcp.c: these fields have another meaning for a listening socket.
    ask(socket).map(|info| (info.tcpi_unacked, info.tcpi_sacked))
}

fn ask(socket: BorrowedFd<'_>) -> io::Result<libc::tcp_info> {
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
    Ok(unsafe { info.assume_init() })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::{accept_queue, tcp_info};

    #[test]
    fn a_connection_has_a_window() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(tcp_info(stream.as_fd()).unwrap().snd_cwnd > 0);
    }

    #[test]
    fn a_queue_holds_connections_that_were_not_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let _clients: Vec<_> = (0..3).map(|_| TcpStream::connect(at).unwrap()).collect();
        let (waiting, most) = accept_queue(listener.as_fd()).unwrap();
        assert_eq!(waiting, 3);
        assert!(most >= 3);
        listener.accept().unwrap();
        assert_eq!(accept_queue(listener.as_fd()).unwrap().0, 2);
    }

    #[test]
    fn other_sockets_have_none() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(tcp_info(a.as_fd()).is_err());
    }
}
