//! Scripts at the start, at a reload and at the end of a loop: `init_by_lua` that fails, and timers that are not done.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};

use rustix::process::Signal;
use weir_testkit::{Dir, Server};

use super::{WEIR, server_with};

/// A configuration that answers `says`, on the port of this name.
fn conf(http: &str, port: &str, says: &str) -> String {
    format!(
        "events {{ }}
         http {{ {http}
             server {{ listen 127.0.0.1:{port}; location / {{ content_by_lua_block {{ ngx.print('{says}') }} }} }}
         }}"
    )
}

/// Scripts for `init_by_lua` that fail, each in another way, and what the log says of it.
const FAILING: [(&str, &str); 6] = [
    ("init_by_lua_block { error('no init') }", "no init"),
    ("lua_shared_dict d 1m; init_by_lua 'ngx.shared.d:set(1, 2) error(\"no init\")';", "no init"),
    ("init_by_lua_block { require 'no.such.module' }", "module 'no.such.module' not found"),
    ("init_by_lua_block { ngx.sleep(1) }", "init_by_lua error: "),
    ("init_by_lua_block { os.exit(0) }", "it has ended its process"),
    ("init_by_lua_block { os.exit(3) }", "it has ended its process"),
];

#[test]
fn a_reload_whose_init_script_fails_keeps_the_old_configuration() {
    let server = Server::start(WEIR, &conf("", "%%PORT%%", "old"));
    let workers = server.workers();
    for (n, (http, cause)) in FAILING.into_iter().enumerate() {
        server.configure(&conf(http, "%%PORT%%", "new"));
        server.signal(Signal::HUP);
        server.wait_log("init_by_lua error: ", n + 1);
        assert!(server.log().contains(cause), "{http}");
        assert_eq!(server.get("/").body(), "old", "{http}");
    }
    assert_eq!(server.workers(), workers);
    let fine = "lua_shared_dict d 1m; init_by_lua_block { ngx.shared.d:set('a', 1) }";
    server.configure(&conf(fine, "%%PORT%%", "new"));
    server.reload();
    assert_eq!(server.get("/").body(), "new");
}

#[test]
fn a_server_whose_init_script_fails_does_not_start() {
    let server = Server::start(WEIR, &conf("", "%%PORT%%", "old"));
    for (http, cause) in FAILING {
        for more in ["", "master_process off; "] {
            server.configure(&format!("{more}{}", conf(http, "%%PORT1%%", "new")));
            let out = started_in_vain(&server);
            let text = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(1), "{http} {text}");
            assert!(text.contains(cause), "{http} {text}");
        }
        // As with nginx, a test of the configuration runs no script.
        assert!(server.command(&["-t"]).status.success(), "{http}");
    }
    assert_eq!(server.get("/").body(), "old");
}

/// What the program says that is to refuse the server's configuration; one that starts after all is ended.
fn started_in_vain(server: &Server) -> Output {
    let dir = server.dir().path().display().to_string();
    let globals = format!("daemon off; pid {dir}/vain.pid;");
    let mut command = Command::new("timeout");
    command.args(["20", WEIR, "-p", &dir, "-c", "nginx.conf", "-e", "vain.log", "-g", &globals]);
    command.output().unwrap()
}

/// Timers that run and wait as the server ends: one that waits comes at once with `premature`, and may wait for something
/// itself, also in a light thread.
const TIMERS: &str = r#"
    location /set { content_by_lua_block {
        local log = function(...) ngx.log(ngx.WARN, ...) end
        ngx.timer.at(0, function() ngx.sleep(0.4) log("the running one is done") end)
        ngx.timer.at(100, function(premature, word)
            ngx.sleep(0.1)
            log("the waiting one is done, premature: ", premature, " ", word)
        end, "word")
        ngx.timer.every(100, function(premature)
            local thread = ngx.thread.spawn(function() ngx.sleep(0.1) return "thread" end)
            log("the recurring one is done, premature: ", premature, " ", select(2, ngx.thread.wait(thread)))
        end)
        ngx.timer.at(100, function()
            local late, why = ngx.timer.at(1, print)
            ngx.timer.at(0, function(premature)
                ngx.sleep(0.1)
                log("the late one is done, premature: ", premature)
            end)
            log("no more timers: ", late, " ", why)
        end)
        ngx.print("set")
    } }"#;

