//! Traces: what a collector of OpenTelemetry gets, and what servers behind get.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use weir_testkit::{Dir, Server, certified, examples, fastcgi, listen};

use collector::Collector;

#[path = "tracing/collector.rs"]
mod collector;
#[path = "tracing/export.rs"]
mod export;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b9c7c989f97918e1";
const STATE: &str = "congo=ucfJifl5GOE,rojo=00f067aa0ba902b7";

/// Attributes as texts.
fn attributes(list: &[KeyValue]) -> BTreeMap<&str, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(n) => n.to_string(),
        Value::ArrayValue(all) => format!("{:?}", all.values),
        other => panic!("{other:?}"),
    };
    let value = |pair: &KeyValue| text(pair.value.as_ref().unwrap().value.as_ref().unwrap());
    list.iter().map(|pair| (pair.key.as_str(), value(pair))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Headers of a client that is in a trace.
fn asked_in_a_trace(flags: &str) -> String {
    format!("traceparent: 00-{TRACE}-{PARENT}-{flags}\r\ntracestate: {STATE}\r\n")
}

#[test]
fn a_request_leaves_a_span() {
    let collector = Collector::new();
    let http = format!(
        "{} otel_service_name shop; otel_resource_attr place \"the cellar\"; otel_trace on;
         otel_resource_attr service.name not_this;",
        collector.exporter_with("interval 1ms; header X-Token secret;")
    );
    let locations = "server_name shop.example;
         location /ok { return 200 fine; }
         location ~ ^/er+$ { return 503; }
         location /own {
             otel_span_name \"own $uri\"; otel_span_attr colour $arg_colour;
             otel_span_attr http.response.header.x $sent_http_x; add_header X y; return 204;
         }
         location /silent { otel_trace off; return 204; }";
    let server = Server::with_locations(Dir::new(), WEIR, &http, locations);
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut client = server.connect();
    let agent = "User-Agent: curious\r\nContent-Length: 4\r\n";
    assert_eq!(client.ask("POST /ok?a=%20b", agent, "body").status, 200);
    assert_eq!(client.get("/silent").status, 204);
    assert_eq!(client.get("/err").status, 503);
    assert_eq!(client.get("/own?colour=red").status, 204);
    let spans = collector.wait(3);

    let first = &spans[0];
    assert_eq!((first.name.as_str(), first.kind, &first.status), ("/ok", 2, &None));
    assert_eq!((first.trace_id.len(), first.span_id.len()), (16, 8));
    assert_eq!((first.parent_span_id.len(), first.trace_state.as_str()), (0, ""));
    assert!(first.start_time_unix_nano <= first.end_time_unix_nano);
    // Times are told in milliseconds.
    assert!(first.start_time_unix_nano + 2_000_000 > before, "{before} {first:?}");
    let port = server.port().to_string();
    let said = attributes(&first.attributes);
    let peer: u16 = said["net.sock.peer.port"].parse().unwrap();
    assert!(peer > 0);
    let expected = [
        ("http.method", "POST"),
        ("http.target", "/ok?a=%20b"),
        ("http.route", "/ok"),
        ("http.scheme", "http"),
        ("http.flavor", "1.1"),
        ("http.user_agent", "curious"),
        ("http.request_content_length", "4"),
        ("http.response_content_length", "4"),
        ("http.status_code", "200"),
        ("net.host.name", "shop.example"),
        ("net.host.port", &port),
        ("net.sock.peer.addr", "127.0.0.1"),
        ("net.sock.peer.port", &peer.to_string()),
    ];
    let expected: BTreeMap<_, _> = expected.map(|(k, v)| (k, v.to_owned())).into();
    assert_eq!(said, expected);

    let failed = &spans[1];
    assert_eq!((failed.name.as_str(), failed.status.as_ref().unwrap().code), ("^/er+$", 2));
    let said = attributes(&failed.attributes);
    assert_eq!((said["http.status_code"].as_str(), said["http.method"].as_str()), ("503", "GET"));
    assert!(!said.contains_key("http.user_agent"), "{said:?}");

    let own = &spans[2];
    let said = attributes(&own.attributes);
    assert_eq!((own.name.as_str(), said["colour"].as_str()), ("own /own", "red"));
    assert!(said["http.response.header.x"].contains("StringValue(\"y\")"), "{said:?}");
    assert_ne!(first.trace_id, own.trace_id);

    let requests = collector.requests.lock().unwrap();
    let (head, request) = &requests[0];
    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
    for line in ["X-Token: secret", "Content-Type: application/x-protobuf"] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{head}");
    }
    let of = &request.resource_spans[0];
    let resource = attributes(&of.resource.as_ref().unwrap().attributes);
    let named = [("place", "the cellar".to_owned()), ("service.name", "shop".to_owned())];
    assert_eq!(resource, BTreeMap::from(named));
    assert_eq!(of.scope_spans[0].scope.as_ref().unwrap().name, "weir");
}

