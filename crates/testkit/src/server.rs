//! A server under test.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Signal;

use crate::dir::Dir;
use crate::http::{Client, Response};
use crate::process::{self, Process, children};
use crate::wait::{ask_until, until};

/// A running server with its directory. It is ended when this is dropped.
///
/// In configurations `%%PORT%%` is its first port, `%%PORT1%%` to `%%PORT9%%` are further ones,
/// and `%%DIR%%` is its directory. It runs in the foreground; its pid file is `nginx.pid` and its
/// error log `error.log` (at `debug`), both in the directory.
#[derive(Debug)]
pub struct Server {
    process: Process,
    program: String,
    ports: Vec<u16>,
    dir: Dir,
}

/// The environment variable with the event method for configurations without `use`: epoll, poll,
/// select or io_uring.
const USE: &str = "WEIR_TEST_USE";

/// The number of ports for `%%PORT..%%`.
const PORTS: usize = 10;

impl Server {
    /// Starts `program` with a configuration. Waits until it listens and its workers run.
    pub fn start(program: &str, conf: &str) -> Server {
        Server::start_in(Dir::new(), program, conf)
    }

    /// As [`Server::start`], in an existing directory.
    pub fn start_in(dir: Dir, program: &str, conf: &str) -> Server {
        let ports: Vec<u16> = (0..PORTS).map(|_| free_port()).collect();
        dir.write("nginx.conf", expand(conf, &ports, &dir));
        let mut command = Command::new(program);
        command.args(arguments(&dir)).arg("-g").arg(globals(&dir));
        let process = Process::start(&mut command);
        let mut server = Server { process, program: program.to_owned(), ports, dir };
        // The pid file is written after the sockets are open.
        let pid_file = server.dir.file("nginx.pid");
        let up = until(server.dir.path(), || pid_file.exists() || !server.process.is_running());
        let runs = up && server.process.is_running();
        assert!(runs, "the server does not start:\n{}", server.log());
        server.wait_workers(conf);
        server
    }

    /// As [`Server::start_in`], with directives for the `http` block and for its only server.
    pub fn with_locations(dir: Dir, program: &str, http: &str, locations: &str) -> Server {
        let conf = format!(
            "events {{ }}
             http {{ {http} server {{ listen 127.0.0.1:%%PORT%%; {locations} }} }}"
        );
        Server::start_in(dir, program, &conf)
    }

    /// Waits until the workers have started, which the master does after writing its pid file.
    fn wait_workers(&mut self, conf: &str) {
        let said = conf.split("worker_processes ").nth(1).and_then(|rest| rest.split(';').next());
        let wanted = said.and_then(|number| number.parse().ok()).unwrap_or(1);
        let alone = conf.contains("master_process off");
        let started = ask_until(|| {
            alone
                || self.workers().len() >= wanted
                || self.logged("start worker process ") >= wanted
                || !self.process.is_running()
        });
        assert!(started, "no {wanted} workers:\n{}", self.log());
    }

    /// The directory.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// `%%PORT%%`.
    pub fn port(&self) -> u16 {
        self.port_at(0)
    }

    /// `%%PORTn%%`.
    pub fn port_at(&self, n: usize) -> u16 {
        self.ports[n]
    }

    /// The master's process id.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// The process ids of its workers.
    pub fn workers(&self) -> Vec<i32> {
        children(self.pid())
    }

    /// A connection to `%%PORT%%`.
    pub fn connect(&self) -> Client {
        Client::connect(self.port())
    }

    /// Sends a GET on a new connection.
    pub fn get(&self, path: &str) -> Response {
        self.ask(&format!("GET {path}"), "Connection: close\r\n", "")
    }

    /// As [`Client::ask`], on a new connection.
    pub fn ask(&self, line: &str, headers: &str, body: &str) -> Response {
        self.connect().ask(line, headers, body)
    }

    /// Replaces the configuration file. The ports stay the same.
    pub fn configure(&self, conf: &str) -> PathBuf {
        self.dir.write("nginx.conf", expand(conf, &self.ports, &self.dir))
    }

