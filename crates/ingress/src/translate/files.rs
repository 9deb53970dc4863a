//! Files made of Secrets.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;

use super::index::{finds, same};
use super::lines::digest;
use super::work::Work;
use crate::report::ObjectId;

impl<'a> Work<'a> {
    /// The data of a Secret that an object names. A Secret of another namespace is refused.
    pub(super) fn secret(
        &self,
        id: &ObjectId,
        name: &str,
    ) -> Result<&'a BTreeMap<String, ByteString>, String> {
        self.own_secret(id, name).map(|(_, data)| data)
    }

    fn own_secret(&self, id: &ObjectId, name: &str) -> Result<SecretWithData<'a>, String> {
        let (namespace, name) = id.named(name);
        if namespace != id.namespace {
            return Err(
                "the Secret is in another namespace; only one of its own can be used".to_owned()
            );
        }
        self.any_secret(namespace, name)
    }

    fn any_secret(&self, namespace: &str, name: &str) -> Result<SecretWithData<'a>, String> {
        self.index
            .secret(namespace, name)
            .and_then(|secret| Some((secret, secret.data.as_ref()?)))
            .ok_or_else(|| format!("there is no Secret {namespace}/{name} with data"))
    }

    pub(crate) fn secret_of(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<&'a BTreeMap<String, ByteString>, String> {
        self.any_secret(namespace, name).map(|(_, data)| data)
    }

    /// Adds a file. Its name has the digest of its content, so that new content is a new file.
    pub(super) fn file(&mut self, kind: &str, content: Vec<u8>) -> String {
        let path: PathBuf = self.settings.state.join(format!("{kind}-{}", digest(&content)));
        let text = path.display().to_string();
        self.files.insert(path, content.into());
        text
    }

    /// The file of a certificate with its key, if they match and can be used.
    pub(crate) fn certificate(
        &mut self,
        data: &BTreeMap<String, ByteString>,
    ) -> Result<Certificate, String> {
        let (leaf, chain, key) = certificate_of(data)?;
        let text = [chain, b"\n", key, b"\n"].concat();
        Ok(Certificate { path: self.file("tls", text), names: dns_names(&leaf).into() })
    }

    /// The certificate of a Secret, or the one that it had before if that stays in use.
    pub(crate) fn certificate_in_use(
        &mut self,
        namespace: &str,
        name: &str,
        data: &BTreeMap<String, ByteString>,
    ) -> InUse {
        let why = match self.certificate(data) {
            Ok(certificate) => return InUse { certificate: Some(certificate), wrong: None },
            Err(why) => why,
        };
        let kept = self.index.kept_secret(namespace, name).and_then(|kept| kept.data.as_ref());
        match kept.and_then(|data| self.certificate(data).ok()) {
            Some(certificate) => {
                let wrong = format!("the certificate before stays in use: {why}");
                InUse { certificate: Some(certificate), wrong: Some(wrong) }
            }
            None => InUse { certificate: None, wrong: Some(why) },
        }
    }

    /// The file of the certificate authorities in `ca.crt`.
    pub(crate) fn authorities(
        &mut self,
        data: &BTreeMap<String, ByteString>,
    ) -> Result<String, String> {
        let text = data.get("ca.crt").ok_or("the Secret has no ca.crt")?.0.clone();
        let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match list {
            Ok(list) if !list.is_empty() => {
                let mut known = RootCertStore::empty();
                for one in list {
                    known.add(one).map_err(|why| format!("ca.crt: {why}"))?;
                }
                Ok(self.file("ca", text))
            }
            _ => Err("ca.crt is no list of certificates in PEM".to_owned()),
        }
    }

    /// The file of the lists of revoked certificates in `ca.crl`, if there are any.
    pub(super) fn revocations(
        &mut self,
        data: &BTreeMap<String, ByteString>,
    ) -> Result<Option<String>, String> {
        let Some(text) = data.get("ca.crl").filter(|text| !text.0.is_empty()) else {
            return Ok(None);
        };
        let list: Result<Vec<_>, _> =
            CertificateRevocationListDer::pem_slice_iter(&text.0).collect();
        let list = list.map_err(|_| "ca.crl is no list of revoked certificates in PEM")?;
        if list.is_empty() || list.iter().any(|one| x509_parser::parse_x509_crl(one).is_err()) {
            return Err("ca.crl is no list of revoked certificates in PEM".to_owned());
        }
        Ok(Some(self.file("crl", text.0.clone())))
    }
}

