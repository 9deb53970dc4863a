//! A configuration that changes while it runs: `PUT /config` of `weir_api`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use rustix::process::Signal;
use serde_json::Value;
use weir_testkit::{
    Client, Dir, Response, Server, ask_until, free_port, listen, memory_of, run, s_client,
};

#[path = "tls/anybody.rs"]
mod anybody;
#[path = "live/clients.rs"]
mod clients;
#[path = "live/given_up.rs"]
mod given_up;
#[path = "live/known.rs"]
mod known;
#[path = "live/parts.rs"]
mod parts;
#[path = "live/servers_file.rs"]
mod servers_file;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// What stands around the locations of a server; `PORT` is where it listens.
fn conf(main: &str, http: &str, locations: &str) -> String {
    format!(
        "worker_processes 2; worker_threads 2; {main} events {{ }}
         http {{ {http}
         server {{ listen 127.0.0.1:%%PORT%%; {locations}
             location /api {{ weir_api config; allow 127.0.0.1; deny all; }}
             location = /metrics {{ weir_status; }} }} }}"
    )
}

fn put(server: &Server, text: &str) -> Response {
    let text = text.replace("%%PORT%%", &server.port().to_string());
    let headers = format!("Content-Type: text/plain\r\nContent-Length: {}\r\n", text.len());
    server.ask("PUT /api/config", &headers, &text)
}

fn json(response: &Response) -> Value {
    serde_json::from_str(&response.body()).unwrap_or_else(|e| panic!("{e}: {}", response.body()))
}

/// The configuration is in use, without a new process.
fn take(server: &Server, text: &str) {
    let answer = put(server, text);
    assert_eq!(answer.status, 200, "{}\n{}", answer.body(), server.log());
    assert_eq!(json(&answer)["taken_by"], "running workers", "{}", answer.body());
}

fn says(word: &str) -> String {
    conf("", "", &format!("location / {{ return 200 {word}; }}"))
}

#[test]
fn requests_that_begin_after_a_change_are_served_by_it_on_kept_connections_too() {
    let server = Server::start(WEIR, &says("old"));
    let workers = server.workers();
    let mut kept: Vec<Client> = (0..16).map(|_| server.connect()).collect();
    for client in &mut kept {
        assert_eq!(client.get("/").body(), "old");
    }
    // Some have been parked, others still pause with their tasks.
    for word in ["new", "newer"] {
        take(&server, &says(word));
        for client in &mut kept {
            assert_eq!(client.get("/").body(), word);
        }
    }
    assert_eq!(server.workers(), workers);
    // A reload means the file.
    server.reload();
    assert_eq!(server.get("/").body(), "old");
}

#[test]
fn a_wrong_text_changes_nothing_and_is_told_with_its_line() {
    let server = Server::start(WEIR, &says("old"));
    let workers = server.workers();
    let answer = put(&server, &says("old").replace("return 200", "retrun 200"));
    let error = json(&answer)["error"].clone();
    assert_eq!((answer.status, &error["line"]), (422, &Value::from(3)), "{error}");
    let text = error["text"].as_str().unwrap();
    assert!(text.contains("unknown directive \"retrun\"") && text.contains('^'), "{text}");
    assert!(error["file"].as_str().unwrap().ends_with("/PUT-config"), "{error}");
    assert_eq!(inside(&error), [0, 1, 0], "{error}");
    // What the master alone may decide.
    let answer = put(&server, &conf("user nobody;", "", ""));
    assert_eq!(answer.status, 403, "{}", answer.body());
    assert!(answer.body().contains("\\\"user\\\""), "{}", answer.body());
    let answer = server.ask(
        "PUT /api/config",
        "Content-Type: application/json\r\nContent-Length: 2\r\n",
        "{}",
    );
    assert_eq!(answer.status, 415);
    assert_eq!(server.get("/").body(), "old");
    assert_eq!(server.workers(), workers);
}

/// Where a directive stands in its outermost block. Lines of `-g` stand before that.
fn inside(error: &Value) -> Vec<u64> {
    let path = error["path"].as_array().unwrap();
    path[1..].iter().map(|n| n.as_u64().unwrap()).collect()
}

