//! Fuzz target: any `http` block becomes a site or a message.
//!
//! As a plain test it runs the kept corpus (`__fuzz__/*/corpus`) and a second of random inputs;
//! CONTRIBUTING.md tells how to let a fuzzer look for longer.

use weir_conf::{Contexts, Directive, KnownDirective, check, read_text};

use crate::trial;

#[test]
fn site() {
    bolero::check!().for_each(|input: &[u8]| {
        let Ok(http) = std::str::from_utf8(input) else { return };
        let text = format!("events {{ }}\nhttp {{\n{http}\n}}\n");
        if http.contains("include") {
            return;
        }
        let tree = read_text("fuzz.conf".as_ref(), text.as_bytes());
        let built = |known: &KnownDirective, _: Contexts| {
            ["events", "http"].contains(&known.name) || crate::built(known.name)
        };
        if check(&tree, &built).is_err() || !tree.main.iter().all(harmless) {
            return;
        }
        match trial::site(http) {
            Ok(_) => {}
            Err(message) => assert!(!message.is_empty()),
        }
    });
}

/// Whether neither the directive nor one inside it opens files for writing or asks a name server.
fn harmless(directive: &Directive) -> bool {
    let name = directive.name.lossy();
    let mut args = directive.args.iter().map(|word| word.lossy());
    let here = match name.as_ref() {
        "access_log" | "error_log" => args.all(|arg| arg == "off"),
        "listen" | "server" | "resolver" => args.all(|arg| is_address(&arg)),
        name if name.ends_with("_pass") => args.all(|arg| is_address(&arg)),
        _ => !args.any(|arg| arg.contains("syslog:")),
    };
    here && directive.block().iter().all(harmless)
}

/// Whether this is not a host name: an address, a parameter, or a text with variables.
fn is_address(arg: &str) -> bool {
    let host = arg.split_once("://").map_or(arg, |(_, rest)| rest);
    host.contains(['=', '$'])
        || host.starts_with("unix:")
        || host.bytes().all(|ch| ch.is_ascii_digit() || b".:[]/*".contains(&ch))
        || ["localhost", "default_server", "backup", "down", "ssl"].contains(&host)
}
