//! The accept queues of sockets that belong to other processes or network namespaces, and
//! handshakes in progress, by sock_diag(7).

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// linux/sock_diag.h and linux/netlink.h: SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, NLM_F_REQUEST |
/// NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE.
const BY_FAMILY: u16 = 20;
const ONE: u16 = 0x1;
const DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// linux/tcp_states.h: TCP_SYN_RECV, TCP_LISTEN.
const SYN_RECEIVED: u32 = 3;
const LISTEN: u32 = 10;
/// linux/unix_diag.h: UDIAG_SHOW_RQLEN, UNIX_DIAG_RQLEN.
const SHOW_LENGTHS: u32 = 0x10;
const LENGTHS: u16 = 4;
/// linux/inet_diag.h: INET_DIAG_SKMEMINFO, and the bit that requests it. linux/sock_diag.h: the
/// place of SK_MEMINFO_DROPS.
const MEMORY: u16 = 7;
const TELL_MEMORY: u8 = 1 << (MEMORY - 1);
const DROPS: usize = 4 * 8;
/// The bytes of a message's header, of a request after it, of a response, and of a response about a
/// Unix-domain socket without its attributes.
const HEAD: usize = 16;
const QUESTION: usize = 56;
const ANSWER: usize = 72;
const UNIX_ANSWER: usize = 16;
/// The most bytes in a response of the kernel.
const ROOM: usize = 32 << 10;
/// The most responses that are read. A port has no more sockets than there are loops.
const ANSWERS: usize = 256;

/// The accept queues of all TCP sockets that listen at the address, in the order in which they were
/// made: the number of waiting connections, and the backlog. None if the kernel does not tell.
pub fn of(address: SocketAddr) -> Option<Vec<(u32, u32)>> {
    let mut found = Vec::new();
    each(address, LISTEN, 0, &mut |bytes| found.extend(answer(bytes, address)))?;
    found.sort_unstable();
    Some(found.into_iter().map(|(_, waiting, most)| (waiting, most)).collect())
}

/// Connections that the kernel has dropped at TCP sockets that listen at the address, mostly
/// because the accept queue was full. None if the kernel does not tell.
pub fn dropped(address: SocketAddr) -> Option<u64> {
    let mut sum = None;
    each(address, LISTEN, TELL_MEMORY, &mut |bytes| {
        let memory = attribute(bytes.get(ANSWER..).unwrap_or_default(), MEMORY);
        let drops = memory.and_then(|words| word(words, DROPS));
        if let Some(drops) = drops.filter(|_| answer(bytes, address).is_some()) {
            *sum.get_or_insert(0) += u64::from(drops);
        }
    })?;
    sum
}

/// Whether a client has sent its SYN to the address and is not in the accept queue yet. Its
/// handshake is unfinished, or the kernel waits for its first bytes (TCP_DEFER_ACCEPT). The kernel
/// searches all sockets, which may take milliseconds. None if it does not tell.
pub fn has_handshakes(address: SocketAddr) -> Option<bool> {
    let mut found = false;
    // A socket of [::] also has clients with IPv4 addresses.
    let all_v4 = SocketAddr::from(([0; 4], address.port()));
    let both = address.is_ipv6() && address.ip().is_unspecified();
    for address in std::iter::once(address).chain(both.then_some(all_v4)) {
        each(address, SYN_RECEIVED, 0, &mut |bytes| {
            let any = address.ip().is_unspecified() && bytes.first() == Some(&family(address));
            found |= any || answer(bytes, address).is_some();
        })?;
    }
    Some(found)
}

/// Calls `found` with each response about TCP sockets of the port in this state.
fn each(
    address: SocketAddr,
    state: u32,
    extensions: u8,
    found: &mut dyn FnMut(&[u8]),
) -> Option<()> {
    let socket = ask(&question(address, state, extensions))?;
    let mut buf = vec![0; ROOM];
    for _ in 0..ANSWERS {
        let read = receive(&socket, &mut buf)?;
        if !take(buf.get(..read)?, found)? {
            break;
        }
    }
    Some(())
}

