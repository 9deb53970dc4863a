//! What a server's threads are doing, as /proc tells it.

use std::fs;

use weir_testkit::{Server, ask_until};

/// A word that epoll shows of a socket that wakes one waiter only: EPOLLEXCLUSIVE.
const EXCLUSIVE: u64 = 1 << 28;

/// A thread of a worker.
#[derive(PartialEq)]
struct Thread {
    pid: i32,
    name: String,
    /// The system call in which it sleeps and its first argument; none while it runs or wants to.
    call: Option<(i64, u64)>,
    /// How often it gave up its processor: a thread that has run between two looks has another number then.
    switches: Option<String>,
}

impl Thread {
    fn read(pid: i32, task: &fs::DirEntry) -> Option<Thread> {
        let read = |name| fs::read_to_string(task.path().join(name)).ok();
        let status = read("status")?;
        let switches = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
        let (switches, syscall) = (switches.map(str::to_owned), read("syscall")?);
        let mut words = syscall.split_whitespace();
        let number = words.next().and_then(|word| word.parse().ok());
        let argument = words.next().and_then(|word| hexadecimal(word.trim_start_matches("0x")));
        let name = read("comm")?.trim_end().to_owned();
        Some(Thread { pid, name, call: number.zip(argument), switches })
    }

    fn is_in(&self, calls: &[i64]) -> bool {
        self.call.is_some_and(|(number, _)| calls.contains(&number))
    }

    fn waits(&self) -> bool {
        self.is_in(&[libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2])
    }

    /// `$pid-$loop`, if it is a loop that a connection to a shared socket may wake.
    fn armed(&self) -> Option<String> {
        let index = match self.name.strip_prefix("weir: ") {
            Some(kind) => kind.strip_prefix("loop ")?,
            None => "0",
        };
        let (_, epoll) = self.call.filter(|_| self.waits())?;
        let watched = fs::read_to_string(format!("/proc/{}/fdinfo/{epoll}", self.pid)).ok()?;
        let events = watched.lines().filter_map(|line| line.split_once("events:"));
        let events = events.filter_map(|(_, rest)| hexadecimal(rest.split_whitespace().next()?));
        events
            .into_iter()
            .any(|bits| bits & EXCLUSIVE != 0)
            .then(|| format!("{}-{index}", self.pid))
    }
}

fn hexadecimal(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

fn look(server: &Server) -> Vec<Thread> {
    let tasks = |pid| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.filter_map(move |task| Thread::read(pid, &task))
    };
    server.workers().into_iter().flat_map(tasks).collect()
}

/// Waits until so many threads of the workers, by whatever name, sleep in epoll_wait(2) at the same time, and none
/// of the loops that a connection may wake is `unwanted`.
pub fn wait_asleep(server: &Server, threads: usize, unwanted: impl Fn(&str) -> bool) {
    let is_so = ask_until(|| {
        let before = look(server);
        let asleep = before.iter().filter(|thread| thread.waits());
        let armed = before.iter().filter_map(Thread::armed);
        // One that was seen asleep may have been woken by one that was seen asleep after it.
        asleep.count() == threads
            && !armed.into_iter().any(|name| unwanted(&name))
            && look(server) == before
    });
    assert!(is_so, "the loops do not come to rest");
}

/// Waits until a loop is blocked by a request.
pub fn wait_blocked(server: &Server) {
    let is_so = ask_until(|| {
        let sleeps = [libc::SYS_nanosleep, libc::SYS_clock_nanosleep];
        look(server).iter().any(|thread| thread.is_in(&sleeps))
    });
    assert!(is_so, "no loop is blocked");
}
