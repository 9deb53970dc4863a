//! What the status pages show of the server: its loops, its sockets, what stalled it.

use std::io::{BufRead, BufReader, Write};
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
    // The first loop serves before the others are there.
    assert!(ask_until(|| list(&json(&server), "loops").len() == 4), "{}", json(&server));
    let before = json(&server);
    for _ in 0..10 {
        assert_eq!(server.get("/").status, 200);
    }
    let page = json(&server);
    let loops = list(&page, "loops");
    let names: Vec<_> = loops.iter().map(|l| (l["worker"].as_u64(), l["loop"].as_u64())).collect();
    let all = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(w, l)| (Some(w), Some(l)));
    assert_eq!(names, all, "{page}");
    let sum = |page: &Value, key: &str| {
        list(page, "loops").iter().map(|l| l[key].as_u64().unwrap()).sum::<u64>()
    };
    let grown = |key: &str| sum(&page, key) - sum(&before, key);
    // The one that asks is counted as well.
    assert_eq!((grown("requests"), grown("accepted")), (11, 11));
    assert_eq!(page["totals"]["requests"], sum(&page, "requests"));
    assert!(grown("sent") > 10 * 100 && grown("received") > 10 * 10, "{page}");
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
             location / { work sleep 20ms; return 204; }
             location /json { weir_status json; }
         } }",
    );
    let mut client = server.connect();
    // The work needs no processor, so the request in between is the only one to wait for one.
    let mut work = || (0..10).for_each(|_| assert_eq!(client.get("/").status, 204));
    let alarm = || {
        work();
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
    // The alarm began at a half; what the page says is a moment younger.
    assert!(busiest(&page) > 0.4, "{page}");
    // It is in the log as well, once.
    let told = || {
        work();
        server.logged("[warn] ") > 0
    };
    assert!(ask_until(told), "{}", server.log());
    assert!(ask_until(|| json(&server)["balance"]["alarm"] == 0), "{}", json(&server));
    assert!(ask_until(|| server.logged("the loops work evenly again") == 1), "{}", server.log());
    let log = server.log();
    let line = log.lines().find(|line| line.contains("[warn] ")).unwrap();
    assert!(line.contains(": the loops work unevenly: loop 0 of worker "), "{line}");
    assert!(line.contains(" % of the last 10 seconds, the mean of 2 is "), "{line}");
    assert_eq!(server.logged("the loops work unevenly"), 1, "{log}");
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

/// `promtool` of Debian's package `prometheus` looks at names, types and units.
#[test]
fn promtool_is_content() {
    let server = Server::start(
        WEIR,
        "worker_threads 2; events { }
         http {
             proxy_cache_path %%DIR%%/cache keys_zone=kept:1m max_size=10m;
             limit_req_zone $uri zone=rate:64k rate=1r/s;
             upstream behind { server 127.0.0.1:%%PORT2%%; }
             server {
                 listen 127.0.0.1:%%PORT%%;
                 status_zone front;
                 location / { weir_status; }
                 location /behind { proxy_pass http://behind; proxy_cache kept; }
             }
         }
         stream {
             upstream store { server 127.0.0.1:%%PORT2%%; }
             server { listen 127.0.0.1:%%PORT1%%; status_zone sessions; return x; }
             server { listen 127.0.0.1:%%PORT3%%; proxy_pass store; }
         }",
    );
    let all = |text: &str| {
        ["0", "1"]
            .iter()
            .all(|n| text.contains(&format!("weir_loop_open{{worker=\"0\",loop=\"{n}\"}} ")))
    };
    assert!(ask_until(|| all(&server.get("/?loops=1").body())));
    let text = server.get("/?loops=1").body();
    for line in [
        "weir_loop_requests_total{worker=\"0\",loop=\"1\"} ",
        "weir_zone_requests_total{zone=\"front\",status=\"2xx\"} ",
        "weir_zone_sessions_total{zone=\"sessions\",status=\"2xx\"} 0",
        "weir_cache_requests_total{cache=\"kept\",status=\"hit\"} 0",
        "weir_shared_memory_used_bytes{zone=\"rate\"} ",
        "weir_pool_queue{pool=\"default\",worker=\"0\"} ",
        "weir_zone_processing{zone=\"front\"} ",
        "weir_stream_upstream_sessions_total{upstream=\"store\",server=\"127.0.0.1:",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // Without a word, a page does not grow with the machine.
    let short = server.get("/").body();
    assert!(!short.contains("weir_loop_") && !short.contains("weir_pool_"), "{short}");
    for line in [
        "weir_loops_running 2\n",
        "weir_thread_pool_queue{pool=\"default\"} ",
        "weir_requests_total ",
    ] {
        assert!(text.contains(line) && short.contains(line), "{line}: {short}");
    }
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

/// Servers, locations, servers behind and caches are counted under their names, over all workers, whatever becomes of those.
#[test]
fn requests_are_counted_under_names() {
    let nobody = weir_testkit::free_port();
    let conf = format!(
        "worker_processes 2;
         events {{ }}
         http {{
             proxy_cache_path %%DIR%%/cache keys_zone=kept:1m;
             limit_req_zone $uri zone=rate:64k rate=1000r/s;
             upstream behind {{ server 127.0.0.1:%%PORT1%%; keepalive 4; }}
             upstream bad {{ server 127.0.0.1:{nobody} max_fails=0; server 127.0.0.1:%%PORT1%% backup; }}
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 status_zone front;
                 location /ok {{ status_zone ok; return 200 text; }}
                 location /missing {{ return 404; }}
                 location /proxied {{ limit_req zone=rate burst=9 nodelay; proxy_pass http://behind; }}
                 location /bad {{ proxy_pass http://bad; }}
                 location /cached {{ proxy_cache kept; proxy_cache_valid 1h; proxy_pass http://behind; }}
             }}
             server {{ listen 127.0.0.1:%%PORT1%%; return 200 behind; }}
             server {{ listen 127.0.0.1:%%PORT2%%; weir_status json; }}
         }}"
    );
    let server = Server::start(WEIR, &conf);
    let page = || {
        let body = weir_testkit::Client::connect(server.port_at(2)).get("/").body();
        serde_json::from_str::<Value>(&body).unwrap_or_else(|e| panic!("{e}: {body}"))
    };
    for (path, times) in [("/ok", 3), ("/missing", 2), ("/proxied", 4), ("/bad", 2), ("/cached", 1)]
    {
        for _ in 0..times {
            server.get(path);
        }
    }
    // Once the answer is stored, all workers have it.
    assert!(ask_until(|| page()["caches"]["kept"]["size"].as_u64() > Some(0)), "{}", page());
    for _ in 0..2 {
        server.get("/cached");
    }
    let classes = |ok: u64, client: u64| serde_json::json!({"1xx": 0, "2xx": ok, "3xx": 0, "4xx": client, "5xx": 0, "total": ok + client});
    // What is counted at a request's end comes after its answer.
    let all = || {
        let page = page();
        let cached = &page["caches"]["kept"]["requests"]["total"];
        page["status_zones"]["front"]["requests"] == classes(12, 2) && cached == 3
    };
    assert!(ask_until(all), "{}", page());
    let found = page();
    let zones = &found["status_zones"];
    assert_eq!(zones["ok"]["requests"], classes(3, 0), "{found}");
    assert_eq!(zones["ok"]["latency"]["count"], 3);
    assert!(zones["front"]["sent"].as_u64() > zones["ok"]["sent"].as_u64(), "{found}");
    let behind = &found["upstreams"]["behind"][0];
    assert_eq!(behind["server"], format!("127.0.0.1:{}", server.port_at(1)));
    assert_eq!((&behind["state"], &behind["active"]), (&"up".into(), &0.into()), "{found}");
    assert_eq!(behind["requests"], classes(5, 0), "{found}");
    let connections = ["opened_connections", "reused_connections"].map(|key| behind[key].as_u64());
    assert_eq!(connections[0].unwrap() + connections[1].unwrap(), 5, "{found}");
    assert!(connections[1] > Some(0), "{found}");
    let bad = list(&found["upstreams"], "bad");
    assert_eq!((&bad[0]["fails"], &bad[0]["retries"]), (&2.into(), &2.into()), "{found}");
    assert_eq!((&bad[0]["connect_fails"], &bad[0]["timeouts"]), (&2.into(), &0.into()), "{found}");
    assert_eq!((&bad[1]["backup"], &bad[1]["requests"]), (&true.into(), &classes(2, 0)));
    let kept = &found["caches"]["kept"];
    assert_eq!(
        (&kept["requests"]["miss"], &kept["requests"]["hit"]),
        (&1.into(), &2.into()),
        "{found}"
    );
    assert_eq!(kept["entries"], 1, "{found}");
    assert_eq!((&kept["stored"], &kept["waited"]), (&1.into(), &0.into()), "{found}");
    assert_eq!(found["totals"]["client_errors"], 2, "{found}");
    assert!(kept["size"].as_u64() > Some(0), "{found}");
    let waits = list(&found["pools"], "default").iter().map(|of| of["wait"]["count"].as_u64());
    assert!(waits.len() == 2 && waits.flatten().sum::<u64>() > 0, "{found}");
    let rate = &found["zones"]["rate"];
    assert_eq!((&rate["kind"], &rate["entries"]), (&"limit_req".into(), &1.into()), "{found}");

    // The worker that counted it may die, or be replaced.
    let workers = server.workers();
    server.signal_worker(workers[0], rustix::process::Signal::KILL);
    server.wait_gone(workers[0]);
    let whole = |l: &Value| l["finishing"] == false;
    let two = || list(&page(), "loops").iter().filter(|l| whole(l)).count() == 2;
    assert!(ask_until(two), "{}", page());
    assert_eq!(page()["status_zones"]["front"]["requests"], classes(12, 2));
    server.reload();
    assert!(ask_until(|| list(&page(), "loops").iter().all(whole)), "{}", page());
    let found = page();
    assert_eq!(found["status_zones"]["front"]["requests"], classes(12, 2), "{found}");
    assert_eq!(found["caches"]["kept"]["requests"]["hit"], 2, "{found}");
}

/// What is in progress is in progress where it is: at its server, and at the location that it has come to.
#[test]
fn requests_in_progress_are_counted_where_they_are() {
    let behind = weir_testkit::listen(|stream| {
        let _ = BufReader::new(stream).lines().count();
    });
    let server = Server::start(
        WEIR,
        &format!(
            "events {{ }}
             http {{ server {{
                 listen 127.0.0.1:%%PORT%%;
                 status_zone front;
                 location /first {{ status_zone first; rewrite ^ /second last; }}
                 location /second {{ status_zone second; proxy_pass http://127.0.0.1:{behind}; }}
             }}
             server {{ listen 127.0.0.1:%%PORT1%%; location /json {{ weir_status json; }} }} }}"
        ),
    );
    let page = || {
        let body = weir_testkit::Client::connect(server.port_at(1)).get("/json").body();
        serde_json::from_str::<Value>(&body).unwrap_or_else(|e| panic!("{e}: {body}"))
    };
    let processing = || {
        let zones = page()["status_zones"].clone();
        ["front", "first", "second"].map(|name| zones[name]["processing"].as_u64().unwrap())
    };
    assert_eq!(processing(), [0; 3]);
    let mut clients = [server.connect(), server.connect()];
    for client in &mut clients {
        client.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    assert!(ask_until(|| processing() == [2, 0, 2]), "{}", page());
    let [one, other] = clients;
    drop(one);
    assert!(ask_until(|| processing() == [1, 0, 1]), "{}", page());
    drop(other);
    assert!(ask_until(|| processing() == [0; 3]), "{}", page());
}

#[test]
fn servers_behind_sessions_are_shown() {
    let nobody = weir_testkit::free_port();
    let behind = weir_testkit::listen(|mut stream| {
        let mut line = String::new();
        while BufReader::new(&stream).read_line(&mut line).is_ok_and(|n| n > 0) {
            let _ = stream.write_all(b"answer\n");
        }
    });
    let server = Server::start(
        WEIR,
        &format!(
            "worker_processes 2; events {{ }}
             http {{ server {{ listen 127.0.0.1:%%PORT%%; location /json {{ weir_status json; }} }} }}
             stream {{
                 upstream store {{
                     server 127.0.0.1:{nobody} max_fails=0;
                     server 127.0.0.1:{behind} backup;
                     server 127.0.0.1:1 down;
                 }}
                 server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass store; }}
             }}"
        ),
    );
    let peers = || list(&json(&server)["stream_upstreams"], "store").to_vec();
    let of = |peer: &Value, names: &[&str]| -> Vec<u64> {
        names.iter().map(|name| peer[name].as_u64().unwrap_or(9999)).collect()
    };
    let mut sessions: Vec<_> = (0..3)
        .map(|_| {
            let mut session = weir_testkit::Client::connect(server.port_at(1));
            session.send("question\n");
            assert_eq!(session.try_line().unwrap(), "answer");
            session
        })
        .collect();
    let seen = peers();
    assert_eq!(of(&seen[0], &["sessions", "fails", "retries", "active"]), [3, 3, 3, 0], "{seen:?}");
    let backup = seen.iter().find(|peer| peer["backup"] == true).unwrap();
    assert_eq!(of(backup, &["sessions", "fails", "retries", "active"]), [3, 0, 0, 3], "{seen:?}");
    assert_eq!((&backup["state"], &backup["connect"]["count"]), (&"up".into(), &3.into()));
    assert!(seen.iter().any(|peer| peer["state"] == "down" && peer["sessions"] == 0), "{seen:?}");
    sessions.clear();
    let over = || {
        let all = peers();
        let backup = all.iter().find(|peer| peer["backup"] == true).unwrap();
        of(backup, &["active", "received", "sent"]) == [0, 21, 27]
    };
    assert!(ask_until(over), "{:?}", peers());
}

/// The kernel tells of Unix-domain sockets, too.
#[test]
fn connections_that_wait_at_a_unix_socket_are_shown() {
    let server = Server::start(
        WEIR,
        "events { }
         http {
             server { listen 127.0.0.1:%%PORT%%; location /json { weir_status json; } }
             server { listen unix:%%DIR%%/socket backlog=77; return 204; }
         }",
    );
    let page = json(&server);
    let unix = list(&page, "listeners").iter().find(|listener| listener["kind"] == "unix").unwrap();
    if unix["backlog"].is_null() {
        eprintln!("skipped: the kernel does not tell of Unix-domain sockets here");
        return;
    }
    let told = ["sockets", "queue", "backlog"].map(|name| unix[name].as_u64());
    assert_eq!(told, [Some(1), Some(0), Some(77)], "{page}");
}

#[test]
fn handshakes_are_counted() {
    let server = Server::start_in(
        weir_testkit::certified(),
        WEIR,
        "events { }
         http {
             ssl_certificate chain.pem; ssl_certificate_key leaf.key;
             server { listen 127.0.0.1:%%PORT%%; location /json { weir_status json; } }
             server { listen 127.0.0.1:%%PORT1%% ssl; return 200 text; }
         }",
    );
    for session in ["-sess_out", "-sess_in"] {
        let ask = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let args = ["-tls1_2", "-ign_eof", session, "session"];
        let said = weir_testkit::s_client(server.dir().path(), server.port_at(1), &args, ask);
        let Some(said) = said else {
            eprintln!("skipped: no openssl here");
            return;
        };
        assert!(said.contains("200 OK"), "{said}");
    }
    let mut garbage = std::net::TcpStream::connect(("127.0.0.1", server.port_at(1))).unwrap();
    garbage.write_all(b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00").unwrap();
    let counted = || {
        let totals = &json(&server)["totals"];
        [
            "tls_handshakes",
            "tls_resumed_sessions",
            "tls_failed_handshakes",
            "tls_abandoned_handshakes",
            "tls_distrusted_certificates",
            "tls_incompatible_clients",
        ]
        .map(|name| totals[name].as_u64().unwrap())
    };
    assert!(ask_until(|| counted() == [2, 1, 1, 0, 0, 0]), "{:?}", counted());
    // A client leaves, one does not trust the certificate, one has no cipher that weir has.
    drop(std::net::TcpStream::connect(("127.0.0.1", server.port_at(1))).unwrap());
    let said = |args: &[&str]| {
        weir_testkit::s_client(server.dir().path(), server.port_at(1), args, "").unwrap()
    };
    said(&["-tls1_2", "-verify_return_error", "-CAfile", "self.pem"]);
    said(&["-tls1_2", "-cipher", "AES128-SHA"]);
    assert!(ask_until(|| counted() == [2, 1, 4, 1, 1, 1]), "{:?}", counted());
}

/// What the kernel and files say, which weir does not count itself.
#[test]
fn certificates_reloads_and_processes_are_shown() {
    let conf = "worker_processes 2; worker_rlimit_nofile 512;
         events { worker_connections 100; }
         http {
             server { listen 127.0.0.1:%%PORT%%; location /json { weir_status json; }
                 location /metrics { weir_status; } }
             server { listen 127.0.0.1:%%PORT1%% ssl;
                 ssl_certificate chain.pem; ssl_certificate_key leaf.key; }
         }
         stream {
             server { listen 127.0.0.1:%%PORT2%% ssl; return x;
                 ssl_certificate self.pem; ssl_certificate_key self.key; }
         }";
    let server = Server::start_in(weir_testkit::certified(), WEIR, conf);
    let page = json(&server);
    let named = |file: &str| server.dir().file(file).to_string_lossy().into_owned();
    let rows = list(&page, "certificates").iter().map(|row| (&row["file"], &row["name"]));
    let is = [("chain.pem", "www.example.org"), ("self.pem", "self")]
        .map(|(file, name)| (Value::from(named(file)), Value::from(name)));
    assert_eq!(rows.collect::<Vec<_>>(), is.iter().map(|(f, n)| (f, n)).collect::<Vec<_>>());
    let text = || server.get("/metrics").body();
    let value = |name: &str| -> Option<u64> {
        let text = text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.split('.').next()?.parse().ok()
    };
    let leaf = format!(
        "weir_certificate_not_after_seconds{{file=\"{}\",name=\"www.example.org\"}}",
        named("chain.pem")
    );
    // As `openssl x509 -enddate` says: Oct 27 08:52:31 2126 GMT.
    assert_eq!(value(&leaf), Some(4_948_764_751), "{}", text());

    // The master reads them once in five seconds.
    let open = |n: usize| value(&format!("weir_process_open_descriptors{{worker=\"{n}\"}}"));
    assert!(ask_until(|| open(0) > Some(8) && open(1) > Some(8)), "{}", text());
    assert_eq!(value("weir_process_descriptors_limit{worker=\"1\"}"), Some(512));
    assert!(value("weir_process_resident_bytes{worker=\"0\"}") > Some(1 << 20));
    assert_eq!(value("weir_connections_limit"), Some(100));
    // A loop writes its number down at the end of a turn.
    let mut idle = server.connect();
    idle.get("/json");
    assert!(ask_until(|| value("weir_most_loop_connections") >= Some(1)), "{}", text());
    drop(idle);
    assert!(ask_until(|| value("weir_workers") == Some(2)), "{}", text());
    assert_eq!(value("weir_old_workers"), Some(0));
    assert!(value("weir_machine_open_descriptors") > Some(8), "{}", text());

    let reloaded = || {
        ["weir_last_reload_succeeded", "weir_reloads_total", "weir_failed_reloads_total"].map(value)
    };
    let begun = value("weir_last_reload_seconds").unwrap();
    assert!(begun >= value("weir_start_time_seconds").unwrap(), "{begun}");
    assert_eq!(reloaded(), [Some(1), Some(0), Some(0)]);
    server.configure("nonsense;");
    server.signal(rustix::process::Signal::HUP);
    assert!(ask_until(|| reloaded() == [Some(0), Some(0), Some(1)]), "{:?}", reloaded());
    server.configure(conf);
    server.signal(rustix::process::Signal::HUP);
    assert!(ask_until(|| reloaded() == [Some(1), Some(1), Some(1)]), "{:?}", reloaded());
    assert!(value("weir_last_reload_seconds").unwrap() >= begun);
}

#[test]
fn requests_that_limits_refuse_or_delay_are_counted() {
    let silent = weir_testkit::listen(|stream| {
        let _ = BufReader::new(stream).lines().count();
    });
    let server = Server::start(
        WEIR,
        &format!(
            "events {{ }} http {{
                 limit_req_zone $uri zone=slow:64k rate=10r/s;
                 limit_req_zone $uri zone=strict:64k rate=1r/m;
                 limit_conn_zone $server_port zone=few:64k;
                 server {{ listen 127.0.0.1:%%PORT%%;
                     location = /json {{ weir_status json; }}
                     location = /delayed {{ limit_req zone=slow burst=5; try_files /none =404; }}
                     location = /refused {{ limit_req zone=strict; try_files /none =404; }}
                     location = /held {{ limit_conn few 1; proxy_pass http://127.0.0.1:{silent}; }} }} }}"
        ),
    );
    let counted = || {
        let totals = &json(&server)["totals"];
        ["delayed_requests", "limited_requests", "limited_by_connections"]
            .map(|name| totals[name].as_u64().unwrap())
    };
    let ask = |path: &str| server.get(path).status;
    assert_eq!([ask("/refused"), ask("/refused")], [404, 503]);
    assert!(ask_until(|| counted() == [0, 1, 0]), "{:?}", counted());
    // Without a pause in between, one of them comes too early.
    assert!(ask_until(|| ask("/delayed") == 404 && counted()[0] > 0), "{:?}", counted());
    let mut held = server.connect();
    held.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    let holds = || json(&server)["upstreams"]["127.0.0.1"][0]["active"] == 1;
    assert!(ask_until(holds), "{}", json(&server));
    assert_eq!(ask("/held"), 503);
    assert!(ask_until(|| counted()[1..] == [2, 1]), "{:?}", counted());
}

#[test]
fn questions_to_name_servers_are_counted() {
    use weir_testkit::{NameRecord, NameReply, name_server};
    let dns = name_server(|name| match name {
        "there.example" => {
            NameReply::Records(0, vec![NameRecord::Address(std::net::Ipv4Addr::LOCALHOST)])
        }
        "silent.example" => NameReply::Silence,
        _ => NameReply::NoSuchName,
    });
    let server = Server::start(
        WEIR,
        &format!(
            "events {{ }} http {{
                 resolver 127.0.0.1:{dns} ipv6=off; resolver_timeout 300ms;
                 server {{ listen 127.0.0.1:%%PORT%%;
                     location /json {{ weir_status json; }}
                     location /ask {{ proxy_pass http://$arg_name:%%PORT1%%; }} }}
                 server {{ listen 127.0.0.1:%%PORT1%%; return 200 well; }} }}"
        ),
    );
    let counted = || {
        let totals = &json(&server)["totals"];
        ["resolver_questions", "resolver_unknown_names", "resolver_failures", "resolver_timeouts"]
            .map(|name| totals[name].as_u64().unwrap())
    };
    assert_eq!(server.get("/ask?name=there.example").body(), "well");
    assert!(ask_until(|| counted() == [1, 0, 0, 0]), "{:?}", counted());
    assert_eq!(server.get("/ask?name=missing.example").status, 502);
    assert!(ask_until(|| counted() == [2, 1, 0, 0]), "{:?}", counted());
    assert_eq!(server.get("/ask?name=silent.example").status, 502);
    assert!(ask_until(|| counted()[3] > 0), "{:?}", counted());
    assert_eq!(counted()[1..3], [1, 0]);
}

#[test]
fn the_example_of_the_page_works() {
    let page = include_str!("../docs/status.md");
    let example = weir_testkit::examples(page).find(|text| text.contains("status_zone shop"));
    let example = example.unwrap().replace(":8080", ":%%PORT1%%");
    let status = "http { server { listen 127.0.0.1:%%PORT%%; weir_status json;";
    let conf = format!("events {{ }} {}", example.replacen("http {", &format!("{status} }}"), 1));
    let server = Server::start(WEIR, &conf);
    let mut client = weir_testkit::Client::connect(server.port_at(1));
    assert_eq!((client.get("/cart").status, client.get("/").status), (204, 404));
    let counted = || {
        let zones = json(&server)["status_zones"].clone();
        ["shop", "cart"].map(|name| zones[name]["requests"]["total"].as_u64().unwrap())
    };
    assert!(ask_until(|| counted() == [2, 1]), "{:?}", counted());
}

/// The state of a server is what its last attempt says. That its time-out is over is no success.
#[test]
fn a_server_that_refuses_is_failing_until_it_serves() {
    let server = Server::start(
        WEIR,
        "events { } http {
             upstream shop { zone shop 64k; server 127.0.0.1:%%PORT2%% fail_timeout=1s; }
             upstream spare { server 127.0.0.1:%%PORT1%%; }
             upstream other { server 127.0.0.1:%%PORT1%% down; }
             server { listen 127.0.0.1:%%PORT1%%; return 200 well; }
             server { listen 127.0.0.1:%%PORT%%;
                 location / { proxy_pass http://shop; }
                 location /spare { proxy_pass http://spare; }
                 location /other { proxy_pass http://other; }
                 location = /json { weir_status json; }
                 location = /metrics { weir_status; } } }",
    );
    let of = |group: &str| json(&server)["upstreams"][group][0].clone();
    for group in ["shop", "spare"] {
        let untried = of(group);
        assert_eq!(untried["state"], "untried", "{untried}");
        assert!(untried["last_success"].is_null() && untried["failure"].is_null(), "{untried}");
    }
    assert_eq!(of("other")["state"], "down");
    assert_eq!(server.get("/spare").body(), "well");
    let served = of("spare");
    assert_eq!((&served["state"], served["last_success"].is_u64()), (&"up".into(), true));
    assert_eq!(server.get("/").status, 502);
    let failing = of("shop");
    assert_eq!(failing["state"], "failing", "{failing}");
    assert_eq!(failing["failure"], "connection refused", "{failing}");
    assert!(failing["last_failure"].as_u64() > Some(1_700_000_000), "{failing}");
    assert_eq!((&failing["failures_in_a_row"], &failing["fails"]), (&1.into(), &1.into()));
    let text = server.get("/metrics").body();
    let line = format!("{{upstream=\"shop\",server=\"127.0.0.1:{}\"", server.port_at(2));
    assert!(text.contains(&format!("weir_upstream_state{line},state=\"failing\"}} 1\n")), "{text}");
    assert!(text.contains(&format!("weir_upstream_state{line},state=\"up\"}} 0\n")), "{text}");
    let back = std::net::TcpListener::bind(("127.0.0.1", server.port_at(2))).unwrap();
    let answer = std::thread::spawn(move || {
        let (mut client, _) = back.accept().unwrap();
        BufReader::new(&client).read_line(&mut String::new()).unwrap();
        client.write_all(b"HTTP/1.0 200 OK\r\n\r\nback").unwrap();
    });
    assert!(server.get("/").body().contains("back"));
    answer.join().unwrap();
    let back = of("shop");
    assert_eq!((&back["state"], &back["failures_in_a_row"]), (&"up".into(), &0.into()), "{back}");
}
