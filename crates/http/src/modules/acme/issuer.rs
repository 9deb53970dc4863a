//! `acme_issuer NAME { }`

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use weir_acme::{
    AccountKey, CertificateOrder, Challenge, Dns, ExternalAccount, Issuer, KeyKind, Profile,
    Standings, Trust,
};
use weir_conf::{Directive, Error, Spot, Word};
use weir_proto::base64::{self, Alphabet};
use weir_upstream::config::Url;

use super::dns;
use crate::config::Setup;
use crate::config::known::digest;
use crate::config::scope::Scope;
use crate::site::Site;
use crate::site::main_conf::{BlockEnd, MainDraft, MainKey, Uses};

/// The issuers and certificates of the configuration that is being read.
#[derive(Debug, Default)]
pub struct Issuers {
    list: Vec<Issuer>,
    /// `acme_shared_zone`
    zone: Option<SharedZone>,
    /// The requested certificates, by issuer name and certificate id.
    placed: Orders,
    /// The certificates of the previous site. An equal certificate of the same issuer continues the
    /// old one.
    before: Orders,
    /// The issuer name and certificate of each `acme_certificate` in the server that is being read.
    noted: Vec<(String, Arc<CertificateOrder>)>,
}

type Orders = HashMap<(String, String), Arc<CertificateOrder>>;

/// `acme_shared_zone zone=NAME:SIZE`
#[derive(Debug)]
pub struct SharedZone {
    /// The name of the zone.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// The place of the directive.
    pub at: Spot,
}

/// The name of the zone without `acme_shared_zone`.
const ZONE: &str = "ngx_acme_shared";
const ZONE_SIZE: u64 = 256 << 10;

/// The issuers of the site.
pub static ISSUERS: MainKey<Issuers> = MainKey::new();

/// The issuers of a site, with the certificates requested from each.
pub fn issuers(site: &Site) -> &[Arc<Issuer>] {
    ISSUERS.of(&site.main_confs)
}

impl MainDraft for Issuers {
    type MainConf = Vec<Arc<Issuer>>;

    fn finish(mut self, end: &mut BlockEnd<'_>) -> Result<Vec<Arc<Issuer>>, Error> {
        let wanted = self.list.iter().map(|issuer| issuer.orders.len()).sum::<usize>();
        let standings = match self.zone {
            Some(zone) => {
                if Standings::capacity(zone.size) < wanted {
                    let (name, at) = (&zone.name, zone.at);
                    let text = format!("zone \"{name}\" is too small for {wanted} certificates");
                    return Err(at.error(text));
                }
                let declared = Standings::declare(end.zones, &zone.name, zone.size);
                Some(declared.map_err(|why| zone.at.error(why))?)
            }
            None if self.list.is_empty() => None,
            // The zone exists even without certificates. Running workers take a new configuration,
            // but cannot open a new zone for its first certificate.
            None => {
                let mut size = ZONE_SIZE;
                while Standings::capacity(size) < wanted {
                    size *= 2;
                }
                Some(Standings::declare(end.zones, ZONE, size).map_err(Error::emerg)?)
            }
        };
        for issuer in &mut self.list {
            issuer.standings.clone_from(&standings);
        }
        Ok(self.list.into_iter().map(Arc::new).collect())
    }

    fn number_as(&mut self, before: &Vec<Arc<Issuer>>) {
        let orders = before.iter().flat_map(|issuer| {
            let key = |order: &CertificateOrder| (issuer.name.clone(), order.id.clone());
            issuer.orders.iter().map(move |order| (key(order), Arc::clone(order)))
        });
        self.before = orders.collect();
    }

    fn note(&mut self) {
        self.noted.clear();
    }

    fn noted(&mut self) -> Option<Uses> {
        let noted = std::mem::take(&mut self.noted);
        (!noted.is_empty()).then(|| Box::new(noted) as Uses)
    }