type SecretWithData<'a> = (&'a Arc<Secret>, &'a BTreeMap<String, ByteString>);

/// The certificates of hosts, by their Secrets. They are kept from one translation to the next,
/// since reading one takes longer than all else about its host.
#[derive(Debug, Default)]
pub(super) struct Certificates {
    before: HashMap<(String, String), KnownCertificate>,
    now: HashMap<(String, String), KnownCertificate>,
}

/// The certificate that a Secret has.
#[derive(Debug)]
struct KnownCertificate {
    secret: Arc<Secret>,
    kept: Option<Arc<Secret>>,
    made: InUse,
    files: BTreeMap<PathBuf, Arc<[u8]>>,
}

impl Certificates {
    /// Begins a translation, which reuses the certificates of the last one.
    pub(super) fn begin(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// Ends a translation: drops the certificates that it did not use.
    pub(super) fn end(&mut self) {
        self.before.clear();
    }

    /// The certificate of a Secret that an object names.
    pub(super) fn of(&mut self, work: &mut Work<'_>, id: &ObjectId, name: &str) -> InUse {
        if let Err(why) = work.own_secret(id, name) {
            return InUse { certificate: None, wrong: Some(why) };
        }
        let (namespace, name) = id.named(name);
        self.by_name(work, namespace, name)
    }

    /// The certificate of a Secret that the administrator names.
    pub(super) fn by_name(&mut self, work: &mut Work<'_>, namespace: &str, name: &str) -> InUse {
        let (secret, data) = match work.any_secret(namespace, name) {
            Ok(found) => found,
            Err(why) => return InUse { certificate: None, wrong: Some(why) },
        };
        let kept = work.index.kept_secret(namespace, name);
        let key = (namespace.to_owned(), name.to_owned());
        let known = match self.now.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let mut before = self.before.remove(place.key());
                let same = before.take_if(|known| {
                    same(&mut known.secret, secret) && finds(&mut known.kept, kept.as_ref())
                });
                place.insert(same.unwrap_or_else(|| {
                    let others = std::mem::take(&mut work.files);
                    let made = work.certificate_in_use(namespace, name, data);
                    let files = std::mem::replace(&mut work.files, others);
                    KnownCertificate { secret: secret.clone(), kept: kept.cloned(), made, files }
                }))
            }
        };
        let files = known.files.iter();
        work.files.extend(files.map(|(path, content)| (path.clone(), content.clone())));
        known.made.clone()
    }
}

/// The first certificate of a Secret, its chain and its key, if they match and can be used.
pub(crate) fn certificate_of(
    data: &BTreeMap<String, ByteString>,
) -> Result<(CertificateDer<'static>, &[u8], &[u8]), String> {
    let part =
        |key: &str| data.get(key).map(|b| b.0.as_slice()).ok_or(format!("the Secret has no {key}"));
    let (chain, key) = (part("tls.crt")?, part("tls.key")?);
    Ok((pair(chain, key)?, chain, key))
}

/// The first certificate of a chain, if the key belongs to it and both can be used.
fn pair(chain: &[u8], key: &[u8]) -> Result<CertificateDer<'static>, String> {
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<_, _>>()
        .map_err(|e| not_pem("tls.crt", &e))?;
    let leaf = certificates
        .first()
        .cloned()
        .ok_or_else(|| not_pem("tls.crt", &pem::Error::NoItemsFound))?;
    let private = PrivateKeyDer::from_pem_slice(key).map_err(|e| not_pem("tls.key", &e))?;
    CertifiedKey::from_der(certificates, private, &default_provider()).map_err(|e| match e {
        rustls::Error::InconsistentKeys(_) => "tls.key is not the key of the first certificate in tls.crt. \
             Store the two files that belong together, with the certificate of the server before those of its issuers."
            .to_owned(),
        e => format!("certificate and key cannot be used: {e}"),
    })?;
    Ok(leaf)
}

