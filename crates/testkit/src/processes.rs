//! A model of processes that share memory. Each is a thread, and one runs at a time. It may be
//! stopped or killed before any of its steps in shared memory. Then others go on, and new ones
//! replace killed ones.
//!
//! A crate announces its steps through its seam. In its tests, that is [`seam`].

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::Dice;
use seam::ME;
pub use seam::Me;

/// The number of concurrent processes.
pub const PLACES: usize = 4;
/// The number of processes that follow one another in a place.
const LIVES: usize = 4;
/// The limit of steps. A case that reaches it hangs.
const MOST: u64 = 2_000_000;
/// The duration of a sleep, in steps.
const NAP: u64 = 200;
/// The longest stop of a process, in steps.
const STOP: usize = 3_000;

/// The seam of a crate in its tests.
pub mod seam {
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::{Arc, Mutex, OnceLock, PoisonError};

    use super::ProcessWorld;

    /// The identity of a process in a model.
    #[derive(Clone)]
    pub struct Me {
        /// The model.
        pub world: Arc<ProcessWorld>,
        /// Index of its place.
        pub place: usize,
        /// The process: unique among all processes of the model.
        pub owner: u64,
    }

    thread_local! {
        /// The last process of this thread that entered a zone. A thread stands for the memory of a
        /// process.
        static ENTERED: Cell<u64> = const { Cell::new(0) };
        pub(super) static ME: RefCell<Option<Me>> = const { RefCell::new(None) };
        /// The process of this thread in the simulated world. 0 if there is none.
        static OWNER: Cell<u64> = const { Cell::new(0) };
    }

    /// The first process id for processes that are threads. No real process has such an id.
    const FIRST: u64 = 4_100_000;
    static DEAD: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    static ON_STEP: OnceLock<fn(Holding)> = OnceLock::new();

    fn owner_of(number: usize) -> u64 {
        (FIRST + number as u64) << 32 | 1
    }

    /// Makes this thread one of the process with this number, if there is [a hook](on_step).
    pub fn live_as(number: usize) {
        if ON_STEP.get().is_some() {
            OWNER.set(owner_of(number));
        }
    }

    /// Marks the process as dead.
    pub fn dies(number: usize) {
        DEAD.lock().unwrap_or_else(PoisonError::into_inner).push(owner_of(number) >> 32);
    }

    /// Whether a process holds a lock at a step.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Holding {
        /// A lock for which others wait, so no other process may run before this one.
        Lock,
        /// No lock.
        Nothing,
    }

    /// Sets the hook that is called at each step of processes that are threads.
    pub fn on_step(hook: fn(Holding)) {
        let _ = ON_STEP.set(hook);
    }

    /// Starts a process without memory of earlier ones.
    pub(super) fn begin(me: Me) {
        ENTERED.set(0);
        ME.set(Some(me));
    }

    fn me() -> Option<Me> {
        ME.with_borrow(Clone::clone)
    }

    /// Called before a word changes. False if the process is dead and must not change it.
    pub fn step() -> bool {
        hook(Holding::Lock);
        me().is_none_or(|me| me.world.step(&me))
    }

    /// As [`step`], for a process without a lock.
    pub fn free_step() -> bool {
        hook(Holding::Nothing);
        me().is_none_or(|me| me.world.step(&me))
    }

    /// Called before a process without a lock reads a word.
    pub fn look() {
        hook(Holding::Nothing);
    }

    fn hook(holding: Holding) {
        if let (Some(hook), 1..) = (ON_STEP.get(), OWNER.get()) {
            hook(holding);
        }
    }

    /// The process of this thread, if it is one of a model.
    pub fn this() -> Option<u64> {
        let owner = Some(OWNER.get()).filter(|owner| *owner != 0);
        owner.or_else(|| me().map(|me| me.owner))
    }

    /// Whether this process has not entered yet. The last one is remembered per process.
    pub fn enters(entered: &AtomicU64, this: u64) -> bool {
        match me() {
            Some(_) => ENTERED.replace(this) != this,
            None => entered.swap(this, Relaxed) != this,
        }
    }

    /// Whether a process of the model is alive.
    pub fn is_alive(owner: u64) -> Option<bool> {
        if let Some(me) = me() {
            return Some(me.world.lives(owner));
        }
        if ON_STEP.get().is_none() || owner >> 32 < FIRST {
            return None;
        }
        let dead = DEAD.lock().unwrap_or_else(PoisonError::into_inner);
        Some(!dead.contains(&(owner >> 32)))
    }

    /// Lets other processes of the model run. False without a model.
    pub fn rest() -> bool {
        me().is_some_and(|me| {
            me.world.rest(me.place);
            true
        })
    }
}

