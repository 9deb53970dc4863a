//! Hands a connection to a loop of any process: its descriptor travels over a socket pair. unix(7),
//! SCM_RIGHTS.
//!
//! The master keeps both ends open. So a connection that was sent outlives its worker, and the worker's successor
//! takes it.

#![allow(clippy::disallowed_methods, reason = "one short message, without waiting")]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};

/// The socket pair over which one loop gets connections.
#[derive(Debug)]
pub(super) struct Handover {
    send: OwnedFd,
    receive: Arc<OwnedFd>,
}

impl Handover {
    pub(super) fn new() -> io::Result<Handover> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (send, receive) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Handover { send, receive: Arc::new(receive) })
    }

    /// The end that is readable when a connection has arrived.
    pub(super) fn end(&self) -> &Arc<OwnedFd> {
        &self.receive
    }

    /// Sends a connection and the number of its address. False if the socket is full.
    pub(super) fn hand(&self, connection: BorrowedFd<'_>, number: usize) -> io::Result<bool> {
        let fds = [connection];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        let number = (number as u64).to_ne_bytes();
        let sent =
            sendmsg(&self.send, &[IoSlice::new(&number)], &mut ancillary, SendFlags::NOSIGNAL);
        match sent {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Takes the next connection, with the number of its address. The kernel discards a descriptor
    /// that it cannot install. So this peeks first, and the connection stays in the socket if
    /// descriptors have run out.
    pub(super) fn take(&self) -> io::Result<Option<(OwnedFd, usize)>> {
        loop {
            let Some((fd, number)) = self.look()? else { return Ok(None) };
            rustix::net::recv(&self.receive, &mut [0; 8], RecvFlags::DONTWAIT)?;
            // A message without a connection is dropped.
            if let Some(fd) = fd {
                return Ok(Some((fd, number)));
            }
        }
    }

    /// Whether no connection waits.
    pub(super) fn is_empty(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&self.receive, PollFlags::IN)], Some(&now));
        ready.is_ok_and(|ready| ready == 0)
    }

    fn look(&self) -> io::Result<Option<(Option<OwnedFd>, usize)>> {
        let mut number = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut number)];
        let message = match recvmsg(
            self.receive.as_fd(),
            &mut parts,
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK,
        ) {
            Ok(message) => message,
            Err(Errno::AGAIN) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let fd = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        if fd.is_none() && message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Errno::MFILE.into());
        }
        Ok(Some((fd, u64::from_ne_bytes(number) as usize)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_arrive_in_order_and_alive() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let handover = Handover::new().unwrap();
        assert!(handover.take().unwrap().is_none());
        let mut clients = Vec::new();
        for number in [3, 9] {
            clients.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let (connection, _) = listener.accept().unwrap();
            assert!(handover.hand(connection.as_fd(), number).unwrap());
        }
        for (client, expected) in clients.iter_mut().zip([3, 9]) {
            let (connection, number) = handover.take().unwrap().unwrap();
            assert_eq!(number, expected);
            TcpStream::from(connection).write_all(b"hello").unwrap();
            let mut heard = String::new();
            client.read_to_string(&mut heard).unwrap();
            assert_eq!(heard, "hello");
        }
        assert!(handover.take().unwrap().is_none());
    }

    #[test]
    fn a_full_handover_says_so() {
        let handover = Handover::new().unwrap();
        let any = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let sent = (0..100_000).take_while(|n| handover.hand(any.as_fd(), *n).unwrap()).count();
        assert!(sent < 100_000);
        assert_eq!(handover.take().unwrap().map(|(_, number)| number), Some(0));
    }
}
