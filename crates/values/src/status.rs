//! `status_zone`: named counters of servers for status pages, over all workers and reloads.

use std::sync::Arc;

use weir_conf::{Directive, Error};
use weir_metrics::{MetricValue, MetricsPage, ZONES};
use weir_zone::{Claimed, Declarations, Row, Rows, Use, ZoneRef};

/// The counters of one name.
#[derive(Debug)]
pub struct StatusZone {
    name: String,
    zone: ZoneRef,
}

/// The values of the zone's row.
const VALUES: usize = 6;
const CONNECTIONS: usize = 0;
/// The first of three counters, one for each class of status.
const SESSIONS: usize = 1;
const RECEIVED: usize = 4;
const SENT: usize = 5;
const CLASSES: usize = 3;
/// The key of the only row.
const ROW: u128 = 1;
const SIZE: u64 = 4096;
const TAG: &str = "status_zone";

/// A session in progress. It is counted until this is dropped.
#[derive(Debug)]
pub struct Counting(Arc<StatusZone>);

/// The values that a page shows.
#[derive(Debug, Default)]
struct ZoneCounts {
    processing: u64,
    values: [u64; VALUES],
}

impl StatusZone {
    /// `status_zone NAME`
    pub fn read(zones: &Declarations, d: &Directive) -> Result<Option<Arc<StatusZone>>, Error> {
        let Some(word) = d.arg(0) else { return Ok(None) };
        let name = word.lossy().into_owned();
        if name.is_empty() {
            return Err(d.error_at(word, "invalid zone name \"\""));
        }
        let purpose = Use::of(TAG, 0);
        // The size of the zone is set here, unless another directive sets it.
        let zone = zones.declare(&format!("{TAG} {name}"), SIZE, purpose);
        let zone = zone.map_err(|text| d.error(text))?;
        Ok(Some(Arc::new(StatusZone { name, zone })))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counts a session that begins.
    pub fn begin(self: &Arc<Self>) -> Counting {
        self.change(|rows, row| {
            rows.hold(row);
            rows.set_value(row, CONNECTIONS, rows.value(row, CONNECTIONS).wrapping_add(1));
        });
        Counting(self.clone())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Rows<'_>, Row) -> T) -> Option<T> {
        let mut rows = self.zone.get()?.rows(VALUES);
        let (Claimed::Known(row) | Claimed::New(row)) = rows.claim(ROW, 0)?;
        Some(change(&mut rows, row))
    }

    fn counts(&self) -> ZoneCounts {
        let read = |rows: &mut Rows<'_>, row| ZoneCounts {
            processing: rows.held(row),
            values: std::array::from_fn(|i| rows.value(row, i)),
        };
        self.change(read).unwrap_or_default()
    }
}

impl Counting {
    /// Counts the end of a session.
    pub fn ended(self, status: u16, received: u64, sent: u64) {
        let class = match status / 100 {
            4 => SESSIONS + 1,
            5 => SESSIONS + 2,
            _ => SESSIONS,
        };
        self.0.change(|rows, row| {
            for (i, n) in [(class, 1), (RECEIVED, received), (SENT, sent)] {
                rows.set_value(row, i, rows.value(row, i).wrapping_add(n));
            }
        });
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.change(|rows, row| rows.release(row));
    }
}

/// Adds the counters to a page. A zone whose name is in `taken` is shown with another name.
pub fn show(zones: &[Arc<StatusZone>], taken: &[String], page: &mut MetricsPage) {
    for zone in zones {
        let is_taken = taken.contains(&zone.name);
        let name = if is_taken { format!("{} (stream)", zone.name) } else { zone.name.clone() };
        let ZoneCounts { processing, values } = zone.counts();
        let sessions = values.iter().skip(SESSIONS).take(CLASSES).copied().collect();
        let values = vec![
            ("processing", MetricValue::Number(processing)),
            ("connections", MetricValue::Number(values[CONNECTIONS])),
            ("sessions", MetricValue::Each(sessions)),
            ("received", MetricValue::Number(values[RECEIVED])),
            ("sent", MetricValue::Number(values[SENT])),
        ];
        page.add(&ZONES, vec![name], values);
    }
}
