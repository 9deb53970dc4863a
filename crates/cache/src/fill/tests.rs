use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use proptest::prelude::*;

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

#[test]
fn who_waits_is_woken() {
    let fill = Fill::new(10);
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut cx = Context::from_waker(&waker);
    let mut head = pin!(fill.head());
    assert!(head.as_mut().poll(&mut cx).is_pending());
    fill.set_head(Arc::default(), Some(3));
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert!(head.as_mut().poll(&mut cx).is_pending());
    fill.finish(End::Whole);
    assert_eq!(count.0.load(Ordering::Relaxed), 2);
    assert!(matches!(head.poll(&mut cx), Poll::Ready(Some((_, Some(3))))));
}

#[test]
fn what_is_withdrawn_is_not_read() {
    let fill = Fill::new(10);
    fill.withdraw();
    assert!(now(fill.head()).unwrap().is_none());
    assert!(fill.reader().is_none());
}

#[test]
fn without_a_file_the_slowest_reader_sets_the_pace() {
    let fill = Fill::new(4);
    let mut reader = fill.reader().unwrap();
    fill.push(Bytes::from_static(b"abcd"));
    fill.push(Bytes::from_static(b"ef"));
    assert_eq!(now(fill.room()), None);
    fill.store_failed();
    assert_eq!(now(fill.room()), None);
    assert!(matches!(now(reader.next()), Some(Piece::Data(s)) if bytes(&s) == b"abcd"));
    assert_eq!(now(fill.room()), Some(true));
    // The beginning is gone: nobody can join any more.
    assert!(fill.reader().is_none());
    drop(reader);
    assert_eq!(now(fill.room()), Some(false));
}

proptest! {
    /// Whatever the order of pushing, writing and reading, every reader gets every byte.
    #[test]
    fn readers_get_everything(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..30), 1..20),
        limit in 0u64..60,
        steps in prop::collection::vec(0u8..4, 0..80),
        disk_fails in any::<bool>(),
    ) {
        let whole = pieces.concat();
        let fill = Fill::new(limit);
        let file = temp_file();
        let (mut first, mut second) = (fill.reader().unwrap(), fill.reader().unwrap());
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
        let read = |reader: &mut Reader, out: &mut Vec<u8>| {
            if let Some(Piece::Data(segment)) = now(reader.next()) {
                out.extend(bytes(&segment));
            }
        };
        for step in steps {
            match step {
                0 if now(fill.room()) == Some(true) => match pieces.next() {
                    Some(piece) => fill.push(piece.into()),
                    None => fill.finish(End::Whole),
                },
                1 => read(&mut first, &mut a),
                2 => read(&mut second, &mut b),
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
        fill.finish(End::Whole);
        while !first.is_done() || !second.is_done() {
            read(&mut first, &mut a);
            read(&mut second, &mut b);
        }
        prop_assert_eq!(&a, &whole);
        prop_assert_eq!(&b, &whole);
        prop_assert!(matches!(now(first.next()), Some(Piece::End(End::Whole))));
    }
}

#[test]
fn who_waits_for_room_and_who_writes_never_wait_for_each_other() {
    let fill = Fill::new(8);
    fill.push(Bytes::from_static(b"abcd"));
    assert!(now(fill.unwritten(6)).is_none());
    fill.push(Bytes::from_static(b"efgh"));
    assert!(now(fill.room()).is_none());
    let (pieces, at, _) = now(fill.unwritten(100)).unwrap();
    assert_eq!((pieces.concat().as_slice(), at), (b"abcdefgh".as_slice(), 0));
    fill.written(&temp_file(), 0, 4);
    assert_eq!(now(fill.room()), Some(true));
}