/// What a server behind hears is told by a server behind: another one of the same weir.
#[test]
fn a_trace_comes_in_and_goes_on_as_is_said() {
    let collector = Collector::new();
    let (mut locations, modes) = (String::new(), ["ignore", "extract", "inject", "propagate"]);
    for mode in modes {
        let pass = "proxy_pass http://127.0.0.1:%%PORT1%%;";
        locations += &format!("location /{mode} {{ otel_trace_context {mode}; {pass} }}");
    }
    let behind = "server { listen 127.0.0.1:%%PORT1%%; otel_trace off;
         location / { return 200 \"$http_traceparent|$http_tracestate\"; } }";
    let http = format!("{} otel_trace on; {behind}", collector.exporter());
    let server = Server::with_locations(Dir::new(), WEIR, &http, &locations);
    let sent = format!("00-{TRACE}-{PARENT}-01");
    let mut seen = 0;
    for mode in modes {
        for has_parent in [true, false] {
            let headers = if has_parent { asked_in_a_trace("01") } else { String::new() };
            let heard = server.ask(&format!("GET /{mode}"), &headers, "").body();
            seen += 1;
            let span = collector.wait(seen).pop().unwrap();
            let own = format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id));
            let (extract, inject) =
                (matches!(mode, "extract" | "propagate"), matches!(mode, "inject" | "propagate"));
            let is_child = extract && has_parent;
            let context = format!("{mode} {has_parent} {heard} {span:?}");
            assert_eq!(hex(&span.trace_id) == TRACE, is_child, "{context}");
            assert_eq!(hex(&span.parent_span_id), if is_child { PARENT } else { "" }, "{context}");
            assert_eq!(span.trace_state, if is_child { STATE } else { "" }, "{context}");
            let expected = match (inject, has_parent) {
                (true, _) => format!("{own}|{}", if is_child { STATE } else { "" }),
                (false, true) => format!("{sent}|{STATE}"),
                (false, false) => "|".to_owned(),
            };
            assert_eq!(heard, expected, "{context}");
        }
    }
    // Two parents are none, and what they said goes no further.
    let headers = [asked_in_a_trace("01"), asked_in_a_trace("01")].concat();
    let heard = server.ask("GET /propagate", &headers, "").body();
    let span = collector.wait(seen + 1).pop().unwrap();
    assert_ne!(hex(&span.trace_id), TRACE);
    assert_eq!(heard, format!("00-{}-{}-01|", hex(&span.trace_id), hex(&span.span_id)));
}

