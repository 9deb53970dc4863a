//! Metrics of the upstream servers of sessions.

use std::sync::Arc;
use std::time::Duration;

use weir_engine::Wall;
use weir_metrics::subjects::{Counted, GAUGE, SubjectKind};
use weir_metrics::{AllCounted, MetricValue, MetricsPage, STREAM_UPSTREAMS};
use weir_upstream::counts::{self, CountedPeer, Counts, FailureReason, ServerDetail, ServerRows};
use weir_upstream::{Ended, Failure, Group, Peer};

use crate::event_loop::LoopState;
use crate::session::Attempt;

/// Indices of the cells.
const SESSIONS: usize = 0;
const RECEIVED: usize = 1;
const SENT: usize = 2;
const FAILS: usize = 3;
const RETRIES: usize = 4;
const CONNECT_FAILS: usize = 5;
const TIMEOUTS: usize = 6;

/// Counts a session as active on its upstream server until it is dropped.
#[derive(Debug)]
pub struct CountedSession(CountedPeer);

impl CountedSession {
    /// Counts a new session. `None`: this server is not counted.
    pub fn start(all: &Counts, group: &Group, peer: &Arc<Peer>) -> Option<CountedSession> {
        let counted = all.of(group, peer)?;
        counted.cell().add(SESSIONS, 1);
        counted.cell().add(GAUGE, 1);
        Some(CountedSession(counted))
    }

    /// Records how long the connect took.
    pub fn connected(&self, elapsed: Duration) {
        self.0.cell().record(elapsed);
    }

    /// Notes a success as soon as the server has accepted the connection: the session may last for
    /// days.
    pub fn accepted(&self, at: Wall) {
        counts::note_success(self.0.cell(), at);
    }

    /// Records the result of the attempt and its bytes.
    pub fn ended(&self, attempt: &Attempt, how: Ended, at: Wall) {
        counts::note(self.0.cell(), how, at, || {
            let (failure, errno) = attempt.fault.get().unwrap_or((Failure::Error, None));
            FailureReason::new(failure, errno, attempt.connect.is_some())
        });
        if matches!(how, Ended::Failed) {
            let is_late = matches!(attempt.fault.get(), Some((Failure::Timeout, _)));
            self.0.cell().add(FAILS, 1);
            self.0.cell().add(CONNECT_FAILS, attempt.connect.is_none().into());
            self.0.cell().add(TIMEOUTS, is_late.into());
        }
        self.0.cell().add(RECEIVED, attempt.received);
        self.0.cell().add(SENT, attempt.sent);
    }

    /// Counts that another server is tried next.
    pub fn retried(&self) {
        self.0.cell().add(RETRIES, 1);
    }
}

impl Drop for CountedSession {
    fn drop(&mut self) {
        self.0.cell().sub(1);
    }
}

impl LoopState {
    /// Adds the metrics of upstream servers to a page. Without `each`, large configurations show
    /// totals of groups.
    pub fn show(&self, all: &AllCounted, each: bool, page: &mut MetricsPage) {
        let groups = || self.site.upstreams.all().map(|upstream| &upstream.group);
        let detail = if each { ServerDetail::Each } else { ServerDetail::of(groups()) };
        let (counted, now) = ((all, SubjectKind::StreamPeer), self.handle.now());
        let table = (&STREAM_UPSTREAMS, values as fn(Counted) -> _);
        let mut rows = ServerRows::new(groups(), counted, now, table, detail);
        while rows.more(usize::MAX, page) {}
    }
}

fn values(counted: Counted) -> Vec<(&'static str, MetricValue)> {
    let number = |at: usize| MetricValue::Number(counted.numbers[at]);
    vec![
        ("active", MetricValue::Number(counted.gauge())),
        ("sessions", number(SESSIONS)),
        ("received", number(RECEIVED)),
        ("sent", number(SENT)),
        ("fails", number(FAILS)),
        ("connect_fails", number(CONNECT_FAILS)),
        ("timeouts", number(TIMEOUTS)),
        ("retries", number(RETRIES)),
        ("connect", MetricValue::Times(counted.times)),
    ]
}
