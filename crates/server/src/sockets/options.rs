//! Options of listening sockets. They are set at opening and when a reload changes them. nginx:
//! ngx_configure_listening_sockets().

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::sockopt;
use weir_log::{Cause, Log, log};
use weir_sys::datagram::tell_destination;
use weir_sys::sockopt::{set_defer_accept, set_fast_open, steer, unsteer};
use weir_values::Address;
use weir_values::listen::{Deferred, Listen};

use super::ListenSockets;
use super::open::backlog;

/// Sets a socket's options. `before` are its previous settings, if it was open already.
pub fn configure(fd: BorrowedFd<'_>, listen: &Listen, before: Option<&Listen>, log: &Log) {
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
    if listen.udp {
        return tell(format_args!("setsockopt(IP_PKTINFO)"), tell_where(fd, listen));
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
    let deferred = listen.deferred == Deferred::On;
    if deferred != before.is_some_and(|before| before.deferred == Deferred::On) {
        let seconds = i32::from(deferred);
        tell(
            format_args!("setsockopt(TCP_DEFER_ACCEPT, {seconds}) for"),
            set_defer_accept(fd, seconds),
        );
    }
}

/// Clients of a wildcard address get answers from the address that they used, so the socket has to
/// report it.
fn tell_where(fd: BorrowedFd<'_>, listen: &Listen) -> io::Result<()> {
    match &listen.address {
        Address::Inet(inet) if inet.ip().is_unspecified() => tell_destination(fd, inet.is_ipv6()),
        _ => Ok(()),
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

/// Enlarges the receive buffer, so that it holds as many first datagrams as the backlog says,
/// unless the configuration sets its size. Without privilege the kernel limits it to
/// `net.core.rmem_max`.
pub fn widen(fd: BorrowedFd<'_>, listen: &Listen) {
    /// Bytes per datagram. The kernel doubles the requested size, and twice this is more than it counts
    /// for a datagram of 1,200 bytes.
    const DATAGRAM: usize = 1536;
    let waiting = usize::try_from(listen.backlog).unwrap_or(usize::MAX);
    let wanted = waiting.saturating_mul(DATAGRAM);
    if listen.rcvbuf.is_none() && sockopt::set_socket_recv_buffer_size_force(fd, wanted).is_err() {
        // If this fails, the buffer keeps its size.
        let _ = sockopt::set_socket_recv_buffer_size(fd, wanted);
    }
}

/// Makes the kernel assign new connections to the first `kept` sockets of an address.
pub fn steer_to(socket: &ListenSockets, kept: usize, log: &Log) {
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

/// Makes the kernel use its own hash again.
pub fn steer_no_more(socket: &ListenSockets) {
    if let Some(first) = socket.copies.first() {
        // An error means that the sockets were not steered.
        let _ = unsteer(first.as_fd());
    }
}

/// Allows further sockets to bind to the address of open ones.
pub fn share_ports(listen: &Listen, open: &[Arc<OwnedFd>], log: &Log) {
    if let Some(first) = open.first() {
        // An error means that the sockets were not steered.
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
