//! Finds listening processes, their sockets, and how they wait for connections: proc(5), epoll(7).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::fstat;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use weir_print::plain;

/// A process with listening sockets.
#[derive(Debug, Clone)]
pub struct ServerProcess {
    /// Its process id.
    pub pid: i32,
    /// Its name, from `comm`.
    pub name: String,
    /// Its descriptors of the sockets, by inode.
    fds: BTreeMap<u64, i32>,
    /// The sockets in its epoll instances, by inode.
    waits: BTreeMap<u64, Epoll>,
    /// Whether it has any epoll instance.
    pub has_epoll: bool,
    /// Whether it has an io_uring instance.
    pub has_ring: bool,
}

/// How a process waits for a socket in epoll.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Epoll {
    /// The number of its epoll instances that contain the socket, usually one per loop.
    pub instances: usize,
    /// Whether all of them use EPOLLEXCLUSIVE, so that a connection wakes one waiting process.
    pub exclusive: bool,
}

/// A listening socket, and the processes that accept from it.
#[derive(Debug)]
pub struct ListeningSocket {
    /// Its inode.
    pub inode: u64,
    /// The processes that wait for it, or all that hold it if none waits.
    pub workers: Vec<ServerProcess>,
    /// The workers, and other processes with epoll that hold the socket but do not wait for it now.
    /// They take turns, as with nginx's `accept_mutex`.
    pub sharers: Vec<ServerProcess>,
}

/// The listening sockets of a port, without their processes, which are hidden.
pub fn hidden_at(port: u16) -> Vec<ListeningServer> {
    let mut out: BTreeMap<SocketAddr, Vec<ListeningSocket>> = BTreeMap::new();
    for (inode, address) in listening(None).into_iter().filter(|(_, at)| at.port() == port) {
        let (workers, sharers) = (Vec::new(), Vec::new());
        out.entry(address).or_default().push(ListeningSocket { inode, workers, sharers });
    }
    out.into_iter().map(|(address, sockets)| ListeningServer { address, sockets }).collect()
}

/// The listening sockets of one address.
#[derive(Debug)]
pub struct ListeningServer {
    /// The address.
    pub address: SocketAddr,
    /// The sockets. Each has a queue of its own.
    pub sockets: Vec<ListeningSocket>,
}

impl ListeningServer {
    /// A process in the network namespace of the sockets. `None` if all of them are hidden; the
    /// namespace is then this process's.
    pub(crate) fn namespace(&self) -> Option<i32> {
        self.sockets.iter().flat_map(|socket| &socket.workers).next().map(|process| process.pid)
    }
}

/// A search for servers.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// A process id. Its descendants match as well.
    pub pid: Option<i32>,
    /// A port.
    pub port: Option<u16>,
    /// A program name.
    pub name: Option<String>,
}

/// Finds the listening servers that match, by address.
pub fn find(search: &Search) -> Vec<ListeningServer> {
    let mut pids: Vec<i32> = numbers("/proc").collect();
    if let Some(root) = search.pid {
        pids = family(root, &pids);
    }
    let addresses: BTreeMap<u64, SocketAddr> = listening(search.pid)
        .into_iter()
        .filter(|(_, address)| search.port.is_none_or(|port| address.port() == port))
        .collect();
    let named =
        |process: &ServerProcess| search.name.as_ref().is_none_or(|name| *name == process.name);
    let all: Vec<ServerProcess> =
        pids.into_iter().filter_map(|pid| read(pid, &addresses)).filter(named).collect();
    let mut out: BTreeMap<SocketAddr, Vec<ListeningSocket>> = BTreeMap::new();
    for (inode, address) in addresses {
        let holders: Vec<&ServerProcess> =
            all.iter().filter(|process| process.fds.contains_key(&inode)).collect();
        let keeps = |process: &ServerProcess| only_holds_it(process, inode, &holders);
        let holders = || holders.iter().copied().filter(|process| !keeps(process));
        let mut workers: Vec<ServerProcess> =
            holders().filter(|p| p.waits.contains_key(&inode)).cloned().collect();
        let mut sharers: Vec<ServerProcess> = holders().filter(|p| p.has_epoll).cloned().collect();
        if workers.is_empty() {
            workers = holders().cloned().collect();
            sharers.clone_from(&workers);
        }
        if !workers.is_empty() {
            out.entry(address).or_default().push(ListeningSocket { inode, workers, sharers });
        }
    }
    out.into_iter().map(|(address, sockets)| ListeningServer { address, sockets }).collect()
}

