//! Tags and groups: many answers are purged at once, after a restart, too.

use weir_testkit::{Dir, Server};

use super::{ask_until, files, get_until, start_in};

const ORIGIN: &str = "location / { add_header Cache-Control max-age=1000; return 200 $request_id; }
     location /one { add_header Cache-Control max-age=1000; add_header Surrogate-Key 'red  x1'; return 200 $request_id; }
     location /two { add_header Cache-Control max-age=1000; add_header xkey 'red x2'; return 200 $request_id; }
     location /three { add_header Cache-Control max-age=1000; add_header Cache-Tag 'green tea, x3'; return 200 $request_id; }
     location /group { add_header Cache-Control max-age=1000; add_header Cache-Groups '\"a, b\", \"c\"'; return 200 $request_id; }
     location /change { add_header Cache-Group-Invalidation '\"c\";x'; return 204; }";

const ALL: [&str; 5] = ["/plain", "/one", "/two", "/three", "/group"];

fn start(cached: &str) -> Server {
    start_in(Dir::new(), 1, "", &format!("proxy_cache_key $uri; {cached}"), ORIGIN)
}

/// Another server with the same cache.
fn restarted(mut server: Server, cached: &str) -> Server {
    server.stop();
    let dir = Dir::new();
    std::fs::rename(server.dir().file("cache"), dir.file("cache")).unwrap();
    start_in(dir, 1, "", &format!("proxy_cache_key $uri; {cached}"), ORIGIN)
}

fn ask(server: &Server, method: &str, path: &str, fields: &str) -> u16 {
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let said = server.connect().send(text).rest();
    said.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

fn state(server: &Server, path: &str) -> String {
    let said = server
        .connect()
        .send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
        .rest();
    let line = said.lines().find_map(|line| line.strip_prefix("X-Cache: "));
    line.unwrap_or_default().to_owned()
}

fn fill(server: &Server) {
    for path in ALL {
        assert!(ask_until(|| state(server, path) == "HIT"), "{}", server.log());
    }
}

/// Those that are gone are asked for again; the others stay.
fn gone(server: &Server, expected: &[&str]) {
    for path in ALL {
        let is = if expected.contains(&path) { "MISS" } else { "HIT" };
        assert_eq!(state(server, path), is, "{path}\n{}", server.log());
    }
    fill(server);
}

#[test]
fn answers_are_purged_by_tag_and_by_group() {
    for rules in ["proxy_cache_rules rfc9111;", ""] {
        let server = start(&format!("{rules} proxy_cache_purge PURGE from 127.0.0.1;"));
        fill(&server);
        let purge = |fields: &str| ask(&server, "PURGE", "/", fields);
        assert_eq!(purge("Surrogate-Key: red\r\n"), 200);
        gone(&server, &["/one", "/two"]);
        assert_eq!(purge("xkey: none\r\n"), 412);
        gone(&server, &[]);
        assert_eq!(purge("Cache-Tag: x1, green tea\r\n"), 200);
        gone(&server, &["/one", "/three"]);
        assert_eq!(purge("Cache-Groups: \"a, b\"\r\n"), 200);
        gone(&server, &["/group"]);
        if rules.is_empty() {
            continue;
        }
        // A change says which group it makes invalid.
        assert_eq!(ask(&server, "POST", "/change", ""), 204);
        gone(&server, &["/group"]);
    }
}

/// The index of tags is on the disk, and so are the answers.
#[test]
fn tags_are_known_after_a_restart() {
    for memory in ["", "proxy_cache_memory 0;"] {
        let cached = format!("proxy_cache_rules rfc9111; {memory} proxy_cache_purge PURGE;");
        let server = start(&cached);
        fill(&server);
        let bodies = ALL.map(|path| server.get(path).body());
        // The last answer may still be on its way to its file. Those of tags are beside the answers.
        let directory = server.dir().file("cache");
        let stored = || files(&directory).len() - files(&directory.join("tags")).len();
        assert!(ask_until(|| stored() == ALL.len()), "{}", server.log());
        let server = restarted(server, &cached);
        for (path, body) in ALL.iter().zip(&bodies) {
            assert_eq!(get_until(&server, path, "HIT").body(), *body, "{path}");
        }
        assert_eq!(ask(&server, "PURGE", "/", "xkey: red\r\n"), 200);
        gone(&server, &["/one", "/two"]);
    }
}
