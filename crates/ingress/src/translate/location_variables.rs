//! ingress-nginx's variables about the Ingress of a request. Log formats and snippets use them.

use weir_conf::Directive;

use super::hosts::Route;
use super::lines::line;

/// Variables that a location sets, if they are used.
pub(super) const OF_LOCATIONS: [&str; 7] = [
    "ingress_name",
    "location_path",
    "namespace",
    "proxy_alternative_upstream_name",
    "proxy_upstream_name",
    "service_name",
    "service_port",
];

/// The variable with the canary's upstream, if the canary got the request.
pub(super) const ALTERNATIVE: &str = "proxy_alternative_upstream_name";

/// Other variables, and their values here.
const OTHERS: [(&str, &str); 4] = [
    ("balancer_ewma_score", "-"),
    ("opentelemetry_span_id", "$otel_span_id"),
    ("opentelemetry_trace_id", "$otel_trace_id"),
    ("the_real_ip", "$remote_addr"),
];

/// Whether a text uses a variable.
pub(crate) fn names(text: &str, variable: &str) -> bool {
    let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    text.split('$').skip(1).any(|rest| {
        rest.strip_prefix(variable).is_some_and(is_end)
            || rest
                .strip_prefix('{')
                .and_then(|rest| rest.strip_prefix(variable))
                .is_some_and(|rest| rest.starts_with('}'))
    })
}

/// Maps that define the variables that these texts use, for requests without a location of an
/// Ingress.
pub(super) fn defaults<'t>(texts: impl Iterator<Item = &'t String> + Clone) -> Vec<Directive> {
    let none = |name: &'static str| match name {
        "proxy_upstream_name" => (name, "upstream-default-backend"),
        _ => (name, ""),
    };
    let all = OF_LOCATIONS.map(none).into_iter().chain(OTHERS);
    let named = all.filter(|(name, _)| texts.clone().any(|text| names(text, name)));
    let map = |(name, value): (&str, &str)| {
        let rows = vec![line("default", [value])];
        line("map", ["", &format!("${name}")]).with_block(rows)
    };
    named.map(map).collect()
}

/// The `set` directives of a location for the `wanted` variables.
pub(super) fn set_variables(
    route: &Route,
    path: &str,
    wanted: impl Fn(&str) -> bool,
) -> Vec<Directive> {
    let (service, port) = route.backend.clone().unwrap_or_default();
    let id = &route.source.id;
    let servers = format!("{}-{service}-{port}", id.namespace);
    let all = [
        ("namespace", id.namespace.as_str()),
        ("ingress_name", &id.name),
        ("service_name", &service),
        ("service_port", &port),
        ("location_path", path),
        ("proxy_upstream_name", &servers),
    ];
    // A dollar in a path would begin a variable.
    let all = all.into_iter().filter(|(name, value)| wanted(name) && !value.contains('$'));
    all.map(|(name, value)| line("set", [format!("${name}").as_str(), value])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_named_by_all_of_its_name() {
        for (text, wanted) in [
            ("a $namespace b", true),
            ("$namespace", true),
            ("${namespace}x", true),
            ("$namespaces", false),
            ("$namespace_x", false),
            ("namespace $", false),
            ("${namespace", false),
        ] {
            assert_eq!(names(text, "namespace"), wanted, "{text}");
        }
    }
}
