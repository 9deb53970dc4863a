//! Families of all built directives: those written by hand, and those that the tables say enough of.

use std::sync::LazyLock;

use weir_conf::{ArgumentKind, Contexts, DirectiveForm, KnownDirective, all_known};

use crate::families::{Choice, FAMILIES, NEWER};
use crate::more::{BROWSER, CACHING, DAV, FURTHER, LIMITS, LINKS};

/// What is known of how directives vary.
pub struct Drawn {
    /// For any nginx.
    pub all: Vec<Vec<Choice>>,
    /// Without what an older one answers otherwise.
    pub old: Vec<Vec<Choice>>,
}

pub static DRAWN: LazyLock<Drawn> = LazyLock::new(|| {
    let by_hand = |families: &[&[Choice]]| families.iter().map(|f| f.to_vec()).collect::<Vec<_>>();
    let old = by_hand(&FAMILIES[..FAMILIES.len() - NEWER]);
    let mut all = by_hand(FAMILIES);
    all.extend(by_hand(&[CACHING, LINKS, DAV, LIMITS, BROWSER, FURTHER]));
    let hand = all.clone();
    let is_by_hand = |name: &str| hand.iter().flatten().any(|choice| choice.directive == name);
    for module in modules() {
        let derived: Vec<Choice> = of_http()
            .filter(|known| known.module == module && !is_by_hand(known.name))
            .filter(|known| not_drawn(known).is_none())
            .filter_map(derived)
            .collect();
        if derived.is_empty() {
            continue;
        }
        // Beside what turns the module on.
        let near = of_http().filter(|known| known.module == module).map(|known| known.name);
        let near: Vec<&str> = near.chain(["return", "add_header"]).collect();
        let others = hand.iter().flatten().filter(|choice| near.contains(&choice.directive));
        let mut family: Vec<Choice> = others.copied().collect();
        // As many of the derived ones as of the others.
        for _ in 0..=family.len() / derived.len() {
            family.extend(&derived);
        }
        all.push(family);
    }
    Drawn { all, old }
});

/// Directives of blocks in `http` that weir gives a meaning to.
pub fn of_http() -> impl Iterator<Item = &'static KnownDirective> {
    all_known().filter(|known| {
        known.contexts.each().any(|at| letter(at).is_some() && weir_server::built(known, at))
            && !weir_server::help(known).is_some_and(|help| help.starts_with("Accepted"))
    })
}

fn modules() -> Vec<&'static str> {
    let mut modules: Vec<&str> = of_http().map(|known| known.module).collect();
    modules.dedup();
    modules
}

fn letter(context: Contexts) -> Option<char> {
    let letters = [
        (Contexts::HTTP, 'h'),
        (Contexts::SERVER, 's'),
        (Contexts::LOCATION, 'l'),
        (Contexts::IF_SERVER, 'S'),
        (Contexts::IF_LOCATION, 'i'),
        (Contexts::LIMIT_EXCEPT, 'e'),
    ];
    letters.iter().find(|(at, _)| *at == context).map(|(_, letter)| *letter)
}

/// A choice that follows from what the tables say of a directive's values.
fn derived(known: &'static KnownDirective) -> Option<Choice> {
    if known.shape != DirectiveForm::Statement {
        return None;
    }
    let values = values(known.args.value)?;
    let values: Vec<&'static str> = values.into_iter().map(|v| &*String::leak(v)).collect();
    let contexts: String = known.contexts.each().filter_map(letter).collect();
    Some(Choice {
        directive: known.name,
        contexts: String::leak(contexts),
        values: Vec::leak(values),
    })
}

fn values(value: ArgumentKind) -> Option<Vec<String>> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Some(match value {
        ArgumentKind::Any => return None,
        ArgumentKind::Flag => words(&["on", "off"]),
        ArgumentKind::Number { low, high } => {
            let near = [low, low.saturating_add(1), low.saturating_add(9), high];
            let within = near.into_iter().filter(|n| (low..=high).contains(n) && *n < 100_000);
            within.map(|n| n.to_string()).collect()
        }
        ArgumentKind::Size | ArgumentKind::Offset => words(&["0", "1", "1k", "64k", "1m"]),
        ArgumentKind::SizeOrVariable => words(&["0", "10m", "$arg_none"]),
        // What happens when they pass is looked at elsewhere.
        ArgumentKind::Msec | ArgumentKind::Sec => words(&["30s", "1h", "1d"]),
        ArgumentKind::Buffers => words(&["2 4k", "4 8k", "8 1k"]),
        ArgumentKind::OneOf(all) => words(all),
        ArgumentKind::AnyOf(all) => {
            let mut values: Vec<String> = words(all);
            let exclusive = |word: &&str| !matches!(*word, "off" | "none" | "any");
            let more: Vec<&str> = all.iter().copied().filter(exclusive).take(2).collect();
            values.push(more.join(" "));
            values
        }
    })
}

