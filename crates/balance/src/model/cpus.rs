//! The assignment of tasks to CPUs, after the part of kernel/sched/fair.c that orders woken tasks.
//!
//! Each CPU has its own run queue. A woken task takes an idle CPU, its previous one if possible.
//! Otherwise it joins the shortest queue. Tasks of one queue are entitled to equal time. Among the
//! tasks that have had no more than the mean, the one with the earliest deadline runs (pick_eevdf).
//! A task keeps the CPU for a slice, or until it has had more than the mean and a woken task has
//! precedence.
//!
//! So a woken worker may run at once, before workers that were woken earlier, or wait behind the
//! client for a whole slice. That decides which loop accepts the connections of a burst. An idle
//! CPU takes a waiting task of another CPU only after a while (sched_balance_newidle skips pauses
//! that are shorter than a migration costs).

use std::time::Duration;

use super::{ModelEvent, ModelTask};

/// The time of a context switch, in nanoseconds.
const SWITCH: i64 = 2_000;
/// How long a task may run while others wait, with one CPU (`sysctl_sched_base_slice`), in
/// nanoseconds.
const SLICE: i64 = 700_000;
/// How long a CPU is idle before it takes another CPU's task (`sysctl_sched_migration_cost`).
const MOVE: Duration = Duration::from_micros(500);

/// All CPUs, and the time that each task has had.
pub(super) struct Cpus {
    list: Vec<Cpu>,
    accounts: Vec<Account>,
}

/// Times are in nanoseconds and signed, since a task's lag behind the mean may be negative.
#[derive(Default)]
struct Cpu {
    running: Option<RunningTask>,
    waiting: Vec<CpuSlice>,
    /// Changes with the running task, so that outdated timers are recognized.
    token: u64,
    /// The mean virtual time of its tasks, as last computed. It stays while the CPU has no task.
    mean: i64,
    /// The running task must yield after the event that happens at this moment.
    resched: bool,
}

struct RunningTask {
    piece: CpuSlice,
    since: Duration,
    /// The computation is complete. Its event happens at this moment.
    done: bool,
}

/// A computation of a task, and the event at its end.
#[derive(Clone, Copy)]
struct CpuSlice {
    task: ModelTask,
    left: i64,
    event: ModelEvent,
}

#[derive(Clone, Copy, Default)]
struct Account {
    /// The task's virtual time on its CPU.
    had: i64,
    /// The virtual time at which its slice ends.
    deadline: i64,
    /// How far the task was behind the mean when it went to sleep.
    owed: i64,
    cpu: usize,
}

/// A timer to be scheduled: the time, the CPU, and the CPU's token.
pub(super) type Timer = (Duration, usize, u64);

/// The result of an expired timer.
pub(super) enum TimerOutcome {
    /// The task has finished computing, and this event happens.
    Event(ModelEvent),
    /// The timer was outdated, or the task continues. These timers are to be set.
    Timers(Vec<Timer>),
}

impl Cpus {
    pub(super) fn new(cpus: usize, loops: usize) -> Cpus {
        let list = (0..cpus.max(1)).map(|_| Cpu::default()).collect();
        let account = |n| Account { cpu: n % cpus.max(1), ..Account::default() };
        Cpus { list, accounts: (0..=loops).map(account).collect() }
    }

    fn slice(&self) -> i64 {
        // As get_update_sysctl_factor: longer with more CPUs, up to eight.
        SLICE * i64::from(1 + self.list.len().clamp(1, 8).ilog2())
    }

    fn on(&self, task: ModelTask) -> Option<usize> {
        let is = |cpu: &Cpu| cpu.running.as_ref().is_some_and(|r| r.piece.task == task);
        self.list.iter().position(is)
    }

    /// `event` happens when the task has computed for `cost`. A task that is on no CPU is woken; an
    /// idle CPU takes `wake` longer.
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

    /// The task sleeps and leaves its CPU to others.
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

    /// The task has ended.
    pub(super) fn forget(&mut self, now: Duration, task: ModelTask) -> Vec<Timer> {
        self.list.iter_mut().for_each(|cpu| cpu.waiting.retain(|p| p.task != task));
        self.leave(now, task)
    }

    /// The task was stopped. If the event that happens now is its own, it sleeps. Otherwise it
    /// continues to compute.
    pub(super) fn put_off(&mut self, now: Duration, task: ModelTask) -> Vec<Timer> {
        let is_done = |r: &RunningTask| r.piece.task == task && r.done;
        match self.list.iter().any(|cpu| cpu.running.as_ref().is_some_and(is_done)) {
            true => self.leave(now, task),
            false => Vec::new(),
        }
    }

    /// A timer has expired.
    pub(super) fn ended(&mut self, now: Duration, at: usize, token: u64) -> TimerOutcome {
        let Some(cpu) = self.list.get_mut(at).filter(|cpu| cpu.token == token) else {
            return TimerOutcome::Timers(Vec::new());
        };
        let Some(running) = &mut cpu.running else {
            return TimerOutcome::Timers(self.pull(at, now));
        };
        if running.piece.left <= nanos(now.saturating_sub(running.since)) {
            let event = running.piece.event;
            running.done = true;
            self.account(at, now);
            return TimerOutcome::Event(event);
        }
        // The task's slice has ended.
        self.account(at, now);
        let Some(task) = self.list[at].running.as_ref().map(|r| r.piece.task) else {
            return TimerOutcome::Timers(Vec::new());
        };
        let slice = self.slice();
        let account = &mut self.accounts[task.index()];
        account.deadline = account.had + slice;
        TimerOutcome::Timers(match self.pick(at) == Some(task) {
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
        // A task that has had more than its share keeps that surplus, until the others have had as
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
        // Another task waits now, so the running one gets a timer for the end of its slice.
        let is_computing = self.list[at].running.as_ref().is_some_and(|running| !running.done);
        if is_computing { vec![self.timer(at, now, 0)] } else { Vec::new() }
    }

    /// The running task yields at once, or after the event that happens at this moment.
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

    /// Sets a timer for the end of the running computation or slice, whichever is first.
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

    /// Adds the elapsed time to the account of the running task.
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

    /// Chooses the task to run next.
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

    /// Returns which computation ends when, in order. Each piece is a loop, its start and its cost
    /// in microseconds.
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
                        TimerOutcome::Timers(more) => timers.extend(more),
                        TimerOutcome::Event(_) => {
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
        // The third piece arrives during the second task's slice and runs before the first task's
        // second slice.
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
