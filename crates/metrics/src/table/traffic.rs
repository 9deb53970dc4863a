//! The tables of requests, upstream servers and caches.

use super::MetricKind::{Coarse, Counter, Gauge, Histogram, Shown, State};
use super::Unit::{Bytes, Count, Seconds};
use super::{Column, JsonShape, MetricTable, by, column};

/// The classes of response statuses.
pub const CLASSES: &[&str] = &["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The counters of `status_zone`.
pub static ZONES: MetricTable = MetricTable {
    name: "status_zones",
    help: "Each name that `status_zone` gives to servers and locations",
    prefix: "zone",
    labels: &["zone"],
    shape: JsonShape::Named,
    columns: &[
        column("processing", Gauge, Count, "Requests or sessions in progress."),
        column("connections", Counter, Count, "Sessions that have begun."),
        by(
            column("sessions", Counter, Count, "Sessions that have ended."),
            "status",
            &["2xx", "4xx", "5xx"],
        ),
        by(column("requests", Counter, Count, "Requests that were answered."), "status", CLASSES),
        column(
            "received",
            Counter,
            Bytes,
            "Bytes from clients, counted as requests and sessions end.",
        ),
        column("sent", Counter, Bytes, "Bytes to clients, counted as requests and sessions end."),
        column(
            "latency",
            Histogram,
            Seconds,
            "How long requests took, from their first byte to the last of the answer. Tunnels and viewers of the panel do not count.",
        ),
    ],
};

/// The states of an upstream server.
pub const PEER_STATES: &[&str] = &["untried", "up", "failing", "down", "draining"];

/// Whether balancing chooses an upstream server.
pub const PEER_AVAILABILITY: &[&str] =
    &["up", "down", "unavail", "full", "checking", "unhealthy", "draining"];

const STATE: Column = by(
    column(
        "state",
        State,
        Count,
        "How it does: failing from its first failure after a success until its next success.",
    ),
    "state",
    PEER_STATES,
);

const AVAILABILITY: Column = by(
    column(
        "availability",
        State,
        Count,
        "Whether balancing chooses it, as far as the worker that answers knows.",
    ),
    "availability",
    PEER_AVAILABILITY,
);

const LAST_SUCCESS: Column =
    column("last_success", Gauge, Seconds, "When it served last, since 1970.");

const LAST_FAILURE: Column =
    column("last_failure", Gauge, Seconds, "When it failed last, since 1970.");

const FAILURE: Column = column("failure", Shown, Count, "Why it failed last");

const FAILING_SINCE: Column =
    column("failing_since", Shown, Count, "When it failed first after its last success");

const FAILURES_IN_A_ROW: Column =
    column("failures_in_a_row", Gauge, Count, "Failed attempts since it served last.");

/// The upstream servers of requests.
pub static UPSTREAMS: MetricTable = MetricTable {
    name: "upstreams",
    help: "Each server of each `upstream`, or of an address that `proxy_pass` and kin name",
    prefix: "upstream",
    labels: &["upstream", "server"],
    shape: JsonShape::NamedLists,
    columns: &[
        column("name", Shown, Count, "As the configuration names it"),
        column("backup", Shown, Count, "It is a backup"),
        column("weight", Shown, Count, "Its share of the requests"),
        STATE,
        AVAILABILITY,
        LAST_SUCCESS,
        LAST_FAILURE,
        FAILURE,
        FAILURES_IN_A_ROW,
        FAILING_SINCE,
        column("active", Gauge, Count, "Requests that it is working on."),
        by(column("requests", Counter, Count, "Its answers."), "status", CLASSES),
        column("received", Counter, Bytes, "Bytes of its answers."),
        column("sent", Counter, Bytes, "Bytes of requests that it was sent."),
        column("fails", Counter, Count, "Failed attempts."),
        column("connect_fails", Counter, Count, "Of these, attempts without a connection."),
        column("timeouts", Counter, Count, "Of these, attempts that took too long."),
        column("retries", Counter, Count, "Requests for which another server was asked after it."),
        column("opened_connections", Counter, Count, "Connections that were opened to it."),
        column(
            "reused_connections",
            Counter,
            Count,
            "Requests that went over a connection that had served others.",
        ),
        column(
            "latency",
            Coarse,
            Seconds,
            "How long its answers took, from the choice of the server to their last byte.",
        ),
    ],
};

/// The queues of requests that wait for a server.
pub static QUEUES: MetricTable = MetricTable {
    name: "queues",
    help: "Each `queue` of an `upstream`, all workers together",
    prefix: "upstream_queue",
    labels: &["upstream"],
    shape: JsonShape::Named,
    columns: &[
        column("waiting", Gauge, Count, "Requests that wait for a free server."),
        column("limit", Gauge, Count, "How many may wait in each worker."),
        column("entered", Counter, Count, "Requests that had to wait."),
        column("refused", Counter, Count, "Requests that found the queue full."),
        column("late", Counter, Count, "Requests for which no server was free in time."),
        column("wait", Coarse, Seconds, "How long requests waited."),
    ],
};

/// The upstream servers of sessions.
pub static STREAM_UPSTREAMS: MetricTable = MetricTable {
    name: "stream_upstreams",
    help: "Each server of each `upstream` of `stream`, or of an address that its `proxy_pass` names",
    prefix: "stream_upstream",
    labels: &["upstream", "server"],
    shape: JsonShape::NamedLists,
    columns: &[
        column("name", Shown, Count, "As the configuration names it"),
        column("backup", Shown, Count, "It is a backup"),
        column("weight", Shown, Count, "Its share of the sessions"),
        STATE,
        AVAILABILITY,
        LAST_SUCCESS,
        LAST_FAILURE,
        FAILURE,
        FAILURES_IN_A_ROW,
        FAILING_SINCE,
        column("active", Gauge, Count, "Sessions that it has."),
        column("sessions", Counter, Count, "Sessions that were passed to it."),
        column("received", Counter, Bytes, "Bytes from it, counted as sessions end."),
        column("sent", Counter, Bytes, "Bytes to it, counted as sessions end."),
        column("fails", Counter, Count, "Failed attempts."),
        column("connect_fails", Counter, Count, "Of these, attempts without a connection."),
        column("timeouts", Counter, Count, "Of these, attempts that took too long."),
        column("retries", Counter, Count, "Sessions for which another server was tried after it."),
        column("connect", Coarse, Seconds, "How long connecting took."),
    ],
};

/// How caches answered requests; nginx: `$upstream_cache_status`.
pub const CACHE_STATES: &[&str] =
    &["miss", "bypass", "expired", "stale", "updating", "revalidated", "hit"];

/// Caches.
pub static CACHES: MetricTable = MetricTable {
    name: "caches",
    help: "Each `keys_zone` of `proxy_cache_path` and kin",
    prefix: "cache",
    labels: &["cache"],
    shape: JsonShape::Named,
    columns: &[
        column(
            "size",
            Gauge,
            Bytes,
            "What its files take on the disk, in blocks of the file system.",
        ),
        column("max_size", Gauge, Bytes, "What its files may take on the disk, if configured."),
        column("disk_free", Gauge, Bytes, "What is free on its file system."),
        column("disk_size", Gauge, Bytes, "Size of its file system."),
        column("entries", Gauge, Count, "Keys that it knows."),
        by(
            column("requests", Counter, Count, "Requests by their `$upstream_cache_status`."),
            "status",
            CACHE_STATES,
        ),
        column(
            "evicted",
            Counter,
            Count,
            "Answers that were removed to make room, or because they were not used.",
        ),
        column("stored", Counter, Count, "Answers that were stored."),
        column(
            "waited",
            Counter,
            Count,
            "Requests that waited for an answer that was fetched for another request.",
        ),
    ],
};
