//! `weir bench --http3`, beside the foreign clients: one that opens many connections and streams.

use std::collections::BTreeSet;
use std::net::UdpSocket;

use rustix::process::{WaitOptions, waitpid};
use serde_json::Value;

use super::hostile::memory;
use super::*;

pub const URL: &str = "https://www.example.org/";

/// What it reports of a run against a port.
pub fn bench(port: u16, options: &str, url: &str) -> Value {
    let mut command = Command::new(WEIR);
    command.args(["bench", "--http3", "--json", "-t", "1", "-r", &format!("127.0.0.1:{port}")]);
    let output = command.args(options.split_whitespace()).arg(url).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let failed = || panic!("{text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap_or_else(|_| failed())
}

/// So many requests were answered, and none was not.
#[track_caller]
pub fn assert_answered(report: &Value, requests: u64) {
    let (done, errors) = (&report["requests"], &report["errors"]);
    assert_eq!((done.as_u64(), errors.as_u64()), (Some(requests), Some(0)), "{report}");
}

/// The ports of clients whose requests were logged.
fn ports(server: &Server) -> usize {
    let log = server.dir().read("seen.log");
    log.lines().filter_map(|line| line.split(' ').next()).collect::<BTreeSet<_>>().len()
}

#[test]
fn each_connection_of_a_load_has_a_port_and_many_requests() {
    let server = start("", "location / { return 200 $http_a; }");
    let authority = server.dir().file("root.pem");
    let options = format!("-n 600 -c 6 -m 5 -H a:1 --cacert {}", authority.display());
    assert_answered(&bench(server.port(), &options, URL), 600);
    server.wait_file("seen.log", " h3 200 / ", 600);
    assert_eq!(ports(&server), 6);
}

#[test]
fn a_connection_each_costs_a_handshake_each() {
    let server = start("", "location / { return 200 ok; }");
    let report = bench(server.port(), "-n 40 -c 4 --close --insecure", URL);
    assert_answered(&report, 40);
    server.wait_file("seen.log", " h3 200 / ", 40);
    // The system may give a port again that an earlier connection has left.
    assert!(ports(&server) > 36, "{} ports", ports(&server));
}

/// All that a connection has is given back when it has ended: its streams, its TLS and its place in the loop.
#[test]
fn connections_that_have_ended_leave_nothing_in_memory() {
    let server = start("", "location / { return 200 ok; }");
    let load =
        || assert_answered(&bench(server.port(), "-n 400 -c 4 --close --insecure", URL), 400);
    load();
    let before = memory(&server);
    load();
    load();
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 8 << 10, "{grown} KiB more after 800 connections");
}

/// How many connections each loop has, by a log of `$pid-$loop $connection`.
fn connections(server: &Server) -> Vec<usize> {
    let log = server.dir().read("loops.log");
    let of = |line: &str| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
    let all: BTreeSet<(String, String)> = log.lines().filter_map(of).collect();
    let loops: BTreeSet<_> = all.iter().map(|(name, _)| name).collect();
    let count = |name: &&String| all.iter().filter(|(of, _)| of == *name).count();
    loops.iter().map(count).collect()
}

/// What the page of figures at the second port says of one.
fn counted(server: &Server, name: &str) -> u64 {
    let url = format!("http://127.0.0.1:{}/", server.port_at(1));
    let page = String::from_utf8_lossy(&run("curl", ["-s", &url]).stdout).into_owned();
    let mut values = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    values.next().unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
}

/// New connections wait where all loops take them from, and the kernel sends what follows to the loop that has the connection.
#[test]
fn kept_connections_are_six_on_each_loop_give_or_take_three() {
    let http = "log_format loops '$pid-$loop $connection';
                server { listen 127.0.0.1:%%PORT1%%; location / { weir_status; } }";
    let inside = "location / { access_log loops.log loops; work sleep 1ms; return 200 ok; }";
    let server = start(http, inside);
    assert_answered(&bench(server.port(), "-n 2400 -c 24 --insecure", URL), 2400);
    assert!(ask_until(|| server.dir().read("loops.log").lines().count() == 2400));
    let each = connections(&server);
    assert!(each.len() == 4 && each.iter().all(|n| (3..=9).contains(n)), "{each:?}");
    let forwarded = counted(&server, "weir_quic_forwarded_datagrams_total");
    assert!(forwarded < 240, "{forwarded} of more than 2400");
}

/// A loop that works on a request takes no new connection, and delays none.
#[test]
fn new_connections_do_not_wait_for_a_held_loop() {
    let hold =
        "set_by_lua_block $held { ngx.log(ngx.ALERT, 'it is held') return '' } work sleep 60s;";
    let inside =
        format!("location / {{ return 200 ok; }} location /hold {{ {hold} return 200 ok; }}");
    let conf = conf("", &inside);
    let conf = conf.replace(LOOPS, "worker_processes 1; worker_threads 2;");
    let server = Server::start_in(certified(), WEIR, &conf);
    let mut command = Command::new(WEIR);
    command.args(["bench", "--http3", "--insecure", "-t", "1", "-c", "1", "-n", "1", "-r"]);
    command.args([format!("127.0.0.1:{}", server.port()), format!("{URL}hold")]);
    let _held = Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
    server.wait_log("has been in one turn for 1 s", 1);
    assert_answered(&bench(server.port(), "-n 8 -c 1 --close --insecure", URL), 8);
    assert!(!server.dir().read("seen.log").contains("/hold"), "the loop was held all the while");
}

