//! What the master does as root for a worker, or at a path that other users can change. There are
//! two attackers: one has a worker's descriptors and memory, the other an account on the machine.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

mod spoilt;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::net::{SendFlags, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};
use weir_testkit::{
    Client, Dice, Dir, PATIENCE, Process, Server, ask_until, free_port, number, run, seed,
    under_strace, until,
};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// The user `daemon`, which these workers have: the same number on every Linux.
const DAEMON: u32 = 1;

/// Workers of the server that is attacked by its own workers.
const WORKERS: usize = 6;

/// Whether this process may do what these tests ask of it; says so where it may not.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("not run: only root can give workers another user");
    }
    root
}

/// Sends a worker's message to the master.
#[expect(clippy::disallowed_methods, reason = "the test has no loop")]
fn say(line: &OwnedFd, message: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(line, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// A directory in the test's that belongs to the workers' user.
fn theirs(dir: &Dir, name: &str) -> PathBuf {
    let path = dir.file(name);
    fs::create_dir_all(&path).unwrap();
    lchown(&path, Some(DAEMON), Some(DAEMON)).unwrap();
    path
}

/// What only root may change, in a directory of its own: files and a directory.
fn outside(dir: &Dir) -> PathBuf {
    let path = dir.file("outside");
    fs::create_dir_all(path.join("directory")).unwrap();
    fs::set_permissions(path.join("directory"), Permissions::from_mode(0o700)).unwrap();
    for name in ["victim", "there"] {
        fs::write(path.join(name), "secret\n").unwrap();
        fs::set_permissions(path.join(name), Permissions::from_mode(0o600)).unwrap();
    }
    path
}

/// All that stands in a directory, with owners, permissions and contents.
fn state(dir: &Path) -> Vec<(PathBuf, u32, u32, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        let contents = if about.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if about.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push((path, about.uid(), about.gid(), about.mode(), contents));
    }
    found.sort();
    found
}

/// A worker's end of the line to its master, taken as any process of its user can take it.
fn line_of(worker: i32) -> OwnedFd {
    let process = pidfd_open(Pid::from_raw(worker).unwrap(), PidfdFlags::empty()).unwrap();
    let lines = || -> Vec<OwnedFd> {
        let entries = fs::read_dir(format!("/proc/{worker}/fd")).unwrap();
        let numbers = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
        let copies =
            numbers.filter_map(|n| pidfd_getfd(&process, n, PidfdGetfdFlags::empty()).ok());
        let is_line = |fd: &OwnedFd| sockopt::socket_type(fd) == Ok(SocketType::SEQPACKET);
        copies.filter(is_line).collect()
    };
    // A worker that has just been made has those of others as well.
    assert!(ask_until(|| lines().len() == 1), "no line to the master, or several");
    lines().remove(0)
}

/// A server with workers of the user `daemon`. Its logs are in a directory of that user, where
/// links now lead outside.
fn with_planted_logs(http: &str) -> (Server, PathBuf) {
    let dir = Dir::new();
    let (theirs, outside) = (theirs(&dir, "theirs"), outside(&dir));
    let server = Server::start_in(
        dir,
        WEIR,
        &format!(
            "user daemon; worker_processes {WORKERS}; error_log %%DIR%%/theirs/error.log; events {{ }}
             http {{ access_log %%DIR%%/theirs/access.log;
                     server {{ listen 127.0.0.1:%%PORT%%; location / {{ return 200 $pid; }} {http} }} }}"
        ),
    );
    for name in ["error.log", "access.log"] {
        fs::remove_file(theirs.join(name)).unwrap();
        symlink(outside.join(format!("made-{name}")), theirs.join(name)).unwrap();
    }
    (server, outside)
}

#[test]
fn a_worker_has_the_master_do_nothing_without_an_api() {
    if !is_root() {
        return;
    }
    let (server, outside) = with_planted_logs("");
    let before = state(&outside);
    let workers = server.workers();
    // What the master would obey, what means nothing, and what is too long; then everything else.
    let first: [&[u8]; WORKERS] = [b"o", b"7", b"l", b"+", &[0], &[b'o'; 64]];
    for (worker, first) in workers.iter().zip(first) {
        let line = line_of(*worker);
        let all = (0..=255).map(|byte| [byte]);
        for message in std::iter::once(first.to_vec()).chain(all.map(|byte| byte.to_vec())) {
            // The master may have stopped reading.
            let _ = say(&line, &message);
        }
    }
    for worker in workers {
        server.wait_log(&format!("worker process {worker} sent "), 1);
    }
    assert_eq!(server.logged("the level of error logs is now"), 0);
    assert_eq!(server.logged(": reopening logs"), 0);
    assert_eq!(server.logged("nothing more is read from it"), WORKERS);
    assert_eq!(server.get("/").status, 200);
    assert_eq!(state(&outside), before);
}

#[test]
fn a_worker_with_an_api_opens_no_log_outside() {
    if !is_root() {
        return;
    }
    let (mut server, outside) =
        with_planted_logs("location /api/ { weir_api; allow 127.0.0.1; deny all; }");
    let before = state(&outside);
    let line = line_of(server.workers()[0]);
    for _ in 0..8 {
        say(&line, b"o").unwrap();
    }
    let master = server.pid();
    let refused = |name: &str| {
        format!(
            "{master}#{master}: open() \"{}/theirs/{name}\" failed",
            server.dir().path().display()
        )
    };
    server.wait_log(&refused("error.log"), 1);
    server.wait_log(&refused("access.log"), 1);
    assert_eq!(state(&outside), before);
    assert!(server.stop().success());
}

/// What the kernel says of each thread of a process: the values after one of the names in its status.
fn statuses(process: i32, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let line = |task: fs::DirEntry| -> Option<String> {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find(|line| line.split(':').next() == Some(name))?;
        Some(line[name.len() + 1..].trim().to_owned())
    };
    tasks.filter_map(|task| line(task.ok()?)).collect()
}

#[test]
fn workers_have_no_capability_and_cannot_get_one() {
    if !is_root() {
        return;
    }
    let server = Server::start(
        WEIR,
        "user daemon; worker_processes 1; worker_threads 2; events { }
         http { server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid; } } }",
    );
    assert_eq!(server.get("/").status, 200);
    let worker = server.workers()[0];
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let found = statuses(worker, set);
        assert!(found.len() > 1, "the threads are to be looked at, too");
        assert!(found.iter().all(|bits| bits.trim_matches('0').is_empty()), "{set}: {found:?}");
    }
    let found = statuses(worker, "NoNewPrivs");
    assert!(found.iter().all(|is| is == "1"), "{found:?}");
    let ids = statuses(worker, "Uid");
    assert!(ids.iter().all(|ids| *ids == "1\t1\t1\t1"), "{ids:?}");
    // The master may have to start a new binary with the rights that are its file's.
    assert_eq!(statuses(server.pid(), "NoNewPrivs"), ["0"]);
}