/// A tree of these directives, with files.
fn tree(text: &str, files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let tree = weir_conf::read_text(Path::new("Ingress shop/web"), text.as_bytes());
    assert!(tree.broken.is_none());
    let mut texts = weir_conf::FileTexts::default();
    for (path, text) in files {
        texts.insert(path.into(), text.clone());
    }
    weir_conf::write_bytes(&tree.sources, &tree.main, &texts)
}

#[test]
fn a_tree_is_taken_with_its_files_and_a_wrong_one_is_told_with_its_path() {
    let api = "listen unix:%%DIR%%/api.sock; location /api { weir_api config; }";
    let text = |word: &str, more: &str| {
        let http = format!("server {{ {api} }} {more}");
        conf("", &http, &format!("location / {{ return 200 {word}; }}"))
    };
    // Running workers have keys of session tickets.
    let dir = Dir::new();
    certify(&dir, "one");
    let first = "ssl_certificate %%DIR%%/one.crt; ssl_certificate_key %%DIR%%/one.key;";
    let server = Server::start_in(dir, WEIR, &text("old", first));
    let workers = server.workers();
    let put = |bytes: &[u8]| {
        let mut socket = UnixStream::connect(server.dir().file("api.sock")).unwrap();
        let head = format!(
            "PUT /api/config HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\
             Content-Type: application/vnd.weir.tree\r\nContent-Length: {}\r\n\r\n",
            bytes.len()
        );
        socket.write_all(head.as_bytes()).unwrap();
        socket.write_all(bytes).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str::<Value>(body).unwrap())
    };
    let made = |text: String| {
        let text = text.replace("%%PORT%%", &server.port().to_string());
        text.replace("%%DIR%%", &server.dir().path().display().to_string())
    };
    // The certificate and its key are on no disk.
    let names = rcgen::generate_simple_self_signed(["secure.test".to_owned()]).unwrap();
    let files = [
        ("/nowhere/tls.crt", names.cert.pem().into_bytes()),
        ("/nowhere/tls.key", names.signing_key.serialize_pem().into_bytes()),
    ];
    let lines = "ssl_certificate /nowhere/tls.crt; ssl_certificate_key /nowhere/tls.key;
                 upstream u { server 127.0.0.1:9; }";
    let (status, taken) = put(&tree(&made(text("new", lines)), &files));
    assert_eq!((status, &taken["taken_by"]), (200, &"running workers".into()), "{taken}");
    assert_eq!(server.get("/").body(), "new");
    // What stands on that configuration has its files, too.
    let add = "{\"server\": \"127.0.0.1:1\"}";
    let headers = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", add.len());
    let added = server.ask("POST /api/upstreams/u/servers", &headers, add);
    assert_eq!(added.status, 200, "{}", added.body());
    let (status, wrong) = put(&tree(&made(text("newer", lines)), &files[..1]));
    assert_eq!(status, 422, "{wrong}");
    let wrong_text = made(text("newer", "")).replace("return 200", "retrun 200");
    let (status, wrong) = put(&tree(&wrong_text, &[]));
    let error = &wrong["error"];
    assert_eq!((status, &error["file"]), (422, &"Ingress shop/web".into()), "{wrong}");
    assert_eq!((&error["line"], inside(error)), (&3.into(), vec![1, 1, 0]));
    assert!(error["text"].as_str().unwrap().contains('^'), "{wrong}");
    assert_eq!(put(b"no tree").0, 400);
    assert_eq!(server.get("/").body(), "new");
    assert_eq!(server.workers(), workers);
}

