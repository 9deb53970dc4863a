//! The verdict on clients' certificates: every kind of fault in every mode, over each version of
//! HTTP, in new sessions and in resumed ones. nginx (`$WEIR_NGINX`, or `nginx` on the path) is
//! asked the same, where there is one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use weir_testkit::{Dir, Oracle, PATIENCE, Server};

use super::anybody::Anybody;
use super::{WEIR, builder, dir};

/// Makes authorities and clients. `root` - `inter` - `low` are known by their root, `other` - `ointer` are not.
pub const MAKE: &str = r#"
set -e
printf '[ca]\nbasicConstraints=critical,CA:true\nkeyUsage=keyCertSign,cRLSign\n' > exts
printf '[client]\nextendedKeyUsage=clientAuth\n[server]\nextendedKeyUsage=serverAuth\n' >> exts
openssl ecparam -name prime256v1 -genkey -noout -out k
make() { # name subject issuer purpose days
  openssl req -new -key k-$1 -subj "/CN=$2" -out csr
  by="-signkey k-$1"; [ -z "$3" ] || by="-CA ca-$3 -CAkey k-$3"
  openssl x509 -req -in csr $by -set_serial $((serial=serial+1)) -days $5 -extfile exts -extensions $4 -out $1
}
for ca in root: inter:root low:inter other: ointer:other; do
  name=${ca%:*}; openssl ecparam -name prime256v1 -genkey -noout -out k-$name
  cp k-$name k-ca-$name; make ca-$name $name "${ca#*:}" ca 100
done
for purpose in client server; do for age in 100 -1; do for by in root inter low other ointer ""; do
  cp k k-$purpose$age$by; make $purpose$age$by somebody "$by" $purpose $age
done; done; done
"#;

/// A client's certificate: purpose, days that it is good for, its issuer, and the authorities that come along.
struct Shown {
    purpose: &'static str,
    age: i32,
    by: &'static str,
    along: &'static [&'static str],
}

/// Issuers with what comes along, and the fault of the chain: up to this depth of it, and deeper.
pub const CHAINS: &[(&str, &[&str], &str, &str)] = &[
    ("root", &[], "", ""),
    ("inter", &["ca-inter"], "", ""),
    ("inter", &[], LEAF, LEAF),
    ("low", &["ca-low", "ca-inter"], LOCAL, ""),
    ("other", &[], LEAF, LEAF),
    ("ointer", &["ca-ointer"], LOCAL, LOCAL),
    ("ointer", &["ca-ointer", "ca-other"], ROOT, ROOT),
    ("", &[], SELF, SELF),
];

const LEAF: &str = "unable to verify the first certificate";
const LOCAL: &str = "unable to get local issuer certificate";
const ROOT: &str = "self-signed certificate in certificate chain";
const SELF: &str = "self-signed certificate";

