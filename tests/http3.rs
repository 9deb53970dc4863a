//! HTTP/3 to clients, spoken by ngtcp2's `gtlsclient` (Debian's package `ngtcp2-client`).

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use weir_testkit::{Dir, Process, Server, ask_until, certified, examples, run};

#[path = "http3/bench.rs"]
mod bench;
#[path = "http3/broken.rs"]
mod broken;
#[path = "http3/certificates.rs"]
mod certificates;
#[path = "http3/hostile.rs"]
mod hostile;
#[path = "http3/hq.rs"]
mod hq;
#[path = "http3/leaving.rs"]
mod leaving;
#[path = "http3/limits.rs"]
mod limits;
#[path = "http3/path.rs"]
mod path;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
/// What the client names, whatever it is told.
const NAME: &str = "localhost";

/// Two workers with two loops each: what a moved client or a reload has to find is mostly elsewhere.
const LOOPS: &str = "worker_processes 2; worker_threads 2;";

/// A server of QUIC and of TCP with `inside` in its block; `http` stands before it.
fn start(http: &str, inside: &str) -> Server {
    Server::start_in(certified(), WEIR, &conf(http, inside))
}

fn conf(http: &str, inside: &str) -> String {
    format!(
        "user root; {LOOPS} events {{ }}
         http {{
            ssl_certificate chain.pem; ssl_certificate_key leaf.key;
            log_format seen '$remote_port $http3 $status $request_uri $ssl_session_reused$ssl_early_data';
            access_log seen.log seen;
            {http}
            server {{ listen 127.0.0.1:%%PORT%% quic reuseport; listen 127.0.0.1:%%PORT%% ssl; server_name {NAME}; {inside} }}
         }}"
    )
}

/// What a client gets with these options for these paths of a server, file by file; none where ngtcp2 is missing.
fn ask(server: &Server, port: u16, options: &[&str], paths: &[&str]) -> Option<Dir> {
    let got = Dir::new();
    let mut process = begin(port, options, paths, &got)?;
    let _ = process.wait();
    assert!(server.logged("panicked") == 0);
    Some(got)
}

/// As [`ask`], while it runs.
fn begin(port: u16, options: &[&str], paths: &[&str], got: &Dir) -> Option<Process> {
    let known = Command::new("gtlsclient").arg("--help").stdout(Stdio::null()).status();
    if known.is_err() {
        eprintln!("not tried: gtlsclient (Debian's package ngtcp2-client) is missing");
        return None;
    }
    let mut command = Command::new("timeout");
    command.args(["60", "gtlsclient", "-q", "--exit-on-all-streams-close"]);
    command.arg("--download").arg(got.path()).args(options).args(["127.0.0.1", &port.to_string()]);
    command.args(paths.iter().map(|path| format!("https://{NAME}:{port}{path}")));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Some(Process::start(&mut command))
}

