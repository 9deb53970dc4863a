//! The chain of certificates that the authority sends.

use instant_acme::Account;
use rcgen::{KeyPair, PublicKeyData};
use x509_parser::pem::Pem;

use super::{Client, Failure};
use crate::state::validity;
use crate::transport::finish;

/// The most alternate chains that are downloaded.
const ALTERNATES: usize = 8;

impl Client<'_> {
    /// The chain whose topmost issuer is `preferred_chain`, if the authority offers it. Otherwise the default chain.
    pub(super) fn preferred(&self, account: &Account, usual: String) -> Result<String, Failure> {
        let Some(name) = self.issuer.preferred_chain.as_deref() else { return Ok(usual) };
        if topmost(&usual).as_deref() == Some(name) {
            return Ok(usual);
        }
        for url in self.transport.alternates().into_iter().take(ALTERNATES) {
            // The library has no request for this URL. A request for an order is the same, though the answer is not an order.
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

/// The common name of the issuer of a chain's last certificate.
fn topmost(chain: &str) -> Option<String> {
    let last = Pem::iter_from_buffer(chain.as_bytes()).last()?.ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&last.contents).ok()?;
    let name = certificate.issuer().iter_common_name().next()?.as_str().ok()?.to_owned();
    Some(name)
}

/// Checks that a chain's first certificate can be read and has this key.
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