    fn repeat(&mut self, uses: &Uses) {
        let uses = uses.downcast_ref::<Vec<(String, Arc<CertificateOrder>)>>();
        for (name, order) in uses.into_iter().flatten() {
            self.want(name, Arc::clone(order));
        }
    }
}

impl Issuers {
    /// The directories with the answers to challenges of the issuers that use `http-01`.
    pub fn directories(&self) -> Vec<PathBuf> {
        let over_http = self.list.iter().filter(|issuer| issuer.challenge == Challenge::Http);
        over_http.map(|issuer| issuer.directory.clone()).collect()
    }

    /// The challenge type of an issuer.
    pub fn challenge(&self, name: &str) -> Option<Challenge> {
        Some(self.list.iter().find(|issuer| issuer.name == name)?.challenge)
    }

    /// Sets `acme_shared_zone`.
    pub fn keep_in(&mut self, zone: SharedZone) {
        self.zone = Some(zone);
    }

    /// Requests a certificate from an issuer. Equal requests share one order, also with the
    /// previous site. `None` if there is no such issuer.
    pub fn place(&mut self, name: &str, order: CertificateOrder) -> Option<Arc<CertificateOrder>> {
        let key = (name.to_owned(), order.id.clone());
        let known = self.placed.get(&key).or_else(|| self.before.get(&key));
        let order = known.map_or_else(|| Arc::new(order), Arc::clone);
        self.want(name, Arc::clone(&order))?;
        self.noted.push((name.to_owned(), Arc::clone(&order)));
        Some(order)
    }

    fn want(&mut self, name: &str, order: Arc<CertificateOrder>) -> Option<()> {
        let issuer = self.list.iter_mut().find(|issuer| issuer.name == name)?;
        let key = (name.to_owned(), order.id.clone());
        if self.placed.insert(key, Arc::clone(&order)).is_none() {
            issuer.orders.push(order);
        }
        Some(())
    }
}

/// The lines of a block, with the minimum and maximum number of arguments.
const LINES: &[(&str, usize, usize)] = &[
    ("uri", 1, 1),
    ("account_key", 1, 1),
    ("challenge", 1, 1),
    ("common_name_in_csr", 1, 1),
    ("contact", 1, 1),
    ("dns_hook", 1, usize::MAX),
    ("dns_hook_timeout", 1, 1),
    ("dns_resolver", 1, 8),
    ("dns_update", 1, 3),
    ("dns_wait", 1, 9),
    ("external_account_key", 2, 2),
    ("preferred_chain", 1, 1),
    ("profile", 1, 2),
    ("ssl_trusted_certificate", 1, 1),
    ("ssl_verify", 1, 1),
    ("state_path", 1, 1),
    ("accept_terms_of_service", 0, 0),
];

