//! The order of a turn's work, and what wakes a loop.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::Duration;
use std::{io, thread};

use rustix::event::{EventfdFlags, eventfd};

use super::parked::Echo;
use super::receive;
use crate::tests::site::{Record, Site, record};
use crate::{BackendKind, Either, Handle, Idle, Loop, Options, Stream, Wake, either};

pub(crate) fn a_stale_event_is_dropped(kind: BackendKind) {
    let mut site = Site::new(kind);
    let (a, b) = (site.client(), site.client());
    let idle: Rc<Cell<Vec<Stream>>> = Rc::default();
    let order = record::<&str>();
    let list = order.clone();
    site.serve(move |h, stream| {
        let mut both = idle.take();
        both.push(stream);
        if both.len() < 2 {
            idle.set(both);
            return std::future::ready(());
        }
        // Both become readable in one turn. The first task closes the other socket, and a new
        // socket gets its descriptor and its slot.
        (&a).write_all(b"a").unwrap();
        (&b).write_all(b"b").unwrap();
        for stream in both {
            h.park(stream, Box::new(CloseOthers), None);
        }
        let (again, list) = (h.clone(), list.clone());
        h.spawn(async move {
            again.sleep(Duration::from_millis(5)).await;
            list.borrow_mut().push("quiet");
            again.stop();
        });
        std::future::ready(())
    });
    assert_eq!(site.h.panics(), 0);
    assert_eq!(*order.borrow(), ["quiet"]);
}

/// Evicts the other parked connection and registers a new connection in its slot.
struct CloseOthers;

impl Idle for CloseOthers {
    fn resume(self: Box<Self>, h: &Handle, stream: Stream, why: Wake) {
        if why == Wake::Evicted {
            return;
        }
        h.unpark_all(Wake::Evicted);
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let fresh = h.stream(ours.into()).unwrap();
        h.clone().spawn(async move {
            let keep = (stream, theirs);
            let first =
                either(receive(&fresh), fresh.handle().sleep(Duration::from_millis(3))).await;
            assert!(matches!(first, Either::Right(())), "the old event reached the new socket");
            drop(keep);
        });
    }
}

