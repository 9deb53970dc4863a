//! What outlives a generation of workers: a reload and a binary upgrade under a light load, then the end.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::process::Signal;
use weir_testkit::{Client, Dir, PATIENCE, ask_until, wait_end};

use super::{Daemon, Ends};

/// An origin that answers each request when it is told to.
fn origin() -> (u16, Receiver<Sender<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, asked) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (tell, mut stream) = (tell.clone(), stream.unwrap());
            thread::spawn(move || {
                let head = BufReader::new(stream.try_clone().unwrap()).lines();
                let ends =
                    |line: &std::io::Result<String>| line.as_ref().is_ok_and(String::is_empty);
                head.take_while(|line| !ends(line)).for_each(drop);
                let (answer, wait) = channel();
                tell.send(answer).unwrap();
                let _ = wait.recv();
                let head = "HTTP/1.0 200 OK\r\nCache-Control: max-age=3600\r\n";
                write!(stream, "{head}Content-Length: 5\r\n\r\nwhole").unwrap();
            });
        }
    });
    (port, asked)
}

fn start(origin: u16) -> Daemon {
    let dir = Dir::new();
    let path = dir.path().display();
    let http = format!(
        "log_format n '$arg_n $status'; access_log {path}/a.log n;
         proxy_cache_path {path}/cache keys_zone=c:1m;
         limit_req_zone $arg_k zone=l:64k rate=1r/m; lua_shared_dict d 64k;"
    );
    let server = format!(
        "location /load {{ return 200 $pid; }}
         location /slow {{ proxy_pass http://127.0.0.1:{origin}; }}
         location /cached {{
             proxy_pass http://127.0.0.1:{origin}; proxy_cache c; proxy_cache_key $uri;
             add_header X-Cache $upstream_cache_status;
         }}
         location /limited {{ limit_req zone=l; content_by_lua 'ngx.say(1)'; }}
         location /shared {{ content_by_lua 'ngx.print((ngx.shared.d:incr(\"x\", 1, 0)))'; }}"
    );
    Daemon::of(dir, &http, &server)
}

/// Requests one after another, each on a connection of its own and with a number that no other has.
struct Load {
    stop: AtomicBool,
    sent: AtomicUsize,
}

impl Load {
    fn run(&self, port: u16) {
        while !self.stop.load(Ordering::Relaxed) {
            let n = self.sent.fetch_add(1, Ordering::Relaxed);
            assert_eq!(Client::connect(port).get(&format!("/load?n={n}")).status, 200);
        }
    }
}

/// Clients that the workers of a generation have to do with when it ends.
struct Guests {
    silent: Client,
    kept: Client,
    waiting: Client,
    answer: Sender<()>,
}

impl Guests {
    fn come(daemon: &Daemon, asked: &Receiver<Sender<()>>, n: &str) -> Guests {
        let connect = || Client::connect(daemon.port);
        let (silent, mut kept, mut waiting) = (connect(), connect(), connect());
        assert_eq!(kept.get(&format!("/load?n=kept-{n}")).status, 200);
        waiting.send(format!("GET /slow?n=slow-{n} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let answer = asked.recv_timeout(PATIENCE).unwrap();
        Guests { silent, kept, waiting, answer }
    }

    /// The workers have been told to go.
    fn go(mut self, n: &str) {
        drop(self.answer);
        assert_eq!(self.waiting.response().body(), "whole");
        assert_eq!(self.silent.get(&format!("/load?n=silent-{n}")).status, 200);
        // In order: an answer, or the end.
        let _ = self.kept.try_send(format!("GET /load?n=again-{n} HTTP/1.1\r\nHost: a\r\n\r\n"));
        if let Ok(response) = self.kept.try_response() {
            assert_eq!(response.status, 200);
        }
    }
}

fn told(daemon: &Daemon, workers: usize) {
    let text = ": gracefully shutting down";
    daemon
        .wait("old workers stay", || daemon.dir.read("error.log").matches(text).count() >= workers);
}

fn get(daemon: &Daemon, path: &str) -> weir_testkit::Response {
    Client::connect(daemon.port).get(path)
}

/// Whether the cache has an answer: a file with a hash as its name.
fn is_stored(daemon: &Daemon) -> bool {
    let files = std::fs::read_dir(daemon.dir.file("cache")).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.file_name().len() == 32)
}

#[test]
fn nothing_that_was_promised_is_lost() {
    let (port, asked) = origin();
    let daemon = start(port);
    let load = Load { stop: AtomicBool::new(false), sent: AtomicUsize::new(0) };
    thread::scope(|scope| {
        let _until = Ends(&load.stop);
        for _ in 0..2 {
            scope.spawn(|| load.run(daemon.port));
        }
        let cached = scope.spawn(|| get(&daemon, "/cached?n=cached"));
        drop(asked.recv_timeout(PATIENCE).unwrap());
        assert_eq!(cached.join().unwrap().header("X-Cache"), Some("MISS"));
        // The answer may be there before its file has its name.
        assert!(ask_until(|| is_stored(&daemon)));
        assert_eq!(get(&daemon, "/limited?n=first&k=x").status, 200);
        assert_eq!(get(&daemon, "/shared?n=shared").body(), "1");

        let guests = Guests::come(&daemon, &asked, "reload");
        daemon.signal(daemon.pid("nginx.pid"), Signal::HUP);
        told(&daemon, 2);
        guests.go("reload");
        assert_eq!(get(&daemon, "/cached?n=hit").header("X-Cache"), Some("HIT"));
        assert_eq!(get(&daemon, "/limited?n=second&k=x").status, 503);
        assert_eq!(get(&daemon, "/shared?n=shared-again").body(), "2");

        let guests = Guests::come(&daemon, &asked, "upgrade");
        let (old, _) = daemon.upgrade();
        daemon.signal(old, Signal::WINCH);
        told(&daemon, 4);
        guests.go("upgrade");
        daemon.signal(old, Signal::QUIT);
        wait_end(old);
        assert_eq!(get(&daemon, "/cached?n=hit-again").header("X-Cache"), Some("HIT"));
    });
    let guests = Guests::come(&daemon, &asked, "quit");
    let last = daemon.pid("nginx.pid");
    daemon.signal(last, Signal::QUIT);
    told(&daemon, 6);
    guests.go("quit");
    wait_end(last);
    one_line_each(&daemon, load.sent.into_inner());
}

/// Each request that was answered is in the log, once.
fn one_line_each(daemon: &Daemon, load: usize) {
    let log = daemon.dir.read("a.log");
    let mut lines: Vec<_> = log.lines().filter(|line| !line.starts_with("again-")).collect();
    lines.sort_unstable();
    let mut expected: Vec<_> = (0..load).map(|n| format!("{n} 200")).collect();
    for what in ["kept", "slow", "silent"] {
        expected.extend(["reload", "upgrade", "quit"].map(|when| format!("{what}-{when} 200")));
    }
    let once = ["cached 200", "first 200", "hit 200", "hit-again 200"];
    let more = ["second 503", "shared 200", "shared-again 200"];
    expected.extend(once.iter().chain(&more).map(|line| (*line).to_owned()));
    expected.sort_unstable();
    assert_eq!(lines, expected);
}
