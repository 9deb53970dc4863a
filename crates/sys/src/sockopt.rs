//! Socket options that rustix does not have. tcp(7), ip(7).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Reports a new connection only once it has data, for which the kernel waits at most `seconds`; 0
/// turns this off. TCP_DEFER_ACCEPT.
pub fn set_defer_accept(socket: BorrowedFd<'_>, seconds: i32) -> io::Result<()> {
    set_tcp(socket, libc::TCP_DEFER_ACCEPT, seconds)
}

/// Whether the kernel keeps connections back: see [`set_defer_accept`].
pub fn is_accept_deferred(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(get(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT)? != 0)
}

/// Allows `queue` connections with data in their SYN and an unfinished handshake. TCP_FASTOPEN.
pub fn set_fast_open(socket: BorrowedFd<'_>, queue: i32) -> io::Result<()> {
    set_tcp(socket, libc::TCP_FASTOPEN, queue)
}

/// Leaves the choice of a local port to `connect()`, which may take one that connections to other peers
/// have. IP_BIND_ADDRESS_NO_PORT.
pub fn set_bind_address_no_port(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &1i32)
}

/// Allows binding to addresses that are not this host's. Needs CAP_NET_RAW or CAP_NET_ADMIN.
/// IP_TRANSPARENT, IPV6_TRANSPARENT.
pub fn set_transparent(socket: BorrowedFd<'_>, is_ipv6: bool) -> io::Result<()> {
    match is_ipv6 {
        true => set(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, &1i32),
        false => set(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, &1i32),
    }
}

/// The user id of the process that connected a Unix-domain socket; 65534 if this user namespace
/// does not know it. `u32::MAX` for other sockets. SO_PEERCRED in unix(7). rustix's function
/// expects a process id other than 0. The id is 0 if the process is in a PID namespace that this
/// one does not see.
pub fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `found`, any bytes of which are a value of it.
    let r = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &mut len,
        )
    };
    if r == 0 { Ok(found.uid) } else { Err(io::Error::last_os_error()) }
}

