//! The holder of a lock: a process, told from later ones with the same id by the time it started.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::seam;

/// This process as [`this`] last found it.
static THIS: AtomicU64 = AtomicU64::new(0);

/// This process: its id above, the low half of its start time below. Never 0.
pub fn this() -> u64 {
    if let Some(this) = seam::this() {
        return this;
    }
    let pid = weir_sys::process::id();
    let known = THIS.load(Ordering::Relaxed);
    // A fork copies what its parent knew of itself.
    if (known >> 32) as u32 == pid {
        return known;
    }
    let start = match look(pid) {
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

/// Whether a process of this id runs. In doubt, it does.
pub fn runs(pid: u32) -> bool {
    seam::is_alive(u64::from(pid) << 32).unwrap_or_else(|| exists(pid))
}

/// Whether the process still runs. In doubt, it does.
pub fn is_alive(owner: u64) -> bool {
    if let Some(lives) = seam::is_alive(owner) {
        return lives;
    }
    let (pid, started) = ((owner >> 32) as u32, owner as u32);
    match look(pid) {
        ProcessState::Runs(start) | ProcessState::Stopped(start) => {
            start == started || started == 0
        }
        ProcessState::Ended => false,
        ProcessState::Unknown => exists(pid),
    }
}

/// Whether the process was stopped, by a signal or a debugger, and may go on.
pub fn is_stopped(owner: u64) -> bool {
    matches!(look(pid(owner)), ProcessState::Stopped(_))
}

/// What /proc says of a process.
enum ProcessState {
    /// It runs, since this many clock ticks after boot (the low half of the number).
    Runs(u32),
    /// The same, but it was stopped.
    Stopped(u32),
    /// It has ended, and waits for its parent to notice.
    Ended,
    /// Nothing: there is none, or it may not be seen, or there is no /proc.
    Unknown,
}

fn look(pid: u32) -> ProcessState {
    let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { return ProcessState::Unknown };
    parse(&stat).unwrap_or(ProcessState::Unknown)
}

/// Reads proc(5)'s line about a process.
fn parse(stat: &[u8]) -> Option<ProcessState> {
    // The name, in parentheses, may itself hold any byte.
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

/// Whether the kernel would deliver a signal, or only refuses it to us.
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
        // The same id with another start is a process that ended.
        assert!(!is_alive(this() ^ 1));
    }

    #[test]
    fn a_killed_child_is_gone_before_it_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let ProcessState::Runs(start) = look(child.id()) else {
            panic!("a child that does not run")
        };
        let owner = u64::from(child.id()) << 32 | u64::from(start);
        assert!(is_alive(owner));
        child.kill().unwrap();
        // WNOWAIT: it has ended, and still is there as a zombie.
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        let how = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), how).unwrap();
        assert!(!is_alive(owner));
        child.wait().unwrap();
        assert!(!is_alive(owner));
    }
}
