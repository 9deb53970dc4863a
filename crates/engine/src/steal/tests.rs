//! Two loops of a group, one of which is blocked.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::*;
use crate::slots::Key;
use crate::tests::site::Site;
use crate::token::{Token, TokenKind};
use crate::{Chain, Either, Handle, Idle, Joined, Patience, Remote, Stream, Wake, either};

/// A connection that answers each request with a byte, and records the thread.
struct Answering(Arc<Mutex<Vec<ThreadId>>>);

impl Idle for Answering {
    fn resume(self: Box<Self>, h: &Handle, stream: Stream, why: Wake) {
        if why == Wake::Ready {
            h.spawn(async move {
                if answer(&stream, &self.0).await {
                    stream.handle().clone().park(stream, self, None);
                }
            });
        }
    }
}

async fn answer(stream: &Stream, by: &Mutex<Vec<ThreadId>>) -> bool {
    let (n, buf) = stream.recv(Vec::with_capacity(100)).await;
    if !matches!(n, Ok(n) if n > 0) {
        return false;
    }
    by.lock().unwrap().push(thread::current().id());
    let mut chain = Chain::new();
    chain.push(buf);
    stream.send(&mut chain, Patience::Watched).await.is_ok()
}

/// A group of two loops. The second runs by itself until the value is dropped.
struct Pair {
    site: Site,
    other: Option<(Remote, thread::JoinHandle<StealCounts>)>,
    other_id: ThreadId,
}

impl Pair {
    fn new() -> Pair {
        let group = StealGroup::new(2).unwrap();
        let site = Site::with_group(group.clone());
        let (received, remote) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut site = Site::with_group(group);
            received.send((site.h.remote(), thread::current().id())).unwrap();
            site.run();
            site.h.steal_counts()
        });
        let (remote, other_id) = remote.recv().unwrap();
        Pair { site, other: Some((remote, thread)), other_id }
    }

    /// Ends the other loop. Returns what it has done for this one.
    fn steal_counts(&mut self) -> StealCounts {
        let (remote, thread) = self.other.take().unwrap();
        remote.post(Box::new(Handle::stop));
        thread.join().unwrap()
    }
}

/// Runs the client beside a loop that is blocked from the client's first byte until this returns.
fn beside_a_held_loop<T: Send + 'static>(
    site: &Site,
    play: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (mpsc::Receiver<()>, thread::JoinHandle<T>) {
    let (socket, (release, held)) = (site.client(), mpsc::channel());
    let remote = site.h.remote();
    let play = thread::spawn(move || {
        let out = play(socket);
        let _ = release.send(());
        remote.post(Box::new(Handle::stop));
        out
    });
    (held, play)
}

fn round(socket: &mut TcpStream, byte: u8) {
    socket.write_all(&[byte]).unwrap();
    let mut back = [0];
    socket.read_exact(&mut back).unwrap();
    assert_eq!(back, [byte]);
}

#[test]
fn a_parked_connection_of_a_held_loop_is_taken() {
    let mut pair = Pair::new();
    let by: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
    let (parked, is_parked) = mpsc::channel();
    let (held, play) = beside_a_held_loop(&pair.site, move |mut socket| {
        is_parked.recv().unwrap();
        (1..4).for_each(|byte| round(&mut socket, byte));
    });
    let (held, list) = (Mutex::new(held), Arc::clone(&by));
    let held = Arc::new(held);
    pair.site.serve(move |h, stream| {
        let (list, held, parked) = (Arc::clone(&list), Arc::clone(&held), parked.clone());
        async move {
            h.park(stream, Box::new(Answering(list)), None);
            parked.send(()).unwrap();
            // Blocks until the client has its answers.
            let _ = held.lock().unwrap().recv();
        }
    });
    play.join().unwrap();
    assert_eq!(*by.lock().unwrap(), [pair.other_id; 3]);
    assert_eq!((pair.site.h.parked(), pair.site.h.panics()), (0, 0));
    assert_eq!(pair.site.h.0.sources.borrow().len(), 0);
    assert_eq!(pair.steal_counts().taken, 1);
}

