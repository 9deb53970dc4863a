//! How a script ends its request in each phase, and what the client gets then.

use super::{server, server_with};

/// All that a client gets to a request, up to the end of its connection.
fn all_of(server: &weir_testkit::Server, path: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    server.connect().send(head).rest()
}

#[test]
fn a_body_filter_that_refuses_a_piece_sends_nothing_of_it() {
    let scripts = [
        ("exit", "ngx.exit(ngx.ERROR)"),
        ("forbid", "ngx.exit(403)"),
        ("ok", "ngx.exit(ngx.OK)"),
        ("error", "return ngx.ERROR"),
        ("status", "return 300"),
        ("text", "return '500'"),
    ];
    let locations = scripts.map(|(name, script)| {
        format!(
            "location = /{name} {{ return 200 secret; body_filter_by_lua_block {{ {script} }} }}
             location = /second/{name} {{
                 content_by_lua_block {{ ngx.print('first') ngx.flush(true) ngx.print('secret') }}
                 body_filter_by_lua_block {{ if ngx.arg[1] == 'secret' then {script} end }}
             }}"
        )
    });
    let server = server(&locations.concat());
    for (n, (name, _)) in scripts.into_iter().enumerate() {
        assert!(!all_of(&server, &format!("/{name}")).contains("secret"), "{name}");
        let begun = all_of(&server, &format!("/second/{name}"));
        assert!(begun.contains("first") && !begun.contains("secret"), "{name} {begun}");
        // The end of the chunks does not come.
        assert!(!begun.ends_with("0\r\n\r\n"), "{name} {begun}");
        let refused = "API disabled in the context of body_filter_by_lua*";
        server.wait_log(refused, 2 * (n + 1).min(3));
    }
}

#[test]
fn a_body_filter_ends_the_body_where_it_says() {
    let server = server(
        "location / {
             content_by_lua_block {
                 for _, part in ipairs { 'one ', 'two ', 'three' } do ngx.print(part) ngx.flush(true) end
             }
             body_filter_by_lua_block {
                 if ngx.arg[1] == 'two ' then ngx.arg[1] = 'blocked' ngx.arg[2] = true end
             }
         }",
    );
    assert_eq!(server.get("/").body(), "one blocked");
}

#[test]
fn a_body_filter_puts_only_texts_and_numbers_into_the_place_of_a_piece() {
    let server = server(
        "location / {
             return 200 body;
             header_filter_by_lua_block { ngx.header.content_length = nil }
             body_filter_by_lua_block {
                 for _, odd in ipairs { true, ngx.null } do
                     local _, why = pcall(function() ngx.arg[1] = odd end)
                     ngx.log(ngx.WARN, why)
                 end
                 ngx.arg[1] = { 'a ', { 1 } }
             }
         }",
    );
    assert_eq!(server.get("/").body(), "a 1");
    server.wait_log("bad chunk data type: boolean", 1);
    server.wait_log("bad chunk data type: userdata", 1);
}

#[test]
fn a_header_filter_ends_the_request_with_any_status() {
    let server = server(
        "location / {
             content_by_lua_block { ngx.print('body') }
             header_filter_by_lua_block { return ngx.exit(tonumber(ngx.var.arg_s)) }
         }
         location = /behind {
             content_by_lua_block { ngx.header['Set-Cookie'] = { 'a=1', 'b=2' } ngx.print('secret') }
         }
         location = /denied {
             proxy_pass http://127.0.0.1:%%PORT%%/behind;
             add_header x-seen $status always;
             header_filter_by_lua_block { if ngx.status == 200 then return ngx.exit(403) end }
         }",
    );
    for (status, body) in [(200, ""), (201, ""), (204, ""), (299, ""), (0, "body")] {
        let answer = server.get(&format!("/?s={status}"));
        let expected = if status == 0 { 200 } else { status };
        assert_eq!((answer.status, answer.body().as_str()), (expected, body));
    }
    let forbidden = server.get("/?s=403");
    assert_eq!(forbidden.status, 403);
    assert!(forbidden.body().contains("403 Forbidden"));
    // Nothing is left of the answer whose place the page takes.
    let denied = server.get("/denied");
    assert_eq!((denied.status, denied.header("set-cookie")), (403, None));
    assert_eq!(denied.header("x-seen"), Some("403"));
}

