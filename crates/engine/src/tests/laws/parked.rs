//! Connections that wait without a task, or move to another loop.

use std::any::Any;
use std::cell::Cell;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use super::{client, receive, send};
use crate::tests::site::Site;
use crate::{BackendKind, Either, Handle, Idle, Stream, Wake, either};

/// An idle connection that records why it was resumed and serves one echo.
pub(super) struct Echo(pub(super) Arc<Mutex<Vec<(Wake, u8)>>>, pub(super) u8);

impl Idle for Echo {
    fn resume(self: Box<Self>, h: &Handle, stream: Stream, why: Wake) {
        self.0.lock().unwrap().push((why, self.1));
        if why != Wake::Ready {
            return;
        }
        h.clone().spawn(async move {
            let bytes = receive(&stream).await.unwrap();
            if !bytes.is_empty() {
                send(&stream, bytes).await.unwrap();
                let h = stream.handle().clone();
                h.park(stream, self, None);
            }
        });
    }
}

pub(crate) fn a_parked_connection_resumes(kind: BackendKind) {
    let mut site = Site::new(kind);
    let woken = Arc::<Mutex<Vec<(Wake, u8)>>>::default();
    let play = client(&site, |mut socket| {
        for round in 0..10u8 {
            socket.write_all(&[round]).unwrap();
            let mut back = [0];
            socket.read_exact(&mut back).unwrap();
            assert_eq!(back, [round]);
        }
    });
    let list = woken.clone();
    site.serve(move |h, stream| {
        let idle = Box::new(Echo(list.clone(), 1));
        async move { h.park(stream, idle, None) }
    });
    play.join().unwrap();
    assert!(woken.lock().unwrap().iter().filter(|w| **w == (Wake::Ready, 1)).count() >= 10);
    assert_eq!(site.h.panics(), 0);
}

pub(crate) fn a_parked_connection_has_a_deadline(kind: BackendKind) {
    let mut site = Site::new(kind);
    let woken = Arc::<Mutex<Vec<(Wake, u8)>>>::default();
    let play = client(&site, |mut socket| {
        // The server closes after its deadline.
        assert_eq!(socket.read(&mut [0; 10]).unwrap(), 0);
    });
    let list = woken.clone();
    site.serve(move |h, stream| {
        let idle = Box::new(Echo(list.clone(), 2));
        async move {
            let deadline = h.now() + Duration::from_millis(4);
            h.park(stream, idle, Some(deadline));
            assert_eq!(h.parked(), 1);
        }
    });
    play.join().unwrap();
    assert_eq!(*woken.lock().unwrap(), [(Wake::Deadline, 2)]);
    assert_eq!(site.h.parked(), 0);
}

pub(crate) fn what_was_parked_readable_resumes(kind: BackendKind) {
    let mut site = Site::new(kind);
    let play = client(&site, |mut socket| {
        socket.write_all(b"ab").unwrap();
        let mut back = [0];
        socket.read_exact(&mut back).unwrap();
        assert_eq!(back, *b"b");
    });
    site.serve(move |h, stream| async move {
        // Takes one of two bytes. The other one causes no further event.
        let (n, buf) = stream.recv(Vec::with_capacity(1)).await;
        assert_eq!((n.unwrap(), &buf[..1]), (1, &b"a"[..]));
        h.park(stream, Box::new(Echo(Arc::default(), 0)), None);
    });
    play.join().unwrap();
}

