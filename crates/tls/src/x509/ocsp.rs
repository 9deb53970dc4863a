//! OCSP (RFC 6960): the request about one certificate, and the verification of the response. The
//! errors are nginx's, with OpenSSL's reasons.

use std::fmt;

use super::cert::Certificate;
use super::der::{self, DerReader, DerValue};
use super::signature;
use super::verify::{Purpose, TrustStore, path};
use crate::verifier::sha1;

/// Clocks may differ by so many seconds. nginx has the same tolerance.
const SKEW: i64 = 300;

/// A request for the status of a certificate, for the responder of its issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OcspRequest {
    /// Hash of the issuer's name.
    name: Vec<u8>,
    /// Hash of the issuer's key.
    key: Vec<u8>,
    serial: Vec<u8>,
}

/// The status of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateStatus {
    /// The certificate is not revoked.
    Good,
    /// The certificate is revoked.
    Revoked,
    /// The responder does not know it.
    Unknown,
}

impl CertificateStatus {
    /// OpenSSL's word.
    pub fn name(self) -> &'static str {
        match self {
            CertificateStatus::Good => "good",
            CertificateStatus::Revoked => "revoked",
            CertificateStatus::Unknown => "unknown",
        }
    }
}

/// A verified answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OcspAnswer {
    /// The certificate's status.
    pub status: CertificateStatus,
    /// Until when the answer is valid, in seconds since 1970. `None` if the responder gives no
    /// time.
    pub until: Option<i64>,
}

/// Why a response does not answer the request, in nginx's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OcspError {
    /// The bytes are no response.
    NotResponse,
    /// The responder answers with this status, which is no success.
    Status(u8),
    /// The response is malformed, or is no basic OCSP response.
    NotBasic,
    /// The response is not signed as it must be: OpenSSL's reason.
    Signer(&'static str),
    /// The response is about other certificates.
    NotFound,
    /// The answer does not hold: OpenSSL's reason.
    Validity(&'static str),
}

impl fmt::Display for OcspError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OcspError::NotResponse => f.write_str("d2i_OCSP_RESPONSE() failed (SSL: bad response)"),
            OcspError::Status(status) => {
                let known = STATUS.iter().find(|(code, _)| code == status);
                let name = known.map_or("(UNKNOWN)", |(_, name)| name);
                write!(f, "OCSP response not successful ({status}: {name})")
            }
            OcspError::NotBasic => {
                f.write_str("OCSP_response_get1_basic() failed (SSL: bad response)")
            }
            OcspError::Signer(why) => write!(f, "OCSP_basic_verify() failed (SSL: {why})"),
            OcspError::NotFound => f.write_str("certificate status not found in the OCSP response"),
            OcspError::Validity(why) => write!(f, "OCSP_check_validity() failed (SSL: {why})"),
        }
    }
}

/// How the signer of a response is verified.
#[derive(Debug, Clone, Copy)]
pub enum Signer<'a> {
    /// The signature must be valid. The signer does not matter.
    Anyone,
    /// The certificate's issuer must be the signer or have authorized it, and the chain must lead
    /// to a root.
    Trusted {
        /// The roots.
        trust: TrustStore<'a>,
        /// A signer among the `known` certificates needs no root.
        known: bool,
    },
}

impl OcspRequest {
    /// A request about `certificate`, which `issuer` has issued.
    pub fn new(certificate: &Certificate<'_>, issuer: &Certificate<'_>) -> OcspRequest {
        OcspRequest {
            name: sha1(&der::write(der::SEQUENCE, &[issuer.subject])),
            key: sha1(issuer.key.key),
            serial: certificate.serial.to_vec(),
        }
    }

    /// The request, in DER. It has no nonce, so responders may send prepared answers, and answers
    /// may be cached.
    pub fn request(&self) -> Vec<u8> {
        let hash = der::write(der::SEQUENCE, &[&der::write(der::OID, &[SHA1]), &[5, 0]]);
        let id = der::write(
            der::SEQUENCE,
            &[
                &hash,
                &der::write(der::OCTET_STRING, &[&self.name]),
                &der::write(der::OCTET_STRING, &[&self.key]),
                &der::write(der::INTEGER, &[&self.serial]),
            ],
        );
        // The certificate ID is in a Request, in the requestList, in a TBSRequest, in an
        // OCSPRequest without a signature.
        (0..4).fold(id, |inner, _| der::write(der::SEQUENCE, &[&inner]))
    }

