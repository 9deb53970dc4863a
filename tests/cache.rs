//! `proxy_cache`: what clients get, what is left on the disk, and that nothing half-written is ever served.

use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use weir_testkit::{Client, Dir, Server, ask_until, examples};

#[path = "cache/disk.rs"]
mod disk;
#[path = "cache/hostile.rs"]
mod hostile;
#[path = "cache/purging.rs"]
mod purging;
#[path = "cache/readers.rs"]
mod readers;
#[path = "cache/shared.rs"]
mod shared;
#[path = "cache/standard.rs"]
mod standard;
#[path = "cache/tags.rs"]
mod tags;
#[path = "cache/updates.rs"]
mod updates;
#[path = "cache/validation.rs"]
mod validation;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A server with a cache before itself: port 0 asks port 1. Another worker process would not know for a moment that
/// a file is there, and might fetch and store the answer, too.
fn start(path: &str, cached: &str, origin: &str) -> Server {
    start_in(Dir::new(), 1, path, cached, origin)
}

fn start_in(dir: Dir, workers: usize, path: &str, cached: &str, origin: &str) -> Server {
    let conf = format!(
        "worker_processes {workers};
         events {{ }}
         http {{
             access_log off;
             log_format range $http_range;
             proxy_cache_path %%DIR%%/cache levels=1:2 keys_zone=one:1m {path};
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 location / {{
                     proxy_pass http://127.0.0.1:%%PORT1%%;
                     proxy_cache one;
                     proxy_cache_valid any 1m;
                     add_header X-Cache $upstream_cache_status always;
                     {cached}
                 }}
                 location = /status {{ weir_status; }}
             }}
             server {{ listen 127.0.0.1:%%PORT1%%; {origin} }}
         }}"
    );
    Server::start_in(dir, WEIR, &conf)
}

#[test]
fn a_reload_with_other_levels_or_another_path_is_refused() {
    let server = start("", "", "location / { return 200 $request_id; }");
    let conf = server.dir().read("nginx.conf");
    let kept = server.get("/a").body();
    let prefix = server.dir().path().display().to_string();
    for (old, new, text) in [
        ("levels=1:2", "levels=2", "cache \"one\" had previously different levels".to_owned()),
        (
            "/cache ",
            "/other ",
            format!(
                "cache \"one\" uses the \"{prefix}/other\" cache path while previously it used the \"{prefix}/cache\" \
                 cache path"
            ),
        ),
    ] {
        server.configure(&conf.replace(old, new));
        server.signal(Signal::HUP);
        server.wait_log(&text, 1);
        let r = server.get("/a");
        assert_eq!((r.body(), r.header("X-Cache")), (kept.clone(), Some("HIT")), "{new}");
    }
}

/// Asks until the cache says this: another process may not know at once what one has stored.
fn get_until(server: &Server, path: &str, status: &str) -> weir_testkit::Response {
    let mut last = None;
    let came = ask_until(|| {
        let r = server.get(path);
        let is = r.header("X-Cache") == Some(status);
        last = Some(r);
        is
    });
    assert!(came, "{path} does not become {status}:\n{}", server.log());
    last.expect("an answer")
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for item in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match item.path() {
            path if path.is_dir() => all.extend(files(&path)),
            path => all.push(path),
        }
    }
    all
}

/// An answer is on its way for a moment before it is in its file, where other processes see it.
fn wait_stored(server: &Server, n: usize) {
    let directory = server.dir().file("cache");
    assert!(ask_until(|| files(&directory).len() == n), "{}", server.log());
}

/// A number of the status page.
fn counted(server: &Server, name: &str) -> f64 {
    let status = server.get("/status").body();
    let line = status.lines().find(|line| line.starts_with(name));
    let number = line.and_then(|line| line.split(' ').next_back()?.parse().ok());
    number.unwrap_or_else(|| panic!("no {name} in {status}"))
}

/// Body of an object: every byte follows from its name.
fn body(name: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i * 31 + name * 7) % 251) as u8).collect()
}

