//! Takes the figures: queues, connections, processor time and context switches. proc(5), tcp(7).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use weir_sys::sockdiag;
use weir_sys::tcpinfo::accept_queue;

use crate::datagrams::Datagrams;
use crate::report::{AcceptQueue, ListenAddress, Report, Severity, Thread, WaitMethod, Worker};
use crate::servers::{
    Listening, ListeningSocket, ServerProcess, calls, inode, is_accept, numbers, offspring, ran,
    rows,
};
use crate::{servers, verdict};

/// The interval between two looks at the queues.
const OFTEN: Duration = Duration::from_millis(20);

/// What a process had used by a point in time.
#[derive(Debug, Clone, Default)]
struct Used {
    /// The processor time of each thread.
    ran: BTreeMap<i32, Duration>,
    /// How often each thread was taken from a processor.
    switches: BTreeMap<i32, u64>,
}

/// Takes figures over a while. `pause` waits between two looks at the queues.
pub(crate) fn look(found: &[Listening], time: Duration, mut pause: impl FnMut(Duration)) -> Report {
    let began = Instant::now();
    let handed: Vec<Vec<ServerProcess>> = found.iter().map(handed).collect();
    let pids = processes(found).chain(handed.iter().flatten()).map(|process| process.pid);
    let before: BTreeMap<i32, Used> = pids.map(|pid| (pid, used(pid))).collect();
    let overflows = overflows();
    let datagrams: Vec<_> = found.iter().map(|at| Datagrams::at(at.address.port())).collect();
    let mut most_waiting = vec![0; found.len()];
    let mut queues: Vec<Vec<Watched>> =
        found.iter().map(|at| at.sockets.iter().map(Watched::of).collect()).collect();
    loop {
        queues.iter_mut().flatten().for_each(Watched::look);
        for ((at, most), _) in
            found.iter().zip(&mut most_waiting).zip(&datagrams).filter(|(_, d)| d.is_some())
        {
            *most = (*most).max(Datagrams::at(at.address.port()).map_or(0, |now| now.waiting));
        }
        if began.elapsed() >= time {
            break;
        }
        pause(OFTEN);
    }
    let seconds = began.elapsed().as_secs_f64().max(0.001);
    let grown = overflows.zip(self::overflows()).map(|(then, now)| now.saturating_sub(then));
    let mut unseen = BTreeSet::new();
    let mut places = Vec::new();
    let datagrams = datagrams.into_iter().zip(most_waiting);
    for (((listening, queues), handed), (datagrams, waiting)) in
        found.iter().zip(queues).zip(&handed).zip(datagrams)
    {
        let mut place = ListenAddress {
            address: listening.address.to_string(),
            program: program(listening),
            workers: workers(listening, handed, &before, seconds),
            connections: open_at(listening.address.port()).len(),
            queues: Vec::new(),
            overflows: grown,
            datagrams: datagrams.map(|then| then.later(listening.address.port(), waiting)),
            findings: Vec::new(),
            health: None,
        };
        let told = sockdiag::of(listening.address).filter(|all| all.len() == queues.len());
        let told = told.into_iter().flatten().map(Some).chain(std::iter::repeat(None));
        for ((mut queue, socket), told) in queues.into_iter().zip(&listening.sockets).zip(told) {
            if let (Err(_), Some((waiting, room))) = (&queue.socket, told) {
                // For sockets of other users any process may read the queue's length, once.
                (queue.waiting, queue.room) = (Some(waiting), Some(room));
            } else if let Err(e) = &queue.socket {
                unseen.insert(format!("how many wait in queues ({e}): run it as root"));
            }
            let workers = takers(listening, socket).iter().map(|worker| worker.pid).collect();
            place.queues.push(AcceptQueue { waiting: queue.waiting, room: queue.room, workers });
        }
        if place.workers.is_empty() {
            unseen.insert(
                "the processes that serve it, and their connections: run it as root".to_owned(),
            );
        }
        places.push(place);
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for place in &mut places {
        place.findings = verdict::findings(place, processors);
        place.health = place.workers.first().and_then(|worker| servers::health(worker.pid));
        // What the server says is about more than its sockets.
        if place.health.is_some() {
            place.findings.retain(|finding| finding.severity != Severity::Fine);
        }
    }
    Report { seconds, processors, places, unseen: unseen.into_iter().collect() }
}

/// A queue over several looks.
struct Watched {
    socket: std::io::Result<OwnedFd>,
    waiting: Option<u32>,
    room: Option<u32>,
}

impl Watched {
    fn of(socket: &ListeningSocket) -> Watched {
        Watched { socket: socket.borrow(), waiting: None, room: None }
    }

    fn look(&mut self) {
        if let Ok(socket) = &self.socket
            && let Ok((waiting, room)) = accept_queue(socket.as_fd())
        {
            self.waiting = self.waiting.max(Some(waiting));
            self.room = Some(room);
        }
    }
}

fn processes(found: &[Listening]) -> impl Iterator<Item = &ServerProcess> {
    let sockets = found.iter().flat_map(|listening| &listening.sockets);
    sockets.flat_map(|socket| &socket.sharers)
}

/// The processes that take connections from a socket: of several queues only those that wait for
/// this one.
fn takers<'a>(listening: &Listening, socket: &'a ListeningSocket) -> &'a [ServerProcess] {
    if listening.sockets.len() == 1 { &socket.sharers } else { &socket.workers }
}

