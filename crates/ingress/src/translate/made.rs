//! The directives of a location.

use weir_conf::Directive;

use super::lines::line;

/// The directives in a location, and the locations beside it that it needs.
#[derive(Default)]
pub(super) struct Made {
    pub(super) inside: Vec<Directive>,
    pub(super) beside: Vec<Directive>,
}

/// The headers that upstreams get.
pub(crate) fn headers(directive: &str) -> Vec<Directive> {
    let list = [
        ("Host", "$best_http_host"),
        ("Upgrade", "$http_upgrade"),
        ("Connection", "$connection_upgrade"),
        ("X-Request-ID", "$req_id"),
        ("X-Real-IP", "$remote_addr"),
        ("X-Forwarded-For", "$full_x_forwarded_for"),
        ("X-Forwarded-Host", "$best_http_host"),
        ("X-Forwarded-Port", "$pass_server_port"),
        ("X-Forwarded-Proto", "$pass_access_scheme"),
        ("X-Forwarded-Scheme", "$pass_access_scheme"),
        ("X-Scheme", "$pass_access_scheme"),
        ("X-Original-Forwarded-For", "$http_x_forwarded_for"),
        ("X-Original-Forwarded-Host", "$http_x_forwarded_host"),
        ("Proxy", ""),
    ];
    let grpc = directive == "grpc_set_header";
    let kept = list.iter().filter(|(name, _)| !grpc || !matches!(*name, "Upgrade" | "Connection"));
    kept.map(|(name, value)| line(directive, [*name, *value])).collect()
}
