//! An ACME server for tests: it checks signatures and nonces, asks for answers over HTTP, and fails when it is told to.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use weir_proto::base64::{self, Alphabet};
use weir_testkit::{Dir, PATIENCE, listen};

use crate::names::NameServer;
use resources::{ok, problem};

mod resources;
mod validation;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    Directory,
    Nonce,
    NewAccount,
    Account,
    NewOrder,
    Order,
    Authorization,
    Challenge,
    Finalize,
    Certificate,
    Renewal,
}

/// What the server does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// What is asked.
    Serve,
    /// It closes the connection and does nothing.
    Close,
    /// It does what is asked and closes the connection without an answer.
    Forget,
    /// It takes the nonce for a bad one.
    BadNonce,
    /// It answers with this status, and with these seconds for the client to wait.
    Fail(u16, Option<u64>),
}

type React = Arc<Mutex<dyn FnMut(Ask) -> Reaction + Send>>;

/// The server.
#[derive(Clone)]
pub struct Authority(Arc<Shared>);

struct Shared {
    port: OnceLock<u16>,
    issuer: Issuer<'static, KeyPair>,
    root: String,
    tls: Arc<ServerConfig>,
    /// Where it asks for answers.
    web: AtomicU16,
    /// Where it looks for TXT records.
    names: OnceLock<NameServer>,
    /// An order is processed for a while before there is a certificate.
    is_slow: AtomicBool,
    world: Mutex<World>,
    react: Mutex<React>,
}

#[derive(Default)]
struct World {
    nonces: BTreeSet<String>,
    given: u64,
    accounts: Vec<Value>,
    orders: Vec<Order>,
    asked: Vec<Ask>,
}

struct Order {
    status: &'static str,
    names: Vec<Value>,
    authorizations: Vec<Authorization>,
    chain: Option<String>,
    error: Option<Value>,
}

struct Authorization {
    status: &'static str,
    token: String,
    error: Option<Value>,
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    kind: &'static str,
    body: String,
}

