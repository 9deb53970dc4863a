//! A running server, and what the kernel reports about its workers.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{Family, HandlerWork, Program, ServerSetup, Subject};
use crate::slow_disk::{Delays, SlowDisk, Spread};

/// How long a server may take to start, to settle or to end.
const DEADLINE: Duration = Duration::from_secs(10);
/// Requests to measure the work of a handler. The fastest one counts.
const TRIALS: usize = 20;
/// The interval of polling.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A running server. It is ended and its files are removed when this is dropped.
pub(crate) struct RunningServer {
    child: Child,
    dir: PathBuf,
    subject: Subject,
    port: u16,
    processes: usize,
    /// The disk with its files, if opening a file blocks a worker.
    disk: Option<SlowDisk>,
}

/// Requests and connections by worker.
#[derive(Default)]
pub(crate) struct ServedByWorker {
    /// Requests by worker.
    pub(crate) requests: BTreeMap<String, u64>,
    /// Connections by worker.
    pub(crate) connections: BTreeMap<String, u64>,
    /// Requests by worker and path.
    pub(crate) by_path: BTreeMap<(String, String), u64>,
}

impl RunningServer {
    /// Starts a server, and waits until its workers sleep.
    pub(crate) fn start(subject: &Subject, setup: &ServerSetup) -> Result<RunningServer, String> {
        let port = free_port().map_err(|e| format!("no port: {e}"))?;
        let dir = scratch_dir(&format!("weir-lab-{}-{port}", std::process::id()))?;
        let time =
            setup.work.and_then(HandlerWork::sleeps).filter(|_| subject.program.opens_slowly);
        let disk = time.map(|time| slow_disk(&dir, time)).transpose()?;
        let conf = subject.configuration(setup, &dir, port);
        let file = dir.join("nginx.conf");
        fs::write(&file, conf).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        let mut command = Command::new(&subject.program.path);
        command.args(subject.arguments(&file, &dir));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if subject.program.family == Family::Haproxy {
            if let Some(work) = setup.work {
                let script = crate::haproxy::script(work, &dir.join("slow/file"));
                fs::write(dir.join(crate::haproxy::SCRIPT), script).map_err(|e| e.to_string())?;
            }
            // HAProxy logs only to standard output or syslog.
            let create = |name: &str| fs::File::create(dir.join(name)).map_err(|e| e.to_string());
            command.stdout(create("access.log")?).stderr(create("error.log")?);
        }
        let child = command.spawn().map_err(|e| format!("{}: {e}", subject.label))?;
        let (subject, processes) = (subject.clone(), subject.processes(setup));
        let mut running = RunningServer { child, dir, subject, port, processes, disk };
        running.wait_started()?;
        running.settle()?;
        Ok(running)
    }

