//! Answers that are purged: by key, by prefix, and while they are on their way.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use weir_testkit::{Client, Dir, ask_until};

use super::{body, files, start, start_in, wait_stored};

#[test]
fn answers_are_purged_by_key_and_by_prefix() {
    let server = start(
        "",
        "proxy_cache_key $uri; proxy_cache_purge $http_x_purge;",
        "location / { return 200 answer; }",
    );
    let purge = |path: &str| {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Purge: 1\r\n\r\n"));
        client.response().status
    };
    for path in ["/a/1", "/a/2", "/b"] {
        server.get(path);
    }
    wait_stored(&server, 3);
    assert_eq!(purge("/b"), 204);
    assert_eq!(purge("/b"), 404);
    assert_eq!(server.get("/b").header("X-Cache"), Some("MISS"));
    wait_stored(&server, 3);
    assert_eq!(purge("/a/*"), 204);
    wait_stored(&server, 1);
    assert_eq!(server.get("/a/1").header("X-Cache"), Some("MISS"));
    assert_eq!(server.get("/a/2").header("X-Cache"), Some("MISS"));
}

#[test]
fn a_purged_key_has_no_variants_left() {
    let server = start(
        "",
        "proxy_cache_key $uri; proxy_cache_purge $http_x_purge;",
        "location / { add_header Vary X-Kind; return 200 $http_x_kind; }",
    );
    let ask =
        |path: &str, line: &str| server.ask(&format!("GET {path}"), &format!("{line}\r\n"), "");
    for path in ["/a", "/b"] {
        for kind in ["one", "two", "three"] {
            assert_eq!(ask(path, &format!("X-Kind: {kind}")).body(), kind);
        }
    }
    wait_stored(&server, 6);
    assert_eq!(ask("/a", "X-Purge: 1").status, 204);
    wait_stored(&server, 3);
    for kind in ["one", "two", "three"] {
        let line = format!("X-Kind: {kind}");
        assert_eq!(ask("/a", &line).header("X-Cache"), Some("MISS"), "{kind}");
        assert_eq!(ask("/b", &line).header("X-Cache"), Some("HIT"), "{kind}");
    }
}

#[test]
fn variants_are_purged_when_the_answer_that_was_first_is_gone_or_does_not_vary() {
    let server = start(
        "",
        "proxy_cache_key $uri; proxy_cache_purge $http_x_purge; proxy_cache_bypass $http_x_fresh;",
        "location / { add_header Vary $http_x_vary; return 200 $http_x_kind; }",
    );
    let ask = |line: &str| server.ask("GET /a", &format!("{line}\r\n"), "");
    let directory = server.dir().file("cache");
    for is_gone in [true, false] {
        ask("X-Kind: one\r\nX-Vary: X-Kind");
        wait_stored(&server, 1);
        let first = files(&directory);
        for (n, kind) in [(2, "two"), (3, "three")] {
            ask(&format!("X-Kind: {kind}\r\nX-Vary: X-Kind"));
            wait_stored(&server, n);
        }
        if is_gone {
            std::fs::remove_file(&first[0]).unwrap();
        } else {
            let inode = |path: &PathBuf| std::fs::metadata(path).unwrap().ino();
            let before = inode(&first[0]);
            assert_eq!(ask("X-Fresh: 1\r\nX-Kind: all").body(), "all");
            assert!(ask_until(|| inode(&first[0]) != before));
        }
        assert_eq!(ask("X-Purge: 1").status, 204);
        wait_stored(&server, 0);
        assert_eq!(ask("X-Purge: 1").status, 404);
    }
}

#[test]
fn what_is_on_its_way_can_be_purged() {
    let server = start_in(
        Dir::new(),
        1,
        "",
        "proxy_cache_key $uri; proxy_cache_purge $http_x_purge; proxy_temp_path %%DIR%%/spool;
         proxy_buffers 4 4k;",
        "location / { limit_rate 300k; root %%DIR%%/site; }",
    );
    let body = body(1, 1_000_000);
    server.dir().write("site/large", &body);
    let port = server.port();
    let reader = std::thread::spawn(move || Client::connect(port).get("/large").bytes);
    // It grows where temporary files are, and has no name in the cache.
    assert!(ask_until(|| files(&server.dir().file("spool")).len() == 1));
    assert_eq!(files(&server.dir().file("cache")).len(), 0);
    let mut client = server.connect();
    client.send("GET /large HTTP/1.1\r\nHost: a\r\nX-Purge: 1\r\n\r\n");
    assert_eq!(client.response().status, 204);
    assert!(!reader.is_finished());
    assert!(reader.join().unwrap() == body);
    assert!(ask_until(|| files(&server.dir().file("spool")).is_empty()));
    assert_eq!(files(&server.dir().file("cache")).len(), 0);
}
