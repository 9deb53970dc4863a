//! Queues of lines, for threads that must not wait for a disk.
//!
//! Such a thread calls [`never_wait`] once. Its lines then go into a queue for each file. One job at
//! a time empties a queue, on a thread that may wait, so that lines keep their order. Threads that
//! may wait write at once, behind the queued lines.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread;
use std::time::Duration;

/// The most bytes in a queue. Further lines are dropped: the disk is stuck.
const MOST: usize = 4 << 20;

/// Runs a job on a thread that may wait, or refuses it for now. The path is the log file's.
pub type HandOver = Box<dyn Fn(&Path, DeferredWrite) -> io::Result<()>>;
/// A job that empties a queue. It may wait for the disk.
pub type DeferredWrite = Box<dyn FnOnce() + Send>;

thread_local! {
    static HAND_OVER: RefCell<Option<HandOver>> = const { RefCell::new(None) };
}

/// All outputs that have had a queued line.
static KNOWN: Mutex<Vec<Weak<dyn Output>>> = Mutex::new(Vec::new());

/// From now on this thread does not wait for log files: `hand_over` takes the jobs that write. With `None` it may wait
/// again.
pub fn never_wait(hand_over: Option<HandOver>) {
    HAND_OVER.set(hand_over);
}

/// How long the end of a process waits until its lines are written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Writes all queued lines, before the process ends. Does not wait for a disk that does not
/// respond.
pub fn flush() {
    let known: Vec<_> = lock(&KNOWN).iter().filter_map(Weak::upgrade).collect();
    if known.iter().all(|output| output.queue().is_empty()) {
        return;
    }
    let (done, is_done) = mpsc::channel();
    let write = move || {
        known.iter().for_each(|output| output.queue().empty(&**output));
        let _ = done.send(());
    };
    // Without a thread the lines are lost.
    if thread::Builder::new().name("weir: last lines".to_owned()).spawn(write).is_ok() {
        let _ = is_done.recv_timeout(LAST_LINES);
    }
}

/// A file that lines are written to.
pub(crate) trait Output: Send + Sync + 'static {
    /// Its path.
    fn path(&self) -> &Path;
    /// Its queue.
    fn queue(&self) -> &WriteQueue;
    /// Writes whole lines. May wait.
    fn put(&self, lines: &[u8]);
}

/// The lines that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct WriteQueue {
    waiting: Mutex<WaitingText>,
    /// Held by the thread that writes.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct WaitingText {
    lines: Vec<u8>,
    /// A job was handed over that will write them.
    called: bool,
    known: bool,
}

/// Writes a line, or queues it.
pub(crate) fn write<O: Output>(output: &Arc<O>, line: &[u8]) {
    let later = HAND_OVER.with_borrow(|hand_over| match hand_over {
        Some(hand_over) => {
            enqueue(output, line, hand_over);
            true
        }
        None => false,
    });
    if !later {
        output.queue().alone(&**output, || output.put(line));
    }
}

fn enqueue<O: Output>(output: &Arc<O>, line: &[u8], hand_over: &HandOver) {
    let mut waiting = lock(&output.queue().waiting);
    if waiting.lines.len() + line.len() <= MOST {
        waiting.lines.extend_from_slice(line);
    } else {
        crate::lost::count(line);
    }
    if !std::mem::replace(&mut waiting.known, true) {
        let weak: Weak<O> = Arc::downgrade(output);
        let mut known = lock(&KNOWN);
        known.retain(|output| output.strong_count() > 0);
        known.push(weak);
    }
    if std::mem::replace(&mut waiting.called, true) {
        return;
    }
    drop(waiting);
    let this = Arc::clone(output);
    let job = Box::new(move || this.queue().empty(&*this));
    if hand_over(output.path(), job).is_err() {
        // The next line hands a job over again.
        lock(&output.queue().waiting).called = false;
    }
}

impl WriteQueue {
    /// Writes all queued lines. Then runs `then` before any other thread writes.
    pub(crate) fn alone<T>(&self, output: &dyn Output, then: impl FnOnce() -> T) -> T {
        let writing = lock(&self.writing);
        loop {
            let lines = {
                let mut waiting = lock(&self.waiting);
                waiting.called = waiting.called && !waiting.lines.is_empty();
                std::mem::take(&mut waiting.lines)
            };
            if lines.is_empty() {
                break;
            }
            output.put(&lines);
        }
        let out = then();
        drop(writing);
        out
    }

    /// Whether no lines wait, and none are being written.
    fn is_empty(&self) -> bool {
        let is_free = self.writing.try_lock().is_ok();
        is_free && lock(&self.waiting).lines.is_empty()
    }

    fn empty(&self, output: &dyn Output) {
        self.alone(output, || ());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
