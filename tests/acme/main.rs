//! Certificates by ACME, from an authority of the test's own: `authority.rs`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{AlertDescription, ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use weir_acme::{CertificateOrder, KeyKind};
use weir_testkit::{
    Client, Dir, PATIENCE, Process, Server, ask_until, children, examples, free_port, listen, run,
};

use crate::authority::{Ask, Authority, Reaction};

#[path = "../tls/anybody.rs"]
mod anybody;
mod authority;
mod changes;
mod dns;
mod faults;
mod names;
mod pebble;
mod quic;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const PAGE: &str = include_str!("../../docs/acme.md");

/// A site for these names: `lines` stand in the `acme_issuer` block, `http` before it, `more` in its server.
fn conf(lines: &str, names: &str, more: &str) -> String {
    format!(
        "events {{ }}
         http {{
            acme_issuer test {{ {lines} }} acme_shared_zone zone=acme:1M;
            server {{
                listen 127.0.0.1:%%PORT%%;
                location / {{ return 404; }}
                location = /json {{ weir_status json; }}
                location = /metrics {{ weir_status; }}
            }}
            server {{
                listen 127.0.0.1:%%PORT1%% ssl; server_name {names}; {more}
                location / {{ return 200 $ssl_server_name; }}
            }}
         }}"
    )
}

/// The lines of a server that uses its certificate in all words.
const USUAL: &str = "acme_certificate test;
    ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;";

/// Starts it; the authority asks its first port.
fn start(authority: &Authority, dir: Dir, conf: &str) -> Server {
    let server = Server::start_in(dir, WEIR, conf);
    authority.asks_at(server.port());
    server
}

/// Holds requests for this until the sender says so.
fn held(authority: &Authority, ask: Ask) -> mpsc::Sender<()> {
    let (go, wait) = mpsc::channel();
    authority.reacts(move |asked| {
        if asked == ask {
            let _ = wait.recv_timeout(PATIENCE);
        }
        Reaction::Serve
    });
    go
}

fn config(root: &str) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Asks over TLS as a client that believes the authority: what the server says, and its certificate.
fn ask(authority: &Authority, port: u16, name: &str) -> Result<(String, Vec<u8>), std::io::Error> {
    let (text, mut chain) = secure(authority.root(), port, (name, "GET /"))?;
    Ok((text, chain.swap_remove(0)))
}

/// The same as a client that believes this root, with a request of its own: what the server says, and its chain.
fn secure(
    root: &str,
    port: u16,
    (name, line): (&str, &str),
) -> Result<(String, Vec<Vec<u8>>), std::io::Error> {
    let socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connection = ClientConnection::new(config(root), name.clone()).unwrap();
    let mut stream = StreamOwned::new(connection, socket);
    let name = name.to_str();
    write!(stream, "{line} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let shown = stream.conn.peer_certificates().unwrap();
    Ok((text, shown.iter().map(|der| der.to_vec()).collect()))
}

/// Waits for the certificate, which comes without a failure.
fn wait_secure(authority: &Authority, server: &Server, name: &str) -> Vec<u8> {
    server.wait_log("got a certificate", 1);
    let mut shown = Vec::new();
    let came = ask_until(|| match ask(authority, server.port_at(1), name) {
        Ok((text, certificate)) => {
            assert!(text.starts_with("HTTP/1.1 200"), "{text}");
            shown = certificate;
            true
        }
        Err(_) => false,
    });
    assert!(came, "no certificate:\n{}", server.log());
    let failures =
        server.log().lines().any(|line| line.contains("[error]") && line.contains("acme"));
    assert!(!failures, "{}", server.log());
    shown
}

/// The alert by which a handshake ends.
fn alert(authority: &Authority, port: u16, name: &str) -> AlertDescription {
    let error = ask(authority, port, name).unwrap_err();
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => *alert,
        _ => panic!("{error:?}"),
    }
}

