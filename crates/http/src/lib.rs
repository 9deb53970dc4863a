//! HTTP: connection, request, phases, location tree, variables and modules.
//!
//! The way in is [`configure`], which turns the `http` block of a configuration into a [`Site`], and
//! [`Worker::accepted`], which gives an accepted socket to the site. Everything between is one request's
//! way: `connection` reads bytes and parks idle sockets, `request` is what is known of one request,
//! `phases` carries it through the handlers that `modules/mod.rs` lists, `output` sends what they answer.

mod address;
mod answer_head;
mod body;
mod cidr;
mod configure;
mod connection;
mod directory;
mod doing;
mod encoding;
mod escape;
mod files;
mod filters;
mod forwarded;
#[cfg(test)]
mod fuzz;
mod headers;
mod http2;
mod listen;
mod location;
mod mime;
pub mod modules;
mod names;
mod output;
mod phases;
mod plan;
mod post_action;
mod precompressed;
mod presence;
mod regex;
mod request;
mod request_head;
mod resolver;
mod response;
mod scope;
mod site;
mod special;
mod subrequest;
mod table;
mod temp_file;
mod template;
#[cfg(test)]
mod trial;
mod upstream;
mod user_agent;
mod variables;
mod worker;
mod zones;

pub use address::Address;
pub use configure::{Inputs, configure};
pub use listen::{Keepalive, Listen};
pub use modules::built;
pub use site::Site;
pub use temp_file::TempPath;
pub use worker::{Identity, Retire, Worker};

/// weir's own version, as `Server:` and the error pages show it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The nginx release whose behaviour weir follows; scripts read it from `$nginx_version`.
pub const NGINX_VERSION: &str = "1.31.5";