/// A file that is not the same anywhere.
fn long(len: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn bytes(dir: &Dir, name: &str) -> Vec<u8> {
    fs::read(dir.file(name)).unwrap_or_default()
}

#[test]
fn another_client_is_served() {
    let server =
        start("", "location / { return 200 \"$http3 $server_protocol $ssl_server_name $host\"; }");
    let Some(got) = ask(&server, server.port(), &[], &["/one", "/two"]) else { return };
    for name in ["one", "two"] {
        assert_eq!(got.read(name), format!("h3 HTTP/3.0 {NAME} {NAME}"));
    }
}

#[test]
fn the_page_is_served() {
    let page = include_str!("../docs/http3.md");
    let example = examples(page).next().unwrap();
    let server = Server::start_in(certified(), WEIR, &example.replace("8443", "%%PORT%%"));
    let url = format!("https://127.0.0.1:{}/", server.port());
    let said = run("curl", ["-ski", &url]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let offer = format!("h3=\":{}\"; ma=86400", server.port());
    assert!(said.to_ascii_lowercase().contains(&format!("alt-svc: {offer}")), "{said}");
    let Some(got) = ask(&server, server.port(), &[], &["/page"]) else { return };
    assert_eq!(got.read("page"), "h3 HTTP/3.0\n");
}

#[test]
fn files_and_bodies_arrive_whole() {
    let http = "server { listen 127.0.0.1:%%PORT1%%; client_max_body_size 10m; location / { \
                content_by_lua_block { ngx.req.read_body() local f = ngx.req.get_body_file() \
                local b = f and io.open(f):read('*a') or ngx.req.get_body_data() or '' ngx.say(#b, ' ', ngx.crc32_long(b)) } } }";
    let inside = "client_max_body_size 10m; root .; location /sum { proxy_pass http://127.0.0.1:%%PORT1%%; }";
    let server = start(http, inside);
    let (large, small) = (long(5_000_000), long(1000));
    server.dir().write("large", &large);
    server.dir().write("small", &small);
    let Some(got) = ask(&server, server.port(), &[], &["/large", "/small"]) else { return };
    assert!(bytes(&got, "large") == large && bytes(&got, "small") == small);
    let body = server.dir().file("large");
    let options = ["-m", "POST", "-d", body.to_str().unwrap()];
    let got = ask(&server, server.port(), &options, &["/sum"]).unwrap();
    assert!(got.read("sum").starts_with("5000000 "), "{}", got.read("sum"));
}

#[test]
fn requests_over_a_kept_connection_outlive_changes_of_the_site() {
    let inside = |n: usize| {
        format!(
            "root .; limit_rate 1m; location = /site {{ return 200 {n}; }}
             location = /metrics {{ weir_status; }} location /api {{ weir_api config; allow 127.0.0.1; deny all; }}"
        )
    };
    let text = |n| conf("server { listen 127.0.0.1:%%PORT1%%; }", &inside(n));
    let plain = |n| {
        text(n).replace("%%PORT1%%; }", "%%PORT1%%; %%INSIDE%% }").replace("%%INSIDE%%", &inside(n))
    };
    let server = Server::start_in(certified(), WEIR, &plain(0));
    let large = long(2_000_000);
    server.dir().write("large", &large);
    let got = Dir::new();
    let Some(mut process) = begin(server.port(), &[], &["/large"], &got) else { return };
    let page = || weir_testkit::Client::connect(server.port_at(1)).get("/metrics").body();
    assert!(ask_until(|| !page().contains("\nweir_quic_connections_total 0\n")), "{}", page());
    for n in 1..20 {
        let mut text = plain(n);
        for (name, at) in [("%%PORT%%", 0), ("%%PORT1%%", 1)] {
            text = text.replace(name, &server.port_at(at).to_string());
        }
        let headers = format!("Content-Type: text/plain\r\nContent-Length: {}\r\n", text.len());
        let taken = weir_testkit::Client::connect(server.port_at(1)).ask(
            "PUT /api/config",
            &headers,
            &text,
        );
        assert!(taken.body().contains("running workers"), "{}", taken.body());
    }
    let _ = process.wait();
    assert!(bytes(&got, "large") == large);
    let got = ask(&server, server.port(), &[], &["/site"]).unwrap();
    assert_eq!(got.read("site"), "19");
    assert!(ask_until(|| page().contains("\nweir_sites 2\n")), "{}", page());
    assert_eq!(server.logged("panicked"), 0);
}

#[test]
fn clients_with_other_wishes_are_served() {
    let server = start("", "root .;");
    let large = long(1_000_000);
    server.dir().write("large", &large);
    let chacha = "--ciphers=NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+CHACHA20-POLY1305";
    // The client's keys change before its request is sent: after 10 to 1,000 packets quinn-proto changes keys, too, and this
    // client gives up when both do at once.
    for options in [
        &["--key-update=1ms", "--delay-stream=20ms"][..],
        &[chacha],
        &["--groups=-GROUP-ALL:+GROUP-SECP384R1"],
        &["--scid="],
        &["--max-stream-data-bidi-local=4K", "--max-stream-window=4K"],
        &["--version=0x1a2a3a4a", "--preferred-versions=v1"],
        &["-n", "50"],
        &["--no-pmtud", "--max-udp-payload-size=1200"],
    ] {
        let Some(got) = ask(&server, server.port(), options, &["/large"]) else { return };
        assert!(bytes(&got, "large") == large, "{options:?}: {}", server.dir().read("seen.log"));
    }
}

#[test]
fn a_connection_keeps_its_limits() {
    let limits = "http3_max_concurrent_streams 4; http3_stream_buffer_size 4k; quic_gso on;";
    let http = "server { listen 127.0.0.1:%%PORT1%%; client_max_body_size 1m; location / { \
                content_by_lua_block { ngx.req.read_body() ngx.sleep(0.02) ngx.say(ngx.var.http_content_length) } } }";
    let location = "location /sum { proxy_pass http://127.0.0.1:%%PORT1%%; proxy_request_buffering off; \
                    limit_conn of_client 4; proxy_http_version 1.1; }";
    let http = format!("limit_conn_zone $remote_addr zone=of_client:1m; {http}");
    let server = start(&http, &format!("root .; {limits} {location}"));
    let large = long(200_000);
    server.dir().write("large", &large);
    let Some(got) = ask(&server, server.port(), &["-n", "30"], &["/large"]) else { return };
    assert!(bytes(&got, "large") == large);
    let body = server.dir().file("large");
    let options = ["-n", "20", "-m", "POST", "-d", body.to_str().unwrap()];
    let got = ask(&server, server.port(), &options, &["/sum"]).unwrap();
    assert_eq!(got.read("sum").trim(), "200000");
    let seen = || server.dir().read("seen.log");
    assert!(ask_until(|| seen().matches(" h3 200 /sum").count() == 20), "{}", seen());
}

#[test]
fn a_name_without_http_3_is_served_over_tcp_only() {
    let other = "server { listen 127.0.0.1:%%PORT%% quic; server_name other.test; return 200; }";
    let server = start(other, "http3 off; return 200 x;");
    let Some(got) = ask(&server, server.port(), &[], &["/said"]) else { return };
    assert!(!got.file("said").exists() && server.dir().read("seen.log").is_empty());
}

#[test]
fn lost_datagrams_are_sent_again() {
    let server = start("", "root .;");
    let large = long(300_000);
    server.dir().write("large", &large);
    for options in
        [["-t", "0.2", "-r", "0.0"], ["-t", "0.0", "-r", "0.2"], ["-t", "0.2", "-r", "0.2"]]
    {
        let Some(got) = ask(&server, server.port(), &options, &["/large"]) else { return };
        assert!(bytes(&got, "large") == large, "{options:?}");
    }
}

#[test]
fn sessions_are_resumed_and_early_data_is_told_of() {
    let server = start(
        "ssl_early_data on; ssl_session_cache shared:sessions:1m;",
        "return 200 \"$ssl_session_reused $ssl_early_data\";",
    );
    let kept = Dir::new();
    let (session, parameters) = (kept.file("session"), kept.file("parameters"));
    let session = format!("--session-file={}", session.display());
    let parameters = format!("--tp-file={}", parameters.display());
    let both = [session.as_str(), parameters.as_str()];
    let late = [session.as_str(), "--disable-early-data"];
    for (options, said) in [(both, ". "), (both, "r 1"), (late, "r ")] {
        let Some(got) = ask(&server, server.port(), &options, &["/said"]) else { return };
        assert_eq!(got.read("said"), said, "{options:?}");
    }
}

#[test]
fn a_client_shows_its_address_first() {
    let server = start("quic_retry on;", "return 200 shown;");
    for _ in 0..4 {
        let Some(got) = ask(&server, server.port(), &[], &["/said"]) else { return };
        assert_eq!(got.read("said"), "shown");
    }
}

/// Its new address leads to another loop mostly; the log has the address that it has shown.
#[test]
fn a_client_that_moves_keeps_its_request() {
    let server = start("", "root .; limit_rate 1m;");
    let large = long(1_200_000);
    server.dir().write("large", &large);
    for _ in 0..4 {
        let options = ["--change-local-addr=100ms"];
        let Some(got) = ask(&server, server.port(), &options, &["/large"]) else { return };
        assert!(bytes(&got, "large") == large);
    }
    let seen = || server.dir().read("seen.log");
    assert!(ask_until(|| seen().matches(" h3 200 /large").count() == 4), "{}", seen());
}

/// Six transfers of `/large` that have begun, each with the directory that it fills.
fn transfers(server: &Server) -> Option<Vec<(Process, Dir)>> {
    let start = |dir: Dir| Some((begin(server.port(), &[], &["/large"], &dir)?, dir));
    let all = (0..6).map(|_| start(Dir::new())).collect::<Option<Vec<_>>>()?;
    let has_begun = |(_, dir): &(Process, Dir)| !bytes(dir, "large").is_empty();
    assert!(ask_until(|| all.iter().all(has_begun)), "{}", server.log());
    Some(all)
}

/// Requests that run at a reload are answered by the old workers, whose datagrams come to the new ones by then.
#[test]
fn a_reload_loses_no_request() {
    let conf = |said: &str| {
        conf("", &format!("root .; limit_rate 400k; location /said {{ return 200 {said}; }}"))
    };
    let server = Server::start_in(certified(), WEIR, &conf("old"));
    let large = long(1_000_000);
    server.dir().write("large", &large);
    let old = server.workers();
    let Some(mut transfers) = transfers(&server) else { return };
    server.configure(&conf("new"));
    server.reload();
    let got = ask(&server, server.port(), &[], &["/said"]).unwrap();
    assert_eq!(got.read("said"), "new");
    for (client, dir) in &mut transfers {
        let _ = client.wait();
        assert!(bytes(dir, "large") == large, "{}", server.dir().read("seen.log"));
    }
    old.into_iter().for_each(|worker| server.wait_gone(worker));
}

/// The master keeps the ways to loops of older configurations as long as these live. A server with many loops would run out
/// of descriptors otherwise.
#[test]
fn reloads_leave_no_descriptors_behind() {
    let server = start("", "return 200 hello;");
    let open = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    let reload = || {
        let old = server.workers();
        server.reload();
        old.into_iter().for_each(|worker| server.wait_gone(worker));
    };
    // One that was needed for the start may still be open.
    let before = open();
    for n in 1..=4 {
        reload();
        assert!(ask_until(|| open() <= before), "{} of {before} after {n} reloads", open());
    }
}

/// Ends a process that is no child of the test's.
struct Ends(i32);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.0).unwrap(), Signal::TERM);
    }
}

