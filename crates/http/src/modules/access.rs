//! Allows and denies by the client's address. nginx: ngx_http_access_module.

use weir_conf::Error;
use weir_log::Level;

use crate::address::Address;
use crate::cidr::Cidr;
use crate::config::scope::{Directive, Scope, Set};
use crate::modules::{LocationConf, Module, Settings};
use crate::phases::Step;
use crate::request::Request;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    rules: Vec<Rule>,
}

impl Settings for Conf {}

#[derive(Debug, Clone, Copy)]
struct Rule {
    deny: bool,
    who: Who,
}

#[derive(Debug, Clone, Copy)]
enum Who {
    All,
    These(Cidr),
}

impl Rule {
    fn applies(&self, address: &Address) -> bool {
        match self.who {
            Who::All => *address != Address::Unknown,
            Who::These(cidr) => cidr.contains(address),
        }
    }
}

const DIRECTIVES: &[Directive] = &[
    Directive { name: "allow", help: "Lets clients with this address in.", set: Set::Simple(set) },
    Directive { name: "deny", help: "Keeps clients with this address out.", set: Set::Simple(set) },
];

/// The module.
pub const MODULE: Module = Module { name: "http_access", directives: DIRECTIVES, init: |_| {} };

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !conf.access.rules.is_empty()
}

/// The first rule that applies decides.
pub fn handler(r: &mut Request) -> Step {
    let rules = &r.conf().access.rules;
    let peer = r.peer();
    match rules.iter().find(|rule| rule.applies(peer)) {
        None => Step::Next,
        Some(rule) if !rule.deny => Step::Done,
        Some(_) => {
            if !r.conf().core.satisfy_any {
                r.log(Level::Error, format_args!("access forbidden by rule"));
            }
            Step::Status(403)
        }
    }
}

/// `allow address|network|unix:|all`, `deny ...`
fn set(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    // Both directives make one list.
    let first = s.first_of("allow, deny");
    let Some(word) = d.arg(0) else { return Ok(()) };
    let who = if word.is("all") {
        Who::All
    } else {
        let parsed = Cidr::parse(&word.bytes);
        let (cidr, odd) = parsed.ok_or_else(|| d.invalid("parameter", word))?;
        if odd {
            let text = format!("low address bits of {} are meaningless", word.lossy());
            s.setup.warnings.push(d.warning(text));
        }
        Who::These(cidr)
    };
    let rules = &mut Scope::change(&mut s.location.access).rules;
    if first {
        rules.clear();
    }
    rules.push(Rule { deny: d.name.is("deny"), who });
    Ok(())
}
