//! Variables with the country, city and alike of an address, from MaxMind databases. nginx:
//! ngx_http_geoip_module, and the geoip2 module.

use weir_conf::{Directive as Line, Error};
use weir_values::geoip::{self, CITY, COUNTRY, ORGANIZATION, Proxies, VariablePaths};

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::site::settings::{Key, Settings};

/// Settings of `http`, which locations inherit.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// `geoip_proxy`: proxies whose `X-Forwarded-For` is trusted.
    proxies: Proxies,
    /// `geoip2_proxy`
    proxies2: Proxies,
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "geoip_country",
        help: "Variables with the country of an address, from a MaxMind database (`.mmdb`).",
        set: Set::Simple(|s, d| known(s, d, COUNTRY)),
    },
    Directive {
        name: "geoip_city",
        help: "Variables with the city, region and country of an address.",
        set: Set::Simple(|s, d| known(s, d, CITY)),
    },
    Directive {
        name: "geoip_org",
        help: "`$geoip_org`: the network's organization.",
        set: Set::Simple(|s, d| known(s, d, ORGANIZATION)),
    },
    Directive {
        name: "geoip_proxy",
        help: "Trusted proxies: the client's address is taken from their `X-Forwarded-For`.",
        set: Set::Simple(|s, d| CONF.change(&mut s.location).proxies.add(d)),
    },
    setting!(
        "geoip_proxy_recursive",
        CONF.proxies.recursive,
        Line::flag,
        "Whether the client is the last address that is not a trusted proxy, instead of the last address."
    ),
    Directive {
        name: "geoip2",
        help: "Variables, each with its path in the database's record of an address.",
        set: Set::Simple(chosen),
    },
    Directive {
        name: "geoip2_proxy",
        help: "As `geoip_proxy`.",
        set: Set::Simple(|s, d| CONF.change(&mut s.location).proxies2.add(d)),
    },
    setting!(
        "geoip2_proxy_recursive",
        CONF.proxies2.recursive,
        Line::flag,
        "As `geoip_proxy_recursive`."
    ),
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// One module for the directives of both nginx modules.
pub const MODULE: Module = Module { name: "http_geoip2", directives: DIRECTIVES, ..Module::NEW };

/// nginx's other module: it has `geoip_country` and alike.
pub const ALSO: &[&str] = &["http_geoip"];

fn known(s: &mut Scope<'_, '_>, d: &Line, variables: VariablePaths) -> Result<(), Error> {
    let prefix = s.setup.inputs.prefix;
    geoip::define_fixed(&mut s.setup.reading(), d, prefix, variables, |r| {
        Some(&CONF.of(r.conf()).proxies)
    })
}

fn chosen(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let prefix = s.setup.inputs.prefix;
    geoip::define_chosen(&mut s.setup.reading(), d, prefix, |r| Some(&CONF.of(r.conf()).proxies2))
}
