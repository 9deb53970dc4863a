//! What scripts wait for: each other, timers, other locations, other servers, their clients.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use weir_testkit::{Dir, PATIENCE, until};

use super::{said, server, server_with};

#[test]
fn scripts_wait_side_by_side() {
    // One loop: the second answer can only come if the first script does not hold the loop.
    let server = server(
        r#"location = /wait { content_by_lua_block {
               ngx.log(ngx.ERR, "waiting")
               while not released do ngx.sleep(0.001) end
               ngx.say("released")
           } }
           location = /release { content_by_lua 'released = true ngx.say("done")'; }"#,
    );
    let mut first = server.connect();
    first.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_log("waiting", 1);
    assert_eq!(server.get("/release").body(), "done\n");
    assert_eq!(first.response().body(), "released\n");
}

#[test]
fn coroutines_and_light_threads_wait() {
    let script = r#"
        local co = coroutine.wrap(function(a) ngx.sleep(0.001) local b = coroutine.yield(a + 1) return b * 2 end)
        ngx.say(co(1), " ", co(10))
        local slow = ngx.thread.spawn(function(x) ngx.sleep(0.02) return "slow", x end, 7)
        local quick = ngx.thread.spawn(function() return "quick" end)
        ngx.say(ngx.thread.wait(slow, quick))
        ngx.say(ngx.thread.wait(slow))
        ngx.say(ngx.thread.wait(slow))
        local bad = ngx.thread.spawn(function() error("oops", 0) end)
        ngx.say(ngx.thread.wait(bad))
        local never = ngx.thread.spawn(function() ngx.sleep(1000) end)
        ngx.say(ngx.thread.kill(never), coroutine.status(never), coroutine.resume(never))
        local seen = {}
        local resources = require("ngx.semaphore").new(0)
        for i = 1, 3 do ngx.thread.spawn(function()
            seen[#seen + 1] = "s" .. i ngx.sleep(0) seen[#seen + 1] = "w" .. i
            resources:wait(1) seen[#seen + 1] = "r" .. i
        end) end
        seen[#seen + 1] = "m" ngx.sleep(0.01) resources:post(3) seen[#seen + 1] = "p" ngx.sleep(0.01)
        ngx.say(table.concat(seen, " "))"#;
    let expected = "2 20\ntruequick\ntrueslow7\nnilalready waited or killed\nfalseoops\n\
        1deadfalsecannot resume dead coroutine\ns1 s2 s3 m w1 w2 w3 p r1 r2 r3\n";
    assert_eq!(said(script), expected);
}

#[test]
fn only_the_coroutine_that_has_made_a_thread_waits_for_it_and_ends_it() {
    let server = server(
        r#"location = /other { content_by_lua_block {
               local made
               coroutine.resume(coroutine.create(function() made = ngx.thread.spawn(ngx.sleep, 0.001) end))
               ngx.thread.wait(made)
           } }
           location = /each { content_by_lua_block {
               local two
               local one = ngx.thread.spawn(function() ngx.sleep(0.001) return ngx.thread.kill(two) end)
               two = ngx.thread.spawn(function() return pcall(ngx.thread.wait, one) end)
               ngx.say(ngx.thread.wait(one))
               ngx.say(ngx.thread.wait(two))
               ngx.say(select(2, ngx.thread.wait(ngx.thread.spawn(function()
                   return ngx.thread.kill(coroutine.running())
               end))))
           } }"#,
    );
    assert_eq!(server.get("/other").status, 500);
    let refusal = "only the parent coroutine can wait on the thread";
    server.wait_log(refusal, 1);
    let answer = server.get("/each").body();
    let [killed, waited, itself] = answer.lines().collect::<Vec<_>>()[..] else {
        panic!("{answer}")
    };
    assert_eq!((killed, itself), ("truenilkiller not parent", "nilkiller not parent"));
    assert_eq!(waited, format!("truefalse{refusal}"));
}

#[test]
fn timers_run_without_a_request() {
    let server = server_with(
        "init_worker_by_lua_block {
             ngx.timer.at(0, function() ngx.log(ngx.ERR, select(2, pcall(function() return ngx.var.uri end))) end)
             ngx.timer.at(0, function(premature, x) ngx.log(ngx.ERR, 'timer ', premature, ' ', x, ' ', pcall(ngx.say, 1)) end, 'arg')
             local n = 0
             ngx.timer.every(0.001, function(premature)
                 n = n + 1
                 if n <= 3 or premature then ngx.log(ngx.ERR, 'every ', n > 3, ' ', premature) end
             end)
         }
         exit_worker_by_lua_block { ngx.log(ngx.ERR, ngx.get_phase()) }",
        "location / { return 200; }",
    );
    server.wait_log("timer false arg falseAPI disabled in the context of ngx.timer", 1);
    server.wait_log("API disabled in the current context, context: ngx.timer", 1);
    server.wait_log("every false false", 3);
    let mut server = server;
    server.signal(rustix::process::Signal::QUIT);
    server.wait();
    assert_eq!(server.logged("every true true"), 1);
    assert_eq!(server.logged(":1: exit_worker"), 1);
}

