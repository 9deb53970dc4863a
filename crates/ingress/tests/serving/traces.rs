//! Traces of Ingresses, at a collector.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use weir_ingress::Settings;
use weir_testkit::listen;

use super::{ask, behind, ingress, serve_with, service};

/// A collector; what it gets comes out.
fn collector() -> (u16, Receiver<Vec<u8>>) {
    let (tell, told) = channel();
    let port = listen(move |mut stream| {
        let (mut text, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(n) = stream.read(&mut piece) {
            if n == 0 {
                return;
            }
            text.extend_from_slice(&piece[..n]);
            let head = text.windows(4).position(|end| end == b"\r\n\r\n");
            let Some(head) = head else { continue };
            let lines = String::from_utf8_lossy(&text[..head]).to_lowercase();
            let length = lines.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.unwrap().parse().unwrap();
            if text.len() >= head + 4 + length {
                let _ = tell.send(std::mem::take(&mut text));
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        }
    });
    (port, told)
}

fn has(all: &[u8], word: &str) -> bool {
    all.windows(word.len()).any(|part| part == word.as_bytes())
}

#[test]
fn an_ingress_turns_traces_on_and_another_one_off() {
    let (port, told) = collector();
    let port = port.to_string();
    let on = [("enable-opentelemetry", "true"), ("opentelemetry-operation-name", "buys")];
    let off = [("enable-opentelemetry", "false")];
    let manifests = [
        service("a", "web", behind("web")),
        ingress("a", "traced", &on, "traced.test", &[("Prefix", "/", "web")]),
        ingress("a", "silent", &off, "silent.test", &[("Prefix", "/", "web")]),
        ingress("a", "usual", &[], "usual.test", &[("Prefix", "/", "web")]),
    ];
    let config = |usual: &str| {
        let words = [
            ("otlp-collector-host", "127.0.0.1"),
            ("otlp-collector-port", &port),
            ("otel-service-name", "shop"),
            ("otel-schedule-delay-millis", "50"),
            ("enable-opentelemetry", usual),
        ];
        Settings {
            defaults: words.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            ..Settings::default()
        }
    };
    for (usual, traced) in [("false", &["traced"][..]), ("true", &["traced", "usual"])] {
        let Some((server, findings)) = serve_with(&manifests.concat(), config(usual)) else {
            return;
        };
        assert!(findings.is_empty(), "{findings:?}");
        // The last one is traced in any case: what came before it was sent, or will not be.
        for name in ["silent", "usual", "traced"] {
            let (status, body) = ask(&server, &format!("{name}.test"), "/");
            assert_eq!(status, "200");
            assert_eq!(body.contains("traceparent"), traced.contains(&name), "{name}: {body}");
        }
        let mut spans = Vec::new();
        while !has(&spans, "buys") {
            spans.extend(told.recv_timeout(Duration::from_secs(20)).expect("spans"));
        }
        assert!(has(&spans, "shop") && has(&spans, "ingress.service_name"));
        for name in ["silent", "usual", "traced"] {
            assert_eq!(has(&spans, name), traced.contains(&name), "{name}");
        }
    }
    // Without a collector, the Ingress is told.
    let Some((_, findings)) = serve_with(&manifests.concat(), Settings::default()) else { return };
    let told: Vec<_> = findings.iter().map(|f| (f.object.name.as_str(), f.reason)).collect();
    assert_eq!(told, [("traced", "NoCollector")]);
}

#[test]
fn the_sampler_decides_of_what_begins_a_trace_and_the_trace_of_its_parts() {
    let manifests = [
        service("a", "web", behind("web")),
        ingress("a", "web", &[], "a.test", &[("Prefix", "/", "web")]),
    ];
    for (sampler, ratio, parent, sampled) in [
        ("AlwaysOn", "", None, true),
        ("AlwaysOff", "", None, false),
        ("TraceIdRatioBased", "1", None, true),
        ("TraceIdRatioBased", "0.0", None, false),
        ("AlwaysOn", "", Some("00"), false),
        ("AlwaysOff", "", Some("01"), true),
    ] {
        let words = [
            ("enable-opentelemetry", "true"),
            ("otlp-collector-host", "127.0.0.1"),
            ("otel-sampler", sampler),
            ("otel-sampler-ratio", ratio),
        ];
        let defaults = words.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let settings = Settings { defaults, ..Settings::default() };
        let Some((server, findings)) = serve_with(&manifests.concat(), settings) else { return };
        assert!(findings.is_empty(), "{findings:?}");
        let id = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
        let parent = parent.map(|flags| format!("traceparent: 00-{id}-{flags}\r\n"));
        let parent = parent.unwrap_or_default();
        let head = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{parent}Connection: close\r\n\r\n");
        let body = server.connect().send(head).response().body();
        let told = body.lines().find(|line| line.to_lowercase().starts_with("traceparent"));
        let is_sampled = told.is_some_and(|line| line.ends_with("-01"));
        assert_eq!(is_sampled, sampled, "{sampler} {ratio} {parent}: {told:?}");
    }
}
