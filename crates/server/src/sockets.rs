//! The listening sockets: opened by the master, kept across reloads.
//!
//! A socket belongs to its address. A new configuration that listens on the same address goes
//! on with the same socket, so its accept queue survives; what changed of its options is set
//! anew.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use weir_log::{Cause, Log, log};
use weir_sys::sockopt::{set_defer_accept, set_fast_open, steer, unsteer};

use crate::listen::Load;
use weir_http::{Address, Listen};

/// How often a bind to a busy address is tried, and how long after one another.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// A listening address with its open sockets.
#[derive(Clone, Debug)]
pub struct Socket {
    /// What the configuration says about it.
    pub listen: Listen,
    /// One socket for all loops, or one for each loop, in their order.
    pub copies: Vec<Arc<OwnedFd>>,
    /// The loop that the first copy is for, when each has its own.
    first: Option<usize>,
}

/// Every listening address of a configuration, in the order of the site's list.
#[derive(Clone, Debug, Default)]
pub struct Sockets {
    list: Vec<Socket>,
}

/// Sockets could not be opened; the log has the reason.
#[derive(Debug)]
pub struct Failed;

/// Whether sockets are opened to serve, or to see whether they could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To serve.
    Serve,
    /// `-t`: a busy address is fine, and nothing is left behind.
    Test,
}

impl Socket {
    fn new(listen: Listen, copies: Vec<Arc<OwnedFd>>, wanted: usize) -> Socket {
        Socket { listen, copies, first: (wanted > 1).then_some(0) }
    }

    /// Whether every loop has a socket of its own here.
    pub fn is_each_loops_own(&self) -> bool {
        self.first.is_some()
    }

    /// The socket that a loop accepts from.
    pub fn copy(&self, row: usize) -> Option<&Arc<OwnedFd>> {
        match self.first {
            Some(first) => self.copies.get(row.checked_sub(first)?),
            None => self.copies.first(),
        }
    }
}

impl Sockets {
    /// Opens what `listens` ask for; `copies` says how many sockets an address needs. What
    /// `old` has open is taken from there.
    pub fn open(
        listens: &[Listen],
        copies: impl Fn(&Listen) -> usize,
        old: &Sockets,
        purpose: Purpose,
        log: &Log,
    ) -> Result<Sockets, Failed> {
        let mut list: Vec<Socket> = Vec::with_capacity(listens.len());
        for listen in listens {
            let before = old.list.iter().find(|socket| socket.listen.address == listen.address);
            let mut kept = before.map(|socket| socket.copies.clone()).unwrap_or_default();
            let wanted = copies(listen).max(1);
            if wanted > 1 && kept.len() < wanted {
                share_ports(listen, &kept, log);
            }
            kept.truncate(wanted);
            list.push(Socket::new(listen.clone(), kept, wanted));
        }
        let mut sockets = Sockets { list };
        sockets.complete(&copies, purpose, log)?;
        if purpose == Purpose::Serve {
            sockets.configure(old, log);
        }
        Ok(sockets)
    }

    /// Every socket, in the order of the site's list.
    pub fn iter(&self) -> impl Iterator<Item = &Socket> {
        self.list.iter()
    }

    /// Closes the sockets that are for loops of other processes: a queue must not outlive the one
    /// who accepts from it.
    pub fn keep_own(&mut self, rows: Range<usize>) {
        for socket in self.list.iter_mut().filter(|socket| socket.first == Some(0)) {
            socket.copies.truncate(rows.end);
            socket.copies.drain(..rows.start.min(socket.copies.len()));
            socket.first = Some(rows.start);
        }
    }

