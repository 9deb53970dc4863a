//! How many sockets a loop may have.

use std::fmt;
use std::io;
use std::rc::Rc;

use crate::Handle;
use crate::inner::SocketLimit;

/// Idle connections are ended when no more than this part of the sockets is left. nginx: ngx_drain_connections.
const SCARCE: usize = 16;

/// A connection did not come about since the loop has as many sockets as it may: what the error holds then.
#[derive(Clone, Copy, Debug)]
pub struct NoSlot {
    /// `worker_connections`
    pub most: usize,
}

impl fmt::Display for NoSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} worker_connections are not enough", self.most)
    }
}

impl std::error::Error for NoSlot {}

impl Handle {
    /// The sockets in the loop, those of clients and those of servers.
    pub fn sockets(&self) -> usize {
        self.0.sources.borrow().len()
    }

    /// The loop may have so many sockets. Where they become scarce, connecting has `make_room` end idle connections first,
    /// and then fails with [`NoSlot`]. Code that accepts asks [`Handle::sockets`].
    pub fn limit_sockets(&self, most: usize, make_room: Rc<dyn Fn(&Handle)>) {
        *self.0.limit.borrow_mut() = SocketLimit { most, make_room: Some(make_room) };
    }

    /// There may be one socket more. One is left for an accept: the connection may lead to this loop itself, which would
    /// wait for its own answer otherwise, without room to accept the connection.
    pub(crate) fn take_slot(&self) -> io::Result<()> {
        let most = self.0.limit.borrow().most;
        let left = || most.saturating_sub(self.sockets());
        if left() <= (most / SCARCE).max(1) {
            let make_room = self.0.limit.borrow().make_room.clone();
            make_room.inspect(|make_room| make_room(self));
        }
        if left() > 1 { Ok(()) } else { Err(io::Error::other(NoSlot { most })) }
    }
}
