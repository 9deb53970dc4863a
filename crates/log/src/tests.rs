use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A sink with an open file.
fn opened(args: &[&str], dir: &Path, logs: &OpenLogs) -> (Level, Sink) {
    let sink = sink(args, dir, logs).unwrap();
    logs.open_waiting().unwrap();
    sink
}

proptest::proptest! {
    #[test]
    fn any_syslog_parameters_are_read_or_refused(
        text in "(server=[^,]{0,9}|tag=.{0,40}|.{0,20}|,)*",
    ) {
        // Names would be looked up in the network.
        if !text.contains("server=") || text.contains("server=unix") {
            let _ = Syslog::parse(&text);
        }
    }

    #[test]
    fn a_line_of_any_text_fits_and_ends(text in ".{0,3000}") {
        let line = line::LogLine::new(Level::Info, Some(u64::MAX), format_args!("{text}"));
        proptest::prop_assert!(line.bytes().len() <= LINE_MAX);
        proptest::prop_assert!(line.bytes().ends_with(b"\n"));
    }
}

/// A directory of its own for each test, removed at the end.
struct TestDir(PathBuf);

impl TestDir {
    fn new() -> TestDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weir-log-{}-{n}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        TestDir(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn each_sink_takes_its_level_and_above() {
    let dir = TestDir::new();
    let logs = OpenLogs::new();
    let all = opened(&["all.log", "info"], &dir.0, &logs);
    let bad = opened(&["bad.log"], &dir.0, &logs);
    let log = Log::new(vec![all, bad]);

    log!(log, Info, Some(1), "fine");
    log!(log, Error, Some(2), "broken");
    log!(log, Debug, None, "detail");

    assert!(!log.enabled(Level::Debug));
    assert_eq!(dir.read("all.log").lines().count(), 2);
    assert!(dir.read("bad.log").ends_with("*2 broken\n"));
}

#[test]
fn one_path_is_one_file() {
    let dir = TestDir::new();
    let logs = OpenLogs::new();
    let a = logs.open(&dir.path("x.log")).unwrap();
    let b = logs.open(&dir.path("x.log")).unwrap();
    assert!(Arc::ptr_eq(&a, &b));
}

#[test]
fn reopening_follows_the_path_for_every_holder() {
    let dir = TestDir::new();
    let logs = OpenLogs::new();
    let file = logs.open(&dir.path("x.log")).unwrap();
    file.write(b"one\n");
    fs::rename(dir.path("x.log"), dir.path("x.log.1")).unwrap();
    file.write(b"two\n");

    assert!(logs.reopen_all(None).is_empty());
    file.write(b"three\n");

    assert_eq!(dir.read("x.log.1"), "one\ntwo\n");
    assert_eq!(dir.read("x.log"), "three\n");
}

#[test]
fn a_file_that_cannot_be_reopened_is_named_and_kept() {
    let dir = TestDir::new();
    let logs = OpenLogs::new();
    fs::create_dir(dir.path("sub")).unwrap();
    let file = logs.open(&dir.path("sub/x.log")).unwrap();
    fs::rename(dir.path("sub"), dir.path("moved")).unwrap();

    let failed = logs.reopen_all(None);
    file.write(b"kept\n");

    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].0, dir.path("sub/x.log"));
    assert_eq!(dir.read("moved/x.log"), "kept\n");
}

#[test]
fn opening_again_after_a_rename_leads_to_the_new_file() {
    let dir = TestDir::new();
    let logs = OpenLogs::new();
    let file = logs.open(&dir.path("x.log")).unwrap();
    fs::rename(dir.path("x.log"), dir.path("old")).unwrap();
    logs.open(&dir.path("x.log")).unwrap();
    file.write(b"new\n");
    assert_eq!(dir.read("x.log"), "new\n");
}

