//! HTTP/2: frames and the compression of fields. RFC 9113 and RFC 7541.
//!
//! This module knows no streams: the server or client decides what a frame does to a connection.

pub mod frame;
pub mod hpack;
