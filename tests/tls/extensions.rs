//! Certificates of clients and of servers with extensions that are drawn, one at a time and two at
//! once, beside `openssl verify` and nginx. weir believes what `openssl verify` believes, and says
//! of the others what nginx says.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig, ServerConnection, StreamOwned};
use weir_proto::base64::{self, Alphabet};
use weir_testkit::{Dice, Server, number, seed};

use super::anybody::Anybody;
use super::clients::{ask, programs};
use super::{builder, dir};
use changes::Change::{
    Expired, For, Future, Hosts, IssuerAs, Set, SubjectAs, Twice, Version, Without,
};
use changes::{ADDRESSES, CHANGES, NAME_CONSTRAINTS, PROXY};
use draft::Draft;

#[path = "extensions/changes.rs"]
mod changes;
#[path = "extensions/draft.rs"]
mod draft;

/// Where a certificate stands: the one that is shown, and those above it.
const ROLES: [&str; 3] = ["leaf", "inter", "root"];

/// A chain of one to three certificates, and what is changed in it.
#[derive(Clone)]
struct Case {
    number: usize,
    length: usize,
    /// The place in the chain, and the change.
    changes: Vec<(usize, usize)>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}: {} certificates", self.number, self.length)?;
        for &(at, change) in &self.changes {
            let role = if at + 1 == self.length { "last" } else { ROLES[at] };
            match CHANGES[change] {
                Set(oid, critical, value) => {
                    write!(f, ", {role} {oid:02x?} critical={critical} {value:02x?}")?;
                }
                Twice(oid) => write!(f, ", {role} twice {oid:02x?}")?,
                Without(oid) => write!(f, ", {role} without {oid:02x?}")?,
                For(purposes) => write!(f, ", {role} for {purposes:02x?}")?,
                Hosts(hosts) => write!(f, ", {role} hosts {hosts:?}")?,
                Version(n, with) => write!(f, ", {role} version {n} extensions {with}")?,
                Expired => write!(f, ", {role} expired")?,
                Future => write!(f, ", {role} of the future")?,
                SubjectAs(tag) => write!(f, ", {role} subject {tag:02x}")?,
                IssuerAs(tag) => write!(f, ", {role} issuer {tag:02x}")?,
            }
        }
        Ok(())
    }
}

impl Case {
    fn draw(dice: &mut Dice, number: usize) -> Case {
        let length = 1 + dice.pick(&[0, 1, 1, 2, 2, 2]);
        let changes = 1 + dice.below(2);
        // Most mistakes are made with the certificate that is shown.
        let at = |dice: &mut Dice| if dice.one_in(2) { 0 } else { dice.below(length) };
        let changes = (0..changes).map(|_| (at(dice), dice.below(CHANGES.len()))).collect();
        Case { number, length, changes }
    }

    fn host(&self) -> String {
        format!("c{}.test", self.number)
    }

