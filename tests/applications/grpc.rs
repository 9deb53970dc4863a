//! gRPC's interoperability suite, which Go's gRPC brings along.

use std::process::Command;

use weir_testkit::{Server, certified, free_port};

use crate::{WEIR, client, installed, start, wait_port, went_well};

const CONF: &str = "
    user root; worker_processes 2; events { }
    http {
        upstream suite { server 127.0.0.1:SUITE; keepalive 4; }
        server { listen 127.0.0.1:%%PORT%%; http2 on; location / { grpc_pass grpc://suite; } }
        server {
            listen 127.0.0.1:%%PORT1%% ssl;
            http2 on;
            ssl_certificate chain.pem;
            ssl_certificate_key leaf.key;
            location / { grpc_pass grpc://suite; }
        }
    }";

#[test]
fn the_interoperability_suite_of_grpc_passes() {
    let Some(suite) = installed("grpc-interop") else { return };
    let (dir, port) = (certified(), free_port());
    let address = |port: u16| format!("127.0.0.1:{port}");
    let _suite = start(Command::new(&suite).args(["serve", &address(port)]), &dir, "suite.log");
    wait_port(port, &dir, "suite.log");
    let server = Server::start_in(dir, WEIR, &CONF.replace("SUITE", &port.to_string()));
    let clear = client(&suite, ["call", &address(server.port())]);
    assert!(clear.ends_with("done\n"), "{clear}");
    let secure = client(&suite, ["call", &address(server.port_at(1)), "tls"]);
    assert!(secure.ends_with("done\n"), "{secure}");
    went_well(&server);
}
