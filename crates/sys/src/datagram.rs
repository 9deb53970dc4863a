//! Datagrams with their destination address, and answers from that address. A socket that is bound
//! to a wildcard address has many. ip(7) and ipv6(7): IP_PKTINFO, IPV6_PKTINFO.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::LazyLock;

use rustix::net::SocketAddrAny;

/// A received datagram, without its bytes.
#[derive(Debug)]
pub struct Received {
    /// The length, limited by the buffer.
    pub len: usize,
    /// The sender's address. None for an unnamed Unix-domain socket.
    pub from: Option<SocketAddrAny>,
    /// The destination address, if the socket reports it: see [`tell_destination`].
    pub to: Option<IpAddr>,
}

/// A buffer for the one control message that either family has, aligned as its header.
#[repr(C)]
union Control {
    _header: libc::cmsghdr,
    _room: [u8; 64],
}

/// A message for sendmsg(2) or recvmsg(2) with these parts.
fn message(
    name: *mut libc::sockaddr_storage,
    name_len: usize,
    parts: &mut libc::iovec,
    control: *mut Control,
    control_len: usize,
) -> libc::msghdr {
    // SAFETY: msghdr is plain old data, of which all zeros is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name.cast();
    message.msg_namelen = name_len as libc::socklen_t;
    message.msg_iov = parts;
    message.msg_iovlen = 1;
    message.msg_control = if control_len > 0 { control.cast() } else { std::ptr::null_mut() };
    message.msg_controllen = control_len as _;
    message
}

/// Makes the socket report [`Received::to`] with each datagram.
pub fn tell_destination(socket: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
    let (level, option) = match ipv6 {
        true => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        false => (libc::IPPROTO_IP, libc::IP_PKTINFO),
    };
    set(socket, level, option, 1)
}

/// Makes the socket report no timestamps. They would take space in the buffer for control messages.
pub fn tell_no_times(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0)
}

/// Makes the kernel deliver each datagram by itself.
pub fn take_no_batches(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 0)
}

fn set(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the kernel reads the integer during the call, and its size is said.
    let r = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(&value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the kernel receives several datagrams in a call: recvmmsg(2). Sandboxes may forbid it.
pub fn receives_many() -> bool {
    static KNOWN: LazyLock<bool> = LazyLock::new(|| {
        // SAFETY: no message is read or written. The kernel first looks for the socket, and there is none.
        let r = unsafe { libc::recvmmsg(-1, std::ptr::null_mut(), 0, 0, std::ptr::null_mut()) };
        r == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EBADF)
    });
    *KNOWN
}

/// Receives one datagram without waiting, into the spare capacity of `buf`.
pub fn receive(socket: BorrowedFd<'_>, buf: &mut Vec<u8>) -> io::Result<Received> {
    let room = buf.spare_capacity_mut();
    let mut name = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut control = MaybeUninit::<Control>::uninit();
    let mut parts = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    let name_len = size_of::<libc::sockaddr_storage>();
    let mut message = message(
        name.as_mut_ptr(),
        name_len,
        &mut parts,
        control.as_mut_ptr(),
        size_of::<Control>(),
    );
    // SAFETY: the message names three writable places with their sizes, all of which live until it returns.
    let r = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    let len = usize::try_from(r).map_err(|_| io::Error::last_os_error())?.min(room.len());
    // SAFETY: the kernel has written so many bytes to the spare capacity.
    unsafe { buf.set_len(buf.len() + len) };
    let told = message.msg_namelen as usize;
    let from = (told > size_of::<libc::sa_family_t>() && told <= name_len).then(|| {
        // SAFETY: the kernel has written an address of that length to a place that is as long and as aligned as any
        // address, and was zeroed.
        unsafe { SocketAddrAny::read(name.as_ptr().cast(), message.msg_namelen) }
    });
    Ok(Received { len, from, to: destination(&message) })
}

/// The destination in the control messages of a received message.
fn destination(message: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: the message is as recvmsg left it: its control part is null or a row of control messages of `msg_controllen`
    // bytes, which CMSG_FIRSTHDR and CMSG_NXTHDR stay within. Their headers are whole, the data of the last one may not be.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !at.is_null() {
        // SAFETY: the header is whole, as said above.
        let header = unsafe { std::ptr::read_unaligned(at) };
        let holds = |size: usize| {
            // SAFETY: arithmetic on a size.
            let len = unsafe { libc::CMSG_LEN(size as u32) };
            header.cmsg_len as usize >= len as usize
        };
        // SAFETY: the data follow the header. Their type is what level and kind say, plain old data, and their length was
        // compared with it: the kernel cuts the last message off where the room ends.
        unsafe {
            match (header.cmsg_level, header.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if holds(size_of::<libc::in_pktinfo>()) => {
                    let info: libc::in_pktinfo =
                        std::ptr::read_unaligned(libc::CMSG_DATA(at).cast());
                    return Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
                    if holds(size_of::<libc::in6_pktinfo>()) =>
                {
                    let info: libc::in6_pktinfo =
                        std::ptr::read_unaligned(libc::CMSG_DATA(at).cast());
                    return Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                _ => at = libc::CMSG_NXTHDR(message, at),
            }
        }
    }
    None
}

/// Sends one datagram from `from`, an address of this host, or from one that the kernel chooses.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    to: &SocketAddrAny,
    from: Option<IpAddr>,
) -> io::Result<usize> {
    let mut control = MaybeUninit::<Control>::zeroed();
    let mut parts =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let name = to.as_ptr().cast_mut().cast();
    let space = from.map_or(0, |from| match from {
        // SAFETY: arithmetic on a size.
        IpAddr::V4(_) => unsafe { libc::CMSG_SPACE(size_of::<libc::in_pktinfo>() as u32) },
        // SAFETY: arithmetic on a size.
        IpAddr::V6(_) => unsafe { libc::CMSG_SPACE(size_of::<libc::in6_pktinfo>() as u32) },
    });
    let name_len = to.addr_len() as usize;
    let message = message(name, name_len, &mut parts, control.as_mut_ptr(), space as usize);
    match from {
        None => {}
        Some(IpAddr::V4(from)) => {
            let address = libc::in_addr { s_addr: u32::from_ne_bytes(from.octets()) };
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: address,
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            // SAFETY: the control part has room for this one, as `space` counts.
            unsafe { put(&message, libc::IPPROTO_IP, libc::IP_PKTINFO, info) };
        }
        Some(IpAddr::V6(from)) => {
            let ipi6_addr = libc::in6_addr { s6_addr: from.octets() };
            let info = libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: 0 };
            // SAFETY: as above.
            unsafe { put(&message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info) };
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message names an address, bytes and a control part with their sizes; the kernel only reads them,
    // during the call.
    let r = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) };
    usize::try_from(r).map_err(|_| io::Error::last_os_error())
}

