//! Certificates whose file names have variables. Threads of the file pool load them when a client
//! connects, and each loop caches them (`ssl_certificate_cache`).

use std::path::PathBuf;
use std::sync::Arc;

use weir_conf::Error;
use weir_engine::Handle;
use weir_tls::{Identity, ServerConfig, ServerSettings};

use weir_values::{Subject, Template};

use super::Conf;
use crate::certificate_cache::{CacheLimits, CertificateCache};
use crate::load::{self, LoadError};
use crate::reader::SslReader;

/// The certificates of one server.
#[derive(Debug)]
pub struct Computed {
    files: Vec<(Template, Template)>,
    prefix: PathBuf,
    passwords: Arc<Vec<Vec<u8>>>,
    /// Everything but the certificates.
    settings: ServerSettings,
    keep: Option<CacheLimits>,
    /// For QUIC: its ALPN protocols.
    over_quic: Option<Vec<Vec<u8>>>,
}

/// Whether certificates or keys have variables in their names.
pub fn is_computed(conf: &Conf) -> bool {
    conf.certificates.iter().chain(&conf.keys).any(|file| file.name.contains(&b'$'))
}

impl Computed {
    /// Compiles the names. `over_quic`: the ALPN protocols, if the certificates are for QUIC.
    pub fn new<S: Subject>(
        conf: &Conf,
        reader: &mut SslReader<'_, '_, S>,
        settings: ServerSettings,
        over_quic: Option<Vec<Vec<u8>>>,
    ) -> Result<Self, Error> {
        let variables = &mut *reader.variables;
        let mut files = Vec::new();
        for (chain, key) in conf.certificates.iter().zip(&conf.keys) {
            files.push((chain.template(variables)?, key.template(variables)?));
        }
        let (prefix, passwords) = (reader.files.prefix().to_owned(), conf.passwords.clone());
        let keep = conf.certificate_cache;
        Ok(Computed { files, prefix, passwords, settings, keep, over_quic })
    }

    /// The names of the files for this client.
    pub fn names(&self, client: &mut impl Subject) -> Vec<(Vec<u8>, Vec<u8>)> {
        let each = self.files.iter();
        each.map(|(chain, key)| (chain.eval(client).into_owned(), key.eval(client).into_owned()))
            .collect()
    }

    /// The configuration for a client whose files have these names.
    pub async fn config(
        &self,
        names: Vec<(Vec<u8>, Vec<u8>)>,
        handle: &Handle,
        loaded: &CertificateCache<Arc<ServerConfig>>,
    ) -> Result<Arc<ServerConfig>, LoadError> {
        if names.iter().any(|(chain, key)| chain.is_empty() || key.is_empty()) {
            return Err(LoadError::Unnamed);
        }
        let key = (std::ptr::from_ref(self).addr(), names);
        let now = handle.now();
        if let Some(keep) = &self.keep
            && let Some(config) = loaded.find(&key, keep, now)
        {
            return Ok(config);
        }
        let (names, prefix) = (key.1.clone(), self.prefix.clone());
        let (passwords, settings) = (self.passwords.clone(), self.settings.clone());
        let over_quic = self.over_quic.clone();
        let loading = move || read(&names, &prefix, &passwords, settings, over_quic);
        let read = handle.files().run(loading).await.map_err(LoadError::Pool)?;
        let (config, encrypted) = read?;
        if let Some(keep) = self.keep.as_ref().filter(|_| !encrypted) {
            loaded.keep(key, config.clone(), keep, now);
        }
        Ok(config)
    }
}

/// Reads the files and builds the configuration; blocks. Also returns whether a key is encrypted:
/// such a one is not cached.
fn read(
    names: &[(Vec<u8>, Vec<u8>)],
    prefix: &std::path::Path,
    passwords: &[Vec<u8>],
    mut settings: ServerSettings,
    over_quic: Option<Vec<Vec<u8>>>,
) -> Result<(Arc<ServerConfig>, bool), LoadError> {
    let keys: Vec<&[u8]> = names.iter().map(|(_, key)| key.as_slice()).collect();
    for (chain, key) in names {
        settings.identities.push(load::identity_now(prefix, chain, key, &keys, passwords)?);
    }
    let encrypted = settings.identities.iter().any(Identity::is_encrypted);
    let built = match over_quic {
        Some(alpn) => settings.build_for_quic(alpn),
        None => settings.build(),
    };
    Ok((built.map_err(LoadError::Settings)?, encrypted))
}
