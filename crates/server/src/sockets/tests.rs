use super::*;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::slice::from_ref;

use rustix::event::{PollFd, PollFlags};
use rustix::net::{ipproto, sockopt};
use weir_balance::SocketLayout;
use weir_log::{Level, OpenLogs, Sink};
use weir_sys::sockopt::is_accept_deferred;
use weir_values::listen::Deferred;

fn any_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn listen(address: Address) -> Listen {
    Listen { backlog: 16, ..Listen::new(address) }
}

fn inet(listen: &Listen) -> SocketAddr {
    match &listen.address {
        Address::Inet(inet) => *inet,
        other => panic!("{other}"),
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

/// A socket cannot change its protocol, so a new one takes the place of the old one.
#[test]
fn another_protocol_gets_another_socket() {
    let (one, log) = (listen(Address::Inet(any_port())), Log::default());
    let multipath = Listen { multipath: true, deferred: Deferred::On, ..one.clone() };
    let open = |listen: &Listen, old: &Sockets| {
        Sockets::open(from_ref(listen), |_| 1, old, Purpose::Serve, &log).unwrap()
    };
    let protocol =
        |sockets: &Sockets| sockopt::socket_protocol(&sockets.list[0].copies[0]).unwrap();
    let mut last = open(&one, &Sockets::default());
    for wanted in [&multipath, &one] {
        let next = open(wanted, &last);
        let expected = if wanted.multipath { ipproto::MPTCP } else { ipproto::TCP };
        assert_eq!(protocol(&next), Some(expected));
        let cycle_shared = CycleShared::new(1, SocketLayout::SocketEach, &last).unwrap();
        last.leave_to(&[&next], &cycle_shared, &log);
        assert_eq!(cycle_shared.is_left(0, 0), (true, false));
        assert_eq!(fds(&open(wanted, &next)), fds(&next));
        last = next;
        let mut ready = [PollFd::new(&last.list[0].copies[0], PollFlags::IN)];
        let mut client = TcpStream::connect(inet(&one)).unwrap();
        client.write_all(b"x").unwrap();
        rustix::event::poll(&mut ready, None).unwrap();
    }
}

#[test]
fn further_sockets_of_an_address_keep_connections_back_too() {
    let (mut one, log) = (listen(Address::Inet(any_port())), Log::default());
    one.deferred = Deferred::On;
    let open = |listen: &Listen, copies: usize, old: &Sockets| {
        Sockets::open(from_ref(listen), |_| copies, old, Purpose::Serve, &log).unwrap()
    };
    let deferred = |sockets: &Sockets| {
        let copies = sockets.list[0].copies.iter();
        copies.map(|fd| is_accept_deferred(fd.as_fd()).unwrap()).collect::<Vec<_>>()
    };
    let first = open(&one, 1, &Sockets::default());
    let more = open(&one, 3, &first);
    assert_eq!(deferred(&more), [true; 3]);

    // As another program leaves them.
    let copies = more.list[0].copies.iter().map(|fd| fd.try_clone().unwrap()).collect();
    let left = Sockets::inherited(copies, &log);
    one.deferred = Deferred::Adaptive;
    assert_eq!(deferred(&open(&one, 3, &left)), [false; 3]);
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

/// The socket from which all loops take new connections is before the loops' own sockets.
#[test]
fn loops_share_the_first_socket_of_a_port_of_quic() {
    let (mut a, log) = (listen(Address::Inet(any_port())), Log::default());
    (a.udp, a.quic) = (true, true);
    let open = |copies: usize, old: &Sockets| {
        let mut sockets =
            Sockets::open(from_ref(&a), |_| copies, old, Purpose::Serve, &log).unwrap();
        let by = IdSteering { length: 17, xor: 5, factor: 7, loops: copies as u32 - 1 };
        sockets.share_first_sockets(|_| copies > 1);
        sockets.steer_by_ids(|_| Ok(by), &log);
        sockets
    };
    let raw = |sockets: &Sockets, row| sockets.list[0].copy(row).map(|fd| fd.as_raw_fd());
    let shared = |sockets: &Sockets| sockets.list[0].shared_quic().map(|fd| fd.as_raw_fd());
    let one = open(1, &Sockets::default());
    assert_eq!((shared(&one), raw(&one, 0)), (None, Some(fds(&one)[0][0])));
    let all = open(5, &one);
    assert_eq!(fds(&all)[0][0], fds(&one)[0][0]);
    assert_eq!(shared(&all), Some(fds(&all)[0][0]));
    assert_eq!((raw(&all, 0), raw(&all, 3)), (Some(fds(&all)[0][1]), Some(fds(&all)[0][4])));
    let mut own = all.clone();
    own.keep_own(2..4);
    assert_eq!((shared(&own), raw(&own, 1)), (shared(&all), None));
    assert_eq!((raw(&own, 2), raw(&own, 3)), (raw(&all, 2), raw(&all, 3)));
    let fewer = open(3, &all);
    assert_eq!(fds(&fewer)[0], fds(&all)[0][..3]);
}

/// With fewer loops, connections in the queues of removed sockets are not lost, and no new ones
/// arrive there.
#[test]
fn connections_go_to_the_sockets_that_stay() {
    let at = any_port();
    let one = [listen(Address::Inet(at))];
    let log = Log::default();
    let old = Sockets::open(&one, |_| 4, &Sockets::default(), Purpose::Serve, &log).unwrap();
    let cycle_shared = CycleShared::new(4, SocketLayout::SocketEach, &old).unwrap();
    let new = Sockets::open(&one, |_| 2, &old, Purpose::Serve, &log).unwrap();
    old.leave_to(&[&new], &cycle_shared, &log);
    let accept = |i: usize| rustix::net::accept(&old.list[0].copies[i]).is_ok();
    for _ in 0..20 {
        let _client = TcpStream::connect(at).unwrap();
        assert!(accept(0) || accept(1));
        assert!(!accept(2) && !accept(3));
    }
    let more = Sockets::open(&one, |_| 4, &new, Purpose::Serve, &log).unwrap();
    drop(old);
    let clients: Vec<_> = (0..16).map(|_| TcpStream::connect(at).unwrap()).collect();
    let late = (2..4)
        .map(|i| std::iter::from_fn(|| rustix::net::accept(&more.list[0].copies[i]).ok()).count());
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
    let listens =
        [listen(Address::Inet(busy.local_addr().unwrap())), listen(Address::Unix(path.clone()))];
    let logs = OpenLogs::new();
    let file = Sink::File(logs.open(&dir.join("log")).unwrap());
    let log = Log::new(vec![(Level::Debug, file)]);
    let none = Sockets::default();

    Sockets::open(&listens, |_| 1, &none, Purpose::Test, &log).unwrap();
    assert!(!path.exists());
    assert_eq!(std::fs::read_to_string(dir.join("log")).unwrap(), "");

    let open = Sockets::open(&listens[1..], |_| 1, &none, Purpose::Serve, &log).unwrap();
    assert!(path.exists());
    let cycle_shared = CycleShared::new(1, SocketLayout::SocketEach, &open).unwrap();
    open.leave_to(&[&open], &cycle_shared, &log);
    assert!(path.exists());
    open.leave_to(&[&none], &cycle_shared, &log);
    assert!(!path.exists());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn an_address_that_is_not_ours_is_refused_at_once() {
    let far = [listen(Address::Inet("192.0.2.1:80".parse().unwrap()))];
    let none = Sockets::default();
    assert!(Sockets::open(&far, |_| 1, &none, Purpose::Serve, &Log::default()).is_err());
}

#[test]
fn a_socket_that_a_killed_process_left_is_taken_and_no_other_file() {
    let dir = std::env::temp_dir().join(format!("weir-left-over-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let open = |name: &str, udp: bool, purpose: Purpose| {
        let listen = Listen { udp, ..listen(Address::Unix(dir.join(name))) };
        open::open((&listen, 0), false, (purpose, true), &Log::default()).unwrap()
    };
    // Sockets that are dropped leave their files, as those of a killed process.
    drop(UnixListener::bind(dir.join("stream")).unwrap());
    drop(UnixDatagram::bind(dir.join("datagram")).unwrap());
    assert!(open("stream", false, Purpose::Test).is_none() && dir.join("stream").exists());
    let stream = open("stream", false, Purpose::Serve).unwrap();
    let datagram = open("datagram", true, Purpose::Serve).unwrap();
    UnixStream::connect(dir.join("stream")).unwrap();

    // These sockets are in use now, and a plain file is no socket.
    assert!(open("stream", false, Purpose::Serve).is_none());
    assert!(open("datagram", true, Purpose::Serve).is_none());
    assert!(open("stream", true, Purpose::Serve).is_none());
    std::fs::write(dir.join("file"), "x").unwrap();
    std::os::unix::fs::symlink(dir.join("gone"), dir.join("link")).unwrap();
    assert!(open("file", false, Purpose::Serve).is_none());
    assert!(open("link", false, Purpose::Serve).is_none());
    assert_eq!(std::fs::read(dir.join("file")).unwrap(), b"x");
    drop((stream, datagram));
    std::fs::remove_dir_all(&dir).unwrap();
}
