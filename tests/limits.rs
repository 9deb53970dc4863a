//! `limit_req` and `limit_conn` across workers, reloads and killed workers.

use rustix::process::Signal;
use weir_testkit::{Dir, Server, ask_until, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn start(http: &str, server: &str) -> Server {
    let conf = format!(
        "worker_processes 2;
         events {{ }}
         http {{ access_log off; {http} server {{ listen 127.0.0.1:%%PORT%%; {server} }} }}"
    );
    Server::start(WEIR, &conf)
}

// A rate so low that nothing leaks while a test runs.
const SLOW: &str = "limit_req_zone $arg_k zone=slow:64k rate=1r/m;";

#[test]
fn workers_and_configurations_share_a_rate() {
    let conf = "location / { limit_req zone=slow burst=2 nodelay; limit_req_status 429;
                             error_page 404 = @done; }
                location @done { return 200 $limit_req_status; }";
    let server = start(SLOW, conf);
    for _ in 0..3 {
        let r = server.get("/x?k=a");
        assert_eq!((r.status, r.body().as_str()), (200, "PASSED"));
    }
    assert_eq!(server.get("/x?k=a").status, 429);
    server.wait_log("limiting requests, excess: 3.000 by zone \"slow\", client: 127.0.0.1", 1);
    // An empty key is not limited, another one on its own.
    assert_eq!(server.get("/x").status, 200);
    assert_eq!(server.get("/x?k=b").status, 200);

    server.reload();
    assert_eq!(server.get("/x?k=a").status, 429);
}

#[test]
fn a_zone_with_other_keys_is_refused_at_reload() {
    let server = start(SLOW, "");
    let other = SLOW.replace("$arg_k", "$arg_other");
    server.configure(&format!(
        "events {{ }} http {{ access_log off; {other} server {{ listen 127.0.0.1:%%PORT%%; }} }}"
    ));
    server.signal(Signal::HUP);
    server.wait_log(
        "limit_req \"slow\" uses the \"$arg_other\" key while previously it used the \"$arg_k\" key",
        1,
    );
    assert_eq!(server.get("/x").status, 404);
}

#[test]
fn requests_above_the_rate_wait() {
    let http = "limit_req_zone $arg_k zone=one:64k rate=1r/s;";
    let server = start(http, "location / { limit_req zone=one burst=1; }");
    let statuses = [(); 2].map(|()| server.get("/x?k=a").status);
    assert_eq!(statuses, [404, 404]);
    server.wait_log("delaying request, excess: ", 1);
}

#[test]
fn a_dry_run_only_says() {
    let conf = "location / { limit_req zone=slow; limit_req_dry_run on; error_page 404 = @done; }
                location @done { return 200 $limit_req_status; }";
    let server = start(SLOW, conf);
    assert_eq!(server.get("/x?k=a").body(), "PASSED");
    assert_eq!(server.get("/x?k=a").body(), "REJECTED_DRY_RUN");
    // Of the excess time has taken something by then.
    server.wait_log("limiting requests, dry run, excess: ", 1);
    server.wait_log(" by zone \"slow\"", 1);
}

#[test]
fn states_outlive_a_killed_worker() {
    let server = start(SLOW, "location / { limit_req zone=slow; }");
    assert_eq!(server.get("/x?k=a").status, 404);
    let old = server.workers();
    for pid in &old {
        server.signal_worker(*pid, Signal::KILL);
    }
    let new = until(server.dir().path(), || {
        let now = server.workers();
        now.len() == 2 && now.iter().all(|pid| !old.contains(pid))
    });
    assert!(new);
    assert_eq!(server.get("/x?k=a").status, 503);
}

#[test]
fn a_place_is_taken_until_the_request_ends() {
    let dir = Dir::new();
    // More than any socket buffer holds: the answer waits for its reader.
    dir.write("big", vec![b'x'; 32 << 20]);
    let conf = "worker_processes 2;
         events { }
         http {
             access_log off;
             limit_conn_zone $arg_k zone=conn:64k;
             server {
                 listen 127.0.0.1:%%PORT%%;
                 root %%DIR%%;
                 limit_conn conn 1;
                 limit_conn_status 429;
                 location /dry { limit_conn_dry_run on; error_page 404 = @done; }
                 location @done { return 200 $limit_conn_status; }
             }
         }";
    let server = Server::start_in(dir, WEIR, conf);
    let mut client = server.connect();
    client.send("GET /big?k=a HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(!client.is_closed(), "the answer has begun");
    assert_eq!(server.get("/x?k=a").status, 429);
    server.wait_log("limiting connections by zone \"conn\", client: 127.0.0.1", 1);
    assert_eq!(server.get("/x?k=b").status, 404);
    assert_eq!(server.get("/dry?k=a").body(), "REJECTED_DRY_RUN");
    server.wait_log("limiting connections, dry run, by zone \"conn\"", 1);

    assert_eq!(client.response().bytes.len(), 32 << 20);
    assert!(ask_until(|| server.get("/dry?k=a").body() == "PASSED"));
    // A client that goes away gives its place back, too. A key of its own: the places of the answers above
    // are free a moment after them.
    client.send("GET /big?k=c HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(!client.is_closed(), "the answer has begun");
    assert_eq!(server.get("/x?k=c").status, 429);
    drop(client);
    assert!(ask_until(|| server.get("/x?k=c").status == 404));
}

#[test]
fn parts_of_a_page_count_as_one_request() {
    let http = format!(
        "{SLOW} limit_conn_zone $arg_k zone=conn:64k;
         log_format said '$uri $limit_req_status $limit_conn_status';"
    );
    let conf = r#"access_log %%DIR%%/log said; default_type text/html;
        location = /page { ssi on; return 200 '<!--# include virtual="/part?k=a" --> <!--# include virtual="/part?k=a" -->'; }
        location = /part { limit_req zone=slow; limit_conn conn 1; echo "$limit_req_status $limit_conn_status"; }"#;
    let server = start(&http, conf);
    assert_eq!(server.get("/page").body(), "PASSED PASSED\n PASSED PASSED\n");
    server.wait_file("log", "/page PASSED PASSED\n", 1);
    // The next request is above the rate.
    assert!(server.get("/page").body().contains("503 Service Temporarily Unavailable"));
    server.wait_file("log", "/page REJECTED PASSED\n", 1);
}

#[test]
fn a_zone_without_room_for_another_connection_is_told_of() {
    let http = "limit_conn_zone $arg_k zone=small:32k;";
    let server = start(http, "location / { limit_conn small 1; echo_sleep 60; echo; }");
    let held: Vec<_> = (100..220)
        .map(|n| {
            let mut client = server.connect();
            client.send(format!(
                "GET /?k={} HTTP/1.1\r\nHost: localhost\r\n\r\n",
                n.to_string().repeat(80)
            ));
            client
        })
        .collect();
    server.wait_log("could not allocate node in limit_conn zone \"small\"", 1);
    drop(held);
}