/// Whether a process holds a socket only for its children and does not accept from it: a master or
/// an arbiter.
fn only_holds_it(process: &ServerProcess, inode: u64, holders: &[&ServerProcess]) -> bool {
    let is_parent = holders.iter().any(|other| parent(other.pid) == Some(process.pid));
    let waits = || process.epoll(inode).is_some() || process.has_ring;
    is_parent && !waits() && !calls(process.pid).iter().any(is_accept)
}

/// The system calls in which the threads of a process are blocked.
pub(crate) fn calls(pid: i32) -> BTreeSet<i64> {
    let call = |thread| {
        let call = fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall"));
        call.ok()?.split(' ').next()?.parse().ok()
    };
    numbers(&format!("/proc/{pid}/task")).filter_map(call).collect()
}

/// Whether the system call is accept(2).
pub(crate) fn is_accept(call: &i64) -> bool {
    [libc::SYS_accept, libc::SYS_accept4].contains(call)
}

impl ListeningSocket {
    /// Duplicates a descriptor of the socket from one of its processes.
    ///
    /// # Errors
    ///
    /// The error of pidfd_getfd(2): `PermissionDenied` if this process may not trace the other one.
    pub fn borrow(&self) -> io::Result<OwnedFd> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for process in &self.workers {
            let Some(fd) = process.fds.get(&self.inode) else { continue };
            let got = Pid::from_raw(process.pid)
                .ok_or(rustix::io::Errno::SRCH)
                .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
                .and_then(|pidfd| pidfd_getfd(pidfd, *fd, PidfdGetfdFlags::empty()));
            // The process may have closed the socket meanwhile, and have another file there.
            let is_it = |own: &OwnedFd| fstat(own).is_ok_and(|stat| stat.st_ino == self.inode);
            match got {
                Ok(own) if is_it(&own) => return Ok(own),
                Ok(_) => last = io::ErrorKind::NotFound.into(),
                Err(e) => last = e.into(),
            }
        }
        Err(last)
    }
}

/// The entries of a directory whose names are numbers.
pub(crate) fn numbers(path: &str) -> impl Iterator<Item = i32> + use<> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The processor time of each thread of a process.
pub fn thread_times(pid: i32) -> BTreeMap<i32, Duration> {
    let read = |thread| {
        let stat = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
        let nanoseconds = stat.split(' ').next()?.parse().ok()?;
        Some((thread, Duration::from_nanos(nanoseconds)))
    };
    numbers(&format!("/proc/{pid}/task")).filter_map(read).collect()
}

/// Descendants with the same name but without a listening socket. They may be passed connections.
pub(crate) fn descendants(of: &[&ServerProcess]) -> Vec<ServerProcess> {
    let all: Vec<i32> = numbers("/proc").collect();
    let mut pids: Vec<i32> = of.iter().flat_map(|process| family(process.pid, &all)).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.retain(|pid| of.iter().all(|process| process.pid != *pid));
    let process = |pid| {
        let name = name(pid);
        let (fds, waits) = Default::default();
        ServerProcess { pid, name, fds, waits, has_epoll: false, has_ring: false }
    };
    let all = pids.into_iter().map(process);
    all.filter(|process| of.iter().any(|parent| parent.name == process.name)).collect()
}

/// The name of a process, from `comm`. Empty if there is no such process.
pub(crate) fn name(pid: i32) -> String {
    named(&format!("/proc/{pid}/comm"))
}

/// Reads a `comm` file. A process chooses its own name, so it is made printable.
pub(crate) fn named(comm: &str) -> String {
    let name = fs::read(comm).unwrap_or_default();
    plain(String::from_utf8_lossy(&name).trim_end())
}

