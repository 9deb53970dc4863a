//! A server's side of TLS: its certificates and settings, as one configuration of rustls.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use aws_lc_rs::digest;
use rustls::pki_types::CertificateDer;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{
    DistinguishedName, NamedGroup, NoKeyLog, ServerConfig, SignatureAlgorithm, SignatureScheme,
    SupportedCipherSuite,
};

use crate::key::KeyError;
use crate::known::{self, Origin};
use crate::names::{Ciphers, Curves, Versions, provider};
use crate::notes;
use crate::pem::{self, PemError};
use crate::records::{HEAD, MOST_PLAIN, SecretsTaker};
use crate::session::{CacheView, SessionCache};
use crate::ticket::{TicketSecret, Tickets};
use crate::verifier::{AskClient, now};
use crate::x509::der::{DerReader, INTEGER, SEQUENCE};
use crate::x509::name::common_names;
use crate::x509::{Certificate, CertificateKind, KnownList};

/// A word in the PEM text of every encrypted key.
const ENCRYPTED: &[u8] = b"ENCRYPTED";

/// Why peers refuse a certificate now, or will within `notice`.
pub fn out_of_date(certificate: &[u8], notice: Duration) -> Option<String> {
    Certificate::parse(certificate)?.out_of_date(now(), notice)
}

/// A certificate with its chain and key.
#[derive(Clone)]
pub struct Identity {
    key: Arc<CertifiedKey>,
    staple: Option<Arc<Staple>>,
    encrypted: bool,
    described: Option<CertificateKind>,
}

/// An OCSP response that is stapled to a certificate and replaced while the certificate is served.
pub struct Staple {
    bare: Arc<CertifiedKey>,
    /// The certificate with a response, and until when the response is valid.
    stapled: RwLock<Option<(Arc<CertifiedKey>, i64)>>,
}

impl fmt::Debug for Staple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Staple")
    }
}

