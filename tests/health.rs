//! Faults that are put into a running site, and what it says of itself meanwhile.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use weir_testkit::{Client, Dir, Process, Server, certified, examples, run};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Far more than the seconds that it takes: machines of tests are busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Looks again and again until it is so.
fn ask_until(mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() >= end {
            return false;
        }
        #[expect(clippy::disallowed_methods, reason = "a look costs the site a request")]
        std::thread::sleep(PAUSE);
    }
    true
}

/// A server behind that can be stopped and started again.
struct Behind {
    port: u16,
    running: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Behind {
    fn new(port: u16) -> Behind {
        let mut behind = Behind { port, running: None };
        behind.start();
        behind
    }

    fn start(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let serve = move || {
            for stream in listener.incoming() {
                if told.load(SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let lines = BufReader::new(&stream).lines();
                lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nwell");
            }
        };
        self.running = Some((stop, std::thread::spawn(serve)));
    }

    fn stop(&mut self) {
        let Some((stop, thread)) = self.running.take() else { return };
        stop.store(true, SeqCst);
        let _ = std::net::TcpStream::connect(("127.0.0.1", self.port));
        thread.join().unwrap();
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The server looks at itself once a second. However busy the machine, a fault and its end are to be known after a few looks.
struct Wait {
    looks: u64,
    begin: Instant,
}

/// So many at the most: five seconds.
const LOOKS: u64 = 5;

impl Wait {
    fn begin(site: &Site) -> Wait {
        Wait { looks: looks(&site.health()), begin: Instant::now() }
    }

    fn was_short(&self, what: &str, health: &Value) {
        let looks = looks(health) - self.looks;
        eprintln!("{what} after {looks} looks and {:.1} s", self.begin.elapsed().as_secs_f64());
        assert!(looks <= LOOKS, "{what} after {looks} looks");
    }
}

fn looks(health: &Value) -> u64 {
    health["looks"].as_u64().unwrap()
}

struct Site {
    server: Server,
    /// What is asked for between two looks.
    asked: &'static str,
}

const CONF: &str = "worker_processes 2;
     events { }
     http {
         limit_req_zone $binary_remote_addr zone=rate:64k rate=1r/m;
         upstream slow { server 127.0.0.1:%%PORT2%% fail_timeout=1s; }
         upstream shop { server 127.0.0.1:%%PORT1%% fail_timeout=1s; }
         server {
             listen 127.0.0.1:%%PORT%%;
             location / { proxy_pass http://shop; }
             keepalive_requests 1000000;
             location = /slow { proxy_pass http://slow; proxy_read_timeout 300ms; }
             location = /full { access_log /dev/full; return 204; }
             location = /name {
                 resolver 127.0.0.1:%%PORT3%% ipv6=off;
                 resolver_timeout 300ms;
                 set $name shop.example;
                 proxy_pass http://$name;
             }
             location = /work { work sleep 200ms; return 204; }
             location = /limited { limit_req zone=rate; try_files /none =404; }
             location = /broken { return 500; }
             location = /endless { content_by_lua_block {
                 local file = io.open('%%DIR%%/begun', 'w')
                 file:write('x')
                 file:close()
                 repeat file = io.open('%%DIR%%/end') until file
                 file:close()
             } }
             location = /json { weir_status json; }
             location = /metrics { weir_status; }
         }
     }";

impl Site {
    fn new() -> Site {
        Site { server: Server::start(WEIR, CONF), asked: "/" }
    }

    fn health(&self) -> Value {
        // More than the page's own requests.
        let times = if self.asked == "/limited" { 5 } else { 1 };
        (0..times).for_each(|_| drop(self.server.get(self.asked)));
        let page: Value = serde_json::from_str(&self.server.get("/json").body()).unwrap();
        page["health"].clone()
    }

    /// Waits until a finding of this rule has this in its text, and asks everything that names it.
    fn finds(&self, rule: &str, state: &str, text: &str) -> Value {
        let found = self.finds_shortly(rule, state, text);
        self.tools_say(text);
        found
    }

    /// The same of a finding that ends by itself: the tools may come too late.
    fn finds_shortly(&self, rule: &str, state: &str, text: &str) -> Value {
        let mut health = Value::Null;
        let is = |found: &Value| {
            found["rule"] == rule
                && found["state"] == state
                && found["text"].as_str().unwrap().contains(text)
        };
        let wait = Wait::begin(self);
        let found = ask_until(|| {
            health = self.health();
            health["findings"].as_array().unwrap().iter().any(is)
        });
        assert!(found, "{rule}: {health}");
        wait.was_short(rule, &health);
        assert!(health["text"].as_str().unwrap().contains(text), "{health}");
        health["findings"].as_array().unwrap().iter().find(|found| is(found)).unwrap().clone()
    }

    /// `weir top` and `weir inspect` have this in their headlines.
    fn tools_say(&self, text: &str) {
        let port = self.server.port().to_string();
        let url = format!("http://127.0.0.1:{port}/json");
        let tools: [&[&str]; 2] =
            [&["top", &url, "--once", "--interval", "0.1"], &["inspect", &port, "--secs", "0"]];
        for args in tools {
            let mut said = String::new();
            let there = ask_until(|| {
                let _ = self.health();
                said = String::from_utf8_lossy(&run(WEIR, args).stdout).into_owned();
                said.lines().take(2).any(|line| line.contains(text))
            });
            assert!(there, "{args:?}: {said}");
        }
    }

    fn has_metric(&self, line: &str) {
        let mut text = String::new();
        let there = ask_until(|| {
            let _ = self.health();
            text = self.server.get("/metrics").body();
            text.lines().any(|other| other == line)
        });
        assert!(there, "no {line} in {text}");
    }

    fn is_green(&self) {
        let (mut health, wait) = (Value::Null, Wait::begin(self));
        let is = ask_until(|| {
            health = self.health();
            health["state"] == "green"
        });
        assert!(is, "{health}");
        wait.was_short("green", &health);
        assert_eq!(health["findings"].as_array().unwrap().len(), 0, "{health}");
        assert_eq!((&health["health"], &health["text"]), (&0.into(), &"nothing is wrong".into()));
    }
}

/// A client of the endless script, which has begun.
fn endless(server: &Server) -> Client {
    let begun = server.dir().write("begun", "");
    std::fs::set_permissions(&begun, Permissions::from_mode(0o666)).unwrap();
    let mut client = server.connect();
    client.send(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n");
    // Before its loop works on it, it could accept the next client as well.
    assert!(ask_until(|| std::fs::metadata(&begun).unwrap().len() > 0));
    client
}

#[test]
fn servers_behind_that_fail_are_named_while_they_do() {
    let mut site = Site::new();
    let mut behind = Behind::new(site.server.port_at(1));
    site.is_green();

    // A server behind is dead.
    behind.stop();
    let name = format!("shop: 127.0.0.1:{} fails: connection refused", behind.port);
    let found = site.finds("no_live_server", "red", &name);
    assert_eq!(found["subject"], "shop", "{found}");
    site.has_metric("weir_health_finding{rule=\"no_live_server\",subject=\"shop\"} 2");
    site.has_metric("weir_health 2");
    site.finds("server_errors", "red", " requests a second end in 5xx");
    behind.start();
    site.is_green();
    site.has_metric("weir_health 0");

    // An application fails.
    site.asked = "/broken";
    site.finds("server_errors", "red", " requests a second end in 5xx");
    site.asked = "/";
    site.is_green();

    // A server behind takes requests and does not answer.
    let silent = TcpListener::bind(("127.0.0.1", site.server.port_at(2))).unwrap();
    site.asked = "/slow";
    site.finds("no_live_server", "red", "fails: no answer in time");
    drop(silent);
    let slow = Behind::new(site.server.port_at(2));
    site.is_green();
    drop(slow);
}

#[test]
fn faults_of_logs_names_and_limits_are_named_while_they_last() {
    let mut site = Site::new();
    let _behind = Behind::new(site.server.port_at(1));
    site.is_green();

    // The disk of a log is full.
    site.asked = "/full";
    site.finds("log_disk", "yellow", "log files do not take lines");
    site.asked = "/";
    site.is_green();

    // A name server is silent.
    let _silent = UdpSocket::bind(("127.0.0.1", site.server.port_at(3))).unwrap();
    site.asked = "/name";
    site.finds("name_server", "yellow", "a name server does not answer in time");
    site.asked = "/";
    site.is_green();

    // A client asks for more than it may.
    site.asked = "/limited";
    site.finds("flood", "yellow", "a flood: limit_req or limit_conn refuses ");
    site.has_metric("weir_health_finding{rule=\"flood\",subject=\"limits\"} 1");
    site.asked = "/";
    site.is_green();

    // One loop has all the work.
    let stop = Arc::new(AtomicBool::new(false));
    let (mut busy, told) = (site.server.connect(), stop.clone());
    let work = std::thread::spawn(move || {
        while !told.load(SeqCst) {
            assert_eq!(busy.get("/work").status, 204);
        }
    });
    site.finds("uneven_loops", "yellow", " % of the time, the mean of 2 loops is ");
    stop.store(true, SeqCst);
    work.join().unwrap();
    site.is_green();
}

#[test]
fn faults_of_processes_are_named_while_they_last() {
    let site = Site::new();
    let _behind = Behind::new(site.server.port_at(1));
    site.is_green();

    // A script does not end. Workers have another user.
    let _client = endless(&site.server);
    let at = r#" is stuck in one turn, its requests wait: the content phase, module: "lua", location: "/endless""#;
    site.finds("stuck_loop", "red", at);
    let page: Value = serde_json::from_str(&site.server.get("/json").body()).unwrap();
    let (first, what) = (&page["culprits"][0], at.split_once("wait: ").unwrap().1);
    assert!(first["what"].as_str().unwrap().starts_with(what), "{first}");
    assert_eq!(first["kind"], "running", "{first}");
    assert!(first["took_us"].as_u64().unwrap() > 1_000_000, "{first}");
    site.server.dir().write("end", "");
    site.is_green();

    // A worker is killed.
    let victim = site.server.workers()[0];
    site.server.signal_worker(victim, Signal::KILL);
    site.finds_shortly(
        "worker_killed",
        "yellow",
        &format!("worker process {victim} was killed by signal 9"),
    );
    site.is_green();

    // A reload fails.
    site.server.configure("nonsense;");
    site.server.signal(Signal::HUP);
    site.finds("reload_failed", "yellow", "the last reload failed");
    site.server.configure(CONF);
    site.server.signal(Signal::HUP);
    site.is_green();
}

/// What is about to go wrong, as the kernel and files say.
#[test]
fn ends_that_come_near_are_named() {
    let http = "server { listen 127.0.0.1:%%PORT%%; location / { return 200 well; }
         location = /json { weir_status json; } location = /metrics { weir_status; } }";
    let secured = "server { listen 127.0.0.1:%%PORT1%% ssl;
         ssl_certificate expired.pem; ssl_certificate_key leaf.key; }";
    let conf = format!("worker_rlimit_nofile 64; events {{ }} http {{ {http} }}");
    let server = Server::start_in(certified(), WEIR, &conf);
    let site = Site { server, asked: "/" };
    site.is_green();

    // Its key fits, and its end is in 2021.
    site.server.configure(&conf.replace("http { ", &format!("http {{ {secured} ")));
    site.server.signal(Signal::HUP);
    site.finds("certificate", "red", "expired.pem (www.example.org) has ended");
    site.has_metric("weir_health_finding{rule=\"certificate\",subject=\"certificates\"} 2");
    site.server.configure(&conf);
    site.server.signal(Signal::HUP);
    site.is_green();

    // As many clients as it takes, and no more: the kernel says how many descriptors are open.
    assert!(ask_until(|| site.server.workers().len() == 1), "an old worker stays");
    let worker = site.server.workers()[0];
    let open = || std::fs::read_dir(format!("/proc/{worker}/fd")).unwrap().count();
    let mut crowd = Vec::new();
    while open() < 60 {
        let mut client = site.server.connect();
        assert_eq!(client.get("/").status, 200);
        crowd.push(client);
    }
    site.finds_shortly("descriptors", "yellow", " of 64 descriptors open");
    drop(crowd);
    site.is_green();
}

/// A file system on which to open a file takes an hour.
struct BlockedDisk {
    lab: Child,
    /// It writes a last line.
    said: BufReader<ChildStdout>,
}

impl BlockedDisk {
    /// Shows `source` at `mount`; none where that is not possible.
    fn mount(source: &Path, mount: &Path) -> Option<BlockedDisk> {
        let args = ["lab", "slowdisk", "--ops", "open", "--share", "1", "--delay", "3600s"];
        let lab =
            Command::new(WEIR).args(args).args([source, mount]).stdout(Stdio::piped()).spawn();
        let mut lab = lab.unwrap();
        let said = BufReader::new(lab.stdout.take().unwrap());
        let (mut disk, mut line) = (BlockedDisk { lab, said }, String::new());
        disk.said.read_line(&mut line).unwrap();
        let is_there = line.contains(" is at ");
        if !is_there {
            eprintln!("skipped, since FUSE cannot be mounted here");
        }
        is_there.then_some(disk)
    }
}

impl Drop for BlockedDisk {
    fn drop(&mut self) {
        // It unmounts the file system, and what waits for it fails.
        let _ = kill_process(Pid::from_child(&self.lab), Signal::TERM);
        let _ = self.lab.wait();
    }
}

/// One request for a file on it never ends, all others are served.
#[test]
fn a_disk_that_blocks_is_named_with_the_file() {
    let dir = Dir::new();
    let [source, mount] = ["source", "mount"].map(|name| dir.file(name));
    [&source, &mount].iter().for_each(|path| std::fs::create_dir(path).unwrap());
    dir.write("source/report", "long awaited");
    let conf = "worker_processes 2; error_log %%DIR%%/error.log; events { }
         http { server { listen 127.0.0.1:%%PORT%%; root %%DIR%%/mount;
         location = / { return 200 well; }
         location = /json { weir_status json; } location = /metrics { weir_status; } } }";
    let site = Site { server: Server::start_in(dir, WEIR, conf), asked: "/" };
    let Some(disk) = BlockedDisk::mount(&source, &mount) else { return };
    site.is_green();
    let mut client = site.server.connect();
    client.send(b"GET /report HTTP/1.1\r\nHost: a\r\n\r\n");
    let what = format!("open \"{}/report\"", mount.display());
    site.finds(
        "blocked_disk",
        "red",
        &format!("a disk blocks: {what} does not end in worker process "),
    );
    site.has_metric("weir_health_finding{rule=\"blocked_disk\",subject=\"disk\"} 2");
    let logged = site.server.dir().read("error.log");
    assert!(logged.contains(&format!(" s: {what}")), "{logged}");
    drop(disk);
    assert_eq!(client.response().status, 500);
    site.is_green();
    site.has_metric("weir_blocked_file_operation_seconds 0.000000");
}

#[test]
fn the_page_s_example_shows_health() {
    let page = include_str!("../docs/health.md");
    let example = examples(page).next().unwrap();
    let server = Server::with_locations(Dir::new(), WEIR, "", example);
    let page: Value = serde_json::from_str(&server.get("/status").body()).unwrap();
    assert_eq!(page["health"]["state"], "green", "{page}");
}

/// The master sleeps while nothing happens. The first turn after that wakes it, though it never ends.
#[test]
fn a_turn_without_an_end_wakes_the_master() {
    let server = Server::start(WEIR, CONF);
    let title = || std::fs::read_to_string(format!("/proc/{}/cmdline", server.pid())).unwrap();
    server.wait_for_news();
    let mut client = endless(&server);
    assert!(ask_until(|| title().contains("is stuck in one turn")));
    server.dir().write("end", "");
    assert_eq!(client.response().status, 200);
    server.wait_for_news();
    assert!(!title().contains("stuck"), "{}", title());
}

/// The kernel alone can end a loop that does not come back, so its process does so itself.
#[test]
fn an_old_worker_with_a_stuck_loop_ends_after_its_time() {
    let conf = format!(
        "worker_threads 2; worker_shutdown_timeout 1s; error_log %%DIR%%/error.log; {CONF}"
    );
    let site = Site { server: Server::start(WEIR, &conf), asked: "/json" };
    let old = site.server.workers();
    let mut client = endless(&site.server);
    site.server.signal(Signal::HUP);
    let is_there = |pid: &i32| Path::new(&format!("/proc/{pid}")).exists();
    assert!(ask_until(|| !old.iter().any(is_there)), "{old:?}");
    assert!(client.rest().is_empty());
    let log = site.server.dir().read("error.log");
    let line =
        log.lines().find(|line| line.contains(" ends after worker_shutdown_timeout, with loop "));
    let what = r#"the content phase, module: "lua", location: "/endless""#;
    assert!(line.is_some_and(|line| line.contains(what)), "{log}");
    assert!(!log.contains("[alert]"), "{log}");
    site.is_green();
    assert_eq!(site.server.get("/json").status, 200);
}

/// A load, and what it asks for.
const LOADS: &[(&str, &[&str], &str)] = &[
    ("kept connections", &[], "http://127.0.0.1:%%PORT%%/"),
    ("a connection for each request", &["--close"], "http://127.0.0.1:%%PORT%%/"),
    ("files", &[], "http://127.0.0.1:%%PORT%%/file"),
    ("a proxy", &[], "http://127.0.0.1:%%PORT%%/proxy"),
    ("a cache", &[], "http://127.0.0.1:%%PORT%%/cache"),
    ("TLS", &["--insecure"], "https://127.0.0.1:%%PORT1%%/"),
    ("TLS handshakes", &["--insecure", "--close"], "https://127.0.0.1:%%PORT1%%/"),
];

const LOADED: &str = "user root; worker_processes 2; events { worker_connections 4096; }
     http {
         access_log access.log;
         upstream own { server 127.0.0.1:%%PORT2%%; keepalive 64; }
         proxy_cache_path cache keys_zone=k:1m;
         server { listen 127.0.0.1:%%PORT2%%; location / { return 200 behind; } }
         server {
             listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:%%PORT1%% ssl; root .;
             ssl_certificate self.pem; ssl_certificate_key self.key;
             keepalive_requests 1000000000;
             location = / { return 200 hello; }
             location = /proxy { proxy_pass http://own; }
             location = /cache { proxy_pass http://own; proxy_cache k; proxy_cache_valid 1h; }
             location = /json { weir_status json; }
         }
     }";

/// Health is green under every load. `WEIR_GREEN` is how many seconds it lasts.
#[test]
fn nothing_is_wrong_under_load() {
    let total = std::env::var("WEIR_GREEN").map_or(14, |seconds| seconds.parse().unwrap());
    let dir = Dir::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    for name in ["self.pem", "self.key"] {
        dir.write(name, std::fs::read(data.join(name)).unwrap());
    }
    dir.write("file", [b'x'; 65536]);
    let program = std::env::var("WEIR_BINARY").unwrap_or_else(|_| WEIR.to_owned());
    let site = Site { server: Server::start_in(dir, &program, LOADED), asked: "/json" };
    let loads = LOADS.len() as u64;
    let rounds = (total / (20 * loads)).max(1);
    let seconds = total.div_ceil(rounds * loads);
    for (name, args, url) in (0..rounds).flat_map(|_| LOADS) {
        let [port, secured] = [site.server.port(), site.server.port_at(1)].map(|n| n.to_string());
        let url = url.replace("%%PORT%%", &port).replace("%%PORT1%%", &secured);
        let mut bench = Command::new(&program);
        bench.args(["bench", "-c", "64", "-d", &format!("{seconds}s")]).args(*args).arg(&url);
        let mut bench = Process::start(bench.stdout(Stdio::null()));
        let first = looks(&site.health());
        let mut last = first;
        while bench.is_running() {
            ask_until(|| looks(&site.health()) > last || !bench.is_running());
            let health = site.health();
            assert_eq!(health["state"], "green", "under {name}: {health}");
            last = looks(&health);
        }
        assert!(bench.wait().success() && last > first, "{name}");
        eprintln!("green under {name}, in {} looks", last - first);
    }
}

/// Without a master, a thread beside the loops looks.
#[test]
fn a_server_without_master_judges_itself() {
    let conf = format!("master_process off; {CONF}").replace("%%PORT1%%", "1");
    let site = Site { server: Server::start(WEIR, &conf), asked: "/" };
    site.finds_shortly("no_live_server", "red", "shop: 127.0.0.1:1 fails: connection refused");
}
