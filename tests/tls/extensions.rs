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

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig, ServerConnection, SignatureScheme, StreamOwned};
use weir_proto::base64::{self, Alphabet};
use weir_testkit::{Dice, Server, number, seed};

use super::anybody::Anybody;
use super::clients::{ask, programs};
use super::{builder, dir};

/// A value of DER.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let length = match body.len() {
        n @ 0..=0x7f => vec![n as u8],
        n => vec![0x82, (n >> 8) as u8, n as u8],
    };
    [&[tag], length.as_slice(), &body].concat()
}

const SEQUENCE: u8 = 0x30;
const PRINTABLE: u8 = 0x13;
const UTF8: u8 = 0x0c;

/// A name of one common name, written as this type of string.
fn name(tag: u8, text: &str) -> Vec<u8> {
    let attribute = der(SEQUENCE, &[&[6, 3, 0x55, 4, 3], &der(tag, &[text.as_bytes()])]);
    der(SEQUENCE, &[&der(0x31, &[&attribute])])
}

/// What a certificate says before it is signed.
#[derive(Clone)]
struct Draft {
    version: u8,
    serial: u8,
    from: &'static [u8],
    to: &'static [u8],
    subject: Vec<u8>,
    issuer: Vec<u8>,
    /// Each with its identifier, whether it is critical, and its value.
    extensions: Vec<(Vec<u8>, bool, Vec<u8>)>,
}

impl Draft {
    fn new(serial: u8, subject: &str, issuer: &str) -> Draft {
        Draft {
            version: 3,
            serial,
            from: b"200101000000Z",
            to: b"490101000000Z",
            subject: name(UTF8, subject),
            issuer: name(UTF8, issuer),
            extensions: Vec::new(),
        }
    }

    fn authority(mut self) -> Draft {
        self.set(BASIC, true, &CA);
        self.set(USAGE, true, &[3, 2, 1, 6]);
        self
    }

    fn remove(&mut self, oid: &[u8]) {
        self.extensions.retain(|(known, ..)| known != oid);
    }

    fn set(&mut self, oid: &[u8], critical: bool, value: &[u8]) {
        self.remove(oid);
        self.add(oid, critical, value);
    }

    fn add(&mut self, oid: &[u8], critical: bool, value: &[u8]) {
        self.extensions.push((oid.to_vec(), critical, value.to_vec()));
    }

    fn signed(&self, subject_key: &dyn SigningKey, issuer_key: &dyn SigningKey) -> Vec<u8> {
        const ECDSA_SHA256: &[u8] = &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
        let version = match self.version {
            1 => Vec::new(),
            n => der(0xa0, &[&[2, 1, n - 1]]),
        };
        let validity = der(SEQUENCE, &[&der(0x17, &[self.from]), &der(0x17, &[self.to])]);
        let key = subject_key.public_key().unwrap();
        let list: Vec<u8> = self
            .extensions
            .iter()
            .flat_map(|(oid, critical, value)| {
                let critical: &[u8] = if *critical { &[1, 1, 0xff] } else { &[] };
                der(SEQUENCE, &[&der(6, &[oid]), critical, &der(4, &[value])])
            })
            .collect();
        let extensions = match list.is_empty() {
            true => Vec::new(),
            false => der(0xa3, &[&der(SEQUENCE, &[&list])]),
        };
        let serial = [2, 1, self.serial];
        let parts: [&[u8]; 8] = [
            &version,
            &serial,
            ECDSA_SHA256,
            &self.issuer,
            &validity,
            &self.subject,
            key.as_ref(),
            &extensions,
        ];
        let signed = der(SEQUENCE, &parts);
        let signer = issuer_key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]).unwrap();
        let signature = der(3, &[&[0], &signer.sign(&signed).unwrap()]);
        der(SEQUENCE, &[&signed, ECDSA_SHA256, &signature])
    }
}

const BASIC: &[u8] = &[0x55, 0x1d, 19];
const USAGE: &[u8] = &[0x55, 0x1d, 15];
const PURPOSES: &[u8] = &[0x55, 0x1d, 37];
const ALT_NAMES: &[u8] = &[0x55, 0x1d, 17];
const ISSUER_NAMES: &[u8] = &[0x55, 0x1d, 18];
const KEY_ID: &[u8] = &[0x55, 0x1d, 14];
const ISSUER_KEY: &[u8] = &[0x55, 0x1d, 35];
const NAME_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 30];
const LISTS: &[u8] = &[0x55, 0x1d, 31];
const POLICIES: &[u8] = &[0x55, 0x1d, 32];
const MAPPINGS: &[u8] = &[0x55, 0x1d, 33];
const POLICY_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 36];
const ANY_POLICY: &[u8] = &[0x55, 0x1d, 54];
const NETSCAPE: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x86, 0xf8, 0x42, 1, 1];
const PLACES: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 1];
const ADDRESSES: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 7];
const PROXY: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 14];
const NO_CHECK: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 1, 5];
const UNKNOWN: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0x77, 1];

