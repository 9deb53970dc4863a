//! HTTP/2 to clients: RFC 9113. nginx: ngx_http_v2_module.
//!
//! A connection is one task (`serve`). It reads frames (`reader`), and sends the frames that wait in
//! the `Link`, which its streams share. Each request is a task of its own (`request`): the same
//! [`crate::request::Request`] as over HTTP/1. Its body comes from its `Stream`, and its answer
//! becomes frames in the link's buffer (`carrier/framed.rs`). A connection without streams gives up
//! its task after a while (`parked`). The frames that all tasks write in one turn of the loop are
//! sent with one call.

mod link;
mod parked;
mod reader;
mod request;
mod serve;
mod stream;

pub use parked::is_parked;
pub use serve::{Greeting, greeting, serve};
