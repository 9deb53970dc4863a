//! `status_zone`: what servers have done, counted under a name for all workers and over reloads, as status pages show it.

use std::fmt::Write;
use std::sync::Arc;

use weir_conf::{Directive, Error};
use weir_zone::{Claimed, Declarations, Row, Rows, Use, ZoneRef};

use crate::escape::json_escape;

/// What is counted under one name.
#[derive(Debug)]
pub struct StatusZone {
    name: String,
    zone: ZoneRef,
}

/// Values of its row.
const VALUES: usize = 6;
const CONNECTIONS: usize = 0;
/// The first of three, one for each class of statuses.
const SESSIONS: usize = 1;
const RECEIVED: usize = 4;
const SENT: usize = 5;
const CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];
/// It has one row.
const ROW: u128 = 1;
const SIZE: u64 = 4096;
const TAG: &str = "status_zone";

/// One that is counted as in progress, until it is dropped.
#[derive(Debug)]
pub struct Counting(Arc<StatusZone>);

/// What a page shows.
#[derive(Debug, Default)]
struct Counts {
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
        let purpose = Use { tag: TAG, values: 0, key: String::new() };
        // It is nobody's whose size is said elsewhere.
        let zone = zones.declare(&format!("{TAG} {name}"), SIZE, purpose);
        let zone = zone.map_err(|text| d.error(text))?;
        Ok(Some(Arc::new(StatusZone { name, zone })))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One more.
    pub fn begin(self: &Arc<Self>) -> Counting {
        self.change(|rows, row| {
            rows.hold(row);
            rows.set_value(row, CONNECTIONS, rows.value(row, CONNECTIONS) + 1);
        });
        Counting(self.clone())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Rows<'_>, Row) -> T) -> Option<T> {
        let mut rows = self.zone.get()?.rows(VALUES);
        let (Claimed::Known(row) | Claimed::New(row)) = rows.claim(ROW, 0)?;
        Some(change(&mut rows, row))
    }

    fn counts(&self) -> Counts {
        let read = |rows: &mut Rows<'_>, row| Counts {
            processing: rows.held(row),
            values: std::array::from_fn(|i| rows.value(row, i)),
        };
        self.change(read).unwrap_or_default()
    }
}

impl Counting {
    /// It has ended so.
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

/// A family of values: its name and kind, what is said of it, and each zone's values with what else tells them apart.
type Family = (&'static str, &'static str, &'static str, fn(&Counts) -> Vec<(String, u64)>);

const FAMILIES: [Family; 5] = [
    ("zone_processing_sessions", "gauge", "Sessions of a status_zone in progress.", |c| {
        vec![(String::new(), c.processing)]
    }),
    ("zone_connections_total", "counter", "Sessions of a status_zone that have begun.", |c| {
        vec![(String::new(), c.values[CONNECTIONS])]
    }),
    ("zone_sessions_total", "counter", "Sessions of a status_zone that have ended.", |c| {
        let of = |(class, n): (&&str, &u64)| (format!(",status=\"{class}\""), *n);
        CLASSES.iter().zip(&c.values[SESSIONS..]).map(of).collect()
    }),
    ("zone_received_bytes_total", "counter", "Bytes from clients of a status_zone.", |c| {
        vec![(String::new(), c.values[RECEIVED])]
    }),
    ("zone_sent_bytes_total", "counter", "Bytes to clients of a status_zone.", |c| {
        vec![(String::new(), c.values[SENT])]
    }),
];

/// Appends what they have counted, in the text format of Prometheus.
pub fn prometheus(zones: &[Arc<StatusZone>], out: &mut String) {
    if zones.is_empty() {
        return;
    }
    let all: Vec<_> = zones.iter().map(|zone| (escaped(&zone.name), zone.counts())).collect();
    for (name, kind, help, read) in FAMILIES {
        // Writing to a String cannot fail.
        let _ = write!(out, "# HELP weir_{name} {help}\n# TYPE weir_{name} {kind}\n");
        for (zone, counts) in &all {
            for (more, n) in read(counts) {
                let _ = writeln!(out, "weir_{name}{{zone=\"{zone}\"{more}}} {n}");
            }
        }
    }
}

/// The same as a JSON object: name to numbers.
pub fn json(zones: &[Arc<StatusZone>]) -> String {
    let each = zones.iter().map(|zone| {
        let Counts { processing, values: [connections, ok, client, server, received, sent] } =
            zone.counts();
        let (name, total) = (escaped(&zone.name), ok + client + server);
        format!(
            r#""{name}":{{"processing":{processing},"connections":{connections},"sessions":{{"2xx":{ok},"4xx":{client},"5xx":{server},"total":{total}}},"received":{received},"sent":{sent}}}"#
        )
    });
    format!("{{{}}}", each.collect::<Vec<_>>().join(","))
}

/// What a quoted text may hold, in JSON as in labels of Prometheus.
fn escaped(text: &str) -> String {
    let mut out = Vec::new();
    json_escape(text.as_bytes(), &mut out);
    String::from_utf8_lossy(&out).into_owned()
}