/// The accept queue of a Unix-domain socket of this process.
pub fn of_unix(listening: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let inode = rustix::fs::fstat(listening).ok()?.st_ino;
    let socket = ask(&question_of_unix(inode as u32))?;
    let mut buf = vec![0; ROOM];
    let read = receive(&socket, &mut buf)?;
    take_unix(buf.get(..read)?)
}

/// A netlink socket to which the request was sent.
fn ask(question: &[u8]) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG)).ok()?;
    let kernel = SocketAddrNetlink::new(0, 0);
    #[expect(
        clippy::disallowed_methods,
        reason = "the kernel answers at once, no more than ANSWERS"
    )]
    sendto(&socket, question, SendFlags::empty(), &kernel).ok()?;
    Some(socket)
}

#[expect(clippy::disallowed_methods, reason = "no client sends here")]
fn receive(socket: impl AsFd, buf: &mut [u8]) -> Option<usize> {
    recv(socket, buf, RecvFlags::empty()).ok().map(|(read, _)| read)
}

/// linux/inet_diag.h: inet_diag_req_v2 behind a nlmsghdr.
fn question(address: SocketAddr, state: u32, extensions: u8) -> Vec<u8> {
    let mut out = head(QUESTION, DUMP);
    let tcp = rustix::net::ipproto::TCP.as_raw().get() as u8;
    out.extend([family(address), tcp, extensions, 0]);
    out.extend((1u32 << state).to_ne_bytes());
    out.extend(address.port().to_be_bytes());
    out.resize(HEAD + QUESTION, 0);
    out
}

/// linux/unix_diag.h: unix_diag_req behind a nlmsghdr.
fn question_of_unix(inode: u32) -> Vec<u8> {
    let unix = AddressFamily::UNIX.as_raw() as u32;
    // The first word has family and protocol. Any cookie will do.
    let words = [unix.to_le(), 1 << LISTEN, inode, SHOW_LENGTHS, u32::MAX, u32::MAX];
    let mut out = head(4 * words.len(), ONE);
    out.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    out
}

/// A message's header for a payload of `len` bytes.
fn head(len: usize, flags: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + len);
    out.extend(((HEAD + len) as u32).to_ne_bytes());
    out.extend(BY_FAMILY.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend([0; 8]);
    out
}

fn family(address: SocketAddr) -> u8 {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    family.as_raw() as u8
}

