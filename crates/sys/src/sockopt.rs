//! Options of sockets that rustix does not name. tcp(7), ip(7).

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

/// Allows a local address that is not this host's. Needs CAP_NET_RAW or CAP_NET_ADMIN. IP_TRANSPARENT, IPV6_TRANSPARENT.
pub fn set_transparent(socket: BorrowedFd<'_>, is_ipv6: bool) -> io::Result<()> {
    match is_ipv6 {
        true => set(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, &1i32),
        false => set(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, &1i32),
    }
}

/// Sends new connections of an SO_REUSEPORT group to its first `n` sockets, in the order in which
/// they began to listen. Needs no privilege. SO_ATTACH_REUSEPORT_CBPF in socket(7).
pub fn steer(member: BorrowedFd<'_>, n: u32) -> io::Result<()> {
    // A random number, modulo n: classic BPF, as in Documentation/networking/filter.rst.
    const RANDOM: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
    let instruction = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, RANDOM),
        instruction(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, n.max(1)),
        instruction(libc::BPF_RET | libc::BPF_A, 0),
    ];
    let program =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    set(member, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// Attaches a program of bpf(2) to an SO_REUSEPORT group, see [`crate::steering`]. SO_ATTACH_REUSEPORT_EBPF in
/// socket(7).
pub(crate) fn set_program(member: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    set(member, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_EBPF, &program.as_raw_fd())
}

/// Undoes [`steer`], and the work of [`crate::steering`].
pub fn unsteer(member: BorrowedFd<'_>) -> io::Result<()> {
    set(member, libc::SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, &0i32)
}

fn set_tcp(socket: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, option, &value)
}

/// `value` is what the option takes, a plain C value.
fn set<T>(socket: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the value, and for a filter program the instructions that it points to, which the
    // caller holds, are read during the call only; the value's size is said.
    let r = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
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
