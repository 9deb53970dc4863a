//! What the status pages show of the server: its loops, its sockets, who held it up.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;
use weir_testkit::{Server, ask_until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn json(server: &Server) -> Value {
    let body = server.get("/json").body();
    serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"))
}

fn list<'v>(page: &'v Value, name: &str) -> &'v [Value] {
    page[name].as_array().unwrap_or_else(|| panic!("no {name}: {page}"))
}

/// Whichever loop answers: their counters are in memory that all share.
#[test]
fn every_loop_of_every_worker_is_shown() {
    let server = Server::start(
        WEIR,
        "worker_processes 2; worker_threads 2;
         events { }
         http { server {
             listen 127.0.0.1:%%PORT%%;
             listen 127.0.0.1:%%PORT1%% reuseport;
             location / { return 200 text; }
             location /json { weir_status json; }
         } }",
    );
    for _ in 0..10 {
        assert_eq!(server.get("/").status, 200);
    }
    let page = json(&server);
    let loops = list(&page, "loops");
    let names: Vec<_> = loops.iter().map(|l| (l["worker"].as_u64(), l["loop"].as_u64())).collect();
    let all = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(w, l)| (Some(w), Some(l)));
    assert_eq!(names, all, "{page}");
    let sum = |key: &str| loops.iter().map(|l| l[key].as_u64().unwrap()).sum::<u64>();
    // The one that asks is counted as well.
    assert_eq!(sum("requests"), 11);
    assert_eq!(sum("accepted"), 11);
    assert_eq!(page["totals"]["requests"], 11);
    assert!(sum("sent") > 10 * 100 && sum("received") > 10 * 10, "{page}");
    let mut pids: Vec<_> = loops.iter().map(|l| l["pid"].as_i64().unwrap() as i32).collect();
    pids.dedup();
    let mut workers = server.workers();
    pids.sort_unstable();
    workers.sort_unstable();
    assert_eq!(pids, workers);
    assert!(loops.iter().any(|l| l["state"] == "awake" && l["inflight"] == 1), "{page}");
    let asked = &page["answered_by"];
    assert!(workers.contains(&(asked["pid"].as_i64().unwrap() as i32)));
    assert_eq!(page["build"]["nginx"], "1.31.5");
    assert_eq!(page["generation"], 0);

    let listeners = list(&page, "listeners");
    assert_eq!(listeners[0]["sockets"], 1, "{page}");
    assert_eq!(listeners[1]["address"], format!("127.0.0.1:{}", server.port_at(1)));
    // One for each loop, half of them another process', where the kernel tells of those.
    let each = listeners[1]["sockets"].as_u64().unwrap();
    assert!(each == 4 || each == 2, "{page}");

    // A reload takes new rows, and forgets nothing.
    server.reload();
    let gone = || list(&json(&server), "loops").iter().all(|l| l["finishing"] == false);
    assert!(ask_until(gone), "{}", json(&server));
    let page = json(&server);
    assert_eq!(list(&page, "loops").len(), 4, "{page}");
    assert_eq!(page["generation"], 1);
    assert!(page["totals"]["requests"].as_u64().unwrap() > 12, "{page}");
}

/// A kept connection that has all the work is seen: the index grows, and there is an alarm until it is even again.
#[test]
fn uneven_work_is_an_alarm() {
    let server = Server::start(
        WEIR,
        "worker_processes 2;
         events { }
         http { server {
             listen 127.0.0.1:%%PORT%%;
             location / { work spin 20ms; return 204; }
             location /json { weir_status json; }
         } }",
    );
    let mut client = server.connect();
    let alarm = || {
        assert_eq!(client.get("/").status, 204);
        json(&server)["balance"]["alarm"] == 1
    };
    assert!(ask_until(alarm), "{}", json(&server));
    let page = json(&server);
    let index = |page: &Value| page["balance"]["imbalance"].as_f64().unwrap();
    assert!(index(&page) >= 0.5, "{page}");
    let busiest = |page: &Value| {
        let shares = list(page, "loops").iter().map(|l| l["share_busy"].as_f64().unwrap());
        shares.fold(0.0, f64::max)
    };
    assert!(busiest(&page) > 0.5, "{page}");
    assert!(ask_until(|| json(&server)["balance"]["alarm"] == 0), "{}", json(&server));
}

