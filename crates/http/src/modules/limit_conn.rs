//! Limits how many requests of a key are processed at once. nginx: ngx_http_limit_conn_module.

use std::sync::Arc;

use weir_conf::{Directive as Line, Error, values};

use crate::config::scope::{Directive, Scope, Set, setting};
use crate::modules::limit_req::refusal::{self, Refusal};
use crate::modules::{LocationConf, Module, Settings};
use crate::phases::Step;
use crate::request::Request;
use crate::zones::Keyed;

/// What its zones are declared as.
const TAG: &str = "limit_conn_zone";
/// The longest key that is counted.
const LONGEST_KEY: usize = 255;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    zones: Vec<Arc<Keyed>>,
    /// `limit_conn` of this block, until all zones are known.
    lines: Vec<(String, u64)>,
    limits: Vec<Limit>,
    refusal: Refusal,
}

/// `limit_conn`
#[derive(Debug, Clone)]
struct Limit {
    zone: Arc<Keyed>,
    most: u64,
}

impl Settings for Conf {
    fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
        if s.location.limit_conn.lines.is_empty() {
            return Ok(());
        }
        let all = s.setup.inputs.zones;
        let conf = Scope::change(&mut s.location.limit_conn);
        let lines = std::mem::take(&mut conf.lines);
        conf.limits.clear();
        for (name, most) in lines {
            all.find(&name, TAG).map_err(Error::emerg)?;
            if let Some(zone) = conf.zones.iter().find(|z| z.name() == name) {
                conf.limits.push(Limit { zone: zone.clone(), most });
            }
        }
        Ok(())
    }
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "limit_conn_zone",
        help: "Shared memory for the number of connections of each key.",
        set: Set::Simple(zone),
    },
    Directive {
        name: "limit_conn",
        help: "How many requests of a key may be in progress at once.",
        set: Set::Simple(limit),
    },
    setting!(
        "limit_conn_log_level",
        limit_conn.refusal.log_level,
        refusal::log_level,
        "The level at which rejected requests are logged."
    ),
    setting!(
        "limit_conn_status",
        limit_conn.refusal.status,
        refusal::status,
        "The status of rejected requests."
    ),
    setting!(
        "limit_conn_dry_run",
        limit_conn.refusal.dry_run,
        Line::flag,
        "Counts, but limits nothing."
    ),
];

/// The module.
pub const MODULE: Module = Module {
    name: "http_limit_conn",
    directives: DIRECTIVES,
    init: |setup| {
        setup.variables.define("limit_conn_status", |r, out| {
            let name = r.contexts.limit_conn.status.map(Status::name);
            out.extend_from_slice(name.unwrap_or_default().as_bytes());
            name.is_some()
        });
    },
};

/// `$limit_conn_status`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Passed,
    Rejected,
    RejectedDryRun,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Passed => "PASSED",
            Status::Rejected => "REJECTED",
            Status::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }
}

/// What the limits said to a request, and the places that it takes until it ends.
#[derive(Default)]
pub struct Held {
    status: Option<Status>,
    places: Vec<Place>,
}

impl Held {
    /// The same for a subrequest, which takes no places of its own.
    pub fn counted(&self) -> Held {
        Held { status: self.status, places: Vec::new() }
    }
}

/// One place of a key's; given back when dropped.
struct Place {
    zone: &'static Keyed,
    key: Vec<u8>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(mut table) = self.zone.lock() else { return };
        let Some(entry) = table.find(&self.key) else { return };
        match table.value(entry, 0) {
            0 | 1 => table.remove(entry),
            n => table.set_values(entry, [n - 1]),
        }
    }
}

impl Place {
    /// Takes a place; `None` if all are taken. An error where the zone is full.
    fn take(limit: &'static Limit, key: Vec<u8>) -> Result<Option<Place>, ()> {
        let zone: &'static Keyed = &limit.zone;
        let mut table = zone.lock().ok_or(())?;
        let entry = table.find(&key).or_else(|| table.add(&key)).ok_or(())?;
        let taken = table.value(entry, 0);
        if taken >= limit.most {
            return Ok(None);
        }
        table.set_values(entry, [taken + 1]);
        Ok(Some(Place { zone, key }))
    }
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !conf.limit_conn.limits.is_empty()
}

/// Takes a place under each limit of the location.
pub fn handler(r: &mut Request) -> Step {
    let conf = &r.conf().limit_conn;
    if r.contexts.limit_conn.status.is_some() {
        return Step::Next;
    }
    for limit in &conf.limits {
        let Some(key) = limit.zone.key(r, LONGEST_KEY) else { continue };
        r.contexts.limit_conn.status = Some(Status::Passed);
        match Place::take(limit, key) {
            Ok(Some(place)) => r.contexts.limit_conn.places.push(place),
            Ok(None) => {
                let dry = if conf.refusal.dry_run { ", dry run," } else { "" };
                let name = limit.zone.name();
                let text = format_args!("limiting connections{dry} by zone \"{name}\"");
                r.log(conf.refusal.log_level, text);
                return reject(r, conf);
            }
            Err(()) => return reject(r, conf),
        }
    }
    Step::Next
}

fn reject(r: &mut Request, conf: &Conf) -> Step {
    let held = &mut r.contexts.limit_conn;
    held.places.clear();
    if conf.refusal.dry_run {
        held.status = Some(Status::RejectedDryRun);
        return Step::Next;
    }
    held.status = Some(Status::Rejected);
    Step::Status(conf.refusal.status)
}

fn zone(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let keyed = Keyed::read(s, d, (TAG, 1), |_| Ok(false))?;
    Scope::change(&mut s.location.limit_conn).zones.push(Arc::new(keyed));
    Ok(())
}

fn limit(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let (Some(name), Some(number)) = (d.arg(0), d.arg(1)) else { return Ok(()) };
    let conf = Scope::change(&mut s.location.limit_conn);
    let name = name.lossy().into_owned();
    if conf.lines.iter().any(|(known, _)| *known == name) {
        return Err(d.problem("is duplicate"));
    }
    let most = values::number(&number.bytes)
        .filter(|n| *n > 0)
        .ok_or_else(|| d.invalid("number of connections", number))?;
    if most > 65535 {
        return Err(d.error_at(number, "connection limit must be less 65536"));
    }
    conf.lines.push((name, most));
    Ok(())
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
