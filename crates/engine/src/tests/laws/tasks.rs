//! Tasks: wakers, sleeps, and panics.

use std::cell::Cell;
use std::future::Future;
use std::io::{Read, Write};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake as StdWake, Waker};
use std::thread;
use std::time::Duration;

use super::{client, receive, send};
use crate::tests::site::{Record, Site, record};
use crate::{BackendKind, Chain};

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

/// Polls its child with a waker of its own, and only when that was woken, as combinators of many
/// futures do.
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

pub(crate) fn a_task_that_wakes_itself_starves_no_other(kind: BackendKind) {
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

/// A task with much work does a part of it in a turn. Tasks that become ready meanwhile run before
/// the next part.
pub(crate) fn a_task_without_budget_lets_others_go_first(kind: BackendKind) {
    const BYTES: usize = 32 << 10;
    const MOST: usize = 256;
    let mut site = Site::new(kind);
    let (greedy, other) = (site.client(), site.client());
    (&greedy).write_all(&[b'x'; BYTES]).unwrap();
    let read = Rc::new(Cell::new(None));
    let seen = Rc::new(Cell::new(BYTES));
    let (count, found) = (read.clone(), seen.clone());
    site.serve(move |h, stream| {
        let is_greedy = count.get().is_none();
        count.set(Some(0));
        let (count, found) = (count.clone(), found.clone());
        let mut other = other.try_clone().unwrap();
        async move {
            if !is_greedy {
                receive(&stream).await.unwrap();
                found.set(count.get().unwrap_or(0));
                return;
            }
            let (mut byte, mut all) = (Vec::with_capacity(1), 0);
            while all < BYTES {
                stream.readable().await.unwrap();
                let before = all;
                while let Some(n) = stream.try_recv(&mut byte).unwrap() {
                    byte.clear();
                    all += n;
                    count.set(Some(all));
                }
                assert!(all - before <= MOST, "{} at once", all - before);
                if before == 0 {
                    other.write_all(b"y").unwrap();
                }
            }
            h.stop();
        }
    });
    assert_eq!(site.h.panics(), 0);
    assert!(seen.get() < BYTES, "the other one came last");
}

/// A task without budget may still make one send, but not several.
pub(crate) fn a_task_without_budget_sends_once(kind: BackendKind) {
    let mut site = Site::new(kind);
    let _client = site.client();
    site.serve(|h, stream| async move {
        let mut chain = Chain::new();
        // More pieces than one system call takes.
        for _ in 0..5000 {
            chain.push(b"x".to_vec());
        }
        crate::spend(u32::MAX);
        let sent = stream.try_send(&mut chain).unwrap();
        assert!(sent.is_some_and(|n| n > 0), "nothing was sent");
        assert!(!chain.is_empty(), "all was sent");
        h.stop();
    });
    assert_eq!(site.h.panics(), 0);
}
