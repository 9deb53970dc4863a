//! What holds a loop up is named.

use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;
use weir_testkit::{Server, ask_until};

use super::{WEIR, json, list};

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
    // On a busy machine others may be late as well.
    assert!(page["totals"]["slow_handlers"].as_u64() >= Some(4), "{page}");
    assert!(page["totals"]["slow_handlers_left_out"].as_u64() >= Some(3), "{page}");
    let is_slow = |c: &&Value| c["what"].as_str().is_some_and(|what| what.contains("/slow"));
    let culprits: Vec<_> = list(&page, "culprits").iter().filter(is_slow).collect();
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
fn a_preempted_handler_is_not_blamed() {
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
    // A busy disk may stall the loop that writes the log. The script does not.
    let blamed = |line: &str| line.contains("held up for") && line.contains("/busy");
    assert!(!log.lines().any(blamed), "{log}");
    let page = json(&server);
    assert!(page["totals"]["preempted_handlers"].as_u64() > Some(0), "{page}");
    let busy = |c: &&Value| c["what"].as_str().is_some_and(|what| what.contains("/busy"));
    let scripts: Vec<_> = list(&page, "culprits").iter().filter(busy).collect();
    assert!(scripts.iter().all(|c| c["kind"] == "preempted"), "{page}");
}

/// A stalled loop is seen by a client of another one.
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
