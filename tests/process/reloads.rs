//! Reloads: what workers, sockets and requests go through.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use weir_testkit::{Client, Dir, Process, Server, free_port, memory_of, until};

use super::{HELLO, TWO_WORKERS, WEIR, stderr};

#[test]
fn a_reload_replaces_the_workers_and_keeps_the_socket() {
    let server = Server::start(WEIR, HELLO);
    assert_eq!(server.get("/").body(), "hello");
    let old = server.workers();
    server.configure(&HELLO.replace("hello", "again"));
    server.reload();
    for worker in old {
        server.wait_gone(worker);
    }
    assert_eq!(server.get("/").body(), "again");
    assert!(!server.log().contains("bind()"));
}

#[test]
fn a_reload_closes_what_is_not_listened_on_any_more() {
    let one = "events { } http { server { listen 127.0.0.1:%%PORT%%; return 200 x; } }";
    let server = Server::start(WEIR, one);
    server.configure(&one.replace("%%PORT%%", "%%PORT1%%"));
    let old = server.workers();
    server.reload();
    for worker in old {
        server.wait_gone(worker);
    }
    assert!(Client::try_connect(server.port()).is_err());
    assert_eq!(Client::connect(server.port_at(1)).get("/").body(), "x");
}

#[test]
fn a_lingering_worker_does_not_hold_an_address() {
    let one = "events { } http { server { listen 127.0.0.1:%%PORT%%; return 200 x; } }";
    let server = Server::start(WEIR, one);
    let (mut idle, mut busy) = (server.connect(), server.connect());
    assert_eq!((idle.get("/").status, busy.get("/").status), (200, 200));
    let old = server.workers();
    server.configure(&one.replace("%%PORT%%", "%%PORT1%%"));
    server.reload();
    // The answer that says close shows that the worker has left its sockets.
    assert_eq!(busy.get("/").header("Connection"), Some("close"));
    assert!(server.workers().contains(&old[0]), "an idle client keeps it");
    assert!(Client::try_connect(server.port()).is_err());
    assert_eq!(idle.get("/").header("Connection"), Some("close"));
    server.wait_gone(old[0]);
}

#[test]
fn a_worker_keeps_no_memory_of_the_configuration_before_its_own() {
    const SERVERS: usize = 3_000;
    let servers: String = (0..SERVERS)
        .map(|n| {
            format!(
                "server {{
                     listen 127.0.0.1:%%PORT%%; server_name s{n}.example.com;
                     location / {{ return 200 s{n}; }}
                     location /p {{ proxy_pass http://127.0.0.1:1; }}
                 }}\n"
            )
        })
        .collect();
    let server = Server::start(WEIR, &format!("events {{ }} http {{ {servers} }}"));
    let old = server.workers()[0];
    server.reload();
    server.wait_gone(old);
    let new = server.workers()[0];
    let (all, own) = (memory_of(new, "Rss"), memory_of(new, "Private_Dirty"));
    assert!(own < all / 4, "{own} of {all} kB are the worker's alone");
}

#[test]
fn reloads_one_after_another_leave_few_old_workers() {
    const RELOADS: usize = 10;
    let server = Server::start(WEIR, HELLO);
    let mut clients = Vec::new();
    for n in 1..=RELOADS {
        let mut client = server.connect();
        assert_eq!(client.get("/").body(), "hello");
        clients.push(client);
        server.signal(Signal::HUP);
        server.wait_log("gracefully shutting down", n);
    }
    // Those of the last few configurations wait for their clients.
    let few = until(server.dir().path(), || server.workers().len() <= 5);
    assert!(few, "{} workers", server.workers().len());
    assert!(clients[0].is_closed());
    assert_eq!(clients[RELOADS - 1].get("/").body(), "hello");
}