impl Staple {
    /// Staples this response from now on, up to `until` (seconds since 1970).
    pub fn put(&self, response: Vec<u8>, until: i64) {
        let mut key = (*self.bare).clone();
        key.ocsp = Some(response);
        let new = Some((Arc::new(key), until));
        *self.stapled.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    fn certified(&self) -> Arc<CertifiedKey> {
        let stapled = self.stapled.read().unwrap_or_else(PoisonError::into_inner);
        match &*stapled {
            Some((key, until)) if now() <= *until => key.clone(),
            _ => self.bare.clone(),
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity of {} certificates", self.key.cert.len())
    }
}

impl Identity {
    /// Reads a chain and the key of its first certificate, both PEM.
    pub fn load(
        chain: &[u8],
        key: &[u8],
        passwords: &[Vec<u8>],
    ) -> Result<Identity, IdentityError> {
        let origin = Origin::of(chain, key, passwords);
        let encrypted = key.windows(ENCRYPTED.len()).any(|part| part == ENCRYPTED);
        if let Some((key, described)) = known::find(&origin) {
            return Ok(Identity { key, staple: None, encrypted, described });
        }
        let chain = certificates(chain).map_err(IdentityError::Certificate)?;
        let der = crate::key::load(key, passwords).map_err(IdentityError::Key)?;
        let key = provider().key_provider.load_private_key(der);
        let key = key.map_err(|error| IdentityError::Key(KeyError::Rejected(error)))?;
        if let (Some(public), Some(leaf)) = (key.public_key(), chain.first()) {
            let leaf = Certificate::parse(leaf);
            let leaf = leaf.ok_or(IdentityError::Certificate(PemError::BadCertificate))?;
            let raw = public.as_ref();
            // The key's whole SubjectPublicKeyInfo must occur in the certificate.
            if !leaf.tbs.windows(raw.len()).any(|part| part == raw) {
                return Err(IdentityError::Key(KeyError::Mismatch));
            }
        }
        let identity = Identity { encrypted, ..Identity::of(CertifiedKey::new(chain, key)) };
        known::keep(origin, &identity.key, identity.described);
        Ok(identity)
    }

    /// A chain with the key of its first certificate.
    pub(crate) fn of(key: CertifiedKey) -> Identity {
        let leaf = key.cert.first().and_then(|leaf| Certificate::parse(leaf));
        let described = leaf.map(|leaf| CertificateKind::of(&leaf));
        Identity { key: Arc::new(key), staple: None, encrypted: false, described }
    }

    /// Staples an OCSP response, in place of any other.
    pub fn staple(&mut self, response: Vec<u8>) {
        let mut key = (*self.key).clone();
        key.ocsp = Some(response);
        (self.key, self.staple) = (Arc::new(key), None);
    }

    /// Responses come later, one after another, through the returned [`Staple`].
    pub fn staple_later(&mut self) -> Arc<Staple> {
        let staple = Staple { bare: self.key.clone(), stapled: RwLock::default() };
        self.staple.insert(Arc::new(staple)).clone()
    }

    /// Why peers refuse the first certificate now, or will within `notice`.
    pub fn out_of_date(&self, notice: Duration) -> Option<String> {
        out_of_date(self.leaf(), notice)
    }

    /// The first of the certificate's names, and the last second (since 1970) of its validity.
    pub fn validity(&self) -> Option<(String, i64)> {
        let leaf = Certificate::parse(self.leaf())?;
        let dns = leaf.dns_names().next().map(<[u8]>::to_vec);
        let name = dns.or_else(|| common_names(leaf.subject).into_iter().next());
        let name = String::from_utf8_lossy(&name.unwrap_or_default()).into_owned();
        Some((name, leaf.not_after?))
    }

    /// The key was read with a password.
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// The first certificate, in DER.
    pub fn leaf(&self) -> &[u8] {
        self.key.cert.first().map(AsRef::as_ref).unwrap_or_default()
    }

    /// The certificates behind the first.
    pub fn others(&self) -> impl Iterator<Item = &[u8]> {
        self.key.cert.iter().skip(1).map(AsRef::as_ref)
    }

    /// Signing with this key takes so long that a thread of the file pool should do it.
    pub fn is_slow(&self) -> bool {
        self.kind() == SignatureAlgorithm::RSA
    }

    pub(crate) fn kind(&self) -> SignatureAlgorithm {
        self.key.key.algorithm()
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        self.staple.as_ref().map_or_else(|| self.key.clone(), |staple| staple.certified())
    }

    /// The curve of an ECDSA key. Each curve has a signature scheme of its own.
    fn curve(&self) -> Option<NamedGroup> {
        let curves = [
            (SignatureScheme::ECDSA_NISTP256_SHA256, NamedGroup::secp256r1),
            (SignatureScheme::ECDSA_NISTP384_SHA384, NamedGroup::secp384r1),
            (SignatureScheme::ECDSA_NISTP521_SHA512, NamedGroup::secp521r1),
        ];
        let own = curves.into_iter().find(|(scheme, _)| self.suits(std::slice::from_ref(scheme)));
        own.map(|(_, curve)| curve)
    }

    /// Whether the key can sign with one of these schemes.
    fn suits(&self, schemes: &[SignatureScheme]) -> bool {
        self.key.key.choose_scheme(schemes).is_some()
    }
}

/// Which of two files is wrong, and why.
#[derive(Debug, PartialEq)]
pub enum IdentityError {
    /// The chain.
    Certificate(PemError),
    /// The private key.
    Key(KeyError),
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdentityError::Certificate(error) => error.fmt(f),
            IdentityError::Key(error) => error.fmt(f),
        }
    }
}