/// Like [`Server::start`], in a network of its own in which 192.0.2.0/24 and 2001:db8::/32 belong to none of the addresses, and
/// packets to them come back; none where that cannot be made.
fn start_apart(conf: &str) -> Option<(Dir, Process)> {
    let network = "ip link set lo up
        ip route add local 192.0.2.0/24 dev lo table 100 && ip rule add to 192.0.2.0/24 lookup 100
        ip -6 route add local 2001:db8::/32 dev lo table 100 && ip -6 rule add to 2001:db8::/32 lookup 100";
    if !run("unshare", ["-n", "sh", "-e", "-c", network]).status.success() {
        println!("not run: no network of its own can be made");
        return None;
    }
    let dir = Dir::new();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let at = dir.path().display().to_string();
    let file = dir.write("nginx.conf", conf.replace("%%DIR%%", &at));
    let start = format!("{network}\nexec {WEIR} -p {at} -e {at}/error.log -c {}", file.display());
    let mut command = Command::new("unshare");
    let server = Process::start(command.args(["-n", "sh", "-e", "-c", &start]));
    Some((dir, server))
}

#[test]
fn a_transparent_bind_takes_addresses_of_others() {
    if !is_root() {
        return;
    }
    let conf = "daemon off; user daemon; pid %%DIR%%/pid; worker_processes 1; events { }
         http {
             server { listen 127.0.0.1:8080; listen [::1]:8080; return 200 \"[$remote_addr]\"; }
             server { listen unix:%%DIR%%/http;
                 location /4 { proxy_bind 192.0.2.7 transparent; proxy_pass http://127.0.0.1:8080; }
                 location /6 { proxy_bind 2001:db8::7 transparent; proxy_pass http://[::1]:8080; } }
         }
         stream {
             server { listen unix:%%DIR%%/stream; proxy_bind 192.0.2.8 transparent; proxy_pass 127.0.0.1:8080; }
         }";
    let Some((dir, _server)) = start_apart(conf) else { return };
    let path = |name: &str| dir.file(name);
    assert!(until(dir.path(), || path("pid").exists()), "{}", dir.read("error.log"));
    for (socket, uri, address) in
        [("http", "/4", "192.0.2.7"), ("http", "/6", "2001:db8::7"), ("stream", "/", "192.0.2.8")]
    {
        let mut client = UnixStream::connect(path(socket)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let ask = format!("GET {uri} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        client.write_all(ask.as_bytes()).unwrap();
        let mut got = String::new();
        client.read_to_string(&mut got).unwrap();
        assert!(got.contains(&format!("[{address}]")), "{got}\n{}", dir.read("error.log"));
    }
    let master: i32 = dir.read("pid").trim().parse().unwrap();
    let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap();
    let worker: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
    // CAP_NET_RAW, and no way to another or for a program.
    for (set, bits) in [("CapPrm", "2000"), ("CapEff", "2000"), ("CapInh", ""), ("CapBnd", "")] {
        let found = statuses(worker, set);
        assert!(found.iter().all(|is| is.trim_start_matches('0') == bits), "{set}: {found:?}");
    }
}

/// weir under strace, which changes what the kernel does as `inject` says; nothing where that cannot be.
fn strace(dir: &Dir, call: &str, inject: &str) -> Option<Command> {
    let mut command = Command::new(under_strace(dir, WEIR, call, inject)?);
    command.arg("-p").arg(dir.path()).arg("-e").arg(dir.file("error.log")).stderr(Stdio::null());
    Some(command)
}

/// Without the groups of its user a worker would have root's.
#[test]
fn a_worker_that_cannot_take_its_groups_does_not_serve() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let Some(mut command) = strace(&dir, "setgroups", "error=EPERM") else { return };
    let conf = format!("daemon off; user daemon; pid {0}/pid; events {{ }}", dir.path().display());
    let file = dir.write("nginx.conf", conf);
    let _server = Process::start(command.arg("-c").arg(&file));
    let ended = || dir.read("error.log").contains("fatal code 2 and cannot be respawned");
    assert!(until(dir.path(), ended), "{}", dir.read("error.log"));
    assert!(dir.read("error.log").contains("initgroups(daemon, 1) failed (1: "));
}

/// The memory of a worker, and where in it is what it shares with others.
fn shared_memory(worker: i32) -> (File, Vec<Range<u64>>) {
    let maps = fs::read_to_string(format!("/proc/{worker}/maps")).unwrap();
    let shared = maps.lines().filter(|line| line.contains(" rw-s ") && line.contains("/dev/zero"));
    let range = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let at = |hex: &str| u64::from_str_radix(hex, 16).unwrap();
        Some(at(from)..at(to))
    };
    let memory = File::options().read(true).write(true).open(format!("/proc/{worker}/mem"));
    (memory.unwrap(), shared.filter_map(range).collect())
}

/// Numbers that a worker writes into the memory that it shares with the master cost the workers what they will, and
/// the master nothing.
#[test]
fn a_worker_that_overwrites_shared_memory_does_not_stop_the_master() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let outside = outside(&dir);
    let mut server = Server::start_in(
        dir,
        WEIR,
        "user daemon; worker_processes 2; events { }
         http { limit_req_zone $binary_remote_addr zone=rate:64k rate=9r/s; upstream group { zone group 64k; server 127.0.0.1:1; }
                server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid; } location /group { proxy_pass http://group/; }
                         status_zone all; } }",
    );
    let before = state(&outside);
    assert_eq!(server.get("/group").status, 502);
    let mut dice = Dice::salted(seed(), "shared memory");
    for round in 0..3 {
        let worker = *server.workers().last().unwrap();
        let (memory, shared) = shared_memory(worker);
        let mut written = 0;
        for range in shared {
            for word in (range.start..range.end.min(range.start + (256 << 10))).step_by(8) {
                let value = match round {
                    0 => u64::MAX,
                    1 => dice.any(),
                    _ => dice.below(1000) as u64,
                };
                written += usize::from(memory.write_all_at(&value.to_ne_bytes(), word).is_ok());
            }
        }
        assert!(written > 0, "no shared memory");
        server.signal_worker(worker, Signal::KILL);
        server.wait_log(&format!("worker process {worker} exited"), 1);
        let started = server.logged("start worker processes");
        server.signal(Signal::HUP);
        server.wait_log("start worker processes", started + 1);
    }
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(state(&outside), before);
}

/// What the master makes or opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    ErrorLog,
    AccessLog,
    PidFile,
    Temporary,
    Cache,
    Socket,
}

/// What stands in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plant {
    LinkToFile,
    LinkToDirectory,
    LinkToNothing,
    HardLink,
    Fifo,
    Socket,
    /// The directory above is a link, and what is named is there, or is not.
    Above,
    AboveNothing,
}

