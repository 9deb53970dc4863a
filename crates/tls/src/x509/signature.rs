//! Signatures of certificates, lists and handshakes, by the algorithms that rustls has.

use rustls::SignatureScheme;
use rustls::pki_types::SignatureVerificationAlgorithm;

use super::cert::PublicKey;
use crate::names::provider;

/// Whether `key` signed `message` with this algorithm (an AlgorithmIdentifier).
pub fn verify(key: &PublicKey<'_>, algorithm: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let algorithms = provider().signature_verification_algorithms.all;
    algorithms
        .iter()
        .filter(|a| a.signature_alg_id().as_ref() == algorithm)
        .any(|a| with(*a, key, message, signature))
}

/// As [`verify`], for a handshake, where a number names the algorithm.
pub fn verify_scheme(
    key: &PublicKey<'_>,
    scheme: SignatureScheme,
    message: &[u8],
    signature: &[u8],
    tls13: bool,
) -> bool {
    let mapping = provider().signature_verification_algorithms.mapping;
    let Some((_, algorithms)) = mapping.iter().find(|(known, _)| *known == scheme) else {
        return false;
    };
    // TLS 1.3 binds a scheme to one curve, and has no PKCS#1 v1.5 in handshakes.
    let refused = matches!(
        scheme,
        SignatureScheme::RSA_PKCS1_SHA256
            | SignatureScheme::RSA_PKCS1_SHA384
            | SignatureScheme::RSA_PKCS1_SHA512
    );
    let algorithms = match tls13 {
        true if refused => &[],
        true => algorithms.get(..1).unwrap_or_default(),
        false => algorithms,
    };
    algorithms.iter().any(|a| with(*a, key, message, signature))
}

fn with(
    algorithm: &dyn SignatureVerificationAlgorithm,
    key: &PublicKey<'_>,
    message: &[u8],
    signature: &[u8],
) -> bool {
    algorithm.public_key_alg_id().as_ref() == key.algorithm
        && algorithm.verify_signature(key.key, message, signature).is_ok()
}