#[test]
fn memory_is_given_back_over_hundreds_of_changes() {
    // A site is as large as twenty servers with patterns make it.
    let site = |n: usize| {
        let servers: String = (0..20)
            .map(|i| {
                format!(
                    "server {{ listen 127.0.0.1:%%PORT1%%; server_name s{i}.test;
                       location ~ ^/{i}/(a|b|c)+/{n} {{ return 200 $1; }}
                       location / {{ add_header X-Site {n}; return 200 {i}; }} }}\n"
                )
            })
            .collect();
        conf("", &servers, &format!("location / {{ add_header X-Site {n}; return 200 ok; }}"))
            .replace("worker_processes 2; worker_threads 2;", "")
    };
    let server = Server::start(WEIR, &site(0));
    let workers = server.workers();
    let mut kept = server.connect();
    let mut change = |n: usize| {
        take(&server, &site(n).replace("%%PORT1%%", &server.port_at(1).to_string()));
        assert_eq!(kept.get("/").header("x-site"), Some(n.to_string().as_str()));
    };
    let resident = || -> u64 { workers.iter().map(|pid| memory_of(*pid, "Rss")).sum() };
    // All that grows with the first changes has grown.
    (1..40).for_each(&mut change);
    let early = resident();
    (40..400).for_each(&mut change);
    let late = resident();
    assert!(late < early + early / 4, "{early} KiB after 40 changes, {late} KiB after 400");
    // One for each worker, as soon as nothing has the older ones.
    let held = format!("weir_sites {}", workers.len());
    let freed = ask_until(|| server.get("/metrics").body().lines().any(|line| line == held));
    assert!(freed, "{}", server.get("/metrics").body());
    assert_eq!(server.workers(), workers);
}

#[test]
fn a_change_of_a_large_site_leaves_each_process_one_copy() {
    const SERVERS: usize = 3_000;
    let site = |word: &str| {
        let servers: String = (0..SERVERS)
            .map(|n| {
                format!(
                    "server {{
                         listen 127.0.0.1:%%PORT%%; server_name s{n}.example.com;
                         location / {{ return 200 {word}{n}; }}
                         location /p {{ proxy_pass http://127.0.0.1:1; }}
                     }}\n"
                )
            })
            .collect();
        let text = conf("", "client_max_body_size 8m;", "");
        format!("{} {servers} }}", text.strip_suffix('}').unwrap())
    };
    let server = Server::start(WEIR, &site("a"));
    let processes: Vec<i32> = std::iter::once(server.pid()).chain(server.workers()).collect();
    // Without pages of the program's file: how many of these are resident is the kernel's choice.
    let own = |pid: &i32| memory_of(*pid, "Anonymous") + memory_of(*pid, "Pss_Shmem");
    let resident = || processes.iter().map(own).collect::<Vec<_>>();
    let before = resident();
    for word in ["b", "c"] {
        take(&server, &site(word));
    }
    let is_small =
        || resident().iter().zip(&before).all(|(now, before)| *now < before + before / 2);
    assert!(ask_until(is_small), "{before:?} KiB before, {:?} now", resident());
}

#[test]
fn a_location_without_the_word_takes_no_configuration() {
    let text = says("old").replace("weir_api config", "weir_api");
    let server = Server::start(WEIR, &text);
    assert_eq!(put(&server, &says("new")).status, 403);
    assert_eq!(server.get("/").body(), "old");
}

#[test]
fn new_workers_take_what_running_ones_cannot() {
    let server = Server::start(WEIR, &says("old"));
    let workers = server.workers();
    let other = free_port();
    let more = format!("listen 127.0.0.1:{other}; location / {{ return 200 new; }}");
    let answer = put(&server, &conf("", "", &more));
    assert_eq!(answer.status, 200, "{}", answer.body());
    assert_eq!(json(&answer)["taken_by"], "new workers", "{}", answer.body());
    workers.iter().for_each(|pid| server.wait_gone(*pid));
    assert_eq!(server.get("/").body(), "new");
    assert_eq!(Client::connect(other).get("/").body(), "new");
    // A zone that is not open, and then one that is.
    let zone = |word: &str| {
        let location = format!("location / {{ limit_req zone=z burst=9; return 200 {word}; }}");
        conf(
            "",
            "limit_req_zone $uri zone=z:1m rate=9r/s;",
            &(more.replace("location", "#") + "\n" + &location),
        )
    };
    assert_eq!(json(&put(&server, &zone("a")))["taken_by"], "new workers");
    assert_eq!(json(&put(&server, &zone("b")))["taken_by"], "running workers");
    assert_eq!(server.get("/").body(), "b");
}

#[test]
fn the_successor_of_a_killed_worker_begins_with_the_newest() {
    let server = Server::start(WEIR, &says("old"));
    take(&server, &says("new"));
    for pid in server.workers() {
        server.signal_worker(pid, Signal::KILL);
        server.wait_gone(pid);
        server.wait_log("start worker process ", 3);
    }
    for _ in 0..20 {
        assert_eq!(server.get("/").body(), "new");
    }
    take(&server, &says("newer"));
    assert_eq!(server.get("/").body(), "newer");
}

