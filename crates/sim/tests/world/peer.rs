//! The peers at the other ends of the server's connections.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::client::Client;
use crate::course::Course;
use crate::multiplexed::Multiplexed;
use crate::origin::Origin;
use crate::server::Served;
use crate::wire::Wire;

pub enum Peer {
    Client(Box<Client>),
    Multiplexed(Box<Multiplexed>),
    Server(Box<Served>),
    Origin(Box<Origin>),
}

impl Peer {
    pub fn wire(&mut self) -> &mut Wire {
        match self {
            Peer::Client(client) => &mut client.wire,
            Peer::Multiplexed(client) => &mut client.wire,
            Peer::Server(served) => &mut served.wire,
            Peer::Origin(origin) => &mut origin.wire,
        }
    }

    /// A client's connection.
    pub fn client(&self) -> Option<&OwnedFd> {
        match self {
            Peer::Client(client) => Some(&client.wire.fd),
            Peer::Multiplexed(client) => Some(&client.wire.fd),
            Peer::Server(_) | Peer::Origin(_) => None,
        }
    }

    /// The worker that served it was killed.
    pub fn is_bereft(&mut self) {
        match self {
            Peer::Client(client) => client.is_bereft(),
            Peer::Multiplexed(client) => client.is_bereft(),
            Peer::Server(_) | Peer::Origin(_) => {}
        }
    }

    pub fn is_done(&self) -> bool {
        match self {
            Peer::Client(client) => client.done,
            Peer::Multiplexed(client) => client.done,
            Peer::Server(served) => served.done,
            Peer::Origin(origin) => origin.done,
        }
    }
}

impl Course {
    /// Connects to the server. None if it has no room now.
    pub fn connect(&mut self) -> Option<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let kind = SocketType::STREAM;
        let fd =
            rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).expect("a socket");
        // With several queues, the kernel chooses by its hash.
        let accept_queue = self.dice.below(self.fate.config.accept_queues);
        let name = if accept_queue > 0 { format!("s.{accept_queue}") } else { "s".to_owned() };
        let to = SocketAddrUnix::new(self.home.join(name)).expect("an address");
        match rustix::net::connect(&fd, &to) {
            Ok(()) => {
                self.world.arrive(accept_queue);
                Some(fd)
            }
            Err(Errno::AGAIN) => None,
            Err(e) => {
                self.book.find(format!("cannot connect: {e}"));
                None
            }
        }
    }
}
