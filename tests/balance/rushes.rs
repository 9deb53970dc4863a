//! While short connections come fast, the kernel keeps silent ones until their first bytes are there.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;
use weir_testkit::{PATIENCE, Server, ServerSide, ask_until, server_side};

use crate::WEIR;

/// So many short connections in a row are a rush, as far as the machine is fast enough.
const RUSH: usize = 200;
/// A slow machine needs several.
const RUSHES: usize = 50;
/// So many clients connect before the first of them speaks.
const GROUP: usize = 8;

fn start(listen: &str) -> Server {
    let conf =
        format!("http {{ server {{ listen {listen}; location / {{ return 200 well; }} }} }}");
    Server::start(WEIR, &format!("worker_processes 1;\nevents {{ }}\n{conf}"))
}

fn connect(server: &Server) -> TcpStream {
    let client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

fn ask(mut client: TcpStream) {
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("well"), "{answer}");
}

/// A silent connection, right behind a rush of others.
fn after_a_rush(server: &Server) -> (TcpStream, Option<ServerSide>) {
    for _ in 0..RUSH {
        ask(connect(server));
    }
    let client = connect(server);
    let side = server_side(&client);
    (client, side)
}

fn is_kept(side: Option<ServerSide>) -> bool {
    side == Some(ServerSide::Handshake)
}

fn wait_accepted(client: &TcpStream) {
    assert!(ask_until(|| server_side(client) == Some(ServerSide::Accepted)));
}

#[test]
fn the_kernel_keeps_silent_connections_while_others_come_fast() {
    let server = start("127.0.0.1:%%PORT%%");
    let silent = connect(&server);
    wait_accepted(&silent);

    let mut rushes = (0..RUSHES).map(|_| after_a_rush(&server));
    let (kept, _) = rushes.find(|(_, side)| is_kept(*side)).expect("a connection that is kept");
    let (late, _) = rushes.find(|(_, side)| is_kept(*side)).expect("another");
    ask(kept);
    wait_accepted(&late);
    ask(late);

    // The rush is over: silent connections come at once.
    let comes_at_once = || {
        let client = connect(&server);
        let side = server_side(&client);
        wait_accepted(&client);
        !is_kept(side)
    };
    assert!(ask_until(comes_at_once));
    ask(silent);
}

#[test]
fn a_connection_that_the_kernel_keeps_is_served_though_the_server_ends() {
    let server = start("127.0.0.1:%%PORT%%");
    let mut rushes = (0..RUSHES).map(|_| after_a_rush(&server));
    let (kept, _) = rushes.find(|(_, side)| is_kept(*side)).expect("a connection that is kept");
    server.signal(Signal::QUIT);
    server.wait_log("gracefully shutting down", 1);
    ask(kept);
}

#[test]
fn clients_that_speak_after_they_are_accepted_are_a_rush_too() {
    let server = start("127.0.0.1:%%PORT%%");
    let after_clients_that_connect_first = || {
        for _ in 0..RUSH / GROUP {
            let clients: Vec<_> = (0..GROUP).map(|_| connect(&server)).collect();
            clients.into_iter().for_each(ask);
        }
        is_kept(server_side(&connect(&server)))
    };
    assert!((0..RUSHES).any(|_| after_clients_that_connect_first()));
}

#[test]
fn the_kernel_keeps_none_where_deferred_is_off_and_all_where_it_is_on() {
    let server = start("127.0.0.1:%%PORT%% deferred=off");
    assert!((0..RUSHES / 10).all(|_| !is_kept(after_a_rush(&server).1)));

    let server = start("127.0.0.1:%%PORT%% deferred");
    let client = connect(&server);
    assert!(is_kept(server_side(&client)));
    ask(client);
}
