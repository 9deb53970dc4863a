//! The spans of one loop on their way to the collector: they gather in batches, and one task sends these one after
//! another, beside all else that the loop does. What finds no room is counted and forgotten.

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

/// A batch is full when it has so many bytes: collectors take a few of these.
const BATCH: usize = 1 << 20;
/// A batch that was not taken is sent again after so long, then after twice as long, and so on.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// But not later than this.
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// How long a loop that has ended otherwise waits for the collector.
const FLUSH: Duration = Duration::from_secs(5);

/// Spans that wait.
pub struct Spans {
    exporter: Arc<Exporter>,
    handle: Handle,
    metrics: Rc<Tally>,
    log: Arc<Log>,
    filling: RefCell<Batch>,
    full: RefCell<VecDeque<Batch>>,
    /// The batch that is being sent, or will be again.
    sending: Cell<bool>,
    /// The loop has nothing else to do from then on, and how long it waits.
    until: Cell<Option<Instant>>,
    /// All that could be sent was.
    done: Cell<bool>,
    task: RefCell<Option<Waker>>,
}

/// The loop's spans, where the site has an exporter.
pub struct LoopSpans(pub Option<Rc<Spans>>);

/// The loop's spans.
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
    /// No request adds to them any more: what waits is sent.
    fn drop(&mut self) {
        self.0.iter().for_each(|spans| _ = spans.finish());
    }
}

/// Spans that are sent together.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    spans: usize,
    began: Option<Instant>,
}

impl Spans {
    /// Starts the loop's task.
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
            until: Cell::new(None),
            done: Cell::new(false),
            task: RefCell::default(),
        });
        handle.spawn(send_all(spans.clone()));
        spans
    }

    /// One more span, as a batch has it.
    pub fn add(&self, span: &[u8]) {
        let mut filling = self.filling.borrow_mut();
        if !filling.has_room(&self.exporter, span.len()) && !self.put_aside(&mut filling)
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
        if is_full && self.put_aside(&mut filling) || is_first {
            self.wake();
        }
    }

    /// A batch that is full waits to be sent, if there is room for one more.
    fn put_aside(&self, filling: &mut Batch) -> bool {
        let mut full = self.full.borrow_mut();
        let has_room = full.len() + usize::from(self.sending.get()) < self.exporter.batch_count;
        if has_room {
            full.push_back(std::mem::take(filling));
        }
        has_room
    }

    /// The loop has nothing else to do any more: what waits is sent now, or given up after a while. Whether that is
    /// done.
    pub fn finish(&self) -> bool {
        if self.until.get().is_none() {
            self.until.set(Some(self.handle.now() + FLUSH));
            self.wake();
        }
        self.done.get()
    }

    fn wake(&self) {
        if let Some(waker) = self.task.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits until this is so. Each change of the queue wakes the task.
    async fn once(&self, is_so: impl Fn() -> bool) {
        poll_fn(|cx| {
            if is_so() {
                return Poll::Ready(());
            }
            *self.task.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The next batch that is to be sent; none when the loop has ended and nothing is left.
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
                    if is_full || self.until.get().is_some() || self.handle.now() >= due {
                        return Some(std::mem::take(&mut *self.filling.borrow_mut()));
                    }
                    let early =
                        self.once(|| self.until.get().is_some() || !self.full.borrow().is_empty());
                    either(pin!(early), self.handle.sleep_until(due)).await;
                }
                None if self.until.get().is_some() => return None,
                None => {
                    let some = || self.filling.borrow().spans > 0 || !self.full.borrow().is_empty();
                    self.once(|| self.until.get().is_some() || some()).await;
                }
            }
        }
    }

    /// Waits until the loop has waited for long enough after its end.
    async fn too_late(&self) {
        self.once(|| self.until.get().is_some()).await;
        if let Some(until) = self.until.get() {
            self.handle.sleep_until(until).await;
        }
    }

    /// Sends a batch, again and again if need be, as long as the collector may take it later.
    async fn deliver(&self, collector: &mut Collector, batch: Batch) {
        let spans = batch.spans as u64;
        let bytes = bytes::Bytes::from(batch.bytes);
        let mut pause = FIRST_PAUSE;
        loop {
            let sent = match either(pin!(collector.post(&bytes)), pin!(self.too_late())).await {
                Either::Left(sent) => sent,
                Either::Right(()) => Err(ExportError::ended()),
            };
            let refused = match sent {
                Ok(partly) => {
                    let rejected = partly.rejected.min(spans);
                    self.metrics.add(Metric::SpansSent, spans - rejected);
                    self.metrics.add(Metric::SpansDropped, rejected);
                    self.works();
                    return self.partly(rejected, &partly.why);
                }
                Err(refused) => refused,
            };
            self.fails(&refused);
            if !refused.again || self.until.get().is_some() {
                self.metrics.add(Metric::SpansDropped, spans);
                return;
            }
            let wait = refused.after.unwrap_or(pause).clamp(FIRST_PAUSE, LAST_PAUSE);
            pause = (pause * 2).min(LAST_PAUSE);
            let ends = self.once(|| self.until.get().is_some());
            either(pin!(ends), self.handle.sleep(wait)).await;
        }
    }

    fn works(&self) {
        if self.exporter.failing.swap(false, Relaxed) {
            let to = self.exporter.shown();
            self.log.write(Level::Notice, None, format_args!("OTel export to {to} works again"));
        }
    }

    /// The collector took all but so many, or has something to say of them.
    fn partly(&self, rejected: u64, why: &str) {
        let told = &self.exporter.told;
        let Some(rejected) = told.due(rejected, !why.is_empty(), self.handle.now()) else { return };
        let (to, why) = (self.exporter.shown(), shortened(why));
        let (level, text) = match rejected {
            0 => (Level::Notice, format!("OTel export: {to} says \"{why}\"")),
            n => (
                Level::Error,
                format!("OTel export failure: {n} spans rejected by {to}: \"{why}\""),
            ),
        };
        self.log.write(level, None, format_args!("{text}"));
    }

    /// Said when it begins, for all loops of the process.
    fn fails(&self, why: &ExportError) {
        if !self.exporter.failing.swap(true, Relaxed) {
            let to = self.exporter.shown();
            let then = match why.again {
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

/// What a collector says, as far as a line of a log has room for it.
fn shortened(text: &str) -> String {
    text.chars().take(MOST).collect()
}

/// Letters of what a collector says that are told.
const MOST: usize = 256;

/// The task.
async fn send_all(spans: Rc<Spans>) {
    let mut collector = Collector::new(Arc::clone(&spans.exporter), &spans.handle);
    while let Some(batch) = spans.next().await {
        spans.sending.set(true);
        spans.deliver(&mut collector, batch).await;
        spans.sending.set(false);
    }
    spans.done.set(true);
}
