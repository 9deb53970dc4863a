//! Counters of the servers that sessions are passed to.

use std::sync::Arc;
use std::time::Duration;

use weir_engine::Wall;
use weir_metrics::subjects::{Cell, Counted, GAUGE, SubjectKind};
use weir_metrics::{MetricValue, MetricsPage, Registry, STREAM_UPSTREAMS};
use weir_upstream::counts::{self, Counts, FailureReason};
use weir_upstream::{Ended, Failure, Group, Peer};

use crate::event_loop::LoopState;
use crate::session::Attempt;

/// Numbers of cells.
const SESSIONS: usize = 0;
const RECEIVED: usize = 1;
const SENT: usize = 2;
const FAILS: usize = 3;
const RETRIES: usize = 4;
const CONNECT_FAILS: usize = 5;
const TIMEOUTS: usize = 6;

/// A session that is passed to a server, until it is dropped.
#[derive(Debug)]
pub struct CountedSession(Cell);

impl CountedSession {
    /// Begins to count one.
    pub fn begin(all: &Counts, group: &Group, peer: &Arc<Peer>) -> Option<CountedSession> {
        let cell = all.of(group, peer)?;
        cell.add(SESSIONS, 1);
        cell.add(GAUGE, 1);
        Some(CountedSession(cell))
    }

    /// There is a connection.
    pub fn connected(&self, took: Duration) {
        self.0.record(took);
    }

    /// The server has taken the connection. The session may last for days.
    pub fn serves(&self, at: Wall) {
        counts::note_success(&self.0, at);
    }

    /// The attempt is over, and failed or not.
    pub fn ended(&self, attempt: &Attempt, how: Ended, at: Wall) {
        counts::note(&self.0, how, at, || {
            let (failure, errno) = attempt.fault.get().unwrap_or((Failure::Error, None));
            FailureReason::new(failure, errno, attempt.connect.is_some())
        });
        if matches!(how, Ended::Failed) {
            let is_late = matches!(attempt.fault.get(), Some((Failure::Timeout, _)));
            self.0.add(FAILS, 1);
            self.0.add(CONNECT_FAILS, attempt.connect.is_none().into());
            self.0.add(TIMEOUTS, is_late.into());
        }
        self.0.add(RECEIVED, attempt.received);
        self.0.add(SENT, attempt.sent);
    }

    /// Another server is tried.
    pub fn again(&self) {
        self.0.add(RETRIES, 1);
    }
}

impl Drop for CountedSession {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}

impl LoopState {
    /// Adds the servers to a page.
    pub fn show(&self, registry: Registry, page: &mut MetricsPage) {
        let (all, now) = (registry.counted(), self.handle.now());
        let groups = self.site.upstreams.all().map(|upstream| &upstream.group);
        counts::show(
            groups,
            (&all, SubjectKind::StreamPeer),
            now,
            (&STREAM_UPSTREAMS, values),
            page,
        );
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
