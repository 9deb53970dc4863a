//! Processes of a test, which end with it.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use crate::Dir;
use crate::wait::{PATIENCE, ask_until, timespec};

/// A running program. It is ended when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts a program in the foreground.
    pub fn start(command: &mut Command) -> Process {
        command.stdin(Stdio::null());
        let child = loop {
            match command.spawn() {
                // A process that another test forks at this moment inherits the descriptor with
                // which this one wrote the file, until it executes its program.
                Err(e) if e.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                child => break child,
            }
        };
        let child = child.unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        Process { child, ended: None }
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Whether it is running.
    pub fn is_running(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("waiting for a child");
        }
        self.ended.is_none()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        signal_pid(self.pid(), signal);
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> ExitStatus {
        if self.ended.is_none() {
            wait_end(self.pid());
            self.ended = Some(self.child.wait().expect("waiting for a child"));
        }
        self.ended.expect("it has ended")
    }
}

impl Drop for Process {
    /// Ends the process, by SIGKILL if necessary.
    fn drop(&mut self) {
        if !self.is_running() {
            return;
        }
        self.signal(Signal::TERM);
        if !ends(self.pid()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process. After SIGSTOP, waits until it has stopped.
pub(crate) fn signal_pid(pid: i32, signal: Signal) {
    let Some(known) = Pid::from_raw(pid) else { return };
    // The process may have ended.
    let _ = kill_process(known, signal);
    if signal == Signal::STOP {
        wait_state(pid, "TtZX");
    }
}

/// Waits until all threads of a process sleep.
pub(crate) fn wait_asleep(pid: i32) {
    wait_state(pid, "SZX");
}

/// Waits until a single-threaded process sleeps in poll(2) without a timeout.
pub(crate) fn wait_for_news(pid: i32) {
    assert!(ask_until(|| polls_forever(pid) == Some(true)), "process {pid} is to wake up");
}

fn polls_forever(pid: i32) -> Option<bool> {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let mut words = call.split_whitespace();
    // The number of the system call, and its third argument.
    let (number, end) = (words.next()?.parse::<i64>().ok()?, words.nth(2)?);
    let forever = match number {
        libc::SYS_ppoll => "0x0",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => "0xffffffff",
        _ => return None,
    };
    Some(end == forever)
}

/// Waits until all threads of a process are in one of these states (proc(5)), or it has ended. It
/// polls, since only the parent of a process is notified.
fn wait_state(pid: i32, states: &str) {
    assert!(ask_until(|| is_in(pid, states)), "process {pid} is not in a state of {states}");
}

fn is_in(pid: i32, states: &str) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let mut stats = threads.filter_map(|t| fs::read_to_string(t.ok()?.path().join("stat")).ok());
    stats.all(|stat| fields(&stat).next().is_none_or(|state| states.contains(state)))
}

/// The fields of proc(5)'s `stat` from the state on. The name before it may have any characters.
fn fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace()
}

/// Waits for the end of a process, which need not be a child.
pub fn wait_end(pid: i32) {
    assert!(ends(pid), "process {pid} does not end");
}

fn ends(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else { return true };
    let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else { return true };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&timespec(PATIENCE))).is_ok_and(|n| n > 0)
}

/// Memory of a process in KiB, by kind such as `Rss` or `Private_Dirty`. proc_pid_smaps(5).
pub fn memory_of(process: i32, kind: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The children of a process, the oldest first.
pub fn children(parent: i32) -> Vec<i32> {
    let read = || {
        let mut found = told_children(parent).unwrap_or_else(|| found_children(parent));
        found.sort_unstable();
        found
    };
    // The kernel may omit some while another one ends (proc_pid_children(5)).
    let mut found = read();
    loop {
        let again = read();
        if again == found {
            return found;
        }
        found = again;
    }
}

/// The children of a process's threads, as the kernel lists them. `None` if the kernel lacks the
/// file, or the process has ended.
fn told_children(parent: i32) -> Option<Vec<i32>> {
    let mut all = Vec::new();
    for thread in fs::read_dir(format!("/proc/{parent}/task")).ok()? {
        let text = fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
        all.extend(text.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    all.retain(|pid| parent_of(*pid) == Some(parent));
    Some(all)
}

/// The children of a process, found by the parents of all processes.
fn found_children(parent: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let pids = names.filter_map(|name| name.parse().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = fields(&stat);
    // Zombies do not count.
    fields.next().filter(|state| *state != "Z")?;
    fields.next()?.parse().ok()
}

/// Runs a program and waits for its end.
pub fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Output {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    output.unwrap_or_else(|e| panic!("cannot run {program}: {e}"))
}

/// The path of a script that runs a program under strace. System calls of this name end as `inject`
/// says, such as `error=EPERM`. `None` if strace cannot be used.
pub fn under_strace(dir: &Dir, program: &str, call: &str, inject: &str) -> Option<String> {
    let options = format!("-o /dev/null -e trace={call} -e inject={call}:{inject}");
    strace(dir, program, &options)
}

/// The path of a script that runs a program under strace, which writes the system calls of these
/// names to `trace` in `dir`. `None` if strace cannot be used.
pub fn traced(dir: &Dir, program: &str, calls: &str) -> Option<String> {
    let trace = dir.file("trace");
    strace(dir, program, &format!("-o {} -e trace={calls}", trace.display()))
}

fn strace(dir: &Dir, program: &str, options: &str) -> Option<String> {
    let start = format!("#!/bin/sh\nexec strace -D -f -q {options} {program} \"$@\"\n");
    let script = dir.write("weir", start);
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("its own file");
    let path = script.to_str().expect("a path of text").to_owned();
    if run(&path, ["-v"]).status.success() {
        return Some(path);
    }
    println!("not run: strace is missing, or may not trace");
    None
}

/// The CPU time of `work` on this thread. Other programs do not affect it.
pub fn spent(work: impl FnOnce()) -> Duration {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    };
    let begin = now();
    work();
    now().saturating_sub(begin)
}
