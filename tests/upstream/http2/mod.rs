//! HTTP/2 to servers.

mod beside;
mod checks;
mod foreign;
mod hostile;
mod innocent;
pub mod peer;
mod streams;

use weir_testkit::{Client, Dir, Server};

use super::WEIR;
use peer::Peer;

/// A server with one loop that passes all to the group of `peer`, with `group` in it and `inside` in the location.
fn start(peer: &Peer, group: &str, inside: &str) -> Server {
    start_on(peer, "", group, inside)
}

/// The same, with `listen` behind the address.
fn start_on(peer: &Peer, listen: &str, group: &str, inside: &str) -> Server {
    start_all(peer, listen, group, &format!("location / {{ proxy_pass http://u; {inside} }}"))
}

/// The same with these locations.
fn start_all(peer: &Peer, listen: &str, group: &str, locations: &str) -> Server {
    let port = peer.port;
    let conf = format!(
        "worker_processes 1; worker_threads 1; events {{ }}
         http {{
             upstream u {{ server 127.0.0.1:{port}; {group} }}
             server {{
                 listen 127.0.0.1:%%PORT%% {listen};
                 proxy_http_version 2;
                 {locations}
             }}
         }}"
    );
    Server::start_in(Dir::new(), WEIR, &conf)
}

fn ask(server: &Server, path: &str) -> Client {
    let mut client = server.connect();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client
}

fn post(server: &Server, path: &str, body: &[u8]) -> Client {
    let mut client = server.connect();
    let len = body.len();
    client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n"));
    client.send(body);
    client
}