/// A parked connection that must not move.
struct Staying;

impl Idle for Staying {
    fn resume(self: Box<Self>, _: &Handle, _: Stream, _: Wake) {}

    fn stays(&self) -> bool {
        true
    }
}

#[test]
fn a_parked_connection_that_stays_is_not_offered() {
    let mut pair = Pair::new();
    let _client = pair.site.client();
    pair.site.serve(move |h, stream| async move {
        let token = stream.0.source.token;
        h.park(stream, Box::new(Staying), None);
        let own =
            h.0.sources
                .borrow()
                .get(token.key())
                .is_some_and(|source| source.idle.take().is_some());
        let member = h.0.steal_group.as_ref().unwrap();
        assert!(own && !member.stealable().any(token, |_| true));
        h.stop();
    });
}

#[test]
fn a_task_that_rests_ends_when_its_connection_was_taken() {
    let mut pair = Pair::new();
    let by: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
    let (rests, is_resting) = mpsc::channel();
    let (held, play) = beside_a_held_loop(&pair.site, move |mut socket| {
        round(&mut socket, 1);
        is_resting.recv().unwrap();
        round(&mut socket, 2);
    });
    let (held, list) = (Arc::new(Mutex::new(held)), Arc::clone(&by));
    let ended = Arc::new(Mutex::new(None));
    let end = Arc::clone(&ended);
    pair.site.serve(move |h, stream| {
        let (list, held, rests) = (Arc::clone(&list), Arc::clone(&held), rests.clone());
        let end = Arc::clone(&end);
        async move {
            assert!(answer(&stream, &list).await);
            h.clone().spawn(async move {
                // After the other task has begun to rest.
                rests.send(()).unwrap();
                let _ = held.lock().unwrap().recv();
            });
            let idle = Box::new(Answering(list));
            let rested = stream.rest_stealable(Duration::from_secs(60), idle).await;
            *end.lock().unwrap() = Some(rested.is_none());
        }
    });
    play.join().unwrap();
    assert_eq!(*ended.lock().unwrap(), Some(true), "the task has heard of it");
    assert_eq!(*by.lock().unwrap(), [thread::current().id(), pair.other_id]);
    assert_eq!((pair.site.h.parked(), pair.site.h.panics()), (0, 0));
    assert_eq!(pair.steal_counts().taken, 1);
}

#[test]
fn what_comes_for_a_request_in_process_is_passed_on() {
    let mut pair = Pair::new();
    let (begun, has_begun) = mpsc::channel();
    let (held, play) = beside_a_held_loop(&pair.site, move |mut socket| {
        has_begun.recv().unwrap();
        socket.write_all(b"body").unwrap();
        // Long enough for the other loop to look.
        wait(Duration::from_millis(30));
        socket
    });
    let got = Arc::new(Mutex::new(Vec::new()));
    let (held, list) = (Arc::new(Mutex::new(held)), Arc::clone(&got));
    pair.site.serve(move |h, stream| {
        let (held, begun, list) = (Arc::clone(&held), begun.clone(), Arc::clone(&list));
        async move {
            h.spawn(async move {
                begun.send(()).unwrap();
                let _ = held.lock().unwrap().recv();
            });
            let (n, buf) = stream.recv(Vec::with_capacity(100)).await;
            n.unwrap();
            list.lock().unwrap().extend(buf);
        }
    });
    drop(play.join().unwrap());
    // The loop may stop before it receives.
    let steals = pair.steal_counts();
    assert_eq!((steals.taken, steals.passed_on), (0, 1));
    assert_eq!(*got.lock().unwrap(), b"body");
}

#[expect(clippy::disallowed_methods, reason = "what other loops do meanwhile cannot be seen")]
pub(super) fn wait(time: Duration) {
    thread::sleep(time);
}

