//! Coroutines and light threads: their states, and in which order they go on.

use super::{said, server, server_with};

#[test]
fn coroutines_that_wait_are_running_and_ended_threads_zombies_until_they_are_waited_for() {
    let script = r#"
        local status = coroutine.status
        local sleeper = ngx.thread.spawn(function() ngx.sleep(0.001) end)
        local inner
        local outer = ngx.thread.spawn(function()
            inner = coroutine.create(function() ngx.sleep(0.001) coroutine.yield() end)
            coroutine.resume(inner)
        end)
        ngx.say(status(sleeper), " ", status(outer), " ", status(inner))
        while status(sleeper) == "running" or status(outer) ~= "zombie" do ngx.sleep(0.001) end
        ngx.say(status(sleeper), " ", status(outer), " ", status(inner))
        ngx.thread.wait(outer, sleeper)
        ngx.say(status(sleeper), " ", status(outer))
        ngx.say(ngx.thread.kill(sleeper))
        ngx.say(status(sleeper), " ", status(coroutine.running()))"#;
    let expected = "running normal running\nzombie zombie suspended\nzombie dead\n\
        nilalready terminated\ndead running\n";
    assert_eq!(said(script), expected);
}

#[test]
fn threads_that_yield_take_turns() {
    let script = r#"
        local function steps(name)
            return function()
                for i = 1, 3 do ngx.print(name, i, " ") coroutine.yield() end
            end
        end
        local a = ngx.thread.spawn(steps("a"))
        local b = ngx.thread.spawn(steps("b"))
        for i = 1, 2 do ngx.print("m", i, " ") coroutine.yield() end
        ngx.thread.wait(a)
        ngx.thread.wait(b)
        local ended
        local sleeper = ngx.thread.spawn(function() ngx.sleep(0.001) ended = true end)
        local busy = ngx.thread.spawn(function() while not ended do coroutine.yield() end end)
        while not ended do coroutine.yield() end
        ngx.say("done")"#;
    assert_eq!(said(script), "a1 b1 a2 m1 b2 a3 m2 b3 done\n");
}

#[test]
fn a_subrequest_begins_when_the_script_waits() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local function ask(n) ngx.say(ngx.location.capture("/no", { args = tostring(n) }).status) end
               local threads = { ngx.thread.spawn(ask, 1), ngx.thread.spawn(ask, 2) }
               ngx.say("spawned")
               for _, thread in ipairs(threads) do ngx.thread.wait(thread) end
           } }
           location = /no { return 404; }"#,
    );
    assert_eq!(server.get("/t").body(), "spawned\n404\n404\n");
}

#[test]
fn a_script_that_waits_for_a_subrequest_does_not_end_its_request() {
    let server = server_with(
        "lua_shared_dict gate 100k;",
        r#"location = /t { rewrite_by_lua_block {
               local function tries(f, ...)
                   local _, why = pcall(f, ...)
                   ngx.log(ngx.WARN, why)
               end
               ngx.thread.spawn(function()
                   ngx.sleep(0)
                   tries(ngx.exit, 200)
                   tries(ngx.redirect, "/a")
                   tries(ngx.exec, "/a")
                   tries(ngx.req.set_uri, "/a", true)
                   ngx.shared.gate:set("open", true)
               end)
               ngx.say(ngx.location.capture("/gate").status)
               ngx.exit(200)
           } }
           location = /gate { content_by_lua_block {
               while not ngx.shared.gate:get("open") do ngx.sleep(0.001) end
               ngx.exit(201)
           } }
           location = /error { content_by_lua_block { ngx.say(ngx.location.capture("/broken").status) } }
           location = /broken { content_by_lua_block { ngx.exit(ngx.ERROR) } }"#,
    );
    assert_eq!(server.get("/t").body(), "201\n");
    server.wait_log("attempt to abort with pending subrequests", 4);
    assert_eq!(server.get("/error").body(), "500\n");
}

#[test]
fn threads_go_on_in_the_order_in_which_their_waits_end() {
    let script = r#"
        local semaphore = require "ngx.semaphore".new()
        local order = {}
        local function thread(name, wait, ...)
            return ngx.thread.spawn(function(...)
                wait(...)
                order[#order + 1] = name
            end, ...)
        end
        local posted = thread("posted", semaphore.wait, semaphore, 60)
        thread("none", ngx.sleep, 0)
        -- Less than a millisecond is no time.
        thread("less", ngx.sleep, 0.0009)
        order[1] = "spawned"
        ngx.sleep(0.0001)
        semaphore:post()
        ngx.thread.wait(posted)
        local late = thread("late", ngx.sleep, 0.002)
        thread("early", ngx.sleep, 0.001)
        ngx.thread.wait(late)
        ngx.say(table.concat(order, " "))"#;
    assert_eq!(said(script), "spawned none less posted early late\n");
}

#[test]
fn a_script_that_may_not_yield_goes_on_behind_its_try() {
    let server = server(
        r#"location = /t {
               content_by_lua_block { ngx.say("body") }
               header_filter_by_lua_block {
                   local ok, why = pcall(coroutine.yield, 1)
                   ngx.header["X-Tried"] = tostring(ok) .. ": " .. why
                   local inner = coroutine.wrap(function() coroutine.yield("inner") end)
                   ngx.header["X-Inner"] = inner()
               }
               body_filter_by_lua_block { if pcall(coroutine.yield) then ngx.arg[1] = "yielded" end }
               log_by_lua_block { coroutine.yield() }
           }
           location = /content { content_by_lua_block { coroutine.yield() ngx.print("went on") } }"#,
    );
    for _ in 0..2 {
        let answer = server.get("/t");
        assert_eq!(
            answer.header("X-Tried"),
            Some("false: attempt to yield across C-call boundary")
        );
        assert_eq!(answer.header("X-Inner"), Some("inner"));
        assert_eq!(answer.body(), "body\n");
        assert_eq!(server.get("/content").body(), "went on");
    }
    server.wait_log("failed to run log_by_lua*: log_by_lua(nginx.conf:", 2);
}
