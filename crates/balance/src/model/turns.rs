//! The turns of a loop: it wakes up, its driver accepts, it answers, and it sleeps.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::{ModelEvent, ModelLoop, ModelTask, SocketLayout, TURN, WAKE, What, World, mixed};
use crate::{
    AcceptDriver, AcceptOutcome, ListenerSet, Load, LoadTable, LoopPolicy, LoopSetup, Stance,
};

/// The [`ListenerSet`] of loop `i`. A listener is a socket's number.
struct ModelListeners<'a> {
    world: &'a mut World,
    i: usize,
}

impl ListenerSet for ModelListeners<'_> {
    type Listener = usize;

    fn now(&self) -> Instant {
        self.world.base + self.world.now
    }

    fn load(&self) -> Load {
        self.world.loops[self.i].load()
    }

    fn has_room(&self) -> bool {
        self.world.loops[self.i].has_room()
    }

    fn shared(&self) -> Vec<usize> {
        if self.world.sockets.len() > 1 { Vec::new() } else { vec![0] }
    }

    fn is_shared(&self, _: usize) -> bool {
        self.world.sockets.len() == 1
    }

    fn accept(&mut self, listener: usize) -> AcceptOutcome {
        let taken = self.world.sockets[listener].accept();
        self.admit(taken)
    }

    fn take_handed(&mut self) -> AcceptOutcome {
        let handed = self.world.loops[self.i].handed.pop_front();
        self.admit(handed)
    }

    fn arm(&mut self, stance: Stance, _: bool) -> bool {
        self.world.arm(self.i, stance);
        true
    }

    fn readd(&mut self, _: usize) {
        self.world.readd(self.i);
    }

    fn notify(&mut self, i: usize) {
        self.world.wake(i);
    }

    fn of(&self, i: usize) -> Vec<usize> {
        vec![i]
    }
}

impl ModelListeners<'_> {
    fn admit(&mut self, client: Option<usize>) -> AcceptOutcome {
        let Some(client) = client else { return AcceptOutcome::Empty };
        self.world.admit(self.i, client);
        AcceptOutcome::Accepted
    }
}

impl World {
    pub(super) fn setup(&self, me: usize) -> LoopSetup {
        LoopSetup { me, sockets: 1, connections: 1 << 20, mutex_delay: Duration::from_millis(500) }
    }

    pub(super) fn start(&mut self, i: usize) {
        if self.loops[i].driver.is_some() {
            return;
        }
        let (now, setup) = (self.base + self.now, self.setup(i));
        let policy =
            LoopPolicy::take(self.kind, setup, now, &LoadTable::over(&self.words, self.base));
        self.loops[i].driver = Some(AcceptDriver::new(policy, false));
        self.before_wait(i);
        if self.kind.shape() == SocketLayout::AcceptorOne {
            while let Some(client) = self.sockets[0].accept() {
                self.hand_over(client);
            }
        }
    }

    pub(super) fn die(&mut self, i: usize) {
        if self.loops[i].driver.take().is_none() {
            return;
        }
        self.forget(ModelTask::Loop(i));
        self.sockets.iter_mut().for_each(|s| s.remove(i));
        self.table().clear(i);
        let ModelLoop { life, sleep, room, .. } = self.loops[i];
        let next = ModelLoop { life: life + 1, sleep, room, ..ModelLoop::new() };
        let dead = std::mem::replace(&mut self.loops[i], next);
        self.pass_recheck(i);
        let gone = dead.connections.into_iter().chain(dead.handed);
        for client in gone {
            self.witness.lost += 1;
            self.clients.lost(client);
        }
    }

    pub(super) fn go_on(&mut self, i: usize) {
        let lp = &mut self.loops[i];
        lp.stopped = false;
        let held = std::mem::take(&mut lp.held);
        let was_asleep = lp.asleep;
        for event in held {
            self.schedule(self.now, event);
        }
        if was_asleep {
            self.wake(i);
        }
    }

    pub(super) fn wake(&mut self, i: usize) {
        let lp = &mut self.loops[i];
        if lp.is_sleeping() {
            lp.asleep = false;
            let turn = ModelEvent::Turn(i, lp.life);
            match self.host {
                None => self.schedule(self.now + WAKE, turn),
                Some(_) => self.compute(ModelTask::Loop(i), self.turn_cost(), turn, true),
            }
        }
    }

    /// Calls `act` with the driver of loop `i`. None if the loop is dead.
    fn with_driver<T>(
        &mut self,
        i: usize,
        act: impl FnOnce(&mut AcceptDriver, &mut ModelListeners<'_>, &LoadTable<'_>) -> T,
    ) -> Option<T> {
        let mut driver = self.loops[i].driver.take()?;
        let (words, base) = (Rc::clone(&self.words), self.base);
        let out = act(
            &mut driver,
            &mut ModelListeners { world: self, i },
            &LoadTable::over(&words, base),
        );
        self.loops[i].driver = Some(driver);
        Some(out)
    }

