//! What the status pages show of the server: its loops, its sockets, what stalled it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::Value;
use weir_testkit::{Server, ask_until};

#[path = "metrics/counted.rs"]
mod counted;
#[path = "metrics/culprits.rs"]
mod culprits;

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
