//! `balancer_by_lua`: a script chooses the server of each attempt.

use std::io::{Read, Write};

use weir_testkit::{Client, Dir, Server, certified, fastcgi, listen};

use super::{WEIR, ask};

/// Servers that say which they are, and how many requests came on their connection. Nothing listens on PORT9.
const BEHIND: &str = r#"
    server { listen 127.0.0.1:%%PORT1%%; location / { return 200 "one $uri $connection_requests"; }
        location /404 { return 404; } location /503 { return 503; }
        location /from { return 200 $remote_addr; }
        location /slow { content_by_lua_block { ngx.sleep(30) } }
        location /go { content_by_lua_block { ngx.shared.gate:set("open", true) } }
        location /pause { content_by_lua_block {
            ngx.log(ngx.ERR, "begun to wait")
            repeat ngx.sleep(0.005) until ngx.shared.gate:get("open")
            ngx.print("one waited") } }
        location /body { content_by_lua_block { ngx.req.read_body()
            ngx.print(ngx.req.get_method(), " ", ngx.var.http_x, " ", ngx.req.get_body_data()) } } }
    server { listen 127.0.0.1:%%PORT2%%; location / { return 200 "two $uri $connection_requests"; } }"#;

/// A server with these lines beside the servers behind, and these locations.
fn balanced(http: &str, locations: &str) -> Server {
    balanced_in(Dir::new(), http, locations)
}

fn balanced_in(dir: Dir, http: &str, locations: &str) -> Server {
    Server::start_in(dir, WEIR, &configuration(http, locations))
}

fn configuration(http: &str, locations: &str) -> String {
    format!(
        "events {{}}
         http {{
             access_log off; default_type text/plain; proxy_http_version 1.1; proxy_set_header Connection '';
             init_by_lua_block {{ balancer = require 'ngx.balancer' one, two, dead = %%PORT1%%, %%PORT2%%, %%PORT9%% }}
             lua_shared_dict gate 64k;
             add_header X-Addr $upstream_addr always; add_header X-Status $upstream_status always;
             {BEHIND} {http}
             server {{ listen 127.0.0.1:%%PORT%%; {locations} }}
         }}"
    )
}

/// An `upstream { }` with a script.
fn upstream(name: &str, script: &str, more: &str) -> String {
    format!("upstream {name} {{ server 0.0.0.1; balancer_by_lua_block {{ {script} }} {more} }}")
}