/// A successor passes datagrams of the old program's connections on to it, until the last request is answered.
#[test]
fn a_binary_upgrade_loses_no_request() {
    let server = start("", "root .; limit_rate 400k; location /said { return 200 $pid; }");
    let large = long(1_000_000);
    server.dir().write("large", &large);
    let Some(mut transfers) = transfers(&server) else { return };
    let old = server.workers();
    server.signal(Signal::USR2);
    assert!(ask_until(|| server.logged("start worker process ") == 4), "{}", server.log());
    let successor = server.workers().into_iter().find(|pid| !old.contains(pid)).unwrap();
    let _ends = Ends(successor);
    // Both programs serve: a connection goes on wherever its datagrams arrive.
    for name in ["one", "two", "three", "four"] {
        let path = format!("/said?{name}");
        let got = ask(&server, server.port(), &[], &[&path]).unwrap();
        assert!(!got.read(&path[1..]).is_empty(), "{}", server.log());
    }
    server.signal(Signal::QUIT);
    for (client, dir) in &mut transfers {
        let _ = client.wait();
        assert!(bytes(dir, "large") == large, "{}", server.log());
    }
    old.into_iter().for_each(|worker| server.wait_gone(worker));
}

/// A client that has a connection and asks after the reload has not lost its request.
#[test]
fn a_request_on_its_way_at_a_reload_is_answered() {
    let http = "server { listen 127.0.0.1:%%PORT1%%; location / { weir_status; } }";
    let server = start(http, "return 200 answered;");
    let got = Dir::new();
    let Some(mut client) = begin(server.port(), &["--delay-stream=600ms"], &["/said"], &got) else {
        return;
    };
    let status = format!("http://127.0.0.1:{}/", server.port_at(1));
    assert!(ask_until(|| {
        let said = run("curl", ["-s", &status]).stdout;
        String::from_utf8_lossy(&said).contains("weir_tls_handshakes_total 1")
    }));
    let old = server.workers();
    server.reload();
    let _ = client.wait();
    assert_eq!(got.read("said"), "answered");
    old.into_iter().for_each(|worker| server.wait_gone(worker));
}