/// When the master meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Start,
    Reload,
    Reopen,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    place: Place,
    plant: Plant,
    moment: Moment,
}

impl Case {
    fn draw(dice: &mut Dice) -> Case {
        use {Moment as M, Place as P, Plant as W};
        let place =
            dice.pick(&[P::ErrorLog, P::AccessLog, P::PidFile, P::Temporary, P::Cache, P::Socket]);
        let plant = match place {
            // To bind where something stands fails by itself.
            P::Socket => dice.pick(&[W::Above, W::AboveNothing]),
            _ => dice.pick(&[
                W::LinkToFile,
                W::LinkToDirectory,
                W::LinkToNothing,
                W::HardLink,
                W::Fifo,
                W::Socket,
                W::Above,
                W::AboveNothing,
            ]),
        };
        let moment = match place {
            P::ErrorLog | P::AccessLog => dice.pick(&[M::Start, M::Reload, M::Reopen]),
            _ => dice.pick(&[M::Start, M::Reload]),
        };
        Case { place, plant, moment }
    }

    fn name(self) -> &'static str {
        if self.plant == Plant::AboveNothing { "nothing" } else { "there" }
    }

    /// A configuration; its place is named in it, or is not yet.
    fn conf(self, dir: &Path, port: u16, named: bool) -> String {
        let path = format!("{}/theirs/sub/{}", dir.display(), self.name());
        let at = |place: Place| named && self.place == place;
        let line = |place: Place, text: &str| match at(place) {
            true => text.replace("PATH", &path),
            false => String::new(),
        };
        let pid = if at(Place::PidFile) { path.clone() } else { format!("{}/pid", dir.display()) };
        format!(
            "daemon off; user daemon; pid {pid}; error_log {0}/error.log notice; {1} events {{ }}
             http {{ access_log off; {2} {3} server {{ listen 127.0.0.1:{port}; {4} {5} return 200 x; }} }}",
            dir.display(),
            line(Place::ErrorLog, "error_log PATH notice;"),
            line(Place::Temporary, "client_body_temp_path PATH;"),
            line(Place::Cache, "proxy_cache_path PATH keys_zone=zone:64k;"),
            line(Place::AccessLog, "access_log PATH;"),
            line(Place::Socket, "listen unix:PATH;"),
        )
    }

    /// Puts it into the place of what may be there.
    fn plant(self, dir: &Dir, outside: &Path) {
        let sub = dir.file("theirs/sub");
        if matches!(self.plant, Plant::Above | Plant::AboveNothing) {
            fs::rename(&sub, dir.file("theirs/before")).unwrap();
            symlink(outside, &sub).unwrap();
            lchown(&sub, Some(DAEMON), Some(DAEMON)).unwrap();
            return;
        }
        let path = sub.join(self.name());
        let _ = fs::rename(&path, sub.join("before"));
        match self.plant {
            Plant::LinkToFile => symlink(outside.join("victim"), &path).unwrap(),
            Plant::LinkToDirectory => symlink(outside.join("directory"), &path).unwrap(),
            Plant::LinkToNothing => symlink(outside.join("made"), &path).unwrap(),
            Plant::HardLink => return fs::hard_link(outside.join("victim"), &path).unwrap(),
            Plant::Fifo => {
                mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap()
            }
            Plant::Socket => drop(UnixListener::bind(&path).unwrap()),
            Plant::Above | Plant::AboveNothing => {}
        }
        lchown(&path, Some(DAEMON), Some(DAEMON)).unwrap();
    }

    fn run(self) {
        let dir = Dir::new();
        let outside = outside(&dir);
        theirs(&dir, "theirs");
        theirs(&dir, "theirs/sub");
        let before = state(&outside);
        let port = free_port();
        if self.moment == Moment::Start {
            self.plant(&dir, &outside);
        }
        let file =
            dir.write("nginx.conf", self.conf(dir.path(), port, self.moment != Moment::Reload));
        let mut command = Command::new(WEIR);
        command.arg("-p").arg(dir.path()).arg("-c").arg(&file).arg("-e").arg(dir.file("error.log"));
        let mut server = Process::start(command.stderr(Stdio::null()));
        let said = |text: &str| dir.read("error.log").contains(text);
        let up = || said("start worker process ");
        assert!(ask_until(|| up() || !server.is_running()), "it hangs at its start: {self:?}");
        if self.moment != Moment::Start {
            self.plant(&dir, &outside);
            dir.write("nginx.conf", self.conf(dir.path(), port, true));
            let reload = self.moment == Moment::Reload;
            server.signal(if reload { Signal::HUP } else { Signal::USR1 });
            let begun = if reload { "reconfiguring" } else { "reopening logs" };
            assert!(until(dir.path(), || said(begun)), "{self:?}");
        }
        server.signal(Signal::QUIT);
        server.wait();
        assert_eq!(state(&outside), before, "{self:?}:\n{}", dir.read("error.log"));
        let (log, master) = (dir.read("error.log"), format!(" {0}#{0}: ", server.pid()));
        let refused = |line: &str| {
            line.contains(&master) && line.contains("theirs/sub") && line.contains("failed")
        };
        assert!(log.lines().any(refused), "nothing is said of {self:?}:\n{log}");
    }
}

