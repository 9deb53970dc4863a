//! The counters of upstream servers. Each loop has a set for each server, under the names of group
//! and server.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Instant;
use std::{fmt, io};

use rustc_hash::FxBuildHasher;
use rustix::io::Errno;
use weir_engine::Wall;
use weir_log::Cause;
use weir_metrics::subjects::{AllCounted, Cell, Cells, Counted, OTHERS, Outcomes, SubjectKind};
use weir_metrics::{MetricTable, MetricValue, MetricsPage, PEER_AVAILABILITY, PEER_STATES};

use crate::changes::Duty;
use crate::health::Health;
use crate::peer_state::PeerState;
use crate::{Ended, Failure, Group, Peer};

/// With more servers than this, status pages show sums for each group, unless they are asked for
/// each server.
pub const SERVERS_APART: usize = 1000;

/// At least this many servers are added between two searches for servers that are gone.
const BETWEEN_SWEEPS: usize = 500;

/// The counters of one loop.
pub struct Counts {
    cells: Rc<Cells>,
    kind: SubjectKind,
    known: RefCell<KnownPeers>,
}

/// Servers that were asked, by the addresses of their [`Peer`]s. The weak references keep an
/// address from being used again.
struct KnownPeers {
    peers: HashMap<*const Peer, CountedPeer, FxBuildHasher>,
    /// At this size, servers that are gone are searched for.
    sweep_at: usize,
}

/// A server that was asked, and its cell. The server keeps the cell as long as a clone of this
/// exists.
#[derive(Debug, Clone)]
pub struct CountedPeer(Rc<KnownPeer>);

#[derive(Debug)]
struct KnownPeer {
    peer: Weak<Peer>,
    name: String,
    cell: Cell,
    /// The server was gone at the last search.
    was_gone: std::cell::Cell<bool>,
}

impl CountedPeer {
    /// Its counters.
    pub fn cell(&self) -> &Cell {
        &self.0.cell
    }

    /// Whether no group has the server any more and nothing else holds its cell.
    fn is_gone(&self) -> bool {
        Rc::strong_count(&self.0) == 1 && self.0.peer.strong_count() == 0
    }
}

impl Counts {
    /// The counters for the requests or sessions of a loop.
    pub fn new(cells: Rc<Cells>, kind: SubjectKind) -> Counts {
        let known = KnownPeers { peers: HashMap::default(), sweep_at: BETWEEN_SWEEPS };
        Counts { cells, kind, known: RefCell::new(known) }
    }

    /// The counters of a server.
    pub fn of(&self, group: &Group, peer: &Arc<Peer>) -> Option<CountedPeer> {
        let mut known = self.known.borrow_mut();
        if let Some(counted) = known.peers.get(&Arc::as_ptr(peer)) {
            return Some(counted.clone());
        }
        if known.peers.len() >= known.sweep_at {
            self.sweep(&mut known);
        }
        let name = name(group, peer);
        let cell = self.cells.of(self.kind, &name)?;
        let (peer_here, was_gone) = (Arc::downgrade(peer), false.into());
        let counted = CountedPeer(Rc::new(KnownPeer { peer: peer_here, name, cell, was_gone }));
        known.peers.insert(Arc::as_ptr(peer), counted.clone());
        Some(counted)
    }

    /// Returns the cells of servers that were gone at the last search already. Pods come and go,
    /// each with a new address. A server that comes back with another configuration meanwhile keeps
    /// its cell: its new [`Peer`] has the same name.
    fn sweep(&self, known: &mut KnownPeers) {
        let is_over = |counted: &CountedPeer| counted.is_gone() && counted.0.was_gone.replace(true);
        let gone = known.peers.extract_if(|_, counted| is_over(counted));
        let gone: Vec<_> = gone.map(|(_, counted)| counted).collect();
        let here: HashSet<&str> =
            known.peers.values().map(|counted| counted.0.name.as_str()).collect();
        for counted in gone.iter().filter(|counted| !here.contains(counted.0.name.as_str())) {
            self.cells.give_back(self.kind, &counted.0.name);
        }
        known.sweep_at = known.peers.len() + (known.peers.len() / 4).max(BETWEEN_SWEEPS);
    }
}

fn name(group: &Group, peer: &Peer) -> String {
    format!("{}\n{}", group.name, peer.name)
}

