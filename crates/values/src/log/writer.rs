//! The way of lines from a loop to their files.
//!
//! A loop appends to a queue for each file. Once a turn it gives a thread of the file pool the job
//! to write the queue: one write for all lines of the turn. One job at a time empties a queue, so
//! order stays. A loop that takes a connection over appends that one's lines to the queues of the
//! loop before. When a loop ends, it empties the queues that it has used.

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

/// More than this does not wait for a disk that is stuck: lines are dropped, and the error log is told.
const MOST: usize = 64 * 1024 * 1024;

/// When the pool takes no job, it is asked again after this time.
const AGAIN: Duration = Duration::from_millis(20);

/// The longest wait for lines to be written, in case the disk is slow.
const PATIENCE: Duration = Duration::from_secs(1);

/// At the most one complaint about a file in this time, as nginx.
const QUIET: Duration = Duration::from_secs(60);

/// A loop's queues, one for each target of a site. Other loops may have them, too.
#[derive(Clone, Default)]
pub struct Writers(Arc<Lanes>);

#[derive(Default)]
struct Lanes {
    list: Vec<Lane>,
    /// Where faults are told.
    log: Option<Arc<Log>>,
}

/// A loop's way to one target.
struct Lane {
    target: Arc<LogTarget>,
    queue: Arc<LineQueue>,
    gathered: Mutex<Gathered>,
}

/// `buffer=`: lines that are not to be written yet.
#[derive(Default)]
struct Gathered {
    lines: Vec<u8>,
    /// A timer for the oldest of them runs.
    timed: bool,
    /// The loop has ended: nothing is gathered any more.
    over: bool,
}

/// What waits to be written.
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
    /// The loop that has called for a job. Another one does not rely on it, which may be held up.
    called: Option<ThreadId>,
    /// How often something was taken to be written, and how often that is done.
    taken: u64,
    written: u64,
    /// The tasks that wait for that.
    waiters: Vec<Waker>,
    /// A wait was in vain: no other task waits before something is written.
    slow: bool,
    complained: Option<std::time::Instant>,
}

impl WaitingLines {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.named.is_empty()
    }

    /// What was taken is written: the tasks that waited look again.
    fn one_more_written(&mut self) -> Vec<Waker> {
        self.written += 1;
        self.slow = false;
        std::mem::take(&mut self.waiters)
    }
}

impl Writers {
    /// Empty queues for all targets.
    pub fn new(targets: &[Arc<LogTarget>], log: &Arc<Log>) -> Writers {
        let list = targets.iter().map(|target| Lane::new(target, log)).collect();
        Writers(Arc::new(Lanes { list, log: Some(Arc::clone(log)) }))
    }

    /// A syslog server did not take a line.
    pub fn complain(&self, server: &Syslog, fault: &SendError) {
        if let Some(log) = &self.0.log {
            log.complain(server, fault);
        }
    }

    /// Whether both are the same queues.
    pub fn is(&self, other: &Writers) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether both lead to the targets of one site.
    pub fn is_beside(&self, other: &Writers) -> bool {
        let (one, two) = (self.0.list.first(), other.0.list.first());
        one.zip(two).is_some_and(|(one, two)| Arc::ptr_eq(&one.target, &two.target))
    }

    /// Takes a line with its end.
    pub fn line(&self, handle: &Handle, target: usize, line: &[u8]) {
        let Some(lane) = self.0.list.get(target) else { return };
        let Some(buffer) = lane.target.buffer else {
            return lane.send(handle, |waiting| waiting.lines.extend_from_slice(line));
        };
        let mut gathered = lock(&lane.gathered);
        if gathered.lines.len() + line.len() > buffer.size {
            lane.send(handle, |waiting| waiting.lines.append(&mut gathered.lines));
        }
        if line.len() > buffer.size || gathered.over {
            return lane.send(handle, |waiting| waiting.lines.extend_from_slice(line));
        }
        gathered.lines.extend_from_slice(line);
        if let Some(time) = buffer.flush
            && !std::mem::replace(&mut gathered.timed, true)
        {
            self.flush_later(target, handle, time);
        }
    }

    /// Takes a line for a file named by variables.
    pub fn named(&self, handle: &Handle, target: usize, named: NamedLine) {
        if let Some(lane) = self.0.list.get(target) {
            lane.send(handle, |waiting| waiting.named.push(named));
        }
    }

