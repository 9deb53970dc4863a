//! A cache and its disk: damaged files, a disk that is full or takes nothing, and workers that are
//! killed while they write.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use weir_testkit::{Client, Dir, ask_until};

use super::{body, counted, files, get_until, start, start_in, wait_stored};

#[test]
fn the_size_of_a_cache_is_what_its_files_take_on_the_disk() {
    const ANSWERS: usize = 40;
    const MOST: u64 = 64 << 10;
    let server = start("", "", "return 200 hello;");
    let on_disk = || {
        let taken = |path: &PathBuf| path.metadata().map_or(0, |info| info.blocks() * 512);
        files(&server.dir().file("cache")).iter().map(taken).sum::<u64>()
    };
    let size =
        |zone: &str| counted(&server, &format!("weir_cache_size_bytes{{cache=\"{zone}\"}}")) as u64;
    for n in 0..ANSWERS {
        server.get(&format!("/{n}"));
    }
    wait_stored(&server, ANSWERS);
    assert!(ask_until(|| size("one") == on_disk()), "{} of {}", size("one"), on_disk());
    assert!(on_disk() > MOST, "a block of {} bytes", on_disk() / ANSWERS as u64);

    // The manager of new workers looks at once.
    let limited = server.dir().read("nginx.conf").replace("one:1m", "one:1m max_size=64k");
    server.configure(&limited);
    server.reload();
    assert!(ask_until(|| on_disk() <= MOST), "{} bytes", on_disk());
    assert!(files(&server.dir().file("cache")).len() > 1);
    assert!(ask_until(|| size("one") == on_disk()), "{} of {}", size("one"), on_disk());

    // For another zone the loader counts what is there.
    server.configure(
        &limited.replace("=one:", "=two:").replace("proxy_cache one", "proxy_cache two"),
    );
    server.reload();
    assert!(ask_until(|| size("two") == on_disk()), "{} of {}", size("two"), on_disk());
}

