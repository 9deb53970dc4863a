//! The counters of each configured server: one set for each loop, under the names of group and
//! server.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use std::{fmt, io};

use rustix::io::Errno;
use weir_engine::Wall;
use weir_metrics::subjects::{AllCounted, Cell, Cells, Counted, OTHERS, Outcomes, SubjectKind};
use weir_metrics::{MetricTable, MetricValue, MetricsPage};

use crate::changes::Duty;
use crate::health::Health;
use crate::seat::PeerState;
use crate::{Ended, Failure, Group, Peer};

/// So many servers are known at a time. More come only from names that are looked up again and again.
const MOST: usize = 4096;

/// The cells of one loop.
pub struct Counts {
    cells: Rc<Cells>,
    kind: SubjectKind,
    /// Of servers that were asked, by their places in memory, in which they stay as long as they are here.
    known: RefCell<HashMap<*const Peer, CountedPeer>>,
}

/// A server that was asked, and its cell.
type CountedPeer = (Arc<Peer>, Option<Cell>);

impl Counts {
    /// Of the requests or sessions of a loop.
    pub fn new(cells: Rc<Cells>, kind: SubjectKind) -> Counts {
        Counts { cells, kind, known: RefCell::default() }
    }

    /// The cell of a server.
    pub fn of(&self, group: &Group, peer: &Arc<Peer>) -> Option<Cell> {
        let mut known = self.known.borrow_mut();
        if known.len() >= MOST {
            known.clear();
        }
        let fresh = || (peer.clone(), self.cells.of(self.kind, &name(group, peer)));
        known.entry(Arc::as_ptr(peer)).or_insert_with(fresh).1
    }
}

fn name(group: &Group, peer: &Peer) -> String {
    format!("{}\n{}", group.name, peer.name)
}

/// How a server does: its last attempt decides, however long ago that was.
fn state(seat: &PeerState, outcomes: &Outcomes) -> &'static str {
    match seat.duty() {
        Duty::Down => "down",
        Duty::Drain => "draining",
        Duty::Up if seat.health.health == Health::Unhealthy || outcomes.is_failing() => "failing",
        Duty::Up if outcomes.success.is_none() => "untried",
        Duty::Up => "up",
    }
}

/// Why an attempt failed, in a word of a cell: an error number of the system, or one of the codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureReason(u64);

impl FailureReason {
    const BROKEN: u64 = 1 << 16;
    const UNREACHABLE: u64 = Self::BROKEN + 1;
    const CONNECT_TIMEOUT: u64 = Self::BROKEN + 2;
    const TIMEOUT: u64 = Self::BROKEN + 3;
    const REFUSED: u64 = Self::BROKEN + 4;
    const LOST: u64 = Self::BROKEN + 5;
    const INVALID: u64 = Self::BROKEN + 6;
    /// The status is added.
    const STATUS: u64 = 1 << 17;

    /// Of a failure: `errno` if a system call failed, `connected` if there was a connection.
    pub fn new(failure: Failure, errno: Option<i32>, connected: bool) -> FailureReason {
        let errno = errno.and_then(|errno| u16::try_from(errno).ok());
        FailureReason(match (failure, errno) {
            (Failure::Timeout, _) if connected => Self::TIMEOUT,
            (Failure::Timeout, _) => Self::CONNECT_TIMEOUT,
            (Failure::Status(status), _) => Self::STATUS + u64::from(status),
            (Failure::InvalidHeader, _) => Self::INVALID,
            (_, Some(errno)) => errno.into(),
            (Failure::Error, None) => Self::BROKEN,
            (Failure::Unreachable, None) => Self::UNREACHABLE,
            (Failure::Refused, None) => Self::REFUSED,
            (Failure::Lost { .. }, None) => Self::LOST,
        })
    }

    /// There was no connection to the server.
    pub fn is_unreachable(self) -> bool {
        let is = [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::NETUNREACH, Errno::NOENT];
        [Self::UNREACHABLE, Self::CONNECT_TIMEOUT].contains(&self.0)
            || is.iter().any(|errno| i64::from(errno.raw_os_error()) == self.0.cast_signed())
    }

    /// For a cell.
    pub fn word(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(status) = self.0.checked_sub(Self::STATUS) {
            return write!(f, "answered with status {status}");
        }
        f.write_str(match self.0 {
            Self::UNREACHABLE => "unreachable from here",
            Self::CONNECT_TIMEOUT => "connecting timed out",
            Self::TIMEOUT => "no answer in time",
            Self::REFUSED => "refused the request",
            Self::LOST => "closed the shared connection",
            Self::INVALID => "invalid answer",
            errno if (1..Self::BROKEN).contains(&errno) => {
                let text = io::Error::from_raw_os_error(errno as i32).to_string();
                let text = text.split(" (os error").next().unwrap_or_default().to_lowercase();
                return f.write_str(&text);
            }
            _ => "closed the connection too early",
        })
    }
}

