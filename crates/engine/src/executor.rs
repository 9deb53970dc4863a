//! The loop's own single-threaded executor: futures in reused slots and reused boxes.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use weir_sys::prefetch::prefetch;

use crate::budget;

/// Points that each poll costs, whatever it does.
const POLL_POINTS: u32 = 4;
/// Rounds over the run queue in one turn. Tasks that wake each other thus cannot keep the loop from
/// waiting.
const ROUNDS: usize = 4;
/// Boxes kept per type of future.
const KEPT_BOXES: usize = 256;
/// With this many tasks, they do not all fit into the processor's caches. A task's memory is then
/// prefetched before it runs.
const CROWDED_TASKS: usize = 256;
/// Bytes of a task that are prefetched.
const PREFETCH_BYTES: usize = 1024;
const NO_TASK: u32 = u32::MAX;

pub(crate) struct Executor {
    tasks: RefCell<Tasks>,
    boxes: RefCell<Boxes>,
    mailbox: Arc<dyn WakeTask>,
    current: Cell<u32>,
    /// The data pointer of the running task's waker. A poll with another waker, such as a
    /// combinator's, is noticed by it.
    current_waker: Cell<*const ()>,
    /// Counts the turns of the loop.
    turn: Cell<u32>,
    live: Cell<usize>,
    started: Cell<u64>,
    ended: Cell<u64>,
}

struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
    run: VecDeque<u32>,
    /// Tasks that have been woken but have used up their budgets.
    spent: VecDeque<u32>,
    /// Tasks that have started but must not run before the tasks that this turn's events wake.
    behind: Vec<u32>,
}

struct Slot {
    job: Option<BoxedJob>,
    /// Made once for a slot and used by each of its tasks. Absent while the task runs.
    waker: Option<Waker>,
    queued: bool,
    /// The points left to the task, in turn number `turn`.
    left: u32,
    turn: u32,
}

/// A future in its box. `Option`, so that the box outlives the future and serves the next one.
trait Job {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()>;
    /// Drops the future and keeps its box.
    fn finish(self: Pin<Box<Self>>, boxes: &RefCell<Boxes>);
}

impl<F: Future<Output = ()> + 'static> Job for Option<F> {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.as_pin_mut().map_or(Poll::Ready(()), |future| future.poll(cx))
    }

    fn finish(mut self: Pin<Box<Self>>, boxes: &RefCell<Boxes>) {
        self.as_mut().set(None);
        boxes.borrow_mut().give(self);
    }
}

type BoxedJob = Pin<Box<dyn Job>>;

/// Empty boxes by the type of future that they fit. A server has few types of tasks, so a list is
/// enough. A type that is looked up moves one place forward.
struct Boxes(Vec<(TypeId, Box<dyn Any>)>);

type Spare<F> = Vec<Pin<Box<Option<F>>>>;

impl Boxes {
    fn spare<F: 'static>(&mut self) -> Option<&mut Spare<F>> {
        let id = TypeId::of::<F>();
        let mut at = self.0.iter().position(|(of, _)| *of == id).unwrap_or_else(|| {
            self.0.push((id, Box::new(Spare::<F>::new())));
            self.0.len() - 1
        });
        if let Some(before) = at.checked_sub(1) {
            self.0.swap(before, at);
            at = before;
        }
        self.0.get_mut(at)?.1.downcast_mut()
    }

    fn give<F: 'static>(&mut self, empty: Pin<Box<Option<F>>>) {
        if let Some(spare) = self.spare::<F>()
            && spare.len() < KEPT_BOXES
        {
            spare.push(empty);
        }
    }
}

/// Wakes tasks from any thread: the loop's mailbox.
pub(crate) trait WakeTask: Send + Sync {
    /// Makes the task in this slot runnable.
    fn wake_task(&self, task: u32);
}

/// Wakes a slot's task from any thread.
struct SlotWaker {
    mailbox: Arc<dyn WakeTask>,
    task: u32,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.mailbox.wake_task(self.task);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.mailbox.wake_task(self.task);
    }
}

