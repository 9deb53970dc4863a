//! A handshake in which scripts decide.

use std::sync::Arc;

use weir_tls::RawHello;

use super::context::ServerContext;
use super::decided::Decided;

/// What is known and decided in a handshake.
#[derive(Default)]
pub struct Handshake {
    /// The client's first message.
    pub hello: RawHello,
    /// The settings that may be changed for it.
    pub context: Option<Arc<ServerContext>>,
    /// The changes.
    pub decided: Decided,
    /// What the log says behind the text of a line.
    pub place: &'static str,
    /// The decision is given up if the client closes the socket.
    pub is_watched: bool,
}