/// A server that says how many connections it has had, and echoes what comes over a tunnel.
fn behind() -> u16 {
    let connections = AtomicUsize::new(0);
    listen(move |mut stream| {
        let number = connections.fetch_add(1, Ordering::SeqCst) + 1;
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = stream.read(&mut buf) {
            let head = String::from_utf8_lossy(&buf[..n]).to_ascii_lowercase();
            if head.contains("upgrade: echo") {
                let answer = "HTTP/1.1 101 x\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n";
                stream.write_all(answer.as_bytes()).unwrap();
                while let Ok(n @ 1..) = stream.read(&mut buf) {
                    stream.write_all(&buf[..n]).unwrap();
                }
                return;
            }
            let body = number.to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            if stream.write_all((head + &body).as_bytes()).is_err() {
                return;
            }
        }
    })
}

fn proxied(to: u16, n: usize) -> String {
    let http = format!("upstream u {{ server 127.0.0.1:{to}; keepalive 16; }}");
    let pass = "proxy_pass http://u; proxy_http_version 1.1;";
    let tunnel = "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;";
    let locations = format!(
        "add_header X-Site {n};
         location / {{ {pass} proxy_set_header Connection ''; }}
         location = /tunnel {{ {pass} {tunnel} }}"
    );
    conf("", &http, &locations)
}

#[test]
fn no_request_is_lost_while_the_configuration_changes_a_hundred_times() {
    const CHANGES: usize = 100;
    let to = behind();
    let server = Server::start(WEIR, &proxied(to, 0));
    let mut tunnel = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let ask = "GET /tunnel HTTP/1.1\r\nHost: x\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n";
    tunnel.write_all(ask.as_bytes()).unwrap();
    let mut head = [0; 4096];
    let n = tunnel.read(&mut head).unwrap();
    assert!(head[..n].starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head[..n]));
    let over = Arc::new(AtomicBool::new(false));
    let (served, counts) = mpsc::channel();
    for kept in [true, true, false] {
        let (over, served, port) = (over.clone(), served.clone(), server.port());
        thread::spawn(move || {
            let (mut n, mut last) = (0, 0);
            let mut client = Client::connect(port);
            while !over.load(Ordering::SeqCst) {
                if !kept {
                    client = Client::connect(port);
                }
                let answer = client.get("/");
                assert_eq!(answer.status, 200);
                let site: usize = answer.header("x-site").unwrap().parse().unwrap();
                // Another loop may not have taken a change whose answer has not come.
                assert!(site + 1 >= last, "{site} after {last}");
                (n, last) = (n + 1, site);
                // Workers that retire announce the end of a connection.
                if answer.header("connection") == Some("close") {
                    client = Client::connect(port);
                }
            }
            served.send((n, last)).unwrap();
        });
    }
    drop(served);
    for n in 1..=CHANGES {
        let answer = put(&server, &proxied(to, n));
        assert_eq!(answer.status, 200, "{n}: {}\n{}", answer.body(), server.log());
        // It is in all loops when the answer comes.
        assert_eq!(server.get("/").header("x-site"), Some(n.to_string().as_str()));
        tunnel.write_all(&[n as u8]).unwrap();
        let mut echo = [0];
        tunnel.read_exact(&mut echo).unwrap();
        assert_eq!(echo, [n as u8]);
    }
    over.store(true, Ordering::SeqCst);
    let all: Vec<(usize, usize)> = counts.iter().collect();
    assert_eq!(all.len(), 3, "a client has failed");
    assert!(all.iter().all(|(n, last)| *n > CHANGES && last + 1 >= CHANGES), "{all:?}");
}

#[test]
fn connections_to_servers_behind_are_kept_where_the_group_stays() {
    let to = behind();
    let server =
        Server::start(WEIR, &proxied(to, 0).replace("worker_processes 2; worker_threads 2;", ""));
    let mut client = server.connect();
    assert_eq!(client.get("/").body(), "1");
    for n in 1..5 {
        take(&server, &proxied(to, n).replace("worker_processes 2; worker_threads 2;", ""));
        assert_eq!(client.get("/").body(), "1");
    }
}

