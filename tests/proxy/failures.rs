//! Servers, clients and name servers that fail in the middle of a request.

use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, Sender, channel};

use weir_testkit::{NameRecord, NameReply, free_port};

use super::start;
use super::talk::{echo, upstream};

#[test]
fn surplus_bytes_of_a_server_reach_no_client() {
    let port = upstream(|talk| {
        talk.head();
        talk.say("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1HTTP/1.1 200 OK\r\n");
        talk.say("Content-Length: 6\r\n\r\nstolen");
        talk.head();
    });
    let server = start(
        &format!("upstream u {{ server 127.0.0.1:{port}; keepalive 4; }}"),
        "location / { proxy_pass http://u; }",
    );
    for _ in 0..3 {
        assert_eq!(server.get("/").body(), "1");
    }
}

#[test]
fn bytes_after_a_broken_answer_reach_no_client() {
    let port = upstream(|talk| {
        loop {
            let head = talk.head();
            if !head.contains("/broken/") {
                talk.ok("fine");
            } else {
                // What follows is no chunk, and not the connection's end.
                talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nzz\r\n");
                if !talk.head().is_empty() {
                    talk.ok("stolen");
                }
                return;
            }
            if head.is_empty() {
                return;
            }
        }
    });
    let server = start(
        &format!(
            "upstream u {{ server 127.0.0.1:{port}; keepalive 4; }}
             proxy_cache_path cache keys_zone=c:1m;"
        ),
        "location / { proxy_pass http://u; }
         location /broken/slow/ { proxy_pass http://u; proxy_buffering off; }
         location /broken/cached/ { proxy_pass http://u; proxy_cache c; proxy_cache_valid 1m; }
         location /broken/stored/ { proxy_pass http://u; proxy_store on; root stored; }",
    );
    for path in ["/broken/", "/broken/slow/", "/broken/cached/", "/broken/stored/"] {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(client.try_response().is_err(), "{path}");
        assert_eq!(server.get("/").body(), "fine", "{path}");
    }
}

#[test]
fn another_server_is_asked_when_one_fails() {
    let (dead, good) = (free_port(), echo());
    let server = start(
        &format!(
            "upstream two {{ server 127.0.0.1:{dead}; server 127.0.0.1:{good}; }}
             log_format u '$upstream_addr $upstream_status';
             access_log logs/access.log u;"
        ),
        &format!(
            "location / {{ proxy_pass http://two; }}
             location /one {{ proxy_pass http://127.0.0.1:{dead}; }}"
        ),
    );
    for _ in 0..3 {
        assert_eq!(server.get("/").status, 200);
    }
    assert_eq!(server.get("/one").status, 502);
    server.wait_log("connect() failed (111: Connection refused) while connecting to upstream", 2);
    server.wait_log(&format!("upstream: \"http://127.0.0.1:{dead}/one\", host: "), 1);
    assert_eq!(server.logged("upstream server temporarily disabled"), 1);
}

#[test]
fn a_server_that_does_not_answer_is_waited_for_only_so_long() {
    let port = upstream(|talk| {
        talk.head();
        talk.head();
    });
    let location =
        format!("location / {{ proxy_pass http://127.0.0.1:{port}; proxy_read_timeout 100ms; }}");
    let server = start("", &location);
    assert_eq!(server.get("/").status, 504);
    server.wait_log(
        "upstream timed out (110: Connection timed out) while reading response header from upstream",
        1,
    );
}

#[test]
fn a_client_that_leaves_is_not_answered() {
    let (sender, news): (Sender<&str>, Receiver<&str>) = channel();
    let sender = std::sync::Mutex::new(sender);
    let port = upstream(move |talk| {
        talk.head();
        sender.lock().unwrap().send("asked").unwrap();
        // The end of the connection, since no answer was given.
        assert_eq!(talk.head(), "");
        sender.lock().unwrap().send("ended").unwrap();
    });
    let location =
        format!("location / {{ proxy_pass http://127.0.0.1:{port}; }} error_log logs/i.log info;");
    let server = start("", &location);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(news.recv_timeout(weir_testkit::PATIENCE).unwrap(), "asked");
    drop(client);
    assert_eq!(news.recv_timeout(weir_testkit::PATIENCE).unwrap(), "ended");
    // Error logs are written by threads.
    let log = || server.dir().read("logs/i.log");
    let told = || log().contains("client prematurely closed connection, so upstream");
    assert!(weir_testkit::until(&server.dir().file("logs"), told), "{}", log());
}

/// The answer would be kept, so the server that was asked may finish it. If that fails, no other one is asked.
#[test]
fn for_a_client_that_has_left_no_other_server_is_asked() {
    let (sender, news) = channel();
    let (fail, failing) = channel::<()>();
    let (sender, failing) = (std::sync::Mutex::new(sender), std::sync::Mutex::new(failing));
    let port = upstream(move |talk| {
        talk.head();
        sender.lock().unwrap().send(()).unwrap();
        let _ = failing.lock().unwrap().recv();
    });
    let server = start(
        &format!(
            "proxy_cache_path %%DIR%%/cache keys_zone=z:1m; log_format statuses '$status $upstream_status';
             upstream u {{ server 127.0.0.1:{port}; server 127.0.0.1:{port}; }}"
        ),
        "access_log %%DIR%%/statuses.log statuses; error_log %%DIR%%/i.log info;
         location / { proxy_pass http://u; proxy_cache z; proxy_cache_valid any 1m; }",
    );
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    news.recv_timeout(weir_testkit::PATIENCE).unwrap();
    drop(client);
    server.wait_file("i.log", "client prematurely closed connection", 1);
    fail.send(()).unwrap();
    server.wait_file("statuses.log", "499 502\n", 1);
    assert!(news.try_recv().is_err());
    // No error is kept for others.
    drop(fail);
    assert_eq!(server.get("/").status, 502);
    assert!(news.try_recv().is_ok());
}

#[test]
fn an_answer_that_breaks_off_does_not_look_whole() {
    let port = upstream(|talk| {
        talk.head();
        talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    });
    let server = start("", &format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}"));
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let rest = client.rest();
    assert!(rest.contains("abc") && !rest.ends_with("0\r\n\r\n"), "{rest}");
    server.wait_log("upstream prematurely closed connection while reading upstream", 1);
}

#[test]
fn nothing_of_an_invalid_chunk_reaches_the_client() {
    let port = upstream(|talk| {
        talk.head();
        let body = "3\r\nabc\r\n3\r\ndef\r\nzz\r\nsecret";
        talk.say(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}"));
    });
    let server = start("", &format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}"));
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let rest = client.rest();
    assert!(!rest.contains("zz") && !rest.contains("secret"), "{rest}");
    assert!(!rest.contains("3\r\nabc\r\n3\r\ndef\r\nzz"), "{rest}");
    server.wait_log("upstream sent invalid chunked response", 1);
}

#[test]
fn answers_that_are_none_become_502() {
    for (answer, text) in [
        ("HTTP/1.1 200 OK\r\nA b\x01\r\n\r\n", "upstream sent invalid header"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "upstream sent duplicate header line: \"Content-Length: 2\"",
        ),
        ("", "upstream prematurely closed connection while reading response header"),
    ] {
        let port = upstream(move |talk| {
            talk.head();
            talk.say(answer);
        });
        let server = start("", &format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}"));
        assert_eq!(server.get("/").status, 502, "{answer}");
        server.wait_log(text, 1);
    }
}

#[test]
fn a_name_may_be_looked_up_for_as_long_as_it_takes() {
    // A name server that says nothing.
    let mute = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = upstream(|talk| {
        talk.head();
        talk.head();
    });
    let server = start(
        &format!("resolver {} ipv6=off; resolver_timeout 0;", mute.local_addr().unwrap()),
        &format!(
            "location / {{ proxy_pass http://$arg_h:1; }}
             location /later {{ proxy_read_timeout 200ms; proxy_pass http://127.0.0.1:{silent}; }}"
        ),
    );
    let mut client = server.connect();
    client.send("GET /?h=up.test HTTP/1.1\r\nHost: a\r\n\r\n");
    mute.recv(&mut [0; 512]).unwrap();
    assert_eq!(server.get("/later").status, 504);
    assert!(!server.log().contains("could not be resolved"), "{}", server.log());
}

#[test]
fn a_name_server_that_cannot_be_asked_is_told_of() {
    let dead = weir_testkit::free_port();
    let server = start(
        &format!("resolver 127.0.0.1:{dead} ipv6=off; resolver_timeout 500ms;"),
        "location / { proxy_pass http://$arg_h:1; }",
    );
    assert_eq!(server.get("/?h=up.test").status, 502);
    let text = "recv() failed (111: Connection refused) while resolving, resolver: 127.0.0.1:";
    server.wait_log(&format!("{text}{dead}\n"), 1);
    server.wait_log("up.test could not be resolved (110: Operation timed out)", 1);
}

/// Each question begins with another one of the servers. What waits for the one that is gone ends without an answer here.
#[test]
fn a_name_server_that_is_gone_leaves_its_questions_to_another() {
    let address = || NameReply::Records(60, vec![NameRecord::Address(Ipv4Addr::LOCALHOST)]);
    let names = weir_testkit::name_server(move |_| address());
    let (gone, up) = (free_port(), echo());
    let server = start(
        &format!("resolver 127.0.0.1:{gone} 127.0.0.1:{names}; resolver_timeout 4s;"),
        &format!("location / {{ proxy_pass http://$arg_h:{up}; }}"),
    );
    for name in ["a.test", "b.test"] {
        assert_eq!(server.get(&format!("/?h={name}")).status, 200, "{name}");
    }
    let text = "failed (111: Connection refused) while resolving, resolver: 127.0.0.1:";
    server.wait_log(&format!("{text}{gone}\n"), 1);
}

#[test]
fn what_may_have_no_body_and_has_one_is_told_of() {
    let port = upstream(|talk| {
        let status = talk.head().split(' ').nth(1).unwrap()[1..].to_owned();
        talk.say(format!("HTTP/1.1 {status} a\r\nContent-Length: 5\r\n\r\nhello"));
    });
    let server = start(
        "log_format t '$status $body_bytes_sent'; access_log logs/t t;",
        &format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}"),
    );
    let more = "upstream sent more data than specified in \"Content-Length\" header while reading upstream";
    for (times, status) in (1..).zip([204, 304]) {
        assert_eq!(server.get(&format!("/{status}")).status, status);
        server.wait_log(more, times);
    }
    let mut client = server.connect();
    client.send("HEAD /200 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.try_response_to("HEAD").unwrap().status, 200);
    server.wait_file("logs/t", "204 0\n304 0\n200 0\n", 1);
    assert_eq!(server.logged(more), 2);
}
