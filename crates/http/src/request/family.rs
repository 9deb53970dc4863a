//! Subrequests: their own facts, and what they share with the client's request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weir_log::Log;

use crate::request::contexts::Contexts;
use crate::request::pipe::{Pipe, Subrequest};

/// The deepest nesting of subrequests.
pub const DEPTH: u8 = 51;

/// The facts of a subrequest.
pub struct Sub {
    pub sink: Sink,
    /// How many more levels may be nested in it.
    pub depth: u8,
    /// The body in place of an empty one or of an error.
    pub stub: Option<Stub>,
    /// It begins in its parent's location, and skips all phases before the content phase.
    pub clone: bool,
    /// It is the client's own request, which continues after its answer.
    pub own: bool,
    /// The client never gets its answer, so that it goes on if the client leaves.
    pub detached: bool,
    /// An error has neither a page nor an `error_page`: the caller reads the status.
    pub pageless: bool,
    /// The method of the client's own request.
    pub method: Vec<u8>,
    /// The charset of the client's answer, if its body becomes a part of that.
    pub charset: Vec<u8>,
    /// The error log of the client's own request. None if this is that request.
    pub error_log: Option<Arc<Log>>,
    pub _counted: Counted,
}

/// Where a subrequest's body goes.
pub enum Sink {
    /// Into the body of the request that it is made for.
    Parent(Rc<Pipe>),
    /// Into memory, up to a limit.
    Memory { body: Vec<u8>, limit: u64 },
    /// Into memory, up to a limit, for the caller.
    Value { body: Vec<u8>, limit: u64, whole: bool },
    /// It is discarded.
    Nowhere,
}

/// The body of a subrequest whose own is empty.
pub struct Stub {
    /// The bytes.
    pub body: Vec<Bytes>,
    /// Their type.
    pub content_type: Vec<u8>,
}

/// What a client's request and its subrequests share.
#[derive(Default)]
pub struct Family {
    /// Subrequests that have not ended.
    pub live: Cell<u32>,
    /// Subrequests whose answers are not read. The client's request ends after them.
    pub background: RefCell<Vec<Subrequest>>,
    /// Contexts that all of them share.
    pub contexts: RefCell<Contexts>,
}

/// Counts a live subrequest until it is dropped.
pub struct Counted(Rc<Family>);

impl Counted {
    /// Counts a subrequest.
    pub fn new(family: Rc<Family>) -> Counted {
        family.live.set(family.live.get() + 1);
        Counted(family)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.live.set(self.0.live.get().saturating_sub(1));
    }
}

impl Sub {
    /// The facts of a request that continues after its answer. Its further output is discarded.
    pub fn detached(family: Rc<Family>, method: Vec<u8>) -> Sub {
        Sub {
            sink: Sink::Nowhere,
            depth: DEPTH,
            stub: None,
            clone: false,
            own: true,
            detached: true,
            pageless: false,
            method,
            charset: Vec::new(),
            error_log: None,
            _counted: Counted::new(family),
        }
    }
}
