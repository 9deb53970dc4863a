//! The declarations of all values: what each loop writes, and what pages show.

/// How a value moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows while the server runs.
    Counter,
    /// How much there is right now.
    Gauge,
    /// Times in buckets.
    Histogram,
    /// The same with fewer buckets, where there are many of them.
    Coarse,
    /// One of several words: a gauge for each of them, of which one is 1.
    State,
    /// For JSON alone: it would be no metric.
    Shown,
}

/// What is counted, as far as names tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things that the name says.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds, kept in nanoseconds.
    Seconds,
    /// A share.
    Ratio,
}

/// A value that a table has of each of its rows.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Short name in lower case.
    pub name: &'static str,
    /// How it moves.
    pub kind: MetricKind,
    /// In what.
    pub unit: Unit,
    /// One sentence for people.
    pub help: &'static str,
    /// A label of its own, and its words: then there is a value for each of them.
    pub by: Option<(&'static str, &'static [&'static str])>,
}

/// How rows stand in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonShape {
    /// There is one row.
    Object,
    /// One behind the other.
    List,
    /// By their first label.
    Named,
    /// By their first label, several of each.
    NamedLists,
    /// They are for Prometheus alone: another table's row has them.
    Absent,
}

/// Values of one kind of thing.
#[derive(Debug)]
pub struct MetricTable {
    /// Its key in JSON.
    pub name: &'static str,
    /// What its rows are.
    pub help: &'static str,
    /// What its names begin with for Prometheus; empty for the server's own.
    pub prefix: &'static str,
    /// What tells its rows apart.
    pub labels: &'static [&'static str],
    /// In JSON.
    pub shape: JsonShape,
    /// What is known of each row.
    pub columns: &'static [Column],
}

impl MetricTable {
    /// A column's name for Prometheus: what it is, in which unit, `_total` for counters, as its naming guide asks.
    pub fn metric(&self, column: &Column) -> String {
        let prefix = if self.prefix.is_empty() { "" } else { "_" };
        let unit = match column.unit {
            Unit::Count => "",
            Unit::Bytes => "_bytes",
            Unit::Seconds => "_seconds",
            Unit::Ratio => "_ratio",
        };
        let end = if column.kind == MetricKind::Counter { "_total" } else { "" };
        format!("weir{prefix}{}_{}{unit}{end}", self.prefix, column.name)
    }
}

/// Makes the enum and the table from one list, so that they cannot differ.
macro_rules! declare {
    ($(#[doc = $help:literal] $metric:ident $kind:ident $unit:ident $name:literal;)+) => {
        /// A value that each loop keeps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Metric {
            $(#[doc = $help] $metric,)+
        }

        /// All values in the order of their places.
        pub const METRICS: &[Metric] = &[$(Metric::$metric,)+];

        const SUMS: &[Column] = &[
            $(Column {
                name: $name,
                kind: MetricKind::$kind,
                unit: Unit::$unit,
                help: $help.trim_ascii_start(),
                by: None,
            },)+
        ];
    };
}

impl Metric {
    /// What is said of it.
    pub fn column(self) -> &'static Column {
        &SUMS[self as usize]
    }
}

macro_rules! declare_times {
    ($(#[doc = $help:literal] $histogram:ident $name:literal;)+) => {
        /// Times that each loop keeps in buckets.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Histogram {
            $(#[doc = $help] $histogram,)+
        }

        /// All of them in the order of their places.
        pub const HISTOGRAMS: &[Histogram] = &[$(Histogram::$histogram,)+];

        const TIMES: &[Column] = &[
            $(Column {
                name: $name,
                kind: MetricKind::Histogram,
                unit: Unit::Seconds,
                help: $help.trim_ascii_start(),
                by: None,
            },)+
        ];
    };
}

impl Histogram {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        TIMES[self as usize].name
    }
}

