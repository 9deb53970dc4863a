//! What requests are counted under: the `status_zone`s of servers and locations.
//! Nothing is looked up and no clock read for a request that is counted under no name; one that is may have come and gone
//! within a turn, so that the turn's time would not do.

use std::mem::take;

use weir_metrics::subjects::{AllCounted, Cell, Cells, Counted, GAUGE, OTHERS, SubjectKind};
use weir_metrics::{CLASSES, Metric, MetricValue, MetricsPage, ZONES};

use crate::request::Request;
use crate::site::Site;

/// Numbers of cells: first one for each class of statuses, then bytes that were received.
pub const RECEIVED: usize = CLASSES.len();
/// Bytes that were sent.
pub const SENT: usize = RECEIVED + 1;

/// The cells of a loop.
pub struct Counts {
    /// Of each `status_zone` of the site.
    zones: Vec<Option<Cell>>,
}

impl Counts {
    /// For the loop of this row.
    pub fn new(site: &Site, cells: &Cells) -> Counts {
        let zones = site.status_zones.iter().map(|name| cells.of(SubjectKind::Zone, name));
        Counts { zones: zones.collect() }
    }
}

/// What a request is in progress under, until it is dropped: the zone of its server, and of its location.
#[derive(Debug, Default)]
pub struct Processing {
    zones: [Option<usize>; 2],
    cells: [Option<Cell>; 2],
}

impl Drop for Processing {
    fn drop(&mut self) {
        self.cells.iter().flatten().for_each(|cell| cell.sub(1));
    }
}

/// A request has come to a server or location.
pub fn at(r: &mut Request) {
    let zones = if r.is_main() { zones(r) } else { return };
    if zones == r.processing.zones {
        return;
    }
    let all = &r.event_loop.counts.zones;
    let cells = zones.map(|zone| zone.and_then(|zone| all.get(zone).copied().flatten()));
    cells.iter().flatten().for_each(|cell| cell.add(GAUGE, 1));
    r.processing = Processing { zones, cells };
}

/// The zones of a request's server and location, each once.
fn zones(r: &Request) -> [Option<usize>; 2] {
    let zones = &r.conf().core.status_zones;
    [zones.server, zones.location.filter(|zone| zones.server != Some(*zone))]
}

/// A request has ended.
pub fn ended(r: &mut Request) {
    drop(take(&mut r.processing));
    let event_loop = &r.event_loop;
    event_loop.metrics.add(Metric::Received, r.request_length);
    event_loop.metrics.add(Metric::Sent, r.output.sent);
    let zones = zones(r);
    if zones == [None; 2] {
        return;
    }
    let took = event_loop.handle.this_moment().saturating_duration_since(r.started);
    for zone in zones.into_iter().flatten() {
        let Some(Some(cell)) = event_loop.counts.zones.get(zone) else { continue };
        cell.add(class(r.response.status), 1);
        cell.add(RECEIVED, r.request_length);
        cell.add(SENT, r.output.sent);
        cell.record(took);
    }
}

/// A client without an answer has left: 4xx.
pub fn class(status: u16) -> usize {
    match status / 100 {
        class @ 1..=5 => usize::from(class) - 1,
        0 => 3,
        _ => 4,
    }
}

/// Adds all of it to a page.
pub fn show(r: &Request, all: &AllCounted, page: &mut MetricsPage) {
    for name in &r.site.status_zones {
        show_zone(name, all.of(SubjectKind::Zone, name), page);
    }
    if let Some(counted) = all.others(SubjectKind::Zone) {
        show_zone(OTHERS, counted, page);
    }
}

fn show_zone(name: &str, counted: Counted, page: &mut MetricsPage) {
    let values = vec![
        ("processing", MetricValue::Number(counted.gauge())),
        ("requests", MetricValue::Each(first(&counted, CLASSES.len()))),
        ("received", MetricValue::Number(counted.numbers[RECEIVED])),
        ("sent", MetricValue::Number(counted.numbers[SENT])),
        ("latency", MetricValue::Times(counted.times)),
    ];
    page.add(&ZONES, vec![name.to_owned()], values);
}

/// The first of the numbers.
pub fn first(counted: &Counted, n: usize) -> Vec<u64> {
    counted.numbers.iter().take(n).copied().collect()
}
