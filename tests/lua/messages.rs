//! What the error log says of scripts.

use super::{server, server_with};

#[test]
fn the_log_has_the_words_that_openresty_has() {
    let server = server_with(
        "lua_max_running_timers 1;",
        r#"location = /redirect { content_by_lua_block { ngx.redirect('/a"\\\n') } }
           location = /uri { rewrite_by_lua_block { ngx.req.set_uri("/a\tb") ngx.req.set_uri("/a\rb") } }
           location = /exec { content_by_lua_block { ngx.exec("/a/../../") } }
           location = /named { content_by_lua_block { ngx.exec("@named?a=1", "b=2") } }
           location @named { return 200 "named $args"; }
           location = /vars { content_by_lua_block { ngx.location.capture("/nil", { vars = { none = 1 } }) } }
           location = /nil { content_by_lua_block { error(nil) } }
           location = /global { content_by_lua_block { local function f() leaked = 1 end f() ngx.say(1) } }
           location = /sub { content_by_lua_block {
               for _, to in ipairs { "$name", "${1", "$", "${" } do ngx.re.sub("a", "(a)", to) end
           } }
           location = /timers { content_by_lua_block {
               local goes_on
               local function waits() while not goes_on do ngx.sleep(0.001) end end
               ngx.timer.at(0, waits)
               ngx.timer.at(0, waits)
               while ngx.timer.pending_count() > 0 do ngx.sleep(0.001) end
               goes_on = true
               local function one(f)
                   while ngx.timer.running_count() + ngx.timer.pending_count() > 0 do ngx.sleep(0.001) end
                   ngx.timer.at(0, f)
               end
               one(function() ngx.req.read_body() end)
               one(function() ngx.location.capture("/") end)
               one(function() ngx.req.append_body("x") end)
               one(function() ngx.exit(403) end)
           } }"#,
    );
    for path in ["/redirect", "/uri", "/exec", "/nil", "/vars"] {
        assert_eq!(server.get(path).status, 500, "{path}");
    }
    for path in ["/global", "/sub", "/timers"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!(server.get("/named").body(), "named ");
    for line in [
        r#"unsafe byte "0x0a" in redirect uri "/a\x22\x5C\x0A""#,
        r#"unsafe byte "0x0d" in uri "/a\x0Db" (maybe you want to set the 'binary' argument?)"#,
        r#"unsafe URI "/a/../../" was detected"#,
        "lua entry thread aborted: runtime error: unknown reason",
        r#"variable "none" cannot be assigned a value (maybe you forgot to define it first?)"#,
        "prefer the use of 'local' variables\\x0Astack traceback:\\x0A\tcontent_by_lua(",
        r#"named capturing variable "name" (named captures not supported yet)"#,
        r#"the closing bracket in "1" variable is missing"#,
        r#"lua script: invalid capturing variable name found in "$""#,
        r#"lua script: invalid capturing variable name found in "${""#,
        "lua failed to run timer with function defined at =content_by_lua(",
        ": 1 lua_max_running_timers are not enough",
    ] {
        server.wait_log(line, 1);
    }
    server.wait_log("API disabled in the context of ngx.timer", 2);
    server.wait_log("API disabled in the current context", 1);
    assert_eq!(server.logged("API disabled"), 3);
}

#[test]
fn a_line_for_stderr_has_no_level_and_is_in_each_log() {
    let server = server(
        r#"location = /t { error_log %%DIR%%/few.log emerg;
               content_by_lua_block { ngx.log(ngx.EMERG, "urgent") ngx.log(ngx.ALERT, "not") ngx.log(ngx.STDERR, "always", ngx.STDERR) } }"#,
    );
    assert_eq!(server.get("/t").status, 200);
    server.wait_file("few.log", "always0", 1);
    let log = server.dir().read("few.log");
    assert!(log.contains(" [emerg] ") && log.contains(" [] "), "{log}");
    assert!(!log.contains("alert"), "{log}");
}

#[test]
fn functions_say_first_that_the_phase_is_wrong() {
    let server = server(
        r#"location = /t { return 200 x; header_filter_by_lua_block {
               local function refused(f, ...) ngx.log(ngx.WARN, "refused ", select(2, pcall(f, ...))) end
               refused(ngx.thread.wait, 1)
               refused(ngx.thread.kill, 1)
               refused(ngx.run_worker_thread, "none", "module", "f")
               ngx.log(ngx.WARN, "told ", select(2, ngx.on_abort(function() end)))
           } }"#,
    );
    assert_eq!(server.get("/t").body(), "x");
    server.wait_log("told lua_check_client_abort is off", 1);
    assert_eq!(server.logged("API disabled in the context of header_filter_by_lua*"), 3);
}

#[test]
fn a_full_pool_is_the_scripts_own_affair() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local options = { pool_size = 1, backlog = 0 }
               local first, second = ngx.socket.tcp(), ngx.socket.tcp()
               assert(first:connect("127.0.0.1", ngx.var.server_port, options))
               ngx.say(second:connect("127.0.0.1", ngx.var.server_port, options))
           } }"#,
    );
    assert_eq!(server.get("/t").body(), "niltoo many waiting connect operations\n");
    assert_eq!(server.logged("too many waiting"), 0);
}

