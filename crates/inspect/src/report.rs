//! The report about a server: measurements and findings, as text or as JSON.

use std::fmt::Write;

use serde::Serialize;

use crate::datagrams::Datagrams;

/// The measurements of an interval.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Length of the interval in seconds.
    pub seconds: f64,
    /// Processors of this machine.
    pub processors: usize,
    /// The addresses on which the server listens.
    pub places: Vec<ListenAddress>,
    /// What is missing in the report, and why.
    pub unseen: Vec<String>,
}

/// An address, and the processes that serve it.
#[derive(Debug, Serialize)]
pub(crate) struct ListenAddress {
    pub address: String,
    /// The names of its processes.
    pub program: String,
    pub queues: Vec<AcceptQueue>,
    pub workers: Vec<Worker>,
    /// Open connections at this port, of all processes.
    pub connections: usize,
    /// Connections dropped during the interval because a queue was full, in the whole network
    /// namespace.
    pub overflows: Option<u64>,
    /// UDP sockets at the same port, if there are any.
    pub datagrams: Option<Datagrams>,
    pub findings: Vec<Finding>,
    /// The server's own statement about what is wrong. A weir shows it in the title of its master
    /// process.
    pub health: Option<String>,
}

/// The accept queue of a listening socket.
#[derive(Debug, Serialize)]
pub(crate) struct AcceptQueue {
    /// The most connections that waited in any sample.
    pub waiting: Option<u32>,
    /// The limit of the queue: the backlog.
    pub room: Option<u32>,
    /// The processes that accept from it.
    pub workers: Vec<i32>,
}

/// A process that receives connections.
#[derive(Debug, Serialize)]
pub(crate) struct Worker {
    pub pid: i32,
    pub name: String,
    pub waits: WaitMethod,
    /// The number of its epoll instances that wait for connections, usually one per loop.
    pub loops: usize,
    pub threads: usize,
    /// Processor time per second: 1 is one processor.
    pub cpu: f64,
    /// The same for its busiest thread.
    pub busiest: f64,
    /// Its busiest threads in descending order, if it has several.
    pub rows: Vec<Thread>,
    /// Context switches per second.
    pub switches: f64,
    /// Open connections at this port.
    pub connections: usize,
}

/// A thread of a worker.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Thread {
    pub tid: i32,
    pub name: String,
    /// Processor time per second: 1 is one processor.
    pub cpu: f64,
    /// Context switches per second.
    pub switches: f64,
}

/// How a process waits for connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WaitMethod {
    /// epoll with EPOLLEXCLUSIVE: a connection wakes one waiting worker.
    EpollExclusive,
    /// epoll without EPOLLEXCLUSIVE: a connection wakes all waiting workers.
    Epoll,
    /// io_uring.
    IoUring,
    /// Workers take turns: only the one with the lock waits, as with nginx's `accept_mutex`.
    Turns,
    /// A blocking accept(2).
    Accept,
    /// poll(2) or select(2).
    Poll,
    /// Not at all: another process accepts connections and passes them on.
    Handed,
    /// Unknown.
    Unknown,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// No problem.
    Fine,
    /// A possible problem.
    Note,
    /// A problem that clients notice.
    Bad,
}

/// A finding about the measurements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub severity: Severity,
    /// The observation, with figures.
    pub what: String,
    /// Its cause.
    pub why: String,
    /// What to change in the server.
    pub advice: String,
}

/// The least processor time of threads that the text shows.
const SHOWN_FROM: f64 = 0.01;

impl WaitMethod {
    fn words(self) -> &'static str {
        match self {
            WaitMethod::EpollExclusive => "epoll, a connection wakes one (EPOLLEXCLUSIVE)",
            WaitMethod::Epoll => "epoll, a connection wakes all",
            WaitMethod::IoUring => "io_uring",
            WaitMethod::Turns => "some wait at a time (as with accept_mutex)",
            WaitMethod::Accept => "accept(2)",
            WaitMethod::Poll => "poll(2) or select(2), a connection wakes all",
            WaitMethod::Handed => "is handed connections",
            WaitMethod::Unknown => "waits in a way that was not seen",
        }
    }
}

impl Report {
    /// The report as JSON.
    pub(crate) fn json(&self) -> String {
        // Strings and numbers can always be serialized.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The report as text.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        for place in &self.places {
            place.write(&mut out);
        }
        for unseen in &self.unseen {
            let _ = writeln!(out, "not seen: {unseen}");
        }
        out
    }
}

