//! TLS to clients and to servers, spoken with rustls as the client; the certificates are those of
//! the crate `tls`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, version};
use weir_testkit::{Client, Dir, PATIENCE, Server};

#[path = "tls/agreed.rs"]
mod agreed;
#[path = "tls/anybody.rs"]
mod anybody;
#[path = "tls/bad_input.rs"]
mod bad_input;
#[path = "tls/clients.rs"]
mod clients;
#[path = "tls/early_data.rs"]
mod early_data;
#[path = "tls/extensions.rs"]
mod extensions;
#[path = "tls/faults.rs"]
mod faults;
#[path = "tls/last_words.rs"]
mod last_words;
#[path = "tls/names.rs"]
mod names;
#[path = "tls/ocsp.rs"]
mod ocsp;
#[path = "tls/peers.rs"]
mod peers;
#[path = "tls/refused.rs"]
mod refused;
#[path = "tls/rush.rs"]
mod rush;
#[path = "tls/verify_names.rs"]
mod verify_names;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const NAME: &str = "www.example.org";

/// A directory with certificates: `leaf` for [`NAME`] with its chain, `self` for any name.
fn dir() -> Dir {
    weir_testkit::certified()
}

/// A server with TLS on `%%PORT%%` and `inside` in its block; `http` stands before it.
fn start(http: &str, inside: &str) -> Server {
    Server::start_in(dir(), WEIR, &conf(http, inside))
}

fn conf(http: &str, inside: &str) -> String {
    format!(
        "events {{ }}
         http {{
            ssl_certificate chain.pem; ssl_certificate_key leaf.key;
            {http}
            server {{ listen 127.0.0.1:%%PORT%% ssl; server_name {NAME}; {inside} }}
         }}"
    )
}

fn certificates(name: &str) -> Vec<CertificateDer<'static>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata").join(name);
    CertificateDer::pem_file_iter(data).unwrap().map(Result::unwrap).collect()
}

fn builder(
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    let mut roots = RootCertStore::empty();
    for root in certificates("root.pem").into_iter().chain(certificates("self.pem")) {
        roots.add(root).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
}

fn config() -> Arc<ClientConfig> {
    Arc::new(builder(rustls::ALL_VERSIONS).with_no_client_auth())
}

/// A client that shows `client.pem`, or another certificate of that key.
fn showing(name: &str, key: &str) -> Arc<ClientConfig> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata").join(key);
    let key = PrivateKeyDer::from_pem_file(data).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let key = provider.key_provider.load_private_key(key).unwrap();
    // rustls would not take a certificate of version 1 by itself.
    let shown = SingleCertAndKey::from(CertifiedKey::new(certificates(name), key));
    Arc::new(builder(rustls::ALL_VERSIONS).with_client_cert_resolver(Arc::new(shown)))
}

/// A connection with TLS.
struct Tls(BufReader<StreamOwned<ClientConnection, TcpStream>>);

impl Tls {
    fn connect(server: &Server, config: &Arc<ClientConfig>, name: &str) -> Tls {
        let socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connection = ClientConnection::new(config.clone(), name).unwrap();
        Tls(BufReader::new(StreamOwned::new(connection, socket)))
    }

    fn send(&mut self, text: &str) -> std::io::Result<()> {
        self.0.get_mut().write_all(text.as_bytes())
    }

    /// Asks, and reads an answer of a known length: its head and body.
    fn get(&mut self, path: &str, host: &str) -> (String, Vec<u8>) {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap();
        self.answer()
    }

    fn answer(&mut self) -> (String, Vec<u8>) {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.0.read_line(&mut head).unwrap() > 0, "closed after {head:?}");
        }
        let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: "));
        let mut body = vec![0; length.map_or(0, |n| n.trim().parse().unwrap())];
        self.0.read_exact(&mut body).unwrap();
        (head, body)
    }

    fn text(&mut self, path: &str) -> String {
        String::from_utf8(self.get(path, NAME).1).unwrap()
    }

    fn is_resumed(&self) -> bool {
        self.0.get_ref().conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }
}

