//! Opens one listening socket. nginx: ngx_open_listening_sockets().

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use weir_log::{Cause, Log, log};
use weir_sys::guarded;
use weir_sys::sockopt::is_accept_deferred;
use weir_values::Address;
use weir_values::listen::{Deferred, Listen};

use super::holder::held_by;
use super::{Purpose, SocketsFailed};

/// Opens and listens on the `number`th socket of its address. None if the address is busy, which is
/// logged except in a repeated attempt (`again`).
pub fn open(
    (listen, number): (&Listen, usize),
    share: bool,
    (purpose, again): (Purpose, bool),
    log: &Log,
) -> Result<Option<OwnedFd>, SocketsFailed> {
    let address = &listen.address;
    let fail = |what: fmt::Arguments<'_>, e: Errno| {
        log!(log, Emerg, None, "{what} failed {}", Cause(&e.into()));
        SocketsFailed
    };
    let fd = socket(listen).map_err(|e| fail(format_args!("socket() {address}"), e))?;
    // With SO_REUSEADDR a UDP port could be bound repeatedly, and the last socket would get all
    // datagrams.
    if !listen.udp {
        sockopt::set_socket_reuseaddr(&fd, true)
            .map_err(|e| fail(format_args!("setsockopt(SO_REUSEADDR) {address}"), e))?;
    }
    if share && purpose == Purpose::Serve && matches!(address, Address::Inet(_)) {
        sockopt::set_socket_reuseport(&fd, true)
            .map_err(|e| fail(format_args!("setsockopt(SO_REUSEPORT) {address}"), e))?;
    }
    if let Address::Inet(std::net::SocketAddr::V6(_)) = address
        && let Err(e) = sockopt::set_ipv6_v6only(&fd, listen.ipv6only)
    {
        let e = io::Error::from(e);
        log!(log, Emerg, None, "setsockopt(IPV6_V6ONLY) {address} failed, ignored {}", Cause(&e));
    }
    let busy = |what: fmt::Arguments<'_>, e: Errno| {
        if e != Errno::ADDRINUSE {
            return Err(fail(what, e));
        }
        if purpose != Purpose::Test && !again {
            let (why, holder) = (io::Error::from(e), held_by(address, listen.udp));
            log!(log, Emerg, None, "{what} failed {}{holder}", Cause(&why));
        }
        Ok(None)
    };
    // The kernel walks the path to the directory again. If another user replaces a part of it until
    // then, the only harm is a socket without permissions elsewhere.
    if let Address::Unix(path) = address
        && let Err(e) = guarded::check(path)
    {
        log!(log, Emerg, None, "bind() to {address} failed {}", Cause(&e));
        return Err(SocketsFailed);
    }
    if matches!(address, Address::Unix(_)) {
        guarded::mark_socket(&fd);
    }
    let mut bound = bind(&fd, address, number);
    if bound == Err(Errno::ADDRINUSE)
        && purpose == Purpose::Serve
        && let Address::Unix(path) = address
        && is_left_over(path, listen)
    {
        let text = "is left over from a process that was killed, it is removed";
        log!(log, Warn, None, "the socket {} {text}", path.display());
        unlink(path, log);
        bound = bind(&fd, address, number);
    }
    if let Err(e) = bound {
        return busy(format_args!("bind() to {address}"), e);
    }
    if let Address::Unix(path) = address {
        settle(path, purpose, log);
    }
    if listen.udp {
        return Ok(Some(fd));
    }
    let backlog = backlog(listen);
    if let Err(e) = rustix::net::listen(&fd, backlog) {
        return busy(format_args!("listen() to {address}, backlog {backlog}"), e);
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
    let kind = if listen.udp { SocketType::DGRAM } else { SocketType::STREAM };
    rustix::net::socket_with(family, kind, flags, protocol)
}

fn bind(fd: &OwnedFd, address: &Address, number: usize) -> rustix::io::Result<()> {
    match address {
        Address::Inet(inet) => rustix::net::bind(fd, inet),
        // Only in the simulated world an address has several Unix-domain sockets, each with its own
        // name.
        Address::Unix(path) if number > 0 => {
            let path = path.with_extension(number.to_string());
            let _ = guarded::remove(&path);
            rustix::net::bind(fd, &SocketAddrUnix::new(path)?)
        }
        Address::Unix(path) => rustix::net::bind(fd, &SocketAddrUnix::new(path.as_path())?),
        Address::Unknown => Err(Errno::INVAL),
    }
}

/// Whether the path has a Unix-domain socket on which no process listens, since its process was
/// killed.
fn is_left_over(path: &Path, listen: &Listen) -> bool {
    let is_socket = path.symlink_metadata().is_ok_and(|file| file.file_type().is_socket());
    // A full queue, or a socket of another type, gives another error.
    let asked = || rustix::net::connect(socket(listen)?, &SocketAddrUnix::new(path)?);
    is_socket && asked() == Err(Errno::CONNREFUSED)
}

/// Allows all users to connect to a Unix-domain socket, as nginx does. A test removes the socket's
/// file.
fn settle(path: &Path, purpose: Purpose, log: &Log) {
    if let Err(e) = guarded::open_socket(path, Mode::from_raw_mode(0o666)) {
        log!(log, Emerg, None, "chmod() \"{}\" failed {}", path.display(), Cause(&e));
    }
    if purpose == Purpose::Test {
        unlink(path, log);
    }
}

/// Removes the file of a Unix-domain socket.
pub fn unlink(path: &Path, log: &Log) {
    if let Err(e) = guarded::remove(path) {
        log!(log, Emerg, None, "unlink() {} failed {}", path.display(), Cause(&e));
    }
}

/// The settings of a socket that was opened elsewhere, as far as a reload needs them.
pub fn settings(fd: &OwnedFd) -> rustix::io::Result<Listen> {
    let address = Address::from_any(Some(rustix::net::getsockname(fd)?));
    let udp = sockopt::socket_type(fd) == Ok(SocketType::DGRAM);
    let mut listen = Listen { backlog: 0, udp, ..Listen::new(address) };
    listen.multipath = sockopt::socket_protocol(fd) == Ok(Some(rustix::net::ipproto::MPTCP));
    if !udp && is_accept_deferred(fd.as_fd()).is_ok_and(|deferred| deferred) {
        listen.deferred = Deferred::On;
    }
    Ok(listen)
}

/// The backlog as the kernel takes it.
pub fn backlog(listen: &Listen) -> i32 {
    i32::try_from(listen.backlog).unwrap_or(i32::MAX)
}
