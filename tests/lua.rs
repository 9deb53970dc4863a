//! Scripts in Lua: the phases, and each part of `ngx`.

use weir_testkit::{Response, Server};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A server with these lines in `http` and these in `server`.
fn server_with(http: &str, server: &str) -> Server {
    let conf = format!(
        "events {{}}
         http {{
             access_log off; default_type text/plain;
             {http}
             server {{ listen 127.0.0.1:%%PORT%%; {server} }}
         }}"
    );
    Server::start(WEIR, &conf)
}

fn server(locations: &str) -> Server {
    server_with("", locations)
}

/// What a script answers to `GET /t?x=1&y=a&y=b%20c&z`.
fn said(script: &str) -> String {
    let server = server(&format!("location /t {{ content_by_lua_block {{ {script} }} }}"));
    server.get("/t?x=1&y=a&y=b%20c&z").body()
}

fn ask(server: &Server, head: &str, body: &str) -> Response {
    server.connect().send(format!("{head}\r\nHost: a.a\r\n\r\n{body}")).response()
}

#[test]
fn the_configurations_of_the_article_answer() {
    let text = "content_by_lua '
    i = 0
    for names = 1, 1000000 do
      i = i + 1
    end
    ngx.say(\"<p>hello, world</p>\")
            ';";
    let server = server(&format!("location / {{ default_type text/html; {text} }}"));
    let answer = server.get("/");
    assert_eq!(answer.body(), "<p>hello, world</p>\n");
    assert_eq!(answer.header("Content-Type"), Some("text/html"));
    server.wait_log("writing a global Lua variable ('i')", 1);
}

#[test]
fn all_phases_run_in_their_order() {
    let server = server_with(
        "init_by_lua_block { began = 'init' }
         init_worker_by_lua_block { began = began .. ' init_worker' }",
        r#"location /a {
               set_by_lua_block $first { return ngx.get_phase() .. ngx.var.arg_x }
               set_by_lua $second 'return ngx.arg[1] + 1' $arg_x;
               rewrite_by_lua 'ngx.ctx.way = ngx.var.first .. ngx.var.second .. " " .. ngx.get_phase()';
               access_by_lua 'ngx.ctx.way = ngx.ctx.way .. " " .. ngx.get_phase()';
               content_by_lua 'ngx.say(began, " ", ngx.ctx.way, " ", ngx.get_phase())';
               header_filter_by_lua 'ngx.header["X-Phase"] = ngx.get_phase()';
               body_filter_by_lua 'ngx.arg[1] = ngx.arg[1]:gsub("e", "E")';
               log_by_lua 'ngx.log(ngx.ERR, "in ", ngx.get_phase(), " ", ngx.status)';
           }"#,
    );
    let answer = server.get("/a?x=4");
    assert_eq!(answer.body(), "init init_workEr sEt45 rEwritE accEss contEnt\n");
    assert_eq!(answer.header("X-Phase"), Some("header_filter"));
    server.wait_log("[lua] log_by_lua(", 1);
    server.wait_log("in log 200", 1);
}

#[test]
fn a_script_ends_the_request_where_it_says() {
    let server = server(
        r#"error_page 404 /gone;
           location = /gone { return 200 "page of $status"; }
           location = /404 { content_by_lua 'ngx.exit(404) ngx.say("not reached")'; }
           location = /403 { access_by_lua 'ngx.exit(ngx.HTTP_FORBIDDEN)'; return 200; }
           location = /deny { access_by_lua 'ngx.exit(ngx.HTTP_FORBIDDEN)'; content_by_lua ' '; }
           location = /444 { content_by_lua 'ngx.exit(444)'; }
           location = /204 { rewrite_by_lua 'ngx.exit(204)'; }
           location = /own { content_by_lua 'ngx.status = 410 ngx.say("own") ngx.exit(410)'; }
           location = /set { content_by_lua 'ngx.status = 410 ngx.exit(ngx.HTTP_OK)'; }
           location = /pcall { content_by_lua 'pcall(ngx.exit, 409) ngx.say("not reached")'; }"#,
    );
    assert_eq!(server.get("/404").status, 404);
    assert_eq!(server.get("/404").body(), "page of 404");
    assert_eq!(server.get("/deny").status, 403);
    assert_eq!(server.get("/403").status, 200);
    assert!(server.connect().send("GET /444 HTTP/1.1\r\nHost: a\r\n\r\n").is_closed());
    assert_eq!(server.get("/204").status, 204);
    let own = server.get("/own");
    assert_eq!((own.status, own.body()), (410, "own\n".to_owned()));
    assert_eq!(server.get("/set").status, 410);
    assert_eq!(server.get("/pcall").status, 409);
}