/// Makes the kernel assign new connections of an SO_REUSEPORT group at random to its first `n`
/// sockets, in the order in which they began to listen. Needs no privilege.
/// SO_ATTACH_REUSEPORT_CBPF in socket(7).
pub fn steer(member: BorrowedFd<'_>, n: u32) -> io::Result<()> {
    // A random number modulo n, in classic BPF: Documentation/networking/filter.rst.
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

/// How a BPF program assigns QUIC datagrams to the sockets of a port.
#[derive(Clone, Copy, Debug)]
pub struct IdSteering {
    /// The length of the server's connection ids.
    pub length: u8,
    /// The number of the loop is computed from the first four bytes of a connection id: xor with
    /// this value, times `factor`, the upper half, modulo `loops`.
    pub xor: u32,
    /// See `xor`.
    pub factor: u32,
    /// See `xor`.
    pub loops: u32,
}

/// Makes the kernel assign datagrams of an SO_REUSEPORT group by the connection id at their beginning
/// (RFC 8999, section 5). The group's sockets after the first belong to the loops in their order, and
/// the id names a loop. Datagrams without an id of the server's length, which begin connections, go to
/// the first socket. Needs no privilege. SO_ATTACH_REUSEPORT_CBPF in socket(7).
pub fn steer_by_id(member: BorrowedFd<'_>, by: IdSteering) -> io::Result<()> {
    use libc::{
        BPF_ABS, BPF_ADD, BPF_ALU, BPF_B, BPF_IMM, BPF_IND, BPF_JA, BPF_JEQ, BPF_JMP, BPF_JSET,
        BPF_K, BPF_LD, BPF_LDX, BPF_MOD, BPF_MUL, BPF_RET, BPF_RSH, BPF_W, BPF_XOR,
    };
    const LONG: u32 = 0x80;
    let jump =
        |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let instruction = |code: u32, k: u32| jump(code, k, 0, 0);
    // A load beyond the end of a datagram ends the program with 0, so the first socket gets the
    // datagram.
    let mut program = [
        instruction(BPF_LD | BPF_B | BPF_ABS, 0),
        jump(BPF_JMP | BPF_JSET | BPF_K, LONG, 0, 4),
        instruction(BPF_LD | BPF_B | BPF_ABS, 5),
        jump(BPF_JMP | BPF_JEQ | BPF_K, u32::from(by.length), 0, 10),
        instruction(BPF_LDX | BPF_W | BPF_IMM, 6),
        instruction(BPF_JMP | BPF_JA, 1),
        instruction(BPF_LDX | BPF_W | BPF_IMM, 1),
        instruction(BPF_LD | BPF_W | BPF_IND, 0),
        instruction(BPF_ALU | BPF_XOR | BPF_K, by.xor),
        instruction(BPF_ALU | BPF_MUL | BPF_K, by.factor),
        instruction(BPF_ALU | BPF_RSH | BPF_K, 16),
        instruction(BPF_ALU | BPF_MOD | BPF_K, by.loops.max(1)),
        instruction(BPF_ALU | BPF_ADD | BPF_K, 1),
        instruction(BPF_RET | libc::BPF_A, 0),
        instruction(BPF_RET | BPF_K, 0),
    ];
    let program =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    set(member, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// Attaches an eBPF program to an SO_REUSEPORT group: see [`crate::steering`].
/// SO_ATTACH_REUSEPORT_EBPF in socket(7).
pub(crate) fn set_program(member: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    set(member, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_EBPF, &program.as_raw_fd())
}

/// Detaches the program of [`steer`] or [`crate::steering`].
pub fn unsteer(member: BorrowedFd<'_>) -> io::Result<()> {
    set(member, libc::SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, &0i32)
}

/// A numeric option, as scripts set and read it by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketNumber {
    /// SO_KEEPALIVE
    KeepAlive,
    /// TCP_KEEPINTVL
    KeepAliveInterval,
    /// TCP_KEEPCNT
    KeepAliveCount,
    /// SO_REUSEADDR
    ReuseAddress,
    /// TCP_NODELAY
    NoDelay,
    /// SO_SNDBUF
    SendBuffer,
    /// SO_RCVBUF
    ReceiveBuffer,
}

impl SocketNumber {
    fn place(self) -> (i32, i32) {
        match self {
            SocketNumber::KeepAlive => (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
            SocketNumber::KeepAliveInterval => (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
            SocketNumber::KeepAliveCount => (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
            SocketNumber::ReuseAddress => (libc::SOL_SOCKET, libc::SO_REUSEADDR),
            SocketNumber::NoDelay => (libc::IPPROTO_TCP, libc::TCP_NODELAY),
            SocketNumber::SendBuffer => (libc::SOL_SOCKET, libc::SO_SNDBUF),
            SocketNumber::ReceiveBuffer => (libc::SOL_SOCKET, libc::SO_RCVBUF),
        }
    }

    /// Sets the option. The kernel may change the value.
    pub fn set(self, socket: BorrowedFd<'_>, value: i32) -> io::Result<()> {
        let (level, option) = self.place();
        set(socket, level, option, &value)
    }

    /// The value in the kernel.
    pub fn get(self, socket: BorrowedFd<'_>) -> io::Result<i32> {
        let (level, option) = self.place();
        get(socket, level, option)
    }
}

fn set_tcp(socket: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, option, &value)
}

fn get(socket: BorrowedFd<'_>, level: i32, option: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel writes as many bytes at the most as `length` says, which is the size of the number.
    let r = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if r == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Sets an option. `value` is a plain C value of the option's type.
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
    use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketType};

    use super::*;

    #[test]
    fn a_listening_socket_takes_them() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for deferred in [true, false] {
            set_defer_accept(socket.as_fd(), deferred.into()).unwrap();
            assert_eq!(is_accept_deferred(socket.as_fd()).unwrap(), deferred);
        }
        set_fast_open(socket.as_fd(), 8).unwrap();
    }

    #[test]
    fn numbers_are_as_they_were_set() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for (option, value) in [
            (SocketNumber::KeepAlive, 1),
            (SocketNumber::KeepAliveInterval, 7),
            (SocketNumber::KeepAliveCount, 5),
            (SocketNumber::ReuseAddress, 0),
            (SocketNumber::NoDelay, 1),
        ] {
            option.set(socket.as_fd(), value).unwrap();
            assert_eq!(option.get(socket.as_fd()).unwrap(), value, "{option:?}");
        }
        for option in [SocketNumber::SendBuffer, SocketNumber::ReceiveBuffer] {
            option.set(socket.as_fd(), 20_000).unwrap();
            // The kernel doubles the value, for its own overhead.
            assert_eq!(option.get(socket.as_fd()).unwrap(), 40_000, "{option:?}");
        }
        assert!(SocketNumber::KeepAliveCount.set(socket.as_fd(), -1).is_err());
    }

    /// A socket at this address, which others share.
    fn shared(at: SocketAddrV4) -> UdpSocket {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        rustix::net::sockopt::set_socket_reuseport(&socket, true).unwrap();
        rustix::net::bind(&socket, &at).unwrap();
        let socket = UdpSocket::from(socket);
        socket.set_nonblocking(true).unwrap();
        socket
    }

    #[test]
    fn datagrams_go_to_the_socket_of_the_loop_that_their_id_names() {
        let first = shared(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
        let std::net::SocketAddr::V4(at) = first.local_addr().unwrap() else { unreachable!() };
        let sockets = [first, shared(at), shared(at), shared(at)];
        let by = IdSteering { length: 8, xor: 0x1234_5678, factor: 0x9e37_79b1, loops: 3 };
        steer_by_id(sockets[0].as_fd(), by).unwrap();
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let comes_to = |datagram: &[u8]| {
            client.send_to(datagram, at).unwrap();
            let mut buf = [0; 64];
            sockets.iter().position(|socket| socket.recv(&mut buf).is_ok()).unwrap()
        };
        for n in 0u32..60 {
            let word = n.wrapping_mul(0x0101_4a35);
            let row = (((word ^ by.xor).wrapping_mul(by.factor) >> 16) % by.loops) as usize;
            let id = [&word.to_be_bytes()[..], &[7; 4]].concat();
            let short = [&[0x40][..], &id, &[1; 20]].concat();
            let long = [&[0xe0, 0, 0, 0, 1, 8][..], &id, &[1; 20]].concat();
            assert_eq!((comes_to(&short), comes_to(&long)), (1 + row, 1 + row), "{word:x}");
        }
        // An id of another length, and datagrams that are not QUIC.
        assert_eq!(comes_to(&[0xc0, 0, 0, 0, 1, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9]), 0);
        assert_eq!((comes_to(&[0x40, 1, 2]), comes_to(&[0xc0]), comes_to(&[])), (0, 0, 0));
    }
}