#[test]
fn wrong_error_log_lines_are_refused_in_nginx_words() {
    let dir = TestDir::new();
    let logs = OpenLogs::new();
    let refuse = |args: &[&str]| sink(args, &dir.0, &logs).unwrap_err().to_string();

    assert_eq!(refuse(&["x", "loud"]), "invalid log level \"loud\"");
    assert_eq!(refuse(&["x", "info", "warn"]), "duplicate log level \"warn\"");
    assert_eq!(refuse(&["syslog:tag=x"]), "no syslog server specified");
    assert_eq!(refuse(&["syslog:server=127.0.0.1,foo=1"]), "unknown syslog parameter \"foo=1\"");
    assert_eq!(refuse(&["syslog:server=127.0.0.1,tag=a-b"]), {
        "syslog \"tag\" only allows alphanumeric characters and underscore"
    });
    assert_eq!(refuse(&["syslog:facility=x"]), "unknown syslog facility \"x\"");
    assert_eq!(refuse(&["syslog:severity=x"]), "unknown syslog severity \"x\"");
    assert_eq!(
        refuse(&["syslog:server=127.0.0.1,server=127.0.0.1"]),
        "duplicate syslog \"server\""
    );
    for server in ["127.0.0.1:99999", "127.0.0.1:0", "[::1]:0"] {
        let text = format!("invalid port in syslog server \"{server}\"");
        assert_eq!(refuse(&[&format!("syslog:server={server}")]), text);
    }
    // Whether a file can be opened is found out later.
    let late = sink(&["no/x"], &dir.0, &logs).unwrap();
    let (missing, error) = logs.open_waiting().unwrap_err();
    assert_eq!((missing, error.raw_os_error()), (dir.path("no/x"), Some(2)));
    drop(late);
    for size in
        ["", "x", "1", "2047", "-1", "32g", "99999999999999999999m", "18446744073709551615k"]
    {
        let text = format!("invalid buffer size \"{size}\"");
        assert_eq!(refuse(&[&format!("memory:{size}")]), text);
    }
}

#[test]
fn syslog_messages_carry_priority_time_host_and_tag() {
    let dir = TestDir::new();
    let server = UnixDatagram::bind(dir.path("s")).unwrap();
    let target = format!("syslog:server=unix:{},tag=seven_7", dir.path("s").display());
    let logs = OpenLogs::new();
    let log = Log::new(vec![sink(&[&target, "warn"], &dir.0, &logs).unwrap()]);

    log!(log, Error, None, "hello");

    let mut buf = [0; 4096];
    let n = server.recv(&mut buf).unwrap();
    let text = std::str::from_utf8(&buf[..n]).unwrap();
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    // local7 is 23, error is 3.
    assert!(text.starts_with("<187>"), "{text}");
    assert!(text.contains(&format!(" {host} seven_7: ")), "{text}");
    assert!(text.contains("[error]") && text.ends_with(": hello"), "{text}");
}

#[test]
fn a_syslog_server_out_of_reach_is_told_to_the_file() {
    let dir = TestDir::new();
    let target = format!("syslog:server=unix:{}", dir.path("none").display());
    let logs = OpenLogs::new();
    let file = opened(&["x.log"], &dir.0, &logs);
    let log = Log::new(vec![sink(&[&target], &dir.0, &logs).unwrap(), file]);

    log!(log, Error, None, "hello");

    let text = dir.read("x.log");
    assert!(text.contains("[alert]") && text.contains("while logging to syslog, server: unix:"));
    assert!(text.contains("[error]"));
}

#[test]
fn syslog_takes_names_with_and_without_port() {
    for server in ["127.0.0.1", "127.0.0.1:5514", "[::1]:5514", "[::1]", "localhost:5514"] {
        Syslog::parse(&format!("server={server},nohostname,facility=cron")).unwrap();
    }
}

/// A thread that may not wait, and the jobs that it has handed over.
fn waits_for_nothing() -> std::rc::Rc<std::cell::RefCell<Vec<DeferredWrite>>> {
    let jobs = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let taken = jobs.clone();
    never_wait(Some(Box::new(move |_, job| {
        taken.borrow_mut().push(job);
        Ok(())
    })));
    jobs
}

#[test]
fn lines_of_a_thread_that_must_not_wait_are_written_by_others_in_their_order() {
    let dir = TestDir::new();
    let file = Arc::new(LogFile::open(&dir.path("log")).unwrap());
    file.write(b"1\n");
    let jobs = waits_for_nothing();
    file.write(b"2\n");
    file.write(b"3\n");
    assert_eq!(dir.read("log"), "1\n");
    assert_eq!(jobs.borrow().len(), 1);
    let job = jobs.borrow_mut().pop().unwrap();
    file.write(b"4\n");
    job();
    assert_eq!(dir.read("log"), "1\n2\n3\n4\n");
    file.write(b"5\n");
    assert_eq!(jobs.borrow().len(), 1);
    // A thread that may wait does not overtake.
    let other = file.clone();
    std::thread::spawn(move || other.write(b"6\n")).join().unwrap();
    assert_eq!(dir.read("log"), "1\n2\n3\n4\n5\n6\n");
}

