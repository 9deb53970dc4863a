//! The runtime API: what an operator changes while the server runs.

use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::{Value, json};
use weir_testkit::{Client, Dir, Server, ask_until, examples, free_port, listen};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// What curl says with these arguments: the status and the body.
fn curl(args: &[&str]) -> (u16, Value) {
    let mut all = vec!["-s", "-S", "--max-time", "20", "-w", "\n%{http_code}"];
    all.extend(args);
    let out = Command::new("curl").args(&all).output().expect("curl");
    let said = String::from_utf8_lossy(&out.stdout);
    let (body, status) = said.rsplit_once('\n').unwrap_or_else(|| panic!("{args:?}: {out:?}"));
    let value = serde_json::from_str(body).unwrap_or(Value::Null);
    (status.parse().unwrap_or_else(|_| panic!("{args:?}: {out:?}")), value)
}

const JSON: &str = "Content-Type: application/json";

/// An API at `/api`.
struct Api(String);

impl Api {
    fn of(server: &Server) -> Api {
        Api(format!("http://127.0.0.1:{}/api", server.port()))
    }

    fn ask(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let url = format!("{}{path}", self.0);
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        match method {
            "GET" => curl(&[&url]),
            _ => curl(&["-X", method, "-H", JSON, "-d", &body, &url]),
        }
    }

    fn get(&self, path: &str) -> Value {
        let (status, value) = self.ask("GET", path, None);
        assert_eq!(status, 200, "{path} {value}");
        value
    }
}

/// A server behind that says its name.
fn behind(name: &'static str) -> u16 {
    listen(move |mut stream| {
        use std::io::{Read, Write};
        let mut buf = [0; 4096];
        while stream.read(&mut buf).is_ok_and(|n| n > 0) {
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                break;
            }
        }
    })
}

/// Says its path in a tag, and that it is of a group.
fn tagged() -> u16 {
    listen(move |mut stream| {
        use std::io::{Read, Write};
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = stream.read(&mut buf) {
            let text = String::from_utf8_lossy(&buf[..n]).into_owned();
            let path = text.split(' ').nth(1).unwrap_or_default();
            let tags = format!("Cache-Tag: of{path}\r\nCache-Groups: \"all\"\r\n");
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n{tags}\r\nkept");
            if stream.write_all(answer.as_bytes()).is_err() {
                break;
            }
        }
    })
}

