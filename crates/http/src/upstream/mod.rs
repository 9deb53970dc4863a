//! Proxying to upstream servers: the part that all protocols share. nginx: ngx_http_upstream.c and
//! ngx_http_file_cache.c.
//!
//! A protocol implements [`Protocol`] and calls [`driver::serve`], which asks the cache and the
//! servers, and sends the answer.

pub mod cache;
pub mod cgi;
pub mod choosing;
mod client;
mod connect;
pub mod counts;
pub mod destination;
pub mod driver;
mod exchange;
mod fault;
pub mod figures;
pub mod groups;
mod head;
pub mod health;
pub mod http;
mod http2;
pub mod names;
pub mod pass;
pub mod passing;
mod pieces;
pub mod pools;
pub mod process;
pub mod protocol;
mod relay;
mod seen;
mod source;
pub mod sticky;
pub mod store;
pub mod tls;
mod transport;
pub mod upload;
mod waiting;

pub use fault::Doing;
pub use passing::UpstreamConf;
pub use protocol::{
    Answer, AnswerError, Extra, Found, Outgoing, OutgoingError, Protocol, Reader, Taken,
};
pub use seen::reading;
pub use weir_upstream::config::GroupId;

/// Addresses of servers, as written in configurations.
pub mod url {
    pub use weir_upstream::config::{Host, Url};
}
