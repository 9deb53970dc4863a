//! Rules about event loops: their turns, their connections and their shares of the work.

use super::{NEARLY, share};
use crate::Level::{Red, Yellow};
use crate::judge::{Held, Looks};
use crate::snapshot::{LoopState, Snapshot, Uneven};

/// The longest turn of a loop that is not a finding, in milliseconds.
const LONG_TURN: u64 = 1000;

/// A handler has blocked its loop for long.
pub(super) fn stuck_loop(looks: Looks<'_>) -> Vec<Held> {
    let stuck = looks.now.loops.iter().filter(|one| one.awake_for > LONG_TURN);
    let held = stuck.map(|one| {
        let subject = match one.is_old {
            false => format!("loop {} of worker {}", one.index, one.worker),
            true => format!("loop {} of old worker process {}", one.index, one.pid),
        };
        // Without the duration, which would change the text at each look.
        let at = one.stalled.as_ref().map_or(String::new(), |at| format!(": {at}"));
        let text =
            format!("{subject} (process {}) is stuck in one turn, its requests wait{at}", one.pid);
        Held { level: Red, subject, text, since: Some(looks.now.at.saturating_sub(one.awake_for)) }
    });
    held.collect()
}

/// Connections come faster than they are accepted.
pub(super) fn accept_queue(looks: Looks<'_>) -> Vec<Held> {
    let full = looks
        .now
        .queues
        .iter()
        .filter(|queue| queue.most > 0 && share(queue.n.into(), queue.most.into()) >= NEARLY);
    let held = full.map(|queue| {
        let (subject, n, most) = (queue.address.clone(), queue.n, queue.most);
        let level = if n < most { Yellow } else { Red };
        let text =
            format!("{n} connections to {subject} wait to be accepted, the queue takes {most}");
        Held { level, subject, text, since: None }
    });
    held.collect()
}

/// A loop has nearly as many connections as it may have.
pub(super) fn connections(looks: Looks<'_>) -> Vec<Held> {
    let most = looks.now.connections;
    let all = looks.now.loops.iter().filter(|one| most > 0 && share(one.open, most) >= NEARLY);
    let held = all.map(|one| {
        let subject = format!("loop {} of worker {}", one.index, one.worker);
        let text =
            format!("{subject} has {} connections, worker_connections allows {most}", one.open);
        Held { level: Yellow, subject, text, since: None }
    });
    held.collect()
}

/// An imbalance goes on if the busiest loop has worked for this share of the last seconds.
const STILL: f64 = 0.5;

/// The least share of the time between two looks that the busiest loop worked.
const NEARLY_ALWAYS: f64 = 0.8;
/// The least time between two looks over which a short imbalance is judged, in milliseconds.
const LEAST_WORK: u64 = 1900;
/// The least coefficient of variation of the loops' shares of work.
const DIFFERENT: f64 = 0.5;

/// One loop has most of the work for ten seconds, or nearly all of it for some seconds.
pub(super) fn uneven_loops(looks: Looks<'_>) -> Vec<Held> {
    let Some(Uneven { worker, index, most, mean, loops, .. }) =
        lately_uneven(looks).or_else(|| now_uneven(looks))
    else {
        return Vec::new();
    };
    let text = format!(
        "loop {index} of worker {worker} is busy for {most} % of the time, the mean of {loops} loops is {mean} %"
    );
    vec![Held { level: Yellow, subject: "loops".to_owned(), text, since: None }]
}

/// The share of the time between two looks in which a loop was busy; none if it is new.
fn worked(looks: Looks<'_>, pid: u32, index: u32) -> Option<f64> {
    let is = |one: &&LoopState| one.pid == pid && one.index == index;
    let busy = |of: &Snapshot| Some(of.loops.iter().find(is)?.busy);
    let elapsed = looks.now.now.saturating_sub(looks.before.now);
    Some(share(busy(looks.now)?.saturating_sub(busy(looks.before)?), elapsed).min(1.0))
}

