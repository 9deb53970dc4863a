//! A worker that an attacker has taken over may write any value to any word that processes share. Requests of all kinds
//! go on meanwhile.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::process::Signal;
use weir_testkit::{
    Client, Dice, Dir, Response, Server, ask_until, certified, number, s_client, seed, until,
};

use super::{WEIR, is_root, outside, state, statuses, theirs};

/// Policies with loops that share the table; the first is the default.
const POLICIES: &[&str] = &[
    "fair",
    "fair",
    "mutex",
    "dispatch",
    "rotate=2",
    "shared_epoll",
    "blocking",
    "reuseport_load",
];

/// Memory of a worker, in a build with debug assertions, in KiB.
const MOST_MEMORY: u64 = 600 << 10;

/// Of each request's kind: its path, and whether its answer comes from what a zone has for its key.
const PATHS: &[&str] =
    &["/", "/rate", "/times", "/hash", "/cached", "/learnt", "/lua", "/status", "/json", "/log"];

const LOCK: &str = "<?xml version='1.0'?><lockinfo xmlns='DAV:'><lockscope><exclusive/></lockscope>\
                    <locktype><write/></locktype></lockinfo>";

fn conf(policy: &str) -> String {
    let conf = "user daemon; worker_processes 2; worker_threads 2; events { accept_balance POLICY; }
         error_log memory:64k info;
         http { limit_req_zone $arg_k zone=rate:64k rate=900r/s; limit_req_zone $arg_k$uri zone=more:64k rate=900r/s;
                limit_conn_zone $arg_k zone=conns:64k;
                proxy_cache_path %%DIR%%/theirs/cache keys_zone=cache:64k max_size=1m inactive=1h;
                lua_shared_dict dict 64k; dav_ext_lock_zone zone=locks:64k;
                upstream group { zone group 64k; least_conn; server 127.0.0.1:%%PORT%% max_fails=0 max_conns=99;
                                 server 127.0.0.1:%%PORT%% weight=3 max_fails=0; }
                upstream times { zone times 64k; least_time header; server 127.0.0.1:%%PORT%% max_fails=0;
                                 server localhost:%%PORT%% max_fails=0; }
                upstream hash { zone hash 64k; hash $arg_k consistent; server 127.0.0.1:%%PORT%% max_fails=0;
                                server localhost:%%PORT%%; }
                upstream learnt { zone learnt 64k; server 127.0.0.1:%%PORT%%; server localhost:%%PORT%%;
                                  sticky learn create=$upstream_cookie_s lookup=$cookie_s zone=sessions:64k; }
                server { listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:%%PORT1%% ssl; status_zone all;
                         ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key;
                         ssl_session_cache shared:tls:64k; ssl_protocols TLSv1.2; ssl_session_tickets off;
                         location / { add_header Set-Cookie s=$arg_k; return 200 key-$arg_k; }
                         location /rate { limit_req zone=rate burst=5 nodelay; limit_req zone=more burst=5; limit_conn conns 9;
                                          proxy_pass http://group/; }
                         location /times { proxy_pass http://times/; }
                         location /hash { proxy_pass http://hash/; }
                         location /cached { proxy_cache cache; proxy_cache_key secret-$arg_k; proxy_cache_valid any 1s;
                                            proxy_cache_lock on; proxy_cache_lock_timeout 1s; proxy_ignore_headers Set-Cookie;
                                            proxy_pass http://127.0.0.1:%%PORT%%/; }
                         location /learnt { proxy_pass http://learnt/; }
                         location /dav { root %%DIR%%/theirs; dav_methods PUT DELETE; dav_ext_methods PROPFIND OPTIONS LOCK UNLOCK;
                                         dav_ext_lock zone=locks; create_full_put_path on; }
                         location /lua { content_by_lua_block {
                             local d, k = ngx.shared.dict, 'key-' .. ngx.var.arg_k
                             d:set(k, string.rep(k, 40)); d:incr('n', 1, 0); d:rpush('l' .. k, k); d:lpop('l' .. k)
                             d:get_keys(0); d:ttl(k); d:flush_expired(); d:free_space(); ngx.print(d:get(k)) } }
                         location /status { weir_status; allow all; }
                         location /json { weir_status json; allow all; } location /log { weir_status log; allow all; } } }
         stream { limit_conn_zone $remote_addr zone=sessions_of:64k;
                  upstream tcp { zone tcp 64k; server 127.0.0.1:%%PORT%% max_fails=0; server localhost:%%PORT%% max_fails=0; }
                  server { listen 127.0.0.1:%%PORT2%%; status_zone tcp; limit_conn sessions_of 99; proxy_pass tcp; } }";
    conf.replace("POLICY", policy)
}

/// A word of shared memory takes a value that has been there, stands elsewhere, or never was; now and then a page does.
fn spoil(memory: &File, shared: &[Range<u64>], dice: &mut Dice) {
    let range = &shared[dice.below(shared.len())];
    let words = (range.end - range.start) as usize / 8;
    // Heads stand in the front.
    let within = if dice.one_in(3) { words } else { words.min(512) };
    let at = range.start + 8 * dice.below(within) as u64;
    let read = |at| {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, at).map_or(0, |()| u64::from_ne_bytes(bytes))
    };
    let small = |dice: &mut Dice| dice.below(64) as u64;
    let value = match dice.below(10) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << 63,
        3 => read(at).wrapping_add(1),
        4 => read(at).wrapping_sub(1),
        5 => read(range.start + 8 * dice.below(within) as u64),
        6 => dice.any(),
        7 => small(dice),
        8 => small(dice) << 32 | small(dice),
        _ => 1 << dice.below(64),
    };
    let run = if dice.one_in(200) { 512 } else { 1 };
    let bytes = value.to_ne_bytes().repeat(run.min(((range.end - at) / 8) as usize));
    // A worker that has ended has no memory.
    let _ = memory.write_all_at(&bytes, at);
}

fn ask(port: u16, path: &str, k: u64) -> Response {
    let mut client = Client::connect(port);
    client.send(format!(
        "GET {path}?k={k} HTTP/1.1\r\nHost: a\r\nCookie: s={k}\r\nConnection: close\r\n\r\n"
    ));
    client.response()
}

/// One request of each kind, for one key.
fn all(server: &Server, k: u64) {
    for path in PATHS {
        let response = ask(server.port(), path, k);
        let known = [200, 429, 500, 502, 503, 504].contains(&response.status);
        assert!(known, "{path}: {}", response.status);
        if *path == "/cached" && response.status == 200 {
            assert_eq!(response.body(), format!("key-{k}"), "an answer of another key");
        }
    }
    let headers = format!("Content-Length: {}\r\nDepth: 0\r\n", LOCK.len());
    server.ask(&format!("LOCK /dav/{}", k % 5), &headers, LOCK);
    server.ask(&format!("PUT /dav/{}", k % 5), "Content-Length: 1\r\n", "x");
    // A session of TCP may find no server.
    if let Ok(mut client) = Client::try_connect(server.port_at(2)) {
        let sent = client.try_send(format!("GET /?k={k} HTTP/1.0\r\n\r\n"));
        let answer = sent.and_then(|()| client.try_response());
        assert!(answer.is_err() || answer.is_ok_and(|a| a.body() == format!("key-{k}")));
    }
}

/// A handshake that resumes the session of the one before. With spoilt words the session may fail,
/// and the client then asks without it.
fn handshake(server: &Server) {
    let (dir, session) = (server.dir().path(), server.dir().file("session"));
    let shake = |args: &[&str]| {
        let args = [&["-tls1_2", "-sess_out", "session", "-ign_eof", "-quiet"], args].concat();
        s_client(dir, server.port_at(1), &args, "GET /?k=1 HTTP/1.0\r\n\r\n")
    };
    let is_right = |said: &String| said.contains("\r\n\r\nkey-1");
    if session.exists() && shake(&["-sess_in", "session"]).as_ref().is_some_and(is_right) {
        return;
    }
    let said = shake(&[]);
    assert!(said.as_ref().is_none_or(is_right), "{said:?}");
}

/// Ticks of the processor that a worker has had.
fn spent(worker: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{worker}/stat")).unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum()
}

/// Whether the workers of a server without requests sleep, soon.
fn come_to_rest(server: &Server) -> bool {
    let ticks = || server.workers().into_iter().map(spent).sum::<u64>();
    ask_until(|| {
        let before = ticks();
        pause();
        ticks() - before <= 3
    })
}

/// Half a second.
fn pause() {
    let half = rustix::event::Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
    let _ = rustix::event::poll(&mut [], Some(&half));
}

fn memory_of(worker: i32) -> u64 {
    let said = statuses(worker, "VmRSS");
    said.first().and_then(|size| size.split(' ').next()?.parse().ok()).unwrap_or(0)
}

fn case(seed: u64, rounds: u64) {
    let mut dice = Dice::salted(seed, "policy");
    let policy = dice.pick(POLICIES);
    println!("WEIR_SEED={seed}, {policy}");
    let dir = certified();
    theirs(&dir, "theirs");
    theirs(&dir, "theirs/dav");
    let mut server = Server::start_in(dir, WEIR, &conf(policy));
    let (memory, shared) = shared_memory(server.workers()[0]);
    assert!(shared.len() > 10, "{shared:?}");
    all(&server, 0);
    handshake(&server);
    let workers = server.workers();
    let whole = |server: &Server| {
        let log = server.log();
        assert!(
            !log.contains("panicked")
                && !log.contains("exited on signal")
                && !log.contains("respawn"),
            "{log}"
        );
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            let mut dice = Dice::salted(seed, "spoilt words");
            while !over.load(Relaxed) {
                spoil(&memory, &shared, &mut dice);
                (0..20).for_each(|_| std::thread::yield_now());
            }
        });
        let ends = Ends(&over);
        for n in 0..rounds {
            all(&server, n % 9);
            if n % 4 == 0 {
                handshake(&server);
            }
        }
        drop(ends);
        writer.join().unwrap();
    });
    whole(&server);
    assert_eq!(server.workers(), workers);
    assert!(come_to_rest(&server), "a loop goes on without end");
    assert!(workers.iter().all(|worker| memory_of(*worker) < MOST_MEMORY), "memory without end");
    for k in 0..2 {
        all(&server, k);
    }
    server.reload();
    workers.iter().for_each(|worker| server.wait_gone(*worker));
    // Keys that were not in use are served as by a new server.
    for k in 100..103 {
        let key = format!("key-{k}");
        for path in ["/", "/cached", "/cached"] {
            let response = ask(server.port(), path, k);
            assert_eq!((response.status, response.body()), (200, key.clone()), "{path}");
        }
        // The use that finds a spoilt word empties the zone, and the next one has it.
        let stored = |_| ask(server.port(), "/lua", k).body() == key.repeat(40);
        assert!((0..20).any(stored), "a dictionary stores nothing");
        handshake(&server);
    }
    let lists_loops = || ask(server.port(), "/json", 0).body().contains("\"loops\"");
    assert!(until(server.dir().path(), lists_loops));
    assert!(come_to_rest(&server), "a loop of the new configuration goes on without end");
    whole(&server);
    assert!(server.stop().success());
}

