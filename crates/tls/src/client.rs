//! A client's side of TLS: how upstreams are spoken to.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, SignatureScheme, sign};

use crate::names::{Ciphers, Curves, Versions, provider};
use crate::peers::PeerSessions;
use crate::server::Identity;
use crate::verifier::{Authorities, CertificateName, CheckServer};

/// Sessions kept for resumption, for each configuration.
const SESSIONS: usize = 64;

/// What the TLS to an upstream is to be.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// Versions of the protocol.
    pub versions: Versions,
    /// Ciphers, the preferred first.
    pub ciphers: Ciphers,
    /// Curves, the preferred first.
    pub curves: Curves,
    /// The certificate that we show when asked.
    pub identity: Option<Identity>,
    /// The upstream's certificate must lead to one of these, and be for its name.
    pub authorities: Option<Arc<Authorities>>,
    /// The certificate must have one of these names, and not the server's, if there are any.
    pub names: Arc<[CertificateName]>,
    /// Send the name in the handshake (SNI).
    pub send_name: bool,
    /// Resume sessions.
    pub reuse: bool,
    /// Protocols above, the preferred first.
    pub alpn: Vec<Vec<u8>>,
}

/// How to open TLS to a name; cheap to copy. Sessions are resumed among its copies: with any server of the name, or with
/// one server ([`TlsClient::to_peer`]).
#[derive(Debug, Clone)]
pub struct TlsClient {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
    /// Sessions are resumed.
    sessions: Option<Arc<PeerSessions>>,
}

impl ClientSettings {
    /// Puts it together, without a name yet.
    pub fn build(&self) -> Result<TlsClient, rustls::Error> {
        self.build_with(false)
    }

    /// The same for a certificate of any name: the caller knows no name.
    pub fn build_for_any_name(&self) -> Result<TlsClient, rustls::Error> {
        self.build_with(true)
    }

    fn build_with(&self, any_name: bool) -> Result<TlsClient, rustls::Error> {
        let (authorities, names) = (self.authorities.clone(), self.names.clone());
        let verifier = CheckServer { authorities, names, any_name };
        let mut with = provider().clone();
        with.cipher_suites = self.ciphers.suites(self.versions);
        with.kx_groups = self.curves.groups();
        let builder = ClientConfig::builder_with_provider(Arc::new(with))
            .with_protocol_versions(&self.versions.list())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &self.identity {
            Some(identity) => builder.with_client_cert_resolver(Arc::new(Show(identity.clone()))),
            None => builder.with_no_client_auth(),
        };
        config.resumption = match self.reuse {
            true => Resumption::in_memory_sessions(SESSIONS),
            false => Resumption::disabled(),
        };
        config.alpn_protocols = self.alpn.clone();
        config.enable_sni = self.send_name;
        config.cert_compressors.clear();
        config.cert_decompressors.clear();
        let sessions = self.reuse.then(Arc::default);
        Ok(TlsClient { config: Arc::new(config), name: no_name(), sessions })
    }
}

impl TlsClient {
    /// The same for a server of this name.
    pub fn named(&self, name: &[u8]) -> TlsClient {
        let text = std::str::from_utf8(name).ok().map(|name| name.trim_end_matches('.').to_owned());
        let name = text.and_then(|text| ServerName::try_from(text).ok());
        TlsClient { name: name.unwrap_or_else(no_name), ..self.clone() }
    }

    /// The same, which offers these protocols to speak above TLS (ALPN), the preferred first. Sessions are resumed
    /// among both.
    pub fn offering(&self, protocols: &[&[u8]]) -> TlsClient {
        let mut config = (*self.config).clone();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        TlsClient { config: Arc::new(config), ..self.clone() }
    }

    /// The same for a connection to the server at this address, whose sessions are resumed with it alone.
    pub fn to_peer(&self, peer: &str) -> TlsClient {
        let Some(sessions) = &self.sessions else { return self.clone() };
        let mut config = (*self.config).clone();
        config.resumption = Resumption::store(sessions.of(peer));
        TlsClient { config: Arc::new(config), ..self.clone() }
    }

    /// The configuration, for QUIC.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }

    /// Tells connections apart that were opened in different ways.
    pub fn tag(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        (Arc::as_ptr(&self.config).addr(), &self.name).hash(&mut hash);
        hash.finish() | 1
    }
}

/// The name for what is no name of a host (a socket's path, say): an address that no certificate is
/// for, and that is not sent.
pub(crate) fn no_name() -> ServerName<'static> {
    IpAddr::from(std::net::Ipv4Addr::UNSPECIFIED).into()
}

/// Shows one certificate, whichever authorities the server names.
#[derive(Debug)]
struct Show(Identity);

impl rustls::client::ResolvesClientCert for Show {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<sign::CertifiedKey>> {
        let key = self.0.certified();
        key.key.choose_scheme(schemes).is_some().then_some(key)
    }

    fn has_certs(&self) -> bool {
        true
    }
}
