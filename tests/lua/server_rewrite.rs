//! `server_rewrite_by_lua`: before the server's own `rewrite` lines, and before a location is looked up.

use weir_testkit::{Client, Dir, Server};

use super::{WEIR, ask, server};

const SERVER: &str = r#"
    server_rewrite_by_lua_block {
        local uri = ngx.var.uri
        ngx.ctx.way = (ngx.ctx.way or "") .. ngx.get_phase() .. " " .. uri .. " "
        if uri == "/redirect" then return ngx.redirect("/x", 301) end
        if uri == "/exit" then return ngx.exit(503) end
        if uri == "/ok" then ngx.sleep(0.001) return ngx.exit(ngx.OK) end
        if uri == "/say" then ngx.sleep(0.001) ngx.status = 403 ngx.say("denied") return ngx.flush(true) end
        if uri == "/body" then ngx.req.read_body() return ngx.print("got ", ngx.req.get_body_data()) end
        if uri == "/exec" then return ngx.exec("/to", { a = 1 }) end
        if uri == "/name" then return ngx.exec("@named") end
        if uri == "/set" then ngx.req.set_uri("/to") end
        if uri == "/jump" then
            ngx.req.set_uri_args("b=2")
            ngx.req.set_uri("/to", true)
            ngx.say("not reached")
        end
        if uri == "/error" then error("oops") end
        if uri == "/capture" then return ngx.print(ngx.location.capture("/to").body) end
    }
    rewrite ^/line$ /to;
    location = /to { rewrite_by_lua_block { ngx.ctx.way = ngx.ctx.way .. ngx.get_phase() }
        content_by_lua_block { ngx.print(ngx.ctx.way, " ", ngx.var.uri, "?", ngx.var.args or "") } }
    location @named { content_by_lua_block { ngx.print("named") } }
    location / { content_by_lua_block { ngx.print("root ", ngx.ctx.way) } }"#;

#[test]
fn a_script_of_the_server_runs_before_locations_are_looked_up() {
    let server = server(SERVER);
    for (path, status, body) in [
        ("/a", 200, "root server_rewrite /a "),
        ("/exit", 503, ""),
        ("/ok", 200, "root server_rewrite /ok "),
        ("/say", 403, "denied\n"),
        ("/exec", 200, "server_rewrite /to rewrite /to?a=1"),
        ("/name", 200, "named"),
        ("/set", 200, "server_rewrite /set rewrite /to?"),
        ("/jump", 200, "server_rewrite /jump rewrite /to?b=2"),
        // It runs before the lines of the rewrite module, unlike the script of a location.
        ("/line", 200, "server_rewrite /line rewrite /to?"),
        ("/error", 500, ""),
        ("/capture", 200, "server_rewrite /to rewrite /to?"),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, status, "{path}");
        assert!(status >= 500 || answer.body() == body, "{path}: {}", answer.body());
    }
    let moved = server.get("/redirect");
    assert_eq!((moved.status, moved.header("Location")), (301, Some("/x")));
    let sent = ask(&server, "POST /body HTTP/1.1\r\nContent-Length: 2", "hi");
    assert_eq!(sent.body(), "got hi");
    server.wait_log("lua entry thread aborted: runtime error: server_rewrite_by_lua(", 1);
}

#[test]
fn a_server_has_its_own_script_or_that_of_the_http_block() {
    let dir = Dir::new();
    dir.write("own.lua", "ngx.ctx.by = 'own file'");
    let conf = "events {}
        http {
            server_rewrite_by_lua_block { ngx.ctx.by = 'http' }
            server { listen 127.0.0.1:%%PORT%%; location / { content_by_lua 'ngx.print(ngx.ctx.by)'; } }
            server { listen 127.0.0.1:%%PORT1%%; server_rewrite_by_lua_file own.lua;
                location / { content_by_lua 'ngx.print(ngx.ctx.by)'; } }
            server { listen 127.0.0.1:%%PORT2%%; server_rewrite_by_lua_file $arg_f.lua;
                location / { content_by_lua 'ngx.print(ngx.ctx.by)'; } }
        }";
    let server = Server::start_in(dir, WEIR, conf);
    assert_eq!(server.get("/").body(), "http");
    assert_eq!(Client::connect(server.port_at(1)).get("/").body(), "own file");
    assert_eq!(Client::connect(server.port_at(2)).get("/?f=own").body(), "own file");
    let twice = "events {} http { server { server_rewrite_by_lua_block { } server_rewrite_by_lua_file own.lua; } }";
    server.configure(twice);
    let out = server.command(&["-t"]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(text.contains("\"server_rewrite_by_lua_file\" directive is duplicate"), "{text}");
}