/// What of several faults is told: the last that OpenSSL finds.
fn fault(shown: &Shown, of_chain: &'static str) -> &'static str {
    match (shown.age, shown.purpose) {
        (-1, _) => "certificate has expired",
        (_, "server") if of_chain != LEAF => "unsuitable certificate purpose",
        _ => of_chain,
    }
}

pub const MODES: [&str; 3] = ["on", "optional", "optional_no_ca"];

/// A server for each mode, at two depths.
fn conf() -> String {
    let mut servers = String::new();
    for (i, mode) in MODES.iter().enumerate() {
        for depth in 1..=2 {
            let port =
                if i == 0 && depth == 1 { String::new() } else { (2 * i + depth - 1).to_string() };
            servers += &format!(
                "server {{ listen 127.0.0.1:%%PORT{port}%% ssl; http2 on;
                    ssl_verify_client {mode}; ssl_verify_depth {depth};
                    error_page 495 496 = /refused;
                    location = /refused {{ return 400 \"$ssl_client_verify\"; }}
                    location / {{ return 200 \"$ssl_client_verify\"; }} }}"
            );
        }
    }
    format!(
        "events {{ }} http {{ access_log off; ssl_certificate %%DIR%%/chain.pem;
            ssl_certificate_key %%DIR%%/leaf.key; ssl_client_certificate %%DIR%%/ca-root; {servers} }}"
    )
}

fn made() -> Option<Dir> {
    made_by(MAKE)
}

pub fn made_by(script: &str) -> Option<Dir> {
    let dir = dir();
    let said = Command::new("sh").arg("-c").arg(script).current_dir(dir.path()).output();
    if !said.is_ok_and(|said| said.status.success()) {
        println!("not run: no openssl that makes certificates");
        return None;
    }
    Some(dir)
}

/// weir, and nginx where there is one.
pub fn programs() -> Vec<String> {
    let mut all = vec![WEIR.to_owned()];
    let fits = |nginx: &Oracle| {
        nginx.minor() >= 25 && nginx.has("OpenSSL 3") && nginx.has("http_v2_module")
    };
    match Oracle::find().filter(fits) {
        Some(nginx) => all.push(nginx.path),
        None => println!("not run: no nginx with OpenSSL 3 and HTTP/2 to compare with"),
    }
    all
}

/// A client that shows these certificates of this key, and trusts any server.
fn client(server: &Server, files: &[&str], key: &str, protocol: &str) -> Arc<ClientConfig> {
    client_of(server, files, key, protocol, rustls::ALL_VERSIONS)
}

/// The same, with these versions of TLS.
pub fn client_of(
    server: &Server,
    files: &[&str],
    key: &str,
    protocol: &str,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let dir = server.dir();
    let certificates = files.iter().flat_map(|file| {
        CertificateDer::pem_file_iter(dir.file(file)).unwrap().map(Result::unwrap)
    });
    let certificates: Vec<_> = certificates.collect();
    let builder = builder(versions);
    let mut config = if certificates.is_empty() {
        builder.with_no_client_auth()
    } else {
        let key = PrivateKeyDer::from_pem_file(dir.file(key)).unwrap();
        let key = rustls::crypto::aws_lc_rs::default_provider().key_provider.load_private_key(key);
        let shown = CertifiedKey::new(certificates, key.unwrap());
        builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(shown)))
    };
    config.dangerous().set_certificate_verifier(Arc::new(Anybody::default()));
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    Arc::new(config)
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

fn connect(port: u16, config: &Arc<ClientConfig>, name: &str) -> Stream {
    let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), socket)
}

/// Status and body of an answer over HTTP/1.1, and whether the session was resumed.
pub fn ask(port: u16, config: &Arc<ClientConfig>, name: &str, host: &str) -> (u16, String, bool) {
    let mut stream = connect(port, config, name);
    write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // nginx may end without telling.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let resumed = stream.conn.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
    (status, body.to_owned(), resumed)
}

/// Status of an answer over HTTP/2.
pub fn ask_http2(port: u16, config: &Arc<ClientConfig>, name: &str, host: &str) -> u16 {
    let mut stream = connect(port, config, name);
    let mut fields = vec![0x82, 0x87, 0x84, 0x01, host.len() as u8];
    fields.extend_from_slice(host.as_bytes());
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    bytes.extend_from_slice(&[0, 0, fields.len() as u8, 1, 5, 0, 0, 0, 1]);
    bytes.extend_from_slice(&fields);
    stream.write_all(&bytes).unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).unwrap();
        if head[3] == 1 {
            // Changes of the table's size may stand before the status.
            let first = payload.iter().find(|b| **b & 0xe0 != 0x20).unwrap();
            return match first {
                0x88 => 200,
                0x8c => 400,
                _ => 421,
            };
        }
    }
}

#[test]
fn all_faults_of_a_chain_are_judged() {
    for program in programs() {
        let Some(dir) = made() else { return };
        let server = Server::start_in(dir, &program, &conf());
        for (purpose, age) in [("client", 100), ("client", -1), ("server", 100), ("server", -1)] {
            for &(by, along, shallow, deep) in CHAINS {
                let shown = Shown { purpose, age, by, along };
                for (i, mode) in MODES.iter().enumerate() {
                    let depths = if shallow == deep { 1 } else { 2 };
                    for (depth, of_chain) in [shallow, deep].into_iter().take(depths).enumerate() {
                        let port = server.port_at(2 * i + depth);
                        check(&server, port, &shown, mode, fault(&shown, of_chain), &program);
                    }
                }
            }
        }
    }
}

