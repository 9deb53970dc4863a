//! HTTP/2 to servers: RFC 9113 from the client's side. nginx: ngx_http_proxy_v2_module.
//!
//! A connection is a task (`task`) that owns its socket: it reads frames (`reader`) and sends what
//! waits in the `link::Link`, which its streams share. A request holds a [`Stream`]. A head and
//! pieces of a body enter it; the answer's heads leave it, written as HTTP/1 writes them, and then
//! its body. A stream's window is what its request has room for, so that a slow client stalls no
//! other stream of the connection; the connection's own window is never short. A request that is
//! given up resets its stream and nothing else.
//!
//! The connections of a loop to the servers of a group are [`Links`].

mod ending;
mod link;
mod links;
mod message;
mod open;
mod reader;
mod stream;
mod task;

pub use link::Link;
pub use links::Links;
pub use open::{open, start};
pub use stream::{Room, Sender, Stream};
