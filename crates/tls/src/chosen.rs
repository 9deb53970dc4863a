//! Certificates and keys that are chosen in a handshake, and configurations with them.

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

/// A certificate, and those behind it up to an authority.
#[derive(Debug, Clone)]
pub struct Chain(Vec<CertificateDer<'static>>);

impl Chain {
    /// From a PEM text.
    ///
    /// # Errors
    ///
    /// It has no certificate, or a broken one.
    pub fn from_pem(text: &[u8]) -> Result<Chain, PemError> {
        crate::server::certificates(text).map(Chain)
    }

    /// From certificates in DER, one behind the other; none if one is broken.
    pub fn from_der(bytes: &[u8]) -> Option<Chain> {
        let (mut all, mut chain) = (DerReader::new(bytes), Vec::new());
        while !all.is_empty() {
            let one = all.require(der::SEQUENCE)?.whole;
            chain.push(CertificateDer::from(Certificate::parse(one)?.der.to_vec()));
        }
        (!chain.is_empty()).then_some(Chain(chain))
    }

    /// The certificates in DER, one behind the other.
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
    /// It is none, or none that rustls can sign with.
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
/// There is none, or this is not its password.
pub fn key_to_der(text: &[u8], password: Option<&[u8]>) -> Result<Vec<u8>, KeyError> {
    let passwords: Vec<_> = password.into_iter().map(<[u8]>::to_vec).collect();
    key::load(text, &passwords).map(|key| key.secret_der().to_vec())
}

/// Private keys that were read: to read one takes a multiplication on its curve, or more.
#[derive(Debug, Default)]
pub struct KeyCache(HashMap<[u8; 32], PrivateKey>);

impl KeyCache {
    /// So many keys are kept. One more begins anew.
    const MOST: usize = 256;

    /// The key of this DER.
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

/// What is known of the certificate with a kind of key.
#[derive(Debug, Clone)]
struct Slot {
    kind: SignatureAlgorithm,
    /// As it was configured.
    whole: Option<Identity>,
    chain: Option<Chain>,
    key: Option<PrivateKey>,
}

impl IdentitySet {
    /// Those of a configuration. Of certificates with one kind of key the last counts.
    pub fn new(identities: &[Identity]) -> IdentitySet {
        let mut set = IdentitySet::default();
        for identity in identities {
            set.slot(identity.kind()).whole = Some(identity.clone());
        }
        set
    }

    /// Sets the certificate for its kind of key. A key that is set, but not for this certificate, goes. False if the kind is
    /// unknown.
    pub fn set_chain(&mut self, chain: Chain) -> bool {
        let Some(kind) = chain.0.first().and_then(|leaf| kind_of(leaf)) else { return false };
        let slot = self.slot(kind);
        let own = slot.whole.take().map(|whole| PrivateKey(whole.certified().key.clone()));
        let key = slot.key.take().or(own);
        slot.key = key.filter(|key| belongs(key, &chain));
        slot.chain = Some(chain);
        true
    }

    /// Sets the key of a certificate.
    ///
    /// # Errors
    ///
    /// A certificate of this kind is set, and is not for this key.
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

    /// Those that have both a certificate and its key.
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
        // It is there, or was just added.
        let last = self.0.len() - 1;
        &mut self.0[at.min(last)]
    }
}

/// Whether a key is that of the first certificate.
fn belongs(key: &PrivateKey, chain: &Chain) -> bool {
    let leaf = chain.0.first().and_then(|leaf| Certificate::parse(leaf));
    let public = key.0.public_key();
    let (Some(leaf), Some(public)) = (leaf, public) else { return false };
    leaf.tbs.windows(public.len()).any(|part| part == public.as_ref())
}

/// The kind of a certificate's key.
fn kind_of(leaf: &[u8]) -> Option<SignatureAlgorithm> {
    let leaf = Certificate::parse(leaf)?;
    match DerReader::new(leaf.key.algorithm).require(der::OID)?.body {
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1 | 10] => Some(SignatureAlgorithm::RSA),
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1] => Some(SignatureAlgorithm::ECDSA),
        [0x2b, 0x65, 0x70] => Some(SignatureAlgorithm::ED25519),
        _ => None,
    }
}

/// The same configuration with other certificates. Sessions stay good.
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
    /// The configuration of these settings with the certificates of another one, and with its sessions unless these settings
    /// have none.
    ///
    /// # Errors
    ///
    /// Such versions and ciphers do not go together.
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

    /// The same over QUIC, without sessions.
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

/// The same configuration for a client that resumes a session. Any other handshake with it fails before something is signed:
/// rustls asks for a certificate before it looks at sessions.
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

/// A key of this kind that signs nothing.
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