impl Executor {
    pub(crate) fn new(mailbox: Arc<dyn WakeTask>) -> Self {
        let tasks = Tasks {
            slots: Vec::new(),
            free: Vec::new(),
            run: VecDeque::new(),
            spent: VecDeque::new(),
            behind: Vec::new(),
        };
        Executor {
            tasks: RefCell::new(tasks),
            boxes: RefCell::new(Boxes(Vec::new())),
            mailbox,
            current: Cell::new(NO_TASK),
            current_waker: Cell::new(std::ptr::null()),
            turn: Cell::new(0),
            live: Cell::new(0),
            started: Cell::new(0),
            ended: Cell::new(0),
        }
    }

    /// Starts a task. `make` makes the future in its box, so that a large future is not copied.
    pub(crate) fn spawn<F: Future<Output = ()> + 'static>(&self, make: impl FnOnce() -> F) {
        let task = self.start(make);
        self.tasks.borrow_mut().wake(task);
    }

    /// As [`Executor::spawn`], but the task becomes runnable at the next [`Executor::run`], behind
    /// all tasks that are runnable then.
    pub(crate) fn spawn_behind<F: Future<Output = ()> + 'static>(&self, make: impl FnOnce() -> F) {
        let task = self.start(make);
        self.tasks.borrow_mut().behind.push(task);
    }

    #[inline]
    fn start<F: Future<Output = ()> + 'static>(&self, make: impl FnOnce() -> F) -> u32 {
        let empty = self.boxes.borrow_mut().spare::<F>().and_then(Vec::pop);
        let mut job = empty.unwrap_or_else(|| Box::pin(None));
        job.as_mut().set(Some(make()));
        self.live.set(self.live.get() + 1);
        self.started.set(self.started.get() + 1);
        let mut tasks = self.tasks.borrow_mut();
        let index = tasks.free.pop().unwrap_or_else(|| {
            let task = tasks.slots.len() as u32;
            let waker = Waker::from(Arc::new(SlotWaker { mailbox: self.mailbox.clone(), task }));
            let (left, turn) = (budget::TURN, self.turn.get());
            tasks.slots.push(Slot { job: None, waker: Some(waker), queued: false, left, turn });
            task
        });
        if let Some(slot) = tasks.slots.get_mut(index as usize) {
            slot.job = Some(job);
            slot.left = budget::TURN;
        }
        index
    }

    #[inline]
    pub(crate) fn wake(&self, task: u32) {
        self.tasks.borrow_mut().wake(task);
    }

    /// The running task's number, if `waker` is its own.
    #[inline]
    pub(crate) fn current(&self, waker: &Waker) -> Option<u32> {
        let task = self.current.get();
        (task != NO_TASK && waker.data() == self.current_waker.get()).then_some(task)
    }

    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    /// Whether there are so many tasks that most of a task's memory is not in the processor's
    /// caches.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.live.get() >= CROWDED_TASKS
    }

    /// Tasks started and ended since the loop was made.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.started.get(), self.ended.get())
    }

    pub(crate) fn runnable(&self) -> bool {
        let tasks = self.tasks.borrow();
        !(tasks.run.is_empty() && tasks.spent.is_empty() && tasks.behind.is_empty())
    }

    /// Gives each task a new budget.
    pub(crate) fn begin_turn(&self) {
        self.turn.set(self.turn.get().wrapping_add(1));
    }

    /// Whether a runnable task has used up its budget.
    pub(crate) fn any_spent(&self) -> bool {
        !self.tasks.borrow().spent.is_empty()
    }

    /// Gives a new budget to the first task that has used up its own. False if there is none.
    pub(crate) fn resume_spent(&self) -> bool {
        let mut tasks = self.tasks.borrow_mut();
        let Some(task) = tasks.spent.pop_front() else { return false };
        if let Some(slot) = tasks.slots.get_mut(task as usize) {
            slot.left = budget::TURN;
        }
        tasks.run.push_back(task);
        true
    }

    /// Runs runnable tasks, and those that they wake, for a bounded number of rounds. `between`
    /// fetches wake-ups from other threads before each round. `ran` is called after each task, and
    /// `panicked` with each panic.
    pub(crate) fn run(
        &self,
        between: impl Fn(),
        ran: impl Fn(),
        panicked: impl Fn(Box<dyn Any + Send>),
    ) {
        for _ in 0..ROUNDS {
            between();
            self.tasks.borrow_mut().wake_behind();
            let round = self.tasks.borrow().run.len();
            if round == 0 {
                return;
            }
            for _ in 0..round {
                let next = self.tasks.borrow_mut().take_next(self.turn.get());
                let Some((task, job, waker, left)) = next else { continue };
                if self.is_crowded() {
                    self.tasks.borrow().fetch_next();
                }
                let run = self.run_one(task, job, waker, left);
                ran();
                if let Err(panic) = run {
                    panicked(panic);
                }
            }
        }
    }

    fn run_one(
        &self,
        task: u32,
        mut job: BoxedJob,
        waker: Waker,
        left: u32,
    ) -> Result<(), Box<dyn Any + Send>> {
        self.current.set(task);
        self.current_waker.set(waker.data());
        let mut cx = Context::from_waker(&waker);
        let (polled, left) =
            budget::run(left, || catch_unwind(AssertUnwindSafe(|| job.as_mut().poll(&mut cx))));
        self.current.set(NO_TASK);
        self.current_waker.set(std::ptr::null());
        if let Ok(Poll::Pending) = polled {
            self.tasks.borrow_mut().put_back(task, job, waker, left.saturating_sub(POLL_POINTS));
            return Ok(());
        }
        // Drops the future's values before its slot can be used again.
        let dropped = catch_unwind(AssertUnwindSafe(|| job.finish(&self.boxes)));
        self.live.set(self.live.get() - 1);
        self.ended.set(self.ended.get() + 1);
        self.tasks.borrow_mut().vacate(task, waker);
        polled.map(|_| ()).and(dropped)
    }

    /// Frees the boxes of ended tasks.
    pub(crate) fn free_spare(&self) {
        self.boxes.borrow_mut().0.clear();
    }

    /// Drops every task. Called when the loop ends.
    pub(crate) fn clear(&self) {
        let jobs: Vec<_> = {
            let mut tasks = self.tasks.borrow_mut();
            tasks.run.clear();
            tasks.spent.clear();
            tasks.behind.clear();
            tasks.slots.iter_mut().filter_map(|slot| slot.job.take()).collect()
        };
        self.live.set(self.live.get() - jobs.len());
        // A waker of a dropped task may still be held elsewhere. It wakes an empty slot.
        drop(jobs);
        self.free_spare();
    }
}

