//! What scripts keep while they wait. Its size, which clients can influence, is bounded.

use std::fmt::Write as _;

use weir_testkit::{Client, ask_until};

use super::{said, server, server_with};

/// mlua has room for about 8,000 handles to values of Lua.
const MANY: usize = 10_000;

/// Asks `/count` until so many scripts wait.
fn wait_for(server: &weir_testkit::Server, many: usize) {
    let mut last = String::new();
    let come = ask_until(|| {
        last = server.get("/count").body();
        last == many.to_string()
    });
    assert!(come, "{last} of {many} wait");
}

/// Functions with which the scripts of a test wait for each other.
const GATE: &str = "init_by_lua_block {
        waiting, sum = 0, 0
        function pass(n)
            waiting = waiting + 1
            while not open do ngx.sleep(0.2) end
            waiting, sum = waiting - 1, sum + n
        end
    }";

/// Locations that say how many wait, let them go on, and answer what they have added up.
const DOOR: &str = "location = /count { content_by_lua_block { ngx.print(waiting) } }
     location = /open { content_by_lua_block { open = true } }
     location = /sum { content_by_lua_block { ngx.print(sum) } }";

#[test]
fn ten_thousand_scripts_of_timers_wait_at_once() {
    let server = server_with(
        &format!("lua_max_pending_timers {MANY}; lua_max_running_timers {MANY}; {GATE}"),
        &format!(
            "{DOOR} location = /set {{ content_by_lua_block {{
                 local f = function(premature, n) pass(n.value) end
                 for i = 1, {MANY} do assert(ngx.timer.at(0, f, {{ value = i }})) end
             }} }}"
        ),
    );
    assert_eq!(server.get("/set").status, 200);
    wait_for(&server, MANY);
    assert_eq!(server.get("/open").status, 200);
    wait_for(&server, 0);
    assert_eq!(server.get("/sum").body(), (MANY * (MANY + 1) / 2).to_string());
    assert_eq!(server.logged("panicked"), 0);
}

#[test]
fn requests_wait_with_contexts_and_sockets_of_their_own() {
    /// Each keeps a coroutine, a context, and a socket.
    const EACH: usize = 2_100;
    let server = server_with(
        GATE,
        &format!(
            "{DOOR}
             location = /many {{ content_by_lua_block {{
                 local list = {{}}
                 for i = 1, {EACH} do list[i] = {{ '/one?' .. i }} end
                 local sum = 0
                 for _, answer in ipairs {{ ngx.location.capture_multi(list) }} do sum = sum + answer.body end
                 ngx.print(sum)
             }} }}
             location = /one {{ content_by_lua_block {{
                 local socket = ngx.socket.tcp()
                 ngx.ctx.n, ngx.ctx.socket = tonumber(ngx.var.args), socket
                 pass(1)
                 assert(ngx.ctx.socket == socket)
                 ngx.print(ngx.ctx.n)
             }} }}"
        ),
    );
    let mut clients: Vec<Client> = (0..2).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send("GET /many HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    wait_for(&server, 2 * EACH);
    assert_eq!(server.get("/open").status, 200);
    for client in &mut clients {
        assert_eq!(client.response().body(), (EACH * (EACH + 1) / 2).to_string());
    }
    assert_eq!(server.logged("panicked"), 0);
}

#[test]
fn light_threads_wait_and_leave_nothing_when_they_were_waited_for() {
    let script = r#"
        local threads = {}
        for i = 1, 9000 do
            threads[i] = ngx.thread.spawn(function(t) ngx.sleep(0.1) return t.n end, { n = i })
        end
        local sum = 0
        for _, thread in ipairs(threads) do sum = sum + select(2, ngx.thread.wait(thread)) end
        ngx.say(sum)
        -- One after the other, as a script does that lasts long.
        for i = 1, 20000 do
            local ok, value = ngx.thread.wait(ngx.thread.spawn(function(x) return x, {} end, { i }))
            sum = sum - value[1]
        end
        ngx.say(sum)
        for i = 1, 9000 do
            local thread = ngx.thread.spawn(ngx.sleep, 1000)
            assert(ngx.thread.kill(thread))
            local ok, err = ngx.thread.wait(thread)
            assert(not ok and err == "already waited or killed")
        end
        ngx.say(ngx.thread.kill(coroutine.running()))"#;
    assert_eq!(said(script), "40504500\n-159505500\nnilnot user thread\n");
}

#[test]
fn a_request_that_opens_sockets_without_end_keeps_those_that_it_uses() {
    let script = r#"
        local port = ngx.var.server_port
        local first = ngx.socket.tcp()
        assert(first:connect("127.0.0.1", port))
        for i = 1, 20000 do ngx.socket.tcp() end
        collectgarbage() collectgarbage()
        for i = 1, 100 do ngx.socket.tcp() end
        ngx.say(first:send("GET /none HTTP/1.0\r\n\r\n"), " ", #first:receive("*a") > 0)"#;
    assert_eq!(said(script), "22 true\n");
}

#[test]
fn lists_may_be_longer_than_mlua_has_handles() {
    let server = server_with(
        "lua_shared_dict d 4m;",
        "location = /t { content_by_lua_block {
             for i = 1, 9000 do ngx.shared.d:set('k' .. i, i) end
             local list, args = {}, {}
             for i = 1, 9000 do list[i], args[i] = 'v', 'a' .. i .. '=' .. i end
             ngx.header.X = list
             local lines = #ngx.header.X
             ngx.header.X = nil
             ngx.say(#ngx.shared.d:get_keys(0), ' ', lines)
             ngx.say(ngx.decode_args(table.concat(args, '&'), 0).a9000)
         } }",
    );
    assert_eq!(server.get("/t").body(), "9000 9000\n9000\n");
}

#[test]
fn a_configuration_may_have_more_scripts_than_mlua_has_handles() {
    let mut sets = String::new();
    for i in 1..=9_000 {
        write!(sets, "set_by_lua $v 'return (tonumber(ngx.var.v) or 0) + {i}';").unwrap();
    }
    let server = server(&format!("location / {{ {sets} return 200 $v; }}"));
    assert_eq!(server.get("/").body(), "40504500");
}

/// Tables nested deeper than `ngx.say` goes are an error of one request. A log line with thousands of values is none.
#[test]
fn a_script_that_nests_too_deep_fails_alone() {
    let server = server(
        "location = /t { content_by_lua_block {
             local list = {}
             for i = 1, 4500 do list[i] = tostring(i) end
             local within = setmetatable({}, { __tostring = function()
                 ngx.log(ngx.ERR, unpack(list))
                 return ''
             end })
             ngx.log(ngx.ERR, within, unpack(list))
             local deep = {}
             for i = 1, 100000 do deep = { deep } end
             ngx.say(deep)
         } }
         location = /wait { content_by_lua_block { ngx.log(ngx.ERR, 'waits') while not open do ngx.sleep(0.01) end ngx.print('well') } }
         location = /open { content_by_lua_block { open = true } }",
    );
    let mut other = server.connect();
    other.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_log("waits", 1);
    for _ in 0..3 {
        assert_eq!(server.get("/t").status, 500);
    }
    server.wait_log("more than 500 tables within each other", 3);
    assert_eq!(server.get("/open").status, 200);
    assert_eq!(other.response().body(), "well");
    assert_eq!(server.logged("a task panicked"), 0);
}
