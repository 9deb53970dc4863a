//! A connection of a script: what carries it, and the bytes that arrived before the script asked.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;

use weir_tls::Wire;

use super::SocketError;
use super::pools::Slot;
use crate::carrier::Conn;

/// The transport of a connection.
pub(super) enum Carrying {
    /// A connection that the script opened.
    Own(Wire),
    /// The client's connection, which the script took over. It ends with the request.
    Client {
        /// The connection.
        conn: Rc<Conn>,
        /// `lua_check_client_abort`: the end of what the client sends is that of the client.
        aborts: bool,
    },
    /// The connection of a session's client.
    Session(Rc<Wire>),
}

impl Deref for Carrying {
    type Target = Wire;

    #[expect(clippy::disallowed_methods, reason = "the script takes the carrier's place")]
    fn deref(&self) -> &Wire {
        match self {
            Carrying::Own(wire) => wire,
            Carrying::Client { conn, .. } => conn.wire(),
            Carrying::Session(wire) => wire,
        }
    }
}

/// A connection, with the bytes that arrived and were not received by the script.
pub(super) struct Connection {
    pub(super) wire: Carrying,
    /// Its slot in a pool with a backlog.
    pub(super) slot: Option<Slot>,
    pub(super) unread: RefCell<Vec<u8>>,
    /// Whether a receive was given up. Its answer may still arrive.
    pub(super) receive_aborted: Cell<bool>,
    /// Whether a send was given up.
    pub(super) send_aborted: Cell<bool>,
    /// Whether the peer has closed its direction, or receiving failed. Sending may still work.
    pub(super) read_closed: Cell<bool>,
    /// Whether the peer has closed its direction, and the script was not told yet, since it has
    /// asked for all bytes.
    pub(super) read_ended: Cell<bool>,
    /// Whether sending failed. Bytes that arrived may still be received.
    pub(super) write_closed: Cell<bool>,
}

impl Connection {
    pub(super) fn own(wire: Wire, slot: Option<Slot>) -> Rc<Connection> {
        Connection::new(Carrying::Own(wire), slot)
    }

    pub(super) fn new(wire: Carrying, slot: Option<Slot>) -> Rc<Connection> {
        Rc::new(Connection {
            wire,
            slot,
            unread: RefCell::default(),
            receive_aborted: Cell::default(),
            send_aborted: Cell::default(),
            read_closed: Cell::default(),
            read_ended: Cell::default(),
            write_closed: Cell::default(),
        })
    }

    /// The error when the peer has closed its direction.
    pub(super) fn end(&self) -> SocketError {
        match self.wire {
            Carrying::Client { aborts: true, .. } => SocketError::Aborted,
            _ => SocketError::Closed,
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        !self.read_closed.get() && !self.read_ended.get() && !self.write_closed.get()
    }
}