/// All certificates of a PEM text. In a `TRUSTED CERTIFICATE`, OpenSSL's settings follow the
/// certificate; they are dropped.
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let labels = ["CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"];
    let mut chain = Vec::new();
    for section in pem::sections(text)? {
        if labels.contains(&section.label.as_str()) {
            let certificate = Certificate::parse(&section.der).ok_or(PemError::BadCertificate)?;
            chain.push(CertificateDer::from(certificate.der.to_vec()));
        }
    }
    if chain.is_empty() {
        return Err(PemError::NoStart);
    }
    Ok(chain)
}

/// All revocation lists of a PEM text.
pub fn revocation_lists(text: &[u8]) -> Result<Vec<KnownList>, PemError> {
    let sections = pem::sections(text)?;
    let lists = sections.into_iter().filter(|s| s.label == "X509 CRL");
    let lists: Option<Vec<_>> = lists.map(|s| KnownList::new(s.der)).collect();
    lists.filter(|lists| !lists.is_empty()).ok_or(PemError::NoStart)
}

/// The bits of the prime in the parameters of finite-field Diffie-Hellman in a PEM text.
pub fn dh_parameter_bits(text: &[u8]) -> Result<usize, PemError> {
    let labels = ["DH PARAMETERS", "X9.42 DH PARAMETERS"];
    let sections = pem::sections(text)?;
    let found = sections.iter().find(|s| labels.contains(&s.label.as_str()));
    let parameters = DerReader::new(&found.ok_or(PemError::NoStart)?.der).require(SEQUENCE);
    let prime = parameters.and_then(|parameters| {
        let mut numbers = parameters.inner();
        let prime = numbers.require(INTEGER)?;
        numbers.require(INTEGER).map(|_generator| prime.body)
    });
    let prime = prime.ok_or(PemError::BadParameters)?;
    let zeros = prime.iter().take_while(|byte| **byte == 0).count();
    let number = prime.get(zeros..).unwrap_or_default();
    let first = number.first().ok_or(PemError::BadParameters)?;
    Ok(number.len() * 8 - first.leading_zeros() as usize)
}

/// The settings of a server's TLS.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// Certificates of different kinds of keys; the order of ciphers or signature schemes decides which is shown.
    pub identities: Vec<Identity>,
    /// Versions of the protocol.
    pub versions: Versions,
    /// Ciphers, the preferred first.
    pub ciphers: Ciphers,
    /// Curves, the preferred first.
    pub curves: Curves,
    /// The server's order of cipher suites decides, not the client's.
    pub prefer_server_ciphers: bool,
    /// Request a certificate from clients and name these authorities, whose certificates are in
    /// DER.
    pub ask_client: Option<Vec<Vec<u8>>>,
    /// Issue tickets, encrypted with these keys. rustls accepts no early data for sessions in
    /// tickets.
    pub tickets: Option<TicketSecret>,
    /// Store sessions here.
    pub cache: Option<Arc<SessionCache>>,
    /// How long a session may be resumed.
    pub session_timeout: Duration,
    /// The most plaintext in a record.
    pub buffer_size: u64,
    /// The most bytes of early data that are accepted.
    pub early_data: u32,
    /// Protocols for ALPN, the preferred first.
    pub alpn: Vec<Vec<u8>>,
    /// Compress certificates for clients that support it (RFC 8879).
    pub compress: bool,
    /// Distinguishes the session contexts of servers that are otherwise alike.
    pub context: Vec<u8>,
    /// A certificate that another thread provides, in place of the identities.
    pub replaceable: Option<Arc<ReplaceableIdentity>>,
}

/// A certificate that another thread provides, and replaces while it is served.
#[derive(Debug, Default)]
pub struct ReplaceableIdentity(RwLock<Option<Identity>>);

impl ReplaceableIdentity {
    /// Serves this certificate from now on.
    pub fn put(&self, identity: Identity) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(identity);
    }
}

impl ResolvesServerCert for ReplaceableIdentity {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let identity = self.0.read().unwrap_or_else(PoisonError::into_inner);
        identity.as_ref().map(|identity| shown(identity, &hello))
    }
}