    /// The key under which answers may be cached.
    pub fn name(&self) -> Vec<u8> {
        [self.name.as_slice(), &self.key, &self.serial].concat()
    }

    /// Whether a certificate ID in a response is this request's.
    fn is(&self, id: &DerValue<'_>) -> bool {
        let mut parts = id.inner();
        let mut same = || {
            Some(
                parts.require(der::SEQUENCE)?.inner().require(der::OID)?.body == SHA1
                    && parts.require(der::OCTET_STRING)?.body == self.name
                    && parts.require(der::OCTET_STRING)?.body == self.key
                    && parts.require(der::INTEGER)?.body == self.serial,
            )
        };
        same().unwrap_or(false)
    }

    /// Whether this certificate is the issuer's.
    fn is_issuer(&self, certificate: &Certificate<'_>) -> bool {
        sha1(certificate.key.key) == self.key
            && sha1(&der::write(der::SEQUENCE, &[certificate.subject])) == self.name
    }

    /// Verifies a response and returns its answer. `known` are certificates that may have signed
    /// it, besides those in the response.
    pub fn answer(
        &self,
        response: &[u8],
        known: &[Certificate<'_>],
        signer: Signer<'_>,
        now: i64,
    ) -> Result<OcspAnswer, OcspError> {
        let response = OcspResponse::parse(response)?;
        response.check_signer(self, known, signer).map_err(OcspError::Signer)?;
        let mut single = response.answers;
        let found = single.find_map(|one| {
            let mut fields = one.inner();
            fields.next().filter(|id| self.is(id)).map(|_| fields)
        });
        let mut fields = found.ok_or(OcspError::NotFound)?;
        let (status, until) = read(&mut fields, now).map_err(OcspError::Validity)?;
        Ok(OcspAnswer { status, until })
    }
}

/// Whether these bytes have the form of a response.
pub fn is_response(bytes: &[u8]) -> bool {
    let outer = DerReader::new(bytes).require(der::SEQUENCE);
    outer.is_some_and(|v| v.whole.len() == bytes.len() && v.inner().require(ENUMERATED).is_some())
}

/// `id-sha1`
const SHA1: &[u8] = &[0x2b, 14, 3, 2, 26];

/// Reads and checks the status and the times of one certificate in a response.
fn read(
    fields: &mut DerReader<'_>,
    now: i64,
) -> Result<(CertificateStatus, Option<i64>), &'static str> {
    let status = match fields.next().map(|v| v.tag) {
        Some(0x80) => CertificateStatus::Good,
        Some(0xa1) => CertificateStatus::Revoked,
        Some(0x82) => CertificateStatus::Unknown,
        _ => return Err("unknown status"),
    };
    let this_update = fields.next().and_then(|v| der::time(&v));
    let this_update = this_update.ok_or("error in thisupdate field")?;
    let until = match fields.optional(0xa0) {
        None => None,
        Some(tagged) => {
            let time = tagged.inner().next().and_then(|v| der::time(&v));
            Some(time.ok_or("error in nextupdate field")?)
        }
    };
    if this_update > now + SKEW {
        return Err("status not yet valid");
    }
    if until.is_some_and(|until| until < now - SKEW) {
        return Err("status expired");
    }
    if until.is_some_and(|until| until < this_update) {
        return Err("nextupdate before thisupdate");
    }
    Ok((status, until))
}

/// The parts of a basic response.
struct OcspResponse<'a> {
    signed: &'a [u8],
    signer: DerValue<'a>,
    answers: DerReader<'a>,
    algorithm: &'a [u8],
    signature: &'a [u8],
    certificates: Vec<Certificate<'a>>,
}