fn two(http: &str) -> (Server, String, String) {
    let (a, b) = (behind("a"), behind("b"));
    let conf = format!(
        "worker_processes 2; worker_threads 2; events {{ }}
         http {{ {http}
         upstream pair {{ zone pair 64k; server 127.0.0.1:{a}; server 127.0.0.1:{b} weight=2; }}
         upstream bare {{ server 127.0.0.1:{a}; }}
         server {{ listen 127.0.0.1:%%PORT%%;
             location / {{ proxy_pass http://pair; }}
             location /bare {{ proxy_pass http://bare; }}
             location /api {{ weir_api; allow 127.0.0.1; deny all; }} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    (server, format!("127.0.0.1:{a}"), format!("127.0.0.1:{b}"))
}

/// How many of so many requests each server answers, each on a connection of its own.
fn answers(server: &Server, n: usize) -> [usize; 2] {
    let mut counts = [0; 2];
    for _ in 0..n {
        match server.get("/").body().as_str() {
            "a" => counts[0] += 1,
            "b" => counts[1] += 1,
            other => panic!("{other}"),
        }
    }
    counts
}

#[test]
fn servers_are_changed_for_all_workers_and_the_next_configuration() {
    let (server, a, b) = two("");
    let api = Api::of(&server);
    assert_eq!(answers(&server, 6), [2, 4]);
    let pair = api.get("/upstreams/pair");
    assert_eq!(pair["zone"], "pair");
    let states = |value: &Value| -> Vec<(Value, Value)> {
        let all = value["servers"].as_array().unwrap();
        all.iter().map(|s| (s["state"].clone(), s["weight"].clone())).collect()
    };
    assert_eq!(states(&pair), [(json!("up"), json!(1)), (json!("up"), json!(2))]);
    assert_eq!(api.get("/upstreams")["bare"]["zone"], Value::Null);

    let at = |server: &str| format!("/upstreams/pair/servers/{server}");
    let (status, said) = api.ask("PATCH", &at(&b), Some(json!({ "state": "drain" })));
    assert_eq!((status, &said["state"], &said["changed"]), (200, &json!("draining"), &json!(true)));
    // Each worker hears of it, whichever was asked.
    assert_eq!(answers(&server, 16), [16, 0]);
    let (status, said) = api.ask("PATCH", &at(&a), Some(json!({ "state": "down", "weight": 7 })));
    assert_eq!((status, &said["state"], &said["weight"]), (200, &json!("down"), &json!(7)));
    assert_eq!(server.get("/").status, 502);
    // The next configuration knows of it, as long as the zone and the server stay.
    server.reload();
    assert_eq!(server.get("/").status, 502);
    assert_eq!(api.get(&at(&a))["weight"], 7);
    let (status, _) = api.ask("PATCH", &at(&b), Some(json!({ "state": "up" })));
    assert_eq!(status, 200);
    assert_eq!(answers(&server, 8), [0, 8]);
    // As the configuration says.
    for (of, weight) in [(&a, 1), (&b, 2)] {
        let (status, said) = api.ask("DELETE", &at(of), None);
        assert_eq!(
            (status, &said["changed"], &said["weight"]),
            (200, &json!(false), &json!(weight))
        );
    }
    assert_eq!(answers(&server, 6), [2, 4]);
    let (status, _) = api.ask("PATCH", &at(&a), Some(json!({ "weight": 4 })));
    assert_eq!(status, 200);
    assert_eq!(answers(&server, 12), [8, 4]);
    assert!(server.logged("was changed") >= 5, "{}", server.log());
}

/// Servers of sessions are changed as those of requests are, and are not taken for these.
#[test]
fn servers_of_sessions_are_changed_too() {
    let (a, b) = (behind("a"), behind("b"));
    let conf = format!(
        "worker_processes 2; worker_threads 2; events {{ }}
         http {{ upstream pair {{ zone http 64k; server 127.0.0.1:{a}; }}
             server {{ listen 127.0.0.1:%%PORT%%;
                 location /api {{ weir_api; allow 127.0.0.1; deny all; }} }} }}
         stream {{ upstream pair {{ zone stream 64k; server 127.0.0.1:{a}; server 127.0.0.1:{b}; }}
             upstream bare {{ server 127.0.0.1:{b}; }}
             server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass pair; }}
             server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass bare; }} }}"
    );
    let server = Server::start(WEIR, &conf);
    let api = Api::of(&server);
    let answers = |n: usize| {
        let said = || Client::connect(server.port_at(1)).get("/").body();
        let all: Vec<_> = (0..n).map(|_| said()).collect();
        ["a", "b"].map(|name| all.iter().filter(|said| *said == name).count())
    };
    assert_eq!(answers(8), [4, 4]);
    let groups = api.get("/stream/upstreams");
    assert_eq!(
        (&groups["pair"]["zone"], &groups["bare"]["zone"]),
        (&json!("stream"), &Value::Null)
    );
    let at = format!("/stream/upstreams/pair/servers/127.0.0.1:{a}");
    // A session that is there goes on.
    let mut open = Vec::from_iter((0..2).map(|_| Client::connect(server.port_at(1))));
    let mut before: Vec<_> = open.iter_mut().map(|client| client.get("/").body()).collect();
    before.sort();
    assert_eq!(before, ["a", "b"]);
    let (status, said) = api.ask("PATCH", &at, Some(json!({ "state": "down" })));
    assert_eq!((status, &said["state"], &said["active"]), (200, &json!("down"), &json!(1)));
    assert_eq!(answers(8), [0, 8]);
    let mut after: Vec<_> = open.iter_mut().map(|client| client.get("/").body()).collect();
    after.sort();
    assert_eq!(after, before);
    assert_eq!(api.get(&format!("/upstreams/pair/servers/127.0.0.1:{a}"))["changed"], false);
    // It stays through a reload, until it is forgotten.
    server.reload();
    assert_eq!(answers(8), [0, 8]);
    let (status, said) = api.ask("DELETE", &at, None);
    assert_eq!((status, &said["state"]), (200, &json!("up")));
    let (status, _) = api.ask("PATCH", &at, Some(json!({ "weight": 3 })));
    assert_eq!(status, 200);
    let [more, less] = answers(12);
    assert!(more > less, "{more} {less}");
    let bare = format!("/stream/upstreams/bare/servers/127.0.0.1:{b}");
    assert_eq!(api.ask("PATCH", &bare, Some(json!({ "state": "down" }))).0, 409);
    assert_eq!(api.ask("GET", "/stream/upstreams/none", None).0, 404);
    assert_eq!(api.ask("GET", "/stream", None).0, 404);
}

/// Whichever worker they wait in.
#[test]
fn waiting_requests_go_on_when_a_server_comes_back() {
    let a = behind("a");
    let conf = format!(
        "worker_processes 2; events {{ }}
         http {{ upstream one {{ zone one 64k; server 127.0.0.1:{a}; queue 20 timeout=1m; }}
             log_format w $pid; access_log waited w;
             server {{ listen 127.0.0.1:%%PORT%%;
                 location / {{ proxy_pass http://one; }}
                 location /api {{ access_log off; weir_api; allow 127.0.0.1; deny all; }} }}
             server {{ listen 127.0.0.1:%%PORT1%%; location / {{ access_log off; stub_status; }} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    let api = Api::of(&server);
    let at = format!("/upstreams/one/servers/127.0.0.1:{a}");
    assert_eq!(api.ask("PATCH", &at, Some(json!({ "state": "down" }))).0, 200);
    let mut waiting = Vec::from_iter((0..8).map(|_| {
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        client
    }));
    let status = || Client::connect(server.port_at(1)).get("/").body();
    assert!(ask_until(|| status().contains("Writing: 9 ")), "{}", status());
    assert_eq!(api.ask("PATCH", &at, Some(json!({ "state": "up" }))).0, 200);
    for client in &mut waiting {
        assert_eq!(client.response().body(), "a");
    }
    let workers = || -> std::collections::HashSet<String> {
        server.dir().read("waited").lines().map(str::to_owned).collect()
    };
    assert!(ask_until(|| workers().len() == 2), "{:?}", workers());
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let (server, a, _) = two("");
    let api = Api::of(&server);
    let pair = format!("/upstreams/pair/servers/{a}");
    let bare = format!("/upstreams/bare/servers/{a}");
    let down = || Some(json!({ "state": "down" }));
    for (method, path, body, status, text) in [
        ("PATCH", bare.as_str(), down(), 409, "has no \"zone\""),
        ("PATCH", &pair, Some(json!({ "state": "away" })), 400, "may be: up, drain, down"),
        ("PATCH", &pair, Some(json!({ "weight": 0 })), 400, "may be: 1 to"),
        ("PATCH", &pair, Some(json!({ "weight": -1 })), 400, "may be: 1 to"),
        ("PATCH", &pair, Some(json!({ "wait": 1 })), 400, "unknown member \"wait\""),
        ("PATCH", &pair, Some(json!([])), 400, "JSON object"),
        ("PATCH", &pair, None, 400, "JSON object"),
        ("PUT", &pair, down(), 405, "GET, PATCH, DELETE"),
        ("PATCH", "/upstreams/pair", down(), 405, "GET"),
        ("PATCH", "/upstreams/pair/servers/1.2.3.4:5", down(), 404, "no such"),
        ("GET", "/upstreams/none", None, 404, "no such"),
        ("GET", "/none", None, 404, "no such"),
        ("POST", "/caches/none/purge", Some(json!({ "all": true })), 404, "no such"),
        ("POST", "/logs/level", Some(json!({ "level": "loud" })), 400, "may be: emerg"),
        ("GET", "/logs/reopen", None, 405, "POST"),
    ] {
        let (got, said) = api.ask(method, path, body);
        let why = said["error"]["text"].as_str().unwrap_or_default();
        assert!(got == status && why.contains(text), "{method} {path}: {got} {said}");
    }
    // What a page of another site can have a browser send changes nothing.
    let url = format!("{}{pair}", api.0);
    let reopen = format!("{}/logs/reopen", api.0);
    for args in [
        ["-X", "PATCH", "-H", "Content-Type: text/plain", "-d", "{\"state\":\"down\"}", &url],
        ["-X", "DELETE", "-H", "Accept: */*", "-H", "X: y", &url],
        [
            "-X",
            "POST",
            "-H",
            "Content-Type: application/x-www-form-urlencoded",
            "-d",
            "{}",
            &reopen,
        ],
    ] {
        assert_eq!(curl(&args).0, 415, "{args:?}");
    }
    let broken = ["-X", "PATCH", "-H", JSON, "-d", "{\"state\":", url.as_str()];
    assert_eq!(curl(&broken).0, 400);
    let long = format!("{{\"state\":\"{}\"}}", "x".repeat(70_000));
    assert_eq!(curl(&["-X", "PATCH", "-H", JSON, "-d", &long, &url]).0, 413);
    assert_eq!(api.get(&pair)["changed"], false);
    let listed = api.get("");
    assert_eq!(listed["resources"], json!(["upstreams", "stream/upstreams", "caches", "logs"]));
}

/// What browsers send for a page of another site: its name as the host after DNS rebinding, its origin otherwise.
#[test]
fn pages_of_other_sites_reach_nothing() {
    let token = "data:0123456789abcdef";
    let local = "allow 127.0.0.1; deny all;";
    let conf = format!(
        "events {{ }} http {{
         server {{ listen 127.0.0.1:%%PORT%%; server_name weir.example *.in.example www.* ~^any;
             location /api {{ weir_api; {local} }}
             location /locked {{ weir_api token={token}; }}
             location /panel {{ weir_dashboard; {local} }} }}
         server {{ listen unix:%%DIR%%/socket; location /api {{ weir_api; }} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    let port = server.port();
    let own = format!("127.0.0.1:{port}");
    let ask = |method: &str, path: &str, host: &str, more: &str| {
        let length = "Content-Type: application/json\r\nContent-Length: 2";
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{length}\r\n{more}\r\n{{}}");
        server.connect().send(&request).response().status
    };
    for host in [&own, "localhost", "app.localhost:1", "[::1]", "WEIR.example:80", "a.in.example"] {
        assert_eq!(ask("GET", "/api", host, ""), 200, "{host}");
        assert_eq!(ask("POST", "/api/logs/reopen", host, ""), 200, "{host}");
        assert_eq!(ask("GET", "/panel", host, ""), 200, "{host}");
        let origin = format!("Origin: http://{host}\r\n");
        assert_eq!(ask("POST", "/api/logs/reopen", host, &origin), 200, "{host}");
    }
    // DNS rebinding.
    for host in ["evil.example", "www.evil.example", "any.evil.example", "127.0.0.1.evil.example"] {
        let origin = format!("Origin: http://{host}\r\n");
        assert_eq!(ask("GET", "/api", host, ""), 403, "{host}");
        assert_eq!(ask("GET", "/panel", host, ""), 403, "{host}");
        assert_eq!(ask("POST", "/api/logs/reopen", host, &origin), 403, "{host}");
    }
    // Forgery.
    for origin in ["null", "http://evil.example", "http://127.0.0.1", "https://weir.example"] {
        let origin = format!("Origin: {origin}\r\n");
        assert_eq!(ask("POST", "/api/logs/reopen", &own, &origin), 403, "{origin}");
        assert_eq!(ask("DELETE", "/api/logs/level", &own, &origin), 403, "{origin}");
    }
    assert!(server.logged("weir_api refused a request: the host \"evil.example\"") > 0);
    assert!(server.logged("weir_dashboard refused a request: the host \"evil.example\"") > 0);
    // A page of another site has no token, and opens no Unix-domain socket.
    let shown = "Authorization: Bearer 0123456789abcdef\r\nOrigin: http://evil.example\r\n";
    assert_eq!(ask("POST", "/locked/logs/reopen", "evil.example", shown), 200);
    assert_eq!(ask("POST", "/locked/logs/reopen", "evil.example", ""), 401);
    let socket = server.dir().file("socket");
    let socket = socket.to_str().unwrap();
    assert_eq!(curl(&["--unix-socket", socket, "http://evil.example/api"]).0, 200);
}

/// All users of the machine may connect to a unix socket.
#[test]
fn an_api_of_a_unix_socket_obeys_no_other_user() {
    const OTHER: u32 = 2;
    let passed = free_port();
    let conf = format!(
        "events {{ }}
         stream {{ server {{ listen 127.0.0.1:{passed}; pass unix:%%DIR%%/socket; }} }}
         http {{ server {{ listen unix:%%DIR%%/socket; location /api {{ weir_api; }}
             location /all {{ weir_api; allow unix:; deny all; }}
             location /token {{ weir_api token=data:0123456789abcdef; }} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    let socket = server.dir().file("socket");
    let ask = |user: Option<u32>, path: &str, header: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", header, "--unix-socket"]);
        curl.arg(&socket).arg(format!("http://weir{path}")).current_dir("/");
        user.map(|user| curl.uid(user).gid(user));
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    assert_eq!(ask(None, "/api", "A: b"), "200");
    let mut client = Client::connect(passed);
    for (host, why) in [("localhost", "it did not come over a unix socket"), ("evil", "the host")] {
        let request = format!("GET /api HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let refused = client.send(&request).response();
        assert!(refused.status == 403 && refused.body().contains(why), "{}", refused.body());
    }
    if !rustix::process::geteuid().is_root() {
        println!("only root can ask as another user");
        return;
    }
    assert_eq!(ask(Some(OTHER), "/api", "A: b"), "403");
    server.wait_log("weir_api refused a request: the user 2 is neither root nor", 1);
    assert_eq!(ask(Some(OTHER), "/all", "A: b"), "200");
    assert_eq!(ask(Some(OTHER), "/token", "Authorization: Bearer 0123456789abcdef"), "200");
    assert_eq!(ask(Some(OTHER), "/token", "A: b"), "401");
}

#[test]
fn caches_are_purged() {
    let a = tagged();
    let locations = format!(
        "location / {{ proxy_pass http://127.0.0.1:{a}; proxy_cache one; proxy_cache_valid 1h;
             proxy_cache_key $uri; add_header X-Cache $upstream_cache_status; }}
         location /api {{ weir_api; deny all; allow 127.0.0.1; satisfy any;
             auth_basic x; auth_basic_user_file users; }}"
    );
    let dir = Dir::new();
    dir.write("users", "me:{PLAIN}secret\n");
    let http = "proxy_cache_path cache keys_zone=one:1m;";
    let server = Server::with_locations(dir, WEIR, http, &locations);
    let url = |path: &str| format!("http://127.0.0.1:{}/api{path}", server.port());
    assert_eq!(curl(&[&url("/caches")]).0, 401);
    let ask = |path: &str, body: &str| {
        curl(&["-u", "me:secret", "-X", "POST", "-H", JSON, "-d", body, &url(path)])
    };
    let state = |path: &str| server.get(path).header("X-Cache").unwrap().to_owned();
    for path in ["/x/1", "/x/2", "/y"] {
        assert_eq!(state(path), "MISS");
        assert!(ask_until(|| state(path) == "HIT"));
    }
    let (status, said) = curl(&["-u", "me:secret", &url("/caches/one")]);
    assert_eq!((status, &said["entries"]), (200, &json!(3)), "{said}");
    assert_eq!(ask("/caches/one/purge", "{\"key\":\"/y\"}"), (200, json!({ "purged": 1 })));
    assert_eq!(state("/y"), "MISS");
    assert_eq!(ask("/caches/one/purge", "{\"prefix\":\"/x/\"}"), (200, json!({ "purged": 2 })));
    assert_eq!(ask("/caches/one/purge", "{\"prefix\":\"/x/\"}"), (200, json!({ "purged": 0 })));
    // Answers with a tag, and groups of an origin.
    assert!(ask_until(|| state("/x/1") == "HIT" && state("/x/2") == "HIT" && state("/y") == "HIT"));
    let purged = |body: &str| ask("/caches/one/purge", body);
    assert_eq!(purged("{\"tags\":[\"none\",\"of/x/1\"]}"), (200, json!({ "purged": 1 })));
    assert_eq!((state("/x/1").as_str(), state("/x/2").as_str()), ("MISS", "HIT"));
    let groups = |host: &str| format!("{{\"groups\":[\"all\"],\"origin\":\"http://{host}/\"}}");
    assert!(ask_until(|| state("/x/1") == "HIT"));
    assert_eq!(purged(&groups("other")), (200, json!({ "purged": 0 })));
    assert_eq!(purged(&groups("LOCALHOST")), (200, json!({ "purged": 3 })));
    for wrong in ["{\"tags\":[]}", "{\"tags\":[1]}", "{\"groups\":[\"a\"]}"] {
        assert_eq!(purged(wrong).0, 400, "{wrong}");
    }
    for wrong in ["{}", "{\"all\":false}", "{\"key\":\"a\",\"prefix\":\"b\"}", "{\"key\":1}"] {
        assert_eq!(ask("/caches/one/purge", wrong).0, 400, "{wrong}");
    }
    assert!(ask_until(|| state("/y") == "HIT"));
    assert_eq!(ask("/caches/one/purge", "{\"all\":true}"), (200, json!({ "purged": 1 })));
}

#[test]
fn logs_are_opened_anew_and_tell_more_in_all_workers() {
    let locations = "error_log told error;
         location / { return 200 $pid; }
         location /odd { index none; autoindex off; limit_except GET { deny all; } }
         location /lua { content_by_lua_block { ngx.log(ngx.INFO, 'a word of ' .. ngx.worker.pid()); } }
         location /api { weir_api; allow 127.0.0.1; deny all; }";
    let conf = format!(
        "worker_processes 2; events {{ }}
         http {{ access_log seen; server {{ listen 127.0.0.1:%%PORT%%; {locations} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    let api = Api::of(&server);
    assert_eq!(api.get("/logs"), json!({ "level": null }));
    assert_eq!(server.get("/lua").status, 200);
    assert_eq!(server.dir().read("told").matches("a word").count(), 0);
    let (status, said) = api.ask("POST", "/logs/level", Some(json!({ "level": "info" })));
    assert_eq!((status, said), (200, json!({ "level": "info" })));
    let workers = server.workers();
    let told = |pid: &i32| server.dir().read("told").contains(&format!("a word of {pid}"));
    let all_tell = |workers: &[i32]| {
        ask_until(|| {
            let _ = server.get("/lua");
            workers.iter().all(told)
        })
    };
    assert!(all_tell(&workers), "{}", server.dir().read("told"));
    assert!(ask_until(|| api.get("/logs/level") == json!({ "level": "info" })));
    // Workers of the next configuration, too, until it is taken back.
    server.reload();
    assert!(all_tell(&server.workers()));
    let (status, _) = api.ask("DELETE", "/logs/level", None);
    assert_eq!(status, 200);
    assert!(ask_until(|| api.get("/logs/level") == json!({ "level": null })));

    std::fs::rename(server.dir().file("seen"), server.dir().file("seen.old")).unwrap();
    let (status, _) = api.ask("POST", "/logs/reopen", None);
    assert_eq!(status, 200);
    assert!(ask_until(|| {
        let _ = server.get("/");
        server.dir().file("seen").exists() && !server.dir().read("seen").is_empty()
    }));
}

/// Without a master the process does by itself what a master would.
#[test]
fn a_server_without_master_does_it_itself() {
    let conf = "master_process off; events { }
         http { access_log seen; server { listen 127.0.0.1:%%PORT%%; location / { return 204; }
             location /api { weir_api; allow 127.0.0.1; deny all; } } }";
    let server = Server::start(WEIR, conf);
    let api = Api::of(&server);
    assert_eq!(api.ask("POST", "/logs/level", Some(json!({ "level": "debug" }))).0, 200);
    assert_eq!(api.get("/logs/level"), json!({ "level": "debug" }));
    std::fs::rename(server.dir().file("seen"), server.dir().file("seen.old")).unwrap();
    assert_eq!(api.ask("POST", "/logs/reopen", None).0, 200);
    assert!(ask_until(|| server.dir().file("seen").exists()));
}

#[test]
fn only_the_token_gives_access() {
    let dir = Dir::new();
    dir.write("token", "0123456789abcdef\n");
    let location = "location /api { weir_api token=token; }";
    let server = Server::with_locations(dir, WEIR, "", location);
    let url = format!("http://127.0.0.1:{}/api/logs", server.port());
    assert_eq!(curl(&[&url]).0, 401);
    assert_eq!(curl(&["-H", "Authorization: Bearer 0123456789abcdeg", &url]).0, 401);
    assert_eq!(curl(&["-H", "Authorization: Bearer 0123456789abcde", &url]).0, 401);
    assert_eq!(curl(&["-H", "Authorization: Bearer 0123456789abcdef", &url]).0, 200);
    server.configure(
        "events { } http { server { listen 127.0.0.1:%%PORT%%; location / { weir_api; } } }",
    );
    let out = server.command(&["-t"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        !out.status.success() && said.contains("any client may reach \"weir_api\" here"),
        "{said}"
    );
}

#[test]
fn the_token_is_asked_for_in_every_block() {
    let dir = Dir::new();
    dir.write("token", "0123456789abcdef\n");
    let server = Server::with_locations(
        dir,
        WEIR,
        "upstream shop { zone shop 64k; server 127.0.0.1:1; server 127.0.0.1:2; }",
        "location /if/ { weir_api token=token; if ($uri) { add_header X-If 1; } }
         location /limit/ { weir_api token=token; limit_except HEAD { allow all; } }",
    );
    let url =
        |block: &str, path: &str| format!("http://127.0.0.1:{}/{block}/{path}", server.port());
    let change = ["-X", "PATCH", "-H", JSON, "-d", "{\"state\":\"down\"}"];
    let token = ["-H", "Authorization: Bearer 0123456789abcdef"];
    for block in ["if", "limit"] {
        let (read, change_of) =
            (url(block, "logs"), url(block, "upstreams/shop/servers/127.0.0.1:1"));
        assert_eq!(curl(&[&read]).0, 401, "{block}");
        assert_eq!(curl(&[&token[..], &[&read]].concat()).0, 200, "{block}");
        assert_eq!(curl(&[&change[..], &[&change_of]].concat()).0, 401, "{block}");
        assert_eq!(curl(&[&token[..], &change, &[&change_of]].concat()).0, 200, "{block}");
    }
}

#[test]
fn the_example_of_the_page_works() {
    let page = include_str!("../docs/api.md");
    let example = examples(page).find(|text| text.contains("weir_api")).unwrap();
    let (a, b) = (behind("a"), free_port());
    let dir = Dir::new();
    let socket = dir.file("api.sock");
    let socket = socket.to_str().unwrap();
    let example = example
        .replace("/run/weir/api.sock", socket)
        .replace("127.0.0.1:8080", "127.0.0.1:%%PORT%%")
        .replace("127.0.0.1:8081", &format!("127.0.0.1:{a}"))
        .replace("127.0.0.1:8082", &format!("127.0.0.1:{b}"));
    // The last section of the page needs the word.
    let example = example.replace("weir_api;", "weir_api config;");
    let server = Server::start_in(dir, WEIR, &format!("events {{ }} http {{ {example} }}"));
    let file = server.dir().file("nginx.conf");
    // The commands of the page.
    let mut commands = 0;
    for line in page.lines().filter_map(|line| line.strip_prefix("    $ ")) {
        let line = line.replace("/run/weir/api.sock", socket);
        let line = line.replace("127.0.0.1:8081", &format!("127.0.0.1:{a}"));
        let line = line.replace("@nginx.conf", &format!("@{}", file.display()));
        let line = line.replacen("curl ", "curl -f -s -S ", 1);
        let mut sh = Command::new("sh");
        let out = sh.current_dir(server.dir().path()).arg("-c").arg(&line).output().unwrap();
        assert!(out.status.success(), "{line}: {out:?}");
        commands += 1;
    }
    assert!(commands >= 6, "{commands}");
    let mut client = Client::connect(server.port());
    assert_eq!(client.get("/").status, 502);
}
