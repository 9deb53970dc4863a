//! Reads groups of upstream servers, and defines their variables.
//! nginx: ngx_http_upstream_module and its balancing modules.

use std::sync::Arc;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::site::settings::{Key, Settings};
use crate::upstream::cache;
use crate::upstream::health::CHECKS;
use weir_upstream::config::methods;

mod block;
mod health_check;
mod variables;

use block::with;
use health_check::HealthCheckLine;

/// The settings of a location. The protocols' modules have the others.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// `health_check` lines, until all settings of the location are known.
    checks: Vec<HealthCheckLine>,
}

impl Settings for Conf {
    fn enter(conf: &mut Arc<Self>, _: &crate::site::location::Kind) {
        if !conf.checks.is_empty() {
            Arc::make_mut(conf).checks.clear();
        }
    }
}

/// Called when all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), weir_conf::Error> {
    if CONF.of(&s.location).checks.is_empty() {
        return Ok(());
    }
    for line in std::mem::take(&mut CONF.change(&mut s.location).checks) {
        let check = line.finish(s)?;
        CHECKS.draft(&mut s.setup.drafts).checks.push(check);
    }
    Ok(())
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "upstream",
        help: "A group of servers that requests are passed to.",
        set: Set::Block(block::upstream),
    },
    Directive {
        name: "hash",
        help: "Chooses the server by the hash of a value; `consistent`: by ketama's ring.",
        set: Set::Simple(|s, d| with(s, d, |s, block| methods::hash(s, block, d))),
    },
    Directive {
        name: "ip_hash",
        help: "Chooses the server by the client's address.",
        set: Set::Simple(|s, d| with(s, d, |s, block| methods::ip_hash(block, s.warnings, d))),
    },
    Directive {
        name: "least_conn",
        help: "Chooses the server with the fewest connections for its weight.",
        set: Set::Simple(|s, d| with(s, d, |s, block| methods::least_conn(block, s.warnings, d))),
    },
    Directive {
        name: "least_time",
        help: "Chooses the server with the lowest response time and the fewest connections.",
        set: Set::Simple(|s, d| {
            with(s, d, |s, block| methods::least_time(block, s.warnings, d, methods::OF_REQUESTS))
        }),
    },
    Directive {
        name: "random",
        help: "Chooses a random server, or the less loaded one of two.",
        set: Set::Simple(|s, d| {
            with(s, d, |s, block| methods::random(block, s.warnings, d, methods::OF_REQUESTS))
        }),
    },
    Directive {
        name: "keepalive",
        help: "How many idle connections to the group's servers each loop keeps.",
        set: Set::Simple(block::keepalive),
    },
    Directive {
        name: "zone",
        help: "Shared memory for the state of the servers. All workers use it, and a reload keeps it.",
        set: Set::Simple(|s, d| {
            let zones = s.setup.inputs.zones;
            with(s, d, |_, block| methods::zone(block, zones, d))
        }),
    },
    Directive {
        name: "sticky",
        help: "Passes all requests of a client to one server.",
        set: Set::Simple(block::sticky),
    },
    Directive {
        name: "health_check",
        help: "Checks the servers regularly; a server that fails gets no requests.",
        set: Set::Simple(|s, d| {
            let line = HealthCheckLine::read(d)?;
            CONF.change(&mut s.location).checks.push(line);
            Ok(())
        }),
    },
    Directive {
        name: "match",
        help: "Rules for the response to a health check.",
        set: Set::Simple(health_check::rules),
    },
    Directive {
        name: "servers_file",
        help: "Reads the servers of the group from a file. Running workers follow its changes.",
        set: Set::Simple(|s, d| {
            let prefix = s.setup.inputs.prefix;
            with(s, d, |_, block| methods::servers_file(block, prefix, 80, d))
        }),
    },
    Directive {
        name: "queue",
        help: "How many requests of each worker may wait until a server is free.",
        set: Set::Simple(block::queue),
    },
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_upstream", directives: DIRECTIVES, init, finish };

/// nginx has a module for each balancing method.
pub const ALSO: &[&str] = &[
    "http_upstream_hash",
    "http_upstream_ip_hash",
    "http_upstream_keepalive",
    "http_upstream_least_conn",
    "http_upstream_least_time",
    "http_upstream_random",
    "http_upstream_sticky",
    "http_upstream_zone",
    "http_cache",
];

fn init(setup: &mut crate::config::Setup<'_>) {
    variables::define(setup);
    cache::define(setup);
}
