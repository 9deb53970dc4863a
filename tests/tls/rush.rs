//! Many handshakes at a time, and how long they delay other requests.

use std::fs::File;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use weir_testkit::{Client, Server, s_client};

use super::{NAME, Tls, WEIR, config, dir, start};

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

/// The time that a process has had a processor for, in nanoseconds.
fn worked(pid: i32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let time = |task: std::fs::DirEntry| {
        let said = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        said.split(' ').next().and_then(|time| time.parse::<u64>().ok()).unwrap_or(0)
    };
    tasks.map(time).sum()
}

/// Entropy is collected before the first client comes.
#[test]
fn the_first_handshake_of_a_worker_costs_what_the_others_cost() {
    let server = start("", "return 200 ok;");
    let worker = server.workers()[0];
    let mut costs = Vec::new();
    for _ in 0..6 {
        server.wait_asleep(worker);
        let before = worked(worker);
        assert_eq!(Tls::connect(&server, &config(), NAME).text("/"), "ok");
        server.wait_asleep(worker);
        costs.push(worked(worker) - before);
    }
    let most = costs[1..].iter().max().unwrap();
    assert!(costs[0] < 4 * most, "in nanoseconds: {costs:?}");
}

/// The same for a worker that speaks TLS to servers only: the first request that it passes on would hold up its loop.
#[test]
fn the_first_request_to_a_tls_server_costs_what_the_others_cost() {
    let behind = start("", "return 200 ok;");
    for pass in ["proxy_pass https://", "set $to https; proxy_pass $to://"] {
        let conf = format!(
            "events {{ }} http {{ server {{ listen 127.0.0.1:%%PORT%%;
                location / {{ proxy_ssl_session_reuse off; {pass}127.0.0.1:{}; }} }} }}",
            behind.port()
        );
        let server = Server::start(WEIR, &conf);
        let worker = server.workers()[0];
        let mut costs = Vec::new();
        for _ in 0..6 {
            server.wait_asleep(worker);
            let before = worked(worker);
            assert_eq!(server.get("/").body(), "ok");
            server.wait_asleep(worker);
            costs.push(worked(worker) - before);
        }
        let most = costs[1..].iter().max().unwrap();
        assert!(costs[0] < 4 * most, "{pass}: in nanoseconds: {costs:?}");
    }
}

/// All threads of the pool may wait for a disk. Here its only one waits for a pipe.
#[test]
fn a_handshake_does_not_wait_for_a_pool_that_does_not_respond() {
    let dir = dir();
    let key = "req -x509 -newkey rsa:2048 -nodes -subj /CN=rsa -keyout rsa.key -out rsa.pem";
    let make = |program: &str, args: &str| {
        let mut command = Command::new(program);
        command.args(args.split(' ')).current_dir(dir.path()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !make("openssl", key) {
        return println!("not run: no openssl");
    }
    assert!(make("mkfifo", &format!("{NAME}.pem")));
    let conf = "thread_pool default threads=1; events { } http {
        server { listen 127.0.0.1:%%PORT%% ssl;
            ssl_certificate $ssl_server_name.pem; ssl_certificate_key rsa.key; }
        server { listen 127.0.0.1:%%PORT1%% ssl; return 200 ok;
            ssl_certificate rsa.pem; ssl_certificate_key rsa.key; } }";
    let server = Server::start_in(dir, WEIR, conf);
    let path = server.dir().path();
    let mut stuck = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    ClientConnection::new(config(), name).unwrap().write_tls(&mut stuck).unwrap();
    // The thread has opened the pipe when this end can be opened.
    let pipe = File::options().write(true).open(path.join(format!("{NAME}.pem"))).unwrap();
    let request = "GET / HTTP/1.0\r\n\r\n";
    let said = s_client(path, server.port_at(1), &["-quiet"], request).unwrap_or_default();
    assert!(said.contains("\r\n\r\nok"), "{said}");
    drop(pipe);
}
