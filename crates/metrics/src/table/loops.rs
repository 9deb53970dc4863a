//! The tables of loops, listeners and thread pools.

use super::MetricKind::{Coarse, Counter, Gauge, Shown, State};
use super::Unit::{Bytes, Count, Ratio, Seconds};
use super::counted::{SUMS, TIMES};
use super::{JsonShape, MetricTable, by, column};

/// Sums over all loops, including ended ones.
pub static TOTALS: MetricTable = MetricTable {
    name: "totals",
    help: "Sums over all loops of all workers, those that have ended as well",
    prefix: "",
    labels: &[],
    shape: JsonShape::Object,
    columns: SUMS,
};

/// The histograms of all loops.
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

/// The states of a loop.
pub const LOOP_STATES: &[&str] = &["awake", "armed", "disarmed", "finishing"];

/// Each running loop.
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

/// The file pools of each worker.
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

/// The file pools, summed over all workers.
pub static POOL_SUMS: MetricTable = MetricTable {
    name: "thread_pools",
    help: "Each `thread_pool`, all workers together",
    prefix: "thread_pool",
    labels: &["pool"],
    shape: JsonShape::Absent,
    columns: POOLS.columns,
};
