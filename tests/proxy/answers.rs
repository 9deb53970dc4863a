//! Answers of servers that are seldom as these are.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use weir_testkit::{PATIENCE, Server, fastcgi, listen};

use super::talk::{echo, upstream};
use super::{WEIR, start};

const DATE: &str = "Sat, 28 Nov 2026 10:00:00 GMT";

/// Answers `GET /STATUS/LAST-MODIFIED`, in which `_` stands for a space.
fn dated() -> u16 {
    upstream(|talk| {
        loop {
            let head = talk.head();
            let Some(path) = head.split(' ').nth(1) else { return };
            let path = path.replace('_', " ");
            let Some((status, date)) = path.trim_start_matches('/').split_once('/') else { return };
            talk.say(format!(
                "HTTP/1.1 {status} X\r\nContent-Type: text/plain\r\nETAG: \"x\"\r\n\
                 last-MODIFIED: {date}\r\nX-Last: y\r\nContent-Length: 5\r\n\r\nhello"
            ));
        }
    })
}

#[test]
fn a_servers_date_counts_however_it_is_written() {
    let server = start(
        "proxy_cache_path %%DIR%%/cache keys_zone=z:1m;",
        &format!(
            "location / {{
                 proxy_pass http://127.0.0.1:{}; proxy_cache z; proxy_cache_valid any 1m;
                 proxy_force_ranges on;
             }}",
            dated()
        ),
    );
    for date in [
        DATE,
        "Sat, 28 Nov 2026 10:00:00 +0000",
        "Mon, 28 Nov 2026 10:00:00 GMT",
        "Saturday, 28-Nov-26 10:00:00 GMT",
        "Sat Nov 28 10:00:00 2026",
    ] {
        let get = format!("GET /200/{}", date.replace(' ', "_"));
        let whole = server.ask(&get, "", "");
        assert_eq!(whole.header("Last-Modified"), Some(date));
        let names = || whole.headers.iter().map(|(name, _)| name.as_str());
        let at = |wanted| names().position(|name| name == wanted);
        assert_eq!(at("last-MODIFIED").map(|at| at + 1), at("X-Last"), "{whole:?}");
        let ask = |headers: &str| server.ask(&get, headers, "").status;
        assert_eq!(ask(&format!("If-Modified-Since: {DATE}\r\n")), 304, "{date}");
        assert_eq!(ask(&format!("If-Unmodified-Since: {DATE}\r\n")), 200, "{date}");
        assert_eq!(ask(&format!("Range: bytes=1-2\r\nIf-Range: {DATE}\r\n")), 206, "{date}");
    }
}

