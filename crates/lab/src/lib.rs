//! `weir lab`: published experiments, repeated on this machine with weir, nginx or both.
//!
//! An experiment (`experiments`) states its question and the published results, starts servers
//! (`program`, `running`), and loads them with `weir-bench`. It returns a `finding`: an answer in a
//! line, tables, a `chart` or two, raw data. `report` makes one page of all. The server knows
//! nothing of this crate.
//!
//! - In: names of experiments and programs of servers.
//! - Out: findings as text, tables of raw data, and one page.
//! - Callers: the binary `weir`.

mod chart;
mod command;
mod comparison;
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
