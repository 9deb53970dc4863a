//! The laws of a loop.

use std::cell::Cell;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake as StdWake, Waker};
use std::thread;
use std::time::Duration;

use super::site::{Record, Site, record};
use crate::{
    BackendKind, Chain, ConnectOptions, Either, Handle, Idle, Loop, Options, Segment, Stream, Wake,
    either,
};

async fn send(stream: &Stream, bytes: impl Into<Segment>) -> io::Result<()> {
    let mut chain = Chain::new();
    chain.push(bytes);
    stream.send(&mut chain).await
}

async fn receive(stream: &Stream) -> io::Result<Vec<u8>> {
    let (n, buf) = stream.recv(stream.handle().take_buf(4096)).await;
    n.map(|_| buf)
}

/// A thread that plays the client, and then stops the loop.
fn client(site: &Site, play: impl FnOnce(TcpStream) + Send + 'static) -> thread::JoinHandle<()> {
    let (socket, remote) = (site.client(), site.h.remote());
    thread::spawn(move || {
        let stop = StopAtEnd(remote);
        play(socket);
        drop(stop);
    })
}

/// Stops the loop even if the client's play panics.
struct StopAtEnd(crate::Remote);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.post(Box::new(Handle::stop));
    }
}

pub(crate) fn an_echo_comes_back(kind: BackendKind) {
    let mut site = Site::new(kind);
    let play = client(&site, |mut socket| {
        for round in 0..100u8 {
            socket.write_all(&[round; 300]).unwrap();
            let mut back = [0; 300];
            socket.read_exact(&mut back).unwrap();
            assert_eq!(back, [round; 300]);
        }
    });
    site.serve(|_, stream| async move {
        while let Ok(bytes) = receive(&stream).await {
            if bytes.is_empty() || send(&stream, bytes).await.is_err() {
                break;
            }
        }
    });
    play.join().unwrap();
}

pub(crate) fn a_long_answer_arrives_whole(kind: BackendKind) {
    const PARTS: usize = 40;
    const PART: usize = 200_000;
    let mut site = Site::new(kind);
    let play = client(&site, |mut socket| {
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), PARTS * PART);
        let right = all.chunks(PART).enumerate().all(|(i, p)| p.iter().all(|b| *b == i as u8));
        assert!(right);
    });
    site.serve(|_, stream| async move {
        let mut chain = Chain::new();
        for part in 0..PARTS {
            chain.push(vec![part as u8; PART]);
        }
        stream.send(&mut chain).await.unwrap();
        assert!(chain.is_empty());
    });
    play.join().unwrap();
}

pub(crate) fn a_file_follows_its_head(kind: BackendKind) {
    let mut file = tempfile();
    file.write_all(&[7; 3_000_000]).unwrap();
    let mut site = Site::new(kind);
    let file = site.h.files().hold(file);
    let play = client(&site, |mut socket| {
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        assert_eq!(&all[..4], b"head");
        assert_eq!(&all[all.len() - 4..], b"tail");
        assert_eq!(all.len(), 4 + 2_999_990 + 4);
        assert!(all[4..all.len() - 4].iter().all(|b| *b == 7));
    });
    site.serve(move |_, stream| {
        let file = file.clone();
        async move {
            let mut chain = Chain::new();
            chain.set_file_chunk(Some(100_000));
            chain.push(&b"head"[..]);
            chain.push(Segment::File { file: file.clone(), offset: 10, len: 2_999_990 });
            chain.push(&b"tail"[..]);
            stream.send(&mut chain).await.unwrap();
            chain.push(Segment::File { file, offset: 3_000_000, len: 5 });
            let error = stream.send(&mut chain).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    });
    play.join().unwrap();
    assert_eq!(site.h.panics(), 0);
}

/// A file without a name.
fn tempfile() -> std::fs::File {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR).unwrap().into()
}

pub(crate) fn half_close_is_the_end_of_the_stream_not_of_the_connection(kind: BackendKind) {
    let mut site = Site::new(kind);
    let play = client(&site, |mut socket| {
        socket.write_all(b"question").unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"answer");
    });
    site.serve(|_, stream| async move {
        let mut question = Vec::with_capacity(4096);
        loop {
            let (n, buf) = stream.recv(question).await;
            question = buf;
            if n.unwrap() == 0 {
                break;
            }
        }
        assert_eq!(question, b"question");
        // The end is reported again, and again.
        assert_eq!(receive(&stream).await.unwrap(), b"");
        send(&stream, &b"answer"[..]).await.unwrap();
        stream.shutdown_write().unwrap();
    });
    play.join().unwrap();
    assert_eq!(site.h.panics(), 0);
}

