use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use weir_engine::{Driver, Handle, ListenerKey, Loop, Options};

use super::*;

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Polls a future once.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(out) => Some(out),
        Poll::Pending => None,
    }
}

fn temp_file() -> Arc<OpenFile> {
    let path = std::env::temp_dir().join(format!("weir-fill-{:?}", std::thread::current().id()));
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let _ = std::fs::remove_file(path);
    weir_engine::FilePool::new(1, 10).hold(file)
}

fn bytes(segment: &Segment) -> Vec<u8> {
    match segment {
        Segment::File { file, offset, len } => {
            let mut buf = vec![0; *len as usize];
            file.read_exact_at(&mut buf, *offset).unwrap();
            buf
        }
        other => other.memory().unwrap().to_vec(),
    }
}

struct Nothing;

impl Driver for Nothing {
    fn before_wait(&mut self, _: &Handle, _: Instant) -> Option<Duration> {
        None
    }

    fn acceptable(&mut self, _: &Handle, _: ListenerKey) {}
}

/// Which of these bytes a reader's client has had.
fn all_known(rest: MissingRest, asked: Vec<(u64, Vec<u8>)>) -> Vec<bool> {
    let mut event_loop = Loop::new(&Options::default()).unwrap();
    let (handle, known) = (event_loop.handle(), Rc::new(RefCell::new(Vec::new())));
    let found = known.clone();
    event_loop.handle().spawn(async move {
        for (at, bytes) in asked {
            let has = rest.has(handle.files(), at, &bytes).await;
            found.borrow_mut().push(has);
        }
        handle.stop();
    });
    event_loop.run(&mut Nothing).unwrap();
    known.take()
}

#[test]
fn waiting_readers_are_woken() {
    let fill = Fill::new(10, Asked::default());
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut cx = Context::from_waker(&waker);
    let mut head = pin!(fill.head());
    assert!(head.as_mut().poll(&mut cx).is_pending());
    fill.set_head(Arc::default(), Some(3));
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert!(head.as_mut().poll(&mut cx).is_pending());
    fill.finish(FillEnd::Whole);
    assert_eq!(count.0.load(Ordering::Relaxed), 2);
    assert!(matches!(head.poll(&mut cx), Poll::Ready(Some((_, Some(3))))));
}

#[test]
fn what_is_withdrawn_is_not_read() {
    let fill = Fill::new(10, Asked::default());
    fill.withdraw();
    assert!(now(fill.head()).unwrap().is_none());
    assert!(fill.reader().is_none());
}

#[test]
fn without_a_disk_each_reader_is_on_its_own() {
    let fill = Fill::new(4, Asked::default());
    fill.set_head(Arc::default(), None);
    let (mut own, mut other) = (fill.own_reader(), fill.reader().unwrap());
    fill.push(Bytes::from_static(b"abcd"));
    assert!(matches!(now(other.next()), Some(FillPiece::Data(s)) if bytes(&s) == b"abcd"));
    fill.push(Bytes::from_static(b"ef"));
    assert_eq!(now(fill.room()), None);
    fill.store_failed();
    assert!(matches!(now(other.next()), Some(FillPiece::FetchRest)));
    assert_eq!(other.rest().unwrap().at, 4);
    // No reader can join any more.
    assert!(fill.reader().is_none());
    // The client of the request that fetches it sets the pace.
    assert_eq!(now(fill.room()), None);
    assert!(matches!(now(own.next()), Some(FillPiece::Data(s)) if bytes(&s) == b"abcd"));
    assert_eq!(now(fill.room()), Some(true));
    drop(own);
    assert_eq!(now(fill.room()), Some(false));
}

