//! Which handler goes on after a script: `no_postpone`, `ngx.exit`, `ngx.exec` and jumps.

use super::{ask, server, server_with};

#[test]
fn scripts_that_are_not_postponed_run_before_the_directives_of_their_phase() {
    let locations = "
        location = /set { set $a 1; rewrite_by_lua_block { ngx.ctx.seen = ngx.var.a ngx.var.a = 2 }
            content_by_lua_block { ngx.print(ngx.ctx.seen, ' ', ngx.var.a) } }
        location = /wait { rewrite_by_lua_block { ngx.sleep(0.01) ngx.var.b = 'script' } set $b line;
            content_by_lua_block { ngx.print(ngx.var.b) } }
        location = /return { return 200 in; rewrite_by_lua_block { ngx.exit(403) } }
        location = /if { if ($arg_x) { return 402; } rewrite_by_lua_block { ngx.exit(403) } }
        location = /last { rewrite ^ /to last; rewrite_by_lua_block { ngx.exit(403) } }
        location = /jump { rewrite_by_lua_block { ngx.req.set_uri('/to', true) } set $b 5; }
        location = /uri { rewrite_by_lua_block { ngx.req.set_uri('/to') } rewrite ^/to$ /set last; return 402; }
        location = /exec { rewrite_by_lua_block { ngx.exec('/to') } return 402; }
        location = /inner { rewrite_by_lua_block { ngx.header.A = 'outer' }
            if ($arg_x) { rewrite_by_lua_block { ngx.header.A = 'inner' } }
            content_by_lua_block { ngx.print(ngx.header.A) } }
        location = /to { content_by_lua_block { ngx.print('to') } }
        location = /deny { deny all; access_by_lua_block { ngx.exit(410) } }
        location = /pass { deny all; access_by_lua_block { } content_by_lua_block { ngx.print('in') } }
        location = /any { satisfy any; deny all; access_by_lua_block { ngx.exit(ngx.OK) }
            content_by_lua_block { ngx.print('in') } }";
    let postponed = server(locations);
    let early =
        server_with("rewrite_by_lua_no_postpone on; access_by_lua_no_postpone on;", locations);
    // What nginx 1.22 with lua 0.10.23 answers, postponed and not.
    for (path, first, second) in [
        ("/set", (200, "1 2"), (200, " 1")),
        ("/wait", (200, "script"), (200, "line")),
        ("/return", (200, "in"), (403, "")),
        ("/if?x=1", (402, ""), (403, "")),
        ("/last", (200, "to"), (403, "")),
        ("/jump", (200, "to"), (200, "to")),
        ("/uri", (402, ""), (200, " 1")),
        ("/exec", (402, ""), (200, "to")),
        ("/inner?x=1", (200, "inner"), (200, "outer")),
        ("/deny", (403, ""), (410, "")),
        ("/pass", (403, ""), (403, "")),
        ("/any", (200, "in"), (200, "in")),
    ] {
        for (server, (status, text)) in [(&postponed, first), (&early, second)] {
            let answer = server.get(path);
            assert_eq!(answer.status, status, "{path}");
            assert!(status != 200 || answer.body() == text, "{path} {}", answer.body());
        }
    }
}

#[test]
fn a_script_that_declines_leaves_the_request_to_the_next_handler() {
    let server = server(
        "location = /rewrite { rewrite_by_lua_block { ngx.exit(ngx.DECLINED) } content_by_lua_block { ngx.print('in') } }
         location = /access { access_by_lua_block { ngx.exit(ngx.DECLINED) } content_by_lua_block { ngx.print('in') } }
         location = /any { satisfy any; deny all; access_by_lua_block { ngx.exit(ngx.DECLINED) } content_by_lua_block { ngx.print('in') } }
         location = /content { content_by_lua_block { ngx.exit(ngx.DECLINED) } }
         location = /said { content_by_lua_block { ngx.print('said') ngx.exit(ngx.DECLINED) } }
         location = /begun { access_by_lua_block { ngx.print('begun') ngx.exit(ngx.DECLINED) } content_by_lua_block { ngx.print('in') } }
         location = /error { content_by_lua_block { ngx.exit(ngx.ERROR) } }",
    );
    let told = |path: &str| {
        let answer = server.get(path);
        (answer.status, if answer.status == 200 { answer.body() } else { String::new() })
    };
    let is = |status: u16, text: &str| (status, text.to_owned());
    assert_eq!(told("/rewrite"), is(200, "in"));
    assert_eq!(told("/access"), is(200, "in"));
    // It has not allowed anything.
    assert_eq!(told("/any"), is(403, ""));
    // There is no file of that name.
    assert_eq!(told("/content"), is(404, ""));
    assert_eq!(told("/said"), is(200, "said"));
    assert_eq!(told("/begun"), is(200, "begun"));
    assert!(server.connect().send("GET /error HTTP/1.1\r\nHost: a\r\n\r\n").is_closed());
}

