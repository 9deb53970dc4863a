//! An ACME server for tests: it checks signatures and nonces, asks for answers over HTTP, and fails when it is told to.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, ServerConnection,
    SignatureScheme, StreamOwned,
};
use serde_json::{Value, json};
use weir_proto::base64::{self, Alphabet};
use weir_testkit::{Dir, PATIENCE, ask_until, listen};

use crate::names::NameServer;

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
    account: usize,
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
                        Ask::NewOrder => self.new_order(account.unwrap(), &payload),
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

    fn directory(&self) -> Answer {
        ok(json!({
            "newNonce": self.url("nonce"),
            "newAccount": self.url("account"),
            "newOrder": self.url("order"),
            "renewalInfo": self.url("renewal"),
        }))
    }

    fn renewal(&self) -> Answer {
        let window = json!({"start": "2000-01-01T00:00:00Z", "end": "2000-01-02T00:00:00Z"});
        let mut answer = ok(json!({"suggestedWindow": window}));
        answer.headers.push(("Retry-After".into(), "21600".into()));
        answer
    }

    fn new_account(&self, key: &Value, payload: &Value) -> Answer {
        if payload["termsOfServiceAgreed"] != true {
            return problem(
                403,
                "userActionRequired",
                "the terms at https://terms.example are to be accepted",
            );
        }
        let mut world = self.world();
        let known = world.accounts.iter().position(|known| known == key);
        let number = known.unwrap_or_else(|| {
            world.accounts.push(key.clone());
            world.accounts.len() - 1
        });
        let mut answer = ok(json!({"status": "valid"}));
        answer.status = if known.is_some() { 200 } else { 201 };
        answer.headers.push(("Location".into(), self.url(&format!("account/{number}"))));
        answer
    }

    fn new_order(&self, account: usize, payload: &Value) -> Answer {
        let names = payload["identifiers"].as_array().unwrap().clone();
        let mut world = self.world();
        let number = world.orders.len();
        let authorizations = (0..names.len()).map(|at| Authorization {
            status: "pending",
            token: format!("token-{number}-{at}"),
            error: None,
        });
        let order = Order {
            status: "pending",
            account,
            authorizations: authorizations.collect(),
            names,
            chain: None,
            error: None,
        };
        world.orders.push(order);
        drop(world);
        let mut answer = self.show(number);
        answer.status = 201;
        answer.headers.push(("Location".into(), self.url(&format!("order/{number}"))));
        answer
    }

    fn show(&self, number: usize) -> Answer {
        let mut world = self.world();
        let Some(order) = world.orders.get_mut(number) else {
            return problem(404, "malformed", "no such order");
        };
        let _ = order.account;
        let authorizations =
            (0..order.names.len()).map(|at| self.url(&format!("authz/{number}/{at}")));
        let mut shown = json!({
            "status": order.status,
            "identifiers": order.names,
            "authorizations": authorizations.collect::<Vec<_>>(),
            "finalize": self.url(&format!("finalize/{number}")),
        });
        if order.status == "valid" {
            shown["certificate"] = self.url(&format!("cert/{number}")).into();
        }
        if let Some(error) = &order.error {
            shown["error"] = error.clone();
        }
        if order.status == "processing" {
            order.status = "valid";
        }
        ok(shown)
    }

    fn authorization(&self, number: usize, at: usize) -> Answer {
        let world = self.world();
        let order = &world.orders[number];
        let own = &order.authorizations[at];
        let mut challenge = json!({
            "type": "http-01",
            "status": own.status,
            "url": self.url(&format!("challenge/{number}/{at}")),
            "token": own.token,
        });
        if let Some(error) = &own.error {
            challenge["error"] = error.clone();
        }
        let of = |kind: &str, path: &str| {
            let mut other = challenge.clone();
            other["type"] = kind.into();
            other["url"] = self.url(&format!("challenge/{number}/{at}/{path}")).into();
            other
        };
        let (dns, tls) = (of("dns-01", "dns"), of("tls-alpn-01", "tls"));
        let mut persist = of("dns-persist-01", "persist");
        persist.as_object_mut().unwrap().remove("token");
        persist["issuer-domain-names"] = json!(["authority.test"]);
        let name = order.names[at]["value"].as_str().unwrap();
        let mut identifier = order.names[at].clone();
        let wildcard = name.strip_prefix("*.");
        if let Some(rest) = wildcard {
            identifier["value"] = rest.into();
        }
        ok(json!({
            "status": own.status,
            "identifier": identifier,
            "wildcard": wildcard.is_some(),
            "challenges": match wildcard {
                Some(_) => vec![dns, persist],
                None => vec![dns, challenge, persist, tls],
            },
        }))
    }

    /// Asks for the answer at once.
    fn challenge(&self, number: usize, at: usize, key: &Value, kind: &str) -> Answer {
        let (token, name) = {
            let world = self.world();
            let order = &world.orders[number];
            (
                order.authorizations[at].token.clone(),
                order.names[at]["value"].as_str().unwrap().to_owned(),
            )
        };
        let canonical =
            format!(r#"{{"crv":"P-256","kty":"EC","x":{},"y":{}}}"#, key["x"], key["y"]);
        let mut thumbprint = Vec::new();
        base64::encode(
            Alphabet::Url,
            digest(&SHA256, canonical.as_bytes()).as_ref(),
            &mut thumbprint,
        );
        let wanted = format!("{token}.{}", String::from_utf8(thumbprint).unwrap());
        let hash = digest(&SHA256, wanted.as_bytes());
        let (is_right, found) = match kind {
            "dns" | "persist" => {
                let name = name.trim_start_matches("*.");
                let prefix = if kind == "dns" { "_acme-challenge" } else { "_validation-persist" };
                let mut value = Vec::new();
                base64::encode(Alphabet::Url, hash.as_ref(), &mut value);
                let value = String::from_utf8(value).unwrap();
                let found = self.names.get().unwrap().texts(&format!("{prefix}.{name}"));
                (kind == "persist" && !found.is_empty() || found.contains(&value), None)
            }
            _ => {
                assert!(
                    ask_until(|| self.web.load(Ordering::SeqCst) != 0),
                    "no test says where it asks"
                );
                let web = self.web.load(Ordering::SeqCst);
                match kind {
                    "tls" => (shows(web, &name, hash.as_ref()), None),
                    _ => {
                        let found = fetch(web, &name, &token);
                        (found.as_deref() == Some(&wanted), found)
                    }
                }
            }
        };
        let mut world = self.world();
        let order = &mut world.orders[number];
        let own = &mut order.authorizations[at];
        let mut shown = json!({
            "type": "http-01",
            "status": if is_right { "valid" } else { "invalid" },
            "url": self.url(&format!("challenge/{number}/{at}")),
            "token": own.token,
        });
        if is_right {
            own.status = "valid";
        } else {
            let error = json!({
                "type": "urn:ietf:params:acme:error:unauthorized",
                "detail": format!("found {found:?}"),
            });
            shown["status"] = "processing".into();
            (own.status, own.error, order.status) = ("invalid", Some(error), "invalid");
        }
        if order.authorizations.iter().all(|own| own.status == "valid") {
            order.status = "ready";
        }
        ok(shown)
    }

    fn finalize(&self, number: usize, payload: &Value) -> Answer {
        let csr = payload["csr"].as_str().unwrap();
        let csr = base64::decode(Alphabet::Url, csr.as_bytes()).unwrap();
        let mut csr = CertificateSigningRequestParams::from_der(&csr.into()).unwrap();
        let now = std::time::SystemTime::now();
        csr.params.not_before = (now - Duration::from_secs(60)).into();
        csr.params.not_after = (now + Duration::from_secs(90 * 86400)).into();
        csr.params.use_authority_key_identifier_extension = true;
        let mut world = self.world();
        let order = &mut world.orders[number];
        if order.status != "ready" {
            return problem(403, "orderNotReady", order.status);
        }
        let wanted: BTreeMap<String, ()> = order
            .names
            .iter()
            .map(|name| (name["value"].as_str().unwrap().to_owned(), ()))
            .collect();
        assert_eq!(csr.params.subject_alt_names.len(), wanted.len(), "the names of the request");
        let leaf = csr.signed_by(&self.issuer).unwrap();
        order.chain = Some(leaf.pem() + &self.root);
        order.status = if self.is_slow.load(Ordering::SeqCst) { "processing" } else { "valid" };
        drop(world);
        self.show(number)
    }

    fn certificate(&self, number: usize) -> Answer {
        let world = self.world();
        let body = world.orders[number].chain.clone().unwrap();
        Answer { status: 200, headers: vec![], kind: "application/pem-certificate-chain", body }
    }
}

