//! Stream sessions: TCP connections and UDP datagrams that are relayed to an upstream server,
//! answered with a text, served by a script, or passed to another listener.
//!
//! The entry points are [`configure`], which turns the `stream` block of a configuration into a
//! [`Site`], and [`LoopState::accepted`], which gives an accepted socket to the site. `serve` runs
//! one session through its phases; `proxy` relays it. The crates `weir-values` and `weir-upstream`
//! have what sessions share with HTTP requests.
//!
//! - In: the `stream` block, accepted sockets, datagrams.
//! - Out: sessions with servers, log lines, counts.
//! - Callers: `server`.

mod chooser;
mod config;
mod counts;
mod datagrams;
mod directives;
mod event_loop;
mod health;
mod preread;
mod proxy;
mod script_directives;
mod scripted_handshake;
mod scripts;
mod serve;
mod session;
mod settings;
mod site;
mod start;
mod status;
mod tls;
mod variables;

pub use config::configure;
pub use datagrams::Leaving;
pub use directives::{StreamDirective, directive};
pub use event_loop::{ListenerLookup, LoopState};
pub use site::Site;
pub use variables::names as variables;

/// nginx's names of the modules that weir has for sessions.
pub const MODULES: &[&str] = &[
    "stream",
    "stream_access",
    "stream_geo",
    "stream_geoip",
    "stream_geoip2",
    "stream_limit_conn",
    "stream_log",
    "stream_lua",
    "stream_map",
    "stream_pass",
    "stream_proxy",
    "stream_realip",
    "stream_return",
    "stream_set",
    "stream_split_clients",
    "stream_ssl",
    "stream_ssl_preread",
    "stream_upstream_hash",
    "stream_upstream_least_conn",
    "stream_upstream_least_time",
    "stream_upstream_random",
    "stream_upstream_zone",
];