declare_times! {
    /// How long ready events waited while the loop ran other handlers.
    Blocked "event_loop_blocked";
    /// How long handlers took.
    Handler "handler";
    /// How long turns of loops took, without their wait.
    Turn "turn";
    /// How long handshakes of QUIC took, from the first datagram.
    QuicHandshake "quic_handshake";
    /// Round-trip times of QUIC connections: a connection's own at its end and every ten seconds.
    QuicRoundTrip "quic_round_trip";
}

declare! {
    /// Connections accepted from clients.
    Accepted Counter Count "accepted_connections";
    /// Accepted connections that were served and not dropped for want of resources.
    Handled Counter Count "handled_connections";
    /// Times that a listening socket woke a loop.
    AcceptEvents Counter Count "accept_events";
    /// Times that a loop came to accept and found nothing.
    EmptyAccepts Counter Count "empty_accepts";
    /// Requests of clients.
    Requests Counter Count "requests";
    /// Requests that ended in a status of 4xx.
    ClientErrors Counter Count "client_errors";
    /// Of these, requests whose client left before it was answered: status 499.
    Abandoned Counter Count "abandoned_requests";
    /// Requests that ended in a status of 5xx.
    ServerErrors Counter Count "server_errors";
    /// Requests that limit_req or limit_conn refused.
    Limited Counter Count "limited_requests";
    /// Of these, requests that were refused with a status of 5xx.
    LimitedErrors Counter Count "limited_server_errors";
    /// Of the refused requests, those that limit_conn refused.
    LimitedByConn Counter Count "limited_by_connections";
    /// Requests that limit_req held back before they were served.
    Delayed Counter Count "delayed_requests";
    /// Bytes of requests from clients, counted as requests end.
    Received Counter Bytes "received";
    /// Bytes of answers to clients, counted as requests end.
    Sent Counter Bytes "sent";
    /// Open client connections, idle ones included.
    Active Gauge Count "active_connections";
    /// Connections while their request head is being read.
    Reading Gauge Count "reading_connections";
    /// Connections while their request is worked on or being answered.
    Writing Gauge Count "writing_connections";
    /// Idle keep-alive connections.
    Waiting Gauge Count "waiting_connections";
    /// Connections closed because of a defect of the server while it served them.
    Panicked Counter Count "panicked_connections";
    /// Configurations taken into use after the first.
    Reloaded Counter Count "reloads";
    /// Configurations that running workers have taken.
    Changed Counter Count "changes";
    /// Configurations of `http` that workers hold: one each, and each older one that still has requests.
    Sites Gauge Count "sites";
    /// Reloads that failed, so that the configuration before went on.
    ReloadFailed Counter Count "failed_reloads";
    /// Turns of loops in which something was handled.
    Turns Counter Count "turns";
    /// Time that loops spent in turns.
    Busy Counter Seconds "busy";
    /// Time that loops slept.
    Slept Counter Seconds "slept";
    /// Time that loops slept while new connections could wake them.
    Armed Counter Seconds "armed";
    /// Handlers that took longer than blocked_threshold.
    SlowHandlers Counter Count "slow_handlers";
    /// Of these, handlers that were slow because their loop waited for a processor.
    Preempted Counter Count "preempted_handlers";
    /// Messages about slow handlers that were left out, since there were too many at a time.
    SlowLeftOut Counter Count "slow_handlers_left_out";
    /// TLS handshakes of clients that were completed.
    TlsHandshakes Counter Count "tls_handshakes";
    /// Of these, those that resumed a session.
    TlsResumed Counter Count "tls_resumed_sessions";
    /// TLS handshakes of clients that failed.
    TlsFailed Counter Count "tls_failed_handshakes";
    /// Of these, handshakes whose client left or was silent for too long.
    TlsAbandoned Counter Count "tls_abandoned_handshakes";
    /// Of these, handshakes whose client did not accept the certificate.
    TlsDistrusted Counter Count "tls_distrusted_certificates";
    /// Of these, handshakes with no version, cipher, curve or protocol that both sides speak.
    TlsIncompatible Counter Count "tls_incompatible_clients";
    /// QUIC connections whose handshake was completed.
    QuicConnections Counter Count "quic_connections";
    /// QUIC connections that ended before their handshake was completed.
    QuicUnfinished Counter Count "quic_unfinished_handshakes";
    /// Open QUIC connections, those in their handshake included.
    QuicOpen Gauge Count "quic_open_connections";
    /// QUIC clients that were asked to show first that their address is their own.
    QuicRetries Counter Count "quic_retries";
    /// Requests for QUIC connections that got no answer: the loop was full, or about to end.
    QuicIgnored Counter Count "quic_ignored_connections";
    /// QUIC clients that went on at another address.
    QuicMoved Counter Count "quic_moved_clients";
    /// Datagrams that were passed to the loop that has their QUIC connection.
    QuicForwarded Counter Count "quic_forwarded_datagrams";
    /// Packets of QUIC that were sent to clients; a connection counts them at its end and every ten seconds.
    QuicSent Counter Count "quic_sent_packets";
    /// Of these, packets that were lost.
    QuicLost Counter Count "quic_lost_packets";
    /// Connections that an idle loop took over from a stalled one.
    TakenOver Counter Count "taken_over_connections";
    /// Events of a stalled loop that an idle loop could not take and passed on.
    PassedOn Counter Count "passed_on_events";
    /// Checks of stalled loops that found no connection to take over.
    LookedInVain Counter Count "looks_in_vain";
    /// Files of caches that could not be read or written.
    CacheFaults Counter Count "cache_faults";
    /// Answers passed on without being stored because the disk of their cache was too slow.
    CacheUnstored Counter Count "cache_unstored_answers";
    /// Messages left out of error logs because too many of a kind came within a second.
    LogLeftOut Counter Count "log_left_out_messages";
    /// Lines of log files that were lost, since the file did not take them.
    LogLost Counter Count "log_lost_lines";
    /// Times that no connection could be accepted, for want of descriptors or memory.
    AcceptFailed Counter Count "failed_accepts";
    /// Of these, for want of memory.
    AcceptNoMemory Counter Count "failed_accepts_without_memory";
    /// Connections that were lost before they could be accepted.
    AcceptAborted Counter Count "aborted_accepts";
    /// Times that a loop accepted nothing because it had all of its worker_connections and none was idle.
    ConnectionsFull Counter Count "connections_exhausted";
    /// Questions to name servers.
    LookupAsked Counter Count "resolver_questions";
    /// Questions that a name server refused or could not answer, or whose name server cannot be reached.
    LookupFailed Counter Count "resolver_failures";
    /// Names that do not exist, as name servers say.
    LookupNotFound Counter Count "resolver_unknown_names";
    /// Times that a name server did not answer in time.
    LookupTimedOut Counter Count "resolver_timeouts";
    /// Spans of requests that the collector took.
    SpansSent Counter Count "exported_spans";
    /// Spans that the collector did not take, or that found no room while they waited for it.
    SpansDropped Counter Count "dropped_spans";
    /// Worker processes that ended without being told to.
    Died Counter Count "died_workers";
}

