//! The rows of status pages for upstream servers, queues and caches.

use weir_metrics::subjects::{AllCounted, Counted, SubjectKind};
use weir_metrics::{CACHE_STATES, CACHES, CLASSES, MetricValue, MetricsPage, QUEUES, UPSTREAMS};
use weir_upstream::counts::{ServerDetail, ServerRows};

use super::counts::{
    CONNECT_FAILS, ENTERED, FAILS, LATE, OPENED, REFUSED, RETRIES, REUSED, TIMEOUTS,
};
use super::groups::GROUPS;
use crate::counts::cells::{EVICTED, RECEIVED, SENT, STORED, WAITED};
use crate::counts::first;
use crate::request::Request;

/// Adds the rows to a page. `each`: with a row for every server. Otherwise, if there are many
/// servers, groups have sums.
pub async fn show(r: &Request, all: &AllCounted, each: bool, page: &mut MetricsPage) {
    let (site, handle) = (r.site, &r.event_loop.handle);
    let groups = || GROUPS.of(&site.main_confs).all().map(|upstream| &upstream.group);
    let detail = if each { ServerDetail::Each } else { ServerDetail::of(groups()) };
    let (counted, table) =
        ((all, SubjectKind::Peer), (&UPSTREAMS, peer_values as fn(Counted) -> _));
    let mut rows = ServerRows::new(groups(), counted, handle.now(), table, detail);
    while rows.more(SERVERS_AT_A_TIME, page) {
        handle.heavy().await;
    }
    for upstream in GROUPS.of(&site.main_confs).all() {
        let Some(queue) = &upstream.queue else { continue };
        let counted = all.of(SubjectKind::Queue, &upstream.group.name);
        let number = |at: usize| MetricValue::Number(counted.numbers[at]);
        let values = vec![
            ("waiting", MetricValue::Number(counted.gauge())),
            ("limit", MetricValue::Number(queue.most as u64)),
            ("entered", number(ENTERED)),
            ("refused", number(REFUSED)),
            ("late", number(LATE)),
            ("wait", MetricValue::Times(counted.times.clone())),
        ];
        page.add(&QUEUES, vec![upstream.group.name.clone()], values);
    }
    for cache in &site.caches {
        let counted = all.of(SubjectKind::Cache, cache.name());
        let (size, entries) = cache.index.fill();
        let mut values = vec![
            ("size", MetricValue::Number(size)),
            ("entries", MetricValue::Number(entries)),
            ("requests", MetricValue::Each(first(&counted, CACHE_STATES.len()))),
            ("evicted", MetricValue::Number(counted.numbers[EVICTED])),
            ("stored", MetricValue::Number(counted.numbers[STORED])),
            ("waited", MetricValue::Number(counted.numbers[WAITED])),
        ];
        if let Some((free, size)) = cache.index.disk() {
            values.push(("disk_free", MetricValue::Number(free)));
            values.push(("disk_size", MetricValue::Number(size)));
        }
        values.extend(cache.settings.max_size.map(|most| ("max_size", MetricValue::Number(most))));
        page.add(&CACHES, vec![cache.name().to_owned()], values);
    }
}

/// Servers that are handled before the loop runs other tasks.
const SERVERS_AT_A_TIME: usize = 250;

fn peer_values(counted: Counted) -> Vec<(&'static str, MetricValue)> {
    let number = |at: usize| MetricValue::Number(counted.numbers[at]);
    vec![
        ("active", MetricValue::Number(counted.gauge())),
        ("requests", MetricValue::Each(first(&counted, CLASSES.len()))),
        ("received", number(RECEIVED)),
        ("sent", number(SENT)),
        ("fails", number(FAILS)),
        ("connect_fails", number(CONNECT_FAILS)),
        ("timeouts", number(TIMEOUTS)),
        ("retries", number(RETRIES)),
        ("opened_connections", number(OPENED)),
        ("reused_connections", number(REUSED)),
        ("latency", MetricValue::Times(counted.times)),
    ]
}