#[test]
fn a_shortage_of_descriptors_at_a_reload_passes() {
    let conf = HELLO.replace("events", "worker_threads 8; events");
    let server = Server::start(WEIR, &conf);
    let master = Pid::from_raw(server.pid());
    let before = getrlimit(Resource::Nofile);
    let limit = |most| {
        let new = Rlimit { current: most, maximum: before.maximum };
        prlimit(master, Resource::Nofile, new).unwrap();
    };
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    limit(Some(open as u64 + 4));
    server.configure(&conf.replace("hello", "again"));
    server.signal(Signal::HUP);
    server.wait_log("[emerg]", 1);
    assert_eq!(server.get("/").body(), "hello");

    server.signal_worker(server.workers()[0], Signal::KILL);
    server.wait_log("worker process cannot serve (24: Too many open files)", 3);
    limit(before.current);
    assert_eq!(server.get("/").body(), "hello");
    server.reload();
    assert_eq!(server.get("/").body(), "again");
}

/// A signal for a reload comes at each line of the log, so while each configuration is read.
#[test]
fn reloads_without_a_pause_hold_up_neither_old_workers_nor_the_end() {
    let entries: String = (0..20_000).map(|n| format!("key{n} value{n};\n")).collect();
    let long = format!("http {{ map $arg_k $v {{ {entries} }}");
    let mut server = Server::start(WEIR, &HELLO.replace("http {", &long));
    let reloading_until = |text: &str, times: usize| {
        until(server.dir().path(), || {
            server.signal(Signal::HUP);
            server.logged(text) >= times
        })
    };
    assert!(reloading_until("gracefully shutting down", 5), "old workers stay: {}", server.log());
    assert_eq!(server.get("/").body(), "hello");
    server.signal(Signal::TERM);
    let master = server.pid();
    let end = format!(" {master}#{master}: exit\n");
    assert!(reloading_until(&end, 1), "TERM is not obeyed: {}", server.log());
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn an_old_worker_is_seen_to_finish() {
    let server = Server::start(WEIR, HELLO);
    let old = server.workers()[0];
    let mut client = server.connect();
    client.get("/");
    server.reload();
    let title = || std::fs::read(format!("/proc/{old}/cmdline")).unwrap();
    let shown = "weir: worker process is shutting down";
    assert!(until(server.dir().path(), || title().starts_with(shown.as_bytes())));
    drop(client);
}

#[test]
fn a_wrong_reload_changes_nothing() {
    let server = Server::start(WEIR, HELLO);
    assert_eq!(server.get("/").status, 200);
    let workers = server.workers();
    server.configure("events { } http { servr { } }");
    server.signal(Signal::HUP);
    server.wait_log("unknown directive \"servr\"", 1);
    assert_eq!(server.workers(), workers);
    assert_eq!(server.get("/").body(), "hello");
    // The process that runs -s reports it before the master hears of it.
    let out = server.command(&["-s", "reload"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("unknown directive \"servr\""));
    assert_eq!(server.logged("SIGHUP"), 1);
}

#[test]
fn a_reload_to_a_busy_port_keeps_the_old_configuration() {
    let server = Server::start(WEIR, HELLO);
    let busy = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = busy.local_addr().unwrap().port();
    server.configure(&format!(
        "events {{ }} http {{ server {{ listen 127.0.0.1:{port}; return 200 no; }} }}"
    ));
    server.signal(Signal::HUP);
    server.wait_log("still could not bind()", 1);
    let line = format!("bind() to 127.0.0.1:{port} failed (98: Address already in use)");
    // Once, with the process that has it: this test.
    assert_eq!(server.logged(&line), 1);
    let holder = format!("process {}", std::process::id());
    assert!(server.log().contains(&holder), "{}", server.log());
    assert_eq!(server.get("/").body(), "hello");
}

#[test]
fn no_request_is_lost_while_the_server_reloads() {
    let server = Server::start(WEIR, TWO_WORKERS);
    let mut seen = BTreeSet::new();
    let mut kept = server.connect();
    // New connections throughout, and one that keeps alive and reconnects only when told to.
    for n in 0..400 {
        if n % 100 == 50 {
            server.signal(Signal::HUP);
        }
        let response = server.get("/");
        assert_eq!(response.status, 200);
        seen.insert(response.body());
        let response = kept.get("/");
        assert_eq!(response.status, 200);
        if response.header("Connection") == Some("close") {
            kept = server.connect();
        }
    }
    assert!(server.logged("reconfiguring") > 1);
    server.wait_log("gracefully shutting down", 2);
    assert_eq!(server.get("/").status, 200);
    assert!(seen.len() > 1, "{seen:?}");
}

#[test]
fn no_request_of_many_clients_is_lost_while_the_server_reloads() {
    let conf = TWO_WORKERS.replace("worker_processes 2", "worker_processes 2; worker_threads 2");
    let server = Server::start(WEIR, &conf);
    let port = server.port();
    let done = AtomicBool::new(false);
    let served: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|n| {
                let done = &done;
                scope.spawn(move || {
                    let mut served = 0;
                    let mut client = Client::connect(port);
                    while !done.load(Ordering::Relaxed) {
                        let response = client.get("/");
                        assert_eq!(response.status, 200);
                        served += 1;
                        let told = response.header("Connection") == Some("close");
                        // Half of the clients take a new connection for each request.
                        if told || n % 2 == 0 {
                            client = Client::connect(port);
                        }
                    }
                    served
                })
            })
            .collect();
        for n in 1..=5 {
            server.signal(Signal::HUP);
            server.wait_log("gracefully shutting down", 2 * n);
        }
        done.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    assert!(served > 0);
    assert_eq!(server.logged("[alert]"), 0, "{}", server.log());
}

#[test]
fn workers_become_what_the_configuration_says() {
    let conf = format!(
        "working_directory /tmp; worker_rlimit_nofile 512; worker_priority 3;
         worker_cpu_affinity auto; user daemon; {HELLO}"
    );
    let server = Server::start(WEIR, &conf);
    assert_eq!(server.get("/").status, 200);
    let worker = server.workers()[0];
    let proc = |what: &str| std::fs::read_to_string(format!("/proc/{worker}/{what}")).unwrap();
    assert!(proc("cmdline").starts_with("weir: worker process\0"));
    let master = std::fs::read_to_string(format!("/proc/{}/cmdline", server.pid())).unwrap();
    assert!(master.starts_with("weir: master process "));
    assert_eq!(std::fs::read_link(format!("/proc/{worker}/cwd")).unwrap().to_str(), Some("/tmp"));
    let limits = proc("limits");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().filter(|word| *word == "512").count(), 2);
    let status = proc("status");
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    assert!(of("Cpus_allowed_list:").parse::<u32>().is_ok(), "one processor");
    assert_eq!(proc("stat").rsplit_once(')').unwrap().1.split(' ').nth(17), Some("3"));
    if rustix::process::geteuid().is_root() {
        let users = std::fs::read_to_string("/etc/passwd").unwrap();
        let daemon = users.lines().find(|line| line.starts_with("daemon:")).unwrap();
        let mut ids = daemon.split(':').skip(2);
        for name in ["Uid:", "Gid:"] {
            let id = ids.next();
            assert!(of(name).split_whitespace().all(|now| Some(now) == id), "{name}");
        }
        assert!(of("Groups:").split_whitespace().all(|gid| gid != "0"));
    }
}

#[test]
fn the_pid_file_moves_with_a_reload() {
    let dir = Dir::new();
    let port = free_port();
    let conf = |name: &str| {
        format!(
            "daemon off; pid {0}/{name}; error_log {0}/error.log info; events {{ }}
             http {{ access_log off; server {{ listen 127.0.0.1:{port}; return 200 x; }} }}",
            dir.path().display(),
        )
    };
    let file = dir.write("nginx.conf", conf("a.pid"));
    let mut command = Command::new(WEIR);
    command.arg("-c").arg(&file).arg("-e").arg(dir.file("error.log"));
    let process = Process::start(&mut command);
    assert!(until(dir.path(), || dir.file("a.pid").exists()));
    dir.write("nginx.conf", conf("b.pid"));
    process.signal(Signal::HUP);
    assert!(until(dir.path(), || !dir.file("a.pid").exists()));
    assert_eq!(dir.read("b.pid"), format!("{}\n", process.pid()));
}