    /// The chain, the root last.
    fn chain(&self, keys: &[Arc<dyn SigningKey>]) -> Vec<CertificateDer<'static>> {
        let names =
            [self.host(), format!("inter {}", self.number), format!("root {}", self.number)];
        let mut chain = Vec::new();
        for at in 0..self.length {
            // The last is the root, wherever it stands, but one that is shown itself.
            let place = |at| match at {
                0 => 0,
                at if at + 1 >= self.length => 2,
                _ => 1,
            };
            let above = if at + 1 == self.length { at } else { at + 1 };
            let names = [names[place(at)].as_str(), names[place(above)].as_str()];
            let mut draft = Draft::new(1 + at as u8, names[0], names[1]);
            if at > 0 {
                draft = draft.authority();
            }
            for (_, change) in self.changes.iter().filter(|(changed, _)| *changed == at) {
                CHANGES[*change].apply(&mut draft, names);
            }
            chain.push(draft.signed(&*keys[place(at)], &*keys[place(above)]).into());
        }
        chain
    }

    /// weir does not look into these, and refuses the chain.
    fn is_refused_unread(&self) -> bool {
        self.changes.iter().any(|(at, change)| match CHANGES[*change] {
            Set(oid, ..) => oid == NAME_CONSTRAINTS && *at > 0 || oid == ADDRESSES,
            _ => false,
        })
    }

    /// Of several faults OpenSSL tells another one of these.
    fn has_other_words(&self) -> bool {
        let of_proxy = |(_, change): &(usize, usize)| matches!(CHANGES[*change], Set(PROXY, ..));
        self.is_refused_unread() || self.changes.iter().any(of_proxy)
    }

    /// Whether `openssl verify` finds nothing against it.
    fn is_good(&self, dir: &Path, chain: &[CertificateDer<'_>], purpose: &[&str]) -> bool {
        let file = |at: usize| format!("{}-{}.pem", self.host(), ROLES[at]);
        for (at, certificate) in chain.iter().enumerate() {
            std::fs::write(dir.join(file(at)), pem(certificate)).unwrap();
        }
        let mut command = Command::new("openssl");
        command.arg("verify").args(purpose).args(["-CAfile", &file(self.length - 1)]);
        for at in 1..self.length - usize::from(self.length > 1) {
            command.args(["-untrusted", &file(at)]);
        }
        command.arg(file(0)).current_dir(dir).output().unwrap().status.success()
    }
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut letters = Vec::new();
    base64::encode(Alphabet::Plain, certificate, &mut letters);
    for line in letters.chunks(64) {
        text += std::str::from_utf8(line).unwrap();
        text.push('\n');
    }
    text + "-----END CERTIFICATE-----\n"
}

/// Keys of the certificate that is shown, of the authority between, and of the root.
fn keys() -> Vec<Arc<dyn SigningKey>> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    let key = |name: &&str| {
        let key = PrivateKeyDer::from_pem_file(data.join(name)).unwrap();
        provider.key_provider.load_private_key(key).unwrap()
    };
    ["leaf.key", "inter.key", "root.key"].iter().map(key).collect()
}

/// Every change alone, then draws; `WEIR_CASES` of them in all.
fn cases(salt: &str) -> Vec<Case> {
    let most = number("WEIR_CASES").unwrap_or(130) as usize;
    let mut dice = Dice::salted(seed(), salt);
    let alone = |number| Case { number, length: 2, changes: vec![(0, number)] };
    let first = (0..CHANGES.len()).map(alone);
    let drawn = (CHANGES.len()..).map(|number| Case::draw(&mut dice, number));
    first.chain(drawn).take(most).collect()
}

/// What each case came to, with its chain and whether `openssl verify` finds it good. None without OpenSSL.
struct Judged {
    case: Case,
    chain: Vec<CertificateDer<'static>>,
    good: bool,
}

fn judged(salt: &str, dir: &Path, purpose: &str) -> Option<Vec<Judged>> {
    let openssl = Command::new("openssl").arg("version").output();
    if !openssl.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains("OpenSSL 3")) {
        println!("not run: no OpenSSL 3 to compare with");
        return None;
    }
    let keys = keys();
    let judge = |case: Case| {
        let (chain, host) = (case.chain(&keys), case.host());
        let mut args = vec!["-purpose", purpose];
        if purpose == "sslserver" {
            args.extend(["-verify_hostname", &host]);
        }
        let good = case.is_good(dir, &chain, &args);
        Judged { case, chain, good }
    };
    Some(cases(salt).into_iter().map(judge).collect())
}

/// Certificates that are trusted: the last of each chain.
fn roots(all: &[Judged]) -> String {
    all.iter().map(|judged| pem(judged.chain.last().unwrap())).collect()
}

/// What the other end shows: the chain without the root that is trusted.
fn shown(judged: &Judged, key: &Arc<dyn SigningKey>) -> CertifiedKey {
    let most = judged.chain.len().saturating_sub(1).max(1);
    CertifiedKey::new(judged.chain[..most].to_vec(), key.clone())
}

