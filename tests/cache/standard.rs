//! `proxy_cache_rules rfc9111`: the standard says what is stored and sent.

use weir_testkit::Server;

use super::{get_until, start, wait_stored};

const RULES: &str = "proxy_cache_rules rfc9111;";

fn ask(server: &Server, method: &str, path: &str, fields: &str) -> String {
    let text = format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n");
    server.connect().send(text).rest()
}

#[test]
fn the_standard_says_what_is_fresh() {
    let server = start(
        "",
        RULES,
        "location / {
             add_header Cache-Control \"max-age=1000, no-cache=\\\"X-Own\\\"\"; add_header Age 30;
             add_header X-Own secret; add_header X-Of-All open; return 200 \"$request_id 0123456789\";
         }
         location /private { add_header Cache-Control \"max-age=1000, private\"; return 200 $request_id; }
         location /moved { add_header Location /a; return 204; }",
    );
    let first = server.get("/a");
    assert_eq!(first.header("X-Own"), Some("secret"));
    wait_stored(&server, 1);
    let hit = get_until(&server, "/a", "HIT");
    assert_eq!(hit.body(), first.body());
    let age: u64 = hit.header("Age").expect("an age").parse().expect("a number");
    assert!((30..1000).contains(&age), "{age}");
    // What is not for everybody is not shown again.
    assert_eq!((hit.header("X-Own"), hit.header("X-Of-All")), (None, Some("open")));
    let part = ask(&server, "GET", "/a", "Range: bytes=-10\r\n");
    assert!(part.starts_with("HTTP/1.1 206") && part.ends_with("\r\n0123456789"), "{part}");

    assert!(
        ask(&server, "GET", "/a", "Cache-Control: max-age=10\r\n").contains("X-Cache: EXPIRED")
    );
    assert!(ask(&server, "GET", "/a", "Cache-Control: no-cache\r\n").contains("X-Cache: EXPIRED"));
    get_until(&server, "/a", "HIT");
    let none = ask(&server, "GET", "/b", "Cache-Control: only-if-cached\r\n");
    assert!(none.starts_with("HTTP/1.1 504"), "{none}");

    for _ in 0..2 {
        assert_eq!(server.get("/private").header("X-Cache"), Some("MISS"));
        let secret = ask(&server, "GET", "/secret", "Authorization: a\r\n");
        assert!(secret.contains("X-Cache: MISS"), "{secret}");
    }

    // What is changed is asked for again, and so is what the answer to that names.
    for changed in ["/a", "/moved"] {
        get_until(&server, "/a", "HIT");
        ask(&server, "POST", changed, "Content-Length: 0\r\n");
        assert_eq!(server.get("/a").header("X-Cache"), Some("MISS"), "{changed}");
    }
}

#[test]
fn an_answer_that_stands_takes_the_new_fields() {
    let server = start(
        "",
        RULES,
        "location / { root %%DIR%%/site; add_header Cache-Control max-age=0; add_header X-Of $request_id; }",
    );
    for (name, length) in [("small", 6), ("large", 3 << 20)] {
        let body = "answer".repeat(length / 6);
        server.dir().write(&format!("site/{name}"), &body);
        let path = format!("/{name}");
        let first = server.get(&path);
        assert_eq!(first.header("X-Cache"), Some("MISS"));
        for _ in 0..2 {
            let again = get_until(&server, &path, "REVALIDATED");
            assert!(again.body() == body && again.header("X-Of").is_some());
            assert_ne!(again.header("X-Of"), first.header("X-Of"));
        }
    }
}
