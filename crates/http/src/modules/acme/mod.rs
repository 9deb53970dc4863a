//! Obtains and renews certificates from an ACME server at run time. nginx: ngx_http_acme_module.
//!
//! The threads of the crate `weir-acme` do that. This module has the directives, the variables that
//! name the newest certificate, and the answers to `http-01` challenges.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use weir_acme::{CertificateOrder, Challenge, KeyKind, challenge_file, identifier};
use weir_conf::{Contexts, Directive as Line, Error, Spot, values};
use weir_engine::Boxed;
use weir_proto::http1::Method;
use weir_tls::{Identity, ReplaceableIdentity};

use crate::config::Setup;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::modules::ssl;
use crate::names::ServerName;
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::settings::{Key, LocationConf, Settings};

mod dns;
mod issuer;

use issuer::SharedZone;
pub use issuer::{ISSUERS, issuers};

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// `acme_certificate`, as written.
    wanted: Option<Arc<Wanted>>,
    /// The certificate that `acme_certificate` requests.
    order: Option<Arc<CertificateOrder>>,
    /// The directories with answers to challenges: those of all issuers that use `http-01`.
    directories: Option<Arc<[PathBuf]>>,
}

impl Settings for Conf {}

/// `acme_certificate ISSUER [IDENTIFIER ...] [key=KIND]`
#[derive(Debug)]
struct Wanted {
    issuer: String,
    identifiers: Vec<String>,
    key: KeyKind,
    at: Spot,
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "acme_issuer",
        help: "An ACME server that certificates are asked of: `uri`, `contact`, `account_key`, `challenge`, \
               `external_account_key`, `preferred_chain`, `profile`, `ssl_trusted_certificate`, `ssl_verify`, `state_path`, \
               `common_name_in_csr`, `accept_terms_of_service`; for proofs by DNS `dns_hook`, `dns_hook_timeout`, \
               `dns_update`, `dns_wait`, `dns_resolver`.",
        set: Set::Simple(issuer::read),
    },
    Directive {
        name: "acme_shared_zone",
        help: "Shared memory for the state of each certificate, `zone=ngx_acme_shared:256k` by default. The certificates themselves are in the `state_path`.",
        set: Set::Simple(shared_zone),
    },
    Directive {
        name: "acme_certificate",
        help: "Requests a certificate from an issuer, for these names or those of `server_name`. Without `ssl_certificate` the server uses it.",
        set: Set::Simple(certificate),
    },
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_acme", directives: DIRECTIVES, init, finish };

/// The variables that `ssl_certificate` and `ssl_certificate_key` may name.
const CERTIFICATE: &str = "acme_certificate";
const CERTIFICATE_KEY: &str = "acme_certificate_key";

fn init(setup: &mut Setup<'_>) {
    setup.variables.define(CERTIFICATE, file);
    setup.variables.define(CERTIFICATE_KEY, file);
}

/// The file with the newest certificate of the server. It has the chain and the key.
fn file(r: &mut Request, out: &mut Vec<u8>) -> bool {
    let order = CONF.of(r.conf()).order.as_ref();
    let Some(file) = order.and_then(|order| order.file()) else { return false };
    out.extend_from_slice(&file);
    true
}

/// The prefix of the URIs that ACME servers request for `http-01` challenges.
const PREFIX: &[u8] = b"/.well-known/acme-challenge/";

/// Whether a server may be asked for the answer to a challenge.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).directories.is_some()
}

/// Post-read phase: answers a challenge before any other directive applies.
pub fn handler(r: &mut Request) -> Answer<'_> {
    let token = r.path.strip_prefix(PREFIX).filter(|_| r.is_main());
    let directories = CONF.of(r.conf()).directories.as_ref();
    let (Some(token), Some(directories)) = (token, directories) else {
        return Answer::Now(Step::Next);
    };
    let paths = directories.iter().map(|directory| challenge_file(directory, token));
    let paths: Option<Vec<PathBuf>> = paths.collect();
    match paths.filter(|_| matches!(r.method, Method::Get | Method::Head)) {
        Some(paths) => Answer::Later(Boxed::new(move || answer(r, paths))),
        None => Answer::Now(Step::Next),
    }
}

#[expect(clippy::disallowed_methods, reason = "the path is a token in a directory of weir's own")]
async fn answer(r: &mut Request, paths: Vec<PathBuf>) -> Step {
    let read = move || paths.iter().find_map(|path| std::fs::read(path).ok());
    let Ok(Some(answer)) = r.event_loop.handle.files().run(read).await else { return Step::Next };
    r.response.status = 200;
    r.response.set_type(b"text/plain");
    Step::Respond(answer.into())
}

/// Called when all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    if s.context == Contexts::HTTP {
        let directories = ISSUERS.draft(&mut s.setup.drafts).directories();
        if !directories.is_empty() {
            CONF.change(&mut s.location).directories = Some(directories.into());
        }
        return Ok(());
    }
    if s.context != Contexts::SERVER {
        return Ok(());
    }
    let order = match CONF.of(&s.location).wanted.clone() {
        Some(wanted) => Some(place(s, &wanted)?),
        None => None,
    };
    let (chain, key) = (format!("${CERTIFICATE}"), format!("${CERTIFICATE_KEY}"));
    let conf = ssl::CONF.of(&s.location);
    match order {
        Some((order, at)) => {
            CONF.change(&mut s.location).order = Some(order.clone());
            let conf = ssl::CONF.change(&mut s.location);
            if !conf.has_certificates() {
                conf.add_certificate(chain.as_bytes(), key.as_bytes(), at);
            }
            if conf.has_only(chain.as_bytes(), key.as_bytes()) {
                conf.keep_files();
                let replaceable = Arc::new(ReplaceableIdentity::default());
                order.given_to(&replaceable, |replaceable: &ReplaceableIdentity, pem| {
                    // If the file cannot be loaded, the first handshake over TCP logs why.
                    if let Ok(identity) = Identity::load(pem, pem, &[]) {
                        replaceable.put(identity);
                    }
                });
                conf.serve_replaceable(replaceable);
            }
        }
        None => {
            if let Some(at) = conf.names_file(chain.as_bytes()) {
                let text = format!(
                    "\"{chain}\" is empty in a server without \"acme_certificate\": its handshakes will fail"
                );
                s.setup.warnings.push(at.warning(text));
            }
        }
    }
    Ok(())
}

