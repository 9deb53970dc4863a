//! Functions of `ngx` in finalizers: Lua runs those whenever it takes memory, and when a worker ends.

use super::server_with;

#[test]
fn a_finalizer_that_calls_ngx_does_not_disturb_the_call_that_it_interrupts() {
    let server = server_with(
        "init_by_lua_block {
             finalized = 0
             function leave_garbage()
                 getmetatable(newproxy(true)).__gc = function()
                     assert(ngx.re.match(('q'):rep(30), '(q)(q)(q)', 'jo') and ngx.now() and ngx.md5('text'))
                     finalized = finalized + 1
                 end
             end
         }",
        "location = / { content_by_lua_block {
             for i = 1, 20000 do
                 leave_garbage()
                 local found = ngx.re.match('key' .. i .. '=value', '([a-z]+)([0-9]+)=(v)(a)(l)(u)(e)', 'jo')
                 assert(table.concat(found, ' ') == 'key ' .. i .. ' v a l u e')
                 local text, count = ngx.re.gsub(i .. ' a a', 'a', 'b', 'jo')
                 assert(text == i .. ' b b' and count == 2)
             end
             ngx.print(finalized > 1000)
         } }",
    );
    assert_eq!(server.get("/").body(), "true", "{}", server.log());
}

#[test]
fn finalizers_call_ngx_when_the_worker_ends() {
    let mut server = server_with(
        "lua_shared_dict d 1m;
         init_worker_by_lua_block {
             kept = newproxy(true)
             getmetatable(kept).__gc = function()
                 local logs, dict = pcall(ngx.log, ngx.WARN, 'text'), ngx.shared.d
                 io.stderr:write('finalized: ', ngx.md5('text'), ' ', tostring(logs), ' ', dict:get('key'), '\\n')
             end
         }",
        "location = / { content_by_lua_block { ngx.shared.d:set('key', 'kept') } }",
    );
    assert_eq!(server.get("/").status, 200);
    assert!(server.stop().success());
    let line = "finalized: 1cb251ec0d568de6a929b520c4aed8d1 false kept\n";
    assert_eq!(server.logged(line), 1, "{}", server.log());
    for word in ["panicked", "signal 6"] {
        assert_eq!(server.logged(word), 0, "{}", server.log());
    }
}
