//! The accept queues of sockets that belong to other processes: the kernel tells of them by sock_diag(7).

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// linux/sock_diag.h, linux/netlink.h: SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE.
const BY_FAMILY: u16 = 20;
const DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// linux/tcp_states.h: TCP_LISTEN.
const LISTEN: u32 = 10;
/// Bytes of a message's head, of a question behind it, and of an answer.
const HEAD: usize = 16;
const QUESTION: usize = 56;
const ANSWER: usize = 72;
/// An answer of the kernel has no more bytes.
const ROOM: usize = 32 << 10;
/// A port has no more sockets than there are loops; who is told of so many answers does not go on.
const ANSWERS: usize = 256;

/// For each TCP socket that listens at the address, in the order in which they were made: how many connections wait,
/// and how many may. None where the kernel does not tell.
pub fn of(address: SocketAddr) -> Option<Vec<(u32, u32)>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG)).ok()?;
    let kernel = SocketAddrNetlink::new(0, 0);
    #[expect(
        clippy::disallowed_methods,
        reason = "the kernel answers at once, no more than ANSWERS"
    )]
    sendto(&socket, &question(address), SendFlags::empty(), &kernel).ok()?;
    let mut found = Vec::new();
    let mut buf = vec![0; ROOM];
    for _ in 0..ANSWERS {
        let read = receive(&socket, &mut buf)?;
        if !take(buf.get(..read)?, address, &mut found)? {
            break;
        }
    }
    found.sort_unstable();
    Some(found.into_iter().map(|(_, waiting, most)| (waiting, most)).collect())
}

#[expect(clippy::disallowed_methods, reason = "no client sends here")]
fn receive(socket: impl AsFd, buf: &mut [u8]) -> Option<usize> {
    recv(socket, buf, RecvFlags::empty()).ok().map(|(read, _)| read)
}

/// linux/inet_diag.h: inet_diag_req_v2 behind a nlmsghdr.
fn question(address: SocketAddr) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + QUESTION);
    out.extend(((HEAD + QUESTION) as u32).to_ne_bytes());
    out.extend(BY_FAMILY.to_ne_bytes());
    out.extend(DUMP.to_ne_bytes());
    out.extend([0; 8]);
    out.extend([family(address), rustix::net::ipproto::TCP.as_raw().get() as u8, 0, 0]);
    out.extend((1u32 << LISTEN).to_ne_bytes());
    out.extend(address.port().to_be_bytes());
    out.resize(HEAD + QUESTION, 0);
    out
}

fn family(address: SocketAddr) -> u8 {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    family.as_raw() as u8
}

/// Takes the answers of a datagram; whether there are more. None for an error, or what is no answer.
fn take(mut bytes: &[u8], address: SocketAddr, found: &mut Vec<(u32, u32, u32)>) -> Option<bool> {
    while bytes.len() >= HEAD {
        let len = (word(bytes, 0)? as usize).max(HEAD);
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        match kind {
            DONE => return Some(false),
            ERROR => return None,
            _ => found.extend(answer(bytes.get(HEAD..len)?, address)),
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(true)
}

/// Its inode, which grows from socket to socket, and the two lengths, if it is a socket of this address.
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

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn who_waits_is_seen_from_outside() {
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
    fn what_is_no_answer_is_refused() {
        let at = "127.0.0.1:80".parse().unwrap();
        for bytes in [&[0xff; 40][..], &[7; HEAD], &[]] {
            let mut found = Vec::new();
            let _ = take(bytes, at, &mut found);
            assert!(found.is_empty());
        }
    }
}