#[test]
fn paths_of_scripts_are_decoded_and_do_not_climb() {
    let server = server(
        r#"location = /decoded { content_by_lua_block { ngx.exec("/to%20x?a=%20b", { c = "d e" }) } }
           location = /up { content_by_lua_block { ngx.exec("/to/../../to") } }
           location = /hidden { content_by_lua_block { ngx.exec("/to/%2e%2e/to") } }
           location = /line { content_by_lua_block { ngx.req.set_uri("/to\r\nx") ngx.print("not reached") } }
           location = /binary { rewrite_by_lua_block { ngx.req.set_uri("/to\1", true, true) } }
           location = /missing { access_by_lua_file $arg_f; content_by_lua_block { } }
           location = /lost { rewrite_by_lua_file $arg_f; content_by_lua_block { } }
           location = /jump { rewrite_by_lua_block { ngx.ctx.a = 1 ngx.req.set_uri("/to", true) } }
           location /to { content_by_lua_block { ngx.print(ngx.var.uri, " ", ngx.var.args, " ", ngx.ctx.a) } }"#,
    );
    assert_eq!(server.get("/decoded").body(), "/to x a=%20b&c=d%20e nil");
    for path in ["/up", "/hidden", "/line"] {
        assert_eq!(server.get(path).status, 500, "{path}");
    }
    server.wait_log("unsafe byte \"0x0d\" in uri", 1);
    for path in ["/missing?f=no.lua", "/lost?f=no.lua"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    assert_eq!(server.get("/binary").body(), "/to\u{1} nil nil");
    // A jump begins with an empty `ngx.ctx`.
    assert_eq!(server.get("/jump").body(), "/to nil nil");
}

#[test]
fn a_captured_request_has_the_headers_that_are_said() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local answer = ngx.location.capture("/seen", { headers = { ["X-New"] = 1, ["user-agent"] = "mine", Accept = "" } })
               ngx.print(answer.body, " ", ngx.var.http_x_new, " ", ngx.var.http_accept)
           } }
           location = /odd { content_by_lua_block { ngx.location.capture("/seen", { headers = 5 }) } }
           location = /chunked { content_by_lua_block {
               ngx.req.read_body()
               ngx.print(ngx.location.capture("/length", { method = ngx.HTTP_POST }).body)
           } }
           location = /length { content_by_lua_block { ngx.print(ngx.req.get_headers()["Content-Length"]) } }
           location = /wrong { content_by_lua_block {
               local function failure(headers)
                   local _, why = pcall(ngx.location.capture, "/seen", { headers = headers })
                   return why .. "\n"
               end
               ngx.print(failure { 1 }, failure { a = true }, failure { Host = "a/b" })
           } }
           location = /seen { content_by_lua_block {
               ngx.print(ngx.var.http_x_new, " ", ngx.var.http_user_agent, " ", ngx.var.http_accept)
           } }"#,
    );
    let answer = ask(&server, "GET /t HTTP/1.1\r\nUser-Agent: theirs\r\nAccept: all", "");
    assert_eq!(answer.body(), "1 mine nil nil all");
    assert_eq!(server.get("/odd").status, 500);
    let chunked = server.connect().ask(
        "POST /chunked",
        "Transfer-Encoding: chunked\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
    );
    assert_eq!(chunked.body(), "3");
    let wrong = "attempt to use a non-string key in the \"vars\" option table\n\
                 attempt to use bad variable value type boolean\nfailed to adjust the subrequest: -1\n";
    assert_eq!(server.get("/wrong").body(), wrong);
}

#[test]
fn a_script_of_the_precontent_phase_runs_behind_try_files() {
    let locations = r#"
        access_by_lua_block { ngx.ctx.way = ngx.get_phase() }
        precontent_by_lua_block {
            ngx.header.X_Way = ngx.ctx.way .. " " .. ngx.get_phase()
            if ngx.var.arg_end then ngx.exit(tonumber(ngx.var.arg_end)) end
            if ngx.var.arg_say then ngx.say("said") end
        }
        location /plain { return 200; content_by_lua_block { } }
        location /content { content_by_lua_block { ngx.print(ngx.get_phase()) } }
        location /tried { try_files /none /content; }
        location /denied { deny all; content_by_lua_block { } }
        location /waits { precontent_by_lua_block { ngx.sleep(0.001) ngx.ctx.waited = "waited" }
            content_by_lua_block { ngx.print(ngx.ctx.waited) } }
        location /file { precontent_by_lua_file %%DIR%%/p.lua; content_by_lua_block { ngx.print(ngx.ctx.from) } }
        location /first { try_files /none =404; precontent_by_lua_block { ngx.exit(410) } }"#;
    let late = server(locations);
    std::fs::write(late.dir().path().join("p.lua"), "ngx.ctx.from = 'file'").unwrap();
    let told = |path: &str| {
        let answer = late.get(path);
        (answer.status, answer.header("X-Way").map(str::to_owned), answer.body())
    };
    let way = || Some("access precontent".to_owned());
    assert_eq!(told("/content"), (200, way(), "content".to_owned()));
    // Of the location that was found at last.
    assert_eq!(told("/tried"), (200, way(), "content".to_owned()));
    assert_eq!(told("/content?say=1"), (200, way(), "said\n".to_owned()));
    assert_eq!((told("/content?end=0").2, told("/content?end=402").0), ("content".to_owned(), 402));
    assert_eq!((told("/denied").0, told("/denied").1), (403, None));
    assert_eq!((told("/waits").2, told("/file").2), ("waited".to_owned(), "file".to_owned()));
    assert_eq!(told("/first").0, 404);
    let early = server_with("precontent_by_lua_no_postpone on;", locations);
    assert_eq!(early.get("/first").status, 410);
}
