//! The second half of the house: servers that requests are passed to, and what all modules that pass requests have
//! in common. nginx: ngx_http_upstream.c and ngx_http_file_cache.c.
//!
//! A protocol implements [`Protocol`] and calls [`driver::serve`].

mod attempt;
pub mod body;
pub mod cache;
mod client;
mod connect;
pub mod driver;
pub mod dynamic;
mod exchange;
mod fault;
pub mod groups;
mod head;
pub mod health;
mod http2;
mod line;
pub mod lookup;
pub mod names;
pub mod passing;
mod pieces;
mod pools;
mod protocol;
mod recall;
mod relay;
mod response;
mod source;
pub mod sticky;
pub mod store;
pub mod tls;
mod tunnel;
pub mod url;
mod waiting;

pub use attempt::{Attempt, Context};
pub use groups::{Block, Drafts, GroupId, Upstreams};
pub use health::{Match, start as start_checks};
pub use passing::Passing;
pub use pools::Pools;
pub use protocol::{Answer, Found, Outgoing, Protocol, Taken};
pub use response::content_type as set_content_type;
