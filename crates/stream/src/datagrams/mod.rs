//! Sessions of datagrams: `listen ... udp`.
//!
//! **A session belongs to the loop whose socket receives its client's datagrams.** For each UDP
//! port, every loop has a socket of its own, bound with SO_REUSEPORT. The kernel chooses among
//! these sockets by the addresses and ports of both ends, so as long as the set of loops is the
//! same, a client's datagrams reach the same loop. Each loop has its own table of sessions, and no
//! datagram moves between loops. (nginx behaves so with `reuseport`. Without it, another worker may
//! receive a client's next datagram and begin a second session.)
//!
//! The alternative would be a connected socket for each client. It has four faults. A worker that
//! has given up its privileges may not bind one to port 53. It costs a descriptor and five system
//! calls for a client that may send a single datagram. Datagrams that arrive before the connect go
//! to the wrong socket. Kernels up to 6.13 search the sockets of one port linearly.
//!
//! At a reload the old loops stop receiving at once: datagrams wait in the same sockets for the new
//! loops. Running sessions still relay the answers that their clients wait for, within
//! `proxy_timeout`, and then end.

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
pub use self::pass::relay;
use self::table::FlowTable;
use crate::event_loop::LoopState;

/// The largest UDP datagram, in bytes.
const MAX_DATAGRAM: usize = 65_535;
/// How many waiting datagrams are received at most when a port is closed. Without a limit, a client
/// that keeps sending would keep the loop here.
const MAX_WAITING: usize = 1024;

/// What identifies a session: the listening socket, the local address, and the client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FlowKey {
    listen: usize,
    local_ip: Option<IpAddr>,
    peer: Address,
}

/// The datagram sessions of a loop.
pub struct Sessions {
    table: RefCell<FlowTable<FlowKey, Rc<Flow>>>,
    ports: RefCell<Vec<Rc<DatagramPort>>>,
    /// The receive buffer of all sockets.
    scratch: RefCell<Vec<u8>>,
    full_logged: OncePerSecond,
}

/// A listening UDP socket.
struct DatagramPort {
    listen: usize,
    fd: Arc<OwnedFd>,
    /// `None` once the loop has left the port.
    socket: RefCell<Option<Rc<Datagram>>>,
    waker: RefCell<Option<Waker>>,
}

/// A session's entry in its loop's table. Dropping the guard removes the entry.
pub struct FlowGuard {
    /// The loop.
    pub event_loop: Rc<LoopState>,
    /// The session.
    pub flow: Rc<Flow>,
}

impl Drop for FlowGuard {
    fn drop(&mut self) {
        self.event_loop.datagrams.table.borrow_mut().remove(self.flow.id);
    }
}

/// How a loop leaves a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// Other loops go on receiving from the socket.
    ToOthers,
    /// No loop receives from the socket any more: waiting datagrams are received now, and the port
    /// is to be free soon.
    ForGood,
}

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions {
            table: RefCell::new(FlowTable::new(1)),
            ports: RefCell::default(),
            scratch: RefCell::default(),
            full_logged: OncePerSecond::default(),
        }
    }
}
