//! HTTP/2: frames (RFC 9113) and field compression (RFC 7541).
//!
//! This module knows no streams. Its caller decides about the effect of a frame.

pub mod frame;
pub mod hpack;