#[test]
fn a_script_leads_elsewhere() {
    let server = server(
        r#"location = /exec { content_by_lua 'ngx.exec("/to?a=1", { b = 2 })'; }
           location = /named { content_by_lua 'ngx.ctx.x = 1 ngx.exec("@name")'; }
           location @name { content_by_lua 'ngx.say("named ", ngx.ctx.x)'; }
           location = /to { internal; content_by_lua 'ngx.say(ngx.var.uri, " ", ngx.var.args)'; }
           location = /r { rewrite_by_lua 'return ngx.redirect("/x?y")'; }
           location = /r8 { content_by_lua 'ngx.redirect("http://b.b/", 308)'; }
           location = /jump { rewrite_by_lua 'ngx.req.set_uri_args("c=3") ngx.req.set_uri("/to", true)'; }
           location = /stay { rewrite_by_lua 'ngx.req.set_uri("/changed")'; return 200 ""; content_by_lua 'ngx.say(1)'; }
           location = /changed { return 500; }
           location = /set { rewrite_by_lua 'ngx.req.set_uri("/changed")'; content_by_lua 'ngx.say(ngx.var.uri)'; }"#,
    );
    assert_eq!(server.get("/exec").body(), "/to a=1&b=2\n");
    assert_eq!(server.get("/named").body(), "named nil\n");
    let moved = server.get("/r");
    let location = format!("http://localhost:{}/x?y", server.port());
    assert_eq!((moved.status, moved.header("Location")), (302, Some(location.as_str())));
    assert_eq!(server.get("/r8").header("Location"), Some("http://b.b/"));
    assert_eq!(server.get("/jump").body(), "/to c=3\n");
    assert_eq!(server.get("/set").body(), "/changed\n");
}

#[test]
fn output_is_what_openresty_prints() {
    let script = r#"ngx.say("a", 1, 1.5, 1e15, " ", nil, true, ngx.null, { "x", { 2, "y" } })
        ngx.print("b", "\n")
        ngx.say(pcall(ngx.say, print))
        ngx.say(pcall(ngx.say, { k = 1 }))"#;
    let expected = "a11.51e+15 niltruenullx2y\nb\n\
        falsebad argument #1 to 'say' (string, number, boolean, nil, ngx.null, or array table \
        expected, but got function)\n\
        falsebad argument #1 to 'say' (non-array table found)\n";
    assert_eq!(said(script), expected);
}

#[test]
fn an_answer_may_come_piece_by_piece() {
    let server = server(
        r#"location = /slow { content_by_lua_block {
               ngx.say("first") ngx.flush(true)
               ngx.req.read_body() -- comes when the client has seen the first line
               ngx.say("then ", ngx.req.get_body_data())
               ngx.eof()
               local ok, err = ngx.say("late")
               ngx.log(ngx.ERR, "after eof: ", ok, " ", err)
           } }"#,
    );
    let mut client = server.connect();
    client.send("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\n");
    client.send("body");
    let answer = client.response();
    assert_eq!(answer.body(), "first\nthen body\n");
    server.wait_log("after eof: nil seen eof", 1);
}

#[test]
fn old_clients_get_a_length() {
    let server = server("location / { content_by_lua 'ngx.say(1) ngx.say(22)'; }");
    let answer = ask(&server, "GET / HTTP/1.0", "");
    assert_eq!(answer.header("Content-Length"), Some("5"));
    assert_eq!(answer.body(), "1\n22\n");
}