    /// Removes the files of unix sockets that `new` does not listen on any more; their
    /// descriptors close with this value. Where `new` has fewer sockets for an address, nothing
    /// more arrives at the others, and `load` tells their loops to take what is there.
    pub fn leave_to(&self, new: &Sockets, load: &Load, log: &Log) {
        for (number, socket) in self.list.iter().enumerate() {
            let next = new.list.iter().find(|s| s.listen.address == socket.listen.address);
            let kept = next.map_or(0, |s| s.copies.len().min(socket.copies.len()));
            if kept < socket.copies.len() {
                load.leave(number, kept);
            }
            match (next, &socket.listen.address) {
                (None, Address::Unix(path)) => {
                    log!(log, Warn, None, "deleting socket {}", path.display());
                    unlink(path, log);
                }
                (Some(next), _) if kept < socket.copies.len() => steer_to(next, kept, log),
                _ => {}
            }
        }
    }

    /// Removes the files of all unix sockets, as the server ends.
    pub fn unlink(&self, log: &Log) {
        for socket in &self.list {
            if let Address::Unix(path) = &socket.listen.address {
                unlink(path, log);
            }
        }
    }

    /// Opens what is missing, in rounds, since a predecessor may still be closing.
    fn complete(
        &mut self,
        copies: &impl Fn(&Listen) -> usize,
        purpose: Purpose,
        log: &Log,
    ) -> Result<(), Failed> {
        for _ in 0..TRIES {
            let mut busy = false;
            for socket in &mut self.list {
                let wanted = copies(&socket.listen).max(1);
                while socket.copies.len() < wanted {
                    match open(&socket.listen, wanted > 1, purpose, log)? {
                        Some(fd) => socket.copies.push(Arc::new(fd)),
                        None => {
                            busy |= purpose == Purpose::Serve;
                            break;
                        }
                    }
                }
            }
            if !busy {
                return Ok(());
            }
            log!(log, Notice, None, "try again to bind() after 500ms");
            pause();
        }
        log!(log, Emerg, None, "still could not bind()");
        Err(Failed)
    }

    /// Sets the options that may change; failures are logged and the socket serves without.
    fn configure(&self, old: &Sockets, log: &Log) {
        for socket in &self.list {
            let before = old.list.iter().find(|s| s.listen.address == socket.listen.address);
            let before = before.map(|s| &s.listen);
            for fd in &socket.copies {
                configure(fd.as_fd(), &socket.listen, before, log);
            }
        }
    }
}

/// Sends new connections to the first of an address' sockets only.
fn steer_to(socket: &Socket, kept: usize, log: &Log) {
    let Some(first) = socket.copies.first() else { return };
    if let Err(e) = steer(first.as_fd(), kept as u32) {
        let address = &socket.listen.address;
        log!(
            log,
            Alert,
            None,
            "setsockopt(SO_ATTACH_REUSEPORT_CBPF) {address} failed, ignored {}",
            Cause(&e)
        );
    }
}

/// Lets further sockets bind to the address of those that are open.
fn share_ports(listen: &Listen, open: &[Arc<OwnedFd>], log: &Log) {
    if let Some(first) = open.first() {
        // An error says that they were not steered.
        let _ = unsteer(first.as_fd());
    }
    for fd in open {
        if let Err(e) = sockopt::set_socket_reuseport(fd, true) {
            let e = io::Error::from(e);
            log!(
                log,
                Alert,
                None,
                "setsockopt(SO_REUSEPORT) {} failed, ignored {}",
                listen.address,
                Cause(&e)
            );
        }
    }
}