/// The panic payload of a killed process.
struct Killed;

#[derive(Clone, Copy)]
struct SimulatedProcess {
    owner: u64,
    lives: bool,
    stopped: u64,
    /// The number of processes in its place so far.
    lived: usize,
}

/// The processes of a model, and which one has the turn.
pub struct ProcessWorld {
    core: Mutex<Core>,
    turns: Condvar,
}

struct Core {
    dice: Dice,
    list: Vec<SimulatedProcess>,
    running: usize,
    steps: u64,
    born: u64,
    /// How often a process is killed, stopped or switched: once in this many steps.
    kills: usize,
    stops: usize,
    others: usize,
    /// Whether a process has found a fault, so that all end.
    wrong: bool,
}

impl ProcessWorld {
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process is alive.
    pub fn lives(&self, owner: u64) -> bool {
        self.core().list.iter().any(|p| p.owner == owner && p.lives)
    }

    fn step(&self, me: &Me) -> bool {
        let mut core = self.core();
        // A dead process writes nothing, although its thread still unwinds.
        if std::thread::panicking() || core.list[me.place].owner != me.owner {
            return false;
        }
        let Core { dice, kills, stops, others, .. } = &mut *core;
        if dice.one_in(*kills) {
            core.bury(me.place);
            core.pass();
            drop(core);
            self.turns.notify_all();
            resume_unwind(Box::new(Killed));
        }
        let stops = dice.one_in(*stops).then(|| 1 + dice.below(STOP) as u64);
        let switches = dice.one_in(*others);
        core.steps += 1;
        if let Some(time) = stops {
            core.list[me.place].stopped = core.steps + time;
        }
        if switches || stops.is_some() {
            self.switch(core, me.place);
        }
        true
    }

    /// Sleeps while the process waits for a lock.
    fn rest(&self, me: usize) {
        let mut core = self.core();
        core.steps += NAP;
        self.switch(core, me);
    }

    /// The steps so far, which are the model's time.
    pub fn steps(&self) -> u64 {
        self.core().steps
    }

    /// Lets other processes run.
    pub fn give_way(&self, me: usize) {
        self.switch(self.core(), me);
    }

    /// Gives the turn to another process and waits for the next one.
    fn switch(&self, mut core: MutexGuard<'_, Core>, me: usize) {
        core.pass();
        self.turns.notify_all();
        while core.running != me && !core.wrong {
            core = self.turns.wait(core).unwrap_or_else(PoisonError::into_inner);
        }
        let wrong = core.wrong;
        drop(core);
        if wrong && !std::thread::panicking() {
            resume_unwind(Box::new(Killed));
        }
    }

    /// Ends a process that has completed its work.
    fn end(&self, place: usize) {
        let mut core = self.core();
        core.bury(place);
        core.pass();
        drop(core);
        self.turns.notify_all();
    }

    /// Waits for the turn of the process in a place. `None` when no further process comes there.
    fn wait_for_turn(&self, place: usize) -> Option<u64> {
        let mut core = self.core();
        while core.running != place && !core.wrong && core.list[place].lives {
            core = self.turns.wait(core).unwrap_or_else(PoisonError::into_inner);
        }
        Some(core.list[place]).filter(|p| p.lives && !core.wrong).map(|p| p.owner)
    }
}

impl Core {
    /// Ends a process. Another one replaces it, unless it was the last, and may have the same
    /// process id.
    fn bury(&mut self, place: usize) {
        let lived = self.list[place].lived + 1;
        self.list[place] = match lived <= LIVES {
            true => self.born(place, lived),
            false => SimulatedProcess { owner: 0, lives: false, stopped: 0, lived },
        };
    }

