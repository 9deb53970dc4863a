//! Tracing: sends a span for each request to an OpenTelemetry collector. nginx: ngx_otel_module.
//!
//! A request gets its trace context when a directive or variable first needs it. The context is
//! passed on in the headers of the request. When the request ends, its span is added to the batch
//! of its loop.

use weir_conf::{Error, Spot};
use weir_proto::trace_context::{self, TraceContext};
use weir_values::Template;

use crate::answer::change::set_request;
use crate::config::Setup;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::phases::Step;
use crate::request::Request;
use crate::request::contexts::ContextKey;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

mod collector;
mod exporter;
mod span;
mod spans;

pub use exporter::{EXPORTER, Reading};
pub use span::log;
pub use spans::SPANS;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// Whether there is an exporter.
    exports: bool,
    /// `otel_trace`
    trace: Option<Template>,
    /// The place of `otel_trace`.
    at: Option<Spot>,
    /// `otel_trace_context`
    context: Propagation,
    /// `otel_span_name`
    name: Option<Template>,
    /// `otel_span_attr`
    attributes: Vec<(Vec<u8>, Template)>,
}

/// How trace contexts are propagated.
#[derive(Debug, Clone, Copy, Default)]
struct Propagation {
    /// The client's span becomes the parent of the request's span.
    extract: bool,
    /// The request's own context is passed to upstream servers.
    inject: bool,
}

impl Settings for Conf {}

/// Called when all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    let exports = EXPORTER.read_so_far(&s.setup.drafts).is_complete();
    if let Some(at) = CONF.of(&s.location).at.filter(|_| !exports) {
        return Err(at.error("\"otel_exporter\" block is missing"));
    }
    if CONF.of(&s.location).exports != exports {
        CONF.change(&mut s.location).exports = exports;
    }
    Ok(())
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "otel_exporter",
        help: "Where spans are sent, over OTLP/HTTP: `endpoint`, `trusted_certificate`, `header`, `interval`, \
               `batch_size`, `batch_count`.",
        set: Set::Simple(|s, d| Reading::read(s.setup, d)),
    },
    Directive {
        name: "otel_service_name",
        help: "The server's name in traces, `service.name`.",
        set: Set::Simple(|s, d| {
            s.once(d)?;
            EXPORTER.draft(&mut s.setup.drafts).service_name(d);
            Ok(())
        }),
    },
    Directive {
        name: "otel_resource_attr",
        help: "An attribute of the server: name and value.",
        set: Set::Simple(|s, d| {
            EXPORTER.draft(&mut s.setup.drafts).resource_attribute(d);
            Ok(())
        }),
    },
    Directive {
        name: "otel_trace",
        help: "Samples requests for which this is `on` or `1`: they leave a span.",
        set: Set::Simple(set_trace),
    },
    setting!(
        "otel_trace_context",
        CONF.context,
        propagation,
        "How `traceparent` and `tracestate` are propagated: `extract` reads the client's, `inject` sends our own to upstream servers, `propagate` does both, `ignore` neither."
    ),
    Directive {
        name: "otel_span_name",
        help: "The name of spans, instead of the location's.",
        set: Set::Simple(|s, d| {
            s.once(d)?;
            let Some(word) = d.arg(0) else { return Ok(()) };
            let name = s.setup.template(d, word)?;
            CONF.change(&mut s.location).name = Some(name);
            Ok(())
        }),
    },
    Directive {
        name: "otel_span_attr",
        help: "An attribute of a span: name and value.",
        set: Set::Simple(add_attribute),
    },
];

/// The state of a request.
static CONTEXT: ContextKey<Traced> = ContextKey {
    for_subrequest: Some(Traced::clone),
    survives_redirect: true,
    ..ContextKey::passing()
};

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "otel", directives: DIRECTIVES, init, finish };

fn init(setup: &mut Setup<'_>) {
    let variables = &mut setup.variables;
    variables.define("otel_trace_id", |r, out| {
        trace_context::write_hex(&context(r).own.trace, out);
        true
    });
    variables.define("otel_span_id", |r, out| {
        trace_context::write_hex(&context(r).own.span, out);
        true
    });
    variables.define("otel_parent_id", |r, out| match &context(r).parent {
        Some(parent) => {
            trace_context::write_hex(&parent.span, out);
            true
        }
        None => false,
    });
    variables.define("otel_parent_sampled", |r, out| {
        let sampled = context(r).parent.is_some_and(|parent| parent.sampled);
        out.push(if sampled { b'1' } else { b'0' });
        true
    });
}

/// The trace context of a request.
#[derive(Clone)]
pub struct Traced {
    /// The parent, if the client's trace is trusted.
    parent: Option<TraceContext>,
    /// The client's `tracestate`.
    state: Vec<u8>,
    /// The request's own span.
    own: TraceContext,
    /// Whether `otel_trace` has been evaluated.
    decided: bool,
}

/// Whether a location's requests need a trace context.
pub fn wanted(conf: &LocationConf) -> bool {
    let Propagation { extract, inject } = CONF.of(conf).context;
    CONF.of(conf).trace.is_some() || extract || inject
}

