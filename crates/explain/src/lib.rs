//! `weir explain`: shows what a configuration does with a request.
//!
//! The site itself serves the request ([`weir_http::explain`]). So this crate has no rules of its
//! own for servers, locations and rewrites. `ask` builds the request. `settings` finds the
//! directives in force at its location. `report` shows the result.
//!
//! - In: a configuration file and a URL.
//! - Out: the server, the location, the path and the settings in force, as text or JSON.
//! - Callers: the binary `weir`.

mod ask;
mod command;
mod report;
mod settings;

pub use command::{Options, explain};
