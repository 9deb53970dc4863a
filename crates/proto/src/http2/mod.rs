//! HTTP/2: frames and the compression of fields. RFC 9113 and RFC 7541.
//!
//! Nothing here knows of streams: the server or client decides what a frame does to a connection.

pub mod frame;
pub mod hpack;