proptest! {
    /// Whatever the order of pushing, writing and reading, every reader gets every byte. If the disk fails, the others
    /// than the request's own have what they had, and know the beginning that the client has.
    #[test]
    fn readers_get_everything(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..30), 1..20),
        limit in prop_oneof![0u64..60, 1000u64..8000],
        steps in prop::collection::vec(0u8..4, 0..80),
        disk_fails in any::<bool>(),
        differs_at in any::<prop::sample::Index>(),
    ) {
        let whole = pieces.concat();
        let fill = Fill::new(limit, Asked::default());
        fill.set_head(Arc::default(), None);
        let file = temp_file();
        let (mut first, mut second) = (fill.own_reader(), fill.reader().unwrap());
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let mut pieces = pieces.into_iter();
        let mut failed = false;
        let write = || {
            if let Some((data, at, _)) = now(fill.unwritten(1)) {
                let data = data.concat();
                file.write_all_at(&data, at).unwrap();
                fill.written(&file, 0, at + data.len() as u64);
            }
        };
        let read = |reader: &mut FillReader, out: &mut Vec<u8>| match now(reader.next()) {
            Some(FillPiece::Data(segment)) => {
                out.extend(bytes(&segment));
                true
            }
            other => !matches!(other, Some(FillPiece::FetchRest)),
        };
        let (mut all, mut shared) = (true, true);
        for step in steps {
            match step {
                0 if now(fill.room()) == Some(true) => match pieces.next() {
                    Some(piece) => fill.push(piece.into()),
                    None => fill.finish(FillEnd::Whole),
                },
                1 => all &= read(&mut first, &mut a),
                2 => shared = shared && read(&mut second, &mut b),
                3 if disk_fails => {
                    fill.store_failed();
                    failed = true;
                }
                3 if !failed => write(),
                _ => {}
            }
        }
        for piece in pieces {
            fill.push(piece.into());
        }
        fill.finish(FillEnd::Whole);
        while !first.is_done() || shared && !second.is_done() {
            all &= read(&mut first, &mut a);
            shared = shared && read(&mut second, &mut b);
        }
        prop_assert!(all && (shared || failed));
        prop_assert_eq!(&a, &whole);
        prop_assert!(matches!(now(first.next()), Some(FillPiece::End(FillEnd::Whole))));
        prop_assert_eq!(&b, &whole[..b.len()]);
        if shared {
            prop_assert_eq!(&b, &whole);
            return Ok(());
        }
        let rest = second.rest().unwrap();
        prop_assert_eq!(rest.at, b.len() as u64);
        let middle = differs_at.index(b.len() + 1);
        let mut asked = vec![(0, b[..middle].to_vec()), (middle as u64, b[middle..].to_vec())];
        let mut expected = vec![true, true];
        if middle < b.len() {
            b[middle] ^= 1;
            asked.push((0, b));
            expected.push(false);
        }
        prop_assert_eq!(all_known(rest, asked), expected);
    }
}

/// A server may send an answer byte by byte, each in a buffer of its own.
#[test]
fn short_pieces_do_not_keep_their_buffers() {
    let fill = Fill::new(512 * 1024, Asked::default());
    fill.set_head(Arc::default(), None);
    let mut own = fill.own_reader();
    let mut had = Vec::new();
    for n in 0..10_000u32 {
        let mut buf = Vec::with_capacity(32 * 1024);
        buf.push(n as u8);
        fill.push(buf.into());
        let Some(FillPiece::Data(segment)) = own.next_now() else { panic!("nothing at {n}") };
        had.extend(bytes(&segment));
    }
    assert_eq!(had, (0..10_000u32).map(|n| n as u8).collect::<Vec<_>>());
    let state = fill.lock();
    assert_eq!(state.pieces.len(), 10_000usize.div_ceil(4096));
}

#[test]
fn a_reader_and_the_writer_never_wait_for_each_other() {
    let fill = Fill::new(8, Asked::default());
    fill.push(Bytes::from_static(b"abcd"));
    assert!(now(fill.unwritten(6)).is_none());
    fill.push(Bytes::from_static(b"efgh"));
    assert!(now(fill.room()).is_none());
    let (pieces, at, _) = now(fill.unwritten(100)).unwrap();
    assert_eq!((pieces.concat().as_slice(), at), (b"abcdefgh".as_slice(), 0));
    fill.written(&temp_file(), 0, 4);
    assert_eq!(now(fill.room()), Some(true));
}
