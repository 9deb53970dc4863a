//! A client's connection of HTTP/2: the state that its streams share.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;
use std::rc::Rc;

use weir_http2::PeerState;
use weir_proto::http2::frame;

use super::stream::{Stream, WrongLength, content_left};
use crate::carrier::Conn;
use crate::event_loop::{LoopState, OnRetire};
use crate::site::Server;
use crate::site::core::Http2;

/// The most reset streams that are remembered.
const RESETS: usize = 128;

/// A stream that the server has reset.
struct Past {
    id: u32,
    /// The content-length of its body, less the received bytes.
    announced: Option<u64>,
}

/// The meaning of a DATA frame for a stream that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Late {
    /// The client may have sent it before it received RST_STREAM.
    Expected,
    /// The body's length is not its content-length.
    WrongLength,
    /// The client has closed the stream itself, or it was reset too long ago.
    Unexpected,
}

/// The account of the client's streams, which a parked connection keeps.
#[derive(Default)]
pub struct Ledger {
    /// Streams that the server has reset. Frames for them may be in flight.
    resets: RefCell<VecDeque<Past>>,
    /// The number of answers that were begun.
    pub answers: Cell<u64>,
}

/// The state that the streams of a connection share.
pub struct Link {
    /// The connection.
    pub conn: Rc<Conn>,
    /// The server with the settings for the connection as a whole.
    server: Cell<&'static Server>,
    /// The part that clients and servers share.
    shared: weir_http2::Link<Stream>,
    /// The account of the client's streams.
    pub ledger: Ledger,
    /// This loop's state with the newest site. It owns the site that `server` borrows from.
    event_loop: RefCell<Rc<LoopState>>,
}

impl Deref for Link {
    type Target = weir_http2::Link<Stream>;

    fn deref(&self) -> &Self::Target {
        &self.shared
    }
}

impl OnRetire for Link {
    fn retiring(&self) {
        self.out.signal();
    }

    fn replaced(&self, next: &Rc<LoopState>) {
        self.server.set(next.site.default_server(&self.conn));
        self.event_loop.replace(next.clone());
    }
}

impl Link {
    /// A connection without streams.
    pub fn new(
        conn: Rc<Conn>,
        event_loop: Rc<LoopState>,
        peer: PeerState,
        ledger: Ledger,
    ) -> Rc<Link> {
        let event_loop = event_loop.newest();
        let server = event_loop.site.default_server(&conn);
        let chunk = event_loop.site.location(server.location).conf.core.http2.chunk_size;
        let chunk = usize::try_from(chunk).unwrap_or(frame::MAX_PAYLOAD);
        let shared = weir_http2::Link::new(event_loop.handle.clone(), peer, chunk);
        let (server, event_loop) = (Cell::new(server), RefCell::new(event_loop));
        Rc::new(Link { server, shared, ledger, conn, event_loop })
    }

    /// This loop's state with the newest site. A task must not hold it while it waits.
    pub fn event_loop(&self) -> Rc<LoopState> {
        self.event_loop.borrow().clone()
    }

    /// The server with the settings for the connection as a whole, until the connection waits again.
    pub fn server(&self) -> &'static Server {
        self.server.get()
    }

    /// Settings of the connection, until it waits again.
    pub fn conf(&self) -> &'static crate::site::settings::LocationConf {
        let site = self.event_loop.borrow().site;
        &site.location(self.server.get().location).conf
    }

    /// `http2_*` of the connection, until it waits again.
    pub fn v2(&self) -> &'static Http2 {
        &self.conf().core.http2
    }

    /// Remembers a reset stream: its frames may be in flight. `announced` is the rest of its body.
    pub fn note_reset(&self, id: u32, announced: Option<u64>) {
        let mut resets = self.ledger.resets.borrow_mut();
        if resets.len() >= RESETS {
            resets.pop_front();
        }
        resets.push_back(Past { id, announced });
    }

    /// Forgets a reset stream after the client's RST_STREAM: no more frames follow.
    pub fn forget_reset(&self, id: u32) {
        self.ledger.resets.borrow_mut().retain(|past| past.id != id);
    }

    /// Judges DATA for a stream that has ended.
    pub fn late_data(&self, id: u32, len: usize, last: bool) -> Late {
        let mut resets = self.ledger.resets.borrow_mut();
        let Some(past) = resets.iter_mut().find(|past| past.id == id) else {
            return Late::Unexpected;
        };
        match content_left(past.announced, len, last) {
            Ok(left) => {
                past.announced = left;
                Late::Expected
            }
            Err(WrongLength) => {
                past.announced = None;
                Late::WrongLength
            }
        }
    }

    /// Returns the parts that a parked connection keeps, if no other task holds the link.
    pub fn part(self: Rc<Self>) -> Option<(Conn, PeerState, Ledger)> {
        let Link { conn, shared, ledger, .. } = Rc::into_inner(self)?;
        ledger.resets.borrow_mut().shrink_to_fit();
        Some((Rc::into_inner(conn)?, shared.into_peer(), ledger))
    }

    /// Ends all streams, since the connection has ended.
    pub fn fail(&self) {
        for stream in self.all() {
            stream.fail();
        }
    }
}