/// 2,000 ticks of the clock would take longer than the other script sleeps.
#[test]
fn to_sleep_for_no_time_waits_for_no_tick_of_the_clock() {
    let server = server(
        "location = /sleeps { content_by_lua_block {
             local last = ngx.thread.spawn(function() ngx.sleep(1.9) return 'last' end)
             local pauses = ngx.thread.spawn(function() for i = 1, 2000 do ngx.sleep(0) end return 'pauses' end)
             ngx.print(select(2, ngx.thread.wait(last, pauses)))
             ngx.exit(200)
         } }
         location = /timers { content_by_lua_block {
             local done = require 'ngx.semaphore'.new()
             local function step(_, left)
                 if left == 0 then done:post() else assert(ngx.timer.at(0, step, left - 1)) end
             end
             step(false, 2000)
             ngx.print((done:wait(1.9)))
         } }
         location = /others { content_by_lua_block {
             others = 0
             local function other() while others >= 0 do others = others + 1 ngx.sleep(0) end end
             ngx.timer.at(0, other)
             for i = 1, 100 do ngx.sleep(0) end
             ngx.print(others > 50)
             others = -1
         } }",
    );
    assert_eq!(server.get("/sleeps").body(), "pauses");
    assert_eq!(server.get("/timers").body(), "true");
    assert_eq!(server.get("/others").body(), "true");
}

#[test]
fn lines_of_timers_name_the_client_whose_script_has_set_them() {
    let server = server(
        "location / { content_by_lua_block {
             ngx.timer.at(0, function()
                 ngx.log(ngx.WARN, 'first')
                 ngx.timer.at(0, function() print('second') error('third') end)
             end)
         } }",
    );
    server.get("/");
    let ends =
        format!(", context: ngx.timer, client: 127.0.0.1, server: 127.0.0.1:{}", server.port());
    server.wait_log(&format!("first{ends}"), 1);
    server.wait_log(&format!("second{ends}"), 1);
    assert!(server.wait_line("runtime error").ends_with(&ends));
}

#[test]
fn timers_have_the_settings_of_the_location_that_sets_them() {
    let server = server(
        r#"location = /t {
               error_log %%DIR%%/own.log warn;
               resolver 127.0.0.1:%%PORT1%%; resolver_timeout 10ms;
               content_by_lua_block {
                   local function connect()
                       local _, why = ngx.socket.connect("a.test", 80)
                       ngx.log(ngx.WARN, "connect: ", why)
                       error("over")
                   end
                   ngx.timer.at(0, function() ngx.timer.at(0, connect) connect() end)
               }
           }"#,
    );
    server.get("/t");
    let log = || fs::read_to_string(server.dir().path().join("own.log")).unwrap_or_default();
    let lines = |text| log().matches(text).count();
    let both = || lines("connect: a.test could not be resolved (") == 2 && lines(": over") == 2;
    assert!(until(server.dir().path(), both), "{}", log());
}

