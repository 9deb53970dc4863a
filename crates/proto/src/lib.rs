//! Wire formats: bytes in, events out.
//!
//! Nothing here reads, writes, waits or asks a clock. Parsers take the bytes received so far and
//! answer with [`Span`]s into them; what they accept and refuse is what nginx accepts and refuses.
//!
//! - In: bytes from the wire, or values to write.
//! - Out: events and spans, an error with its kind, or bytes for the wire.
//! - Callers: every crate that speaks a protocol.

pub mod base64;
pub mod client_hello;
mod compression;
pub mod conditional;
pub mod date;
pub mod dns;
pub mod fastcgi;
#[cfg(test)]
mod fuzz;
pub mod http1;
pub mod http2;
pub mod http3;
mod kept;
pub mod mail;
pub mod memcached;
pub mod mp4;
pub mod otlp;
pub mod pairs;
pub mod proxy_protocol;
pub mod range;
pub mod scgi;
mod span;
pub mod trace_context;
pub mod uri;
pub mod uwsgi;

pub use kept::Renew;
pub use span::Span;
