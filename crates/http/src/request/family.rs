//! What a request knows of being a subrequest, and what a client's request and its subrequests share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weir_log::Log;

use crate::request::contexts::Contexts;
use crate::request::pipe::{Pipe, Subrequest};

/// How deep subrequests may make subrequests.
pub const DEPTH: u8 = 51;

/// What makes a request a subrequest.
pub struct Sub {
    pub sink: Sink,
    /// How many more may stand inside it.
    pub depth: u8,
    /// What takes the place of an empty body or of an error.
    pub stub: Option<Stub>,
    /// It stands in the location of the request that it is made for, behind all phases but the last.
    pub clone: bool,
    /// It is the client's own request, which goes on after its answer.
    pub own: bool,
    /// The client may leave: it was never to hear of it.
    pub unheard: bool,
    /// An end with a status has neither a page nor an error page of the configuration: the caller looks at the status.
    pub pageless: bool,
    /// The method of the client's own request.
    pub method: Vec<u8>,
    /// The charset of the client's answer, which its body may become a part of.
    pub charset: Vec<u8>,
    /// The error log of the client's own request; `None` where this is that request.
    pub error_log: Option<Arc<Log>>,
    pub _counted: Counted,
}

/// Where a subrequest's body goes.
pub enum Sink {
    /// Into the body of the request that it is made for.
    Parent(Rc<Pipe>),
    /// Into memory, this much at the most.
    Memory { body: Vec<u8>, limit: u64 },
    /// Into memory, this much at the most, for the caller.
    Value { body: Vec<u8>, limit: u64, whole: bool },
    /// It is thrown away.
    Nowhere,
}

/// A body for a subrequest that has none.
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
    /// Subrequests without a reader, from all of the family: the client's request ends after them.
    pub background: RefCell<Vec<Subrequest>>,
    /// What modules keep for all of them.
    pub contexts: RefCell<Contexts>,
}

/// One of the subrequests that count.
pub struct Counted(Rc<Family>);

impl Counted {
    /// Counts one more.
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
    /// Of a request that goes on after its answer: what it says goes nowhere.
    pub fn unheard(family: Rc<Family>, method: Vec<u8>) -> Sub {
        Sub {
            sink: Sink::Nowhere,
            depth: DEPTH,
            stub: None,
            clone: false,
            own: true,
            unheard: true,
            pageless: false,
            method,
            charset: Vec::new(),
            error_log: None,
            _counted: Counted::new(family),
        }
    }
}
