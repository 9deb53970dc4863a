//! Groups of servers that requests are passed to, and what all modules that pass requests have in common.
//! nginx: ngx_http_upstream_module, its balancing modules, and ngx_http_upstream.c, which they plug into.
//!
//! A protocol implements [`Protocol`] and calls [`driver::serve`].

use crate::modules::{Module, Settings};
use crate::scope::{Directive, Set};

mod attempt;
mod block;
pub mod body;
pub mod cache;
mod client;
mod connect;
pub mod driver;
pub mod dynamic;
mod fault;
mod groups;
mod head;
pub mod lookup;
pub mod passing;
mod pools;
mod protocol;
mod relay;
mod response;
mod source;
pub mod tls;
mod tunnel;
pub mod url;
mod variables;

pub use attempt::{Attempt, Context, Who};
pub use groups::{Block, Drafts, GroupId, Upstreams};
pub use passing::Passing;
pub use pools::Pools;
pub use protocol::{Answer, Found, Outgoing, Protocol, Taken};
pub use response::content_type as set_content_type;
pub use variables::prefixed;

/// Nothing of a location belongs to this module: its settings are those of the modules that pass.
#[derive(Debug, Clone, Default)]
pub struct Conf {}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "upstream",
        help: "A group of servers that requests are passed to.",
        set: Set::Block(block::upstream),
    },
    Directive {
        name: "hash",
        help: "A value chooses the server of the group; with `consistent`, by ketama's ring.",
        set: Set::Simple(block::hash),
    },
    Directive {
        name: "ip_hash",
        help: "The client's address chooses the server of the group.",
        set: Set::Simple(block::ip_hash),
    },
    Directive {
        name: "least_conn",
        help: "The server with the fewest connections for its weight is chosen.",
        set: Set::Simple(block::least_conn),
    },
    Directive {
        name: "least_time",
        help: "The server that answers soonest is chosen.",
        set: Set::Simple(block::least_time),
    },
    Directive {
        name: "random",
        help: "Chance chooses the server, or the less loaded of two.",
        set: Set::Simple(block::random),
    },
    Directive {
        name: "keepalive",
        help: "How many idle connections to the group's servers each loop keeps.",
        set: Set::Simple(block::keepalive),
    },
    Directive {
        name: "zone",
        help: "Accepted: the loops of a worker share the state of a group without it; workers do not.",
        set: Set::Simple(block::zone),
    },
];

/// The module.
pub const MODULE: Module = Module { name: "http_upstream", directives: DIRECTIVES, init };

/// nginx counts each way of balancing as a module of its own.
pub const ALSO: &[&str] = &[
    "http_upstream_hash",
    "http_upstream_ip_hash",
    "http_upstream_keepalive",
    "http_upstream_least_conn",
    "http_upstream_least_time",
    "http_upstream_random",
    "http_upstream_zone",
    "http_cache",
];

fn init(setup: &mut crate::configure::Setup<'_>) {
    variables::define(setup);
    cache::define(setup);
}
