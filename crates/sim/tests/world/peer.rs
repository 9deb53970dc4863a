//! The peers of the server: clients and upstream servers.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::client::Client;
use crate::course::Course;
use crate::http1_server::Http1Server;
use crate::http2_server::Http2Server;
use crate::multiplexed::Multiplexed;
use crate::wire::Wire;

pub enum Peer {
    Client(Box<Client>),
    Multiplexed(Box<Multiplexed>),
    Http1Server(Box<Http1Server>),
    Http2Server(Box<Http2Server>),
}

impl Peer {
    pub fn wire(&mut self) -> &mut Wire {
        match self {
            Peer::Client(client) => &mut client.wire,
            Peer::Multiplexed(client) => &mut client.wire,
            Peer::Http1Server(served) => &mut served.wire,
            Peer::Http2Server(origin) => &mut origin.wire,
        }
    }

    /// The connection of a client.
    pub fn client(&self) -> Option<&OwnedFd> {
        match self {
            Peer::Client(client) => Some(&client.wire.fd),
            Peer::Multiplexed(client) => Some(&client.wire.fd),
            Peer::Http1Server(_) | Peer::Http2Server(_) => None,
        }
    }

    /// Notes that the worker of the connection was killed.
    pub fn worker_killed(&mut self) {
        match self {
            Peer::Client(client) => client.worker_killed(),
            Peer::Multiplexed(client) => client.worker_killed(),
            Peer::Http1Server(_) | Peer::Http2Server(_) => {}
        }
    }

    pub fn is_done(&self) -> bool {
        match self {
            Peer::Client(client) => client.done,
            Peer::Multiplexed(client) => client.done,
            Peer::Http1Server(served) => served.done,
            Peer::Http2Server(origin) => origin.done,
        }
    }
}

impl Course {
    /// Connects to the server. `None` if its accept queue is full.
    pub fn connect(&mut self) -> Option<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let kind = SocketType::STREAM;
        let fd =
            rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).expect("a socket");
        // With several queues, the choice stands for the kernel's hash.
        let accept_queue = self.dice.below(self.plan.config.accept_queues);
        let name = if accept_queue > 0 { format!("s.{accept_queue}") } else { "s".to_owned() };
        let to = SocketAddrUnix::new(self.home.join(name)).expect("an address");
        match rustix::net::connect(&fd, &to) {
            Ok(()) => {
                self.world.arrive(accept_queue);
                Some(fd)
            }
            Err(Errno::AGAIN) => None,
            Err(e) => {
                self.records.report(format!("cannot connect: {e}"));
                None
            }
        }
    }
}

/// A listening socket at a path.
pub fn accept_queue(path: &Path) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let fd = fd.expect("a socket");
    let address = SocketAddrUnix::new(path).expect("an address");
    rustix::net::bind(&fd, &address).expect("a name");
    rustix::net::listen(&fd, 500).expect("a listening socket");
    fd
}
