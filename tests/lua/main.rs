//! Scripts in Lua: the phases, and each part of `ngx`.

mod access;
mod answers;
mod balancer;
mod bodies;
mod coroutines;
mod ends;
mod finalizers;
mod flow;
mod handshake;
mod kept;
mod library;
mod life;
mod locations;
mod machine_code;
mod messages;
mod pipes;
mod returns;
mod server_rewrite;
mod sessions;
mod settings;
mod sockets;
mod to_server;
mod upstreams;
mod waiting;
mod worker_threads;

use rustix::process::Signal;
use weir_testkit::{Dir, Response, Server, examples};

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
    server.wait_log("in log 200 while logging request, client: ", 1);
}

#[test]
fn a_script_sets_variables_of_the_access_log() {
    let server = server_with(
        "log_format own '$uri $seen';",
        r#"access_log own.log own; set $seen "";
           location /t { log_by_lua_block { ngx.var.seen = "by " .. ngx.get_phase() } return 204; }"#,
    );
    server.get("/t");
    server.wait_file("own.log", "/t by log\n", 1);
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
    assert_eq!((moved.status, moved.header("Location")), (302, Some("/x?y")));
    assert_eq!(server.get("/r8").header("Location"), Some("http://b.b/"));
    assert_eq!(server.get("/jump").body(), "/to c=3\n");
    assert_eq!(server.get("/set").body(), "/changed\n");
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
    server.wait_log("stack traceback:\\x0Acoroutine 0:\\x0A\t[C]: in function 'error'", 1);
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
fn wrong_scripts_are_warned_of_and_cost_the_requests_that_need_them() {
    let server = server("location / { return 200; }");
    let tested = |line: &str| {
        let conf = format!("events {{}} http {{ server {{ location / {{\n{line}\n}} }} }}");
        server.configure(&conf);
        let out = server.command(&["-t"]);
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    for (line, warning) in [
        ("content_by_lua_block { ngx.say( }", "failed to load inlined Lua code: content_by_lua("),
        ("content_by_lua_block {\n# nginx's comment\n}", "unexpected symbol near '#'"),
        ("content_by_lua_file nosuch.lua;", "failed to load external Lua file \""),
        ("lua_code_cache off;", "\"lua_code_cache off\" is not heeded"),
    ] {
        let (fine, text) = tested(line);
        assert!(fine && text.contains("[warn]") && text.contains(warning), "{text}");
    }
    let (fine, text) =
        tested("content_by_lua_block # {\n{ -- it's }\nlocal n = #{1} --[=[ ]] } ]=] }");
    assert!(fine && !text.contains("[warn]"), "{text}");
    let (fine, text) = tested("access_by_lua ' '; access_by_lua_block { }");
    assert!(!fine && text.contains("\"access_by_lua_block\" directive is duplicate"), "{text}");

    let dir = Dir::new();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    dir.write("sub/broken.conf", "location = /part { content_by_lua_block { ngx.say( } }");
    dir.write(
        "sub/broken-with-a-very-long-name-indeed.conf",
        "location = /long { content_by_lua_block { ngx.say( } }",
    );
    let conf = "events {}
        http { server {
            listen 127.0.0.1:%%PORT%%;
            location = /fine { content_by_lua_block { ngx.say('fine') } }
            location = /broken { content_by_lua_block { ngx.say( } }
            include sub/broken.conf;
            include %%DIR%%/sub/broken-with-a-very-long-name-indeed.conf;
            location = /filter { return 200; header_filter_by_lua_block { ngx.say( } }
            location = /late { content_by_lua_file late.lua; }
            location = /named { return 200; header_filter_by_lua_file $arg_n.lua; }
        } }";
    let server = Server::start_in(dir, WEIR, conf);
    assert_eq!(server.get("/fine").body(), "fine\n");
    assert_eq!(server.get("/broken").status, 500);
    server.wait_log("failed to load inlined Lua code: content_by_lua(nginx.conf:5)", 2);
    server.wait_log("failed to load inlined Lua code: content_by_lua(sub/broken.conf:1)", 1);
    server.wait_log("content_by_lua(...oken-with-a-very-long-name-indeed.conf:1)", 1);
    assert!(server.connect().send("GET /filter HTTP/1.1\r\nHost: a\r\n\r\n").is_closed());
    server.wait_log("failed to load inlined Lua code: header_filter_by_lua(", 2);
    assert_eq!(server.get("/late").status, 404);
    server.wait_log("late.lua (2: No such file or directory)", 2);
    server.dir().write("late.lua", "ngx.say('late')");
    server.dir().write("n.lua", "ngx.header.x = 'filtered'");
    assert_eq!(server.get("/late").body(), "late\n");
    assert_eq!(server.get("/named?n=n").header("x"), Some("filtered"));
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
                location = /rooted { content_by_lua_file $document_root/b.lua; }
                root %%DIR%%;
            }
        }";
    let server = Server::start_in(dir, WEIR, conf);
    assert_eq!(server.get("/rooted?n=r").body(), "b of r\n");
    assert_eq!(server.get("/a").body(), "hello from a module \n");
    assert_eq!(server.get("/named?n=b").body(), "b of b\n");
    assert_eq!(server.get("/named?n=b").body(), "b of b\n");
    assert_eq!(server.get("/named?n=none").status, 404);
}

#[test]
fn a_file_may_hold_what_luajit_has_compiled() {
    let dir = Dir::new();
    // The worker may not be the user that runs the test.
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), all).unwrap();
    let conf = "events {}
        http { server {
            listen 127.0.0.1:%%PORT%%;
            location = /named { content_by_lua_file $arg_n.lua; }
            location = /make { content_by_lua_block {
                local code = string.dump(loadstring('ngx.say(\"compiled\")'), true)
                for name, text in pairs { good = code, bad = code:gsub('^(...).', '%1x') } do
                    local file = assert(io.open('%%DIR%%/' .. name .. '.lua', 'w'))
                    file:write(text)
                    file:close()
                end
                ngx.say('made')
            } }
        } }";
    let server = Server::start_in(dir, WEIR, conf);
    assert_eq!(server.get("/make").body(), "made\n");
    assert_eq!(server.get("/named?n=good").body(), "compiled\n");
    assert_eq!(server.get("/named?n=bad").status, 500);
    server.wait_log("cannot load incompatible bytecode", 1);
}