#[test]
fn a_script_that_may_not_wait_goes_on_behind_its_exit() {
    let server = server_with(
        "upstream none { balancer_by_lua_block { ngx.exit(403) ngx.log(ngx.WARN, 'balancer goes on') } }",
        "location = /head {
             content_by_lua_block { ngx.print('body') }
             header_filter_by_lua_block { ngx.exit(410) ngx.header.x = 1 ngx.log(ngx.WARN, 'filter goes on') }
         }
         location = /last {
             content_by_lua_block { ngx.print('body') }
             header_filter_by_lua_block { ngx.exit(410) ngx.exit(0) }
         }
         location = /fails {
             content_by_lua_block { ngx.print('body') }
             header_filter_by_lua_block { ngx.exit(410) error('behind the exit') }
         }
         location = /balancer { proxy_pass http://none; }",
    );
    assert_eq!(server.get("/head").status, 410);
    server.wait_log("filter goes on", 1);
    assert_eq!(server.get("/last").body(), "body");
    assert_eq!(all_of(&server, "/fails"), "");
    server.wait_log("behind the exit", 1);
    assert_eq!(server.get("/balancer").status, 403);
    server.wait_log("balancer goes on", 1);
}

#[test]
fn a_flush_says_that_its_time_is_over() {
    let server = server(
        "send_timeout 100ms;
         location / { content_by_lua_block {
             local sent, why
             local piece = ('x'):rep(1024 * 1024)
             repeat
                 ngx.print(piece)
                 sent, why = ngx.flush(true)
             until not sent
             ngx.log(ngx.WARN, 'flushed: ', why)
         } }",
    );
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    // It takes nothing.
    server.wait_log("flushed: timeout", 1);
    drop(client);
}

#[test]
fn a_phase_that_cannot_end_the_request_says_so() {
    let server = server(
        "location = /set { set_by_lua_block $x { ngx.exit(403) } return 200 in; }
         location = /log { return 200 in; log_by_lua_block { ngx.exit(403) } }
         location = /done { content_by_lua_block { ngx.print(select(2, pcall(ngx.exit, ngx.DONE))) } }",
    );
    assert_eq!(server.get("/set").status, 500);
    server.wait_log("API disabled in the context of set_by_lua*", 1);
    assert_eq!(server.get("/log").body(), "in");
    server.wait_log("API disabled in the context of log_by_lua*", 1);
    let done = "bad argument to 'ngx.exit': does not accept NGX_AGAIN or NGX_DONE";
    assert_eq!(server.get("/done").body(), done);
}

/// What nginx 1.22 with lua 0.10.23 answers.
#[test]
fn a_denied_request_stays_denied_where_its_script_leads() {
    let server = server(
        "location = /in { content_by_lua_block { ngx.print('in') } }
         location @in { content_by_lua_block { ngx.print('in') } }
         location = /grants { satisfy any; allow all; content_by_lua_block { ngx.print('in') } }
         location = /agrees { allow all; content_by_lua_block { ngx.print('in') } }
         location = /exec { satisfy any; deny all; access_by_lua_block { ngx.exec(ngx.var.arg_to) } content_by_lua_block { } }
         location = /fails { satisfy any; deny all; error_page 500 /in; access_by_lua_block { ngx.exit(500) } }
         location = /passes { satisfy any; deny all; access_by_lua_block { ngx.exit(0) } content_by_lua_block { } }",
    );
    assert_eq!((server.get("/fails").status, server.get("/passes").status), (403, 200));
    for (to, status) in [("/in", 403), ("@in", 403), ("/grants", 200), ("/agrees", 403)] {
        assert_eq!(server.get(&format!("/exec?to={to}")).status, status, "{to}");
    }
    // The next request of the connection begins anew.
    let mut client = server.connect();
    assert_eq!(client.get("/exec?to=/in").status, 403);
    assert_eq!(client.get("/in").status, 200);
}

#[test]
fn a_script_of_an_error_page_sees_the_status() {
    let server = server(
        "location @script { content_by_lua_block { ngx.print('page ', ngx.status) } }
         location @text { return 200 text; }
         location = /script { error_page 403 = @script; access_by_lua_block { ngx.exit(403) } }
         location = /kept { error_page 403 @script; access_by_lua_block { ngx.exit(403) } }
         location = /text { error_page 403 = @text; access_by_lua_block { ngx.exit(403) } }",
    );
    for (path, status, body) in
        [("/script", 403, "page 403"), ("/kept", 403, "page 403"), ("/text", 200, "text")]
    {
        let answer = server.get(path);
        assert_eq!((answer.status, answer.body().as_str()), (status, body), "{path}");
    }
}

#[test]
fn a_script_learns_that_its_client_has_left() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local ok, why
               repeat
                   ok, why = ngx.say(("x"):rep(5000))
                   ngx.sleep(0)
               until not ok
               ngx.log(ngx.WARN, "say: ", why, ", flush: ", select(2, ngx.flush(true)), ", eof: ", select(2, ngx.eof()), ".")
           } }"#,
    );
    let mut client = server.connect();
    client.send("GET /t HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.try_line().unwrap(), "HTTP/1.1 200 OK");
    drop(client);
    let gone = "nginx output filter error";
    server.wait_log(&format!("say: {gone}, flush: {gone}, eof: {gone}."), 1);
}
