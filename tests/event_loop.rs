//! How long handlers wait and take: measured, shown, and warned of. And the cost of a handler that
//! panics.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use weir_testkit::{Dir, Server, examples};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

#[test]
fn a_handler_that_holds_the_loop_up_is_named() {
    let server = Server::start(
        WEIR,
        "events { }
         http {
             log_format times $uri:$event_loop_blocked;
             access_log %%DIR%%/access.log times;
             server {
                 listen 127.0.0.1:%%PORT%%;
                 location /slow { work sleep 60ms; return 204; }
                 location /patient { blocked_threshold 10s; work sleep 60ms; return 204; }
                 location /status { weir_status; }
             }
         }",
    );
    assert_eq!(server.get("/patient").status, 204);
    assert_eq!(server.get("/slow").status, 204);
    server.wait_log(
        "by the rewrite phase, module: \"work\", operation: \"sleep\", location: \"/slow\"",
        1,
    );
    let log = server.log();
    assert!(!log.contains("location: \"/patient\""), "{log}");

    let status = server.get("/status").body();
    let value = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name));
        let number = line.and_then(|l| l.split(' ').next_back()).map(str::to_owned);
        number.and_then(|n| n.parse::<f64>().ok()).unwrap_or_else(|| panic!("{name}: {status}"))
    };
    assert_eq!(value("weir_slow_handlers_total"), 1.0);
    assert!(value("weir_handler_seconds_sum") > 0.1);
    assert!(value("weir_event_loop_blocked_seconds_count") >= 3.0);
    assert!(value("weir_turn_seconds_count") >= 1.0);
}

/// So it is where sessions are all that is served. One phase takes much longer than a tick of the coarse clock, by which
/// it is told from the others.
#[test]
fn a_session_that_holds_the_loop_up_is_named() {
    let maps: String =
        (0..40).map(|n| format!("map $text $m{n} {{ ~^(a+)+$ 1; default none; }}\n")).collect();
    let all: String = (0..40).map(|n| format!("$m{n}")).collect();
    let server = Server::start(
        WEIR,
        &format!(
            "error_log %%DIR%%/error.log info; events {{ }}
             stream {{
                 blocked_threshold 1ms; variables_hash_max_size 4096;
                 {maps}
                 server {{
                     listen 127.0.0.1:%%PORT%%;
                     set $text aaaaaaaaaaaaaaaaaaaaaaaa!;
                     return {all};
                 }}
                 server {{
                     listen 127.0.0.1:%%PORT1%%;
                     blocked_threshold 1h;
                     set $text aaaaaaaaaaaaaaaaaaaaaaaa!;
                     return {all};
                 }}
             }}"
        ),
    );
    let port = server.port();
    for port in [server.port_at(1), port] {
        let mut all = Vec::new();
        let mut client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        std::io::Read::read_to_end(&mut client, &mut all).unwrap();
    }
    let line = server.wait_line("by the content phase, ");
    let log = server.log();
    assert!(line.ends_with(&format!("server: \"127.0.0.1:{port}\"")), "{log}");
    assert!(!log.contains(&format!("server: \"127.0.0.1:{}\"", server.port_at(1))), "{log}");
}

/// Each way to panic costs its connection, and leaves no load behind: the counts are as before, a place is free again,
/// and the worker ends when it is told to.
#[test]
fn a_panic_leaves_no_load() {
    let server = Server::start(
        WEIR,
        "events { }
         http {
             access_log off;
             limit_conn_zone $server_name zone=one:64k;
             server {
                 listen 127.0.0.1:%%PORT%%;
                 location / { return 204; }
                 location /panic { work panic; }
                 location /held { limit_conn one 1; try_files /none /panic; }
                 location /place { limit_conn one 1; try_files /none /; }
                 location /sub { auth_request /panic; }
                 location /stub { stub_status; }
                 location /status { weir_status; }
             }
         }",
    );
    let mut ways = 0;
    for path in ["/panic", "/held", "/sub"] {
        for kept in [false, true] {
            let mut client = server.connect();
            if kept {
                assert_eq!(client.get("/").status, 204);
            }
            let answer =
                client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).try_response();
            // A request with a subrequest that panics is answered.
            assert!(answer.is_err() || path == "/sub", "{path}: {answer:?}");
            ways += 1;
            server.wait_log("a task panicked: on purpose", ways);
        }
    }
    assert_eq!(server.get("/place").status, 204);
    let stub = server.get("/stub").body();
    assert!(stub.starts_with("Active connections: 1 "), "{stub}");
    assert!(stub.contains("Reading: 0 Writing: 1 Waiting: 0"), "{stub}");
    let workers = server.workers();
    server.reload();
    workers.into_iter().for_each(|pid| server.wait_gone(pid));
}

