//! The coroutines of a run. Each is found by its number or its id, so that a wake-up, an end and a
//! join cost the same however many there are.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use super::reading::Reading;
use crate::modules::lua::anchors::{Anchor, Packed};
use crate::modules::lua::yield_request::{Reply, ThreadId, Wait};

/// A coroutine of a run. The first is the script itself, the others are light threads.
pub(super) struct Routine {
    thread: Anchor,
    /// The id by which other coroutines wait for it.
    id: Option<ThreadId>,
    state: RoutineState,
    /// Its number, in the order of creation.
    number: u64,
    /// Made when it waits beside other coroutines.
    waker: Option<Waker>,
}

pub(super) enum RoutineState {
    Ready(Reply),
    /// Running a step, or waiting for an operation on the request.
    Busy,
    Waiting(Wait),
    /// Waiting for subrequests. It cannot be killed.
    Capturing(Wait),
    /// Waiting for more of the request's body.
    Reading(Rc<Reading>),
    /// Waiting for the first of these light threads to end, in the order of the script's call.
    Joining(Vec<ThreadId>),
    Ended(bool, Packed),
}

/// The coroutines, in the order of their numbers.
#[derive(Default)]
pub(super) struct Routines {
    list: VecDeque<Routine>,
    /// The numbers of the light threads.
    numbers: HashMap<ThreadId, u64>,
    /// The highest number so far.
    newest: u64,
    counts: Counts,
    /// Whether the script waits with the waker of the task, since there was no light thread.
    is_alone: bool,
    /// Present once there was a light thread.
    woken: Option<Arc<Woken>>,
}

/// Numbers of coroutines.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Those that have not ended.
    live: usize,
    /// Those that wait for something other than light threads.
    waiting: usize,
    /// Those that read the body.
    reading: usize,
}

/// The coroutines whose waits have to be polled.
#[derive(Default)]
struct Woken(Mutex<WokenState>);

#[derive(Default)]
struct WokenState {
    numbers: Vec<u64>,
    /// Wakes the task of the run.
    task: Option<Waker>,
}

struct RoutineWaker {
    number: u64,
    woken: Arc<Woken>,
}

impl Woken {
    fn lock(&self) -> MutexGuard<'_, WokenState> {
        // No change can be half done, so the state is valid after a panic.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn push(&self, number: u64) {
        let mut state = self.lock();
        state.numbers.push(number);
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Wake for RoutineWaker {
    fn wake(self: Arc<Self>) {
        self.woken.push(self.number);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.push(self.number);
    }
}

impl RoutineState {
    /// What it counts for in [`Counts`].
    fn counts(&self) -> Counts {
        use RoutineState::{Busy, Capturing, Ended, Joining, Reading, Ready, Waiting};
        let (live, waiting, reading) = match self {
            Ended(..) => (0, 0, 0),
            Ready(_) | Busy | Joining(_) => (1, 0, 0),
            Waiting(_) | Capturing(_) => (1, 1, 0),
            Reading(_) => (1, 1, 1),
        };
        Counts { live, waiting, reading }
    }
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.live += other.live;
        self.waiting += other.waiting;
        self.reading += other.reading;
    }

    fn remove(&mut self, other: Counts) {
        self.live -= other.live;
        self.waiting -= other.waiting;
        self.reading -= other.reading;
    }
}

impl Routine {
    /// Its number, in the order of creation.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn id(&self) -> Option<ThreadId> {
        self.id
    }

    pub(super) fn state(&self) -> &RoutineState {
        &self.state
    }

    pub(super) fn thread(&self) -> &Anchor {
        &self.thread
    }
}

impl Routines {
    /// Begins with the coroutine of the script.
    pub(super) fn new(thread: Anchor) -> Routines {
        let mut routines = Routines { list: VecDeque::with_capacity(1), ..Routines::default() };
        routines.push(thread, None, RoutineState::Busy);
        routines
    }

    /// Adds a coroutine and returns its number.
    pub(super) fn add(&mut self, thread: Anchor, id: Option<ThreadId>, state: RoutineState) -> u64 {
        self.newest += 1;
        self.numbers.extend(id.map(|id| (id, self.newest)));
        self.push(thread, id, state);
        self.newest
    }

    fn push(&mut self, thread: Anchor, id: Option<ThreadId>, state: RoutineState) {
        self.counts.add(state.counts());
        let number = self.newest;
        self.list.push_back(Routine { thread, id, state, number, waker: None });
    }

    pub(super) fn remove(&mut self, i: usize) {
        let Some(routine) = self.list.remove(i) else { return };
        self.counts.remove(routine.state.counts());
        if let Some(id) = routine.id {
            self.numbers.remove(&id);
        }
    }