fn all_timers_are_done(server: &Server) {
    for text in [
        "the running one is done",
        "the waiting one is done, premature: true word",
        "the recurring one is done, premature: true thread",
        "no more timers: nil process exiting",
        "the late one is done, premature: false",
    ] {
        assert_eq!(server.logged(text), 1, "{text}\n{}", server.log());
    }
}

#[test]
fn timers_are_waited_for_when_the_server_quits() {
    for http in ["", "exit_worker_by_lua_block { ngx.log(ngx.WARN, 'the loop has ended') }"] {
        let mut server = server_with(http, TIMERS);
        assert_eq!(server.get("/set").body(), "set");
        assert!(server.stop().success());
        all_timers_are_done(&server);
        let log = server.log();
        let at = |text: &str| log.find(text).unwrap_or_default();
        assert!(http.is_empty() || at("the loop has ended") > at("the running one is done"));
    }
}

#[test]
fn timers_are_waited_for_when_the_configuration_is_replaced() {
    let server = server_with("", TIMERS);
    assert_eq!(server.get("/set").body(), "set");
    let old = server.workers();
    server.reload();
    old.iter().for_each(|pid| server.wait_gone(*pid));
    all_timers_are_done(&server);
}

#[test]
fn timers_without_an_end_are_waited_for_as_long_as_is_said() {
    let mut server = Server::start(
        WEIR,
        "worker_shutdown_timeout 200ms; events { }
         http { server { listen 127.0.0.1:%%PORT%%; location / { content_by_lua_block {
             ngx.timer.at(0, function() while true do ngx.sleep(0.05) end end) ngx.print('set')
         } } } }",
    );
    assert_eq!(server.get("/").body(), "set");
    assert!(server.stop().success());
    // To terminate waits for nothing.
    let mut server = server_with("", TIMERS);
    assert_eq!(server.get("/set").body(), "set");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(server.logged("the running one is done"), 0);
}

/// A script that computes until a file is gone.
const ENDLESS: &str = r#"
    location /endless { content_by_lua_block {
        while true do
            local file = io.open("%%DIR%%/busy")
            if not file then break end
            file:close()
        end
        ngx.print("ended")
    } }
    location /json { weir_status json; }"#;

/// The loop that is in one turn, as the page has it.
fn stalled(server: &Server) -> Option<serde_json::Value> {
    let page: serde_json::Value = serde_json::from_str(&server.get("/json").body()).ok()?;
    let loops = page["loops"].as_array()?;
    loops.iter().find(|l| !l["stalled"].is_null()).cloned()
}

fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    weir_testkit::ask_until(|| {
        found = what();
        found.is_some()
    });
    found.expect("it did not come")
}

#[test]
fn a_script_without_end_is_named_while_it_runs() {
    let dir = Dir::new();
    dir.write("busy", "");
    let conf = format!(
        "worker_processes 2; events {{}} http {{ server {{ listen 127.0.0.1:%%PORT%%; {ENDLESS} }} }}"
    );
    let server = Server::start_in(dir, WEIR, &conf);
    let mut client = server.connect();
    client.send("GET /endless HTTP/1.1\r\nHost: a\r\n\r\n");
    server.wait_log("has been in one turn for ", 1);
    let named = r#"the content phase, module: "lua", location: "/endless", script: "content_by_lua(nginx.conf:"#;
    let log = server.log();
    assert!(log.contains("[error] ") && log.contains(named), "{log}");
    let stuck = wait_for(|| stalled(&server));
    let activity = stuck["stalled"]["activity"].as_str().unwrap();
    assert!(activity.starts_with(named), "{stuck}");
    assert_eq!(stuck["finishing"], false);
    let pid = stuck["pid"].as_u64().unwrap();
    // An old worker is shown like others, and ps(1) tells it from them.
    server.signal(Signal::HUP);
    let old = wait_for(|| stalled(&server).filter(|l| l["finishing"] == true));
    let activity = old["stalled"]["activity"].as_str().unwrap();
    assert!(old["pid"].as_u64() == Some(pid) && activity.starts_with(named), "{old}");
    let title = || std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok();
    wait_for(|| title().filter(|title| title.contains("worker process is shutting down")));
    std::fs::remove_file(server.dir().path().join("busy")).unwrap();
    assert_eq!(client.response().body(), "ended");
    wait_for(|| stalled(&server).is_none().then_some(()));
}

