//! Traces, by ingress-nginx's keys and annotations for OpenTelemetry.
//!
//! - In: the ConfigMap, which names a collector and a sampler; Ingresses, which turn tracing on and
//!   off.
//! - Out: directives of `http` and of locations.
//!
//! weir sends spans by OTLP over HTTP, ingress-nginx by gRPC. So the default port differs.

use std::collections::BTreeMap;

use weir_conf::Directive;

use super::global::Global;
use super::hosts::Route;
use super::lines::line;
use super::work::Work;
use crate::annotations::values;
use crate::report::Severity;

/// The collectors' port of OTLP over HTTP.
const PORT: &str = "4318";
/// Whether a request is traced, if its Ingress turns tracing on.
const TRACED: &str = "$is_traced";
/// Whether a request that begins a trace is sampled.
const SAMPLED: &str = "$is_sampled";

impl Work<'_> {
    /// The collector and the sampler.
    pub(super) fn traces(
        &mut self,
        data: &BTreeMap<String, String>,
        flag: &dyn Fn(&str, bool) -> bool,
        global: &mut Global,
    ) {
        let text = |key: &str| data.get(key).map(|v| v.trim()).filter(|v| !v.is_empty());
        let own = self.settings.base_http().any(|d| d.name.is("otel_exporter"));
        let host = text("otlp-collector-host").filter(|host| values::of(host, "-._:[]"));
        match (own, host) {
            // The administrator's own exporter takes precedence.
            (true, _) => {}
            (false, Some(host)) => global.http.extend(exporter(host, &text)),
            (false, None) => {
                if flag("enable-opentelemetry", false) || text("otlp-collector-host").is_some() {
                    let why = "it must be the host of a collector; no request is traced";
                    self.about_map("otlp-collector-host", Severity::Error, why);
                }
                return;
            }
        }
        let sampled = match text("otel-sampler").unwrap_or("AlwaysOn") {
            "AlwaysOff" => "off",
            "TraceIdRatioBased" => {
                let ratio = text("otel-sampler-ratio").unwrap_or("0.01").parse::<f64>();
                let Some(ratio) = ratio.ok().filter(|ratio| (0.0..=1.0).contains(ratio)) else {
                    let why = "it must be a number from 0 to 1; no request is traced";
                    return self.about_map("otel-sampler-ratio", Severity::Error, why);
                };
                match format!("{:.2}%", ratio * 100.0).as_str() {
                    // `split_clients` takes no share of 0.
                    "0.00%" => "off",
                    share => {
                        let rows = vec![line(share, ["on"]), line("*", ["off"])];
                        let split = line("split_clients", ["$otel_trace_id", SAMPLED]);
                        global.http.push(split.with_block(rows));
                        SAMPLED
                    }
                }
            }
            "AlwaysOn" => "on",
            _ => {
                let why =
                    "it must be AlwaysOn, AlwaysOff or TraceIdRatioBased; no request is traced";
                return self.about_map("otel-sampler", Severity::Error, why);
            }
        };
        // A request that continues a trace follows that trace's sampling decision.
        let of_others = match flag("otel-sampler-parent-based", true) {
            true => "$otel_parent_sampled",
            false => sampled,
        };
        let rows = vec![line("default", [of_others]), line("", [sampled])];
        global.http.push(line("map", ["$otel_parent_id", TRACED]).with_block(rows));
        global.traces = true;
    }

    /// Adds the directives of an Ingress's tracing for a route.
    pub(super) fn trace(&mut self, route: &Route, inside: &mut Vec<Directive>) {
        let source = &route.source;
        let Some(trace) = &source.options.trace else { return };
        if !self.base.traces {
            // If the ConfigMap itself turns tracing on, its own finding reports the missing
            // collector.
            if !self.settings.flag("enable-opentelemetry") {
                let why = "the ConfigMap names no otlp-collector-host: no request is traced";
                let name = "enable-opentelemetry";
                self.say(&source.id, Severity::Warning, "NoCollector", name, why);
            }
            return;
        }
        inside.push(line("otel_trace", [TRACED]));
        let context = if trace.trusts_clients { "propagate" } else { "inject" };
        inside.push(line("otel_trace_context", [context]));
        inside.extend(trace.name.iter().map(|name| line("otel_span_name", [name.as_str()])));
        let (service, _) = route.backend.clone().unwrap_or_default();
        for (name, value) in [
            ("ingress.namespace", source.id.namespace.as_str()),
            ("ingress.name", &source.id.name),
            ("ingress.service_name", &service),
        ] {
            if !value.is_empty() && !value.contains('$') {
                inside.push(line("otel_span_attr", [name, value]));
            }
        }
    }
}

/// The exporter's directives: the collector, and the service name.
fn exporter<'t>(host: &str, text: &dyn Fn(&str) -> Option<&'t str>) -> Vec<Directive> {
    let number = |key: &str| text(key).filter(|n| n.len() <= 6 && n.parse::<u32>().is_ok());
    let port = number("otlp-collector-port").unwrap_or(PORT);
    let mut block = vec![line("endpoint", [format!("http://{host}:{port}").as_str()])];
    let interval = number("otel-schedule-delay-millis").map(|ms| format!("{ms}ms"));
    block.extend(interval.iter().map(|interval| line("interval", [interval.as_str()])));
    block.extend(number("otel-max-export-batch-size").map(|n| line("batch_size", [n])));
    let name = text("otel-service-name").filter(|name| values::of(name, "-._"));
    vec![
        line("otel_exporter", []).with_block(block),
        line("otel_service_name", [name.unwrap_or("nginx")]),
    ]
}
