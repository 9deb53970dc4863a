//! When and how spans are sent: batches, collectors that refuse, are silent or gone, and TLS.

use std::io::Read;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest,
};
use rustix::process::Signal;
use weir_testkit::{Client, Deaf, Dir, Server, ask_until, certified, listen};

use super::WEIR;
use super::collector::{Collector, answer};

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
