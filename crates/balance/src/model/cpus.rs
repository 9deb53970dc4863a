//! Which task is on which CPU: the part of kernel/sched/fair.c that orders woken tasks.
//!
//! Each CPU has a queue of its own. A woken task takes an idle CPU, the one it had before if it
//! can; else it queues up where fewest are. The tasks of one queue are owed the same time: those
//! that had no more than the mean may run, and of these the one with the slice that ends first does
//! (pick_eevdf). A task stays on the CPU for a slice, or until it had more than the mean and a
//! woken task goes before it. So a woken worker may be on the CPU at once, before workers that were
//! woken earlier, or wait behind the client for a whole slice. That decides which loop takes the
//! connections of a burst. A CPU that has nothing to do takes a waiting task of another one only
//! after a while (sched_balance_newidle: not for pauses shorter than a move costs).

use std::time::Duration;

use super::{ModelEvent, ModelTask};

/// From one task to the next on the same CPU.
const SWITCH: i64 = 2_000;
/// For how long a task may go on while others wait, on one CPU (`sysctl_sched_base_slice`).
const SLICE: i64 = 700_000;
/// How long a CPU is idle before it takes another one's task (`sysctl_sched_migration_cost`).
const MOVE: Duration = Duration::from_micros(500);

/// All CPUs, and what each task had of them.
pub(super) struct Cpus {
    list: Vec<Cpu>,
    accounts: Vec<Account>,
}

/// Times are in nanoseconds, since one's lag behind the mean may be less than nothing.
#[derive(Default)]
struct Cpu {
    running: Option<RunningTask>,
    waiting: Vec<CpuSlice>,
    /// Tells what is on now from what was on.
    token: u64,
    /// The mean of what its tasks had, as far as it has come.
    mean: i64,
    /// The one that is on has to make room when it is done with what it does at this moment.
    resched: bool,
}

struct RunningTask {
    piece: CpuSlice,
    since: Duration,
    /// Nothing is being computed: its event happens at this moment.
    done: bool,
}

/// Something that a task computes, and what happens then.
#[derive(Clone, Copy)]
struct CpuSlice {
    task: ModelTask,
    left: i64,
    event: ModelEvent,
}

#[derive(Clone, Copy, Default)]
struct Account {
    /// What it had, by its CPU's reckoning.
    had: i64,
    /// Where its slice ends.
    deadline: i64,
    /// What it was owed when it went to sleep.
    owed: i64,
    cpu: usize,
}

/// To be scheduled: when, the CPU, its token.
pub(super) type Timer = (Duration, usize, u64);

/// What the end of a timer comes to.
pub(super) enum Ended {
    /// The task has computed, and this happens.
    Happens(ModelEvent),
    /// Others came first, or it goes on.
    Timers(Vec<Timer>),
}

impl Cpus {
    pub(super) fn new(cpus: usize, loops: usize) -> Cpus {
        let list = (0..cpus.max(1)).map(|_| Cpu::default()).collect();
        let account = |n| Account { cpu: n % cpus.max(1), ..Account::default() };
        Cpus { list, accounts: (0..=loops).map(account).collect() }
    }

    fn slice(&self) -> i64 {
        // get_update_sysctl_factor: more with more CPUs, up to eight of them.
        SLICE * i64::from(1 + self.list.len().clamp(1, 8).ilog2())
    }

    fn on(&self, task: ModelTask) -> Option<usize> {
        let is = |cpu: &Cpu| cpu.running.as_ref().is_some_and(|r| r.piece.task == task);
        self.list.iter().position(is)
    }

    /// `event` happens when the task has computed for `cost`; one that is on no CPU was woken, and on an idle CPU that takes
    /// `wake`.
    pub(super) fn compute(
        &mut self,
        now: Duration,
        task: ModelTask,
        (cost, wake): (Duration, Duration),
        event: ModelEvent,
    ) -> Vec<Timer> {
        let piece = CpuSlice { task, left: nanos(cost), event };
        let Some(at) = self.on(task) else { return self.wake(now, piece, nanos(wake)) };
        self.account(at, now);
        let slice = self.slice();
        let account = &mut self.accounts[task.index()];
        let is_over = account.had >= account.deadline;
        if is_over {
            account.deadline = account.had + slice;
        }
        let cpu = &mut self.list[at];
        if let Some(running) = &mut cpu.running {
            (running.piece, running.done) = (piece, false);
        }
        if (is_over || std::mem::take(&mut cpu.resched)) && self.pick(at) != Some(task) {
            return self.switch(at, now);
        }
        vec![self.timer(at, now, 0)]
    }

    /// The task sleeps: its CPU is for others.
    pub(super) fn leave(&mut self, now: Duration, task: ModelTask) -> Vec<Timer> {
        let Some(at) = self.on(task) else { return Vec::new() };
        self.account(at, now);
        let slice = self.slice();
        let mean = self.mean(at);
        let account = &mut self.accounts[task.index()];
        account.owed = (mean - account.had).clamp(0, slice);
        self.list[at].running = None;
        self.start_next(at, now)
    }

