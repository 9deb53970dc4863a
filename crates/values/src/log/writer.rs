//! The way of log lines from a loop to their files.
//!
//! A loop appends lines to one queue for each file. Once a turn, it gives the file pool a job that
//! writes the queue, so all lines of the turn are one write. Only one job at a time writes a queue,
//! so the order is kept. A loop that takes over a connection appends that connection's lines to the
//! queues of the previous loop. When a loop ends, it writes out all queues that it has used.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;
use std::time::Duration;

use weir_engine::{Either, Handle, either, file_operation};
use weir_log::{Cause, Level, Log, SendError, Syslog};

use super::file::LogTarget;
use super::path::{NamedLine, OpenFiles};

/// The most bytes that are queued while a disk is stuck. Further lines are dropped, and the error
/// log has a message.
const MOST_QUEUED: usize = 64 * 1024 * 1024;

/// When to try again if the pool refuses a job.
const RETRY: Duration = Duration::from_millis(20);

/// The longest wait for lines to be written, in case the disk is slow.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The shortest time between two messages about a file, as in nginx.
const MESSAGE_PAUSE: Duration = Duration::from_secs(60);

/// The queues of a loop, one for each target of a site. Other loops may use them as well.
#[derive(Clone, Default)]
pub struct Writers(Arc<TargetWriters>);

#[derive(Default)]
struct TargetWriters {
    list: Vec<TargetWriter>,
    /// The log for failures.
    log: Option<Arc<Log>>,
}

/// The queue and the buffer of one target.
struct TargetWriter {
    target: Arc<LogTarget>,
    queue: Arc<LineQueue>,
    buffered: Mutex<BufferedLines>,
}

/// The lines in the buffer (`buffer=`).
#[derive(Default)]
struct BufferedLines {
    lines: Vec<u8>,
    /// A timer for the oldest line runs.
    timed: bool,
    /// The loop has ended, so lines are no longer buffered.
    over: bool,
}

/// The lines that wait to be written.
struct LineQueue {
    waiting: Mutex<WaitingLines>,
    /// Held by the thread that writes.
    writing: Mutex<OpenFiles>,
    target: Arc<LogTarget>,
    log: Arc<Log>,
}

#[derive(Default)]
struct WaitingLines {
    lines: Vec<u8>,
    named: Vec<NamedLine>,
    /// The bytes that `named` takes.
    named_size: usize,
    /// The loops that have started a job since the queue was last empty. A loop does not rely on the
    /// job of another one, which may be stalled, and starts no second one.
    called: Vec<ThreadId>,
    /// How often lines were taken from the queue, and how often they were written.
    taken: u64,
    written: u64,
    /// Tasks that wait for lines to be written.
    waiters: Vec<Waker>,
    /// A wait has timed out. No task waits until something is written.
    slow: bool,
    complained: Option<std::time::Instant>,
}

impl WaitingLines {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.named.is_empty()
    }

    fn is_full(&self) -> bool {
        self.lines.len() + self.named_size > MOST_QUEUED
    }

    fn push(&mut self, named: NamedLine) {
        self.named_size += named.size();
        self.named.push(named);
    }

    /// Whether this loop must start a job.
    fn must_call(&mut self, this: ThreadId) -> bool {
        let is_new = !self.called.contains(&this);
        if is_new {
            self.called.push(this);
        }
        is_new
    }

    /// Takes all lines, to write them.
    fn take(&mut self) -> (Vec<u8>, Vec<NamedLine>) {
        self.taken += 1;
        self.named_size = 0;
        (std::mem::take(&mut self.lines), std::mem::take(&mut self.named))
    }

    /// Counts a write. Returns the tasks to wake.
    fn count_write(&mut self) -> Vec<Waker> {
        self.written += 1;
        self.slow = false;
        std::mem::take(&mut self.waiters)
    }
}

impl Writers {
    /// Empty queues for all targets.
    pub fn new(targets: &[Arc<LogTarget>], log: &Arc<Log>) -> Writers {
        let list = targets.iter().map(|target| TargetWriter::new(target, log)).collect();
        Writers(Arc::new(TargetWriters { list, log: Some(Arc::clone(log)) }))
    }

    /// Logs that a syslog server did not accept a line.
    pub fn complain(&self, server: &Syslog, fault: &SendError) {
        if let Some(log) = &self.0.log {
            log.complain(server, fault);
        }
    }

    /// Whether both have the same queues.
    pub fn is(&self, other: &Writers) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether both write to the targets of one site.
    pub fn is_beside(&self, other: &Writers) -> bool {
        let (one, two) = (self.0.list.first(), other.0.list.first());
        one.zip(two).is_some_and(|(one, two)| Arc::ptr_eq(&one.target, &two.target))
    }

