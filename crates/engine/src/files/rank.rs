//! Which waiting operation a thread takes next.
//!
//! Reads go before writes, since answers wait for them. Writes get only some of the threads. A disk
//! that writes slowly, or a directory lock that many wait for, thus leaves threads for reads. No
//! operation starves: one that was passed over often enough goes next.

use std::collections::VecDeque;

/// The purpose of an operation. Earlier variants go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Reads. A task waits for the result.
    Read,
    /// Writes. A task waits for the result, or for the space that it frees: temporary files,
    /// uploads, logs.
    Write,
    /// Writes. No task waits: files of a cache, and their removal.
    Later,
}

const RANKS: [Rank; 3] = [Rank::Read, Rank::Write, Rank::Later];

/// A rank is passed over this many times before it goes first.
const MAX_PASSED: u32 = 8;

/// The queues of waiting jobs, one for each rank.
pub(super) struct Queues<J>([Queue<J>; RANKS.len()]);

struct Queue<J> {
    jobs: VecDeque<J>,
    running: usize,
    /// At most this many jobs of this rank and the ranks after it run at once.
    most: usize,
    passed: u32,
}

impl<J> Queue<J> {
    fn is_due(&self) -> bool {
        self.passed >= MAX_PASSED
    }
}

impl<J> Queues<J> {
    /// Queues for `threads` threads. Half of them may write, and an eighth may do work that no task
    /// waits for.
    pub(super) fn new(threads: usize) -> Self {
        let queue =
            |most: usize| Queue { jobs: VecDeque::new(), running: 0, most: most.max(1), passed: 0 };
        Queues([queue(threads), queue(threads / 2), queue(threads / 8)])
    }

    /// Jobs of this rank that wait.
    pub(super) fn waiting(&self, rank: Rank) -> usize {
        self.0.get(rank as usize).map_or(0, |queue| queue.jobs.len())
    }

    /// Jobs of all ranks that wait.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|queue| queue.jobs.len()).sum()
    }

    pub(super) fn push(&mut self, rank: Rank, job: J) {
        if let Some(queue) = self.0.get_mut(rank as usize) {
            queue.jobs.push_back(job);
        }
    }

    /// Takes the next job. The caller reports its end to [`Queues::ended`].
    pub(super) fn take(&mut self) -> Option<(Rank, J)> {
        let ready = RANKS.map(|rank| Some(rank).filter(|rank| self.is_ready(*rank)));
        let ready = || ready.into_iter().flatten();
        let is_due = |rank: &Rank| self.0.get(*rank as usize).is_some_and(Queue::is_due);
        let next = ready().find(is_due).or_else(|| ready().next())?;
        for rank in RANKS {
            let passed = rank != next && ready().any(|other| other == rank);
            if let Some(queue) = self.0.get_mut(rank as usize) {
                queue.passed = if passed { queue.passed + 1 } else { 0 };
            }
        }
        let queue = self.0.get_mut(next as usize)?;
        let job = queue.jobs.pop_front()?;
        queue.running += 1;
        Some((next, job))
    }

    /// A job of this rank has ended.
    pub(super) fn ended(&mut self, rank: Rank) {
        if let Some(queue) = self.0.get_mut(rank as usize) {
            queue.running -= 1;
        }
    }

    /// How many jobs could be taken now, each by a thread of its own.
    pub(super) fn takable(&self) -> usize {
        let (_, takable) = self.0.iter().rev().fold((0, 0), |(running, takable), queue| {
            let running = running + queue.running;
            let room = queue.most.saturating_sub(running);
            (running, room.min(queue.jobs.len() + takable))
        });
        takable
    }

    /// Whether a job of this rank waits and may run now.
    fn is_ready(&self, rank: Rank) -> bool {
        let mut running = 0;
        let has_room = self.0.iter().enumerate().rev().all(|(of, queue)| {
            running += queue.running;
            of > rank as usize || running < queue.most
        });
        has_room && self.waiting(rank) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(threads: usize, jobs: &[(Rank, usize)]) -> Queues<usize> {
        let mut queues = Queues::new(threads);
        for (rank, n) in jobs {
            (0..*n).for_each(|i| queues.push(*rank, i));
        }
        queues
    }

    #[test]
    fn reads_go_first_and_writers_are_few() {
        let mut queues = queues(8, &[(Rank::Later, 20), (Rank::Write, 20), (Rank::Read, 2)]);
        let taken: Vec<_> = std::iter::from_fn(|| queues.take()).collect();
        let (read, write) = (Rank::Read, Rank::Write);
        let four = [(write, 0), (write, 1), (write, 2), (write, 3)];
        assert_eq!(taken, [&[(read, 0), (read, 1)], &four[..]].concat());
        queues.push(read, 2);
        assert_eq!((queues.take(), queues.take()), (Some((read, 2)), None));
        queues.ended(write);
        assert_eq!((queues.takable(), queues.take()), (1, Some((write, 4))));
    }

    #[test]
    fn work_that_no_task_waits_for_has_few_threads_and_its_turn() {
        let mut queues = queues(16, &[(Rank::Later, 20)]);
        assert_eq!(queues.takable(), 2);
        assert_eq!(std::iter::from_fn(|| queues.take()).count(), 2);
        for n in 0..2 {
            queues.ended(Rank::Later);
            queues.push(Rank::Read, n);
        }
        // Reads never run out here.
        let before = (0..).take_while(|n| {
            let taken = queues.take().map(|(rank, _)| rank);
            taken.inspect(|rank| queues.ended(*rank));
            queues.push(Rank::Read, *n);
            taken == Some(Rank::Read)
        });
        assert_eq!(before.count(), MAX_PASSED as usize);
    }

    #[test]
    fn one_thread_does_everything() {
        let mut queues = queues(1, &[(Rank::Later, 1), (Rank::Write, 1), (Rank::Read, 1)]);
        for expected in RANKS {
            assert_eq!(queues.takable(), 1);
            let taken = queues.take().map(|(rank, _)| rank);
            assert_eq!((taken, queues.takable()), (Some(expected), 0));
            queues.ended(expected);
        }
        assert_eq!((queues.len(), queues.take()), (0, None));
    }

    #[test]
    fn as_many_can_be_taken_as_is_said() {
        for threads in [1, 2, 5, 16, 32] {
            for n in 0..64_usize {
                let jobs = [(Rank::Read, n % 4), (Rank::Write, n / 4 % 4), (Rank::Later, n / 16)];
                let mut queues = queues(threads, &jobs);
                while queues.takable() > 0 {
                    let before = queues.takable();
                    assert!(queues.take().is_some(), "{threads} threads, {jobs:?}");
                    assert_eq!(queues.takable(), before - 1, "{threads} threads, {jobs:?}");
                }
                assert!(queues.take().is_none(), "{threads} threads, {jobs:?}");
            }
        }
    }
}