#[test]
fn a_load_of_long_bodies_is_read_and_sent_whole() {
    let server = start(
        "client_max_body_size 8m;",
        "location = /up { proxy_pass http://127.0.0.1:%%PORT1%%; }
         } server { listen 127.0.0.1:%%PORT1%%;
           location / { client_body_in_single_buffer on; client_body_buffer_size 8m; proxy_pass http://127.0.0.1:%%PORT2%%; }
         } server { listen 127.0.0.1:%%PORT2%%; location / { return 200 $content_length; }",
    );
    fs::create_dir_all(server.dir().file("html")).unwrap();
    fs::write(server.dir().file("html/long"), long(3_000_000)).unwrap();
    fs::write(server.dir().file("body"), long(700_000)).unwrap();
    let report = bench(server.port(), "-n 12 -c 2 -m 2 --insecure", "https://localhost/long");
    assert_answered(&report, 12);
    assert!(report["bytes_received"].as_u64() > Some(36_000_000), "{report}");
    let options =
        format!("-n 6 -c 2 --insecure --body-file {}", server.dir().file("body").display());
    assert_answered(&bench(server.port(), &options, "https://localhost/up"), 6);
}

#[test]
fn a_load_takes_longer_datagrams_if_it_is_told_to() {
    let http = "server { listen 127.0.0.1:%%PORT1%%; location / { weir_status; } }";
    let server = start(http, "root html;");
    fs::create_dir_all(server.dir().file("html")).unwrap();
    fs::write(server.dir().file("html/long"), long(3_000_000)).unwrap();
    let mut sent = Vec::new();
    for options in ["", "--datagrams 65507"] {
        let options = format!("-n 4 -c 1 --insecure {options}");
        assert_answered(&bench(server.port(), &options, "https://localhost/long"), 4);
        assert!(ask_until(|| counted(&server, "weir_quic_open_connections") == 0));
        sent.push(counted(&server, "weir_quic_sent_packets_total"));
    }
    let [short, all] = sent[..] else { panic!() };
    assert!((all - short) * 2 < short, "{short} packets, then {}", all - short);
}

#[test]
fn a_connection_whose_end_is_announced_loses_no_request_of_a_load() {
    let server = start("keepalive_requests 7;", "location / { return 200 ok; }");
    let report = bench(server.port(), "-n 300 -c 2 -m 3 --insecure", URL);
    assert_answered(&report, 300);
    server.wait_file("seen.log", " h3 200 / ", 300);
    assert!(ports(&server) >= 300 / 7, "{}", ports(&server));
}

#[test]
fn failures_of_a_load_are_told_apart() {
    let server = start(
        "",
        "location /none { return 444; } location /late { content_by_lua_block { ngx.sleep(60) } }
         } server { listen 127.0.0.1:%%PORT%% quic; listen 127.0.0.1:%%PORT%% ssl; server_name tcp; http3 off;",
    );
    let kinds =
        |options: &str, url: &str| bench(server.port(), options, url)["error_kinds"].clone();
    let expect = |kind: &str| serde_json::json!({ kind: 2 });
    let authority = format!("-n 2 --cacert {}", server.dir().file("root.pem").display());
    assert_eq!(kinds(&authority, "https://localhost/none"), expect("certificate"));
    // Why, as over TCP.
    let [quic, tcp] = [&["--http3"][..], &[]].map(|protocol| {
        let to = format!("127.0.0.1:{}", server.port());
        let mut command = Command::new(WEIR);
        command.args(["bench", "-n", "1", "-r", &to]).args(protocol).arg("https://localhost/none");
        let output =
            command.args(["--cacert"]).arg(server.dir().file("root.pem")).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find(|line| line.starts_with("error ")).unwrap_or_default().to_owned()
    });
    assert!(
        quic == tcp && quic.contains("(certificate does not match \"localhost\")"),
        "{quic}\n{tcp}"
    );
    assert_eq!(kinds("-n 2 --insecure", "https://tcp/"), expect("no_http3"));
    assert_eq!(kinds("-n 2 --insecure", "https://localhost/none"), expect("stream_reset"));
    // Long enough for a handshake on a busy machine.
    let late = "-n 2 --insecure --timeout 3s";
    assert_eq!(kinds(late, "https://localhost/late"), expect("timeout"));
    let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let report = bench(gone, "-n 2 --insecure", URL);
    assert_eq!(report["error_kinds"], expect("refused"), "{report}");
}

/// A client that the machine does not run for a moment must not lose what comes: the server takes that for a full path.
#[test]
fn a_client_that_is_stopped_keeps_what_comes() {
    /// The kernel's default holds less, and whatever `net.core.rmem_max` is, twice the default is there for those who ask.
    const DATAGRAMS: usize = 140;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = format!("127.0.0.1:{}", socket.local_addr().unwrap().port());
    let mut command = Command::new(WEIR);
    command.args([
        "bench",
        "--http3",
        "--insecure",
        "-t",
        "1",
        "-c",
        "1",
        "-n",
        "1",
        "-r",
        &to,
        URL,
    ]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let process = Process::start(&mut command);
    let (_, client) = socket.recv_from(&mut [0; 2048]).unwrap();
    process.signal(Signal::STOP);
    waitpid(Pid::from_raw(process.pid()), WaitOptions::UNTRACED).unwrap();
    for _ in 0..DATAGRAMS {
        socket.send_to(&[0; 1200], client).unwrap();
    }
    // The last field counts what the socket had no room for.
    let local = format!("0100007F:{:04X}", client.port());
    let sockets = fs::read_to_string("/proc/net/udp").unwrap();
    process.signal(Signal::KILL);
    let line = sockets.lines().find(|line| line.split_whitespace().nth(1) == Some(&local));
    let line = line.unwrap_or_else(|| panic!("{local} is not in\n{sockets}"));
    assert_eq!(line.split_whitespace().last(), Some("0"), "{line}");
}
