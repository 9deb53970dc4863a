//! What requests are counted under: the `status_zone`s of servers and locations, the servers behind, and caches.
//! Nothing is looked up and no clock read for a request that is counted under no name; one that is may have come and gone
//! within a turn, so that the turn's time would not do.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use weir_metrics::subjects::{Cell, Cells, Counted, GAUGE, Kind};
use weir_metrics::{
    CACHE_STATES, CACHES, CLASSES, Metric, Page, Registry, UPSTREAMS, Value, ZONES,
};
use weir_upstream::{Group, Peer};

use crate::config::site::Site;
use crate::request::Request;
use crate::upstream::Attempt;

/// Numbers of cells: first one for each class of statuses, or for each state of a cache.
const RECEIVED: usize = CLASSES.len();
const SENT: usize = RECEIVED + 1;
const FAILS: usize = SENT + 1;
const RETRIES: usize = FAILS + 1;
const OPENED: usize = RETRIES + 1;
const REUSED: usize = OPENED + 1;
const EVICTED: usize = CACHE_STATES.len();

/// So many servers are known at a time. More come only from names that are looked up again and again.
const MOST_PEERS: usize = 4096;

/// The cells of a loop.
pub struct Counts {
    cells: Cells,
    /// Of each `status_zone` of the site.
    zones: Vec<Option<Cell>>,
    /// Of each of its caches.
    caches: Vec<Option<Cell>>,
    /// Of the servers behind that were asked, by their places in memory, in which they stay as long as they are here.
    peers: RefCell<HashMap<*const Peer, Known>>,
}

/// A server that was asked, and its cell.
type Known = (Arc<Peer>, Option<Cell>);

impl Counts {
    /// For the loop of this row.
    pub fn new(site: &Site, registry: Registry, row: usize) -> Counts {
        let cells = Cells::new(registry, row);
        let zones = site.status_zones.iter().map(|name| cells.of(Kind::Zone, name)).collect();
        let caches = site.caches.iter().map(|cache| cells.of(Kind::Cache, cache.name())).collect();
        Counts { cells, zones, caches, peers: RefCell::default() }
    }

    /// The cell of a cache.
    pub fn cache(&self, site: &Site, cache: &Arc<weir_cache::Cache>) -> Option<CacheCell> {
        let at = site.caches.iter().position(|known| Arc::ptr_eq(known, cache))?;
        self.caches.get(at).copied().flatten().map(CacheCell)
    }

    /// Begins to count a request that is passed to a server.
    pub fn passed(&self, group: &Group, peer: &Arc<Peer>) -> Option<Asked> {
        let mut peers = self.peers.borrow_mut();
        if peers.len() >= MOST_PEERS {
            peers.clear();
        }
        let known = peers
            .entry(Arc::as_ptr(peer))
            .or_insert_with(|| (peer.clone(), self.cells.of(Kind::Peer, &peer_name(group, peer))));
        known.1.map(|cell| {
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

/// A request has ended.
pub fn ended(r: &Request) {
    let event_loop = &r.event_loop;
    event_loop.metrics.add(Metric::Received, r.request_length);
    event_loop.metrics.add(Metric::Sent, r.output.sent);
    let zones = &r.conf().stub_status;
    if zones.server.is_none() && zones.location.is_none() {
        return;
    }
    let took = event_loop.handle.this_moment().saturating_duration_since(r.started);
    let location = zones.location.filter(|zone| zones.server != Some(*zone));
    for zone in zones.server.into_iter().chain(location) {
        let Some(Some(cell)) = event_loop.counts.zones.get(zone) else { continue };
        cell.add(class(r.response.status), 1);
        cell.add(RECEIVED, r.request_length);
        cell.add(SENT, r.output.sent);
        cell.record(took);
    }
}

/// Who was not answered has left: 4xx.
fn class(status: u16) -> usize {
    match status / 100 {
        class @ 1..=5 => usize::from(class) - 1,
        0 => 3,
        _ => 4,
    }
}

fn peer_name(group: &Group, peer: &Peer) -> String {
    format!("{}\n{}", group.name, peer.name)
}

/// Adds all of it to a page.
pub fn show(r: &Request, page: &mut Page) {
    let (site, event_loop) = (r.site, &r.event_loop);
    let all = event_loop.registry.counted();
    for name in &site.status_zones {
        show_zone(name, all.of(Kind::Zone, name), page);
    }
    if let Some(counted) = all.others(Kind::Zone) {
        show_zone(OTHERS, counted, page);
    }
    let now = event_loop.handle.now();
    for group in site.upstreams.all().iter().map(|upstream| &upstream.group) {
        for (peer, state) in group.states(now) {
            let counted = all.of(Kind::Peer, &peer_name(group, &peer));
            let mut values = peer_values(counted);
            values.extend([
                ("name", Value::Word(peer.server.clone())),
                ("backup", Value::Json(peer.options.backup.to_string())),
                ("weight", Value::Number(peer.options.weight.into())),
                ("state", Value::Word(state.to_owned())),
            ]);
            page.add(&UPSTREAMS, vec![group.name.clone(), peer.name.clone()], values);
        }
    }
    if let Some(counted) = all.others(Kind::Peer) {
        page.add(&UPSTREAMS, vec![OTHERS.into(), OTHERS.into()], peer_values(counted));
    }
    for cache in &site.caches {
        let counted = all.of(Kind::Cache, cache.name());
        let (size, entries) = cache.index.fill();
        let mut values = vec![
            ("size", Value::Number(size)),
            ("entries", Value::Number(entries)),
            ("requests", Value::Each(first(&counted, CACHE_STATES.len()))),
            ("evicted", Value::Number(counted.numbers[EVICTED])),
        ];
        values.extend(cache.settings.max_size.map(|most| ("max_size", Value::Number(most))));
        page.add(&CACHES, vec![cache.name().to_owned()], values);
    }
}

/// What has no place of its own is counted under this name.
const OTHERS: &str = "(others)";

fn show_zone(name: &str, counted: Counted, page: &mut Page) {
    let values = vec![
        ("requests", Value::Each(first(&counted, CLASSES.len()))),
        ("received", Value::Number(counted.numbers[RECEIVED])),
        ("sent", Value::Number(counted.numbers[SENT])),
        ("latency", Value::Times(counted.times)),
    ];
    page.add(&ZONES, vec![name.to_owned()], values);
}

fn peer_values(counted: Counted) -> Vec<(&'static str, Value)> {
    let number = |at: usize| Value::Number(counted.numbers[at]);
    let active = counted.numbers[GAUGE].cast_signed().max(0).cast_unsigned();
    vec![
        ("active", Value::Number(active)),
        ("requests", Value::Each(first(&counted, CLASSES.len()))),
        ("received", number(RECEIVED)),
        ("sent", number(SENT)),
        ("fails", number(FAILS)),
        ("retries", number(RETRIES)),
        ("opened_connections", number(OPENED)),
        ("reused_connections", number(REUSED)),
        ("latency", Value::Times(counted.times)),
    ]
}

fn first(counted: &Counted, n: usize) -> Vec<u64> {
    counted.numbers.iter().take(n).copied().collect()
}