#[test]
fn from_nothing_to_https_as_the_page_says() {
    let authority = Authority::new();
    let go = held(&authority, Ask::Directory);
    let dir = Dir::new();
    let example = examples(PAGE).next().unwrap();
    let shown = "uri https://acme-v02.api.letsencrypt.org/directory; accept_terms_of_service;";
    assert!(example.contains(shown), "{example}");
    let example = example
        .replace(shown, &authority.lines(&dir))
        .replace("listen 80;", "listen 127.0.0.1:%%PORT%%;")
        .replace("listen 443 ssl;", "listen 127.0.0.1:%%PORT1%% ssl;");
    let server = start(&authority, dir, &example);
    assert_eq!(
        alert(&authority, server.port_at(1), "example.org"),
        AlertDescription::InternalError
    );
    go.send(()).unwrap();
    wait_secure(&authority, &server, "example.org");
    let (text, _) = ask(&authority, server.port_at(1), "www.example.org").unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert_eq!(server.logged("until it comes, TLS handshakes with these names fail"), 1);
    assert_eq!(server.logged("got a certificate for \"example.org, www.example.org\""), 1);
    assert_eq!(authority.asked(Ask::NewOrder), 1);
    // Only its owner reads what is kept.
    let state = server.dir().file("acme_letsencrypt");
    let mode = |path: &Path| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).unwrap().mode() & 0o777
    };
    assert_eq!(mode(&state), 0o700);
    for entry in std::fs::read_dir(state.join("certificates")).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
}

#[test]
fn a_restart_asks_for_nothing_that_is_there() {
    let authority = Authority::new();
    let dir = Dir::new();
    let conf = conf(&authority.lines(&dir), "example.org", USUAL);
    let mut server = start(&authority, dir, &conf);
    let first = wait_secure(&authority, &server, "example.org");
    let orders = authority.asked(Ask::NewOrder);
    server.stop();
    let dir = Dir::of_before(server.dir().path());
    let server = start(&authority, dir, &conf);
    // Its first handshake succeeds.
    let (_, again) = ask(&authority, server.port_at(1), "example.org").unwrap();
    assert_eq!(first, again);
    assert_eq!(authority.asked(Ask::NewOrder), orders);
}

#[test]
fn bad_nonces_lost_connections_and_a_slow_authority_are_got_over() {
    for key in ["ecdsa:384", "rsa:2048"] {
        let authority = Authority::new();
        authority.is_slow();
        let dir = Dir::new();
        let more = format!("acme_certificate test example.org 127.0.0.1 key={key};");
        let conf = conf(&authority.lines(&dir), "example.org", &more);
        let mut asked = 0;
        authority.reacts(move |ask| {
            asked += 1;
            match (ask, asked % 5) {
                (Ask::Directory | Ask::Nonce, _) => Reaction::Serve,
                (_, 1 | 2) => Reaction::BadNonce,
                (_, 3) => Reaction::Close,
                _ => Reaction::Serve,
            }
        });
        let server = start(&authority, dir, &conf);
        wait_secure(&authority, &server, "example.org");
        wait_secure(&authority, &server, "127.0.0.1");
    }
}

#[test]
fn names_are_proved_over_tls_where_no_port_80_is_open() {
    let authority = Authority::new();
    let dir = Dir::new();
    let lines = format!("challenge tls-alpn-01; {}", authority.lines(&dir));
    let conf = conf(&lines, "example.org www.example.org", USUAL);
    let server = Server::start_in(dir, WEIR, &conf);
    authority.asks_at(server.port_at(1));
    wait_secure(&authority, &server, "example.org");
    wait_secure(&authority, &server, "www.example.org");
    // The proof is gone, and nothing is answered over HTTP.
    let left = std::fs::read_dir(server.dir().file("acme_test").join("challenges")).unwrap();
    assert_eq!(left.count(), 0);
    assert_eq!(server.get("/.well-known/acme-challenge/token-0-0").status, 404);
}

/// Every request of a first certificate, in its order.
const ALL: [Ask; 9] = [
    Ask::Directory,
    Ask::Nonce,
    Ask::NewAccount,
    Ask::NewOrder,
    Ask::Authorization,
    Ask::Challenge,
    Ask::Order,
    Ask::Finalize,
    Ask::Certificate,
];

#[test]
fn a_certificate_comes_in_the_end_wherever_workers_are_killed() {
    for reaction in [Reaction::Close, Reaction::Forget] {
        for step in ALL {
            let authority = Authority::new();
            let dir = Dir::new();
            let pid_file = dir.file("nginx.pid");
            let conf = conf(&authority.lines(&dir), "example.org", USUAL);
            let mut kills = 1;
            let killed = Arc::new(Mutex::new(Vec::new()));
            let told = killed.clone();
            let react = move |ask| {
                if ask != step || kills == 0 {
                    return Reaction::Serve;
                }
                kills -= 1;
                let master: i32 =
                    std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
                let workers = children(master);
                for worker in &workers {
                    let _ = kill_process(Pid::from_raw(*worker).unwrap(), Signal::KILL);
                }
                told.lock().unwrap().extend(workers);
                reaction
            };
            authority.reacts(react);
            let server = start(&authority, dir, &format!("worker_processes 2; {conf}"));
            wait_secure(&authority, &server, "example.org");
            let orders = authority.asked(Ask::NewOrder);
            assert!(orders <= 2, "{step:?}: {orders} orders");
            let killed = killed.lock().unwrap();
            assert!(!killed.is_empty(), "{step:?} {reaction:?}: no worker was killed");
        }
    }
}