impl ServerSettings {
    /// The configuration that connections share.
    pub fn build(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        let mut with = provider().clone();
        with.cipher_suites = self.ciphers.suites(self.versions);
        with.kx_groups = self.curves.groups();
        let builder = ServerConfig::builder_with_provider(Arc::new(with))
            .with_protocol_versions(&self.versions.list())?;
        let verifier = match &self.ask_client {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(authorities) => Arc::new(AskClient { hints: hints(authorities) }),
        };
        let resolver: Arc<dyn ResolvesServerCert> = match &self.replaceable {
            Some(replaceable) => replaceable.clone(),
            None => {
                let suites = self.ciphers.suites(self.versions);
                Arc::new(Resolver::new(&self.identities, &suites, self.prefer_server_ciphers))
            }
        };
        let mut config = builder.with_client_cert_verifier(verifier).with_cert_resolver(resolver);
        config.ignore_client_order = self.prefer_server_ciphers;
        config.alpn_protocols = self.alpn.clone();
        // rustls counts the record's header as well.
        let record = usize::try_from(self.buffer_size).unwrap_or(usize::MAX).clamp(32, MOST_PLAIN);
        config.max_fragment_size = Some(record + HEAD);
        // weir's record layer needs the keys after the handshake.
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(SecretsTaker);
        // A server that accepts early data also answers it before the handshake is complete.
        config.send_half_rtt_data = self.early_data > 0;
        if !self.compress {
            config.cert_compressors.clear();
        }
        // Nothing that clients send is decompressed.
        config.cert_decompressors.clear();
        self.resumption(&mut config);
        Ok(Arc::new(config))
    }

    /// The configuration of QUIC connections, which need TLS 1.3. `alpn` are their protocols.
    ///
    /// # Errors
    ///
    /// These versions and cipher suites do not go together.
    pub fn build_for_quic(&self, alpn: Vec<Vec<u8>>) -> Result<Arc<ServerConfig>, rustls::Error> {
        let versions = Versions { tls12: false, ..self.versions };
        // A session over TCP cannot be resumed over QUIC.
        let context = [&self.context, &b"quic"[..]].concat();
        let settings = ServerSettings { versions, alpn, early_data: 0, context, ..self.clone() };
        let mut config = settings.build()?;
        if let Some(config) = Arc::get_mut(&mut config) {
            config.enable_secret_extraction = false;
            config.key_log = Arc::new(NoKeyLog {});
            // QUIC knows only 0 and the largest number: RFC 9001, section 4.6.1.
            config.max_early_data_size = if self.early_data > 0 { u32::MAX } else { 0 };
            config.send_half_rtt_data = self.early_data > 0;
        }
        Ok(config)
    }

    fn resumption(&self, config: &mut ServerConfig) {
        let context = self.session_context();
        if let Some(secret) = &self.tickets {
            let tickets = Tickets::new(secret, &context, self.session_timeout);
            config.ticketer = Arc::new(tickets);
        }
        config.session_storage = match &self.cache {
            None => Arc::new(NoServerSessionStorage {}),
            Some(cache) => Arc::new(CacheView {
                cache: cache.clone(),
                context,
                lifetime: self.session_timeout.as_secs(),
            }),
        };
        config.max_early_data_size = self.early_data;
    }

    /// What a session is bound to: the same certificates, and the same demands on the client.
    pub(crate) fn session_context(&self) -> Vec<u8> {
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(&self.context);
        for identity in &self.identities {
            hash.update(identity.leaf());
        }
        hash.update(&[u8::from(self.ask_client.is_some())]);
        for authority in self.ask_client.iter().flatten() {
            hash.update(authority);
        }
        hash.finish().as_ref().to_vec()
    }
}

