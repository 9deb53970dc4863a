//! The command line, the master and its workers, as whole processes.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};

use rustix::process::Signal;
use weir_testkit::{Client, Dir, Server, free_port, memory_of, run, until};

#[path = "process/containers.rs"]
mod containers;
#[path = "process/refused.rs"]
mod refused;
#[path = "process/reloads.rs"]
mod reloads;
#[path = "process/successors.rs"]
mod successors;
#[path = "process/verdicts.rs"]
mod verdicts;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

const HELLO: &str = "
    events { }
    http { server { listen 127.0.0.1:%%PORT%%; location / { return 200 hello; } } }
";

const TWO_WORKERS: &str = "
    worker_processes 2;
    events { }
    http { server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid; } } }
";

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs weir on a configuration text with more arguments.
fn weir(dir: &Dir, conf: &str, more: &[&str]) -> Output {
    dir.write("nginx.conf", conf);
    let prefix = format!("{}/", dir.path().display());
    let pid = format!("pid {prefix}nginx.pid;");
    let all = ["-p", &prefix, "-c", "nginx.conf", "-e", "error.log", "-g", &pid];
    run(WEIR, all.iter().chain(more))
}

#[test]
fn a_cache_without_a_key_is_warned_of_with_its_place() {
    let dir = Dir::new();
    let conf = "events { }
http {
    fastcgi_cache_path cache keys_zone=c:1m;
    server {
        fastcgi_cache c;
        location / { fastcgi_pass 127.0.0.1:9; }
    }
}";
    let out = weir(&dir, conf, &["-t"]);
    let at = format!("in {}/nginx.conf:5", dir.path().display());
    let said = format!("[warn] no \"fastcgi_cache_key\" for \"fastcgi_cache\" {at}");
    assert!(stderr(&out).contains(&said), "{}", stderr(&out));
}

#[test]
fn a_right_configuration_is_said_to_be_right() {
    let dir = Dir::new();
    let conf = format!("{}/nginx.conf", dir.path().display());
    let out = weir(&dir, "events { } http { }", &["-t"]);
    assert!(out.status.success());
    assert_eq!(
        stderr(&out),
        format!(
            "weir: the configuration file {conf} syntax is ok\n\
             weir: configuration file {conf} test is successful\n"
        )
    );
    let out = weir(&dir, "events { } http { }", &["-tq"]);
    assert!(out.status.success());
    assert_eq!(stderr(&out), "");
}

#[test]
fn a_wrong_configuration_is_explained() {
    let dir = Dir::new();
    let conf = format!("{}/nginx.conf", dir.path().display());
    let out = weir(&dir, "events { }\nhttp {\n    servr { }\n}\n", &["-tq"]);
    assert_eq!(out.status.code(), Some(1));
    let text = stderr(&out);
    let mut lines = text.lines();
    let first = format!("weir: [emerg] unknown directive \"servr\" in {conf}:3");
    assert_eq!(lines.next(), Some(first.as_str()));
    assert_eq!(lines.next(), Some("  3 |     servr { }"));
    let last = format!("weir: configuration file {conf} test failed");
    assert_eq!(lines.last(), Some(last.as_str()));
    // The log has nginx's line only.
    assert!(dir.read("error.log").ends_with(&format!("{conf}:3\n")));
}

#[test]
fn a_module_to_load_is_built_in_or_warned_of() {
    let dir = Dir::new();
    dir.write(
        "nginx.conf",
        "load_module modules/ngx_http_lua_module.so;\nload_module x/ngx_http_perl_module.so;\nevents { }",
    );
    let prefix = dir.path().display().to_string();
    let said = weir_testkit::run(
        env!("CARGO_BIN_EXE_weir"),
        ["-t", "-e", "stderr", "-p", &prefix, "-c", "nginx.conf"],
    );
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    let warning = "\"ngx_http_perl_module\" is not part of weir, its directives are refused: perl, perl_modules, perl_require, perl_set in ";
    assert!(said.status.success() && text.contains(warning), "{text}");
    assert_eq!(text.matches("[warn]").count(), 1, "{text}");
}