/// A file of a certificate for this name, as an earlier process has left it.
fn leave(dir: &Dir, name: &str, (chain, key): (String, String)) {
    let id = CertificateOrder::new(vec![name.to_owned()], KeyKind::P256).id;
    let certificates = dir.file("acme_test").join("certificates");
    std::fs::create_dir_all(&certificates).unwrap();
    std::fs::write(certificates.join(format!("{id}.1.pem")), format!("{chain}{key}")).unwrap();
}

#[test]
fn a_renewed_certificate_is_used_without_a_reload() {
    let authority = Authority::new();
    let go = held(&authority, Ask::NewOrder);
    let dir = Dir::new();
    leave(&dir, "example.org", authority.issue("example.org", -80, 10));
    let conf = conf(&authority.lines(&dir), "example.org", USUAL);
    let server = start(&authority, dir, &format!("user root; worker_processes 3; {conf}"));
    let (_, old) = ask(&authority, server.port_at(1), "example.org").unwrap();
    // A connection that is open stays as it is.
    let socket = TcpStream::connect(("127.0.0.1", server.port_at(1))).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = ServerName::try_from("example.org").unwrap();
    let connection = ClientConnection::new(config(authority.root()), name).unwrap();
    let mut kept = StreamOwned::new(connection, socket);
    let mut again = || {
        kept.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n").unwrap();
        let (mut text, mut buffer) = (String::new(), [0; 1024]);
        while !text.ends_with("example.org") {
            let n = kept.read(&mut buffer).unwrap();
            assert!(n > 0, "the kept connection is closed: {text}");
            text.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
        }
        text.starts_with("HTTP/1.1 200")
    };
    assert!(again());
    go.send(()).unwrap();
    server.wait_log("got a certificate", 1);
    // Every worker takes it: each of these connections may be another one's.
    let mut row = 0;
    let all_new = ask_until(|| {
        let (_, shown) = ask(&authority, server.port_at(1), "example.org").unwrap();
        row = if shown == old { 0 } else { row + 1 };
        row >= 12
    });
    assert!(all_new, "{}", server.log());
    assert!(again());
    assert_eq!(server.logged("start worker process "), 3);
    assert_eq!(authority.asked(Ask::NewOrder), 1, "one worker asks");
}

#[test]
fn a_worker_that_retires_leaves_the_work_to_the_next_one() {
    let authority = Authority::new();
    let dir = Dir::new();
    let lines = authority.lines(&dir);
    // The first worker is held in the middle of its request.
    let go = held(&authority, Ask::NewAccount);
    let server = start(&authority, dir, &conf(&lines, "example.org", USUAL));
    let asks = ask_until(|| authority.asked(Ask::NewAccount) == 1);
    assert!(asks, "{}", server.log());
    let old = server.workers()[0];
    // A request that is not over keeps the old worker.
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\n");
    server.configure(&conf(&lines, "example.net", USUAL));
    authority.reacts(|_| Reaction::Serve);
    server.reload();
    wait_secure(&authority, &server, "example.net");
    assert!(server.workers().contains(&old), "{}", server.log());
    drop(go);
}

#[test]
fn a_refusal_is_told_with_its_reason_and_the_next_attempt_waits() {
    let authority = Authority::new();
    let dir = Dir::new();
    // It asks where nobody answers.
    authority.asks_at(free_port());
    let conf = conf(&authority.lines(&dir), "example.org", USUAL);
    let server = Server::start_in(dir, WEIR, &conf);
    server.wait_log("acme issuer \"test\": no certificate for \"example.org\": \"example.org\": found None (unauthorized); next attempt in ", 1);
    assert_eq!(authority.asked(Ask::NewOrder), 1);
    // Answers are there only while they are asked for.
    let left = std::fs::read_dir(server.dir().file("acme_test").join("challenges")).unwrap();
    assert_eq!(left.count(), 0);
}

