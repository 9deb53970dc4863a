//! The OCSP request about one certificate, and the verification of the response.

use std::sync::Arc;

use crate::verifier::{Authorities, now};
use crate::x509::ocsp::{OcspAnswer, OcspError, OcspRequest, Signer};
use crate::x509::{Certificate, verify};

/// Which signers of a response are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignerTrust {
    /// Any: the response is passed on, and the client judges it.
    Anyone,
    /// Those with a chain to an authority.
    Trusted {
        /// The authorities.
        authorities: Arc<Authorities>,
        /// A signer among the inquiry's `known` certificates needs no authority.
        known: bool,
    },
}

/// A request, with all that the verification of its response needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inquiry {
    question: OcspRequest,
    known: Vec<Vec<u8>>,
    trust: SignerTrust,
}

impl Inquiry {
    /// An inquiry about a certificate of this issuer, both in DER. `None` if one of them is
    /// malformed. The `known` certificates may have signed the response.
    pub fn new(
        certificate: &[u8],
        issuer: &[u8],
        known: Vec<Vec<u8>>,
        trust: SignerTrust,
    ) -> Option<Inquiry> {
        let (certificate, issuer) = (Certificate::parse(certificate)?, Certificate::parse(issuer)?);
        Some(Inquiry { question: OcspRequest::new(&certificate, &issuer), known, trust })
    }

    /// The request, in DER.
    pub fn request(&self) -> Vec<u8> {
        self.question.request()
    }

    /// The key under which the response may be cached.
    pub fn name(&self) -> Vec<u8> {
        self.question.name()
    }

    /// Verifies a response. Returns the certificate's status.
    pub fn answer(&self, response: &[u8]) -> Result<OcspAnswer, OcspError> {
        let now = now();
        let known: Vec<_> = self.known.iter().filter_map(|der| Certificate::parse(der)).collect();
        let signer = match &self.trust {
            SignerTrust::Anyone => Signer::Anyone,
            SignerTrust::Trusted { authorities, known } => {
                Signer::Trusted { trust: authorities.trust(now), known: *known }
            }
        };
        self.question.answer(response, &known, signer, now)
    }
}

/// The issuer of a certificate among these certificates. All are in DER.
pub fn issuer<'a>(
    certificate: &[u8],
    mut among: impl Iterator<Item = &'a [u8]>,
) -> Option<&'a [u8]> {
    let certificate = Certificate::parse(certificate)?;
    among.find(|der| {
        Certificate::parse(der).is_some_and(|issuer| {
            issuer.may_have_issued(&certificate) && verify::issued(&issuer, &certificate)
        })
    })
}

/// The URL of the OCSP responder in a certificate.
pub fn responder(certificate: &[u8]) -> Option<&[u8]> {
    Certificate::parse(certificate)?.extensions.ocsp
}

/// Whether these bytes have the form of an OCSP response.
pub fn is_response(bytes: &[u8]) -> bool {
    crate::x509::ocsp::is_response(bytes)
}
