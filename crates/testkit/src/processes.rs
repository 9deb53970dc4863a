//! A model of several processes, each a thread: one runs at a time, and may be stopped or killed
//! before any step that it takes in shared memory. Others go on there, and new ones take the places
//! of the dead.
//!
//! A crate passes its steps here through its seam, which in its tests is [`seam`].

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::Dice;
use seam::ME;
pub use seam::Me;

/// Processes at a time.
pub const PLACES: usize = 4;
/// How many come after one another in a place.
const LIVES: usize = 4;
/// No case takes so many steps.
const MOST: u64 = 2_000_000;
/// So long is the sleep of one that waits, in steps.
const NAP: u64 = 200;
/// So long a process is stopped at most, in steps of others.
const STOP: usize = 3_000;

/// What a room's seam is in its tests.
pub mod seam {
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::{Arc, Mutex, OnceLock, PoisonError};

    use super::ProcessWorld;

    /// What this thread is in a model: its place there, and its process.
    #[derive(Clone)]
    pub struct Me {
        /// The model.
        pub world: Arc<ProcessWorld>,
        /// Its place.
        pub place: usize,
        /// The process, which no other one is.
        pub owner: u64,
    }

    thread_local! {
        /// What a process remembers, since its memory is a thread's here: of one zone.
        static ENTERED: Cell<u64> = const { Cell::new(0) };
        pub(super) static ME: RefCell<Option<Me>> = const { RefCell::new(None) };
        /// This thread is one of a process in another world's order of things; 0: it is not.
        static OWNER: Cell<u64> = const { Cell::new(0) };
    }

    /// Process ids from here on are no process's: those of processes that are threads.
    const FIRST: u64 = 4_100_000;
    static DEAD: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    static ON_STEP: OnceLock<fn(Holding)> = OnceLock::new();

    fn owner_of(number: usize) -> u64 {
        (FIRST + number as u64) << 32 | 1
    }

    /// This thread is one of the process of this number, where steps [come by a hook](on_step). Where none do, it is what it is.
    pub fn live_as(number: usize) {
        if ON_STEP.get().is_some() {
            OWNER.set(owner_of(number));
        }
    }

    /// That process is dead.
    pub fn dies(number: usize) {
        DEAD.lock().unwrap_or_else(PoisonError::into_inner).push(owner_of(number) >> 32);
    }

    /// What a process may hold where it takes a step.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Holding {
        /// A lock that others wait for: no other process may go on before it.
        Lock,
        /// No lock.
        Nothing,
    }

    /// From now on steps of processes that are threads come by here.
    pub fn on_step(hook: fn(Holding)) {
        let _ = ON_STEP.set(hook);
    }

    /// A process begins, which remembers nothing.
    pub(super) fn begin(me: Me) {
        ENTERED.set(0);
        ME.set(Some(me));
    }

    fn me() -> Option<Me> {
        ME.with_borrow(Clone::clone)
    }

    /// A word is about to change: false if the process that wants that is dead.
    pub fn step() -> bool {
        hook(Holding::Lock);
        me().is_none_or(|me| me.world.step(&me))
    }

    /// The same for a process that holds no lock.
    pub fn free_step() -> bool {
        hook(Holding::Nothing);
        me().is_none_or(|me| me.world.step(&me))
    }

    /// A process that holds no lock is about to read a word.
    pub fn look() {
        hook(Holding::Nothing);
    }

    fn hook(holding: Holding) {
        if let (Some(hook), 1..) = (ON_STEP.get(), OWNER.get()) {
            hook(holding);
        }
    }

    /// This process, if it is a model's.
    pub fn this() -> Option<u64> {
        let owner = Some(OWNER.get()).filter(|owner| *owner != 0);
        owner.or_else(|| me().map(|me| me.owner))
    }

    /// Whether this process has not used this yet. Each process remembers which one used it last.
    pub fn enters(entered: &AtomicU64, this: u64) -> bool {
        match me() {
            Some(_) => ENTERED.replace(this) != this,
            None => entered.swap(this, Relaxed) != this,
        }
    }

    /// Whether a process of the model lives.
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

    /// Others of the model go on; false if there is none.
    pub fn rest() -> bool {
        me().is_some_and(|me| {
            me.world.rest(me.place);
            true
        })
    }
}

/// How a killed process's thread ends.
struct Killed;

#[derive(Clone, Copy)]
struct SimulatedProcess {
    owner: u64,
    lives: bool,
    stopped: u64,
    /// How many have been in its place.
    lived: usize,
}

/// Which process has the turn, and which ones live.
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
    /// Once in so many steps.
    kills: usize,
    stops: usize,
    others: usize,
    /// What a process has found wrong: all end.
    wrong: bool,
}

impl ProcessWorld {
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process lives.
    pub fn lives(&self, owner: u64) -> bool {
        self.core().list.iter().any(|p| p.owner == owner && p.lives)
    }

    fn step(&self, me: &Me) -> bool {
        let mut core = self.core();
        // The dead write nothing, though their threads put things back on their way.
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

    /// One that waits for a lock sleeps for a while.
    fn rest(&self, me: usize) {
        let mut core = self.core();
        core.steps += NAP;
        self.switch(core, me);
    }

    /// The steps so far: the model's time.
    pub fn steps(&self) -> u64 {
        self.core().steps
    }

    /// Others go on.
    pub fn give_way(&self, me: usize) {
        self.switch(self.core(), me);
    }

    /// Another one goes on, and this one later.
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

    /// A process has done all it had to do.
    fn end(&self, place: usize) {
        let mut core = self.core();
        core.bury(place);
        core.pass();
        drop(core);
        self.turns.notify_all();
    }

    /// Waits for the turn of the process that is in a place now; none when no process comes there
    /// any more.
    fn wait_for_turn(&self, place: usize) -> Option<u64> {
        let mut core = self.core();
        while core.running != place && !core.wrong && core.list[place].lives {
            core = self.turns.wait(core).unwrap_or_else(PoisonError::into_inner);
        }
        Some(core.list[place]).filter(|p| p.lives && !core.wrong).map(|p| p.owner)
    }
}

impl Core {
    /// A process is no more, and another one comes in its place, if that was not the last. Now and then it has the id of
    /// the one before.
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

    /// The turn goes to a process that lives and is not stopped; where all are stopped, the first
    /// one goes on.
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
    /// A world in which no process has lived.
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

    /// All live, as `live` says, and die; what one of them has found wrong.
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

    /// Then a process comes that is not harmed, and looks. Returns what it finds wrong.
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

    /// The processes that follow each other in a place; what one of them has found wrong.
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