/// Reads an `acme_issuer` block.
pub fn read(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let setup = &mut *s.setup;
    let name = d.arg(0).map(|word| word.lossy().into_owned()).unwrap_or_default();
    if ISSUERS.draft(&mut setup.drafts).list.iter().any(|known| known.name == name) {
        return Err(d.problem("is duplicate"));
    }
    let read_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut issuer = Issuer {
        directory: setup.path(format!("acme_{name}").as_bytes()),
        name,
        uri: String::new(),
        contacts: Vec::new(),
        account_key: AccountKey::Generated(KeyKind::P256),
        challenge: Challenge::default(),
        dns: Dns::default(),
        external: None,
        profile: None,
        preferred_chain: None,
        accepts_terms: false,
        trust: Trust::Anyone,
        common_name: false,
        orders: Vec::new(),
        digest: digest([d]),
        read_at: i64::try_from(read_at.as_secs()).unwrap_or(i64::MAX),
        standings: None,
    };
    let (mut seen, mut trusted, mut verifies, mut timeout) = (Vec::new(), None, true, None);
    for line in d.block() {
        let name = line.name.lossy();
        let Some((known, least, most)) = LINES.iter().find(|(known, ..)| *known == name) else {
            return Err(line.error(format!("unknown directive \"{name}\" in \"acme_issuer\"")));
        };
        if !(*least..=*most).contains(&line.args.len()) {
            let text = format!("invalid number of arguments in \"{name}\"");
            return Err(line.error(text));
        }
        if seen.contains(known) && *known != "contact" {
            return Err(line.problem("is duplicate"));
        }
        seen.push(known);
        match (*known, line.arg(0)) {
            ("ssl_verify", _) => verifies = line.flag()?,
            ("ssl_trusted_certificate", Some(word)) => trusted = Some((line, word)),
            ("dns_hook_timeout", _) => timeout = Some(line),
            (known, Some(word)) if known.starts_with("dns_") => {
                dns::set(&mut issuer, setup, line, word)?;
            }
            (known, word) => set(&mut issuer, setup, line, (known, word))?,
        }
    }
    if issuer.uri.is_empty() {
        return Err(d.error("acme_issuer: \"uri\" is missing"));
    }
    dns::finish(&mut issuer, d, timeout)?;
    if verifies && issuer.uri.starts_with("https:") {
        issuer.trust = Trust::Anchors(anchors(setup, d, trusted)?);
    }
    if issuer.challenge == Challenge::TlsAlpn {
        setup.tls_challenges.push(issuer.directory.clone());
    }
    let known = &mut ISSUERS.draft(&mut setup.drafts).list;
    if let Some(other) = known.iter().find(|other| other.directory == issuer.directory) {
        let text = format!("acme_issuer: \"{}\" has the same \"state_path\"", other.name);
        return Err(d.error(text));
    }
    known.push(issuer);
    Ok(())
}

fn set(
    issuer: &mut Issuer,
    setup: &mut Setup<'_>,
    line: &Directive,
    (name, word): (&str, Option<&Word>),
) -> Result<(), Error> {
    let Some(word) = word else {
        issuer.accepts_terms = true;
        return Ok(());
    };
    let text = word.lossy().into_owned();
    match name {
        "uri" => issuer.uri = uri(setup, line, word)?,
        "contact" => issuer.contacts.push(contact(line, word)?),
        "account_key" => issuer.account_key = account_key(setup, line, word)?,
        "external_account_key" => issuer.external = Some(external(setup, line)?),
        "common_name_in_csr" => issuer.common_name = line.flag()?,
        "profile" => {
            let required = line.arg(1).map(|word| word.bytes.as_slice());
            if required.is_some_and(|word| word != b"require") {
                return Err(line.problem("invalid value").hint("it may be: NAME, NAME require"));
            }
            issuer.profile = Some(Profile { name: text, required: required.is_some() });
        }
        "challenge" => match text.as_str() {
            "http" | "http-01" => {}
            "tls-alpn" | "tls-alpn-01" => issuer.challenge = Challenge::TlsAlpn,
            "dns" | "dns-01" => issuer.challenge = Challenge::Dns,
            "dns-persist" | "dns-persist-01" => issuer.challenge = Challenge::DnsPersist,
            _ => return Err(line.error_at(word, format!("unsupported challenge: {text}"))),
        },
        "preferred_chain" => issuer.preferred_chain = Some(text),
        "state_path" if text == "off" => {
            let why = "weir keeps certificates in files, \"state_path\" cannot be \"off\"";
            return Err(line.error_at(word, why));
        }
        _ => issuer.directory = setup.path(word.bytes.strip_suffix(b"/").unwrap_or(&word.bytes)),
    }
    Ok(())
}