const CA: [u8; 5] = [0x30, 3, 1, 1, 0xff];
const EMPTY: [u8; 2] = [0x30, 0];

/// A change to a certificate.
#[derive(Clone, Copy)]
enum Change {
    /// The extension, critical or not, has this value. `N` in its bytes numbers the case's host.
    Set(&'static [u8], bool, &'static [u8]),
    /// It stands there twice.
    Twice(&'static [u8]),
    /// It is not there.
    Without(&'static [u8]),
    /// Purposes, by the last byte of those of the public web, or all of the identifier.
    For(&'static [&'static [u8]]),
    /// Names of hosts among the other names; none is the host's own.
    Hosts(&'static [&'static str]),
    /// The version, with the extensions or without.
    Version(u8, bool),
    Expired,
    Future,
    /// Its own name or its issuer's is written as another type of string, in other letters.
    SubjectAs(u8),
    IssuerAs(u8),
}

use Change::{Expired, For, Future, Hosts, IssuerAs, Set, SubjectAs, Twice, Version, Without};

const SERVER: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
const CODE: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 3];
const MAIL: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 4];
const OCSP: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 9];
const ANY: &[u8] = &[0x55, 0x1d, 37, 0];
const MICROSOFT: &[u8] = &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 10, 3, 3];
const STEP_UP: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x86, 0xf8, 0x42, 4, 1];

const CHANGES: &[Change] = &[
    Without(BASIC),
    Without(USAGE),
    Twice(BASIC),
    Set(BASIC, true, &CA),
    Set(BASIC, false, &CA),
    Set(BASIC, true, &EMPTY),
    Set(BASIC, true, &[0x30, 6, 1, 1, 0xff, 2, 1, 0]),
    Set(BASIC, true, &[0x30, 6, 1, 1, 0xff, 2, 1, 1]),
    Set(BASIC, true, &[0x30, 9, 1, 1, 0xff, 2, 4, 0x7f, 0, 0, 0]),
    Set(BASIC, true, &[0x30, 3, 2, 1, 0]),
    Set(BASIC, true, &[0x30, 6, 1, 1, 0xff, 2, 1, 0xff]),
    Set(BASIC, true, &[0x30, 3, 4, 1, 0]),
    // Each use of a key alone, none, all, and some.
    Set(USAGE, true, &[3, 2, 7, 0x80]),
    Set(USAGE, true, &[3, 2, 6, 0x40]),
    Set(USAGE, true, &[3, 2, 5, 0x20]),
    Set(USAGE, true, &[3, 2, 4, 0x10]),
    Set(USAGE, true, &[3, 2, 3, 0x08]),
    Set(USAGE, true, &[3, 2, 2, 0x04]),
    Set(USAGE, true, &[3, 2, 1, 0x02]),
    Set(USAGE, true, &[3, 2, 0, 0x01]),
    Set(USAGE, true, &[3, 3, 7, 0, 0x80]),
    Set(USAGE, false, &[3, 2, 2, 0x04]),
    Set(USAGE, false, &[3, 2, 4, 0x10]),
    Set(USAGE, true, &[3, 1, 0]),
    Set(USAGE, true, &[3, 2, 7, 0x7f]),
    Set(USAGE, true, &[3, 3, 7, 0xff, 0x80]),
    Set(USAGE, true, &[3, 2, 2, 0x84]),
    Set(USAGE, true, &[3, 2, 9, 0x80]),
    Set(USAGE, true, &[4, 1, 0x80]),
    Twice(USAGE),
    For(&[CLIENT]),
    For(&[SERVER]),
    For(&[CLIENT, SERVER]),
    For(&[ANY]),
    For(&[CODE]),
    For(&[MAIL]),
    For(&[OCSP]),
    For(&[MICROSOFT]),
    For(&[STEP_UP]),
    For(&[ANY, CLIENT]),
    For(&[&[0x2a, 3]]),
    For(&[]),
    Set(PURPOSES, true, &[0x30, 2, 5, 0]),
    Twice(PURPOSES),
    Set(NETSCAPE, false, &[3, 2, 7, 0x80]),
    Set(NETSCAPE, false, &[3, 2, 6, 0x40]),
    Set(NETSCAPE, true, &[3, 2, 6, 0xc0]),
    Set(NETSCAPE, false, &[3, 2, 5, 0x20]),
    Set(NETSCAPE, false, &[3, 2, 2, 0x04]),
    Set(NETSCAPE, false, &[3, 2, 1, 0x02]),
    Set(NETSCAPE, true, &[3, 2, 0, 0x07]),
    Set(NETSCAPE, false, &[3, 1, 0]),
    Set(NETSCAPE, false, &[5, 0]),
    // Permitted: the host `a`.
    Set(NAME_CONSTRAINTS, true, &[0x30, 7, 0xa0, 5, 0x30, 3, 0x82, 1, b'a']),
    Set(NAME_CONSTRAINTS, false, &[5, 0]),
    Set(POLICIES, true, &[0x30, 8, 0x30, 6, 6, 4, 0x55, 0x1d, 32, 0]),
    Set(POLICIES, true, &[5, 0]),
    Set(MAPPINGS, true, &EMPTY),
    Set(POLICY_CONSTRAINTS, true, &[0x30, 3, 0x80, 1, 0]),
    Set(ANY_POLICY, true, &[2, 1, 0]),
    Set(KEY_ID, false, &[4, 1, 1]),
    Set(KEY_ID, false, &[4, 1, 2]),
    Set(KEY_ID, true, &[4, 1, 1]),
    Set(KEY_ID, false, &[5, 0]),
    Twice(KEY_ID),
    Set(ISSUER_KEY, false, &[0x30, 3, 0x80, 1, 1]),
    Set(ISSUER_KEY, false, &[0x30, 3, 0x80, 1, 2]),
    Set(ISSUER_KEY, true, &[0x30, 3, 0x80, 1, 1]),
    Set(ISSUER_KEY, false, &[0x30, 3, 0x82, 1, 1]),
    Set(ISSUER_KEY, false, &[0x30, 3, 0x82, 1, 9]),
    // The issuer's issuer is called `a`.
    Set(
        ISSUER_KEY,
        false,
        &[
            0x30, 18, 0xa1, 16, 0xa4, 14, 0x30, 12, 0x31, 10, 0x30, 8, 6, 3, 0x55, 4, 3, 0x0c, 1,
            b'a',
        ],
    ),
    Set(ISSUER_KEY, false, &EMPTY),
    Set(ISSUER_KEY, false, &[5, 0]),
    Hosts(&[""]),
    Hosts(&["other.test"]),
    Hosts(&["other.test", ""]),
    Hosts(&["*.test"]),
    Set(ALT_NAMES, false, &[0x30, 6, 0x87, 4, 127, 0, 0, 1]),
    Set(ALT_NAMES, true, &[0x30, 3, 0x81, 1, b'a']),
    Set(ALT_NAMES, true, &[0x30, 3, 0x86, 1, b'a']),
    Set(ALT_NAMES, false, &EMPTY),
    Set(ALT_NAMES, false, &[0x30, 3, 0x8f, 1, b'a']),
    Set(ALT_NAMES, false, &[5, 0]),
    Set(ISSUER_NAMES, true, &[0x30, 3, 0x82, 1, b'a']),
    Set(LISTS, true, &[0x30, 11, 0x30, 9, 0xa0, 7, 0xa0, 5, 0x86, 3, b'a', b':', b'b']),
    Set(LISTS, false, &[0x30, 2, 0x30, 0]),
    Set(LISTS, false, &[5, 0]),
    Set(PLACES, true, &EMPTY),
    Set(PLACES, false, &[5, 0]),
    Set(ADDRESSES, true, &[0x30, 8, 0x30, 6, 4, 2, 0, 1, 5, 0]),
    Set(PROXY, true, &[0x30, 12, 0x30, 10, 6, 8, 0x2b, 6, 1, 5, 5, 7, 21, 1]),
    Set(NO_CHECK, true, &[5, 0]),
    Set(UNKNOWN, true, &[5, 0]),
    Set(UNKNOWN, false, &[5, 0]),
    Version(1, false),
    Version(1, true),
    Version(2, true),
    Expired,
    Future,
    SubjectAs(PRINTABLE),
    IssuerAs(PRINTABLE),
    SubjectAs(0x16),
];

