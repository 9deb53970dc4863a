//! Clients over QUIC, for which no file is read in a handshake: ngtcp2's `gtlsclient` (Debian's package `ngtcp2-client`).

use std::process::{Command, Stdio};

use weir_testkit::{Dir, Process, Server, ask_until};

use crate::authority::{Ask, Authority};
use crate::{WEIR, held, leave, wait_secure};

/// What the client names, whatever it is told.
const NAME: &str = "localhost";

/// What a client gets for a path: nothing, if its handshake fails.
fn get(port: u16, path: &str) -> String {
    let got = Dir::new();
    let mut command = Command::new("timeout");
    command.args(["20", "gtlsclient", "-q", "--exit-on-all-streams-close", "--download"]);
    command.arg(got.path()).args(["127.0.0.1", &port.to_string()]);
    command.arg(format!("https://{NAME}:{port}/{path}"));
    let mut process = Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
    let _ = process.wait();
    std::fs::read_to_string(got.file(path)).unwrap_or_default()
}

fn conf(authority: &Authority, dir: &Dir) -> String {
    format!(
        "user root; worker_processes 2; events {{ }}
         http {{
            acme_issuer test {{ {} }}
            server {{ listen 127.0.0.1:%%PORT%%; return 404; }}
            server {{
                listen 127.0.0.1:%%PORT1%% quic reuseport; listen 127.0.0.1:%%PORT1%% ssl;
                server_name {NAME}; acme_certificate test;
                location / {{ return 200 \"$http3$ssl_server_name\"; }}
            }}
         }}",
        authority.lines(dir)
    )
}

#[test]
fn a_certificate_is_used_over_quic_as_soon_as_it_comes_and_when_it_is_renewed() {
    if Command::new("gtlsclient").arg("--help").stdout(Stdio::null()).status().is_err() {
        return eprintln!("skipped: gtlsclient is not installed");
    }
    let authority = Authority::new();
    let go = held(&authority, Ask::NewOrder);
    let dir = Dir::new();
    let text = conf(&authority, &dir);
    let mut server = Server::start_in(dir, WEIR, &text);
    authority.asks_at(server.port());
    assert_eq!(server.logged("[warn]"), 0, "{}", server.log());
    assert_eq!(get(server.port_at(1), "a"), "", "there is no certificate yet");
    go.send(()).unwrap();
    wait_secure(&authority, &server, NAME);
    let served = || get(server.port_at(1), "b") == "h3localhost";
    assert!(ask_until(served), "{}", server.log());
    server.stop();

    // A server that begins with an old certificate takes the new one.
    let go = held(&authority, Ask::NewOrder);
    let dir = Dir::new();
    leave(&dir, NAME, authority.issue(NAME, -80, 10));
    let text = conf(&authority, &dir);
    let server = Server::start_in(dir, WEIR, &text);
    authority.asks_at(server.port());
    assert_eq!(get(server.port_at(1), "c"), "h3localhost");
    go.send(()).unwrap();
    server.wait_log("got a certificate", 1);
    assert_eq!(get(server.port_at(1), "d"), "h3localhost");
}
