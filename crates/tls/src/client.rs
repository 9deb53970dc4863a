//! A client's side of TLS: how upstreams are spoken to.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, SignatureScheme, sign};

use crate::names::{Ciphers, Versions, provider};
use crate::server::Identity;
use crate::verifier::{Authorities, CheckServer};

/// Sessions kept for resumption, for each configuration.
const SESSIONS: usize = 64;

/// What the TLS to an upstream is to be.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// Versions of the protocol.
    pub versions: Versions,
    /// Ciphers, the preferred first.
    pub ciphers: Ciphers,
    /// The certificate that we show when asked.
    pub identity: Option<Identity>,
    /// The upstream's certificate must lead to one of these, and be for `name`.
    pub authorities: Option<Arc<Authorities>>,
    /// The name that the certificate is checked for.
    pub name: Vec<u8>,
    /// Send the name in the handshake (SNI).
    pub send_name: bool,
    /// Resume sessions.
    pub reuse: bool,
    /// Protocols above, the preferred first.
    pub alpn: Vec<Vec<u8>>,
}

/// How to open TLS to one name; cheap to copy. Sessions are resumed among its copies.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

impl ClientSettings {
    /// Puts it together.
    pub fn build(&self) -> Result<Client, String> {
        let mut with = provider().clone();
        with.cipher_suites = self.ciphers.suites();
        let verifier =
            CheckServer { authorities: self.authorities.clone(), name: self.name.clone() };
        let builder = ClientConfig::builder_with_provider(Arc::new(with))
            .with_protocol_versions(&self.versions.list())
            .map_err(|error| error.to_string())?
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
        let name = std::str::from_utf8(&self.name).ok();
        let name = name.and_then(|name| ServerName::try_from(name.to_owned()).ok());
        config.enable_sni = self.send_name && name.is_some();
        // A name that is none (of a socket's path, say) only serves to find sessions again.
        let name = name.or_else(|| ServerName::try_from("localhost").ok());
        let name = name.ok_or("no name for the upstream")?;
        Ok(Client { config: Arc::new(config), name })
    }
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
