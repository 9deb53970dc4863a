//! Calls of another implementation: grpcio, where Python has it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use weir_testkit::Server;

use super::super::WEIR;
use super::super::bodies::certified;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/upstream/grpc/calls.py")
}

/// A Python that has grpcio: `$WEIR_PYTHON`, `python3`, or the system's own.
fn python() -> Option<String> {
    let named = std::env::var("WEIR_PYTHON").ok();
    let all = named.into_iter().chain(["python3", "/usr/bin/python3"].map(str::to_owned));
    let has = |python: &String| {
        let mut import = Command::new(python);
        let import = import.args(["-c", "import grpc"]).stderr(Stdio::null());
        import.status().is_ok_and(|status| status.success())
    };
    let found = all.into_iter().find(has);
    if found.is_none() {
        println!("not run: no Python with grpcio (Debian: python3-grpcio)");
    }
    found
}

/// A gRPC server that ends with its test.
struct Origin {
    process: Child,
    port: u16,
}

impl Origin {
    fn start(python: &str, files: &[PathBuf]) -> Origin {
        let mut process = Command::new(python)
            .arg(script())
            .arg("serve")
            .args(files)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Origin { process, port: line.trim().parse().unwrap() }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn calls_of_every_kind_go_through() {
    let Some(python) = python() else { return };
    let dir = certified();
    let (certificate, key) = (dir.path().join("self.pem"), dir.path().join("self.key"));
    let clear = Origin::start(&python, &[]);
    let secure = Origin::start(&python, &[certificate, key]);
    let (clear, secure) = (clear.port, secure.port);
    let conf = format!(
        "user root; worker_processes 1; events {{ }}
         http {{
             client_max_body_size 0;
             upstream clear {{ server 127.0.0.1:{clear}; keepalive 2; }}
             upstream secure {{ server 127.0.0.1:{secure}; keepalive 2; }}
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 http2 on;
                 location / {{ grpc_pass clear; }}
                 location /down/ {{ return 503; error_page 503 = @down; }}
                 location @down {{
                     default_type application/grpc;
                     add_header grpc-status 14 always;
                     add_header grpc-message unavailable always;
                     return 200;
                 }}
             }}
             server {{
                 listen 127.0.0.1:%%PORT1%%;
                 http2 on;
                 location / {{ grpc_pass grpcs://secure; }}
                 location /down/ {{ grpc_pass 127.0.0.1:%%PORT%%; }}
             }}
         }}"
    );
    let server = Server::start_in(dir, WEIR, &conf);
    for port in [server.port(), server.port_at(1)] {
        let out =
            Command::new(&python).arg(script()).args(["call", &port.to_string()]).output().unwrap();
        let text = [out.stdout, out.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(out.status.success() && text.trim() == "ok", "{text} {}", server.log());
    }
    assert_eq!(server.logged("panicked"), 0);
}
