//! A connected socket in a loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, SocketAddrAny, sockopt};

use crate::Handle;
use crate::ready::Ready;
use crate::source::{Fd, Registered};

/// A connected, non-blocking stream socket of a loop; dropped, it leaves the loop and closes.
///
/// One task may receive and another may send; of two that receive, only the last is woken.
pub struct Stream(pub(crate) Registered);

impl Handle {
    /// Brings a connected, non-blocking socket into the loop. The kernel is asked to report it once
    /// a task waits for it; a connection that is served and closed before that costs nothing of it.
    pub fn stream(&self, fd: OwnedFd) -> io::Result<Stream> {
        // Another loop of the group may take it over.
        let fd = match self.0.steal_group {
            Some(_) => Fd::Shared(Arc::new(fd)),
            None => Fd::Own(fd),
        };
        Ok(Stream(self.0.enter(self, fd, Ready::READ.and(Ready::WRITE))?))
    }

    /// The same for a socket that stands in place of one in many connections, and on which nothing is waited for.
    pub fn stream_in_place(&self, fd: Arc<OwnedFd>) -> io::Result<Stream> {
        Ok(Stream(self.0.enter(self, Fd::Shared(fd), Ready::READ.and(Ready::WRITE))?))
    }

    /// The same for a socket that may still be in another loop of the process, which must forget it: see
    /// [`Stream::shared`].
    pub fn stream_shared(&self, fd: Arc<OwnedFd>) -> io::Result<Stream> {
        Ok(Stream(self.0.register(self, Fd::Shared(fd), Ready::WRITE)?))
    }
}

impl Stream {
    /// Every operation that waits on this stream fails with [`io::ErrorKind::TimedOut`] when
    /// `at` has passed. Moving the deadline later, or away, costs a store.
    pub fn set_deadline(&self, at: Option<Instant>) {
        self.0.set_deadline(at);
    }

    /// As [`Stream::set_deadline`], counted from [`Handle::now`], at less cost.
    pub fn set_timeout(&self, after: Option<Duration>) {
        self.0.set_timeout(after);
    }

    /// The loop that the stream is in.
    pub fn handle(&self) -> &Handle {
        &self.0.h
    }

    /// The descriptor, where the stream was made to be shared ([`crate::ConnectOptions::shared`]): another loop
    /// may take the socket over at once, and this one drops its stream when it hears of it. Until then both are
    /// told what comes, and only the new one may read it.
    pub fn shared(&self) -> Option<Arc<OwnedFd>> {
        match &self.0.source.fd {
            Fd::Own(_) => None,
            Fd::Shared(fd) => Some(Arc::clone(fd)),
        }
    }

    /// Takes the socket out of the loop, for another loop: see [`Handle::stream`].
    pub fn into_fd(self) -> io::Result<OwnedFd> {
        self.0.into_fd().ok_or_else(|| io::ErrorKind::ResourceBusy.into())
    }

    /// Tells the peer that nothing more will come.
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(self, Shutdown::Write)?)
    }

    /// This end's address.
    pub fn local_addr(&self) -> io::Result<SocketAddrAny> {
        Ok(rustix::net::getsockname(self)?)
    }

    /// The peer's address; none for an unnamed Unix-domain socket.
    pub fn peer_addr(&self) -> io::Result<Option<SocketAddrAny>> {
        Ok(rustix::net::getpeername(self)?)
    }

    /// `TCP_NODELAY`; an error on a Unix-domain socket.
    pub fn nodelay(&self, on: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_nodelay(self, on)?)
    }

    /// `TCP_CORK`; an error on a Unix-domain socket.
    pub fn cork(&self, on: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_cork(self, on)?)
    }

    /// The error that waits at the socket, if any; it is taken.
    pub fn so_error(&self) -> io::Result<()> {
        Ok(sockopt::socket_error(self)??)
    }

    /// Closing discards what is not sent and resets the connection; nginx:
    /// `reset_timedout_connection`.
    pub fn reset_on_close(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(self, Some(Duration::ZERO))?)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.source.fd.as_fd()
    }
}
