//! What becomes of an answer that is too old or of no use: which request asks for a new one, and
//! where that is put.

use std::io::{Read, Write};
use std::net::TcpListener;

use weir_testkit::{Client, Dir, Server, ask_until};

use super::{body, counted, files, get_until, start, start_in, wait_stored};

/// Something old is sent, and updated beside.
const BESIDE: &str = "proxy_cache_use_stale updating; proxy_cache_background_update on;";
/// Answers that are fresh for a second.
const BRIEF: &str = "location / { add_header X-Accel-Expires 1; root %%DIR%%/site;
                      access_log %%DIR%%/origin.log; }";

#[test]
fn an_update_for_head_asks_with_get() {
    let server = start("", BESIDE, BRIEF);
    server.dir().write("site/a", "answer");
    server.dir().write("site/b", "other");
    assert_eq!(server.get("/a").body(), "answer");
    wait_stored(&server, 1);
    let head = "HEAD /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    assert!(ask_until(|| server.connect().send(head).rest().contains("X-Cache: STALE")));
    // The update is over, and the connection stands where its client thinks.
    let mut client = server.connect();
    get_until(&server, "/a", "HIT");
    assert_eq!(client.get("/a").body(), "answer");
    assert_eq!(client.get("/b").body(), "other");
    assert!(!server.dir().read("origin.log").contains("HEAD /a"));
}

#[test]
fn an_answer_to_head_is_followed_by_no_other_answer() {
    let server = start("", "proxy_cache_convert_head off; proxy_cache_key $uri;", BRIEF);
    server.dir().write("site/a", "answer");
    let ask = |method: &str, rest: &str| {
        let text = format!("{method} /a HTTP/1.1\r\nHost: a\r\n{rest}\r\n");
        server.connect().send(text).rest()
    };
    assert!(ask("HEAD", "Connection: close\r\n").contains("X-Cache: MISS"));
    // Bytes are promised that do not come, from this answer or another one.
    let rest = ask("GET", "\r\nGET /b HTTP/1.1\r\nHost: a\r\n");
    assert!(rest.contains("X-Cache: HIT") && rest.contains("Connection: close"), "{rest}");
    assert!(rest.contains("Content-Length: 6") && rest.ends_with("\r\n\r\n"), "{rest}");
    assert_eq!(rest.matches("HTTP/1.1").count(), 1, "{rest}");
}

#[test]
fn an_expired_permission_is_asked_for_again() {
    let server = start(
        "",
        &format!("{BESIDE} location = /page {{ auth_request /ask; root %%DIR%%/site; }}"),
        "location / { add_header X-Accel-Expires 1 always; root %%DIR%%/site;
                      if (-f %%DIR%%/denied) { return 403; } }",
    );
    let dir = server.dir();
    dir.write("site/page", "page");
    dir.write("site/ask", "");
    assert_eq!(server.get("/page").body(), "page");
    wait_stored(&server, 1);
    dir.write("denied", "");
    assert!(ask_until(|| server.get("/page").status == 403), "{}", server.log());
}

#[test]
fn an_included_part_is_updated() {
    let server = start(
        "",
        &format!("{BESIDE} location = /page {{ ssi on; ssi_types *; root %%DIR%%/site; }}"),
        BRIEF,
    );
    let dir = server.dir();
    dir.write("site/page", r#"[<!--#include virtual="/part" -->]"#);
    dir.write("site/part", "first");
    assert_eq!(server.get("/page").body(), "[first]");
    wait_stored(&server, 1);
    dir.write("site/part", "second");
    assert!(ask_until(|| server.get("/page").body() == "[second]"), "{}", server.log());
}

#[test]
fn an_update_that_is_sent_elsewhere_takes_only_its_own_place() {
    let server = start(
        "",
        &format!("{BESIDE} proxy_cache_key $uri;"),
        "location = /a { add_header X-Accel-Expires 1;
                         if (-f %%DIR%%/moved) { add_header X-Accel-Redirect /b; }
                         return 200 A; }
         location = /b { return 200 B; }",
    );
    assert_eq!(server.get("/a").body(), "A");
    wait_stored(&server, 1);
    server.dir().write("moved", "");
    assert_eq!(get_until(&server, "/a", "STALE").body(), "A");
    wait_stored(&server, 2);
    assert_eq!(get_until(&server, "/b", "HIT").body(), "B");
    let a = server.get("/a");
    assert_eq!((a.header("X-Cache"), a.body().as_str()), (Some("STALE"), "A"));
}

#[test]
fn a_slice_is_updated_by_the_same_slice() {
    let server = start(
        "",
        &format!(
            "slice 100k; proxy_cache_key $uri$slice_range;
             proxy_set_header Range $slice_range; {BESIDE}"
        ),
        "location / { add_header X-Accel-Expires 1; root %%DIR%%/site;
                      access_log %%DIR%%/origin.log range; }",
    );
    let body = body(1, 250_000);
    server.dir().write("site/large", &body);
    let part = || server.ask("GET /large", "Range: bytes=110000-110009\r\n", "");
    assert_eq!(part().bytes, body[110_000..110_010]);
    wait_stored(&server, 1);
    assert!(ask_until(|| {
        let part = part();
        assert_eq!(part.bytes, body[110_000..110_010]);
        part.header("X-Cache") == Some("STALE")
    }));
    server.wait_file("origin.log", "\n", 2);
    for line in server.dir().read("origin.log").lines() {
        assert_eq!(line, "bytes=102400-204799");
    }
    // The other slices' updates are those of subrequests.
    assert!(server.get("/large").bytes == body);
    wait_stored(&server, 3);
    let asked = || server.dir().read("origin.log").lines().count();
    let before = asked();
    assert!(ask_until(|| {
        assert!(server.get("/large").bytes == body);
        asked() >= before + 3
    }));
    assert!(!server.dir().read("origin.log").contains("-\n"), "a whole answer was asked for");
}

