//! The handlers and filters that a location needs. The others are not called there.

use crate::request::step::{
    Handler, HandshakeHandler, HeaderFilter, LogHandler, Named, TrailerFilter,
};

/// The handlers of each phase, and the filters, that a location's settings need, in the order of
/// the list of modules. `config` makes it.
#[derive(Debug, Default)]
pub struct Plan {
    /// See [`crate::config::module::Phases::client_hello`]. In the plan of the server's own
    /// location.
    pub client_hello: Box<[Named<HandshakeHandler>]>,
    /// See [`crate::config::module::Phases::session_fetch`]. In the plan of the server's own
    /// location.
    pub session_fetch: Box<[Named<HandshakeHandler>]>,
    /// See [`crate::config::module::Phases::session_store`]. In the plan of the server's own
    /// location.
    pub session_store: Box<[Named<HandshakeHandler>]>,
    /// See [`crate::config::module::Phases::certificate`]. In the plan of the server's own
    /// location.
    pub certificate: Box<[Named<HandshakeHandler>]>,
    /// See [`crate::config::module::Phases::post_read`]. In the plan of the server's own location.
    pub post_read: Box<[Named<Handler>]>,
    /// See [`crate::config::module::Phases::server_rewrite`]. In the plan of the server's own
    /// location.
    pub server_rewrite: Box<[Named<Handler>]>,
    /// See [`crate::config::module::Phases::rewrite`].
    pub rewrite: Box<[Named<Handler>]>,
    /// See [`crate::config::module::Phases::rewritten`].
    pub rewritten: Box<[Named<Handler>]>,
    /// See [`crate::config::module::Phases::preaccess`].
    pub preaccess: Box<[Named<Handler>]>,
    /// See [`crate::config::module::Phases::access`].
    pub access: Box<[Named<Handler>]>,
    /// See [`crate::config::module::Phases::precontent`].
    pub precontent: Box<[Named<Handler>]>,
    /// See [`crate::config::module::Phases::content`].
    pub content: Box<[Named<Handler>]>,
    /// See [`crate::config::module::Phases::log`].
    pub log: Box<[Named<LogHandler>]>,
    /// Header filters, which run before the head is sent.
    pub header_filters: Box<[Named<HeaderFilter>]>,
    /// Trailer filters, which run after the last of the body.
    pub trailer_filters: Box<[Named<TrailerFilter>]>,
}
