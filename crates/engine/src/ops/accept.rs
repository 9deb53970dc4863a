//! Accepting from a listening socket.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketAddrUnix, SocketFlags};

use crate::seam::{self, Call};
use crate::{Handle, ListenerKey};

impl Handle {
    /// Accepts a connection with its peer's address. The socket is non-blocking and close-on-exec.
    /// `None` if no connection waits, which is common: another loop may have been faster.
    pub fn accept(&self, listener: ListenerKey) -> io::Result<Option<(OwnedFd, SocketAddrAny)>> {
        let fd = self.0.listeners.borrow().get(listener.0).map(|l| l.fd.clone());
        let Some(fd) = fd else { return Ok(None) };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            match seam::at(Call::Accept).and_then(|()| rustix::net::acceptfrom_with(&fd, flags)) {
                Ok((socket, peer)) => {
                    seam::accepted(&fd, &socket);
                    self.0.accepts.set(self.0.accepts.get() + 1);
                    // Clients of Unix-domain sockets usually have no address.
                    let peer = peer.unwrap_or_else(|| SocketAddrUnix::new_unnamed().into());
                    return Ok(Some((socket, peer)));
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}
