//! `ngx.pipe`: processes that scripts start.

use super::{said, server};

const SPAWN: &str = "local spawn = require('ngx.pipe').spawn ";

fn done(script: &str) -> String {
    said(&format!("{SPAWN}{script}"))
}

#[test]
fn a_script_speaks_with_a_process() {
    let answer = done(
        r#"local proc = assert(spawn({ "cat" }))
           ngx.say(proc:write("one\r\ntwo\nthr"), " ", proc:write({ "ee", "\n" }), " ", proc:write(45))
           ngx.say(proc:stdout_read_line(), "|", proc:stdout_read_any(2), "|", proc:stdout_read_bytes(2))
           ngx.say(proc:shutdown("stdin"))
           ngx.say(proc:stdout_read_all())
           ngx.say(proc:stdout_read_all())
           ngx.say(proc:wait())
           ngx.say(proc:wait())
           ngx.say(proc:kill(15))"#,
    );
    assert_eq!(
        answer,
        "12 3 2\none|tw|o\n\ntrue\nthree\n45\nnilclosed\ntrueexit0\nnilexited\nnilexited\n"
    );
    let answer = done(
        r#"local proc = assert(spawn("echo whole; printf part; echo wrong >&2; exit 7"))
           ngx.say(proc:stdout_read_line())
           local line, err, part = proc:stdout_read_line()
           ngx.say(line, " ", err, " ", part)
           ngx.say(proc:stderr_read_all())
           ngx.say(proc:wait())"#,
    );
    assert_eq!(answer, "whole\nnil closed part\nwrong\n\nfalseexit7\n");
    let answer = done(
        r#"local proc = assert(spawn("echo out; echo err >&2", { merge_stderr = true, buffer_size = 1 }))
           ngx.say(proc:stdout_read_all())
           ngx.say(proc:stderr_read_all())
           ngx.say(proc:shutdown("stderr"))
           proc = assert(spawn({ "/bin/sh", "-c", "echo $NAME; echo x > /dev/stderr" }, { environ = { "NAME=a=b" } }))
           ngx.say(proc:stdout_read_line(), " ", proc:stderr_read_line())
           ngx.say(spawn("\0"))
           proc = assert(spawn({ "/nothing/here" }))
           ngx.say(proc:pid(), " ", proc:kill(9), " ", proc:stdout_read_line(), " ", proc:wait())
           proc = assert(spawn("echo one; echo two"))
           proc:stdout_read_line()
           ngx.say(proc:shutdown("stdout"), " ", proc:stdout_read_line())"#,
    );
    assert_eq!(
        answer,
        "out\nerr\n\nnilmerged to stdout\nnilmerged to stdout\na=b x\n\
         nilnul byte found in provided data\nnil nil nil falseexit1\ntrue nilclosed\n"
    );
}

#[test]
fn a_process_begins_with_no_signal_blocked_and_is_sent_those_that_a_script_names() {
    let answer = done(
        r#"local proc = assert(spawn("kill -TERM $$; echo blocked"))
           ngx.say(proc:wait())
           proc = assert(spawn("kill -PIPE $$; echo ignored"))
           ngx.say(proc:wait())
           proc = assert(spawn({ "sleep", "600" }))
           ngx.say(proc:kill(0), " ", proc:kill(9999), " ", proc:kill(9))
           ngx.say(proc:wait())"#,
    );
    assert_eq!(answer, "falsesignal15\nfalsesignal13\ntrue nil true\nfalsesignal9\n");
}

#[test]
fn one_thread_at_a_time_uses_an_end_and_shutting_it_down_aborts_the_thread() {
    let answer = done(
        r#"local proc = assert(spawn({ "sleep", "600" }, { stdout_read_timeout = 1, wait_timeout = 1 }))
           ngx.say(proc:stdout_read_line())
           ngx.say(proc:wait())
           proc:set_timeouts(0, 0, 0, 0)
           local reads = ngx.thread.spawn(function() return proc:stdout_read_any(9) end)
           local waits = ngx.thread.spawn(function() return proc:wait() end)
           local writes = ngx.thread.spawn(function() return proc:write(("x"):rep(1000000)) end)
           ngx.say(proc:stdout_read_all())
           ngx.say(proc:wait())
           ngx.say(proc:write("x"))
           ngx.say(proc:shutdown("stdout"), " ", proc:shutdown("stdin"), " ", proc:shutdown("stdin"))
           ngx.say(ngx.thread.wait(reads))
           ngx.say(ngx.thread.wait(writes))
           ngx.say(proc:kill(15))
           ngx.say(ngx.thread.wait(waits))
           ngx.say(proc:shutdown("stderr"), " ", proc:write("x"))"#,
    );
    assert_eq!(
        answer,
        "niltimeout\nniltimeout\nnilpipe busy reading\nnilpipe busy waiting\nnilpipe busy writing\n\
         true true true\ntruenilaborted\ntruenilaborted\ntrue\ntruefalsesignal15\nnil nilclosed\n"
    );
}

#[test]
fn wrong_arguments_for_a_process_are_named() {
    let answer = done(
        r#"local function wrong(...) ngx.say((select(2, pcall(...)):gsub("^.-:%d+: ", ""))) end
           wrong(spawn)
           wrong(spawn, {})
           wrong(spawn, "x", { buffer_size = 0 })
           wrong(spawn, "x", { environ = "a" })
           wrong(spawn, "x", { environ = { 1 } })
           wrong(spawn, "x", { environ = { "a" } })
           wrong(spawn, "x", { wait_timeout = -1 })
           local proc = spawn("true")
           wrong(proc.wait, 1)
           wrong(proc.kill, proc, "TERM")
           wrong(proc.shutdown, proc, "all")
           wrong(proc.write, proc, true)
           wrong(proc.stdout_read_any, proc, 0)
           wrong(proc.stderr_read_bytes, proc, -1)"#,
    );
    assert_eq!(
        answer,
        "bad args arg: table expected, got nil\nbad args arg: non-empty table expected\n\
         bad buffer_size option\nbad environ option: table expected, got string\n\
         bad value at index 1 of environ option: string expected, got number\n\
         bad value at index 1 of environ option: 'name=[value]' format expected, got 'a'\n\
         bad wait_timeout option\nnot a process instance\n\
         bad signal arg: number expected, got TERM\nbad shutdown arg: all\n\
         bad data arg: string, number, or table expected, got boolean\nbad max argument\nbad len argument\n"
    );
}

#[test]
fn processes_that_scripts_forget_are_ended_and_reaped() {
    let server = server(
        r#"location = /start { content_by_lua_block {
               local spawn = require("ngx.pipe").spawn
               kept = assert(spawn({ "sleep", "600" }))
               ngx.say(kept:pid(), " ", spawn("true"):pid(), " ", spawn({ "sleep", "600" }):pid())
           } }
           location = /collect { content_by_lua_block { collectgarbage() collectgarbage() } }
           location = /end { content_by_lua_block { ngx.say(kept:kill(9)) ngx.say(kept:wait()) } }"#,
    );
    let pids = server.get("/start").body();
    let pids: Vec<i32> = pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    server.wait_gone(pids[1]);
    server.get("/collect");
    server.wait_gone(pids[2]);
    assert_eq!(server.get("/end").body(), "true\nfalsesignal9\n");
    server.wait_gone(pids[0]);
    // What runs when the server ends is ended, too.
    let pids = server.get("/start").body();
    let kept = pids.split_whitespace().next().unwrap().parse().unwrap();
    drop(server);
    weir_testkit::wait_end(kept);
}