/// Handles the responses of a datagram. Returns whether more follow. None for an error or an
/// invalid message.
fn take(mut bytes: &[u8], found: &mut dyn FnMut(&[u8])) -> Option<bool> {
    while bytes.len() >= HEAD {
        let len = (word(bytes, 0)? as usize).max(HEAD);
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        match kind {
            DONE => return Some(false),
            ERROR => return None,
            _ => found(bytes.get(HEAD..len)?),
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(true)
}

/// The inode, which grows from socket to socket, and both lengths of the queue, if the socket has
/// this address.
fn answer(bytes: &[u8], address: SocketAddr) -> Option<(u32, u32, u32)> {
    if bytes.len() < ANSWER || bytes.first() != Some(&family(address)) {
        return None;
    }
    let port = u16::from_be_bytes(bytes.get(4..6)?.try_into().ok()?);
    let own = match address {
        SocketAddr::V4(v4) => bytes.get(8..12)? == v4.ip().octets(),
        SocketAddr::V6(v6) => bytes.get(8..24)? == v6.ip().octets(),
    };
    (own && port == address.port()).then_some((
        word(bytes, 68)?,
        word(bytes, 56)?,
        word(bytes, 60)?,
    ))
}

/// Both lengths of a Unix-domain socket's queue.
fn take_unix(bytes: &[u8]) -> Option<(u32, u32)> {
    let len = (word(bytes, 0)? as usize).min(bytes.len());
    if u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?) != BY_FAMILY {
        return None;
    }
    let lengths = attribute(bytes.get(HEAD + UNIX_ANSWER..len)?, LENGTHS)?;
    Some((word(lengths, 0)?, word(lengths, 4)?))
}

/// The value of the attribute of this kind. linux/netlink.h: nlattr
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while attributes.len() >= 4 {
        let half = |at: usize| attributes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes);
        let (len, kind) = (usize::from(half(0)?).max(4), half(2)?);
        if kind == wanted {
            return attributes.get(4..len);
        }
        attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};

    use super::*;

    #[test]
    fn waiting_connections_are_seen_from_outside() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(any) else { continue };
            let at = listener.local_addr().unwrap();
            let Some(queues) = of(at) else {
                eprintln!("skipped: the kernel does not tell of sockets here");
                return;
            };
            assert_eq!(queues.iter().map(|(waiting, _)| waiting).collect::<Vec<_>>(), [&0]);
            let _clients: Vec<_> = (0..3).map(|_| TcpStream::connect(at).unwrap()).collect();
            let queues = of(at).unwrap();
            assert_eq!(queues.len(), 1);
            assert!(queues[0].0 == 3 && queues[0].1 >= 3, "{queues:?}");
        }
    }

    #[test]
    fn connections_that_the_kernel_keeps_are_seen() {
        for own in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(own) else { continue };
            crate::sockopt::set_defer_accept(listener.as_fd(), 1).unwrap();
            let at = listener.local_addr().unwrap();
            let Some(before) = has_handshakes(at) else {
                eprintln!("skipped: the kernel does not tell of sockets here");
                return;
            };
            assert!(!before, "{own}");
            let there = if own.starts_with("[::1]") { "::1" } else { "127.0.0.1" };
            let mut client = TcpStream::connect((there, at.port())).unwrap();
            assert_eq!(has_handshakes(at), Some(true), "{own}");
            client.write_all(b"x").unwrap();
            let _server = listener.accept().unwrap();
            assert_eq!(has_handshakes(at), Some(false), "{own}");
        }
    }

    #[test]
    fn connections_beyond_the_queue_are_dropped_and_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let at = listener.local_addr().unwrap();
        let Some(before) = dropped(at) else {
            eprintln!("skipped: the kernel does not tell of drops here");
            return;
        };
        assert_eq!(before, 0);
        let connect = |_| {
            let flags = SocketFlags::NONBLOCK;
            let of = |family| socket_with(family, SocketType::STREAM, flags, None).unwrap();
            let socket = of(AddressFamily::INET);
            let _ = rustix::net::connect(&socket, &at);
            socket
        };
        // The queue holds one connection more than its backlog.
        let _clients: Vec<_> = (0..5).map(connect).collect();
        assert!(dropped(at) > Some(0), "{:?}", dropped(at));
        assert_eq!(of(at), Some(vec![(2, 1)]));
    }

    #[test]
    fn connections_that_wait_for_a_unix_socket_are_seen() {
        let name = format!("weir-test-{}", std::process::id());
        let at = UnixAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&at).unwrap();
        let Some((waiting, most)) = of_unix(listener.as_fd()) else {
            eprintln!("skipped: the kernel does not tell of Unix-domain sockets here");
            return;
        };
        assert!(waiting == 0 && most >= 3, "{waiting} {most}");
        let connect = || UnixStream::connect_addr(&at).unwrap();
        let _clients = [connect(), connect(), connect()];
        assert_eq!(of_unix(listener.as_fd()), Some((3, most)));
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let at: SocketAddr = "127.0.0.1:80".parse().unwrap();
        for bytes in [&[0xff; 40][..], &[7; HEAD], &[]] {
            let _ = take(bytes, &mut |bytes| assert_eq!(answer(bytes, at), None));
            assert_eq!((take_unix(bytes), attribute(bytes, MEMORY)), (None, None));
        }
    }
}
