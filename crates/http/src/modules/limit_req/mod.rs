//! Limits the request rate of keys. nginx: ngx_http_limit_req_module.

use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Directive as Line, Error, values};
use weir_engine::Boxed;
use weir_log::Level;
use weir_metrics::Metric;
use weir_zone::Use;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::request::contexts::ContextKey;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};
use crate::zones::Keyed;

mod bucket;
pub mod refusal;

use bucket::{Allowance, BucketVerdict};
use refusal::RejectSettings;

/// The tag of its zones.
const TAG: &str = "limit_req";
/// The longest key.
const LONGEST_KEY: usize = 65535;
/// `nodelay`: the excess from which requests are delayed is out of reach.
const NEVER: u64 = u64::MAX / 1000;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    zones: Vec<Arc<LimitReqZone>>,
    /// The `limit_req` lines of this block, until all zones are known.
    lines: Vec<LimitLine>,
    limits: Vec<Limit>,
    refusal: RejectSettings,
}

/// `limit_req_zone`
#[derive(Debug)]
struct LimitReqZone {
    keyed: Keyed,
    /// Thousandths of a request per second.
    rate: u64,
}

/// `limit_req` as written.
#[derive(Debug, Clone)]
struct LimitLine {
    zone: String,
    burst: u64,
    delay: u64,
}

/// `limit_req`
#[derive(Debug, Clone)]
struct Limit {
    zone: Arc<LimitReqZone>,
    allow: Allowance,
}

/// `$limit_req_status`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Within all limits.
    Passed,
    /// Delayed.
    Delayed,
    /// Above a limit.
    Rejected,
    /// Would have been delayed.
    DelayedDryRun,
    /// Would have been rejected.
    RejectedDryRun,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Passed => "PASSED",
            Status::Delayed => "DELAYED",
            Status::Rejected => "REJECTED",
            Status::DelayedDryRun => "DELAYED_DRY_RUN",
            Status::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }
}

impl Settings for Conf {}

/// Called when all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    if CONF.of(&s.location).lines.is_empty() {
        return Ok(());
    }
    let all = s.setup.inputs.zones;
    let conf = CONF.change(&mut s.location);
    let lines = std::mem::take(&mut conf.lines);
    conf.limits.clear();
    for line in lines {
        let declared = all.find(&line.zone, TAG).map_err(Error::emerg)?;
        let zone = conf.zones.iter().find(|z| z.keyed.name() == declared.name());
        if let Some(zone) = zone {
            let allow = Allowance { rate: zone.rate, burst: line.burst, delay: line.delay };
            conf.limits.push(Limit { zone: zone.clone(), allow });
        }
    }
    Ok(())
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "limit_req_zone",
        help: "Shared memory for the states of keys, and the rate of each key.",
        set: Set::Simple(zone),
    },
    Directive {
        name: "limit_req",
        help: "Limits requests to the rate of a zone, with a burst.",
        set: Set::Simple(limit),
    },
    setting!(
        "limit_req_log_level",
        CONF.refusal.log_level,
        refusal::log_level,
        "The level at which rejected requests are logged; delayed ones are one below."
    ),
    setting!(
        "limit_req_status",
        CONF.refusal.status,
        refusal::status,
        "The status of rejected requests."
    ),
    setting!(
        "limit_req_dry_run",
        CONF.refusal.dry_run,
        Line::flag,
        "Counts and logs, but limits nothing."
    ),
];

/// The verdict on a client's request and its subrequests. Only the first of them that has a key is counted.
static CONTEXT: ContextKey<Status> = ContextKey {
    for_subrequest: Some(|status| *status),
    survives_redirect: true,
    ..ContextKey::passing()
};

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module {
    name: "http_limit_req",
    directives: DIRECTIVES,
    init: |setup| {
        setup.variables.define("limit_req_status", |r, out| {
            let name = r.family_context(&CONTEXT, |status| status.name());
            out.extend_from_slice(name.unwrap_or_default().as_bytes());
            name.is_some()
        });
    },
    finish,
};

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !CONF.of(conf).limits.is_empty()
}

