//! The event loop: backends, operations, timers, executor, file pool, clock.
//!
//! One thread, one loop, one backend. Each turn waits, accepts, serves what is ready, runs
//! expired timers, and goes back to the wait. A connection that is being served is a future on
//! the loop's own executor; between requests it is a [`Stream`] parked with an [`Idle`] value,
//! without task and buffer. Nothing here knows HTTP or how connections are spread: the
//! [`Driver`] decides when listeners are armed and what an accepted socket becomes.
//!
//! Operations take buffers by value and give them back ([`Stream::recv`]), so that a backend may
//! either perform them at once, as those that report readiness do, or own the buffer until the
//! kernel completes.
//!
//! - In: a driver, listening sockets, tasks, and messages of other threads.
//! - Out: accepted sockets and events for the driver; the results of operations for tasks.
//! - Callers: `server` makes and runs loops; `http`, `stream` and their helpers use handles and streams. A tool has a loop of its own.

mod backend;
pub mod beside;
mod boxed;
mod budget;
mod buffers;
mod callbacks;
mod chain;
mod clock;
pub mod copies;
mod deliver;
mod driver;
mod either;
mod executor;
mod file_ways;
mod files;
mod handle;
mod heavy;
mod inner;
mod lap;
mod limit;
mod operation;
mod ops;
mod options;
mod outside;
mod park;
mod ready;
mod remote;
mod run;
mod runqueue;
mod seam;
mod sleep;
mod slots;
mod source;
mod steal;
mod stream;
mod timers;
mod token;
mod waiter;
mod warm;

#[cfg(test)]
mod tests;

pub use backend::kind::BackendKind;
pub use boxed::Boxed;
pub use budget::{Breathe, breathe, is_spent, spend, unbounded, yield_now};
pub use callbacks::{Idle, Joined, Wake};
pub use chain::{Chain, FileWay, Segment};
pub use clock::{Wall, coarse_nanos, system_time};
pub use driver::{Driver, Turn};
pub use either::{Either, First, either};
pub use files::{
    Doer, FileInfo, FileKind, FilePool, Files, Offload, OpenFile, OpenHow, Place, PoolState, Rank,
    RunningOperation, Touches, WeakFilePool, file_operation,
};
pub use handle::Handle;
pub use heavy::Heavy;
pub use lap::Timekeeper;
pub use limit::NoSlot;
pub use operation::{block, longest_operation, operation};
pub use ops::connect::{ConnectOptions, Unbound};
pub use ops::datagram::{Answering, Datagram, Received};
pub use ops::join::Lent;
pub use ops::ready::{Closed, Readable, Writable};
pub use ops::recv::Recv;
pub use ops::rest::{Offered, Pause};
pub use ops::send::{Patience, Send, truncated, truncated_file};
pub use options::Options;
pub use outside::{Arm, ListenerKey, WatchKey};
pub use remote::Remote;
pub use run::{Loop, born, unix_sockets_share_addresses};
pub use runqueue::waited_for_processor;
pub use rustix::net::SocketAddrAny;
#[cfg(feature = "sim")]
pub use seam::{Call, sim};
pub use sleep::Sleep;
pub use steal::{StealCounts, StealGroup};
pub use stream::Stream;
pub use weir_sys::pagecache::Framing;
