//! Many handshakes at a time, and what they cost others.

use std::io::Write;
use std::net::TcpStream;

use rustix::process::Signal;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use weir_testkit::Client;

use super::{NAME, config, start};

const RUSH: usize = 200;

/// Their hellos have come before a request on another connection, all while the loop was away: when that request is
/// answered, most of the handshakes are still to come.
#[test]
fn a_rush_of_handshakes_lets_others_go_first() {
    let server = start("server { listen 127.0.0.1:%%PORT1%%; stub_status; }", "");
    let mut plain = Client::connect(server.port_at(1));
    let connect = |_| TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let clients: Vec<TcpStream> = (0..RUSH).map(connect).collect();
    let all = format!("Active connections: {} ", RUSH + 1);
    while !plain.get("/").body().starts_with(&all) {}

    let worker = server.workers()[0];
    server.signal_worker(worker, Signal::STOP);
    for mut client in &clients {
        let name = ServerName::try_from(NAME).unwrap();
        let mut hello = Vec::new();
        ClientConnection::new(config(), name).unwrap().write_tls(&mut hello).unwrap();
        client.write_all(&hello).unwrap();
    }
    plain.deliver("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    server.signal_worker(worker, Signal::CONT);
    plain.response();
    let answered = clients.iter().filter(|client| {
        client.set_nonblocking(true).unwrap();
        client.peek(&mut [0]).is_ok_and(|n| n > 0)
    });
    let answered = answered.count();
    assert!(answered < RUSH / 2, "{answered} handshakes went first");
}
