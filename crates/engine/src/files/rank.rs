//! Which of the operations that wait for a thread goes next.
//!
//! A read goes before a write, since an answer waits for it; and writes have few threads at once, so that a disk
//! that is slow to write, or a directory that many wait for, leaves threads to reads. No operation waits for
//! ever: an operation that was passed over often enough goes next.

use std::collections::VecDeque;

/// What an operation is for, from what goes first to what goes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// It reads, and a task waits for the answer.
    Read,
    /// It writes, and a task waits for that, or for the room that it makes: temporary files, uploads, logs.
    Write,
    /// It writes, and no task waits: files of a cache, and their removal.
    Later,
}

const RANKS: [Rank; 3] = [Rank::Read, Rank::Write, Rank::Later];

/// How often work with a better rank may go first when it is this one's turn.
const PASSED: u32 = 8;

/// What waits, in one line for each rank.
pub(super) struct Lines<J>([Line<J>; RANKS.len()]);

struct Line<J> {
    jobs: VecDeque<J>,
    running: usize,
    /// At most so many of this rank and of those behind it run at once.
    most: usize,
    passed: u32,
}

impl<J> Line<J> {
    fn is_due(&self) -> bool {
        self.passed >= PASSED
    }
}

impl<J> Lines<J> {
    /// Lines before `threads` threads: half of them may write, and an eighth may do work that no task waits for.
    pub(super) fn new(threads: usize) -> Self {
        let line =
            |most: usize| Line { jobs: VecDeque::new(), running: 0, most: most.max(1), passed: 0 };
        Lines([line(threads), line(threads / 2), line(threads / 8)])
    }

    /// How many of a rank wait.
    pub(super) fn waiting(&self, rank: Rank) -> usize {
        self.0.get(rank as usize).map_or(0, |line| line.jobs.len())
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|line| line.jobs.len()).sum()
    }

    pub(super) fn push(&mut self, rank: Rank, job: J) {
        if let Some(line) = self.0.get_mut(rank as usize) {
            line.jobs.push_back(job);
        }
    }

    /// The next to be run; [`Lines::ended`] is to be told.
    pub(super) fn take(&mut self) -> Option<(Rank, J)> {
        let ready = RANKS.map(|rank| Some(rank).filter(|rank| self.is_ready(*rank)));
        let ready = || ready.into_iter().flatten();
        let is_due = |rank: &Rank| self.0.get(*rank as usize).is_some_and(Line::is_due);
        let next = ready().find(is_due).or_else(|| ready().next())?;
        for rank in RANKS {
            let passed = rank != next && ready().any(|other| other == rank);
            if let Some(line) = self.0.get_mut(rank as usize) {
                line.passed = if passed { line.passed + 1 } else { 0 };
            }
        }
        let line = self.0.get_mut(next as usize)?;
        let job = line.jobs.pop_front()?;
        line.running += 1;
        Some((next, job))
    }

    /// One that was taken is over.
    pub(super) fn ended(&mut self, rank: Rank) {
        if let Some(line) = self.0.get_mut(rank as usize) {
            line.running -= 1;
        }
    }

    /// How many could be taken now, each by a thread.
    pub(super) fn takable(&self) -> usize {
        let (_, takable) = self.0.iter().rev().fold((0, 0), |(running, takable), line| {
            let running = running + line.running;
            let room = line.most.saturating_sub(running);
            (running, room.min(line.jobs.len() + takable))
        });
        takable
    }

    /// Whether one of this rank may run now.
    fn is_ready(&self, rank: Rank) -> bool {
        let mut running = 0;
        let has_room = self.0.iter().enumerate().rev().all(|(of, line)| {
            running += line.running;
            of > rank as usize || running < line.most
        });
        has_room && self.waiting(rank) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(threads: usize, jobs: &[(Rank, usize)]) -> Lines<usize> {
        let mut lines = Lines::new(threads);
        for (rank, n) in jobs {
            (0..*n).for_each(|i| lines.push(*rank, i));
        }
        lines
    }

    #[test]
    fn reads_go_first_and_writers_are_few() {
        let mut lines = lines(8, &[(Rank::Later, 20), (Rank::Write, 20), (Rank::Read, 2)]);
        let taken: Vec<_> = std::iter::from_fn(|| lines.take()).collect();
        let (read, write) = (Rank::Read, Rank::Write);
        let four = [(write, 0), (write, 1), (write, 2), (write, 3)];
        assert_eq!(taken, [&[(read, 0), (read, 1)], &four[..]].concat());
        lines.push(read, 2);
        assert_eq!((lines.take(), lines.take()), (Some((read, 2)), None));
        lines.ended(write);
        assert_eq!((lines.takable(), lines.take()), (1, Some((write, 4))));
    }

    #[test]
    fn work_that_no_task_waits_for_has_few_threads_and_its_turn() {
        let mut lines = lines(16, &[(Rank::Later, 20)]);
        assert_eq!(lines.takable(), 2);
        assert_eq!(std::iter::from_fn(|| lines.take()).count(), 2);
        for n in 0..2 {
            lines.ended(Rank::Later);
            lines.push(Rank::Read, n);
        }
        // However much there is to read.
        let before = (0..).take_while(|n| {
            let taken = lines.take().map(|(rank, _)| rank);
            taken.inspect(|rank| lines.ended(*rank));
            lines.push(Rank::Read, *n);
            taken == Some(Rank::Read)
        });
        assert_eq!(before.count(), PASSED as usize);
    }

    #[test]
    fn one_thread_does_everything() {
        let mut lines = lines(1, &[(Rank::Later, 1), (Rank::Write, 1), (Rank::Read, 1)]);
        for expected in RANKS {
            assert_eq!(lines.takable(), 1);
            let taken = lines.take().map(|(rank, _)| rank);
            assert_eq!((taken, lines.takable()), (Some(expected), 0));
            lines.ended(expected);
        }
        assert_eq!((lines.len(), lines.take()), (0, None));
    }

    #[test]
    fn as_many_can_be_taken_as_is_said() {
        for threads in [1, 2, 5, 16, 32] {
            for n in 0..64_usize {
                let jobs = [(Rank::Read, n % 4), (Rank::Write, n / 4 % 4), (Rank::Later, n / 16)];
                let mut lines = lines(threads, &jobs);
                while lines.takable() > 0 {
                    let before = lines.takable();
                    assert!(lines.take().is_some(), "{threads} threads, {jobs:?}");
                    assert_eq!(lines.takable(), before - 1, "{threads} threads, {jobs:?}");
                }
                assert!(lines.take().is_none(), "{threads} threads, {jobs:?}");
            }
        }
    }
}