#[test]
fn a_script_that_computes_for_too_long_is_ended() {
    let server = server_with(
        "lua_max_run_time 200ms;",
        "location = /endless { content_by_lua_block { while true do end } }
         location = /stubborn { content_by_lua_block {
             while true do pcall(function() while true do end end) end
         } }
         location = /thread { content_by_lua_block {
             local ok, err = ngx.thread.wait(ngx.thread.spawn(function() ngx.sleep(0) while true do end end))
             ngx.say(tostring(ok))
         } }
         location = /timer { content_by_lua_block {
             ngx.timer.at(0, function() ngx.timer.at(0, function() while true do end end) while true do end end)
         } }
         location = /set { set_by_lua_block $a { while true do end } return 200 $a; }
         location = /long { lua_max_run_time 0; content_by_lua_block {
             local sum = 0
             for i = 1, 3e6 do sum = sum + i % 7 end
             ngx.print(sum)
         } }
         location = /pauses { content_by_lua_block {
             for i = 1, 40 do ngx.sleep(0.01) end
             ngx.print('done')
         } }",
    );
    let text = "the script computed for longer than lua_max_run_time (200ms)";
    for (n, path) in ["/endless", "/stubborn", "/set"].into_iter().enumerate() {
        assert_eq!(server.get(path).status, 500, "{path}");
        server.wait_log(text, n + 1);
    }
    assert!(server.log().contains("stack traceback:"), "{}", server.log());
    assert_eq!(server.get("/timer").status, 200);
    // Two timers, and so far three requests.
    server.wait_log(text, 5);
    assert_eq!(server.get("/thread").body(), "false\n");
    assert_eq!(server.get("/pauses").body(), "done");
    assert_eq!(server.get("/long").body(), "8999997");
}

#[test]
fn a_timer_that_the_start_of_a_worker_sets_runs_before_the_first_request() {
    let server = server_with(
        "init_worker_by_lua_block {
             n = 0
             ngx.timer.at(0, function() n = n + 1 end)
             repeat local go = io.open('%%DIR%%/go') until go
         }",
        "location = /n { content_by_lua_block { ngx.say(n) } }",
    );
    let mut client = server.connect();
    client.send("GET /n HTTP/1.1\r\nHost: a\r\n\r\n");
    server.dir().write("go", "");
    assert_eq!(client.response().body(), "1\n");
}

#[test]
fn scripts_learn_which_process_they_run_in() {
    for (more, kinds) in
        [("", "master worker worker"), ("master_process off; ", "single single single")]
    {
        let http = "init_by_lua_block { kinds = require('ngx.process').type() }
            init_worker_by_lua_block { kinds = kinds .. ' ' .. require('ngx.process').type() }
            server { listen 127.0.0.1:%%PORT%%; location / { content_by_lua_block {
                local process = require 'ngx.process'
                ngx.say(kinds, ' ', process.type())
                ngx.say(process.get_master_pid())
                ngx.say(process.enable_privileged_agent())
            } } }";
        let server = Server::start(WEIR, &format!("{more}events {{ }} http {{ {http} }}"));
        let disabled = "nilAPI disabled in the current context";
        assert_eq!(server.get("/").body(), format!("{kinds}\n{}\n{disabled}\n", server.pid()));
    }
}

#[test]
fn what_the_first_script_logs_is_in_the_log_once() {
    let http = "init_by_lua_block { ngx.log(ngx.ERR, 'the site begins') }
        init_worker_by_lua_block { ngx.log(ngx.ERR, 'a loop begins') }";
    for more in ["worker_processes 2; ", "master_process off; "] {
        let conf = conf(http, "%%PORT%%", "new");
        let server = Server::start(WEIR, &format!("{more}{conf}"));
        server.wait_log("a loop begins", if more.starts_with('w') { 2 } else { 1 });
        assert_eq!(server.logged("the site begins"), 1, "{more}");
    }
}

#[test]
fn a_script_lets_its_worker_end_and_the_master_starts_another() {
    let server = server_with(
        "",
        "location = /end { content_by_lua_block {
             require('ngx.process').signal_graceful_exit()
             ngx.sleep(0.01)
             ngx.print('ended')
         } }
         location = /pid { content_by_lua_block { ngx.print(ngx.worker.pid()) } }",
    );
    let first = server.get("/pid").body();
    assert_eq!(server.get("/end").body(), "ended");
    server.wait_log(&format!("worker process {first} exited with code 0"), 1);
    server.wait_log("start worker process ", 2);
    assert_ne!(server.get("/pid").body(), first);
}

