//! Secrets to files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::ByteString;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::{Work, digest};
use crate::report::ObjectId;

impl<'a> Work<'a> {
    /// A Secret that an object names. Another namespace's is refused.
    pub(super) fn secret(
        &self,
        id: &ObjectId,
        name: &str,
    ) -> Result<&'a BTreeMap<String, ByteString>, String> {
        let (namespace, name) = name.split_once('/').unwrap_or((&id.namespace, name));
        if namespace != id.namespace {
            return Err("the Secret is in another namespace".to_owned());
        }
        self.secret_of(namespace, name)
    }

    pub(crate) fn secret_of(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<&'a BTreeMap<String, ByteString>, String> {
        self.index
            .secret(namespace, name)
            .and_then(|s| s.data.as_ref())
            .ok_or_else(|| format!("there is no Secret {namespace}/{name} with data"))
    }

    /// Keeps a file whose name tells its content, so that a new content is a new file.
    pub(super) fn file(&mut self, kind: &str, content: Vec<u8>) -> String {
        let path: PathBuf = self.settings.state.join(format!("{kind}-{}", digest(&content)));
        let text = path.display().to_string();
        self.files.insert(path, content);
        text
    }

    /// The file of a certificate with its key, if they belong together and can be used.
    pub(crate) fn certificate(
        &mut self,
        data: &BTreeMap<String, ByteString>,
    ) -> Result<Certificate, String> {
        let part = |key: &str| {
            data.get(key).map(|b| b.0.clone()).ok_or(format!("the Secret has no {key}"))
        };
        let (chain, key) = (part("tls.crt")?, part("tls.key")?);
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&chain)
            .collect::<Result<_, _>>()
            .map_err(|e| format!("tls.crt is not PEM: {e}"))?;
        let leaf = certificates.first().cloned().ok_or("tls.crt has no certificate")?;
        let private =
            PrivateKeyDer::from_pem_slice(&key).map_err(|e| format!("tls.key is not PEM: {e}"))?;
        CertifiedKey::from_der(certificates, private, &default_provider())
            .map_err(|e| format!("certificate and key cannot be used: {e}"))?;
        let text = [chain.as_slice(), b"\n", &key, b"\n"].concat();
        Ok(Certificate { path: self.file("tls", text), leaf })
    }

    /// The file of authorities in `ca.crt`.
    pub(crate) fn authorities(
        &mut self,
        data: &BTreeMap<String, ByteString>,
    ) -> Result<String, String> {
        let text = data.get("ca.crt").ok_or("the Secret has no ca.crt")?.0.clone();
        let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match list {
            Ok(list) if !list.is_empty() => Ok(self.file("ca", text)),
            _ => Err("ca.crt is no list of certificates in PEM".to_owned()),
        }
    }
}

/// A certificate on its way to disk.
#[derive(Clone, Debug)]
pub(crate) struct Certificate {
    pub(crate) path: String,
    leaf: CertificateDer<'static>,
}

impl Certificate {
    /// Whether it is for this host.
    pub(super) fn covers(&self, host: &str) -> bool {
        let Ok((_, parsed)) = x509_parser::parse_x509_certificate(&self.leaf) else { return false };
        let Ok(Some(names)) = parsed.subject_alternative_name() else { return false };
        names.value.general_names.iter().any(|name| match name {
            x509_parser::extensions::GeneralName::DNSName(name) => {
                let name = name.to_ascii_lowercase();
                name == host
                    || name.strip_prefix("*.").is_some_and(|rest| {
                        host.split_once('.').is_some_and(|(_, parent)| parent == rest)
                    })
            }
            _ => false,
        })
    }
}
