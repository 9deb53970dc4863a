//! The laws of a steal group, for any loops and clients.
//!
//! Each request is answered once and in order, by the loop that owns the connection then. A loop
//! that is not stalled keeps its connections. No connection of a stalled loop waits beside a
//! sleeping loop for longer than the timer's interval.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use proptest::prelude::*;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::tests::wait;
use super::{GroupMember, Mailbox, StealCounts, StealGroup, nanos};
use crate::clock;
use crate::slots::Key;
use crate::tests::site::Site;
use crate::token::{Token, TokenKind};
use crate::{Chain, Handle, Idle, Patience, Remote, Stream, Wake};

const LOOPS: usize = 3;
const CONNECTIONS: usize = 9;
/// A request is one byte: its number, and this bit if its handler blocks the loop.
const HOLDS: u8 = 0x80;
/// How long a handler blocks the loop.
const HELD: Duration = Duration::from_micros(900);
/// How long a connection keeps its task. Some pauses between requests are longer.
const GRACE: Duration = Duration::from_millis(2);

/// Which thread served which request of which connection.
type Served = Arc<Mutex<Vec<(usize, u8, ThreadId)>>>;

#[derive(Clone)]
struct Kept {
    connection: usize,
    served: Served,
}

impl Idle for Kept {
    fn resume(self: Box<Self>, h: &Handle, stream: Stream, why: Wake) {
        if why == Wake::Ready {
            h.spawn(serve(stream, *self));
        }
    }
}

async fn serve(stream: Stream, kept: Kept) {
    loop {
        let (n, buf) = stream.recv(Vec::with_capacity(64)).await;
        if !matches!(n, Ok(n) if n > 0) {
            return;
        }
        for request in &buf {
            let by = thread::current().id();
            kept.served.lock().unwrap().push((kept.connection, *request, by));
            if request & HOLDS != 0 {
                wait(HELD);
            }
        }
        let mut chain = Chain::new();
        chain.push(buf);
        if stream.send(&mut chain, Patience::Watched).await.is_err() {
            return;
        }
        match stream.rest_stealable(GRACE, Box::new(kept.clone())).await {
            Some((Wake::Ready, _)) => {}
            Some((_, idle)) => return stream.handle().clone().park(stream, idle, None),
            None => return,
        }
    }
}

/// A loop that numbers its connections from `first`.
fn start(
    group: StealGroup,
    first: usize,
    served: Served,
) -> (SocketAddr, Remote, JoinHandle<StealCounts>) {
    let (tell, received) = mpsc::channel();
    let thread = thread::spawn(move || {
        let mut site = Site::with_group(group);
        tell.send((site.address, site.h.remote())).unwrap();
        let next = std::cell::Cell::new(first);
        site.serve(|_, stream| {
            let connection = next.replace(next.get() + 1);
            serve(stream, Kept { connection, served: Arc::clone(&served) })
        });
        assert_eq!(site.h.panics(), 0);
        site.h.steal_counts()
    });
    let (address, remote) = received.recv().unwrap();
    (address, remote, thread)
}

/// A client's bursts: for each request whether it blocks its loop, and whether the client pauses
/// after the burst.
type Bursts = Vec<(Vec<bool>, bool)>;

/// The bytes of each burst's requests.
fn requests(bursts: &Bursts) -> Vec<Vec<u8>> {
    let mut numbers = (0..HOLDS).cycle();
    let request = |holds: &bool| numbers.next().unwrap_or(0) | if *holds { HOLDS } else { 0 };
    let mut request = request;
    bursts.iter().map(|(burst, _)| burst.iter().map(&mut request).collect()).collect()
}

/// Each client sends its requests and is answered with the same bytes. Returns which thread served
/// each, and how many connections were stolen.
fn play(clients: &[Bursts]) -> (Vec<(usize, u8, ThreadId)>, u64) {
    let group = StealGroup::new(LOOPS).unwrap();
    let served = Served::default();
    let each = CONNECTIONS / LOOPS;
    let start = |i: usize| start(group.clone(), i * each, Arc::clone(&served));
    let loops: Vec<_> = (0..LOOPS).map(start).collect();
    thread::scope(|scope| {
        for (number, bursts) in clients.iter().enumerate() {
            // One after another, since the loop numbers connections in the order of accepting.
            let mut socket = TcpStream::connect(loops[number / each].0).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            scope.spawn(move || {
                for ((_, pauses), burst) in bursts.iter().zip(requests(bursts)) {
                    socket.write_all(&burst).unwrap();
                    let mut back = vec![0; burst.len()];
                    socket.read_exact(&mut back).unwrap();
                    assert_eq!(back, burst);
                    if *pauses {
                        wait(2 * GRACE);
                    }
                }
            });
        }
    });
    let ends = loops.into_iter().map(|(_, remote, thread)| {
        remote.post(Box::new(Handle::stop));
        thread.join().unwrap().taken
    });
    let taken = ends.sum();
    let served = std::mem::take(&mut *served.lock().unwrap());
    (served, taken)
}

/// How often a request was served by another loop than its connection's previous one.
fn moves(served: &[(usize, u8, ThreadId)]) -> usize {
    let of = |connection| served.iter().filter(move |one| one.0 == connection).map(|one| one.2);
    let moves = |connection| of(connection).zip(of(connection).skip(1)).filter(|(a, b)| a != b);
    (0..CONNECTIONS).map(|connection| moves(connection).count()).sum()
}

fn bursts(holds: f64) -> impl Strategy<Value = Bursts> {
    let burst = prop::collection::vec(prop::bool::weighted(holds), 1..4);
    prop::collection::vec((burst, prop::bool::weighted(0.1)), 1..25)
}