#[test]
fn a_timer_comes_again_before_its_function_has_ended() {
    let server = server_with(
        "lua_max_running_timers 3;",
        "location / { content_by_lua_block {
             ngx.timer.every(0.001, function() ngx.sleep(1000) end)
             while ngx.timer.running_count() < 3 do ngx.sleep(0.001) end
             ngx.print('side by side')
         } }",
    );
    assert_eq!(server.get("/").body(), "side by side");
    server.wait_log("3 lua_max_running_timers are not enough", 1);
}

#[test]
fn a_captured_location_that_fails_has_no_page() {
    let server = server(
        r#"error_page 404 403 500 502 /page;
           location = /page { return 200 "page"; }
           location = /t { content_by_lua_block {
               local res = ngx.location.capture(ngx.var.arg_to, { method = ngx[ngx.var.arg_by or "HTTP_GET"] })
               ngx.header["X-Type"] = res.header["Content-Type"]
               ngx.print(res.status, " ", res.truncated, " ", res.body)
           } }
           location = /301 { return 301 /page; }
           location = /500 { return 500; }
           location = /502 { proxy_pass http://127.0.0.1:1; }
           location = /403 { content_by_lua_block { ngx.exit(403) } }
           location = /error { content_by_lua_block { error("x") } }
           location = /half { content_by_lua_block { ngx.print("half") error("x") } }
           location = /closed { content_by_lua_block { ngx.print("closed") ngx.exit(ngx.ERROR) } }
           location = /text { return 404 "text"; }
           location = /good { content_by_lua_block { ngx.print("good") } }"#,
    );
    for (asked, body) in [
        ("/missing", "404 true "),
        ("/301", "301 true "),
        ("/500", "500 true "),
        ("/502", "502 true "),
        ("/403", "403 true "),
        ("/error", "500 true "),
        ("/half", "200 true half"),
        ("/closed", "200 true closed"),
        ("/text", "404 false text"),
        ("/good", "200 false good"),
        ("/good&by=HTTP_HEAD", "200 true "),
    ] {
        let answer = server.get(&format!("/t?to={asked}"));
        assert_eq!(answer.body(), body, "{asked}");
        assert_eq!(answer.header("X-Type"), Some("text/plain"), "{asked}");
    }
}

#[test]
fn a_wait_that_fails_is_forgotten() {
    let script = r#"
        local ok, err = pcall(string.gsub, "x", "x", function() ngx.exit(400) end)
        ngx.say(ok, " ", err)
        coroutine.yield()
        ngx.say("goes on")"#;
    assert_eq!(said(script), "false attempt to yield across C-call boundary\ngoes on\n");
}

#[test]
fn other_locations_are_captured() {
    let server = server(
        r#"location = /t { set $v "outer"; content_by_lua_block {
               local res = ngx.location.capture("/echo?a=1", {
                   method = ngx.HTTP_POST, body = "the body", args = { b = 2 }, vars = { v = "inner" },
                   ctx = { x = "ctx" },
               })
               ngx.say(res.status, " ", res.header["X-Echo"], " ", res.truncated, " ", res.body)
               ngx.say(ngx.var.v, " ", ngx.location.capture("/missing").status)
               local one, two = ngx.location.capture_multi({ { "/slow?20" }, { "/slow?1" } })
               ngx.say(one.body, two.body)
               ngx.say(#ngx.location.capture("/large").body)
               ngx.say(pcall(ngx.location.capture, "/../../etc/passwd"))
           } }
           location = /echo { internal; content_by_lua_block {
               ngx.req.read_body()
               ngx.header["X-Echo"] = { "e1", "e2" } ngx.header["X-Echo"] = "e"
               ngx.status = 201
               ngx.print(ngx.req.get_method(), ngx.req.get_body_data(), ngx.var.args, ngx.is_subrequest,
                   ngx.var.v, ngx.ctx.x, ngx.location.capture("/slow?0").body)
           } }
           location = /slow { content_by_lua 'ngx.sleep(ngx.var.args / 1000) ngx.print("[", ngx.var.args, "]")'; }
           location = /large { content_by_lua 'ngx.print(("x"):rep(100000))'; }
           location = /missing { return 404; }"#,
    );
    let body = server.get("/t").body();
    let expected = "201 e false POSTthe bodya=1&b=2trueinnerctx[0]\nouter 404\n[20][1]\n100000\n";
    assert!(body.starts_with(expected), "{body}");
    assert!(body.contains("falseunsafe uri"), "{body}");
}