fn number(n: Option<u32>) -> String {
    n.map_or("?".to_owned(), |n| n.to_string())
}

impl ListenAddress {
    fn write(&self, out: &mut String) {
        let handed =
            self.workers.iter().filter(|worker| worker.waits == WaitMethod::Handed).count();
        let workers = self.workers.len() - handed;
        if self.workers.is_empty() {
            return self.write_hidden(out);
        }
        let shape = match (self.queues.len(), workers) {
            (1, 1) if handed > 0 => {
                format!("one queue, one process that hands connections to {handed} others")
            }
            (1, 1) => "one queue, one process".to_owned(),
            (1, n) => format!("one queue that {n} processes share"),
            (n, _) => format!("{n} queues (SO_REUSEPORT), filled by the kernel's hash"),
        };
        let turns = self.workers.iter().find(|worker| worker.waits == WaitMethod::Turns);
        // How a busy worker waits cannot be observed.
        let waiting =
            |worker: &&Worker| !matches!(worker.waits, WaitMethod::Handed | WaitMethod::Unknown);
        let any = turns.or(self.workers.iter().find(waiting));
        let alone = self.queues.len() > 1 || workers == 1;
        let waits = match any.map_or(WaitMethod::Unknown, |worker| worker.waits) {
            // There is no other worker to wake.
            WaitMethod::Epoll | WaitMethod::EpollExclusive if alone => "epoll",
            WaitMethod::Poll if alone => "poll(2) or select(2)",
            waits => waits.words(),
        };
        let _ = writeln!(out, "{} on {}: {shape}; {waits}", self.program, self.address);
        if let Some(health) = &self.health {
            let _ = writeln!(out, "  {health}");
        }
        self.write_queue(out);
        if let Some(datagrams) = &self.datagrams {
            let _ = writeln!(out, "  {}", datagrams.words());
        }
        let _ = writeln!(
            out,
            "  {:>22} {:>6} {:>8} {:>10} {:>12} {:>8}",
            "worker", "cpu", "threads", "switches/s", "connections", "waiting"
        );
        for worker in &self.workers {
            let own =
                |queue: &&AcceptQueue| self.queues.len() > 1 && queue.workers.contains(&worker.pid);
            let waiting = self.queues.iter().find(own);
            let waiting = waiting.map_or(String::new(), |queue| number(queue.waiting));
            let _ = writeln!(
                out,
                "  {:>22} {:>5.0}% {:>8} {:>10.0} {:>12} {waiting:>8}",
                format!("{} {}", worker.name, worker.pid),
                worker.cpu * 100.0,
                worker.threads,
                worker.switches,
                worker.connections,
            );
            for thread in worker.rows.iter().filter(|thread| thread.cpu >= SHOWN_FROM) {
                let _ = writeln!(
                    out,
                    "  {:>22} {:>5.0}% {:>8} {:>10.0}",
                    format!("{} {}", thread.name, thread.tid),
                    thread.cpu * 100.0,
                    "",
                    thread.switches,
                );
            }
        }
        self.write_findings(out);
    }

    /// Writes a server whose processes are hidden.
    fn write_hidden(&self, out: &mut String) {
        let (n, s) = (self.queues.len(), if self.queues.len() == 1 { "" } else { "s" });
        let _ = writeln!(out, "hidden processes on {}: {n} queue{s}", self.address);
        self.write_queue(out);
        let _ = writeln!(out, "  connections {}", self.connections);
        self.write_findings(out);
    }

    fn write_queue(&self, out: &mut String) {
        let of =
            |queue: &AcceptQueue| format!("{} of {}", number(queue.waiting), number(queue.room));
        let all: Vec<String> = self.queues.iter().map(of).collect();
        if all.len() == 1 || self.workers.is_empty() {
            let _ = writeln!(out, "  waiting {}", all.join(", "));
        }
    }

    fn write_findings(&self, out: &mut String) {
        for finding in &self.findings {
            let head = match finding.severity {
                Severity::Fine => "fine",
                Severity::Note => "note",
                Severity::Bad => "trouble",
            };
            let _ = writeln!(out, "  {head}: {}", finding.what);
            for (word, text) in [("why", &finding.why), ("do", &finding.advice)] {
                if !text.is_empty() {
                    let _ = writeln!(out, "    {word}: {text}");
                }
            }
        }
        out.push('\n');
    }
}
