//! Binary upgrade: USR2 starts a successor on the same sockets, and either of the two may end.

use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use weir_testkit::{Client, Dir, Process, ask_until, free_port, run, until, wait_end};

#[path = "tls/anybody.rs"]
mod anybody;
#[path = "doors/ask.rs"]
#[expect(dead_code, reason = "HTTP/1.0 and HTTP/2 in the clear are for the doors")]
mod ask;
#[path = "upgrade/behind.rs"]
mod behind;
#[path = "upgrade/datagrams.rs"]
mod datagrams;
#[path = "upgrade/generations.rs"]
mod generations;
#[path = "upgrade/known.rs"]
mod known;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A server in the background, where WINCH means something.
struct Daemon {
    dir: Dir,
    port: u16,
    args: Vec<String>,
    workers: usize,
}

impl Daemon {
    fn start() -> Daemon {
        let dir = Dir::new();
        let server = format!("listen unix:{}/sock; return 200 $pid;", dir.path().display());
        Daemon::of(dir, "", &server)
    }

    /// One with these lines in its blocks.
    fn of(dir: Dir, http: &str, server: &str) -> Daemon {
        Daemon::with(dir, 2, "", http, server)
    }

    fn with(dir: Dir, workers: usize, events: &str, http: &str, server: &str) -> Daemon {
        let port = free_port();
        let http = format!("http {{ {http} server {{ listen 127.0.0.1:{port}; {server} }} }}");
        Daemon::serving(dir, port, workers, &format!("events {{ {events} }} {http}"))
    }

    /// One with these blocks.
    fn serving(dir: Dir, port: u16, workers: usize, blocks: &str) -> Daemon {
        let main = "error_log error.log info; pid nginx.pid;";
        dir.write("nginx.conf", format!("{main} worker_processes {workers}; {blocks}"));
        let prefix = format!("{}/", dir.path().display());
        let args = ["-p", &prefix, "-c", "nginx.conf", "-e", "error.log"].map(str::to_owned);
        assert!(run(WEIR, &args).status.success(), "{}", dir.read("error.log"));
        Daemon { dir, port, args: args.to_vec(), workers }
    }

    fn pid(&self, file: &str) -> i32 {
        self.dir.read(file).trim().parse().unwrap_or(0)
    }

    fn signal(&self, pid: i32, signal: Signal) {
        kill_process(Pid::from_raw(pid).expect("a process id"), signal).expect("a signal");
    }

    fn wait(&self, what: &str, done: impl FnMut() -> bool) {
        assert!(until(self.dir.path(), done), "{what}:\n{}", self.dir.read("error.log"));
    }

    /// Starts a successor and waits until it serves, too; the process ids of both.
    fn upgrade(&self) -> (i32, i32) {
        let old = self.pid("nginx.pid");
        self.signal(old, Signal::USR2);
        self.wait("no successor", || {
            let pid = self.pid("nginx.pid");
            pid != 0 && pid != old && self.dir.read("nginx.pid").ends_with('\n')
        });
        let new = self.pid("nginx.pid");
        let ready = format!("{new}#{new}: start worker process ");
        self.wait("no workers", || {
            self.dir.read("error.log").matches(&ready).count() == self.workers
        });
        assert_eq!(self.pid("nginx.pid.oldbin"), old);
        (old, new)
    }

