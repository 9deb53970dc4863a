//! The values as text for monitors.

use std::fmt::Write;

use crate::{DECLARATIONS, Declaration, Kind, Registry};

pub(crate) fn prometheus(registry: &Registry) -> String {
    let mut out = String::new();
    for d in DECLARATIONS {
        let name = prometheus_name(d);
        let (kind, value) = (kind(d.kind), registry.sum(d.metric));
        // Writing to a String cannot fail.
        let _ = write!(out, "# HELP {name} {}\n# TYPE {name} {kind}\n{name} {value}\n", d.help);
    }
    out
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
    out.push('}');
    out
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    }
}