pub(crate) fn a_departed_peer_is_noticed(kind: BackendKind) {
    let mut site = Site::new(kind);
    let socket = site.client();
    let first = Rc::new(Cell::new(Some(socket)));
    site.serve(move |h, stream| {
        let peer = first.take();
        async move {
            // Upstream work is going on, in vain; the client leaves meanwhile.
            let leave = async {
                h.sleep(Duration::from_millis(1)).await;
                drop(peer);
                std::future::pending::<()>().await;
            };
            assert!(!stream.peek_closed());
            let first = either(stream.closed(), leave).await;
            assert!(matches!(first, Either::Left(Ok(()))));
            assert!(stream.peek_closed());
            h.stop();
        }
    });
    assert_eq!(site.h.panics(), 0);
}

pub(crate) fn a_deadline_ends_a_wait(kind: BackendKind) {
    let mut site = Site::new(kind);
    let _silent = site.client();
    site.serve(|h, stream| async move {
        stream.set_deadline(Some(h.now() + Duration::from_millis(5)));
        let error = receive(&stream).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(stream.closed().await.is_err());
        // What does not have to wait still works.
        send(&stream, &b"late"[..]).await.unwrap();
        // A new deadline counts anew.
        let began = h.now();
        stream.set_timeout(Some(Duration::from_millis(3)));
        assert_eq!(receive(&stream).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(h.now() - began >= Duration::from_millis(3));
        h.stop();
    });
    assert_eq!(site.h.panics(), 0);
}

pub(crate) fn a_deadline_that_moves_later_does_not_fire(kind: BackendKind) {
    let mut site = Site::new(kind);
    let socket = site.client();
    site.serve(move |h, stream| {
        let mut socket = socket.try_clone().unwrap();
        async move {
            stream.set_deadline(Some(h.now() + Duration::from_millis(2)));
            stream.set_deadline(Some(h.now() + Duration::from_secs(600)));
            assert_eq!(h.0.wheel.borrow().len(), 1);
            let answer = either(receive(&stream), h.sleep(Duration::from_millis(8))).await;
            assert!(matches!(answer, Either::Right(())), "the old deadline fired");
            assert_eq!(h.0.wheel.borrow().len(), 1, "the timer has moved on, not multiplied");
            socket.write_all(b"x").unwrap();
            assert_eq!(receive(&stream).await.unwrap(), b"x");
            drop(stream);
            assert_eq!(h.0.wheel.borrow().len(), 0);
            h.stop();
        }
    });
    assert_eq!(site.h.panics(), 0);
}

/// An idle connection that records why it was resumed and serves one echo.
struct Resting(Arc<Mutex<Vec<(Wake, u8)>>>, u8);

impl Idle for Resting {
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
        let idle = Box::new(Resting(list.clone(), 1));
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
        let idle = Box::new(Resting(list.clone(), 2));
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
        // Takes one of two bytes: the other one makes no event any more.
        let (n, buf) = stream.recv(Vec::with_capacity(1)).await;
        assert_eq!((n.unwrap(), &buf[..1]), (1, &b"a"[..]));
        h.park(stream, Box::new(Resting(Arc::default(), 0)), None);
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
        let idle = Box::new(Resting(list.clone(), count.get()));
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
        other.park(stream, Box::new(Resting(Arc::default(), 0)), Some(h.now()));
    });
    play.join().unwrap();
    assert_eq!((site.h.panics(), site.h.parked()), (0, 0));
}

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
        // Both become readable in one turn; whoever is first closes the other one, and a new
        // socket takes its descriptor and its slot.
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

/// Evicts whoever else is parked and puts a fresh connection in the place.
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
        // Makes all three happen in one turn: while this task keeps the loop, a client connects,
        // a byte comes, and a timer expires.
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

/// Waits for another thread that holds an ordinary `Waker`.
struct FromThread(Arc<Mutex<(bool, Option<Waker>)>>);