#[test]
fn a_script_chooses_the_server_of_each_attempt() {
    let chosen = upstream(
        "chosen",
        "ngx.ctx.seen = (ngx.ctx.seen or '') .. ngx.get_phase() .. ' ' .. ngx.var.arg_to .. ' '
         ngx.var.tries = ngx.var.tries + 1
         assert(balancer.set_current_peer('127.0.0.1', ngx.var.arg_to == '2' and two or one))",
        "",
    );
    let retries = upstream(
        "retries",
        "local n = (ngx.ctx.n or 0) + 1
         ngx.ctx.n = n
         local state, status = balancer.get_last_failure()
         ngx.ctx.seen = (ngx.ctx.seen or '') .. n .. ' ' .. tostring(state) .. ' ' .. tostring(status) .. ' '
         local _, warning = balancer.set_more_tries(ngx.var.arg_more or 1)
         ngx.ctx.seen = ngx.ctx.seen .. (warning and 'reduced ' or '')
         assert(balancer.set_current_peer('127.0.0.1:' .. (n > tonumber(ngx.var.arg_bad) and two or
             ngx.var.arg_kind == 'dead' and dead or one), 1))",
        "",
    );
    let server = balanced(
        &(chosen + &retries),
        "set $tries 0; header_filter_by_lua_block { ngx.header.X_Seen, ngx.header.X_Tries = ngx.ctx.seen, ngx.var.tries }
         location /chosen/ { proxy_pass http://chosen/; }
         location /computed/ { set $name chosen; proxy_pass http://$name/a; }
         location /retries/ { proxy_pass http://retries/; proxy_next_upstream error timeout http_404 http_503;
             proxy_next_upstream_tries 4; }
         location /never/ { proxy_pass http://retries/; proxy_next_upstream off; }",
    );
    let (one, two, dead) = (server.port_at(1), server.port_at(2), server.port_at(9));
    let answer = server.get("/chosen/x?to=2");
    assert_eq!(answer.body(), "two /x 1");
    assert_eq!(answer.header("X-Addr"), Some(format!("127.0.0.1:{two}").as_str()));
    assert_eq!(
        (answer.header("X-Seen"), answer.header("X-Tries")),
        (Some("balancer 2"), Some("1"))
    );
    assert_eq!(server.get("/chosen/x?to=1").body(), "one /x 1");
    assert!(server.get("/computed/?to=1").body().starts_with("one /a"));

    let answer = server.get("/retries/x?bad=2&kind=dead");
    assert!(answer.body().starts_with("two /x"), "{}", answer.body());
    let addresses = format!("127.0.0.1:{dead}, 127.0.0.1:{dead}, 127.0.0.1:{two}");
    assert_eq!(answer.header("X-Addr"), Some(addresses.as_str()));
    assert_eq!(answer.header("X-Status"), Some("502, 502, 200"));
    assert_eq!(answer.header("X-Seen"), Some("1 nil nil 2 failed 502 3 failed 502"));
    let upstream = format!("upstream: \"http://127.0.0.1:{dead}/x?bad=2&kind=dead\"");
    server.wait_log(&upstream, 2);
    let answer = server.get("/retries/404?bad=1");
    assert_eq!(answer.header("X-Seen"), Some("1 nil nil 2 next 404"));
    let answer = server.get("/retries/503?bad=1");
    assert_eq!(answer.header("X-Seen"), Some("1 nil nil 2 failed 503"));
    // The location's number of tries is the most that a script gets.
    let answer = server.get("/retries/503?bad=9&more=2");
    let addresses = vec![format!("127.0.0.1:{one}"); 4].join(", ");
    assert_eq!((answer.status, answer.header("X-Addr")), (503, Some(addresses.as_str())));
    let seen = "1 nil nil 2 failed 503 reduced 3 failed 503 reduced 4 failed 503 reduced";
    assert_eq!(answer.header("X-Seen"), Some(seen));
    let answer = server.get("/never/x?bad=2&kind=dead");
    assert_eq!((answer.status, answer.header("X-Seen")), (502, Some("1 nil nil")));
}

#[test]
fn a_script_that_chooses_nothing_leaves_the_request_to_the_groups_servers() {
    let own = "upstream own { server 127.0.0.1:%%PORT9%%; server 127.0.0.1:%%PORT2%%; least_conn;
        balancer_by_lua_block { if ngx.var.arg_one then balancer.set_current_peer('127.0.0.1', one) end } }
        upstream none { balancer_by_lua_block { } }
        upstream late { balancer_by_lua_block { if ngx.var.arg_one then balancer.set_current_peer('127.0.0.1', one) end }
            server 127.0.0.1:%%PORT2%%; }
        upstream bound { server 127.0.0.1:%%PORT2%%; sticky cookie c;
            balancer_by_lua_block { if ngx.var.arg_one then balancer.set_current_peer('127.0.0.1', one) end } }";
    let server = balanced(
        own,
        "location /own/ { proxy_pass http://own/; } location /none/ { proxy_pass http://none/; }
         location /late/ { proxy_pass http://late/; }
         location /bound/ { proxy_pass http://bound/; }",
    );
    assert!(server.get("/own/x").body().starts_with("two /x"));
    assert!(server.get("/own/x?one=1").body().starts_with("one /x"));
    assert!(server.get("/late/x").body().starts_with("two /x"));
    assert!(server.get("/late/x?one=1").body().starts_with("one /x"));
    // Clients are bound to servers of the group alone.
    assert!(server.get("/bound/").header("Set-Cookie").is_some());
    let answer = server.get("/bound/?one=1");
    assert!(answer.body().starts_with("one /") && answer.header("Set-Cookie").is_none());
    let answer = server.get("/none/");
    assert_eq!((answer.status, answer.header("X-Addr")), (500, None));
    server.wait_log("lua balancer: no peer set while connecting to upstream, client: ", 1);
    server.wait_log("load balancing method redefined", 2);
}

#[test]
fn a_script_that_fails_or_exits_ends_the_request() {
    let script = r#"
        local kind = ngx.var.arg_kind
        balancer.set_current_peer("127.0.0.1", one)
        if kind == "error" then error("oops") end
        if kind == "sleep" then ngx.sleep(1) end
        if kind == "socket" then ngx.socket.tcp() end
        if kind == "udp" then ngx.socket.udp() end
        if kind == "capture" then ngx.location.capture("/x") end
        if kind == "say" then ngx.say("x") end
        if kind == "redirect" then ngx.redirect("/x") end
        if kind == "body" then ngx.req.read_body() end
        if kind == "thread" then ngx.thread.spawn(function() end) end
        if kind == "yield" then coroutine.yield() end
        if kind == "declined" then ngx.ctx.n = (ngx.ctx.n or 0) + 1
            if ngx.ctx.n == 1 then balancer.set_more_tries(1) return ngx.exit(ngx.DECLINED) end end
        if kind == "exit" then print("before exit") ngx.exit(tonumber(ngx.var.arg_status)) end"#;
    let server = balanced(
        &upstream("fails", script, ""),
        "location / { proxy_pass http://fails; } error_page 403 /own; location = /own { return 403 own; }",
    );
    for (kind, text) in [
        ("error", "oops"),
        ("sleep", "API disabled in the context of balancer_by_lua*"),
        ("socket", "API disabled in the context of balancer_by_lua*"),
        ("udp", "API disabled in the context of balancer_by_lua*"),
        ("capture", "API disabled in the context of balancer_by_lua*"),
        ("say", "API disabled in the context of balancer_by_lua*"),
        ("redirect", "API disabled in the context of balancer_by_lua*"),
        ("body", "API disabled in the context of balancer_by_lua*"),
        ("thread", "API disabled in the context of balancer_by_lua*"),
        ("yield", "attempt to yield across C-call boundary"),
    ] {
        let before = server.logged("failed to run balancer_by_lua*: ");
        let known = server.logged(text);
        assert_eq!(server.get(&format!("/?kind={kind}")).status, 500, "{kind}");
        server.wait_log("failed to run balancer_by_lua*: ", before + 1);
        server.wait_log(text, known + 1);
    }
    for (status, seen) in [(0, 200), (403, 403), (503, 503), (200, 500), (-1, 500), (-5, 502)] {
        let answer = server.get(&format!("/?kind=exit&status={status}"));
        assert_eq!(answer.status, seen, "{status}");
        assert_eq!(answer.header("X-Addr").is_some(), status == 0, "{status}");
        assert!(status != 403 || answer.body() == "own");
    }
    server.wait_log("before exit while connecting to upstream, client: ", 1);
    // It counts as a server that could not be reached.
    assert_eq!(server.get("/?kind=declined").status, 502);
}

#[test]
fn functions_of_the_balancer_say_where_they_are_of_no_use() {
    let script = r#"
        local said, b = {}, balancer
        local function say(...) for _, v in ipairs { ... } do said[#said + 1] = tostring(v) end said[#said + 1] = ";" end
        local function both(ok, why) say(ok == nil and "nil" or ok, why or "") end
        local function raised(f, ...) say((select(2, pcall(f, ...)))) end
        both(b.enable_keepalive())
        both(b.set_current_peer("a.example.org", 80))
        both(b.set_current_peer("127.0.0.1:x"))
        both(b.set_current_peer(""))
        raised(b.set_current_peer, "127.0.0.1", 80, 5)
        raised(b.set_current_peer, "127.0.0.1", 80, {})
        raised(b.set_timeouts, 0)
        raised(b.set_timeouts, nil, -1)
        raised(b.set_timeouts, nil, nil, "1")
        raised(b.enable_keepalive, true)
        raised(b.enable_keepalive, nil, -1)
        both(b.bind_to_local_addr("nowhere"))
        raised(b.bind_to_local_addr, 1)
        both(b.set_upstream_tls(true))
        both(b.set_upstream_tls(false))
        ngx.ctx.said = table.concat(said, " ")
        both(b.set_current_peer("127.0.0.1", one, { pool = "a", pool_size = 5 }))"#;
    let server = balanced(
        &upstream("group", script, ""),
        "location /in { proxy_pass http://group; header_filter_by_lua_block { ngx.header.X_Said = ngx.ctx.said } }
         location /content { content_by_lua_block {
             ngx.print(tostring(balancer.set_current_peer('127.0.0.1', 1)), ' ', select(2, balancer.set_timeouts(1, 1, 1)),
                 ' ', select(3, balancer.get_last_failure())) } }
         location /after { proxy_pass http://group; log_by_lua_block { ngx.log(ngx.ERR, select(2, balancer.set_more_tries(1))) } }
         location /timer { content_by_lua_block { ngx.timer.at(0, function()
             ngx.log(ngx.ERR, select(2, pcall(balancer.set_more_tries, 1))) end) } }",
    );
    let answer = server.get("/in");
    let said = answer.header("X-Said").unwrap_or_default();
    assert_eq!(answer.status, 200);
    let all = [
        "nil no current peer set",
        "nil no host allowed",
        "nil invalid port",
        "nil no host",
        "bad argument #3 to 'set_current_peer' (string expected, got number)",
        "bad argument #3 to 'set_current_peer' (string expected, got table)",
        "bad connect timeout",
        "bad send timeout",
        "bad read timeout",
        "bad argument #1 to 'enable_keepalive' (number expected, got boolean)",
        "bad argument #2 to 'enable_keepalive' (expected >= 0)",
        "nil invalid addr nowhere",
        "bad argument #1 to 'bind_to_local_addr' (string expected, got number)",
        "nil the request is passed on without TLS",
        "true",
    ];
    let said: Vec<&str> = said.split(';').map(str::trim).filter(|s| !s.is_empty()).collect();
    assert_eq!(said, all);
    assert_eq!(server.get("/content").body(), "nil no upstream found no upstream found");
    server.get("/after");
    server.wait_log("API disabled in the current context while logging request", 1);
    server.get("/timer");
    server.wait_log("no request found, context: ngx.timer", 1);
}

#[test]
fn connections_to_chosen_servers_are_kept_as_the_script_says() {
    let script = r#"
        balancer.set_current_peer("127.0.0.1", ngx.var.arg_to == "2" and two or one)
        if ngx.var.arg_keep then balancer.enable_keepalive(60, tonumber(ngx.var.arg_keep)) end"#;
    let groups =
        upstream("kept", script, "keepalive 0;") + &upstream("block", script, "keepalive 4;");
    let server = balanced(
        &groups,
        "location /kept/ { proxy_pass http://kept/; } location /block/ { proxy_pass http://block/; }",
    );
    let seen = |path: &str| {
        let body = server.get(path).body();
        body.rsplit(' ').next().and_then(|n| n.parse::<u32>().ok()).expect("a count of requests")
    };
    // Nothing is kept unless the script says so, and a connection serves as many requests as it says.
    assert_eq!([seen("/kept/x"), seen("/kept/x"), seen("/kept/x?keep=2")], [1, 1, 1]);
    assert_eq!([seen("/kept/x?keep=2"), seen("/kept/x?keep=2"), seen("/kept/x?keep=2")], [2, 1, 2]);
    // By the address.
    assert_eq!(
        [seen("/kept/x?keep=0&to=2"), seen("/kept/x?keep=0"), seen("/kept/x?keep=0&to=2")],
        [1, 1, 2]
    );
    // The block's own line holds as well.
    assert_eq!([seen("/block/x"), seen("/block/x"), seen("/block/x?to=2")], [1, 2, 1]);
    assert_eq!(seen("/block/x?to=2"), 2);
}

#[test]
fn a_kept_connection_that_its_server_ends_costs_no_attempt() {
    // Each connection serves one request, and ends with the next.
    let port = listen(|mut stream| {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let mut request = [0; 4096];
        if stream.read(&mut request).is_ok_and(|n| n > 0) && stream.write_all(answer).is_ok() {
            let _ = stream.read(&mut request);
        }
    });
    let script = format!(
        "ngx.ctx.seen = (ngx.ctx.seen or '') .. tostring(balancer.get_last_failure()) .. ' '
         balancer.set_current_peer('127.0.0.1', {port}) balancer.enable_keepalive()"
    );
    let server = balanced(
        &upstream("ends", &script, ""),
        "location / { proxy_pass http://ends; header_filter_by_lua_block { ngx.header.X_Seen = ngx.ctx.seen } }",
    );
    for seen in ["nil", "nil failed"] {
        let answer = server.get("/");
        assert_eq!((answer.status, answer.header("X-Seen")), (200, Some(seen)));
    }
}

#[test]
fn requests_of_all_protocols_go_where_the_script_says() {
    let fastcgi = listen(|mut stream| {
        while let Some(asked) = fastcgi::request(&mut stream) {
            if !fastcgi::say(&mut stream, &fastcgi::answer("Status: 200\r\n\r\nfastcgi"))
                || !asked.keep
            {
                return;
            }
        }
    });
    let (scgi, uwsgi) = (script_server("scgi"), script_server("uwsgi"));
    let memcached = listen(|mut stream| {
        let mut request = [0; 4096];
        while stream.read(&mut request).is_ok_and(|n| n > 0) {
            let _ = stream.write_all(b"VALUE /memcached 0 9\r\nmemcached\r\nEND\r\n");
        }
    });
    let behind = "server { listen 127.0.0.1:%%PORT4%%; http2 on; location / { return 200 grpc; } }
        server { listen unix:%%DIR%%/behind.sock; location / { return 200 unix; } }";
    let script = format!(
        "local n = (ngx.ctx.n or 0) + 1
         ngx.ctx.n = n
         if n == 1 then
             balancer.set_more_tries(1)
             return assert(balancer.set_current_peer('127.0.0.1', dead))
         end
         local ports = {{ fastcgi = {fastcgi}, scgi = {scgi}, uwsgi = {uwsgi}, memcached = {memcached}, grpc = %%PORT4%% }}
         local port = ports[ngx.var.uri:sub(2)]
         assert(balancer.set_current_peer(port and '127.0.0.1' or 'unix:%%DIR%%/behind.sock', port))"
    );
    let server = balanced(
        &(behind.to_owned() + &upstream("all", &script, "")),
        "location = /fastcgi { fastcgi_pass all; } location = /scgi { scgi_pass all; } location = /uwsgi { uwsgi_pass all; }
         location = /memcached { set $memcached_key $uri; memcached_pass all; } location = /grpc { grpc_pass grpc://all; }
         location = /unix { proxy_pass http://all; }",
    );
    for name in ["fastcgi", "scgi", "uwsgi", "memcached", "grpc", "unix"] {
        let answer = server.get(&format!("/{name}"));
        assert_eq!((answer.status, answer.body().as_str()), (200, name), "{name}");
        assert_eq!(answer.header("X-Status"), Some("502, 200"), "{name}");
    }
    assert!(server.get("/unix").header("X-Addr").is_some_and(|a| a.ends_with("/behind.sock")));
}

/// A server that answers a request of a script's protocol and closes.
fn script_server(name: &'static str) -> u16 {
    listen(move |mut stream| {
        let mut request = [0; 4096];
        if stream.read(&mut request).is_ok_and(|n| n > 0) {
            let _ = stream.write_all(format!("Status: 200 OK\r\n\r\n{name}").as_bytes());
        }
    })
}

#[test]
fn a_reload_takes_another_script_and_keeps_what_is_under_way() {
    let dir = Dir::new();
    dir.write(
        "choose.lua",
        "balancer.set_current_peer('127.0.0.1', one) balancer.enable_keepalive()",
    );
    let group = "upstream group { balancer_by_lua_file %%DIR%%/choose.lua; balancer_keepalive 1; }";
    let locations = "location / { proxy_pass http://group; }";
    let server = balanced_in(dir, group, locations);
    assert_eq!(server.get("/x").body(), "one /x 1");
    assert_eq!(server.get("/x").body(), "one /x 2");
    let mut slow = server.connect();
    slow.send("GET /pause HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_log("begun to wait", 1);
    server.dir().write(
        "choose.lua",
        "balancer.set_current_peer('127.0.0.1', two) balancer.enable_keepalive()",
    );
    server.reload();
    assert_eq!(server.get("/x").body(), "two /x 1");
    Client::connect(server.port_at(1)).get("/go");
    assert_eq!(slow.response().body(), "one waited");
}

#[test]
fn a_script_stands_in_an_upstream_once() {
    let server = balanced("", "location / { return 200; }");
    let refused = |lines: &str| {
        server.configure(&format!("events {{}} http {{ {lines} }}"));
        let out = server.command(&["-t"]);
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    for (lines, text) in [
        ("balancer_by_lua_block { }", "\"balancer_by_lua_block\" directive is not allowed here"),
        (
            "server { balancer_by_lua_file a.lua; }",
            "\"balancer_by_lua_file\" directive is not allowed here",
        ),
        (
            "upstream u { balancer_by_lua_block { } balancer_by_lua_block { } }",
            "\"balancer_by_lua_block\" directive is duplicate",
        ),
        ("upstream u { balancer_by_lua_file nosuch.lua; }", "failed to load external Lua file"),
        (
            "upstream u { balancer_by_lua_block { } server 127.0.0.1 max_conns=1; }",
            "balancing method does not support parameter \"max_conns=1\"",
        ),
        (
            "upstream u { balancer_by_lua_block { } server 127.0.0.1 backup; }",
            "balancing method does not support parameter \"backup\"",
        ),
        (
            "upstream u { balancer_keepalive 0; balancer_by_lua_block { } }",
            "invalid value \"0\" in \"balancer_keepalive\" directive",
        ),
        ("upstream u { balancer_keepalive 1; }", "no servers are inside upstream"),
    ] {
        let (fine, said) = refused(lines);
        assert!(!fine && said.contains(text), "{lines}: {said}");
    }
    const REDEFINED: &str = "load balancing method redefined";
    for (lines, text) in [
        ("upstream u { ip_hash; server 127.0.0.1; balancer_by_lua_block { } }", REDEFINED),
        (
            "upstream u { server 127.0.0.1 max_conns=1; balancer_by_lua_block { } random; }",
            REDEFINED,
        ),
        (
            "upstream u { balancer_by_lua_block { ngx.exit( } }",
            "failed to load inlined Lua code: balancer_by_lua(",
        ),
    ] {
        let (fine, said) = refused(lines);
        assert!(fine && said.contains(text), "{lines}: {said}");
    }
}

#[test]
fn what_a_script_says_of_the_connection_holds() {
    let script = r#"
        local kind = ngx.var.arg_kind
        if kind == "slow" and not balancer.get_last_failure() then
            balancer.set_timeouts(nil, nil, 0.05)
            balancer.set_more_tries(1)
        end
        if kind == "from" then assert(balancer.bind_to_local_addr(ngx.var.arg_from)) end
        if kind == "header" then ngx.req.set_header("X", "new") balancer.recreate_request() end
        if kind == "stale" then ngx.req.set_header("X", "new") end
        if kind == "set" then ngx.req.set_body_data("longer than before") end
        balancer.set_current_peer("127.0.0.1", kind == "slow" and balancer.get_last_failure() and two or one)"#;
    let server = balanced(
        &upstream("said", script, ""),
        "location / { proxy_pass http://said; proxy_next_upstream error timeout; }",
    );
    let answer = server.get("/slow?kind=slow");
    assert_eq!((answer.status, answer.header("X-Status")), (200, Some("504, 200")));
    server.wait_log("upstream timed out", 1);
    for from in ["127.0.0.3", "127.0.0.4"] {
        assert_eq!(server.get(&format!("/from?kind=from&from={from}")).body(), from);
    }
    let post = |kind: &str| {
        let head = format!("POST /body?kind={kind} HTTP/1.1\r\nX: old\r\nContent-Length: 4");
        ask(&server, &head, "body").body()
    };
    assert_eq!(post("header"), "POST new body");
    // A request that is not written anew is the one that was written before the script.
    assert_eq!(post("stale"), "POST old body");
    // Its length must fit in any case.
    assert_eq!(post("set"), "POST old longer than before");
}

#[test]
fn tls_to_chosen_servers_is_spoken_by_the_name_that_the_script_says() {
    let secured = r#"
        server { listen 127.0.0.1:%%PORT3%% ssl; http2 on; ssl_certificate self.pem; ssl_certificate_key self.key;
            location / { return 200 "$ssl_server_name $connection_requests $server_protocol"; } }
        proxy_ssl_server_name on; grpc_ssl_server_name on;"#;
    let script = r#"
        local plain = ngx.var.arg_plain
        assert(balancer.set_current_peer("127.0.0.1", plain and two or %%PORT3%%, ngx.var.arg_name))
        balancer.enable_keepalive()
        if plain then assert(balancer.set_upstream_tls(false)) end"#;
    let server = balanced_in(
        certified(),
        &(secured.to_owned() + &upstream("secured", script, "")),
        "location /tls { proxy_pass https://secured; } location /http2 { proxy_http_version 2; proxy_pass https://secured; }
         location /named { proxy_ssl_name of.the.line; proxy_pass https://secured; }",
    );
    // Each name has connections of its own.
    let said = |path: &str| server.get(path).body();
    assert_eq!(said("/tls?name=a.example.org"), "a.example.org 1 HTTP/1.1");
    assert_eq!(said("/tls?name=b.example.org"), "b.example.org 1 HTTP/1.1");
    assert_eq!(said("/tls?name=a.example.org"), "a.example.org 2 HTTP/1.1");
    assert_eq!(said("/tls"), "secured 1 HTTP/1.1");
    assert_eq!(said("/named?name=a.example.org"), "of.the.line 1 HTTP/1.1");
    assert_eq!(said("/http2?name=a.example.org"), "a.example.org 1 HTTP/2.0");
    assert_eq!(said("/http2?name=a.example.org"), "a.example.org 2 HTTP/2.0");
    assert_eq!(said("/tls?plain=1"), "two /tls 1");
}