pub(crate) fn accepts_then_connections_then_timers(kind: BackendKind) {
    let mut site = Site::new(kind);
    let (first, order) = (site.client(), record::<&str>());
    let address = site.address;
    let (list, count) = (order.clone(), Cell::new(0));
    site.serve(move |h, stream| {
        count.set(count.get() + 1);
        if count.get() == 2 {
            list.borrow_mut().push("accept");
            return std::future::ready(());
        }
        // Makes all three happen in one turn: while this task blocks the loop, a client connects, a
        // byte arrives, and a timer expires.
        let (timer, bytes, ending) = (list.clone(), list.clone(), h.clone());
        let sleep = h.sleep(Duration::from_millis(2));
        h.spawn(async move {
            sleep.await;
            timer.borrow_mut().push("timer");
        });
        let mut socket = first.try_clone().unwrap();
        h.spawn(async move {
            let ready = stream.readable();
            let mut ready = std::pin::pin!(ready);
            let polled = std::future::poll_fn(|cx| Poll::Ready(ready.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
            socket.write_all(b"x").unwrap();
            let second = TcpStream::connect(address).unwrap();
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(5) {}
            ready.await.unwrap();
            bytes.borrow_mut().push("bytes");
            ending.sleep(Duration::from_millis(1)).await;
            drop(second);
            ending.stop();
        });
        std::future::ready(())
    });
    assert_eq!(*order.borrow(), ["accept", "bytes", "timer"]);
}

pub(crate) fn a_turn_counts_what_it_did(kind: BackendKind) {
    let mut site = Site::new(kind);
    let turns: Record<[usize; 3]> = record();
    let _clients = [site.client(), site.client()];
    let list = turns.clone();
    let serve = |h: Handle, _: Stream| async move { h.stop() };
    site.serve_turns(serve, move |turn| {
        assert!(turn.accepts <= 2 * turn.events);
        list.borrow_mut().push([turn.accepts, turn.started, turn.ended]);
    });
    assert_eq!(*turns.borrow(), [[2, 2, 2]]);
}

pub(crate) fn a_remote_post_wakes_the_loop(kind: BackendKind) {
    let mut site = Site::new(kind);
    let remote = site.h.remote();
    let (done, seen) = mpsc::channel();
    let sender = thread::spawn(move || {
        for n in 0..1000 {
            let done = done.clone();
            remote.post(Box::new(move |_| done.send(n).unwrap()));
        }
        remote.post(Box::new(Handle::stop));
    });
    site.run();
    sender.join().unwrap();
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>());
}

/// Another process may hold the notifier's descriptor. A write to it makes the loop run a turn, and
/// later posts still arrive.
pub(crate) fn any_holder_of_the_notifier_wakes_the_loop(kind: BackendKind) {
    let notifier = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
    let options =
        Options { backend: kind, notifier: Some(Arc::clone(&notifier)), ..Options::default() };
    let mut site = Site::made(&options);
    let (remote, turns) = (site.h.remote(), record::<usize>());
    let (turned, has_turned) = mpsc::channel();
    rustix::io::write(&*notifier, &3u64.to_ne_bytes()).unwrap();
    let sender = thread::spawn(move || {
        has_turned.recv().unwrap();
        remote.post(Box::new(Handle::stop));
    });
    let list = turns.clone();
    site.serve_turns(
        |_, _| async {},
        |turn| {
            list.borrow_mut().push(turn.events);
            let _ = turned.send(());
        },
    );
    sender.join().unwrap();
    assert_eq!(turns.borrow().first(), Some(&1));
    assert!(rustix::io::read(&*notifier, &mut [0; 8]).is_err(), "it is silent");
}

pub(crate) fn a_disarmed_listener_stays_silent(kind: BackendKind) {
    let mut site = Site::new(kind);
    let (h, listener, accepted) = (site.h.clone(), site.listener, Rc::new(Cell::new(0)));
    h.disarm(listener);
    let (_first, seen) = (site.client(), accepted.clone());
    site.h.spawn(async move {
        h.sleep(Duration::from_millis(4)).await;
        assert_eq!(seen.get(), 0);
        assert!(!h.is_armed(listener));
        h.rearm(listener).unwrap();
        assert!(!h.is_armed(listener), "only an armed listener is armed anew");
        h.arm(listener, crate::Arm::Shared).unwrap();
        h.arm(listener, crate::Arm::Exclusive).unwrap();
        h.rearm(listener).unwrap();
    });
    site.serve(move |h, _| {
        accepted.set(accepted.get() + 1);
        async move { h.stop() }
    });
    assert_eq!(site.h.panics(), 0);
    site.h.remove_listener(site.listener);
    assert!(TcpStream::connect(site.address).is_err(), "it was closed with its last holder");
}

pub(crate) fn a_watch_is_called_while_readable(kind: BackendKind) {
    let mut site = Site::new(kind);
    let (reader, mut writer) = io::pipe().unwrap();
    let reader = Arc::new(std::os::fd::OwnedFd::from(reader));
    let (pipe, calls) = (reader.clone(), Rc::new(Cell::new(0)));
    let seen = calls.clone();
    let key = Rc::new(Cell::new(None));
    let own = key.clone();
    let watch = site.h.add_watch(reader, move |h| {
        seen.set(seen.get() + 1);
        // Reads only half of the bytes. The rest is reported again.
        let mut byte = [0u8; 1];
        rustix::io::read(&pipe, &mut byte).unwrap();
        if byte == *b"2" {
            h.remove_watch(own.take().unwrap());
            h.stop();
        }
    });
    key.set(Some(watch.unwrap()));
    writer.write_all(b"12").unwrap();
    site.run();
    assert_eq!(calls.get(), 2);
    assert_eq!(site.h.0.watches.borrow().len(), 0);
}

pub(crate) fn the_loop_s_end_closes_everything(kind: BackendKind) {
    let event_loop = Loop::new(&Options { backend: kind, ..Options::default() }).unwrap();
    let h = event_loop.handle();
    let mut peers = Vec::new();
    for n in 0..4 {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let stream = h.stream(ours.into()).unwrap();
        if n % 2 == 0 {
            h.park(stream, Box::new(Echo(Arc::default(), 0)), None);
        } else {
            h.spawn(async move { drop(receive(&stream).await) });
        }
        peers.push(theirs);
    }
    let (remote, letter) = (h.remote(), Arc::new(()));
    let held = letter.clone();
    remote.post(Box::new(move |_| drop(held)));
    drop(event_loop);
    assert_eq!(Arc::strong_count(&letter), 1, "mail that nobody will read is dropped");
    let held = letter.clone();
    remote.post(Box::new(move |_| drop(held)));
    assert_eq!(Arc::strong_count(&letter), 1);
    for mut peer in peers {
        assert_eq!(peer.read(&mut [0; 4]).unwrap(), 0);
    }
    assert_eq!((h.tasks(), h.parked()), (0, 0));
    assert_eq!(Rc::strong_count(&h.0), 1, "a cycle keeps the loop alive");
}

/// Events that arrive during heavy work are handled before the next piece of it.
pub(crate) fn between_heavy_work_others_are_served(kind: BackendKind) {
    let mut site = Site::new(kind);
    let (client, order) = (site.client(), record::<&str>());
    let list = order.clone();
    site.serve(move |h, stream| {
        for name in ["first", "second", "third"] {
            let (h, list) = (h.clone(), list.clone());
            let mut client = client.try_clone().unwrap();
            h.clone().spawn(async move {
                h.heavy().await;
                list.borrow_mut().push(name);
                client.write_all(b"x").unwrap();
                // It takes as long as the rest of the turn.
                let began = std::time::Instant::now();
                while began.elapsed() < began - h.now() {}
            });
        }
        let list = list.clone();
        async move {
            for _ in 0..3 {
                assert_eq!(receive(&stream).await.unwrap(), b"x");
                list.borrow_mut().push("x");
            }
            h.stop();
        }
    });
    assert_eq!(site.h.panics(), 0);
    assert_eq!(*order.borrow(), ["first", "x", "second", "x", "third", "x"]);
}

/// A task that stops waiting for heavy work leaves the queue.
pub(crate) fn heavy_work_that_is_given_up_is_forgotten(kind: BackendKind) {
    let mut site = Site::new(kind);
    let h = site.h.clone();
    site.h.spawn(async move {
        let mut heavy = Box::pin(h.heavy());
        let polled = std::future::poll_fn(|cx| Poll::Ready(heavy.as_mut().poll(cx))).await;
        assert!(polled.is_pending() && !h.0.heavy.is_empty());
        drop(heavy);
        assert!(h.0.heavy.is_empty());
        h.heavy().await;
        h.stop();
    });
    site.run();
    assert_eq!(site.h.panics(), 0);
}