fn clients(holds: f64) -> impl Strategy<Value = Vec<Bursts>> {
    prop::collection::vec(bursts(holds), CONNECTIONS..=CONNECTIONS)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_request_is_answered_once_and_in_its_order(clients in clients(0.2)) {
        let (served, taken) = play(&clients);
        for (number, bursts) in clients.iter().enumerate() {
            let own = served.iter().filter(|one| one.0 == number).map(|one| one.1);
            prop_assert_eq!(own.collect::<Vec<_>>(), requests(bursts).concat());
        }
        // A stolen connection is served by the loop that stole it. Its end may be stolen, too.
        prop_assert!(moves(&served) as u64 <= taken);
        // A connection moves at most once for a burst.
        prop_assert!(taken as usize <= clients.iter().map(|bursts| bursts.len() + 1).sum());
    }

    /// This holds on any number of processors.
    #[test]
    fn a_loop_that_is_not_stalled_keeps_its_connections(clients in clients(0.0)) {
        let (served, _) = play(&clients);
        let (moves, all) = (moves(&served), served.len());
        prop_assert!(moves * 10 <= all, "{} moves, {} requests", moves, all);
    }
}

/// A connection without a handler.
struct Waiting;

impl Idle for Waiting {
    fn resume(self: Box<Self>, _: &Handle, _: Stream, _: Wake) {}
}

/// A group whose first loop is blocked, while the others sleep.
struct Beside {
    group: StealGroup,
    instance: Arc<OwnedFd>,
    held: GroupMember,
    sleepers: Vec<GroupMember>,
    _release: mpsc::Sender<()>,
}

fn join(group: &StealGroup, instance: Arc<OwnedFd>) -> GroupMember {
    GroupMember::join(group, instance, Arc::new(Mailbox::new(None).unwrap())).unwrap()
}

fn instance() -> Arc<OwnedFd> {
    Arc::new(epoll::create(CreateFlags::CLOEXEC).unwrap())
}

impl Beside {
    fn new() -> Beside {
        let (group, instance) = (StealGroup::new(LOOPS).unwrap(), instance());
        let (tell, received) = mpsc::channel();
        let (release, held) = mpsc::channel::<()>();
        let (of, at) = (group.clone(), Arc::clone(&instance));
        thread::spawn(move || {
            tell.send(join(&of, at)).unwrap();
            let _ = held.recv();
        });
        let held = received.recv().unwrap();
        let sleepers: Vec<GroupMember> =
            (1..LOOPS).map(|_| join(&group, self::instance())).collect();
        sleepers.iter().for_each(GroupMember::clear_turn);
        let is_blocked =
            || group.0.members[0].address.get().is_some_and(|address| address.thread.is_stalled(1));
        while !is_blocked() {
            thread::yield_now();
        }
        Beside { group, instance, held, sleepers, _release: release }
    }

    /// Connections of the first loop that are stealable and have an event.
    fn ready(&self, n: u32, generation: u32) -> Vec<(Arc<OwnedFd>, UnixStream)> {
        let one = |index| {
            let (server, mut client) = UnixStream::pair().unwrap();
            let fd = Arc::new(OwnedFd::from(server));
            let token = Token::new(TokenKind::Stream, Key { index, generation });
            let data = EventData::new_u64(token.0);
            epoll::add(&self.instance, fd.as_fd(), data, EventFlags::IN | EventFlags::ET).unwrap();
            self.held.stealable().put(token, &fd, Box::new(Waiting));
            client.write_all(b"a").unwrap();
            (fd, client)
        };
        (0..n).map(one).collect()
    }

    /// The timer wakes one sleeper. Returns how many connections it steals before it sleeps again.
    fn look(&self, sleeper: usize) -> usize {
        let member = &self.sleepers[sleeper];
        let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
        let mut fds = [PollFd::new(member.timer(), PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&patience)).unwrap(), 1, "the timer is not set");
        member.publish_turn(clock::nanos());
        member.timer_fired();
        let mut taken = 0;
        while member.any_is_late(clock::nanos()) && member.steal(clock::nanos()).is_some() {
            taken += 1;
        }
        member.clear_turn();
        taken
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// Before it come any number of turns without a stalled loop, and the timer wakes any of the sleepers. The wait is
    /// counted in checks, since the interval of checks has a bound.
    #[test]
    fn no_connection_waits_beside_a_sleeper_for_more_than_one_check(
        rounds in prop::collection::vec((0..4u32, 0..5u32, 0..LOOPS - 1), 1..4),
    ) {
        let beside = Beside::new();
        let timer = &beside.group.0.timer;
        for (round, (usual, waiting, sleeper)) in (0..).zip(rounds) {
            for _ in 0..usual {
                beside.held.publish_turn(clock::nanos());
                beside.held.set_timer();
                beside.held.clear_turn();
                prop_assert_eq!(beside.look(sleeper), 0, "no loop is stalled");
                prop_assert!(!timer.set.load(SeqCst), "all sleep");
                prop_assert!(timer.after.load(Relaxed) <= nanos(StealGroup::RARE_CHECK));
            }
            let _connections = beside.ready(waiting, round);
            beside.held.publish_turn(clock::nanos());
            beside.held.set_timer();
            prop_assert_eq!(beside.look(sleeper), waiting as usize);
            prop_assert!(timer.set.load(SeqCst), "the next one is due as long as it is held up,");
            prop_assert_eq!(timer.after.load(Relaxed), nanos(StealGroup::CHECK), "and soon");
            prop_assert_eq!(beside.look(LOOPS - 2 - sleeper), 0, "all are taken");
            beside.held.clear_turn();
            beside.look(sleeper);
        }
    }
}
