//! The holder of a lock: a process, identified by its id and start time. A later process with the
//! same id has another start time.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::seam;

/// The result of [`this`] for this process, or for its parent after a fork.
static THIS: AtomicU64 = AtomicU64::new(0);

/// This process: its id in the upper half, the low half of its start time in the lower. Never 0.
pub fn this() -> u64 {
    if let Some(this) = seam::this() {
        return this;
    }
    let pid = weir_sys::process::id();
    let known = THIS.load(Ordering::Relaxed);
    // After a fork, the cached value is the parent's.
    if (known >> 32) as u32 == pid {
        return known;
    }
    let start = match read_state(pid) {
        ProcessState::Runs(start) | ProcessState::Stopped(start) => start,
        ProcessState::Ended | ProcessState::Unknown => 0,
    };
    let this = u64::from(pid) << 32 | u64::from(start);
    THIS.store(this, Ordering::Relaxed);
    this
}

/// The process id of an owner.
pub fn pid(owner: u64) -> u32 {
    (owner >> 32) as u32
}

/// The id of this process.
pub fn process() -> u32 {
    pid(this())
}

/// Whether a process with this id runs. True in doubt.
pub fn runs(pid: u32) -> bool {
    seam::is_alive(u64::from(pid) << 32).unwrap_or_else(|| exists(pid))
}

/// Whether the process still runs. True in doubt.
pub fn is_alive(owner: u64) -> bool {
    if let Some(lives) = seam::is_alive(owner) {
        return lives;
    }
    let (pid, started) = ((owner >> 32) as u32, owner as u32);
    match read_state(pid) {
        ProcessState::Runs(start) | ProcessState::Stopped(start) => {
            start == started || started == 0
        }
        ProcessState::Ended => false,
        ProcessState::Unknown => exists(pid),
    }
}

/// Whether the process is stopped, by a signal or a debugger.
pub fn is_stopped(owner: u64) -> bool {
    matches!(read_state(pid(owner)), ProcessState::Stopped(_))
}

/// The state of a process, from /proc.
enum ProcessState {
    /// It runs, and started this many clock ticks after boot (the low half of the number).
    Runs(u32),
    /// It is stopped; otherwise as `Runs`.
    Stopped(u32),
    /// It is a zombie or dead.
    Ended,
    /// Unknown: there is no such process, no permission to see it, or no /proc.
    Unknown,
}

fn read_state(pid: u32) -> ProcessState {
    let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { return ProcessState::Unknown };
    parse(&stat).unwrap_or(ProcessState::Unknown)
}

/// Parses `/proc/[pid]/stat` (proc(5)).
fn parse(stat: &[u8]) -> Option<ProcessState> {
    // The name in parentheses may contain any byte.
    let after = stat.iter().rposition(|b| *b == b')')?;
    let mut fields = stat.get(after + 1..)?.split(|b| *b == b' ').filter(|f| !f.is_empty());
    let state = fields.next()?;
    let start = std::str::from_utf8(fields.nth(18)?).ok()?;
    let start = start.trim().parse::<u64>().ok()? as u32;
    Some(match state {
        b"Z" | b"X" => ProcessState::Ended,
        b"T" | b"t" => ProcessState::Stopped(start),
        _ => ProcessState::Runs(start),
    })
}

/// Whether the process exists: kill(2) succeeds or is only forbidden.
fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives() {
        assert_ne!(this(), 0);
        assert_eq!(this(), this());
        assert!(is_alive(this()));
        // The same id with another start time is a process that has ended.
        assert!(!is_alive(this() ^ 1));
    }

    #[test]
    fn a_killed_child_is_gone_before_it_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let ProcessState::Runs(start) = read_state(child.id()) else {
            panic!("a child that does not run")
        };
        let owner = u64::from(child.id()) << 32 | u64::from(start);
        assert!(is_alive(owner));
        child.kill().unwrap();
        // WNOWAIT leaves the child as a zombie.
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        let how = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), how).unwrap();
        assert!(!is_alive(owner));
        child.wait().unwrap();
        assert!(!is_alive(owner));
    }
}