#[test]
fn sockets_speak_to_other_servers() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local sock = ngx.socket.tcp()
               sock:settimeout(5000)
               for i = 1, 2 do
                   ngx.say(sock:connect("127.0.0.1", ngx.var.server_port), " ", sock:getreusedtimes())
                   ngx.say(sock:send({ "GET /answer HTTP/1.1\r\n", "Host: a\r\n\r\n" }))
                   ngx.say(sock:receive())
                   local head = sock:receiveuntil("\r\n\r\n")
                   ngx.say(#head() > 0)
                   ngx.say(sock:receive(5), " ", sock:receive("*l"))
                   ngx.say(sock:setkeepalive(10000, 4))
               end
               ngx.say(sock:receive(1))
               sock:connect("127.0.0.1", ngx.var.server_port)
               sock:send("GET /answer HTTP/1.0\r\n\r\n")
               ngx.say(#sock:receive("*a") > 50, sock:receive())
               ngx.say(ngx.socket.connect("127.0.0.1", 1))
               ngx.say(ngx.socket.connect("some.name", 1))
               sock:settimeout(1)
               sock:connect("127.0.0.1", ngx.var.server_port)
               ngx.say(sock:receive())
               ngx.say(sock:close(), sock:close())
           } }
           location = /answer { return 200 "12345rest\n"; }"#,
    );
    let once = |reused| format!("1 {reused}\n33\nHTTP/1.1 200 OK\ntrue\n12345 rest\n1\n");
    let rest = "nilclosed\ntruenilclosed\nnilconnection refused\n\
        nilno resolver defined to resolve \"some.name\"\nniltimeout\n1nilclosed\n";
    assert_eq!(server.get("/t").body(), format!("{}{}{rest}", once(0), once(1)));
    server.wait_log("socket connect to 127.0.0.1:1: connect() failed (111: Connection refused)", 1);
}

#[test]
fn a_captured_file_is_whole() {
    let server = server(
        r#"root %%DIR%%; sendfile on;
           location = /t { content_by_lua_block {
               local res = ngx.location.capture("/file")
               ngx.print(tostring(res.truncated), res.body)
           } }
           location = /file { }"#,
    );
    let text: String = (0..30_000).map(|n| format!("{n:06}\n")).collect();
    server.dir().write("file", &text);
    assert!(server.get("/t").body() == format!("false{text}"));
}

/// A server of lines, told what to write: its port, and its connections as they are opened.
fn lines() -> (u16, mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, opened) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            if tell.send(stream.unwrap()).is_err() {
                return;
            }
        }
    });
    (port, opened)
}

#[test]
fn a_connection_with_unread_bytes_is_not_reused() {
    let (port, opened) = lines();
    let server = server(&format!(
        r#"location = /t {{ content_by_lua_block {{
               local sock = ngx.socket.tcp()
               sock:settimeout(tonumber(ngx.var.arg_ms or 10000))
               assert(sock:connect("127.0.0.1", {port}))
               local reused = sock:getreusedtimes()
               sock:send("question\n")
               local line, err = sock:receive()
               local kept, why = sock:setkeepalive(0, 4)
               ngx.say(line or err, " ", reused, " ", kept or why)
           }} }}
           location = /again {{ content_by_lua_block {{
               local sock = ngx.socket.tcp()
               for i = 1, 2 do
                   assert(sock:connect("127.0.0.1", {port}))
                   ngx.print(sock:receive(3), " ")
               end
               ngx.say(sock:setkeepalive())
           }} }}"#
    ));
    let asked = |path: &str, answers: &[&str]| {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let mut streams = Vec::new();
        for answer in answers {
            let mut stream = opened.recv_timeout(PATIENCE).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            streams.push(stream);
        }
        (client.response().body(), streams)
    };
    let (said, mut first) = asked("/t", &["alice\n"]);
    assert_eq!(said, "alice 0 1\n");
    first[0].write_all(b"more of alice\n").unwrap();
    let (said, _) = asked("/t", &["bob\n"]);
    assert_eq!(said, "bob 0 1\n");
    let (said, _) = asked("/t", &["carol\nmore of carol\n"]);
    assert_eq!(said, "carol 0 unread data in buffer\n");
    // The answer may come at any time.
    let (said, _) = asked("/t?ms=1", &[""]);
    assert_eq!(said, "timeout 0 connection in dubious state\n");
    let (said, _) = asked("/again", &["one, and more", "two"]);
    assert_eq!(said, "one two 1\n");
}