#[test]
fn modules_are_found_in_the_prefix_and_where_distributions_have_them() {
    let dir = Dir::new();
    dir.write("mine.lua", "return 'mine'");
    let conf = "events {}
        http {
            lua_package_path '$prefix/?.lua;${prefix}more/?.lua;;/last/?.lua'; lua_package_cpath '$prefix/?.so;;';
            server { listen 127.0.0.1:%%PORT%%; location / { content_by_lua_block {
                ngx.say(require 'mine') ngx.say(package.path) ngx.say(package.cpath)
            } } }
        }";
    let server = Server::start_in(dir, WEIR, conf);
    let prefix = format!("{}/", server.dir().path().display());
    let said = server.get("/").body();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "mine");
    let begin = format!("{prefix}/?.lua;{prefix}more/?.lua;./?.lua;");
    assert!(lines[1].starts_with(&begin), "{said}");
    assert!(lines[1].contains(";/usr/local/share/lua/5.1/?/init.lua;/usr/share/luajit-2.1/?.lua;"));
    assert!(
        lines[1].ends_with(";/usr/share/lua/5.1/?.lua;/usr/share/lua/5.1/?/init.lua;/last/?.lua")
    );
    assert!(
        lines[2]
            .starts_with(&format!("{prefix}/?.so;./?.so;/usr/local/lib/lua/5.1/?.so;/usr/lib/"))
    );
    assert!(lines[2].contains("-linux-gnu/lua/5.1/?.so;"), "{said}");
}

#[test]
fn the_example_of_the_page_runs() {
    let page = include_str!("../../docs/lua.md");
    let conf = examples(page).next().unwrap().replace("127.0.0.1:8080", "127.0.0.1:%%PORT%%");
    let server = Server::start(WEIR, &conf);
    assert_eq!(server.get("/hello?name=you").body(), "hello, you\n");
    assert_eq!(server.get("/hello").body(), "hello, world\n");
    assert_eq!(server.get("/hello?name=nobody").status, 403);
}

