//! Whether another peer is tried after a failure. Pure: no I/O. nginx: `proxy_next_upstream` and
//! kin.

use std::time::Duration;

/// How a peer failed a request. Faults of the client or of this server are no failures of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The connection could not be opened, or broke.
    Error,
    /// There is no way to the peer from here: no free local port, no local address, or the peer
    /// does not serve the name that the client chose.
    Unreachable,
    /// The peer was too slow.
    Timeout,
    /// The peer said that it has not processed the request and will not.
    Refused,
    /// A connection with several requests ended, or the peer wants fewer requests on it. It is not
    /// known which request caused it.
    Lost {
        /// Counts against the peer. This is set for one of the requests.
        counts: bool,
    },
    /// The peer sent an invalid answer.
    InvalidHeader,
    /// The peer answered with this status.
    Status(u16),
}

/// A set of [`Failure`]s and of the other words of `proxy_next_upstream`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Failures(u16);

impl Failures {
    /// Nothing.
    pub const NONE: Failures = Failures(0);
    /// Broken connections.
    pub const ERROR: Failures = Failures(1);
    /// Time-outs.
    pub const TIMEOUT: Failures = Failures(1 << 1);
    /// Invalid answers.
    pub const INVALID_HEADER: Failures = Failures(1 << 2);
    /// Requests that may not be repeated safely are passed on, too.
    pub const NON_IDEMPOTENT: Failures = Failures(1 << 3);
    const STATUSES: [(u16, Failures); 7] = [
        (403, Failures(1 << 4)),
        (404, Failures(1 << 5)),
        (429, Failures(1 << 6)),
        (500, Failures(1 << 7)),
        (502, Failures(1 << 8)),
        (503, Failures(1 << 9)),
        (504, Failures(1 << 10)),
    ];

    /// The failure that a word of the configuration stands for: `http_503`, `timeout`.
    pub fn word(word: &[u8]) -> Option<Failures> {
        Some(match word {
            b"error" => Failures::ERROR,
            b"timeout" => Failures::TIMEOUT,
            b"invalid_header" | b"invalid_response" => Failures::INVALID_HEADER,
            b"not_found" => Failures::status(404)?,
            b"non_idempotent" => Failures::NON_IDEMPOTENT,
            b"off" | b"updating" => Failures::NONE,
            _ => {
                let status = word.strip_prefix(b"http_")?;
                let status: u16 = std::str::from_utf8(status).ok()?.parse().ok()?;
                Failures::status(status)?
            }
        })
    }

    /// The union.
    pub fn and(self, other: Failures) -> Failures {
        Failures(self.0 | other.0)
    }

    /// Whether the set has all of `other`.
    pub fn contains(self, other: Failures) -> bool {
        self.0 & other.0 == other.0
    }

    fn status(status: u16) -> Option<Failures> {
        Self::STATUSES.iter().find(|(s, _)| *s == status).map(|(_, f)| *f)
    }
}

impl Failure {
    /// The set with this failure alone; `None` for a status that is no failure.
    pub fn set(self) -> Option<Failures> {
        match self {
            Failure::Error | Failure::Unreachable | Failure::Refused | Failure::Lost { .. } => {
                Some(Failures::ERROR)
            }
            Failure::Timeout => Some(Failures::TIMEOUT),
            Failure::InvalidHeader => Some(Failures::INVALID_HEADER),
            Failure::Status(status) => Failures::status(status),
        }
    }

    /// The status for the client if no other peer is tried.
    pub fn response(self) -> u16 {
        match self {
            Failure::Timeout => 504,
            Failure::Status(status) => status,
            _ => 502,
        }
    }

    /// Whether the failure counts against the peer. A 403 or 404 does not: what is missing on this
    /// peer may exist on another. A refusal does not: the peer may accept the request on another
    /// connection.
    pub fn counts(self) -> bool {
        match self {
            Failure::Status(403 | 404) | Failure::Refused | Failure::Unreachable => false,
            Failure::Lost { counts } => counts,
            _ => true,
        }
    }

    /// Whether the failure concerns one connection only, so that the same peer may serve the
    /// request on another.
    pub fn is_of_connection(self) -> bool {
        matches!(self, Failure::Refused | Failure::Lost { .. })
    }
}

/// The attempts so far.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// Part of the request was sent.
    pub started: bool,
    /// The method is not idempotent (POST, LOCK, PATCH).
    pub non_idempotent: bool,
    /// The body was passed on unbuffered, so it cannot be sent again.
    pub streamed: bool,
    /// Attempts left, after this one.
    pub left: u32,
    /// Time since the first attempt began.
    pub elapsed: Duration,
}

/// When another peer is tried. nginx: `proxy_next_upstream`, `..._tries`, `..._timeout`.
#[derive(Debug, Clone)]
pub struct Retry {
    /// The failures after which one is tried.
    pub on: Failures,
    /// The most attempts; 0 for as many as there are peers.
    pub tries: u32,
    /// No attempt begins after this time; zero for no limit.
    pub timeout: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { on: Failures::ERROR.and(Failures::TIMEOUT), tries: 0, timeout: Duration::ZERO }
    }
}

impl Retry {
    /// How many attempts a request has, in a group of `peers` peers.
    pub fn attempts(&self, peers: u32) -> u32 {
        if self.tries > 0 { peers.min(self.tries) } else { peers }
    }

    /// Whether another peer is tried after this failure.
    pub fn again(&self, failure: Failure, sent: Sent) -> bool {
        let Some(mut needed) = failure.set() else { return false };
        if sent.started && sent.non_idempotent && failure != Failure::Refused {
            needed = needed.and(Failures::NON_IDEMPOTENT);
        }
        let late = !self.timeout.is_zero() && sent.elapsed >= self.timeout;
        sent.left > 0 && self.on.contains(needed) && !(sent.started && sent.streamed) && !late
    }
}