/// Checks the request against the limits of the location.
pub fn handler(r: &mut Request) -> Answer<'_> {
    let conf = CONF.of(r.conf());
    if r.family_context(&CONTEXT, |_| ()).is_some() {
        return Answer::Now(Step::Next);
    }
    let mut checked = Checked { limits: &conf.limits, keys: Vec::new() };
    let outcome = checked.ask(r);
    let (excess, limit) = match outcome {
        LimitOutcome::NoKey => return Answer::Now(Step::Next),
        LimitOutcome::Refused(refused) => return Answer::Now(reject(r, conf, refused)),
        LimitOutcome::Allowed(excess, limit) => (excess, limit),
    };
    let (delay, excess, limit) = checked.count(r, excess, limit);
    if delay == 0 {
        r.set_family_context(&CONTEXT, Status::Passed);
        return Answer::Now(Step::Next);
    }
    let dry = if conf.refusal.dry_run { ", dry run" } else { "" };
    let (whole, part, name) = (excess / 1000, excess % 1000, limit.zone.keyed.name());
    r.log(
        delay_level(conf.refusal.log_level),
        format_args!("delaying request{dry}, excess: {whole}.{part:03}, by zone \"{name}\""),
    );
    if conf.refusal.dry_run {
        r.set_family_context(&CONTEXT, Status::DelayedDryRun);
        return Answer::Now(Step::Next);
    }
    r.set_family_context(&CONTEXT, Status::Delayed);
    r.event_loop.metrics.add(Metric::Delayed, 1);
    Answer::Later(Boxed::new(move || wait(r, Duration::from_millis(delay))))
}

fn reject(r: &mut Request, conf: &Conf, refused: Option<(u64, &Limit)>) -> Step {
    if let Some((excess, limit)) = refused {
        let dry = if conf.refusal.dry_run { ", dry run" } else { "" };
        let (whole, part, name) = (excess / 1000, excess % 1000, limit.zone.keyed.name());
        r.log(
            conf.refusal.log_level,
            format_args!("limiting requests{dry}, excess: {whole}.{part:03} by zone \"{name}\""),
        );
    }
    if conf.refusal.dry_run {
        r.set_family_context(&CONTEXT, Status::RejectedDryRun);
        return Step::Next;
    }
    r.set_family_context(&CONTEXT, Status::Rejected);
    conf.refusal.refuse(r)
}

/// Delays the request. Status 499 if the client disconnects meanwhile.
async fn wait(r: &mut Request, delay: Duration) -> Step {
    if r.client_stays_for(delay, "").await { Step::Next } else { Step::Status(499) }
}

