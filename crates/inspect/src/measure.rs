//! Measures queues, connections, processor time and context switches. proc(5), tcp(7).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use weir_sys::sockdiag;
use weir_sys::tcpinfo::accept_queue;

use crate::datagrams::Datagrams;
use crate::report::{AcceptQueue, ListenAddress, Report, Severity, Thread, WaitMethod, Worker};
use crate::servers::{
    ListeningServer, ListeningSocket, ServerProcess, calls, descendants, inode, is_accept, numbers,
    rows, thread_times,
};
use crate::{servers, verdict};

/// The interval between two samples of the queues.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// The resource use of a process up to a point in time.
#[derive(Debug, Clone, Default)]
struct Usage {
    /// The processor time of each thread.
    thread_times: BTreeMap<i32, Duration>,
    /// Context switches of each thread.
    switches: BTreeMap<i32, u64>,
}

/// Measures over an interval. `pause` waits between two samples. If it returns false, the interval
/// ends there.
pub(crate) fn measure(
    found: &[ListeningServer],
    time: Duration,
    mut pause: impl FnMut(Duration) -> bool,
) -> Report {
    let began = Instant::now();
    let handed: Vec<Vec<ServerProcess>> = found.iter().map(handed).collect();
    let pids = processes(found).chain(handed.iter().flatten()).map(|process| process.pid);
    let before: BTreeMap<i32, Usage> = pids.map(|pid| (pid, usage(pid))).collect();
    let overflows: Vec<Option<u64>> = found.iter().map(overflows).collect();
    let datagrams: Vec<_> = found.iter().map(Datagrams::at).collect();
    let mut most_waiting = vec![0; found.len()];
    let mut queues: Vec<Vec<SampledQueue>> =
        found.iter().map(|at| at.sockets.iter().map(SampledQueue::of).collect()).collect();
    loop {
        queues.iter_mut().flatten().for_each(SampledQueue::measure);
        for ((at, most), _) in
            found.iter().zip(&mut most_waiting).zip(&datagrams).filter(|(_, d)| d.is_some())
        {
            *most = (*most).max(Datagrams::at(at).map_or(0, |now| now.waiting));
        }
        if began.elapsed() >= time || !pause(SAMPLE_INTERVAL) {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64().max(0.001);
    let mut unseen = BTreeSet::new();
    let mut places = Vec::new();
    let before_it = overflows.into_iter().zip(datagrams.into_iter().zip(most_waiting));
    for (((listening, queues), handed), (overflows, (datagrams, waiting))) in
        found.iter().zip(queues).zip(&handed).zip(before_it)
    {
        let grown = overflows.zip(self::overflows(listening));
        let mut place = ListenAddress {
            address: listening.address.to_string(),
            program: program(listening),
            workers: workers(listening, handed, &before, seconds),
            connections: open_at(listening).len(),
            queues: Vec::new(),
            overflows: grown.map(|(then, now)| now.saturating_sub(then)),
            datagrams: datagrams.map(|then| then.later(listening, waiting)),
            findings: Vec::new(),
            health: None,
        };
        let queue_lengths = sockdiag::of(listening.address).filter(|all| all.len() == queues.len());
        let queue_lengths =
            queue_lengths.into_iter().flatten().map(Some).chain(std::iter::repeat(None));
        for ((mut queue, socket), queue_lengths) in
            queues.into_iter().zip(&listening.sockets).zip(queue_lengths)
        {
            if let (Err(_), Some((waiting, room))) = (&queue.socket, queue_lengths) {
                // Any user may read the queue length of other users' sockets, but only by
                // sock_diag(7), once.
                (queue.waiting, queue.room) = (Some(waiting), Some(room));
            } else if let Err(e) = &queue.socket {
                unseen.insert(format!("how many wait in queues ({e}): run it as root"));
            }
            let workers =
                accepting_processes(listening, socket).iter().map(|worker| worker.pid).collect();
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
        // The server's own statement covers more than its sockets.
        if place.health.is_some() {
            place.findings.retain(|finding| finding.severity != Severity::Fine);
        }
    }
    Report { seconds, processors, places, unseen: unseen.into_iter().collect() }
}

/// A queue, sampled several times.
struct SampledQueue {
    socket: std::io::Result<OwnedFd>,
    waiting: Option<u32>,
    room: Option<u32>,
}

impl SampledQueue {
    fn of(socket: &ListeningSocket) -> SampledQueue {
        SampledQueue { socket: socket.borrow(), waiting: None, room: None }
    }

    fn measure(&mut self) {
        if let Ok(socket) = &self.socket
            && let Ok((waiting, room)) = accept_queue(socket.as_fd())
        {
            self.waiting = self.waiting.max(Some(waiting));
            self.room = Some(room);
        }
    }
}

fn processes(found: &[ListeningServer]) -> impl Iterator<Item = &ServerProcess> {
    let sockets = found.iter().flat_map(|listening| &listening.sockets);
    sockets.flat_map(|socket| &socket.sharers)
}

/// The processes that accept from a socket. With several queues, only those that wait for this one.
fn accepting_processes<'a>(
    listening: &ListeningServer,
    socket: &'a ListeningSocket,
) -> &'a [ServerProcess] {
    if listening.sockets.len() == 1 { &socket.sharers } else { &socket.workers }
}

/// The processes that receive connections from the accepting ones. If one of them has a connection,
/// all processes of the kind count.
fn handed(listening: &ListeningServer) -> Vec<ServerProcess> {
    let holders: Vec<&ServerProcess> = processes(std::slice::from_ref(listening)).collect();
    let (open, all) = (open_at(listening), descendants(&holders));
    let some = all.iter().any(|process| connections(process.pid, &open) > 0);
    if some { all } else { Vec::new() }
}

fn program(listening: &ListeningServer) -> String {
    let names: BTreeSet<&str> =
        processes(std::slice::from_ref(listening)).map(|process| process.name.as_str()).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

fn workers(
    listening: &ListeningServer,
    handed: &[ServerProcess],
    before: &BTreeMap<i32, Usage>,
    seconds: f64,
) -> Vec<Worker> {
    let open = open_at(listening);
    let mut out: BTreeMap<i32, Worker> = BTreeMap::new();
    for socket in &listening.sockets {
        let any_waits = socket.workers.iter().any(|other| other.epoll(socket.inode).is_some());
        for process in accepting_processes(listening, socket) {
            let epoll = process.epoll(socket.inode);
            let waits = match epoll {
                None if any_waits => WaitMethod::Turns,
                _ => waits(process, socket.inode),
            };
            let new_worker = || worker(process, waits, before.get(&process.pid), seconds, &open);
            let worker = out.entry(process.pid).or_insert_with(new_worker);
            worker.loops += epoll.map_or(0, |epoll| epoll.instances);
        }
    }
    for process in handed {
        let then = before.get(&process.pid);
        let new_worker = || worker(process, WaitMethod::Handed, then, seconds, &open);
        out.entry(process.pid).or_insert_with(new_worker);
    }
    out.into_values().collect()
}

/// The measurements of a process: its current state, and its use of resources since `then`.
fn worker(
    process: &ServerProcess,
    waits: WaitMethod,
    then: Option<&Usage>,
    seconds: f64,
    open: &BTreeSet<u64>,
) -> Worker {
    let (now, then) = (usage(process.pid), then.cloned().unwrap_or_default());
    let ran = |(thread, time): (&i32, &Duration)| {
        let past = then.thread_times.get(thread).copied().unwrap_or_default();
        time.saturating_sub(past).as_secs_f64() / seconds
    };
    let shares: Vec<f64> = now.thread_times.iter().map(ran).collect();
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
        threads: now.thread_times.len(),
        cpu: shares.iter().sum(),
        busiest: shares.iter().copied().fold(0.0, f64::max),
        rows: threads(process.pid, now.thread_times.keys(), &shares, &switches),
        switches: switches.iter().sum(),
        connections: connections(process.pid, open),
    }
}

/// The busiest threads of a process with several threads, in descending order of processor time.
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
    rows.truncate(if rows.len() > 1 { MAX_THREADS } else { 0 });
    rows
}