#[test]
fn requests_follow_each_other_on_a_connection() {
    let inside = "root %%DIR%%; location = /said { return 200 $ssl_protocol:$scheme:$https; }";
    let server = start("", inside);
    let big: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    server.dir().write("big", &big);
    for (versions, said) in
        [(&[&version::TLS12][..], "TLSv1.2:https:on"), (&[&version::TLS13][..], "TLSv1.3:https:on")]
    {
        let config = Arc::new(builder(versions).with_no_client_auth());
        let mut tls = Tls::connect(&server, &config, NAME);
        assert_eq!(tls.text("/said"), said);
        assert!(tls.get("/big", NAME).1 == big);
        tls.send(&"GET /said HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100)).unwrap();
        for _ in 0..100 {
            assert_eq!(tls.answer().1, said.as_bytes());
        }
    }
}

#[test]
fn a_body_comes_whole_however_it_is_cut() {
    let server = start(
        "",
        "client_max_body_size 2m; client_body_in_single_buffer on;
        client_body_buffer_size 1m; location / { proxy_pass http://127.0.0.1:%%PORT1%%; }
        } server { listen 127.0.0.1:%%PORT1%%; location / { return 200 $content_length; }",
    );
    let mut tls = Tls::connect(&server, &config(), NAME);
    tls.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 600000\r\n\r\n").unwrap();
    for _ in 0..600 {
        tls.send(&"x".repeat(1000)).unwrap();
    }
    assert_eq!(tls.answer().1, b"600000");
}

#[test]
fn the_name_in_the_handshake_chooses_server_and_certificate() {
    let other = "server { listen 127.0.0.1:%%PORT%% ssl; server_name self;
            ssl_certificate self.pem; ssl_certificate_key self.key; return 200 other; }
        server { listen 127.0.0.1:%%PORT%% ssl; server_name refused.example.org;
            ssl_reject_handshake on; }";
    let server = start(
        "",
        &format!("return 200 $ssl_server_name; }} {other} server {{ listen 127.0.0.1:%%PORT1%%;"),
    );
    let mut tls = Tls::connect(&server, &config(), NAME);
    assert_eq!(tls.text("/"), NAME);
    // Another name over HTTP is another server, as in nginx.
    assert_eq!(tls.get("/", "self").1, b"other");
    let mut refused = Tls::connect(&server, &config(), "refused.example.org");
    let error = refused.send("GET / HTTP/1.1\r\n\r\n").unwrap_err().to_string();
    assert!(error.contains("UnrecognisedName"), "{error}");
    server.wait_log("handshake rejected while SSL handshaking, client: 127.0.0.1", 1);
}

/// nginx takes a file with unchanged time and inode for unchanged.
#[test]
fn a_reload_reads_certificates_and_keys_anew() {
    let server = start("", "return 200 ok;");
    let mut open = builder(rustls::ALL_VERSIONS).with_no_client_auth();
    open.dangerous().set_certificate_verifier(Arc::new(anybody::Anybody::default()));
    let open = Arc::new(open);
    let shown = || {
        let mut tls = Tls::connect(&server, &open, "self");
        assert_eq!(tls.text("/"), "ok");
        tls.0.get_ref().conn.peer_certificates().map(|chain| chain[0].clone())
    };
    assert_ne!(shown(), Some(certificates("self.pem").remove(0)));
    for (file, other) in [("chain.pem", "self.pem"), ("leaf.key", "self.key")] {
        let changed = std::fs::metadata(server.dir().file(file)).unwrap().modified().unwrap();
        let path = server.dir().write(file, server.dir().read(other));
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(changed).unwrap();
    }
    server.reload();
    assert_eq!(shown(), Some(certificates("self.pem").remove(0)));
}

#[test]
fn sessions_are_resumed_by_any_worker_and_after_a_reload() {
    let http = "ssl_session_tickets on;";
    let inside = "return 200 $ssl_session_reused$ssl_session_id;";
    let server =
        Server::start_in(dir(), WEIR, &format!("worker_processes 2; {}", conf(http, inside)));
    let config = config();
    assert!(Tls::connect(&server, &config, NAME).text("/").starts_with('.'));
    for round in 0..6 {
        if round == 3 {
            server.reload();
        }
        let mut tls = Tls::connect(&server, &config, NAME);
        let text = tls.text("/");
        assert!(text.starts_with('r') && text.len() == 65 && tls.is_resumed(), "{round}: {text}");
    }
}

#[test]
fn servers_with_the_same_ticket_keys_resume_each_others_sessions() {
    for (keys, resumed) in [("ssl_session_ticket_key tickets.key;", true), ("", false)] {
        let start = || {
            let dir = dir();
            dir.write("tickets.key", [7; 80]);
            Server::start_in(dir, WEIR, &conf(keys, "return 200 $ssl_session_reused;"))
        };
        let (one, other, config) = (start(), start(), config());
        assert_eq!(Tls::connect(&one, &config, NAME).text("/"), ".");
        assert_eq!(Tls::connect(&other, &config, NAME).text("/") == "r", resumed, "{keys}");
    }
}

#[test]
fn a_cache_resumes_without_tickets_and_a_server_without_both_does_not() {
    for (settings, resumed) in [
        ("ssl_session_tickets off; ssl_session_cache shared:a:1m;", true),
        ("ssl_session_tickets off;", false),
    ] {
        let server = start(settings, "return 200 $ssl_session_reused;");
        for version in [&version::TLS12, &version::TLS13] {
            let config = Arc::new(builder(&[version]).with_no_client_auth());
            assert_eq!(Tls::connect(&server, &config, NAME).text("/"), ".");
            let again = Tls::connect(&server, &config, NAME).text("/");
            assert_eq!(again == "r", resumed, "{settings} {version:?}");
        }
    }
}

#[test]
fn a_shared_cache_is_one_for_all_workers_and_outlives_a_reload() {
    let http = "ssl_session_tickets off; ssl_session_cache shared:a:1m;";
    let inside = "return 200 $ssl_session_reused$ssl_session_id;";
    let conf = format!("worker_processes 3; {}", conf(http, inside));
    let server = Server::start_in(dir(), WEIR, &conf);
    for version in [&version::TLS12, &version::TLS13] {
        let config = Arc::new(builder(&[version]).with_no_client_auth());
        let first = Tls::connect(&server, &config, NAME).text("/");
        assert!(first.starts_with('.') && first.len() == 65, "{first}");
        for round in 0..12 {
            if round == 6 {
                server.reload();
            }
            let text = Tls::connect(&server, &config, NAME).text("/");
            assert!(text.starts_with('r') && text.len() == 65, "{version:?} {round}: {text}");
        }
    }
}

#[test]
fn a_clients_certificate_is_judged_over_http() {
    let inside = "ssl_verify_client on; ssl_client_certificate root.pem;
        return 200 $ssl_client_verify,$ssl_client_s_dn,$ssl_client_i_dn,$ssl_client_serial;";
    let server = start("", inside);
    let good = showing("client.pem", "client.key");
    let said = Tls::connect(&server, &good, NAME).text("/");
    assert_eq!(said, "SUCCESS,CN=client,CN=root,O=Weir,04");
    let (head, page) = Tls::connect(&server, &config(), NAME).get("/", NAME);
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert!(String::from_utf8_lossy(&page).contains("No required SSL certificate was sent"));
    let (head, page) = Tls::connect(&server, &showing("self.pem", "self.key"), NAME).get("/", NAME);
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert!(String::from_utf8_lossy(&page).contains("The SSL certificate error"));
    server.wait_log("certificate verify error: (18:self-signed certificate)", 1);
    // A session remembers the client's certificate.
    let mut again = Tls::connect(&server, &good, NAME);
    assert!(again.text("/").starts_with("SUCCESS"));
    assert!(again.is_resumed());
}

#[test]
fn a_clients_certificate_is_one_line_of_a_header() {
    let inside = "ssl_verify_client on; ssl_client_certificate root.pem;
        add_header X-Cert $ssl_client_cert; add_header X-Raw \"[$ssl_client_raw_cert]\";
        return 200 $ssl_client_raw_cert;";
    let server = start("", inside);
    let good = showing("client.pem", "client.key");
    let (head, page) = Tls::connect(&server, &good, NAME).get("/", NAME);
    let page = String::from_utf8_lossy(&page);
    let one = page.trim().replace('\n', " ");
    assert!(one.starts_with("-----BEGIN CERTIFICATE----- MII"), "{one}");
    assert!(head.contains(&format!("\r\nX-Cert: {one}\r\n")), "{head}");
    assert!(head.contains(&format!("\r\nX-Raw: [{one} ]\r\n")), "{head}");
}

#[test]
fn a_connection_for_one_host_gets_no_other() {
    let other = "server { listen 127.0.0.1:%%PORT%% ssl; server_name self;
        ssl_certificate self.pem; ssl_certificate_key self.key; ssl_verify_client optional_no_ca; }";
    let server = start(other, "return 200 ok;");
    let (head, _) = Tls::connect(&server, &config(), NAME).get("/", "self");
    assert!(head.starts_with("HTTP/1.1 421 "), "{head}");
}

