//! What the connections of one thread share.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use weir_engine::{ConnectOptions, Handle};
use weir_tls::{Secured, Wire};

use crate::answer::Memo;
use crate::machine::CpuUse;
use crate::pace::{Alarm, Schedule, Start};
use crate::peer::{TargetServer, handshake_failure};
use crate::tally::note;
use crate::{LoadPlan, PreparedRequest, Protocol, RequestFailure, Sample, Tally};

/// Answers handed to the watcher at once.
const BLOCK: usize = 4096;
/// How long a client keeps still that could not connect: a server that is away must not make
/// this one spin.
const PAUSE: Duration = Duration::from_millis(1);

/// What threads tell the one that watches.
pub(crate) enum News {
    Samples(Vec<Sample>),
    Done(io::Result<Box<(Tally, CpuUse)>>),
}

/// A thread's plan and what it has seen.
pub(crate) struct ThreadPlan {
    pub(crate) h: Handle,
    pub(crate) plan: LoadPlan,
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) alarm: Rc<Alarm>,
    pub(crate) tally: RefCell<Tally>,
    pub(crate) samples: RefCell<Vec<Sample>>,
    pub(crate) news: Sender<News>,
    pub(crate) memo: RefCell<Memo>,
    /// Where HTTP/3 receives datagrams.
    pub(crate) datagrams: RefCell<Vec<u8>>,
    /// Clients that have not ended.
    pub(crate) live: Cell<usize>,
}

/// Counts a client out when it ends, in whatever way. With the last one the loop ends.
pub(crate) struct Leave(pub(crate) Rc<ThreadPlan>);

impl Drop for Leave {
    fn drop(&mut self) {
        let live = self.0.live.get().saturating_sub(1);
        self.0.live.set(live);
        if live == 0 {
            self.0.h.stop();
        }
    }
}

/// A request at its due time.
pub(crate) struct DueRequest<'a> {
    pub(crate) call: &'a PreparedRequest,
    /// What its latency counts from.
    pub(crate) began: Instant,
    pub(crate) now: Instant,
}

impl ThreadPlan {
    /// Waits for a start's time; `free` is since when the client has nothing else to do.
    pub(crate) async fn begin(&self, start: Start, free: Instant) -> Option<DueRequest<'_>> {
        if let Some(at) = start.intended {
            self.alarm.until(at).await;
        }
        let now = Instant::now();
        let began = start.intended.unwrap_or(now);
        if start.intended.is_some() {
            let mut tally = self.tally.borrow_mut();
            tally.crowded += u64::from(free > began);
            note(&mut tally.lag, now.saturating_duration_since(began.max(free)));
        }
        let calls = &self.plan.calls;
        let call = calls.get(start.number as usize % calls.len().max(1))?;
        Some(DueRequest { call, began, now })
    }

    /// Connects, and opens TLS where the peer wants it.
    pub(crate) async fn open(&self, peer: &TargetServer) -> Result<Wire, RequestFailure> {
        let began = Instant::now();
        let deadline = began.checked_add(self.plan.timeout);
        let how = ConnectOptions { deadline, ..ConnectOptions::default() };
        let stream = self.h.connect(&peer.address, &how).await;
        let stream = stream.map_err(|e| {
            let failure = RequestFailure::of_connect(&e);
            if failure == RequestFailure::Connect {
                self.tally.borrow_mut().explain(failure, &e.to_string());
            }
            failure
        })?;
        if !peer.is_unix() {
            stream.nodelay(true).map_err(|_| RequestFailure::Connect)?;
        }
        let connected = Instant::now();
        note(&mut self.tally.borrow_mut().connect, connected - began);
        let Some(client) = &peer.tls else { return Ok(Wire::Plain(stream)) };
        let until = began + self.plan.timeout;
        let is_http2 = matches!(self.plan.protocol, Protocol::Http2(_));
        let secured = Secured::connect(&stream, client, until).await.map_err(|error| {
            let failure = handshake_failure(&error, is_http2);
            let reason = error.to_string();
            let reason = reason.strip_prefix("upstream SSL ").unwrap_or(&reason);
            self.tally.borrow_mut().explain(failure, reason);
            failure
        })?;
        note(&mut self.tally.borrow_mut().handshake, connected.elapsed());
        if is_http2 && secured.connection().alpn() != Some(b"h2") {
            return Err(RequestFailure::NoHttp2);
        }
        Ok(Wire::Tls(secured.on(stream)))
    }

    pub(crate) fn answered(&self, began: Instant, status: u16, bytes: u64) {
        let now = Instant::now();
        let mut tally = self.tally.borrow_mut();
        tally.bytes += bytes;
        tally.in_time += u64::from(self.schedule.end.is_none_or(|end| now <= end));
        let sample = tally.answered(now.saturating_duration_since(began), status);
        drop(tally);
        if self.plan.samples {
            let mut samples = self.samples.borrow_mut();
            samples.push(sample);
            if samples.len() == BLOCK {
                self.hand_over(std::mem::take(&mut *samples));
            }
        }
    }

    /// Counts requests without an answer. Returns after a while where trying again at once would
    /// be a storm.
    pub(crate) async fn failed(&self, failure: RequestFailure, requests: u64) {
        self.tally.borrow_mut().failed(failure, requests);
        if failure.is_of_connecting() {
            self.h.sleep(PAUSE).await;
        }
    }

    /// Gives answers to the thread that watches. It is gone only when the run is.
    pub(crate) fn hand_over(&self, samples: Vec<Sample>) {
        let _ = self.news.send(News::Samples(samples));
    }
}
