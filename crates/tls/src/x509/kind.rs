//! The kind of a certificate, in OpenSSL's words: its signature algorithm and its key.

use super::cert::{Certificate, PublicKey};
use super::der::{self, DerReader};

/// The properties of a certificate that variables show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateKind {
    /// The signature algorithm, as an index into `SIGNATURES`.
    signed: Option<u8>,
    /// The type and size of the key, if keys of its type differ in size.
    key: Option<(KeyKind, u16)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    Rsa,
    Ec,
}

/// Signature algorithms: the identifier's bytes, and OpenSSL's short name.
const SIGNATURES: &[(&[u8], &str)] = &[
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 5], "RSA-SHA1"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10], "RSASSA-PSS"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11], "RSA-SHA256"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 12], "RSA-SHA384"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 13], "RSA-SHA512"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 14], "RSA-SHA224"),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1], "ecdsa-with-SHA1"),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 1], "ecdsa-with-SHA224"),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2], "ecdsa-with-SHA256"),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3], "ecdsa-with-SHA384"),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4], "ecdsa-with-SHA512"),
    (&[0x2b, 0x65, 0x70], "ED25519"),
    (&[0x2b, 0x65, 0x71], "ED448"),
];

const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
const RSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10];
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
/// Curves: the identifier's bytes, and the size of their keys in bits.
const CURVES: &[(&[u8], u16)] = &[
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7], 256),
    (&[0x2b, 0x81, 0x04, 0, 34], 384),
    (&[0x2b, 0x81, 0x04, 0, 35], 521),
];

impl CertificateKind {
    /// Of this certificate.
    pub fn of(certificate: &Certificate<'_>) -> CertificateKind {
        let signed = DerReader::new(certificate.algorithm).require(der::OID).and_then(|oid| {
            let at = SIGNATURES.iter().position(|(known, _)| *known == oid.body)?;
            u8::try_from(at).ok()
        });
        CertificateKind { signed, key: sized(&certificate.key) }
    }

    /// The name of the signature algorithm.
    pub fn signature(self) -> &'static str {
        let known = self.signed.and_then(|at| SIGNATURES.get(usize::from(at)));
        known.map_or("UNDEF", |(_, name)| name)
    }

    /// The type and size of the key, such as `RSA2048`. `None` if keys of its type have one size
    /// only.
    pub fn key(self) -> Option<String> {
        let (kind, bits) = self.key?;
        let name = match kind {
            KeyKind::Rsa => "RSA",
            KeyKind::Ec => "EC",
        };
        Some(format!("{name}{bits}"))
    }
}

fn sized(key: &PublicKey<'_>) -> Option<(KeyKind, u16)> {
    let mut parts = DerReader::new(key.algorithm);
    let kind = parts.require(der::OID)?.body;
    if kind == EC {
        let curve = parts.require(der::OID)?.body;
        let (_, bits) = CURVES.iter().find(|(known, _)| *known == curve)?;
        return Some((KeyKind::Ec, *bits));
    }
    if kind != RSA && kind != RSA_PSS {
        return None;
    }
    let modulus =
        DerReader::new(key.key).require(der::SEQUENCE)?.inner().require(der::INTEGER)?.body;
    let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
    let (first, rest) = modulus.get(zeros..)?.split_first()?;
    let bits = rest.len() * 8 + (8 - first.leading_zeros() as usize);
    Some((KeyKind::Rsa, u16::try_from(bits).ok()?))
}
