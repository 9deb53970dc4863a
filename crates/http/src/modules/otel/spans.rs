//! The queue of a loop's spans. Spans are collected in batches, and one task sends these in order.
//! A span without room in the queue is counted and dropped.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use weir_engine::{Either, Handle, either};
use weir_log::{Level, Log};
use weir_metrics::{Metric, Tally};

use super::collector::{Collector, ExportError};
use super::exporter::{EXPORTER, Exporter};
use crate::event_loop::{LoopKey, LoopPart, LoopStart, LoopState};

/// The maximum length of a batch. Collectors accept a few MiB.
const BATCH: usize = 1 << 20;
/// The pause before a failed batch is sent again. It doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The maximum pause.
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// How long an ending loop waits for the collector.
const FLUSH: Duration = Duration::from_secs(5);

/// The queue.
pub struct Spans {
    exporter: Arc<Exporter>,
    handle: Handle,
    metrics: Rc<Tally>,
    log: Arc<Log>,
    filling: RefCell<Batch>,
    full: RefCell<VecDeque<Batch>>,
    /// Whether a batch is being sent, or waits to be sent again.
    sending: Cell<bool>,
    /// Set when the loop ends: the deadline for sending the rest.
    drain_until: Cell<Option<Instant>>,
    /// Whether the task has ended.
    done: Cell<bool>,
    task: RefCell<Option<Waker>>,
}

/// The loop's queue, if the site has an exporter.
pub struct LoopSpans(pub Option<Rc<Spans>>);

/// The queue of each loop.
pub static SPANS: LoopKey<LoopSpans> = LoopKey::new(LoopSpans::new);

impl LoopSpans {
    fn new(start: &LoopStart<'_>) -> LoopSpans {
        let exporter = EXPORTER.of(&start.site.main_confs).as_ref();
        let log = &start.site.main.core.error_log;
        LoopSpans(exporter.map(|to| Spans::start(to, start.handle, start.metrics, log)))
    }
}

impl LoopPart for LoopSpans {
    fn is_flushed(&self, _: &LoopState) -> bool {
        self.0.as_ref().is_none_or(|spans| spans.finish())
    }
}

impl Drop for LoopSpans {
    /// No request adds spans any more, so the rest is sent.
    fn drop(&mut self) {
        self.0.iter().for_each(|spans| _ = spans.finish());
    }
}

/// Spans that are sent in one request.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    spans: usize,
    began: Option<Instant>,
}

impl Spans {
    /// Starts the task of a loop.
    pub fn start(
        exporter: &Arc<Exporter>,
        handle: &Handle,
        metrics: &Rc<Tally>,
        log: &Arc<Log>,
    ) -> Rc<Spans> {
        let spans = Rc::new(Spans {
            exporter: Arc::clone(exporter),
            handle: handle.clone(),
            metrics: metrics.clone(),
            log: log.clone(),
            filling: RefCell::default(),
            full: RefCell::default(),
            sending: Cell::new(false),
            drain_until: Cell::new(None),
            done: Cell::new(false),
            task: RefCell::default(),
        });
        handle.spawn(send_all(spans.clone()));
        spans
    }

    /// Adds an encoded span.
    pub fn add(&self, span: &[u8]) {
        let mut filling = self.filling.borrow_mut();
        if !filling.has_room(&self.exporter, span.len()) && !self.enqueue(&mut filling)
            || span.len() > BATCH
            || self.done.get()
        {
            self.metrics.add(Metric::SpansDropped, 1);
            return;
        }
        filling.began.get_or_insert_with(|| self.handle.now());
        filling.bytes.extend_from_slice(span);
        filling.spans += 1;
        let is_first = filling.spans == 1;
        let is_full = !filling.has_room(&self.exporter, 0);
        if is_full && self.enqueue(&mut filling) || is_first {
            self.wake();
        }
    }

    /// Moves the batch to the queue. False if the queue is full.
    fn enqueue(&self, filling: &mut Batch) -> bool {
        let mut full = self.full.borrow_mut();
        let has_room = full.len() + usize::from(self.sending.get()) < self.exporter.batch_count;
        if has_room {
            full.push_back(std::mem::take(filling));
        }
        has_room
    }

    /// Called when the loop has nothing else to do: sends the rest until a deadline. Returns
    /// whether that is done.
    pub fn finish(&self) -> bool {
        if self.drain_until.get().is_none() {
            self.drain_until.set(Some(self.handle.now() + FLUSH));
            self.wake();
        }
        self.done.get()
    }

