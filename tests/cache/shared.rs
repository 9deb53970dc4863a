//! One zone for locations with nginx's rules and with those of the standard: what the ones have stored and the others must not
//! send.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use weir_testkit::{Dir, PATIENCE, Response, Server, listen};

use super::validation::{read_head, scripted, zone_before};

/// Before the server at this port, `/nginx` and `/all` have nginx's rules, and the others have those of the standard. The key
/// is the query.
fn start(dir: Dir, port: u16, memory: &str) -> Server {
    let cached =
        format!("proxy_cache_key $args; proxy_cache_memory {memory}; proxy_cache_lock on;");
    let paths = [
        ("/nginx", ""),
        ("/all", "proxy_ignore_headers Vary;"),
        ("/standard", "proxy_cache_rules rfc9111;"),
        ("/careless", "proxy_cache_rules rfc9111; proxy_ignore_headers Expires;"),
        ("/own", "proxy_cache_rules rfc9111; proxy_cache_control_field X-Here;"),
    ];
    zone_before(dir, port, &cached, &paths)
}

/// The same cache after a restart.
fn restarted(mut server: Server, port: u16, memory: &str) -> Server {
    server.stop();
    let dir = Dir::new();
    std::fs::rename(server.dir().file("cache"), dir.file("cache")).unwrap();
    start(dir, port, memory)
}

fn said(r: &Response) -> (&str, String) {
    (r.header("X-Cache").unwrap_or_default(), r.body())
}

const SECRET: &str = "Authorization: Basic YTpi\r\n";