/// The most threads shown per worker.
const MAX_THREADS: usize = 16;

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
/// Newer architectures lack these system calls.
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[i64] = &[];

fn usage(pid: i32) -> Usage {
    let thread_times = thread_times(pid);
    let switches = |thread: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status"));
        let count = |line: &str| {
            let (name, count) = line.split_once(':')?;
            name.ends_with("voluntary_ctxt_switches").then_some(count.trim().parse::<u64>().ok()?)
        };
        status.unwrap_or_default().lines().filter_map(count).sum::<u64>()
    };
    Usage {
        switches: thread_times.keys().map(|thread| (*thread, switches(thread))).collect(),
        thread_times,
    }
}

/// The inodes of the sockets of open connections at a listener's port, without those that wait to
/// be accepted, which have none.
fn open_at(listening: &ListeningServer) -> BTreeSet<u64> {
    const ESTABLISHED: u8 = 1;
    let port = listening.address.port();
    let open = rows(listening.namespace()).into_iter();
    let open = open.filter(|row| row.state == ESTABLISHED && row.inode != 0);
    open.filter(|row| row.own.port() == port).map(|row| row.inode).collect()
}

/// The number of these connections that a process has.
fn connections(pid: i32, open: &BTreeSet<u64>) -> usize {
    let links = numbers(&format!("/proc/{pid}/fd"))
        .filter_map(|fd| fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok());
    let inodes = links.filter_map(|to| inode(&to));
    inodes.filter(|inode| open.contains(inode)).count()
}

/// Connections that were dropped in a network namespace since it began because an accept queue was
/// full. netstat(8): ListenOverflows.
fn overflows(listening: &ListeningServer) -> Option<u64> {
    let table = servers::table(listening.namespace(), "netstat").ok()?;
    let mut lines = table.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split(' ').position(|name| name == "ListenOverflows")?;
    values.split(' ').nth(at)?.parse().ok()
}
