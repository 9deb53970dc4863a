//! Certificates and keys that scripts choose during a handshake, and configurations with them.

use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{ServerConfig, SignatureAlgorithm, SignatureScheme};

use crate::key::{self, KeyError};
use crate::names::provider;
use crate::pem::PemError;
use crate::server::{Identity, Resolver, ServerSettings};
use crate::session::first_32;
use crate::x509::Certificate;
use crate::x509::der::{self, DerReader};

/// A certificate, followed by its intermediates.
#[derive(Debug, Clone)]
pub struct Chain(Vec<CertificateDer<'static>>);

impl Chain {
    /// Reads the certificates of a PEM text.
    ///
    /// # Errors
    ///
    /// The text has no certificate, or a malformed one.
    pub fn from_pem(text: &[u8]) -> Result<Chain, PemError> {
        crate::server::certificates(text).map(Chain)
    }

    /// Reads concatenated certificates in DER. `None` if there is none, or one is malformed.
    pub fn from_der(bytes: &[u8]) -> Option<Chain> {
        let (mut all, mut chain) = (DerReader::new(bytes), Vec::new());
        while !all.is_empty() {
            let one = all.require(der::SEQUENCE)?.whole;
            chain.push(CertificateDer::from(Certificate::parse(one)?.der.to_vec()));
        }
        (!chain.is_empty()).then_some(Chain(chain))
    }

    /// The certificates in DER, concatenated.
    pub fn to_der(&self) -> Vec<u8> {
        self.each().collect::<Vec<_>>().concat()
    }

    /// Each certificate in DER.
    pub fn each(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(AsRef::as_ref)
    }
}

/// A private key that can sign.
#[derive(Debug, Clone)]
pub struct PrivateKey(Arc<dyn SigningKey>);

impl PrivateKey {
    /// From DER: PKCS#8, PKCS#1 or SEC1.
    ///
    /// # Errors
    ///
    /// The key is malformed, or of a kind that rustls cannot sign with.
    pub fn from_der(bytes: &[u8]) -> Result<PrivateKey, KeyError> {
        let der = PrivateKeyDer::try_from(bytes).map_err(|_| KeyError::Pem(PemError::NoStart))?;
        let key = provider().key_provider.load_private_key(der.clone_key());
        key.map(PrivateKey).map_err(KeyError::Rejected)
    }
}

/// The first private key of a PEM text, in DER.
///
/// # Errors
///
/// The text has no private key, or this is not its password.
pub fn key_to_der(text: &[u8], password: Option<&[u8]>) -> Result<Vec<u8>, KeyError> {
    let passwords: Vec<_> = password.into_iter().map(<[u8]>::to_vec).collect();
    key::load(text, &passwords).map(|key| key.secret_der().to_vec())
}

/// Parsed private keys. To parse one takes a multiplication on its curve, or more.
#[derive(Debug, Default)]
pub struct KeyCache(HashMap<[u8; 32], PrivateKey>);

impl KeyCache {
    /// The most keys that are kept. One more clears the cache.
    const MOST: usize = 256;

    /// The private key in this DER, parsed once.
    ///
    /// # Errors
    ///
    /// See [`PrivateKey::from_der`].
    pub fn read(&mut self, der: &[u8]) -> Result<PrivateKey, KeyError> {
        let name = first_32(digest(&SHA256, der));
        if let Some(known) = self.0.get(&name) {
            return Ok(known.clone());
        }
        let key = PrivateKey::from_der(der)?;
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        self.0.insert(name, key.clone());
        Ok(key)
    }
}

/// The certificates of a connection, one for each kind of key.
#[derive(Debug, Clone, Default)]
pub struct IdentitySet(Vec<Slot>);

/// The certificate and the key of one kind.
#[derive(Debug, Clone)]
struct Slot {
    kind: SignatureAlgorithm,
    /// Both together, from the configuration.
    whole: Option<Identity>,
    chain: Option<Chain>,
    key: Option<PrivateKey>,
}

impl IdentitySet {
    /// The certificates of a configuration. Of those with the same kind of key, the last counts.
    pub fn new(identities: &[Identity]) -> IdentitySet {
        let mut set = IdentitySet::default();
        for identity in identities {
            set.slot(identity.kind()).whole = Some(identity.clone());
        }
        set
    }

    /// Sets the certificate for its kind of key. Drops a key that was set before if it belongs to
    /// another certificate. False if the kind of key is unknown.
    pub fn set_chain(&mut self, chain: Chain) -> bool {
        let Some(kind) = chain.0.first().and_then(|leaf| kind_of(leaf)) else { return false };
        let slot = self.slot(kind);
        let own = slot.whole.take().map(|whole| PrivateKey(whole.certified().key.clone()));
        let key = slot.key.take().or(own);
        slot.key = key.filter(|key| belongs(key, &chain));
        slot.chain = Some(chain);
        true
    }

    /// Sets the key for the certificate of its kind.
    ///
    /// # Errors
    ///
    /// The certificate of this kind has another key.
    pub fn set_key(&mut self, key: PrivateKey) -> Result<(), KeyError> {
        let slot = self.slot(key.0.algorithm());
        if let Some(whole) = slot.whole.take() {
            slot.chain = Some(Chain(whole.certified().cert.clone()));
        }
        if slot.chain.as_ref().is_some_and(|chain| !belongs(&key, chain)) {
            return Err(KeyError::Mismatch);
        }
        slot.key = Some(key);
        Ok(())
    }

    /// The certificates that have their key.
    pub fn identities(&self) -> Vec<Identity> {
        let each = self.0.iter().filter_map(|slot| match (&slot.whole, &slot.chain, &slot.key) {
            (Some(whole), _, _) => Some(whole.clone()),
            (None, Some(chain), Some(key)) => {
                Some(Identity::of(CertifiedKey::new(chain.0.clone(), key.0.clone())))
            }
            _ => None,
        });
        each.collect()
    }

    fn slot(&mut self, kind: SignatureAlgorithm) -> &mut Slot {
        let at = self.0.iter().position(|slot| slot.kind == kind).unwrap_or(self.0.len());
        if at == self.0.len() {
            self.0.push(Slot { kind, whole: None, chain: None, key: None });
        }
        // The index is that of an existing slot, or of the one that was just added.
        let last = self.0.len() - 1;
        &mut self.0[at.min(last)]
    }
}

/// Whether a key belongs to the first certificate of a chain.
fn belongs(key: &PrivateKey, chain: &Chain) -> bool {
    let leaf = chain.0.first().and_then(|leaf| Certificate::parse(leaf));
    let public = key.0.public_key();
    let (Some(leaf), Some(public)) = (leaf, public) else { return false };
    leaf.tbs.windows(public.len()).any(|part| part == public.as_ref())
}

/// The kind of a certificate's public key.
fn kind_of(leaf: &[u8]) -> Option<SignatureAlgorithm> {
    let leaf = Certificate::parse(leaf)?;
    match DerReader::new(leaf.key.algorithm).require(der::OID)?.body {
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1 | 10] => Some(SignatureAlgorithm::RSA),
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1] => Some(SignatureAlgorithm::ECDSA),
        [0x2b, 0x65, 0x70] => Some(SignatureAlgorithm::ED25519),
        _ => None,
    }
}

