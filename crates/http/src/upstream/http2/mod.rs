//! HTTP/2 to servers: the client's side of RFC 9113. nginx: ngx_http_proxy_v2_module.
//!
//! A connection has a task (`task`) that owns its socket. It reads frames (`reader`) and sends the
//! output of the `link::Link`, which the streams share. A request holds a [`Stream`]. It writes a
//! head and pieces of a body, and reads the answer's heads, in HTTP/1 form, and then the body. A
//! stream's window is the room that its request has, so a slow client stalls no other stream of the
//! connection. The connection's own window is never short. A request that is dropped resets its
//! stream and nothing else.
//!
//! [`Links`] are the connections of a loop to the servers of a group.

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