/// The time to send is how long the other side may take nothing, not how long all of it takes.
#[test]
#[allow(clippy::disallowed_methods, reason = "a server that is slow")]
fn a_slow_server_is_sent_all_and_a_silent_one_is_given_up() {
    const LEN: usize = 12 << 20;
    let (port, opened) = lines();
    let server = server(&format!(
        r#"location = /t {{ content_by_lua_block {{
               local sock = ngx.socket.tcp()
               sock:settimeouts(10000, 1500, 10000)
               assert(sock:connect("127.0.0.1", {port}))
               ngx.say(sock:send(string.rep("x", {LEN})))
           }} }}"#
    ));
    let ask = || {
        let mut client = server.connect();
        client.send("GET /t HTTP/1.1\r\nHost: a\r\n\r\n");
        (client, opened.recv_timeout(PATIENCE).unwrap())
    };
    let (mut slow, mut stream) = ask();
    let mut got = 0;
    let mut piece = vec![0; 16 << 10];
    // Two that take nothing, one after the other, are given up meanwhile.
    for _ in 0..2 {
        let given_up = AtomicBool::new(false);
        let (mut client, _silent) = ask();
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(client.response().body(), "niltimeout\n");
                given_up.store(true, Relaxed);
            });
            while !given_up.load(Relaxed) {
                let n = stream.read(&mut piece).unwrap();
                assert_ne!(n, 0, "given up after {got} bytes");
                got += n;
                thread::sleep(Duration::from_millis(10));
            }
        });
    }
    got += io::copy(&mut stream, &mut io::sink()).unwrap() as usize;
    assert_eq!(got, LEN);
    assert_eq!(slow.response().body(), format!("{LEN}\n"));
}

#[test]
fn datagrams_of_a_script_come_back_and_its_socket_ends_with_the_request() {
    let dir = Dir::new();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = udp.local_addr().unwrap().port();
    let unix = UnixDatagram::bind(dir.file("echo")).unwrap();
    // The workers have a user of their own.
    fs::set_permissions(dir.file("echo"), fs::Permissions::from_mode(0o777)).unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 2_000];
        while let Ok((n, from)) = udp.recv_from(&mut bytes) {
            // Two for one: the second waits in the socket.
            let _ = udp.send_to(&bytes[..n], from);
            let _ = udp.send_to(from.ip().to_string().as_bytes(), from);
        }
    });
    thread::spawn(move || {
        let mut bytes = [0; 2_000];
        while let Ok((n, from)) = unix.recv_from(&mut bytes) {
            // The name that the kernel gave the script's socket has no path.
            let _ = unix.send_to_addr(&bytes[..n], &from);
        }
    });
    let server = server(&format!(
        r#"location = /udp {{ content_by_lua_block {{
               socket = ngx.socket.udp()
               assert(socket:bind("127.0.0.7"))
               assert(socket:setpeername("127.0.0.1", {port}))
               assert(socket:send({{ "ques", {{ "tion" }} }}))
               ngx.say(socket:receive(), " ", socket:receive())
           }} }}
           location = /later {{ content_by_lua_block {{ ngx.say(socket:send("x")) }} }}
           location = /unix {{ content_by_lua_block {{
               local socket = ngx.socket.udp()
               assert(socket:setpeername("unix:{}"))
               assert(socket:send("over unix"))
               ngx.say(socket:receive())
           }} }}"#,
        dir.file("echo").display()
    ));
    assert_eq!(server.get("/udp").body(), "question 127.0.0.7\n");
    assert_eq!(server.get("/later").body(), "nilclosed\n");
    assert_eq!(server.get("/unix").body(), "over unix\n");
}

