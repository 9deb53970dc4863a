//! A machine with few CPUs, which loops and clients share.
//!
//! Without a machine, each loop has its own CPU and clients cost nothing, so that the policy alone
//! decides. A machine adds two influences.
//!
//! *CPUs*: the loop that is woken first need not run first; see `cpus`. An idle CPU is taken at
//! once, but needs time to wake up.
//!
//! *The client program*: load generators are one thread, which handles its events in order. Clients
//! that start together all connect before the first of them sends. A loop that accepts connections
//! meanwhile finds no request that would keep it from accepting more.

use std::collections::VecDeque;
use std::time::Duration;

use super::cpus::{Cpus, Timer, TimerOutcome};
use super::{ModelEvent, World};

/// A machine's CPUs, and the time that things take on it.
#[derive(Clone, Debug)]
pub struct Machine {
    /// CPUs for loops and clients together.
    pub cpus: usize,
    /// The time from a wake-up until an idle CPU runs its first instruction, drawn at random.
    pub wakes: Vec<Duration>,
    /// The time to accept a connection and close it later.
    pub accept: Duration,
    /// The time for a client to connect and to close.
    pub connect: Duration,
    /// The time for a client to send a request and read its answer.
    pub request: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelTask {
    Loop(usize),
    Clients,
}

impl ModelTask {
    /// Its index among all tasks. The client program is the first.
    pub(super) fn index(self) -> usize {
        match self {
            ModelTask::Clients => 0,
            ModelTask::Loop(i) => i + 1,
        }
    }
}

/// The CPUs of a machine, and the queue of its client program.
pub(super) struct Host {
    machine: Machine,
    cpus: Cpus,
    chores: VecDeque<ModelEvent>,
    /// The client program is computing for its first chore.
    at_work: bool,
}

impl World {
    /// Makes loops and clients share this machine from now on.
    pub fn share(&mut self, machine: Machine) {
        let cpus = Cpus::new(machine.cpus, self.loops.len());
        self.host = Some(Host { machine, cpus, chores: VecDeque::new(), at_work: false });
    }

    /// `event` happens when the task has computed for `cost`. A task that is on no CPU is woken.
    /// With `late` an idle CPU first takes time to wake up.
    pub(super) fn compute(
        &mut self,
        task: ModelTask,
        cost: Duration,
        event: ModelEvent,
        late: bool,
    ) {
        let (now, random, chance) = (self.now, self.random(), self.random());
        let Some(host) = &mut self.host else { return self.schedule(now + cost, event) };
        let is_handler = matches!(event, ModelEvent::Answer(..));
        let cost = if is_handler { cost } else { cost.mul_f64(jitter(chance)) };
        let n = host.machine.wakes.len().max(1) as u64;
        let wake = host.machine.wakes.get((random % n) as usize).filter(|_| late);
        let wake = wake.copied().unwrap_or_default();
        let timers = host.cpus.compute(now, task, (cost, wake), event);
        self.set(timers);
    }

    /// The task has ended.
    pub(super) fn forget(&mut self, task: ModelTask) {
        if let Some(host) = &mut self.host {
            let timers = host.cpus.forget(self.now, task);
            self.set(timers);
        }
    }

    /// The task was stopped before its event.
    pub(super) fn put_off(&mut self, task: ModelTask) {
        if let Some(host) = &mut self.host {
            let timers = host.cpus.put_off(self.now, task);
            self.set(timers);
        }
    }

    /// The task sleeps and leaves its CPU to others.
    pub(super) fn leave(&mut self, task: ModelTask) {
        if let Some(host) = &mut self.host {
            let timers = host.cpus.leave(self.now, task);
            self.set(timers);
        }
    }

    /// A timer of a CPU has expired. Returns the event that happens now, if any.
    pub(super) fn on_cpu(&mut self, cpu: usize, token: u64) -> Option<ModelEvent> {
        match self.host.as_mut()?.cpus.ended(self.now, cpu, token) {
            TimerOutcome::Event(event) => Some(event),
            TimerOutcome::Timers(timers) => {
                self.set(timers);
                None
            }
        }
    }

    fn set(&mut self, timers: Vec<Timer>) {
        for (at, cpu, token) in timers {
            self.schedule(at, ModelEvent::OnCpu(cpu, token));
        }
    }

    /// The cost of accepting `n` connections: half of the whole cost of a connection.
    pub(super) fn cost_of_accepts(&self, n: u64) -> Duration {
        self.cost_of_closing() * u32::try_from(n).unwrap_or(u32::MAX)
    }

    /// The cost of closing a connection: the other half.
    pub(super) fn cost_of_closing(&self) -> Duration {
        self.host.as_ref().map_or(Duration::ZERO, |host| host.machine.accept / 2)
    }

