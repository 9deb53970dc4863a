//! Status pages of a server with very many servers behind it.

use std::fmt::Write;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;
use weir_testkit::Server;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Groups of three servers each. Those of the first are this server, and a port without a listener.
const GROUPS: usize = 400;

/// Names of `status_zone`.
const ZONES: usize = 1001;

fn start() -> Server {
    let mut conf = "worker_processes 1; worker_threads 1; events { } http { ".to_owned();
    for n in 0..GROUPS {
        let servers = match n {
            0 => {
                "127.0.0.1:%%PORT%% max_fails=0; server 127.0.0.1:%%PORT1%% max_fails=0".to_owned()
            }
            _ => format!("10.{}.{}.1:80; server 10.{}.{}.2:80", n / 250, n % 250, n / 250, n % 250),
        };
        // Writing to a String cannot fail.
        let _ = write!(
            conf,
            "upstream group-{n} {{ server {servers}; server 10.255.255.1:80 down; }} "
        );
    }
    conf += "server { listen 127.0.0.1:%%PORT%%; ";
    for n in 0..ZONES {
        let _ = write!(conf, "location = /zone-{n} {{ status_zone zone-{n}; return 200 z; }} ");
    }
    conf += "
                 location / { return 200 here; }
                 location = /passed { proxy_pass http://group-0/; }
                 location = /status { weir_status; }
                 location = /json { weir_status json; }
                 location = /panel { weir_dashboard; }
             } }";
    Server::start(WEIR, &conf)
}

fn json(server: &Server, path: &str) -> Value {
    let body = server.get(path).body();
    serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"))
}

#[test]
fn of_more_than_a_thousand_servers_groups_are_shown() {
    let server = start();
    for _ in 0..4 {
        assert_eq!(server.get("/passed").body(), "here");
    }
    let text = server.get("/status").body();
    for line in [
        r#"weir_upstream_requests_total{upstream="group-0",server="(all)",status="2xx"} 4"#,
        r#"weir_upstream_connect_fails_total{upstream="group-0",server="(all)"} 2"#,
        r#"weir_upstream_state{upstream="group-0",server="(all)",state="up"} 1"#,
        r#"weir_upstream_state{upstream="group-0",server="(all)",state="failing"} 1"#,
        r#"weir_upstream_state{upstream="group-0",server="(all)",state="down"} 1"#,
        r#"weir_upstream_state{upstream="group-399",server="(all)",state="untried"} 2"#,
        r#"weir_upstream_availability{upstream="group-399",server="(all)",availability="up"} 2"#,
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
    }
    assert!(!text.contains("server=\"10."), "no server is shown by itself");
    let page = json(&server, "/json");
    assert_eq!(page["upstreams"].as_object().map(serde_json::Map::len), Some(GROUPS));
    let group = &page["upstreams"]["group-0"][0];
    assert_eq!((&group["server"], &group["state"]["failing"]), (&"(all)".into(), &1.into()));
}

#[test]
fn of_more_than_a_thousand_zones_those_with_requests_are_shown() {
    let server = start();
    assert_eq!(server.get("/zone-7").body(), "z");
    let zones = |path: &str| {
        let text = server.get(path).body();
        let line = |line: &&str| line.starts_with("weir_zone_processing{");
        text.lines().filter(line).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(zones("/status"), ["weir_zone_processing{zone=\"zone-7\"} 0"]);
    assert_eq!(zones("/status?idle=1").len(), ZONES);
}

#[test]
fn each_server_is_shown_where_that_is_asked_for_and_other_requests_go_on() {
    let server = start();
    let all = json(&server, "/json?servers=1");
    assert_eq!(all["upstreams"]["group-7"][1]["server"], "10.0.7.2:80");
    // More than a megabyte is sent as it is made. The client reads nothing yet, and the only loop goes on.
    let mut slow = server.connect();
    slow.send("GET /status?servers=1 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(server.get("/").body(), "here");
    let text = server.get("/status?servers=1");
    assert_eq!(text.header("Transfer-Encoding"), Some("chunked"));
    let text = text.body();
    assert!(text.len() > 1 << 20);
    let mut names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "all lines of a name stand together");
    for n in [1, 200, GROUPS - 1] {
        let line = format!(
            "weir_upstream_active{{upstream=\"group-{n}\",server=\"10.{}.{}.2:80\"}} 0\n",
            n / 250,
            n % 250
        );
        assert!(text.contains(&line), "{line}");
    }
    // Figures of the loops appear once something has happened: something that blocked one, for instance.
    let of_groups =
        |text: &str| text.lines().filter(|line| line.starts_with("weir_upstream_")).count();
    let lines = of_groups(&text);
    assert!(lines > GROUPS);
    assert_eq!(of_groups(&slow.response().body()), lines);
    // HTTP/1.0 and HEAD know no chunks.
    let mut old = server.connect();
    old.send("GET /status?servers=1 HTTP/1.0\r\nHost: a\r\n\r\n");
    assert_eq!(of_groups(&old.rest()), lines);
    let mut head = server.connect();
    head.send("HEAD /status?servers=1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let head = head.rest();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    let Ok(mut tool) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        return eprintln!("promtool is not installed");
    };
    tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = tool.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&said.stderr);
    assert!(!errors.contains("error"), "{errors}");
}

#[test]
fn the_panel_gets_the_groups_that_tell_most() {
    let server = start();
    assert_eq!(server.get("/passed").body(), "here");
    let all = server.ask("GET /panel", "Accept: application/json\r\n", "");
    let all: Value = serde_json::from_str(&all.body()).unwrap();
    assert_eq!(all["upstreams"].as_object().map(serde_json::Map::len), Some(GROUPS));
    let mut viewer = server.connect();
    viewer.send("GET /panel HTTP/1.0\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n");
    let lines = std::iter::from_fn(|| viewer.try_line().ok()).take(30);
    let event = lines.into_iter().find(|line| line.starts_with("data: ")).unwrap();
    let event = &event["data: ".len()..];
    let event: Value = serde_json::from_str(event).unwrap_or_else(|e| panic!("{e}: {event}"));
    let shown = event["upstreams"].as_object().unwrap();
    assert_eq!((shown.len(), &event["left_out"]["upstreams"]), (300, &100.into()));
    assert!(shown.contains_key("group-0"), "it was asked");
}