#[test]
fn a_clients_certificate_is_judged_by_all_its_extensions() {
    let made = dir();
    let Some(all) = judged("client", made.path(), "sslclient") else { return };
    let key = &keys()[0];
    let start = |program: String| {
        let dir = dir();
        dir.write("roots", roots(&all));
        Server::start_in(
            dir,
            &program,
            "events { } http { access_log off; ssl_certificate %%DIR%%/chain.pem;
                ssl_certificate_key %%DIR%%/leaf.key; ssl_client_certificate %%DIR%%/roots;
                server { listen 127.0.0.1:%%PORT%% ssl; ssl_verify_client on; error_page 495 = /refused;
                    location = /refused { return 400 \"$ssl_client_verify\"; }
                    location / { return 200 \"$ssl_client_verify\"; } } }",
        )
    };
    let servers: Vec<Server> = programs().into_iter().map(start).collect();
    let mut differences = Vec::new();
    for one in &all {
        let certified = Arc::new(SingleCertAndKey::from(shown(one, key)));
        let mut config = builder(rustls::ALL_VERSIONS).with_client_cert_resolver(certified);
        config.dangerous().set_certificate_verifier(Arc::new(Anybody::default()));
        let config: Arc<ClientConfig> = Arc::new(config);
        let outcome = |server: &Server| ask(server.port(), &config, "www.example.org", "a");
        let (status, said, _) = outcome(&servers[0]);
        let case = &one.case;
        let believed = one.good && !case.is_refused_unread();
        if (status == 200) != believed || (said == "SUCCESS") != believed {
            differences.push(format!("{case:?}: good {}, weir {status} {said}", one.good));
        } else if let Some(theirs) = servers.get(1) {
            let (nginx, text, _) = outcome(theirs);
            let same = nginx == status && text == said;
            if !same && !case.has_other_words() {
                differences.push(format!("{case:?}: weir {status} {said}, nginx {nginx} {text}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Shows the chain of the case that belongs to the host.
#[derive(Debug)]
struct ByHost(Vec<(String, Arc<CertifiedKey>)>);

impl ResolvesServerCert for ByHost {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let host = hello.server_name()?;
        self.0.iter().find(|(known, _)| known == host).map(|(_, key)| key.clone())
    }
}

/// A server that answers each connection once; its port.
pub fn backend(config: ServerConfig) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = Arc::new(config);
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let config = config.clone();
            std::thread::spawn(move || {
                let connection = ServerConnection::new(config).unwrap();
                let mut stream = StreamOwned::new(connection, socket);
                let mut request = [0; 4096];
                if stream.read(&mut request).is_ok_and(|n| n > 0) {
                    let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok");
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                }
            });
        }
    });
    port
}

#[test]
fn a_servers_certificate_is_judged_by_all_its_extensions() {
    let made = dir();
    let Some(all) = judged("server", made.path(), "sslserver") else { return };
    let key = &keys()[0];
    let known = all.iter().map(|one| (one.case.host(), Arc::new(shown(one, key)))).collect();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ByHost(known)));
    let behind = backend(config);
    let start = |program: String| {
        let dir = dir();
        dir.write("roots", roots(&all));
        let conf = format!(
            "events {{ }} http {{ access_log off;
                proxy_ssl_verify on; proxy_ssl_trusted_certificate %%DIR%%/roots;
                proxy_ssl_server_name on; proxy_ssl_name $arg_host; proxy_ssl_session_reuse off;
                proxy_http_version 1.0; proxy_set_header Connection close;
                server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass https://127.0.0.1:{behind}; }} }} }}"
        );
        Server::start_in(dir, &program, &conf)
    };
    let servers: Vec<Server> = programs().into_iter().map(start).collect();
    let mut differences = Vec::new();
    for one in &all {
        let case = &one.case;
        let outcome = |server: &Server| server.get(&format!("/?host={}", case.host())).status;
        let status = outcome(&servers[0]);
        let believed = one.good && !case.is_refused_unread();
        if (status == 200) != believed {
            differences.push(format!("{case:?}: good {}, weir {status}", one.good));
        } else if let Some(theirs) = servers.get(1) {
            let nginx = outcome(theirs);
            if nginx != status && !case.is_refused_unread() {
                differences.push(format!("{case:?}: weir {status}, nginx {nginx}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