impl Authority {
    /// A server with TLS, by a certificate of its root.
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "test root");
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);

        let own = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&own, &issuer).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.serialize_der()));
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![CertificateDer::from(leaf.der().to_vec())], key)
            .unwrap();
        let shared = Arc::new(Shared {
            port: OnceLock::new(),
            issuer,
            root,
            tls: Arc::new(tls),
            web: AtomicU16::new(0),
            names: OnceLock::new(),
            is_slow: AtomicBool::new(false),
            world: Mutex::default(),
            react: Mutex::new(Arc::new(Mutex::new(|_| Reaction::Serve))),
        });
        let serving = shared.clone();
        let port = listen(move |stream| serving.connection(stream));
        shared.port.set(port).unwrap();
        Authority(shared)
    }

    /// Its directory.
    pub fn uri(&self) -> String {
        self.0.url("dir")
    }

    /// The certificate that vouches for it, and for what it issues, in PEM.
    pub fn root(&self) -> &str {
        &self.0.root
    }

    /// The lines of an `acme_issuer` block that lead to it; the root is written to the directory.
    pub fn lines(&self, dir: &Dir) -> String {
        let root = dir.write("authority.pem", self.root());
        let root = root.display();
        format!("uri {}; ssl_trusted_certificate {root}; accept_terms_of_service;", self.uri())
    }

    /// It asks for answers to challenges at this port.
    pub fn asks_at(&self, port: u16) {
        self.0.web.store(port, Ordering::SeqCst);
    }

    /// It looks for TXT records there.
    pub fn looks_at(&self, names: &NameServer) {
        let _ = self.0.names.set(names.clone());
    }

    /// It takes its time between a request for a certificate and the certificate.
    pub fn is_slow(&self) {
        self.0.is_slow.store(true, Ordering::SeqCst);
    }

    /// It does so with each request from now on.
    pub fn reacts(&self, react: impl FnMut(Ask) -> Reaction + Send + 'static) {
        *self.0.react.lock().unwrap() = Arc::new(Mutex::new(react));
    }

    /// How often it was asked for this.
    pub fn asked(&self, ask: Ask) -> usize {
        self.0.world().asked.iter().filter(|asked| **asked == ask).count()
    }

    /// How many orders were placed, those included whose answer was lost.
    pub fn orders(&self) -> usize {
        self.0.world().orders.len()
    }

    /// Issues a certificate without an order: the chain and the key, valid from and until these days from now.
    pub fn issue(&self, name: &str, from: i64, until: i64) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let day = Duration::from_secs(86400);
        let days = |n: i64| {
            let now = std::time::SystemTime::now();
            let length = day * u32::try_from(n.abs()).unwrap();
            if n < 0 { now - length } else { now + length }.into()
        };
        (params.not_before, params.not_after) = (days(from), days(until));
        let key = KeyPair::generate().unwrap();
        let leaf = params.signed_by(&key, &self.0.issuer).unwrap();
        (leaf.pem() + &self.0.root, key.serialize_pem())
    }
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}/{path}", self.port.get().unwrap())
    }

    fn connection(&self, stream: TcpStream) {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let connection = ServerConnection::new(self.tls.clone()).unwrap();
        self.requests(BufReader::new(StreamOwned::new(connection, stream)));
    }

    fn requests<S: Read + Write>(&self, mut stream: BufReader<S>) {
        while let Some((method, path, body)) = request(&mut stream) {
            let Some(answer) = self.answer(&method, &path, &body) else { return };
            let Answer { status, headers, kind, body } = answer;
            let mut head = format!("HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\n");
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            let length = body.len();
            let shown = if method == "HEAD" { "" } else { &body };
            let text = format!("{head}Content-Length: {length}\r\n\r\n{shown}");
            let sent = stream.get_mut().write_all(text.as_bytes());
            if sent.and_then(|()| stream.get_mut().flush()).is_err() {
                return;
            }
        }
    }

    fn answer(&self, method: &str, path: &str, body: &[u8]) -> Option<Answer> {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let number = |at: usize| parts.get(at).and_then(|part| part.parse::<usize>().ok());
        let ask = match parts[0] {
            "dir" => Ask::Directory,
            "nonce" => Ask::Nonce,
            "account" if parts.len() == 1 => Ask::NewAccount,
            "account" => Ask::Account,
            "order" if parts.len() == 1 => Ask::NewOrder,
            "order" => Ask::Order,
            "authz" => Ask::Authorization,
            "challenge" => Ask::Challenge,
            "finalize" => Ask::Finalize,
            "cert" => Ask::Certificate,
            "renewal" => Ask::Renewal,
            _ => panic!("{method} {path}"),
        };
        self.world().asked.push(ask);
        // A reaction may take its time; another one may be set meanwhile.
        let react = self.react.lock().unwrap().clone();
        let reaction = (react.lock().unwrap())(ask);
        let mut answer = match reaction {
            Reaction::Close => return None,
            Reaction::Fail(status, wait) => {
                let kind = if status == 429 { "rateLimited" } else { "serverInternal" };
                let mut answer = problem(status, kind, "as the test wants it");
                answer.headers.extend(wait.map(|wait| ("Retry-After".into(), wait.to_string())));
                answer
            }
            Reaction::Serve | Reaction::Forget | Reaction::BadNonce => match ask {
                Ask::Directory => self.directory(),
                Ask::Nonce => {
                    Answer { status: 200, headers: vec![], kind: "text/plain", body: String::new() }
                }
                Ask::Renewal => self.renewal(),
                _ => match self.open(path, body, reaction == Reaction::BadNonce) {
                    Err(answer) => answer,
                    Ok((account, key, payload)) => match ask {
                        Ask::NewAccount => self.new_account(&key, &payload),
                        _ if account.is_none() => {
                            problem(400, "accountDoesNotExist", "no such account")
                        }
                        Ask::NewOrder => self.new_order(&payload),
                        Ask::Account => ok(json!({"status": "valid"})),
                        Ask::Order => self.show(number(1).unwrap()),
                        Ask::Authorization => {
                            self.authorization(number(1).unwrap(), number(2).unwrap())
                        }
                        Ask::Challenge => self.challenge(
                            number(1).unwrap(),
                            number(2).unwrap(),
                            &key,
                            parts.get(3).copied().unwrap_or("http"),
                        ),
                        Ask::Finalize => self.finalize(number(1).unwrap(), &payload),
                        _ => self.certificate(number(1).unwrap()),
                    },
                },
            },
        };
        if reaction == Reaction::Forget {
            return None;
        }
        let nonce = {
            let mut world = self.world();
            world.given += 1;
            let nonce = format!("nonce-{}", world.given);
            world.nonces.insert(nonce.clone());
            nonce
        };
        answer.headers.push(("Replay-Nonce".into(), nonce));
        Some(answer)
    }

    /// Checks a signed request: the account that sent it, its key, and what it says.
    fn open(
        &self,
        path: &str,
        body: &[u8],
        refuses_nonce: bool,
    ) -> Result<(Option<usize>, Value, Value), Answer> {
        let sent: Value = serde_json::from_slice(body).unwrap();
        let part = |name: &str| sent[name].as_str().unwrap().to_owned();
        let decode = |text: &str| base64::decode(Alphabet::Url, text.as_bytes()).unwrap();
        let protected: Value = serde_json::from_slice(&decode(&part("protected"))).unwrap();
        assert_eq!(protected["url"], self.url(path.trim_start_matches('/')), "the signed url");
        let account = protected["kid"]
            .as_str()
            .map(|kid| kid.rsplit('/').next().unwrap().parse::<usize>().unwrap());
        let mut world = self.world();
        let key = match account {
            Some(number) => match world.accounts.get(number) {
                Some(key) => key.clone(),
                None => return Err(problem(400, "accountDoesNotExist", "no such account")),
            },
            None => protected["jwk"].clone(),
        };
        let nonce = protected["nonce"].as_str().unwrap();
        if !world.nonces.remove(nonce) || refuses_nonce {
            return Err(problem(400, "badNonce", "this nonce was not given, or was used"));
        }
        drop(world);
        let point = |name: &str| decode(key[name].as_str().unwrap());
        let public = [vec![4], point("x"), point("y")].concat();
        let signed = format!("{}.{}", part("protected"), part("payload"));
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, public)
            .verify(signed.as_bytes(), &decode(&part("signature")))
            .expect("the signature is right");
        let payload = decode(&part("payload"));
        let payload = if payload.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&payload).unwrap()
        };
        Ok((account, key, payload))
    }
}

/// Reads a request: method, path, body.
fn request(stream: &mut impl BufRead) -> Option<(String, String, Vec<u8>)> {
    let mut line = String::new();
    stream.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|n| *n > 0)?;
        if line.trim().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((method, path, body))
}
