//! The turns of a loop: it wakes, accepts, answers, and sleeps.

use std::time::Duration;

use super::{
    After, Event, LoadTable, Loop, Probe, Seat, Setup, Shape, TURN, Task, WAKE, What, World, mixed,
};

impl World {
    pub(super) fn setup(&self, me: usize) -> Setup {
        Setup { me, sockets: 1, connections: 1 << 20, mutex_delay: Duration::from_millis(500) }
    }

    pub(super) fn start(&mut self, i: usize) {
        if self.loops[i].seat.is_some() {
            return;
        }
        let (now, setup) = (self.base + self.now, self.setup(i));
        let seat = Seat::take(self.kind, setup, now, &LoadTable::over(&self.words, self.base));
        self.loops[i].seat = Some(seat);
        self.before_wait(i);
        if self.kind.shape() == Shape::AcceptorOne {
            while let Some(client) = self.sockets[0].accept() {
                self.hand_over(client);
            }
        }
    }

    pub(super) fn die(&mut self, i: usize) {
        if self.loops[i].seat.take().is_none() {
            return;
        }
        self.forget(Task::Loop(i));
        self.sockets.iter_mut().for_each(|s| s.remove(i));
        self.table().clear(i);
        let Loop { life, sleep, room, .. } = self.loops[i];
        let next = Loop { life: life + 1, sleep, room, ..Loop::new() };
        let dead = std::mem::replace(&mut self.loops[i], next);
        self.pass_baton(i, true);
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
            let turn = Event::Turn(i, lp.life);
            match self.host {
                None => self.schedule(self.now + WAKE, turn),
                Some(_) => self.compute(Task::Loop(i), self.turn_cost(), turn, true),
            }
        }
    }

    pub(super) fn turn(&mut self, i: usize) {
        let Some(mut seat) = self.loops[i].seat.take() else { return };
        let now = self.base + self.now;
        let probe = seat.after_wait(now, &LoadTable::over(&self.words, self.base));
        self.loops[i].seat = Some(seat);
        let before = self.witness.accepted[i];
        self.accept(i, probe == Probe::Try);
        self.wake_others(i);
        self.loops[i].batch = self.loops[i].ready.len();
        let cost = self.cost_of_accepts(self.witness.accepted[i] - before);
        if cost.is_zero() {
            self.step(i);
        } else {
            self.compute(Task::Loop(i), cost, Event::Handle(i, self.loops[i].life), false);
        }
    }

    pub(super) fn accept(&mut self, i: usize, probe: bool) {
        while let Some(client) = self.loops[i].handed.pop_front() {
            self.admit(i, client);
        }
        let socket = if self.sockets.len() > 1 { i } else { 0 };
        let told = self.sockets[socket].was_told(i);
        if !probe && !self.sockets[socket].reports(i) {
            self.witness.empty += u64::from(told);
            if told {
                self.note(|| What::FoundNone { who: i });
            }
            return;
        }
        let taken = match self.loops[i].has_room() {
            true => self.sockets[socket].accept(),
            false => None,
        };
        if let Some(client) = taken {
            self.admit(i, client);
        }
        if !self.loops[i].has_room() || probe && taken.is_some() {
            self.pass_baton(i, false);
        }
    }

    /// Somebody else looks for what this loop was told of, or everybody.
    pub(super) fn pass_baton(&mut self, i: usize, all: bool) {
        let (now, table) = (self.base + self.now, self.table());
        let who: Vec<usize> = match all {
            true => table.pass_baton_to_all(now, i..i + 1).collect(),
            false => table.pass_baton(now, i..i + 1).into_iter().collect(),
        };
        who.into_iter().for_each(|other| self.wake(other));
    }

    pub(super) fn admit(&mut self, i: usize, client: usize) {
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
        let load = self.loops[i].load();
        let table = LoadTable::over(&self.words, self.base);
        let Some(seat) = self.loops[i].seat.as_mut() else { return };
        if self.kind.shape() == Shape::AcceptorOne {
            seat.taken(&table, load);
        } else if seat.accepted(self.base + self.now, &table, load, 1) == After::Readd {
            self.readd(i);
        }
    }

    pub(super) fn wake_others(&mut self, i: usize) {
        let now = self.base + self.now;
        loop {
            let table = LoadTable::over(&self.words, self.base);
            let Some(seat) = self.loops[i].seat.as_mut() else { return };
            let Some(other) = seat.next_to_wake(now, &table) else { return };
            self.wake(other);
        }
    }

    /// The next handler of this turn, or its end.
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
            if let Some(seat) = &mut lp.seat {
                seat.closed(self.base + self.now);
            }
        }
        match next {
            Some(at) if self.clients.is_kept(client) => self.schedule(at, Event::Request(client)),
            Some(at) => self.schedule(at, Event::Connect(client)),
            None => {}
        }
        self.step(i);
    }

    pub(super) fn before_wait(&mut self, i: usize) {
        let table = LoadTable::over(&self.words, self.base);
        let lp = &mut self.loops[i];
        let (load, able) = (lp.load(), lp.has_room());
        let Some(seat) = lp.seat.as_mut() else { return };
        let wait = seat.before_wait(self.base + self.now, &table, load, able);
        self.arm(i, wait.arm);
        if let Some(other) = wait.wake {
            self.wake(other);
        }
        let socket = if self.sockets.len() > 1 { i } else { 0 };
        let mut reports = self.sockets[socket].reports(i);
        if self.kind.shape() == Shape::AcceptorEach {
            if reports {
                self.sockets[0].remove(i);
                self.take_over(i);
            }
            reports = false;
        }
        let lp = &mut self.loops[i];
        if reports || !lp.ready.is_empty() || !lp.handed.is_empty() {
            let turn = Event::Turn(i, lp.life);
            return self.compute(Task::Loop(i), self.turn_cost(), turn, false);
        }
        lp.asleep = true;
        lp.sleep += 1;
        let sleep = lp.sleep;
        if let Some(at_most) = wait.at_most {
            self.schedule(self.now + at_most, Event::Wake(i, sleep));
        }
        self.leave(Task::Loop(i));
    }

    /// A turn's own cost, where it is not in the cost of what it does.
    fn turn_cost(&self) -> Duration {
        if self.host.is_some() { Duration::from_micros(1) } else { TURN }
    }

    /// What it costs to close a client's connection behind its answer.
    pub(super) fn closing(&self, client: usize) -> Duration {
        if self.clients.is_kept(client) { Duration::ZERO } else { self.cost_of_closing() }
    }

    /// The handler of a request: for how long it blocks its loop, and whether on a CPU.
    fn work(&mut self, i: usize, life: u64, client: usize) {
        let n = self.services.len().max(1);
        let drawn = mixed(self.seed ^ self.clients.seed(client)) as usize % n;
        let drawn = self.services.get(drawn).copied();
        let time = drawn.unwrap_or_else(|| self.clients.work(client));
        if self.clients.computes(client) || time.is_zero() {
            let time = time + self.closing(client);
            return self.compute(Task::Loop(i), time, Event::Answer(i, life, client), false);
        }
        self.leave(Task::Loop(i));
        self.schedule(self.now + time, Event::Rouse(i, life, client));
    }
}
