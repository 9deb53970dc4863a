//! `weir lab`: the experiments that its field has published, repeated on this machine with weir, nginx or both.
//!
//! An experiment (`experiments`) states its question and what others saw, starts servers
//! (`program`, `running`), loads them with `weir-bench`, and returns a `finding`: an answer in a line, tables,
//! a `chart` or two, raw data. `report` makes one page of all. Nothing here is known to the server.

mod chart;
mod command;
mod doctor;
mod experiment;
mod experiments;
mod explain;
mod finding;
mod haproxy;
mod hindered;
mod lab;
mod program;
mod report;
mod running;
mod slow_disk;

#[cfg(test)]
mod tests;

pub use command::{Options, lab};
