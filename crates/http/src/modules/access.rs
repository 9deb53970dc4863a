//! Allows and denies requests by the client's address. nginx: ngx_http_access_module.

use weir_conf::Error;
use weir_log::Level;
use weir_values::access::Rules;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::phases::Step;
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    rules: Rules,
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[
    Directive { name: "allow", help: "Allows clients with this address.", set: Set::Simple(set) },
    Directive { name: "deny", help: "Denies clients with this address.", set: Set::Simple(set) },
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_access", directives: DIRECTIVES, ..Module::NEW };

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !CONF.of(conf).rules.is_empty()
}

/// Whether the rules deny every client that no other rule names.
pub fn denies_the_rest(conf: &Conf) -> bool {
    conf.rules.deny_the_rest()
}

/// Access phase. The first rule that matches the address decides.
pub fn handler(r: &mut Request) -> Step {
    match CONF.of(r.conf()).rules.allow(r.peer()) {
        None => Step::Next,
        Some(true) => Step::Done,
        Some(false) => {
            if !r.conf().core.satisfy_any {
                r.log(Level::Error, format_args!("access forbidden by rule"));
            }
            Step::Status(403)
        }
    }
}

/// `allow` and `deny` add to one list of rules.
fn set(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    let first = s.first_of("allow, deny");
    let rules = &mut CONF.change(&mut s.location).rules;
    rules.read(d, first, &mut s.setup.warnings)
}
