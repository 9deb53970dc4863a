//! What clients can make grow by the names that they choose, with name servers that answer in all
//! kinds of ways.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::collections::HashSet;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Mutex;

use weir_engine::{Driver, ListenerKey, Loop, Options, Turn};
use weir_proto::dns::{QueryType, query};
use weir_testkit::{Dice, PATIENCE, number, seed};

use super::*;

/// Looks at each turn, until all tasks have ended.
struct Looking<L>(L);

impl<L: FnMut()> Driver for Looking<L> {
    fn before_wait(&mut self, _: &Handle, _: Instant) -> Option<Duration> {
        Some(PATIENCE)
    }

    fn acceptable(&mut self, _: &Handle, _: ListenerKey) {}

    fn end_of_turn(&mut self, h: &Handle, _: &Turn) {
        (self.0)();
        if h.tasks() == 0 {
            h.stop();
        }
    }
}

/// What a server says of a name, by its first letter: silence (`s`), that there is no such name (`n`), an answer to
/// another question (`o`), that the answer does not fit (`t`), else an address.
fn server(ports: &Arc<Mutex<HashSet<u16>>>) -> u16 {
    let both = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        UdpSocket::bind(at).ok().map(|socket| (socket, listener, at))
    };
    let (socket, listener, at) = std::iter::repeat_with(both).find_map(|both| both).unwrap();
    // What does not fit is lost, and asked for again after five seconds. Only root may have that much room.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20);
    std::thread::spawn(move || {
        // No question is answered here either.
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || stream.read_to_end(&mut Vec::new()));
        }
    });
    let ports = ports.clone();
    std::thread::spawn(move || {
        let mut buf = [0; 512];
        while let Ok((n, from)) = socket.recv_from(&mut buf) {
            ports.lock().unwrap().insert(from.port());
            let mut answer = buf[..n].to_vec();
            let (first, kind) = (answer[13], answer[n - 3]);
            answer[2..4].copy_from_slice(&[0x81, 0x80]);
            match first {
                b's' => continue,
                b'n' => answer[3] = 0x83,
                b'o' => answer[13] = b'p',
                b't' => answer[2] = 0x83,
                _ if kind == QueryType::A as u8 => {
                    answer[7] = 1;
                    let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1];
                    answer.extend_from_slice(&record);
                }
                _ => {}
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    at.port()
}

fn resolver(port: u16) -> Rc<Resolver> {
    let servers = vec![weir_values::Address::Inet(([127, 0, 0, 1], port).into())];
    let conf = ResolverConf { servers, valid: None, ipv4: true, ipv6: false };
    Rc::new(Resolver::new(&Arc::new(conf)))
}

/// Clients ask for drawn names of all these kinds, more than there is room for; some leave.
/// Questions, sockets, connections and names stay within their bounds, and nothing is left when all
/// have gone. A client that asks for a name with an answer gets its address.
#[test]
fn what_clients_ask_for_is_bounded() {
    let mut dice = Dice::salted(seed(), "names");
    let ports = Arc::default();
    let port = server(&ports);
    let mut own = Loop::new(&Options::default()).unwrap();
    let (h, resolver) = (own.handle(), resolver(port));
    let most = Rc::new(Cell::new((0, 0)));
    for n in 0..number("WEIR_CASES").unwrap_or(3000) {
        let kind = dice.pick(&["a", "n", "o", "s", "s", "s", "t"]);
        // Some ask for the same name.
        let name = format!("{kind}{}.test", n - n % (1 + dice.below(2) as u64));
        let begin = Duration::from_millis(dice.below(1000) as u64);
        let stay = Duration::from_millis(500 + dice.below(400) as u64);
        let (resolver, handle) = (resolver.clone(), h.clone());
        h.spawn(async move {
            handle.sleep(begin).await;
            let timeout = if kind == "a" { PATIENCE } else { stay };
            let outcome = resolver.resolve(&handle, &name, timeout).await;
            match kind {
                "a" => assert_eq!(outcome.unwrap().addresses, [Ipv4Addr::LOCALHOST], "{name}"),
                "n" => assert!(matches!(outcome, Err(Unresolved::Code(3) | Unresolved::TimedOut))),
                _ => assert!(matches!(outcome, Err(Unresolved::TimedOut | Unresolved::Crowded))),
            }
        });
    }
    let (looked, saw) = (resolver.clone(), most.clone());
    drop(h);
    let mut looking = Looking(move || {
        let asked = looked.asked.borrow().len();
        let sockets: usize = looked.sockets.borrow().values().map(Sockets::open).sum();
        assert!(asked <= ASKED && sockets <= 2, "{asked} questions, {sockets} sockets");
        assert!(looked.connections.get() <= 8);
        saw.set((asked.max(saw.get().0), sockets.max(saw.get().1)));
    });
    own.run(&mut looking).unwrap();
    assert_eq!(own.handle().panics(), 0);
    let sockets: usize = resolver.sockets.borrow().values().map(Sockets::open).sum();
    assert_eq!((resolver.asked.borrow().len(), sockets, resolver.connections.get()), (0, 0, 0));
    println!("at most {:?} questions and sockets", most.get());
}

/// Many questions, ten at a time, come from ever other ports.
#[test]
fn a_port_is_not_used_for_long() {
    let ports: Arc<Mutex<HashSet<u16>>> = Arc::default();
    let port = server(&ports);
    let mut own = Loop::new(&Options::default()).unwrap();
    let (h, resolver) = (own.handle(), resolver(port));
    for task in 0..10 {
        let (resolver, handle) = (resolver.clone(), h.clone());
        h.spawn(async move {
            for n in 0..100 {
                let name = format!("a{task}-{n}.test");
                resolver.resolve(&handle, &name, PATIENCE).await.unwrap();
            }
        });
    }
    drop(h);
    own.run(&mut Looking(|| {})).unwrap();
    let many = ports.lock().unwrap().len();
    assert!(many >= 3, "{many} ports for 1000 questions");
}

/// A name that is longer than names are does not exist, and no server is asked.
#[test]
fn a_name_that_cannot_be_asked_for_does_not_exist() {
    assert!(query(0, "a..b", QueryType::A, &mut Vec::new()).is_err());
    let ports: Arc<Mutex<HashSet<u16>>> = Arc::default();
    let port = server(&ports);
    let mut own = Loop::new(&Options::default()).unwrap();
    let (h, resolver) = (own.handle(), resolver(port));
    let handle = h.clone();
    h.spawn(async move {
        let outcome = resolver.resolve(&handle, "a..b", PATIENCE).await;
        assert_eq!(outcome, Err(Unresolved::NO_SUCH_NAME));
    });
    drop(h);
    own.run(&mut Looking(|| {})).unwrap();
    assert!(ports.lock().unwrap().is_empty());
}

/// A question that gets no answer goes to the other server, whichever questions begin meanwhile.
#[test]
fn a_question_goes_from_server_to_server() {
    let servers = [1, 2].map(|port| weir_values::Address::Inet(([127, 0, 0, 1], port).into()));
    let conf = ResolverConf { servers: servers.to_vec(), valid: None, ipv4: true, ipv6: false };
    let resolver = Resolver::new(&Arc::new(conf));
    let mut first = resolver.turns();
    let asked = first.server().unwrap();
    let mut second = resolver.turns();
    assert_ne!(second.server().unwrap(), asked);
    assert_ne!(first.server().unwrap(), asked);
    assert_eq!(second.server().unwrap(), asked);
}

/// Each change of the configuration may bring lines that no site had before.
#[test]
fn resolvers_of_lines_that_are_gone_are_forgotten() {
    let line = |port: u16| {
        let servers = vec![weir_values::Address::Inet(([127, 0, 0, 1], port).into())];
        Arc::new(ResolverConf { servers, valid: None, ipv4: true, ipv6: true })
    };
    let all = Resolvers::default();
    let kept = line(1);
    let first = Rc::as_ptr(&all.of(&kept));
    let in_use = all.of(&line(2));
    for port in 3..100 {
        all.of(&line(port));
        assert!(all.list.borrow().len() <= 3);
    }
    assert!(Rc::ptr_eq(&in_use, &all.of(&line(2))));
    // A site with the same line replaces the one that had it.
    let newer = line(1);
    assert_eq!(Rc::as_ptr(&all.of(&newer)), first);
    drop(kept);
    all.of(&line(100));
    assert_eq!(Rc::as_ptr(&all.of(&newer)), first);
}

#[test]
fn an_answer_may_hold_for_any_time() {
    let now = Instant::now();
    assert_eq!(ask::expires(now, Duration::ZERO), now + Duration::from_secs(1));
    assert!(ask::expires(now, Duration::from_secs(i64::MAX as u64)) > now);
}
