//! `weir top` of a real server.

use std::process::Command;

use weir_testkit::{Server, examples};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn top(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(WEIR).arg("top").args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn it_shows_the_loops_of_a_server_by_port_by_url_and_by_socket() {
    let page = include_str!("../docs/top.md");
    let example = examples(page).next().unwrap();
    let example = example.replace("/run/weir-status.sock", "%%DIR%%/status.sock");
    let server = Server::start(
        WEIR,
        &format!(
            "worker_processes 1; worker_threads 3; events {{ }} http {{ {example}
             server {{ listen 127.0.0.1:%%PORT%%; location /status {{ weir_status json; }} }} }}"
        ),
    );
    let port = server.port().to_string();
    let socket = format!("unix:{}/status.sock", server.dir().path().display());
    let url = format!("http://127.0.0.1:{port}/status");
    for place in [&port, &url, &socket, &format!("{socket}:/panel")] {
        let (code, text) = top(&[place, "--once", "--interval", "0.1"]);
        assert_eq!(code, Some(0), "{place}: {text}");
        assert!(text.contains("3 loops in 1 worker"), "{place}: {text}");
        assert!(text.contains("requests/s") && text.contains("Woken next: "), "{place}: {text}");
    }
}

#[test]
fn where_there_is_nothing_to_see_it_says_so() {
    let server = Server::start(
        WEIR,
        "events { } http { server { listen 127.0.0.1:%%PORT%%; return 200 '{}'; } }",
    );
    let (code, text) = top(&[&server.port().to_string(), "--once"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("no weir_dashboard and no weir_status json there (/: 200, /panel: 200"),
        "{text}"
    );
    let (code, text) = top(&["127.0.0.1:1"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("127.0.0.1:1: Connection refused"), "{text}");
}