/// The state of a server, from its last attempt, however long ago that was.
fn state_word(state: &PeerState, outcomes: &Outcomes) -> &'static str {
    match state.duty() {
        Duty::Down => "down",
        Duty::Drain => "draining",
        Duty::Up if state.health.health == Health::Unhealthy || outcomes.is_failing() => "failing",
        Duty::Up if outcomes.success.is_none() => "untried",
        Duty::Up => "up",
    }
}

/// Why an attempt failed, as a word of a cell: an error number of the system, or one of these
/// codes.
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
    /// Plus the status.
    const STATUS: u64 = 1 << 17;

    /// The reason of a failure. `errno`: of the system call that failed. `connected`: there was a
    /// connection.
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

    /// Whether the server could not be reached.
    pub fn is_unreachable(self) -> bool {
        let is = [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::NETUNREACH, Errno::NOENT];
        [Self::UNREACHABLE, Self::CONNECT_TIMEOUT].contains(&self.0)
            || is.iter().any(|errno| i64::from(errno.raw_os_error()) == self.0.cast_signed())
    }

    /// The word for a cell.
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
                let error = io::Error::from_raw_os_error(errno as i32);
                return f.write_str(&Cause(&error).words().to_lowercase());
            }
            _ => "closed the connection too early",
        })
    }
}

/// Records the outcome of an attempt in a server's cell. A failure that does not count against the
/// server is left out.
pub fn note(cell: &Cell, how: Ended, at: Wall, reason: impl FnOnce() -> FailureReason) {
    match how {
        Ended::Well(_) | Ended::Elsewhere => note_success(cell, at),
        Ended::Failed => cell.failed(millis(at), reason().word()),
        Ended::Next => {}
    }
}

/// Records a success in a server's cell.
pub fn note_success(cell: &Cell, at: Wall) {
    cell.succeeded(millis(at));
}

fn millis(at: Wall) -> u64 {
    at.secs.cast_unsigned().saturating_mul(1000).saturating_add(at.msec.into())
}

/// The state of a server, for the rules of `weir-health`.
#[derive(Debug)]
pub struct ServerOutcome {
    /// Its group.
    pub group: String,
    /// Its address.
    pub server: String,
    /// The server is down or draining.
    pub is_out: bool,
    /// Its last attempts.
    pub outcomes: Outcomes,
    /// The reason of the last failure, if the server is failing.
    pub failure: Option<FailureReason>,
    /// Its health checks fail.
    pub is_unhealthy: bool,
}

/// The state of all servers of these groups.
pub fn outcomes(
    groups: &[Arc<Group>],
    (all, kind): (&AllCounted, SubjectKind),
    now: Instant,
) -> Vec<ServerOutcome> {
    let of = |group: &Arc<Group>, state: PeerState| {
        let outcomes = all.of(kind, &name(group, &state.peer)).outcomes;
        let failure = outcomes.failure.filter(|_| outcomes.is_failing());
        ServerOutcome {
            group: group.name.clone(),
            server: state.peer.name.clone(),
            is_out: state.duty() != Duty::Up,
            outcomes,
            failure: failure.map(|(_, reason)| FailureReason(reason)),
            is_unhealthy: state.health.health == Health::Unhealthy,
        }
    };
    let outcomes = |group: &Arc<Group>| -> Vec<ServerOutcome> {
        group.states_unless_held(now).into_iter().map(|state| of(group, state)).collect()
    };
    groups.iter().flat_map(outcomes).collect()
}

/// The columns of a row.
type Values = Vec<(&'static str, MetricValue)>;

/// How detailed a status page is about upstream servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerDetail {
    /// A row for each server.
    Each,
    /// A row for each group, named [`ALL`], with sums of its servers. With very many servers, a row
    /// for each would make pages of a hundred megabytes.
    Sums,
}

/// The name of a group's row of sums.
pub const ALL: &str = "(all)";

impl ServerDetail {
    /// The default for these groups.
    pub fn of<'g>(groups: impl Iterator<Item = &'g Arc<Group>>) -> ServerDetail {
        match groups.map(|group| group.servers()).sum::<usize>() {
            0..=SERVERS_APART => ServerDetail::Each,
            _ => ServerDetail::Sums,
        }
    }
}

