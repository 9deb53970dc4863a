//! Traces: what a collector of OpenTelemetry gets, and what servers behind get.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rustix::process::Signal;
use weir_testkit::{Client, Deaf, Dir, Server, ask_until, certified, examples, fastcgi, listen};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b9c7c989f97918e1";
const STATE: &str = "congo=ucfJifl5GOE,rojo=00f067aa0ba902b7";

/// What came to a collector: the head of each request, and what it said.
type Requests = Arc<Mutex<Vec<(String, ExportTraceServiceRequest)>>>;

/// A collector that answers with a status and a body, which may change.
struct Collector {
    port: u16,
    says: Arc<Says>,
    requests: Requests,
}

struct Says {
    status: AtomicU16,
    body: Mutex<Vec<u8>>,
}

impl Says {
    fn status(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }
}

impl Collector {
    fn new() -> Collector {
        let all_taken = ExportTracePartialSuccess::default();
        let body = Mutex::new(answer(all_taken));
        let (says, requests) =
            (Arc::new(Says { status: AtomicU16::new(200), body }), Requests::default());
        let (own, told) = (says.clone(), requests.clone());
        let port = listen(move |stream| while collect(&stream, &own, &told).is_some() {});
        Collector { port, says, requests }
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.requests.lock().unwrap();
        let all = requests.iter().flat_map(|(_, request)| &request.resource_spans);
        all.flat_map(|of| &of.scope_spans).flat_map(|of| &of.spans).cloned().collect()
    }

    /// Waits for so many spans.
    fn wait(&self, n: usize) -> Vec<Span> {
        assert!(ask_until(|| self.spans().len() >= n), "{n}: {:#?}", self.spans());
        let spans = self.spans();
        assert_eq!(spans.len(), n, "{spans:#?}");
        spans
    }

    /// An `otel_exporter` block that tells it of each span at once.
    fn exporter(&self) -> String {
        self.exporter_with("interval 1ms;")
    }

    fn exporter_with(&self, more: &str) -> String {
        format!("otel_exporter {{ endpoint http://127.0.0.1:{}; {more} }}", self.port)
    }
}

fn answer(partial: ExportTracePartialSuccess) -> Vec<u8> {
    ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec()
}

/// Takes one request on a connection.
fn collect(stream: &TcpStream, says: &Says, told: &Requests) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    let length = head.split("Content-Length: ").nth(1)?.split("\r\n").next()?.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    assert!(reader.buffer().is_empty(), "one request at a time");
    let request = ExportTraceServiceRequest::decode(body.as_slice()).expect("spans");
    let (status, body) = (says.status.load(Ordering::SeqCst), says.body.lock().unwrap().clone());
    if status == 200 {
        told.lock().unwrap().push((head, request));
    }
    let head = format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n\r\n", body.len());
    (&*stream).write_all(&[head.as_bytes(), &body].concat()).ok()
}

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
fn spans_are_sent_when_a_batch_is_full_and_when_the_worker_ends() {
    let collector = Collector::new();
    let waits = collector.exporter_with("interval 1h; batch_size 3;");
    let conf = |wait: &str| {
        format!(
            "worker_threads 2; events {{ }}
             http {{ {wait} otel_trace on; server {{ listen 127.0.0.1:%%PORT%%;
                 location / {{ return 204; }} }} }}"
        )
    };
    let mut server = Server::start(WEIR, &conf(&waits));
    // Kept on one loop.
    let mut client = server.connect();
    (0..7).for_each(|_| assert_eq!(client.get("/").status, 204));
    let spans = collector.wait(6);
    assert!(spans.iter().all(|span| span.name == "/"));
    let sizes = || -> Vec<usize> {
        let requests = collector.requests.lock().unwrap();
        let spans = |r: &ExportTraceServiceRequest| r.resource_spans[0].scope_spans[0].spans.len();
        requests.iter().map(|(_, request)| spans(request)).collect()
    };
    assert_eq!(sizes(), [3, 3]);
    drop(client);
    // The worker that ends sends its last one.
    let old = server.workers();
    server.reload();
    collector.wait(7);
    old.iter().for_each(|pid| server.wait_gone(*pid));
    assert_eq!(server.get("/").status, 204);
    assert_eq!(server.get("/").status, 204);
    server.signal(Signal::QUIT);
    assert!(server.wait().success());
    collector.wait(9);
}

#[test]
fn a_collector_in_trouble_costs_no_request() {
    let collector = Collector::new();
    collector.says.status(503);
    let http = format!(
        "{} server {{ listen 127.0.0.1:%%PORT1%%; weir_status json; }} otel_trace on;",
        collector.exporter_with("interval 1ms; batch_size 2; batch_count 3;")
    );
    let server = Server::with_locations(Dir::new(), WEIR, &http, "location / { return 204; }");
    let mut client = server.connect();
    let totals = || -> serde_json::Value {
        let mut status = Client::connect(server.port_at(1));
        let page: serde_json::Value = serde_json::from_str(&status.get("/").body()).unwrap();
        page["totals"].clone()
    };
    (0..50).for_each(|_| assert_eq!(client.get("/").status, 204));
    // Three batches wait, and one is being filled; the page's own requests are sampled as well.
    assert!(ask_until(|| totals()["dropped_spans"].as_u64() > Some(30)), "{}", totals());
    server.wait_log("OTel export failure: status 503 from http://127.0.0.1", 1);
    assert_eq!(totals()["exported_spans"], 0);
    collector.says.status(200);
    assert!(ask_until(|| collector.spans().len() >= 6));
    server.wait_log("works again", 1);
    assert_eq!(server.logged("OTel export failure"), 1, "{}", server.log());
    assert!(ask_until(|| totals()["exported_spans"].as_u64() >= Some(6)), "{}", totals());

    // What a collector does not want is not offered again.
    collector.says.status(400);
    let before = totals()["dropped_spans"].as_u64();
    assert_eq!(client.get("/").status, 204);
    server.wait_log("OTel export failure: status 400 from", 1);
    assert!(ask_until(|| totals()["dropped_spans"].as_u64() > before));
}

