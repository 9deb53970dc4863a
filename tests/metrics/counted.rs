//! What is counted of requests, sessions, handshakes and questions.

use std::io::{BufRead, BufReader, Write};

use serde_json::Value;
use weir_testkit::{Server, ask_until};

use super::{WEIR, json, list};

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

/// A request counts under the first name whose condition holds, and under the location's own name where none does.
#[test]
fn a_condition_chooses_the_name_that_a_request_counts_under() {
    let server = Server::start(
        WEIR,
        "events { }
         http {
             map $arg_to $odd { one 1; two 0; }
             server {
                 listen 127.0.0.1:%%PORT%%;
                 location /a {
                     status_zone first if=$odd;
                     status_zone second if=$arg_second;
                     status_zone plain;
                     location /a/inherits { return 200 text; }
                     location /a/own { status_zone own; return 200 text; }
                     return 200 text;
                 }
             }
             server { listen 127.0.0.1:%%PORT1%%; weir_status json; }
         }",
    );
    let asked =
        ["?to=one&second=1", "?to=two&second=1", "?to=two", "/inherits?to=one", "/own?to=one"];
    for rest in asked {
        assert_eq!(server.get(&format!("/a{rest}")).status, 200, "{rest}");
    }
    let page = || {
        let body = weir_testkit::Client::connect(server.port_at(1)).get("/").body();
        serde_json::from_str::<Value>(&body).unwrap_or_else(|e| panic!("{e}: {body}"))
    };
    let counts = || {
        let page = page();
        let of = |name: &str| page["status_zones"][name]["requests"]["2xx"].as_u64();
        ["first", "second", "plain", "own"].map(of)
    };
    let wanted = [2, 1, 1, 1].map(Some);
    assert!(ask_until(|| counts() == wanted), "{}", page());
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
