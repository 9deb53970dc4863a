//! Variables whose values depend on other variables. nginx: ngx_http_map_module.

use crate::config::module::Module;
use crate::config::scope::{Directive, Set};

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "map",
        help: "A variable whose value depends on another value.",
        set: Set::Simple(|s, d| weir_values::map::read(&mut s.setup.reading(), d)),
    },
    Directive {
        name: "map_hash_max_size",
        help: "Accepted: weir sizes its tables itself.",
        set: Set::Simple(|s, d| s.once(d)),
    },
    Directive {
        name: "map_hash_bucket_size",
        help: "Accepted: weir sizes its tables itself.",
        set: Set::Simple(|s, d| s.once(d)),
    },
];

/// The module.
pub const MODULE: Module = Module { name: "http_map", directives: DIRECTIVES, ..Module::NEW };

#[cfg(test)]
mod tests {
    use crate::trial::site;

    fn complaint(lines: &str) -> String {
        site(&format!("map $uri $x {{ {lines} }}")).err().unwrap_or_default()
    }

    #[test]
    fn complaints_are_those_of_nginx() {
        for (lines, text) in [
            ("a;", "invalid number of the map parameters"),
            ("a b c;", "invalid number of the map parameters"),
            ("default 1; default 2;", "duplicate default map parameter"),
            ("a 1; A 2;", "conflicting parameter \"a\""),
            ("hostnames; *.a 1; *.a 2;", "conflicting parameter \"*.a\""),
            ("hostnames; a.* 1; A.* 2;", "conflicting parameter \"a.*\""),
            ("hostnames; a*b 1;", "invalid hostname or wildcard \"a*b\""),
            ("a $;", "invalid variable name"),
        ] {
            assert_eq!(complaint(lines), text, "{lines}");
        }
        assert_eq!(complaint("a 1; \\default 2; default 3; ~a 1; ~a 2;"), "");
        assert_eq!(site("map $uri x { }").unwrap_err(), "invalid variable name \"x\"");
        assert_eq!(site("map $uri $uri { }").unwrap_err(), "the duplicate \"uri\" variable");
    }
}
