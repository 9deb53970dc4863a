//! Master, workers, signals and reload. Carries out the decisions of accept policies by engine
//! calls.
//!
//! [`run`] is the whole program: `cli` reads the arguments, `boot` decides what this process is,
//! `cycle` reads a configuration and opens its sockets, `master` starts and watches workers,
//! `worker` runs the loops, `listen` does what the accept policy says.
//!
//! - In: command line, configuration, signals, accepted sockets.
//! - Out: an exit code; each accepted socket goes to `http` or `stream`.
//! - Callers: the binary `weir`. `explain` and `sim` use parts of it.

mod boot;
mod change;
mod channel;
mod cli;
mod config;
mod cycle;
mod daemon;
mod directories;
mod embedded;
#[cfg(feature = "sim")]
mod generations;
mod health;
mod inherit;
mod judge;
mod listen;
mod master;
mod modules;
mod paths;
mod pidfile;
mod service;
mod signals;
mod single;
mod sockets;
mod status;
mod trial;
mod version;
mod worker;

pub use boot::{run, run_in_memory};
pub use cycle::{built, help};
pub use embedded::InMemory;
#[cfg(feature = "sim")]
pub use generations::Generations;
pub use judge::{Unjudged, judge};
pub use version::{FLAGS, Flag};
/// All variables of requests that exist without a directive.
pub use weir_http::variables;
/// All variables of sessions that exist without a directive.
pub use weir_stream::variables as session_variables;
