//! The state of a thread, which its connections share.

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

/// Samples per message to the watcher.
const SAMPLES_PER_MESSAGE: usize = 4096;
/// Pause after a failed connection attempt. Without it, the client would spin while a server is
/// down.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Messages from a thread to the watcher.
pub(crate) enum ThreadMessage {
    Samples(Vec<Sample>),
    Done(io::Result<Box<(Tally, CpuUse)>>),
}

/// The plan of a thread, and its results so far.
pub(crate) struct ThreadState {
    pub(crate) h: Handle,
    pub(crate) plan: LoadPlan,
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) alarm: Rc<Alarm>,
    pub(crate) tally: RefCell<Tally>,
    pub(crate) samples: RefCell<Vec<Sample>>,
    pub(crate) messages: Sender<ThreadMessage>,
    pub(crate) memo: RefCell<Memo>,
    /// The buffer in which HTTP/3 receives datagrams.
    pub(crate) datagrams: RefCell<Vec<u8>>,
    /// Clients that are still running.
    pub(crate) live: Cell<usize>,
}

/// Counts a client as ended when it is dropped. The loop stops with its last client.
pub(crate) struct ClientGuard(pub(crate) Rc<ThreadState>);

impl Drop for ClientGuard {
    fn drop(&mut self) {
        let live = self.0.live.get().saturating_sub(1);
        self.0.live.set(live);
        if live == 0 {
            self.0.h.stop();
        }
    }
}

/// A request whose time has come.
pub(crate) struct DueRequest<'a> {
    pub(crate) call: &'a PreparedRequest,
    /// Start of its latency: in an open loop its due time, otherwise the time it is sent.
    pub(crate) began: Instant,
}

impl ThreadState {
    /// Waits until a claimed request is due. `free_since` is when the client became free.
    pub(crate) async fn begin(&self, start: Start, free_since: Instant) -> Option<DueRequest<'_>> {
        if let Some(at) = start.intended {
            self.alarm.until(at).await;
        }
        let now = Instant::now();
        let began = start.intended.unwrap_or(now);
        if start.intended.is_some() {
            let mut tally = self.tally.borrow_mut();
            tally.waited_for_connection += u64::from(free_since > began);
            note(&mut tally.lag, now.saturating_duration_since(began.max(free_since)));
        }
        let calls = &self.plan.calls;
        let call = calls.get(start.number as usize % calls.len().max(1))?;
        Some(DueRequest { call, began })
    }

    /// Connects, and completes a TLS handshake if the peer has TLS.
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
            if samples.len() == SAMPLES_PER_MESSAGE {
                self.hand_over(std::mem::take(&mut *samples));
            }
        }
    }

    /// Counts requests without a response. After a failed connection it also waits for
    /// [`RETRY_PAUSE`].
    pub(crate) async fn failed(&self, failure: RequestFailure, requests: u64) {
        self.tally.borrow_mut().failed(failure, requests);
        if failure.is_of_connecting() {
            self.h.sleep(RETRY_PAUSE).await;
        }
    }

    /// Sends samples to the watcher. It fails only once the run has ended.
    pub(crate) fn hand_over(&self, samples: Vec<Sample>) {
        let _ = self.messages.send(ThreadMessage::Samples(samples));
    }
}