#[test]
fn requests_are_seen_and_changed() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local req = ngx.req
               ngx.say(req.get_method(), " ", req.http_version(), " ", req.is_internal())
               local headers = req.get_headers()
               ngx.say(headers["x-one"], " ", headers.X_One, " ", #headers["X-Two"])
               req.set_header("X-One", "changed") req.set_header("X-New", { "a", "b" })
               req.clear_header("X-Two")
               ngx.say(ngx.var.http_x_one, " ", ngx.var.http_x_new, " ", ngx.var.http_x_two)
               local args = req.get_uri_args()
               ngx.say(args.a, " ", args.b[1], args.b[2], " ", args.c)
               req.set_uri_args({ d = "x y" }) ngx.say(ngx.var.args)
               req.set_method(ngx.HTTP_PUT) ngx.say(ngx.var.request_method)
               req.read_body()
               ngx.say(req.get_body_data(), " ", req.get_post_args().k)
               req.set_body_data("another") ngx.say(req.get_body_data(), ngx.var.http_content_length)
               ngx.say((req.raw_header():gsub("\r\n", "|")))
           } }
           location = /next { content_by_lua 'ngx.say("next")'; }"#,
    );
    let mut client = server.connect();
    client.send(
        "POST /t?a=1&b=2&b=3&c HTTP/1.1\r\nHost: a\r\nX-One: 1\r\nX-Two: 2\r\nX-Two: 3\r\n\
         Content-Length: 3\r\n\r\nk=vGET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    );
    let expected = "POST 1.1 false\n1 1 2\nchanged a, b nil\n1 23 true\nd=x%20y\nPUT\nk=v v\n\
        another7\nPOST /t?a=1&b=2&b=3&c HTTP/1.1|Host: a|X-One: 1|X-Two: 2|X-Two: 3|\
        Content-Length: 3||\n";
    assert_eq!(client.response().body(), expected);
    // What came behind the body is the next request, whatever was added to this one's head.
    assert_eq!(client.response().body(), "next\n");
}

#[test]
fn large_bodies_are_files() {
    let server = server(
        r#"location / { client_body_buffer_size 1k; content_by_lua_block {
               ngx.req.read_body()
               local file = io.open(ngx.req.get_body_file())
               ngx.say(ngx.req.get_body_data(), " ", #file:read("*a"))
               file:close()
           } }"#,
    );
    let body = "x".repeat(100_000);
    let head = format!("POST / HTTP/1.1\r\nContent-Length: {}", body.len());
    assert_eq!(ask(&server, &head, &body).body(), "nil 100000\n");
}

#[test]
fn a_body_that_cannot_be_read_ends_the_script() {
    let server = server(
        "location / { client_max_body_size 1; content_by_lua_block {
             ngx.req.read_body()
             ngx.say('goes on without it')
         } }",
    );
    let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked";
    assert_eq!(ask(&server, head, "3\r\nabc\r\n0\r\n\r\n").status, 413);
}

#[test]
fn headers_of_the_answer_are_seen_and_changed() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local h = ngx.header
               h.content_type = "text/html; charset=utf-8"
               h["X-Several"] = { "1", "2" } h.x_under = "3" h["X-Gone"] = "4" h["X-Gone"] = nil
               h.cache_control = "no-store\r\nX-Evil: 1"
               h.content_length = 6
               ngx.status = 201
               ngx.print(h["x-several"][2], h.X_Under, h.x_gone, ngx.resp.get_headers()["x-under"])
               h.late = "x"
           } }
           location = /f { return 200 "text"; header_filter_by_lua_block {
               ngx.header.server = "other" ngx.header.content_length = nil ngx.status = 202
           } }"#,
    );
    let answer = server.get("/t");
    assert_eq!((answer.status, answer.body()), (201, "23nil3".to_owned()));
    assert_eq!(answer.header("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(answer.header("Content-Length"), Some("6"));
    assert_eq!(answer.header("cache-control"), Some("no-store%0D%0AX-Evil: 1"));
    assert_eq!(answer.header("X-Gone"), None);
    assert_eq!(answer.header("X-Evil"), None);
    server.wait_log("attempt to set ngx.header.HEADER after sending out response headers", 1);
    let filtered = server.get("/f");
    assert_eq!((filtered.status, filtered.body()), (202, "text".to_owned()));
    assert_eq!(filtered.header("Server"), Some("other"));
}

#[test]
fn variables_are_read_and_stored() {
    let server = server(
        r#"location / {
               set $mine "0"; rewrite ^/(.*)$ /$1 break;
               content_by_lua_block {
                   ngx.var.mine = 5
                   ngx.say(ngx.var.mine, " ", ngx.var[1], " ", ngx.var.nosuch, " ", ngx.var.arg_q)
                   ngx.say(pcall(function() ngx.var.uri = "x" end))
                   ngx.say(pcall(function() ngx.var.nosuch = "x" end))
               }
           }"#,
    );
    let body = server.get("/path?q=1").body();
    let mut lines = body.lines();
    assert_eq!(lines.next(), Some("5 path nil 1"));
    assert!(lines.next().is_some_and(|line| line.ends_with("variable \"uri\" not changeable")));
    assert!(lines.next().is_some_and(|line| line.contains("\"nosuch\" not found for writing")));
}