#[test]
fn scripts_and_filters_are_told_apart() {
    let busy = "local t = os.clock() while os.clock() - t < 0.06 do end";
    let conf = format!(
        "events {{ }}
         http {{
             access_log off; default_type text/html;
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 root %%DIR%%;
                 location /content {{ content_by_lua_block {{ {busy} ngx.say('x') }} }}
                 location /access {{
                     access_by_lua_block {{ {busy} }}
                     content_by_lua_block {{ ngx.say('x') }}
                 }}
                 location /set {{ set_by_lua_block $x {{ {busy} return 1 }} return 200 x; }}
                 location /head {{ header_filter_by_lua_block {{ {busy} }} return 200 x; }}
                 location /body {{ body_filter_by_lua_block {{ {busy} }} return 200 x; }}
                 location /log {{ log_by_lua_block {{ {busy} }} return 200 x; }}
                 location /big {{ brotli on; brotli_comp_level 11; }}
             }}
         }}"
    );
    let dir = Dir::new();
    let mut noise = 1u32;
    let mut next = || {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + (noise >> 27) as u8 % 26)
    };
    dir.write("big/noise.html", (0..1 << 17).map(|_| next()).collect::<String>());
    let server = Server::start_in(dir, WEIR, &conf);
    for path in ["/content", "/access", "/set", "/head", "/body", "/log", "/big/noise.html"] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br\r\n\r\n");
        assert_eq!(server.connect().send(head).response().status, 200, "{path}");
    }
    for warning in [
        "the content phase, module: \"lua\", operation: \"content_by_lua*\", location: \"/content\"",
        "the access phase, module: \"lua\", operation: \"access_by_lua*\", location: \"/access\"",
        "the rewrite phase, module: \"rewrite\", operation: \"set_by_lua*\", location: \"/set\"",
        "the header filters, module: \"lua\", operation: \"header_filter_by_lua*\", location: \"/head\"",
        "the body filters, module: \"lua\", operation: \"body_filter_by_lua*\", location: \"/body\"",
        "the log phase, module: \"lua\", operation: \"log_by_lua*\", location: \"/log\"",
        "the body filters, module: \"brotli_filter\", operation: \"compress\", location: \"/big\"",
    ] {
        server.wait_log(warning, 1);
    }
}

/// A directory with files that take their time; unmounted in the end.
struct SlowDisk {
    lab: Child,
    /// Kept open: it says something in the end.
    _said: BufReader<ChildStdout>,
}

