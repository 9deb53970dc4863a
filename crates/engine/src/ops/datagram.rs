//! Datagram sockets: those of the resolver, of logs and of UDP sessions.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny, SocketType};
pub use weir_sys::datagram::Received;

use crate::budget;
use crate::ops::{connect, must_yield};
use crate::ready::Ready;
use crate::seam::{self, Call};
use crate::source::{Fd, Registered};
use crate::{ConnectOptions, Handle};

/// A datagram socket in a loop; closes on drop.
pub struct Datagram(Registered);

/// Sends from a socket that several loops receive from. It belongs to no loop and is never waited
/// for.
#[derive(Clone, Debug)]
pub struct Answering(Arc<OwnedFd>);

impl Handle {
    /// Adds a non-blocking datagram socket to the loop.
    pub fn datagram(&self, fd: OwnedFd) -> io::Result<Datagram> {
        Ok(Datagram(self.0.register(self, fd, Ready::WRITE)?))
    }

    /// As [`Handle::datagram`], for a socket with other owners, such as one that receives the
    /// datagrams of many clients.
    pub fn datagram_shared(&self, fd: Arc<OwnedFd>) -> io::Result<Datagram> {
        Ok(Datagram(self.0.register(self, Fd::Shared(fd), Ready::WRITE)?))
    }

    /// As [`Handle::datagram`], for a socket that this loop only sends from. The backend does not
    /// report it until its send buffer is full.
    pub fn datagram_sender(&self, fd: Arc<OwnedFd>) -> io::Result<Datagram> {
        Ok(Datagram(self.0.enter(self, Fd::Shared(fd), Ready::WRITE)?))
    }

    /// Calls `receive` with a socket that many loops receive from and that this loop watches as a
    /// listener. Never waits: `None` if no datagram is there.
    pub fn receive_shared<T>(
        &self,
        fd: BorrowedFd<'_>,
        receive: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        seam::at(Call::Recv)?;
        match receive(fd) {
            Ok(received) => Ok(Some(received)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// A socket that is connected to one address. The backend reports it once a task waits for it.
    pub fn connect_datagrams(
        &self,
        to: &SocketAddrAny,
        how: &ConnectOptions,
    ) -> io::Result<Datagram> {
        self.take_slot()?;
        let fd = connect::socket(to, SocketType::DGRAM, how)?;
        rustix::net::connect(&fd, to)?;
        Ok(Datagram(self.0.enter(self, fd, Ready::WRITE)?))
    }
}

impl Answering {
    /// Sends from this socket.
    pub fn new(fd: Arc<OwnedFd>) -> Answering {
        Answering(fd)
    }

    /// Sends one datagram from `from`, an address of this host, or from an address that the kernel
    /// chooses. False if the send buffer is full.
    pub fn try_send(
        &self,
        bytes: &[u8],
        to: &SocketAddrAny,
        from: Option<IpAddr>,
    ) -> io::Result<bool> {
        seam::at(Call::Send)?;
        match weir_sys::datagram::send(self.0.as_fd(), bytes, to, from) {
            Ok(n) => {
                budget::spend_call(n);
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl Datagram {
    /// Ready when there may be something to receive. Fails when the deadline passes.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.0.source.is(Ready::READABLE) {
            return if must_yield(cx) { Poll::Pending } else { Poll::Ready(Ok(())) };
        }
        self.0.wait_read(cx)
    }

    /// Receives one datagram into the spare capacity of `buf`; bytes that do not fit are lost.
    /// Never waits: `None` if no datagram is there. A task may wait afterwards.
    pub fn try_recv_from(&self, buf: &mut Vec<u8>) -> io::Result<Option<Received>> {
        if !self.0.source.is(Ready::READABLE) {
            return Ok(None);
        }
        seam::at(Call::Recv)?;
        let before = buf.len();
        let fd = self.0.source.fd.as_fd();
        match weir_sys::datagram::receive(fd, buf) {
            Ok(received) => {
                budget::spend_call(buf.len() - before);
                Ok(Some(received))
            }
            Err(e) => self.nothing(e),
        }
    }

    /// As [`Datagram::try_recv_from`], for a connected socket. Returns the datagram's length.
    pub fn try_recv(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
        if !self.0.source.is(Ready::READABLE) {
            return Ok(None);
        }
        seam::at(Call::Recv)?;
        let fd = &self.0.source.fd;
        match rustix::net::recv(fd, spare_capacity(buf), RecvFlags::empty()) {
            Ok((n, _)) => {
                budget::spend_call(n);
                Ok(Some(n))
            }
            Err(e) => self.nothing(e.into()),
        }
    }

    /// Handles a failed receive. An error of an earlier datagram, such as "connection refused", is
    /// reported once.
    fn nothing<T>(&self, e: io::Error) -> io::Result<Option<T>> {
        match e.kind() {
            io::ErrorKind::WouldBlock => {
                self.0.exhausted(Ready::READABLE);
                Ok(None)
            }
            io::ErrorKind::Interrupted => Ok(None),
            _ => {
                self.0.exhausted(Ready::ERR);
                Err(e)
            }
        }
    }

    /// Calls `receive` with the socket if it may be readable. Never waits: `None` if nothing is
    /// there.
    pub fn try_receive<T>(
        &self,
        receive: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        if !self.0.source.is(Ready::READABLE) {
            return Ok(None);
        }
        seam::at(Call::Recv)?;
        match receive(self.0.source.fd.as_fd()) {
            Ok(received) => Ok(Some(received)),
            Err(e) => self.nothing(e),
        }
    }

    /// Calls `send` with the socket. Never waits: `None` if the send buffer is full.
    pub fn try_send_by<T>(
        &self,
        send: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        if !self.0.source.is(Ready::WRITE) {
            return Ok(None);
        }
        seam::at(Call::Send)?;
        match send(self.0.source.fd.as_fd()) {
            Ok(sent) => Ok(Some(sent)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.0.exhausted(Ready::WRITE);
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Ready when there may be room to send. Fails when the deadline passes.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.0.source.is(Ready::WRITE) {
            return Poll::Ready(Ok(()));
        }
        self.0.wait_write(cx)
    }

    /// Ready when the deadline has passed.
    pub fn poll_deadline(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.0.expired() {
            return Poll::Ready(());
        }
        self.0.h.0.waiters.register(&self.0.source.reader, cx, &self.0.h.0.tasks);
        Poll::Pending
    }

    /// As [`crate::Stream::set_timeout`].
    pub fn set_timeout(&self, after: Option<Duration>) {
        self.0.set_timeout(after);
    }

    /// This end's address.
    pub fn local_addr(&self) -> io::Result<SocketAddrAny> {
        Ok(rustix::net::getsockname(self)?)
    }

    /// Sends one datagram to `to`, or to the address that the socket is connected to.
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

    /// As [`Datagram::send_to`]. Never waits: `None` if the send buffer is full.
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
}

impl AsFd for Datagram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.source.fd.as_fd()
    }
}
