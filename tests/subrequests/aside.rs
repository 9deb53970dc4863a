//! What goes on beside a request: mirrors, actions behind the answer, and what a client that leaves ends.

use std::io::{Read, Write};
use std::sync::{Mutex, PoisonError, mpsc};

use weir_testkit::{PATIENCE, Server, listen};

use super::{WEIR, head_of, pages};

/// A copy, and what is done behind an answer, are not the client's: it may have left.
#[test]
fn what_the_client_does_not_hear_of_goes_on_without_it() {
    let (asked, heard) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let (asked, wait) = (Mutex::new(asked), Mutex::new(wait));
    let port = listen(move |mut stream| {
        head_of(&mut stream);
        let _ = asked.lock().unwrap_or_else(PoisonError::into_inner).send(());
        let _ = wait.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(PATIENCE);
        let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
    });
    let server = Server::start(
        WEIR,
        &format!(
            "events {{ }}
             http {{
                 log_format l '$uri $upstream_status|'; log_subrequest on;
                 access_log %%DIR%%/log l; root %%DIR%%;
                 server {{ listen 127.0.0.1:%%PORT%%;
                     location /copied {{ mirror /copy; error_page 404 = /done; }}
                     location /left {{ mirror /copy; proxy_pass http://127.0.0.1:{port}; }}
                 location /told {{ post_action /after; return 200 done; }}
                     location = /done {{ return 200 done; }}
                     location = /copy {{ proxy_pass http://127.0.0.1:{port}; }}
                     location = /after {{ proxy_pass http://127.0.0.1:{port}; }} }}
             }}"
        ),
    );
    for (path, goes_on) in [("/copied", "/copy 204|"), ("/told", "/after 204|")] {
        let mut client = server.connect();
        assert_eq!(client.get(path).body(), "done");
        heard.recv_timeout(PATIENCE).unwrap();
        drop(client);
        // Its loop has seen the client leave by now.
        assert_eq!(server.get("/done").body(), "done");
        go.send(()).unwrap();
        server.wait_file("log", goes_on, 1);
    }
    // Nor does it matter that the client has no answer yet.
    let mut client = server.connect();
    client.send("GET /left HTTP/1.1\r\nHost: a\r\n\r\n");
    for _ in 0..2 {
        heard.recv_timeout(PATIENCE).unwrap();
    }
    drop(client);
    assert_eq!(server.get("/done").body(), "done");
    for _ in 0..2 {
        go.send(()).unwrap();
    }
    server.wait_file("log", "/copy 204|", 2);
}

#[test]
fn a_mirror_gets_the_request_and_the_client_does_not_see_its_answer() {
    let server = pages(
        r#"location / { mirror /m; mirror /n; error_page 403 404 = /done; }
           location = /done { return 200 done; }
           location = /m { rewrite_log on; rewrite ^ /seen; }
           location = /n { return 500 no; }
           location = /seen { return 200 seen; }"#,
    );
    let mut client = server.connect();
    assert_eq!(client.get("/x/?q").body(), "done");
    assert_eq!(client.get("/x/?q").body(), "done");
    server.wait_log("rewritten data: \"/seen\", args: \"q\"", 2);
}

#[test]
fn a_mirror_gets_the_body_unless_it_is_not_to() {
    let cases = [
        ("", "Content-Length: 4\r\n", "body", "4"),
        ("mirror_request_body off;", "Content-Length: 4\r\n", "body", "-"),
        ("", "Content-Length: 0\r\n", "", "0"),
        ("", "", "", "-"),
    ];
    for (lines, header, body, length) in cases {
        let conf = format!(
            "events {{ }}
             http {{
                 log_format l '$content_length'; access_log off; root %%DIR%%;
                 server {{ listen 127.0.0.1:%%PORT%%;
                     location / {{ mirror /m; {lines} error_page 404 405 = /done; }}
                     location = /done {{ return 200 done; }}
                     location = /m {{ proxy_pass http://127.0.0.1:%%PORT1%%; }} }}
                 server {{ listen 127.0.0.1:%%PORT1%%; access_log %%DIR%%/copies l; return 200; }}
             }}"
        );
        let server = Server::start(WEIR, &conf);
        assert_eq!(server.ask("POST /x", header, body).status, 200);
        server.wait_file("copies", &format!("{length}\n"), 1);
    }
}

#[test]
fn a_client_that_leaves_takes_its_subrequests_along() {
    let server = pages(
        r#"location = / { ssi on; return 200 'a<!--#include virtual="/" -->'; }
           location = /ok { return 200 ok; }"#,
    );
    for _ in 0..20 {
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    assert_eq!(server.get("/ok").body(), "ok");
}

/// The client of a request that waits for an answer inside is as gone as one that waits for its own.
#[test]
fn a_client_that_leaves_a_subrequest_is_logged_as_one_that_left() {
    let (asked, heard) = mpsc::channel();
    let asked = Mutex::new(asked);
    let port = listen(move |mut stream| {
        head_of(&mut stream);
        let _ = asked.lock().unwrap_or_else(PoisonError::into_inner).send(());
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let server = Server::start(
        WEIR,
        &format!(
            r#"events {{ }}
             http {{
                 log_format l '$uri $status $body_bytes_sent.'; access_log %%DIR%%/seen l; ssi on;
                 server {{ listen 127.0.0.1:%%PORT%%; default_type text/html;
                     location /asks {{ auth_request /slow; alias %%DIR%%/text; }}
                     location /adds {{ add_before_body /slow; alias %%DIR%%/text; }}
                     location /page {{ alias %%DIR%%/page; }}
                     location /keeps {{ alias %%DIR%%/keeps; }}
                     location /counts {{ access_log off; weir_status json; }}
                     location /slow {{ proxy_pass http://127.0.0.1:{port}; }} }}
             }}"#
        ),
    );
    server.dir().write("text", "text");
    server.dir().write("page", r#"<!--#include virtual="/slow" -->"#);
    server.dir().write("keeps", r#"a<!--#include virtual="/slow" set="answer" -->"#);
    for (path, n) in [("/asks", 1), ("/adds", 2), ("/page", 3), ("/keeps", 4)] {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        heard.recv_timeout(PATIENCE).unwrap();
        drop(client);
        server.wait_file("seen", &format!("{path} 499 0.\n"), 1);
        let counts = server.get("/counts").body();
        assert!(counts.contains(&format!("\"abandoned_requests\":{n}")), "{counts}");
    }
}

#[test]
fn after_an_answer_the_request_goes_on_inside() {
    let server = pages(
        r#"location / { post_action /after; root /nowhere; error_page 404 = /done; }
           location = /done { post_action @after; return 200 "done $uri"; }
           location @after { rewrite_log on; rewrite ^ /seen; }
           location = /seen { internal; post_action ""; return 500 no; }"#,
    );
    let mut client = server.connect();
    assert_eq!(client.get("/x").body(), "done /done");
    assert_eq!(client.get("/x").body(), "done /done");
    server.wait_log("rewritten data: \"/seen\"", 2);
}

/// The log line is that of the location behind, but an error's status is what the client was told.
#[test]
fn an_action_behind_an_answer_leaves_the_clients_status_in_the_log() {
    let server = Server::start(
        WEIR,
        r#"events { }
         http {
             log_format l '$uri $status $body_bytes_sent|'; access_log %%DIR%%/asked l; root %%DIR%%;
             server {
                 listen 127.0.0.1:%%PORT%%; post_action /after; client_max_body_size 1;
                 location = /after { internal; post_action ""; set $no /none; return 204; }
                 location = /denied { deny all; }
                 location = /moved { return 301 /x; }
                 location = /found { return 302 /x; }
                 location = /who { return 401; }
                 location = /posted { return 405; }
                 location = /own { error_page 404 = @own; return 404; }
                 location @own { return 200 own; }
                 location = /fails { return 403; post_action /failing; }
                 location = /failing { post_action ""; proxy_pass http://127.0.0.1:%%PORT1%%; }
             }
         }"#,
    );
    for (path, status, logged) in [
        ("/denied", 403, 403),
        ("/moved", 301, 301),
        ("/found", 302, 302),
        ("/who", 401, 401),
        ("/missing", 404, 404),
        ("/posted", 405, 405),
        // This page says its own status, so there is none of an error.
        ("/own", 200, 204),
    ] {
        assert_eq!(server.get(path).status, status, "{path}");
        server.wait_file("asked", &format!("/after {logged} "), 1);
        server.dir().write("asked", "");
    }
    assert_eq!(server.ask("POST /large", "Content-Length: 2\r\n", "ab").status, 413);
    server.wait_file("asked", "/after 413 ", 1);
    // What fails behind the answer is logged with its own status, and is no subrequest.
    assert_eq!(server.get("/fails").status, 403);
    server.wait_file("asked", "/failing 502 ", 1);
    server.wait_log("while connecting to upstream", 1);
    assert_eq!(server.logged("subrequest: "), 0, "{}", server.log());
}
