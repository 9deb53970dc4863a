//! Whether a loop whose turn lasts is held up by a handler, or only waits for a processor.
//!
//! Where processors are scarce, the turns of all loops last. A loop that waits for one is helped best by whoever sleeps,
//! and by so giving it its own; who took its connections would use the very processor that it waits for. So only these
//! are relieved: a loop whose thread is blocked in its turn, and one that has used the processor for [`Team::HELD_UP`] of it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use weir_sys::thread::ThreadClock;

use super::{Team, nanos};
use crate::seam;

/// A loop's thread, and what others have seen of its turn.
pub(super) struct Suspect {
    /// In the simulated world, which one it is.
    number: usize,
    clock: Option<ThreadClock>,
    /// proc(5), `/proc/[pid]/stat`; none where that is not to be had.
    stat: Option<File>,
    /// The turn in which somebody suspected it last, and the processor's time that it had used by then, in nanoseconds.
    turn: AtomicU64,
    used: AtomicU64,
}

impl Suspect {
    /// The calling thread.
    pub(super) fn own() -> Suspect {
        let (clock, stat) = (ThreadClock::own().ok(), File::open("/proc/thread-self/stat").ok());
        let (turn, used) = (AtomicU64::new(0), AtomicU64::new(0));
        Suspect { number: seam::me(), clock, stat, turn, used }
    }

    /// Whether its turn, known by its beginning, lasts because of what is done in it. Another thread may be right to say
    /// so of a turn that has ended meanwhile.
    pub(super) fn is_held_up(&self, turn: u64) -> bool {
        !self.is_runnable() || self.has_used(turn)
    }

    /// False while it is blocked; unknown counts as that.
    fn is_runnable(&self) -> bool {
        if let Some(is) = seam::is_runnable(self.number) {
            return is;
        }
        let mut line = [0; 64];
        let read = self.stat.as_ref().map(|stat| stat.read_at(&mut line, 0));
        let Some(Ok(n)) = read else { return false };
        state(&line[..n]) == Some(b'R')
    }

    /// Whether it has used the processor for long since it was suspected first.
    fn has_used(&self, turn: u64) -> bool {
        let read = || self.clock.and_then(ThreadClock::read);
        let used = seam::has_used(self.number).or_else(read);
        let Some(used) = used.map(nanos) else { return false };
        if self.turn.load(Acquire) != turn {
            // In this order: who finds the turn finds its time, or a later one.
            self.used.store(used, Relaxed);
            self.turn.store(turn, Release);
            return false;
        }
        used.saturating_sub(self.used.load(Relaxed)) >= nanos(Team::HELD_UP)
    }
}

/// The third field; the second is the name in parentheses, which may contain anything.
fn state(line: &[u8]) -> Option<u8> {
    let end = line.iter().rposition(|byte| *byte == b')')?;
    line.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn who_is_blocked_is_held_up_at_once_and_who_runs_when_it_has_run_for_long() {
        let (tell, told) = mpsc::channel();
        let (release, wait) = mpsc::channel::<()>();
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            tell.send(Suspect::own()).unwrap();
            let _ = wait.recv();
            while !is_done.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        let suspect = told.recv().unwrap();
        let until = |what: &dyn Fn() -> bool| while !what() {};
        until(&|| suspect.is_held_up(1));
        drop(release);
        until(&|| suspect.is_runnable());
        assert!(!suspect.is_held_up(2), "it may have waited for a processor until now");
        until(&|| suspect.is_held_up(2));
        assert!(!suspect.is_held_up(3), "what it used was in another turn");
        done.store(true, Relaxed);
        thread.join().unwrap();
    }

    #[test]
    fn a_name_does_not_hide_a_state() {
        for (line, is) in [
            ("12 (weir: loop 1) S 1 2", Some(b'S')),
            ("12 (a) R (b) D 1", Some(b'D')),
            ("12 (cut)", None),
            ("", None),
        ] {
            assert_eq!(state(line.as_bytes()), is, "{line}");
        }
    }
}