/// The imbalance of ten seconds, if it goes on.
fn lately_uneven(looks: Looks<'_>) -> Option<Uneven> {
    let uneven = looks.now.uneven.as_ref()?;
    (worked(looks, uneven.pid, uneven.index)? >= STILL).then(|| uneven.clone())
}

/// The imbalance between two looks, by a stricter measure. A loop that is stuck in one turn has a rule of its own.
fn now_uneven(looks: Looks<'_>) -> Option<Uneven> {
    if looks.now.now.saturating_sub(looks.before.now) < LEAST_WORK {
        return None;
    }
    let new = looks.now.loops.iter().filter(|one| !one.is_old);
    let all = new.filter_map(|one| Some((worked(looks, one.pid, one.index)?, one)));
    let all: Vec<(f64, &LoopState)> = all.collect();
    let (most, busiest) = all.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let n = all.len() as f64;
    let mean = all.iter().map(|(share, _)| share).sum::<f64>() / n;
    let variance = all.iter().map(|(share, _)| (share - mean).powi(2)).sum::<f64>() / n;
    if *most < NEARLY_ALWAYS || variance.sqrt() < DIFFERENT * mean || busiest.awake_for > LONG_TURN
    {
        return None;
    }
    let percent = |share: f64| (share * 100.0).round() as u32;
    let LoopState { worker, index, pid, .. } = **busiest;
    let (most, mean) = (percent(*most), percent(mean));
    Some(Uneven { worker, index, pid, most, mean, loops: all.len() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Judge;
    use crate::rules::tests::NOW;

    /// What looks of four loops find, a second apart. Each has worked for so many milliseconds in each second.
    fn looks_at_work(seconds: &[[u64; 4]]) -> Vec<bool> {
        let (mut judge, mut busy) = (Judge::default(), [0; 4]);
        let look = |(second, work): (usize, &[u64; 4])| {
            busy.iter_mut().zip(work).for_each(|(busy, work)| *busy += work);
            let of = |i: usize| LoopState {
                pid: 7,
                index: i as u32,
                busy: busy[i],
                ..LoopState::default()
            };
            let (now, loops) = (second as u64 * 1000, (0..4).map(of).collect());
            let found = judge.look(Snapshot { at: NOW + now, now, loops, ..Snapshot::default() });
            found.iter().any(|found| found.rule == "uneven_loops")
        };
        seconds.iter().enumerate().map(look).collect()
    }

    #[test]
    fn a_loop_with_all_the_work_is_named_within_five_looks_and_forgotten_within_five() {
        let (calm, uneven) = ([30, 20, 10, 40], [990, 0, 5, 0]);
        let course = [[calm; 5].as_slice(), &[uneven; 10], &[calm; 10]].concat();
        let found = looks_at_work(&course);
        let first = found.iter().position(|found| *found).unwrap();
        assert!((5..10).contains(&first), "{found:?}");
        let over = found[first..].iter().position(|found| !found).unwrap() + first;
        assert!((15..20).contains(&over), "{found:?}");
        assert!(!found[over..].contains(&true), "{found:?}");
    }

    #[test]
    fn loops_that_differ_for_a_moment_or_all_work_are_even() {
        let never = |course: &[[u64; 4]]| !looks_at_work(course).contains(&true);
        assert!(never(&[[900, 850, 990, 800]; 20]));
        assert!(never(&[[700, 100, 0, 0]; 20]));
        // Two seconds of work for one loop, such as a large page that is compressed.
        let burst = [[[0; 4]; 5].as_slice(), &[[1000, 0, 0, 0]; 2], &[[0; 4]; 5]].concat();
        assert!(never(&[&burst[..], &burst[..], &burst[..]].concat()));
        // One loop after another works, as a single client comes again and again.
        let turns = (0..20).map(|i| std::array::from_fn(|j| if i / 2 % 4 == j { 950 } else { 0 }));
        assert!(never(&turns.collect::<Vec<_>>()));
    }
}
