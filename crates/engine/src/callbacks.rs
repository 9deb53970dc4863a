//! What a loop calls with its handle: parked connections, watches, and work from other threads.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use crate::{Handle, Stream};

/// A parked connection's state. `Send`, since another loop of the process may steal the connection
/// and resume it there ([`crate::Options::steal_group`]).
pub trait Idle: Any + Send {
    /// Resumes the connection. Dropping the stream closes it; its deadline is unset.
    fn resume(self: Box<Self>, h: &Handle, stream: Stream, why: Wake);

    /// True if the state depends on this loop, so that no other loop may take the connection.
    fn stays(&self) -> bool {
        false
    }
}

/// Two connections that relay to each other, such as a tunnel, while nothing is in flight. `Send`
/// as [`Idle`] is.
pub trait Joined: Any + Send {
    /// This loop has stolen both. The streams are in the order in which they were offered.
    fn go_on(self: Box<Self>, h: &Handle, streams: [Stream; 2]);
}

/// Why a parked connection is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// There is something to read, possibly the end of the stream or an error.
    Ready,
    /// The deadline has passed.
    Deadline,
    /// The loop needs the connection's slot for another one.
    Evicted,
    /// The loop is shutting down.
    Shutdown,
}

/// A closure that another thread sends to the loop.
pub(crate) type Post = Box<dyn FnOnce(&Handle) + Send>;

/// The callback of a watch.
pub(crate) type WatchCall = Box<dyn FnMut(&Handle)>;

/// A foreign descriptor that a loop watches.
pub(crate) struct Watch {
    pub(crate) fd: Arc<OwnedFd>,
    /// Absent while it runs.
    pub(crate) call: Option<WatchCall>,
}

/// Closes idle connections, so that there are free slots again.
pub(crate) type MakeRoom = Rc<dyn Fn(&Handle)>;