#[test]
fn nothing_that_others_plant_leads_the_master_elsewhere() {
    if !is_root() {
        return;
    }
    let mut dice = Dice::salted(seed(), "plants");
    for _ in 0..number("WEIR_CASES").unwrap_or(30) {
        let case = Case::draw(&mut dice);
        println!("{case:?}");
        case.run();
    }
}

/// Has a server make something in a directory of another user, who replaces it with a file of
/// root's at once. Returns the owner and mode that this file gets.
fn swapped(call: &str, line: &str, root_s: &str) -> Option<(u32, u32)> {
    let dir = Dir::new();
    let theirs = theirs(&dir, "theirs");
    let mut command = strace(&dir, call, "delay_exit=300000")?;
    fs::create_dir(theirs.join("directory")).unwrap();
    fs::write(theirs.join("directory/file"), "secret").unwrap();
    fs::set_permissions(theirs.join("directory"), Permissions::from_mode(0o700)).unwrap();
    let _listens = UnixListener::bind(theirs.join("socket")).unwrap();
    fs::set_permissions(theirs.join("socket"), Permissions::from_mode(0o600)).unwrap();
    let line = line.replace("PATH", theirs.join("made").to_str().unwrap());
    let conf = format!(
        "daemon off; user daemon; pid {0}/pid; error_log {0}/error.log notice; events {{ }}
         http {{ access_log off; {line} }}",
        dir.path().display()
    );
    let file = dir.write("nginx.conf", conf);
    let mut server = Process::start(command.arg("-c").arg(&file));
    assert!(ask_until(|| theirs.join("made").exists()));
    fs::rename(theirs.join("made"), theirs.join("away")).unwrap();
    fs::rename(theirs.join(root_s), theirs.join("made")).unwrap();
    let goes_on = || dir.read("error.log").contains("start worker process ");
    assert!(ask_until(|| goes_on() || !server.is_running()));
    let found = fs::symlink_metadata(theirs.join("made")).unwrap();
    Some((found.uid(), found.mode() & 0o7777))
}

