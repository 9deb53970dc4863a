//! Functions of scripts that run beside the loops.

use weir_testkit::{Dir, Server};

use super::WEIR;

const MODULE: &str = r#"
    local function values(...) return select('#', ...), ... end
    local function table() return { 1, { deep = "x" }, name = ngx.null, ok = false } end
    local function dict() return ngx.shared.shared:incr("n", 1), ngx.get_phase(), ngx.md5("a") end
    local function fails() error("oops") end
    local function waits() ngx.sleep(1) end
    local function bad() return function() end end
    local function holds(path)
        local file
        repeat file = io.open(path) until file
        return file:read("*a")
    end
    return { values = values, table = table, dict = dict, fails = fails, waits = waits, bad = bad, holds = holds }"#;

/// A server whose script `/t` runs in.
fn server(script: &str) -> (Server, Dir) {
    let dir = Dir::new();
    dir.write("beside.lua", MODULE);
    let conf = format!(
        "events {{}}
         thread_pool beside threads=2;
         http {{
             access_log off; default_type text/plain;
             lua_shared_dict shared 1m;
             lua_worker_thread_vm_pool_size 1;
             lua_package_path '{}/?.lua;;';
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 location = /t {{ content_by_lua_block {{
                     local function run(...) return ngx.run_worker_thread('beside', 'beside', ...) end
                     local path = '{0}/end'
                     {script}
                 }} }}
             }}
         }}",
        dir.path().display()
    );
    (Server::start(WEIR, &conf), dir)
}

#[test]
fn values_go_to_a_function_beside_the_loop_and_back() {
    let script = r#"
        ngx.say(run("values", nil, 1.5, "text", true))
        local ok, t = run("table")
        ngx.say(ok, " ", t[1], " ", t[2].deep, " ", tostring(t.name), " ", t.ok)
        ngx.shared.shared:set("n", 1)
        ngx.say(run("dict"))
        ngx.say(ngx.shared.shared:get("n"))"#;
    let said = "true4nil1.5texttrue\ntrue 1 x userdata: NULL false\n\
        true2worker_thread0cc175b9c0f1b6a831c399e269772661\n2\n";
    let (server, _dir) = server(script);
    let body = server.get("/t").body();
    assert_eq!(body.replace("nilworker", "worker"), said);
}

#[test]
fn what_is_wrong_beside_the_loop_is_a_value() {
    let script = r#"
        local function last(_, why) ngx.say((tostring(why):gsub("^/.*/", ""):gsub("\n.*", ""))) end
        last(run("fails"))
        last(run("waits"))
        last(run("bad"))
        last(run("none"))
        last(run("values", print))
        local loop = {}
        loop[1] = loop
        last(run("values", loop))
        last(ngx.run_worker_thread("beside", "missing", "f"))
        last(ngx.run_worker_thread("other", "beside", "values"))
        last(ngx.run_worker_thread("beside", 1, "values"))
        last(ngx.run_worker_thread("beside"))"#;
    let (server, _dir) = server(script);
    let said = "beside.lua:5: oops\n\
        beside.lua:6: API disabled in the context of ngx.run_worker_thread\n\
        unsupported Lua type: LUA_TFUNCTION in the return value\ninvalid function\n\
        unsupported Lua type: LUA_TFUNCTION in the argument\n\
        suspicious circular references, table depth exceed max depth: 100 in the argument\n\
        module 'missing' not found:\nthread pool other not found\n\
        module name should be a string\nexpecting at least 3 arguments\n";
    assert_eq!(server.get("/t").body(), said);
}

#[test]
fn a_function_beside_the_loop_does_not_hold_it_up() {
    let script = r#"
        local first = ngx.thread.spawn(function() ngx.say("first ", select(2, run("holds", path))) end)
        ngx.say("second ", select(2, run("values")))
        local file = io.open(path .. ".new", "w")
        file:write("done")
        file:close()
        os.rename(path .. ".new", path)
        ngx.thread.wait(first)
        ngx.say("third ", select(2, run("values")))"#;
    let (server, dir) = server(script);
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), all).unwrap();
    let said = "second no available Lua vm\nfirst done\nthird 0\n";
    assert_eq!(server.get("/t").body(), said);
}