/// Whether requests may leave spans.
pub fn wants_spans(conf: &LocationConf) -> bool {
    CONF.of(conf).exports
}

/// First handler of the location: decides on sampling and sets the headers for upstream servers.
pub fn handler(r: &mut Request) -> Step {
    // Subrequests belong to the span of the main request. A redirected request was decided on
    // before.
    if !r.is_main() || CONTEXT.of(&r.contexts).is_some_and(|traced| traced.decided) {
        return Step::Next;
    }
    let conf = CONF.of(r.conf());
    let sampled = conf.trace.as_ref().is_some_and(|trace| {
        let said = trace.eval(r);
        matches!(&*said, b"on" | b"1")
    });
    let traced = context(r);
    traced.decided = true;
    traced.own.sampled = sampled;
    if conf.context.inject {
        let mut value = Vec::with_capacity(trace_context::LENGTH);
        traced.own.write(&mut value);
        let state = traced.state.clone();
        set_request(r, b"traceparent", &[value]);
        let state = [state];
        set_request(r, b"tracestate", if state[0].is_empty() { &[] } else { &state });
    }
    Step::Next
}

/// The request's trace context, which is made at the first call.
fn context(r: &mut Request) -> &mut Traced {
    let traced = CONTEXT.take(&mut r.contexts).unwrap_or_else(|| new_context(r));
    CONTEXT.or_insert_with(&mut r.contexts, || traced)
}

fn new_context(r: &Request) -> Traced {
    let lines = |name: &'static [u8]| {
        let all = r.headers().filter(move |(n, _)| n.eq_ignore_ascii_case(name));
        all.map(|(_, value)| value)
    };
    let extract = CONF.of(r.conf()).context.extract;
    let parent = extract.then(|| TraceContext::parse(lines(b"traceparent"))).flatten();
    // `tracestate` has no meaning without `traceparent`.
    let state = parent.and_then(|_| trace_context::state(lines(b"tracestate")));
    let trace = parent.map_or_else(|| r.event_loop.random_id(), |parent| parent.trace);
    let span = r.event_loop.random_word().max(1).to_ne_bytes();
    let own = TraceContext { trace, span, sampled: false };
    Traced { parent, state: state.unwrap_or_default(), own, decided: false }
}

/// `otel_trace on | off | TEXT`
fn set_trace(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.arg(0) else { return Ok(()) };
    let trace = s.setup.template(d, word)?;
    let conf = CONF.change(&mut s.location);
    (conf.trace, conf.at) = (Some(trace), Some(Spot::new(d, word)));
    Ok(())
}

/// `otel_trace_context`
fn propagation(d: &weir_conf::Directive) -> Result<Propagation, Error> {
    let both = |extract, inject| Propagation { extract, inject };
    d.choice(&[
        ("ignore", both(false, false)),
        ("extract", both(true, false)),
        ("inject", both(false, true)),
        ("propagate", both(true, true)),
    ])
}

/// `otel_span_attr NAME VALUE`
fn add_attribute(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    let first = s.first(d);
    let (Some(name), Some(word)) = (d.arg(0), d.arg(1)) else { return Ok(()) };
    let value = s.setup.template(d, word)?;
    let conf = CONF.change(&mut s.location);
    if first {
        conf.attributes.clear();
    }
    conf.attributes.push((name.bytes.clone(), value));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::trial::site;

    fn complaint(lines: &str) -> String {
        site(lines).err().unwrap_or_default()
    }

    #[test]
    fn complaints() {
        let exporter = |lines: &str| complaint(&format!("otel_exporter {{ {lines} }}"));
        assert_eq!(complaint("otel_trace on;"), "\"otel_exporter\" block is missing");
        let missing = complaint("server { location / { otel_trace off; } }");
        assert_eq!(missing, "\"otel_exporter\" block is missing");
        assert_eq!(exporter(""), "\"otel_exporter\" requires \"endpoint\"");
        assert_eq!(exporter("endpoint http://127.0.0.1:4318;"), "");
        assert_eq!(exporter("port 1;"), "unknown directive \"port\" in \"otel_exporter\"");
        assert_eq!(
            exporter("endpoint;"),
            "invalid number of arguments in \"endpoint\" directive of \"otel_exporter\""
        );
        assert!(exporter("endpoint 127.0.0.1:4318; interval soon;").contains("invalid value"));
        assert!(exporter("endpoint 127.0.0.1:4318; batch_size 0;").contains("must be between"));
        assert!(exporter("endpoint 127.0.0.1:4318; header \"a b\" c;").contains("invalid header"));
        assert!(exporter("endpoint 127.0.0.1:4318; header Host c;").contains("weir's own"));
        assert!(exporter("endpoint 127.0.0.1:0;").contains("invalid port"));
        let twice = "otel_exporter { endpoint 127.0.0.1; } otel_exporter { endpoint 127.0.0.1; }";
        assert!(complaint(twice).contains("is duplicate"));
        // The order does not matter.
        assert_eq!(complaint("otel_trace on; otel_exporter { endpoint 127.0.0.1; }"), "");
    }
}
