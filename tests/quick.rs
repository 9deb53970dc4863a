//! `weir proxy` and `weir file-server`, with the server that they start; and docs/app.md, their page for a file.

#![cfg(feature = "tools")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::process::{Command, Output};
use std::sync::{Arc, Condvar, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use weir_testkit::{Client, Dir, Process, ask_until, examples, free_port, listen, run, s_client};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A server that a tool has started.
struct Quick {
    process: Process,
    dir: Dir,
    port: u16,
}

impl Quick {
    /// Starts it, and waits for its greeting.
    fn start(dir: Dir, args: &[&str]) -> Quick {
        let (port, panel) = (free_port(), free_port());
        let (listen, panel) = (port.to_string(), panel.to_string());
        let args = [args, &["--listen", &listen, "--panel", &panel]].concat();
        Quick { process: Quick::process(&dir, &args), dir, port }
    }

    fn process(dir: &Dir, args: &[&str]) -> Process {
        let file = |name| File::create(dir.file(name)).unwrap();
        let mut command = Command::new(WEIR);
        command.args(args).env("XDG_STATE_HOME", dir.file("state"));
        let process = Process::start(command.stdout(file("out")).stderr(file("err")));
        let greeted = ask_until(|| dir.read("out").contains("Ctrl-C"));
        assert!(greeted, "{}{}", dir.read("out"), dir.read("err"));
        process
    }

    /// What Ctrl-C does.
    fn end(&mut self) {
        self.process.signal(Signal::INT);
        assert!(self.process.wait().success(), "{}", self.dir.read("err"));
    }
}

/// What a tool says with a directory of state.
fn say(dir: &Dir, args: &[&str]) -> Output {
    let state = format!("XDG_STATE_HOME={}", dir.file("state").display());
    run("env", [&[state.as_str(), WEIR], args].concat())
}

/// Whether the test has let the second event go.
type Gate = Arc<(Mutex<bool>, Condvar)>;

/// An application that shows the heads of requests, streams events, and talks over a WebSocket.
fn app(gate: &Gate) -> u16 {
    let gate = Arc::clone(gate);
    listen(move |mut stream: TcpStream| {
        while let Some(head) = read_head(&mut stream) {
            let path = head.split(' ').nth(1).unwrap_or_default();
            if path == "/events" {
                stream
                    .write_all(
                        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n",
                    )
                    .unwrap();
                let open = gate.0.lock().unwrap();
                drop(gate.1.wait_while(open, |open| !*open).unwrap());
                stream.write_all(b"data: 2\n\n").unwrap();
                return;
            }
            if path == "/socket" {
                let upgraded = head.contains("\r\nUpgrade: websocket\r\n")
                    && head.to_ascii_lowercase().contains("\r\nconnection: upgrade\r\n");
                assert!(upgraded, "{head}");
                let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
                stream.write_all(switch.as_bytes()).unwrap();
                let mut word = [0; 4];
                stream.read_exact(&mut word).unwrap();
                stream.write_all(&word).unwrap();
                return;
            }
            let length = head.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{head}");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    })
}

fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0; 1];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

#[test]
fn proxy_passes_names_streams_and_websockets() {
    let gate = Gate::default();
    let port = app(&gate).to_string();
    let mut quick = Quick::start(Dir::new(), &["proxy", &port]);
    let mut client = Client::connect(quick.port);
    client
        .send("GET /a%20b HTTP/1.1\r\nHost: shop.example:81\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n");
    let head = client.response().body();
    for line in [
        "GET /a%20b HTTP/1.1",
        "Host: shop.example:81",
        "X-Real-IP: 127.0.0.1",
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-Host: shop.example:81",
        "X-Forwarded-Proto: http",
    ] {
        assert!(head.lines().any(|there| there == line), "{line}: {head}");
    }
    assert!(!head.contains("192.0.2.1"), "a client says its own address: {head}");

    // The first event comes while the application keeps the second.
    let mut events = Client::connect(quick.port);
    events.send("GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
    let lines = std::iter::from_fn(|| events.try_line().ok());
    let mut lines = lines.map(|line| line.trim_end().to_owned());
    assert!(lines.any(|line| line == "data: 1"));
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    assert!(lines.any(|line| line == "data: 2"));

    let mut socket = Client::connect(quick.port);
    socket.send(
        "GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nping",
    );
    assert!(socket.rest().ends_with("\r\n\r\nping"));
    quick.end();
    let log = quick.dir.read("out");
    assert!(log.contains("\"GET /a%20b HTTP/1.1\" 200 "), "{log}");
    assert!(log.contains(" 101 ") && quick.dir.read("err").is_empty(), "{log}");
}

/// A client that trusts the certificate is served over HTTP/2, and has to be told to trust it only once.
#[test]
fn proxy_with_tls_has_a_certificate_of_its_own() {
    let port = app(&Gate::default()).to_string();
    let args = ["proxy", &port, "--tls", "localhost"];
    let mut quick = Quick::start(Dir::new(), &args);
    let certificate = quick.dir.read("state/weir/localhost.crt");
    let greeting = quick.dir.read("out");
    assert!(greeting.contains(&format!("https://localhost:{}/", quick.port)), "{greeting}");
    assert!(greeting.contains("--cacert"), "{greeting}");
    let trust = ["-CAfile", "state/weir/localhost.crt", "-verify_return_error"];
    for name in [["-verify_hostname", "localhost"], ["-verify_ip", "127.0.0.1"]] {
        let args = [&trust[..], &name, &["-servername", "localhost", "-alpn", "h2"]].concat();
        let Some(said) = s_client(quick.dir.path(), quick.port, &args, "") else { break };
        let trusted =
            said.contains("Verify return code: 0 (ok)") || said.contains("Verification: OK");
        assert!(trusted && said.contains("ALPN protocol: h2"), "{said}");
    }
    quick.end();
    let mut again = Quick::start(quick.dir, &args);
    assert_eq!(again.dir.read("state/weir/localhost.crt"), certificate);
    again.end();
    let key = std::fs::metadata(again.dir.file("state/weir/localhost.key")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&key) & 0o777, 0o600);
}

#[test]
fn file_server_serves_a_directory_without_hidden_files() {
    let dir = Dir::new();
    dir.write("www/index.html", "home");
    dir.write("www/a b/style.css", "p {}");
    dir.write("www/.git/config", "secret");
    dir.write("www/.well-known/security.txt", "found");
    let www = dir.file("www");
    let mut quick = Quick::start(dir, &["file-server", www.to_str().unwrap(), "--browse"]);
    let get = |path: &str| Client::connect(quick.port).get(path);
    assert_eq!(get("/").body(), "home");
    let style = get("/a%20b/style.css");
    assert_eq!((style.body().as_str(), style.status), ("p {}", 200));
    assert_eq!(style.header("Content-Type"), Some("text/css"));
    assert!(get("/a%20b/").body().contains("style.css"));
    assert_eq!(get("/.git/config").status, 404);
    assert_eq!(get("/a%20b/../.git/config").status, 404);
    assert_eq!(get("/.well-known/security.txt").body(), "found");
    quick.end();
    let left = std::fs::read_dir(quick.dir.file("state/weir")).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(!left.into_iter().any(|name| name.ends_with(".pid")), "a pid file is left");
}

#[test]
fn without_an_address_a_free_port_is_taken() {
    let dir = Dir::new();
    // Another program has it, or this test.
    let _taken = TcpListener::bind("127.0.0.1:8080");
    let www = dir.path().to_str().unwrap().to_owned();
    let mut process = Quick::process(&dir, &["file-server", &www]);
    let greeting = dir.read("out");
    let after = |mark: &str| {
        let rest = greeting.split(mark).nth(1).unwrap();
        rest.split('/').next().unwrap().parse::<u16>().unwrap()
    };
    let (site, panel) =
        (after("file-server   http://127.0.0.1:"), after("panel      http://127.0.0.1:"));
    assert!((8081..8100).contains(&site) && (8090..8110).contains(&panel), "{greeting}");
    assert_eq!(Client::connect(site).get("/out").status, 200);
    let page = Client::connect(panel).get("/");
    assert!(page.status == 200 && page.body().contains("<html"), "{}", page.body());
    process.signal(Signal::INT);
    assert!(process.wait().success());
}

/// An application that does not listen yet keeps its port.
#[test]
fn the_port_of_the_application_is_not_taken() {
    let dir = Dir::new();
    for port in ["8080", "8090"] {
        let shown = say(&dir, &["proxy", port, "--show-config"]);
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(text.contains(&format!("server 127.0.0.1:{port};")), "{shown:?}");
        assert!(!text.contains(&format!("listen 127.0.0.1:{port}")), "{text}");
    }
}

#[test]
fn all_addresses_are_those_of_both_families() {
    let dir = Dir::new();
    let www = dir.path().to_str().unwrap().to_owned();
    let port = free_port();
    let all = format!(":{port}");
    let args = ["file-server", &www, "--listen", &all, "--panel", &free_port().to_string()];
    let _process = Quick::process(&dir, &args);
    assert_eq!(Client::connect(port).get("/out").status, 200);
    // A machine without IPv6 cannot bind it either.
    if TcpListener::bind("[::1]:0").is_ok() {
        assert!(TcpStream::connect(("::1", port)).is_ok());
    }
}

/// The log of a server that writes all to one file, as `> log 2>&1` does.
#[test]
fn a_file_for_both_outputs_keeps_all_lines() {
    let dir = Dir::new();
    let www = dir.path().to_str().unwrap().to_owned();
    let (port, panel) = (free_port(), free_port());
    let file = File::create(dir.file("out")).unwrap();
    let mut command = Command::new(WEIR);
    command.args(["file-server", &www, "--listen", &port.to_string()]);
    command.args(["--panel", &panel.to_string()]).env("XDG_STATE_HOME", dir.file("state"));
    let stderr = file.try_clone().unwrap();
    let mut process = Process::start(command.stdout(file).stderr(stderr));
    assert!(ask_until(|| dir.read("out").contains("Ctrl-C")));
    let mut client = Client::connect(port);
    for n in 0..20 {
        // Each is an error, and an access line.
        assert_eq!(client.get(&format!("/none-{n}")).status, 404);
    }
    process.signal(Signal::INT);
    assert!(process.wait().success());
    let log = dir.read("out");
    assert!(log.contains("Ctrl-C"), "{log}");
    for n in 0..20 {
        let requests = log.matches(&format!("\"GET /none-{n} HTTP/1.1\"")).count();
        assert_eq!(requests, 2, "{n}: {log}");
    }
}

/// HUP asks for the configuration anew, but its text is written once: a closed terminal ends the server.
#[test]
fn a_server_ends_with_its_terminal() {
    let dir = Dir::new();
    let www = dir.path().to_str().unwrap().to_owned();
    let (port, panel) = (free_port(), free_port());
    let line = format!("exec {WEIR} file-server {www} --listen {port} --panel {panel}");
    let mut command = Command::new("script");
    command.args(["-qefc", &line, "/dev/null"]).env("XDG_STATE_HOME", dir.file("state"));
    let mut terminal = Process::start(command.stdout(File::create(dir.file("out")).unwrap()));
    assert!(ask_until(|| dir.read("out").contains("Ctrl-C")), "{}", dir.read("out"));
    let pid = || dir.read(&format!("state/weir/file-server-{port}.pid"));
    assert!(ask_until(|| pid().ends_with('\n')));
    let pid = pid();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    // While the terminal is there, HUP is what it is for all servers.
    kill_process(pid, Signal::HUP).unwrap();
    assert_eq!(Client::connect(port).get("/out").status, 200);
    terminal.signal(Signal::KILL);
    terminal.wait();
    assert!(ask_until(|| TcpStream::connect(("127.0.0.1", port)).is_err()));
}

#[test]
fn root_is_told_of_a_directory_that_workers_cannot_enter() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = Dir::new();
    let closed = dir.file("closed");
    std::fs::DirBuilder::new().mode(0o700).create(&closed).unwrap();
    let args = ["file-server", closed.to_str().unwrap()];
    let mut quick = Quick::start(dir, &args);
    assert_eq!(Client::connect(quick.port).get("/").status, 403);
    let greeting = quick.dir.read("out");
    assert!(greeting.contains("closed is closed to the user nobody"), "{greeting}");
    quick.end();
}

/// What is printed is a configuration as one may keep it: nothing is wrong with it, and lint finds nothing.
#[test]
fn shown_configurations_are_accepted_without_a_word() {
    let dir = Dir::new();
    let (port, http) = (free_port().to_string(), free_port().to_string());
    let www = dir.path().to_str().unwrap().to_owned();
    for args in [
        &["proxy", "3000"][..],
        &["proxy", "http://localhost:3000", "--tls", "shop.example"],
        &["proxy", "unix:/run/app.sock", "--tls", "127.0.0.1"],
        &["proxy", "3000", "--tls", "shop.example.org", "--http", &http],
        &["proxy", "3000", "--tls", "shop.example.org", "--self-signed"],
        &["file-server", &www],
        &["file-server", &www, "--browse"],
    ] {
        let args = [args, &["--show-config", "--listen", &port]].concat();
        let shown = say(&dir, &args);
        assert!(shown.status.success(), "{args:?} {shown:?}");
        let conf = dir.write("shown.conf", &shown.stdout);
        let conf = conf.to_str().unwrap();
        let tested = run(WEIR, ["-t", "-q", "-e", "stderr", "-c", conf]);
        assert!(tested.status.success() && tested.stderr.is_empty(), "{args:?} {tested:?}");
        let linted = run(WEIR, ["lint", "-c", conf]);
        assert!(linted.status.success(), "{args:?} {linted:?}");
    }
}

/// The configuration is shown while the server that was started with the same words runs.
#[test]
fn a_configuration_is_shown_though_its_ports_are_taken() {
    let dir = Dir::new();
    let taken: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses = taken.iter().map(|socket| socket.local_addr().unwrap().to_string());
    let [listen, panel, http] = addresses.collect::<Vec<_>>().try_into().unwrap();
    let shown = say(
        &dir,
        &[
            "proxy",
            "3000",
            "--show-config",
            "--tls",
            "shop.example.org",
            "--listen",
            &listen,
            "--panel",
            &panel,
            "--http",
            &http,
        ],
    );
    assert!(shown.status.success(), "{shown:?}");
    let text = String::from_utf8_lossy(&shown.stdout);
    for address in [listen, panel, http] {
        assert!(text.contains(&format!("listen {address}")), "{address} {text}");
    }
}

#[test]
fn wrong_words_are_refused_with_a_reason() {
    let dir = Dir::new();
    let file = dir.write("file", "");
    let file = file.to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let free = free_port().to_string();
    let all = format!(":{free}");
    for (args, reason) in [
        (&["proxy", "app"][..], "names no port"),
        (&["proxy", "https://app.example"], "speaks TLS"),
        (&["proxy", "http://app:1/path"], "has a path"),
        (&["proxy", "3000", "--listen", "x"], "no address to listen on"),
        (&["proxy", "3000", "--listen", &taken], "another program listens there"),
        (&["proxy", &free, "--listen", &free], "is where weir proxy is to listen"),
        (&["proxy", &format!("localhost:{free}"), "--listen", &all], "is where weir proxy is to"),
        (&["proxy", "3000", "--tls", "../x"], "no name for a certificate"),
        (&["proxy", "3000", "--tls", "a.org", "--acme-uri", "http://a.org/"], "is no ACME server"),
        (&["proxy", "3000", "--tls", "a.org/b"], "no name for a certificate"),
        (&["file-server", "/nowhere"], "No such file"),
        (&["file-server", file], "not a directory"),
    ] {
        let out = say(&dir, args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.starts_with(&format!("weir {}: ", args[0])), "{said}");
        assert!(said.contains(reason) && said.lines().count() == 1, "{args:?}: {said}");
    }
}

/// docs/app.md: its file and its commands, with free ports.
#[test]
fn an_application_is_served_as_the_page_shows() {
    let page = include_str!("../docs/app.md");
    let dir = Dir::new();
    let (prefix, shell) = (dir.path().display().to_string(), page.replace("\\\n", " "));
    let certificate = shell.lines().find(|line| line.starts_with("openssl req ")).unwrap();
    let made = run("sh", ["-c", &format!("cd {prefix} && {certificate}")]);
    assert!(made.status.success(), "{made:?}");
    let (plain, tls, panel) = (free_port(), free_port(), free_port());
    let conf = [(3000, app(&Gate::default())), (8080, plain), (8443, tls), (8090, panel)]
        .iter()
        .fold(examples(page).next().unwrap().to_owned(), |conf, (shown, port)| {
            assert!(conf.contains(&format!(":{shown}")), "{shown}");
            conf.replace(&format!(":{shown}"), &format!(":{port}"))
        });
    dir.write("nginx.conf", conf);
    let here = ["-p", prefix.as_str(), "-c", "nginx.conf"];
    let tested = run(WEIR, [&["-t", "-q", "-e", "stderr"][..], &here].concat());
    assert!(tested.status.success() && tested.stderr.is_empty(), "{tested:?}");
    let linted = run(WEIR, ["lint", "-c", dir.file("nginx.conf").to_str().unwrap()]);
    assert!(linted.status.success(), "{linted:?}");

    let mut command = Command::new(WEIR);
    command.args(here).args(["-e", "stderr"]).stderr(File::create(dir.file("err")).unwrap());
    let mut process = Process::start(&mut command);
    assert!(ask_until(|| Client::try_connect(panel).is_ok()), "{}", dir.read("err"));
    let url = format!("https://localhost:{tls}/cart?id=1");
    let trusted = dir.file("localhost.crt").display().to_string();
    let asked =
        run("curl", ["-sS", "--http2", "--cacert", &trusted, "-w", "%{http_version}", &url]);
    let head = String::from_utf8_lossy(&asked.stdout).into_owned();
    for line in [
        "GET /cart?id=1 HTTP/1.1".to_owned(),
        format!("Host: localhost:{tls}"),
        "X-Real-IP: 127.0.0.1".to_owned(),
        "X-Forwarded-For: 127.0.0.1".to_owned(),
        format!("X-Forwarded-Host: localhost:{tls}"),
        "X-Forwarded-Proto: https".to_owned(),
    ] {
        assert!(head.lines().any(|there| there == line), "{line}: {asked:?}");
    }
    assert!(head.ends_with("\r\n\r\n2"), "not HTTP/2: {head}");
    let moved = Client::connect(plain).get("/cart");
    let to = format!("https://localhost:{tls}/cart");
    assert_eq!((moved.status, moved.header("Location")), (301, Some(to.as_str())));
    let upgrade = "GET /socket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nping";
    let said = s_client(dir.path(), tls, &["-quiet", "-servername", "localhost"], upgrade).unwrap();
    assert!(said.contains(" 101 ") && said.contains("\r\n\r\nping"), "{said}");
    assert!(Client::connect(panel).get("/").body().contains("my shop"));
    assert!(Client::connect(panel).get("/metrics").body().contains("weir_"));
    let explained = run(WEIR, [&["explain", &to][..], &here].concat());
    assert!(
        String::from_utf8_lossy(&explained.stdout).contains("proxy_pass http://app"),
        "{explained:?}"
    );
    process.signal(Signal::INT);
    assert!(process.wait().success(), "{}", dir.read("err"));
    assert_eq!(dir.read("err"), "");
    let log = dir.read("access.json");
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let lines: Vec<_> = lines.collect();
    assert!(lines.iter().any(|line| line["uri"] == "/cart?id=1" && line["status"] == 200), "{log}");
    assert!(lines.iter().any(|line| line["status"] == 101), "{log}");
}