/// One socket, listening; nothing when the address is busy.
fn open(
    listen: &Listen,
    share: bool,
    purpose: Purpose,
    log: &Log,
) -> Result<Option<OwnedFd>, Failed> {
    let address = &listen.address;
    let fail = |what: fmt::Arguments<'_>, e: Errno| {
        log!(log, Emerg, None, "{what} failed {}", Cause(&e.into()));
        Failed
    };
    let fd = socket(listen).map_err(|e| fail(format_args!("socket() {address}"), e))?;
    sockopt::set_socket_reuseaddr(&fd, true)
        .map_err(|e| fail(format_args!("setsockopt(SO_REUSEADDR) {address}"), e))?;
    if share && purpose == Purpose::Serve {
        sockopt::set_socket_reuseport(&fd, true)
            .map_err(|e| fail(format_args!("setsockopt(SO_REUSEPORT) {address}"), e))?;
    }
    if let Address::Inet(std::net::SocketAddr::V6(_)) = address
        && let Err(e) = sockopt::set_ipv6_v6only(&fd, listen.ipv6only)
    {
        let e = io::Error::from(e);
        log!(log, Emerg, None, "setsockopt(IPV6_V6ONLY) {address} failed, ignored {}", Cause(&e));
    }
    let quiet = |e| e == Errno::ADDRINUSE && purpose == Purpose::Test;
    if let Err(e) = bind(&fd, address) {
        if !quiet(e) {
            fail(format_args!("bind() to {address}"), e);
        }
        return if e == Errno::ADDRINUSE { Ok(None) } else { Err(Failed) };
    }
    if let Address::Unix(path) = address {
        settle(path, purpose, log);
    }
    let backlog = backlog(listen);
    if let Err(e) = rustix::net::listen(&fd, backlog) {
        if !quiet(e) {
            fail(format_args!("listen() to {address}, backlog {backlog}"), e);
        }
        return if e == Errno::ADDRINUSE { Ok(None) } else { Err(Failed) };
    }
    Ok(Some(fd))
}

fn socket(listen: &Listen) -> rustix::io::Result<OwnedFd> {
    let family = match &listen.address {
        Address::Inet(std::net::SocketAddr::V4(_)) => AddressFamily::INET,
        Address::Inet(std::net::SocketAddr::V6(_)) => AddressFamily::INET6,
        Address::Unix(_) | Address::Unknown => AddressFamily::UNIX,
    };
    let protocol: Option<Protocol> = listen.multipath.then_some(rustix::net::ipproto::MPTCP);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(family, SocketType::STREAM, flags, protocol)
}

fn bind(fd: &OwnedFd, address: &Address) -> rustix::io::Result<()> {
    match address {
        Address::Inet(inet) => rustix::net::bind(fd, inet),
        Address::Unix(path) => rustix::net::bind(fd, &SocketAddrUnix::new(path.as_path())?),
        Address::Unknown => Err(Errno::INVAL),
    }
}

/// A unix socket's file is open to all, as nginx leaves it; a test leaves none.
fn settle(path: &Path, purpose: Purpose, log: &Log) {
    if let Err(e) = rustix::fs::chmod(path, Mode::from_raw_mode(0o666)) {
        let e = io::Error::from(e);
        log!(log, Emerg, None, "chmod() \"{}\" failed {}", path.display(), Cause(&e));
    }
    if purpose == Purpose::Test {
        unlink(path, log);
    }
}

fn unlink(path: &Path, log: &Log) {
    if let Err(e) = std::fs::remove_file(path) {
        log!(log, Emerg, None, "unlink() {} failed {}", path.display(), Cause(&e));
    }
}

fn backlog(listen: &Listen) -> i32 {
    i32::try_from(listen.backlog).unwrap_or(i32::MAX)
}

