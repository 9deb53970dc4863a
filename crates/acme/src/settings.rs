//! Issuers and certificates, as the configuration describes them.

use std::ffi::OsStr;
use std::fmt;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::digest;

use crate::dns::Dns;
use crate::signer::Signer;
use crate::standing::{Standing, Standings, row_name};

/// `acme_issuer NAME { }`, with the certificates that are wanted of it.
#[derive(Debug)]
pub struct Issuer {
    /// Its name in the configuration.
    pub name: String,
    /// `uri`: the authority's directory.
    pub uri: String,
    /// `contact`, with schemes.
    pub contacts: Vec<String>,
    /// `account_key`
    pub account_key: AccountKey,
    /// `challenge`
    pub challenge: Challenge,
    /// `dns_hook`, `dns_update`, `dns_wait`, `dns_resolver`
    pub dns: Dns,
    /// `external_account_key`
    pub external: Option<ExternalAccount>,
    /// `profile`
    pub profile: Option<Profile>,
    /// `preferred_chain`: the common name of the topmost issuer.
    pub preferred_chain: Option<String>,
    /// `accept_terms_of_service`
    pub accepts_terms: bool,
    /// `ssl_verify`, `ssl_trusted_certificate`
    pub trust: Trust,
    /// `common_name_in_csr`
    pub common_name: bool,
    /// `state_path`
    pub directory: PathBuf,
    /// The certificates.
    pub orders: Vec<Arc<CertificateOrder>>,
    /// The hash of its block. An issuer of a later configuration with the same name and hash is the same one.
    pub digest: [u8; 32],
    /// When the configuration was read, in seconds since 1970. It may have corrected earlier
    /// errors.
    pub read_at: i64,
    /// The zone with the standings of its certificates.
    pub standings: Option<Standings>,
}

impl Issuer {
    /// The standing of one of its certificates, as the process with the lock last posted it.
    pub(crate) fn standing(&self, order: &CertificateOrder) -> Standing {
        let standings = self.standings.as_ref();
        standings.map(|all| all.of(self.row_name(order))).unwrap_or_default()
    }

    /// The standings of all its certificates.
    pub fn all_standings(&self) -> Vec<Standing> {
        let names: Vec<u128> = self.orders.iter().map(|order| self.row_name(order)).collect();
        match &self.standings {
            Some(all) => all.of_all(&names),
            None => vec![Standing::default(); names.len()],
        }
    }

    pub(crate) fn row_name(&self, order: &CertificateOrder) -> u128 {
        row_name(self.directory.as_os_str().as_encoded_bytes(), &order.id)
    }
}

/// The challenge type that proves names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Challenge {
    /// `http-01`: the authority requests a token over HTTP.
    #[default]
    Http,
    /// `tls-alpn-01`: it requests a certificate by an ALPN protocol of its own.
    TlsAlpn,
    /// `dns-01`: it queries a TXT record, which is published for the attempt.
    Dns,
    /// `dns-persist-01`: it queries a permanent TXT record (draft-ietf-acme-dns-persist).
    DnsPersist,
}

impl Challenge {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Challenge::Http => "http-01",
            Challenge::TlsAlpn => "tls-alpn-01",
            Challenge::Dns => "dns-01",
            Challenge::DnsPersist => "dns-persist-01",
        }
    }

    /// Whether it can prove wildcard names.
    pub fn takes_wildcards(self) -> bool {
        matches!(self, Challenge::Dns | Challenge::DnsPersist)
    }

    /// Whether it can prove IP addresses.
    pub fn takes_addresses(self) -> bool {
        !self.takes_wildcards()
    }
}

/// An account's key.
#[derive(Clone)]
pub enum AccountKey {
    /// weir makes one of this kind and keeps it.
    Generated(KeyKind),
    /// One of the operator.
    File {
        /// The file, for messages.
        file: String,
        /// The key, in PKCS#8.
        pkcs8: Vec<u8>,
    },
}