#[test]
fn a_rest_that_is_given_up_is_no_longer_stealable() {
    let mut pair = Pair::new();
    let by: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
    let _client = pair.site.client();
    let list = Arc::clone(&by);
    pair.site.serve(move |h, stream| {
        let idle = Box::new(Answering(Arc::clone(&list)));
        async move {
            let rest = stream.rest_stealable(Duration::from_secs(60), idle);
            assert!(matches!(either(rest, std::future::ready(())).await, Either::Right(())));
            let idle = Box::new(Answering(Arc::default()));
            let rested = stream.rest_stealable(Duration::from_millis(2), idle).await;
            assert!(matches!(rested, Some((Wake::Deadline, _))));
            h.stop();
        }
    });
    assert_eq!(Arc::strong_count(&by), 1, "the stealable value is dropped");
    assert_eq!((pair.site.h.parked(), pair.site.h.panics()), (0, 0));
    assert_eq!(pair.steal_counts(), StealCounts::default());
}

/// The loop that stole a socket closes it. The old descriptor number belongs to another file.
#[test]
fn the_number_that_is_left_does_not_hold_the_socket() {
    let (server, mut client) = UnixStream::pair().unwrap();
    let (fd, number) = (Arc::new(std::os::fd::OwnedFd::from(server)), 0);
    let token = Token::new(TokenKind::Stream, Key { index: number, generation: 7 });
    let instance = epoll::create(CreateFlags::CLOEXEC).unwrap();
    epoll::add(&instance, fd.as_fd(), EventData::new_u64(token.0), EventFlags::IN).unwrap();
    let dummy = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let stealable = Stealable::default();

    assert!(stealable.steal(token, &instance, &dummy).is_none(), "it is not stealable");
    stealable.put(token, &fd, Box::new(Answering(Arc::default())));
    let stale = Token::new(TokenKind::Stream, Key { index: number, generation: 6 });
    assert!(stealable.steal(stale, &instance, &dummy).is_none());
    assert!(stealable.withdraw(token).is_some() && stealable.withdraw(token).is_none());
    assert!(stealable.steal(token, &instance, &dummy).is_none(), "the owner goes on with it");
    stealable.put(token, &fd, Box::new(Answering(Arc::default())));

    let before = fd.as_raw_fd();
    let (_, taken) = stealable.steal(token, &instance, &dummy).unwrap();
    assert!(stealable.withdraw(token).is_none());
    assert_eq!((fd.as_raw_fd(), Arc::strong_count(&fd)), (before, 1));
    client.write_all(b"a").unwrap();
    assert!(rustix::io::read(&*fd, &mut [0u8; 8]).is_err(), "the number is not the socket's");
    drop(taken);
    let mut end = [0];
    let closed = client.read(&mut end);
    assert!(
        matches!(closed, Ok(0))
            || closed.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset)
    );
}

/// A tunnel that no loop resumes.
struct Together;

impl Joined for Together {
    fn go_on(self: Box<Self>, _: &Handle, _: [Stream; 2]) {}
}

#[test]
fn two_connections_go_together_whichever_of_them_is_ready() {
    let tokens =
        [0, 1].map(|index| Token::new(TokenKind::Stream, Key { index, generation: 7 + index }));
    let dummy = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    for ready in tokens {
        let instance = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let pairs = [(); 2].map(|()| UnixStream::pair().unwrap());
        let [(server, mut first), (other, mut second)] = pairs;
        let fds = [server, other].map(|end| Arc::new(std::os::fd::OwnedFd::from(end)));
        for (fd, token) in fds.iter().zip(tokens) {
            epoll::add(&instance, fd.as_fd(), EventData::new_u64(token.0), EventFlags::IN).unwrap();
        }
        let stealable = Stealable::default();
        let offer = || {
            let both = [(tokens[0], &fds[0]), (tokens[1], &fds[1])];
            stealable.put_joined(both, Box::new(Together));
        };
        offer();
        assert!(stealable.withdraw_joined(tokens[0]).is_some());
        assert!(stealable.withdraw_joined(tokens[0]).is_none());
        assert!(stealable.steal(ready, &instance, &dummy).is_none(), "the owner goes on with both");
        offer();
        stealable.forget(tokens[1]);
        assert!(stealable.steal(ready, &instance, &dummy).is_none(), "one has left");
        offer();
        let taken = stealable.steal(ready, &instance, &dummy);
        let Some((of, Stolen::Joined(taken, _))) = taken else { panic!("they were not stolen") };
        assert_eq!(of, tokens[0]);
        assert!(stealable.withdraw_joined(tokens[0]).is_none());
        first.write_all(b"1").unwrap();
        second.write_all(b"2").unwrap();
        for (fd, said) in taken.iter().zip([b"1", b"2"]) {
            let mut byte = [0];
            rustix::io::read(fd, &mut byte).unwrap();
            assert_eq!(&byte, said);
        }
        assert!(fds.iter().all(|fd| rustix::io::read(fd, &mut [0u8; 8]).is_err()), "dummies");
        let mut events = [std::mem::MaybeUninit::uninit(); 2];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let (received, _) = epoll::wait(&instance, &mut events[..], Some(&now)).unwrap();
        assert!(received.is_empty(), "they have left the first loop");
    }
}