#[test]
fn a_dump_has_each_file_once() {
    let dir = Dir::new();
    dir.write("more.conf", "# more\n");
    let conf = "include more.conf;\ninclude more.conf;\nevents { }\n";
    let out = weir(&dir, conf, &["-Tq"]);
    let at = dir.path().display();
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        format!(
            "# configuration file {at}/nginx.conf:\n{conf}\n\
             # configuration file {at}/more.conf:\n# more\n\n"
        )
    );
}

#[test]
fn a_test_leaves_a_running_server_alone() {
    let server = Server::start(WEIR, HELLO);
    let out = server.command(&["-t"]);
    assert!(out.status.success(), "{}", stderr(&out));
    assert_eq!(server.dir().read("nginx.pid"), format!("{}\n", server.pid()));
    assert_eq!(server.get("/").body(), "hello");
}

#[test]
fn lint_tells_mistakes_by_its_exit_status() {
    let dir = Dir::new();
    let lint = |text: &str| {
        let path = dir.write("nginx.conf", text);
        run(WEIR, ["lint", "-c", &path.display().to_string()])
    };
    let bad = lint("events { } http { server { location /a { alias /b/; } } }");
    let said = String::from_utf8_lossy(&bad.stdout);
    assert!(said.contains("[alias-slash]") && said.contains("nginx.conf:1"), "{said}");
    assert!(said.contains("let both end in a slash"), "{said}");
    assert_eq!(bad.status.code(), Some(1));
    assert_eq!(lint("events { } http { server { } }").status.code(), Some(0));
    let broken = lint("events {");
    assert_eq!(broken.status.code(), Some(2));
    assert!(stderr(&broken).contains("expecting \"}\""), "{}", stderr(&broken));

    // With -p, as the server: the file under the prefix, conf/nginx.conf unless -c names another.
    dir.write("conf/nginx.conf", "events { } http { server { listen 443; } }");
    dir.write("other.conf", "events { }");
    let prefix = dir.path().display().to_string();
    let there = run(WEIR, ["lint", "-p", &prefix]);
    let said = String::from_utf8_lossy(&there.stdout);
    assert!(there.status.code() == Some(1) && said.contains("[listen-without-ssl]"), "{there:?}");
    let other = run(WEIR, ["lint", "-p", &prefix, "-c", "other.conf"]);
    assert_eq!(other.status.code(), Some(0), "{other:?}");
}

/// The directory of logs is the first thing that a new site lacks.
#[test]
fn a_missing_directory_of_logs_is_told_with_its_remedy() {
    let dir = Dir::new();
    let prefix = dir.file("site").display().to_string();
    let logs = dir.file("site/logs").display().to_string();
    let advice = format!("\"mkdir -p {logs}\" makes it");
    let test = |text: &str| {
        dir.write("site/nginx.conf", text.replace("%%", &prefix));
        run(WEIR, ["-t", "-p", &prefix, "-c", "nginx.conf"])
    };
    for (text, times) in [
        ("events { }", 1),
        ("error_log stderr; events { }", 1),
        ("error_log stderr; pid weir.pid; events { } http { server { listen unix:%%/sock; } }", 1),
        ("error_log stderr; pid weir.pid; events { }", 0),
    ] {
        let said = stderr(&test(text));
        assert_eq!(said.matches(&advice).count(), times, "{text}: {said}");
    }
    std::fs::create_dir(&logs).unwrap();
    assert!(test("events { } http { server { listen unix:%%/sock; } }").status.success());
}

#[test]
fn quit_ends_the_server_and_removes_its_files() {
    let mut server = Server::start(
        WEIR,
        "events { } http { server { listen 127.0.0.1:%%PORT%%; listen unix:%%DIR%%/sock; } }",
    );
    let sock = server.dir().file("sock");
    assert!(sock.exists());
    let workers = server.workers();
    assert!(server.command(&["-s", "quit"]).status.success());
    assert_eq!(server.wait().code(), Some(0));
    assert!(!server.dir().file("nginx.pid").exists() && !sock.exists());
    assert!(server.log().contains("signal process started"));
    assert!(server.log().contains("gracefully shutting down"));
    for worker in workers {
        server.wait_gone(worker);
    }
    assert!(Client::try_connect(server.port()).is_err());
}