#[test]
fn a_purged_answer_is_gone_from_all_workers() {
    let server = start_in(
        Dir::new(),
        2,
        "",
        "proxy_cache_key $uri; proxy_cache_purge $http_x_purge; add_header X-Pid $pid;",
        "location / { root %%DIR%%/site; }",
    );
    let dir = server.dir();
    dir.write("site/any", "any");
    let [mut one, mut other] = client_of_each_worker(&server);
    for name in 1..=5 {
        let (path, file) = (format!("/{name}"), format!("site/{name}"));
        dir.write(&file, "old");
        one.get(&path);
        wait_stored(&server, name + 1);
        other.get(&path);
        dir.write(&file, "new");
        assert_eq!(one.ask(&format!("GET {path}"), "X-Purge: 1\r\n", "").status, 204);
        assert_eq!(one.get(&path).body(), "new");
        wait_stored(&server, name + 1);
        assert_eq!(other.get(&path).body(), "new", "{path}");
    }
}

#[test]
fn what_a_client_has_had_whole_another_worker_has_too() {
    let cached = "proxy_cache_key $uri; proxy_cache_valid 200 1h; add_header X-Pid $pid;";
    let server = start_in(Dir::new(), 2, "", cached, "location / { root %%DIR%%/site; etag off; }");
    server.dir().write("site/any", "any");
    let mut clients = client_of_each_worker(&server);
    for name in 0..100 {
        server.dir().write(&format!("site/{name}"), "x".repeat(name * 1000));
        let path = format!("/{name}");
        assert_eq!(clients[0].get(&path).header("X-Cache"), Some("MISS"), "{path}");
        assert_eq!(clients[1].get(&path).header("X-Cache"), Some("HIT"), "{path}");
        clients.reverse();
    }
}

/// A kept connection to each of two workers, which send their number with `/any`.
fn client_of_each_worker(server: &Server) -> [Client; 2] {
    let (mut of_each, mut others) = (Vec::<(String, Client)>::new(), Vec::new());
    assert!(ask_until(|| {
        let mut client = server.connect();
        let pid = client.get("/any").header("X-Pid").unwrap_or_default().to_owned();
        match of_each.iter().any(|(known, _)| *known == pid) {
            // Its worker has one more to look after than the other one.
            true => others.push(client),
            false => of_each.push((pid, client)),
        }
        of_each.len() == 2
    }));
    let mut clients = of_each.into_iter().map(|(_, client)| client);
    [clients.next().unwrap(), clients.next().unwrap()]
}

/// A server that answers every connection with this text.
fn says(text: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { return };
            let _ = connection.read(&mut [0; 4096]);
            let _ = connection.write_all(text.as_bytes());
        }
    });
    port
}

#[test]
fn an_answer_without_a_head_is_not_kept() {
    let port = says("something else\n");
    let cached = format!("location = /old {{ proxy_pass http://127.0.0.1:{port}; }}");
    let server = start("", &cached, "location / { return 200 answer; }");
    for _ in 0..3 {
        assert_eq!(server.get("/old").status, 502);
    }
    assert_eq!(server.logged("[crit]"), 0, "{}", server.log());
}

#[test]
fn a_cache_that_there_is_not_is_an_error() {
    let server = start(
        "",
        "location = /named { proxy_pass http://127.0.0.1:%%PORT1%%; proxy_cache $arg_zone;
                             proxy_cache_purge $arg_purge; }",
        "location / { return 200 answer; }",
    );
    for (query, status, cache) in [
        ("zone=one", 200, Some("MISS")),
        ("zone=off", 200, None),
        ("", 200, None),
        ("zone=two", 500, None),
        ("zone=two&purge=1", 500, None),
        ("purge=1", 404, None),
    ] {
        let r = server.get(&format!("/named?{query}"));
        assert_eq!((r.status, r.header("X-Cache")), (status, cache), "{query}");
    }
    server.wait_log("cache \"two\" not found", 2);
}

/// The file of an earlier version of weir is no fault of the disk: the answer is fetched again.
#[test]
fn a_file_of_another_version_is_replaced() {
    let server =
        start_in(Dir::new(), 1, "", "proxy_cache_memory 0;", "location / { root %%DIR%%/site; }");
    let dir = server.dir();
    dir.write("site/a", "first");
    get_until(&server, "/a", "HIT");
    wait_stored(&server, 1);
    let [file] = files(&dir.file("cache")).try_into().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[..8].copy_from_slice(b"weirca02");
    // Another file takes the name: the open one is not looked at any more.
    dir.write("old", bytes);
    std::fs::rename(dir.file("old"), &file).unwrap();
    dir.write("site/a", "second");
    assert_eq!(get_until(&server, "/a", "MISS").body(), "second");
    assert_eq!(get_until(&server, "/a", "HIT").body(), "second");
    assert_eq!(counted(&server, "weir_cache_faults_total"), 0.0);
}
