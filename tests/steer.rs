//! `weir balance` as a whole process, with another server: nginx, where it is installed.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::Signal;
use weir_testkit::{Client, Oracle, Server, ask_until, run, waiting};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
/// So many new connections would not all pass one of four workers by.
const MANY: usize = 60;

fn nginx(listen: &str) -> Option<Server> {
    let oracle = Oracle::find()?;
    let conf = format!(
        "worker_processes 4; events {{ }}
         http {{ access_log off; server {{ listen 127.0.0.1:%%PORT%% {listen}; return 200 \"$pid\"; }} }}"
    );
    Some(Server::start(&oracle.path, &conf))
}

/// `weir balance` at work, and what it says.
struct Balance {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Balance {
    /// Steering has begun; none where that needs a privilege that this process lacks.
    fn begin(server: &Server) -> Option<Balance> {
        let pid = server.pid().to_string();
        let mut child = Command::new(WEIR)
            .args(["balance", "--look", "0", "--pid", &pid])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut own = Balance { child, said };
        let text = own.until("worker");
        // The first table is of the look before.
        if text.is_some() && own.until("steering").is_some() && own.until("worker").is_some() {
            return Some(own);
        }
        let why = std::io::read_to_string(own.child.stderr.take().unwrap()).unwrap();
        assert!(why.contains("run it as root"), "{why}");
        println!("not run: {why}");
        None
    }

    /// Reads as far as a word; none when it has ended.
    fn until(&mut self, word: &str) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.said.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if line.contains(word) {
                return Some(line);
            }
        }
    }

    /// A look was told that was begun after this was called.
    fn looked(&mut self) {
        // The table on its way may be of looks before.
        for _ in 0..2 {
            self.until("worker").unwrap();
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

/// Connections come until more wait in the queue of the worker that has stopped.
fn some_wait(server: &Server, more_than: usize) -> bool {
    let mut held = VecDeque::new();
    ask_until(|| {
        held.push_back(TcpStream::connect(("127.0.0.1", server.port())).unwrap());
        if held.len() > 200 {
            held.pop_front();
        }
        if waiting(server.port()) <= more_than {
            return false;
        }
        // The others take what is theirs.
        server.workers()[1..].iter().for_each(|worker| server.wait_asleep(*worker));
        waiting(server.port()) > more_than
    })
}

#[test]
fn a_stopped_worker_gets_no_more_and_all_is_undone() {
    let Some(server) = nginx("reuseport") else { return };
    let port = server.port();
    let stopped = server.workers()[0];
    for end in [Signal::KILL, Signal::INT] {
        let Some(mut balance) = Balance::begin(&server) else { return };
        server.signal_worker(stopped, Signal::STOP);
        // Connections must wait before the imbalance can be found.
        assert!(some_wait(&server, 0));
        balance.looked();
        let held = waiting(port);
        let pids: Vec<String> = (0..MANY).map(|_| server.get("/").body()).collect();
        assert!(!pids.contains(&stopped.to_string()), "{pids:?}");
        // The others take what is theirs.
        assert!(ask_until(|| waiting(port) == held));
        let pid = server.pid().to_string();
        let other = run(WEIR, ["balance", "--look", "0", "--pid", &pid]);
        let said = String::from_utf8_lossy(&other.stderr);
        assert!(said.contains("another program steers these sockets"), "{said}");

        balance.signal(end);
        balance.child.wait().unwrap();
        assert!(some_wait(&server, held), "the hash is not back after {end:?}");
        server.signal_worker(stopped, Signal::CONT);
        assert!(ask_until(|| waiting(port) == 0));
    }
}

#[test]
fn a_worker_that_goes_on_gets_its_share_again() {
    let Some(server) = nginx("reuseport") else { return };
    let Some(mut balance) = Balance::begin(&server) else { return };
    let slow = server.workers()[0];
    server.signal_worker(slow, Signal::STOP);
    assert!(some_wait(&server, 0));
    balance.looked();
    server.signal_worker(slow, Signal::CONT);
    let slow = slow.to_string();
    assert!(ask_until(|| server.get("/").body() == slow));
    balance.signal(Signal::INT);
    assert!(balance.until("all is as it was before").is_some());
    assert!(balance.child.wait().unwrap().success());
}

#[test]
fn a_server_with_one_queue_is_told_what_helps() {
    let Some(server) = nginx("") else { return };
    let port = server.port().to_string();
    let output = run(WEIR, ["balance", "--port", &port, "--pid", &server.pid().to_string()]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("one queue, which 4 processes of nginx share"), "{said}");
    assert!(said.contains("reuseport"), "{said}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_search_without_result_says_so() {
    let free = weir_testkit::free_port().to_string();
    let output = run(WEIR, ["balance", "--port", &free]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.ends_with(&format!(": nothing listens on port {free}\n")), "{said}");
    assert_eq!(run(WEIR, ["balance"]).status.code(), Some(2));
}

/// It steers weir's own sockets, too.
#[test]
fn the_workers_of_weir_are_found() {
    let conf = "worker_processes 2; events { accept_balance reuseport; }
        http { server { listen 127.0.0.1:%%PORT%%; return 200; } }";
    let server = Server::start(WEIR, conf);
    let mut client = Client::connect(server.port());
    assert_eq!(client.get("/").status, 200);
    let Some(balance) = Balance::begin(&server) else { return };
    assert_eq!(server.get("/").status, 200);
    drop(balance);
}

impl Drop for Balance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