/// A user who may change a directory can replace what root makes there as soon as it is made.
#[test]
fn what_is_swapped_as_soon_as_it_is_made_keeps_its_owner_and_mode() {
    if !is_root() {
        return;
    }
    let Some(directory) = swapped("mkdirat", "client_body_temp_path PATH;", "directory") else {
        return;
    };
    assert_eq!(directory, (0, 0o700));
    assert_eq!(swapped("bind", "server { listen unix:PATH; }", "socket"), Some((0, 0o600)));
}

#[test]
fn links_pipes_and_devices_that_root_has_put_are_logs() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    theirs(&dir, "theirs");
    symlink("/dev/stdout", dir.file("theirs/out.log")).unwrap();
    fs::create_dir(dir.file("real")).unwrap();
    symlink("real", dir.file("by-name")).unwrap();
    symlink("../real/access.log", dir.file("real/latest.log")).unwrap();
    let pipe = dir.file("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::empty(), 0).unwrap();
    fs::set_permissions(&pipe, Permissions::from_mode(0o666)).unwrap();
    let port = free_port();
    let conf = format!(
        "daemon off; user daemon; pid {0}/pid; error_log {0}/error.log notice; events {{ }}
         http {{ log_format f '$uri'; access_log {0}/theirs/out.log f; access_log {0}/by-name/latest.log f; access_log {0}/pipe f;
                 access_log /dev/null f; server {{ listen 127.0.0.1:{port}; location / {{ return 200 x; }} }} }}",
        dir.path().display()
    );
    let file = dir.write("nginx.conf", conf);
    let mut command = Command::new(WEIR);
    command.arg("-c").arg(&file).arg("-e").arg(dir.file("error.log"));
    // The reader of a pipe opens it first.
    let (path, (tell, lines)) = (pipe.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let lines =
            BufReader::new(File::options().read(true).write(true).open(path).unwrap()).lines();
        tell.send(String::new()).unwrap();
        lines.map_while(Result::ok).take(2).for_each(|line| tell.send(line).unwrap());
    });
    lines.recv_timeout(PATIENCE).unwrap();
    // As in a container; where it leads to a plain file, the link is refused, since the file would be given away.
    let (out, output) = std::io::pipe().unwrap();
    let stdout = dir.file("stdout");
    let mut refused = Process::start(command.stdout(File::create(&stdout).unwrap()));
    assert!(!refused.wait().success());
    assert_eq!((fs::read(&stdout).unwrap(), fs::metadata(&stdout).unwrap().uid()), (vec![], 0));
    let server = Process::start(command.stdout(output));
    drop(command);
    assert!(until(dir.path(), || dir.read("error.log").contains("start worker process ")));
    let get = |path: &str| Client::connect(port).get(path).status;
    assert_eq!(get("/first"), 200);
    assert_eq!(lines.recv_timeout(PATIENCE).unwrap(), "/first");
    server.signal(Signal::USR1);
    // The master and the worker.
    let reopened = || dir.read("error.log").matches(": reopening logs").count() == 2;
    assert!(until(dir.path(), reopened));
    assert_eq!(get("/second"), 200);
    assert_eq!(lines.recv_timeout(PATIENCE).unwrap(), "/second");
    let mut written = BufReader::new(out).lines();
    for line in ["/first", "/second"] {
        assert_eq!(written.next().unwrap().unwrap(), line);
    }
    let kept = || dir.read("real/access.log") == "/first\n/second\n";
    assert!(until(dir.path(), kept), "{}", dir.read("error.log"));
    // The workers may not open the master's standard output anew, and go on with what they have.
    let (log, master) = (dir.read("error.log"), format!(" {0}#{0}: ", server.pid()));
    let failed = log.lines().filter(|line| line.contains("failed") && line.contains(&master));
    assert_eq!(failed.count(), 0, "{log}");
}