pub(crate) fn the_oldest_parked_is_evicted_first(kind: BackendKind) {
    let mut site = Site::new(kind);
    let woken = Arc::<Mutex<Vec<(Wake, u8)>>>::default();
    let _clients: Vec<_> = (0..5).map(|_| site.client()).collect();
    let (list, count) = (woken.clone(), Cell::new(0u8));
    site.serve(move |h, stream| {
        count.set(count.get() + 1);
        let idle = Box::new(Echo(list.clone(), count.get()));
        async move {
            h.park(stream, idle, None);
            if h.parked() == 5 {
                assert_eq!(h.unpark_oldest(2, Wake::Evicted), 2);
                assert_eq!(h.parked(), 3);
                assert_eq!(h.unpark_all(Wake::Shutdown), 3);
                assert_eq!(h.unpark_oldest(1, Wake::Evicted), 0);
                h.stop();
            }
        }
    });
    let woken = woken.lock().unwrap();
    let whys: Vec<Wake> = woken.iter().map(|w| w.0).collect();
    assert_eq!(
        whys,
        [Wake::Evicted, Wake::Evicted, Wake::Shutdown, Wake::Shutdown, Wake::Shutdown]
    );
    assert_eq!(woken.iter().map(|w| w.1).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
}

pub(crate) fn some_of_the_parked_are_chosen(kind: BackendKind) {
    let mut site = Site::new(kind);
    let woken = Arc::<Mutex<Vec<(Wake, u8)>>>::default();
    let _clients: Vec<_> = (0..4).map(|_| site.client()).collect();
    let (list, count) = (woken.clone(), Cell::new(0u8));
    site.serve(move |h, stream| {
        count.set(count.get() + 1);
        let idle = Box::new(Echo(list.clone(), count.get()));
        async move {
            h.park(stream, idle, None);
            if h.parked() == 4 {
                let even = |idle: &dyn Idle| {
                    let idle: &dyn Any = idle;
                    idle.downcast_ref::<Echo>().is_some_and(|resting| resting.1 % 2 == 0)
                };
                assert_eq!(h.unpark_where(Wake::Shutdown, even), 2);
                assert_eq!(h.parked(), 2);
                assert_eq!(h.unpark_all(Wake::Evicted), 2);
                h.stop();
            }
        }
    });
    let woken = woken.lock().unwrap();
    let expected = [(Wake::Shutdown, 2), (Wake::Shutdown, 4), (Wake::Evicted, 1)];
    assert_eq!(woken[..3], expected);
}

/// Bytes that have arrived end a rest at once, unless the task has used up its budget for this
/// turn.
pub(crate) fn a_rest_without_a_budget_has_another_turn_first(kind: BackendKind) {
    let mut site = Site::new(kind);
    let mut socket = site.client();
    socket.write_all(b"there").unwrap();
    site.serve(|h, stream| async move {
        stream.readable().await.unwrap();
        crate::spend(u32::MAX);
        let mut buf = h.take_buf(100);
        assert_eq!(stream.try_recv(&mut buf).unwrap(), None, "nothing is left of the budget");
        assert_eq!(stream.rest(Duration::from_secs(60)).await, Wake::Ready);
        assert_eq!(stream.try_recv(&mut buf).unwrap(), Some(5));
        h.stop();
    });
    assert_eq!(site.h.panics(), 0);
}

pub(crate) fn a_connection_rests_in_its_task(kind: BackendKind) {
    let mut site = Site::new(kind);
    let play = client(&site, |mut socket| {
        for round in 0..5u8 {
            socket.write_all(&[round]).unwrap();
            let mut back = [0];
            socket.read_exact(&mut back).unwrap();
            assert_eq!(back, [round]);
        }
        // The server rests, parks, and closes.
        assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    });
    site.serve(|h, stream| async move {
        for _ in 0..5 {
            assert_eq!(stream.rest(Duration::from_secs(60)).await, Wake::Ready);
            let bytes = receive(&stream).await.unwrap();
            send(&stream, bytes).await.unwrap();
            assert_eq!(h.parked(), 0);
        }
        assert_eq!(stream.rest(Duration::from_millis(3)).await, Wake::Deadline);
        let first = either(stream.rest(Duration::from_secs(60)), std::future::ready(())).await;
        assert_eq!((first, h.parked()), (Either::Right(()), 0));
        let (evict, other) = (h.clone(), h.clone());
        h.spawn(async move {
            assert_eq!(evict.parked(), 1);
            assert_eq!(evict.unpark_oldest(9, Wake::Evicted), 1);
        });
        assert_eq!(stream.rest(Duration::from_secs(60)).await, Wake::Evicted);
        other.park(stream, Box::new(Echo(Arc::default(), 0)), Some(h.now()));
    });
    play.join().unwrap();
    assert_eq!((site.h.panics(), site.h.parked()), (0, 0));
}

pub(crate) fn a_stream_moves_to_another_loop(kind: BackendKind) {
    let mut site = Site::new(kind);
    let (moved, arrived) = mpsc::channel();
    let play = client(&site, move |mut socket| {
        let mut other = Site::new(kind);
        other.h.disarm(other.listener);
        let fd: std::os::fd::OwnedFd = arrived.recv().unwrap();
        socket.write_all(b"over here").unwrap();
        let (stream, h) = (other.h.stream(fd).unwrap(), other.h.clone());
        other.h.spawn(async move {
            assert_eq!(receive(&stream).await.unwrap(), b"over here");
            h.stop();
        });
        other.run();
        assert_eq!(other.h.panics(), 0);
    });
    site.serve(move |_, stream| {
        moved.send(stream.into_fd().unwrap()).unwrap();
        async {}
    });
    play.join().unwrap();
    assert_eq!(site.h.0.sources.borrow().len(), 0);
}
