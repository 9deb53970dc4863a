//! A bounded pool of threads for work that blocks. Threads start when they are first needed.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::open_file::{Access, OpenFile};
use super::rank::{Queues, Rank};
use super::running::{self, Place, RunningOperation, Slot};
use crate::clock;
use crate::seam::{self, Call, Job};

/// Threads for file operations. Clones share the threads, such as all loops of a process.
#[derive(Clone, Debug)]
pub struct FilePool(Arc<Owner>);

/// A reference to a pool that does not keep its threads alive.
#[derive(Clone, Debug)]
pub struct WeakFilePool(Weak<Owner>);

impl WeakFilePool {
    /// The pool, unless its last owner was dropped.
    pub fn upgrade(&self) -> Option<FilePool> {
        self.0.upgrade().map(FilePool)
    }
}

/// Ends the threads when the last clone of the pool is dropped.
#[derive(Debug)]
struct Owner(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    name: String,
    state: Mutex<State>,
    work: Condvar,
    settled: Condvar,
    threads: usize,
    queue: usize,
    overflow: Overflow,
    watcher: Watcher,
    spawn: Spawn,
}

/// Starts a thread.
pub(super) type Spawn = fn(Builder, Job) -> io::Result<()>;

/// The callback for a full queue.
#[derive(Default)]
struct Overflow(OnceLock<OverflowHook>);

type OverflowHook = Box<dyn Fn(&str) + Send + Sync>;

impl std::fmt::Debug for Overflow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.get().is_some() { "heard" } else { "unheard" })
    }
}

/// The state of a pool, as its watcher sees it.
#[derive(Clone, Copy, Debug)]
pub struct PoolState {
    /// Operations that wait for a thread.
    pub waiting: usize,
    /// How long the operation that a thread has just taken had waited.
    pub waited: Option<Duration>,
    /// When the oldest running operation was taken, by [`crate::coarse_nanos`].
    pub oldest: Option<u64>,
}

#[derive(Default)]
struct Watcher(OnceLock<Watch>);

type Watch = Box<dyn Fn(PoolState) + Send + Sync>;

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.get().is_some() { "watched" } else { "unwatched" })
    }
}

struct State {
    /// Each job with the time at which it was queued, by [`clock::nanos`].
    jobs: Queues<(u64, Job)>,
    /// Running jobs, the oldest first.
    running: VecDeque<RunningJob>,
    started: usize,
    idle: usize,
    closed: bool,
}

impl State {
    fn is_settled(&self) -> bool {
        self.running.is_empty() && self.jobs.len() == 0
    }
}

/// A job that a thread is running.
struct RunningJob {
    since: u64,
    rank: Rank,
    slot: Slot,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} jobs, {} of {} threads idle", self.jobs.len(), self.idle, self.started)
    }
}

impl Default for FilePool {
    /// nginx's default pool: 32 threads, a queue of 65536.
    fn default() -> Self {
        FilePool::new(32, 65536)
    }
}

impl FilePool {
    /// A pool of at most `threads` threads. `queue` operations of each rank may wait for one.
    pub fn new(threads: usize, queue: usize) -> Self {
        FilePool::named("default", threads, queue)
    }

    /// As [`FilePool::new`], with a name that configurations and messages use.
    pub fn named(name: &str, threads: usize, queue: usize) -> Self {
        FilePool::spawned(name, threads, queue, seam::start_worker)
    }

    pub(super) fn spawned(name: &str, threads: usize, queue: usize, spawn: Spawn) -> Self {
        let (name, threads) = (name.to_owned(), threads.max(1));
        let jobs = Queues::new(threads);
        let running = VecDeque::new();
        let state = Mutex::new(State { jobs, running, started: 0, idle: 0, closed: false });
        let (work, settled) = (Condvar::new(), Condvar::new());
        let (overflow, watcher) = (Overflow::default(), Watcher::default());
        let shared =
            Shared { name, state, work, settled, threads, queue, overflow, watcher, spawn };
        FilePool(Arc::new(Owner(Arc::new(shared))))
    }

