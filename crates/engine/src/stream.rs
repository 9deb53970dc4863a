//! A connected socket in a loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, SocketAddrAny, sockopt};

use crate::Handle;
use crate::ready::Ready;
use crate::source::{Fd, Registered};

/// A connected, non-blocking stream socket in a loop. When dropped, it leaves the loop and closes.
///
/// One task may receive while another one sends. If two tasks wait to receive, only the last one is
/// woken.
pub struct Stream(pub(crate) Registered);

impl Handle {
    /// Adds a connected, non-blocking socket to the loop. It joins the backend once a task waits
    /// for it. So a connection that is served and closed before saves these system calls.
    pub fn stream(&self, fd: OwnedFd) -> io::Result<Stream> {
        // Another loop of the group may steal it.
        let fd = match self.0.steal_group {
            Some(_) => Fd::Shared(Arc::new(fd)),
            None => Fd::Own(fd),
        };
        Ok(Stream(self.0.enter(self, fd, Ready::READ.and(Ready::WRITE))?))
    }

    /// As [`Handle::stream`], for a socket that stands in for those of many connections. Nothing
    /// may wait for it.
    pub fn stream_in_place(&self, fd: Arc<OwnedFd>) -> io::Result<Stream> {
        Ok(Stream(self.0.enter(self, Fd::Shared(fd), Ready::READ.and(Ready::WRITE))?))
    }

    /// As [`Handle::stream`], for a socket that may still be registered in another loop of the
    /// process, which has to drop it: see [`Stream::shared`].
    pub fn stream_shared(&self, fd: Arc<OwnedFd>) -> io::Result<Stream> {
        Ok(Stream(self.0.register(self, Fd::Shared(fd), Ready::WRITE)?))
    }
}

impl Stream {
    /// Makes every operation that waits on this stream fail with [`io::ErrorKind::TimedOut`] once
    /// `at` has passed. To move the deadline later, or remove it, is only a store.
    pub fn set_deadline(&self, at: Option<Instant>) {
        self.0.set_deadline(at);
    }

    /// As [`Stream::set_deadline`], counted from [`Handle::now`], at less cost.
    pub fn set_timeout(&self, after: Option<Duration>) {
        self.0.set_timeout(after);
    }

    /// The loop of this stream.
    pub fn handle(&self) -> &Handle {
        &self.0.h
    }

    /// The descriptor, if the stream was made to be shared ([`crate::ConnectOptions::shared`]).
    /// Another loop may take the socket over at once; this loop drops its stream when it learns of
    /// that. Until then both loops receive events, but only the new owner may read.
    pub fn shared(&self) -> Option<Arc<OwnedFd>> {
        match &self.0.source.fd {
            Fd::Own(_) => None,
            Fd::Shared(fd) => Some(Arc::clone(fd)),
        }
    }

    /// Removes the socket from this loop, for another one: see [`Handle::stream`].
    pub fn into_fd(self) -> io::Result<OwnedFd> {
        self.0.into_fd().ok_or_else(|| io::ErrorKind::ResourceBusy.into())
    }

    /// Closes the sending side; shutdown(2).
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(self, Shutdown::Write)?)
    }

    /// This end's address.
    pub fn local_addr(&self) -> io::Result<SocketAddrAny> {
        Ok(rustix::net::getsockname(self)?)
    }

    /// Sets `TCP_NODELAY`. Fails on a Unix-domain socket.
    pub fn nodelay(&self, on: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_nodelay(self, on)?)
    }

    /// Takes the socket's pending error (`SO_ERROR`).
    pub fn so_error(&self) -> io::Result<()> {
        Ok(sockopt::socket_error(self)??)
    }

    /// Makes close(2) discard unsent bytes and reset the connection; nginx:
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
