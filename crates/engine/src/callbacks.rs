//! What a loop calls with its handle: parked connections, watches, and work from other threads.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use crate::{Handle, Stream};

/// What a connection is while it is parked. `Send`, since another loop of the process may take it
/// ([`crate::Options::steal_group`]) and resume it there.
pub trait Idle: Any + Send {
    /// The connection comes back to life. Dropping the stream closes it; its deadline is unset.
    fn resume(self: Box<Self>, h: &Handle, stream: Stream, why: Wake);

    /// No other loop may take it: something of it lies in this one.
    fn stays(&self) -> bool {
        false
    }
}

/// Two connections of which each takes what the other one sends, while nothing is on its way. `Send` as [`Idle`] is.
pub trait Joined: Any + Send {
    /// This loop has taken both, in the order in which they were offered.
    fn go_on(self: Box<Self>, h: &Handle, streams: [Stream; 2]);
}

/// Why a parked connection is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// There is something to read, possibly the end of the stream.
    Ready,
    /// The deadline has passed.
    Deadline,
    /// Its place is needed for another connection.
    Evicted,
    /// The loop is shutting down.
    Shutdown,
}

/// A closure that another thread sends to the loop.
pub(crate) type Post = Box<dyn FnOnce(&Handle) + Send>;

/// What a watch calls.
pub(crate) type WatchCall = Box<dyn FnMut(&Handle)>;

/// A foreign descriptor of a loop.
pub(crate) struct Watch {
    pub(crate) fd: Arc<OwnedFd>,
    /// Out while it runs.
    pub(crate) call: Option<WatchCall>,
}

/// Ends idle connections.
pub(crate) type MakeRoom = Rc<dyn Fn(&Handle)>;