/// By the level that error logs have where nothing is said, and once; its time is in `$request_time` though the loop's
/// clock stood still meanwhile.
#[test]
fn a_culprit_is_told_of_by_default_and_once() {
    let server = Server::start(
        WEIR,
        "error_log %%DIR%%/default.log;
         events { }
         http {
             log_format times \"$uri $request_time\";
             access_log %%DIR%%/access.log times;
             server {
                 listen 127.0.0.1:%%PORT%%;
                 location /slow { work sleep 60ms; return 204; }
                 location /json { weir_status json; }
             }
         }",
    );
    for _ in 0..4 {
        assert_eq!(server.get("/slow").status, 204);
    }
    server.wait_file("default.log", ", location: \"/slow\"", 1);
    let log = server.dir().read("default.log");
    assert!(log.contains("[error] ") && log.contains("the event loop was held up for "), "{log}");
    let page = json(&server);
    assert_eq!(server.dir().read("default.log").matches("location: \"/slow\"").count(), 1);
    assert_eq!(page["totals"]["slow_handlers"], 4);
    assert_eq!(page["totals"]["slow_handlers_left_out"], 3);
    let culprits = list(&page, "culprits");
    assert_eq!(culprits.len(), 4, "{page}");
    for culprit in culprits {
        assert_eq!(culprit["kind"], "held", "{page}");
        assert!(culprit["took_us"].as_u64().unwrap() >= 60_000, "{page}");
        assert!(culprit["what"].as_str().unwrap().ends_with(", location: \"/slow\""), "{page}");
    }
    server.wait_file("access.log", "/slow", 4);
    let text = server.dir().read("access.log");
    for line in text.lines().filter(|line| line.starts_with("/slow")) {
        let time: f64 = line.split(' ').nth(1).unwrap().parse().unwrap();
        // But for a tick of the coarse clock.
        assert!(time >= 0.049, "{line}");
    }
    // What was left out is summed up, at the latest when the loop ends.
    let mut server = server;
    server.stop();
    let log = server.dir().read("default.log");
    assert!(log.contains("was held up 3 more times within 10 s, for up to "), "{log}");
}

/// A script that needs 30 ms of a processor that many want takes much longer, and is not to blame.
#[test]
fn who_was_preempted_is_not_blamed() {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let Some(cpu) = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)) else { return };
    let mask =
        |n: usize| (0..=cpu).map(|i| if i == n { '1' } else { '0' }).rev().collect::<String>();
    let server = Server::start(
        WEIR,
        &format!(
            "error_log %%DIR%%/error.log info; worker_cpu_affinity {};
             events {{ }}
             http {{ server {{
                 listen 127.0.0.1:%%PORT%%;
                 blocked_threshold 100ms;
                 location /busy {{ content_by_lua_block {{
                     local t = os.clock() while os.clock() - t < 0.03 do end
                     ngx.say('done')
                 }} }}
                 location /json {{ weir_status json; }}
             }} }}",
            mask(cpu)
        ),
    );
    if list(&json(&server), "loops")[0]["runqueue_us"].is_null() {
        eprintln!("skipped: the kernel does not tell who waits for a processor");
        return;
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let preempted = std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut own = CpuSet::new();
                own.set(cpu);
                let _ = sched_setaffinity(None, &own);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let preempted = ask_until(|| {
            assert_eq!(server.get("/busy").body(), "done\n");
            server.logged("the event loop waited for a processor, at the content phase") > 0
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        preempted
    });
    let log = server.log();
    assert!(preempted, "{log}");
    assert!(!log.contains("held up for"), "{log}");
    let page = json(&server);
    assert_eq!(page["totals"]["preempted_handlers"], page["totals"]["slow_handlers"], "{page}");
    assert!(list(&page, "culprits").iter().all(|c| c["kind"] == "preempted"), "{page}");
}

/// `promtool` of Debian's package `prometheus` looks at names, types and units.
#[test]
fn promtool_is_content() {
    let server = Server::start(
        WEIR,
        "worker_threads 2; events { }
         http { server { listen 127.0.0.1:%%PORT%%; location / { weir_status; } } }
         stream { server { listen 127.0.0.1:%%PORT1%%; status_zone sessions; return x; } }",
    );
    server.get("/");
    let text = server.get("/").body();
    assert!(text.contains("weir_loop_requests_total{worker=\"0\",loop=\"1\"} "), "{text}");
    let check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut check) = check else {
        eprintln!("skipped: no promtool here");
        return;
    };
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let out = check.wait_with_output().unwrap();
    let said = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(out.status.success() && said.iter().all(String::is_empty), "{said:?}");
}

/// A loop that is stuck is seen by who asks another one.
#[test]
fn a_stuck_loop_is_seen_while_it_is_stuck() {
    let server = Server::start(
        WEIR,
        "worker_processes 2; events { }
         http { server {
             listen 127.0.0.1:%%PORT%%;
             location / { work sleep 2s; return 204; }
             location /json { weir_status json; }
         } }",
    );
    let mut stuck = server.connect();
    stuck.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let second = Duration::from_millis(500).as_micros() as u64;
    let seen = || {
        let page = json(&server);
        let long = |l: &Value| l["state"] == "awake" && l["awake_for_us"].as_u64() > Some(second);
        list(&page, "loops").iter().any(long)
    };
    assert!(ask_until(seen), "{}", json(&server));
    assert_eq!(stuck.response().status, 204);
}
