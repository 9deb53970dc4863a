//! Functions of `ngx` that machine code calls: a loop with a call of one is a trace from end to end.

use super::server_with;

/// What is done before the loop, and in it.
const CALLS: &[(&str, &str)] = &[
    ("", "local v = ngx.var.uri"),
    ("", "local v = ngx.var.http_host"),
    ("", "local v = ngx.var.arg_none"),
    ("", "ngx.var.kept = 'text'"),
    ("ngx.ctx.a = 1", "local v = ngx.ctx.a"),
    ("", "ngx.status = 200; local v = ngx.status"),
    ("local d = ngx.shared.d; d:set('key', 'value')", "local v = d:get('key')"),
    ("local d = ngx.shared.d; d:set('key', 5, 0, 7)", "local v, flags = d:get('key')"),
    ("local d = ngx.shared.d", "local v = d:get('none')"),
    ("local d = ngx.shared.d", "d:set('key', 'value', 10)"),
    ("local d = ngx.shared.d", "d:set('key', i)"),
    ("local d = ngx.shared.d", "d:incr('n', 1, 0)"),
    ("local d = ngx.shared.d; d:set('key', 5, 0, 7)", "local v, flags, stale = d:get_stale('key')"),
    ("local d = ngx.shared.d; d:set('key', 5)", "local v = d:ttl('key')"),
    ("local d = ngx.shared.d; d:set('key', 5)", "local v = d:expire('key', 10)"),
    ("local d = ngx.shared.d", "d:lpush('list', 'text'); local v = d:rpop('list')"),
    ("local d = ngx.shared.d", "d:rpush('list', i); local v = d:lpop('list')"),
    ("local d = ngx.shared.d", "local n = d:llen('none')"),
    (
        "local semaphore = require 'ngx.semaphore'.new(0)",
        "semaphore:post(); local v = semaphore:wait(0); local n = semaphore:count()",
    ),
    ("", "local from, to = ngx.re.find('one two', 't[a-z]+', 'jo')"),
    ("", "local s, n = ngx.re.gsub('one two', 'o', '0', 'jo')"),
    ("", "local t = ngx.now()"),
    ("", "local s = ngx.md5('text')"),
    ("", "local s = ngx.encode_base64('text')"),
    ("", "local s = ngx.decode_base64('dGV4dA==')"),
    ("", "local s = ngx.escape_uri('a b')"),
    ("", "local s = ngx.unescape_uri('a%20b')"),
    ("", "local s = ngx.req.get_method()"),
    ("", "ngx.header.a = 'b'"),
    ("ngx.header.a = 'b'", "local v = ngx.header.a"),
    ("", "ngx.req.set_header('a', 'b')"),
];

/// A function that runs another one and says how the traces that this makes end.
const LINKS: &str = "
    function links(f)
        local util, seen = require 'jit.util', {}
        local function on_trace(what, trace, _, _, _, error)
            if what == 'stop' then seen[util.traceinfo(trace).linktype] = true end
        end
        jit.flush()
        jit.attach(on_trace, 'trace')
        f()
        jit.attach(on_trace)
        return seen
    end";

#[test]
fn machine_code_calls_functions_of_ngx() {
    let mut cases = String::new();
    for (before, call) in CALLS {
        cases.push_str(&format!(
            "check([==[{call}]==], function() {before}; for i = 1, 300 do {call} end end)\n"
        ));
    }
    let server = server_with(
        &format!("lua_shared_dict d 1m; init_by_lua_block {{ {LINKS} }}"),
        &format!(
            "location = /loops {{ set $kept ''; content_by_lua_block {{
                 local function check(name, f)
                     local seen = links(f)
                     if seen.stitch or not seen.loop then ngx.say(name) end
                 end
                 {cases}
                 check('a call by the C API', function() for i = 1, 300 do os.getenv('PATH') end end)
             }} }}"
        ),
    );
    assert_eq!(server.get("/loops").body(), "a call by the C API\n");
}

/// LuaJIT compiles no loop that calls a function whose own trace it has given up some ten times. Callers that are not compiled
/// make it try again and again.
#[test]
fn functions_that_code_without_traces_calls_are_still_compiled() {
    const CALLS: &[(&str, &str)] = &[
        ("", "local v = ngx.var.http_host"),
        ("", "local v = ngx.req.get_method()"),
        ("local d = ngx.shared.d; d:set('key', 'value')", "local v = d:get('key')"),
        ("local d = ngx.shared.d", "local v = d:get(5)"),
        ("ngx.header.a = 'b'", "local v = ngx.header.a"),
        ("local all = ngx.req.get_headers()", "local v = all.hOST"),
        ("", "local s = ngx.encode_base64('text')"),
        ("", "local s = ngx.re.gsub('one two', 'o', '0', 'jo')"),
        ("", "local s = ngx.time()"),
        ("", "ngx.update_time()"),
    ];
    let mut cases = String::new();
    for (before, call) in CALLS {
        cases.push_str(&format!(
            "check([==[{call}]==], function(n) {before}; for i = 1, n do {call} end end,
                 function(n) {before}; for i = 1, n do {call} end end)\n"
        ));
    }
    let server = server_with(
        &format!("lua_shared_dict d 1m; init_by_lua_block {{ {LINKS} }}"),
        &format!(
            "location = /loops {{ content_by_lua_block {{
                 local wrong = {{ }}
                 local function check(name, interpreted, compiled)
                     jit.off(interpreted)
                     interpreted(80000)
                     local seen = links(function() compiled(300) end)
                     if seen.stitch or not seen.loop then table.insert(wrong, name) end
                 end
                 {cases}
                 ngx.print(table.concat(wrong, ', '))
             }} }}"
        ),
    );
    assert_eq!(server.get("/loops").body(), "");
}

#[test]
fn long_and_odd_texts_come_whole() {
    let server = server_with(
        "lua_shared_dict d 1m; init_by_lua_block { odd = '\\0\\255x' }",
        "location = /texts { set $kept ''; content_by_lua_block {
             local d = ngx.shared.d
             for n = 0, 40000, 397 do
                 local text = (odd):rep(n / 3)
                 d:set('key', text, 0, n)
                 local value, flags = d:get('key')
                 assert(value == text and (flags or 0) == n)
                 ngx.var.kept = text
                 assert(ngx.var.kept == text)
                 assert(ngx.decode_base64(ngx.encode_base64(text)) == text)
                 assert(ngx.unescape_uri(ngx.escape_uri(text)) == text)
                 assert(ngx.re.gsub(text, 'x', 'y', 'jo') == text:gsub('x', 'y'))
             end
             local long = ('k'):rep(1000)
             for _, value in ipairs { true, false, 1.5, -0.25, 'text', '' } do
                 for _, key in ipairs { 'key', long, 'k' .. long } do
                     assert(d:set(key, value) and d:get(key) == value)
                 end
             end
             ngx.print('whole')
         } }",
    );
    assert_eq!(server.get("/texts").body(), "whole");
}

/// A pattern that is no longer kept is compiled anew.
#[test]
fn more_patterns_than_are_kept_are_found() {
    let server = server_with(
        "",
        "location = /patterns { content_by_lua_block {
             for _ = 1, 2 do
                 for n = 1, 5000 do
                     local from, to = ngx.re.find('a' .. n .. 'b', 'a' .. n .. 'b', 'jo')
                     assert(from == 1 and to == #tostring(n) + 2)
                     assert(ngx.re.match('xay', '(a)(z)?', 'jo')[2] == false)
                 end
             end
             ngx.print('found')
         } }",
    );
    assert_eq!(server.get("/patterns").body(), "found");
}
