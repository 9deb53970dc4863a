//! Connections of HTTP/2, for both ends: what the streams of one share. RFC 9113.
//!
//! A connection is a task. Its [`Pipe`] holds the bytes that come and go, and [`Frames`] makes sense of those that come:
//! what is the connection's own they do by themselves, what is about streams goes to an [`FrameHandler`].
//! The frames that wait to be sent stand in an [`Outbox`], which the task empties; all that its streams say in
//! one turn of the loop leaves with one send. A [`Link`] is the connection as its streams see it: those that live, the
//! windows, and the streams that wait for room. What an end adds to a stream, it says by [`Stream`].

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
pub use way::{Pause, SendWindow, Stream, poll_room, read_ahead, send, send_now, send_some};
