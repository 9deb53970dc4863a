//! File operations on a real loop and a real directory.

use std::cell::Cell;
use std::future::Future;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::{Driver, Handle, ListenerKey, Loop, Options};

struct Nothing;

impl Driver for Nothing {
    fn before_wait(&mut self, _: &Handle, _: Instant) -> Option<Duration> {
        None
    }

    fn acceptable(&mut self, _: &Handle, _: ListenerKey) {}
}

/// Runs one future on a loop of its own, with a scratch directory.
fn on_a_loop<F: Future<Output = ()> + 'static>(
    files: FilePool,
    work: impl FnOnce(Handle, PathBuf) -> F,
) {
    let mut event_loop = Loop::new(&Options { files, ..Options::default() }).unwrap();
    let h = event_loop.handle();
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("weir-files-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let (task, done) = (work(h.clone(), directory.clone()), Rc::new(Cell::new(false)));
    let flag = done.clone();
    h.clone().spawn(async move {
        let _stop = OnDrop(h.clone());
        task.await;
        flag.set(true);
    });
    event_loop.run(&mut Nothing).unwrap();
    std::fs::remove_dir_all(directory).unwrap();
    assert!(done.get(), "the task panicked");
}

struct OnDrop(Handle);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// For reading and writing a new file. Fails if the file exists.
fn create_new(mode: u32) -> OpenHow {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    OpenHow { flags, mode: Mode::from_raw_mode(mode), ..OpenHow::read() }
}

#[test]
fn a_file_is_written_renamed_read_and_removed() {
    on_a_loop(FilePool::default(), |h, dir| async move {
        let files = h.files();
        let temp = dir.join("t");
        let (file, _) = files.open(&temp, &create_new(0o600)).await.unwrap();
        let (written, buf) = files.append(&file, b"hello".to_vec()).await;
        written.unwrap();
        assert_eq!(buf, b"hello");
        files.write_at(&file, b"HE".to_vec(), 0).await.0.unwrap();
        let path = dir.join("kept");
        files.rename(&temp, &path).await.unwrap();
        let (file, info) = files.open(&path, &OpenHow::read()).await.unwrap();
        assert_eq!((info.kind, info.len, info.permissions), (FileKind::File, 5, 0o600));
        assert_eq!(files.stat(&path).await.unwrap(), info);
        let (n, buf) = files.read_at(&file, Vec::with_capacity(100), 1).await;
        assert_eq!((n.unwrap(), &buf[..]), (4, &b"Ello"[..]));
        let (n, buf) = files.read_at(&file, buf, 5).await;
        assert_eq!((n.unwrap(), &buf[..]), (0, &b"Ello"[..]));
        files.unlink(&path).await.unwrap();
        let missing = files.open(&path, &OpenHow::read()).await.unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert_eq!(files.stat(&path).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(files.stat(&dir).await.unwrap().kind, FileKind::Directory);
    });
}

#[test]
fn what_is_in_memory_is_answered_on_the_loop() {
    on_a_loop(FilePool::default(), |h, dir| async move {
        let path = dir.join("warm");
        std::fs::write(&path, [1; 5000]).unwrap();
        let files = h.files();
        files.open(&path, &OpenHow::read()).await.unwrap();
        // Cached by now, if all file systems are local and the kernel has openat2.
        if files.open_now(&path, &OpenHow::read()).is_none() {
            return;
        }
        let before = files.offloaded();
        for _ in 0..100 {
            files.open(&path, &OpenHow::read()).await.unwrap();
            files.stat(&path).await.unwrap();
        }
        assert_eq!(files.offloaded(), before);
    });
}

#[test]
fn a_new_file_is_never_created_on_the_loop() {
    on_a_loop(FilePool::default(), |h, dir| async move {
        let path = dir.join("new");
        assert!(h.files().open_now(&path, &create_new(0o644)).is_none());
        h.files().open(&path, &create_new(0o644)).await.unwrap();
        let again = h.files().open(&path, &create_new(0o644)).await.unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    });
}

#[test]
fn symbolic_links_can_be_refused() {
    on_a_loop(FilePool::default(), |h, dir| async move {
        std::fs::write(dir.join("real"), "x").unwrap();
        std::os::unix::fs::symlink("real", dir.join("link")).unwrap();
        let mut how = OpenHow::read();
        h.files().open(&dir.join("link"), &how).await.unwrap();
        how.resolve = ResolveFlags::NO_SYMLINKS;
        h.files().open(&dir.join("real"), &how).await.unwrap();
        assert!(h.files().open(&dir.join("link"), &how).await.is_err());
    });
}

#[test]
fn a_stuck_operation_delays_no_other() {
    on_a_loop(FilePool::new(2, 100), |h, _| async move {
        let (release, stuck) = mpsc::channel::<()>();
        let slow = h.files().run(move || stuck.recv().is_ok());
        for n in 0..50 {
            assert_eq!(h.files().run(move || n).await.unwrap(), n);
        }
        release.send(()).unwrap();
        assert!(slow.await.unwrap());
    });
}

#[test]
fn writes_leave_threads_to_reads() {
    let pool = FilePool::new(4, 100);
    on_a_loop(pool, |h, _| async move {
        let (release, stuck) = mpsc::channel::<()>();
        let stuck = Arc::new(std::sync::Mutex::new(stuck));
        let wait = || {
            let stuck = stuck.clone();
            move || stuck.lock().unwrap().recv().is_ok()
        };
        let later: Vec<_> = (0..20).map(|_| h.files().later(wait())).collect();
        let write: Vec<_> = (0..20).map(|_| h.files().write(wait())).collect();
        for n in 0..50 {
            assert_eq!(h.files().run(move || n).await.unwrap(), n);
        }
        (0..40).for_each(|_| release.send(()).unwrap());
        for writing in later.into_iter().chain(write) {
            assert!(writing.await.unwrap());
        }
    });
}

#[test]
fn a_thread_that_cannot_be_started_is_tried_again() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static SCARCE: AtomicBool = AtomicBool::new(true);
    let pool = FilePool::spawned("scarce", 2, 100, |thread, work| {
        if SCARCE.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        thread.spawn(work).map(drop)
    });
    on_a_loop(pool.clone(), |h, _| async move {
        assert_eq!(h.files().run(|| 1).await.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        SCARCE.store(false, Ordering::Relaxed);
        let (release, stuck) = mpsc::channel::<()>();
        let slow = h.files().run(move || stuck.recv().is_ok());
        SCARCE.store(true, Ordering::Relaxed);
        let waiting: Vec<_> = (0..5).map(|n| h.files().run(move || n)).collect();
        assert_eq!(pool.started(), 1);
        SCARCE.store(false, Ordering::Relaxed);
        assert_eq!(h.files().run(|| 5).await.unwrap(), 5);
        for (n, done) in waiting.into_iter().enumerate() {
            assert_eq!(done.await.unwrap(), n);
        }
        release.send(()).unwrap();
        assert!(slow.await.unwrap());
    });
}

#[test]
fn a_full_queue_and_a_panic_are_errors() {
    let (hear, heard) = mpsc::channel();
    let pool = FilePool::new(1, 1);
    pool.on_overflow(move |text| hear.send(text.to_owned()).unwrap());
    on_a_loop(pool, |h, _| async move {
        let panicked = h.files().run(|| panic!("on purpose")).await;
        assert!(panicked.is_err());
        let (release, stuck) = mpsc::channel::<()>();
        let (tell, begun) = mpsc::channel::<()>();
        let slow = h.files().run(move || (tell.send(()), stuck.recv().is_ok()));
        begun.recv().unwrap();
        let second = h.files().run(|| 2);
        let refused = h.files().run(|| 3).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        release.send(()).unwrap();
        assert!(slow.await.unwrap().1);
        assert_eq!(second.await.unwrap(), 2);
    });
    let text = "thread pool \"default\" queue overflow: 1 tasks waiting";
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [text]);
}

#[test]
fn the_pool_starts_no_thread_before_it_is_needed_and_shares_them() {
    let pool = FilePool::new(4, 10);
    assert_eq!(pool.started(), 0);
    on_a_loop(pool.clone(), |h, _| async move {
        for n in 0..20 {
            assert_eq!(h.files().run(move || n).await.unwrap(), n);
        }
    });
    assert!((1..=4).contains(&pool.started()));
}

#[test]
fn a_range_behind_the_end_and_a_pipe_are_harmless() {
    let (reader, _writer) = io::pipe().unwrap();
    let pool = FilePool::new(1, 1);
    let pipe = pool.hold(File::from(OwnedFd::from(reader)));
    assert_eq!(residence(&pipe, 0, 10), Residence::Unknown);
    let own = pool.hold(File::open("/proc/self/exe").unwrap());
    residence(&own, u64::MAX / 4, u64::MAX);
}

#[test]
fn a_pool_is_waited_for_unless_an_operation_is_stuck() {
    let (pool, done) = (FilePool::new(1, 10), Arc::new(AtomicUsize::new(0)));
    let (go_on, may) = mpsc::channel::<()>();
    pool.insist(Rank::Later, move || {
        let _ = may.recv();
    });
    for _ in 0..5 {
        let done = done.clone();
        pool.insist(Rank::Later, move || {
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    pool.settle(Instant::now() + Duration::from_millis(1));
    assert_eq!(done.load(Ordering::SeqCst), 0);
    drop(go_on);
    pool.settle(Instant::now() + Duration::from_secs(20));
    assert_eq!(done.load(Ordering::SeqCst), 5);
}

#[test]
fn files_that_may_wait_are_closed_elsewhere() {
    on_a_loop(FilePool::new(1, 10), |h, dir| async move {
        let files = h.files();
        let path = dir.join("a");
        let started = || files.default_pool().started();
        // A file that was written may have to be flushed when it closes.
        drop(files.hold(File::create(&path).unwrap()));
        assert_eq!(started(), 1);
        assert_eq!(files.run(|| ()).await.unwrap(), ());
        let elsewhere = FilePool::named("two", 1, 10);
        let how = OpenHow::read();
        let open = || files.open_by(Doer::Pool(elsewhere.clone()), &path, &how);
        drop(open().await.unwrap());
        let (file, _) = open().await.unwrap();
        std::fs::remove_file(&path).unwrap();
        // In the turn in which it was opened, the file counts as unchanged.
        h.sleep(Duration::from_millis(1)).await;
        drop(file);
        // The last reference goes, and so do the blocks of the file.
        assert_eq!(elsewhere.started(), 1);
    });
}

#[test]
fn a_server_without_threads_for_files_waits_itself() {
    on_a_loop(FilePool::new(1, 10), |h, dir| async move {
        let files = h.files();
        let path = dir.join("a");
        std::fs::write(&path, "hello").unwrap();
        let (file, info) = files.open_by(Doer::Loop, &path, &OpenHow::read()).await.unwrap();
        assert_eq!(files.stat_by(Doer::Loop, &path).await.unwrap(), info);
        let (read, buf) = files.read_at(&file, Vec::with_capacity(10), 1).await;
        assert_eq!((read.unwrap(), buf.as_slice()), (4, &b"ello"[..]));
        assert_eq!(files.run_by(&Doer::Loop, Rank::Read, "test", || 7).await.unwrap(), 7);
        drop(file);
        assert_eq!((files.offloaded(), files.default_pool().started()), (0, 0));
    });
}

#[test]
fn threads_may_wait_for_some_operations_and_the_loop_for_the_others() {
    on_a_loop(FilePool::new(1, 10), |h, dir| async move {
        let files = h.files();
        let path = dir.join("a");
        std::fs::write(&path, "hello").unwrap();
        let partly = |most| Doer::Partly(files.default_pool().clone(), most);
        for (who, covered) in [
            (Doer::Loop, [false, false, false]),
            (partly(Touches::Content), [true, false, false]),
            (partly(Touches::Name), [true, true, false]),
            (files.doer(), [true, true, true]),
        ] {
            let all = [Touches::Content, Touches::Name, Touches::Directory];
            assert_eq!(all.map(|touches| who.pool(touches).is_some()), covered, "{who:?}");
        }
        let me = std::thread::current().id();
        let whose = || std::thread::current().id();
        assert_eq!(
            files.run_by(&partly(Touches::Name), Rank::Read, "test", whose).await.unwrap(),
            me
        );
        assert_ne!(files.run_by(&files.doer(), Rank::Read, "test", whose).await.unwrap(), me);
        let (before, how) = (files.offloaded(), OpenHow::read());
        let (file, info) = files.open_by(partly(Touches::Content), &path, &how).await.unwrap();
        assert_eq!(files.stat_by(partly(Touches::Content), &path).await.unwrap(), info);
        assert_eq!(files.offloaded(), before);
        assert!(!file.waits_here());
    });
}

#[test]
fn a_file_is_opened_and_read_in_one_visit() {
    on_a_loop(FilePool::new(1, 10), |h, dir| async move {
        let files = h.files();
        let path = dir.join("a");
        std::fs::write(&path, "hello").unwrap();
        let want = |info: &FileInfo| info.len as usize - 1;
        let how = OpenHow::read();
        for who in [files.doer(), Doer::Loop] {
            let (_, info, buf) = files.open_and_read(who, &path, &how, want).await.unwrap();
            assert_eq!((info.len, buf.as_slice()), (5, &b"hell"[..]));
        }
        // The loop never creates files itself, so one thread was needed.
        let how = OpenHow { flags: OFlags::RDWR | OFlags::CREATE, ..create_new(0o600) };
        let before = files.offloaded();
        let (_, _, buf) = files.open_and_read(files.doer(), &path, &how, want).await.unwrap();
        assert_eq!((buf.as_slice(), files.offloaded()), (&b"hell"[..], before + 1));
        let (path, how) = (dir.join("b"), OpenHow::read());
        let missing = files.open_and_read(files.doer(), &path, &how, want).await;
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    });
}

/// Opening a FIFO for writing blocks until it has a reader.
#[test]
fn an_operation_that_lasts_is_named() {
    let pool = FilePool::new(4, 100);
    let (told, hears) = mpsc::channel();
    pool.watch(move |state| told.send(state.oldest).unwrap());
    let dir = std::env::temp_dir().join(format!("weir-running-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("fifo");
    rustix::fs::mkfifoat(CWD, &path, Mode::RWXU).unwrap();
    let how = OpenHow { flags: OFlags::WRONLY, ..OpenHow::read() };
    let before = crate::coarse_nanos();
    assert_eq!(pool.oldest_operation(), None);
    pool.hand_over(Rank::Write, {
        let path = path.clone();
        move || drop(open_waiting(&path, &how))
    })
    .unwrap();
    let named = loop {
        match pool.oldest_operation() {
            Some(operation) => break operation,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!((named.rank, named.name, &named.path), (Rank::Write, "open", &path));
    assert!(named.since >= before);
    // Other operations begin and end meanwhile.
    let (done, is_done) = mpsc::channel();
    pool.hand_over(Rank::Read, move || done.send(()).unwrap()).unwrap();
    is_done.recv().unwrap();
    assert_eq!(pool.oldest_operation(), Some(named));
    let reader = std::fs::File::open(&path).unwrap();
    while hears.recv().unwrap().is_none() {}
    while hears.recv().unwrap().is_some() {}
    assert_eq!(pool.oldest_operation(), None);
    drop(reader);

    // The kernel knows the path of an open file.
    let (read, mut write) = std::io::pipe().unwrap();
    let file = File::from(OwnedFd::from(read));
    let shown = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    pool.hand_over(Rank::Read, move || {
        let read = || (&file).read(&mut [0]).map(drop);
        file_operation("read", &file, read).unwrap();
    })
    .unwrap();
    let named = loop {
        match pool.oldest_operation() {
            Some(operation) => break operation,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!((named.rank, named.name, named.path), (Rank::Read, "read", shown));
    write.write_all(b"x").unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_part_that_is_sent_to_many_is_read_once_in_a_turn() {
    on_a_loop(FilePool::default(), |h, dir| async move {
        let path = dir.join("a");
        std::fs::write(&path, "hello").unwrap();
        let (file, _) = h.files().open(&path, &OpenHow::read()).await.unwrap();
        let mut warm = crate::warm::WarmPart::default();
        let mut read =
            |offset, len| warm.read(h.files(), &file, offset, len).unwrap().map(<[u8]>::to_vec);
        crate::budget::yield_now().await;
        assert_eq!(read(1, 3).unwrap(), b"ell");
        std::fs::write(&path, "HELLO").unwrap();
        assert_eq!(read(1, 3).unwrap(), b"ell");
        assert_eq!(read(1, 2).unwrap(), b"EL", "another part");
        assert_eq!(read(0, 9).unwrap(), b"HELLO");
        std::fs::write(&path, "Hello").unwrap();
        crate::budget::yield_now().await;
        assert_eq!(read(0, 9).unwrap(), b"Hello", "another turn");
        assert_eq!(read(5, 1), None);
    });
}
