//! HTTP/3 to clients: RFC 9114, over `weir_quic`. nginx: ngx_http_v3_module.
//!
//! A [`Host`] is what a loop has of a `listen ... quic`: it admits connections, and chooses their TLS by the name that the client
//! gives. Each connection is a [`link::Link`], which hears what QUIC brings: streams in one direction are the connection's own
//! (`control`), each of the others is a request (`stream`, `request`): the same [`crate::request::Request`] as over HTTP/1.
//! Nothing here has a task of its own except requests; the endpoint's task calls.

mod choose;
mod control;
mod host;
mod link;
mod request;
mod stream;

pub use host::{Hosts, OtherLoops, host_key, host_key_of, make_host_key, take_host_key};

/// What HTTP/0.9 over QUIC is called in a handshake: tests of QUIC speak it.
pub const HQ: &[u8] = b"hq-interop";