const fn column(name: &'static str, kind: MetricKind, unit: Unit, help: &'static str) -> Column {
    Column { name, kind, unit, help, by: None }
}

const fn by(column: Column, label: &'static str, words: &'static [&'static str]) -> Column {
    Column { by: Some((label, words)), ..column }
}

use MetricKind::{Coarse, Counter, Gauge, Shown, State};
use Unit::{Bytes, Count, Ratio, Seconds};

/// Which program it is.
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

/// Since when it runs.
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

/// The machine, as far as it is short of something.
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

/// How the server is.
pub const HEALTH_STATES: &[&str] = &["green", "yellow", "red"];

/// What is wrong with the server, in one number.
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

/// Each thing that is wrong.
pub static HEALTH_FINDINGS: MetricTable = MetricTable {
    name: "health_findings",
    help: "Each thing that is wrong, while it is",
    prefix: "health",
    labels: &["rule", "subject"],
    shape: JsonShape::Absent,
    columns: &[column("finding", Gauge, Count, "How bad it is: 1 is yellow, 2 red.")],
};

/// Sums over all loops, those that have ended as well.
pub static TOTALS: MetricTable = MetricTable {
    name: "totals",
    help: "Sums over all loops of all workers, those that have ended as well",
    prefix: "",
    labels: &[],
    shape: JsonShape::Object,
    columns: SUMS,
};

/// Times of all loops.
pub static HISTOGRAM_SUMS: MetricTable = MetricTable {
    name: "histograms",
    help: "Times of all loops",
    prefix: "",
    labels: &[],
    shape: JsonShape::Object,
    columns: TIMES,
};

/// How evenly the loops work.
pub static BALANCE: MetricTable = MetricTable {
    name: "balance",
    help: "How evenly the loops work",
    prefix: "loops",
    labels: &[],
    shape: JsonShape::Object,
    columns: &[
        column("policy", Shown, Count, "accept_balance"),
        column(
            "imbalance",
            Gauge,
            Ratio,
            "Coefficient of variation of the time that loops were busy in the last ten seconds: 0 is even.",
        ),
        column(
            "mean_busy",
            Gauge,
            Ratio,
            "The mean share of these seconds in which loops were busy.",
        ),
        column("most_busy", Gauge, Ratio, "The share of the one that was busy for longest."),
        column(
            "alarm",
            Gauge,
            Count,
            "1 where the imbalance is at least 0.5 and a loop was busy for more than half of the time.",
        ),
        column("running", Gauge, Count, "Loops that run, those of older configurations as well."),
        column(
            "longest_turn",
            Gauge,
            Seconds,
            "For how long the longest of the present turns has lasted; 0 while all loops sleep.",
        ),
        column("window", Shown, Count, "Seconds"),
        column("threshold", Shown, Ratio, "From where on there is an alarm."),
        column(
            "next",
            Shown,
            Count,
            "The loops that sleep armed, in the order in which they would be woken.",
        ),
    ],
};

/// What a loop does.
pub const LOOP_STATES: &[&str] = &["awake", "armed", "disarmed", "finishing"];

/// The loops that run.
pub static LOOPS: MetricTable = MetricTable {
    name: "loops",
    help: "Each loop that runs",
    prefix: "loop",
    labels: &["worker", "loop"],
    shape: JsonShape::List,
    columns: &[
        column("pid", Shown, Count, "Its process"),
        column("tid", Shown, Count, "Its thread"),
        column("finishing", Shown, Count, "It belongs to an older configuration"),
        by(
            column(
                "state",
                State,
                Count,
                "What the loop does: it is in a turn, or sleeps, and new connections may wake it or not.",
            ),
            "state",
            LOOP_STATES,
        ),
        column("accepted", Counter, Count, "Connections that the loop accepted."),
        column("requests", Counter, Count, "Requests that it served."),
        column("open", Gauge, Count, "Its open client connections."),
        column("inflight", Gauge, Count, "Its requests that are worked on."),
        column("received", Counter, Bytes, "Bytes of its requests, counted as they end."),
        column("sent", Counter, Bytes, "Bytes of its answers, counted as requests end."),
        column("turns", Counter, Count, "Its turns in which something was handled."),
        column("busy", Counter, Seconds, "Time that it spent in turns."),
        column("slept", Counter, Seconds, "Time that it slept."),
        column(
            "armed",
            Counter,
            Seconds,
            "Time that it slept while new connections could wake it.",
        ),
        column(
            "awake_for",
            Gauge,
            Seconds,
            "For how long its present turn has lasted; 0 while it sleeps.",
        ),
        column(
            "share_busy",
            Gauge,
            Ratio,
            "The share of the last ten seconds in which it was busy.",
        ),
        column("lately_requests", Shown, Count, "Its requests of these seconds"),
        column("lately_accepted", Shown, Count, "Its connections of these seconds"),
        column("lately_sent", Shown, Bytes, "Its bytes of these seconds"),
        column("share_armed", Gauge, Ratio, "The share of its life in which it slept armed."),
        column("cpu", Counter, Seconds, "Processor time of its thread."),
        column(
            "runqueue",
            Counter,
            Seconds,
            "Time that its thread could have run and waited for a processor.",
        ),
        column(
            "slow_handlers",
            Counter,
            Count,
            "Its handlers that took longer than blocked_threshold.",
        ),
        column("blocked", Coarse, Seconds, "How long ready events waited for their handlers."),
        column("handler", Coarse, Seconds, "How long its handlers took."),
        column("turn", Shown, Seconds, "How long its turns took."),
        column(
            "stalled",
            Shown,
            Count,
            "Since when it has been in one turn for over a second, and with what; or null",
        ),
    ],
};

/// The listening sockets.
pub static LISTENERS: MetricTable = MetricTable {
    name: "listeners",
    help: "Each address that is listened on",
    prefix: "listener",
    labels: &["address"],
    shape: JsonShape::List,
    columns: &[
        column("kind", Shown, Count, "tcp or unix"),
        column(
            "sockets",
            Gauge,
            Count,
            "Sockets that listen there: one for all loops, or one for each.",
        ),
        column("queue", Gauge, Count, "Connections that wait in the kernel to be accepted."),
        column("queue_longest", Gauge, Count, "The same of the socket in which most wait."),
        column("backlog", Gauge, Count, "How many connections may wait in one of them."),
        column(
            "dropped",
            Counter,
            Count,
            "Connections that the kernel dropped there, mostly since a queue was full.",
        ),
        column("queues", Shown, Count, "Each socket's queue"),
    ],
};

/// Classes of statuses.
pub const CLASSES: &[&str] = &["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What is counted by `status_zone`.
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
            MetricKind::Histogram,
            Seconds,
            "How long requests took, from their first byte to the last of the answer. Tunnels and viewers of the panel do not count.",
        ),
    ],
};

