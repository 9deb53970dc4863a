//! The tables of the server as a whole.

use super::MetricKind::{Counter, Gauge, Shown};
use super::Unit::{Bytes, Count, Seconds};
use super::{JsonShape, MetricTable, column};

/// The program and its version.
pub static BUILD: MetricTable = MetricTable {
    name: "build",
    help: "Which program it is",
    prefix: "build",
    labels: &["version", "nginx"],
    shape: JsonShape::Object,
    columns: &[column(
        "info",
        Gauge,
        Count,
        "A constant 1; its labels are weir's version and the one of nginx that it follows.",
    )],
};

/// The server's own times.
pub static SERVER: MetricTable = MetricTable {
    name: "server",
    help: "Since when it runs",
    prefix: "",
    labels: &[],
    shape: JsonShape::Object,
    columns: &[
        column("start_time", Gauge, Seconds, "When the server began, since 1970."),
        column("uptime", Gauge, Seconds, "For how long it has been running."),
        column(
            "last_reload",
            Gauge,
            Seconds,
            "When a configuration was last taken into use or refused, since 1970.",
        ),
        column(
            "last_reload_succeeded",
            Gauge,
            Count,
            "1 if that configuration is in use, or else 0.",
        ),
        column("workers", Gauge, Count, "Worker processes of the newest configuration."),
        column(
            "old_workers",
            Gauge,
            Count,
            "Worker processes of older configurations, which finish what they have.",
        ),
        column(
            "connections_limit",
            Gauge,
            Count,
            "How many connections a loop may have: worker_connections.",
        ),
        column(
            "most_loop_connections",
            Gauge,
            Count,
            "Open client connections of the loop that has most.",
        ),
        column(
            "blocked_file_operation",
            Gauge,
            Seconds,
            "For how long the file operation has lasted that a disk blocks for longest; 0 if none has for over a second.",
        ),
    ],
};

/// The limits and resources of the machine.
pub static MACHINE: MetricTable = MetricTable {
    name: "machine",
    help: "The machine or container, as far as the kernel tells",
    prefix: "machine",
    labels: &[],
    shape: JsonShape::Object,
    columns: &[
        column(
            "memory_used",
            Gauge,
            Bytes,
            "Memory of weir's control group (its container or unit), files in memory included.",
        ),
        column(
            "memory_unreclaimable",
            Gauge,
            Bytes,
            "The same without what the kernel can drop at once: unused files in memory.",
        ),
        column(
            "memory_limit",
            Gauge,
            Bytes,
            "The most that the control group may use, the least of it and those above it.",
        ),
        column(
            "memory_kills",
            Counter,
            Count,
            "Processes of the group that the kernel killed for want of memory.",
        ),
        column(
            "listen_overflows",
            Counter,
            Count,
            "Connections that were dropped because an accept queue was full, of all servers in this network namespace.",
        ),
        column(
            "open_descriptors",
            Gauge,
            Count,
            "Open files and sockets of all processes of the machine.",
        ),
        column("descriptors_limit", Gauge, Count, "How many there may be: fs.file-max."),
    ],
};

/// The worker processes.
pub static PROCESSES: MetricTable = MetricTable {
    name: "processes",
    help: "Each worker process, read every five seconds",
    prefix: "process",
    labels: &["worker"],
    shape: JsonShape::List,
    columns: &[
        column("pid", Shown, Count, "Its number in the system"),
        column("finishing", Shown, Count, "It belongs to an older configuration"),
        column("open_descriptors", Gauge, Count, "Its open files and sockets."),
        column("descriptors_limit", Gauge, Count, "How many it may have: worker_rlimit_nofile."),
        column("resident", Gauge, Bytes, "Its memory, without what is swapped out."),
    ],
};

/// Certificates.
pub static CERTIFICATES: MetricTable = MetricTable {
    name: "certificates",
    help: "Each certificate that the configuration names without variables: those for clients, and those for servers behind",
    prefix: "certificate",
    labels: &["file", "name"],
    shape: JsonShape::List,
    columns: &[column("not_after", Gauge, Seconds, "Its last second, since 1970.")],
};

/// Certificates from ACME servers.
pub static ACME: MetricTable = MetricTable {
    name: "acme",
    help: "Each certificate that an ACME server is asked for ([acme.md](acme.md))",
    prefix: "acme",
    labels: &["issuer", "name", "id"],
    shape: JsonShape::List,
    columns: &[
        column(
            "not_after",
            Gauge,
            Seconds,
            "Its last second, since 1970; 0 while there is no certificate.",
        ),
        column("failures", Gauge, Count, "Attempts that failed since one succeeded."),
        column(
            "failing_since",
            Gauge,
            Seconds,
            "When the first of them was, since 1970; 0 while none has failed.",
        ),
        column(
            "next_attempt",
            Gauge,
            Seconds,
            "When the next attempt or the renewal is, since 1970.",
        ),
        column("names", Shown, Count, "All its names"),
        column("reason", Shown, Count, "Why the last attempt failed, as the ACME server says it"),
    ],
};

/// The states of health.
pub const HEALTH_STATES: &[&str] = &["green", "yellow", "red"];

/// The health of the server, as one number.
pub static HEALTH: MetricTable = MetricTable {
    name: "health",
    help: "What is wrong with the server ([health.md](health.md))",
    prefix: "",
    labels: &[],
    shape: JsonShape::Object,
    columns: &[
        column("health", Gauge, Count, "The worst finding: 0 is green, 1 yellow, 2 red."),
        column("state", Shown, Count, "The same as a word"),
        column("text", Shown, Count, "The worst findings in a sentence"),
        column("since", Shown, Count, "When the worst began, in seconds since 1970"),
        column("findings", Shown, Count, "All of them, the worst first"),
        column("looks", Shown, Count, "How often the server has judged itself"),
    ],
};

/// The findings about the server.
pub static HEALTH_FINDINGS: MetricTable = MetricTable {
    name: "health_findings",
    help: "Each thing that is wrong, while it is",
    prefix: "health",
    labels: &["rule", "subject"],
    shape: JsonShape::Absent,
    columns: &[column("finding", Gauge, Count, "How bad it is: 1 is yellow, 2 red.")],
};

/// The zones of shared memory.
pub static SHARED: MetricTable = MetricTable {
    name: "zones",
    help: "Each zone of shared memory that holds a table: those of limits, caches and TLS sessions",
    prefix: "shared_memory",
    labels: &["zone"],
    shape: JsonShape::Named,
    columns: &[
        column("kind", Shown, Count, "Whose it is"),
        column("size", Gauge, Bytes, "How large it is."),
        column("used", Gauge, Bytes, "How much of it is used."),
        column("entries", Gauge, Count, "How many keys it holds."),
    ],
};