    fn wake(&self) {
        if let Some(waker) = self.task.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits until a condition holds. Each change of the queue wakes the task.
    async fn wait_until(&self, holds: impl Fn() -> bool) {
        poll_fn(|cx| {
            if holds() {
                return Poll::Ready(());
            }
            *self.task.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The next batch to send. `None` when the loop has ended and nothing is left.
    async fn next(&self) -> Option<Batch> {
        loop {
            let full = self.full.borrow_mut().pop_front();
            if full.is_some() {
                return full;
            }
            let (began, is_full) = {
                let filling = self.filling.borrow();
                (filling.began, !filling.has_room(&self.exporter, 0))
            };
            match began {
                Some(began) => {
                    let due = began + self.exporter.interval;
                    if is_full || self.drain_until.get().is_some() || self.handle.now() >= due {
                        return Some(std::mem::take(&mut *self.filling.borrow_mut()));
                    }
                    let early = self.wait_until(|| {
                        self.drain_until.get().is_some() || !self.full.borrow().is_empty()
                    });
                    either(pin!(early), self.handle.sleep_until(due)).await;
                }
                None if self.drain_until.get().is_some() => return None,
                None => {
                    let some = || self.filling.borrow().spans > 0 || !self.full.borrow().is_empty();
                    self.wait_until(|| self.drain_until.get().is_some() || some()).await;
                }
            }
        }
    }

    /// Waits until the deadline of an ending loop has passed.
    async fn drain_deadline(&self) {
        self.wait_until(|| self.drain_until.get().is_some()).await;
        if let Some(drain_until) = self.drain_until.get() {
            self.handle.sleep_until(drain_until).await;
        }
    }

    /// Sends a batch, and repeats that while the collector may take it later.
    async fn deliver(&self, collector: &mut Collector, batch: Batch) {
        let spans = batch.spans as u64;
        let bytes = bytes::Bytes::from(batch.bytes);
        let mut pause = FIRST_PAUSE;
        loop {
            let sent = match either(pin!(collector.post(&bytes)), pin!(self.drain_deadline())).await
            {
                Either::Left(sent) => sent,
                Either::Right(()) => Err(ExportError::ended()),
            };
            let refused = match sent {
                Ok(partly) => {
                    let rejected = partly.rejected.min(spans);
                    self.metrics.add(Metric::SpansSent, spans - rejected);
                    self.metrics.add(Metric::SpansDropped, rejected);
                    self.log_recovery();
                    return self.log_partial(rejected, &partly.why);
                }
                Err(refused) => refused,
            };
            self.log_failure(&refused);
            if !refused.retry || self.drain_until.get().is_some() {
                self.metrics.add(Metric::SpansDropped, spans);
                return;
            }
            let wait = refused.retry_after.unwrap_or(pause).clamp(FIRST_PAUSE, LAST_PAUSE);
            pause = (pause * 2).min(LAST_PAUSE);
            let ends = self.wait_until(|| self.drain_until.get().is_some());
            either(pin!(ends), self.handle.sleep(wait)).await;
        }
    }

    fn log_recovery(&self) {
        if self.exporter.failing.swap(false, Relaxed) {
            let to = self.exporter.shown();
            self.log.write(Level::Notice, None, format_args!("OTel export to {to} works again"));
        }
    }

    /// Logs that the collector rejected spans, or its message about them.
    fn log_partial(&self, rejected: u64, why: &str) {
        let rejection_log = &self.exporter.rejection_log;
        let Some(rejected) = rejection_log.note(rejected, !why.is_empty(), self.handle.now())
        else {
            return;
        };
        let (to, why) = (self.exporter.shown(), truncated(why));
        let (level, text) = match rejected {
            0 => (Level::Notice, format!("OTel export: {to} says \"{why}\"")),
            n => (
                Level::Error,
                format!("OTel export failure: {n} spans rejected by {to}: \"{why}\""),
            ),
        };
        self.log.write(level, None, format_args!("{text}"));
    }

    /// Logs the first of several failures, for all loops of the process.
    fn log_failure(&self, why: &ExportError) {
        if !self.exporter.failing.swap(true, Relaxed) {
            let to = self.exporter.shown();
            let then = match why.retry {
                true => {
                    "it will be tried again, and spans beyond otel_exporter's batches are dropped"
                }
                false => "the spans are dropped",
            };
            let text = format_args!("OTel export failure: {} {to}: {then}", why.text);
            self.log.write(Level::Error, None, text);
        }
    }
}

impl Batch {
    fn has_room(&self, exporter: &Exporter, more: usize) -> bool {
        self.spans < exporter.batch_size && self.bytes.len() + more <= BATCH
    }
}

/// Cuts a collector's message to the length of a log line.
fn truncated(text: &str) -> String {
    text.chars().take(MOST).collect()
}

/// The most characters of such a message in the log.
const MOST: usize = 256;

/// The task that sends all batches.
async fn send_all(spans: Rc<Spans>) {
    let mut collector = Collector::new(Arc::clone(&spans.exporter), &spans.handle);
    while let Some(batch) = spans.next().await {
        spans.sending.set(true);
        spans.deliver(&mut collector, batch).await;
        spans.sending.set(false);
    }
    spans.done.set(true);
}