/// Requests the certificate from its issuer.
fn place(s: &mut Scope<'_, '_>, wanted: &Wanted) -> Result<(Arc<CertificateOrder>, Spot), Error> {
    let mut identifiers = wanted.identifiers.clone();
    if identifiers.is_empty() {
        for name in &s.server.names {
            let text = match name {
                ServerName::Regex(_) => {
                    let text =
                        "\"acme_certificate\": unsupported regular expression in server_name";
                    s.setup.warnings.push(wanted.at.warning(text));
                    continue;
                }
                ServerName::Exact(name) if matches!(&name[..], b"" | b"_") => continue,
                ServerName::Exact(name) | ServerName::Bad(name) => name.clone(),
                ServerName::Head(rest) => [b"*.", &rest[..]].concat(),
                ServerName::Both(rest) => [b".", &rest[..]].concat(),
                ServerName::Tail(start) => [&start[..], b".*"].concat(),
            };
            identifiers.push(String::from_utf8_lossy(&text).into_owned());
        }
    }
    let mut names: Vec<String> = Vec::new();
    for text in &identifiers {
        let found = identifier(text).map_err(|why| {
            wanted.at.error(format!("\"acme_certificate\": invalid identifier \"{text}\": {why}"))
        })?;
        for name in found {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    if names.is_empty() {
        let text = "\"acme_certificate\": no identifiers found in \"server_name\"";
        return Err(wanted.at.error(text));
    }
    // Authorities reject an order with a name that a wildcard in the same order covers.
    let all = names.clone();
    let covers = |name: &str| name.split_once('.').map(|(_, above)| format!("*.{above}"));
    names.retain(|name| {
        name.starts_with("*.") || covers(name).is_none_or(|wildcard| !all.contains(&wildcard))
    });
    let challenge = ISSUERS.read_so_far(&s.setup.drafts).challenge(&wanted.issuer);
    for name in names.iter().filter(|_| challenge.is_some()) {
        let takes = |f: fn(Challenge) -> bool| challenge.is_some_and(f);
        let why = match () {
            () if name.starts_with("*.") && !takes(Challenge::takes_wildcards) => {
                "a wildcard needs the challenge dns-01 or dns-persist-01"
            }
            () if name.parse::<IpAddr>().is_ok() && !takes(Challenge::takes_addresses) => {
                "an address needs the challenge http-01 or tls-alpn-01"
            }
            () => continue,
        };
        let text = format!("\"acme_certificate\": invalid identifier \"{name}\": {why}");
        return Err(wanted.at.error(text));
    }
    let order = CertificateOrder::new(names, wanted.key);
    let placed = s.setup.drafts.unnoted(|all| ISSUERS.draft(all).place(&wanted.issuer, order));
    let missing = || wanted.at.error(format!("issuer \"{}\" is missing", wanted.issuer));
    Ok((placed.ok_or_else(missing)?, wanted.at))
}

/// `acme_certificate`
fn certificate(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(first) = d.arg(0) else { return Ok(()) };
    if first.bytes.is_empty() {
        return Err(d.problem("\"issuer\" is missing"));
    }
    let (mut identifiers, mut key) = (Vec::new(), KeyKind::default());
    for word in d.args.iter().skip(1) {
        if let Some(kind) = word.bytes.strip_prefix(b"key=") {
            let kinds = "it may be: ecdsa:256, ecdsa:384, ecdsa:521, rsa:2048, rsa:3072, rsa:4096";
            let kind = KeyKind::parse(kind);
            key = kind.ok_or_else(|| d.invalid("\"key\" value", word).hint(kinds))?;
        } else {
            identifiers.push(word.lossy().into_owned());
        }
    }
    let (issuer, at) = (first.lossy().into_owned(), Spot::new(d, first));
    let wanted = Wanted { issuer, identifiers, key, at };
    CONF.change(&mut s.location).wanted = Some(Arc::new(wanted));
    Ok(())
}

/// The smallest zone that nginx's slab allocator accepts: eight pages.
const SMALLEST_ZONE: u64 = 8 * 4096;

/// `acme_shared_zone zone=NAME:SIZE`
fn shared_zone(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some((word, zone)) =
        d.arg(0).and_then(|word| Some((word, word.bytes.strip_prefix(b"zone=")?)))
    else {
        return Err(d.problem("must have \"zone\" parameter"));
    };
    let shown = String::from_utf8_lossy(zone).into_owned();
    let parts = zone.iter().position(|b| *b == b':').and_then(|at| zone.split_at_checked(at));
    let parts = parts.and_then(|(name, size)| Some((name, values::size(size.get(1..)?)?)));
    let Some((name, size)) = parts.filter(|(name, _)| !name.is_empty()) else {
        return Err(d.error_at(word, format!("invalid zone size \"{shown}\"")));
    };
    let name = String::from_utf8_lossy(name).into_owned();
    if size < SMALLEST_ZONE {
        return Err(d.error_at(word, format!("zone \"{name}\" is too small")));
    }
    let zone = SharedZone { name, size, at: Spot::new(d, word) };
    ISSUERS.draft(&mut s.setup.drafts).keep_in(zone);
    Ok(())
}