    /// The task is no more.
    pub(super) fn forget(&mut self, now: Duration, task: ModelTask) -> Vec<Timer> {
        self.list.iter_mut().for_each(|cpu| cpu.waiting.retain(|p| p.task != task));
        self.leave(now, task)
    }

    /// The task was stopped: it sleeps if it was its own event that happened, and else goes on to compute for the next.
    pub(super) fn put_off(&mut self, now: Duration, task: ModelTask) -> Vec<Timer> {
        let is_done = |r: &RunningTask| r.piece.task == task && r.done;
        match self.list.iter().any(|cpu| cpu.running.as_ref().is_some_and(is_done)) {
            true => self.leave(now, task),
            false => Vec::new(),
        }
    }

    /// A timer's end.
    pub(super) fn ended(&mut self, now: Duration, at: usize, token: u64) -> Ended {
        let Some(cpu) = self.list.get_mut(at).filter(|cpu| cpu.token == token) else {
            return Ended::Timers(Vec::new());
        };
        let Some(running) = &mut cpu.running else { return Ended::Timers(self.pull(at, now)) };
        if running.piece.left <= nanos(now.saturating_sub(running.since)) {
            let event = running.piece.event;
            running.done = true;
            self.account(at, now);
            return Ended::Happens(event);
        }
        // Its slice is over.
        self.account(at, now);
        let Some(task) = self.list[at].running.as_ref().map(|r| r.piece.task) else {
            return Ended::Timers(Vec::new());
        };
        let slice = self.slice();
        let account = &mut self.accounts[task.index()];
        account.deadline = account.had + slice;
        Ended::Timers(match self.pick(at) == Some(task) {
            true => vec![self.timer(at, now, 0)],
            false => self.switch(at, now),
        })
    }

    fn wake(&mut self, now: Duration, piece: CpuSlice, wake: i64) -> Vec<Timer> {
        let before = self.accounts[piece.task.index()].cpu;
        let burden = |cpu: &Cpu| cpu.waiting.len() + usize::from(cpu.running.is_some());
        let at = (0..self.list.len())
            .min_by_key(|&at| (burden(&self.list[at]), at != before))
            .unwrap_or_default();
        self.account(at, now);
        let (mean, slice) = (self.mean(at), self.slice());
        let account = &mut self.accounts[piece.task.index()];
        let same = account.cpu == at;
        // A task that had more than its part comes back as it went, until the others have had as
        // much.
        let had = mean - std::mem::take(&mut account.owed);
        account.had = if same { had.max(account.had.min(mean + slice)) } else { had };
        account.deadline = account.had + slice;
        account.cpu = at;
        let cpu = &mut self.list[at];
        if cpu.running.is_none() {
            cpu.running = Some(RunningTask { piece, since: now, done: false });
            return vec![self.timer(at, now, wake)];
        }
        cpu.waiting.push(piece);
        if self.pick(at) == Some(piece.task) {
            return self.preempt(at, now);
        }
        // From now on a task waits for the end of the slice.
        let is_computing = self.list[at].running.as_ref().is_some_and(|running| !running.done);
        if is_computing { vec![self.timer(at, now, 0)] } else { Vec::new() }
    }

    /// The running task makes room at once, or when what it does at this moment is done.
    fn preempt(&mut self, at: usize, now: Duration) -> Vec<Timer> {
        let cpu = &mut self.list[at];
        if cpu.running.as_ref().is_some_and(|running| running.done) {
            cpu.resched = true;
            return Vec::new();
        }
        self.switch(at, now)
    }

    fn switch(&mut self, at: usize, now: Duration) -> Vec<Timer> {
        let cpu = &mut self.list[at];
        if let Some(running) = cpu.running.take() {
            cpu.waiting.push(running.piece);
        }
        self.start_next(at, now)
    }

    fn start_next(&mut self, at: usize, now: Duration) -> Vec<Timer> {
        let next = self.pick(at);
        let cpu = &mut self.list[at];
        cpu.resched = false;
        let place = cpu.waiting.iter().position(|piece| Some(piece.task) == next);
        match place {
            Some(place) => {
                let piece = cpu.waiting.remove(place);
                cpu.running = Some(RunningTask { piece, since: now, done: false });
                vec![self.timer(at, now, SWITCH)]
            }
            None => {
                cpu.token += 1;
                vec![(now + MOVE, at, cpu.token)]
            }
        }
    }

    /// A CPU that was idle for a while takes a task that waits elsewhere.
    fn pull(&mut self, at: usize, now: Duration) -> Vec<Timer> {
        let longest = self.list.iter().enumerate().max_by_key(|(_, cpu)| cpu.waiting.len());
        let Some((from, _)) = longest.filter(|(_, cpu)| !cpu.waiting.is_empty()) else {
            return Vec::new();
        };
        let piece = self.list[from].waiting.remove(0);
        self.accounts[piece.task.index()].owed = 0;
        self.accounts[piece.task.index()].cpu = at;
        self.wake(now, piece, SWITCH)
    }

