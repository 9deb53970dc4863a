//! The groups of a configuration: `upstream { }`, and hosts that are named without, for all who pass something to
//! servers. What binds a client to a server is the business of who passes; here it is any type.

mod bind;
pub mod dynamic;
mod groups;
pub mod methods;
mod recall;
mod server;
mod url;

pub use bind::Bind;
pub use groups::{
    Around, Drafts, GroupId, HashKey, Queued, Upstream, UpstreamBlock, Upstreams, Zoned,
};
pub use server::server;
pub use url::{Host, Url};