#[test]
fn servers_come_to_a_group_and_leave_it() {
    let ports: Vec<u16> = (0..2).map(|_| behind()).collect();
    let http = format!("upstream u {{ server 127.0.0.1:{}; keepalive 4; }}", ports[0]);
    let place = "location / { proxy_pass http://u; add_header X-To $upstream_addr; }";
    let server = Server::start(WEIR, &conf("", &http, place));
    let workers = server.workers();
    let ask = |method: &str, body: &str| {
        let length = body.len();
        let headers = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
        server.ask(&format!("{method} /api/upstreams/u/servers"), &headers, body)
    };
    let body = "{\"server\":\"127.0.0.1\"}";
    let (headers, length) = ("Content-Type: application/json\r\nContent-Length:", body.len());
    let nowhere =
        server.ask("POST /api/upstreams/v/servers", &format!("{headers} {length}\r\n"), body);
    assert_eq!(nowhere.status, 404, "{}", nowhere.body());
    let asked = || -> std::collections::BTreeSet<String> {
        let mut client = server.connect();
        let to = |_| client.get("/").header("x-to").unwrap().to_owned();
        (0..16).map(to).collect()
    };
    let name = |n: usize| format!("127.0.0.1:{}", ports[n]);
    let added = ask("POST", &format!("{{\"server\": \"{}\", \"weight\": 2}}", name(1)));
    assert_eq!(added.status, 200, "{}", added.body());
    assert_eq!(asked(), [name(0), name(1)].into());
    let again = ask("POST", &format!("{{\"server\": \"{}\"}}", name(1)));
    assert_eq!(again.status, 409, "{}", again.body());
    let unknown = ask("DELETE", "{\"server\": \"127.0.0.1:1\"}");
    assert_eq!(unknown.status, 404, "{}", unknown.body());
    let removed = ask("DELETE", &format!("{{\"server\": \"{}\"}}", name(0)));
    assert_eq!(removed.status, 200, "{}", removed.body());
    assert_eq!(asked(), [name(1)].into());
    // A group needs a server.
    let last = ask("DELETE", &format!("{{\"server\": \"{}\"}}", name(1)));
    assert_eq!(last.status, 422, "{}", last.body());
    assert_eq!(asked(), [name(1)].into());
    assert_eq!(server.workers(), workers);
}

/// A certificate for a name, and its key, which only this user may read.
fn certify(dir: &Dir, name: &str) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    dir.write(&format!("{name}.crt"), made.cert.pem());
    let key = dir.write(&format!("{name}.key"), made.signing_key.serialize_pem());
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn tickets_of_a_new_lifetime_are_resumed_by_all_workers() {
    let dir = Dir::new();
    certify(&dir, "one");
    let files = dir.path().display().to_string();
    let port = free_port();
    let lasting = |time: &str| {
        conf(
            "",
            &format!(
                "server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {files}/one.crt; ssl_certificate_key {files}/one.key; ssl_session_timeout {time}; }}"
            ),
            "",
        )
    };
    let server = Server::start_in(dir, WEIR, &lasting("10m"));
    server.get("/");
    let answer = put(&server, &lasting("11m"));
    assert_eq!(json(&answer)["taken_by"], "new workers", "{}", answer.body());
    let session = server.dir().file("session").display().to_string();
    let connect = |option: &str| {
        s_client(server.dir().path(), port, &["-tls1_2", option, &session], "").unwrap_or_default()
    };
    if connect("-sess_out").is_empty() {
        return;
    }
    for _ in 0..12 {
        let shown = connect("-sess_in");
        assert!(shown.contains("Reused, "), "{shown}");
    }
    // The lifetimes that running workers know need no new ones.
    take(
        &server,
        &lasting("11m").replace("location /api", "location /more { return 204; } location /api"),
    );
}