#[test]
fn servers_behind_hear_of_a_trace_in_every_protocol() {
    let script = listen(|mut stream| {
        while let Some(asked) = fastcgi::request(&mut stream) {
            let param = |name: &str| asked.params.get(name).cloned().unwrap_or_default();
            let told = format!("{}|{}", param("HTTP_TRACEPARENT"), param("HTTP_TRACESTATE"));
            if !fastcgi::say(&mut stream, &fastcgi::answer(&format!("Status: 200\n\n{told}"))) {
                break;
            }
        }
    });
    let plain = listen(|mut stream| {
        let mut buf = [0; 4096];
        let n = stream.read(&mut buf).unwrap_or(0);
        let text = String::from_utf8_lossy(&buf[..n]).replace('\0', "\n");
        let mut lines = text.lines().skip_while(|line| *line != "HTTP_TRACEPARENT");
        let told = lines.nth(1).unwrap_or_default();
        let mut lines = text.lines().skip_while(|line| *line != "HTTP_TRACESTATE");
        let state = lines.nth(1).unwrap_or_default();
        let answer = format!("Status: 200 OK\r\n\r\n{told}|{state}");
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let collector = Collector::new();
    let locations = format!(
        "otel_trace_context propagate;
         location /h1 {{ proxy_pass http://127.0.0.1:%%PORT1%%; }}
         location /h2 {{ proxy_pass http://127.0.0.1:%%PORT1%%; proxy_http_version 2; }}
         location /grpc {{ grpc_pass 127.0.0.1:%%PORT1%%; }}
         location /fastcgi {{ fastcgi_pass 127.0.0.1:{script}; }}
         location /scgi {{ scgi_pass 127.0.0.1:{plain}; }}
         location /sub {{ auth_request /h1; return 200 \"$http_traceparent|$http_tracestate\"; }}"
    );
    let behind = "server { listen 127.0.0.1:%%PORT1%%; http2 on; otel_trace_context ignore;
         location / { return 200 \"$http_traceparent|$http_tracestate\"; } }";
    let http = format!("{} otel_trace $otel_parent_sampled; {behind}", collector.exporter());
    let server = Server::with_locations(Dir::new(), WEIR, &http, &locations);
    for (n, path) in ["h1", "h2", "grpc", "fastcgi", "scgi", "sub"].into_iter().enumerate() {
        let heard = server.ask(&format!("GET /{path}"), &asked_in_a_trace("01"), "").body();
        let span = collector.wait(n + 1).pop().unwrap();
        assert_eq!(heard, format!("00-{TRACE}-{}-01|{STATE}", hex(&span.span_id)), "{path}");
        assert_eq!(hex(&span.parent_span_id), PARENT, "{path}");
    }
}

#[test]
fn http2_leaves_spans_too() {
    let collector = Collector::new();
    let http = format!(
        "{} server {{ listen 127.0.0.1:%%PORT1%%; http2 on; otel_trace on;
             otel_trace_context propagate;
             location /inside {{ return 200 \"$otel_trace_id $otel_span_id $otel_parent_id\"; }} }}",
        collector.exporter()
    );
    let pass = "location / { proxy_pass http://127.0.0.1:%%PORT1%%; proxy_http_version 2; }";
    let server = Server::with_locations(Dir::new(), WEIR, &http, pass);
    let told = server.ask("GET /inside", &asked_in_a_trace("01"), "").body();
    let span = collector.wait(1).pop().unwrap();
    let said = attributes(&span.attributes);
    assert_eq!((said["http.flavor"].as_str(), said["http.scheme"].as_str()), ("2.0", "http"));
    assert_eq!(said["http.response_content_length"], told.len().to_string());
    assert_eq!(told, format!("{TRACE} {} {PARENT}", hex(&span.span_id)));
}

/// Spans of HTTP/3, asked for by ngtcp2's client.
#[test]
fn spans_tell_of_the_path_of_quic() {
    let collector = Collector::new();
    let conf = format!(
        "user root; events {{ }}
         http {{ ssl_certificate chain.pem; ssl_certificate_key leaf.key; {}
             server {{ listen 127.0.0.1:%%PORT%% quic reuseport; listen 127.0.0.1:%%PORT%% ssl;
                 otel_trace on; location / {{ return 200 said; }} }} }}",
        collector.exporter()
    );
    let server = Server::start_in(certified(), WEIR, &conf);
    let port = server.port().to_string();
    let url = format!("https://localhost:{port}/said");
    let mut client = std::process::Command::new("timeout");
    client.args([
        "60",
        "gtlsclient",
        "-q",
        "--exit-on-all-streams-close",
        "127.0.0.1",
        &port,
        &url,
    ]);
    let quiet = std::process::Stdio::null;
    if client
        .stdout(quiet())
        .stderr(quiet())
        .status()
        .is_ok_and(|status| status.code() == Some(127))
    {
        eprintln!("not tried: gtlsclient (Debian's package ngtcp2-client) is missing");
        return;
    }
    let span = collector.wait(1).pop().unwrap();
    let said = attributes(&span.attributes);
    assert_eq!((said["http.flavor"].as_str(), said["net.transport"].as_str()), ("3.0", "ip_udp"));
    let number = |name: &str| said[name].parse::<u64>().unwrap();
    assert!(number("quic.round_trip_us") > 0 && number("quic.sent_packets") > 0, "{said:?}");
    assert!(number("quic.lost_packets") <= number("quic.sent_packets"), "{said:?}");
}

#[test]
fn a_condition_decides_which_requests_are_sampled() {
    let collector = Collector::new();
    let http =
        format!("{} split_clients $otel_trace_id $half {{ 50% on; * off; }}", collector.exporter());
    let locations = "
         location /half { otel_trace $half; return 200 \"$half $otel_trace_id\"; }
         location /as_said { otel_trace $otel_parent_sampled; otel_trace_context extract;
             return 200 \"$otel_parent_sampled\"; }
         location /one { otel_trace 1; return 204; }
         location /other { otel_trace yes; return 204; }
         location /none { return 200 \"$otel_trace_id$otel_parent_id$otel_parent_sampled\"; }";
    let server = Server::with_locations(Dir::new(), WEIR, &http, locations);
    let mut client = server.connect();
    let mut sampled: Vec<String> = Vec::new();
    for _ in 0..64 {
        let said = client.get("/half").body();
        sampled.extend(said.strip_prefix("on ").map(str::to_owned));
    }
    // All or none of 64 would be a wonder.
    assert!(!sampled.is_empty() && sampled.len() < 64);
    let spans = collector.wait(sampled.len());
    let ids: Vec<String> = spans.iter().map(|span| hex(&span.trace_id)).collect();
    assert_eq!(ids, sampled);

    assert_eq!(client.ask("GET /as_said", &asked_in_a_trace("00"), "").body(), "0");
    assert_eq!(client.get("/as_said").body(), "0");
    assert_eq!(client.get("/other").status, 204);
    // A script always gets the numbers, but gives a parent only with permission.
    let told = client.ask("GET /none", &asked_in_a_trace("01"), "").body();
    assert!(told.len() == 33 && told.ends_with('0') && !told.contains(TRACE), "{told}");
    assert_eq!(client.ask("GET /as_said", &asked_in_a_trace("01"), "").body(), "1");
    assert_eq!(client.get("/one").status, 204);
    let spans = collector.wait(sampled.len() + 2);
    let names: Vec<_> = spans[sampled.len()..].iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["/as_said", "/one"]);
}

/// A request is one span, wherever it goes inside, and whatever it asks for there.
#[test]
fn a_request_is_one_span() {
    let collector = Collector::new();
    let http = format!("{} log_subrequest on;", collector.exporter());
    let locations = "
         location /error { otel_trace on; error_page 404 /page; return 404; }
         location /page { return 404 gone; }
         location /rewritten { otel_trace on; rewrite ^ /page last; }
         location /named { otel_trace on; try_files /none @named; }
         location @named { return 204; }
         location /asks { otel_trace on; auth_request /page2; return 204; }
         location /page2 { otel_trace on; return 204; }
         location /later { rewrite ^ /page2 last; }
         location /off { otel_trace off; rewrite ^ /page2 last; }";
    let server = Server::with_locations(Dir::new(), WEIR, &http, locations);
    let mut client = server.connect();
    for (path, status) in
        [("error", 404), ("rewritten", 404), ("named", 204), ("asks", 204), ("later", 204)]
    {
        assert_eq!(client.get(&format!("/{path}")).status, status, "{path}");
    }
    // Said once, it holds.
    assert_eq!(client.get("/off").status, 204);
    assert_eq!(client.get("/asks").status, 204);
    let spans = collector.wait(6);
    let told = spans.iter().map(|span| {
        let target = attributes(&span.attributes)["http.target"].clone();
        format!("{target} {}", span.name)
    });
    let told: Vec<_> = told.collect();
    let expected = [
        "/error /page",
        "/rewritten /page",
        "/named @named",
        "/asks /asks",
        "/later /page2",
        "/asks /asks",
    ];
    assert_eq!(told, expected);
}

#[test]
fn nginxs_port_is_warned_of() {
    let conf = "events { } http { otel_exporter { endpoint localhost:4317; }
         server { listen 127.0.0.1:%%PORT%%; } }";
    let server = Server::start(WEIR, conf);
    let said = server.command(&["-t"]);
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(
        said.status.success() && text.contains("port 4317 is where collectors take gRPC"),
        "{text}"
    );
}

#[test]
fn the_example_of_the_page_works() {
    let page = include_str!("../docs/tracing.md");
    let collector = Collector::new();
    let example = examples(page).find(|text| text.contains("otel_exporter")).unwrap();
    let example = example
        .replace("127.0.0.1:4318", &format!("127.0.0.1:{}", collector.port))
        .replace("interval 5s;", "interval 1ms;")
        .replace("10% on;", "100% on;")
        .replace("127.0.0.1:8080", "127.0.0.1:%%PORT%%")
        .replace("127.0.0.1:8081", "127.0.0.1:%%PORT1%%");
    let server = Server::start(WEIR, &format!("events {{ }} {example}"));
    assert_eq!(server.get("/shop").status, 502);
    assert_eq!(server.ask("GET /health", "", "").status, 204);
    let span = collector.wait(1).pop().unwrap();
    let said = attributes(&span.attributes);
    assert_eq!((span.name.as_str(), said["tenant"].as_str()), ("/", "none"));
    assert_eq!(span.status.unwrap().code, 2);
}
