//! Applications in JavaScript: socket.io, and events that a server sends (better-sse, eventsource).

use std::path::PathBuf;
use std::process::Command;

use weir_testkit::{Dir, Process, Server, free_port};

use crate::{here, installed, program, start, wait_said, weir, went_well};

/// node, and the packages that the scripts need.
fn node() -> Option<(PathBuf, PathBuf)> {
    Some((program("node")?, installed("node_modules")?))
}

fn run(
    (node, modules): &(PathBuf, PathBuf),
    script: &str,
    words: &[String],
    dir: &Dir,
    log: &str,
) -> Process {
    let mut command = Command::new(node);
    command.env("NODE_PATH", modules).arg(here("node").join(script)).args(words);
    start(&mut command, dir, log)
}

/// weir in front of a script, with a client that waits for the file `go`: a reload comes before that.
fn reloaded(server: &Server, client: &mut Process) {
    server.wait_file("client", "ready\n", 1);
    let old = server.workers();
    server.reload();
    server.dir().write("go", "");
    let status = client.wait();
    assert!(status.success(), "{}", server.dir().read("client"));
    old.into_iter().for_each(|pid| server.wait_gone(pid));
    went_well(server);
}

#[test]
fn socket_io_polls_upgrades_and_stays_connected_across_a_reload() {
    let Some(node) = node() else { return };
    let (dir, port) = (Dir::new(), free_port());
    let _server = run(&node, "socketio-server.js", &[port.to_string()], &dir, "server.log");
    wait_said(&dir, "server.log", "listening");
    let server = weir(
        dir,
        &format!("upstream nodes {{ hash $remote_addr consistent; server 127.0.0.1:{port}; }}"),
        "location / {
             proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
             proxy_set_header Host $host;
             proxy_pass http://nodes;
             proxy_http_version 1.1;
             proxy_set_header Upgrade $http_upgrade;
             proxy_set_header Connection \"upgrade\";
         }",
    );
    let words = [server.port().to_string(), server.dir().file("go").display().to_string()];
    let mut client = run(&node, "socketio-client.js", &words, server.dir(), "client");
    reloaded(&server, &mut client);
    let said = server.dir().read("client");
    for line in ["polling echoed", "upgraded to websocket", "websocket echoed", "same connection"] {
        assert!(said.contains(line), "{said}");
    }
}

#[test]
fn events_that_a_server_sends_arrive_at_once_and_across_a_reload() {
    let Some(node) = node() else { return };
    let (dir, port) = (Dir::new(), free_port());
    let _server = run(&node, "sse-server.js", &[port.to_string()], &dir, "server.log");
    wait_said(&dir, "server.log", "listening");
    let server = weir(
        dir,
        "gzip on; gzip_types text/event-stream;",
        &format!(
            "location / {{
                 proxy_pass http://127.0.0.1:{port};
                 proxy_http_version 1.1;
                 proxy_set_header Connection '';
                 proxy_buffering off;
                 proxy_read_timeout 1h;
             }}
             location /buffered/ {{ proxy_pass http://127.0.0.1:{port}/; }}"
        ),
    );
    let words = [server.port().to_string(), server.dir().file("go").display().to_string()];
    let mut client = run(&node, "sse-client.js", &words, server.dir(), "client");
    reloaded(&server, &mut client);
    let said = server.dir().read("client");
    for line in ["/ events 1 2 3", "/buffered/ events 1 2 3", "resumed after 3"] {
        assert!(said.contains(line), "{said}");
    }
}