#[test]
fn an_authority_is_left_alone_as_long_as_it_asks() {
    let authority = Authority::new();
    let dir = Dir::new();
    authority.reacts(|ask| match ask {
        Ask::NewOrder => Reaction::Fail(429, Some(7200)),
        _ => Reaction::Serve,
    });
    let conf = conf(&authority.lines(&dir), "example.org", USUAL);
    let server = start(&authority, dir, &conf);
    server.wait_log("the order: as the test wants it (rateLimited); next attempt in 7200 s", 1);
    assert_eq!(authority.asked(Ask::NewOrder), 1);
    // What it asked for is on disk, for the worker after a crash or a reload.
    let attempts = server.dir().file("acme_test").join("attempts");
    let file = std::fs::read_dir(attempts).unwrap().next().unwrap().unwrap().path();
    let mut record = serde_json::Value::Null;
    let written = ask_until(|| {
        record = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        (&record["wait"], &record["asked"]) == (&7200.into(), &true.into())
    });
    assert!(written, "{record}");
}

#[test]
fn only_the_answers_to_challenges_come_before_the_configuration() {
    let authority = Authority::new();
    let go = held(&authority, Ask::Order);
    let dir = Dir::new();
    let conf = conf(&authority.lines(&dir), "example.org", USUAL);
    let server = start(&authority, dir, &conf);
    let answered = ask_until(|| authority.asked(Ask::Order) > 0);
    assert!(answered, "{}", server.log());
    let get = |path: &str| server.get(&format!("/.well-known/acme-challenge/{path}"));
    let answer = get("token-0-0");
    assert_eq!(answer.status, 200);
    assert!(answer.body().starts_with("token-0-0."), "{}", answer.body());
    assert_eq!(answer.header("Content-Type"), Some("text/plain"));
    for path in ["token-0-1", "", ".", "%2e%2e/account", "token-0-0/", "token-0-0%00"] {
        assert_ne!(get(path).status, 200, "{path}");
    }
    let posted = server.ask("POST /.well-known/acme-challenge/token-0-0", "", "");
    assert_eq!(posted.status, 404);
    go.send(()).unwrap();
    wait_secure(&authority, &server, "example.org");
    // Nothing is answered any more.
    assert_eq!(get("token-0-0").status, 404);
}

#[test]
fn mistakes_in_the_configuration_are_told() {
    let dir = Dir::new();
    let test = |issuer: &str, server: &str| {
        let text = format!(
            "events {{ }} http {{ acme_issuer test {{ {issuer} }} server {{ listen 127.0.0.1:1 ssl; {server} }} }}"
        );
        let path = dir.write("nginx.conf", text);
        let prefix = dir.path().to_str().unwrap();
        let output = run(WEIR, ["-t", "-p", prefix, "-c", path.to_str().unwrap(), "-e", "stderr"]);
        String::from_utf8(output.stderr).unwrap()
    };
    let uri = "uri http://127.0.0.1/dir;";
    let ours = "server_name example.org; acme_certificate test;";
    for (issuer, server, wanted) in [
        ("", ours, "acme_issuer: \"uri\" is missing"),
        ("uri ftp://a;", ours, "invalid \"uri\" \"ftp://a\": it begins with https://"),
        ("uri https:///a;", ours, "in \"uri\""),
        ("uri;", ours, "invalid number of arguments in \"uri\""),
        ("uri http://a; uri http://b;", ours, "\"uri\" directive is duplicate"),
        ("colour red;", ours, "unknown directive \"colour\" in \"acme_issuer\""),
        (
            "uri http://a; } acme_issuer other { uri http://b; state_path acme_test;",
            ours,
            "acme_issuer: \"test\" has the same \"state_path\"",
        ),
        (
            "uri http://a; } acme_shared_zone zone=a:16k; acme_issuer other { uri http://b;",
            ours,
            "zone \"a\" is too small",
        ),
        (
            "uri http://a; } acme_shared_zone zone=a:x; acme_issuer other { uri http://b;",
            ours,
            "invalid zone size \"a:x\"",
        ),
        (
            "uri http://a; } acme_shared_zone a:64k; acme_issuer other { uri http://b;",
            ours,
            "\"acme_shared_zone\" directive must have \"zone\" parameter",
        ),
        ("challenge dns-02;", ours, "unsupported challenge: dns-02"),
        ("uri http://a; challenge dns-01;", ours, "needs \"dns_hook\" or \"dns_update\""),
        ("state_path off;", ours, "\"state_path\" cannot be \"off\""),
        ("account_key none.pem;", ours, "cannot load account key"),
        ("external_account_key kid data:%;", ours, "invalid base64url encoded value"),
        ("profile a b;", ours, "invalid value"),
        (uri, "server_name a.org; acme_certificate other;", "issuer \"other\" is missing"),
        (uri, "acme_certificate test;", "no identifiers found in \"server_name\""),
        (
            uri,
            "server_name *.a.org; acme_certificate test;",
            "a wildcard needs the challenge dns-01",
        ),
        (uri, "acme_certificate test a_b/c;", "invalid identifier \"a_b/c\""),
        (uri, "acme_certificate test a.org key=dsa;", "invalid \"key\" value \"key=dsa\""),
        (
            uri,
            "ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;",
            "\"$acme_certificate\" is empty in a server without \"acme_certificate\"",
        ),
        (uri, ours, "an ACME server without TLS"),
    ] {
        let said = test(issuer, server);
        assert!(said.contains(wanted), "{issuer} {server}: {said}");
    }
}

