//! HTTP/3 to clients: RFC 9114, over `weir_quic`. nginx: ngx_http_v3_module.
//!
//! A [`host::Host`] is a loop's part of a `listen ... quic`. It admits connections, and chooses their TLS configuration by the
//! server name. Each connection is a [`link::Link`], which receives QUIC's events. Unidirectional streams belong to the
//! connection (`control`). Each bidirectional stream is a request (`stream`, `request`): the same [`crate::request::Request`] as
//! over HTTP/1. Only requests have tasks; all else runs in the endpoint's task.

mod choose;
mod control;
mod host;
mod link;
mod request;
mod stream;

pub use host::{Hosts, OtherLoops, host_key, host_key_of, make_host_key, take_host_key};

/// The ALPN name of HTTP/0.9 over QUIC, which interoperability tests use.
pub const HQ: &[u8] = b"hq-interop";
