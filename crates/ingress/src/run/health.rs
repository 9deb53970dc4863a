//! Probes of the kubelet, and metrics for Prometheus.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::cluster::lock;
use super::nginx_metrics::{self, OF_NGINX, Page};
use super::shared::{Options, Shared};
use super::weir_api::WeirApi;
use crate::report::{Finding, Severity};

/// The most connections at the same time, and how long each may last.
const MOST: usize = 64;
const LONGEST: Duration = Duration::from_secs(30);

/// A counter or gauge.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of this program.
#[derive(Debug, Default)]
pub struct Counters {
    /// Whether weir has a configuration of this cluster.
    pub ready: AtomicBool,
    pub watched: Counter,
    pub changes: Counter,
    /// How many of the changes all workers serve.
    pub changes_served: AtomicU64,
    /// Events that changed the pods of a Service.
    pub endpoint_changes: Counter,
    pub server_files: Counter,
    pub watch_failures: Counter,
    pub taken: Counter,
    pub refused: Counter,
    pub failures: Counter,
    pub events: Counter,
    pub statuses: Counter,
    pub objects: Counter,
    errors: Counter,
    warnings: Counter,
    /// Whether weir accepted the last configuration.
    pub last_is_taken: AtomicBool,
    /// When weir last accepted a configuration, in seconds since 1970, and the first digits of its
    /// digest.
    taken_at: AtomicU64,
    digest: AtomicU64,
}

impl Counters {
    /// Counts the present findings by severity.
    pub fn findings(&self, list: &[Finding]) {
        let count = |severity| list.iter().filter(|f| f.severity == severity).count();
        self.errors.set(count(Severity::Error));
        self.warnings.set(count(Severity::Warning));
    }

    /// Records that weir accepted a configuration.
    pub fn last_taken(&self, digest: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.taken_at.store(now.as_secs(), Ordering::Relaxed);
        // A value of Prometheus holds integers of 53 bits.
        let first = digest.get(..13).unwrap_or(digest);
        self.digest.store(u64::from_str_radix(first, 16).unwrap_or(0), Ordering::Relaxed);
    }

    /// Writes the counters that ingress-nginx has, under its names.
    fn write_as_nginx(&self, page: &mut Page<'_>, lease: &str, leads: bool) {
        let name = format!("name=\"{lease}\"");
        let failed = self.refused.get().saturating_add(self.failures.get());
        for (name, labels, kind, help, value) in [
            ("success", "", "counter", "Configurations that weir took", self.taken.get()),
            ("errors", "", "counter", "Configurations that weir did not take", failed),
            (
                "config_last_reload_successful",
                "",
                "gauge",
                "weir has taken the last configuration",
                self.last_is_taken.load(Ordering::Relaxed).into(),
            ),
            (
                "config_last_reload_successful_timestamp_seconds",
                "",
                "gauge",
                "When weir took one, since 1970",
                self.taken_at.load(Ordering::Relaxed),
            ),
            (
                "config_hash",
                "",
                "gauge",
                "The configuration that weir took",
                self.digest.load(Ordering::Relaxed),
            ),
            ("leader_election_status", &name, "gauge", "This pod holds the Lease", leads.into()),
        ] {
            page.head(name, kind, help);
            page.line(name, labels, value);
        }
    }

    fn write(&self, page: &mut Page<'_>, leads: bool) {
        let rows = [
            ("watch_events_total", "counter", "Events of all watches", self.watched.get()),
            (
                "object_changes_total",
                "counter",
                "Events that changed what the configuration depends on",
                self.changes.get(),
            ),
            (
                "changes_waiting",
                "gauge",
                "Changes of objects that not all workers of weir serve yet",
                self.changes.get().saturating_sub(self.changes_served.load(Ordering::Relaxed)),
            ),
            (
                "endpoint_changes_total",
                "counter",
                "Events that changed the pods of a Service",
                self.endpoint_changes.get(),
            ),
            (
                "server_files_written_total",
                "counter",
                "Files with the servers of a group that were written",
                self.server_files.get(),
            ),
            ("watch_failures_total", "counter", "Watches that failed", self.watch_failures.get()),
            (
                "configurations_taken_total",
                "counter",
                "Configurations that weir took",
                self.taken.get(),
            ),
            (
                "configurations_refused_total",
                "counter",
                "Configurations that weir refused",
                self.refused.get(),
            ),
            (
                "handover_failures_total",
                "counter",
                "Configurations that could not be handed over",
                self.failures.get(),
            ),
            (
                "events_written_total",
                "counter",
                "Events written into the cluster",
                self.events.get(),
            ),
            (
                "statuses_written_total",
                "counter",
                "Statuses written into the cluster",
                self.statuses.get(),
            ),
            ("ingresses", "gauge", "Ingresses in the cluster", self.objects.get()),
            ("finding_errors", "gauge", "Parts of objects that are not served", self.errors.get()),
            (
                "finding_warnings",
                "gauge",
                "Wishes of objects that are not fulfilled",
                self.warnings.get(),
            ),
            (
                "ready",
                "gauge",
                "weir has a configuration of this cluster",
                self.ready.load(Ordering::Relaxed).into(),
            ),
            ("leader", "gauge", "This pod holds the Lease", leads.into()),
        ];
        for (name, kind, help, value) in rows {
            page.head(name, kind, help);
            page.line(name, "", value);
        }
    }
}

