//! `weir inspect` as a whole process, beside servers of several kinds where they are installed.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use weir_testkit::{Client, Dir, Oracle, Process, Server, ask_until, free_port, run};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// What is said of a port, and how it ended.
fn said(port: u16, more: &[&str]) -> String {
    let port = port.to_string();
    let output = run(WEIR, ["inspect", &port, "--secs", "0.1"].iter().chain(more));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn nginx(listen: &str, events: &str) -> Option<Server> {
    let oracle = Oracle::find()?;
    let conf = format!(
        "worker_processes 4; events {{ {events} }}
         http {{ server {{ listen 127.0.0.1:%%PORT%% {listen}; return 200 \"$pid\"; }} }}"
    );
    Some(Server::start(&oracle.path, &conf))
}

#[test]
fn of_nginx_it_says_which_workers_share_which_queue() {
    let Some(one) = nginx("", "") else { return };
    let text = said(one.port(), &[]);
    assert!(text.contains("nginx on 127.0.0.1:"), "{text}");
    assert!(
        text.contains("one queue that 4 processes share; epoll, a connection wakes one"),
        "{text}"
    );
    assert!(text.contains("nothing is wrong"), "{text}");
    let Some(each) = nginx("reuseport", "") else { return };
    assert!(said(each.port(), &[]).contains("4 queues (SO_REUSEPORT)"));
}

/// Four kept connections on one of four workers: the report names the worker, the cause and the
/// remedy.
#[test]
fn the_worker_with_all_connections_is_named() {
    // The worker that has the lock takes all that wait.
    let Some(server) = nginx("", "accept_mutex on; multi_accept on;") else { return };
    let first = server.get("/").body();
    let mut kept: Vec<Client> = Vec::new();
    let got = ask_until(|| {
        let mut client = server.connect();
        if client.get("/").body() == first {
            kept.push(client);
        }
        kept.len() == 4
    });
    assert!(got);
    // A client that has closed meanwhile is gone.
    let has = format!("nginx {first} has 4 of 4 connections");
    let mut text = String::new();
    let told = ask_until(|| {
        text = said(server.port(), &[]);
        text.contains(&has)
    });
    assert!(told, "{text}");
    assert!(
        text.contains("3 of 4 workers have none")
            && text
                .contains("why: not all wait at the queue (with accept_mutex one at a time does)"),
        "{text}"
    );
    assert!(text.contains("do: nginx has no setting that is even and keeps one queue"), "{text}");

    let json = said(server.port(), &["--json"]);
    let read = "import json, sys; place = json.load(sys.stdin)['places'][0]; \
                print(sum(w['connections'] for w in place['workers']), place['findings'][0]['severity'])";
    let mut python = Command::new("python3")
        .args(["-c", read])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(json.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "4 bad\n", "{json}");
}

#[test]
fn a_prefork_server_blocks_in_accept() {
    let dir = Dir::new();
    let script = dir.write(
        "prefork.py",
        "import os, socket, sys
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
for _ in range(2): os.fork()
while True: s.accept()
",
    );
    let port = free_port();
    let mut server = Command::new("python3")
        .arg(&script)
        .arg(port.to_string())
        .process_group(0)
        .spawn()
        .unwrap();
    let four = ask_until(|| {
        let output = run(WEIR, ["inspect", &port.to_string(), "--secs", "0"]);
        String::from_utf8_lossy(&output.stdout).contains("4 processes share; accept(2)")
    });
    let group = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    server.wait().unwrap();
    assert!(four);
}

#[test]
fn a_terminal_obeys_nothing_in_the_name_of_a_process() {
    let dir = Dir::new();
    let script = dir.write(
        "named.py",
        "import socket, sys, threading
def name(): open('/proc/thread-self/comm', 'w').write('\\x1b[31mA\\nB\\x07')
name()
threading.Thread(target=lambda: (name(), threading.Event().wait()), daemon=True).start()
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while True: s.accept()
",
    );
    let port = free_port();
    let server = Process::start(Command::new("python3").arg(&script).arg(port.to_string()));
    let mut text = String::new();
    assert!(ask_until(|| {
        let output = run(WEIR, ["inspect", &port.to_string(), "--secs", "0"]);
        text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.contains("[31mA")
    }));
    drop(server);
    assert!(text.contains("\u{fffd}[31mA\u{fffd}B\u{fffd}"), "{text:?}");
    assert!(!text.replace('\n', "").contains(char::is_control), "{text:?}");
}

/// The tables of connections are those of the server, as of one in a container.
#[test]
fn connections_of_another_network_namespace_count() {
    let can = Command::new("unshare").args(["--net", "ip", "link", "set", "lo", "up"]).status();
    if !can.is_ok_and(|status| status.success()) {
        return println!("not run: no network namespace can be made");
    }
    let dir = Dir::new();
    // The last client waits in the queue.
    let script = dir.write(
        "server.py",
        "import socket, time
s = socket.create_server(('127.0.0.1', 80))
clients = [socket.create_connection(('127.0.0.1', 80)) for _ in range(4)]
accepted = [s.accept() for _ in range(3)]
print('ready', flush=True)
time.sleep(60)
",
    );
    let shell = "ip link set lo up && exec python3 \"$0\"";
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", shell]).arg(&script);
    let log = std::fs::File::create(dir.file("log")).unwrap();
    let server = Process::start(command.stdout(log));
    assert!(ask_until(|| dir.read("log") == "ready\n"));
    let output = run(WEIR, ["inspect", &server.pid().to_string(), "--secs", "0", "--json"]);
    let json = String::from_utf8_lossy(&output.stdout).into_owned();
    let json: String = json.chars().filter(|c| !c.is_whitespace()).collect();
    assert_eq!(json.matches("\"connections\":3").count(), 2, "{json}");
    assert!(json.contains("\"waiting\":1,"), "{json}");
}

#[test]
fn of_weir_it_knows_the_loops() {
    let conf = "worker_processes 2; events { }
        http { server { listen 127.0.0.1:%%PORT%%; return 200; } }";
    let server = Server::start(WEIR, conf);
    assert_eq!(server.get("/").status, 200);
    let text = said(server.port(), &[]);
    assert!(text.contains("weir on 127.0.0.1:"), "{text}");
    assert!(text.contains("one queue that 2 processes share"), "{text}");
    let by_pid = run(WEIR, ["inspect", &server.pid().to_string(), "--secs", "0"]);
    assert!(String::from_utf8_lossy(&by_pid.stdout).contains(&format!(":{}", server.port())));
}

#[test]
fn haproxy_is_one_process_of_threads() {
    let version = Command::new("haproxy").arg("-v").output();
    if version.is_err() {
        return println!("not run: haproxy is not installed");
    }
    let dir = Dir::new();
    let port = free_port();
    let conf = dir.write(
        "haproxy.cfg",
        format!(
            "global\n nbthread 2\ndefaults\n mode http\n timeout connect 1s\n timeout client 1s\n timeout server 1s\n\
             frontend f\n bind 127.0.0.1:{port}\n http-request return status 200\n"
        ),
    );
    let haproxy = Process::start(Command::new("haproxy").arg("-db").arg("-f").arg(&conf));
    let known = ask_until(|| {
        let output = run(WEIR, ["inspect", &port.to_string(), "--secs", "0"]);
        String::from_utf8_lossy(&output.stdout).contains("haproxy on 127.0.0.1:")
    });
    drop(haproxy);
    assert!(known);
}

/// What is said of a program at a port once it says this much; the program's first process opens the socket for its
/// workers, and is none of them.
fn prefork(name: &str, command: &mut Command, port: u16, shape: &str) -> Option<String> {
    let program = command.get_program().to_owned();
    if Command::new(&program).arg("--version").output().is_err() {
        println!("not run: {} is not installed", program.display());
        return None;
    }
    let log = Dir::new();
    let out = std::fs::File::create(log.file("log")).unwrap();
    let server = Process::start(command.stdout(out.try_clone().unwrap()).stderr(out));
    let mut text = String::new();
    let told = ask_until(|| {
        let output = run(WEIR, ["inspect", &port.to_string(), "--secs", "0"]);
        text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.contains(&format!("{name} on 127.0.0.1:{port}: {shape}"))
    });
    assert!(told, "{text}\n{}", log.read("log"));
    assert!(!text.contains(&format!("{name} {} ", server.pid())), "{text}");
    Some(text)
}

#[test]
fn of_gunicorn_it_tells_workers_from_their_arbiter() {
    let dir = Dir::new();
    dir.write("app.py", "def app(env, start):\n    start('200 OK', [])\n    return [b'']\n");
    let gunicorn = |port: u16, more: &[&str]| {
        let mut command = Command::new("gunicorn");
        command.current_dir(dir.path()).env("HOME", dir.path());
        command.args(["-b", &format!("127.0.0.1:{port}"), "-w", "3"]).args(more).arg("app:app");
        command
    };
    for (more, how) in [
        (&[][..], "poll(2) or select(2), a connection wakes all"),
        (&["--threads", "2"][..], "epoll, a connection wakes all"),
    ] {
        let port = free_port();
        let shape = format!("one queue that 3 processes share; {how}");
        let Some(text) = prefork("gunicorn", &mut gunicorn(port, more), port, &shape) else {
            return;
        };
        assert!(text.contains("note: a connection wakes up to 3 workers"), "{text}");
        assert!(text.contains("fewer workers with more threads"), "{text}");
    }
}

#[test]
fn of_puma_it_tells_workers_from_their_parent() {
    let dir = Dir::new();
    dir.write("config.ru", "run lambda { |env| [200, {}, ['']] }\n");
    let port = free_port();
    let mut puma = Command::new("puma");
    puma.current_dir(dir.path()).env("HOME", dir.path());
    puma.args([
        "-q",
        "-b",
        &format!("tcp://127.0.0.1:{port}"),
        "-w",
        "2",
        "-t",
        "2:2",
        "config.ru",
    ]);
    let shape = "one queue that 2 processes share; poll(2) or select(2), a connection wakes all";
    prefork("puma", &mut puma, port, shape);
}

/// The first process accepts, and hands connections to those that serve them.
#[test]
fn of_nodes_cluster_it_finds_the_process_with_the_connections() {
    if Command::new("node").arg("-v").output().is_err() {
        return println!("not run: node is not installed");
    }
    let (dir, port) = (Dir::new(), free_port());
    let script = dir.write(
        "cluster.js",
        format!(
            "const cluster = require('cluster');
             if (cluster.isPrimary) for (let i = 0; i < 3; i++) cluster.fork();
             else {{
                 const server = require('http').createServer((q, r) => r.end('' + process.pid));
                 server.keepAliveTimeout = 0; // Without end: a busy machine looks late.
                 server.listen({port}, '127.0.0.1');
             }}"
        ),
    );
    let node = Process::start(Command::new("node").arg(&script));
    assert!(ask_until(|| Client::try_connect(port).is_ok()));
    let kept: Vec<Client> = (0..6)
        .map(|_| {
            let mut client = Client::connect(port);
            assert_eq!(client.get("/").status, 200);
            client
        })
        .collect();
    let (text, json) = (said(port, &[]), said(port, &["--json"]));
    drop((kept, node));
    assert!(text.contains("one process that hands connections to 3 others"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let workers = json["places"][0]["workers"].as_array().unwrap();
    let handed: Vec<_> = workers.iter().filter(|worker| worker["waits"] == "handed").collect();
    let theirs = handed.iter().map(|worker| worker["connections"].as_u64().unwrap()).sum::<u64>();
    assert_eq!((handed.len(), theirs), (3, 6), "{json}");
}

/// A user without access to any process sees what there is to see of its port.
#[test]
fn of_a_port_any_user_is_told_something() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let _waiting = [(); 3].map(|()| std::net::TcpStream::connect(at).unwrap());
    let mut command = Command::new(WEIR);
    command.args(["inspect", &at.port().to_string(), "--secs", "0"]).uid(65534).gid(65534);
    let output = match command.output() {
        Ok(output) => output,
        Err(e) => return println!("not run: only root can become another user: {e}"),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    if !text.contains("waiting 3 of ") {
        // Where the kernel does not tell of sockets, that is said.
        assert!(text.contains("not seen: how many wait"), "{text} {error}");
    }
    assert!(text.contains(&format!("hidden processes on {at}: 1 queue\n")), "{text} {error}");
    assert!(text.contains("not seen: the processes that serve it"), "{text}");
}

#[test]
fn a_search_without_result_says_so() {
    let output = run(WEIR, ["inspect", "no-such-server"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no visible process listens as no-such-server"), "{said}");
    assert_eq!(said.contains("only root"), !rustix::process::geteuid().is_root(), "{said}");
    let free = weir_testkit::free_port().to_string();
    let output = run(WEIR, ["inspect", &free]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&format!("nothing listens on port {free}, and there")), "{said}");
    assert!(!said.contains("root"), "{said}");
}

/// One of four loops has all the work: it is a thread, and has a line.
#[test]
fn a_thread_that_works_has_a_line_of_its_own() {
    let server = Server::start(
        WEIR,
        "worker_processes 1; worker_threads 4; events { }
         http { keepalive_requests 1000000; server { listen 127.0.0.1:%%PORT%%; work spin 20ms; location / { return 204; } } }",
    );
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut client = server.connect();
    let (mut text, mut told) = (String::new(), false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(client.get("/").status, 204);
            }
        });
        told = ask_until(|| {
            text = said(server.port(), &[]);
            // The lines stand behind the worker's and before the findings. The busy worker's
            // neighbours may have some as well.
            let lines = text.lines().filter(|line| line.contains("weir") && line.contains('%'));
            lines.count() >= 2
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(told, "{text}");
    assert!(said(server.port(), &["--json"]).contains("\"tid\": "));
}

/// A long look ends at once, with what was seen so far.
#[test]
fn an_interrupt_ends_a_long_look() {
    let server = Server::start(
        WEIR,
        "events { } http { server { listen 127.0.0.1:%%PORT%%; return 200 x; } }",
    );
    for signal in [Signal::INT, Signal::TERM] {
        let out = std::fs::File::create(server.dir().file("out")).unwrap();
        let mut command = Command::new(WEIR);
        let port = server.port().to_string();
        command.args(["inspect", &port, "--secs", "3600", "--watch"]).stdout(out);
        let mut inspect = Process::start(&mut command);
        // It has blocked the signals before it looks.
        let status = format!("/proc/{}/status", inspect.pid());
        let is_looking = || {
            let status = std::fs::read_to_string(&status).unwrap();
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            u64::from_str_radix(blocked.trim(), 16).unwrap() != 0
        };
        assert!(ask_until(is_looking));
        inspect.signal(signal);
        assert_eq!(inspect.wait().code(), Some(0));
        assert!(server.dir().read("out").contains("weir on 127.0.0.1:"));
    }
}