impl Tasks {
    fn wake(&mut self, task: u32) {
        if let Some(slot) = self.slots.get_mut(task as usize)
            && !slot.queued
        {
            slot.queued = true;
            self.run.push_back(task);
        }
    }

    fn wake_behind(&mut self) {
        for at in 0..self.behind.len() {
            self.wake(self.behind[at]);
        }
        self.behind.clear();
    }

    /// The next task to run, with its budget. None if the task has ended since it was woken, or has
    /// used up its budget for this turn.
    fn take_next(&mut self, turn: u32) -> Option<(u32, BoxedJob, Waker, u32)> {
        let task = self.run.pop_front()?;
        let slot = self.slots.get_mut(task as usize)?;
        if slot.turn != turn {
            (slot.turn, slot.left) = (turn, budget::TURN);
        }
        if slot.left == 0 {
            self.spent.push_back(task);
            return None;
        }
        slot.queued = false;
        let job = slot.job.take()?;
        let waker = slot.waker.take()?;
        Some((task, job, waker, slot.left))
    }

    /// Prefetches the next task's memory while this one runs.
    fn fetch_next(&self) {
        let next = self.run.front().and_then(|task| self.slots.get(*task as usize));
        if let Some(job) = next.and_then(|slot| slot.job.as_deref()) {
            prefetch(job, PREFETCH_BYTES);
        }
    }

    fn put_back(&mut self, task: u32, job: BoxedJob, waker: Waker, left: u32) {
        if let Some(slot) = self.slots.get_mut(task as usize) {
            slot.left = left;
            slot.job = Some(job);
            slot.waker = Some(waker);
        }
    }

    fn vacate(&mut self, task: u32, waker: Waker) {
        if let Some(slot) = self.slots.get_mut(task as usize) {
            slot.waker = Some(waker);
            self.free.push(task);
        }
    }
}
