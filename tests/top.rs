//! `weir top` of a real server.

use std::fs::File;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use weir_testkit::{Dir, Process, Server, ask_until, children, examples, run};

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
fn what_is_behind_and_kept_is_shown_too() {
    let server = Server::start(
        WEIR,
        "worker_processes 1; events { } http {
             proxy_cache_path %%DIR%%/cache keys_zone=big:1m;
             upstream app { zone app 64k; server 127.0.0.1:%%PORT1%%; }
             server { listen 127.0.0.1:%%PORT%%; status_zone shop;
                 location /panel { status_zone off; access_log panel.log; weir_dashboard; }
                 location / { proxy_pass http://app; proxy_cache big; proxy_cache_valid 1h; } }
             server { listen 127.0.0.1:%%PORT1%%; return 200 x; } }",
    );
    assert_eq!(server.get("/x").body(), "x");
    let url = format!("http://127.0.0.1:{}/panel", server.port());
    let asked = std::thread::spawn(move || top(&[&url, "--once", "--interval", "2"]));
    // Its first look has come.
    server.wait_file("panel.log", "GET /panel", 1);
    for _ in 0..3 {
        assert_eq!(server.get("/x").body(), "x");
    }
    assert_eq!(server.get("/y").body(), "x");
    let (code, text) = asked.join().unwrap();
    assert_eq!(code, Some(0), "{text}");
    let row = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name));
    assert!(row("shop ").is_some(), "{text}");
    assert!(row("app: 127.0.0.1:").is_some_and(|row| row.contains(" up ")), "{text}");
    assert!(row("big ").is_some_and(|row| row.contains("75 %")), "{text}");
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

#[test]
fn it_speaks_tls_to_servers_that_it_can_trust() {
    let dir = Dir::new();
    let (certificate, key) = (dir.file("localhost.crt"), dir.file("localhost.key"));
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
    let subject = ["-subj", "/CN=localhost", "-addext", names, "-days", "30"];
    let files = ["-newkey", "rsa:2048", "-nodes", "-keyout", &key, "-out", &certificate];
    let made = run("openssl", [&["req", "-x509"][..], &files, &subject].concat());
    assert!(made.status.success(), "{made:?}");
    let server = Server::start_in(
        dir,
        WEIR,
        "events { } http { ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
             server { listen 127.0.0.1:%%PORT%% ssl; location = /panel { weir_dashboard; } } 
             server { listen 127.0.0.1:%%PORT1%%; } }",
    );
    let (by_name, by_address) = (
        format!("https://localhost:{}/panel", server.port()),
        format!("https://127.0.0.1:{}", server.port()),
    );
    for args in [
        &[by_name.as_str(), "--cacert", &certificate][..],
        &[&by_name, "-k"],
        &[&by_address, "--insecure"],
    ] {
        let (code, text) = top(&[args, &["--once", "--interval", "0.1"]].concat());
        assert!(code == Some(0) && text.contains("requests/s"), "{args:?}: {text}");
    }
    let (code, text) = top(&[&by_name, "--once"]);
    assert!(code == Some(1) && text.contains("--cacert FILE names authorities"), "{text}");
    let plain = format!("https://127.0.0.1:{}/", server.port_at(1));
    let (code, text) = top(&[&plain, "-k"]);
    assert!(code == Some(1) && text.starts_with("weir top: 127.0.0.1:"), "{text}");
    let (code, text) = top(&[&by_name, "--cacert", "/no/such/file"]);
    assert!(code == Some(1) && text.contains("cannot read /no/such/file"), "{text}");
}

#[test]
fn a_server_behind_that_fails_is_shown_with_the_reason() {
    let server = Server::start(
        WEIR,
        "worker_processes 1; events { } http {
             upstream app { zone app 64k; server 127.0.0.1:1; server 127.0.0.1:%%PORT1%%; }
             server { listen 127.0.0.1:%%PORT%%; location = /panel { weir_dashboard; }
                 location / { proxy_pass http://app; } }
             server { listen 127.0.0.1:%%PORT1%%; return 200 x; } }",
    );
    for _ in 0..4 {
        assert_eq!(server.get("/x").body(), "x");
    }
    let url = format!("http://127.0.0.1:{}/panel", server.port());
    let (code, text) = top(&[&url, "--once", "--interval", "0.1"]);
    assert_eq!(code, Some(0), "{text}");
    let rows: Vec<_> = text.lines().filter(|line| line.contains("app: 127.0.0.1:")).collect();
    assert!(rows[0].contains("app: 127.0.0.1:1 ") && rows[0].contains("failing"), "{text}");
    assert!(rows[0].contains("refused") && rows[0].ends_with(" ago"), "{text}");
    assert!(rows[1].contains(" up ") && !rows[1].ends_with(" ago"), "{text}");
}

#[test]
fn it_says_why_there_is_nothing_to_show() {
    let server = Server::start(
        WEIR,
        "events { } http { server { listen 127.0.0.1:%%PORT%%;
             location / { return 404; } location /closed { deny all; weir_dashboard; } } }",
    );
    let said = |place: &str| {
        let (code, text) = top(&[place, "--once"]);
        assert_eq!(code, Some(1), "{text}");
        text
    };
    let port = server.port();
    let text = said(&format!("http://127.0.0.1:{port}/closed"));
    assert!(text.contains("access denied: /closed answers 403"), "{text}");
    let text = said(&format!("https://127.0.0.1:{port}/closed"));
    assert!(text.contains("what listens there speaks no TLS"), "{text}");
}

/// A terminal of its own, what it was written, and the process that holds it.
fn in_a_terminal(dir: &Dir, term: &str, place: &str) -> Process {
    let line = format!("stty rows 24 cols 100; exec {WEIR} top {place}");
    let mut command = Command::new("script");
    command.args(["-qefc", &line, "/dev/null"]).env("TERM", term);
    Process::start(command.stdout(File::create(dir.file("out")).unwrap()))
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let server = Server::start(
        WEIR,
        "events { } http { server { listen 127.0.0.1:%%PORT%%; location / { weir_dashboard; } } }",
    );
    let place = server.port().to_string();
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
        let dir = Dir::new();
        let mut terminal = in_a_terminal(&dir, "xterm", &place);
        // The alternate screen, and what is drawn there.
        assert!(ask_until(|| dir.read("out").contains("woken next")), "{}", dir.read("out"));
        let own = children(terminal.pid());
        let own = Pid::from_raw(*own.first().unwrap()).unwrap();
        kill_process(own, signal).unwrap();
        let code = terminal.wait().code();
        assert_eq!(code, Some(128 + signal.as_raw()), "{signal:?}");
        let out = dir.read("out");
        let after = out.rsplit("\x1b[?1049h").next().unwrap();
        assert!(
            after.contains("\x1b[?1049l") && after.contains("\x1b[?25h"),
            "{signal:?}: {out:?}"
        );
    }
    let dir = Dir::new();
    assert_eq!(in_a_terminal(&dir, "dumb", &place).wait().code(), Some(1));
    let out = dir.read("out");
    assert!(out.contains("TERM is dumb") && !out.contains('\x1b'), "{out:?}");
}
