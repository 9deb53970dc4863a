//! Connections of HTTP/2 (RFC 9113): the part that clients and servers share.
//!
//! A connection is a task. Its [`Pipe`] holds received and unsent bytes, and [`Frames`] parses the
//! frames. It handles frames of the connection itself, and passes those of streams to a
//! [`FrameHandler`]. Frames to be sent are in an [`Outbox`], which the task empties. So all frames
//! of one turn of the loop are sent with one call. A [`Link`] is the state that streams share: the
//! open streams, the flow-control windows, and the queue of streams that wait to send. Each end
//! adds its part of a stream by [`Stream`].
//!
//! - In: bytes from a peer, and frames from streams.
//! - Out: frames for the handler of each end, and bytes for the peer in their order.
//! - Callers: `http`, whose `http2` serves clients and whose `upstream/http2` sends requests to servers.

mod frames;
mod link;
mod outbox;
mod pipe;
mod send;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

pub use frames::{
    Block, BodyPiece, ConnectionError, FrameFault, FrameHandler, Frames, ReadResult, ReaderHistory,
};
pub use link::{Link, PeerState};
pub use outbox::{Outbox, wait, wake};
pub use pipe::Pipe;
pub use send::{
    Pause, SendWindow, Stream, gather, needs_file, poll_room, send, send_now, send_some, send_with,
};