/// The health that a weir reports in the title of its master process, in brackets: a level and a
/// sentence.
pub(crate) fn health(worker: i32) -> Option<String> {
    let name = fs::read(format!("/proc/{}/cmdline", parent(worker)?)).ok()?;
    parse_health(&String::from_utf8_lossy(&name)).map(|text| plain(&text))
}

fn parse_health(name: &str) -> Option<String> {
    let name = name.strip_prefix("weir: master process ")?.trim_end_matches('\0');
    let at = ["[red: ", "[yellow: "].iter().filter_map(|word| name.find(word)).min()?;
    // The kernel cuts long titles, so the bracket may be missing.
    Some(name.get(at + 1..)?.trim_end_matches(']').to_owned())
}

/// A process and its descendants.
fn family(root: i32, all: &[i32]) -> Vec<i32> {
    let parents: BTreeMap<i32, i32> =
        all.iter().filter_map(|pid| Some((*pid, parent(*pid)?))).collect();
    let up = |pid: i32| std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
    // No process is its own ancestor, but /proc changes while it is read.
    all.iter().copied().filter(|pid| up(*pid).take(1000).any(|pid| pid == root)).collect()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The listening TCP sockets by inode, in the network namespace of a process, or in this one's.
fn listening(pid: Option<i32>) -> BTreeMap<u64, SocketAddr> {
    rows(pid)
        .into_iter()
        .filter(|row| row.state == LISTEN)
        .map(|row| (row.inode, row.own))
        .collect()
}

const LISTEN: u8 = 10;

/// A TCP socket in `net/tcp` or `net/tcp6`.
pub(crate) struct TcpRow {
    pub own: SocketAddr,
    /// The state, as in net/tcp_states.h. 1 is an open connection.
    pub state: u8,
    pub inode: u64,
}

/// A table of `/proc/PID/net`, which is of the network namespace of that process or of this one.
pub(crate) fn table(pid: Option<i32>, name: &str) -> io::Result<String> {
    let of = pid.map_or("self".to_owned(), |pid| pid.to_string());
    fs::read_to_string(format!("/proc/{of}/net/{name}"))
}

/// The TCP sockets in the network namespace of a process, or in this one's.
pub(crate) fn rows(pid: Option<i32>) -> Vec<TcpRow> {
    let tables = ["tcp", "tcp6"].map(|name| table(pid, name));
    tables.iter().flatten().flat_map(|table| table.lines()).filter_map(row).collect()
}

fn row(line: &str) -> Option<TcpRow> {
    let mut fields = line.split_whitespace().skip(1);
    let own = address(fields.next()?)?;
    let state = u8::from_str_radix(fields.nth(1)?, 16).ok()?;
    Some(TcpRow { own, state, inode: fields.nth(5)?.parse().ok()? })
}

/// The inode in a link of `/proc/PID/fd` such as `socket:[123]`.
pub(crate) fn inode(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Parses `0100007F:1F90`: 32-bit words of the address in native byte order, and the port.
pub(crate) fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(host.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = if host.len() == 8 {
        IpAddr::V4(Ipv4Addr::from(word(0)?))
    } else {
        let mut bytes = [0; 16];
        for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
            part.copy_from_slice(&word(at * 8)?);
        }
        IpAddr::V6(Ipv6Addr::from(bytes))
    };
    Some(SocketAddr::new(ip, port))
}

/// Reads a process. `None` if it has none of these sockets.
fn read(pid: i32, sockets: &BTreeMap<u64, SocketAddr>) -> Option<ServerProcess> {
    let (mut fds, mut of_fd, mut epolls) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    let mut has_ring = false;
    for fd in numbers(&format!("/proc/{pid}/fd")) {
        let Ok(to) = fs::read_link(format!("/proc/{pid}/fd/{fd}")) else { continue };
        if let Some(inode) = inode(&to).filter(|inode| sockets.contains_key(inode)) {
            fds.insert(inode, fd);
            of_fd.insert(fd, inode);
        } else if to.as_os_str() == "anon_inode:[eventpoll]" {
            epolls.push(fd);
        } else if to.as_os_str() == "anon_inode:[io_uring]" {
            has_ring = true;
        }
    }
    if fds.is_empty() {
        return None;
    }
    let mut waits: BTreeMap<u64, Epoll> = BTreeMap::new();
    let has_epoll = !epolls.is_empty();
    for epoll in epolls {
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{epoll}")).unwrap_or_default();
        for (fd, events) in info.lines().filter_map(target) {
            let Some(inode) = of_fd.get(&fd) else { continue };
            let exclusive = events & EXCLUSIVE != 0;
            let known = waits.entry(*inode).or_insert(Epoll { instances: 0, exclusive });
            known.instances += 1;
            known.exclusive &= exclusive;
        }
    }
    Some(ServerProcess { pid, name: name(pid), fds, waits, has_epoll, has_ring })
}

/// EPOLLEXCLUSIVE in linux/eventpoll.h.
const EXCLUSIVE: u32 = 1 << 28;

/// Parses a line of an epoll instance's `fdinfo`: a descriptor and its events.
fn target(line: &str) -> Option<(i32, u32)> {
    let mut words = line.strip_prefix("tfd:")?.split_whitespace();
    let fd = words.next()?.parse().ok()?;
    (words.next()? == "events:").then_some(())?;
    Some((fd, u32::from_str_radix(words.next()?, 16).ok()?))
}

impl ServerProcess {
    /// How the process waits for a socket with epoll, if it does.
    pub fn epoll(&self, inode: u64) -> Option<Epoll> {
        self.waits.get(&inode).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn the_health_in_a_masters_title_is_parsed() {
        let of = |text: &str| parse_health(&format!("weir: master process {text}\0\0"));
        assert_eq!(of("weir -c a [x]"), None);
        assert_eq!(of("weir [red: shop: a fails]"), Some("red: shop: a fails".to_owned()));
        assert_eq!(of("weir [yellow: the last rel"), Some("yellow: the last rel".to_owned()));
        assert_eq!(parse_health("nginx: master process [red: x]"), None);
    }

    #[test]
    fn addresses_are_read() {
        assert_eq!(address("0100007F:1F90").unwrap(), "127.0.0.1:8080".parse().unwrap());
        let six = address("00000000000000000000000001000000:0050").unwrap();
        assert_eq!(six, "[::1]:80".parse().unwrap());
        for wrong in ["", ":", "0100007F", "0100007F:x", "01:1F90", "0100é07F:1F90"] {
            assert_eq!(address(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn epoll_fdinfo_is_parsed() {
        let line = "tfd:        5 events: 10000019 data:                5  pos:0 ino:1d sdev:7";
        assert_eq!(target(line), Some((5, 0x1000_0019)));
        for wrong in ["", "tfd:", "tfd: x events: 1", "tfd: 5 events: z", "pos: 0"] {
            assert_eq!(target(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_listening_server_is_found_and_lends_its_socket() {
        let own = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = own.local_addr().unwrap();
        let pid = Some(std::process::id() as i32);
        let search = Search { pid, port: Some(at.port()), name: None };
        let found = find(&search);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].address, found[0].sockets.len()), (at, 1));
        match found[0].sockets[0].borrow() {
            Ok(borrowed) => assert_eq!(TcpListener::from(borrowed).local_addr().unwrap(), at),
            Err(e) => eprintln!("not run: pidfd_getfd(2) needs a privilege: {e}"),
        }
        let other = ListeningSocket {
            inode: found[0].sockets[0].inode + 1,
            workers: Vec::new(),
            sharers: Vec::new(),
        };
        let process = ServerProcess {
            fds: [(other.inode, own.as_raw_fd())].into(),
            ..found[0].sockets[0].workers[0].clone()
        };
        assert!(ListeningSocket { workers: vec![process], ..other }.borrow().is_err());
        assert!(find(&Search { port: Some(1), ..search.clone() }).is_empty());
        assert!(find(&Search { name: Some("nobody".to_owned()), ..search }).is_empty());
    }
}
