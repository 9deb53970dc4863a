//! A machine whose few CPUs the loops and their clients share.
//!
//! Without one, each loop has a CPU of its own and clients cost nothing, so that the policy alone
//! decides. With one, two things more do.
//!
//! *CPUs*: who is woken first need not run first. Tasks get a CPU as equals do in
//! kernel/sched/fair.c: first come, first served, and while others wait each for a slice at most.
//! A CPU that is idle is taken at once, but needs time to wake up itself. (There, each CPU has a
//! queue; `select_idle_sibling` and `sched_balance_newidle` see to it that none is idle beside
//! another one's queue, so that one queue for all comes to nearly the same.)
//!
//! *The client program*: load generators are one thread, which does what it hears of in that
//! order. Clients who come together all connect before the first of them sends, and the loop that
//! takes connections meanwhile finds no request in them that would keep it from taking the next.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Event, World};

/// From one task to the next on the same CPU.
const SWITCH: Duration = Duration::from_micros(2);
/// For how long a task may go on while others wait, on one CPU (`sysctl_sched_base_slice`).
const SLICE: Duration = Duration::from_micros(700);

/// What a machine has, and what things cost on it.
#[derive(Clone, Debug)]
pub struct Machine {
    /// CPUs for loops and clients together.
    pub cpus: usize,
    /// From a wake-up to the first line on a CPU that was idle; drawn at random.
    pub wakes: Vec<Duration>,
    /// To accept a connection and to close it later.
    pub accept: Duration,
    /// For a client to connect, and to close.
    pub connect: Duration,
    /// For a client to send a request and to read the answer.
    pub request: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Loop(usize),
    Clients,
}

/// The CPUs of a machine, and its client program.
pub(super) struct Host {
    machine: Machine,
    running: Vec<Running>,
    waiting: VecDeque<Waiting>,
    chores: VecDeque<Event>,
    /// The client program has begun with a chore.
    at_work: bool,
}

/// Who is on a CPU, and since when.
struct Running {
    task: Task,
    since: Duration,
}

/// Who wants a CPU, for how long, and what happens then.
struct Waiting {
    task: Task,
    cost: Duration,
    event: Event,
}

impl Host {
    fn slice(&self) -> Duration {
        // get_update_sysctl_factor: more with more CPUs, up to eight of them.
        SLICE * (1 + self.machine.cpus.clamp(1, 8).ilog2())
    }

    /// A task that was on a CPU leaves it.
    fn leave(&mut self, task: Task) {
        self.running.retain(|r| r.task != task);
    }
}

impl World {
    /// From now on loops and clients share this machine.
    pub fn share(&mut self, machine: Machine) {
        self.host = Some(Host {
            machine,
            running: Vec::new(),
            waiting: VecDeque::new(),
            chores: VecDeque::new(),
            at_work: false,
        });
    }

    /// `event` happens when the task has computed for `cost`. A task that is not on a CPU was
    /// woken; `late` says that this takes its time on an idle one.
    pub(super) fn compute(&mut self, task: Task, cost: Duration, event: Event, late: bool) {
        let (now, random) = (self.now, self.random());
        let Some(host) = &mut self.host else { return self.schedule(now + cost, event) };
        if let Some(own) = host.running.iter().find(|r| r.task == task) {
            if now - own.since < host.slice() || host.waiting.is_empty() {
                return self.schedule(now + cost, event);
            }
            host.leave(task);
            host.waiting.push_back(Waiting { task, cost, event });
            return self.dispatch();
        }
        if host.running.len() >= host.machine.cpus {
            host.waiting.push_back(Waiting { task, cost, event });
            return;
        }
        host.running.push(Running { task, since: now });
        let n = host.machine.wakes.len().max(1) as u64;
        let wake = host.machine.wakes.get((random % n) as usize).filter(|_| late);
        let wake = wake.copied().unwrap_or_default();
        self.schedule(now + wake + cost, event);
    }

    /// The task sleeps: its CPU is for others.
    pub(super) fn leave(&mut self, task: Task) {
        if let Some(host) = &mut self.host {
            host.leave(task);
            self.dispatch();
        }
    }