    /// Runs the program with the same paths, such as with `-s reload` or `-t`.
    pub fn command(&self, args: &[&str]) -> Output {
        let mut all = arguments(&self.dir);
        all.extend(["-g".to_owned(), globals(&self.dir)]);
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        process::run(&self.program, all)
    }

    /// Sends a signal to the master.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits until all threads of a worker sleep, so that its work is done.
    pub fn wait_asleep(&self, pid: i32) {
        process::wait_asleep(pid);
    }

    /// Waits until the master sleeps without a timeout. Then only an event wakes it.
    pub fn wait_for_news(&self) {
        process::wait_for_news(self.pid());
    }

    /// Sends a signal to a worker. After SIGSTOP, waits until it has stopped.
    pub fn signal_worker(&self, pid: i32, signal: Signal) {
        process::signal_pid(pid, signal);
    }

    /// The error log so far.
    pub fn log(&self) -> String {
        self.dir.read("error.log")
    }

    /// How often the error log contains `text`.
    pub fn logged(&self, text: &str) -> usize {
        self.log().matches(text).count()
    }

    /// Waits until the error log contains `text` at least `times` times.
    pub fn wait_log(&self, text: &str, times: usize) {
        self.wait_file("error.log", text, times);
    }

    /// Waits until the error log contains `text`. Returns the first such line.
    pub fn wait_line(&self, text: &str) -> String {
        self.wait_log(text, 1);
        let log = self.log();
        log.lines().find(|line| line.contains(text)).unwrap_or_default().to_owned()
    }

    /// Waits until a file in the directory contains `text` at least `times` times.
    pub fn wait_file(&self, name: &str, text: &str, times: usize) {
        let read = || self.dir.read(name);
        let file = self.dir.file(name);
        let parent = file.parent().unwrap_or(self.dir.path());
        let said = until(parent, || read().matches(text).count() >= times);
        assert!(said, "{name} does not say {text:?} {times} times:\n{}", read());
    }

    /// Reloads, and waits until the old workers were told to finish. [`Server::wait_gone`] waits
    /// for their end.
    pub fn reload(&self) {
        let old = self.workers();
        let told = self.logged("gracefully shutting down");
        self.signal(Signal::HUP);
        self.wait_log("gracefully shutting down", told + old.len());
    }

    /// Waits until a process has ended.
    pub fn wait_gone(&self, pid: i32) {
        process::wait_end(pid);
    }

    /// Waits for the end of the master.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    /// Ends the server gracefully and waits for its end.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::QUIT);
        self.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

fn arguments(dir: &Dir) -> Vec<String> {
    let words =
        ["-p", &format!("{}/", dir.path().display()), "-c", "nginx.conf", "-e", "error.log"];
    words.map(str::to_owned).to_vec()
}

fn globals(dir: &Dir) -> String {
    let dir = dir.path().display();
    format!("daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log debug;")
}

fn expand(conf: &str, ports: &[u16], dir: &Dir) -> String {
    let mut text = conf.replace("%%DIR%%", &dir.path().display().to_string());
    if let Ok(backend) = std::env::var(USE)
        && !text.contains("use ")
    {
        text = text.replacen("events {", &format!("events {{ use {backend};"), 1);
    }
    for (n, port) in ports.iter().enumerate() {
        let name = if n == 0 { "%%PORT%%".to_owned() } else { format!("%%PORT{n}%%") };
        text = text.replace(&name, &port.to_string());
    }
    text
}

/// A TCP port without a listener, which no other test of this process gets. It is outside the
/// kernel's range for clients, so no connection of another process takes it meanwhile.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let begin = std::process::id().wrapping_mul(GAP);
        let n = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + u16::try_from(n % u32::from(LAST - FIRST)).unwrap_or(0);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Ports below the kernel's ephemeral range, which begins at 32768.
const FIRST: u16 = 10_000;
const LAST: u16 = 32_000;
/// The distance between the first ports of processes with consecutive ids.
const GAP: u32 = 997;