impl<'a> OcspResponse<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, OcspError> {
        let outer = DerReader::new(bytes).require(der::SEQUENCE);
        let mut outer = outer.ok_or(OcspError::NotResponse)?.inner();
        let status = outer.require(ENUMERATED).and_then(|v| v.body.first());
        let status = *status.ok_or(OcspError::NotResponse)?;
        if status != 0 {
            return Err(OcspError::Status(status));
        }
        let basic = outer.optional(0xa0).and_then(|tagged| Self::basic(tagged.inner()));
        basic.ok_or(OcspError::NotBasic)
    }

    fn basic(mut tagged: DerReader<'a>) -> Option<Self> {
        const BASIC: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 1, 1];
        let mut bytes = tagged.require(der::SEQUENCE)?.inner();
        if bytes.require(der::OID)?.body != BASIC {
            return None;
        }
        let basic =
            DerReader::new(bytes.require(der::OCTET_STRING)?.body).require(der::SEQUENCE)?;
        let mut parts = basic.inner();
        let data = parts.require(der::SEQUENCE)?;
        let algorithm = parts.require(der::SEQUENCE)?.body;
        let signature = parts.require(der::BIT_STRING)?.bits()?;
        let mut certificates = Vec::new();
        if let Some(tagged) = parts.optional(0xa0) {
            let list = tagged.inner().require(der::SEQUENCE)?.inner();
            certificates = list.map(|v| Certificate::parse(v.whole)).collect::<Option<_>>()?;
        }
        let mut fields = data.inner();
        fields.optional(0xa0);
        let signer = fields.next()?;
        der::time(&fields.next()?)?;
        let answers = fields.require(der::SEQUENCE)?.inner();
        Some(OcspResponse {
            signed: data.whole,
            signer,
            answers,
            algorithm,
            signature,
            certificates,
        })
    }

    /// Whether the response names this certificate as its signer.
    fn is_signer(&self, certificate: &Certificate<'_>) -> bool {
        let inner = self.signer.inner().next();
        inner.is_some_and(|id| match self.signer.tag {
            0xa1 => id.body == certificate.subject,
            0xa2 => id.body == sha1(certificate.key.key),
            _ => false,
        })
    }

    fn check_signer(
        &self,
        question: &OcspRequest,
        known: &[Certificate<'_>],
        signer: Signer<'_>,
    ) -> Result<(), &'static str> {
        let ours = known.iter().find(|c| self.is_signer(c));
        let found = ours.or_else(|| self.certificates.iter().find(|c| self.is_signer(c)));
        let found = found.ok_or("signer certificate not found")?;
        if !signature::verify(&found.key, self.algorithm, self.signed, self.signature) {
            return Err("signature failure");
        }
        match signer {
            Signer::Trusted { known: true, .. } if ours.is_some() => Ok(()),
            Signer::Trusted { trust, .. } => {
                self.check_authorization(question, found, known, &trust)
            }
            Signer::Anyone => Ok(()),
        }
    }

    /// Checks that the signer is the issuer itself, or that the issuer has authorized it.
    fn check_authorization(
        &self,
        question: &OcspRequest,
        signer: &Certificate<'_>,
        known: &[Certificate<'_>],
        trust: &TrustStore<'_>,
    ) -> Result<(), &'static str> {
        const OCSP_SIGNING: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 9];
        let others = self.certificates.iter().chain(known).map(|c| c.der);
        let sent: Vec<&[u8]> = std::iter::once(signer.der).chain(others).collect();
        let path = path(&sent, trust, Purpose::Responder).map_err(|fault| fault.text)?;
        let above = path.get(1).and_then(|der| Certificate::parse(der));
        if above.is_some_and(|above| question.is_issuer(&above)) {
            let mut purposes = signer.extensions.purposes.into_iter().flatten();
            return match purposes.any(|p| p.body == OCSP_SIGNING) {
                true => Ok(()),
                false => Err("missing ocspsigning usage"),
            };
        }
        if question.is_issuer(signer) { Ok(()) } else { Err("root ca not trusted") }
    }
}

const ENUMERATED: u8 = 0x0a;

const STATUS: &[(u8, &str)] = &[
    (1, "malformedrequest"),
    (2, "internalerror"),
    (3, "trylater"),
    (5, "sigrequired"),
    (6, "unauthorized"),
];

#[cfg(test)]
mod tests;
