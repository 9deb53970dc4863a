//! Groups of servers: what workers and configurations share of them, which server a client is bound
//! to, which requests wait.

mod blame;
mod bodies;
mod connections;
mod early;
mod failures;
mod grpc;
mod health;
mod http2;
mod limits;
mod lines;
mod methods;
mod names;
mod origin;
mod sharing;
mod spilled;
mod sticky;
mod store;
mod tunnel;

use weir_testkit::{Dir, Server};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A server with `http` in its `http` block, and one server that passes all to the upstream `u`.
fn start(main: &str, http: &str) -> Server {
    Server::start_in(Dir::new(), WEIR, &conf(main, http))
}

fn conf(main: &str, http: &str) -> String {
    format!(
        "{main} events {{ }}
         http {{
             {http}
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 location / {{ proxy_pass http://u; }}
             }}
         }}"
    )
}