enum LimitOutcome {
    /// No limit has a key for the request.
    NoKey,
    /// All limits allow the request. The excess at the last limit, if that has counted the request.
    Allowed(u64, &'static Limit),
    /// A limit refuses the request. The excess is missing if its zone is full.
    Refused(Option<(u64, &'static Limit)>),
}

/// The limits that allow a request and count it only after those behind them were checked as well.
struct Checked {
    limits: &'static [Limit],
    keys: Vec<(&'static Limit, Vec<u8>)>,
}

impl Checked {
    fn ask(&mut self, r: &mut Request) -> LimitOutcome {
        let mut outcome = LimitOutcome::NoKey;
        for (i, limit) in self.limits.iter().enumerate() {
            let keyed = &limit.zone.keyed;
            let Some(key) = keyed.key(r, LONGEST_KEY) else { continue };
            let Some(mut table) = keyed.lock() else { continue };
            let last = i + 1 == self.limits.len();
            match bucket::ask(&mut table, &key, &limit.allow, keyed.now(r), last) {
                BucketVerdict::Counted(excess) => outcome = LimitOutcome::Allowed(excess, limit),
                BucketVerdict::Allowed => {
                    self.keys.push((limit, key));
                    outcome = LimitOutcome::Allowed(0, limit);
                }
                BucketVerdict::Refused(excess) => {
                    return LimitOutcome::Refused(Some((excess, limit)));
                }
                BucketVerdict::NoRoom => {
                    drop(table);
                    let name = keyed.name();
                    let text = format_args!("could not allocate node in limit_req zone \"{name}\"");
                    r.log(Level::Alert, text);
                    return LimitOutcome::Refused(None);
                }
            }
        }
        outcome
    }

    /// Counts the request under these limits. Returns the longest delay, in milliseconds, with
    /// its excess and limit.
    fn count(self, r: &Request, excess: u64, limit: &'static Limit) -> (u64, u64, &'static Limit) {
        let mut worst = (bucket::delay(&limit.allow, excess), excess, limit);
        for (limit, key) in self.keys.into_iter().rev() {
            let keyed = &limit.zone.keyed;
            let now = keyed.now(r);
            let Some(mut table) = keyed.lock() else { continue };
            let excess = bucket::count(&mut table, &key, limit.zone.rate, now);
            let delay = bucket::delay(&limit.allow, excess);
            if delay > worst.0 {
                worst = (delay, excess, limit);
            }
        }
        worst
    }
}

fn delay_level(level: Level) -> Level {
    match level {
        Level::Error => Level::Warn,
        Level::Warn => Level::Notice,
        _ => Level::Info,
    }
}

fn zone(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let mut rate = 1000;
    let zones = s.setup.inputs.zones;
    let keyed =
        Keyed::read(&mut s.setup.reading(), zones, d, Use::of(TAG, bucket::VALUES), |word| {
            let Some(value) = word.bytes.strip_prefix(b"rate=") else { return Ok(false) };
            let (number, scale) = match value.len().checked_sub(3).map(|at| value.split_at(at)) {
                Some((number, b"r/s")) => (number, 1),
                Some((number, b"r/m")) => (number, 60),
                _ => (value, 1),
            };
            let number = values::number(number).filter(|n| *n > 0);
            let number = number.ok_or_else(|| d.invalid("rate", word))?;
            rate = number.saturating_mul(1000) / scale;
            Ok(true)
        })?;
    CONF.change(&mut s.location).zones.push(Arc::new(LimitReqZone { keyed, rate }));
    Ok(())
}

fn limit(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let (mut zone, mut burst, mut delay) = (None, 0, 0);
    for word in &d.args {
        let number = |value: &[u8], what: &str| {
            let number = values::number(value).filter(|n| *n > 0);
            number.ok_or_else(|| {
                d.error_at(word, format!("invalid {what} value \"{}\"", word.lossy()))
            })
        };
        if let Some(name) = word.bytes.strip_prefix(b"zone=") {
            zone = Some(String::from_utf8_lossy(name).into_owned());
        } else if let Some(value) = word.bytes.strip_prefix(b"burst=") {
            burst = number(value, "burst")?;
        } else if let Some(value) = word.bytes.strip_prefix(b"delay=") {
            delay = number(value, "delay")?;
        } else if word.bytes == b"nodelay" {
            delay = NEVER;
        } else {
            return Err(d.invalid("parameter", word));
        }
    }
    let name = d.name.lossy();
    let zone = zone.ok_or_else(|| d.error(format!("\"{name}\" must have \"zone\" parameter")))?;
    s.setup.inputs.zones.is_free_for(&zone, TAG).map_err(|text| d.error(text))?;
    let conf = CONF.change(&mut s.location);
    if conf.lines.iter().any(|line| line.zone == zone) {
        return Err(d.problem("is duplicate"));
    }
    let thousandths = |n: u64| n.saturating_mul(1000);
    conf.lines.push(LimitLine { zone, burst: thousandths(burst), delay: thousandths(delay) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::trial::{complaint, site};

    #[test]
    fn says_what_is_wrong() {
        let in_http = |lines: &str| site(lines).err().unwrap_or_default();
        let one = "limit_req_zone $uri zone=one:64k rate=1r/s;";
        assert_eq!(in_http(one), "");
        assert_eq!(in_http(&format!("limit_req zone=one; {one}")), "");
        for (lines, text) in [
            ("limit_req_zone $uri zone=one rate=1r/s;", "invalid zone size \"zone=one\""),
            ("limit_req_zone $uri zone=one:1k rate=1r/s;", "zone \"zone=one:1k\" is too small"),
            ("limit_req_zone $uri zone=one:64k rate=x;", "invalid rate \"rate=x\""),
            ("limit_req_zone $uri zone=one:64k rate=0r/s;", "invalid rate \"rate=0r/s\""),
            ("limit_req_zone $uri zone=one:64k x=1;", "invalid parameter \"x=1\""),
            ("limit_req_zone $uri rate=1r/s;", "\"limit_req_zone\" must have \"zone\" parameter"),
        ] {
            assert_eq!(in_http(lines), text, "{lines}");
        }
        assert_eq!(
            in_http(&format!("{one} limit_req_zone $args zone=one:64k rate=1r/s;")),
            "limit_req_zone \"one\" is already bound to key \"$uri\""
        );
        assert_eq!(
            in_http(&format!("{one} limit_req_zone $args zone=one:128k rate=1r/s;")),
            "the size 131072 of shared memory zone \"one\" conflicts with already declared size 65536"
        );
        assert_eq!(
            in_http("limit_conn_zone $uri zone=one:64k; limit_req zone=one;"),
            "the shared memory zone \"one\" is already declared for a different use"
        );
        assert_eq!(complaint("limit_req zone=x;"), "zero size shared memory zone \"x\"");
        assert_eq!(complaint("limit_req burst=1;"), "\"limit_req\" must have \"zone\" parameter");
        assert_eq!(complaint("limit_req zone=x burst=0;"), "invalid burst value \"burst=0\"");
        let twice = complaint("limit_req zone=x; limit_req zone=x;");
        assert!(twice.ends_with("is duplicate"), "{twice}");
    }
}
