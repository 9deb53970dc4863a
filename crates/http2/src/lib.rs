//! Connections of HTTP/2, for both ends: what the streams of one share, whoever asked for it. RFC 9113.
//!
//! The frames that wait to be sent stand in an [`Outbox`], which the connection's task empties; all that its streams say in
//! one turn of the loop leaves with one send. A [`Link`] is the connection as its streams see it: those that live, the
//! windows, and who waits for room. What an end adds to a stream, it says by [`Stream`].

mod link;
mod outbox;
mod way;

pub use link::{Link, Peer};
pub use outbox::{Outbox, wait, wake};
pub use way::{Stream, Way, send, send_now};
