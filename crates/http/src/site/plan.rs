//! Which handlers and filters a location needs: what is not configured there is not even asked.

use crate::request::step::{
    Handler, HandshakeHandler, HeaderFilter, LogHandler, Named, TrailerFilter,
};

/// The handlers of each phase, and the header filters, that a location's settings call for, in the order of the list of
/// modules. `config` makes it.
#[derive(Debug, Default)]
pub struct Plan {
    /// See [`crate::config::module::Phases::client_hello`]; asked of the server's own settings.
    pub client_hello: Box<[Named<HandshakeHandler>]>,
    /// See [`crate::config::module::Phases::session_fetch`]; asked of the server's own settings.
    pub session_fetch: Box<[Named<HandshakeHandler>]>,
    /// See [`crate::config::module::Phases::session_store`]; asked of the server's own settings.
    pub session_store: Box<[Named<HandshakeHandler>]>,
    /// See [`crate::config::module::Phases::certificate`]; asked of the server's own settings.
    pub certificate: Box<[Named<HandshakeHandler>]>,
    /// See [`crate::config::module::Phases::post_read`]; asked of the server's own settings.
    pub post_read: Box<[Named<Handler>]>,
    /// See [`crate::config::module::Phases::server_rewrite`]; asked of the server's own settings.
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
    /// What sees the response before its head is written.
    pub header_filters: Box<[Named<HeaderFilter>]>,
    /// What adds trailers behind the last of the body.
    pub trailer_filters: Box<[Named<TrailerFilter>]>,
}
