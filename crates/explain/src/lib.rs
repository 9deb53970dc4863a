//! `weir explain`: what a configuration does with a request.
//!
//! The site itself serves the request ([`weir_http::explain`]), so there are no rules of its own here for servers, locations and
//! rewrites. `ask` makes the request, `settings` finds in the text of the configuration what holds where it
//! arrived, `report` shows it.

mod ask;
mod command;
mod report;
mod settings;

pub use command::{Options, explain};