/// Why a directive of a block in `http` is in no family.
pub fn not_drawn(known: &KnownDirective) -> Option<&'static str> {
    let reasons: &[(&str, &[&str])] = &[
        (
            "the sites that are drawn consist of it",
            &[
                "server",
                "location",
                "listen",
                "server_name",
                "upstream",
                "include",
                "log_format",
                "limit_req_zone",
                "limit_conn_zone",
                "proxy_cache_path",
                "map",
                "geo",
                "split_clients",
                "charset_map",
                "if",
                "http2",
                "ssl_certificate",
                "ssl_certificate_key",
                "ssl_protocols",
            ],
        ),
        (
            "what it changes is no answer, line or request; it has tests of its own",
            &[
                "server_names_hash_bucket_size",
                "error_log",
                "open_log_file_cache",
                "aio",
                "client_body_temp_path",
                "proxy_temp_path",
                "resolver",
                "limit_req_log_level",
                "limit_conn_log_level",
                "rewrite_log",
            ],
        ),
        (
            "answers hold chance, counters or times",
            &[
                "random_index",
                "stub_status",
                "userid_service",
                "userid_domain",
                "userid_path",
                "userid_expires",
                "userid_flags",
                "userid_p3p",
            ],
        ),
        (
            "its requests, or lines, come when they come",
            &["mirror", "mirror_request_body", "post_action", "log_subrequest"],
        ),
        (
            "it needs media files (tests/media.rs)",
            &["flv", "mp4", "mp4_buffer_size", "mp4_max_buffer_size", "mp4_start_key_frame"],
        ),
        ("it needs CONNECT (tests/upstream/tunnel.rs)", &["tunnel_pass", "tunnel_bind"]),
        ("it binds to addresses that tests have to make", &["proxy_bind"]),
        (
            "nginx accepts it, and warns",
            &[
                "http2_max_concurrent_pushes",
                "http2_push",
                "http2_push_preload",
                "http2_max_header_size",
                "http2_recv_timeout",
                "http2_idle_timeout",
            ],
        ),
        (
            "the client speaks no QUIC (tests/http3.rs)",
            &[
                "http3",
                "http3_max_concurrent_streams",
                "http3_stream_buffer_size",
                "quic_gso",
                "quic_host_key",
                "quic_retry",
            ],
        ),
        ("it says who answers (tests/modules.rs)", &["server_tokens"]),
        ("of a head alone over HTTP/2 nginx does not know its value", &["limit_rate"]),
        ("needs bodies in pieces", &["client_body_early_read"]),
        (
            "a limit of bytes that a page of an older size fits by chance",
            &["http2_body_preread_size"],
        ),
    ];
    let of_module: &[(&str, &str)] = &[
        ("ngx_http_lua_module", "nginx has no Lua"),
        ("ngx_http_geoip_module", "it needs databases (tests/added)"),
        ("ngx_http_geoip2_module", "it needs databases (tests/added)"),
        ("ngx_http_acme_module", "nginx has it not (tests/acme)"),
        ("ngx_otel_module", "nginx has it not (tests/tracing.rs)"),
        ("ngx_http_image_filter_module", "nginx has it not (tests/added)"),
        ("ngx_http_dav_ext_module", "nginx has it not (tests/added)"),
        ("ngx_http_fancyindex_module", "nginx has it not (tests/added)"),
        ("ngx_http_echo_module", "nginx has it not (tests/added)"),
        ("ngx_http_headers_more_filter_module", "nginx has it not (tests/added)"),
        ("ngx_http_fastcgi_module", "the server behind speaks HTTP (tests/scripts)"),
        ("ngx_http_uwsgi_module", "the server behind speaks HTTP (tests/scripts)"),
        ("ngx_http_scgi_module", "the server behind speaks HTTP (tests/scripts)"),
        ("ngx_http_memcached_module", "the server behind speaks HTTP"),
        ("ngx_http_grpc_module", "the server behind speaks HTTP"),
        ("ngx_http_brotli_module", "nginx has no brotli"),
        ("ngx_http_zstd_module", "nginx has no zstd"),
        ("ngx_http_tunnel_module", "it needs CONNECT (tests/upstream/tunnel.rs)"),
        ("ngx_http_ssl_module", "one site has one certificate; tests/tls.rs compares"),
        ("weir", "nginx has no such directive"),
    ];
    // Groups of servers: what a balancer chooses is not an answer's.
    if known.module.starts_with("ngx_http_upstream") {
        return Some("one server is behind; tests/upstream compares groups");
    }
    if known.name.contains("_ssl_") {
        return Some("the server behind speaks no TLS; tests/upstream and tests/tls.rs do");
    }
    let by_module = of_module.iter().find(|(module, _)| *module == known.module);
    let by_name = reasons.iter().find(|(_, names)| names.contains(&known.name));
    by_name.map(|(why, _)| *why).or(by_module.map(|(_, why)| *why))
}

#[test]
fn every_built_directive_is_drawn_or_has_a_reason() {
    let drawn = |name: &str| {
        let choices = || DRAWN.all.iter().flatten();
        choices().any(|choice| choice.directive.split(' ').next() == Some(name))
            || choices().any(|choice| choice.values.iter().any(|v| v.contains(&format!("{name} "))))
    };
    let mut wrong = Vec::new();
    for known in of_http() {
        match (drawn(known.name), not_drawn(known)) {
            (false, None) => wrong.push(format!("{} is in no family", known.name)),
            (true, Some(why))
                if !why.starts_with("the sites") && !why.starts_with("one server") =>
            {
                wrong.push(format!("{} is drawn, and has a reason not to be: {why}", known.name));
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