#[test]
fn texts_and_digests() {
    let script = r#"
        ngx.say(ngx.escape_uri("a b/c?&"), " ", ngx.unescape_uri("a+b%2fc"), " ", ngx.escape_uri("/a b", 0))
        ngx.say(ngx.encode_base64("hello"), ngx.encode_base64("a", true), ngx.decode_base64("aGVsbG8="), ngx.decode_base64("a!"))
        ngx.say(ngx.md5("abc"), " ", #ngx.md5_bin("abc"), #ngx.sha1_bin("abc"), #ngx.hmac_sha1("k", "t"))
        ngx.say(ngx.crc32_short("123456789"), " ", ngx.quote_sql_str("it's"))
        ngx.say(ngx.http_time(1e9), "; ", ngx.cookie_time(1e9), "; ", ngx.parse_http_time(ngx.http_time(1e9)))
        ngx.say(ngx.decode_args("a=1&a=2").a[2], ngx.decode_args("a&b=").b, ngx.decode_args("a=b%20c+d").a)
        ngx.say(#ngx.utctime(), #ngx.today(), ngx.time() <= ngx.now() + 1)"#;
    let expected = "a%20b%2Fc%3F%26 a b/c /a%20b\naGVsbG8=YQhellonil\n\
        900150983cd24fb0d6963f7d28e17f72 162020\n3421780262 'it\\'s'\n\
        Sun, 09 Sep 2001 01:46:40 GMT; Sun, 09-Sep-01 01:46:40 GMT; 1000000000\n2b c d\n1910true\n";
    assert_eq!(said(script), expected);
}

#[test]
fn scripts_wait_side_by_side() {
    // One loop: the second answer can only come if the first script does not hold the loop.
    let server = server(
        r#"location = /wait { content_by_lua_block {
               ngx.log(ngx.ERR, "waiting")
               while not released do ngx.sleep(0.001) end
               ngx.say("released")
           } }
           location = /release { content_by_lua 'released = true ngx.say("done")'; }"#,
    );
    let mut first = server.connect();
    first.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_log("waiting", 1);
    assert_eq!(server.get("/release").body(), "done\n");
    assert_eq!(first.response().body(), "released\n");
}

#[test]
fn coroutines_and_light_threads_wait() {
    let script = r#"
        local co = coroutine.wrap(function(a) ngx.sleep(0.001) local b = coroutine.yield(a + 1) return b * 2 end)
        ngx.say(co(1), " ", co(10))
        local slow = ngx.thread.spawn(function(x) ngx.sleep(0.02) return "slow", x end, 7)
        local quick = ngx.thread.spawn(function() return "quick" end)
        ngx.say(ngx.thread.wait(slow, quick))
        ngx.say(ngx.thread.wait(slow))
        ngx.say(ngx.thread.wait(slow))
        local bad = ngx.thread.spawn(function() error("oops", 0) end)
        ngx.say(ngx.thread.wait(bad))
        local never = ngx.thread.spawn(function() ngx.sleep(1000) end)
        ngx.say(ngx.thread.kill(never))"#;
    let expected = "2 20\ntruequick\ntrueslow7\nnilalready waited or killed\nfalseoops\n1\n";
    assert_eq!(said(script), expected);
}

