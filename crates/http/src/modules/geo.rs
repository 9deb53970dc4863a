//! Variables that depend on the client's address. nginx: ngx_http_geo_module.

use crate::config::module::Module;
use crate::config::scope::{Directive, Set};

const DIRECTIVES: &[Directive] = &[Directive {
    name: "geo",
    help: "A variable whose value depends on an address.",
    set: Set::Simple(|s, d| weir_values::geo::read(&mut s.setup.reading(), d, true)),
}];

/// The module.
pub const MODULE: Module = Module { name: "http_geo", directives: DIRECTIVES, ..Module::NEW };

#[cfg(test)]
mod tests {
    use crate::trial::site;

    fn complaint(lines: &str) -> String {
        site(&format!("geo $x {{ {lines} }}")).err().unwrap_or_default()
    }

    #[test]
    fn complaints_are_those_of_nginx() {
        for (lines, text) in [
            ("1.2.3.4;", "invalid number of the geo parameters"),
            ("1.2.3 a;", "invalid network \"1.2.3\""),
            ("unix: a;", "invalid network \"unix:\""),
            (
                "1.2.3.4 a; ranges;",
                "the \"ranges\" directive must be the first directive inside \"geo\" block",
            ),
            ("ranges; 1.2.3.4 a;", "invalid range \"1.2.3.4\""),
            ("ranges; 1.2.3.4-1.2.3.3 a;", "invalid range \"1.2.3.4-1.2.3.3\""),
            ("ranges; 9.0.0.0-255.255.255.255 a;", "invalid range \"9.0.0.0-255.255.255.255\""),
            (
                "ranges; 1.0.0.0-1.0.0.9 a; 1.0.0.5-1.0.0.20 b;",
                "range \"1.0.0.5-1.0.0.20\" overlaps \"1.0.0.0-1.0.0.9\"",
            ),
        ] {
            assert_eq!(complaint(lines), text, "{lines}");
        }
        assert_eq!(complaint("default a; 1.0.0.0/8 b; 255.255.255.255 c; delete 1.0.0.0/8;"), "");
        assert_eq!(site("geo x { }").unwrap_err(), "invalid variable name \"x\"");
    }
}
