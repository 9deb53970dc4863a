//! Sessions of datagrams: `listen ... udp`.
//!
//! **A session belongs to the loop with the socket that gets its client's datagrams.** Every loop
//! has a socket of its own for a port of UDP, all bound to it with SO_REUSEPORT. The kernel chooses
//! among them by the addresses of both ends: as long as the loops are the same, so is the loop. So
//! a loop finds its sessions in a table of its own, and no datagram goes from loop to loop. (nginx
//! does so where `reuseport` is said, and begins a second session without.)
//!
//! A socket connected to each client would be the alternative. It has four faults. A worker that
//! has given up its privileges may not bind one to port 53. It costs a descriptor and five calls
//! for a client that may ask once. What arrives before it is connected comes to the wrong socket.
//! Kernels up to 6.13 find the sockets of one port by looking at them one by one.
//!
//! At a reload the loops stop receiving at once: what comes waits for the new ones, in the same sockets. Sessions that
//! have begun still get the answers that their clients wait for, within `proxy_timeout`, and end.

mod flow;
mod pass;
mod receive;
mod table;

use std::cell::RefCell;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use weir_engine::Datagram;
use weir_log::OncePerSecond;
use weir_values::Address;

pub use self::flow::Flow;
pub use self::pass::converse;
use self::table::FlowTable;
use crate::event_loop::LoopState;

/// The longest datagram.
const LONGEST: usize = 65_535;
/// So many datagrams that wait are taken when a port is left: more keep coming for ever.
const REST: usize = 1024;

/// The ends of a session: which socket, which of its addresses, which client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FlowKey {
    listen: usize,
    asked: Option<IpAddr>,
    peer: Address,
}

/// What a loop knows of its sessions.
pub struct Sessions {
    table: RefCell<FlowTable<FlowKey, Rc<Flow>>>,
    ports: RefCell<Vec<Rc<DatagramPort>>>,
    /// Where datagrams are received, one after the other.
    scratch: RefCell<Vec<u8>>,
    said_full: OncePerSecond,
}

/// A socket that datagrams come to.
struct DatagramPort {
    listen: usize,
    fd: Arc<OwnedFd>,
    /// Until the loop leaves it.
    socket: RefCell<Option<Rc<Datagram>>>,
    waker: RefCell<Option<Waker>>,
}

/// A session in its loop's table, until it is dropped.
pub struct FlowGuard {
    /// The loop.
    pub event_loop: Rc<LoopState>,
    /// The session.
    pub flow: Rc<Flow>,
}

impl Drop for FlowGuard {
    fn drop(&mut self) {
        self.event_loop.datagrams.table.borrow_mut().end(self.flow.id);
    }
}

/// How a loop leaves a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// Others receive from it.
    ToOthers,
    /// No loop reads it any more: what waits there is taken, and the port is to be free soon.
    ForGood,
}

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions {
            table: RefCell::new(FlowTable::new(1)),
            ports: RefCell::default(),
            scratch: RefCell::default(),
            said_full: OncePerSecond::default(),
        }
    }
}