#[test]
fn threads_that_wait_for_each_other_are_ended() {
    let server = server(
        "location / { content_by_lua_block {
             local me = coroutine.running()
             local t = ngx.thread.spawn(function() ngx.sleep(0.001) ngx.thread.wait(me) end)
             ngx.thread.wait(t)
         } }",
    );
    assert_eq!(server.get("/").status, 500);
    server.wait_log("lua light threads wait for each other", 1);
}

#[test]
fn timers_run_without_a_request() {
    let server = server_with(
        "init_worker_by_lua_block {
             ngx.timer.at(0, function(premature, x) ngx.log(ngx.ERR, 'timer ', premature, ' ', x, ' ', pcall(ngx.say, 1)) end, 'arg')
             local n = 0
             ngx.timer.every(0.001, function(premature)
                 n = n + 1
                 if n <= 3 or premature then ngx.log(ngx.ERR, 'every ', n > 3, ' ', premature) end
             end)
         }
         exit_worker_by_lua_block { ngx.log(ngx.ERR, ngx.get_phase()) }",
        "location / { return 200; }",
    );
    server.wait_log("timer false arg falseAPI disabled in the context of ngx.timer", 1);
    server.wait_log("every false false", 3);
    let mut server = server;
    server.signal(rustix::process::Signal::QUIT);
    server.wait();
    assert_eq!(server.logged("every true true"), 1);
    assert_eq!(server.logged(":1: exit_worker"), 1);
}

#[test]
fn errors_are_told_to_the_log_and_cost_one_request() {
    let server = server(
        r#"location = /e { content_by_lua_block {
               local function inner() error("oops") end
               inner()
           } }
           location = /half { content_by_lua 'ngx.say(("x"):rep(5000)) ngx.flush(true) error("late")'; }
           location = /ok { content_by_lua 'ngx.say("fine")'; }
           location = /f { return 200 x; header_filter_by_lua 'ngx.sleep(1)'; }
           location = /log { return 200 x; log_by_lua 'error("in log")'; }"#,
    );
    assert_eq!(server.get("/e").status, 500);
    server.wait_log("lua entry thread aborted: runtime error: content_by_lua(", 1);
    server.wait_log("stack traceback:\ncoroutine 0:\n\t[C]: in function 'error'", 1);
    let mut client = server.connect();
    client.send("GET /half HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(!client.rest().ends_with("0\r\n\r\n"), "half an answer must not look whole");
    server.connect().send("GET /f HTTP/1.1\r\nHost: a\r\n\r\n").is_closed();
    server.wait_log("API disabled in the context of header_filter_by_lua*", 1);
    assert_eq!(server.get("/log").body(), "x");
    server.wait_log("failed to run log_by_lua*: log_by_lua(", 1);
    assert_eq!(server.get("/ok").body(), "fine\n");
}

#[test]
fn a_wait_that_fails_is_forgotten() {
    let script = r#"
        local ok, err = pcall(string.gsub, "x", "x", function() ngx.exit(400) end)
        ngx.say(ok, " ", err:match("attempt.*"))
        coroutine.yield()
        ngx.say("goes on")"#;
    assert_eq!(said(script), "false attempt to yield across C-call boundary\ngoes on\n");
}