#[test]
fn an_answer_is_kept_and_survives_a_reload() {
    let server = start("", "", "location / { root %%DIR%%/site; }");
    let dir = server.dir();
    dir.write("site/a.txt", "first");
    let r = server.get("/a.txt");
    assert_eq!((r.header("X-Cache"), r.body().as_str()), (Some("MISS"), "first"));
    wait_stored(&server, 1);
    // The file is there a moment before all workers know of it.
    get_until(&server, "/a.txt", "HIT");
    dir.write("site/a.txt", "second");
    assert_eq!(get_until(&server, "/a.txt", "HIT").body(), "first");
    server.reload();
    let r = server.get("/a.txt");
    assert_eq!((r.header("X-Cache"), r.body().as_str()), (Some("HIT"), "first"));

    // An operator who removes the files removes the answers within a second, even those in memory.
    for file in files(&dir.file("cache")) {
        std::fs::remove_file(file).unwrap();
    }
    assert!(ask_until(|| server.get("/a.txt").body() == "second"));
}

/// The server behind hears no condition and no range where its answer may be kept: they are answered here, though this one
/// is not.
#[test]
fn conditions_and_parts_of_what_might_be_kept_are_answered_here() {
    let ask = |cached: &str, origin: &str, header: &str| {
        let origin = format!("location / {{ root %%DIR%%/site; {origin} }}");
        let server = start("", cached, &origin);
        server.dir().write("site/a.txt", "0123456789");
        let tag = server.get("/a.txt").header("ETag").expect("a tag").to_string();
        let header = header.replace("TAG", &tag);
        let mut client = server.connect();
        let r = client.ask("GET /a.txt", &format!("{header}\r\n"), "");
        // And the connection goes on.
        assert_eq!(client.get("/a.txt").status, 200);
        (r.status, r.body())
    };
    for cached in ["proxy_no_cache 1;", "proxy_buffering off;"] {
        assert_eq!(ask(cached, "", "If-None-Match: TAG"), (304, String::new()), "{cached}");
        assert_eq!(ask(cached, "", "If-Match: \"other\"").0, 412, "{cached}");
        assert_eq!(ask(cached, "", "Range: bytes=2-4"), (206, "234".to_string()), "{cached}");
        let whole = (200, "0123456789".to_string());
        let never = "add_header Set-Cookie a=b;";
        for header in ["If-None-Match: TAG", "If-Match: \"other\"", "Range: bytes=2-4"] {
            assert_eq!(ask(cached, never, header), whole, "{cached} {header}");
        }
    }
}

#[test]
fn a_hit_is_the_same_wherever_it_comes_from() {
    for memory in ["1m", "0"] {
        let cached = format!("proxy_cache_memory {memory}; gzip on; gzip_types *;");
        let server = start("", &cached, "location / { root %%DIR%%/site; }");
        for (name, len) in [(1, 1_000), (2, 20_000), (3, 60_000), (4, 200_000)] {
            let (path, body) = (format!("/{name}"), body(name, len));
            server.dir().write(&format!("site/{name}"), &body);
            assert_eq!(server.get(&path).bytes, body);
            for _ in 0..3 {
                assert_eq!(get_until(&server, &path, "HIT").bytes, body, "{path} {memory}");
            }
            let ask = |line: &str| server.ask(&format!("GET {path}"), &format!("{line}\r\n"), "");
            let part = ask("Range: bytes=600-899");
            assert_eq!((part.status, part.bytes.as_slice()), (206, &body[600..900]), "{path}");
            let coded = ask("Accept-Encoding: gzip");
            assert_eq!(coded.header("Content-Encoding"), Some("gzip"));
            let mut back = Vec::new();
            flate2::read::GzDecoder::new(coded.bytes.as_slice()).read_to_end(&mut back).unwrap();
            assert_eq!(back, body, "{path} {memory}");

            // A file that takes the place of the one that is open or in memory counts. What came last may have been
            // served before it was in its file; beside it is the one before.
            wait_stored(&server, if name == 1 { 1 } else { 2 });
            let changed: Vec<u8> = body.iter().rev().copied().collect();
            server.dir().write(&format!("site/{name}"), &changed);
            for file in files(&server.dir().file("cache")) {
                std::fs::remove_file(file).unwrap();
            }
            assert!(ask_until(|| server.get(&path).bytes == changed), "{path} {memory}");
        }
    }
}

