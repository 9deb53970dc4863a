//! The standing of each certificate, in rows of a shared zone. The process with the directory's lock writes them. Status
//! pages of all workers and the health judge of the master read them. No reader waits for a disk.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use weir_zone::{Claimed, Declarations, Row, Rows, Use, ZoneError, ZoneRef};

/// The words of a row: the end of the certificate's validity, failures in a row, the time of the first of them, the time of
/// the next attempt, the length of the reason in bytes, and the reason.
const NOT_AFTER: usize = 0;
const FAILURES: usize = 1;
const SINCE: usize = 2;
const NEXT: usize = 3;
const LENGTH: usize = 4;
const TEXT: usize = 5;
const WORDS: usize = 40;
/// The most bytes of a reason that are kept.
const LONGEST: usize = (WORDS - TEXT) * 8;

/// The standing of a certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// The end of its validity, in seconds since 1970. None if there is no certificate.
    pub not_after: Option<i64>,
    /// Attempts that failed since the last success.
    pub failures: u64,
    /// When the first of them was, in seconds since 1970.
    pub since: Option<i64>,
    /// The time of the next attempt, in seconds since 1970.
    pub next: Option<i64>,
    /// Why the last attempt failed, as the authority says it.
    pub reason: String,
}

impl Standing {
    /// The time of the next attempt, for messages.
    pub fn next_shown(&self) -> Option<String> {
        let seconds = u64::try_from(self.next?).ok()?;
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
        // Times too far away are left out: the format has four digits for the year.
        let latest = SystemTime::now() + Duration::from_secs(3650 * 86400);
        (at < latest).then(|| httpdate::fmt_http_date(at))
    }
}

/// The zone.
#[derive(Clone)]
pub struct Standings(ZoneRef);

impl fmt::Debug for Standings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Standings").field(&self.0.name()).finish()
    }
}

impl Standings {
    /// The owner tag of its zone.
    pub const TAG: &'static str = "acme";

    /// Declares a zone of this name and size.
    ///
    /// # Errors
    ///
    /// The name belongs to another kind of zone.
    pub fn declare(zones: &Declarations, name: &str, size: u64) -> Result<Standings, ZoneError> {
        let purpose = Use::of(Self::TAG, 0);
        zones.declare(name, size, purpose).map(Standings)
    }

    /// How many certificates a zone of this size has room for.
    pub fn capacity(size: u64) -> usize {
        weir_zone::capacity(size, WORDS)
    }

    /// Writes the standing of a certificate.
    pub(crate) fn note(&self, name: u128, standing: &Standing) {
        let of = |rows: &mut Rows<'_>, row| store(rows, row, standing);
        self.with(name, of);
    }

    /// Reads the standing of a certificate.
    pub(crate) fn of(&self, name: u128) -> Standing {
        self.with(name, load).unwrap_or_default()
    }

    /// Reads the standings of these certificates. The zone is locked once, also for thousands.
    pub(crate) fn of_all(&self, names: &[u128]) -> Vec<Standing> {
        let Some(zone) = self.0.get() else { return vec![Standing::default(); names.len()] };
        let now = zone.msec(Instant::now());
        let mut rows = zone.rows(WORDS);
        let known: HashMap<u128, Row> = rows.named().collect();
        let mut of = |name| {
            let row = *known.get(name)?;
            // Rows that are not read are evicted first.
            rows.touch(row, now);
            Some(load(&mut rows, row))
        };
        names.iter().map(|name| of(name).unwrap_or_default()).collect()
    }

    /// Runs `act` on a certificate's row. None if the configuration is not in use yet, or the zone is full.
    fn with<T>(&self, name: u128, act: impl FnOnce(&mut Rows<'_>, Row) -> T) -> Option<T> {
        let zone = self.0.get()?;
        let now = zone.msec(Instant::now());
        let mut rows = zone.rows(WORDS);
        let (Claimed::Known(row) | Claimed::New(row)) = rows.claim(name, now)?;
        Some(act(&mut rows, row))
    }
}

/// The name of a certificate's row.
pub fn row_name(directory: &[u8], id: &str) -> u128 {
    let hash = digest(&SHA256, &[directory, b"\n", id.as_bytes()].concat());
    let mut name = [0; 16];
    name.iter_mut().zip(hash.as_ref()).for_each(|(to, from)| *to = *from);
    u128::from_ne_bytes(name)
}

fn store(rows: &mut Rows<'_>, row: Row, standing: &Standing) {
    let text = cut(&standing.reason, LONGEST).as_bytes();
    // Times before 1970 count as none.
    let time = |at: Option<i64>| at.and_then(|at| u64::try_from(at).ok()).unwrap_or(0);
    rows.set_value(row, NOT_AFTER, time(standing.not_after));
    rows.set_value(row, FAILURES, standing.failures);
    rows.set_value(row, SINCE, time(standing.since));
    rows.set_value(row, NEXT, time(standing.next));
    rows.set_value(row, LENGTH, text.len() as u64);
    for (i, piece) in text.chunks(8).enumerate() {
        let mut word = [0; 8];
        word.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
        rows.set_value(row, TEXT + i, u64::from_le_bytes(word));
    }
}

/// Reads a row. Any value is possible, since its writer may have been killed.
fn load(rows: &mut Rows<'_>, row: Row) -> Standing {
    let get = |at| rows.value(row, at);
    let time = |at: u64| i64::try_from(at).ok().filter(|at| *at > 0);
    let length = usize::try_from(get(LENGTH)).map_or(LONGEST, |length| length.min(LONGEST));
    let words = (TEXT..TEXT + length.div_ceil(8)).flat_map(|at| get(at).to_le_bytes());
    let bytes: Vec<u8> = words.take(length).collect();
    Standing {
        not_after: time(get(NOT_AFTER)),
        failures: get(FAILURES),
        since: time(get(SINCE)),
        next: time(get(NEXT)),
        reason: String::from_utf8_lossy(&bytes).into_owned(),
    }
}

/// The longest beginning of a text with at most `most` bytes and no split character.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_zone::Zones;

    #[test]
    fn a_posted_standing_is_read_by_other_processes() {
        let all = Declarations::default();
        let standings = Standings::declare(&all, "acme", 32768).unwrap();
        let failing = Standing {
            not_after: Some(2_000_000_000),
            failures: 3,
            since: Some(1_800_000_000),
            next: Some(1_800_000_540),
            reason: "no such zone".to_owned(),
        };
        standings.note(1, &failing);
        assert_eq!(standings.of(1), Standing::default(), "there is no zone yet");
        let _open = all.open(&Zones::default()).unwrap();
        standings.note(1, &failing);
        assert_eq!(standings.of(1), failing);
        assert_eq!(standings.of(2), Standing::default());
        assert_eq!(standings.of_all(&[3, 1]), [Standing::default(), failing.clone()]);
        let long = Standing { reason: "é".repeat(400), ..failing.clone() };
        standings.note(2, &long);
        assert_eq!(standings.of(2).reason, "é".repeat(LONGEST / 2));
        assert_eq!(standings.of(1), failing);
        assert_eq!(failing.next_shown().as_deref(), Some("Fri, 15 Jan 2027 08:09:00 GMT"));
        let never = Standing { next: Some(i64::MAX), ..failing };
        assert_eq!(never.next_shown(), None);
        // As many as its capacity.
        let most = Standings::capacity(32768) as u128;
        (0..most).for_each(|n| standings.note(n, &Standing { failures: n as u64, ..long.clone() }));
        assert!((0..most).all(|n| standings.of(n).failures == n as u64));
    }
}