/// Scripts that want a privileged agent, and say in the log what their process is.
const AGENT: &str = r#"
    init_by_lua_block { agent = { require("ngx.process").enable_privileged_agent(64) } }
    init_worker_by_lua_block {
        local kind = require("ngx.process").type()
        if kind == "worker" then return end
        local user = io.popen("id -u"):read()
        ngx.timer.at(0, function(premature)
            ngx.log(ngx.WARN, "here is ", kind, " ", tostring(ngx.worker.id()), " of ", user, " ", premature)
        end)
        ngx.timer.at(1000, function(premature) ngx.log(ngx.WARN, "the agent ends ", premature) end)
    }
    exit_worker_by_lua_block { ngx.log(ngx.WARN, "exit of ", require("ngx.process").type()) }
    server { listen 127.0.0.1:%%PORT%%; location / { content_by_lua_block {
        ngx.print(tostring(agent[1]), " ", #ngx.worker.pids(), " ", require("ngx.process").type())
    } } }"#;

#[test]
fn a_privileged_agent_runs_scripts_beside_the_workers() {
    let conf = |http: &str| format!("worker_processes 2; events {{}} http {{ {http} }}");
    let server = Server::start(WEIR, &conf(AGENT));
    // That of the master: workers of root are another user's.
    let uid = rustix::process::geteuid().as_raw();
    let here = format!("here is privileged agent nil of {uid} false, context: ngx.timer");
    server.wait_log(&here, 1);
    assert_eq!(server.get("/").body(), "true 2 worker");
    let start = "start privileged agent process ";
    let pid_of = |n| {
        let log = server.log();
        let line = log.split(start).nth(n).and_then(|rest| rest.lines().next().map(str::to_owned));
        line.unwrap().parse::<i32>().unwrap()
    };
    // One that dies has a successor.
    let first = rustix::process::Pid::from_raw(pid_of(1)).unwrap();
    rustix::process::kill_process(first, Signal::KILL).unwrap();
    server.wait_log(&format!("privileged agent process {} exited on signal 9", pid_of(1)), 1);
    server.wait_log(&here, 2);
    // A reload brings another one, and its end is that of a worker.
    server.reload();
    server.wait_log(&here, 3);
    server.wait_log("the agent ends true", 1);
    server.wait_log("exit of privileged agent", 1);
    server.wait_log(&format!("privileged agent process {} exited with code 0", pid_of(2)), 1);
    // Scripts that want none end it.
    server.configure(&conf("server { listen 127.0.0.1:%%PORT%%; return 200 none; }"));
    server.reload();
    server.wait_log(&format!("privileged agent process {} exited with code 0", pid_of(3)), 1);
    assert_eq!(server.logged(start), 3);
    assert_eq!(server.get("/").body(), "none");
}

#[test]
fn one_worker_accepts_from_a_unix_socket_that_the_others_leave() {
    let http = r#"init_worker_by_lua_block {
            local leave = require("resty.events.disable_listening")
            if ngx.worker.id() ~= 1 then left = leave("unix:%%DIR%%/events.sock") end
            if ngx.worker.id() == 1 then none, why = leave("unix:/none.sock") end
        }
        server { listen unix:%%DIR%%/events.sock; location / { content_by_lua_block {
            ngx.say(ngx.worker.id(), " ", tostring(left), " ", tostring(none), " ", why)
        } } }
        server { listen 127.0.0.1:%%PORT%%; location / { return 200 other; } }"#;
    let conf = format!("worker_processes 3; events {{}} http {{ {http} }}");
    let server = Server::start(WEIR, &conf);
    let path = server.dir().path().join("events.sock");
    let said = "1 nil nil failed to disable listening: unix:/none.sock\n";
    let ask = || {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = String::new();
        while !answer.ends_with("\r\n0\r\n\r\n") {
            let mut piece = [0; 1024];
            let n = stream.read(&mut piece).unwrap();
            assert_ne!(n, 0, "{answer}");
            answer.push_str(&String::from_utf8_lossy(&piece[..n]));
        }
        assert!(answer.contains(said), "{answer}");
        stream
    };
    // They stay open: no policy takes the socket from a loop with many connections.
    let clients: Vec<_> = (0..12).map(|_| ask()).collect();
    server.reload();
    drop(clients);
    ask();
    assert_eq!(server.get("/").body(), "other");
}