#[test]
fn stop_and_interrupt_end_the_server_at_once() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Server::start(WEIR, HELLO);
        // A request that never ends does not hold it.
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\n");
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0));
        assert!(client.is_closed());
    }
}

#[test]
fn a_signal_without_a_process_is_an_error() {
    let dir = Dir::new();
    let out = weir(&dir, "events { }", &["-s", "reload"]);
    assert_eq!(out.status.code(), Some(1));
    let pid = dir.file("nginx.pid");
    let text = format!(
        "weir: [error] open() \"{}\" failed (2: No such file or directory)\n",
        pid.display()
    );
    assert_eq!(stderr(&out), text);
}

#[test]
fn a_killed_worker_is_replaced() {
    let server = Server::start(WEIR, TWO_WORKERS);
    server.wait_log("start worker process ", 2);
    let before = server.workers();
    let victim = before[0];
    server.signal_worker(victim, Signal::KILL);
    server.wait_log("start worker process ", 3);
    let master = server.pid();
    let line = format!("[alert] {master}#{master}: worker process {victim} exited on signal 9");
    assert_eq!(server.logged(&line), 1);
    let after = server.workers();
    assert_eq!(after.len(), 2);
    assert!(!after.contains(&victim) && after.contains(&before[1]));
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn more_connections_than_open_files_are_warned_of() {
    let dir = Dir::new();
    let conf =
        |n| format!("worker_rlimit_nofile 256; events {{ worker_connections {n}; }} http {{ }}");
    let text = "[warn] 257 worker_connections exceed open file resource limit: 256";
    assert!(stderr(&weir(&dir, &conf(257), &["-t"])).contains(text));
    assert!(!stderr(&weir(&dir, &conf(256), &["-t"])).contains("[warn]"));
}

#[test]
fn a_large_map_takes_little_memory_in_each_worker() {
    const ENTRIES: usize = 50_000;
    let resident = |entries: usize| {
        let lines: String = (0..entries).map(|n| format!("key{n} value{n};\n")).collect();
        let conf = format!(
            "events {{ }}
             http {{
                 map $arg_k $v {{ {lines} }}
                 server {{ listen 127.0.0.1:%%PORT%%; return 200 $v; }}
             }}"
        );
        let server = Server::start(WEIR, &conf);
        assert_eq!(server.get(&format!("/?k=key{}", entries - 1)).status, 200);
        memory_of(server.workers()[0], "Rss") as usize * 1024
    };
    let each = resident(ENTRIES).saturating_sub(resident(1)) / ENTRIES;
    assert!(each < 400, "{each} bytes for an entry");
}

#[test]
fn the_server_has_small_pages() {
    let server = Server::start(WEIR, HELLO);
    for pid in [server.pid(), server.workers()[0]] {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        // Kernels without huge pages do not say.
        let says = status.lines().find(|line| line.starts_with("THP_enabled"));
        assert!(says.is_none_or(|line| line.ends_with('0')), "{says:?}");
    }
}

#[test]
fn a_failed_start_is_logged_where_the_configuration_says() {
    let busy = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = busy.local_addr().unwrap();
    let listens = format!("http {{ server {{ listen {address}; }} }}");
    for (main, http, text, tests) in [
        ("pid p;", listens.as_str(), "still could not bind()", false),
        (
            "pid p;",
            "http { server { listen 192.0.2.1:1; } }",
            "bind() to 192.0.2.1:1 failed (99:",
            true,
        ),
        ("pid none/pid;", "", "none/pid\" failed (2: No such file or directory)", true),
    ] {
        for test in [false, true] {
            let dir = Dir::new();
            dir.write(
                "nginx.conf",
                format!("error_log e.log; daemon off; {main} events {{ }} {http}"),
            );
            let prefix = format!("{}/", dir.path().display());
            let mut all = vec!["-p", &prefix, "-c", "nginx.conf", "-e", "first.log"];
            all.extend(test.then_some("-t"));
            let said = run(WEIR, all);
            assert_eq!(said.status.success(), test && !tests, "{http}{main}");
            if test && !tests {
                continue;
            }
            let (first, configured) = (dir.read("first.log"), dir.read("e.log"));
            assert!(stderr(&said).contains(text), "{}", stderr(&said));
            assert!(configured.contains(text), "{configured}");
            assert!(!first.contains(text), "{first}");
        }
    }
}

#[test]
fn a_signal_to_a_server_is_told_to_the_first_log_alone() {
    let server = Server::start(WEIR, "error_log e.log notice; events { }");
    assert!(server.command(&["-e", "first.log", "-s", "reopen"]).status.success());
    server.wait_file("e.log", "reopening logs", 1);
    let started = "signal process started";
    assert!(server.dir().read("first.log").contains(started));
    assert!(!server.dir().read("e.log").contains(started));
}

#[test]
fn the_whole_configuration_is_judged_before_a_log_is_opened() {
    let server = Server::start(WEIR, HELLO);
    let tried = |inside: &str| {
        server.configure(&format!("error_log fresh.log; events {{ }} http {{ {inside} }}"));
        stderr(&server.command(&["-t"]))
    };
    let text = tried("access_log none/access.log; server { listen 81; error_page 99999 /x; }");
    assert!(text.contains("value \"99999\"") && !text.contains("open()"), "{text}");
    assert!(!server.dir().file("fresh.log").exists(), "it was opened all the same");
    // The one that cannot be opened is told of where nothing else is wrong.
    let text = tried("access_log none/access.log; server { listen 127.0.0.1:1; }");
    assert!(text.contains("none/access.log\" failed (2: No such file or directory)"), "{text}");
    assert!(server.dir().file("fresh.log").exists());
}

#[test]
fn logs_are_reopened_by_the_master_and_the_workers() {
    let server = Server::start(WEIR, HELLO);
    assert_eq!(server.get("/").status, 200);
    let (log, moved) = (server.dir().file("error.log"), server.dir().file("old.log"));
    std::fs::rename(&log, moved).unwrap();
    assert!(server.command(&["-s", "reopen"]).status.success());
    // Master and worker say so before they reopen; each then writes to the new file.
    let said = |name: &str| server.dir().read(name).matches(": reopening logs").count();
    assert!(until(server.dir().path(), || said("old.log") + said("error.log") == 2));
    let worker = server.workers()[0];
    server.signal(Signal::QUIT);
    server.wait_log(&format!("{worker}#{worker}: exit\n"), 1);
    if rustix::process::geteuid().is_root() {
        assert_ne!(std::fs::metadata(&log).unwrap().uid(), 0);
    }
}

#[test]
fn a_daemon_lives_on_after_its_start() {
    let dir = Dir::new();
    let port = free_port();
    let conf = format!(
        "error_log error.log info; events {{ }}
         http {{ server {{ listen 127.0.0.1:{port}; return 200 x; }} }}"
    );
    let out = weir(&dir, &conf, &[]);
    assert!(out.status.success(), "{}", stderr(&out));
    // The pid file is there as soon as the command that starts the server has ended.
    let pid = dir.read("nginx.pid").trim().to_owned();
    assert_eq!(Client::connect(port).get("/").body(), "x");
    let out = weir(&dir, &conf, &["-s", "stop"]);
    assert!(out.status.success(), "{}", stderr(&out));
    let exit = format!("{pid}#{pid}: exit\n");
    assert!(until(dir.path(), || dir.read("error.log").contains(&exit)));
    assert!(!dir.file("nginx.pid").exists());
    assert!(!dir.read("error.log").contains("[alert]"), "{}", dir.read("error.log"));
}

#[test]
fn a_terminal_is_told_what_is_served_in_the_background() {
    let dir = Dir::new();
    let prefix = dir.path().to_str().unwrap();
    let http = format!("http {{ server {{ listen 127.0.0.1:{}; }} }}", free_port());
    let conf = format!("pid {prefix}/pid; events {{ }} {http}");
    dir.write("nginx.conf", &conf);
    let start = "import pty, sys; pty.spawn(sys.argv[1:])";
    let options = ["-p", prefix, "-c", "nginx.conf", "-e", "error.log"];
    let mut python = Command::new("python3");
    let Ok(out) = python.args(["-c", start, WEIR]).args(options).output() else {
        println!("not run: python3 is missing");
        return;
    };
    let text = String::from_utf8_lossy(&out.stdout);
    let told = format!("weir serves {prefix}/nginx.conf in the background");
    assert!(text.contains(&told), "{text}");
    assert!(run(WEIR, options.iter().chain(&["-s", "stop"])).status.success());
}

#[test]
fn a_server_without_master_serves() {
    let mut server = Server::start(WEIR, &format!("master_process off; {TWO_WORKERS}"));
    assert_eq!(server.get("/").body(), server.pid().to_string());
    assert!(server.workers().is_empty());
    server.signal(Signal::USR2);
    server.wait_log("the changing binary signal is ignored", 1);
    assert_eq!(server.stop().code(), Some(0));
    assert!(!server.dir().file("nginx.pid").exists());
}

#[test]
fn workers_that_do_not_finish_in_time_are_ended() {
    let mut server = Server::start(WEIR, &format!("worker_shutdown_timeout 10ms; {HELLO}"));
    let mut client = server.connect();
    assert_eq!(client.get("/").status, 200);
    // Half a request keeps the connection busy.
    client.send("GET / HTTP/1.1\r\nHost: ");
    assert_eq!(server.stop().code(), Some(0));
    assert!(client.is_closed());
}

/// Clients with an answer that began before QUIT were told that they may ask once more. They do, or the server goes.
#[test]
fn a_client_that_may_ask_once_more_does_not_hold_a_server_up_that_ends() {
    const LARGE: usize = 16 << 20;
    let mut server = Server::start(
        WEIR,
        "events { } http { server { listen 127.0.0.1:%%PORT%%; root %%DIR%%;
             location = /next { return 200 next; } } }",
    );
    server.dir().write("large", vec![b'x'; LARGE]);
    let begin = || {
        let mut client = server.connect();
        client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head += &(client.try_line().unwrap() + "\r\n");
        }
        assert!(head.contains("\r\nConnection: keep-alive\r\n"), "{head}");
        client
    };
    let (mut silent, mut asking) = (begin(), begin());
    server.signal(Signal::QUIT);
    server.wait_log("gracefully shutting down", 1);
    asking.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    let all = asking.rest_bytes();
    let next = String::from_utf8_lossy(&all[LARGE..]);
    assert!(next.contains("\r\nConnection: close\r\n") && next.ends_with("next"), "{next}");
    assert_eq!(silent.rest_bytes().len(), LARGE);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn signals_without_a_meaning_end_no_process() {
    let server = Server::start(WEIR, HELLO);
    for (n, signal) in [Signal::ALARM, Signal::IO, Signal::SYS].into_iter().enumerate() {
        server.signal(signal);
        server.signal_worker(server.workers()[0], signal);
        server.wait_log(", ignoring", 2 * (n + 1));
    }
    assert_eq!(server.get("/").body(), "hello");
    assert_eq!(server.logged("start worker process "), 1);
}

#[test]
fn an_accepted_client_is_answered_though_the_server_ends() {
    let mut server = Server::start(WEIR, HELLO);
    let clients: Vec<_> = (0..4).map(|_| server.connect()).collect();
    // Connections are accepted in their order.
    assert_eq!(server.get("/").status, 200);
    server.signal(Signal::QUIT);
    server.wait_log("gracefully shutting down", 1);
    for mut client in clients {
        assert_eq!(client.get("/").body(), "hello");
        assert!(client.is_closed());
    }
    assert_eq!(server.wait().code(), Some(0));
}