impl AccountKey {
    /// Reads a key file in PEM.
    ///
    /// # Errors
    ///
    /// The reason that the key cannot be used.
    pub fn from_pem(file: String, pem: &[u8]) -> Result<AccountKey, String> {
        let text = std::str::from_utf8(pem).map_err(|e| e.to_string())?;
        let pair = rcgen::KeyPair::from_pem(text).map_err(|e| e.to_string())?;
        let pkcs8 = pair.serialize_der();
        match Signer::new(&pkcs8, None) {
            Some(_) => Ok(AccountKey::File { file, pkcs8 }),
            None => {
                Err("accounts have keys of ECDSA with P-256, P-384 or P-521, or of RSA".to_owned())
            }
        }
    }
}

impl fmt::Debug for AccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccountKey::Generated(kind) => f.debug_tuple("Generated").field(kind).finish(),
            AccountKey::File { file, .. } => f.debug_tuple("File").field(file).finish(),
        }
    }
}

/// The external account that the ACME account is bound to (RFC 8555, section 7.3.4).
#[derive(Clone)]
pub struct ExternalAccount {
    /// The identifier of the key.
    pub kid: String,
    /// The key.
    pub key: Vec<u8>,
}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalAccount").field("kid", &self.kid).finish_non_exhaustive()
    }
}

/// A certificate profile that an authority offers (draft-ietf-acme-profiles).
#[derive(Debug, Clone)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// The order fails if the authority does not offer the profile.
    pub required: bool,
}

/// How the ACME server's own certificate is verified.
#[derive(Debug, Clone)]
pub enum Trust {
    /// Against these trust anchors, in DER.
    Anchors(Vec<Vec<u8>>),
    /// Not at all.
    Anyone,
}

/// The key of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyKind {
    /// `ecdsa:256`
    #[default]
    P256,
    /// `ecdsa:384`
    P384,
    /// `ecdsa:521`
    P521,
    /// `rsa:2048`
    Rsa2048,
    /// `rsa:3072`
    Rsa3072,
    /// `rsa:4096`
    Rsa4096,
}

impl KeyKind {
    /// Reads `ALGORITHM[:SIZE]`.
    pub fn parse(text: &[u8]) -> Option<KeyKind> {
        Some(match text {
            b"ecdsa" | b"ecdsa:256" => KeyKind::P256,
            b"ecdsa:384" => KeyKind::P384,
            b"ecdsa:521" => KeyKind::P521,
            b"rsa" | b"rsa:2048" => KeyKind::Rsa2048,
            b"rsa:3072" => KeyKind::Rsa3072,
            b"rsa:4096" => KeyKind::Rsa4096,
            _ => return None,
        })
    }
}

/// One certificate: names and a kind of key.
#[derive(Debug)]
pub struct CertificateOrder {
    /// The name of its files: one of its identifiers, and a hash of all of them and the kind of key.
    pub id: String,
    /// Host names and addresses, as [`identifier`] gives them.
    pub identifiers: Vec<String>,
    /// Its key.
    pub key: KeyKind,
    /// The path of the newest certificate.
    file: RwLock<Option<Arc<[u8]>>>,
    takers: Takers,
}

/// Passes a new certificate with its chain and key, in PEM, to a receiver. Returns whether the receiver still exists. Runs on
/// a thread that may wait. With `None` it only returns that.
type Taker = Box<dyn Fn(Option<&[u8]>) -> bool + Send + Sync>;

/// The receivers of new certificates.
#[derive(Default)]
struct Takers(RwLock<Vec<Taker>>);

impl fmt::Debug for Takers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Takers")
    }
}