impl Change {
    fn apply(self, draft: &mut Draft, names: [&str; 2]) {
        match self {
            Set(oid, critical, value) => draft.set(oid, critical, value),
            Twice(oid) => {
                let known = draft.extensions.iter().find(|(known, ..)| known == oid);
                let value = known.map_or(EMPTY.to_vec(), |(.., value)| value.clone());
                draft.set(oid, false, &value);
                draft.add(oid, false, &value);
            }
            Without(oid) => draft.remove(oid),
            For(purposes) => {
                let list: Vec<u8> = purposes.iter().flat_map(|oid| der(6, &[oid])).collect();
                draft.set(PURPOSES, false, &der(SEQUENCE, &[&list]));
            }
            Hosts(hosts) => {
                let host = |host: &&str| if host.is_empty() { names[0] } else { *host }.to_owned();
                let list = hosts.iter().flat_map(|name| der(0x82, &[host(name).as_bytes()]));
                let list: Vec<u8> = list.collect();
                draft.set(ALT_NAMES, false, &der(SEQUENCE, &[&list]));
            }
            Version(version, with) => {
                draft.version = version;
                draft.extensions.retain(|_| with);
            }
            Expired => draft.to = b"210101000000Z",
            Future => draft.from = b"480101000000Z",
            SubjectAs(tag) => draft.subject = name(tag, &names[0].to_uppercase()),
            IssuerAs(tag) => draft.issuer = name(tag, &format!(" {}", names[1].to_uppercase())),
        }
    }
}

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