/// The same configuration with other certificates. Existing sessions can still be resumed.
pub fn with_identities(config: &ServerConfig, identities: &[Identity]) -> Arc<ServerConfig> {
    let suites = &config.crypto_provider().cipher_suites;
    let resolver = Resolver::new(identities, suites, config.ignore_client_order);
    with_resolver(config, Arc::new(resolver))
}

fn with_resolver(
    config: &ServerConfig,
    resolver: Arc<dyn ResolvesServerCert>,
) -> Arc<ServerConfig> {
    let mut config = config.clone();
    config.cert_resolver = resolver;
    Arc::new(config)
}

impl ServerSettings {
    /// A configuration of these settings with the certificates of another one. It also keeps the
    /// other's tickets and session cache, unless these settings have none.
    ///
    /// # Errors
    ///
    /// These versions and cipher suites do not go together.
    pub fn build_beside(&self, other: &ServerConfig) -> Result<Arc<ServerConfig>, rustls::Error> {
        let mut config = self.build()?;
        if let Some(config) = Arc::get_mut(&mut config) {
            config.cert_resolver = other.cert_resolver.clone();
            if self.tickets.is_some() {
                config.ticketer = other.ticketer.clone();
            }
            if self.cache.is_some() {
                config.session_storage = other.session_storage.clone();
            }
        }
        Ok(config)
    }

    /// As [`ServerSettings::build_beside`], for QUIC. It resumes no sessions of the other.
    ///
    /// # Errors
    ///
    /// See [`ServerSettings::build_for_quic`].
    pub fn build_for_quic_beside(
        &self,
        other: &ServerConfig,
    ) -> Result<Arc<ServerConfig>, rustls::Error> {
        let config = self.build_for_quic(other.alpn_protocols.clone())?;
        Ok(with_resolver(&config, other.cert_resolver.clone()))
    }
}

/// A configuration for clients that resume a session. Any other handshake with it fails before
/// something is signed: rustls asks for a certificate before it looks at sessions.
pub(crate) fn for_resumption(config: &ServerConfig, shown: &Identity) -> Arc<ServerConfig> {
    let key = Arc::new(NoSigner(shown.kind()));
    let resolver = Arc::new(Unsigned(Arc::new(CertifiedKey::new(Vec::new(), key))));
    with_resolver(config, resolver)
}

#[derive(Debug)]
struct Unsigned(Arc<CertifiedKey>);

impl ResolvesServerCert for Unsigned {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

/// A key of this kind that cannot sign.
#[derive(Debug)]
struct NoSigner(SignatureAlgorithm);

impl SigningKey for NoSigner {
    fn choose_scheme(&self, _: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        None
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0
    }
}
