//! `sticky`: requests of one client go to one server.

use std::io::{BufRead, BufReader, Write};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use weir_testkit::PATIENCE;

use super::origin::{named, serve};
use super::start;

/// Two servers, and what binds clients to them.
fn two(sticky: &str) -> weir_testkit::Server {
    let a = named("a", "Set-Cookie: session=one\r\n");
    let b = named("b", "Set-Cookie: session=two\r\n");
    let http = format!(
        "upstream u {{
             zone u 64k;
             server 127.0.0.1:{a} route=a;
             server 127.0.0.1:{b} route=b;
             {sticky}
         }}"
    );
    start("worker_processes 2;", &http)
}

fn origin(server: &weir_testkit::Server, path: &str, cookie: &str) -> (String, Vec<String>) {
    let mut client = server.connect();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\nCookie: {cookie}\r\n\r\n"));
    let response = client.response();
    let cookies = response.headers.iter().filter(|(name, _)| name == "Set-Cookie");
    let cookies = cookies.map(|(_, value)| value.clone()).collect();
    (response.header("X-Origin").unwrap_or("-").to_owned(), cookies)
}

#[test]
fn a_cookie_names_the_server() {
    let server =
        two("sticky cookie srv expires=1h domain=.$host path=/ httponly secure samesite=lax;");
    for name in ["a", "b"] {
        for _ in 0..6 {
            let (origin, cookies) = origin(&server, "/", &format!("x=y; srv={name}"));
            assert_eq!(origin, name);
            let start = format!("srv={name}; expires=");
            let end = "; max-age=3600; domain=.h; httponly; secure; samesite=lax; path=/";
            let own = cookies.first().cloned().unwrap_or_default();
            assert!(own.starts_with(&start) && own.ends_with(end), "{cookies:?}");
        }
    }
    let (first, cookies) = origin(&server, "/", "srv=nobody");
    assert!(cookies[0].starts_with(&format!("srv={first};")), "{cookies:?}");
}

#[test]
fn a_route_comes_from_the_first_variable_that_has_one() {
    let server = two("sticky route $arg_first $cookie_second;");
    for _ in 0..4 {
        assert_eq!(origin(&server, "/?first=b", "second=a").0, "b");
        assert_eq!(origin(&server, "/", "second=a").0, "a");
    }
}

#[test]
fn sessions_are_learned_once_for_all_workers() {
    let learn = "sticky learn create=$upstream_cookie_session lookup=$cookie_session zone=s:64k;";
    let server = two(learn);
    let mut seen = [false; 2];
    for _ in 0..20 {
        let (origin, cookies) = origin(&server, "/", "");
        assert_eq!(cookies, [if origin == "a" { "session=one" } else { "session=two" }]);
        seen[usize::from(origin == "b")] = true;
    }
    assert_eq!(seen, [true, true]);
    for _ in 0..10 {
        assert_eq!(origin(&server, "/", "session=one").0, "a");
        assert_eq!(origin(&server, "/", "session=two").0, "b");
    }
    server.reload();
    for _ in 0..10 {
        assert_eq!(origin(&server, "/", "session=two").0, "b");
    }
}

#[test]
fn an_answer_that_comes_late_begins_no_session_again() {
    // A login gets a session. Other answers go on with it; a slow one ends when it is told to.
    let (asked, is_asked) = channel();
    let origin_of = |name: &'static str| {
        let asked = Mutex::new(asked.clone());
        serve(move |head| {
            if head.starts_with("GET /slow") {
                let (answer, wait) = channel::<()>();
                asked.lock().unwrap().send(answer).ok()?;
                let _ = wait.recv();
            }
            let begins = head.starts_with("GET /login");
            let cookie = if begins { "Set-Cookie: session=one\r\n" } else { "" };
            Some(format!("X-Origin: {name}\r\n{cookie}"))
        })
    };
    let (a, b) = (origin_of("a"), origin_of("b"));
    let http = format!(
        "upstream u {{
             server 127.0.0.1:{a}; server 127.0.0.1:{b};
             sticky learn create=$upstream_cookie_session lookup=$cookie_session zone=s:64k
                          timeout={TIMEOUT}ms;
         }}"
    );
    let server = start("", &http);
    origin(&server, "/login", "");
    let mut client = server.connect();
    client.send("GET /slow HTTP/1.1\r\nHost: h\r\nCookie: session=one\r\n\r\n");
    let answer = is_asked.recv_timeout(PATIENCE).expect("a request");
    // The wait is for the session's end: time without requests.
    assert!(is_asked.recv_timeout(Duration::from_millis(2 * TIMEOUT)).is_err());
    drop(answer);
    assert_eq!(client.response().status, 200);
    // Requests without a session go to one server after the other.
    let [one, two] = [(); 2].map(|()| origin(&server, "/", "session=one").0);
    assert_ne!(one, two);
}

/// How long a session lasts, in milliseconds.
const TIMEOUT: u64 = 1000;

/// A server that drains keeps its clients, also where it is alone and has closed the connection that was kept to it.
#[test]
fn a_closed_connection_to_a_server_that_drains_is_replaced() {
    // It closes after each answer, though it has not said so.
    let alone = weir_testkit::listen(|mut stream| {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        if lines.by_ref().map_while(Result::ok).any(|line| line.is_empty()) {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
        // The next request has come when the connection closes.
        let _ = lines.next();
    });
    let http = format!(
        "upstream u {{
             server 127.0.0.1:{alone} route=a drain;
             sticky route $arg_r;
         }}"
    );
    let server = start("worker_processes 1;", &http);
    for _ in 0..3 {
        assert_eq!(server.get("/?r=a").status, 200, "{}", server.log());
    }
}
