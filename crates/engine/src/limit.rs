//! Limits the number of sockets of a loop; nginx: `worker_connections`.

use std::fmt;
use std::io;
use std::rc::Rc;

use crate::Handle;
use crate::inner::SocketLimit;

/// Idle connections are closed when at most one in this many of the sockets is free. nginx:
/// ngx_drain_connections.
const SCARCE_PART: usize = 16;

/// The error of a connection that was not opened because the loop has as many sockets as it may.
#[derive(Clone, Copy, Debug)]
pub struct NoSlot {
    /// nginx: `worker_connections`
    pub most: usize,
}

impl fmt::Display for NoSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} worker_connections are not enough", self.most)
    }
}

impl std::error::Error for NoSlot {}

impl Handle {
    /// The number of sockets in the loop, of clients and of servers.
    pub fn sockets(&self) -> usize {
        self.0.sources.borrow().len()
    }

    /// Limits the loop to `most` sockets. When few are free, connecting first calls `make_room`,
    /// which closes idle connections, and then fails with [`NoSlot`] if there are too few. Code
    /// that accepts checks [`Handle::sockets`] itself.
    pub fn limit_sockets(&self, most: usize, make_room: Rc<dyn Fn(&Handle)>) {
        *self.0.limit.borrow_mut() = SocketLimit { most, make_room: Some(make_room) };
    }

    /// Checks that the loop may open one more socket. One slot stays free for an accept: a
    /// connection may lead to this loop itself, which could not accept it otherwise and would wait
    /// for its own answer.
    pub(crate) fn take_slot(&self) -> io::Result<()> {
        let most = self.0.limit.borrow().most;
        let left = || most.saturating_sub(self.sockets());
        if left() <= (most / SCARCE_PART).max(1) {
            let make_room = self.0.limit.borrow().make_room.clone();
            make_room.inspect(|make_room| make_room(self));
        }
        if left() > 1 { Ok(()) } else { Err(io::Error::other(NoSlot { most })) }
    }
}
