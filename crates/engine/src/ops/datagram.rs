//! Datagram sockets: the resolver's and the log's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny};

use crate::Handle;
use crate::budget;
use crate::ops::must_yield;
use crate::source::{Ready, Registered};

/// A datagram socket in a loop; closes on drop.
pub struct Datagram(Registered);

impl Handle {
    /// Brings a non-blocking datagram socket into the loop.
    pub fn datagram(&self, fd: OwnedFd) -> io::Result<Datagram> {
        Ok(Datagram(self.0.register(self, fd, Ready::WRITE)?))
    }
}

impl Datagram {
    /// Receives one datagram into the spare capacity of `buf` (what does not fit is lost): its
    /// length and the sender, if it has an address.
    pub async fn recv_from(
        &self,
        mut buf: Vec<u8>,
    ) -> (io::Result<(usize, Option<SocketAddrAny>)>, Vec<u8>) {
        let answer = std::future::poll_fn(|cx| self.poll_recv(cx, &mut buf)).await;
        (answer, buf)
    }

    /// Sends one datagram, to `to` or to the address that the socket is connected to.
    pub async fn send_to(&self, bytes: &[u8], to: Option<&SocketAddrAny>) -> io::Result<usize> {
        std::future::poll_fn(|cx| {
            if must_yield(cx) {
                return Poll::Pending;
            }
            match self.try_send_to(bytes, to) {
                Ok(Some(n)) => Poll::Ready(Ok(n)),
                Ok(None) => self.0.wait_write(cx),
                Err(e) => Poll::Ready(Err(e)),
            }
        })
        .await
    }

    /// As [`Datagram::send_to`], without waiting: `None` if there is no room.
    pub fn try_send_to(
        &self,
        bytes: &[u8],
        to: Option<&SocketAddrAny>,
    ) -> io::Result<Option<usize>> {
        let fd = &self.0.source.fd;
        let sent = match to {
            Some(to) => rustix::net::sendto(fd, bytes, SendFlags::NOSIGNAL, to),
            None => rustix::net::send(fd, bytes, SendFlags::NOSIGNAL),
        };
        match sent {
            Ok(n) => {
                budget::spend_call(n);
                Ok(Some(n))
            }
            Err(Errno::AGAIN) => {
                self.0.exhausted(Ready::WRITE);
                Ok(None)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// As [`crate::Stream::set_deadline`].
    pub fn set_deadline(&self, at: Option<Instant>) {
        self.0.set_deadline(at);
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buf: &mut Vec<u8>,
    ) -> Poll<io::Result<(usize, Option<SocketAddrAny>)>> {
        if must_yield(cx) {
            return Poll::Pending;
        }
        if !self.0.source.is(Ready::READABLE) {
            return self.0.wait_read(cx);
        }
        match rustix::net::recvfrom(&self.0.source.fd, spare_capacity(buf), RecvFlags::empty()) {
            Ok((n, _, from)) => {
                budget::spend_call(n);
                Poll::Ready(Ok((n, from)))
            }
            Err(Errno::AGAIN) => {
                self.0.exhausted(Ready::READABLE);
                self.0.wait_read(cx)
            }
            // An error of an earlier datagram ("connection refused") is reported once.
            Err(e) => {
                self.0.exhausted(Ready::ERR);
                Poll::Ready(Err(e.into()))
            }
        }
    }
}

impl AsFd for Datagram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.source.fd.as_fd()
    }
}
