//! The groups of a configuration: `upstream { }` blocks and hosts without a block, for all modules
//! that proxy. What a module adds to a group, such as `sticky`, is a type parameter.

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
    BlockDigest, GroupExtras, GroupId, GroupZone, HashKey, InheritedSettings, QueueSettings,
    Upstream, UpstreamBlock, Upstreams,
};
pub use server::server;
pub use url::{Host, Url};