impl Future for FromThread {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap();
        state.1 = Some(cx.waker().clone());
        if state.0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

pub(crate) fn a_foreign_waker_wakes_its_task(kind: BackendKind) {
    let mut site = Site::new(kind);
    let state = Arc::<Mutex<(bool, Option<Waker>)>>::default();
    let (h, waiting) = (site.h.clone(), FromThread(state.clone()));
    site.h.spawn(async move {
        let sender = thread::spawn(move || {
            loop {
                let mut state = state.lock().unwrap();
                if let Some(waker) = state.1.take() {
                    state.0 = true;
                    return waker.wake();
                }
                drop(state);
                thread::yield_now();
            }
        });
        waiting.await;
        sender.join().unwrap();
        h.stop();
    });
    site.run();
}

/// Polls its child with a waker of its own and only when that one was woken, as combinators of
/// many futures do.
struct OwnWaker<F> {
    child: Pin<Box<F>>,
    flag: Arc<Flag>,
}

#[derive(Default)]
struct Flag(std::sync::atomic::AtomicBool, Mutex<Option<Waker>>);

impl StdWake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        if let Some(outer) = self.1.lock().unwrap().take() {
            outer.wake();
        }
    }
}

impl<F: Future> Future for OwnWaker<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        *self.flag.1.lock().unwrap() = Some(cx.waker().clone());
        if !self.flag.0.swap(false, std::sync::atomic::Ordering::SeqCst) {
            return Poll::Pending;
        }
        let waker = Waker::from(self.flag.clone());
        self.child.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

pub(crate) fn a_combinator_with_its_own_wakers_works(kind: BackendKind) {
    let mut site = Site::new(kind);
    let play = client(&site, |mut socket| {
        socket.write_all(b"x").unwrap();
        assert_eq!(socket.read(&mut [0; 10]).unwrap(), 1);
    });
    site.serve(|h, stream| {
        let work = async move {
            h.sleep(Duration::from_millis(1)).await;
            let bytes = receive(&stream).await.unwrap();
            send(&stream, bytes).await.unwrap();
        };
        let flag = Arc::<Flag>::default();
        flag.0.store(true, std::sync::atomic::Ordering::SeqCst);
        OwnWaker { child: Box::pin(work), flag }
    });
    play.join().unwrap();
}

pub(crate) fn a_thousand_sleeps_end_in_order(kind: BackendKind) {
    let mut site = Site::new(kind);
    let ended: Record<u64> = record();
    for n in 0..1000u64 {
        let (h, ended) = (site.h.clone(), ended.clone());
        site.h.spawn(async move {
            let millis = n * 7919 % 50;
            let (began, d) = (h.now(), Duration::from_millis(millis));
            h.sleep(d).await;
            assert!(h.now() - began >= d);
            ended.borrow_mut().push(millis);
            if ended.borrow().len() == 1000 {
                h.stop();
            }
        });
    }
    assert_eq!(site.h.tasks(), 1000);
    site.run();
    assert_eq!(site.h.panics(), 0);
    assert!(ended.borrow().is_sorted());
    assert_eq!(site.h.0.wheel.borrow().len(), 0);
    assert_eq!(site.h.tasks(), 0);
}

pub(crate) fn a_panic_ends_one_task_only(kind: BackendKind) {
    let mut site = Site::new(kind);
    let heard = record::<String>();
    let list = heard.clone();
    site.h.on_panic(move |text| list.borrow_mut().push(text.to_owned()));
    let (silent, h) = (site.client(), site.h.clone());
    site.serve(move |_, stream| {
        let h = h.clone();
        h.clone().spawn(async move {
            let _closed_by_the_panic = stream;
            panic!("task {}", 1);
        });
        async move {
            h.sleep(Duration::from_millis(2)).await;
            h.stop();
        }
    });
    assert_eq!((site.h.panics(), site.h.tasks()), (1, 0));
    assert_eq!(*heard.borrow(), ["task 1"]);
    assert_eq!((&silent).read(&mut [0; 4]).unwrap(), 0);
}

pub(crate) fn a_panic_while_accepting_costs_one_connection(kind: BackendKind) {
    let mut site = Site::new(kind);
    let (first, second, count) = (site.client(), site.client(), Cell::new(0));
    site.serve(move |h, stream| {
        count.set(count.get() + 1);
        assert!(count.get() > 1, "the first one");
        async move {
            send(&stream, &b"second"[..]).await.unwrap();
            h.stop();
        }
    });
    assert_eq!(site.h.panics(), 1);
    assert_eq!((&first).read(&mut [0; 9]).unwrap(), 0);
    assert_eq!((&second).read(&mut [0; 9]).unwrap(), 6);
}