    pub(super) fn turn(&mut self, i: usize) {
        let (before, shape) = (self.witness.accepted[i], self.kind.shape());
        let reported = self.look(i);
        let alive = self.with_driver(i, |driver, listeners, table| {
            driver.after_wait(listeners, table);
            match shape {
                SocketLayout::AcceptorEach => {
                    while listeners.take_handed() == AcceptOutcome::Accepted {
                        driver.acceptor_accepted(listeners, table);
                    }
                }
                SocketLayout::AcceptorOne => driver.take_handed(listeners, table),
                _ => reported
                    .into_iter()
                    .for_each(|listener| driver.accept(listeners, table, listener)),
            }
            driver.after_accepts(listeners, table);
        });
        if alive.is_none() {
            return;
        }
        self.loops[i].batch = self.loops[i].ready.len();
        let cost = self.cost_of_accepts(self.witness.accepted[i] - before);
        if cost.is_zero() {
            self.step(i);
        } else {
            self.compute(
                ModelTask::Loop(i),
                cost,
                ModelEvent::Handle(i, self.loops[i].life),
                false,
            );
        }
    }

    /// The socket that the wait of loop `i` reports.
    fn look(&mut self, i: usize) -> Option<usize> {
        let socket = if self.sockets.len() > 1 { i } else { 0 };
        let was_ready = self.sockets[socket].has_ready(i);
        if self.sockets[socket].reports(i) {
            return Some(socket);
        }
        if was_ready {
            self.witness.empty += 1;
            self.note(|| What::FoundNone { who: i });
        }
        None
    }

    /// The master's part when a loop was stopped or killed: all loops recheck, since the kernel may
    /// have woken that one.
    pub(super) fn pass_recheck(&mut self, i: usize) {
        let (now, table) = (self.base + self.now, self.table());
        table.suspect(now, i..i + 1);
        let who: Vec<usize> = table.pass_recheck_to_all(now, i..i + 1).collect();
        who.into_iter().for_each(|other| self.wake(other));
    }

    fn admit(&mut self, i: usize, client: usize) {
        let lp = &mut self.loops[i];
        lp.connections.insert(client);
        lp.inflight += 1;
        lp.accepted_since_added = true;
        if self.clients.admitted(client, i) {
            lp.ready.push_back(client);
        }
        self.witness.accepted[i] += 1;
        let left = self.sockets[self.registration(i).0].len();
        self.note(|| What::Accepted { who: i, connection: client, left });
    }

    /// Runs the next handler of this turn, or ends the turn.
    pub(super) fn step(&mut self, i: usize) {
        let lp = &mut self.loops[i];
        let next = lp.batch.checked_sub(1).and_then(|rest| {
            lp.batch = rest;
            lp.ready.pop_front()
        });
        match next {
            Some(client) => {
                lp.inflight += u64::from(self.clients.is_another(client));
                let life = lp.life;
                self.work(i, life, client);
            }
            None => self.before_wait(i),
        }
    }

    pub(super) fn answer(&mut self, i: usize, client: usize) {
        self.witness.answered[i] += 1;
        let lp = &mut self.loops[i];
        lp.inflight = lp.inflight.saturating_sub(1);
        let (latency, next) = self.clients.answered(client, self.now);
        self.witness.latencies.push(latency);
        if !self.clients.is_kept(client) {
            lp.connections.remove(&client);
        }
        match next {
            Some(at) if self.clients.is_kept(client) => {
                self.schedule(at, ModelEvent::Request(client))
            }
            Some(at) => self.schedule(at, ModelEvent::Connect(client)),
            None => {}
        }
        self.step(i);
    }

    pub(super) fn before_wait(&mut self, i: usize) {
        let waits =
            self.with_driver(i, |driver, listeners, table| driver.before_wait(listeners, table));
        let Some((_, at_most)) = waits else { return };
        let socket = if self.sockets.len() > 1 { i } else { 0 };
        let mut reports = self.sockets[socket].reports(i);
        if self.kind.shape() == SocketLayout::AcceptorEach {
            if reports {
                self.sockets[0].remove(i);
                self.take_over(i);
            }
            reports = false;
        }
        let lp = &mut self.loops[i];
        if reports || !lp.ready.is_empty() || !lp.handed.is_empty() {
            let turn = ModelEvent::Turn(i, lp.life);
            return self.compute(ModelTask::Loop(i), self.turn_cost(), turn, false);
        }
        lp.asleep = true;
        lp.sleep += 1;
        let sleep = lp.sleep;
        if let Some(at_most) = at_most {
            self.schedule(self.now + at_most, ModelEvent::Wake(i, sleep));
        }
        self.leave(ModelTask::Loop(i));
    }

    /// The cost of a turn itself. With a machine, most of it is part of the cost of accepts and
    /// requests.
    fn turn_cost(&self) -> Duration {
        if self.host.is_some() { Duration::from_micros(1) } else { TURN }
    }

    /// The cost of closing the client's connection after its answer.
    pub(super) fn closing(&self, client: usize) -> Duration {
        if self.clients.is_kept(client) { Duration::ZERO } else { self.cost_of_closing() }
    }

    /// Starts the handler of a request, which blocks the loop with or without using a CPU.
    fn work(&mut self, i: usize, life: u64, client: usize) {
        let n = self.services.len().max(1);
        let drawn = mixed(self.seed ^ self.clients.seed(client)) as usize % n;
        let drawn = self.services.get(drawn).copied();
        let time = drawn.unwrap_or_else(|| self.clients.work(client));
        if self.clients.computes(client) || time.is_zero() {
            let time = time + self.closing(client);
            return self.compute(
                ModelTask::Loop(i),
                time,
                ModelEvent::Answer(i, life, client),
                false,
            );
        }
        self.leave(ModelTask::Loop(i));
        self.schedule(self.now + time, ModelEvent::Rouse(i, life, client));
    }
}
