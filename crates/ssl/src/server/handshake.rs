//! A handshake that scripts may change.

use std::sync::Arc;

use weir_tls::RawHello;

use super::context::ServerContext;
use super::decided::Decided;

/// The state of a handshake, and what was decided.
#[derive(Default)]
pub struct Handshake {
    /// The ClientHello.
    pub hello: RawHello,
    /// The settings that scripts may change.
    pub context: Option<Arc<ServerContext>>,
    /// The decisions.
    pub decided: Decided,
    /// The phase, as log lines name it behind their text.
    pub place: &'static str,
    /// The decision is abandoned if the client closes the socket.
    pub is_watched: bool,
}