#[test]
fn a_page_that_is_changed_has_no_date_whatever_its_status() {
    let port = dated();
    let server = start(
        "",
        &format!(
            "location / {{ proxy_pass http://127.0.0.1:{port}; sub_filter hello bye; sub_filter_types *; }}
             location /ssi/ {{ proxy_pass http://127.0.0.1:{port}/; ssi on; ssi_types *; }}
             location /error/ {{
                 proxy_pass http://127.0.0.1:{port}/; proxy_intercept_errors on; error_page 404 /whole;
             }}
             location = /whole {{ proxy_pass http://127.0.0.1:{port}/200/{}; }}",
            DATE.replace(' ', "_")
        ),
    );
    for (status, date) in [("200", "+0000"), ("404", DATE), ("500", DATE), ("201", DATE)] {
        for place in ["", "/ssi"] {
            let answer = server.get(&format!("{place}/{status}/{}", date.replace(' ', "_")));
            assert_eq!(answer.header("Last-Modified"), None, "{answer:?}");
        }
    }
    // The page of another status keeps what its own server said.
    let page = server.get("/error/404/x");
    assert_eq!((page.status, page.header("Last-Modified")), (404, Some(DATE)));
}

/// The answer inside has its own type. The charset of the server stays, as in nginx.
#[test]
fn the_type_of_a_server_that_sends_the_request_elsewhere_gives_way() {
    let port = upstream(|talk| {
        let head = talk.head();
        let target = head.split(' ').nth(1).unwrap_or_default();
        let (to, charset) = target.split_once('?').unwrap_or((target, ""));
        talk.say(format!("HTTP/1.1 200 OK\r\nX-Accel-Redirect: /in{to}\r\n"));
        talk.say(format!("Content-Type: text/plain{charset}\r\nContent-Length: 0\r\n\r\n"));
    });
    let server = start(
        "",
        &format!(
            "location / {{ proxy_pass http://127.0.0.1:{port}; }} location /in/gif {{ empty_gif; }}
             location /in/stub {{ stub_status; }} location /in/status {{ weir_status json; }}
             location /in/list/ {{ alias %%DIR%%/; autoindex on; autoindex_format xml; }}
             location /in/fancy/ {{ alias %%DIR%%/; fancyindex on; }}"
        ),
    );
    for (path, kind) in [
        ("/gif", "image/gif"),
        ("/gif?;charset=utf-8", "image/gif; charset=utf-8"),
        ("/stub", "text/plain"),
        ("/status", "application/json"),
        ("/list/", "text/xml; charset=utf-8"),
        ("/fancy/", "text/html"),
    ] {
        assert_eq!(server.get(path).header("Content-Type"), Some(kind), "{path}");
    }
}

/// A status below 100 is none of an interim answer.
#[test]
fn a_status_below_100_ends_the_answer() {
    let port = upstream(|talk| {
        talk.head();
        talk.say("HTTP/1.1 099 OK\r\nContent-Length: 2\r\n\r\nab");
        talk.head();
    });
    let server = start("", &format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}"));
    let answer = server.get("/");
    assert_eq!((answer.status, answer.body().as_str()), (99, "ab"), "{answer:?}");
}

/// A connection with a request on it, of which the answer is read as far as a test wants.
fn ask(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream
}

fn read_until(stream: &mut TcpStream, text: &str) {
    let (mut all, mut buf) = (String::new(), [0; 4096]);
    while !all.contains(text) {
        let n = stream.read(&mut buf).unwrap();
        assert!(n > 0, "{all}");
        all += &String::from_utf8_lossy(&buf[..n]);
    }
}

#[test]
fn no_rate_holds_back_what_is_not_gathered() {
    let (seen, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let port = upstream(move |talk| {
        talk.head();
        talk.say("HTTP/1.1 200 OK\r\nX-Accel-Limit-Rate: 10\r\nContent-Length: 2000\r\n\r\n");
        talk.say([b'a'; 1000]);
        // The client is to have that before more comes.
        if wait.lock().unwrap().recv_timeout(PATIENCE).is_ok() {
            talk.say([b'b'; 1000]);
        }
        talk.head();
    });
    let server = start(
        "limit_rate 10;",
        &format!("location / {{ proxy_pass http://127.0.0.1:{port}; proxy_buffering off; }}"),
    );
    let mut client = ask(&server);
    read_until(&mut client, &"a".repeat(1000));
    seen.send(()).unwrap();
    read_until(&mut client, &"b".repeat(1000));
}

/// As in nginx: each buffer takes its time, the first ones too.
#[test]
fn a_rate_holds_from_the_beginning() {
    const RATE: usize = 64 * 1024;
    let port = upstream(|talk| {
        talk.head();
        talk.say(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 4 * RATE));
        talk.say(vec![b'a'; 4 * RATE]);
    });
    let cache = "proxy_cache_path %%DIR%%/cache keys_zone=z:1m;";
    for kept in ["", "proxy_cache z; proxy_cache_valid any 1m;"] {
        let pass = format!("proxy_pass http://127.0.0.1:{port}; {kept} proxy_limit_rate 64k;");
        let server = start(cache, &format!("location / {{ {pass} }}"));
        let asked = Instant::now();
        let mut client = ask(&server);
        let (mut got, mut buf) = (0, vec![0; RATE]);
        while got < RATE / 2 {
            got += client.read(&mut buf).unwrap();
        }
        let due = asked.elapsed().as_secs_f64() * RATE as f64;
        assert!(got as f64 <= due + 16.0 * 1024.0, "{got} bytes, {due} due");
    }
}

/// As in nginx: what the first buffer does not hold waits for its time, in a short answer as well.
#[test]
fn a_rate_holds_back_the_end_of_a_short_answer() {
    const RATE: usize = 2048;
    const BUFFER: usize = 4096;
    const LENGTH: usize = 8000;
    let port = upstream(|talk| {
        talk.head();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
        talk.say([head.as_bytes(), &[b'a'; LENGTH]].concat());
    });
    let cache = "proxy_cache_path %%DIR%%/cache keys_zone=z:1m; proxy_buffer_size 4k;";
    for kept in ["", "proxy_cache z; proxy_cache_valid any 1m;"] {
        let pass = format!("proxy_pass http://127.0.0.1:{port}; {kept} proxy_limit_rate 2k;");
        let server = start(cache, &format!("location / {{ {pass} }}"));
        let asked = Instant::now();
        let mut client = ask(&server);
        let (mut got, mut buf) = (0, vec![0; LENGTH]);
        while got <= BUFFER {
            got += client.read(&mut buf).unwrap();
        }
        // The rate allows the bytes of the present second.
        let due = (asked.elapsed().as_secs_f64() + 1.0) * RATE as f64;
        assert!(got as f64 <= due + BUFFER as f64, "{got} bytes, {due} due");
    }
}

/// As in nginx: what fills a buffer goes out, though it is less than `postpone_output`.
#[test]
fn a_small_buffer_that_is_full_does_not_wait() {
    let (seen, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let port = upstream(move |talk| {
        talk.head();
        talk.say("HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n");
        talk.say([b'a'; 1000]);
        if wait.lock().unwrap().recv_timeout(PATIENCE).is_ok() {
            talk.say([b'b'; 1000]);
        }
    });
    let buffers = "proxy_buffer_size 1k; proxy_buffers 4 1k; proxy_busy_buffers_size 2k";
    let cache = "proxy_cache_path %%DIR%%/cache keys_zone=z:1m";
    for kept in ["", "proxy_cache z; proxy_cache_valid any 1m;"] {
        let pass = format!("proxy_pass http://127.0.0.1:{port}; {kept}");
        let server = start(&format!("{buffers}; {cache};"), &format!("location / {{ {pass} }}"));
        let mut client = ask(&server);
        read_until(&mut client, &"a".repeat(1000));
        seen.send(()).unwrap();
        read_until(&mut client, &"b".repeat(1000));
    }
}

/// A server sends an answer byte by byte, to a client that does not read or for a cache. Each byte
/// would keep a buffer of a whole read.
#[test]
fn an_answer_in_small_pieces_takes_little_memory() {
    const BULK: usize = 1_000_000;
    const PIECES: usize = 20_000;
    let (sent, news) = channel::<()>();
    let sent = Mutex::new(sent);
    let port = upstream(move |talk| {
        talk.head();
        talk.reader.get_ref().set_nodelay(true).unwrap();
        talk.say("HTTP/1.0 200 OK\r\n\r\n");
        // What the sockets on the way to the client take.
        talk.say(vec![b'a'; BULK]);
        for _ in 0..PIECES {
            talk.say("b");
            thread::yield_now();
        }
        let _ = sent.lock().unwrap().send(());
    });
    let cache = "proxy_cache_path %%DIR%%/cache keys_zone=z:1m;";
    for kept in ["", "proxy_cache z; proxy_cache_valid any 1m;"] {
        let server = Server::start(
            WEIR,
            &format!(
                "events {{}} http {{ {cache} server {{ listen 127.0.0.1:%%PORT%% sndbuf=8k;
                     location / {{ proxy_pass http://127.0.0.1:{port}; proxy_buffers 8 16k; {kept} }} }} }}"
            ),
        );
        let worker = server.workers()[0];
        let peak = || {
            let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
        };
        let before = peak();
        let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        news.recv_timeout(PATIENCE).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.ends_with(&[b'b'; PIECES]), "{}", answer.len());
        let more = peak() - before;
        assert!(more < 64 * 1024, "{more} KiB more, {kept}");
    }
}

#[test]
fn a_client_that_leaves_with_nothing_of_an_answer_is_logged_as_one_that_left() {
    let (asked, news) = channel::<()>();
    let asked = Mutex::new(asked);
    let port = upstream(move |talk| {
        talk.head();
        talk.say("HTTP/1.1 500 Bad\r\nContent-Length: 1000\r\n\r\nabc");
        let _ = asked.lock().unwrap().send(());
        talk.head();
    });
    let server = start(
        "log_format status '$status $upstream_status $body_bytes_sent';",
        &format!(
            "access_log %%DIR%%/status.log status;
             location / {{ proxy_pass http://127.0.0.1:{port}; }}"
        ),
    );
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    news.recv_timeout(PATIENCE).unwrap();
    drop(client);
    server.wait_file("status.log", "499 500 0\n", 1);
}

#[test]
fn the_cache_asks_for_the_whole_answer_whatever_proxy_method_says() {
    let server = start(
        "proxy_cache_path %%DIR%%/cache keys_zone=z:1m;",
        &format!(
            "location / {{
                 proxy_pass http://127.0.0.1:{}; proxy_method POST;
                 proxy_cache z; proxy_cache_valid any 1m;
             }}",
            echo()
        ),
    );
    let mut client = server.connect();
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.try_response_to("HEAD").unwrap().status, 200);
    assert!(server.get("/").body().contains("\nGET / HTTP/1."), "{}", server.get("/").body());
}

/// A part that is not the one that was asked for is refused, and not stored.
#[test]
fn a_wrong_part_of_an_answer_is_not_kept() {
    let wrong = Mutex::new(true);
    let port = upstream(move |talk| {
        loop {
            let head = talk.head().to_ascii_lowercase();
            let Some(range) = head.split("range: bytes=").nth(1) else { return };
            let from: usize = range.split('-').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            let from = if std::mem::take(&mut *wrong.lock().unwrap()) { from + 5 } else { from };
            let part = &"0123456789".repeat(3)[from..from + 10];
            let to = from + 9;
            talk.say(format!(
                "HTTP/1.1 206 X\r\nContent-Range: bytes {from}-{to}/30\r\nContent-Length: 10\r\n\r\n{part}"
            ));
        }
    });
    let server = start(
        "proxy_cache_path %%DIR%%/cache keys_zone=z:1m;",
        &format!(
            "location / {{
                 slice 10; proxy_pass http://127.0.0.1:{port}; proxy_cache z;
                 proxy_cache_key $uri$slice_range; proxy_set_header Range $slice_range;
                 proxy_cache_valid 200 206 1h;
             }}"
        ),
    );
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.try_response().is_err());
    for _ in 0..2 {
        assert_eq!(server.get("/").body(), "0123456789".repeat(3));
    }
}

#[test]
fn what_a_script_says_behind_its_head_is_logged_whatever_it_is() {
    let (seen, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let port = listen(move |mut stream| {
        let Some(_) = fastcgi::request(&mut stream) else { return };
        let head = fastcgi::record(fastcgi::STDOUT, b"Content-Type: a/b\r\n\r\nabc", 0);
        let _ = stream.write_all(&head);
        // The client is to have that before more comes.
        let _ = wait.lock().unwrap().recv_timeout(PATIENCE);
        let said = fastcgi::record(fastcgi::STDERR, b"PHP Fatal error: x", 0);
        let _ = stream.write_all(&[said, fastcgi::answer("def")].concat());
    });
    let server = start(
        "",
        &format!(
            "location / {{
                 fastcgi_pass 127.0.0.1:{port}; fastcgi_catch_stderr \"PHP Fatal\"; fastcgi_buffering off;
             }}"
        ),
    );
    let mut client = ask(&server);
    read_until(&mut client, "abc");
    seen.send(()).unwrap();
    read_until(&mut client, "def");
    server.wait_log("FastCGI sent in stderr: \"PHP Fatal error: x\"", 1);
}

/// What rewrites one line of an answer may depend on any line of it, and on what a `map` makes of that.
#[test]
fn rules_for_cookies_and_redirects_know_the_answers_lines() {
    let up = upstream(|talk| {
        talk.head();
        talk.say(
            "HTTP/1.1 302 Found\r\nSet-Cookie: a=b; path=/; domain=inner\r\nLocation: http://inner/x\r\n\
             Refresh: 1; url=http://inner/y\r\nX-Site: shop\r\nContent-Length: 0\r\n\r\n",
        );
    });
    let server = start(
        "map $upstream_http_x_site $flag { default nosecure; shop secure; }",
        &format!(
            "location / {{
                 proxy_pass http://127.0.0.1:{up};
                 proxy_cookie_path / /$upstream_http_x_site/;
                 proxy_cookie_domain inner $upstream_http_x_site.example;
                 proxy_cookie_flags a $flag;
                 proxy_redirect http://inner/ http://outer/$upstream_http_x_site/$upstream_cookie_a/;
                 add_header X-Flag $flag always;
             }}"
        ),
    );
    let answer = server.get("/");
    assert_eq!(answer.header("Set-Cookie"), Some("a=b; path=/shop/; domain=shop.example; Secure"));
    assert_eq!(answer.header("Location"), Some("http://outer/shop/b/x"));
    assert_eq!(answer.header("Refresh"), Some("1; url=http://outer/shop/b/y"));
    assert_eq!(answer.header("X-Flag"), Some("secure"));
}

