//! `status_zone`: sessions as status pages show them.

use weir_testkit::{Server, ask_until, examples};

use super::{connect, echo, echoed, heard};

#[test]
fn sessions_are_counted_under_a_name() {
    let to = echo();
    let conf = format!(
        "worker_processes 2; events {{ }}
         http {{ server {{ listen 127.0.0.1:%%PORT%%;
             location /text {{ weir_status; }} location /json {{ weir_status json; }} }} }}
         stream {{
             server {{ listen 127.0.0.1:%%PORT1%%; status_zone one; return hello; }}
             server {{ listen 127.0.0.1:%%PORT2%%; status_zone one; deny all; return no; }}
             server {{ listen 127.0.0.1:%%PORT3%%; status_zone 'an \"echo\"'; proxy_pass 127.0.0.1:{to}; }}
             server {{ listen 127.0.0.1:%%PORT4%%; return uncounted; }}
         }}"
    );
    let s = Server::start(env!("CARGO_BIN_EXE_weir"), &conf);
    for port in [1, 1, 4, 1] {
        assert!(!heard(s.port_at(port), b"").is_empty());
    }
    assert_eq!(heard(s.port_at(2), b""), b"");
    let mut open = connect(s.port_at(3));
    echoed(&mut open, b"hello");
    let json = || s.get("/json").body().to_owned();
    let one = r#""one":{"processing":0,"connections":4,"sessions":{"2xx":3,"4xx":1,"5xx":0,"total":4},"received":0,"sent":15}"#;
    assert!(ask_until(|| json().contains(one)), "{}", json());
    let echo = r#""an \"echo\"":{"processing":1,"connections":1,"sessions":{"2xx":0,"#;
    assert!(json().contains(echo), "{}", json());
    let text = s.get("/text").body().to_owned();
    for line in [
        "# TYPE weir_zone_sessions_total counter",
        "weir_zone_sessions_total{zone=\"one\",status=\"2xx\"} 3",
        "weir_zone_sessions_total{zone=\"one\",status=\"4xx\"} 1",
        "weir_zone_processing{zone=\"an \\\"echo\\\"\"} 1",
        "weir_zone_sent_bytes_total{zone=\"one\"} 15",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    // A reload keeps what was counted, and the session that goes on is counted when it ends.
    s.reload();
    assert!(json().contains(one) && json().contains(echo), "{}", json());
    drop(open);
    let ended = r#""an \"echo\"":{"processing":0,"connections":1,"sessions":{"2xx":1,"4xx":0,"5xx":0,"total":1},"received":5,"sent":5}"#;
    assert!(ask_until(|| json().contains(ended)), "{}", json());
}

#[test]
fn the_example_of_the_page_works() {
    let to = echo();
    let example = examples(include_str!("../../docs/status.md"))
        .find(|example| example.contains("status_zone stores"))
        .unwrap()
        .replace(":8080", ":%%PORT1%%")
        .replace(":6379", &format!(":{to}"));
    let http = "http { server { listen 127.0.0.1:%%PORT%%; location / { weir_status; } } }";
    let s = Server::start(env!("CARGO_BIN_EXE_weir"), &format!("events {{ }} {http} {example}"));
    echoed(&mut connect(s.port_at(1)), b"hello");
    let counted = "weir_zone_connections_total{zone=\"stores\"} 1";
    assert!(s.get("/").body().lines().any(|line| line == counted), "{}", s.get("/").body());
}