#[test]
fn plain_http_on_a_tls_port_gets_a_page() {
    let server = start("", "return 200;");
    let answer = server.get("/");
    assert_eq!(answer.status, 400);
    assert!(answer.body().contains("The plain HTTP request was sent to HTTPS port"));
}

#[test]
fn garbage_and_silence_cost_a_connection() {
    let server = start("", "client_header_timeout 1s; return 200;");
    let mut client = server.connect();
    client.send(b"\x16\x03\x01\x00\x10this is no hello");
    assert!(client.rest_bytes().len() < 8, "an alert at the most");
    server.wait_log("SSL_do_handshake() failed (SSL: ", 1);
    let mut half = server.connect();
    half.send(b"\x16\x03\x01\x02\x00\x01");
    assert!(half.is_closed());
    server.wait_log("while SSL handshaking, client: 127.0.0.1", 2);
    assert_eq!(Tls::connect(&server, &config(), NAME).get("/", NAME).1, b"");
}

/// What the log says of clients that come and leave, or stay silent, with and without TLS.
#[test]
fn the_log_tells_of_clients_that_ask_nothing() {
    let server = start(
        "error_log %%DIR%%/info.log info; access_log %%DIR%%/a.log;",
        "listen 127.0.0.1:%%PORT1%%; listen 127.0.0.1:%%PORT2%% proxy_protocol; client_header_timeout 1s;
         return 200 ok;",
    );
    let told = |text: &str, times| server.wait_file("info.log", text, times);
    let plain = server.port_at(1);
    drop(Client::connect(server.port()));
    told("client closed connection while SSL handshaking, client: 127.0.0.1, server: ", 1);
    drop(Client::connect(plain));
    told("client closed connection while waiting for request, client: 127.0.0.1, server: ", 1);
    let mut kept = Client::connect(plain);
    kept.get("/kept");
    drop(kept);
    told("client 127.0.0.1 closed keepalive connection\n", 1);
    let mut resets = TcpStream::connect(("127.0.0.1", plain)).unwrap();
    resets.write_all(b"GET /reset HT").unwrap();
    let now = Some(std::time::Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&resets, now).unwrap();
    drop(resets);
    told("recv() failed (104: Connection reset by peer) while ", 1);
    let _silent = Client::connect(plain);
    told("client timed out (110: Connection timed out) while waiting for request, client: ", 1);
    let _silent = Client::connect(server.port());
    told("client timed out (110: Connection timed out) while SSL handshaking, client: ", 1);
    let mut shaken = Tls::connect(&server, &config(), NAME);
    let StreamOwned { conn, sock } = shaken.0.get_mut();
    conn.complete_io(sock).unwrap();
    told("client timed out (110: Connection timed out) while waiting for request, client: ", 2);
    let _silent = Client::connect(server.port_at(2));
    let mut slow = Client::connect(server.port_at(2));
    slow.send("PROXY TCP4 1");
    told("client timed out (110: Connection timed out) while reading PROXY protocol, client: ", 2);
    Client::connect(plain).get("/last");
    server.wait_file("a.log", "GET /last", 1);
    assert!(!server.dir().read("a.log").contains(" 408 "));
}