#[test]
fn a_failing_renewal_is_a_finding_and_a_metric() {
    let authority = Authority::new();
    let dir = Dir::new();
    leave(&dir, "example.org", authority.issue("example.org", -80, 10));
    // It asks where nobody answers.
    authority.asks_at(free_port());
    let conf = conf(&authority.lines(&dir), "example.org", USUAL);
    let server = Server::start_in(dir, WEIR, &conf);
    server.wait_log("[warn]", 1);
    server.wait_log("is not renewed yet", 1);
    let (mut page, mut found) = (serde_json::Value::Null, serde_json::Value::Null);
    let is_found = ask_until(|| {
        page = serde_json::from_str(&server.get("/json").body()).unwrap();
        let findings = page["health"]["findings"].as_array().into_iter().flatten();
        found = findings.into_iter().find(|f| f["rule"] == "acme").cloned().unwrap_or_default();
        !found.is_null()
    });
    assert!(is_found, "{page}");
    assert_eq!((&found["subject"], &found["state"]), (&"test".into(), &"yellow".into()), "{found}");
    let text = found["text"].as_str().unwrap();
    assert!(text.contains("the certificate is not renewed for example.org, next try "), "{text}");
    assert!(text.ends_with(" GMT: \"example.org\": found None (unauthorized)"), "{text}");
    let row = &page["acme"][0];
    assert_eq!((&row["issuer"], &row["names"]), (&"test".into(), &"example.org".into()), "{row}");
    assert_eq!(row["reason"], "\"example.org\": found None (unauthorized)");
    let number = |name: &str| row[name].as_f64().unwrap();
    assert_eq!(row["failures"], 1);
    let (since, next) = (number("failing_since"), number("next_attempt"));
    assert!((60.0..=75.0).contains(&(next - since)), "{row}");
    assert!(number("not_after") > next);
    let metrics = server.get("/metrics").body();
    let line = "weir_acme_failures{issuer=\"test\",name=\"example.org\",id=\"example.org-";
    let line = metrics.lines().find(|found| found.starts_with(line));
    assert!(line.is_some_and(|line| line.ends_with(" 1")), "{metrics}");
}

/// One line on the command line leads from nothing to https.
#[cfg(feature = "tools")]
#[test]
fn proxy_gets_a_certificate_for_a_public_name() {
    let authority = Authority::new();
    let dir = Dir::new();
    let root = dir.write("authority.pem", authority.root());
    let (port, http, panel) = (free_port(), free_port(), free_port());
    let app = listen(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\napp");
    });
    authority.asks_at(http);
    let mut command = Command::new(WEIR);
    let addresses = [port, http, panel, app].map(|port| port.to_string());
    command.args(["proxy", "--tls", "shop.example.org", "--listen", &addresses[0]]);
    command.args(["--http", &addresses[1], "--panel", &addresses[2]]);
    command.args(["--acme-uri", &authority.uri(), "--acme-ca"]).arg(root).arg(&addresses[3]);
    let file = |name| std::fs::File::create(dir.file(name)).unwrap();
    command.env("XDG_STATE_HOME", dir.file("state")).stdout(file("out")).stderr(file("err"));
    let mut process = Process::start(&mut command);
    let mut said = String::new();
    let came = ask_until(|| match ask(&authority, port, "shop.example.org") {
        Ok((text, _)) => {
            said = text;
            true
        }
        Err(_) => false,
    });
    assert!(came, "{}{}", dir.read("out"), dir.read("err"));
    assert!(said.starts_with("HTTP/1.1 200") && said.ends_with("app"), "{said}");
    let greeting = dir.read("out");
    let shown = format!("https://shop.example.org:{port}/ passes all requests");
    assert!(greeting.contains(&shown) && greeting.contains(&authority.uri()), "{greeting}");
    let moved = Client::connect(http).get("/a?b");
    assert_eq!((moved.status, moved.header("Location")), (301, Some("https://localhost/a?b")));
    process.signal(Signal::INT);
    assert!(process.wait().success());
}
