//! A certificate for hosts that have none, so that a client sees what is missing rather than a broken handshake.

use rcgen::{CertificateParams, DnType, KeyPair};

/// Certificate and key in PEM, with the names that ingress-nginx gives to such a one; `None`: there is no randomness.
pub fn make() -> Option<Vec<u8>> {
    let key = KeyPair::generate().ok()?;
    let mut params = CertificateParams::new(vec!["ingress.local".to_owned()]).ok()?;
    let name = &mut params.distinguished_name;
    name.push(DnType::OrganizationName, "Acme Co");
    name.push(DnType::CommonName, "Kubernetes Ingress Controller Fake Certificate");
    let certificate = params.self_signed(&key).ok()?;
    Some([certificate.pem(), key.serialize_pem()].concat().into_bytes())
}
