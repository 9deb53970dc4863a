//! A bounded pool of threads for work that blocks, started when it is first needed.

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
use super::rank::{Lines, Rank};
use super::running::{self, Place, RunningOperation, Slot};
use crate::clock;
use crate::seam::{self, Call, Job};

/// Threads for file operations; clones share them, so that the loops of a process may.
#[derive(Clone, Debug)]
pub struct FilePool(Arc<Owner>);

/// A pool for those that must not keep it.
#[derive(Clone, Debug)]
pub struct WeakFilePool(Weak<Owner>);

impl WeakFilePool {
    /// The pool, unless its threads were told to end.
    pub fn upgrade(&self) -> Option<FilePool> {
        self.0.upgrade().map(FilePool)
    }
}

/// Tells the threads to end when the last clone of the pool is gone.
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

/// Called when the queue is full.
#[derive(Default)]
struct Overflow(OnceLock<Hearer>);

type Hearer = Box<dyn Fn(&str) + Send + Sync>;

impl std::fmt::Debug for Overflow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.get().is_some() { "heard" } else { "unheard" })
    }
}

/// What a pool tells its watcher.
#[derive(Clone, Copy, Debug)]
pub struct PoolState {
    /// How many operations wait for a thread.
    pub waiting: usize,
    /// How long the one has waited that a thread takes now.
    pub waited: Option<Duration>,
    /// When the oldest of those that run was taken, by [`crate::coarse_nanos`].
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
    /// Each with the time from which on it waits, by [`clock::nanos`].
    jobs: Lines<(u64, Job)>,
    /// Those that run, the oldest in front.
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

/// A job that a thread has taken.
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
    /// nginx's default pool: 32 threads, 65536 waiting operations.
    fn default() -> Self {
        FilePool::new(32, 65536)
    }
}

impl FilePool {
    /// At most `threads` threads, and `queue` operations of each rank waiting for one of them.
    pub fn new(threads: usize, queue: usize) -> Self {
        FilePool::named("default", threads, queue)
    }

    /// As [`FilePool::new`], with a name by which it is found and complained about.
    pub fn named(name: &str, threads: usize, queue: usize) -> Self {
        FilePool::spawned(name, threads, queue, seam::start_worker)
    }

    pub(super) fn spawned(name: &str, threads: usize, queue: usize, spawn: Spawn) -> Self {
        let (name, threads) = (name.to_owned(), threads.max(1));
        let jobs = Lines::new(threads);
        let running = VecDeque::new();
        let state = Mutex::new(State { jobs, running, started: 0, idle: 0, closed: false });
        let (work, settled) = (Condvar::new(), Condvar::new());
        let (overflow, watcher) = (Overflow::default(), Watcher::default());
        let shared =
            Shared { name, state, work, settled, threads, queue, overflow, watcher, spawn };
        FilePool(Arc::new(Owner(Arc::new(shared))))
    }

    /// `hear` is told when the queue is full, on the thread with the refused work. The first one
    /// stays.
    pub fn on_overflow(&self, hear: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.0.0.overflow.0.set(Box::new(hear));
    }

    /// `watch` is told how the pool is whenever that changes, by one thread at a time. It must not touch the pool. The
    /// first one stays.
    pub fn watch(&self, watch: impl Fn(PoolState) + Send + Sync + 'static) {
        let _ = self.0.0.watcher.0.set(Box::new(watch));
    }

    /// As a clone, but the pool may end.
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

    /// Of the operations that wait for a disk, the one that has lasted longest.
    pub fn oldest_operation(&self) -> Option<RunningOperation> {
        let state = self.0.0.lock();
        let all = state.running.iter().filter_map(|job| running::read(&job.slot, job.rank));
        all.min_by_key(|operation| operation.since)
    }

    /// Waits until nothing runs or waits for a thread, but no longer than `until`.
    pub fn settle(&self, until: Instant) {
        let mut state = self.0.0.lock();
        // The simulated world runs its jobs one by one.
        while seam::worker_stays() && !state.is_settled() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.0.settled.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Threads that run.
    pub fn started(&self) -> usize {
        self.0.0.lock().started
    }

    /// Runs `work` without a wait for its answer. An error if the pool is full.
    pub fn hand_over(&self, rank: Rank, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.0.0.push(rank, Box::new(work), self.0.0.queue).map_err(|(error, _)| error)
    }

    /// Holds a file that was opened elsewhere, so that a thread of this pool closes it.
    pub fn hold(&self, file: File) -> Arc<OpenFile> {
        Arc::new(OpenFile::new(file, self.clone(), Access::Pool))
    }

    /// Closes a file, however much there is to do. No more can wait than files are open.
    pub(crate) fn close(&self, file: File) {
        // Without any thread it is closed here, since it must be.
        let _ = self.0.0.push(Rank::Write, Box::new(move || close(file)), usize::MAX);
    }

    /// As [`FilePool::hand_over`], however much there is to do: for work that is never tried again, such as removing a
    /// file that has no other name. Only the maker of such files calls it, so no more can wait than was made.
    pub fn insist(&self, rank: Rank, work: impl FnOnce() + Send + 'static) {
        // Without any thread it is done here, since it must be.
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
        self.tell(&state, None);
        self.call(state);
        Ok(())
    }

    fn tell(&self, state: &State, waited: Option<Duration>) {
        if let Some(watch) = self.watcher.0.get() {
            let oldest = state.running.front().map(|job| job.since);
            watch(PoolState { waiting: state.jobs.len(), waited, oldest });
        }
    }

    /// The thread of this slot has done its job.
    fn ended(&self, state: &mut State, rank: Rank, slot: &Slot) {
        state.jobs.ended(rank);
        let at = state.running.iter().position(|job| Arc::ptr_eq(&job.slot, slot));
        at.and_then(|at| state.running.remove(at));
        if at == Some(0) {
            self.tell(state, None);
        }
        if state.is_settled() {
            self.settled.notify_all();
        }
    }

    /// Sees to it that a thread takes what may be taken. One that cannot be started is missed, and tried again with the
    /// next job: those that run do its work.
    fn call(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let takable = state.jobs.takable();
        // Threads that were started or woken for earlier jobs count as idle until they run.
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
                self.tell(&state, Some(Duration::from_nanos(waited)));
                self.call(state);
                // A panic in it must not end the thread.
                let _ = catch_unwind(AssertUnwindSafe(job));
                running::empty(&slot);
                state = self.lock();
                self.ended(&mut state, rank, &slot);
            } else if state.closed {
                // Those that run do what must wait for them.
                return;
            } else if seam::worker_stays() {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
            if !seam::worker_stays() {
                state.started -= 1;
                return self.call(state);
            }
        }
    }
}

fn close(file: File) {
    running::file_operation("close", Place::File(file.as_raw_fd()), || drop(file));
}

thread_local! {
    /// This thread is one of a pool.
    static MAY_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread may wait for a disk.
pub(super) fn may_wait_here() -> bool {
    // At a thread's end there is no time to note and no loop to stall.
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

/// The worker's side of an answer; dropped without one, it answers that there is none.
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

/// Work on another thread: ready with its answer. Dropped, the work goes on and its answer is
/// discarded.
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
