//! The client's side of TLS, for connections to upstreams.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustls::client::{ClientSessionMemoryCache, Resumption};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, SignatureScheme, sign};

use crate::names::{Ciphers, Curves, Versions, provider};
use crate::peers::PeerSessions;
use crate::server::Identity;
use crate::verifier::{Authorities, CertificateName, CheckServer};

/// Size of each configuration's session cache: eight tickets for each of eight server names.
const SESSIONS: usize = 64;

/// The settings of TLS to an upstream.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// Versions of the protocol.
    pub versions: Versions,
    /// Ciphers, the preferred first.
    pub ciphers: Ciphers,
    /// Curves, the preferred first.
    pub curves: Curves,
    /// The certificate that is sent if the upstream requests one.
    pub identity: Option<Identity>,
    /// If set, the upstream's certificate must lead to one of these and match the upstream's name.
    pub authorities: Option<Arc<Authorities>>,
    /// If not empty, the certificate must have one of these names instead of the upstream's.
    pub names: Arc<[CertificateName]>,
    /// Send the upstream's name in the handshake (SNI).
    pub send_name: bool,
    /// Resume sessions.
    pub reuse: bool,
    /// Protocols for ALPN, the preferred first.
    pub alpn: Vec<Vec<u8>>,
}

/// A client's configuration for one server name; cheap to clone. Clones share their sessions: with
/// any server of the name, or with one server ([`TlsClient::to_peer`]).
#[derive(Debug, Clone)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
    /// The name that the certificate must have, if `name` differs from it.
    exactly: Option<Arc<[u8]>>,
    check: Arc<CheckServer>,
    /// The sessions of each server, if sessions are resumed.
    sessions: Option<Arc<PeerSessions>>,
    /// Identifies the settings. A process uses each number once, even after settings are dropped.
    number: u64,
}

fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Relaxed)
}

/// The sessions of one server name, which the caller keeps.
#[derive(Clone)]
pub struct ClientSessions(Arc<ClientSessionMemoryCache>);

impl Default for ClientSessions {
    fn default() -> Self {
        ClientSessions(Arc::new(ClientSessionMemoryCache::new(1)))
    }
}

impl ClientSettings {
    /// A client with these settings, without a server name yet.
    pub fn build(&self) -> Result<TlsClient, rustls::Error> {
        self.build_with(false)
    }

    /// As [`ClientSettings::build`], but the certificate may be for any name: the caller knows
    /// none.
    pub fn build_for_any_name(&self) -> Result<TlsClient, rustls::Error> {
        self.build_with(true)
    }

    fn build_with(&self, any_name: bool) -> Result<TlsClient, rustls::Error> {
        let (authorities, names) = (self.authorities.clone(), self.names.clone());
        let check = CheckServer { authorities, names, any_name, exactly: None, any_path: false };
        let check = Arc::new(check);
        let mut with = provider().clone();
        with.cipher_suites = self.ciphers.suites(self.versions);
        with.kx_groups = self.curves.groups();
        let builder = ClientConfig::builder_with_provider(Arc::new(with))
            .with_protocol_versions(&self.versions.list())?
            .dangerous()
            .with_custom_certificate_verifier(check.clone());
        let mut config = match &self.identity {
            Some(_) => builder.with_client_cert_resolver(Arc::new(Show(self.identity.clone()))),
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
        let (config, name) = (Arc::new(config), no_name());
        Ok(TlsClient { config, name, exactly: None, check, sessions, number: next_number() })
    }
}

impl TlsClient {
    /// A client for the server of this name, which the server's certificate must match to the byte.
    /// SNI has the name without trailing dots (RFC 6066, section 3). It is left out if the name
    /// cannot be a host's.
    pub fn named(&self, name: &[u8]) -> TlsClient {
        let text = std::str::from_utf8(name).unwrap_or_default();
        let sent = ServerName::try_from(text.trim_end_matches('.').to_owned()).ok();
        let sent = sent.unwrap_or_else(no_name);
        let says_all = sent != no_name() && sent.to_str().as_bytes() == name;
        let exactly = (!says_all && self.check.checks_name()).then(|| name.into());
        TlsClient { name: sent, exactly, ..self.clone() }
    }

    /// A client that offers these protocols by ALPN, the preferred first. It shares its sessions
    /// with this one.
    pub fn offering(&self, protocols: &[&[u8]]) -> TlsClient {
        let mut config = (*self.config).clone();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        TlsClient { config: Arc::new(config), ..self.clone() }
    }

    /// A client for the server at this address. It resumes only sessions with that server.
    pub fn to_peer(&self, peer: &str) -> TlsClient {
        let Some(sessions) = &self.sessions else { return self.clone() };
        let mut config = (*self.config).clone();
        config.resumption = Resumption::store(sessions.of(peer));
        TlsClient { config: Arc::new(config), ..self.clone() }
    }