    /// The name of the server and of its way to accept.
    pub(crate) fn label(&self) -> &str {
        &self.subject.label
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The time that a handler works for one millisecond of nominal work: the least of several
    /// requests, minus that of requests without work.
    pub(crate) fn measure_work(program: &Program) -> Option<Duration> {
        let work = Some(HandlerWork::Spin(Duration::from_millis(1)));
        let setup = ServerSetup { processes: 1, work, ..ServerSetup::default() };
        let (idle, busy) = (ServerSetup { work: None, ..setup.clone() }, setup);
        let least = |setup: &ServerSetup| {
            let server = RunningServer::start(&program.one_queue(), setup).ok()?;
            let time = || {
                let began = Instant::now();
                server.ask().ok().map(|_| began.elapsed())
            };
            (0..TRIALS).filter_map(|_| time()).min()
        };
        Some(least(&busy)?.saturating_sub(least(&idle)?))
    }

    /// Whether a disk with a slow open() can be mounted.
    pub(crate) fn can_open_slowly() -> bool {
        let name = format!("weir-lab-{}-trial", std::process::id());
        let Ok(dir) = scratch_dir(&name) else { return false };
        let disk = slow_disk(&dir, Spread::Fixed(Duration::from_millis(1)));
        let can = disk.is_ok();
        drop(disk);
        let _ = fs::remove_dir_all(&dir);
        can
    }

    fn wait_started(&mut self) -> Result<(), String> {
        let pid_file = self.dir.join("pid");
        let began = Instant::now();
        while !(pid_file.exists() && self.workers().len() >= self.processes) {
            let ended = self.child.try_wait().ok().flatten().is_some();
            if ended || began.elapsed() > DEADLINE {
                return Err(format!("{} does not start: {}", self.subject.label, self.log()));
            }
            pause(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits until all workers sleep, since then they have no more work.
    pub(crate) fn settle(&self) -> Result<(), String> {
        self.settle_within(DEADLINE)
    }

    /// As [`RunningServer::settle`], with another deadline.
    pub(crate) fn settle_within(&self, patience: Duration) -> Result<(), String> {
        let began = Instant::now();
        let mut quiet = 0;
        while quiet < 3 {
            let asleep = self.workers().iter().all(|&pid| tasks(pid).iter().all(|t| is_asleep(t)));
            quiet = if asleep { quiet + 1 } else { 0 };
            if began.elapsed() > patience {
                return Err(format!("{} does not come to rest", self.subject.label));
            }
            pause(POLL_INTERVAL);
        }
        Ok(())
    }

    /// The process ids of the workers.
    pub(crate) fn workers(&self) -> Vec<u32> {
        let id = self.child.id();
        let text = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let text = text.unwrap_or_default();
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    }

    /// The process id of one worker.
    pub(crate) fn any_worker(&self) -> Result<u32, String> {
        let first = self.workers().first().copied();
        first.ok_or_else(|| format!("{} has no worker", self.subject.label))
    }

    /// The process id of the master.
    pub(crate) fn master(&self) -> u32 {
        self.child.id()
    }

    /// Whether the error log has this text.
    pub(crate) fn error_log_contains(&self, text: &str) -> bool {
        let log = fs::read_to_string(self.dir.join("error.log"));
        log.is_ok_and(|log| log.contains(text))
    }

    /// CPU time of each worker so far.
    pub(crate) fn cpu(&self) -> Vec<Duration> {
        let time = |task: &PathBuf| Duration::from_nanos(word(&task.join("schedstat"), 0));
        let of = |pid: u32| -> Vec<Duration> { tasks(pid).iter().map(time).collect() };
        let each = self.workers().into_iter().map(of);
        match self.subject.program.family {
            // HAProxy's workers are threads.
            Family::Haproxy => each.flatten().collect(),
            Family::Weir | Family::Nginx => each.map(|tasks| tasks.iter().sum()).collect(),
        }
    }

    /// How often the workers have gone to sleep: their voluntary context switches.
    pub(crate) fn sleeps(&self) -> u64 {
        let workers = self.workers();
        workers.into_iter().flat_map(tasks).map(|task| switches(&task)).sum()
    }

    /// Sends a request on a connection of its own. Returns the longest word of the answer, since a
    /// chunked body begins with its length.
    pub(crate) fn ask(&self) -> Result<String, String> {
        let body = self.get("/ask")?;
        let word = body.split_whitespace().max_by_key(|word| word.len());
        word.map(str::to_owned).ok_or_else(|| format!("{}: no answer", self.subject.label))
    }

    /// The body of the answer for `path`.
    pub(crate) fn get(&self, path: &str) -> Result<String, String> {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(self.address())?;
            stream.set_read_timeout(Some(DEADLINE))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let text = ask().map_err(|e| format!("{}: {e}", self.subject.label))?;
        Ok(text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }

    /// A counter of weir's status page. `None` if there is none.
    pub(crate) fn counter(&self, name: &str) -> Option<u64> {
        let page = self.get("/status").ok()?;
        let value = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
        page.lines().find_map(value)
    }

    /// Sends requests one after another. The first accepts of a worker often differ from later
    /// ones. These requests do not count as served.
    pub(crate) fn warm_up(&self, requests: usize) -> Result<(), String> {
        (0..requests).try_for_each(|_| {
            self.ask()?;
            self.settle()
        })
    }

    /// Writes another configuration and reloads it.
    pub(crate) fn reload(&self, setup: &ServerSetup) {
        let conf = self.subject.configuration(setup, &self.dir, self.port);
        if fs::write(self.dir.join("nginx.conf"), conf).is_ok() {
            self.signal(Signal::HUP);
        }
    }

    /// Ends the server, so that its log is complete. Returns what each worker served.
    pub(crate) fn served(mut self) -> Result<ServedByWorker, String> {
        // The signal of a graceful shutdown.
        let gently = match self.subject.program.family {
            Family::Haproxy => Signal::USR1,
            Family::Weir | Family::Nginx => Signal::QUIT,
        };
        self.signal(gently);
        self.wait_end();
        let log = fs::read_to_string(self.dir.join("access.log")).unwrap_or_default();
        let mut served = ServedByWorker::default();
        let mut seen = std::collections::BTreeSet::new();
        for line in log.lines().filter(|line| !line.ends_with(" /ask")) {
            let who = line.split(' ').next().unwrap_or_default();
            *served.requests.entry(who.to_owned()).or_default() += 1;
            let path = line.rsplit(' ').next().unwrap_or_default();
            *served.by_path.entry((who.to_owned(), path.to_owned())).or_default() += 1;
            if seen.insert(line) {
                *served.connections.entry(who.to_owned()).or_default() += 1;
            }
        }
        if served.requests.is_empty() {
            return Err(format!("{} logged no request", self.subject.label));
        }
        Ok(served)
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // The process may have ended.
            let _ = kill_process(pid, signal);
        }
    }

    fn wait_end(&mut self) {
        let began = Instant::now();
        while began.elapsed() < DEADLINE && matches!(self.child.try_wait(), Ok(None)) {
            pause(POLL_INTERVAL);
        }
    }

    fn log(&self) -> String {
        let text = fs::read_to_string(self.dir.join("error.log")).unwrap_or_default();
        text.lines().last().unwrap_or("it says nothing").to_owned()
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        self.wait_end();
        let workers = self.workers();
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            for pid in workers.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        // The files of the disk must exist until it is unmounted.
        drop(self.disk.take());
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Makes a directory for temporary files. One that is there already is refused: another user may
/// have made it, to put a configuration or a link to another file in the place of ours.
pub(crate) fn scratch_dir(name: &str) -> Result<PathBuf, String> {
    let dir = std::env::temp_dir().join(name);
    let made = DirBuilder::new().mode(0o755).create(&dir);
    made.map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    Ok(dir)
}

/// A disk whose files take this long to open.
pub(crate) fn slow_disk(dir: &Path, time: Spread) -> Result<SlowDisk, String> {
    let failed = |e: std::io::Error| format!("a slow disk: {e}");
    let (source, mount) = (dir.join("files"), dir.join("slow"));
    fs::create_dir_all(&source).and_then(|()| fs::create_dir_all(&mount)).map_err(failed)?;
    fs::write(source.join("file"), "file").map_err(failed)?;
    SlowDisk::mount(&source, &mount, Delays::each_open(time)).map_err(failed)
}

#[allow(clippy::disallowed_methods, reason = "an experiment's own pause; no loop is held up")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

pub(crate) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn tasks(pid: u32) -> Vec<PathBuf> {
    let dir = fs::read_dir(format!("/proc/{pid}/task"));
    dir.map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

fn is_asleep(task: &Path) -> bool {
    let text = fs::read_to_string(task.join("stat")).unwrap_or_default();
    // The name is in parentheses and may have any characters. The state follows it.
    text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

fn switches(task: &Path) -> u64 {
    let text = fs::read_to_string(task.join("status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
}

fn word(file: &Path, n: usize) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().nth(n).and_then(|word| word.parse().ok()).unwrap_or(0)
}