    /// Sends what is gathered on its way.
    pub fn flush(&self, handle: &Handle) {
        for lane in self.0.list.iter() {
            lane.flush(handle, &mut lock(&lane.gathered));
        }
    }

    fn flush_later(&self, target: usize, handle: &Handle, time: Duration) {
        let (writers, own) = (self.clone(), handle.clone());
        handle.spawn(async move {
            own.sleep(time).await;
            if let Some(lane) = writers.0.list.get(target) {
                let mut gathered = lock(&lane.gathered);
                gathered.timed = false;
                lane.flush(&own, &mut gathered);
            }
        });
    }

    /// Waits until the lines that were sent on their way are in their files, as far as the disk is not slow.
    pub async fn written(&self, handle: &Handle) {
        for lane in self.0.list.iter() {
            lane.queue.written(handle).await;
        }
    }

    /// Nothing waits to be written.
    pub fn is_empty(&self) -> bool {
        let is_empty = |lane: &Lane| {
            lock(&lane.gathered).lines.is_empty() && lock(&lane.queue.waiting).is_empty()
        };
        self.0.list.iter().all(is_empty)
    }

    /// Writes everything, waiting for the disk: the loop ends, or another one that has used them.
    pub fn finish(&self) {
        for lane in self.0.list.iter() {
            let mut gathered = lock(&lane.gathered);
            gathered.over = true;
            lock(&lane.queue.waiting).lines.append(&mut gathered.lines);
            drop(gathered);
            lane.queue.write();
        }
    }
}

impl Lane {
    fn new(target: &Arc<LogTarget>, log: &Arc<Log>) -> Lane {
        let queue = LineQueue {
            waiting: Mutex::default(),
            writing: Mutex::default(),
            target: Arc::clone(target),
            log: Arc::clone(log),
        };
        Lane { target: Arc::clone(target), queue: Arc::new(queue), gathered: Mutex::default() }
    }

    fn flush(&self, handle: &Handle, gathered: &mut Gathered) {
        if !gathered.lines.is_empty() {
            self.send(handle, |waiting| waiting.lines.append(&mut gathered.lines));
        }
    }

    /// Puts something into the queue, and calls for a job that writes it.
    fn send(&self, handle: &Handle, put: impl FnOnce(&mut WaitingLines)) {
        let mut waiting = lock(&self.queue.waiting);
        if waiting.lines.len() > MOST {
            let full = "lines are dropped: the log is written too slowly";
            return self.queue.complain(&mut waiting, full);
        }
        put(&mut waiting);
        let this = Some(std::thread::current().id());
        if std::mem::replace(&mut waiting.called, this) != this {
            drop(waiting);
            // A task of its own, so that the other requests of this turn add their lines.
            handle.spawn(call(Arc::clone(&self.queue), handle.clone()));
        }
    }
}

/// Gives the job to the pool. A full pool is asked again.
async fn call(queue: Arc<LineQueue>, handle: Handle) {
    loop {
        let job = Arc::clone(&queue);
        let offload = handle.files().write(move || job.write());
        // The answer is of no interest; that the job was refused is known at once.
        let refused = {
            let mut context = Context::from_waker(Waker::noop());
            matches!(pin!(offload).poll(&mut context), Poll::Ready(Err(_)))
        };
        if !refused {
            return;
        }
        handle.sleep(AGAIN).await;
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
        if let Either::Right(()) = either(done, handle.sleep(PATIENCE)).await {
            lock(&self.waiting).slow = true;
        }
    }

    /// Writes until nothing waits. Blocks.
    fn write(&self) {
        let mut files = lock(&self.writing);
        loop {
            let (lines, named) = {
                let mut waiting = lock(&self.waiting);
                if waiting.is_empty() {
                    waiting.called = None;
                    return;
                }
                waiting.taken += 1;
                (std::mem::take(&mut waiting.lines), std::mem::take(&mut waiting.named))
            };
            if !named.is_empty() {
                files.write(named);
            }
            if !lines.is_empty() {
                self.write_lines(lines);
            }
            let waiters = lock(&self.waiting).one_more_written();
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
        if waiting.complained.is_none_or(|at| now.saturating_duration_since(at) >= QUIET) {
            waiting.complained = Some(now);
            self.log.write(Level::Alert, None, format_args!("{text}"));
        }
    }
}

/// A member of its own: members of one file are read one after another.
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