impl SlowDisk {
    /// None where file systems cannot be mounted.
    fn mount(dir: &Dir, operation: &str, delay: &str) -> Option<SlowDisk> {
        std::fs::create_dir(dir.file("slow")).unwrap();
        let mut lab = Command::new(WEIR)
            .args(["lab", "slowdisk", "--share", "1", "--delay", delay, "--ops", operation])
            .args([dir.file("site"), dir.file("slow")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut stdout = BufReader::new(lab.stdout.take().unwrap());
        stdout.read_line(&mut said).unwrap();
        let disk = SlowDisk { lab, _said: stdout };
        if said.contains("and slow") {
            return Some(disk);
        }
        eprintln!("skipped: no file system can be mounted here");
        None
    }

    /// Requests that wait for the disk hear that it is gone.
    fn break_down(self, place: &Path) {
        let _ = kill_process(Pid::from_child(&self.lab), Signal::KILL);
        drop(self);
        let unmounts = |command: &mut Command| command.status().is_ok_and(|done| done.success());
        assert!(
            unmounts(Command::new("umount").arg("-l").arg(place))
                || unmounts(Command::new("fusermount").args(["-u", "-z"]).arg(place))
        );
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.lab);
        let _ = kill_process(pid, Signal::TERM);
        let _ = self.lab.wait();
    }
}

#[test]
fn a_slow_disk_is_named_where_the_loop_waits_for_it() {
    for operation in ["open", "read"] {
        let dir = Dir::new();
        dir.write("site/a.txt", "slow");
        let Some(disk) = SlowDisk::mount(&dir, operation, "80ms") else { return };
        let conf = "worker_processes 1;
                    events { }
                    http {
                        access_log off;
                        server {
                            listen 127.0.0.1:%%PORT%%;
                            root %%DIR%%/slow;
                            location / { aio off; sendfile off; }
                        }
                    }";
        let server = Server::start_in(dir, WEIR, conf);
        let held = format!("module: \"static\", operation: \"{operation}\", location: \"/\"");
        // What took longest is named: on a busy machine that may be another call now and then.
        let named = weir_testkit::ask_until(|| {
            assert_eq!(server.get("/a.txt").body(), "slow");
            server.logged(&held) > 0
        });
        assert!(named, "{}", server.log());
        drop(server);
        drop(disk);
    }
}

/// The cache must not wait, whether its files are all known or not: a directory in which a file is
/// being created is locked.
#[test]
fn a_cache_whose_disk_is_stuck_holds_no_client_up() {
    stuck_disk("");
    // The loader waits behind the first file that it finds.
    stuck_disk("loader_files=1 loader_sleep=600s");
}

fn stuck_disk(loader: &str) {
    const LARGE: usize = 4 << 20;
    let dir = Dir::new();
    dir.write("site/keep", "");
    dir.write("list/a", "");
    dir.write("origin/large", "x".repeat(LARGE));
    let Some(disk) = SlowDisk::mount(&dir, "create", "600s") else { return };
    let conf = &"user root;
                worker_processes 1;
                thread_pool default threads=8;
                events { }
                http {
                    access_log off;
                    proxy_cache_path %%DIR%%/slow keys_zone=slow:1m use_temp_path=off LOADER;
                    server {
                        listen 127.0.0.1:%%PORT%%;
                        proxy_cache slow;
                        proxy_cache_valid 1h;
                        location /small/ { proxy_pass http://127.0.0.1:%%PORT%%/text; }
                        location /large/ { proxy_pass http://127.0.0.1:%%PORT%%/origin/large; }
                        location /locked/ {
                            proxy_cache_lock on;
                            proxy_cache_lock_timeout 100ms;
                            proxy_pass http://127.0.0.1:%%PORT%%/origin/;
                        }
                        location /text { return 200 text; }
                        location /origin/ { root %%DIR%%; }
                        location /list/ { root %%DIR%%; autoindex on; }
                    }
                }"
    .replace("LOADER", loader);
    let server = Server::start_in(dir, WEIR, conf);
    for n in 0..20 {
        assert_eq!(server.get(&format!("/small/{n}")).body(), "text");
    }
    // A directory is always read by a thread.
    assert!(server.get("/list/").body().contains("\"a\""));
    assert_eq!(server.get("/large/").bytes.len(), LARGE);
    assert!(server.get("/list/").body().contains("\"a\""));
    // The first has the right to store the answer. The second finds an answer without its beginning
    // in a file.
    for _ in 0..2 {
        assert_eq!(server.get("/locked/large").bytes.len(), LARGE);
    }
    disk.break_down(&server.dir().file("slow"));
}

#[test]
fn a_worker_that_ends_gives_up_an_answer_that_a_stuck_disk_does_not_take() {
    let dir = Dir::new();
    dir.write("site/keep", "");
    let Some(disk) = SlowDisk::mount(&dir, "create", "600s") else { return };
    let conf = "user root; worker_processes 1; error_log %%DIR%%/error.log notice; events { }
                http {
                    proxy_cache_path %%DIR%%/slow keys_zone=slow:1m use_temp_path=off;
                    server {
                        listen 127.0.0.1:%%PORT%%;
                        location / {
                            proxy_pass http://127.0.0.1:%%PORT%%/text;
                            proxy_cache slow; proxy_cache_valid 1h;
                        }
                        location /text { return 200 text; }
                    }
                }";
    let server = Server::start_in(dir, WEIR, conf);
    let worker = server.workers()[0];
    assert_eq!(server.get("/").body(), "text");
    server.wait_log("a file operation of process", 1);
    server.reload();
    // The kernel keeps the process as long as the disk keeps the thread.
    let (begin, end) = (format!(" {worker}#"), ": exit");
    let has_ended =
        || server.log().lines().any(|line| line.contains(&begin) && line.ends_with(end));
    assert!(weir_testkit::ask_until(has_ended), "{}", server.log());
    disk.break_down(&server.dir().file("slow"));
}

#[test]
fn a_root_that_changes_on_the_way_is_asked_of_the_disk() {
    let dir = Dir::new();
    dir.write("site/deep/a.txt", "");
    let Some(disk) = SlowDisk::mount(&dir, "getattr", "80ms") else { return };
    let conf = "events { }
                http {
                    server {
                        listen 127.0.0.1:%%PORT%%;
                        location / {
                            root %%DIR%%/slow/$below;
                            set $below deep;
                            set $real $realpath_root;
                            return 200 $real;
                        }
                    }
                }";
    let server = Server::start_in(dir, WEIR, conf);
    let real = server.dir().file("slow/deep").canonicalize().unwrap();
    assert_eq!(server.get("/").body(), real.display().to_string());
    drop(server);
    drop(disk);
}

#[test]
fn the_example_of_the_page_works() {
    let page = include_str!("../docs/status.md");
    let example = examples(page).find(|text| text.contains("blocked_threshold")).unwrap();
    let server = Server::start(
        WEIR,
        &format!("events {{ }} http {{ server {{ listen 127.0.0.1:%%PORT%%; {example} }} }}"),
    );
    assert_eq!(server.get("/report").body(), "all is well\n");
}