    /// Calls `hear` with a message when the queue is full, on the thread whose work was refused.
    /// Only the first call has an effect.
    pub fn on_overflow(&self, hear: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.0.0.overflow.0.set(Box::new(hear));
    }

    /// Calls `watch` whenever the pool's state changes, from one thread at a time. `watch` must not
    /// use the pool. Only the first call has an effect.
    pub fn watch(&self, watch: impl Fn(PoolState) + Send + Sync + 'static) {
        let _ = self.0.0.watcher.0.set(Box::new(watch));
    }

    /// A reference that does not keep the pool's threads alive.
    pub fn downgrade(&self) -> WeakFilePool {
        WeakFilePool(Arc::downgrade(&self.0))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.0.name
    }

    /// Operations that wait for a thread.
    pub fn waiting(&self) -> usize {
        self.0.0.lock().jobs.len()
    }

    /// The running file operation that began first.
    pub fn oldest_operation(&self) -> Option<RunningOperation> {
        let state = self.0.0.lock();
        let all = state.running.iter().filter_map(|job| running::read(&job.slot, job.rank));
        all.min_by_key(|operation| operation.since)
    }

    /// Waits until the queue is empty and no job runs, or until `until`.
    pub fn settle(&self, until: Instant) {
        let mut state = self.0.0.lock();
        // In the simulated world, jobs have no threads to wait for.
        while seam::worker_stays() && !state.is_settled() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.0.settled.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The number of threads that have been started.
    pub fn started(&self) -> usize {
        self.0.0.lock().started
    }

    /// Runs `work` without a result. Fails if the queue is full.
    pub fn hand_over(&self, rank: Rank, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.0.0.push(rank, Box::new(work), self.0.0.queue).map_err(|(error, _)| error)
    }

    /// Wraps a file that was opened elsewhere, so that a thread of this pool closes it.
    pub fn hold(&self, file: File) -> Arc<OpenFile> {
        Arc::new(OpenFile::new(file, self.clone(), Access::Pool))
    }

    /// Queues the close of a file even if the queue is full. No more closes can wait than files are
    /// open.
    pub(crate) fn close(&self, file: File) {
        // If no thread can be started, the job is dropped here, which closes the file.
        let _ = self.0.0.push(Rank::Write, Box::new(move || close(file)), usize::MAX);
    }

    /// As [`FilePool::hand_over`], even if the queue is full. For work that is never tried again,
    /// such as removing a temporary file. Its callers made what they remove, so the queue stays
    /// bounded.
    pub fn insist(&self, rank: Rank, work: impl FnOnce() + Send + 'static) {
        // If no thread can be started, this thread does the work.
        if let Err((_, work)) = self.0.0.push(rank, Box::new(work), usize::MAX) {
            work();
        }
    }

    pub(crate) fn run<T, W>(&self, rank: Rank, work: W) -> Offload<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let answer = Arc::new(Mutex::new(Answer { result: None, waker: None }));
        let promise = Promise { answer: Arc::clone(&answer), kept: false };
        let job = Box::new(move || promise.keep(catch_unwind(AssertUnwindSafe(work))));
        if let Err((e, job)) = self.0.0.push(rank, job, self.0.0.queue) {
            drop(job);
            lock(&answer).result = Some(Err(e));
        }
        Offload { answer }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn push(self: &Arc<Self>, rank: Rank, job: Job, most: usize) -> Result<(), (io::Error, Job)> {
        let mut state = self.lock();
        let waiting = state.jobs.waiting(rank);
        if waiting >= most {
            let name = &self.name;
            let text = format!("thread pool \"{name}\" queue overflow: {waiting} tasks waiting");
            drop(state);
            if let Some(hear) = self.overflow.0.get() {
                hear(&text);
            }
            return Err((io::Error::new(io::ErrorKind::ResourceBusy, text), job));
        }
        if seam::at(Call::Offload).is_err() && most != usize::MAX {
            return Err((io::ErrorKind::ResourceBusy.into(), job));
        }
        if state.started == 0
            && let Err(error) = self.start(&mut state)
        {
            return Err((error, job));
        }
        state.jobs.push(rank, (clock::nanos(), job));
        self.notify_watcher(&state, None);
        self.wake_thread(state);
        Ok(())
    }

    fn notify_watcher(&self, state: &State, waited: Option<Duration>) {
        if let Some(watch) = self.watcher.0.get() {
            let oldest = state.running.front().map(|job| job.since);
            watch(PoolState { waiting: state.jobs.len(), waited, oldest });
        }
    }

    /// The thread with this slot has finished its job.
    fn ended(&self, state: &mut State, rank: Rank, slot: &Slot) {
        state.jobs.ended(rank);
        let at = state.running.iter().position(|job| Arc::ptr_eq(&job.slot, slot));
        at.and_then(|at| state.running.remove(at));
        if at == Some(0) {
            self.notify_watcher(state, None);
        }
        if state.is_settled() {
            self.settled.notify_all();
        }
    }

    /// Starts or wakes a thread if a job can be taken. If no thread can be started, the running
    /// threads take the job later, and the next job tries again.
    fn wake_thread(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let takable = state.jobs.takable();
        // A thread that was started or woken counts as idle until it takes a job.
        if takable > state.idle && state.started < self.threads {
            let _ = self.start(&mut state);
        }
        drop(state);
        if takable > 0 {
            self.work.notify_one();
        }
    }

    fn start(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let shared = Arc::clone(self);
        let thread = Builder::new().name(format!("weir-file-{}", state.started));
        (self.spawn)(thread, Box::new(move || shared.serve()))?;
        state.started += 1;
        state.idle += 1;
        Ok(())
    }

    fn serve(self: &Arc<Self>) {
        MAY_WAIT.set(true);
        let slot = running::make_slot();
        let mut state = self.lock();
        state.idle -= 1;
        loop {
            if let Some((rank, (pushed, job))) = state.jobs.take() {
                let (since, waited) =
                    (clock::coarse_nanos(), clock::nanos().saturating_sub(pushed));
                state.running.push_back(RunningJob { since, rank, slot: Arc::clone(&slot) });
                self.notify_watcher(&state, Some(Duration::from_nanos(waited)));
                self.wake_thread(state);
                // A panic in a job must not end the thread.
                let _ = catch_unwind(AssertUnwindSafe(job));
                running::empty(&slot);
                state = self.lock();
                self.ended(&mut state, rank, &slot);
            } else if state.closed {
                // Jobs that cannot be taken yet are left to the threads that run.
                return;
            } else if seam::worker_stays() {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
            if !seam::worker_stays() {
                state.started -= 1;
                return self.wake_thread(state);
            }
        }
    }
}

fn close(file: File) {
    running::file_operation("close", Place::File(file.as_raw_fd()), || drop(file));
}

thread_local! {
    /// Whether this thread belongs to a pool.
    static MAY_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread may block for a disk.
pub(super) fn may_wait_here() -> bool {
    // Thread-local values may be gone when the thread ends. No loop runs here then.
    MAY_WAIT.try_with(Cell::get).unwrap_or(true)
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.work.notify_all();
    }
}

struct Answer<T> {
    result: Option<io::Result<T>>,
    waker: Option<Waker>,
}

/// The thread's side of a result. Dropped without one, it reports an error.
struct Promise<T> {
    answer: Arc<Mutex<Answer<T>>>,
    kept: bool,
}

impl<T> Promise<T> {
    fn keep(mut self, result: Result<T, Box<dyn Any + Send>>) {
        self.kept = true;
        self.fulfil(result.map_err(|_| io::Error::other("panic in a file operation")));
    }

    fn fulfil(&self, result: io::Result<T>) {
        let mut answer = lock(&self.answer);
        answer.result = Some(result);
        let waker = answer.waker.take();
        drop(answer);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if !self.kept {
            self.fulfil(Err(io::Error::other("the thread pool is gone")));
        }
    }
}

/// Work on another thread; ready with its result. If this is dropped, the work continues and its
/// result is discarded.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Offload<T> {
    answer: Arc<Mutex<Answer<T>>>,
}

impl<T> Future for Offload<T> {
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut answer = lock(&self.answer);
        if let Some(result) = answer.result.take() {
            return Poll::Ready(result);
        }
        match &mut answer.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
