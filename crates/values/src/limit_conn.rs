//! Limits the number of concurrent subjects with the same key.

use std::sync::Arc;

use weir_conf::{Directive, Error, values};
use weir_log::Level;
use weir_zone::{Declarations, Use};

use crate::reading::Reading;
use crate::subject::Subject;
use crate::zones::Keyed;

/// The purpose that its zones are declared with.
const TAG: &str = "limit_conn_zone";
/// The longest key that is counted.
const LONGEST_KEY: usize = 255;

/// The settings of `limit_conn`.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    zones: Vec<Arc<Keyed>>,
    /// The `limit_conn` lines of this block, until all zones are known.
    lines: Vec<(String, u64)>,
    limits: Vec<ConnLimit>,
}

/// `limit_conn`
#[derive(Debug, Clone)]
struct ConnLimit {
    zone: Arc<Keyed>,
    most: u64,
}

/// `$limit_conn_status`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitStatus {
    Passed,
    Rejected,
    RejectedDryRun,
}

impl LimitStatus {
    fn name(self) -> &'static str {
        match self {
            LimitStatus::Passed => "PASSED",
            LimitStatus::Rejected => "REJECTED",
            LimitStatus::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }
}

/// The verdict of the limits on a subject, and the connections that count for it until it ends.
#[derive(Default)]
pub struct HeldPlaces {
    status: Option<LimitStatus>,
    places: Vec<CountedConnection>,
}

impl HeldPlaces {
    /// The same verdict for a subrequest, which is not counted itself.
    pub fn counted(&self) -> HeldPlaces {
        HeldPlaces { status: self.status, places: Vec::new() }
    }
}

/// One connection that is counted under a key. The count is reduced when this is dropped.
struct CountedConnection {
    zone: &'static Keyed,
    key: Vec<u8>,
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let Some(mut table) = self.zone.lock() else { return };
        let Some(entry) = table.find(&self.key) else { return };
        match table.value(entry, 0) {
            0 | 1 => table.remove(entry),
            n => table.set_values(entry, [n - 1]),
        }
    }
}

impl CountedConnection {
    /// Counts a connection. `None` if the limit is reached; an error if the zone is full.
    fn take(limit: &'static ConnLimit, key: Vec<u8>) -> Result<Option<CountedConnection>, ()> {
        let zone: &'static Keyed = &limit.zone;
        let mut table = zone.lock().ok_or(())?;
        let entry = table.find(&key).or_else(|| table.add(&key)).ok_or(())?;
        let taken = table.value(entry, 0);
        if taken >= limit.most {
            return Ok(None);
        }
        table.set_values(entry, [taken + 1]);
        Ok(Some(CountedConnection { zone, key }))
    }
}

/// How refusals are logged and applied.
#[derive(Debug, Clone, Copy)]
pub struct LimitLogging {
    /// The level of the message.
    pub log_level: Level,
    /// Subjects above a limit are not refused.
    pub dry_run: bool,
}

impl Limits {
    /// Whether there are no limits.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// `limit_conn_zone KEY zone=NAME:SIZE`
    pub fn zone<S: Subject>(
        &mut self,
        s: &mut Reading<'_, S>,
        zones: &Declarations,
        d: &Directive,
    ) -> Result<(), Error> {
        let purpose = Use { block: S::BLOCK, ..Use::of(TAG, 1) };
        let keyed = Keyed::read(s, zones, d, purpose, |_| Ok(false))?;
        self.zones.push(Arc::new(keyed));
        Ok(())
    }

    /// `limit_conn ZONE NUMBER`
    pub fn limit<S: Subject>(&mut self, d: &Directive, zones: &Declarations) -> Result<(), Error> {
        let (Some(name), Some(number)) = (d.arg(0), d.arg(1)) else { return Ok(()) };
        let name = name.lossy().into_owned();
        zones.is_free_in(S::BLOCK, &name, TAG).map_err(|text| d.error(text))?;
        if self.lines.iter().any(|(known, _)| *known == name) {
            return Err(d.problem("is duplicate"));
        }
        let most = values::number(&number.bytes)
            .filter(|n| *n > 0)
            .ok_or_else(|| d.invalid("number of connections", number))?;
        if most > 65535 {
            return Err(d.error_at(number, "connection limit must be less 65536"));
        }
        self.lines.push((name, most));
        Ok(())
    }

    /// Whether [`Limits::finish`] has lines to apply.
    pub fn is_unfinished(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Applies the lines of a block, which replace the inherited ones.
    pub fn finish<S: Subject>(&mut self, all: &Declarations) -> Result<(), Error> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let lines = std::mem::take(&mut self.lines);
        self.limits.clear();
        for (name, most) in lines {
            all.find_in(S::BLOCK, &name, TAG).map_err(Error::emerg)?;
            if let Some(zone) = self.zones.iter().find(|z| z.name() == name) {
                self.limits.push(ConnLimit { zone: zone.clone(), most });
            }
        }
        Ok(())
    }

    /// Counts a connection under each limit. An error if it must be refused.
    pub fn take<S: Subject>(
        &'static self,
        r: &mut S,
        how: LimitLogging,
    ) -> Result<HeldPlaces, HeldPlaces> {
        let mut held = HeldPlaces::default();
        for limit in &self.limits {
            let Some(key) = limit.zone.key(r, LONGEST_KEY) else { continue };
            held.status = Some(LimitStatus::Passed);
            match CountedConnection::take(limit, key) {
                Ok(Some(place)) => held.places.push(place),
                Ok(None) => {
                    let dry = if how.dry_run { ", dry run," } else { "" };
                    let name = limit.zone.name();
                    let text = format_args!("limiting connections{dry} by zone \"{name}\"");
                    r.log(how.log_level, text);
                    return HeldPlaces::refused(how);
                }
                Err(()) => {
                    let name = limit.zone.name();
                    let text =
                        format_args!("could not allocate node in limit_conn zone \"{name}\"");
                    r.log(Level::Crit, text);
                    return HeldPlaces::refused(how);
                }
            }
        }
        Ok(held)
    }
}

impl HeldPlaces {
    fn refused(how: LimitLogging) -> Result<HeldPlaces, HeldPlaces> {
        let held = |status| HeldPlaces { status: Some(status), places: Vec::new() };
        match how.dry_run {
            true => Ok(held(LimitStatus::RejectedDryRun)),
            false => Err(held(LimitStatus::Rejected)),
        }
    }

    /// The limits have been applied.
    pub fn is_decided(&self) -> bool {
        self.status.is_some()
    }

    /// `$limit_conn_status`
    pub fn write(&self, out: &mut Vec<u8>) -> bool {
        let name = self.status.map(LimitStatus::name);
        out.extend_from_slice(name.unwrap_or_default().as_bytes());
        name.is_some()
    }
}