/// Sets a socket's options; `before` is what they were, if the socket was open already.
fn configure(fd: BorrowedFd<'_>, listen: &Listen, before: Option<&Listen>, log: &Log) {
    let tell = |what: fmt::Arguments<'_>, done: io::Result<()>| {
        if let Err(e) = done {
            let address = &listen.address;
            log!(log, Alert, None, "{what} {address} failed, ignored {}", Cause(&e));
        }
    };
    let bytes = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    if let Some(n) = listen.rcvbuf {
        let done = sockopt::set_socket_recv_buffer_size(fd, bytes(n));
        tell(format_args!("setsockopt(SO_RCVBUF, {n})"), done.map_err(Into::into));
    }
    if let Some(n) = listen.sndbuf {
        let done = sockopt::set_socket_send_buffer_size(fd, bytes(n));
        tell(format_args!("setsockopt(SO_SNDBUF, {n})"), done.map_err(Into::into));
    }
    keepalive(fd, listen, &tell);
    if let Some(n) = listen.fastopen {
        let done = set_fast_open(fd, i32::try_from(n).unwrap_or(i32::MAX));
        tell(format_args!("setsockopt(TCP_FASTOPEN, {n})"), done);
    }
    if before.is_some_and(|before| before.backlog != listen.backlog) {
        let done = rustix::net::listen(fd, backlog(listen)).map_err(Into::into);
        tell(format_args!("listen() to"), done);
    }
    if listen.deferred != before.is_some_and(|before| before.deferred) {
        let seconds = i32::from(listen.deferred);
        tell(
            format_args!("setsockopt(TCP_DEFER_ACCEPT, {seconds}) for"),
            set_defer_accept(fd, seconds),
        );
    }
}