#[test]
fn a_pipe_without_a_reader_does_not_stop_the_start() {
    let dir = Dir::new();
    let pipe = dir.file("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::empty(), 0).unwrap();
    fs::set_permissions(&pipe, Permissions::from_mode(0o666)).unwrap();
    let server = Server::start_in(
        dir,
        WEIR,
        "error_log %%DIR%%/error.log notice; events { }
         http { log_format f '$uri'; access_log %%DIR%%/pipe f; server { listen 127.0.0.1:%%PORT%%; return 200 x; } }",
    );
    assert_eq!(server.get("/dropped").status, 200);
    server.wait_log("has no reader, its lines are dropped until the logs are reopened", 1);
    // Both ends, so that the open does not wait.
    let reader = File::options().read(true).write(true).open(&pipe).unwrap();
    let worker = server.workers()[0];
    server.signal(Signal::USR1);
    server.wait_log(&format!("{worker}#{worker}: reopening logs"), 1);
    assert_eq!(server.get("/kept").status, 200);
    assert_eq!(BufReader::new(reader).lines().next().unwrap().unwrap(), "/kept");
}

#[test]
fn directories_are_made_for_their_owner_alone_whatever_the_umask() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let port = free_port();
    let file = dir.write(
        "nginx.conf",
        format!(
            "daemon off; user daemon; pid {0}/pid; error_log {0}/error.log notice; events {{ }}
             http {{ access_log off; client_body_temp_path {0}/bodies 1 2; proxy_cache_path {0}/cache levels=1:2 keys_zone=zone:64k;
                     server {{ listen 127.0.0.1:{port}; client_body_in_file_only on;
                               location / {{ proxy_pass http://127.0.0.1:{port}/in; proxy_cache zone; proxy_cache_valid 1h; }}
                               location /in {{ client_body_in_file_only off; return 200 x; }} }} }}",
            dir.path().display()
        ),
    );
    let own = dir.file("own/here");
    let start = format!(
        "umask 0; exec {WEIR} -p {} -c {} -e {}",
        own.display(),
        file.display(),
        dir.file("error.log").display()
    );
    let server = Process::start(Command::new("sh").args(["-c", &start]));
    assert!(until(dir.path(), || dir.read("error.log").contains("start worker process ")));
    let about = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.uid(), found.mode() & 0o7777)
    };
    assert_eq!(about(&own), (0, 0o755));
    assert_eq!(about(own.parent().unwrap()), (0, 0o755));
    let mut leaves = 0;
    for entry in fs::read_dir(&own).unwrap() {
        assert_eq!(about(&entry.unwrap().path()), (DAEMON, 0o700));
        leaves += 1;
    }
    assert!(leaves > 3, "{leaves}");
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody";
    let mut client = Client::connect(port);
    client.send(post);
    assert_eq!(client.response().status, 200);
    assert_eq!(Client::connect(port).get("/").status, 200);
    for top in ["bodies", "cache"] {
        let below = || -> Option<PathBuf> {
            let entry = |path: PathBuf| Some(fs::read_dir(path).ok()?.next()?.ok()?.path());
            entry(entry(dir.file(top))?)
        };
        assert!(until(dir.path(), || below().is_some()), "{top}");
        let second = below().unwrap();
        for path in [second.parent().unwrap(), &second] {
            assert_eq!(about(path), (DAEMON, 0o700), "{}", path.display());
        }
    }
    drop(server);
}

