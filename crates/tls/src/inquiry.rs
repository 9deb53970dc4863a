//! The status of one certificate, to be asked of a responder (OCSP).

use std::sync::Arc;

use crate::verifier::{Authorities, now};
use crate::x509::ocsp::{OcspAnswer, OcspError, OcspRequest, Signer};
use crate::x509::{Certificate, verify};

/// Which answers count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Believe {
    /// All: the answer is passed on and judged later.
    Anyone,
    /// Answers with an authority behind their signer.
    Trusted {
        /// The authorities.
        authorities: Arc<Authorities>,
        /// One of the certificates that come along with the one in question needs no authority.
        known: bool,
    },
}

/// A question with all that is needed to judge the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inquiry {
    question: OcspRequest,
    known: Vec<Vec<u8>>,
    believe: Believe,
}

impl Inquiry {
    /// Asks about a certificate of this issuer (both DER); none if they are none. `known` may have signed the
    /// answer.
    pub fn new(
        certificate: &[u8],
        issuer: &[u8],
        known: Vec<Vec<u8>>,
        believe: Believe,
    ) -> Option<Inquiry> {
        let (certificate, issuer) = (Certificate::parse(certificate)?, Certificate::parse(issuer)?);
        Some(Inquiry { question: OcspRequest::new(&certificate, &issuer), known, believe })
    }

    /// What is asked, in DER.
    pub fn request(&self) -> Vec<u8> {
        self.question.request()
    }

    /// What an answer may be kept under.
    pub fn name(&self) -> Vec<u8> {
        self.question.name()
    }

    /// What a response says.
    pub fn answer(&self, response: &[u8]) -> Result<OcspAnswer, OcspError> {
        let now = now();
        let known: Vec<_> = self.known.iter().filter_map(|der| Certificate::parse(der)).collect();
        let signer = match &self.believe {
            Believe::Anyone => Signer::Anyone,
            Believe::Trusted { authorities, known } => {
                Signer::Trusted { trust: authorities.trust(now), known: *known }
            }
        };
        self.question.answer(response, &known, signer, now)
    }
}

/// The issuer of a certificate: one of these, in DER.
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

/// Where a certificate says that its state can be asked for.
pub fn responder(certificate: &[u8]) -> Option<&[u8]> {
    Certificate::parse(certificate)?.extensions.ocsp
}

/// Whether these bytes are a responder's answer, whatever it says.
pub fn is_response(bytes: &[u8]) -> bool {
    crate::x509::ocsp::is_response(bytes)
}