/// What a client gets over TCP with these options of curl.
fn over_tcp(server: &Server, path: &str) -> String {
    let url = format!("https://127.0.0.1:{}{path}", server.port());
    String::from_utf8_lossy(&run("curl", ["-ski", &url]).stdout).to_ascii_lowercase()
}

#[test]
fn answers_over_tcp_offer_http_3_where_that_is_wanted() {
    let http = "server { listen 127.0.0.1:%%PORT1%%; http3_alt_svc on; location / { return 200; } }
                server { listen 127.0.0.1:%%PORT2%% ssl; http3_alt_svc on; location / { return 200; } }";
    let inside = "http3_alt_svc on; location / { return 404; }
                  location /own { add_header Alt-Svc clear; return 200 own; }";
    let server = start(http, inside);
    let offer = format!("alt-svc: h3=\":{}\"; ma=86400\r\n", server.port());
    assert!(over_tcp(&server, "/").contains(&offer), "{}", over_tcp(&server, "/"));
    let own = over_tcp(&server, "/own");
    assert!(own.contains("alt-svc: clear\r\n") && !own.contains("h3="), "{own}");
    // Without TLS, and where the server does not listen with `quic`, there is nothing to offer.
    for url in [
        format!("http://127.0.0.1:{}/", server.port_at(1)),
        format!("https://127.0.0.1:{}/", server.port_at(2)),
    ] {
        let said = String::from_utf8_lossy(&run("curl", ["-ski", &url]).stdout).into_owned();
        assert!(said.contains("200") && !said.to_ascii_lowercase().contains("alt-svc"), "{said}");
    }
}