/// Where the test is root's, the workers are another user's: they may read no key and make no log.
#[test]
fn running_workers_take_certificates_and_logs_that_only_the_master_can_open() {
    let user = if rustix::process::geteuid().is_root() { "user daemon;" } else { "" };
    let site = |name: &str| {
        let http = format!(
            "access_log %%DIR%%/{name}.log;
             server {{ listen 127.0.0.1:%%PORT1%% ssl; return 200 {name}; ssl_certificate {name}.crt; ssl_certificate_key {name}.key; }}"
        );
        conf(user, &http, &format!("location / {{ return 200 {name}; }}"))
    };
    let dir = Dir::new();
    certify(&dir, "old.test");
    let server = Server::start_in(dir, WEIR, &site("old.test"));
    ["one.test", "two.test", "three.test"].iter().for_each(|name| certify(server.dir(), name));
    let made = |text: String| {
        let text = text.replace("%%PORT1%%", &server.port_at(1).to_string());
        text.replace("%%DIR%%", &server.dir().path().display().to_string())
    };
    let workers = server.workers();
    for name in ["one.test", "two.test", "three.test"] {
        take(&server, &made(site(name)));
        assert_eq!(server.get("/").body(), name);
        server.wait_file(&format!("{name}.log"), "GET / HTTP/1.1", 1);
        let ask = format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
        let (dir, port) = (server.dir().path(), server.port_at(1));
        if let Some(said) = s_client(dir, port, &["-quiet", "-servername", name], &ask) {
            assert!(said.contains(&format!("\r\n\r\n{name}")), "{said}");
        }
        if let Some(shown) = s_client(dir, port, &["-showcerts", "-servername", name], "") {
            let own = server.dir().read(&format!("{name}.crt"));
            assert!(shown.contains(own.trim()), "{shown}");
        }
    }
    assert_eq!(server.workers(), workers);
}

#[test]
fn a_long_download_keeps_its_configuration_alone() {
    let site = |n: usize| {
        let place = "root %%DIR%%; limit_rate 400k; limit_rate_after 64k;";
        conf("", "", &format!("location / {{ {place} add_header X-Site {n}; }}"))
    };
    let server = Server::start(WEIR, &site(0));
    let made = |n| site(n).replace("%%DIR%%", &server.dir().path().display().to_string());
    let contents: Vec<u8> = (0..400_000u32).flat_map(u32::to_le_bytes).collect();
    server.dir().write("large", &contents);
    let mut download = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    download.write_all(b"GET /large HTTP/1.0\r\n\r\n").unwrap();
    let mut got = vec![0; 4096];
    let n = download.read(&mut got).unwrap();
    got.truncate(n);
    assert!(String::from_utf8_lossy(&got).contains("X-Site: 0"));
    (1..50).for_each(|n| take(&server, &made(n)));
    let sites = || {
        let page = server.get("/metrics").body();
        let line = page.lines().find(|line| line.starts_with("weir_sites ")).unwrap().to_owned();
        line.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
    };
    // Each worker has the newest, and one of them the download's.
    assert!(ask_until(|| sites() == server.workers().len() + 1), "{}", sites());
    download.read_to_end(&mut got).unwrap();
    assert!(got.ends_with(&contents));
    assert!(ask_until(|| sites() == server.workers().len()), "{}", sites());
}

/// Routes come and go: names that no configuration has any more are not counted for ever.
#[test]
fn a_name_that_goes_makes_room() {
    let server = Server::start(WEIR, &says("ok"));
    let with = |name: &str| {
        let zones = format!(
            "location / {{ status_zone {name}; return 200 ok; }}
             location /stays {{ status_zone stays; return 200 ok; }}"
        );
        take(&server, &conf("", "", &zones));
    };
    let counted = |name: &str| {
        let text = server.get("/metrics").body();
        let begin = format!("weir_zone_requests_total{{zone=\"{name}\",status=\"2xx\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&begin)?.parse::<u64>().ok())
    };
    with("comes");
    for path in ["/", "/", "/stays", "/stays", "/stays"] {
        assert_eq!(server.get(path).status, 200);
    }
    assert!(ask_until(|| (counted("comes"), counted("stays")) == (Some(2), Some(3))));
    with("other");
    assert_eq!((counted("comes"), counted("other"), counted("stays")), (None, Some(0), Some(3)));
    // Its counters went with the last request of its configuration.
    assert!(ask_until(|| {
        with("comes");
        let begins = counted("comes") == Some(0);
        with("other");
        begins
    }));
    assert_eq!(counted("stays"), Some(3));
}
