//! The chain of certificates that the authority sends.

use instant_acme::Account;
use rcgen::{KeyPair, PublicKeyData};
use x509_parser::pem::Pem;

use super::{Client, Failure};
use crate::state::validity;
use crate::transport::finish;

/// So many other chains are looked at.
const ALTERNATES: usize = 8;

impl Client<'_> {
    /// The chain that `preferred_chain` names, if the authority has it; or else the usual one.
    pub(super) fn preferred(&self, account: &Account, usual: String) -> Result<String, Failure> {
        let Some(name) = self.issuer.preferred_chain.as_deref() else { return Ok(usual) };
        if topmost(&usual).as_deref() == Some(name) {
            return Ok(usual);
        }
        for url in self.transport.alternates().into_iter().take(ALTERNATES) {
            // The library has no such request. This one is the same, and its answer is no order.
            let asked = self.again(|| match finish(account.order(url.clone())) {
                Err(e) if super::is_problem(&e, "badNonce") => Err(e),
                other => Ok(other),
            });
            if let Ok(Err(e)) = asked
                && let Failure::Stopped = self.refused("", &e)
            {
                return Err(Failure::Stopped);
            }
            let chain = String::from_utf8(self.transport.body().to_vec()).unwrap_or_default();
            if topmost(&chain).as_deref() == Some(name) {
                return Ok(chain);
            }
        }
        Ok(usual)
    }
}

/// The common name of the authority that has issued the last certificate of a chain.
fn topmost(chain: &str) -> Option<String> {
    let last = Pem::iter_from_buffer(chain.as_bytes()).last()?.ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&last.contents).ok()?;
    let name = certificate.issuer().iter_common_name().next()?.as_str().ok()?.to_owned();
    Some(name)
}

/// Whether a chain can be used with this key.
pub(super) fn check(chain: &str, key: &KeyPair) -> Result<(), &'static str> {
    let first = Pem::iter_from_buffer(chain.as_bytes()).next().and_then(Result::ok);
    let first = first.filter(|section| section.label == "CERTIFICATE");
    let first = first.ok_or("the server sent no certificate")?;
    let parsed = x509_parser::parse_x509_certificate(&first.contents);
    let (_, certificate) =
        parsed.map_err(|_| "the server sent a certificate that cannot be read")?;
    if certificate.public_key().raw != key.subject_public_key_info() {
        return Err("the server sent a certificate of another key");
    }
    validity(&first.contents).map(|_| ()).ok_or("the server sent a certificate without a time")
}