#[test]
fn either_congestion_control_carries_a_file_whole() {
    let large = long(8_000_000);
    for name in ["cubic", "bbr"] {
        let server = start("", &format!("quic_congestion {name}; root .;"));
        server.dir().write("large", &large);
        let Some(got) = ask(&server, server.port(), &[], &["/large"]) else { return };
        assert!(bytes(&got, "large") == large, "{name}");
    }
}

#[test]
fn metrics_and_variables_know_quic() {
    let http = "server { listen 127.0.0.1:%%PORT1%%; location / { weir_status; } }";
    let inside = "location / { return 200 \"$tcpinfo_rtt $tcpinfo_snd_cwnd\"; }";
    let server = start(http, &format!("quic_retry on; {inside}"));
    let Some(got) = ask(&server, server.port(), &[], &["/path"]) else { return };
    let said = got.read("path");
    let numbers: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
    // A round trip within one turn of the loop takes no time by its clock.
    assert!(numbers.len() == 2 && numbers[1] > 0, "{said}");
    let url = format!("http://127.0.0.1:{}/", server.port_at(1));
    let shown = || String::from_utf8_lossy(&run("curl", ["-s", &url]).stdout).into_owned();
    let value = |name: &str| {
        let page = shown();
        let line = page.lines().find(|line| line.starts_with(&format!("weir_quic_{name} ")));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(-1.0)
    };
    let counted = |name: &str| value(&format!("{name}_total"));
    assert!(ask_until(|| counted("sent_packets") > 3.0), "{}", shown());
    assert_eq!((counted("connections"), counted("retries")), (1.0, 1.0));
    assert_eq!((counted("ignored_connections"), counted("moved_clients")), (0.0, 0.0));
    assert_eq!(value("handshake_seconds_count"), 1.0);
    assert!(value("round_trip_seconds_count") >= 1.0 && value("round_trip_seconds_sum") > 0.0);
    assert!(ask_until(|| value("open_connections") == 0.0), "{}", shown());
    // A first packet and nothing more: the handshake is never completed.
    if let Some(first) = hostile::first_datagram(&Dir::new()) {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&first, ("127.0.0.1", server.port())).unwrap();
        assert!(ask_until(|| counted("retries") == 2.0), "{}", shown());
    }
}

