//! The groups of a configuration: `upstream { }`, and hosts that are named without a block, for all
//! modules that pass to servers. What binds a client to a server depends on the module; here it is
//! any type.

mod bind;
mod drafts;
pub mod dynamic;
mod groups;
pub mod methods;
mod recall;
mod server;
pub mod servers_file;
mod url;

pub use bind::Bind;
pub use drafts::{Drafts, GroupUses};
pub use groups::{
    Around, BlockDigest, GroupExtras, GroupId, HashKey, Queued, Upstream, UpstreamBlock, Upstreams,
    Zoned,
};
pub use server::server;
pub use url::{Host, Url};
