//! HTTP: connection, request, phases, location tree, variables and modules.
//!
//! The way in is [`configure`], which turns the `http` block of a configuration into a [`Site`], and
//! [`LoopState::accepted`], which gives an accepted socket to the site. Everything between is one request's
//! way: `connection` reads bytes and parks idle sockets, `request` is what is known of one request,
//! `phases` carries it through the handlers that `modules/mod.rs` lists, `answer` is what they answer and sends
//! it, and `upstream` asks other servers. `config` reads the `http` block, `site` is what it becomes.
//!
//! # The order of the folders
//!
//! A folder may name those of its own level and of lower ones. `tests/architecture` reads the imports and fails on an arrow up.
//!
//! 1. What a request is, how it is carried, and the site that serves it: `request`, `carrier`, `site`, `variables`,
//!    `body`, `answer`, `files`, `counts`, `doing`, `secret`, `event_loop`
//! 2. Phases, subrequests and configuration: `phases`, `subrequest`, `core`, `config`
//! 3. Connections, which bring requests: `connection`, `http2`, `http3`
//! 4. Other servers, and the cache: `upstream`
//! 5. Modules, which only the list in `modules/mod.rs` names: `modules`
//! 6. What looks at a site from outside: `explain`
//!
//! # What enters, what leaves
//!
//! - In: the `http` block, accepted sockets, and other servers' answers.
//! - Out: answers, log lines, counts, and spans.
//! - Callers: `server`. `explain` serves one request up to its location.

mod answer;
mod body;
mod carrier;
mod config;
mod connection;
mod core;
mod counts;
mod doing;
mod event_loop;
pub mod explain;
mod files;
#[cfg(test)]
mod fuzz;
mod http2;
mod http3;
pub mod modules;
mod phases;
mod request;
mod secret;
mod site;
mod subrequest;
#[cfg(test)]
mod trial;
mod upstream;
mod variables;

use std::rc::Rc;

use weir_ssl::scripted::SessionScripts;
use weir_values::{address, cidr, escape, forwarded, listen, names, regex, zones};

pub use config::Inputs;
pub use files::temp_file::TempPath;
pub use site::Site;
pub use site::core::VERSION;
pub use upstream::groups::{in_files as groups_in_files, of as groups};

pub use event_loop::{AskChange, LoopState, Tell};
pub use http3::{
    Hosts as QuicHosts, OtherLoops, host_key, host_key_of, make_host_key, take_host_key,
};
pub use modules::acme::issuers;
pub use modules::built;
pub use weir_quic::{ANY_GENERATION, ID_LENGTH as QUIC_ID_LENGTH, Packet, Place as QuicPlace};
pub use weir_values::listen::Protocols;
pub use weir_values::listen::{Keepalive, Listen};
pub use weir_values::{Address, Identity, Retire};

/// Reads an `http` block. Adds the warnings, also those before an error.
pub fn configure(
    block: &weir_conf::Directive,
    inputs: Inputs<'_>,
    warnings: &mut Vec<weir_conf::Error>,
) -> Result<Site, weir_conf::Error> {
    config::configure(block, inputs, &modules::MODULES, warnings)
}

/// Whether a `stream` block has scripts, which `http` runs.
pub fn has_scripts(stream: &weir_conf::Directive) -> bool {
    modules::lua::is_used_by_sessions(stream)
}

/// Runs the scripts of sessions on this loop, if there are any.
pub fn session_scripts(event_loop: &LoopState) -> Option<Rc<dyn SessionScripts>> {
    modules::lua::SessionRunner::of(event_loop).map(|runner| Rc::new(runner) as _)
}

/// The indexes of listening sockets that this loop must not accept from, since a script said so
/// before the loop began to listen.
pub fn declined(event_loop: &LoopState) -> Vec<usize> {
    modules::lua::declined(event_loop)
}

/// The number of connections of the privileged agent, if a script of this process has enabled it.
pub fn wanted_agent() -> Option<usize> {
    modules::lua::wanted_agent()
}

/// The names of all variables that exist without a directive.
pub fn variables() -> Vec<String> {
    config::variables(&modules::MODULES)
}