/// Names of authorities, each once.
fn hints(authorities: &[Vec<u8>]) -> Vec<DistinguishedName> {
    let mut names: Vec<DistinguishedName> = Vec::new();
    for certificate in authorities.iter().filter_map(|der| Certificate::parse(der)) {
        let name = DistinguishedName::in_sequence(certificate.subject);
        if !names.iter().any(|known| known.as_ref() == name.as_ref()) {
            names.push(name);
        }
    }
    names
}

/// Chooses one of several certificates. In TLS 1.2, each cipher suite requires a kind of key, so
/// the order of suites decides. In TLS 1.3, the client's order of signature schemes decides.
#[derive(Debug)]
pub(crate) struct Resolver {
    identities: Vec<Identity>,
    /// The server's cipher suites, in its order.
    suites: Vec<SupportedCipherSuite>,
    /// The server's order decides, not the client's.
    prefers: bool,
}

impl Resolver {
    /// Of certificates with one kind of key the last counts, as with OpenSSL.
    pub(crate) fn new(
        all: &[Identity],
        suites: &[SupportedCipherSuite],
        prefers: bool,
    ) -> Resolver {
        let mut kept: Vec<Identity> = Vec::new();
        for new in all {
            match kept.iter_mut().find(|old| old.kind() == new.kind()) {
                Some(old) => *old = new.clone(),
                None => kept.push(new.clone()),
            }
        }
        Resolver { identities: kept, suites: suites.to_vec(), prefers }
    }

    /// The certificate for the first shared cipher suite that has one. `None` if TLS 1.3 is
    /// negotiated.
    fn by_cipher(&self, hello: &ClientHello<'_>) -> Option<&Identity> {
        let offered = hello.cipher_suites();
        let is_offered = |suite: &&SupportedCipherSuite| offered.contains(&suite.suite());
        let mut ours = self.suites.iter().filter(is_offered);
        if ours.clone().any(|suite| matches!(suite, SupportedCipherSuite::Tls13(_))) {
            return None;
        }
        let signed_by = |suite: &SupportedCipherSuite| {
            let SupportedCipherSuite::Tls12(suite) = suite else { return None };
            let suits = |identity: &&Identity| {
                identity.suits(suite.sign)
                    && identity.suits(hello.signature_schemes())
                    && has_curve_of(hello, identity)
            };
            self.identities.iter().find(suits)
        };
        if self.prefers {
            return ours.find_map(signed_by);
        }
        let mut theirs =
            offered.iter().filter_map(|id| self.suites.iter().find(|s| s.suite() == *id));
        theirs.find_map(signed_by)
    }

    /// The certificate for the client's first signature scheme that a key can use.
    fn by_scheme(&self, hello: &ClientHello<'_>) -> Option<&Identity> {
        hello.signature_schemes().iter().find_map(|scheme| {
            let suits = |identity: &&Identity| identity.suits(std::slice::from_ref(scheme));
            self.identities.iter().find(suits)
        })
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let best = match self.identities.as_slice() {
            [only] => Some(only),
            _ => self.by_cipher(&hello).or_else(|| self.by_scheme(&hello)),
        };
        best.or(self.identities.first()).map(|identity| shown(identity, &hello))
    }
}

/// Whether a client of TLS 1.2 supports the curve of a certificate's key. The client's list of
/// curves restricts certificates, too: RFC 8422, section 5.1.1. A client without a list accepts
/// any.
fn has_curve_of(hello: &ClientHello<'_>, identity: &Identity) -> bool {
    match (identity.curve(), hello.named_groups()) {
        (Some(curve), Some(offered)) => offered.contains(&curve),
        _ => true,
    }
}

/// The certificate as it is sent to a client, with its staple. Leaves notes for the connection.
fn shown(identity: &Identity, hello: &ClientHello<'_>) -> Arc<CertifiedKey> {
    notes::certificate(identity.described);
    let certified = identity.certified();
    if let Some(signer) = certified.key.choose_scheme(hello.signature_schemes()) {
        notes::own_scheme(signer.scheme());
    }
    certified
}