fn keepalive(
    fd: BorrowedFd<'_>,
    listen: &Listen,
    tell: &impl Fn(fmt::Arguments<'_>, io::Result<()>),
) {
    let Some(said) = &listen.so_keepalive else { return };
    let done = sockopt::set_socket_keepalive(fd, said.on);
    let on = i32::from(said.on);
    tell(format_args!("setsockopt(SO_KEEPALIVE, {on})"), done.map_err(Into::into));
    if let Some(idle) = said.idle {
        let done = sockopt::set_tcp_keepidle(fd, idle).map_err(Into::into);
        tell(format_args!("setsockopt(TCP_KEEPIDLE, {})", idle.as_secs()), done);
    }
    if let Some(interval) = said.interval {
        let done = sockopt::set_tcp_keepintvl(fd, interval).map_err(Into::into);
        tell(format_args!("setsockopt(TCP_KEEPINTVL, {})", interval.as_secs()), done);
    }
    if let Some(count) = said.count {
        let done = sockopt::set_tcp_keepcnt(fd, count).map_err(Into::into);
        tell(format_args!("setsockopt(TCP_KEEPCNT, {count})"), done);
    }
}

/// The master serves nobody, so it may sleep.
fn pause() {
    let time = Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as i64 };
    let _ = rustix::thread::nanosleep(&time);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::slice::from_ref;

    use weir_balance::Shape;
    use weir_log::{Level, OpenLogs, Sink};

    fn any_port() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    fn listen(address: Address) -> Listen {
        Listen {
            address,
            backlog: 16,
            reuseport: false,
            ipv6only: true,
            deferred: false,
            rcvbuf: None,
            sndbuf: None,
            fastopen: None,
            so_keepalive: None,
            multipath: false,
            bind: false,
        }
    }

    fn fds(sockets: &Sockets) -> Vec<Vec<i32>> {
        sockets.iter().map(|s| s.copies.iter().map(|fd| fd.as_raw_fd()).collect()).collect()
    }

    #[test]
    fn an_address_keeps_its_socket() {
        let (a, b) = (listen(Address::Inet(any_port())), listen(Address::Inet(any_port())));
        let log = Log::default();
        let none = Sockets::default();
        let open = |listens: &[Listen], copies: usize, old: &Sockets| {
            Sockets::open(listens, |_| copies, old, Purpose::Serve, &log).unwrap()
        };
        let first = open(from_ref(&a), 1, &none);
        let second = open(&[b, a.clone()], 1, &first);
        assert_eq!(fds(&first)[0], fds(&second)[1]);

        let more = open(from_ref(&a), 3, &second);
        assert_eq!(fds(&more)[0].len(), 3);
        assert_eq!(fds(&more)[0][0], fds(&first)[0][0]);
        let fewer = open(&[a], 1, &more);
        assert_eq!(fds(&fewer)[0], fds(&first)[0]);
    }

    #[test]
    fn a_process_keeps_the_sockets_of_its_loops() {
        let a = listen(Address::Inet(any_port()));
        let log = Log::default();
        let all = Sockets::open(&[a], |_| 4, &Sockets::default(), Purpose::Serve, &log).unwrap();
        let mut own = all.clone();
        own.keep_own(1..3);
        let raw = |sockets: &Sockets, row| sockets.list[0].copy(row).map(|fd| fd.as_raw_fd());
        assert_eq!(fds(&own)[0], fds(&all)[0][1..3]);
        assert_eq!((raw(&own, 1), raw(&own, 2)), (raw(&all, 1), raw(&all, 2)));
        assert_eq!((raw(&own, 0), raw(&own, 3)), (None, None));
    }

    /// Fewer loops: what waits in the queues that go is not lost, and nothing more comes to them.
    #[test]
    fn connections_go_to_the_sockets_that_stay() {
        let at = any_port();
        let one = [listen(Address::Inet(at))];
        let log = Log::default();
        let old = Sockets::open(&one, |_| 4, &Sockets::default(), Purpose::Serve, &log).unwrap();
        let load = Load::new(4, Shape::SocketEach, &old).unwrap();
        let new = Sockets::open(&one, |_| 2, &old, Purpose::Serve, &log).unwrap();
        old.leave_to(&new, &load, &log);
        let accept = |i: usize| rustix::net::accept(&old.list[0].copies[i]).is_ok();
        for _ in 0..20 {
            let _client = TcpStream::connect(at).unwrap();
            assert!(accept(0) || accept(1));
            assert!(!accept(2) && !accept(3));
        }
        let more = Sockets::open(&one, |_| 4, &new, Purpose::Serve, &log).unwrap();
        drop(old);
        let clients: Vec<_> = (0..16).map(|_| TcpStream::connect(at).unwrap()).collect();
        let late = (2..4).map(|i| {
            std::iter::from_fn(|| rustix::net::accept(&more.list[0].copies[i]).ok()).count()
        });
        assert!(late.sum::<usize>() > 0, "{} clients", clients.len());
    }

    #[test]
    fn they_listen() {
        let at = any_port();
        let one = [listen(Address::Inet(at))];
        let none = Sockets::default();
        let _open = Sockets::open(&one, |_| 2, &none, Purpose::Serve, &Log::default()).unwrap();
        TcpStream::connect(at).unwrap();
    }

    #[test]
    fn a_test_minds_no_busy_address_and_leaves_no_file() {
        let dir = std::env::temp_dir().join(format!("weir-sockets-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let busy = TcpListener::bind("127.0.0.1:0").unwrap();
        let path = dir.join("s");
        let listens = [
            listen(Address::Inet(busy.local_addr().unwrap())),
            listen(Address::Unix(path.clone())),
        ];
        let logs = OpenLogs::new();
        let file = Sink::File(logs.open(&dir.join("log")).unwrap());
        let log = Log::new(vec![(Level::Debug, file)]);
        let none = Sockets::default();

        Sockets::open(&listens, |_| 1, &none, Purpose::Test, &log).unwrap();
        assert!(!path.exists());
        assert_eq!(std::fs::read_to_string(dir.join("log")).unwrap(), "");

        let open = Sockets::open(&listens[1..], |_| 1, &none, Purpose::Serve, &log).unwrap();
        assert!(path.exists());
        let load = Load::new(1, Shape::SocketEach, &open).unwrap();
        open.leave_to(&open, &load, &log);
        assert!(path.exists());
        open.leave_to(&none, &load, &log);
        assert!(!path.exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn an_address_that_is_not_ours_is_refused_at_once() {
        let far = [listen(Address::Inet("192.0.2.1:80".parse().unwrap()))];
        let none = Sockets::default();
        assert!(Sockets::open(&far, |_| 1, &none, Purpose::Serve, &Log::default()).is_err());
    }
}