#[test]
fn lines_of_scripts_say_where_they_ran() {
    let server = server_with(
        "init_worker_by_lua_block { ngx.log(ngx.WARN, 'begins') }
         exit_worker_by_lua_block { ngx.timer.at(0, print) }",
        r#"location = /t { content_by_lua_block {
               ngx.sleep(0)
               local sock = ngx.socket.tcp()
               sock:connect("127.0.0.1", ngx.var.server_port)
               sock:sslhandshake(nil, "a.a")
               local function inner() error("no", 0) end
               local function outer() inner() return 1 end
               outer()
           } }"#,
    );
    server.wait_log("begins, context: init_worker_by_lua*", 1);
    assert_eq!(server.get("/t?a=1").status, 500);
    server.wait_log("lua sleep timer expired: \"/t?a=1\", client: ", 1);
    server.wait_log("lua ssl server name: \"a.a\", client: ", 1);
    server.wait_log(": in function 'inner'\\x0A", 1);
    server.wait_log(": in function 'outer'\\x0A", 1);
    server.signal(rustix::process::Signal::QUIT);
    server.wait_log("API disabled in the context of exit_worker_by_lua*", 1);
}

#[test]
fn a_script_fetches_what_its_loop_has_logged() {
    let server = server_with(
        "error_log stderr info;
         lua_capture_error_log 4k;
         init_by_lua_block {
             local errlog = require 'ngx.errlog'
             assert(errlog.set_filter_level(ngx.WARN))
         }",
        r#"location = /log { content_by_lua_block {
               ngx.log(ngx.WARN, "first") ngx.log(ngx.INFO, "not urgent") ngx.log(ngx.ERR, "second")
               ngx.log(ngx.CRIT, "third")
           } }
           location = /many { content_by_lua_block { for i = 1, 100 do ngx.log(ngx.CRIT, ("x"):rep(84), i) end } }
           location = /get { content_by_lua_block {
               local logs = assert(require("ngx.errlog").get_logs(tonumber(ngx.var.arg_most), { "old", "old", "old" }))
               for i = 1, #logs, 3 do
                   local text = logs[i + 2]:match("%[lua%] .-:%d+: ([^,]*), client: 127.0.0.1")
                   ngx.say(logs[i], " ", math.abs(logs[i + 1] - ngx.now()) < 60, " ", text)
               end
           } }
           location = /wrong { content_by_lua_block { ngx.say(require("ngx.errlog").set_filter_level(9)) } }"#,
    );
    let body = |path: &str| server.get(path).body();
    body("/log");
    assert_eq!(body("/get?most=2"), "5 true first\n4 true second\n");
    assert_eq!(body("/get"), "3 true third\n");
    assert_eq!(body("/get"), "");
    body("/many");
    let newest = body("/get?most=1000");
    let lines: Vec<&str> = newest.lines().collect();
    assert!((8..40).contains(&lines.len()), "{}", lines.len());
    assert!(lines.last().is_some_and(|line| line.ends_with("x100")), "{newest}");
    assert_eq!(body("/wrong"), "nilbad log level: 9\n");
}

#[test]
fn a_status_that_http_does_not_have_is_refused() {
    let server = server(
        "location / { content_by_lua_block {
             ngx.status = 404
             for _, status in ipairs { -1, 0, 99, 1000, 1e9 } do ngx.status = status end
             require('ngx.resp').set_status(7, 'Seven')
             ngx.print(ngx.status)
         } }
         location = /filter { header_filter_by_lua_block { ngx.status = 99 } return 201; }
         location = /most { content_by_lua_block { ngx.status = 999 ngx.print('in') } }
         location = /same { content_by_lua_block { ngx.status = 304 ngx.print('in') } }",
    );
    let answer = server.get("/");
    assert_eq!((answer.status, answer.body().as_str()), (404, "404"));
    assert_eq!((server.get("/filter").status, server.get("/most").status), (201, 999));
    for status in ["-1", "0", "1000", "1000000000", "7"] {
        server.wait_log(&format!("invalid HTTP status code {status}, client: "), 1);
    }
    server.wait_log("invalid HTTP status code 99, client: ", 2);
    // What has not changed has no type that no script has set.
    assert_eq!(server.get("/same").header("Content-Type"), None);
}

#[test]
fn a_line_of_the_log_names_the_chunk_as_lua_does() {
    let server = server(
        r#"location / { content_by_lua_block {
             loadstring("ngx.log(ngx.WARN, 'of a text')\n")()
             loadstring("ngx.log(ngx.WARN, 'of a name')", "=named")()
             loadstring("ngx.log(ngx.WARN, 'of a file')", "@/dir/file.lua")()
             local ok, why = pcall(ngx.say, 1LL)
             ngx.log(ngx.WARN, why)
         } }"#,
    );
    server.get("/");
    server.wait_log(r#"[lua] [string "ngx.log(ngx.WARN, 'of a text')..."]:1: of a text"#, 1);
    server.wait_log("[lua] named:1: of a name", 1);
    server.wait_log("[lua] file.lua:1: of a file", 1);
    server.wait_log("but got cdata)", 1);
}
