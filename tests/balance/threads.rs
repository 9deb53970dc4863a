//! What a server's threads are doing, as /proc tells it.

use std::fs;
use std::time::Duration;

use weir_testkit::{Server, ask_until};

/// Longer than any timer with which a loop would look for connections.
const STILL: Duration = Duration::from_millis(200);

/// A thread of a worker.
#[derive(PartialEq)]
struct Thread {
    pid: i32,
    name: String,
    /// The system call in which it sleeps; none while it runs or wants to.
    call: Option<i64>,
    /// How often it gave up its processor: a thread that has run between two looks has another number then.
    switches: Option<String>,
}

impl Thread {
    fn read(pid: i32, task: &fs::DirEntry) -> Option<Thread> {
        let read = |name| fs::read_to_string(task.path().join(name)).ok();
        let status = read("status")?;
        let switches = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
        let (switches, syscall) = (switches.map(str::to_owned), read("syscall")?);
        let call = syscall.split_whitespace().next().and_then(|word| word.parse().ok());
        let name = read("comm")?.trim_end().to_owned();
        Some(Thread { pid, name, call, switches })
    }

    fn is_in(&self, calls: &[i64]) -> bool {
        self.call.is_some_and(|call| calls.contains(&call))
    }

    fn waits(&self) -> bool {
        self.is_in(&[libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2])
    }
}

fn look(server: &Server) -> Vec<Thread> {
    let tasks = |pid| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.filter_map(move |task| Thread::read(pid, &task))
    };
    server.workers().into_iter().flat_map(tasks).collect()
}

/// Waits until so many threads of the workers, by whatever name, sleep in epoll_wait(2) at the same time.
pub fn wait_asleep(server: &Server, threads: usize) {
    let is_so = ask_until(|| {
        let before = look(server);
        let asleep = before.iter().filter(|thread| thread.waits());
        // One that was seen asleep may have been woken by one that was seen asleep after it.
        asleep.count() == threads && look(server) == before
    });
    assert!(is_so, "the loops do not come to rest");
}

/// Waits until no thread of the workers has run between two looks, a while apart.
#[expect(clippy::disallowed_methods, reason = "that nothing happens is told by time alone")]
pub fn wait_still(server: &Server) {
    let is_so = ask_until(|| {
        let before = look(server);
        std::thread::sleep(STILL);
        look(server) == before
    });
    assert!(is_so, "something runs though nothing happens");
}

/// No thread of a worker that was told to stop runs any more.
pub fn wait_stopped(server: &Server) {
    let state = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
    let stopped = |pid| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.filter_map(state).all(|status| status.contains("State:\tT"))
    };
    assert!(ask_until(|| server.workers().into_iter().all(stopped)), "it goes on");
}

/// Waits until a loop is blocked by a request.
pub fn wait_blocked(server: &Server) {
    let is_so = ask_until(|| {
        let sleeps = [libc::SYS_nanosleep, libc::SYS_clock_nanosleep];
        look(server).iter().any(|thread| thread.is_in(&sleeps))
    });
    assert!(is_so, "no loop is blocked");
}