    /// Queues an event for the client program.
    pub(super) fn chore(&mut self, event: ModelEvent) {
        let Some(host) = &mut self.host else { return self.play(event) };
        host.chores.push_back(event);
        if !host.at_work {
            self.next_chore(true);
        }
    }

    /// Schedules a client's next event after a pause. Without a pause the client program goes on
    /// without sleeping.
    pub(super) fn go_on_after(&mut self, pause: Duration, event: ModelEvent) {
        match &mut self.host {
            Some(host) if pause.is_zero() => host.chores.push_back(event),
            _ => self.schedule(self.now + pause, event),
        }
    }

    /// The client program has computed for its first chore. The chore's event happens now.
    pub(super) fn do_chore(&mut self) {
        let first = self.host.as_mut().and_then(|host| host.chores.pop_front());
        if let Some(event) = first {
            self.play(event);
        }
        self.next_chore(false);
    }

    fn next_chore(&mut self, late: bool) {
        let Some(host) = &mut self.host else { return };
        let (connect, request) = (host.machine.connect, host.machine.request);
        let cost = host.chores.front().map(|event| match event {
            ModelEvent::Connect(client) if self.clients.is_new(*client) => connect * 2 / 3,
            // The previous answer is read, and its connection closed, first.
            ModelEvent::Connect(_) => connect + request / 2,
            ModelEvent::Request(client) if self.clients.is_another(*client) => request,
            _ => request / 2,
        });
        host.at_work = cost.is_some();
        match cost {
            Some(cost) => self.compute(ModelTask::Clients, cost, ModelEvent::Chore, late),
            None => self.leave(ModelTask::Clients),
        }
    }

    fn play(&mut self, event: ModelEvent) {
        match event {
            ModelEvent::Connect(client) => self.connect(client),
            ModelEvent::Request(client) => self.request(client),
            _ => {}
        }
    }
}

/// The cost of a system call as a share of its mean: a constant half, and an exponentially
/// distributed other half.
fn jitter(random: u64) -> f64 {
    let share = (random >> 11) as f64 / (1u64 << 53) as f64;
    0.5 - 0.5 * (1.0 - share).ln()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::AcceptPolicy;
    use crate::model::{ModelClient, What};

    const MS: Duration = Duration::from_millis(1);

    fn shared(kind: AcceptPolicy, loops: usize) -> World {
        let [wake, accept, connect, request] = [20, 15, 30, 10].map(Duration::from_micros);
        let mut world = World::new(kind, loops, Instant::now());
        world.share(Machine { cpus: 2, wakes: vec![wake], accept, connect, request });
        world
    }

    fn answered(computes: bool) -> u64 {
        let mut world = shared(AcceptPolicy::Fair, 12);
        let gap = Duration::ZERO;
        (0..24).for_each(|_| {
            world.client(MS, ModelClient { computes, gap, ..ModelClient::closing(MS) })
        });
        world.run(MS * 101).answered.iter().sum()
    }

    #[test]
    fn two_cpus_compute_for_two_and_twelve_sleep_at_once() {
        let (computed, slept) = (answered(true), answered(false));
        assert!((160..200).contains(&computed), "{computed}");
        assert!((900..1200).contains(&slept), "{slept}");
    }

    #[test]
    fn clients_that_come_together_connect_before_the_first_sends() {
        let mut world = shared(AcceptPolicy::Exclusive, 3);
        world.take_notes();
        (0..20).for_each(|_| {
            world.client(MS, ModelClient { gap: Duration::ZERO, ..ModelClient::once(MS) })
        });
        world.run(MS * 100);
        let came = |what: &What| matches!(what, What::Arrived { .. });
        let last = world.notes().iter().rfind(|note| came(&note.what)).map(|note| note.at);
        let first = world.witness().latencies.iter().min().copied();
        assert!(last < first.map(|after| after + MS), "{last:?} {first:?}");
        let taken = &world.witness().accepted;
        assert!(taken.iter().any(|&n| n >= 14), "nothing kept the first from most: {taken:?}");
    }

    #[test]
    fn of_all_that_are_woken_the_first_is_not_always_first() {
        let spread = |wakes: [u64; 2]| {
            let mut world = shared(AcceptPolicy::Herd, 3);
            if let Some(host) = &mut world.host {
                host.machine.wakes = wakes.map(Duration::from_micros).to_vec();
            }
            let (gap, work) = (Duration::ZERO, Duration::ZERO);
            (1..=6).for_each(|i| {
                world.client(MS * 20 * i, ModelClient { gap, ..ModelClient::once(work) })
            });
            world.run(MS * 1000).accepted.clone()
        };
        let slow = spread([5, 500]);
        assert!(slow.iter().filter(|&&n| n > 0).count() > 1, "{slow:?}");
    }
}