/// Notes in a server's cell how an attempt ended. An end that is no fault of the server says nothing of it.
pub fn note(cell: &Cell, how: Ended, at: Wall, reason: impl FnOnce() -> FailureReason) {
    match how {
        Ended::Well(_) => note_success(cell, at),
        Ended::Failed => cell.failed(millis(at), reason().word()),
        Ended::Next => {}
    }
}

/// Notes in a server's cell that it serves.
pub fn note_success(cell: &Cell, at: Wall) {
    cell.succeeded(millis(at));
}

fn millis(at: Wall) -> u64 {
    at.secs.cast_unsigned().saturating_mul(1000).saturating_add(at.msec.into())
}

/// How a server does, for rules about health.
#[derive(Debug)]
pub struct ServerOutcome {
    /// Its group.
    pub group: String,
    /// Its address.
    pub server: String,
    /// An administrator took it out.
    pub is_out: bool,
    /// What its last attempts say.
    pub outcomes: Outcomes,
    /// The reason of the last failure, where it fails.
    pub failure: Option<FailureReason>,
    /// Its checks fail.
    pub is_unhealthy: bool,
}

/// How all of them do.
pub fn outcomes(
    groups: &[Arc<Group>],
    (all, kind): (&AllCounted, SubjectKind),
    now: Instant,
) -> Vec<ServerOutcome> {
    let of = |group: &Arc<Group>, seat: PeerState| {
        let outcomes = all.of(kind, &name(group, &seat.peer)).outcomes;
        let failure = outcomes.failure.filter(|_| outcomes.is_failing());
        ServerOutcome {
            group: group.name.clone(),
            server: seat.peer.name.clone(),
            is_out: seat.duty() != Duty::Up,
            outcomes,
            failure: failure.map(|(_, reason)| FailureReason(reason)),
            is_unhealthy: seat.health.health == Health::Unhealthy,
        }
    };
    let seats = |group: &Arc<Group>| -> Vec<ServerOutcome> {
        group.seats_unless_held(now).into_iter().map(|seat| of(group, seat)).collect()
    };
    groups.iter().flat_map(seats).collect()
}

/// What a page shows of one of them.
type Values = Vec<(&'static str, MetricValue)>;

/// Adds all of them to a page, with what `values` makes of their numbers.
pub fn show<'g>(
    groups: impl Iterator<Item = &'g Arc<Group>>,
    (all, kind): (&AllCounted, SubjectKind),
    now: Instant,
    (table, values): (&'static MetricTable, fn(Counted) -> Values),
    page: &mut MetricsPage,
) {
    for group in groups {
        for seat in group.seats(now) {
            let peer = &seat.peer;
            let counted = all.of(kind, &name(group, peer));
            let outcomes = counted.outcomes;
            let mut values = values(counted);
            let secs = |at: Option<u64>| match at {
                Some(at) => MetricValue::Number(at / 1000),
                None => MetricValue::Json("null".to_owned()),
            };
            let reason = outcomes.failure.map(|(_, reason)| FailureReason(reason).to_string());
            let reason = reason.map_or(MetricValue::Json("null".to_owned()), MetricValue::Word);
            values.extend([
                ("name", MetricValue::Word(peer.server.clone())),
                ("backup", MetricValue::Json(peer.options.backup.to_string())),
                ("weight", MetricValue::Number(seat.weight().into())),
                ("state", MetricValue::Word(state(&seat, &outcomes).to_owned())),
                ("availability", MetricValue::Word(seat.state(now).to_owned())),
                ("last_success", secs(outcomes.success)),
                ("last_failure", secs(outcomes.failure.map(|(at, _)| at))),
                ("failure", reason),
                ("failing_since", secs(outcomes.failing)),
                ("failures_in_a_row", MetricValue::Number(outcomes.in_a_row)),
            ]);
            page.add(table, vec![group.name.clone(), peer.name.clone()], values);
        }
    }
    if let Some(counted) = all.others(kind) {
        page.add(table, vec![OTHERS.into(), OTHERS.into()], values(counted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_read_as_it_was_noted() {
        let text = |failure, errno, connected| {
            FailureReason(FailureReason::new(failure, errno, connected).word()).to_string()
        };
        assert_eq!(text(Failure::Error, Some(111), false), "connection refused");
        assert_eq!(text(Failure::Error, None, true), "closed the connection too early");
        assert_eq!(text(Failure::Timeout, Some(110), false), "connecting timed out");
        assert_eq!(text(Failure::Timeout, None, true), "no answer in time");
        assert_eq!(text(Failure::Status(503), None, true), "answered with status 503");
        assert_eq!(text(Failure::InvalidHeader, None, true), "invalid answer");
        let unreachable = [111, 113, 101, 2]
            .into_iter()
            .chain([FailureReason::UNREACHABLE, FailureReason::CONNECT_TIMEOUT]);
        let unreachable: Vec<u64> = unreachable.collect();
        for word in (0..200_000).chain([u64::MAX, 1 << 32 | 111]) {
            let is = FailureReason(word).is_unreachable();
            assert_eq!(is, unreachable.contains(&word), "{word}");
        }
        assert_eq!(FailureReason(u64::MAX).to_string().split(' ').next(), Some("answered"));
    }
}
