//! Certificates for servers whose names have variables in them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use weir_conf::Error;
use weir_tls::{Client, ClientSettings};

use crate::config::Setup;
use crate::modules::ssl::kept::Keep;
use crate::modules::ssl::{Named, load};
use crate::request::Request;
use weir_values::Template;

/// A certificate and its key, known when a request is passed on.
#[derive(Debug)]
pub struct Computed {
    certificate: Template,
    key: Template,
    prefix: PathBuf,
    passwords: Arc<Vec<Vec<u8>>>,
    /// All but the certificate.
    settings: ClientSettings,
}

/// Tells pairs of files apart.
pub fn tag(files: &(Vec<u8>, Vec<u8>)) -> u64 {
    let mut hash = DefaultHasher::new();
    files.hash(&mut hash);
    hash.finish()
}

impl Computed {
    /// Compiles the names.
    pub fn new(
        setup: &mut Setup<'_>,
        certificate: &Named,
        key: &Named,
        passwords: Arc<Vec<Vec<u8>>>,
        settings: ClientSettings,
    ) -> Result<Self, Error> {
        let (certificate, key) = (certificate.template(setup)?, key.template(setup)?);
        let prefix = setup.inputs.conf_prefix.to_owned();
        Ok(Computed { certificate, key, prefix, passwords, settings })
    }

    /// What the files are called for this request; none where it has none.
    pub fn names(&self, r: &mut Request) -> Option<(Vec<u8>, Vec<u8>)> {
        let certificate = self.certificate.eval(r).into_owned();
        let key = self.key.eval(r).into_owned();
        (!certificate.is_empty()).then_some((certificate, key))
    }

    /// Loads them, unless the loop has kept them. The error is for the log.
    pub async fn load(
        &self,
        r: &Request,
        files: &(Vec<u8>, Vec<u8>),
        keep: Option<&Keep>,
    ) -> Result<Client, String> {
        let (worker, now) = (r.worker.clone(), r.worker.handle.now());
        let key = (std::ptr::from_ref(self).addr(), vec![files.clone()]);
        let known = keep.and_then(|keep| worker.upstream_certificates.find(&key, keep, now));
        if let Some(client) = known {
            return Ok(client);
        }
        let (files, prefix) = (files.clone(), self.prefix.clone());
        let (passwords, mut settings) = (self.passwords.clone(), self.settings.clone());
        let loading = move || {
            let identity = load::identity_now(&prefix, &files.0, &files.1, &passwords)?;
            settings.identity = Some(identity);
            settings.build()
        };
        let loaded = worker.handle.files().run(loading).await;
        let client = loaded.map_err(|error| error.to_string())??;
        if let Some(keep) = keep {
            worker.upstream_certificates.keep(key, client.clone(), keep, now);
        }
        Ok(client)
    }
}