    /// Appends a line, with its line end.
    pub fn line(&self, handle: &Handle, target: usize, line: &[u8]) {
        let Some(writer) = self.0.list.get(target) else { return };
        let Some(buffer) = writer.target.buffer else {
            return writer.send(handle, |waiting| waiting.lines.extend_from_slice(line));
        };
        let mut buffered = lock(&writer.buffered);
        if buffered.lines.len() + line.len() > buffer.size {
            writer.flush(handle, &mut buffered);
        }
        if line.len() > buffer.size || buffered.over {
            return writer.send(handle, |waiting| waiting.lines.extend_from_slice(line));
        }
        buffered.lines.extend_from_slice(line);
        if let Some(time) = buffer.flush
            && !std::mem::replace(&mut buffered.timed, true)
        {
            self.flush_later(target, handle, time);
        }
    }

    /// Appends a line for a file with variables in its name.
    pub fn named(&self, handle: &Handle, target: usize, named: NamedLine) {
        if let Some(writer) = self.0.list.get(target) {
            writer.send(handle, |waiting| waiting.push(named));
        }
    }

    /// Queues the buffered lines.
    pub fn flush(&self, handle: &Handle) {
        for writer in self.0.list.iter() {
            writer.flush(handle, &mut lock(&writer.buffered));
        }
    }

    fn flush_later(&self, target: usize, handle: &Handle, time: Duration) {
        let (writers, own) = (self.clone(), handle.clone());
        handle.spawn(async move {
            own.sleep(time).await;
            if let Some(writer) = writers.0.list.get(target) {
                let mut buffered = lock(&writer.buffered);
                buffered.timed = false;
                writer.flush(&own, &mut buffered);
            }
        });
    }

    /// Waits until the queued lines are in their files, unless the disk is slow.
    pub async fn written(&self, handle: &Handle) {
        for writer in self.0.list.iter() {
            writer.queue.written(handle).await;
        }
    }

    /// Nothing is buffered or queued.
    pub fn is_empty(&self) -> bool {
        let is_empty = |writer: &TargetWriter| {
            lock(&writer.buffered).lines.is_empty() && lock(&writer.queue.waiting).is_empty()
        };
        self.0.list.iter().all(is_empty)
    }

    /// Writes everything and blocks meanwhile: this loop ends, or another one that has used the
    /// queues.
    pub fn finish(&self) {
        for writer in self.0.list.iter() {
            let mut buffered = lock(&writer.buffered);
            buffered.over = true;
            lock(&writer.queue.waiting).lines.append(&mut buffered.lines);
            drop(buffered);
            writer.queue.write();
        }
    }
}

impl TargetWriter {
    fn new(target: &Arc<LogTarget>, log: &Arc<Log>) -> TargetWriter {
        let queue = LineQueue {
            waiting: Mutex::default(),
            writing: Mutex::default(),
            target: Arc::clone(target),
            log: Arc::clone(log),
        };
        TargetWriter {
            target: Arc::clone(target),
            queue: Arc::new(queue),
            buffered: Mutex::default(),
        }
    }

    fn flush(&self, handle: &Handle, buffered: &mut BufferedLines) {
        if !buffered.lines.is_empty() {
            self.send(handle, |waiting| waiting.lines.append(&mut buffered.lines));
            // Where the queue is full, these lines are dropped.
            buffered.lines.clear();
        }
    }

    /// Adds lines to the queue and makes sure that a job writes them.
    fn send(&self, handle: &Handle, put: impl FnOnce(&mut WaitingLines)) {
        let mut waiting = lock(&self.queue.waiting);
        if waiting.is_full() {
            let full = "lines are dropped: the log is written too slowly";
            return self.queue.complain(&mut waiting, full);
        }
        put(&mut waiting);
        if waiting.must_call(std::thread::current().id()) {
            drop(waiting);
            // A separate task starts the job, so that other requests of this turn can add lines.
            handle.spawn(call(Arc::clone(&self.queue), handle.clone()));
        }
    }
}

/// Gives the job to the file pool. Tries again if the pool is full.
async fn call(queue: Arc<LineQueue>, handle: Handle) {
    loop {
        let job = Arc::clone(&queue);
        let offload = handle.files().write(move || job.write());
        // The result does not matter. A refusal is known at the first poll.
        let refused = {
            let mut context = Context::from_waker(Waker::noop());
            matches!(pin!(offload).poll(&mut context), Poll::Ready(Err(_)))
        };
        if !refused {
            return;
        }
        handle.sleep(RETRY).await;
    }
}