    fn born(&mut self, place: usize, lived: usize) -> SimulatedProcess {
        self.born += 1;
        let pid = if self.dice.one_in(2) { place as u64 + 1 } else { 100 + self.born };
        SimulatedProcess { owner: pid << 32 | self.born, lives: true, stopped: 0, lived }
    }

    /// Gives the turn to a process that is alive and not stopped. If all are stopped, the first to
    /// continue gets it.
    fn pass(&mut self) {
        self.steps += 1;
        assert!(self.steps < MOST, "a process waits for ever");
        let living: Vec<usize> = (0..self.list.len()).filter(|i| self.list[*i].lives).collect();
        let awake = |i: &usize| self.list[*i].stopped <= self.steps;
        let ready: Vec<usize> = living.iter().copied().filter(awake).collect();
        if !ready.is_empty() {
            self.running = ready[self.dice.below(ready.len())];
        } else if let Some(first) = living.into_iter().min_by_key(|i| self.list[*i].stopped) {
            self.running = first;
            self.steps = self.list[first].stopped;
        }
    }
}

impl ProcessWorld {
    /// A model without processes.
    pub fn new(seed: u64) -> Arc<ProcessWorld> {
        let mut dice = Dice::new(seed);
        let kills = dice.pick(&[60, 300, 2_000]);
        let (stops, others) = (dice.pick(&[200, 2_000]), dice.pick(&[50, 500]));
        let nobody = SimulatedProcess { owner: 0, lives: false, stopped: 0, lived: LIVES };
        let list = vec![nobody; PLACES + 1];
        let (running, steps, born, wrong) = (0, 0, 0, false);
        let core = Core { dice, list, running, steps, born, kills, stops, others, wrong };
        Arc::new(ProcessWorld { core: Mutex::new(core), turns: Condvar::new() })
    }

    /// Runs `live` for all processes until they have ended. Returns the panic of the first that
    /// found a fault.
    pub fn run(
        self: &Arc<Self>,
        seed: u64,
        live: impl Fn(Me, Dice) + Sync,
    ) -> Option<Box<dyn Any + Send>> {
        for place in 0..PLACES {
            let mut core = self.core();
            core.list[place] = core.born(place, 1);
        }
        std::thread::scope(|scope| {
            let fill = |place: usize| {
                let (dice, live) = (Dice::salted(seed, ["a", "b", "c", "d"][place]), &live);
                scope.spawn(move || self.fill_place(place, dice, live))
            };
            let places: Vec<_> = (0..PLACES).map(fill).collect();
            places.into_iter().filter_map(|place| place.join().unwrap_or(None)).next()
        })
    }

    /// Runs one more process, without faults, that checks the result. Returns its panic.
    pub fn look(self: &Arc<Self>, look: impl FnOnce(Me)) -> Option<Box<dyn Any + Send>> {
        let mut core = self.core();
        (core.kills, core.stops, core.others) = (usize::MAX, usize::MAX, usize::MAX);
        core.list[PLACES] = core.born(PLACES, 1);
        core.running = PLACES;
        let me = Me { world: Arc::clone(self), place: PLACES, owner: core.list[PLACES].owner };
        drop(core);
        seam::begin(me.clone());
        let found = catch_unwind(AssertUnwindSafe(|| look(me))).err();
        ME.set(None);
        found
    }

    /// Runs the processes of a place, one after another. Returns the panic of the first that found
    /// a fault.
    fn fill_place(
        self: &Arc<Self>,
        place: usize,
        mut dice: Dice,
        live: &impl Fn(Me, Dice),
    ) -> Option<Box<dyn Any + Send>> {
        while let Some(owner) = self.wait_for_turn(place) {
            let me = Me { world: Arc::clone(self), place, owner };
            seam::begin(me.clone());
            let life = Dice::new(dice.any());
            let ended = catch_unwind(AssertUnwindSafe(|| {
                live(me, life);
                self.end(place);
            }));
            ME.set(None);
            if let Err(why) = ended
                && !why.is::<Killed>()
            {
                self.core().wrong = true;
                self.turns.notify_all();
                return Some(why);
            }
        }
        None
    }
}