/// Adds the rows of servers to a page, some at a time.
pub struct ServerRows<'g, I> {
    groups: I,
    /// The present group, with the servers that are left and the sum so far.
    left: Option<(&'g Arc<Group>, std::vec::IntoIter<PeerState>, GroupSum)>,
    counted: (&'g AllCounted, SubjectKind),
    now: Instant,
    table: &'static MetricTable,
    values: fn(Counted) -> Values,
    detail: ServerDetail,
}

/// The sums of a group.
#[derive(Default)]
struct GroupSum {
    counted: Counted,
    weight: u64,
    states: [u64; PEER_STATES.len()],
    availabilities: [u64; PEER_AVAILABILITY.len()],
}

impl<'g, I: Iterator<Item = &'g Arc<Group>>> ServerRows<'g, I> {
    /// The rows of these groups. `values` makes columns from counters.
    pub fn new(
        groups: I,
        counted: (&'g AllCounted, SubjectKind),
        now: Instant,
        (table, values): (&'static MetricTable, fn(Counted) -> Values),
        detail: ServerDetail,
    ) -> Self {
        ServerRows { groups, left: None, counted, now, table, values, detail }
    }

    /// Makes `n` steps. False after the last server.
    pub fn more(&mut self, n: usize, page: &mut MetricsPage) -> bool {
        (0..n).all(|_| self.step(page))
    }

    /// Handles one server, or the beginning or end of a group. False at the end of the page.
    fn step(&mut self, page: &mut MetricsPage) -> bool {
        let (all, kind) = self.counted;
        let Some((group, states, sum)) = &mut self.left else {
            if let Some(group) = self.groups.next() {
                let states = group.states(self.now).into_iter();
                self.left = Some((group, states, GroupSum::default()));
                return true;
            }
            if let Some(counted) = all.others(kind) {
                page.add(self.table, vec![OTHERS.into(), OTHERS.into()], (self.values)(counted));
            }
            return false;
        };
        let Some(state) = states.next() else {
            if self.detail == ServerDetail::Sums {
                let labels = vec![group.name.clone(), ALL.to_owned()];
                page.add(self.table, labels, std::mem::take(sum).values(self.values));
            }
            self.left = None;
            return true;
        };
        let counted = all.get(kind, &name(group, &state.peer));
        match self.detail {
            ServerDetail::Each => {
                let labels = vec![group.name.clone(), state.peer.name.clone()];
                let counted = counted.cloned().unwrap_or_default();
                page.add(self.table, labels, each(&state, counted, self.values, self.now));
            }
            ServerDetail::Sums => sum.add(&state, counted, self.now),
        }
        true
    }
}

/// The columns of a server's row.
fn each(
    state: &PeerState,
    counted: Counted,
    values: fn(Counted) -> Values,
    now: Instant,
) -> Values {
    let (peer, outcomes) = (&state.peer, counted.outcomes);
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
        ("weight", MetricValue::Number(state.weight().into())),
        ("state", MetricValue::Word(state_word(state, &outcomes).to_owned())),
        ("availability", MetricValue::Word(state.availability(now).to_owned())),
        ("last_success", secs(outcomes.success)),
        ("last_failure", secs(outcomes.failure.map(|(at, _)| at))),
        ("failure", reason),
        ("failing_since", secs(outcomes.failing)),
        ("failures_in_a_row", MetricValue::Number(outcomes.in_a_row)),
    ]);
    values
}

impl GroupSum {
    fn add(&mut self, state: &PeerState, counted: Option<&Counted>, now: Instant) {
        let outcomes = counted.map(|counted| counted.outcomes).unwrap_or_default();
        if let Some(counted) = counted {
            self.counted.add(counted);
        }
        self.weight += u64::from(state.weight());
        count(&mut self.states, PEER_STATES, state_word(state, &outcomes));
        count(&mut self.availabilities, PEER_AVAILABILITY, state.availability(now));
    }

    /// The columns of the row of sums. In place of a state, it has the number of servers in each
    /// state.
    fn values(self, values: fn(Counted) -> Values) -> Values {
        let mut values = values(self.counted);
        values.extend([
            ("weight", MetricValue::Number(self.weight)),
            ("state", MetricValue::Each(self.states.to_vec())),
            ("availability", MetricValue::Each(self.availabilities.to_vec())),
        ]);
        values
    }
}

fn count(numbers: &mut [u64], words: &[&str], word: &str) {
    let at = words.iter().position(|known| *known == word);
    if let Some(n) = at.and_then(|at| numbers.get_mut(at)) {
        *n += 1;
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