impl LineQueue {
    async fn written(&self, handle: &Handle) {
        let target = {
            let waiting = lock(&self.waiting);
            if waiting.slow {
                return;
            }
            waiting.taken + u64::from(!waiting.is_empty())
        };
        let done = poll_fn(|cx| {
            let mut waiting = lock(&self.waiting);
            if waiting.written >= target {
                return Poll::Ready(());
            }
            waiting.waiters.push(cx.waker().clone());
            Poll::Pending
        });
        if let Either::Right(()) = either(done, handle.sleep(LONGEST_WAIT)).await {
            lock(&self.waiting).slow = true;
        }
    }

    /// Writes until the queue is empty. Blocks.
    fn write(&self) {
        let mut files = lock(&self.writing);
        loop {
            let (lines, named) = {
                let mut waiting = lock(&self.waiting);
                if waiting.is_empty() {
                    waiting.called.clear();
                    return;
                }
                waiting.take()
            };
            if !named.is_empty() {
                files.write(named);
            }
            if !lines.is_empty() {
                self.write_lines(lines);
            }
            let waiters = lock(&self.waiting).count_write();
            waiters.into_iter().for_each(Waker::wake);
        }
    }

    fn write_lines(&self, lines: Vec<u8>) {
        let Some(file) = &self.target.file else { return };
        let bytes = match self.target.buffer.and_then(|buffer| buffer.gzip) {
            Some(level) => compressed(&lines, level),
            None => lines,
        };
        let write = || file.write_lines(&bytes);
        if let Err(error) = file_operation("write", &*self.target.path, write) {
            let (path, cause) = (self.target.path.display(), Cause(&error));
            let text = format!("write() to \"{path}\" failed {cause}");
            self.complain(&mut lock(&self.waiting), &text);
        }
    }

    fn complain(&self, waiting: &mut WaitingLines, text: &str) {
        let now = std::time::Instant::now();
        if waiting.complained.is_none_or(|at| now.saturating_duration_since(at) >= MESSAGE_PAUSE) {
            waiting.complained = Some(now);
            self.log.write(Level::Alert, None, format_args!("{text}"));
        }
    }
}

/// Compresses lines into a gzip member. A file may have many members, one after another.
fn compressed(lines: &[u8], level: u32) -> Vec<u8> {
    use std::io::Write;
    let room = Vec::with_capacity(lines.len() / 4);
    let mut encoder = flate2::write::GzEncoder::new(room, flate2::Compression::new(level));
    // Writing to memory cannot fail.
    let _ = encoder.write_all(lines);
    encoder.finish().unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use weir_engine::{Loop, Options};

    use super::super::file::Buffer;
    use super::*;

    const LINE: usize = 1 << 20;

    fn writers(buffer: Option<Buffer>) -> Writers {
        let target = LogTarget { path: PathBuf::from("/dev/null"), file: None, buffer };
        Writers::new(&[Arc::new(target)], &Arc::new(Log::new(Vec::new())))
    }

    fn named() -> NamedLine {
        let (path, log) = (PathBuf::from("/dev/null"), Arc::new(Log::new(Vec::new())));
        let (root, cache, about) = (None, None, String::new());
        NamedLine { path, root, cache, line: vec![b'x'; LINE], connection: 1, log, about }
    }

    #[test]
    fn a_loop_starts_no_second_job_while_lines_wait() {
        let mut waiting = WaitingLines::default();
        let this = std::thread::current().id();
        let other = std::thread::spawn(|| std::thread::current().id()).join().unwrap();
        let calls = [this, other, this, other].map(|of| waiting.must_call(of));
        assert_eq!(calls, [true, true, false, false]);
    }

    /// The loop does not run, so nothing is written.
    #[test]
    fn lines_are_dropped_while_too_many_wait() {
        let own = Loop::new(&Options::default()).unwrap();
        let handle = own.handle();
        let buffer = Buffer { size: 3 * LINE, flush: None, gzip: None };
        let kinds = [writers(None), writers(Some(buffer)), writers(None)];
        for (n, writers) in kinds.iter().enumerate() {
            let held = || {
                let writer = &writers.0.list[0];
                let waiting = lock(&writer.queue.waiting);
                let named: usize = waiting.named.iter().map(|named| named.line.len()).sum();
                waiting.lines.len() + named + lock(&writer.buffered).lines.len()
            };
            for _ in 0..2 {
                for _ in 0..100 {
                    match n {
                        2 => writers.named(&handle, 0, named()),
                        _ => writers.line(&handle, 0, &vec![b'x'; LINE]),
                    }
                }
                assert!((MOST_QUEUED..MOST_QUEUED + 8 * LINE).contains(&held()), "{n}: {}", held());
                writers.0.list[0].queue.write();
                assert!(held() < 4 * LINE);
            }
        }
    }
}