/// `uri https://HOST[:PORT]/PATH`
fn uri(setup: &mut Setup<'_>, line: &Directive, word: &Word) -> Result<String, Error> {
    let text = word.lossy().into_owned();
    let (https, http) = (text.strip_prefix("https://"), text.strip_prefix("http://"));
    let Some(rest) = https.or(http) else {
        return Err(
            line.error_at(word, format!("invalid \"uri\" \"{text}\": it begins with https://"))
        );
    };
    let parsed = Url::parse(rest.as_bytes(), true);
    let parsed =
        parsed.map_err(|why| line.error_at(word, format!("{why} in \"uri\" \"{text}\"")))?;
    if parsed.host.is_empty() || !rest.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(line.error_at(word, format!("invalid \"uri\" \"{text}\"")));
    }
    if http.is_some() {
        let why =
            "an ACME server without TLS: anyone on the way can get certificates for these names";
        setup.warnings.push(line.warning(why).mark(word.pos));
    }
    Ok(text)
}

/// A contact as a URL. Without a scheme it is a mail address.
fn contact(line: &Directive, word: &Word) -> Result<String, Error> {
    let text = word.lossy();
    if text.is_empty() || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(line.problem("invalid value"));
    }
    let scheme = text.split_once(':').map(|(scheme, _)| scheme);
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    Ok(match scheme.is_some_and(is_scheme) {
        true => text.into_owned(),
        false => format!("mailto:{text}"),
    })
}

/// `account_key ALGORITHM[:SIZE] | FILE`
fn account_key(setup: &mut Setup<'_>, line: &Directive, word: &Word) -> Result<AccountKey, Error> {
    if let Some(kind) = KeyKind::parse(&word.bytes) {
        return Ok(AccountKey::Generated(kind));
    }
    let shown = setup.pem_files.shown(&word.bytes);
    let pem = setup.pem_files.read(&word.bytes);
    let pem = pem
        .map_err(|why| line.error_at(word, format!("cannot load account key \"{shown}\" {why}")))?;
    let key = AccountKey::from_pem(shown.clone(), &pem);
    key.map_err(|why| line.error_at(word, format!("cannot load account key \"{shown}\": {why}")))
}

/// `external_account_key KID FILE | data:KEY`
fn external(setup: &mut Setup<'_>, line: &Directive) -> Result<ExternalAccount, Error> {
    let (Some(kid), Some(word)) = (line.arg(0), line.arg(1)) else {
        return Err(line.problem("invalid value"));
    };
    if kid.bytes.is_empty() || word.bytes.is_empty() {
        return Err(line.problem("invalid value"));
    }
    let shown = setup.pem_files.shown(&word.bytes);
    let read = setup.pem_files.read(&word.bytes);
    let read =
        read.map_err(|why| line.error_at(word, format!("failed to open \"{shown}\" {why}")))?;
    let key = base64::decode(Alphabet::Url, read.trim_ascii());
    let key = key.filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| line.error_at(word, "invalid base64url encoded value"))?;
    Ok(ExternalAccount { kid: kid.lossy().into_owned(), key })
}

/// The certificate authorities trusted for the ACME server: those in the file, or the system's.
fn anchors(
    setup: &mut Setup<'_>,
    block: &Directive,
    trusted: Option<(&Directive, &Word)>,
) -> Result<Vec<Vec<u8>>, Error> {
    let (line, name) = match trusted {
        Some((line, word)) => (line, word.bytes.clone()),
        None => {
            let store = weir_tls::machine_store().ok_or_else(|| {
                block.error("acme_issuer: \"ssl_trusted_certificate\" is needed on this machine")
            })?;
            (block, store.into_os_string().into_encoded_bytes())
        }
    };
    let shown = setup.pem_files.shown(&name);
    let text = setup.pem_files.read(&name);
    let text = text.map_err(|why| line.error(format!("failed to open \"{shown}\" {why}")))?;
    let anchors = weir_tls::certificates(&text);
    let anchors =
        anchors.map_err(|why| line.error(format!("failed to read \"{shown}\": {why}")))?;
    Ok(anchors.into_iter().map(|der| der.to_vec()).collect())
}