#[test]
fn a_hit_says_its_length_though_the_server_did_not() {
    for version in ["1.0", "1.1"] {
        let cached = format!("proxy_http_version {version}; proxy_force_ranges on;");
        // What is looked through for commands has no length.
        let server = start("", &cached, "location / { root %%DIR%%/site; ssi on; ssi_types *; }");
        server.dir().write("site/a", "0123456789");
        let first = server.get("/a");
        assert_eq!((first.header("Content-Length"), first.body().as_str()), (None, "0123456789"));
        let hit = get_until(&server, "/a", "HIT");
        assert_eq!((hit.header("Content-Length"), hit.body().as_str()), (Some("10"), "0123456789"));
        let part = server.ask("GET /a", "Range: bytes=2-4\r\n", "");
        let length = part.header("Content-Range");
        assert_eq!((part.status, length, part.body().as_str()), (206, Some("bytes 2-4/10"), "234"));
    }
}

#[test]
fn a_hit_in_memory_needs_no_file() {
    for (memory, status) in [("", "HIT"), ("proxy_cache_memory 0;", "MISS")] {
        let server = start("", memory, "location / { root %%DIR%%/site; }");
        server.dir().write("site/a", "answer");
        get_until(&server, "/a", "HIT");
        wait_stored(&server, 1);
        for file in files(&server.dir().file("cache")) {
            std::fs::remove_file(file).unwrap();
        }
        // The worker that stored it may serve it from memory for another moment.
        let again = match status {
            "MISS" => get_until(&server, "/a", status),
            _ => server.get("/a"),
        };
        assert_eq!((again.header("X-Cache"), again.body()), (Some(status), "answer".to_owned()));
    }
}

#[test]
fn one_request_fetches_what_many_wait_for() {
    let server = start(
        "",
        "proxy_cache_lock on; proxy_cache_lock_timeout 20s; proxy_cache_lock_age 20s;",
        "location / { limit_rate 100k; root %%DIR%%/site; access_log %%DIR%%/origin.log; }",
    );
    let dir = server.dir();
    let body: String = (0..40_000).map(|n| format!("{n:07} ")).collect();
    dir.write("site/large", &body);
    let port = server.port();
    let clients: Vec<_> = (0..8)
        .map(|_| std::thread::spawn(move || Client::connect(port).get("/large").body()))
        .collect();
    for client in clients {
        assert!(client.join().unwrap() == body);
    }
    // What the origin serves last is logged last.
    assert_eq!(Client::connect(server.port_at(1)).get("/last").status, 404);
    server.wait_file("origin.log", "GET /last ", 1);
    let origin = dir.read("origin.log");
    assert_eq!(origin.matches("GET /large ").count(), 1, "{origin}");
}

#[test]
fn something_old_is_sent_while_it_is_updated_and_when_it_cannot_be() {
    let server = start(
        "",
        "proxy_cache_use_stale updating error http_500; proxy_cache_background_update on;",
        "location / { add_header X-Accel-Expires 1; root %%DIR%%/site;
                      if (-f %%DIR%%/broken) { return 500; } }",
    );
    let dir = server.dir();
    dir.write("site/a", "first");
    assert_eq!(server.get("/a").body(), "first");
    wait_stored(&server, 1);
    dir.write("site/a", "second");
    assert_eq!(get_until(&server, "/a", "STALE").body(), "first");
    assert!(ask_until(|| server.get("/a").body() == "second"));
    dir.write("broken", "");
    assert_eq!(get_until(&server, "/a", "STALE").body(), "second");
    assert_eq!(server.get("/a").status, 200);
}

#[test]
fn without_revalidation_no_server_is_asked_about_a_stale_answer() {
    let server = start(
        "",
        "",
        "location / { root %%DIR%%/site; add_header X-Accel-Expires 1; access_log %%DIR%%/origin.log; }",
    );
    server.dir().write("site/a", "answer");
    assert_eq!(server.get("/a").status, 200);
    wait_stored(&server, 1);
    assert_eq!(get_until(&server, "/a", "EXPIRED").status, 200);
    assert_eq!(Client::connect(server.port_at(1)).get("/last").status, 404);
    server.wait_file("origin.log", "GET /last ", 1);
    let origin = server.dir().read("origin.log");
    assert!(origin.contains("GET /a ") && !origin.contains(" 304 "), "{origin}");
}

