//! HTTP/2: frames and the compression of fields. RFC 9113 and RFC 7541.
//!
//! Nothing here knows of streams: what a frame does to a connection is the business of whoever serves it.

pub mod frame;
pub mod hpack;
