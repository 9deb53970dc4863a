//! `accept_balance reuseport_load`: a program of the kernel chooses among the loops' own queues.

use rustix::process::Signal;
use weir_testkit::{Client, Server};

use super::threads::wait_blocked;
use super::{PROCESSES, THREADS, conf, six, spread, start, twelve_kept, wait_idle};

const POLICY: &str = "reuseport_load";
/// So many new connections would not all pass one of four loops by.
const MANY: usize = 60;

/// Whether this machine lets the server load a program; without, all is as with `reuseport`.
fn steers() -> bool {
    let server = start(POLICY, (2, 1));
    assert_eq!(server.get("/").status, 200);
    let refused = server.logged("is plain reuseport") > 0;
    if refused {
        println!("not run: bpf(2) needs a privilege");
    }
    !refused
}

#[test]
fn the_least_loaded_loop_is_given_the_next_connection() {
    if !steers() {
        return;
    }
    for layout in [PROCESSES, THREADS] {
        assert_eq!(six(POLICY, layout).iter().sum::<usize>(), 6);
        assert_eq!(spread(twelve_kept(POLICY, layout)), [4, 4, 4], "{layout:?}");
    }
}

/// The answers to so many clients that are not of this program, one after another.
fn by_curl(server: &Server, n: usize) -> Vec<String> {
    let url = format!("http://127.0.0.1:{}/?[1-{n}]", server.port());
    let asked = weir_testkit::run("curl", ["-sS", "-H", "Connection: close", "-w", "\n", &url]);
    assert!(asked.status.success(), "{asked:?}");
    String::from_utf8_lossy(&asked.stdout).lines().map(str::to_owned).collect()
}

/// It is at work for ten seconds, and its queue is not one to wait in.
#[test]
fn a_loop_that_is_held_up_is_given_nothing() {
    if !steers() {
        return;
    }
    for layout in [(4, 1), (1, 4)] {
        let server = start(POLICY, layout);
        let mut holder = server.connect();
        let held = holder.get("/").body();
        holder.send("GET /stuck HTTP/1.0\r\n\r\n");
        wait_blocked(&server);
        let answers = by_curl(&server, MANY);
        assert_eq!(answers.len(), MANY);
        assert!(!answers.contains(&held), "{layout:?}: {held} in {answers:?}");
        assert_eq!(spread(answers).len(), 3, "{layout:?}");
    }
}

/// What waits for a stopped worker is taken by the others, and when it goes on it is one of them again.
#[test]
fn no_connection_waits_for_a_stopped_worker_and_it_comes_back() {
    if !steers() {
        return;
    }
    let server = start(POLICY, (4, 1));
    let stopped = server.workers()[2];
    let own = format!("{stopped}-0");
    server.signal_worker(stopped, Signal::STOP);
    let mut clients: Vec<Client> = (0..MANY).map(|_| server.connect()).collect();
    let answers: Vec<String> = clients.iter_mut().map(|client| client.get("/").body()).collect();
    assert!(!answers.contains(&own), "{own} in {answers:?}");
    server.signal_worker(stopped, Signal::CONT);
    wait_idle(&server, POLICY, (4, 1));
    // It carries nothing, and the others a lot.
    assert_eq!(by_curl(&server, 8), vec![own; 8]);
}

#[test]
fn reloads_keep_the_program_and_its_sockets() {
    if !steers() {
        return;
    }
    let server = start(POLICY, (2, 1));
    let layouts = [(4, 1), (4, 1), (1, 1), (3, 1)].map(|layout| (POLICY, layout));
    let others = [("reuseport", (4, 1)), (POLICY, (1, 4)), ("fair", (2, 1)), (POLICY, (4, 1))];
    for (policy, layout) in layouts.into_iter().chain(others) {
        let old = server.workers();
        server.configure(&conf(policy, layout));
        server.reload();
        old.into_iter().for_each(|pid| server.wait_gone(pid));
        assert_eq!(server.get("/").status, 200);
    }
    assert_eq!(server.logged("is plain reuseport"), 0, "{}", server.log());
    wait_idle(&server, POLICY, (4, 1));
    let mut kept: Vec<Client> = (0..12).map(|_| server.connect()).collect();
    let loops = kept.iter_mut().map(|client| client.get("/").body());
    assert_eq!(spread(loops), [3; 4]);
}