/// Whether a shell command of this user succeeds.
fn may(user: u32, command: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).uid(user).gid(user).current_dir("/");
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.status().unwrap().success()
}

/// A process of the workers' user has nothing of the master's or of the configuration's; one of another user nothing of the
/// workers' either.
#[test]
fn users_of_the_machine_reach_nothing_of_the_masters() {
    /// The user `bin`, which these workers do not have.
    const OTHER: u32 = 2;
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    theirs(&dir, "theirs");
    let secret = dir.write("key.pem", "secret");
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let server = Server::start_in(
        dir,
        WEIR,
        "user daemon; worker_processes 1; events { }
         http { proxy_cache_path %%DIR%%/theirs/cache keys_zone=zone:64k; client_body_temp_path %%DIR%%/bodies;
                server { listen 127.0.0.1:%%PORT%% reuseport; client_body_in_file_only on;
                         location / { proxy_pass http://127.0.0.1:%%PORT%%/in; proxy_cache zone; proxy_cache_valid 1h; }
                         location /in { return 200 $pid; } } }",
    );
    assert_eq!(server.get("/").status, 200);
    let (master, worker) = (server.pid(), server.workers()[0]);
    let (path, port) = (server.dir().path().display(), server.port());
    let steal = |user| {
        let socket = "import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)";
        may(user, &format!("python3 -c '{socket}; s.bind((\"127.0.0.1\", {port})); s.listen()'"))
    };
    for user in [DAEMON, OTHER] {
        assert!(may(user, &format!("test -x {path} && test -r /proc/{master}/status")), "{user}");
        for command in [
            format!("cat {path}/key.pem"),
            format!("echo >> {path}/nginx.conf"),
            format!("echo >> {path}/nginx.pid"),
            format!("rm -f {path}/nginx.pid"),
            format!("kill -TERM {master}"),
            format!("cat /proc/{master}/maps"),
            format!("cat /proc/{master}/environ"),
            format!("ls /proc/{master}/fd/"),
            format!("head -c 1 /proc/{master}/mem"),
            format!("{WEIR} -s stop -c {path}/nginx.conf"),
        ] {
            assert!(!may(user, &command), "user {user} may: {command}");
        }
        assert!(!steal(user), "user {user} takes connections of the port");
    }
    for command in [
        format!("kill -TERM {worker}"),
        format!("cat /proc/{worker}/maps"),
        format!("ls /proc/{worker}/fd/"),
        format!("ls {path}/theirs/cache"),
        format!("ls {path}/bodies"),
        format!("echo >> {path}/error.log"),
    ] {
        assert!(!may(OTHER, &command), "another user may: {command}");
    }
    // What a worker has open is what an attacker in it has: of files nothing but logs, which cannot be read.
    for entry in fs::read_dir(format!("/proc/{worker}/fd")).unwrap().flatten() {
        let Ok(file) = fs::metadata(entry.path()) else { continue };
        let (name, target) = (entry.file_name(), fs::read_link(entry.path()).unwrap_or_default());
        let about = fs::read_to_string(format!("/proc/{worker}/fdinfo/{}", name.display()));
        let about = about.unwrap_or_default();
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("0");
        let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
        let is_kernels = target.starts_with("/proc") || target.starts_with("/sys");
        let is_file = file.is_file() && !is_kernels;
        assert!(!is_file || flags & 3 == 1, "{} can be read", target.display());
    }
    assert_eq!(server.get("/in").body(), worker.to_string());
}

#[test]
fn a_log_directory_that_workers_may_change_is_warned_of() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    theirs(&dir, "theirs");
    fs::create_dir(dir.file("ours")).unwrap();
    let conf = |user: &str| {
        format!(
            "user {user}; pid {0}/pid; error_log {0}/ours/error.log; events {{ }} http {{ access_log {0}/theirs/access.log; }}",
            dir.path().display()
        )
    };
    let warned = |user: &str| {
        let file = dir.write("nginx.conf", conf(user));
        let out = run(
            WEIR,
            [
                "-t",
                "-q",
                "-p",
                dir.path().to_str().unwrap(),
                "-c",
                file.to_str().unwrap(),
                "-e",
                "stderr",
            ],
        );
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{said}");
        said.matches("[warn]").count()
    };
    assert_eq!((warned("daemon"), warned("bin")), (1, 0));
    fs::set_permissions(dir.file("ours"), Permissions::from_mode(0o777)).unwrap();
    assert_eq!((warned("daemon"), warned("bin")), (2, 1));
}
