use std::path::Path;

use super::*;
use crate::error::Level;
use crate::parser::read_text;

fn tree(text: &str) -> ConfigTree {
    read_text(Path::new("/nowhere/nginx.conf"), text.as_bytes())
}

/// nginx's line for the error in a text, as if all directives were built.
fn wrong(text: &str) -> String {
    let tree = tree(text);
    let error = check(&tree, &|_, _| true).expect_err(text);
    tree.sources.first_line(&error).replace(" in /nowhere/nginx.conf", "")
}

fn hint(text: &str) -> String {
    check(&tree(text), &|_, _| true).expect_err(text).hint.unwrap_or_default()
}

#[test]
fn a_plain_configuration_is_right() {
    let text = "events { worker_connections 5; } http { map $a $b { x y; } server { listen 80; \
                location / { if ($a = b) { return 404; } limit_except GET { deny all; } } } } \
                stream { upstream u { server a; } server { listen 1; proxy_pass u; } }";
    assert_eq!(check(&tree(text), &|_, _| true), Ok(Vec::new()));
}

#[test]
fn messages_of_nginx() {
    for (text, expected) in [
        ("servr {\n}", "unknown directive \"servr\":1"),
        ("http {\n server_name a\n;}", "\"server_name\" directive is not allowed here:3"),
        ("http { server { real_ip_headr x; } }", "unknown directive \"real_ip_headr\":1"),
        ("stream {\n location / { }\n}", "\"location\" directive is not allowed here:2"),
        ("user a {\n}", "directive \"user\" is not terminated by \";\":1"),
        ("\nevents;", "directive \"events\" has no opening \"{\":2"),
        ("user;", "invalid number of arguments in \"user\" directive:1"),
        ("user a b c;", "invalid number of arguments in \"user\" directive:1"),
        ("events x { }", "invalid number of arguments in \"events\" directive:1"),
        ("http { }\nhttp {\n}", "\"http\" directive is duplicate:2"),
        ("pid a;\npid b;", "\"pid\" directive is duplicate:2"),
        (
            "http { keepalive_timeout 1; keepalive_timeout 2; }",
            "\"keepalive_timeout\" directive is duplicate:1",
        ),
        (
            "http { gzip no; }",
            "invalid value \"no\" in \"gzip\" directive, it must be \"on\" or \"off\":1",
        ),
        ("http { gzip_comp_level 10; }", "value must be between 1 and 9:1"),
        ("http { gzip_min_length 512kb; }", "\"gzip_min_length\" directive invalid value:1"),
        ("http { limit_rate 5x; }", "\"limit_rate\" directive invalid value:1"),
        ("http { send_timeout 3x; }", "\"send_timeout\" directive invalid value:1"),
        ("http { keepalive_requests x; }", "\"keepalive_requests\" directive invalid number:1"),
        ("http { gzip_buffers 0 4k; }", "\"gzip_buffers\" directive invalid value:1"),
        ("http { proxy_http_version 1.2; }", "invalid value \"1.2\":1"),
        ("http { proxy_next_upstream error\n http_599; }", "invalid value \"http_599\":2"),
        ("user a;", "no \"events\" section in configuration"),
        ("servr;\n}", "unknown directive \"servr\":1"),
        ("user a;\n}", "unexpected \"}\":2"),
        ("http {\n servr;\n", "unknown directive \"servr\":2"),
    ] {
        assert_eq!(wrong(text), expected, "{text}");
    }
}

#[test]
fn a_word_given_twice_is_a_warning() {
    let text = "events { } http { ssl_protocols TLSv1.2; ssl_protocols tlsv1.2; }";
    let warnings = check(&tree(text), &|_, _| true).unwrap();
    let found: Vec<_> = warnings.iter().map(|w| (w.level, w.message.as_str())).collect();
    assert_eq!(found, [(Level::Warn, "duplicate value \"tlsv1.2\"")]);
}

#[test]
fn the_same_directive_may_stand_in_another_block() {
    let text =
        "events { } http { limit_rate $a; gzip on; server { gzip off; location / { gzip on; } } }";
    assert_eq!(check(&tree(text), &|_, _| true), Ok(Vec::new()));
}

#[test]
fn hints() {
    assert_eq!(hint("http { servr { } }"), "did you mean \"server\"?");
    assert_eq!(hint("http { location / { } }"), "it may stand in: server, location");
    assert_eq!(hint("pid a\nuser b;"), "is a \";\" missing at the end of line 1?");
    assert_eq!(hint("user;"), "it takes 1 to 2 arguments");
    assert!(hint("http { server { ssl on; } }").contains("\"listen\""));
    assert!(hint("\u{feff}user a;").contains("byte order mark"));
}

#[test]
fn directives_that_are_not_built() {
    let built = |k: &KnownDirective, _: Contexts| {
        !matches!(k.name, "deny" | "sendfile" | "gzip" | "stream")
    };
    let run = |text: &str| check(&tree(&format!("events {{ }} {text}")), &built);
    let error = run("http { deny all; gzip on; gzip on; }").unwrap_err();
    assert_eq!(error.message, "\"gzip\" directive is duplicate");
    let error = run("http { deny all; gzip on; }").unwrap_err();
    assert_eq!(error.message, "\"deny\" directive is known but not built into weir yet");
    assert_eq!(error.hint.as_deref(), Some("not built yet either: gzip"));
    assert_eq!(run("http { gzip off; }"), Ok(Vec::new()));
    let warnings = run("http { sendfile on; server { sendfile off; } }").unwrap();
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].level, Level::Warn);
    let error = run("stream { server { deny all; } }").unwrap_err();
    assert_eq!(error.message, "\"stream\" directive is known but not built into weir yet");
    assert_eq!(error.hint, None);
}

#[test]
fn directives_that_weir_lacks_have_advice() {
    let built = |k: &KnownDirective, _: Contexts| !matches!(k.name, "perl" | "gzip");
    let hint = |text: &str| {
        let error = check(&tree(&format!("events {{ }} {text}")), &built).unwrap_err();
        error.hint.unwrap_or_default()
    };
    let both = hint("http { server { location / { perl a; gzip on; } } }");
    assert_eq!(both, "weir's scripts are in Lua: see docs/lua.md; not built yet either: gzip");
}

#[test]
fn errors_of_nginx_come_before_unbuilt_directives() {
    let text = "events { } http { deny all; } usr;";
    let error = check(&tree(text), &|_, _| false).unwrap_err();
    assert_eq!(error.message, "unknown directive \"usr\"");
}