pub(crate) fn a_task_that_wakes_itself_starves_nobody(kind: BackendKind) {
    let mut site = Site::new(kind);
    let done = Rc::new(Cell::new(false));
    let flag = done.clone();
    site.h.spawn(std::future::poll_fn(move |cx| {
        cx.waker().wake_by_ref();
        if flag.get() { Poll::Ready(()) } else { Poll::Pending }
    }));
    let play = client(&site, |mut socket| {
        socket.write_all(b"x").unwrap();
        assert_eq!(socket.read(&mut [0; 10]).unwrap(), 1);
    });
    site.serve(move |_, stream| {
        let done = done.clone();
        async move {
            let bytes = receive(&stream).await.unwrap();
            done.set(true);
            send(&stream, bytes).await.unwrap();
        }
    });
    play.join().unwrap();
}

pub(crate) fn connecting_and_being_refused(kind: BackendKind) {
    let mut site = Site::new(kind);
    let (h, address) = (site.h.clone(), site.address);
    site.h.spawn(async move {
        let how = ConnectOptions {
            bind: Some("127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()),
            deadline: Some(h.now() + Duration::from_secs(10)),
            ..ConnectOptions::default()
        };
        let stream = h.connect(&address.into(), &how).await.unwrap();
        send(&stream, &b"ping"[..]).await.unwrap();
        assert_eq!(receive(&stream).await.unwrap(), b"ping");
        assert_eq!(stream.peer_addr().unwrap(), Some(address.into()));
        // A port that nobody listens on: bound and closed.
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = h.connect(&nobody.into(), &ConnectOptions::default()).await;
        assert_eq!(refused.err().unwrap().kind(), io::ErrorKind::ConnectionRefused);
        let missing = rustix::net::SocketAddrUnix::new("/nonexistent/socket").unwrap();
        let missing = h.connect(&missing.into(), &ConnectOptions::default()).await;
        assert_eq!(missing.err().unwrap().kind(), io::ErrorKind::NotFound);
        h.stop();
    });
    site.serve(|_, stream| async move {
        let bytes = receive(&stream).await.unwrap();
        send(&stream, bytes).await.unwrap();
        receive(&stream).await.unwrap();
    });
    assert_eq!(site.h.panics(), 0);
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
        // Reads only half of it: the rest is reported again.
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

pub(crate) fn datagrams_come_and_go(kind: BackendKind) {
    let mut site = Site::new(kind);
    let ours = UdpSocket::bind("127.0.0.1:0").unwrap();
    ours.set_nonblocking(true).unwrap();
    let (peer, address) = (UdpSocket::bind("127.0.0.1:0").unwrap(), ours.local_addr().unwrap());
    let play = {
        let remote = StopAtEnd(site.h.remote());
        thread::spawn(move || {
            for n in 0..20u8 {
                peer.send_to(&[n; 30], address).unwrap();
                let mut back = [0; 100];
                let (len, from) = peer.recv_from(&mut back).unwrap();
                assert_eq!((&back[..len], from), (&[n; 30][..], address));
            }
            drop(remote);
        })
    };
    let socket = site.h.datagram(ours.into()).unwrap();
    site.h.spawn(async move {
        loop {
            let (received, buf) = socket.recv_from(Vec::with_capacity(512)).await;
            let (n, from) = received.unwrap();
            socket.send_to(&buf[..n], from.as_ref()).await.unwrap();
        }
    });
    site.run();
    play.join().unwrap();
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
            h.park(stream, Box::new(Resting(Arc::default(), 0)), None);
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

pub(crate) fn a_cold_file_is_read_elsewhere_and_arrives(kind: BackendKind) {
    let mut file = tempfile();
    let bytes: Vec<u8> = (0..1_000_000u32).map(|n| (n / 1000) as u8).collect();
    file.write_all(&bytes).unwrap();
    // What is on the disk can leave the memory; and of a file of /proc nobody can tell.
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let proc = std::fs::File::open("/proc/version").unwrap();
    let version = std::fs::read("/proc/version").unwrap();
    let whole = [&bytes[..], &version[..5]].concat();
    let mut site = Site::new(kind);
    let (file, proc) = (site.h.files().hold(file), site.h.files().hold(proc));
    let play = client(&site, move |mut socket| {
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        assert!(all == whole);
    });
    site.serve(move |h, stream| {
        let mut chain = Chain::new();
        chain.push(Segment::File { file: file.clone(), offset: 0, len: 1_000_000 });
        chain.push(Segment::File { file: proc.clone(), offset: 0, len: 5 });
        async move {
            stream.send(&mut chain).await.unwrap();
            assert!(h.files().offloaded() > 0);
        }
    });
    play.join().unwrap();
    assert_eq!(site.h.panics(), 0);
}
