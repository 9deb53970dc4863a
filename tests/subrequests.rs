//! Requests inside requests: includes, additions, `auth_request`, mirrors.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};

use flate2::read::GzDecoder;
use weir_testkit::fastcgi::{self, answer};
use weir_testkit::{Dir, PATIENCE, Server, listen};

#[path = "subrequests/aside.rs"]
mod aside;
#[path = "subrequests/authority.rs"]
mod authority;

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

/// Reads a request's head, one byte at a time: what follows is not for it.
fn head_of(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n > 0) {
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).into_owned()
}

const FAILED: &str = "[an error occurred while processing the directive]";

#[test]
fn a_page_cannot_make_a_value_grow_without_end() {
    let double = r#"<!--#set var="a" value="$a$a" -->"#;
    let first = r#"<!--#set var="a" value="0123456789" -->"#;
    let echo = r#"<!--#echo var="a" -->"#;
    let body = page(&[first, &double.repeat(24), &echo.repeat(30)].concat());
    // 10 bytes may be doubled 16 times: a megabyte is the most.
    let most = 10 << 16;
    assert_eq!(body.matches(FAILED).count(), 8, "{}", body.len());
    assert_eq!(body.len(), 8 * FAILED.len() + 30 * most);
    assert!(body.ends_with("0123456789"));
}

/// A block is output that waits for an `include`. A server behind could fill the memory with one.
#[test]
fn a_page_cannot_keep_blocks_without_end() {
    let (begin, end) = (r#"<!--#block name="a" -->"#, "<!--#endblock -->");
    let (include, part) = (r#"<!--#include virtual="/none" stub="a" -->"#, "x".repeat(1 << 20));
    let body = page(&[begin, &part.repeat(20), end, "then", include].concat());
    let (said, rest) = body.split_once("then").unwrap();
    assert_eq!(said, FAILED);
    assert!(rest.len() <= 16 << 20 && rest.starts_with("xx"), "{}", rest.len());
    let many = [begin, "x", end].concat().repeat(150_000);
    assert!(page(&many).starts_with(FAILED));
}

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
