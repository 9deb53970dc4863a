//! Certificates for TLS to servers whose file names have variables.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use weir_conf::Error;
use weir_engine::Handle;
use weir_tls::{ClientSettings, TlsClient};
use weir_values::{Subject, Template};

use crate::certificate_cache::{CacheLimits, CertificateCache};
use crate::load::{self, LoadError};
use crate::reader::{NamedFile, SslReader};

/// A certificate and its key, whose files are known once a request is passed on.
#[derive(Debug)]
pub struct Computed {
    certificate: Template,
    key: Template,
    prefix: PathBuf,
    passwords: Arc<Vec<Vec<u8>>>,
    /// Everything but the certificate.
    settings: ClientSettings,
}

/// A number that differs between pairs of files.
pub fn tag(files: &(Vec<u8>, Vec<u8>)) -> u64 {
    let mut hash = DefaultHasher::new();
    files.hash(&mut hash);
    hash.finish()
}

impl Computed {
    /// Compiles the names.
    pub fn new<S: Subject>(
        reader: &mut SslReader<'_, '_, S>,
        certificate: &NamedFile,
        key: &NamedFile,
        passwords: Arc<Vec<Vec<u8>>>,
        settings: ClientSettings,
    ) -> Result<Self, Error> {
        let variables = &mut *reader.variables;
        let (certificate, key) = (certificate.template(variables)?, key.template(variables)?);
        let prefix = reader.files.prefix().to_owned();
        Ok(Computed { certificate, key, prefix, passwords, settings })
    }

    /// The names of the files for this request or session. `None` if the certificate's name is
    /// empty.
    pub fn names(&self, r: &mut impl Subject) -> Option<(Vec<u8>, Vec<u8>)> {
        let certificate = self.certificate.eval(r).into_owned();
        let key = self.key.eval(r).into_owned();
        (!certificate.is_empty()).then_some((certificate, key))
    }

    /// Loads the files, unless the loop has them in its cache.
    pub async fn load(
        &self,
        handle: &Handle,
        files: &(Vec<u8>, Vec<u8>),
        loaded: &CertificateCache<TlsClient>,
        keep: Option<&CacheLimits>,
    ) -> Result<TlsClient, LoadError> {
        let now = handle.now();
        let key = (std::ptr::from_ref(self).addr(), vec![files.clone()]);
        let known = keep.and_then(|keep| loaded.find(&key, keep, now));
        if let Some(client) = known {
            return Ok(client);
        }
        let (files, prefix) = (files.clone(), self.prefix.clone());
        let (passwords, mut settings) = (self.passwords.clone(), self.settings.clone());
        let loading = move || {
            let identity = load::identity_now(&prefix, &files.0, &files.1, &[], &passwords)?;
            let encrypted = identity.is_encrypted();
            settings.identity = Some(identity);
            Ok((settings.build().map_err(LoadError::Settings)?, encrypted))
        };
        let read = handle.files().run(loading).await.map_err(LoadError::Pool)?;
        let (client, encrypted) = read?;
        if let Some(keep) = keep.filter(|_| !encrypted) {
            loaded.keep(key, client.clone(), keep, now);
        }
        Ok(client)
    }
}