/// The processes that are handed connections: they do not accept, and have some of the connections.
/// Their like count as well.
fn handed(listening: &Listening) -> Vec<ServerProcess> {
    let holders: Vec<&ServerProcess> = processes(std::slice::from_ref(listening)).collect();
    let (open, all) = (open_at(listening.address.port()), offspring(&holders));
    let some = all.iter().any(|process| connections(process.pid, &open) > 0);
    if some { all } else { Vec::new() }
}

fn program(listening: &Listening) -> String {
    let names: BTreeSet<&str> =
        processes(std::slice::from_ref(listening)).map(|process| process.name.as_str()).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

fn workers(
    listening: &Listening,
    handed: &[ServerProcess],
    before: &BTreeMap<i32, Used>,
    seconds: f64,
) -> Vec<Worker> {
    let open = open_at(listening.address.port());
    let mut out: BTreeMap<i32, Worker> = BTreeMap::new();
    for socket in &listening.sockets {
        let somebody_waits = socket.workers.iter().any(|other| other.epoll(socket.inode).is_some());
        for process in takers(listening, socket) {
            let epoll = process.epoll(socket.inode);
            let waits = match epoll {
                None if somebody_waits => WaitMethod::Turns,
                _ => waits(process, socket.inode),
            };
            let fresh = || worker(process, waits, before.get(&process.pid), seconds, &open);
            let worker = out.entry(process.pid).or_insert_with(fresh);
            worker.loops += epoll.map_or(0, |epoll| epoll.instances);
        }
    }
    for process in handed {
        let then = before.get(&process.pid);
        let fresh = || worker(process, WaitMethod::Handed, then, seconds, &open);
        out.entry(process.pid).or_insert_with(fresh);
    }
    out.into_values().collect()
}

/// The figures of a process, now and since `then`, so many seconds ago.
fn worker(
    process: &ServerProcess,
    waits: WaitMethod,
    then: Option<&Used>,
    seconds: f64,
    open: &BTreeSet<u64>,
) -> Worker {
    let (now, then) = (used(process.pid), then.cloned().unwrap_or_default());
    let ran = |(thread, ran): (&i32, &Duration)| {
        let past = then.ran.get(thread).copied().unwrap_or_default();
        ran.saturating_sub(past).as_secs_f64() / seconds
    };
    let shares: Vec<f64> = now.ran.iter().map(ran).collect();
    let switches = |(thread, switches): (&i32, &u64)| {
        let past = then.switches.get(thread).copied().unwrap_or_default();
        switches.saturating_sub(past) as f64 / seconds
    };
    let switches: Vec<f64> = now.switches.iter().map(switches).collect();
    Worker {
        pid: process.pid,
        name: process.name.clone(),
        waits,
        loops: 0,
        threads: now.ran.len(),
        cpu: shares.iter().sum(),
        busiest: shares.iter().copied().fold(0.0, f64::max),
        rows: threads(process.pid, now.ran.keys(), &shares, &switches),
        switches: switches.iter().sum(),
        connections: connections(process.pid, open),
    }
}

/// The busiest threads of a process that has several, in the order of the threads.
fn threads<'a>(
    pid: i32,
    threads: impl Iterator<Item = &'a i32>,
    shares: &[f64],
    switches: &[f64],
) -> Vec<Thread> {
    let figures = shares.iter().zip(switches);
    let mut rows: Vec<Thread> = threads
        .zip(figures)
        .map(|(&tid, (&cpu, &switches))| {
            let name = servers::named(&format!("/proc/{pid}/task/{tid}/comm"));
            Thread { tid, name, cpu, switches }
        })
        .collect();
    rows.sort_by(|a, b| b.cpu.total_cmp(&a.cpu));
    rows.truncate(if rows.len() > 1 { MOST_THREADS } else { 0 });
    rows
}