fn ok(body: Value) -> Answer {
    Answer { status: 200, headers: vec![], kind: "application/json", body: body.to_string() }
}

fn problem(status: u16, kind: &str, detail: &str) -> Answer {
    let body = json!({"type": format!("urn:ietf:params:acme:error:{kind}"), "detail": detail, "status": status});
    Answer { status, headers: vec![], kind: "application/problem+json", body: body.to_string() }
}

/// Asks a web server for the answer to a challenge.
fn fetch(port: u16, name: &str, token: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let path = format!("/.well-known/acme-challenge/{token}");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
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

/// Whether a server shows the proof for a name over TLS: by the protocol for it, with the digest in the extension for it.
fn shows(port: u16, name: &str, digest: &[u8]) -> bool {
    const PE_ACME: [u8; 10] = [6, 8, 0x2b, 6, 1, 5, 5, 7, 1, 31];
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let anyone = Arc::new(Anyone(provider));
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(anyone).with_no_client_auth();
    config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    while connection.is_handshaking() {
        if connection.complete_io(&mut stream).is_err() {
            return false;
        }
    }
    let leaf = connection.peer_certificates().unwrap()[0].to_vec();
    let has = |bytes: &[u8]| leaf.windows(bytes.len()).any(|part| part == bytes);
    connection.alpn_protocol() == Some(b"acme-tls/1") && has(&PE_ACME) && has(digest)
}

/// Believes any certificate: what counts is its extension, which is critical and unknown to rustls.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