/// The timer is set while a loop runs tasks, even a loop that the timer has just woken.
#[test]
fn the_timer_is_set_while_a_loop_works() {
    let group = StealGroup::new(2).unwrap();
    let instance = Arc::new(epoll::create(CreateFlags::CLOEXEC).unwrap());
    let join = || {
        GroupMember::join(&group, instance.clone(), Arc::new(Mailbox::new(None).unwrap())).unwrap()
    };
    let (member, other) = (join(), join());
    let is_set = || group.0.timer.set.load(SeqCst);
    let comes = || {
        let mut fds = [rustix::event::PollFd::new(member.timer(), rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, None).unwrap(), 1);
    };
    member.publish_turn(1);
    assert!(!is_set(), "it has nothing to do");
    for (works, busy) in [(true, false), (false, true), (true, true), (false, false)] {
        member.set_timer();
        assert!(is_set());
        comes();
        member.clear_turn();
        if busy {
            other.publish_turn(1)
        } else {
            other.clear_turn()
        }
        member.publish_turn(2);
        member.timer_fired();
        assert_eq!(is_set(), busy, "the other is busy: {busy}");
        if works {
            member.set_timer();
        }
        assert_eq!(is_set(), works || busy);
        if is_set() {
            comes();
            assert!(group.0.timer.read_fired());
        }
    }
}

/// A sleeper that is woken in vain takes a processor from loops that work.
#[test]
fn the_timer_fires_rarely_while_no_loop_is_stalled() {
    let timer = StallTimer::new().unwrap();
    let after = || timer.after.load(Relaxed);
    assert_eq!(after(), nanos(StealGroup::CHECK));
    (0..20).for_each(|_| timer.adapt(false));
    assert_eq!(after(), nanos(StealGroup::RARE_CHECK));
    timer.adapt(true);
    assert_eq!(after(), nanos(StealGroup::CHECK));
}

/// Other loops cannot steal events that a loop has fetched.
#[test]
fn a_loop_fetches_fewer_events_the_longer_they_take() {
    let group = StealGroup::new(1).unwrap();
    let instance = Arc::new(epoll::create(CreateFlags::CLOEXEC).unwrap());
    let member =
        GroupMember::join(&group, instance.clone(), Arc::new(Mailbox::new(None).unwrap())).unwrap();
    assert!(GroupMember::join(&group, instance, Arc::new(Mailbox::new(None).unwrap())).is_none());
    let turns = |events: usize, each: u64| {
        let mut most = 0;
        for _ in 0..100 {
            member.publish_turn(1_000_000);
            most = member.event_limit(events, 1_000_000 + each * events as u64);
        }
        most
    };
    assert_eq!(turns(1, 1_500_000), 4);
    assert_eq!(turns(10, 50_000), 6);
    assert!((28..=32).contains(&turns(20, 10_000)));
    assert_eq!(turns(0, 0), turns(0, 0), "nothing is learnt from a turn without events");
    assert!(turns(50, 100) > 1000);
}