/// The message for a file of a Secret that is not PEM. It shows no byte of the file, which may be a
/// key.
fn not_pem(file: &str, error: &pem::Error) -> String {
    let kind = if file == "tls.key" { "private key" } else { "certificate" };
    // If the file has no line breaks, the "label" is its content.
    let is_label = |label: &[u8]| label.iter().all(|b| b.is_ascii_uppercase() || *b == b' ');
    match error {
        pem::Error::MissingSectionEnd { end_marker } if is_label(end_marker) => format!(
            "{file} is cut off: the line -----END {}----- is missing at its end. Store the whole file in the Secret.",
            String::from_utf8_lossy(end_marker)
        ),
        pem::Error::MissingSectionEnd { .. } | pem::Error::IllegalSectionStart { .. } => format!(
            "{file} has a line with -----BEGIN that does not end after the label and five dashes. \
             Store the file as it was issued, with all of its line breaks."
        ),
        pem::Error::Base64Decode(_) => format!(
            "{file} has something else than base64 between its lines BEGIN and END. \
             Store the file as it was issued; the Secret itself encodes it once more."
        ),
        pem::Error::NoItemsFound if file == "tls.key" => format!(
            "{file} has no {kind} in PEM, or one with a passphrase. \
             Store a key without a passphrase that begins with the line -----BEGIN PRIVATE KEY-----."
        ),
        pem::Error::NoItemsFound => format!("{file} has no {kind} in PEM."),
        other => format!("{file} has no {kind} that can be read: {other}"),
    }
}

/// The DNS names in a certificate: the alternative names, or else the common name, as in
/// ingress-nginx.
fn dns_names(leaf: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(leaf) else { return Vec::new() };
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let names = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    let list: Vec<String> = names.collect();
    if !list.is_empty() {
        return list;
    }
    let common = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    common.map(str::to_ascii_lowercase).collect()
}

/// A certificate that a file holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Certificate {
    pub(crate) path: String,
    names: Arc<[String]>,
}

/// The certificate that is used for a Secret, if any, and what is wrong with the Secret.
#[derive(Clone, Debug)]
pub(crate) struct InUse {
    pub(crate) certificate: Option<Certificate>,
    pub(crate) wrong: Option<String>,
}

impl Certificate {
    /// Whether the certificate has a name for this host.
    pub(super) fn covers(&self, host: &str) -> bool {
        self.names.iter().any(|name| {
            name == host
                || name.strip_prefix("*.").is_some_and(|rest| {
                    host.split_once('.').is_some_and(|(_, parent)| parent == rest)
                })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAIN: &str = include_str!("../../../tls/testdata/leaf.pem");
    const KEY: &str = include_str!("../../../tls/testdata/leaf.key");

    #[test]
    fn what_is_wrong_with_a_certificate_or_key_is_a_sentence() {
        assert!(pair(CHAIN.as_bytes(), KEY.as_bytes()).is_ok());
        let half = |text: &str| text[..text.len() / 2].to_owned();
        let locked = include_str!("../../../tls/testdata/self.sealed.key").to_owned();
        let other = include_str!("../../../tls/testdata/root.key").to_owned();
        for (chain, key, wanted) in [
            (CHAIN, half(KEY), "tls.key is cut off: the line -----END PRIVATE KEY----- is missing"),
            (
                &half(CHAIN),
                KEY.to_owned(),
                "tls.crt is cut off: the line -----END CERTIFICATE-----",
            ),
            (CHAIN, KEY.replace('\n', " "), "tls.key has a line with -----BEGIN that does not end"),
            (CHAIN, KEY.replacen("\nM", "\n!", 1), "tls.key has something else than base64"),
            (CHAIN, locked, "tls.key has no private key in PEM, or one with a passphrase"),
            (CHAIN, String::new(), "tls.key has no private key in PEM"),
            ("", KEY.to_owned(), "tls.crt has no certificate in PEM."),
            (CHAIN, other, "tls.key is not the key of the first certificate in tls.crt."),
        ] {
            let told = pair(chain.as_bytes(), key.as_bytes()).unwrap_err();
            assert!(told.starts_with(wanted), "{wanted}: {told}");
            // Neither a list of bytes nor a part of the file.
            assert!(!told.contains('[') && !told.contains("MI"), "{told}");
        }
    }
}
