//! Connections of HTTP/2, for both ends: what the streams of one share. RFC 9113.
//!
//! A connection is a task. Its [`Pipe`] holds the bytes that come and go, and [`Frames`] reads the
//! frames. It handles those of the connection itself, and gives those of streams to a
//! [`FrameHandler`]. The frames that wait to be sent stand in an [`Outbox`], which the task
//! empties; all frames of one turn of the loop leave with one send. A [`Link`] is the connection as
//! its streams see it: the open streams, the windows, and the streams that wait for room. Each end
//! adds its part of a stream by [`Stream`].
//!
//! - In: bytes of a peer, and the frames that streams want to send.
//! - Out: frames for the handler of each end, and bytes in the order in which they leave.
//! - Callers: `http`, whose `http2` serves clients and whose `upstream/http2` asks servers.

mod frames;
mod link;
mod outbox;
mod pipe;
mod way;

#[cfg(test)]
mod fuzz;

pub use frames::{
    Block, BodyPiece, Broken, FrameHandler, Frames, ReadResult, ReaderHistory, Wrong,
};
pub use link::{Link, PeerState};
pub use outbox::{Outbox, wait, wake};
pub use pipe::Pipe;
pub use way::{
    Pause, SendWindow, Stream, gather, needs_file, poll_room, send, send_now, send_some, send_with,
};
