//! Counts of requests by the `status_zone` of their server and location.
//!
//! A request without a zone costs no look-up and no clock read. A request with a zone reads the
//! clock itself: it may begin and end within one turn, so the time of the turn is too coarse.

pub mod cells;

use std::mem::take;

use weir_metrics::subjects::{AllCounted, Counted, GAUGE, OTHERS, SubjectKind};
use weir_metrics::{CLASSES, Metric, MetricValue, MetricsPage, Tally, ZONES};

use self::cells::{Processing, RECEIVED, SENT, class};
use crate::request::Request;

/// Counts a request that has entered a server or location.
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

/// The zones of a request's server and location. The same zone is not counted twice.
fn zones(r: &Request) -> [Option<usize>; 2] {
    let zones = &r.conf().core.status_zones;
    each_once(zones.server, zones.location)
}

/// The zones of a request that has ended. Conditions (`if=`) are evaluated now.
fn zones_at_end(r: &mut Request) -> [Option<usize>; 2] {
    let zones = &r.conf().core.status_zones;
    let mut instead = zones.instead.iter();
    let first = instead.find(|(condition, _)| !matches!(&*condition.eval(r), b"" | b"0"));
    each_once(zones.server, first.map(|(_, zone)| *zone).or(zones.location))
}

fn each_once(server: Option<usize>, location: Option<usize>) -> [Option<usize>; 2] {
    [server, location.filter(|zone| server != Some(*zone))]
}

/// Counts a request that has ended.
pub fn ended(r: &mut Request) {
    drop(take(&mut r.processing));
    let event_loop = &r.event_loop;
    event_loop.metrics.add(Metric::Received, r.request_length);
    event_loop.metrics.add(Metric::Sent, r.output.sent);
    if r.response.status >= 400 {
        count_error(r.response.status, &event_loop.metrics);
    }
    let zones = zones_at_end(r);
    if zones == [None; 2] {
        return;
    }
    let event_loop = &r.event_loop;
    let is_endless = r.response.is_endless || r.response.status == SWITCHED;
    let took = event_loop.handle.this_moment().saturating_duration_since(r.started);
    for zone in zones.into_iter().flatten() {
        let Some(Some(cell)) = event_loop.counts.zones.get(zone) else { continue };
        cell.add(class(r.response.status), 1);
        cell.add(RECEIVED, r.request_length);
        cell.add(SENT, r.output.sent);
        if !is_endless {
            cell.record(took);
        }
    }
}

#[cold]
fn count_error(status: u16, metrics: &Tally) {
    if status >= 500 {
        metrics.add(Metric::ServerErrors, 1);
        return;
    }
    metrics.add(Metric::ClientErrors, 1);
    metrics.add(Metric::Abandoned, (status == CLIENT_LEFT).into());
}

/// The status of a tunnel, such as a WebSocket.
const SWITCHED: u16 = 101;
/// nginx: NGX_HTTP_CLIENT_CLOSED_REQUEST.
const CLIENT_LEFT: u16 = 499;

/// Adds all zones to a status page.
pub async fn show(r: &Request, all: &AllCounted, page: &mut MetricsPage) {
    for names in r.site.status_zones.chunks(ZONES_AT_A_TIME) {
        for name in names.iter().filter(|name| !name.is_empty()) {
            show_zone(name, all.of(SubjectKind::Zone, name), page);
        }
        if names.len() == ZONES_AT_A_TIME {
            r.event_loop.handle.heavy().await;
        }
    }
    if let Some(counted) = all.others(SubjectKind::Zone) {
        show_zone(OTHERS, counted, page);
    }
}

/// After this many zones, other tasks run first.
const ZONES_AT_A_TIME: usize = 250;

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

/// The first `n` numbers.
pub fn first(counted: &Counted, n: usize) -> Vec<u64> {
    counted.numbers.iter().take(n).copied().collect()
}
