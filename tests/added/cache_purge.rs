//! `..._cache_purge` as the module ngx_cache_purge has it.

use weir_testkit::{Dir, Response, Server, ask_until};

use crate::{example, refused, server};

fn ask(server: &Server, method: &str, path: &str) -> Response {
    server.ask(&format!("{method} {path}"), "", "")
}

/// Asks until the answer comes from the cache.
fn kept(server: &Server, path: &str) {
    let hit = || server.get(path).header("X-Cache") == Some("HIT");
    assert!(ask_until(hit), "{path} is not kept");
}

const CACHE: &str =
    "proxy_cache_path %%DIR%%/cache keys_zone=one:1m; proxy_cache_valid 1h; proxy_cache_key $uri;
    add_header X-Cache $upstream_cache_status;";

fn caching(more: &str) -> String {
    format!(
        "location /a {{ proxy_pass http://127.0.0.1:%%PORT%%/answer; proxy_cache one; {more} }}
         location /answer {{ return 200 answer; }}"
    )
}

#[test]
fn a_location_removes_in_an_if_as_well() {
    let purge =
        "location ~ ^/purge(/.*) { proxy_cache_purge one $1; if ($uri) { add_header X-If in; } }";
    let s = server(CACHE, &(caching("") + purge));
    kept(&s, "/a/1");
    assert_eq!((s.get("/purge/a/1").status, s.get("/purge/a/1").status), (200, 412));
    assert_eq!(s.get("/a/1").header("X-Cache"), Some("MISS"));
}

#[test]
fn a_location_removes_what_its_key_names() {
    let s = server(
        CACHE,
        &(caching("")
            + "location ~ ^/purge(/.*) { allow 127.0.0.1; deny all; proxy_cache_purge one $1; }"),
    );
    kept(&s, "/a/<b>");
    assert_eq!(ask(&s, "POST", "/purge/a/<b>").status, 405);
    let gone = ask(&s, "GET", "/purge/a/<b>");
    assert_eq!((gone.status, gone.header("Content-Type")), (200, Some("text/html")));
    assert!(gone.body().contains("Successful purge") && gone.body().contains("Key : /a/&lt;b&gt;"));
    assert_eq!(ask(&s, "GET", "/purge/a/<b>").status, 412);
    assert_eq!(s.get("/a/<b>").header("X-Cache"), Some("MISS"));
    kept(&s, "/a/<b>");
    assert_eq!(ask(&s, "PURGE", "/purge/a/<b>").status, 200);
    kept(&s, "/a/1");
    kept(&s, "/a/2");
    assert_eq!(ask(&s, "DELETE", "/purge/a/*").status, 200);
    assert_eq!(s.get("/a/1").header("X-Cache"), Some("MISS"));
}

#[test]
fn a_method_removes_what_it_names_where_the_client_may() {
    for (line, method, status) in [
        ("proxy_cache_purge on;", "PURGE", 200),
        ("proxy_cache_purge WIPE;", "WIPE", 200),
        ("proxy_cache_purge PURGE from all;", "PURGE", 200),
        ("proxy_cache_purge PURGE from 10.0.0.0/8 127.0.0.1;", "PURGE", 200),
        ("proxy_cache_purge PURGE from 10.0.0.0/8 ::1;", "PURGE", 403),
    ] {
        let s = server(CACHE, &caching(line));
        kept(&s, "/a");
        assert_eq!(ask(&s, method, "/a").status, status, "{line}");
        let then = if status == 200 { "MISS" } else { "HIT" };
        assert_eq!(s.get("/a").header("X-Cache"), Some(then), "{line}");
        kept(&s, "/a");
        // Another method is a request as any other.
        assert_eq!(ask(&s, "OTHER", "/a").body(), "answer", "{line}");
    }
}

#[test]
fn a_location_inside_says_it_anew() {
    let s = server(
        &format!("{CACHE} proxy_cache_purge PURGE;"),
        &(caching(
            "location /a/off { proxy_pass http://127.0.0.1:%%PORT%%/answer; proxy_cache_purge off; }",
        ) + "location /a/if { proxy_pass http://127.0.0.1:%%PORT%%/answer; proxy_cache one; proxy_cache_purge $arg_purge; }"),
    );
    kept(&s, "/a");
    assert_eq!(ask(&s, "PURGE", "/a").status, 200);
    kept(&s, "/a/off");
    assert_eq!(ask(&s, "PURGE", "/a/off").body(), "answer");
    kept(&s, "/a/if");
    assert_eq!(ask(&s, "PURGE", "/a/if").body(), "answer");
    assert_eq!(ask(&s, "GET", "/a/if?purge=1").status, 204);
}

#[test]
fn what_is_wrong_with_it_is_said() {
    for (lines, text) in [
        ("proxy_cache_purge PURGE of 1;", "invalid parameter \"of\""),
        ("proxy_cache_purge PURGE from here there;", "invalid parameter \"here\""),
        ("proxy_cache_purge PURGE; proxy_cache_purge PURGE;", "is duplicate"),
        ("proxy_cache_purge one $uri;", "(separate location syntax) is not allowed here"),
        (
            "server { location / { fastcgi_cache_purge none $uri; } }",
            "\"fastcgi_cache\" zone \"none\" is unknown",
        ),
    ] {
        let said = refused(lines);
        assert!(said.contains(text), "{lines}: {said}");
    }
}

#[test]
fn the_pages_example_purges() {
    let dir = Dir::new();
    let conf = example("cache_purge\n").replace("127.0.0.1:8080", "127.0.0.1:%%PORT%%");
    let conf = conf
        .replace("/var/cache/weir", "%%DIR%%/cache")
        .replace("127.0.0.1:8081", "127.0.0.1:%%PORT%%/answer");
    let answer = "server {\n        location /answer { add_header Cache-Control max-age=100; return 200 answer; }";
    let conf = conf.replacen("server {", answer, 1);
    let conf =
        conf.replacen("server {", "add_header X-Cache $upstream_cache_status always; server {", 1);
    let s = Server::start_in(dir, crate::WEIR, &conf);
    let cached = || s.get("/page").header("X-Cache") == Some("HIT");
    assert!(ask_until(cached), "{}", s.get("/page").body());
    assert_eq!(ask(&s, "PURGE", "/page").status, 200);
    assert_eq!(ask(&s, "PURGE", "/page").status, 412);
    assert!(ask_until(cached));
    assert_eq!(ask(&s, "GET", "/purge/page").status, 200);
}