#[test]
fn what_quic_lacks_is_warned_of() {
    let dir = certified();
    let at = dir.path().display().to_string();
    for (main, line, said) in [
        ("quic_bpf on;", "", "\"quic_bpf\" directive is known but not built into weir yet"),
        ("", "ssl_protocols TLSv1.2;", "must enable TLSv1.3"),
        ("", "quic_host_key missing;", "cannot read \"missing\""),
        ("", "quic_congestion reno;", "invalid value \"reno\""),
        (
            "",
            "} server { listen 8443 quic; server_name old; ssl_protocols TLSv1.2;",
            "must enable TLSv1.3",
        ),
        ("", "listen 8444 quic ssl;", "parameter is incompatible with \"quic\""),
    ] {
        let certificate = "ssl_certificate chain.pem; ssl_certificate_key leaf.key;";
        let conf = format!(
            "{main} events {{ }} http {{ {certificate} server {{ listen 8443 quic; {line} }} }}"
        );
        dir.write("nginx.conf", conf);
        let tested = run(WEIR, ["-t", "-e", "stderr", "-p", &at, "-c", "nginx.conf"]);
        let text = String::from_utf8_lossy(&tested.stderr).into_owned();
        assert!(text.contains(said), "{line}: {text}");
        assert_eq!(tested.status.success(), text.contains("[warn]"), "{text}");
    }
}

/// Some clients send no body before that.
#[test]
fn a_client_that_waits_to_be_asked_for_its_body_is_asked_over_quic() {
    let http = "log_format sent '$body_bytes_sent|';
        server { listen 127.0.0.1:%%PORT1%%; return 200 $content_length; }";
    let location = "access_log %%DIR%%/sent sent; proxy_pass http://127.0.0.1:%%PORT1%%;";
    let server = start(http, &format!("location / {{ {location} }}"));
    hq::run_client(async {
        let endpoint = hq::client(&server, "h3");
        let (connection, _settings) = broken::connect(&endpoint, &server).await;
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        let head = broken::headers(&[
            (":method", "POST"),
            (":scheme", "https"),
            (":path", "/"),
            (":authority", broken::HOST),
            ("expect", "100-continue"),
            ("content-length", "3"),
        ]);
        send.write_all(&head).await.unwrap();
        let mut interim = [0; 64];
        let read = receive.read(&mut interim).await.unwrap().unwrap();
        // RFC 9204, appendix A: `:status: 100` is the entry 63 of the static table.
        assert!(interim[..read].ends_with(&[0xff, 0]), "{:?}", &interim[..read]);
        send.write_all(&broken::frame(0, b"yes")).await.unwrap();
        send.finish().unwrap();
        assert!(receive.read_to_end(1 << 16).await.unwrap().ends_with(b"3"));
    });
    server.wait_file("sent", "1|", 1);
}
