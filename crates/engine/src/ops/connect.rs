//! Connecting to a peer.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketFlags, SocketType, sockopt};

use weir_sys::sockopt::{set_bind_address_no_port, set_transparent};

use crate::ready::Ready;
use crate::seam::{self, Call};
use crate::source::Fd;
use crate::{Handle, Stream};

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The local address; nginx: `proxy_bind`.
    pub bind: Option<SocketAddrAny>,
    /// When the attempt fails. It stays the stream's deadline.
    pub deadline: Option<Instant>,
    /// Allows a local address that is not this host's; nginx: `proxy_bind ... transparent`.
    pub transparent: bool,
    /// The kernel's receive buffer, in bytes.
    pub rcvbuf: Option<usize>,
    /// The kernel's send buffer, in bytes.
    pub sndbuf: Option<usize>,
    /// Keep-alive probes; nginx: `proxy_socket_keepalive`.
    pub keepalive: bool,
    /// Whether other loops of the process may take over the socket: see [`Stream::shared`].
    pub shared: bool,
}

/// The error of a connection whose local address cannot be bound. It says nothing about the peer.
#[derive(Debug)]
pub struct Unbound {
    /// The address.
    pub local: String,
    /// The reason.
    pub errno: Errno,
}

impl Unbound {
    fn error(local: &SocketAddrAny, errno: Errno) -> io::Error {
        let local = match SocketAddr::try_from(local.clone()) {
            Ok(SocketAddr::V6(address)) if address.port() == 0 => format!("[{}]", address.ip()),
            Ok(address) if address.port() == 0 => address.ip().to_string(),
            Ok(address) => address.to_string(),
            Err(_) => String::new(),
        };
        io::Error::other(Unbound { local, errno })
    }
}

impl fmt::Display for Unbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bind({}): {}", self.local, self.errno)
    }
}

impl std::error::Error for Unbound {}

impl Handle {
    /// Connects to a TCP or Unix-domain address. Fails with [`crate::NoSlot`] if the loop may have
    /// no more sockets.
    pub async fn connect(&self, to: &SocketAddrAny, how: &ConnectOptions) -> io::Result<Stream> {
        let (stream, connected) = self.start_connect(to, how)?;
        stream.set_deadline(how.deadline);
        if !connected {
            stream.writable().await?;
            stream.so_error()?;
        }
        Ok(stream)
    }

    /// Returns the stream, and whether it is already connected.
    fn start_connect(
        &self,
        to: &SocketAddrAny,
        how: &ConnectOptions,
    ) -> io::Result<(Stream, bool)> {
        self.take_slot()?;
        let fd = socket(to, SocketType::STREAM, how)?;
        seam::connected(&fd);
        let connected = match rustix::net::connect(&fd, to) {
            Ok(()) => true,
            Err(Errno::INPROGRESS | Errno::INTR) => false,
            Err(e) => return Err(e.into()),
        };
        let ready = if connected { Ready::WRITE } else { Ready::NONE };
        let fd = if how.shared { Fd::Shared(Arc::new(fd)) } else { Fd::Own(fd) };
        Ok((Stream(self.0.register(self, fd, ready)?), connected))
    }
}

/// Makes an unconnected socket with the options of `how`.
pub(super) fn socket(
    to: &SocketAddrAny,
    kind: SocketType,
    how: &ConnectOptions,
) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let family = to.address_family();
    seam::at(Call::Connect)?;
    let fd = rustix::net::socket_with(family, kind, flags, None)?;
    if let Some(bytes) = how.rcvbuf {
        sockopt::set_socket_recv_buffer_size(&fd, bytes)?;
    }
    if let Some(bytes) = how.sndbuf {
        sockopt::set_socket_send_buffer_size(&fd, bytes)?;
    }
    if how.keepalive {
        sockopt::set_socket_keepalive(&fd, true)?;
    }
    if let Some(local) = &how.bind {
        if how.transparent {
            let set = set_transparent(fd.as_fd(), family == AddressFamily::INET6);
            let errno = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::INVAL);
            set.map_err(|e| Unbound::error(local, errno(e)))?;
        }
        share_port(&fd, kind, local)?;
        rustix::net::bind(&fd, local).map_err(|errno| Unbound::error(local, errno))?;
    }
    Ok(fd)
}

/// Lets a socket have the local port of others, as far as their peers differ.
fn share_port(fd: &OwnedFd, kind: SocketType, local: &SocketAddrAny) -> io::Result<()> {
    match SocketAddr::try_from(local.clone()).map(|local| local.port()) {
        // The kernel chooses the port when the peer is known. If it does not have the option, it
        // chooses at once, and each port serves one peer.
        Ok(0) => drop(set_bind_address_no_port(fd.as_fd())),
        // Sessions of several clients may have the same local port.
        Ok(_) if kind == SocketType::DGRAM => sockopt::set_socket_reuseaddr(fd, true)?,
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_chosen_when_the_peer_is_known() {
        let peer: SocketAddr =
            std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let local: SocketAddr = "127.0.0.2:0".parse().unwrap();
        let how = ConnectOptions { bind: Some(local.into()), ..ConnectOptions::default() };
        let fd = socket(&peer.into(), SocketType::STREAM, &how).unwrap();
        let bound = SocketAddr::try_from(rustix::net::getsockname(&fd).unwrap()).unwrap();
        assert_eq!(bound, local);
    }
}