#[test]
fn semaphores_pass_resources_on_between_requests() {
    let server = server_with(
        "init_by_lua_block { semaphore, order = require('ngx.semaphore').new(), {} }",
        r#"location = /take { content_by_lua_block {
               ngx.log(ngx.ERR, "waits as ", ngx.var.arg_name)
               local ok, err = semaphore:wait(60)
               table.insert(order, ngx.var.arg_name)
               ngx.say(ok, " ", err, " ", table.concat(order, ","))
           } }
           location = /give { content_by_lua_block { ngx.say(semaphore:post(), " ", semaphore:count()) } }
           location = /count { content_by_lua_block { ngx.say(semaphore:count()) } }
           location = /order { content_by_lua_block {
               -- A coroutine that waits has its resource before one that comes later, though it has yet to run.
               local thread = ngx.thread.spawn(function() ngx.say("first: ", semaphore:wait(60)) end)
               semaphore:post(2)
               ngx.say("at once: ", semaphore:wait(0))
               ngx.say("second: ", semaphore:wait(60))
               ngx.thread.wait(thread)
               ngx.say(semaphore:count())
           } }
           location = /killed { content_by_lua_block {
               -- A coroutine that is ended leaves what it got to the next.
               local thread = ngx.thread.spawn(function() semaphore:wait(60) end)
               semaphore:post()
               ngx.thread.kill(thread)
               ngx.say(semaphore:count(), " ", semaphore:wait(0), " ", semaphore:wait(0.001))
           } }"#,
    );
    let mut clients = ["a", "b"].map(|name| {
        let mut client = server.connect();
        client.send(format!("GET /take?name={name} HTTP/1.1\r\nHost: a\r\n\r\n"));
        server.wait_log(&format!("waits as {name}"), 1);
        client
    });
    assert_eq!(server.get("/count").body(), "-2\n");
    assert_eq!(server.get("/give").body(), "true -1\n");
    assert_eq!(clients[0].response().body(), "true nil a\n");
    assert_eq!(server.get("/give").body(), "true 0\n");
    assert_eq!(clients[1].response().body(), "true nil a,b\n");
    assert_eq!(server.get("/killed").body(), "1 true falsetimeout\n");
    let said = server.get("/order").body();
    assert_eq!(said, "at once: niltimeout\nfirst: truenil\nsecond: truenil\n0\n");
}

#[test]
fn a_script_ends_with_its_client_where_it_is_asked_to() {
    let server = server(
        r#"lua_check_client_abort on;
           location = /t { content_by_lua_block {
               ngx.log(ngx.ERR, "waiting")
               ngx.sleep(1000)
           } log_by_lua 'ngx.log(ngx.ERR, "ended with ", ngx.status)'; }
           location = /own { content_by_lua_block {
               ngx.on_abort(function()
                   ngx.sleep(0.001)
                   ngx.log(ngx.ERR, "said good-bye")
                   ngx.exit(499)
               end)
               ngx.log(ngx.ERR, "the second: ", select(2, ngx.on_abort(function() end)))
               ngx.log(ngx.ERR, "waiting with a word")
               ngx.sleep(1000)
           } }"#,
    );
    let mut client = server.connect();
    client.send("GET /t HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_log("waiting", 1);
    drop(client);
    server.wait_log("ended with 499", 1);
    let mut client = server.connect();
    client.send("GET /own HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_log("waiting with a word", 1);
    drop(client);
    server.wait_log("said good-bye", 1);
    assert_eq!(server.logged("the second: duplicate call"), 1);
}
