//! When another peer is tried. This is pure: no input and output. nginx: `proxy_next_upstream` and
//! kin.

use std::time::Duration;

/// How a peer failed a request. What the client or this server does wrong is no failure of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The connection could not be opened, or broke.
    Error,
    /// There was no way to it from here: no free port, no address of our own, or it does not serve the name that a client
    /// chose.
    Unreachable,
    /// The peer was too slow.
    Timeout,
    /// It said that it has not looked at the request, and will not.
    Refused,
    /// The connection that the request shared with others ended, or the server wants fewer requests
    /// on it. It is not known which request caused it.
    Lost {
        /// It counts against the peer: that is so for one of those requests.
        counts: bool,
    },
    /// It sent something that is no answer.
    InvalidHeader,
    /// It answered with this status.
    Status(u16),
}

/// A set of [`Failure`]s, and of what else may be said where they are listed.
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
    /// Requests that may not be repeated safely count, too.
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

    /// The failure that a configuration's word stands for: `http_503`, `timeout`.
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

    /// Both.
    pub fn and(self, other: Failures) -> Failures {
        Failures(self.0 | other.0)
    }

    /// All of `other` is in it.
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

    /// What the client is told when no other peer is tried.
    pub fn response(self) -> u16 {
        match self {
            Failure::Timeout => 504,
            Failure::Status(status) => status,
            _ => 502,
        }
    }

    /// It counts against the peer. A 403 or 404 concerns the request alone: what is missing on this
    /// peer may exist on another. A peer that takes no more requests on one connection may take
    /// them on another.
    pub fn counts(self) -> bool {
        match self {
            Failure::Status(403 | 404) | Failure::Refused | Failure::Unreachable => false,
            Failure::Lost { counts } => counts,
            _ => true,
        }
    }

    /// It is of a connection, and says nothing of the request: on another connection the same server may serve it.
    pub fn is_of_connection(self) -> bool {
        matches!(self, Failure::Refused | Failure::Lost { .. })
    }
}

/// What is known of the attempts so far.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// Something of the request went out.
    pub started: bool,
    /// Its method may not be repeated without asking (POST, LOCK, PATCH).
    pub non_idempotent: bool,
    /// The body went out as it came in: it cannot be sent again.
    pub streamed: bool,
    /// Attempts left, after this one.
    pub left: u32,
    /// Time since the first.
    pub elapsed: Duration,
}

/// When to try another peer.
#[derive(Debug, Clone)]
pub struct Retry {
    /// After which failures.
    pub on: Failures,
    /// At most so many attempts; 0: as many as there are peers.
    pub tries: u32,
    /// Not after this time; zero: no limit.
    pub timeout: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { on: Failures::ERROR.and(Failures::TIMEOUT), tries: 0, timeout: Duration::ZERO }
    }
}

impl Retry {
    /// How many attempts a request has, of a group that allows `peers`.
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