#[test]
fn what_a_collector_does_not_want_is_told_once_in_a_while() {
    let collector = Collector::new();
    let error_message = format!("too large\n{}", "x".repeat(1000));
    let says = |rejected_spans, error_message| {
        let partial = ExportTracePartialSuccess { rejected_spans, error_message };
        *collector.says.body.lock().unwrap() = answer(partial);
    };
    says(2, error_message);
    let http = format!(
        "{} server {{ listen 127.0.0.1:%%PORT1%%; weir_status json; }}",
        collector.exporter_with("interval 1h; batch_size 3;")
    );
    let locations = "location / { otel_trace on; return 204; }";
    let server = Server::with_locations(Dir::new(), WEIR, &http, locations);
    let mut client = server.connect();
    (0..9).for_each(|_| assert_eq!(client.get("/").status, 204));
    let totals = || -> (Option<u64>, Option<u64>) {
        let mut status = Client::connect(server.port_at(1));
        let page: serde_json::Value = serde_json::from_str(&status.get("/").body()).unwrap();
        let total = |name: &str| page["totals"][name].as_u64();
        (total("exported_spans"), total("dropped_spans"))
    };
    assert!(ask_until(|| totals() == (Some(3), Some(6))), "{:?}", totals());
    let said = format!("http://127.0.0.1:{}/v1/traces: \"too large\\x0Ax", collector.port);
    let line = server.wait_line(&format!("OTel export failure: 2 spans rejected by {said}"));
    assert!(line.contains("[error]") && line.len() < 600, "{line}");
    assert_eq!(server.logged("OTel export failure"), 1, "{}", server.log());

    // More than was sent cannot be rejected, and what is said besides is as seldom.
    says(1000, String::new());
    (0..3).for_each(|_| assert_eq!(client.get("/").status, 204));
    assert!(ask_until(|| totals() == (Some(3), Some(9))), "{:?}", totals());
    says(0, "thanks".to_owned());
    (0..3).for_each(|_| assert_eq!(client.get("/").status, 204));
    assert!(ask_until(|| totals() == (Some(6), Some(9))), "{:?}", totals());
    assert_eq!(server.logged("OTel export"), 1, "{}", server.log());
}

#[test]
fn a_collector_that_is_silent_or_gone_holds_no_worker_up() {
    let deaf = Deaf::new();
    let mut silent = Vec::new();
    // Connected without an answer, not connected, no listener, an unknown name.
    silent.push(listen(|mut stream| drop(stream.read_to_end(&mut Vec::new()))));
    silent.extend([deaf.port(), weir_testkit::free_port()]);
    let mut endpoints: Vec<_> = silent.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    endpoints.push("collector.invalid".to_owned());
    let mut servers: Vec<Server> = endpoints
        .iter()
        .map(|endpoint| {
            let exporter = format!("otel_exporter {{ endpoint {endpoint}; interval 1ms; }}");
            let http = format!("{exporter} otel_trace on;");
            Server::with_locations(Dir::new(), WEIR, &http, "location / { return 204; }")
        })
        .collect();
    for server in &servers {
        let mut client = server.connect();
        (0..10).for_each(|_| assert_eq!(client.get("/").status, 204));
        drop(client);
        server.signal(Signal::QUIT);
    }
    for (server, endpoint) in servers.iter_mut().zip(endpoints) {
        assert!(server.wait().success(), "{endpoint}");
        assert_eq!(server.logged("OTel export failure"), 1, "{endpoint} {}", server.log());
    }
}

#[test]
fn spans_go_over_tls_to_a_verified_collector() {
    let dir = certified();
    let made = weir_testkit::run(
        "openssl",
        [
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=collector",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            dir.file("c.key").to_str().unwrap(),
            "-out",
            dir.file("c.pem").to_str().unwrap(),
        ],
    );
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let collector = Collector::new();
    // In front of the collector is another server of the same weir.
    let conf = |trusted: &str| {
        format!(
            "events {{ }} http {{
                 otel_exporter {{ endpoint https://localhost:%%PORT1%%; interval 1ms;
                     trusted_certificate {trusted}; }}
                 server {{ listen 127.0.0.1:%%PORT1%% ssl;
                     ssl_certificate c.pem; ssl_certificate_key c.key;
                     location / {{ proxy_pass http://127.0.0.1:{}; }} }}
                 server {{ listen 127.0.0.1:%%PORT%%;
                     location / {{ otel_trace on; return 204; }} }} }}",
            collector.port
        )
    };
    let server = Server::start_in(dir, WEIR, &conf("c.pem"));
    assert_eq!(server.get("/").status, 204);
    collector.wait(1);
    server.configure(&conf("root.pem"));
    server.reload();
    assert_eq!(server.get("/").status, 204);
    server.wait_log("OTel export failure: ", 1);
    assert!(
        server.log().contains("in the TLS handshake with https://localhost"),
        "{}",
        server.log()
    );
    collector.wait(1);
    let none = server.dir().file("none.pem");
    server.configure(&conf(none.to_str().unwrap()));
    let said = server.command(&["-t"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("failed to open"), "{said:?}");
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