/// What was stored for a request with `Authorization` is sent to others only if it says that it may be.
/// What another protocol has stored is no answer in this one's form.
#[test]
fn a_value_names_only_a_cache_of_the_same_protocol() {
    let passed = "location /by { proxy_pass http://127.0.0.1:%%PORT1%%; proxy_cache $arg_zone; }";
    let behind = "return 200 x; } fastcgi_cache_path %%DIR%%/other keys_zone=other:1m;
         server { listen 127.0.0.1:%%PORT2%%;";
    let server = super::start("", passed, behind);
    assert_eq!(server.get("/by?zone=one").header("X-Cache"), Some("MISS"));
    for zone in ["other", "none"] {
        assert_eq!(server.get(&format!("/by?zone={zone}")).status, 500);
        server.wait_log(&format!("cache \"{zone}\" not found"), 1);
    }
}

#[test]
fn servers_on_unix_sockets_share_no_answer() {
    let passed = "add_header X-Key $upstream_cache_key;
         location /a/ { proxy_pass http://unix:%%DIR%%/a:/; }
         location /b/ { proxy_pass http://unix:%%DIR%%/b:/; }
         location /computed/ { proxy_pass http://unix:%%DIR%%/$arg_to:/x; }";
    let behind = "} server { listen unix:%%DIR%%/a; return 200 a; }
         server { listen unix:%%DIR%%/b; return 200 b;";
    let server = super::start("", passed, behind);
    for (path, body) in
        [("/a/x", "a"), ("/b/x", "b"), ("/computed/?to=a", "a"), ("/computed/?to=b", "b")]
    {
        assert_eq!(server.get(path).body(), body, "{path}");
    }
    let again = server.get("/b/x");
    let key = format!("http://unix:{}/b:/x", server.dir().path().display());
    assert_eq!((again.header("X-Cache"), again.header("X-Key")), (Some("HIT"), Some(&*key)));
}

#[test]
fn what_was_stored_for_one_user_is_not_sent_to_others() {
    for memory in ["1m", "0"] {
        let (port, _) = scripted(|n, head| {
            let public = if head.contains("?public") { ", public" } else { "" };
            let body = format!("{n}");
            format!(
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=1000{public}\r\nETag: \"{n}\"\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            )
        });
        let mut server = start(Dir::new(), port, memory);
        for restarts in [false, true] {
            let key = |name: &str| format!("{name}-{restarts}");
            let ask = |server: &Server, place: &str, name: &str, fields: &str| {
                server.ask(&format!("GET /{place}?{}", key(name)), fields, "")
            };
            for name in ["own", "public", "plain"] {
                let fields = if name == "plain" { "" } else { SECRET };
                let first = ask(&server, "nginx", name, fields);
                assert_eq!(first.header("X-Cache"), Some("MISS"), "{name}");
                let again = ask(&server, "nginx", name, "");
                assert_eq!(said(&again), ("HIT", first.body()), "{name}");
            }
            if restarts {
                server = restarted(server, port, memory);
            }
            // nginx's rules send it to all.
            let own = ask(&server, "nginx", "own", "");
            assert_eq!(own.header("X-Cache"), Some("HIT"));
            for name in ["public", "plain"] {
                let hit = ask(&server, "standard", name, "");
                assert_eq!(hit.header("X-Cache"), Some("HIT"), "{name} {memory}");
            }
            let other = ask(&server, "standard", "own", "");
            assert_eq!(other.header("X-Cache"), Some("MISS"), "{memory} {restarts}");
            assert_ne!(other.body(), own.body());
            let why = other.header("X-Why").unwrap_or_default();
            assert!(why.starts_with("what is stored is for a request with Authorization"), "{why}");
            // The answer to a request without it has taken its place.
            let again = ask(&server, "standard", "own", "");
            assert_eq!(said(&again), ("HIT", other.body()));
        }
    }
}

/// The same while it comes in.
#[test]
fn what_comes_for_one_user_is_not_sent_to_others() {
    let ((go_on, may), asked) = (channel::<()>(), Arc::new(AtomicUsize::new(0)));
    let (may, count) = (Mutex::new(may), asked.clone());
    const LENGTH: usize = 1 << 20;
    let port = listen(move |mut stream: TcpStream| {
        if read_head(&mut stream).is_none() {
            return;
        }
        let n = count.fetch_add(1, Ordering::SeqCst);
        let half = vec![b'0' + n as u8; LENGTH / 2];
        let head = format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=1000\r\nContent-Length: {LENGTH}\r\n\r\n"
        );
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&half));
        if n == 0 {
            let _ = may.lock().unwrap().recv();
        }
        let _ = stream.write_all(&half);
    });
    let server = start(Dir::new(), port, "1m");
    let mut own = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    own.set_read_timeout(Some(PATIENCE)).unwrap();
    let text = format!("GET /nginx?a HTTP/1.1\r\nHost: a\r\n{SECRET}\r\n");
    own.write_all(text.as_bytes()).unwrap();
    assert!(read_head(&mut own).is_some());
    let other = server.get("/standard?a");
    assert!(other.bytes == vec![b'1'; LENGTH], "{:?}", other.header("X-Why"));
    go_on.send(()).unwrap();
}

/// A location that ignores `Vary` has stored one answer for all. By the standard it is for requests of its kind.
#[test]
fn what_was_stored_without_a_look_at_vary_is_asked_for_again() {
    let (port, _) = scripted(|n, _| {
        format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=1000\r\nVary: X-Kind\r\nContent-Length: 1\r\nConnection: close\r\n\r\n{n}"
        )
    });
    let server = start(Dir::new(), port, "1m");
    let ask = |place: &str, kind: &str| {
        server.ask(&format!("GET /{place}?a"), &format!("X-Kind: {kind}\r\n"), "")
    };
    assert_eq!(said(&ask("all", "one")), ("MISS", "0".to_owned()));
    assert_eq!(said(&ask("all", "two")), ("HIT", "0".to_owned()));
    assert_eq!(said(&ask("standard", "two")), ("MISS", "1".to_owned()));
    assert_eq!(said(&ask("standard", "two")), ("HIT", "1".to_owned()));
}

/// What one location reads in the head of an answer at hand does not count for another one, which ignores some fields or has a
/// field of its own.
#[test]
fn each_location_reads_the_fields_that_count_there() {
    let (port, _) = scripted(|n, _| {
        format!(
            "HTTP/1.1 200 OK\r\nExpires: Thu, 01 Jan 1970 00:00:00 GMT\r\nX-Here: max-age=500\r\nETag: \"{n}\"\r\nContent-Length: 1\r\nConnection: close\r\n\r\n{n}"
        )
    });
    let server = start(Dir::new(), port, "1m");
    let ask = |place: &str, control: &str| {
        server.ask(&format!("GET /{place}?a"), &format!("Cache-Control: {control}\r\n"), "")
    };
    assert_eq!(said(&ask("own", "max-age=1000")), ("MISS", "0".to_owned()));
    for _ in 0..2 {
        assert_eq!(said(&ask("own", "max-age=1000")), ("HIT", "0".to_owned()));
        for (place, why) in [("standard", "asking by Expires"), ("careless", "asking, age")] {
            let old = ask(place, "max-stale");
            assert_eq!(said(&old), ("STALE", "0".to_owned()), "{place}");
            let told = old.header("X-Why").unwrap_or_default();
            assert!(told.contains(why), "{place}: {told}");
        }
    }
}
