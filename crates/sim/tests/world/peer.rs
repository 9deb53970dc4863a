//! The peers at the other ends of the server's connections.

use std::os::fd::OwnedFd;

use crate::client::Client;
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
