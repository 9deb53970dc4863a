//! Whether a loop in a long turn is stalled by a handler, or only waits for a processor.
//!
//! Where processors are scarce, the turns of all loops are long. A loop that waits for a processor gets one when other
//! loops sleep. A loop that stole its connections would use the processor that it waits for. So a loop counts as stalled
//! in two cases only: its thread is blocked, or it has used the processor for [`STALLED`] of its turn.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use weir_sys::thread::ThreadClock;

use crate::seam;

/// A loop may be stalled when its turn has lasted longer than this.
pub(super) const STALLED: Duration = Duration::from_micros(300);

/// A loop's thread, and what other loops have seen of its turn.
pub(super) struct StallProbe {
    /// The loop's number in the simulated world.
    number: usize,
    clock: Option<ThreadClock>,
    /// `/proc/[pid]/stat` of proc(5). None where it cannot be opened.
    stat: Option<File>,
    /// The turn in which it was last probed, and its CPU time at the first probe of that turn, in nanoseconds.
    turn: AtomicU64,
    used: AtomicU64,
}

impl StallProbe {
    /// A probe of the calling thread.
    pub(super) fn own() -> StallProbe {
        let (clock, stat) = (ThreadClock::own().ok(), File::open("/proc/thread-self/stat").ok());
        let (turn, used) = (AtomicU64::new(0), AtomicU64::new(0));
        StallProbe { number: seam::me(), clock, stat, turn, used }
    }

    /// Whether the turn that began at `turn` is long because of its handlers. The turn may have ended meanwhile.
    pub(super) fn is_stalled(&self, turn: u64) -> bool {
        !self.is_runnable() || self.has_used(turn)
    }

    /// False while the thread is blocked, or if its state is unknown.
    fn is_runnable(&self) -> bool {
        if let Some(is) = seam::is_runnable(self.number) {
            return is;
        }
        let mut line = [0; 64];
        let read = self.stat.as_ref().map(|stat| stat.read_at(&mut line, 0));
        let Some(Ok(n)) = read else { return false };
        state(&line[..n]) == Some(b'R')
    }

    /// Whether it has used the processor for long since the first probe of this turn.
    fn has_used(&self, turn: u64) -> bool {
        let read = || self.clock.and_then(ThreadClock::read);
        let used = seam::has_used(self.number).or_else(read);
        let Some(used) = used.map(nanos) else { return false };
        if self.turn.load(Acquire) != turn {
            // In this order: a thread that reads the turn reads its time, or a later one.
            self.used.store(used, Relaxed);
            self.turn.store(turn, Release);
            return false;
        }
        used.saturating_sub(self.used.load(Relaxed)) >= nanos(STALLED)
    }
}

/// The third field. The second is the name in parentheses, which may contain any bytes.
fn state(line: &[u8]) -> Option<u8> {
    let end = line.iter().rposition(|byte| *byte == b')')?;
    line.get(end + 2).copied()
}

pub(super) const fn nanos(d: Duration) -> u64 {
    d.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn a_blocked_thread_is_stalled_at_once_and_a_running_one_after_a_while() {
        let (tell, received) = mpsc::channel();
        let (release, wait) = mpsc::channel::<()>();
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            tell.send(StallProbe::own()).unwrap();
            let _ = wait.recv();
            while !is_done.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        let probe = received.recv().unwrap();
        let until = |what: &dyn Fn() -> bool| while !what() {};
        until(&|| probe.is_stalled(1));
        drop(release);
        until(&|| probe.is_runnable());
        assert!(!probe.is_stalled(2), "it may have waited for a processor until now");
        until(&|| probe.is_stalled(2));
        assert!(!probe.is_stalled(3), "what it used was in another turn");
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
