//! Requests inside requests: includes, additions, `auth_request`, mirrors.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};

use flate2::read::GzDecoder;
use weir_testkit::fastcgi::{self, answer};
use weir_testkit::{Dir, PATIENCE, Server, listen};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A server with these locations, which answer with pages.
fn pages(locations: &str) -> Server {
    let conf = format!(
        "events {{}}
         http {{
             access_log off; default_type text/html;
             server {{ listen 127.0.0.1:%%PORT%%; {locations} }}
         }}"
    );
    Server::start(WEIR, &conf)
}

/// What a page with this text looks like.
fn page(text: &str) -> String {
    let dir = Dir::new();
    dir.write("page.html", text);
    let conf = "events {}
        http {
            access_log off;
            ssi on;
            server {
                listen 127.0.0.1:%%PORT%%;
                root %%DIR%%;
                location = /b { return 200 [$args]; }
                location = /none { return 204; }
                location = /missing { return 404; }
            }
        }";
    Server::start_in(dir, WEIR, conf).get("/page.html").body()
}

const FAILED: &str = "[an error occurred while processing the directive]";

#[test]
fn included_pages_stand_in_their_place_and_order() {
    let server = pages(
        r#"location = / { ssi on; return 200 'a<!--#include virtual="/b" -->c<!--#include virtual="d?e" -->f'; }
           location = /b { work sleep 20ms; return 200 "[$uri $request_uri $request_method]"; }
           location = /d { return 200 "[$args]"; }"#,
    );
    let mut client = server.connect();
    assert_eq!(client.get("/").body(), "a[/b / GET]c[e]f");
    assert_eq!(client.get("/").body(), "a[/b / GET]c[e]f");
}

/// As in nginx: what concerns a page stands in one log, wherever its parts come from.
#[test]
fn errors_of_a_part_stand_in_the_log_of_the_page() {
    let server = pages(
        r#"location = / { ssi on; error_log %%DIR%%/page.log; return 200 '<!--#include virtual="/part" -->'; }
           location = /part { error_log %%DIR%%/part.log; root %%DIR%%; }
           location = /asks { error_log %%DIR%%/asks.log; auth_request /part; root %%DIR%%; }"#,
    );
    let missing = "part\" failed (2: No such file or directory)";
    server.get("/");
    server.wait_file("page.log", missing, 1);
    server.get("/asks");
    server.wait_file("asks.log", missing, 1);
    assert_eq!(server.dir().read("part.log"), "");
    // A request of a client has the log of its location.
    server.get("/part");
    server.wait_file("part.log", missing, 1);
}

#[test]
fn includes_stand_inside_includes() {
    let server = pages(
        r#"ssi on;
           location = / { return 200 '1<!--#include virtual="/b" -->5'; }
           location = /b { return 200 '2<!--#include virtual="/c" -->4'; }
           location = /c { return 200 3; }"#,
    );
    assert_eq!(server.get("/").body(), "12345");
}