#[test]
fn lines_that_wait_go_to_the_file_that_they_were_meant_for() {
    let dir = TestDir::new();
    let file = Arc::new(LogFile::open(&dir.path("log")).unwrap());
    let jobs = waits_for_nothing();
    file.write(b"old\n");
    fs::rename(dir.path("log"), dir.path("log.1")).unwrap();
    file.reopen(None).unwrap();
    file.write(b"new\n");
    flush();
    assert_eq!((dir.read("log.1"), dir.read("log")), ("old\n".into(), "new\n".into()));
    jobs.borrow_mut().drain(..).for_each(|job| job());
    never_wait(None);
    file.write(b"end\n");
    assert_eq!(dir.read("log"), "new\nend\n");
}

#[test]
fn a_refused_job_is_asked_for_again() {
    let dir = TestDir::new();
    let file = Arc::new(LogFile::open(&dir.path("log")).unwrap());
    never_wait(Some(Box::new(|_, _| Err(std::io::ErrorKind::ResourceBusy.into()))));
    file.write(b"1\n");
    let jobs = waits_for_nothing();
    file.write(b"2\n");
    jobs.borrow_mut().drain(..).for_each(|job| job());
    assert_eq!(dir.read("log"), "1\n2\n");
}

#[test]
fn memory_keeps_the_newest_lines() {
    let logs = OpenLogs::new();
    let (level, sink) = sink(&["memory:2k", "info"], "/".as_ref(), &logs).unwrap();
    let Sink::Memory(memory) = sink.clone() else { panic!("{sink:?}") };
    let log = Log::bounded(vec![(level, sink)]);

    // More than the bound of other sinks, and than the ring has room for.
    (0..1000).for_each(|n| log!(log, Info, Some(n), "seen"));

    let text = String::from_utf8(memory.newest(usize::MAX)).unwrap();
    assert!(text.ends_with("*999 seen\n"), "{text}");
    let first = text.lines().next().unwrap();
    assert!(first.contains("[info]") && first.ends_with(" seen"), "{first}");
    assert!((20..60).contains(&text.lines().count()));
}

#[test]
fn repeated_messages_are_bounded_in_files() {
    let dir = TestDir::new();
    let logs = OpenLogs::new();
    let log = Log::bounded(vec![opened(&["x.log", "info"], &dir.0, &logs)]);

    (0..10_000).for_each(|n| log!(log, Error, Some(n), "open() \"/{n}\" failed"));

    // The seconds of the clock may change meanwhile, each with its own allowance.
    let written = dir.read("x.log").lines().filter(|line| line.contains("open()")).count();
    assert!((100..5000).contains(&written), "{written}");
    // Other tests of this process may have added to it.
    assert!(take_left_out() >= 10_000 - written as u64);
}

#[test]
fn a_syslog_server_that_goes_away_is_told_to_the_file_and_found_again() {
    let dir = TestDir::new();
    let path = dir.path("s");
    let server = UnixDatagram::bind(&path).unwrap();
    let target = format!("syslog:server=unix:{}", path.display());
    let logs = OpenLogs::new();
    let file = opened(&["x.log"], &dir.0, &logs);
    let log = Log::new(vec![sink(&[&target], &dir.0, &logs).unwrap(), file]);

    log!(log, Error, None, "one");
    drop(server);
    log!(log, Error, None, "two");
    fs::remove_file(&path).unwrap();
    let server = UnixDatagram::bind(&path).unwrap();
    log!(log, Error, None, "three");

    let text = dir.read("x.log");
    let complaint = "[error] ";
    let line = text.lines().find(|line| line.contains("send() failed (111: ")).unwrap();
    assert!(line.contains(complaint) && line.contains("while logging to syslog, server: unix:"));
    let mut buf = [0; 4096];
    let n = server.recv(&mut buf).unwrap();
    assert!(buf[..n].ends_with(b": three"));
}