/// Writes the only control message of a message.
///
/// # Safety
///
/// The message's control part is zeroed, aligned for a header, and `CMSG_SPACE` of the value long.
unsafe fn put<T>(message: &libc::msghdr, level: i32, kind: i32, value: T) {
    // SAFETY: the caller's promise: there is room for the header and for the value behind it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<T>() as u32) as _;
        std::ptr::write_unaligned(libc::CMSG_DATA(header).cast(), value);
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    fn both_ways(bound: &str, asked: &str, ipv6: bool) {
        let server = UdpSocket::bind(bound).unwrap();
        tell_destination(server.as_fd(), ipv6).unwrap();
        let port = server.local_addr().unwrap().port();
        let client = UdpSocket::bind(asked).unwrap();
        client.connect((client.local_addr().unwrap().ip(), port)).unwrap();
        client.send(b"asked").unwrap();
        let mut buf: Vec<u8> = Vec::with_capacity(3);
        rustix::event::poll(
            &mut [rustix::event::PollFd::new(&server, rustix::event::PollFlags::IN)],
            None,
        )
        .unwrap();
        let got = receive(server.as_fd(), &mut buf).unwrap();
        assert_eq!((got.len, &buf[..]), (3, &b"ask"[..]), "as much as there is room for");
        assert_eq!(got.to, Some(client.local_addr().unwrap().ip()));
        let from = got.from.unwrap();
        // The client's socket is connected, so it only receives answers from the address that it
        // asked.
        send(server.as_fd(), b"answered", &from, got.to).unwrap();
        let mut answer = [0; 64];
        let n = client.recv(&mut answer).unwrap();
        assert_eq!(&answer[..n], b"answered");
        let none = receive(server.as_fd(), &mut buf).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn answers_come_from_the_address_that_was_asked() {
        both_ways("0.0.0.0:0", "127.0.0.7:0", false);
        if UdpSocket::bind("[::1]:0").is_ok() {
            both_ways("[::]:0", "[::1]:0", true);
        }
    }

    #[test]
    fn a_message_that_is_cut_off_is_not_read() {
        let Ok(server) = UdpSocket::bind("[::1]:0") else { return };
        tell_destination(server.as_fd(), true).unwrap();
        let destination = || {
            server.send_to(b"x", server.local_addr().unwrap()).unwrap();
            receive(server.as_fd(), &mut Vec::with_capacity(8)).unwrap().to
        };
        // The timestamp takes so much space that the destination is cut off.
        set(server.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1).unwrap();
        assert_eq!(destination(), None);
        tell_no_times(server.as_fd()).unwrap();
        assert_eq!(destination(), Some(Ipv6Addr::LOCALHOST.into()));
    }

    #[test]
    fn a_sender_without_a_name_has_no_address() {
        let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
        a.send(b"x").unwrap();
        let got = receive(b.as_fd(), &mut Vec::with_capacity(8)).unwrap();
        assert!(got.len == 1 && got.from.is_none() && got.to.is_none());
    }
}