impl CertificateOrder {
    /// An order for these identifiers with this kind of key.
    pub fn new(identifiers: Vec<String>, key: KeyKind) -> CertificateOrder {
        let mut sorted = identifiers.clone();
        sorted.sort();
        let text = format!("{}\n{key:?}", sorted.join("\n"));
        let hash = hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
        let first = sorted.first().map_or("", String::as_str);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        let shown: String = first.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        let id = format!("{shown}-{}", hash.get(..16).unwrap_or(&hash));
        CertificateOrder {
            id,
            identifiers,
            key,
            file: RwLock::new(None),
            takers: Takers::default(),
        }
    }

    /// The file with the newest certificate, its chain and its key, if there is one. A file never changes: each new
    /// certificate has another name.
    pub fn file(&self) -> Option<Arc<[u8]>> {
        self.file.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Passes the certificate, and each later one, to `to` while it exists: for readers that cannot wait for a file. This call
    /// may wait for one.
    pub fn given_to<T: Send + Sync + 'static>(
        &self,
        to: &Arc<T>,
        give: impl Fn(&T, &[u8]) + Send + Sync + 'static,
    ) {
        let mut takers = self.takers.0.write().unwrap_or_else(PoisonError::into_inner);
        takers.retain(|taker| taker(None));
        if let Some(pem) = self.file().and_then(|path| read(&path)) {
            give(to, &pem);
        }
        let to = Arc::downgrade(to);
        takers.push(Box::new(move |pem| {
            let Some(to) = to.upgrade() else { return false };
            if let Some(pem) = pem {
                give(&to, pem);
            }
            true
        }));
    }

    /// Takes another file into use.
    pub(crate) fn set_file(&self, file: Option<Arc<[u8]>>) {
        let takers = self.takers.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(pem) = file.as_deref().filter(|_| !takers.is_empty()).and_then(read) {
            // Receivers that no longer exist are removed when a new one is added.
            takers.iter().for_each(|taker| {
                taker(Some(&pem));
            });
        }
        *self.file.write().unwrap_or_else(PoisonError::into_inner) = file;
    }

    /// All names, for messages.
    pub fn shown(&self) -> String {
        self.identifiers.join(", ")
    }
}

fn read(path: &[u8]) -> Option<Vec<u8>> {
    std::fs::read(OsStr::from_bytes(path)).ok()
}

/// The first bytes of a hash in hexadecimal, for the name of a file.
pub(crate) fn short_hash(bytes: &[u8]) -> String {
    let hash = hex(digest::digest(&digest::SHA256, bytes).as_ref());
    hash.get(..16).unwrap_or(&hash).to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Why a name cannot be in a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadIdentifier {
    /// The name contains this character.
    Character(char),
    /// An empty label, such as a dot at the end.
    EmptyLabel,
    /// `*` is used otherwise than in `*.example.org`.
    Wildcard,
    /// The name or a label is too long.
    TooLong,
}

impl fmt::Display for BadIdentifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadIdentifier::Character(c) => write!(f, "a certificate cannot have \"{c}\" in a name"),
            BadIdentifier::EmptyLabel => f.write_str("a dot stands where a label is missing"),
            BadIdentifier::Wildcard => {
                f.write_str("a certificate can have \"*\" as the whole first label only")
            }
            BadIdentifier::TooLong => f.write_str("it is longer than a host name may be"),
        }
    }
}