    /// Takes the values of a coroutine that has ended. No other can wait for it any more.
    pub(super) fn take_values(&mut self, i: usize) -> Option<(bool, Packed)> {
        let routine = self.list.get_mut(i)?;
        let RoutineState::Ended(well, values) = &mut routine.state else { return None };
        if let Some(id) = routine.id.take() {
            self.numbers.remove(&id);
        }
        Some((*well, std::mem::take(values)))
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn get(&self, i: usize) -> Option<&Routine> {
        self.list.get(i)
    }

    /// The index of the coroutine with this number, unless it was removed.
    pub(super) fn index_of(&self, number: u64) -> Option<usize> {
        self.list.binary_search_by_key(&number, |routine| routine.number).ok()
    }

    /// The index of a light thread, unless another has waited for its end.
    pub(super) fn known(&self, id: ThreadId) -> Option<usize> {
        self.index_of(*self.numbers.get(&id)?)
    }

    /// Whether all have ended.
    pub(super) fn are_over(&self) -> bool {
        self.counts.live == 0
    }

    /// Whether one waits for something other than light threads.
    pub(super) fn wait(&self) -> bool {
        self.counts.waiting > 0
    }

    /// The coroutine that reads the body, and what it reads.
    pub(super) fn reading(&self) -> Option<(usize, Rc<Reading>)> {
        if self.counts.reading == 0 {
            return None;
        }
        self.list.iter().enumerate().find_map(|(i, routine)| match &routine.state {
            RoutineState::Reading(reading) => Some((i, reading.clone())),
            _ => None,
        })
    }

    /// Sets the state of a coroutine, and returns the former one.
    pub(super) fn replace(&mut self, i: usize, state: RoutineState) -> RoutineState {
        let Some(routine) = self.list.get_mut(i) else { return state };
        let counts = state.counts();
        let old = std::mem::replace(&mut routine.state, state);
        self.counts.remove(old.counts());
        self.counts.add(counts);
        old
    }

    /// Begins a wait at once.
    pub(super) fn begin(&mut self, i: usize, wait: Wait, cx: &mut Context<'_>) -> Option<Reply> {
        self.replace(i, RoutineState::Waiting(wait));
        self.poll(i, cx)
    }

    /// Begins a wait at the next event.
    pub(super) fn begin_later(&mut self, i: usize, state: RoutineState) {
        self.replace(i, state);
        match self.list.get(i) {
            Some(routine) if self.list.len() > 1 => {
                let number = routine.number;
                self.woken.get_or_insert_default().lock().numbers.push(number);
            }
            _ => self.is_alone = true,
        }
    }

    /// Polls the waits whose wakers were woken, in the order of their wake-ups. Returns the
    /// numbers of those that are over.
    pub(super) fn poll_woken(&mut self, cx: &mut Context<'_>) -> Vec<u64> {
        let mut numbers = Vec::new();
        if std::mem::take(&mut self.is_alone) {
            numbers.push(0);
        }
        if let Some(woken) = &self.woken {
            let mut state = woken.lock();
            state.task = Some(cx.waker().clone());
            numbers.append(&mut state.numbers);
        }
        let mut over = Vec::new();
        for number in numbers {
            let Some(i) = self.index_of(number) else { continue };
            if let Some(reply) = self.poll(i, cx) {
                // The wait is over, should it have been woken twice.
                self.replace(i, RoutineState::Ready(reply));
                over.push(number);
            }
        }
        over
    }

    /// Polls a wait. The only coroutine of a run waits with the waker of the task.
    fn poll(&mut self, i: usize, cx: &mut Context<'_>) -> Option<Reply> {
        let is_alone = self.list.len() == 1;
        if !is_alone {
            self.woken.get_or_insert_default();
        }
        let routine = self.list.get_mut(i)?;
        let (RoutineState::Waiting(wait) | RoutineState::Capturing(wait)) = &mut routine.state
        else {
            return None;
        };
        let polled = match &self.woken {
            Some(woken) if !is_alone => {
                let number = routine.number;
                let waker = routine.waker.get_or_insert_with(|| {
                    Waker::from(Arc::new(RoutineWaker { number, woken: woken.clone() }))
                });
                wait.as_mut().poll(&mut Context::from_waker(waker))
            }
            _ => wait.as_mut().poll(cx),
        };
        match polled {
            Poll::Ready(reply) => Some(reply),
            Poll::Pending => {
                self.is_alone |= is_alone;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;

    use mlua::{Lua, MultiValue};

    use super::*;
    use crate::modules::lua::anchors::Anchors;

    const THREADS: usize = 100;

    #[test]
    fn a_wake_up_polls_one_wait() {
        let anchors = Anchors::new(&Lua::new()).unwrap();
        let mut routines = Routines::new(anchors.keep(0).unwrap());
        let polls = Rc::new(Cell::new(0));
        let wakers: Rc<[Cell<Option<Waker>>]> = (0..THREADS).map(|_| Cell::default()).collect();
        let mut cx = Context::from_waker(Waker::noop());
        for n in 0..THREADS {
            let number = routines.add(anchors.keep(0).unwrap(), None, RoutineState::Busy);
            let (polls, wakers) = (polls.clone(), wakers.clone());
            let mut polled = false;
            let wait = poll_fn(move |cx| {
                polls.set(polls.get() + 1);
                wakers[n].set(Some(cx.waker().clone()));
                let reply: Reply = Box::new(|_| Ok(MultiValue::new()));
                if std::mem::replace(&mut polled, true) {
                    Poll::Ready(reply)
                } else {
                    Poll::Pending
                }
            });
            let i = routines.index_of(number).unwrap();
            assert!(routines.begin(i, Box::pin(wait), &mut cx).is_none());
        }
        assert_eq!((polls.get(), routines.poll_woken(&mut cx)), (THREADS, Vec::new()));
        for n in [70, 3] {
            let waker = wakers[n].take().unwrap();
            waker.wake_by_ref();
            waker.wake();
        }
        assert_eq!(routines.poll_woken(&mut cx), [71, 4]);
        assert_eq!(polls.get(), THREADS + 2);
        assert!(routines.wait() && !routines.are_over());
    }
}
