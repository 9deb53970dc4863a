//! What requests are counted under: the `status_zone`s of servers and locations, the servers behind, and caches.
//! Nothing is looked up and no clock read for a request that is counted under no name; one that is may have come and gone
//! within a turn, so that the turn's time would not do.

use std::mem::take;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use weir_metrics::subjects::{Cell, Cells, Counted, GAUGE, OTHERS, SubjectKind};
use weir_metrics::{
    CACHE_STATES, CACHES, CLASSES, Metric, MetricValue, MetricsPage, UPSTREAMS, ZONES,
};
use weir_upstream::counts::{self, Counts as Peers};
use weir_upstream::{Group, Peer};

use crate::request::Request;
use crate::site::Site;
use crate::upstream::Attempt;
use crate::upstream::groups::GROUPS;

/// Numbers of cells: first one for each class of statuses, or for each state of a cache.
const RECEIVED: usize = CLASSES.len();
const SENT: usize = RECEIVED + 1;
const FAILS: usize = SENT + 1;
const RETRIES: usize = FAILS + 1;
const OPENED: usize = RETRIES + 1;
const REUSED: usize = OPENED + 1;
const EVICTED: usize = CACHE_STATES.len();

/// The cells of a loop.
pub struct Counts {
    /// Of each `status_zone` of the site.
    zones: Vec<Option<Cell>>,
    /// Of each of its caches.
    caches: Vec<Option<Cell>>,
    /// Of the servers behind.
    peers: Peers,
}

impl Counts {
    /// For the loop of this row.
    pub fn new(site: &Site, cells: Rc<Cells>) -> Counts {
        let zones =
            site.status_zones.iter().map(|name| cells.of(SubjectKind::Zone, name)).collect();
        let caches =
            site.caches.iter().map(|cache| cells.of(SubjectKind::Cache, cache.name())).collect();
        Counts { zones, caches, peers: Peers::new(cells, SubjectKind::Peer) }
    }

    /// The cell of a cache.
    pub fn cache(&self, site: &Site, cache: &Arc<weir_cache::Cache>) -> Option<CacheCell> {
        let at = site.caches.iter().position(|known| Arc::ptr_eq(known, cache))?;
        self.caches.get(at).copied().flatten().map(CacheCell)
    }

    /// Begins to count a request that is passed to a server.
    pub fn passed(&self, group: &Group, peer: &Arc<Peer>) -> Option<Asked> {
        self.peers.of(group, peer).map(|cell| {
            cell.add(GAUGE, 1);
            Asked(cell)
        })
    }
}

/// A request that a server is working on, until it is dropped.
#[derive(Debug)]
pub struct Asked(Cell);

impl Asked {
    /// It goes over a connection that has served others, or over a new one.
    pub fn over(&self, reused: bool) {
        self.0.add(if reused { REUSED } else { OPENED }, 1);
    }

    /// The attempt is over; it failed, or was answered with a status.
    pub fn ended(&self, attempt: &Attempt, failed: bool, now: Instant) {
        self.0.add(FAILS, failed.into());
        self.0.add(RECEIVED, attempt.received);
        self.0.add(SENT, attempt.sent);
        if attempt.status > 0 {
            self.0.add(class(attempt.status), 1);
            self.0.record(now.saturating_duration_since(attempt.started));
        }
    }

    /// Another server is asked.
    pub fn again(&self) {
        self.0.add(RETRIES, 1);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}

/// Where a cache's requests are counted.
#[derive(Debug, Clone, Copy)]
pub struct CacheCell(Cell);

impl CacheCell {
    /// A request had this from it; its number among [`CACHE_STATES`].
    pub fn asked(&self, state: usize) {
        self.0.add(state.min(EVICTED - 1), 1);
    }

    /// What this process has removed since it was asked.
    pub fn evicted(&self, cache: &weir_cache::Cache) {
        match cache.take_evicted() {
            0 => {}
            n => self.0.add(EVICTED, n),
        }
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
fn class(status: u16) -> usize {
    match status / 100 {
        class @ 1..=5 => usize::from(class) - 1,
        0 => 3,
        _ => 4,
    }
}

/// Adds all of it to a page.
pub fn show(r: &Request, page: &mut MetricsPage) {
    let (site, event_loop) = (r.site, &r.event_loop);
    let all = event_loop.registry.counted();
    for name in &site.status_zones {
        show_zone(name, all.of(SubjectKind::Zone, name), page);
    }
    if let Some(counted) = all.others(SubjectKind::Zone) {
        show_zone(OTHERS, counted, page);
    }
    let now = event_loop.handle.now();
    let groups = GROUPS.of(&site.main_confs).all().iter().map(|upstream| &upstream.group);
    counts::show(groups, (&all, SubjectKind::Peer), now, (&UPSTREAMS, peer_values), page);
    for cache in &site.caches {
        let counted = all.of(SubjectKind::Cache, cache.name());
        let (size, entries) = cache.index.fill();
        let mut values = vec![
            ("size", MetricValue::Number(size)),
            ("entries", MetricValue::Number(entries)),
            ("requests", MetricValue::Each(first(&counted, CACHE_STATES.len()))),
            ("evicted", MetricValue::Number(counted.numbers[EVICTED])),
        ];
        values.extend(cache.settings.max_size.map(|most| ("max_size", MetricValue::Number(most))));
        page.add(&CACHES, vec![cache.name().to_owned()], values);
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

fn peer_values(counted: Counted) -> Vec<(&'static str, MetricValue)> {
    let number = |at: usize| MetricValue::Number(counted.numbers[at]);
    vec![
        ("active", MetricValue::Number(counted.gauge())),
        ("requests", MetricValue::Each(first(&counted, CLASSES.len()))),
        ("received", number(RECEIVED)),
        ("sent", number(SENT)),
        ("fails", number(FAILS)),
        ("retries", number(RETRIES)),
        ("opened_connections", number(OPENED)),
        ("reused_connections", number(REUSED)),
        ("latency", MetricValue::Times(counted.times)),
    ]
}

fn first(counted: &Counted, n: usize) -> Vec<u64> {
    counted.numbers.iter().take(n).copied().collect()
}