    /// A client that resumes one of these sessions and adds its own. The sessions must come from a
    /// clone of this client.
    pub fn keeping(&self, sessions: &ClientSessions) -> TlsClient {
        let mut config = (*self.config).clone();
        config.resumption = Resumption::store(sessions.0.clone());
        TlsClient { config: Arc::new(config), ..self.clone() }
    }

    /// The configuration of a connection. rustls finds sessions by the name in SNI. So no session
    /// is resumed if the certificate must have another name.
    pub fn config(&self) -> Arc<ClientConfig> {
        let Some(exactly) = &self.exactly else { return self.config.clone() };
        let mut config = (*self.config).clone();
        config.resumption = Resumption::disabled();
        config.dangerous().set_certificate_verifier(Arc::new(self.check.exactly(exactly)));
        Arc::new(config)
    }

    /// A client that trusts these authorities alone, in DER, if it verifies its servers at all. It
    /// resumes no session, since other authorities vouched for the session's server.
    pub fn trusting(&self, anchors: Vec<Vec<u8>>) -> TlsClient {
        let Some(before) = &self.check.authorities else { return self.clone() };
        let authorities = Authorities { anchors, lists: Vec::new(), depth: before.depth };
        let authorities = Some(Arc::new(authorities));
        self.checking(CheckServer { authorities, ..CheckServer::clone(&self.check) })
    }

    /// A client that sends this certificate on request, or none. It resumes no session: to a
    /// server, a session belongs to the earlier certificate.
    pub fn showing(&self, identity: Option<Identity>) -> TlsClient {
        self.without_sessions(|config| {
            config.client_auth_cert_resolver = Arc::new(Show(identity));
        })
    }

    /// A client for a caller that judges certificates itself ([`Secured::inspect`]). It resumes no
    /// session, since the server then sends no certificate. With `any_path` the chain need not lead
    /// to an authority; only the name is verified.
    ///
    /// [`Secured::inspect`]: crate::Secured::inspect
    pub fn inspected(&self, any_path: bool) -> TlsClient {
        self.checking(CheckServer { any_path, ..CheckServer::clone(&self.check) })
    }

    fn checking(&self, check: CheckServer) -> TlsClient {
        let check = Arc::new(check);
        let by = check.clone();
        let set = |config: &mut ClientConfig| config.dangerous().set_certificate_verifier(by);
        TlsClient { check, ..self.without_sessions(set) }
    }

    fn without_sessions(&self, change: impl FnOnce(&mut ClientConfig)) -> TlsClient {
        let mut config = (*self.config).clone();
        config.resumption = Resumption::disabled();
        change(&mut config);
        let config = Arc::new(config);
        TlsClient { config, sessions: None, number: next_number(), ..self.clone() }
    }

    /// A number that differs between clients that would open different connections. Kept
    /// connections may outlive their settings.
    pub fn tag(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        let protocols = &self.config.alpn_protocols;
        (self.number, protocols, &self.name, &self.exactly).hash(&mut hash);
        hash.finish() | 1
    }
}

/// The server name for a name that cannot be a host's, such as a socket's path. Addresses are not
/// sent in SNI.
pub(crate) fn no_name() -> ServerName<'static> {
    IpAddr::from(std::net::Ipv4Addr::UNSPECIFIED).into()
}

/// Sends one certificate, whichever authorities the server names, or none.
#[derive(Debug)]
struct Show(Option<Identity>);

impl rustls::client::ResolvesClientCert for Show {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<sign::CertifiedKey>> {
        let key = self.0.as_ref()?.certified();
        key.key.choose_scheme(schemes).is_some().then_some(key)
    }

    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn client() -> TlsClient {
        let settings = ClientSettings {
            versions: Versions::default(),
            ciphers: Ciphers::default(),
            curves: Curves::default(),
            identity: None,
            authorities: None,
            names: Arc::default(),
            send_name: true,
            reuse: false,
            alpn: Vec::new(),
        };
        settings.build().unwrap().named(b"a.test")
    }

    #[test]
    fn tags_of_dropped_settings_are_not_reused() {
        let tags: BTreeSet<u64> = (0..100).map(|_| client().tag()).collect();
        assert_eq!(tags.len(), 100);
    }

    #[test]
    fn tags_differ_by_name_protocol_and_settings() {
        let one = client();
        assert_eq!(one.tag(), one.clone().tag());
        assert_eq!(one.offering(&[b"h2"]).tag(), one.offering(&[b"h2"]).tag());
        let others = [one.named(b"b.test"), one.offering(&[b"h2"]), client()];
        assert!(others.iter().all(|other| other.tag() != one.tag()));
    }
}