/// What all phases leave in `/t`'s answer, with scripts in files that say which phase they are of.
fn from_files(http: &str) -> (Server, Response) {
    let dir = Dir::new();
    dir.write("init.lua", "began = 'init_file'");
    dir.write("init_worker.lua", "began = began .. ' worker_file'");
    dir.write("set.lua", "return 'set'");
    dir.write("rewrite.lua", "ngx.ctx.seen = 'rewrite'");
    dir.write("access.lua", "ngx.ctx.seen = ngx.ctx.seen .. ' access'");
    dir.write("head.lua", "ngx.header['X-Seen'] = ngx.ctx.seen .. ' head'");
    dir.write("body.lua", "ngx.arg[1] = ngx.arg[1] and string.upper(ngx.arg[1])");
    dir.write("log.lua", "ngx.log(ngx.ERR, 'log of ', ngx.ctx.seen)");
    dir.write("exit.lua", "ngx.log(ngx.ERR, 'exit of ', began)");
    let conf = format!(
        "events {{}}
         http {{
             {http}; exit_worker_by_lua_file %%DIR%%/exit.lua;
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 location /t {{
                     set_by_lua_file $x %%DIR%%/set.lua; rewrite_by_lua_file %%DIR%%/rewrite.lua;
                     access_by_lua_file %%DIR%%/access.lua; header_filter_by_lua_file %%DIR%%/head.lua;
                     body_filter_by_lua_file %%DIR%%/body.lua; log_by_lua_file %%DIR%%/log.lua;
                     content_by_lua_block {{ ngx.print(ngx.var.x, ' ', began) }}
                 }}
             }}
         }}"
    );
    let server = Server::start_in(dir, WEIR, &conf);
    let answer = server.get("/t");
    (server, answer)
}

#[test]
fn each_script_may_stand_in_a_file() {
    for (http, began) in [
        (
            "init_by_lua_file %%DIR%%/init.lua; init_worker_by_lua_file %%DIR%%/init_worker.lua",
            "init_file worker_file",
        ),
        (
            "init_by_lua \"began = 'init'\"; init_worker_by_lua \"began = began .. ' worker'\"",
            "init worker",
        ),
    ] {
        let (mut server, answer) = from_files(http);
        assert_eq!(answer.body(), format!("set {began}").to_uppercase());
        assert_eq!(answer.header("X-Seen"), Some("rewrite access head"));
        server.wait_log("log of rewrite access", 1);
        server.signal(Signal::QUIT);
        server.wait();
        server.wait_log(&format!("exit of {began}"), 1);
    }
}

#[test]
fn what_scripts_find_and_leave_is_as_the_configuration_says() {
    let server = server(
        "location /read { lua_need_request_body on; content_by_lua_block { ngx.print(ngx.var.request_body) } }
         location /unread { content_by_lua_block { ngx.print(ngx.var.request_body or 'none') } }
         location /bare { lua_use_default_type off; content_by_lua_block { ngx.print('x') } }
         location /kept {
             lua_transform_underscores_in_response_headers off; rewrite_by_lua_block { ngx.ctx.a = 'b' }
             content_by_lua_block { ngx.header.a_b = ngx.ctx.a ngx.print('x') }
         }
         location /turned { content_by_lua_block { ngx.header.a_b = 'c' ngx.print('x') } }",
    );
    let put = |path: &str| {
        ask(&server, &format!("PUT {path} HTTP/1.1\r\nContent-Length: 2"), "hi").body()
    };
    assert_eq!((put("/read").as_str(), put("/unread").as_str()), ("hi", "none"));
    let (bare, kept, turned) = (server.get("/bare"), server.get("/kept"), server.get("/turned"));
    assert_eq!(bare.header("Content-Type"), None);
    assert_eq!(kept.header("Content-Type"), Some("text/plain"));
    assert_eq!((kept.header("a_b"), turned.header("a-b")), (Some("b"), Some("c")));
}

#[test]
fn a_header_with_an_underscore_is_found_by_its_name() {
    let server = server_with(
        "underscores_in_headers on;",
        r#"location / { content_by_lua_block {
               local all = ngx.req.get_headers()
               ngx.say(all.X_Foo, " ", all["x-foo"], " ", all.x_bar, " ", all["X-Bar"], " ", all.no_such)
           } }"#,
    );
    let said = |lines: &str| ask(&server, &format!("GET / HTTP/1.1\r\n{lines}"), "").body();
    assert_eq!(said("X_Foo: a\r\nX-Bar: b"), "a nil b b nil\n");
    assert_eq!(said("x-foo: a\r\nx_foo: b"), "b a nil nil nil\n");
}