/// One client in one mode: what it is told, in a new session, in a resumed one, and over HTTP/2.
fn check(server: &Server, port: u16, shown: &Shown, mode: &str, fault: &str, program: &str) {
    let Shown { purpose, age, by, along } = shown;
    let leaf = format!("{purpose}{age}{by}");
    let files: Vec<&str> = [leaf.as_str()].iter().chain(*along).copied().collect();
    let what = format!("{program}: {files:?}, {mode}, port {port}");
    let lets_pass = mode == "optional_no_ca" && [LEAF, LOCAL, ROOT, SELF].contains(&fault);
    let status = if fault.is_empty() || lets_pass { 200 } else { 400 };
    let text = if fault.is_empty() { "SUCCESS".to_owned() } else { format!("FAILED:{fault}") };
    let config = client(server, &files, "k", "http/1.1");
    for round in 0..2 {
        let (was, said, resumed) = ask(port, &config, "www.example.org", "www.example.org");
        assert_eq!((was, said.as_str()), (status, text.as_str()), "{what}, resumed {resumed}");
        // A client that was let in resumes its session.
        assert!(resumed || round == 0 || status != 200, "{what}");
    }
    let config = client(server, &files, "k", "h2");
    assert_eq!(ask_http2(port, &config, "www.example.org", "www.example.org"), status, "{what}");
}

#[test]
fn a_revoked_certificate_is_revoked_in_every_mode() {
    for program in programs() {
        let conf = |mode: &str| {
            format!(
                "events {{ }} http {{ access_log off; server {{ listen 127.0.0.1:%%PORT%% ssl;
                    ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key;
                    ssl_client_certificate %%DIR%%/root.pem; ssl_crl %%DIR%%/root.crl;
                    ssl_verify_client {mode}; error_page 495 = /refused;
                    location = /refused {{ return 400 \"$ssl_client_verify\"; }}
                    location / {{ return 200 \"$ssl_client_verify\"; }} }} }}"
            )
        };
        for mode in MODES {
            let server = Server::start_in(dir(), &program, &conf(mode));
            let ask = |file: &str| {
                let config = client(&server, &[file], "client.key", "http/1.1");
                let (status, text, _) = ask(server.port(), &config, "a", "a");
                (status, text)
            };
            let revoked = (400, "FAILED:certificate revoked".to_owned());
            assert_eq!(ask("client.pem"), revoked, "{program} {mode}");
        }
    }
}

/// nginx judges by the default server's authorities where no name was given in the handshake, and lets in.
#[test]
fn one_servers_judgement_is_not_anothers() {
    let Some(dir) = made() else { return };
    let server = Server::start_in(
        dir,
        WEIR,
        "events { } http { access_log off; ssl_certificate %%DIR%%/chain.pem;
            ssl_certificate_key %%DIR%%/leaf.key; http2 on; ssl_verify_client on;
            ssl_client_certificate %%DIR%%/ca-root;
            server { listen 127.0.0.1:%%PORT%% ssl; server_name a; return 200 a; }
            server { listen 127.0.0.1:%%PORT%% ssl; server_name b; return 200 b;
                ssl_client_certificate %%DIR%%/ca-other; }
            server { listen 127.0.0.1:%%PORT%% ssl; server_name like; return 200 like; }
            server { listen 127.0.0.1:%%PORT%% ssl; server_name deep; return 200 deep; ssl_verify_depth 3; }
            server { listen 127.0.0.1:%%PORT%% ssl; server_name open; return 200 open; ssl_verify_client off; } }",
    );
    let known = client(&server, &["client100root"], "k", "http/1.1");
    let known2 = client(&server, &["client100root"], "k", "h2");
    let port = server.port();
    // An address is no name: the client sends none.
    for name in ["127.0.0.1", "nobody"] {
        for (host, status) in [("a", 200), ("like", 200), ("open", 200), ("b", 421), ("deep", 421)]
        {
            for _ in 0..2 {
                let (was, _, _) = ask(port, &known, name, host);
                assert_eq!(was, status, "{name} {host}");
            }
            assert_eq!(ask_http2(port, &known2, name, host), status, "{name} {host}");
        }
    }
    for (name, host, status) in
        [("b", "b", 400), ("a", "b", 421), ("open", "b", 421), ("like", "like", 200)]
    {
        assert_eq!(ask(port, &known, name, host).0, status, "{name} {host}");
    }
    // Nothing was shown, so nothing was judged, rightly or not.
    assert_eq!(ask(port, &client(&server, &[], "k", "http/1.1"), "nobody", "b").0, 400);
    let other = client(&server, &["client100other"], "k", "http/1.1");
    assert_eq!(ask(port, &other, "b", "b").0, 200);
    assert_eq!(ask(port, &other, "a", "a").0, 400);
}
