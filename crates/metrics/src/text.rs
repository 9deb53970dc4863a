//! The values as text for monitors.

use std::fmt::Write;

use crate::{DECLARATIONS, Declaration, HISTOGRAMS, Kind, Registry, Times, TimesDeclaration};

pub(crate) fn prometheus(registry: &Registry) -> String {
    let mut out = String::new();
    for d in DECLARATIONS {
        let name = prometheus_name(d);
        let (kind, value) = (kind(d.kind), registry.sum(d.metric));
        // Writing to a String cannot fail.
        let _ = write!(out, "# HELP {name} {}\n# TYPE {name} {kind}\n{name} {value}\n", d.help);
    }
    for d in HISTOGRAMS {
        prometheus_times(d, &registry.times(d.histogram), &mut out);
    }
    out
}

fn prometheus_times(d: &TimesDeclaration, times: &Times, out: &mut String) {
    let name = format!("weir_{}_seconds", d.name);
    let _ = write!(out, "# HELP {name} {}\n# TYPE {name} histogram\n", d.help);
    for (end, n) in times.steps() {
        let _ = writeln!(out, "{name}_bucket{{le=\"{}\"}} {n}", seconds(end));
    }
    let (sum, count) = (seconds(times.sum), times.count);
    let _ = write!(
        out,
        "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}\n"
    );
}

/// Microseconds as seconds.
fn seconds(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

/// `weir_NAME_UNIT`, and `_total` for counters, as its naming guide asks; the name alone where
/// it says the unit.
fn prometheus_name(d: &Declaration) -> String {
    let unit = if d.name == d.unit { String::new() } else { format!("_{}", d.unit) };
    let end = if d.kind == Kind::Counter { "_total" } else { "" };
    format!("weir_{}{unit}{end}", d.name)
}

pub(crate) fn json(registry: &Registry) -> String {
    let mut out = String::from("{");
    for (i, d) in DECLARATIONS.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let (kind, value) = (kind(d.kind), registry.sum(d.metric));
        let _ = write!(
            out,
            r#"{comma}"{}":{{"type":"{kind}","unit":"{}","value":{value}}}"#,
            d.name, d.unit
        );
    }
    for d in HISTOGRAMS {
        let times = registry.times(d.histogram);
        let _ = write!(
            out,
            r#","{}":{{"type":"histogram","unit":"us","count":{},"sum":{},"p50":{},"p90":{},"p99":{},"p999":{},"max":{}}}"#,
            d.name,
            times.count,
            times.sum,
            times.quantile(0.5),
            times.quantile(0.9),
            times.quantile(0.99),
            times.quantile(0.999),
            times.quantile(1.0)
        );
    }
    out.push('}');
    out
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    }
}
