//! A self-signed certificate for hosts without one. Clients then see what is missing, rather than a
//! failed handshake.

use rcgen::{CertificateParams, DnType, KeyPair};

/// Makes a certificate and its key in PEM, with ingress-nginx's names. `None` if there is no source
/// of randomness.
pub fn make() -> Option<Vec<u8>> {
    let key = KeyPair::generate().ok()?;
    let mut params = CertificateParams::new(vec!["ingress.local".to_owned()]).ok()?;
    let name = &mut params.distinguished_name;
    name.push(DnType::OrganizationName, "Acme Co");
    name.push(DnType::CommonName, "Kubernetes Ingress Controller Fake Certificate");
    let certificate = params.self_signed(&key).ok()?;
    Some([certificate.pem(), key.serialize_pem()].concat().into_bytes())
}