#[test]
fn wrong_scripts_are_refused_at_the_start() {
    let server = server("location / { return 200; }");
    let refused = |line: &str| {
        let conf = format!("events {{}} http {{ server {{ location / {{\n{line}\n}} }} }}");
        server.configure(&conf);
        let out = server.command(&["-t"]);
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (fine, text) = refused("content_by_lua_block { ngx.say( }");
    assert!(!fine && text.contains("[emerg]"), "{text}");
    assert!(text.contains("failed to load inlined Lua code: content_by_lua("), "{text}");
    let (fine, text) = refused("content_by_lua_file nosuch.lua;");
    assert!(!fine && text.contains("failed to load external Lua file"), "{text}");
    let (fine, text) = refused("access_by_lua ' '; access_by_lua_block { }");
    assert!(!fine && text.contains("\"access_by_lua_block\" directive is duplicate"), "{text}");
    assert!(refused("lua_code_cache off;").0);
}

#[test]
fn files_are_scripts_and_modules() {
    let dir = weir_testkit::Dir::new();
    dir.write(
        "a.lua",
        "#!/usr/bin/env lua\nlocal m = require 'mine'\nngx.say(m.hello(), ' ', ...)",
    );
    dir.write("b.lua", "ngx.say('b of ', ngx.var.arg_n)");
    dir.write("mine.lua", "return { hello = function() return 'hello from a module' end }");
    let conf = "events {}
        http {
            lua_package_path '%%DIR%%/?.lua;;';
            server {
                listen 127.0.0.1:%%PORT%%;
                location = /a { content_by_lua_file a.lua; }
                location = /named { content_by_lua_file $arg_n.lua; }
            }
        }";
    let server = Server::start_in(dir, WEIR, conf);
    assert_eq!(server.get("/a").body(), "hello from a module \n");
    assert_eq!(server.get("/named?n=b").body(), "b of b\n");
    assert_eq!(server.get("/named?n=b").body(), "b of b\n");
    assert_eq!(server.get("/named?n=none").status, 404);
}

#[test]
fn the_machine_is_all_of_luajit() {
    let script = r#"
        local ffi = require "ffi"
        ffi.cdef "int abs(int);"
        ngx.say(ffi.C.abs(-3), " ", require("bit").band(6, 3), " ", jit and "jit", " ", type(debug.traceback))
        ngx.say(require("table.nkeys")({ 1, a = 2 }), table.isarray({ 1, 2 }), table.isempty({}), #require("table.new")(1, 0))
        ngx.say(ngx.worker.pid() > 0, ngx.worker.id(), ngx.worker.exiting(), ngx.config.subsystem)"#;
    assert_eq!(said(script), "3 2 jit function\n2truetrue0\ntrue0falsehttp\n");
}

#[test]
fn dictionaries_are_shared_by_all_workers_and_outlive_a_reload() {
    let conf = r#"worker_processes 2;
        events {}
        http {
            lua_shared_dict d 1m;
            server {
                listen 127.0.0.1:%%PORT%%;
                location = /count { content_by_lua_block {
                    local sum = ngx.shared.d:incr("n", 1, 0)
                    ngx.shared.d:set("pid" .. ngx.worker.pid(), true)
                    ngx.say(sum, " ", #ngx.shared.d:get_keys())
                } }
                location = /api { content_by_lua_block {
                    local d = ngx.shared.d
                    d:flush_all()
                    ngx.say(d:set("a", "text", 0, 9), d:get("a"))
                    ngx.say(d:get("none"), " ", d:add("a", 1), " ", d:replace("b", 1))
                    ngx.say(d:set("a", nil), d:get("a"))
                    ngx.say(d:set("e", 1.5, 0.001), " ", d:incr("none", 1))
                    ngx.sleep(0.01)
                    ngx.say(d:get("e"), " ", (d:get_stale("e")))
                    ngx.say(d:lpush("l", "x"), d:rpush("l", 2), d:llen("l"), d:lpop("l"), d:rpop("l"), d:lpop("l"))
                    ngx.say(d:capacity(), d:free_space() > 0, " ", d:get())
                } }
            }
        }"#;
    let server = Server::start(WEIR, conf);
    for n in 1..=8 {
        assert!(server.get("/count").body().starts_with(&format!("{n} ")));
    }
    server.reload();
    assert!(server.get("/count").body().starts_with("9 "));
    let expected = "truetext9\nnil false falsenot foundfalse\ntruenil\ntrue nilnot found\n\
        nil 1.5\n122x2nil\n1048576true nilnil key\n";
    assert_eq!(server.get("/api").body(), expected);
}

#[test]
fn patterns_match_and_replace() {
    let script = r#"
        local m = ngx.re.match("hello, 1234", "([a-z]+), (?<num>[0-9]+)(x)?", "jo")
        ngx.say(m[0], "|", m[1], "|", m.num, "|", m[3])
        ngx.say(ngx.re.match("abc", "x"), " ", (ngx.re.match("ABC", "b", "i"))[0])
        local ctx = { pos = 3 }
        ngx.say(ngx.re.match("a1b2", "\\d", "", ctx)[0], ctx.pos, ngx.re.match("a1b2", "^b", "a", { pos = 3 }) == nil)
        ngx.say(ngx.re.find("hello, 1234", "([0-9])([0-9]+)", "jo", nil, 2))
        local all = {}
        for found in ngx.re.gmatch("a=1, b=2", "(\\w)=(\\d)", "jo") do all[#all + 1] = found[1] .. found[2] end
        ngx.say(table.concat(all, ";"))
        ngx.say(ngx.re.sub("hello", "l(.)", "[$0|$1|${1}$$]"))
        ngx.say(ngx.re.gsub("a1b22", "[0-9]+", function(g) return "<" .. g[0] .. ">" end))
        ngx.say(ngx.re.gsub("abc", "", "-"))
        ngx.say(ngx.re.gsub("äö", ".", "x", "u"))
        ngx.say(ngx.re.match("a", "(", "jo"))
        ngx.say(ngx.re.sub("a", "a", "$x"))"#;
    let expected = "hello, 1234|hello|1234|false\nnil B\n25true\n911\na1;b2\nhe[ll|l|l$]o1\n\
        a<1>b<22>2\n-a-b-c-4\nxx2\n";
    let body = said(script);
    let rest = body.strip_prefix(expected).unwrap_or_else(|| panic!("{body}"));
    let mut lines = rest.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("nilpcre2_compile() failed: ")));
    assert!(lines.next().is_some_and(|line| line.starts_with("nilnil")), "{rest}");
}

#[test]
fn other_locations_are_captured() {
    let server = server(
        r#"location = /t { set $v "outer"; content_by_lua_block {
               local res = ngx.location.capture("/echo?a=1", {
                   method = ngx.HTTP_POST, body = "the body", args = { b = 2 }, vars = { v = "inner" },
                   ctx = { x = "ctx" },
               })
               ngx.say(res.status, " ", res.header["X-Echo"], " ", res.truncated, " ", res.body)
               ngx.say(ngx.var.v, " ", ngx.location.capture("/missing").status)
               local one, two = ngx.location.capture_multi({ { "/slow?20" }, { "/slow?1" } })
               ngx.say(one.body, two.body)
               ngx.say(#ngx.location.capture("/large").body)
               ngx.say(pcall(ngx.location.capture, "/../../etc/passwd"))
           } }
           location = /echo { internal; content_by_lua_block {
               ngx.req.read_body()
               ngx.header["X-Echo"] = { "e1", "e2" } ngx.header["X-Echo"] = "e"
               ngx.status = 201
               ngx.print(ngx.req.get_method(), ngx.req.get_body_data(), ngx.var.args, ngx.is_subrequest,
                   ngx.var.v, ngx.ctx.x, ngx.location.capture("/slow?0").body)
           } }
           location = /slow { content_by_lua 'ngx.sleep(ngx.var.args / 1000) ngx.print("[", ngx.var.args, "]")'; }
           location = /large { content_by_lua 'ngx.print(("x"):rep(100000))'; }
           location = /missing { return 404; }"#,
    );
    let body = server.get("/t").body();
    let expected = "201 e false POSTthe bodya=1&b=2trueinnerctx[0]\nouter 404\n[20][1]\n100000\n";
    assert!(body.starts_with(expected), "{body}");
    assert!(body.contains("falseunsafe uri"), "{body}");
}

#[test]
fn sockets_speak_to_other_servers() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local sock = ngx.socket.tcp()
               sock:settimeout(5000)
               for i = 1, 2 do
                   ngx.say(sock:connect("127.0.0.1", ngx.var.server_port), " ", sock:getreusedtimes())
                   ngx.say(sock:send({ "GET /answer HTTP/1.1\r\n", "Host: a\r\n\r\n" }))
                   ngx.say(sock:receive())
                   local head = sock:receiveuntil("\r\n\r\n")
                   ngx.say(#head() > 0)
                   ngx.say(sock:receive(5), " ", sock:receive("*l"))
                   ngx.say(sock:setkeepalive(10000, 4))
               end
               ngx.say(sock:receive(1))
               sock:connect("127.0.0.1", ngx.var.server_port)
               sock:send("GET /answer HTTP/1.0\r\n\r\n")
               ngx.say(#sock:receive("*a") > 50, sock:receive())
               ngx.say(ngx.socket.connect("127.0.0.1", 1))
               ngx.say(ngx.socket.connect("some.name", 1))
               sock:settimeout(1)
               sock:connect("127.0.0.1", ngx.var.server_port)
               ngx.say(sock:receive())
               ngx.say(sock:close(), sock:close())
           } }
           location = /answer { return 200 "12345rest\n"; }"#,
    );
    let once = |reused| format!("1 {reused}\n33\nHTTP/1.1 200 OK\ntrue\n12345 rest\n1\n");
    let rest = "nilclosed\ntruenilclosed\nnilconnection refused\n\
        nilno resolver defined to resolve \"some.name\"\nniltimeout\n1nilclosed\n";
    assert_eq!(server.get("/t").body(), format!("{}{}{rest}", once(0), once(1)));
    server.wait_log("lua tcp socket connect to 127.0.0.1:1 failed: connection refused", 1);
}