    /// Until what is on is done, or its slice over.
    fn timer(&mut self, at: usize, now: Duration, before: i64) -> Timer {
        let cpu = &mut self.list[at];
        cpu.token += 1;
        let Some(running) = &mut cpu.running else { return (now, at, cpu.token) };
        running.since = running.since.max(now) + time(before);
        let account = self.accounts[running.piece.task.index()];
        let to_deadline = (account.deadline - account.had).max(1);
        let run = if cpu.waiting.is_empty() {
            running.piece.left
        } else {
            running.piece.left.min(to_deadline)
        };
        (running.since + time(run), at, cpu.token)
    }

    /// Writes down what the one that is on has had.
    fn account(&mut self, at: usize, now: Duration) {
        let cpu = &mut self.list[at];
        if let Some(running) = &mut cpu.running {
            let spent = nanos(now.saturating_sub(running.since)).min(running.piece.left);
            running.since = running.since.max(now);
            running.piece.left -= spent;
            self.accounts[running.piece.task.index()].had += spent;
        }
        self.list[at].mean = self.mean(at);
    }

    fn tasks(&self, at: usize) -> impl Iterator<Item = ModelTask> + '_ {
        let cpu = &self.list[at];
        cpu.running.iter().map(|r| r.piece.task).chain(cpu.waiting.iter().map(|p| p.task))
    }

    fn mean(&self, at: usize) -> i64 {
        let (sum, n) = self
            .tasks(at)
            .fold((0, 0), |(sum, n), task| (sum + self.accounts[task.index()].had, n + 1));
        if n == 0 { self.list[at].mean } else { sum / n }
    }

    /// The task to run next.
    fn pick(&self, at: usize) -> Option<ModelTask> {
        let mean = self.mean(at);
        let account = |task: ModelTask| self.accounts[task.index()];
        let may = |task: &ModelTask| account(*task).had <= mean;
        let running = self.list[at].running.as_ref().map(|r| r.piece.task);
        if let Some(task) = running.filter(may).filter(|t| account(*t).had < account(*t).deadline) {
            return Some(task);
        }
        self.tasks(at).filter(may).min_by_key(|task| account(*task).deadline)
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

fn time(nanos: i64) -> Duration {
    Duration::from_nanos(nanos.max(0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    /// What happens, in order, when these come at their times: loop, start and cost in microseconds.
    fn order(cpus: usize, pieces: &[(usize, u32, u32)]) -> Vec<(usize, u128)> {
        let mut all = Cpus::new(cpus, 8);
        let mut timers: Vec<Timer> = Vec::new();
        let (mut starts, mut out) = (pieces.to_vec(), Vec::new());
        loop {
            timers.sort_unstable();
            let next = starts.iter().map(|s| MICRO * s.1).min();
            let timer = timers.first().copied();
            match (next, timer) {
                (Some(at), timer) if timer.is_none_or(|t| at <= t.0) => {
                    let n = starts.iter().position(|s| MICRO * s.1 == at).unwrap();
                    let (who, _, cost) = starts.remove(n);
                    let piece = (MICRO * cost, Duration::ZERO);
                    timers.extend(all.compute(at, ModelTask::Loop(who), piece, ModelEvent::Chore));
                }
                (_, Some(timer)) => {
                    timers.remove(0);
                    match all.ended(timer.0, timer.1, timer.2) {
                        Ended::Timers(more) => timers.extend(more),
                        Ended::Happens(_) => {
                            let is_done = |cpu: &Cpu| cpu.running.as_ref().is_some_and(|r| r.done);
                            let cpu = all.list.iter().find(|cpu| is_done(cpu)).unwrap();
                            let task = cpu.running.as_ref().unwrap().piece.task;
                            out.push((task.index() - 1, timer.0.as_micros()));
                            timers.extend(all.leave(timer.0, task));
                        }
                    }
                }
                _ => return out,
            }
        }
    }

    #[test]
    fn a_task_that_has_begun_its_slice_goes_on_and_others_follow_in_their_order() {
        let done = order(1, &[(0, 0, 500), (1, 10, 20), (2, 20, 20)]);
        assert_eq!(done, [(0, 500), (1, 522), (2, 544)]);
    }

    #[test]
    fn a_slice_ends_when_others_wait() {
        let done = order(1, &[(0, 0, 2000), (1, 10, 20)]);
        assert_eq!(done.iter().map(|d| d.0).collect::<Vec<_>>(), [1, 0]);
        assert!((700..800).contains(&done[0].1), "{done:?}");
    }

    #[test]
    fn the_task_whose_slice_ends_first_is_next() {
        // The third comes while the second has its slice, and is before the first one's second.
        let done = order(1, &[(0, 0, 2000), (1, 1, 1000), (2, 1000, 10)]);
        assert_eq!(done.first().map(|d| d.0), Some(2), "{done:?}");
        assert!(done[0].1 < 1500, "{done:?}");
    }

    #[test]
    fn an_idle_cpu_takes_what_waits_elsewhere_but_not_at_once() {
        let done = order(2, &[(0, 0, 100), (1, 0, 5000), (2, 1, 3000)]);
        let third = done.iter().find(|d| d.0 == 2).unwrap().1;
        assert!((3100..3800).contains(&third), "{done:?}");
    }
}
