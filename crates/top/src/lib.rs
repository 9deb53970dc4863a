//! `weir top`: a running weir in a terminal, from the data of `weir_status json` and
//! `weir_dashboard`.
//!
//! A snapshot has counters; the screen shows the difference of two. `fetch` gets snapshots,
//! `snapshot` is their form, `figures` makes rates of two of them, `plain` and `screen` show these.
//!
//! - In: the address of a status page. Out: a screen, or lines of text.
//! - Callers: the binary `weir`.

mod command;
mod fetch;
mod figures;
mod plain;
mod screen;
mod snapshot;
#[cfg(test)]
mod tests;
mod words;

pub use command::{Options, top};