#[test]
fn a_script_ends_with_its_client_where_it_is_asked_to() {
    let server = server(
        r#"lua_check_client_abort on;
           location = /t { content_by_lua_block {
               ngx.log(ngx.ERR, "waiting")
               ngx.sleep(1000)
           } log_by_lua 'ngx.log(ngx.ERR, "ended with ", ngx.status)'; }
           location = /own { content_by_lua_block {
               ngx.on_abort(function()
                   ngx.sleep(0.001)
                   ngx.log(ngx.ERR, "said good-bye")
                   ngx.exit(499)
               end)
               ngx.log(ngx.ERR, "waiting with a word")
               ngx.sleep(1000)
           } }"#,
    );
    let mut client = server.connect();
    client.send("GET /t HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_log("waiting", 1);
    drop(client);
    server.wait_log("ended with 499", 1);
    let mut client = server.connect();
    client.send("GET /own HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_log("waiting with a word", 1);
    drop(client);
    server.wait_log("said good-bye", 1);
}

#[test]
fn the_example_of_the_page_runs() {
    let page = include_str!("../docs/lua.md");
    let start = page.find("```nginx\n").unwrap() + "```nginx\n".len();
    let end = start + page[start..].find("```").unwrap();
    let conf = page[start..end].replace("127.0.0.1:8080", "127.0.0.1:%%PORT%%");
    let server = Server::start(WEIR, &conf);
    assert_eq!(server.get("/hello?name=you").body(), "hello, you\n");
    assert_eq!(server.get("/hello").body(), "hello, world\n");
    assert_eq!(server.get("/hello?name=nobody").status, 403);
}

#[test]
fn modules_in_c_find_lua_in_the_program() {
    let dir = weir_testkit::Dir::new();
    let source = dir.write(
        "answer.c",
        "typedef struct lua_State lua_State;
         void lua_pushnumber(lua_State *L, double n);
         void luaL_checkstack(lua_State *L, int n, const char *what);
         int luaopen_answer(lua_State *L) { luaL_checkstack(L, 1, \"\"); lua_pushnumber(L, 42); return 1; }",
    );
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(dir.file("answer.so"))
        .arg(source)
        .status();
    assert!(built.unwrap().success());
    let conf = "events {}
        http {
            lua_package_cpath '%%DIR%%/?.so';
            server {
                listen 127.0.0.1:%%PORT%%;
                location / { content_by_lua 'ngx.say(require \"answer\")'; }
            }
        }";
    let server = Server::start_in(dir, WEIR, conf);
    assert_eq!(server.get("/").body(), "42\n");
}
