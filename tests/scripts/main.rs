//! Servers behind that speak no HTTP: what they are asked, what clients get of their answers, and
//! what becomes of a request to a server that lies.

mod fastcgi;
mod heads;
mod memcached;
mod php;
mod plain;

use weir_testkit::{Dir, Server};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A server with `http` in its `http` block and `locations` in its one server.
fn start(http: &str, locations: &str) -> Server {
    Server::with_locations(Dir::new(), WEIR, http, locations)
}