/// The most threads of a worker that are shown.
const MOST_THREADS: usize = 16;

fn waits(process: &ServerProcess, inode: u64) -> WaitMethod {
    if let Some(epoll) = process.epoll(inode) {
        return if epoll.exclusive { WaitMethod::EpollExclusive } else { WaitMethod::Epoll };
    }
    let calls = calls(process.pid);
    let any = |names: &[i64]| names.iter().any(|name| calls.contains(name));
    if calls.iter().any(is_accept) {
        WaitMethod::Accept
    } else if process.has_ring {
        WaitMethod::IoUring
    } else if any(&[libc::SYS_ppoll, libc::SYS_pselect6]) || any(OLD_CALLS) {
        WaitMethod::Poll
    } else {
        WaitMethod::Unknown
    }
}

#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[i64] = &[libc::SYS_poll, libc::SYS_select];
/// Newer architectures lack the old system calls.
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[i64] = &[];

fn used(pid: i32) -> Used {
    let ran = ran(pid);
    let switches = |thread: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status"));
        let count = |line: &str| {
            let (name, count) = line.split_once(':')?;
            name.ends_with("voluntary_ctxt_switches").then_some(count.trim().parse::<u64>().ok()?)
        };
        status.unwrap_or_default().lines().filter_map(count).sum::<u64>()
    };
    Used { switches: ran.keys().map(|thread| (*thread, switches(thread))).collect(), ran }
}

/// The inodes of the sockets of open connections at a port of this machine.
fn open_at(port: u16) -> BTreeSet<u64> {
    const ESTABLISHED: u8 = 1;
    let open = rows(None).into_iter().filter(|row| row.state == ESTABLISHED);
    open.filter(|row| row.own.port() == port).map(|row| row.inode).collect()
}

/// The number of these connections that a process has.
fn connections(pid: i32, open: &BTreeSet<u64>) -> usize {
    let links = numbers(&format!("/proc/{pid}/fd"))
        .filter_map(|fd| fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok());
    let inodes = links.filter_map(|to| inode(&to));
    inodes.filter(|inode| open.contains(inode)).count()
}

/// Connections that were dropped for full queues since this machine started. netstat(8), ListenOverflows.
fn overflows() -> Option<u64> {
    let table = fs::read_to_string("/proc/self/net/netstat").ok()?;
    let mut lines = table.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split(' ').position(|name| name == "ListenOverflows")?;
    values.split(' ').nth(at)?.parse().ok()
}