#[test]
fn the_end_is_told_before_the_socket_closes() {
    let server = start("", "keepalive_timeout 0; return 200 all;");
    let mut tls = Tls::connect(&server, &config(), NAME);
    assert_eq!(tls.text("/"), "all");
    // rustls calls an end without notice an error.
    assert_eq!(tls.0.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_balancers_header_stands_before_the_handshake() {
    let inside = "listen 127.0.0.1:%%PORT1%% ssl proxy_protocol; return 200 $proxy_protocol_addr;";
    let server = start("", inside);
    let mut socket = TcpStream::connect(("127.0.0.1", server.port_at(1))).unwrap();
    socket.write_all(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n").unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    let connection = ClientConnection::new(config(), name).unwrap();
    let mut tls = Tls(BufReader::new(StreamOwned::new(connection, socket)));
    assert_eq!(tls.text("/"), "192.0.2.1");
}

#[test]
fn servers_are_checked_and_connections_to_them_kept() {
    let secure = |path: &str, name: &str, more: &str| {
        format!("location {path} {{ proxy_pass https://u; proxy_ssl_name {name}; {more} }}")
    };
    let verify = "proxy_ssl_verify on; proxy_ssl_trusted_certificate";
    let locations = [
        secure("/good", NAME, &format!("proxy_ssl_server_name on; {verify} root.pem;")),
        secure("/unknown", NAME, &format!("{verify} self.pem;")),
        secure("/named", "other", &format!("{verify} root.pem;")),
        secure("/unchecked", NAME, ""),
    ];
    let conf = format!(
        "events {{ }}
         http {{
            upstream u {{ server 127.0.0.1:%%PORT1%%; keepalive 4; }}
            server {{ listen 127.0.0.1:%%PORT%%; proxy_http_version 1.1;
                proxy_set_header Connection ''; {} }}
            server {{ listen 127.0.0.1:%%PORT1%% ssl;
                ssl_certificate chain.pem; ssl_certificate_key leaf.key;
                return 200 $connection-$ssl_server_name; }}
         }}",
        locations.concat()
    );
    let server = Server::start_in(dir(), WEIR, &conf);
    let first = server.get("/good").body();
    assert!(first.ends_with(&format!("-{NAME}")), "{first}");
    assert_eq!(server.get("/good").body(), first, "the same connection");
    // A connection without a check does not serve requests that want one, nor the other way.
    let unchecked = server.get("/unchecked").body();
    assert!(unchecked.ends_with('-') && unchecked.split('-').next() != first.split('-').next());
    assert_eq!(server.get("/unknown").status, 502);
    server.wait_log("upstream SSL certificate verify error: (", 1);
    assert_eq!(server.get("/named").status, 502);
    server.wait_log("upstream SSL certificate does not match \"other\"", 1);
}

#[test]
fn servers_are_checked_by_lists_and_depth_and_shown_a_sealed_key() {
    let conf = "events { }
        http {
            server { listen 127.0.0.1:%%PORT%%;
                proxy_ssl_verify on; proxy_ssl_trusted_certificate root.pem; proxy_ssl_name www.example.org;
                location /depth0 { proxy_pass https://127.0.0.1:%%PORT1%%; proxy_ssl_verify_depth 0; }
                location /depth { proxy_pass https://127.0.0.1:%%PORT1%%; }
                location /revoked { proxy_pass https://127.0.0.1:%%PORT2%%; proxy_ssl_crl root.crl; }
                location /unasked { proxy_pass https://127.0.0.1:%%PORT2%%; }
                location /sealed { proxy_pass https://127.0.0.1:%%PORT1%%;
                    proxy_ssl_certificate self.pem; proxy_ssl_certificate_key self.sealed.key;
                    proxy_ssl_password_file passwords; }
            }
            server { listen 127.0.0.1:%%PORT1%% ssl; ssl_verify_client optional_no_ca;
                ssl_certificate chain.pem; ssl_certificate_key leaf.key; return 200 $ssl_client_s_dn; }
            server { listen 127.0.0.1:%%PORT2%% ssl;
                ssl_certificate client.pem; ssl_certificate_key client.key; return 200; }
        }";
    let dir = dir();
    dir.write("passwords", "no\nweir\n");
    let server = Server::start_in(dir, WEIR, conf);
    assert_eq!((server.get("/depth0").status, server.get("/depth").status), (502, 200));
    assert_eq!((server.get("/unasked").status, server.logged("certificate revoked")), (502, 0));
    assert_eq!(server.get("/revoked").status, 502);
    server.wait_log("certificate revoked", 1);
    assert_eq!(server.get("/sealed").body(), "CN=self");
}

#[test]
fn what_is_wrong_with_certificates_is_said_before_the_start() {
    let server = start("", "return 200;");
    let complaint = |conf: &str| {
        server.configure(conf);
        let output = server.command(&["-t"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), text)
    };
    for (inside, text) in [
        ("ssl_certificate gone.pem;", "cannot load certificate \""),
        ("ssl_certificate_key gone.key;", "cannot load certificate key \""),
        ("ssl_certificate leaf.key;", "PEM_read_bio() failed (SSL: no start line)"),
        ("ssl_certificate_key self.key;", "key values mismatch"),
        ("ssl_certificate_key self.sealed.key;", "ssl_password_file"),
        ("ssl_verify_client on;", "no ssl_client_certificate or ssl_trusted_certificate"),
        ("ssl_protocols TLSv1 TLSv1.1;", "no protocol is left of \"TLSv1 TLSv1.1\""),
        ("ssl_ciphers RC4-SHA;", "no cipher match"),
        ("ssl_ecdh_curve nowhere;", "unknown curve \"nowhere\""),
        ("ssl_session_cache shared:a:1k;", "is too small"),
    ] {
        let (good, said) = complaint(&conf("", inside));
        assert!(!good && said.contains(text), "{inside}: {said}");
    }
    let bare = "events { } http { server { listen 127.0.0.1:%%PORT%% ssl; } }";
    let (good, said) = complaint(bare);
    let text = "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive in ";
    assert!(!good && said.contains(text), "{said}");
    let (good, said) =
        complaint(&conf("", "ssl_protocols TLSv1.1 TLSv1.2; ssl_ecdh_curve X448:X25519;"));
    assert!(good && said.contains("[warn] ") && said.contains("\"TLSv1.1\""), "{said}");
    assert!(said.contains("the curve \"X448\""), "{said}");
    let (good, said) = complaint(&conf("", "ssl_ciphers aNULL;"));
    assert!(good && said.contains("only TLSv1.3 is"), "{said}");
    let (good, said) = complaint(&conf("", "ssl_ciphers aNULL; ssl_protocols TLSv1.2;"));
    assert!(!good && said.contains("[emerg] "), "{said}");
}

#[test]
fn a_sealed_key_is_opened_by_its_password() {
    let dir = dir();
    dir.write("passwords", "no\nweir\n");
    let inside = "ssl_certificate self.pem; ssl_certificate_key self.sealed.key;
        ssl_password_file passwords; return 200 open;";
    let server = Server::start_in(dir, WEIR, &conf("", inside));
    let mut client = Client::connect(server.port());
    client.send("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(client.response().status, 400);
}

#[test]
fn certificates_are_found_by_the_name_that_a_client_asks_for() {
    let dir = dir();
    for name in [NAME, "a.example.net"] {
        dir.write(&format!("{name}.pem"), dir.read("chain.pem"));
        dir.write(&format!("{name}.key"), dir.read("leaf.key"));
    }
    let conf = "events { }
        http {
            ssl_certificate $ssl_server_name.pem; ssl_certificate_key $ssl_server_name.key;
            server { listen 127.0.0.1:%%PORT%% ssl; return 200 $ssl_server_name;
                ssl_certificate_cache max=1; }
        }";
    let server = Server::start_in(dir, WEIR, conf);
    let config = config();
    assert_eq!(Tls::connect(&server, &config, NAME).text("/"), NAME);
    let gone = |name: &str| std::fs::remove_file(server.dir().file(name)).unwrap();
    gone(&format!("{NAME}.key"));
    assert_eq!(Tls::connect(&server, &config, NAME).text("/"), NAME, "it is kept");
    assert_eq!(Tls::connect(&server, &config, "a.example.net").text("/"), "a.example.net");
    // There was room for one.
    let refused = Tls::connect(&server, &config, NAME).send("GET / HTTP/1.1\r\n\r\n");
    assert!(refused.is_err());
    server.wait_log(&format!("/{NAME}.key\": BIO_new_file() failed"), 1);
}

#[test]
fn servers_are_shown_certificates_that_the_request_names() {
    let conf = "events { }
        http {
            ssl_certificate chain.pem; ssl_certificate_key leaf.key;
            server { listen 127.0.0.1:%%PORT%%;
                location / { proxy_pass https://127.0.0.1:%%PORT1%%;
                    proxy_ssl_certificate $arg_a.pem; proxy_ssl_certificate_key $arg_a.key;
                    proxy_ssl_certificate_cache max=2; }
            }
            server { listen 127.0.0.1:%%PORT1%% ssl; ssl_verify_client optional_no_ca;
                return 200 $ssl_client_s_dn; }
        }";
    let server = Server::start_in(dir(), WEIR, conf);
    for (name, subject) in [("client", "CN=client"), ("self", "CN=self"), ("client", "CN=client")] {
        assert_eq!(server.get(&format!("/?a={name}")).body(), subject);
    }
    assert_eq!(server.get("/?a=nobody").status, 500);
    let text =
        "/nobody.pem\": BIO_new_file() failed (2: No such file or directory) while connecting to";
    server.wait_log(text, 1);
}

#[test]
fn a_server_that_resets_the_handshake_has_closed_the_connection() {
    // What is left unread when a socket is closed makes the system reset the connection.
    let resets = weir_testkit::listen(|mut socket| {
        let _ = socket.read(&mut [0]);
    });
    let server = Server::with_locations(
        Dir::new(),
        WEIR,
        "",
        &format!("location / {{ proxy_pass https://127.0.0.1:{resets}; }}"),
    );
    assert_eq!(server.get("/").status, 502);
    let text = "peer closed connection in SSL handshake (104: Connection reset by peer) while SSL handshaking";
    server.wait_log(text, 1);
}