#[test]
fn large_answers_are_stored_while_they_are_sent() {
    // Its length and the sizes of buffers are such that memory is full to the byte.
    let server = start(
        "",
        "proxy_cache_memory 0; proxy_buffer_size 4k;",
        "location / { root %%DIR%%/site; }",
    );
    let body: Vec<u8> = (0..4u32 << 20).map(|n| (n % 251) as u8).collect();
    server.dir().write("site/large", &body);
    for _ in 0..3 {
        assert!(server.get("/large").bytes == body);
    }
    assert!(get_until(&server, "/large", "HIT").bytes == body);
}

#[test]
fn a_key_that_the_buffer_for_heads_would_not_hold_is_none() {
    let conf = "proxy_cache_key $uri; proxy_buffer_size 1k;";
    let origin = "location / { add_header X-Method $request_method; return 200; }";
    let server = start("", conf, origin);
    let path = |length: usize| format!("/{}", "k".repeat(length - 1));
    let get = |length: usize| server.get(&path(length));
    assert_eq!(get(425).header("X-Cache"), Some("MISS"));
    assert_eq!(server.logged("is not enough for cache key"), 0);
    assert_eq!((get(426).status, get(426).header("X-Cache")), (200, None));
    let text = "proxy_buffer_size 1024 is not enough for cache key, it should be increased to at least 2048";
    server.wait_log(text, 2);
    // HEAD is converted before the key is judged.
    let mut client = server.connect();
    client.send(format!("HEAD {} HTTP/1.0\r\n\r\n", path(426)));
    let head = client.rest();
    assert!(head.contains("X-Method: GET"), "{head}");
}

#[test]
fn a_hit_needs_no_name_resolved() {
    let server = start(
        "",
        "proxy_cache_key $uri; if ($arg_host) { proxy_pass http://$arg_host; }",
        "location / { return 200 answer; }",
    );
    assert_eq!(server.get("/a?host=nowhere.test").status, 502);
    assert_eq!(server.get("/a").body(), "answer");
    wait_stored(&server, 1);
    let r = get_until(&server, "/a?host=nowhere.test", "HIT");
    assert_eq!((r.status, r.body().as_str()), (200, "answer"));
}

#[test]
fn slices_are_kept_one_by_one() {
    let server = start(
        "",
        "slice 100k; proxy_cache_key $uri$slice_range; proxy_set_header Range $slice_range;",
        "location / { root %%DIR%%/site; access_log %%DIR%%/origin.log range; }",
    );
    let body = body(1, 450_000);
    server.dir().write("site/large", &body);
    let range = |from: usize, to: usize| {
        let mut client = server.connect();
        client.send(format!("GET /large HTTP/1.1\r\nHost: a\r\nRange: bytes={from}-{to}\r\n\r\n"));
        let r = client.response();
        assert_eq!(r.status, 206);
        assert!(r.bytes == body[from..=to], "{from}-{to}");
    };
    range(150_000, 250_000);
    wait_stored(&server, 2);
    range(110_000, 200_000);
    assert!(server.get("/large").bytes == body);
    wait_stored(&server, 5);
    // Nothing behind the part that was wanted first was fetched with it.
    server.wait_file("origin.log", "\n", 5);
    let asked = server.dir().read("origin.log");
    let asked: Vec<_> = asked.lines().filter_map(|line| line.split(['=', '-']).nth(1)).collect();
    assert_eq!(asked, ["102400", "204800", "0", "307200", "409600"]);
    for _ in 0..3 {
        assert!(server.get("/large").bytes == body);
    }
}

#[test]
fn the_example_of_the_page_works() {
    let page = include_str!("../docs/cache.md");
    let example = examples(page).next().unwrap();
    let http = example
        .replace("/var/cache/weir", "%%DIR%%/cache")
        .replace("listen 80", "listen 127.0.0.1:%%PORT%%")
        .replace("127.0.0.1:8080", "127.0.0.1:%%PORT1%%");
    let origin = "server { listen 127.0.0.1:%%PORT1%%; return 200 $request_method; }";
    let server = Server::start(WEIR, &format!("events {{ }} http {{ {http} {origin} }}"));
    assert_eq!(server.get("/a").header("X-Cache"), Some("MISS"));
    assert_eq!(get_until(&server, "/a", "HIT").body(), "GET");
    let mut client = server.connect();
    client.send("PURGE /a HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.response().status, 204);
    assert_eq!(server.get("/a").header("X-Cache"), Some("MISS"));
}