#[test]
fn a_damaged_file_is_never_served() {
    // Another worker might store the answer, too, and so mend what is damaged here.
    let server =
        start_in(Dir::new(), 1, "", "proxy_cache_memory 0;", "location / { root %%DIR%%/site; }");
    let dir = server.dir();
    let body = "x".repeat(30_000);
    for (i, damage) in ["cut", "head", "empty", "nonsense"].into_iter().enumerate() {
        let path = format!("/{i}");
        dir.write(&format!("site/{i}"), &body);
        assert_eq!(server.get(&path).body(), body);
        get_until(&server, &path, "HIT");
        wait_stored(&server, 1);
        let [file] = files(&dir.file("cache")).try_into().unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        match damage {
            "cut" => bytes.truncate(20_000),
            "head" => bytes[150] ^= 1,
            "empty" => bytes.clear(),
            _ => bytes = b"nonsense".repeat(1000),
        }
        std::fs::write(&file, bytes).unwrap();
        let damaged = std::fs::metadata(&file).unwrap().ino();
        // The worker that stored it may serve it from memory for another moment.
        assert!(get_until(&server, &path, "MISS").body() == body, "{damage}");
        assert!(ask_until(|| std::fs::metadata(&file).is_ok_and(|f| f.ino() != damaged)));
        assert!(get_until(&server, &path, "HIT").body() == body, "{damage}");
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn without_a_disk_requests_are_served_all_the_same() {
    let server = start("use_temp_path=off", "", "location / { return 200 answer; }");
    let dir = server.dir();
    std::fs::remove_dir_all(dir.file("cache")).unwrap();
    dir.write("cache", "in the way");
    for _ in 0..3 {
        let r = server.get("/a");
        assert_eq!((r.status, r.body().as_str()), (200, "answer"));
    }
    server.wait_log("cannot be stored", 1);
    assert!(server.get("/status").body().contains("weir_cache_faults_total"));
}

/// A small file system, unmounted at the end.
pub struct Mounted(PathBuf);

impl Mounted {
    /// `None`, with a word about it, where this user may not mount.
    pub fn new(path: PathBuf, size: &str) -> Option<Mounted> {
        std::fs::create_dir_all(&path).unwrap();
        let options = format!("size={size},mode=1777");
        if mount(&["-t", "tmpfs", "-o", &options, "tmpfs"], &path) {
            return Some(Mounted(path));
        }
        eprintln!("skipped: cannot mount a file system here");
        None
    }

    pub fn make_read_only(&self) {
        assert!(mount(&["-o", "remount,ro"], &self.0));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn mount(options: &[&str], path: &Path) -> bool {
    let mut command = Command::new("mount");
    command.args(options).arg(path).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn a_full_disk_and_one_that_takes_nothing_hold_no_answer_back() {
    let dir = Dir::new();
    let Some(disk) = Mounted::new(dir.file("cache"), "600k") else { return };
    let len = |name: u64| 60_000 + name as usize * 1000;
    for name in 0..20 {
        dir.write(&format!("site/{name}"), body(name, len(name)));
    }
    let server = start_in(
        dir,
        2,
        "use_temp_path=off",
        "proxy_cache_memory 0;",
        "location / { root %%DIR%%/site; }",
    );
    let ask_for_all = || {
        for name in (0..20).chain(0..20) {
            assert!(server.get(&format!("/{name}")).bytes == body(name, len(name)), "{name}");
        }
    };
    ask_for_all();
    server.wait_log("cannot be stored (28: No space left on device)", 1);
    let before = counted(&server, "weir_cache_faults_total");
    assert!(before > 0.0);
    disk.make_read_only();
    ask_for_all();
    server.wait_log("cannot be stored (30: Read-only file system)", 1);
    assert!(counted(&server, "weir_cache_faults_total") > before);
    drop(disk);
    // What was there has vanished; what lies below takes new answers.
    ask_for_all();
    get_until(&server, "/0", "HIT");
}

#[test]
fn workers_that_are_killed_leave_nothing_half_written() {
    let dir = Dir::new();
    let objects = 40u64;
    let len = |name: u64| 1000 + name as usize * 9000;
    for name in 0..objects {
        let path = dir.file(&format!("site/{name}"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, body(name, len(name))).unwrap();
    }
    let server = start_in(
        dir,
        2,
        "",
        "proxy_cache_memory 0; proxy_cache_lock on; proxy_buffer_size 4k;",
        "location / { root %%DIR%%/site; }",
    );
    let port = server.port();
    let over = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..4u64)
        .map(|seed| {
            let (over, served) = (over.clone(), served.clone());
            std::thread::spawn(move || {
                let mut n = seed * 17;
                while !over.load(Ordering::Relaxed) {
                    n = n.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let name = (n >> 33) % objects;
                    // A connection to a worker that is killed breaks: that is no wrong answer.
                    let Ok(mut client) = Client::try_connect(port) else { continue };
                    let text = format!("GET /{name} HTTP/1.1\r\nHost: a\r\n\r\n");
                    if client.try_send(text).is_err() {
                        continue;
                    }
                    if let Ok(r) = client.try_response()
                        && r.status == 200
                    {
                        assert!(r.bytes == body(name, len(name)), "object {name}: {r:?}");
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for round in 0..10 {
        let before = served.load(Ordering::Relaxed);
        assert!(ask_until(|| served.load(Ordering::Relaxed) >= before + 5));
        for worker in server.workers() {
            let pid = Pid::from_raw(worker).unwrap();
            let _ = kill_process(pid, Signal::KILL);
        }
        // Everything that is there is whole, and nothing of it stays by accident.
        if round % 3 == 2 {
            for file in files(&server.dir().file("cache")) {
                let _ = std::fs::remove_file(file);
            }
        }
    }
    over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    let named = |f: &PathBuf| f.extension().is_none();
    let stored: Vec<_> = files(&server.dir().file("cache")).into_iter().filter(named).collect();
    let bodies: HashSet<Vec<u8>> = (0..objects).map(|name| body(name, len(name))).collect();
    for file in stored {
        let bytes = std::fs::read(&file).unwrap();
        assert!(bodies.iter().any(|body| bytes.ends_with(body)), "{}", file.display());
    }
}