/// Accepts a connection.
pub(super) async fn accepted(listener: &TcpListener) -> TcpStream {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            return stream;
        }
        // Out of descriptors, for instance.
        sleep(Duration::from_millis(100)).await;
    }
}

/// The tasks of connections, oldest first. If there are too many, a new connection ends the oldest
/// one. So clients that say nothing keep neither the kubelet nor the API server out.
#[derive(Debug, Default)]
pub(super) struct Connections(VecDeque<AbortHandle>);

impl Connections {
    /// Serves a connection beside at most `most - 1` others.
    pub(super) fn serve(&mut self, most: usize, served: impl Future<Output = ()> + Send + 'static) {
        self.0.retain(|one| !one.is_finished());
        while self.0.len() >= most.max(1) {
            self.0.pop_front().iter().for_each(AbortHandle::abort);
        }
        self.0.push_back(tokio::spawn(served).abort_handle());
    }
}

/// The parts of the metrics page that do not change.
#[derive(Debug)]
struct Pages {
    weir: WeirApi,
    /// The labels of the controller.
    controller: String,
    lease: String,
}

/// Starts to answer probes.
pub async fn listen(options: &Options, shared: Arc<Shared>) -> Result<(), String> {
    let address = options.health;
    let listener =
        TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))?;
    let class = options.settings.controllers.first().map_or("", String::as_str);
    let pages = Arc::new(Pages {
        weir: WeirApi { socket: options.weir_socket.clone() },
        controller: nginx_metrics::controller(class, &options.lease.0, &options.identity),
        lease: options.lease.1.clone(),
    });
    tokio::spawn(async move {
        let mut connections = Connections::default();
        loop {
            let stream = accepted(&listener).await;
            let (shared, pages) = (shared.clone(), pages.clone());
            connections.serve(MOST, async move {
                let answer = service_fn(|request| {
                    let (shared, pages) = (&shared, &pages);
                    async move { Ok::<_, Infallible>(answer(shared, pages, &request).await) }
                });
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(LONGEST);
                let _ = timeout(LONGEST, http.serve_connection(TokioIo::new(stream), answer)).await;
            });
        }
    });
    Ok(())
}

async fn answer(
    shared: &Shared,
    pages: &Pages,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    let ready =
        shared.counters.ready.load(Ordering::Relaxed) && !shared.ends.load(Ordering::Relaxed);
    let (status, text) = match request.uri().path() {
        "/healthz" => (StatusCode::OK, "alive\n".to_owned()),
        "/readyz" if ready => (StatusCode::OK, "ready\n".to_owned()),
        "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, obstacles(shared)),
        "/metrics" => (StatusCode::OK, metrics(shared, pages).await),
        _ => (StatusCode::NOT_FOUND, "/healthz, /readyz, /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}

/// The reasons why this program is not ready.
fn obstacles(shared: &Shared) -> String {
    if shared.ends.load(Ordering::Relaxed) {
        return "not ready: this program was told to end\n".to_owned();
    }
    let known = lock(&shared.obstacles);
    match known.is_empty() {
        true => "not ready: weir has no configuration of this cluster yet\n".to_owned(),
        false => known.iter().map(|(kind, why)| format!("not ready: {kind}: {why}\n")).collect(),
    }
}

/// The page of metrics: this program's, and those of ingress-nginx under its names.
async fn metrics(shared: &Shared, pages: &Pages) -> String {
    let weir_metrics = pages.weir.metrics().await;
    let leads = shared.leads();
    let mut page = Page { text: String::new(), prefix: "weir_ingress_", labels: "" };
    shared.counters.write(&mut page, leads);
    let mut page = Page { prefix: OF_NGINX, labels: &pages.controller, ..page };
    shared.counters.write_as_nginx(&mut page, &pages.lease, leads);
    weir_metrics.iter().for_each(|metrics| metrics.write(&mut page));
    page.text
}