#[test]
fn a_page_that_includes_itself_comes_to_an_end() {
    let server = pages(r#"ssi on; location = / { return 200 '(<!--#include virtual="/" -->)'; }"#);
    let body = server.get("/").body();
    assert_eq!(body, format!("{}{FAILED}{}", "(".repeat(52), ")".repeat(52)));
    server.wait_log("subrequests cycle while processing \"/\"", 1);
    server.wait_log(", subrequest: \"/\"", 1);
}

#[test]
fn commands_show_and_set_variables() {
    assert_eq!(page(r#"<!--#echo var="uri" -->"#), "/page.html");
    assert_eq!(page(r#"<!--#echo var="nosuch" -->"#), "(none)");
    assert_eq!(page(r#"<!--#echo var="nosuch" default="<d>" -->"#), "&lt;d&gt;");
    assert_eq!(page(r#"<!--#echo var="nosuch" default="<d>" encoding="none" -->"#), "<d>");
    assert_eq!(page(r#"<!--#echo var="arg_x" default="" -->."#), ".");
    assert_eq!(page(r#"<!--#set var="x" value="a&b" --><!--#echo var="X" -->"#), "a&amp;b");
    assert_eq!(page(r#"<!--#echo -->"#), FAILED);
    assert_eq!(page(r#"<!--#config errmsg="E" --><!--#nosuch -->"#), "E");
    assert_eq!(page(r#"<!--#config timefmt="%%Y" --><!--#echo var="date_gmt" -->"#), "%Y");
    assert_eq!(
        page(r#"<!--#set var="x" value="${uri}\$'\q" --><!--#echo var="x" -->"#),
        r"/page.html$'\q"
    );
}

#[test]
fn conditions_choose_what_is_seen() {
    let choice = |condition: &str| {
        page(&format!(
            r#"<!--#set var="x" value="abc" --><!--#if expr="{condition}" -->1<!--#elif expr="$uri" -->2<!--#else -->3<!--#endif -->."#
        ))
    };
    assert_eq!(choice("$x"), "1.");
    assert_eq!(choice("$nosuch"), "2.");
    assert_eq!(choice("$x = abc"), "1.");
    assert_eq!(choice("$x=b"), "2.");
    assert_eq!(choice("${x} != b"), "1.");
    assert_eq!(choice("$x = /^a(.)c/"), "1.");
    assert_eq!(choice("$x != /^a(.)c/"), "2.");
    assert_eq!(choice("$x < b"), format!("{FAILED}1{FAILED}2{FAILED}3{FAILED}."));
}

#[test]
fn groups_of_a_match_can_be_shown() {
    let text = r#"<!--#set var="x" value="a-b" --><!--#if expr="$x = /(.)-(?P<last>.)/" --><!--#echo var="1" --><!--#echo var="2" --><!--#echo var="last" --><!--#endif -->"#;
    assert_eq!(page(text), "abb");
}

#[test]
fn an_include_may_fill_a_variable() {
    assert_eq!(page(r#"<!--#include virtual="/b?q" set="x" -->-<!--#echo var="x" -->"#), "-[q]");
    assert_eq!(page(r#"<!--#include virtual="/missing" set="x" -->-<!--#echo var="x" -->"#), "-");
}

#[test]
fn a_variable_holds_a_whole_file_or_nothing() {
    let dir = Dir::new();
    let file = dir.write("file", (0..30_000).map(|n| format!("{n:06}\n")).collect::<String>());
    dir.write(
        "page.html",
        r#"<!--#include virtual="/file" set="x" -->[<!--#echo var="x" encoding="none" -->]"#,
    );
    let conf = "events {}
        http {
            access_log off;
            ssi on;
            server {
                listen 127.0.0.1:%%PORT%%;
                root %%DIR%%;
                sendfile on;
                subrequest_output_buffer_size 210000;
            }
        }";
    let server = Server::start_in(dir, WEIR, conf);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(server.get("/page.html").body() == format!("[{text}]"));
    server.dir().write("file", format!("{text}."));
    // As in nginx, that ends the answer.
    let mut client = server.connect();
    client.send("GET /page.html HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.try_response().is_err());
    server.wait_log("too big subrequest response: 210001", 1);
}

#[test]
fn a_block_takes_the_place_of_a_failed_or_empty_include() {
    let block = r#"<!--#block name="s" --><b><!--#echo var="uri" --></b><!--#endblock -->"#;
    let with = |path: &str| page(&format!(r#"{block}<!--#include virtual="{path}" stub="s" -->"#));
    assert_eq!(with("/b"), "[]");
    // A location that promises an empty body is not looked through.
    assert_eq!(with("/none"), "<b><!--#echo var=\"uri\" --></b>");
    assert_eq!(with("/missing"), "<b>/missing</b>");
    assert_eq!(page(r#"<!--#include virtual="/b" stub="s" -->"#), FAILED);
}

#[test]
fn paths_do_not_climb() {
    assert_eq!(page(r#"<!--#include virtual="/../b" -->"#), FAILED);
    assert_eq!(page(r#"<!--#include virtual="/b" file="c" -->"#), FAILED);
    assert_eq!(page(r#"<!--#include -->"#), FAILED);
}

#[test]
fn a_path_of_a_variable_that_says_nothing_is_none() {
    assert_eq!(page(r#"<!--#include virtual="$arg_x$arg_y" -->"#), FAILED);
    // What is written so is the page's directory, which is not shown.
    assert!(page(r#"<!--#include virtual="" -->"#).contains("403 Forbidden"));
    assert_eq!(
        page(r#"<!--#set var="x" value="b" --><!--#include virtual="${x}$arg_y" -->"#),
        "[]"
    );
}

#[test]
fn a_failed_include_shows_its_page() {
    assert!(page(r#"a<!--#include virtual="/missing" -->b"#).starts_with("a<html>"));
}

/// Asks for `/` with a header.
fn get_with(server: &Server, header: &str) -> weir_testkit::Response {
    server.ask("GET /", &format!("{header}\r\n"), "")
}

#[test]
fn a_subrequest_decides_about_access() {
    let server = pages(
        r#"location / { auth_request /auth; auth_request_set $who "$uri $status"; mirror off; }
           location = /auth {
               if ($http_x_code = 401) { return 401; }
               if ($http_x_code = 403) { return 403; }
               if ($http_x_code = 302) { return 302; }
               return 204;
           }"#,
    );
    assert_eq!(get_with(&server, "X-Code: 401").status, 401);
    assert_eq!(get_with(&server, "X-Code: 403").status, 403);
    assert_eq!(get_with(&server, "X-Code: 302").status, 500);
    server.wait_log("auth request unexpected status: 302, client: ", 1);
    assert_ne!(get_with(&server, "X-Code: 0").status, 401);
}

#[test]
fn an_authority_behind_this_server_is_told_in_the_log() {
    let server = pages(
        "location / { auth_request /auth; }
         location = /auth { proxy_pass http://127.0.0.1:%%PORT%%/says; }
         location = /says { return 404; }",
    );
    assert_eq!(server.get("/").status, 500);
    server.wait_log("auth request unexpected status: 404 while sending to client, client: ", 1);
}

#[test]
fn what_the_authority_said_can_be_kept() {
    let server = pages(
        r#"location / { auth_request /auth; auth_request_set $who "$uri $status"; error_page 403 404 = /who; }
           location = /auth { return 204; }
           location = /who { return 200 "$who"; }"#,
    );
    assert_eq!(server.get("/x/").body(), "/auth 204");
}

/// Reads a request's head, one byte at a time: what follows is not for it.
fn head_of(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n > 0) {
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).into_owned()
}

#[test]
fn an_authority_is_believed_by_its_head() {
    // One breaks off, one goes on for ever.
    let port = listen(|mut stream| {
        let endless = head_of(&mut stream).contains("/endless");
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n";
        let _ = stream.write_all(head.as_bytes());
        while endless && stream.write_all(b"4\r\nmore\r\n").is_ok() {}
    });
    let server = pages(&format!(
        r#"error_page 404 = /done;
           location /short {{ auth_request /auth/short; }}
           location /endless {{ auth_request /auth/endless; }}
           location = /done {{ return 200 done; }}
           location /auth/ {{ internal; proxy_http_version 1.1; proxy_pass http://127.0.0.1:{port}; }}"#
    ));
    let mut client = server.connect();
    for path in ["/short", "/endless", "/short"] {
        assert_eq!(client.get(path).body(), "done", "{path}");
    }
}

/// What no HTTP server begins an answer with.
const NO_HEADS: [&str; 12] = [
    "SSH-2.0-OpenSSH_9\r\n",
    "http/1.1 403 no\r\n\r\n",
    "HTTP/1.1\t403 no\r\n\r\n",
    "HTTP/1.1 40x no\r\n\r\n",
    "HTTP/1.1 403no\r\n\r\n",
    "HTTP/0.9 200 fine\r\n\r\n",
    "HTTP 200 fine\r\n\r\n",
    "\r\nHTTP/1.1 200 OK\r\n\r\n",
    "Status: 200 OK\r\nContent-Length: 0\r\n\r\n",
    "\0\0\0\0\r\n",
    "*1\r\n$2\r\nOK\r\n",
    "yes\n",
];

/// A server that answers with the line of [`NO_HEADS`] that `X-Line` names: its port.
fn without_head() -> u16 {
    listen(|mut stream| {
        let head = head_of(&mut stream);
        let line = head.split("X-Line: ").nth(1).and_then(|rest| rest.split('\r').next());
        let n = line.and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
        let _ = stream.write_all(NO_HEADS[n].as_bytes());
    })
}

#[test]
fn an_authority_that_speaks_no_http_lets_no_request_in() {
    let port = without_head();
    let dir = Dir::new();
    dir.write("site/kept", "inside");
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.file("site"), all).unwrap();
    let conf = format!(
        r#"events {{}}
           http {{
               proxy_cache_path %%DIR%%/cache keys_zone=one:1m;
               server {{
                   listen 127.0.0.1:%%PORT%%; root %%DIR%%/site; dav_methods PUT DELETE;
                   location / {{ auth_request /auth; }}
                   location /any/ {{ satisfy any; deny all; auth_request /auth; alias %%DIR%%/site/; }}
                   location /kept/ {{ auth_request /cached; alias %%DIR%%/site/; }}
                   location /said/ {{ auth_request /auth; auth_request_set $said $upstream_status;
                       error_page 500 = @said; }}
                   location @said {{ return 200 $said; }}
                   location /far/ {{ auth_request /proxied; alias %%DIR%%/site/; }}
                   location = /proxied {{ internal; proxy_pass http://127.0.0.1:%%PORT1%%/?n=$arg_n; }}
                   location = /auth {{ internal; proxy_set_header X-Line $arg_n;
                       proxy_pass http://127.0.0.1:{port}; }}
                   location = /cached {{ internal; proxy_set_header X-Line $arg_n; proxy_cache one;
                       proxy_cache_valid any 1h; proxy_pass http://127.0.0.1:{port}; }}
               }}
               server {{
                   listen 127.0.0.1:%%PORT1%%; proxy_set_header X-Line $arg_n;
                   location / {{ proxy_pass http://127.0.0.1:{port}; }}
               }}
           }}"#
    );
    let server = Server::start_in(dir, WEIR, &conf);
    let file = server.dir().file("site/kept");
    for (n, line) in NO_HEADS.iter().enumerate() {
        assert_eq!(server.get(&format!("/kept?n={n}")).status, 500, "{line:?}");
        assert_eq!(server.get(&format!("/any/kept?n={n}")).status, 500, "{line:?}");
        assert_eq!(server.get(&format!("/far/kept?n={n}")).status, 500, "{line:?}");
        for _ in 0..2 {
            assert_eq!(server.get(&format!("/kept/kept?n={n}")).status, 500, "{line:?}");
        }
        assert_eq!(server.get(&format!("/said/?n={n}")).body(), "200", "{line:?}");
        for (method, path) in [("PUT", "new"), ("PUT", "kept"), ("DELETE", "kept")] {
            let line = format!("{method} /{path}?n={n}");
            let r = server.ask(&line, "Content-Length: 3\r\n", "new");
            assert_eq!(r.status, 500, "{line} {:?}", NO_HEADS[n]);
        }
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "inside");
    assert!(!server.dir().file("site/new").exists());
    server.wait_log("upstream sent no valid HTTP/1.0 header while reading", NO_HEADS.len());
    server.wait_log("auth request unexpected status: 0 while sending to client", NO_HEADS.len());
}

/// Includes that take what is no HTTP: nginx has 0 as its status, which is no failure.
#[test]
fn text_without_a_head_is_included() {
    let port = without_head();
    let server = pages(&format!(
        r#"location = / {{ ssi on; return 200
               '[<!--#include virtual="/part" -->|<!--#include virtual="/part" set="a" --><!--#echo var="a" -->]'; }}
           location = /part {{ proxy_set_header X-Line 11; proxy_pass http://127.0.0.1:{port}; }}"#
    ));
    assert_eq!(server.get("/").body(), "[yes\n|yes\n]");
}

#[test]
fn the_method_that_is_shown_is_the_clients_own() {
    let server = Server::start(
        WEIR,
        "events { }
         http {
             log_format l '$request_method $http_x_method|'; access_log off; root %%DIR%%;
             server { listen 127.0.0.1:%%PORT%%;
                 location / { auth_request /auth; error_page 404 405 = /done; }
                 location = /done { return 200 done; }
                 location = /auth { proxy_set_header X-Method $request_method;
                     proxy_pass http://127.0.0.1:%%PORT1%%; } }
             server { listen 127.0.0.1:%%PORT1%%; access_log %%DIR%%/asked l; return 200; }
         }",
    );
    assert_eq!(server.ask("PUT /x", "Content-Length: 0\r\n", "").body(), "done");
    server.wait_file("asked", "GET PUT|", 1);
}

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
fn bodies_of_other_paths_stand_around_an_answer() {
    let server = pages(
        r#"location = / { add_before_body /b; add_after_body /a; return 200 -; }
           location = /b { work sleep 10ms; return 200 b; }
           location = /a { return 200 a; }"#,
    );
    let mut client = server.connect();
    let answer = client.get("/");
    assert_eq!(answer.body(), "b-a");
    assert_eq!(answer.header("Content-Length"), None);
    assert_eq!(client.get("/").body(), "b-a");
}

/// Origins of parts that are not complete: over HTTP, by the request's path, and over FastCGI.
fn breaking_off() -> (u16, u16) {
    let http = listen(|mut stream| {
        let part = match head_of(&mut stream).split(' ').nth(1) {
            Some("/short") => "Content-Length: 5\r\n\r\npart",
            Some("/chunks") => "Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\n4\r\n",
            Some("/invalid") => "Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\nx\r\n",
            other => panic!("{other:?}"),
        };
        let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{part}").as_bytes());
    });
    let fastcgi = listen(|mut stream| {
        if fastcgi::request(&mut stream).is_some() {
            fastcgi::say(&mut stream, &answer("Content-Length: 5\r\n\r\npart"));
        }
    });
    (http, fastcgi)
}

#[test]
fn a_part_that_breaks_off_leaves_the_page_whole() {
    let (http, fastcgi) = breaking_off();
    let http = format!("proxy_http_version 1.1; proxy_pass http://127.0.0.1:{http}");
    let server = Server::start(
        WEIR,
        &format!(
            r#"events {{}}
               http {{
                   access_log off; default_type text/html; proxy_cache_path %%DIR%%/cache keys_zone=c:1m;
                   server {{
                       listen 127.0.0.1:%%PORT%%;
                       location = /include {{ ssi on; return 200 'a<!--#include virtual="$arg_p" -->b'; }}
                       location = /wait {{ ssi on; return 200 'a<!--#include virtual="$arg_p" wait="yes" -->b'; }}
                       location = /set {{ ssi on; return 200 'a<!--#include virtual="$arg_p" set="x" --><!--#echo var="x" -->b'; }}
                       location = /before/proxied {{ add_before_body /proxied/short; return 200 b; }}
                       location = /after/cached {{ add_after_body /cached/short; return 200 a; }}
                       location /proxied/ {{ {http}/; }}
                       location /unbuffered/ {{ proxy_buffering off; {http}/; }}
                       location /cached/ {{ proxy_cache c; proxy_cache_valid any 1m; {http}/; }}
                       location /stored/ {{ proxy_store %%DIR%%/stored; {http}/; }}
                       location = /scripted {{ fastcgi_pass 127.0.0.1:{fastcgi}; }}
                   }}
               }}"#
        ),
    );
    let mut client = server.connect();
    for page in ["/include", "/wait", "/set"] {
        for part in [
            "/proxied/short",
            "/proxied/chunks",
            "/proxied/invalid",
            "/unbuffered/short",
            "/unbuffered/chunks",
            "/cached/short",
            "/cached/chunks",
            "/stored/short",
            "/scripted",
        ] {
            assert_eq!(client.get(&format!("{page}?p={part}")).body(), "apartb", "{page} {part}");
        }
    }
    assert_eq!(client.get("/before/proxied").body(), "partb");
    assert_eq!(client.get("/after/cached").body(), "apart");
    // An answer of its own is not complete.
    client.send("GET /proxied/short HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.try_response().is_err());
}

/// Where each slice stands is known: one that is short cannot be passed over.
#[test]
fn a_slice_that_breaks_off_ends_the_answer() {
    let port = listen(|mut stream| {
        let second = head_of(&mut stream).contains("bytes=4-7");
        let (at, body) = if second { ("4-7", "ef") } else { ("0-3", "abcd") };
        let head = format!("Content-Length: 4\r\nContent-Range: bytes {at}/8");
        let _ = stream.write_all(format!("HTTP/1.1 206 Part\r\n{head}\r\n\r\n{body}").as_bytes());
    });
    let server = pages(&format!(
        "location / {{ slice 4; proxy_set_header Range $slice_range; proxy_pass http://127.0.0.1:{port}; }}"
    ));
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.rest().ends_with("\r\n\r\nabcdef"));
}

/// An origin with a part that comes when the test says so, at `/slow`; all else is this page.
fn slow_part(page: String) -> (u16, mpsc::Sender<()>) {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let port = listen(move |mut stream| {
        let slow = head_of(&mut stream).starts_with("GET /slow ");
        let wait = wait.lock().unwrap_or_else(PoisonError::into_inner);
        if slow && wait.recv_timeout(PATIENCE).is_err() {
            return;
        }
        let body = if slow { "slow" } else { &page };
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close";
        let _ = stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes());
    });
    (port, go)
}

/// Asks for a page whose first line comes before the slow part, which comes then: the rest.
fn rest_behind_text(server: &Server, path: &str, go: &mpsc::Sender<()>) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let zipped = head_of(&mut stream).contains("gzip");
    assert_eq!(zipped, path == "/zipped");
    let mut body: Box<dyn Read> =
        if zipped { Box::new(GzDecoder::new(stream)) } else { Box::new(stream) };
    let mut text = [0; 5];
    body.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"text\n");
    go.send(()).unwrap();
    let mut rest = String::new();
    body.read_to_string(&mut rest).unwrap();
    rest
}

#[test]
fn text_of_an_unbuffered_page_does_not_wait_for_a_part() {
    for (command, paths, rest) in [
        (r#"<!--#include virtual="/slow" -->end"#, &["/page", "/zipped"][..], "slowend"),
        (r#"<!--#include virtual="/slow" wait="yes" -->end"#, &["/page", "/zipped"], "slowend"),
        (r#"<!--#include virtual="/slow" set="x" -->end"#, &["/page", "/zipped"], "end"),
        ("", &["/added"], "slow"),
    ] {
        let (port, go) = slow_part(format!("text\n{command}"));
        let server = pages(&format!(
            "chunked_transfer_encoding off; proxy_buffering off; gzip_min_length 0;
             location / {{ ssi on; proxy_pass http://127.0.0.1:{port}; }}
             location = /zipped {{ ssi on; gzip on; proxy_pass http://127.0.0.1:{port}; }}
             location = /added {{ add_after_body /slow; proxy_pass http://127.0.0.1:{port}; }}
             location = /slow {{ proxy_pass http://127.0.0.1:{port}; }}"
        ));
        for path in paths {
            assert_eq!(rest_behind_text(&server, path, &go), rest, "{path} {command}");
        }
    }
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
fn a_body_that_was_read_before_goes_out_where_bodies_go_as_they_come() {
    let conf = "events { }
        http {
            access_log off; root %%DIR%%; proxy_request_buffering off; proxy_http_version 1.1;
            server { listen 127.0.0.1:%%PORT%%; http2 on;
                location /mirrored { mirror /m; proxy_pass http://127.0.0.1:%%PORT1%%; }
                location = /m { proxy_pass http://127.0.0.1:%%PORT1%%/copy; }
                location /multiplexed { mirror /m; proxy_http_version 2; proxy_pass http://127.0.0.1:%%PORT1%%; }
                location /read { access_by_lua_block { ngx.req.read_body() }
                                 proxy_pass http://127.0.0.1:%%PORT1%%; }
                location /second { proxy_request_buffering on; proxy_pass http://127.0.0.1:1;
                                   error_page 502 = @second; }
                location @second { proxy_pass http://127.0.0.1:%%PORT1%%; } }
            log_format l '$request_uri $request_body';
            server { listen 127.0.0.1:%%PORT1%%; http2 on; access_log %%DIR%%/log l;
                location / { content_by_lua_block { ngx.req.read_body() ngx.print(ngx.req.get_body_data()) } } }
        }";
    let server = Server::start(WEIR, conf);
    for (header, body) in [
        ("Content-Length: 4\r\n", "body"),
        ("Transfer-Encoding: chunked\r\n", "4\r\nbody\r\n0\r\n\r\n"),
    ] {
        for path in ["/mirrored", "/multiplexed", "/read", "/second"] {
            let answer = server.ask(&format!("POST {path}"), header, body);
            assert_eq!((answer.status, answer.body().as_str()), (200, "body"), "{path} {header}");
        }
    }
    server.wait_file("log", "/copy body\n", 4);
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
                     location /counts {{ access_log off; weir_status json; }}
                     location /slow {{ proxy_pass http://127.0.0.1:{port}; }} }}
             }}"#
        ),
    );
    server.dir().write("text", "text");
    server.dir().write("page", r#"<!--#include virtual="/slow" -->"#);
    for (path, n) in [("/asks", 1), ("/adds", 2), ("/page", 3)] {
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
fn a_page_that_grows_without_end_is_bounded() {
    let server = pages(
        r#"ssi on;
           location = / { return 200 '<!--#include virtual="/" --><!--#include virtual="/" -->'; }
           location = /ok { return 200 ok; }"#,
    );
    let body = server.get("/").body();
    assert!(body.contains(FAILED));
    server.wait_log("request reference counter overflow while processing \"/\"", 1);
    assert_eq!(server.get("/ok").body(), "ok");
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

#[test]
fn the_log_says_what_was_done_with_a_page_that_is_wrong() {
    let server = pages(
        r#"ssi on; ssi_types *;
           location /said { return 200 '<!--# said -->'; }
           location /passed { proxy_pass http://127.0.0.1:%%PORT%%/plain; }
           location /plain { ssi off; return 200 '<!--# passed -->'; }
           location /filed { root %%DIR%%; }"#,
    );
    server.dir().write("filed", "<!--# filed -->");
    for (path, doing) in [
        ("/said", ", client: "),
        ("/passed", " while sending to client, client: "),
        ("/filed", " while sending response to client, client: "),
    ] {
        assert_eq!(server.get(path).body(), FAILED, "{path}");
        let line = format!("invalid SSI command: \"{}\"{doing}", &path[1..]);
        server.wait_log(&line, 1);
    }
}