    fn answers(&self) -> bool {
        Client::connect(self.port).get("/").status == 200
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both are read before one of them ends and the other renames its file.
        let masters = ["nginx.pid.oldbin", "nginx.pid"].map(|file| self.pid(file));
        for pid in masters.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// Ends a load, also when the test fails.
struct Ends<'l>(&'l AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_successor_takes_over() {
    let daemon = Daemon::start();
    let (old, new) = daemon.upgrade();
    assert!(daemon.dir.read("error.log").contains("using inherited sockets from \""));
    daemon.signal(old, Signal::WINCH);
    let told = |pid: i32| format!("{pid}#{pid}: gracefully shutting down");
    let shut = |log: &str| log.matches(": gracefully shutting down").count();
    daemon.wait("old workers stay", || shut(&daemon.dir.read("error.log")) == 2);
    assert!(daemon.answers());
    daemon.signal(old, Signal::QUIT);
    wait_end(old);
    assert!(!daemon.dir.file("nginx.pid.oldbin").exists());
    assert_eq!(daemon.pid("nginx.pid"), new);
    // The socket's file is the successor's now.
    assert!(daemon.dir.file("sock").exists());
    assert!(daemon.answers());
    assert!(!daemon.dir.read("error.log").contains("[alert]"));
    assert!(!daemon.dir.read("error.log").contains(&told(new)));

    // And it can be followed in turn.
    let (old, next) = daemon.upgrade();
    assert_eq!(old, new);
    daemon.signal(old, Signal::QUIT);
    wait_end(old);
    assert!(daemon.answers());
    let stop = daemon.args.iter().map(String::as_str).chain(["-s", "stop"]);
    assert!(run(WEIR, stop).status.success());
    wait_end(next);
    assert!(!daemon.dir.file("sock").exists() && !daemon.dir.file("nginx.pid").exists());
}

#[test]
fn gathered_lines_are_written_when_their_worker_goes() {
    let dir = Dir::new();
    let path = dir.path().display().to_string();
    let log = format!("log_format n $arg_n; access_log {path}/a.log n buffer=64k flush=1h;");
    let daemon = Daemon::of(dir, &log, "return 200;");
    let ask = |n: usize| {
        let asked = format!("GET /?n={n}");
        let said = Client::connect(daemon.port).ask(&asked, "Connection: close\r\n", "");
        assert_eq!(said.status, 200);
    };
    let lines = |count: usize| {
        daemon.wait("lines are missing", || daemon.dir.read("a.log").lines().count() == count);
    };
    ask(1);
    assert_eq!(daemon.dir.read("a.log"), "");
    daemon.signal(daemon.pid("nginx.pid"), Signal::HUP);
    lines(1);
    ask(2);
    let (old, new) = daemon.upgrade();
    daemon.signal(old, Signal::QUIT);
    wait_end(old);
    lines(2);
    ask(3);
    daemon.signal(new, Signal::QUIT);
    wait_end(new);
    lines(3);
}

#[test]
fn a_successor_that_goes_leaves_everything_as_it_was() {
    let daemon = Daemon::start();
    let (old, new) = daemon.upgrade();
    daemon.signal(old, Signal::WINCH);
    let shut = |log: &str| log.matches(": gracefully shutting down").count();
    daemon.wait("old workers stay", || shut(&daemon.dir.read("error.log")) == 2);
    daemon.signal(new, Signal::QUIT);
    let line = format!("new binary process {new} exited with code 0");
    daemon.wait("the successor stays", || daemon.dir.read("error.log").contains(&line));
    daemon.wait("the pid file", || daemon.pid("nginx.pid") == old);
    assert!(daemon.answers() && daemon.dir.file("sock").exists());
    // A second successor may come.
    daemon.upgrade();
}

#[test]
fn old_workers_come_back_when_they_are_called() {
    let daemon = Daemon::start();
    let (old, new) = daemon.upgrade();
    daemon.signal(old, Signal::WINCH);
    let shut = |log: &str| log.matches(": gracefully shutting down").count();
    daemon.wait("old workers stay", || shut(&daemon.dir.read("error.log")) == 2);
    daemon.signal(old, Signal::HUP);
    let line = format!("{old}#{old}: start worker process ");
    daemon.wait("no workers", || daemon.dir.read("error.log").matches(&line).count() == 4);
    // Two programs are enough.
    for pid in [old, new] {
        daemon.signal(pid, Signal::USR2);
        let refused = format!("{pid}#{pid}: the changing binary signal is ignored");
        daemon.wait("a third program", || daemon.dir.read("error.log").contains(&refused));
    }
    assert!(daemon.answers());
}

#[test]
fn a_successor_that_cannot_start_changes_nothing() {
    let daemon = Daemon::start();
    let old = daemon.pid("nginx.pid");
    daemon.dir.write("nginx.conf", "error_log error.log info; pid nginx.pid; events { } htp { }");
    daemon.signal(old, Signal::USR2);
    daemon.wait("the successor starts", || {
        let log = daemon.dir.read("error.log");
        log.contains("exited with code 1") && daemon.pid("nginx.pid") == old
    });
    assert!(daemon.answers());
}

#[test]
fn a_server_that_ends_has_no_successor() {
    let daemon = Daemon::start();
    let old = daemon.pid("nginx.pid");
    let mut busy = Client::connect(daemon.port);
    assert_eq!(busy.get("/").status, 200);
    busy.send("GET / HTTP/1.1\r\nHost: ");
    daemon.signal(old, Signal::QUIT);
    daemon.wait("QUIT", || daemon.dir.read("error.log").contains("gracefully shutting down"));
    daemon.signal(old, Signal::USR2);
    daemon.wait("USR2", || daemon.dir.read("error.log").contains("(SIGUSR2) received"));
    drop(busy);
    wait_end(old);
    assert!(!daemon.dir.file("nginx.pid").exists());
    assert!(!daemon.dir.read("error.log").contains("start new binary process"));
}

#[test]
fn connections_of_old_workers_are_answered_by_them() {
    let daemon = Daemon::start();
    // It is not known which loop took which. All are taken when the last ones are served.
    let clients: Vec<_> = (0..6).map(|_| Client::connect(daemon.port)).collect();
    assert!((0..8).all(|_| daemon.answers()));
    let (old, _) = daemon.upgrade();
    daemon.signal(old, Signal::WINCH);
    let shut = |log: &str| log.matches(": gracefully shutting down").count();
    daemon.wait("old workers stay", || shut(&daemon.dir.read("error.log")) == 2);
    for mut client in clients {
        assert_eq!(client.get("/").status, 200);
    }
}

/// Workers that are brought back have nothing in common with those that still finish. Here a worker
/// that is stuck in a request is killed. With `dispatch` a worker without a row is given no
/// connection.
#[test]
fn a_worker_that_dies_late_takes_nothing_from_those_that_were_brought_back() {
    for back in [Signal::HUP, Signal::QUIT] {
        let daemon = Daemon::with(
            Dir::new(),
            1,
            "accept_balance dispatch;",
            "",
            "location / { return 200 $pid; } location /stuck { work sleep 60s; }",
        );
        let old = Client::connect(daemon.port).get("/").body().parse().unwrap();
        let mut stuck = Client::connect(daemon.port);
        stuck.send("GET /stuck HTTP/1.0\r\n\r\n");
        let is_stuck = ask_until(|| {
            let call = std::fs::read_to_string(format!("/proc/{old}/syscall")).unwrap_or_default();
            let number = call.split(' ').next().and_then(|word| word.parse().ok());
            [libc::SYS_nanosleep, libc::SYS_clock_nanosleep].map(Some).contains(&number)
        });
        assert!(is_stuck);
        let (master, successor) = daemon.upgrade();
        daemon.signal(master, Signal::WINCH);
        daemon
            .wait("WINCH is not heard", || daemon.dir.read("error.log").contains("stop accepting"));
        daemon.signal(if back == Signal::HUP { master } else { successor }, back);
        let started = format!("{master}#{master}: start worker process ");
        let count = |text: &str| daemon.dir.read("error.log").matches(text).count();
        daemon.wait("no worker comes back", || count(&started) == 2);
        if back == Signal::HUP {
            daemon.signal(successor, Signal::QUIT);
        }
        wait_end(successor);
        daemon.signal(old, Signal::KILL);
        daemon.wait("it is not buried", || count(&format!("worker process {old} exited on")) == 1);
        assert!(daemon.answers());
    }
}

/// As systemd passes a listening socket, with `Environment=NGINX=3;`.
#[test]
fn a_socket_that_blocks_is_served_by_loops_that_do_not() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    fcntl_setfd(&socket, FdFlags::empty()).unwrap();
    let dir = Dir::new();
    let conf = format!(
        "daemon off; pid nginx.pid; events {{ }}
         http {{ server {{ listen 127.0.0.1:{port}; return 200 hello; }} }}"
    );
    dir.write("nginx.conf", conf);
    let mut command = Command::new(WEIR);
    let prefix = format!("{}/", dir.path().display());
    command.args(["-p", &prefix, "-c", "nginx.conf", "-e", "error.log"]);
    command.env("NGINX", format!("{};", socket.as_raw_fd()));
    let mut server = Process::start(&mut command);
    drop(socket);
    assert_eq!(Client::connect(port).get("/").body(), "hello");
    assert_eq!(Client::connect(port).get("/").body(), "hello");
    server.signal(Signal::QUIT);
    assert!(server.wait().success());
    assert!(!dir.read("error.log").contains("[alert]"), "{}", dir.read("error.log"));
}