    /// The task is no more.
    pub(super) fn forget(&mut self, task: Task) {
        if let Some(host) = &mut self.host {
            host.waiting.retain(|w| w.task != task);
        }
        self.leave(task);
    }

    fn dispatch(&mut self) {
        let now = self.now;
        while let Some(host) = &mut self.host
            && host.running.len() < host.machine.cpus
            && let Some(Waiting { task, cost, event }) = host.waiting.pop_front()
        {
            host.running.push(Running { task, since: now });
            self.schedule(now + SWITCH + cost, event);
        }
    }

    /// What accepting so many connections costs.
    pub(super) fn cost_of_accepts(&self, n: u64) -> Duration {
        let each = self.host.as_ref().map_or(Duration::ZERO, |host| host.machine.accept);
        each * u32::try_from(n).unwrap_or(u32::MAX)
    }

    /// Something for the client program to do, when it comes to it.
    pub(super) fn chore(&mut self, event: Event) {
        let Some(host) = &mut self.host else { return self.play(event) };
        host.chores.push_back(event);
        if !host.at_work {
            self.next_chore(true);
        }
    }

    /// What a client does next, after a pause: without one, the client program does not sleep.
    pub(super) fn go_on_after(&mut self, pause: Duration, event: Event) {
        match &mut self.host {
            Some(host) if pause.is_zero() => host.chores.push_back(event),
            _ => self.schedule(self.now + pause, event),
        }
    }

    /// The client program has computed for its first chore: now it is done.
    pub(super) fn do_chore(&mut self) {
        let first = self.host.as_mut().and_then(|host| host.chores.pop_front());
        if let Some(event) = first {
            self.play(event);
        }
        self.next_chore(false);
    }

    fn next_chore(&mut self, late: bool) {
        let Some(host) = &mut self.host else { return };
        let cost = host.chores.front().map(|event| match event {
            Event::Connect(_) => host.machine.connect,
            _ => host.machine.request,
        });
        host.at_work = cost.is_some();
        match cost {
            Some(cost) => self.compute(Task::Clients, cost, Event::Chore, late),
            None => self.leave(Task::Clients),
        }
    }

    fn play(&mut self, event: Event) {
        match event {
            Event::Connect(client) => self.connect(client),
            Event::Request(client) => self.request(client),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::Kind;
    use crate::model::{Client, What};

    const MS: Duration = Duration::from_millis(1);

    fn shared(kind: Kind, loops: usize) -> World {
        let [wake, accept, connect, request] = [20, 15, 30, 10].map(Duration::from_micros);
        let mut world = World::new(kind, loops, Instant::now());
        world.share(Machine { cpus: 2, wakes: vec![wake], accept, connect, request });
        world
    }

    fn answered(computes: bool) -> u64 {
        let mut world = shared(Kind::Fair, 12);
        let gap = Duration::ZERO;
        (0..24).for_each(|_| world.client(MS, Client { computes, gap, ..Client::closing(MS) }));
        world.run(MS * 101).answered.iter().sum()
    }

    #[test]
    fn two_cpus_compute_for_two_and_twelve_sleep_at_once() {
        let (computed, slept) = (answered(true), answered(false));
        assert!((160..200).contains(&computed), "{computed}");
        assert!((900..1200).contains(&slept), "{slept}");
    }

    #[test]
    fn who_comes_together_connects_before_the_first_sends() {
        let mut world = shared(Kind::Exclusive, 3);
        world.take_notes();
        (0..20).for_each(|_| world.client(MS, Client { gap: Duration::ZERO, ..Client::once(MS) }));
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
            let mut world = shared(Kind::Herd, 3);
            if let Some(host) = &mut world.host {
                host.machine.wakes = wakes.map(Duration::from_micros).to_vec();
            }
            let (gap, work) = (Duration::ZERO, Duration::ZERO);
            (1..=6).for_each(|i| world.client(MS * 20 * i, Client { gap, ..Client::once(work) }));
            world.run(MS * 1000).accepted.clone()
        };
        assert_eq!(spread([5, 5]), [0, 0, 6]);
        let slow = spread([5, 500]);
        assert!(slow.iter().filter(|&&n| n > 0).count() > 1, "{slow:?}");
    }
}