/// How a server behind does.
pub const PEER_STATES: &[&str] = &["untried", "up", "failing", "down", "draining"];

/// Whether balancing chooses a server behind.
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

/// Servers that requests are passed to.
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

/// Servers that sessions are passed to.
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

/// What requests had from caches.
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
        column("size", Gauge, Bytes, "Size of its files."),
        column("max_size", Gauge, Bytes, "Largest size of its files, if configured."),
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

/// Shared memory.
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

/// Threads for file operations.
pub static POOLS: MetricTable = MetricTable {
    name: "pools",
    help: "Each `thread_pool`, of each worker",
    prefix: "pool",
    labels: &["pool", "worker"],
    shape: JsonShape::NamedLists,
    columns: &[
        column("queue", Gauge, Count, "File operations that wait for a thread."),
        column("wait", Coarse, Seconds, "How long file operations waited for a thread."),
    ],
};

/// Requests that wait for a server.
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

/// The thread pools of all workers together.
pub static POOL_SUMS: MetricTable = MetricTable {
    name: "thread_pools",
    help: "Each `thread_pool`, all workers together",
    prefix: "thread_pool",
    labels: &["pool"],
    shape: JsonShape::Absent,
    columns: POOLS.columns,
};

/// Tables with rows for each loop or worker. Prometheus sees them on demand: they grow with the machine.
pub static OF_LOOPS: &[&MetricTable] = &[&LOOPS, &POOLS];

/// All tables, in the order of the pages.
pub static TABLES: &[&MetricTable] = &[
    &BUILD,
    &SERVER,
    &MACHINE,
    &PROCESSES,
    &CERTIFICATES,
    &ACME,
    &HEALTH,
    &HEALTH_FINDINGS,
    &TOTALS,
    &HISTOGRAM_SUMS,
    &BALANCE,
    &LOOPS,
    &LISTENERS,
    &ZONES,
    &UPSTREAMS,
    &QUEUES,
    &STREAM_UPSTREAMS,
    &CACHES,
    &SHARED,
    &POOL_SUMS,
    &POOLS,
];
