//! Variables that split requests by a hash into shares. nginx: ngx_http_split_clients_module.

use crate::config::module::Module;
use crate::config::scope::{Directive, Set};

const DIRECTIVES: &[Directive] = &[Directive {
    name: "split_clients",
    help: "A variable that gives each of its values a share of requests, by a hash.",
    set: Set::Simple(|s, d| weir_values::split_clients::read(&mut s.setup.reading(), d)),
}];

/// The module.
pub const MODULE: Module =
    Module { name: "http_split_clients", directives: DIRECTIVES, ..Module::NEW };

#[cfg(test)]
mod tests {
    use crate::trial::site;

    #[test]
    fn complaints_are_those_of_nginx() {
        let complaint = |lines: &str| {
            site(&format!("split_clients $uri $x {{ {lines} }}")).err().unwrap_or_default()
        };
        assert_eq!(complaint("0% a;"), "invalid percent value \"0%\"");
        assert_eq!(complaint("60% a; 50% b;"), "percent total is greater than 100%");
        assert_eq!(complaint("60% a; 40% b;"), "");
        assert_eq!(complaint("60% a; * b;"), "");
    }
}
