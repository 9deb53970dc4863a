//! Limits the number of concurrent requests of a key. nginx: ngx_http_limit_conn_module.

use weir_conf::{Directive as Line, Error};
use weir_metrics::Metric;
use weir_values::limit_conn::{LimitLogging, Limits};

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::modules::limit_req::refusal::{self, RejectSettings};
use crate::phases::Step;
use crate::request::Request;
use crate::request::contexts::ContextKey;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

pub use weir_values::limit_conn::HeldPlaces;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    limits: Limits,
    refusal: RejectSettings,
}

impl Settings for Conf {}

/// Called when all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    if !CONF.of(&s.location).limits.is_unfinished() {
        return Ok(());
    }
    let all = s.setup.inputs.zones;
    CONF.change(&mut s.location).limits.finish::<Request>(all)
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "limit_conn_zone",
        help: "Shared memory for the number of connections of each key.",
        set: Set::Simple(|s, d| {
            let zones = s.setup.inputs.zones;
            let limits = &mut CONF.change(&mut s.location).limits;
            limits.zone(&mut s.setup.reading(), zones, d)
        }),
    },
    Directive {
        name: "limit_conn",
        help: "The maximum number of concurrent requests of a key.",
        set: Set::Simple(|s, d| {
            let zones = s.setup.inputs.zones;
            CONF.change(&mut s.location).limits.limit::<Request>(d, zones)
        }),
    },
    setting!(
        "limit_conn_log_level",
        CONF.refusal.log_level,
        refusal::log_level,
        "The level at which rejected requests are logged."
    ),
    setting!(
        "limit_conn_status",
        CONF.refusal.status,
        refusal::status,
        "The status of rejected requests."
    ),
    setting!(
        "limit_conn_dry_run",
        CONF.refusal.dry_run,
        Line::flag,
        "Counts and logs, but limits nothing."
    ),
];

/// The verdict on a client's request and its subrequests, and the places that are held until all of them have ended. Only the
/// first of them that has a key is counted.
static CONTEXT: ContextKey<HeldPlaces> = ContextKey {
    for_subrequest: Some(HeldPlaces::counted),
    survives_redirect: true,
    ..ContextKey::passing()
};

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module {
    name: "http_limit_conn",
    directives: DIRECTIVES,
    init: |setup| {
        setup.variables.define("limit_conn_status", |r, out| {
            r.family_context(&CONTEXT, |held| held.write(out)).unwrap_or(false)
        });
    },
    finish,
};

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !CONF.of(conf).limits.is_empty()
}

/// Counts the request under each limit of the location.
pub fn handler(r: &mut Request) -> Step {
    let conf = CONF.of(r.conf());
    if r.family_context(&CONTEXT, HeldPlaces::is_decided) == Some(true) {
        return Step::Next;
    }
    let how = LimitLogging { log_level: conf.refusal.log_level, dry_run: conf.refusal.dry_run };
    let (held, step) = match conf.limits.take(r, how) {
        Ok(held) => (held, Step::Next),
        Err(held) => {
            r.event_loop.metrics.add(Metric::LimitedByConn, 1);
            (held, conf.refusal.refuse(r))
        }
    };
    if held.is_decided() {
        r.set_family_context(&CONTEXT, held);
    }
    step
}

#[cfg(test)]
mod tests {
    use crate::trial::complaint;

    #[test]
    fn says_what_is_wrong() {
        assert_eq!(complaint("limit_conn x 0;"), "invalid number of connections \"0\"");
        assert_eq!(complaint("limit_conn x 65536;"), "connection limit must be less 65536");
        assert_eq!(complaint("limit_conn x 1;"), "zero size shared memory zone \"x\"");
        let twice = complaint("limit_conn x 1; limit_conn x 2;");
        assert!(twice.ends_with("is duplicate"), "{twice}");
    }
}
