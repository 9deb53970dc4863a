//! A connection of a client, as its streams see it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;
use std::rc::Rc;

use weir_http2::PeerState;
use weir_proto::http2::frame;

use super::stream::{Stream, WrongLength, still_announced};
use crate::carrier::Conn;
use crate::event_loop::{LoopState, OnRetire};
use crate::site::Server;
use crate::site::core::Http2;

/// Of the streams that this end has given up, so many are remembered.
const RESETS: usize = 128;

/// A stream that this end has given up.
struct Past {
    id: u32,
    /// What is still to come of its body, if that was announced.
    announced: Option<u64>,
}

/// What a frame for a stream that does not live any more is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Late {
    /// It was on its way.
    Expected,
    /// It makes the body longer or shorter than it was said to be.
    WrongLength,
    /// The client had ended the stream itself.
    Unexpected,
}

/// What the client has done as long as the connection lives, whether or not there are streams.
#[derive(Default)]
pub struct Ledger {
    /// Streams that this end has given up: frames for them may still be on their way.
    resets: RefCell<VecDeque<Past>>,
    /// Answers that were begun.
    pub answers: Cell<u64>,
    /// Requests as large as they are: what flood is measured against.
    pub payload: Cell<u64>,
}

/// A connection, as its streams see it.
pub struct Link {
    /// The connection.
    pub conn: Rc<Conn>,
    /// The server with the settings for the connection as a whole.
    server: Cell<&'static Server>,
    /// What both ends have of it.
    shared: weir_http2::Link<Stream>,
    /// What outlives the streams.
    pub ledger: Ledger,
    /// This loop's state with the newest site, which owns what `server` borrows from.
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

    /// This loop's state with the newest site. What waits does not hold it meanwhile.
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

    /// Frames for the stream may come for a while; `announced` is what its body still lacks.
    pub fn note_reset(&self, id: u32, announced: Option<u64>) {
        let mut resets = self.ledger.resets.borrow_mut();
        if resets.len() >= RESETS {
            resets.pop_front();
        }
        resets.push_back(Past { id, announced });
    }

    /// The client has given the stream up itself: nothing is on its way any more.
    pub fn forget_reset(&self, id: u32) {
        self.ledger.resets.borrow_mut().retain(|past| past.id != id);
    }

    /// A piece of a body came for a stream that does not live.
    pub fn late_data(&self, id: u32, len: usize, last: bool) -> Late {
        let mut resets = self.ledger.resets.borrow_mut();
        let Some(past) = resets.iter_mut().find(|past| past.id == id) else {
            return Late::Unexpected;
        };
        match still_announced(past.announced, len, last) {
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

    /// Takes apart what stays of it, if no other task holds it.
    pub fn part(self: Rc<Self>) -> Option<(Conn, PeerState, Ledger)> {
        let Link { conn, shared, ledger, .. } = Rc::into_inner(self)?;
        ledger.resets.borrow_mut().shrink_to_fit();
        Some((Rc::into_inner(conn)?, shared.into_peer(), ledger))
    }

    /// The connection is no more: all its streams end.
    pub fn fail(&self) {
        for stream in self.all() {
            stream.fail();
        }
    }
}
