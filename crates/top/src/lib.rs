//! `weir top`: shows a running weir in a terminal, from the data of `weir_status json` or
//! `weir_dashboard`.
//!
//! A snapshot has counters, and the screen shows the difference between two. `fetch` fetches
//! snapshots, `snapshot` defines their form, `values` computes rates, `plain` and `screen` show
//! them.
//!
//! - In: the address of a status page. Out: a screen, or lines of text.
//! - Callers: the binary `weir`.

mod command;
mod fetch;
mod plain;
mod screen;
mod snapshot;
#[cfg(test)]
mod tests;
mod values;
mod words;

pub use command::{Options, top};