/// The next server gets none of the answer that has sent the request to it, and a page of this server is no
/// request to a server.
#[test]
fn a_request_that_goes_elsewhere_takes_no_answer_along() {
    let up = upstream(|talk| {
        loop {
            let head = talk.head();
            let target = head.split(' ').nth(1).unwrap_or_default();
            match target.strip_prefix("/to") {
                Some(to) => {
                    talk.say(format!("HTTP/1.1 200 OK\r\nX-Accel-Redirect: {to}\r\n"));
                    talk.say("X-Secret: s\r\nSet-Cookie: c=s\r\nContent-Length: 0\r\n\r\n");
                }
                None if head.is_empty() => return,
                None => talk.ok(&head),
            }
        }
    });
    let server = start(
        "proxy_cache_path %%DIR%%/cache keys_zone=z:1m;",
        &format!(
            "proxy_set_header X-Of-Before $upstream_http_x_secret$upstream_cookie_c;
             location / {{ proxy_pass http://127.0.0.1:{up}; }}
             location /kept {{
                 proxy_pass http://127.0.0.1:{up};
                 proxy_cache z;
                 proxy_cache_key k$upstream_http_x_secret;
                 proxy_cache_valid 1m;
                 add_header X-Cache $upstream_cache_status;
             }}
             location /page {{ return 200 \"$upstream_http_x_secret $upstream_status|$proxy_host|\"; }}"
        ),
    );
    assert!(!server.get("/to/next").body().contains("X-Of-Before"));
    assert_eq!(server.get("/to/kept").header("X-Cache"), Some("MISS"));
    assert_eq!(server.get("/kept").header("X-Cache"), Some("HIT"));
    assert_eq!(server.get("/to/page").body(), "s 200||");
}

/// A server's word about ranges belongs to a body. It stays when it sends the request to a file here.
#[test]
fn an_answer_without_a_body_says_nothing_of_ranges() {
    let up = upstream(|talk| {
        talk.head();
        talk.say("HTTP/1.1 200 OK\r\nX-Accel-Redirect: /in/file\r\nAccept-Ranges: none\r\n");
        talk.say("Content-Length: 0\r\n\r\n");
    });
    let server = start(
        "",
        &format!(
            "location / {{ proxy_pass http://127.0.0.1:{up}; }} location /in/ {{ alias %%DIR%%/; }}"
        ),
    );
    server.dir().write("file", "text");
    let whole = server.get("/");
    assert_eq!((whole.status, whole.header("Accept-Ranges")), (200, Some("none")));
    let tag = whole.header("ETag").unwrap();
    let same = server.ask("GET /", &format!("If-None-Match: {tag}\r\nConnection: close\r\n"), "");
    assert_eq!((same.status, same.header("Accept-Ranges")), (304, None));
}