/// The identifiers for a name of the configuration: a host name in lower case, or an address in canonical form.
/// `.example.org` stands for that name and for `www.example.org`. `*.example.org` stays as it is.
///
/// # Errors
///
/// The reason that no certificate can have the name.
pub fn identifier(text: &str) -> Result<Vec<String>, BadIdentifier> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(vec![address.to_string()]);
    }
    let wildcard = text.strip_prefix("*.");
    let name = wildcard.or(text.strip_prefix('.')).unwrap_or(text).to_ascii_lowercase();
    if name.contains('*') {
        return Err(BadIdentifier::Wildcard);
    }
    let bad = |c: &char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
    if let Some(c) = name.chars().find(bad) {
        return Err(BadIdentifier::Character(c));
    }
    if name == "_" {
        return Err(BadIdentifier::Character('_'));
    }
    if name.split('.').any(str::is_empty) {
        return Err(BadIdentifier::EmptyLabel);
    }
    if name.len() > 253 || name.split('.').any(|label| label.len() > 63) {
        return Err(BadIdentifier::TooLong);
    }
    if wildcard.is_some() {
        // An address or a single label has no names below it.
        return match name.contains('.') && name.parse::<IpAddr>().is_err() {
            true => Ok(vec![format!("*.{name}")]),
            false => Err(BadIdentifier::Wildcard),
        };
    }
    Ok(match text.starts_with('.') {
        true => vec![format!("www.{name}"), name],
        false => vec![name],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_certificates_can_have() {
        let ok = |text| identifier(text).unwrap();
        assert_eq!(ok("Example.org"), ["example.org"]);
        assert_eq!(ok(".example.org"), ["www.example.org", "example.org"]);
        assert_eq!(ok("127.0.0.1"), ["127.0.0.1"]);
        assert_eq!(ok("2001:DB8:0::1"), ["2001:db8::1"]);
        assert_eq!(ok("*.Example.org"), ["*.example.org"]);
        for bad in ["www.example.*", "*.*.org", "a*.example.org", "*.org", "*.127.0.0.1", "*"] {
            assert_eq!(identifier(bad), Err(BadIdentifier::Wildcard), "{bad}");
        }
        assert_eq!(identifier("example.org."), Err(BadIdentifier::EmptyLabel));
        assert_eq!(identifier("a..b"), Err(BadIdentifier::EmptyLabel));
        assert_eq!(identifier(""), Err(BadIdentifier::EmptyLabel));
        assert_eq!(identifier("_"), Err(BadIdentifier::Character('_')));
        assert_eq!(identifier("../etc"), Err(BadIdentifier::Character('/')));
        assert_eq!(identifier("a/b"), Err(BadIdentifier::Character('/')));
        assert_eq!(identifier(&"a".repeat(64)), Err(BadIdentifier::TooLong));
    }

    #[test]
    fn new_certificates_are_passed_to_existing_receivers() {
        use std::sync::Mutex;

        let dir = weir_testkit::Dir::new();
        let put = |pem: &str| Some(Arc::from(dir.write("pem", pem).as_os_str().as_bytes()));
        let order = CertificateOrder::new(vec!["a.org".to_owned()], KeyKind::P256);
        let place = || Arc::new(Mutex::new(Vec::new()));
        let give = |to: &Mutex<Vec<u8>>, pem: &[u8]| to.lock().unwrap().extend_from_slice(pem);
        let (early, gone, late) = (place(), place(), place());
        order.given_to(&early, give);
        order.given_to(&gone, give);
        drop(gone);
        order.set_file(put("one "));
        order.given_to(&late, give);
        assert_eq!(order.takers.0.read().unwrap().len(), 2, "a place that is gone is forgotten");
        order.set_file(put("two"));
        assert_eq!(*early.lock().unwrap(), b"one two");
        assert_eq!(*late.lock().unwrap(), b"one two");
    }

    #[test]
    fn an_order_is_its_names_in_any_order_and_its_key() {
        let id = |names: &[&str], key| {
            CertificateOrder::new(names.iter().map(|name| (*name).to_owned()).collect(), key).id
        };
        let one = id(&["a.org", "b.org"], KeyKind::P256);
        assert!(one.starts_with("a.org-"), "{one}");
        assert_eq!(one, id(&["b.org", "a.org"], KeyKind::P256));
        assert_ne!(one, id(&["a.org", "b.org"], KeyKind::P384));
        assert_ne!(one, id(&["a.org"], KeyKind::P256));
        assert!(id(&["2001:db8::1"], KeyKind::P256).starts_with("2001_db8__1-"));
    }
}