/// The memory of a worker, and where in it is what it shares with others.
fn shared_memory(worker: i32) -> (File, Vec<Range<u64>>) {
    let maps = fs::read_to_string(format!("/proc/{worker}/maps")).unwrap();
    let shared = maps.lines().filter(|line| line.contains(" rw-s ") && line.contains("/dev/zero"));
    let range = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let at = |hex: &str| u64::from_str_radix(hex, 16).unwrap();
        Some(at(from)..at(to))
    };
    let memory = File::options().read(true).write(true).open(format!("/proc/{worker}/mem"));
    (memory.unwrap(), shared.filter_map(range).collect())
}

/// No process ends, no task panics, no request waits for ever, no answer of another key is served. All goes on for the
/// workers of the next configuration.
#[test]
fn any_word_of_shared_memory_may_have_any_value() {
    if !is_root() {
        return;
    }
    let (first, cases) = (seed(), number("WEIR_CASES").unwrap_or(1));
    (first..first + cases).for_each(|seed| case(seed, 10));
}

/// Sets what it holds when it is dropped, by a panic, too.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Numbers that a worker writes into the memory that it shares with the master cost the workers what they will, and
/// the master nothing.
#[test]
fn a_worker_that_overwrites_shared_memory_does_not_stop_the_master() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let outside = outside(&dir);
    let mut server = Server::start_in(
        dir,
        WEIR,
        "user daemon; worker_processes 2; events { }
         http { limit_req_zone $binary_remote_addr zone=rate:64k rate=9r/s; upstream group { zone group 64k; server 127.0.0.1:1; }
                server { listen 127.0.0.1:%%PORT%%; location / { return 200 $pid; } location /group { proxy_pass http://group/; }
                         status_zone all; } }",
    );
    let before = state(&outside);
    assert_eq!(server.get("/group").status, 502);
    let mut dice = Dice::salted(seed(), "shared memory");
    for round in 0..3 {
        let worker = *server.workers().last().unwrap();
        let (memory, shared) = shared_memory(worker);
        let mut written = 0;
        for range in shared {
            for word in (range.start..range.end.min(range.start + (256 << 10))).step_by(8) {
                let value = match round {
                    0 => u64::MAX,
                    1 => dice.any(),
                    _ => dice.below(1000) as u64,
                };
                written += usize::from(memory.write_all_at(&value.to_ne_bytes(), word).is_ok());
            }
        }
        assert!(written > 0, "no shared memory");
        server.signal_worker(worker, Signal::KILL);
        server.wait_log(&format!("worker process {worker} exited"), 1);
        let started = server.logged("start worker processes");
        server.signal(Signal::HUP);
        server.wait_log("start worker processes", started + 1);
    }
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(state(&outside), before);
}
