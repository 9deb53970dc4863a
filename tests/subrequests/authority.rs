//! `auth_request`: an authority lets requests in, or refuses them.

use std::io::Write;

use weir_testkit::{Dir, Server, listen};

use super::{WEIR, head_of, pages};

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
