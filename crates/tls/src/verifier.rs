//! Verifiers of the peer's certificates, for rustls.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    SignatureScheme,
};

use crate::client::no_name;
use crate::names::provider;
use crate::notes;
use crate::x509::{
    Certificate, KnownList, Purpose, TrustStore, VerifyError, host, signature, verify,
};

/// The trusted authorities and the revocation lists of a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Authorities {
    /// Certificates of authorities, in DER.
    pub anchors: Vec<Vec<u8>>,
    /// Revocation lists.
    pub lists: Vec<KnownList>,
    /// How many authorities may stand between a certificate and the root.
    pub depth: u32,
}

impl Authorities {
    /// Verifies a peer's chain. Returns its path to an authority, in DER.
    pub fn check<'a>(
        &'a self,
        chain: &'a [CertificateDer<'_>],
        purpose: Purpose,
    ) -> Result<Vec<&'a [u8]>, VerifyError> {
        let chain: Vec<&[u8]> = chain.iter().map(AsRef::as_ref).collect();
        verify::path(&chain, &self.trust(now()), purpose)
    }

    /// The trust store of these authorities at a time, in seconds since 1970.
    pub fn trust(&self, now: i64) -> TrustStore<'_> {
        TrustStore { anchors: &self.anchors, lists: &self.lists, depth: self.depth, now }
    }
}

/// Where systems keep the certificates of the authorities that they trust.
const STORES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// This machine's authorities: `SSL_CERT_FILE`, as OpenSSL has it, or the first usual place.
pub fn machine_store() -> Option<PathBuf> {
    let said = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    said.or_else(|| STORES.iter().map(PathBuf::from).find(|path| path.is_file()))
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}

/// The SHA-1 of these bytes, by which scripts and OCSP identify certificates.
pub fn sha1(bytes: &[u8]) -> Vec<u8> {
    let algorithm = &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY;
    aws_lc_rs::digest::digest(algorithm, bytes).as_ref().to_vec()
}

/// How rustls' two verifier traits verify signatures of handshakes.
macro_rules! handshake_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            check_signature(message, certificate, signed, false)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            check_signature(message, certificate, signed, true)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            provider().signature_verification_algorithms.supported_schemes()
        }
    };
}

/// Requests a certificate from clients and lets the handshake pass with any. A refused
/// client then gets an HTTP response that gives the reason.
#[derive(Debug)]
pub(crate) struct AskClient {
    /// The names of authorities in the request.
    pub(crate) hints: Vec<DistinguishedName>,
}

impl ClientCertVerifier for AskClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    handshake_signatures!();
}

/// A name that a certificate must have as a subject alternative name. RFC 5280, section 4.2.1.6.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CertificateName {
    /// The name of a host. The certificate may have a wildcard that matches it.
    Host(Vec<u8>),
    /// A URI, which must be identical.
    Uri(Vec<u8>),
}

impl CertificateName {
    fn is_of(&self, certificate: &Certificate<'_>) -> bool {
        match self {
            CertificateName::Host(host) => host::matches(certificate, host),
            CertificateName::Uri(uri) => certificate.uris().any(|name| name == uri.as_slice()),
        }
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (CertificateName::Host(name) | CertificateName::Uri(name)) = self;
        f.write_str(&String::from_utf8_lossy(name))
    }
}

/// Verifies an upstream's certificate (`proxy_ssl_verify`), or accepts any.
#[derive(Clone)]
pub(crate) struct CheckServer {
    pub(crate) authorities: Option<Arc<Authorities>>,
    /// The server's name, if the name in the handshake differs from it.
    pub(crate) exactly: Option<Arc<[u8]>>,
    /// If not empty, the certificate must have one of these names instead of the server's.
    pub(crate) names: Arc<[CertificateName]>,
    /// A certificate for any name is accepted.
    pub(crate) any_name: bool,
    /// A chain that leads to no authority is accepted.
    pub(crate) any_path: bool,
}

impl fmt::Debug for CheckServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CheckServer")
    }
}

impl CheckServer {
    /// The verifier for a server of this name, whatever name the handshake has.
    pub(crate) fn exactly(&self, name: &Arc<[u8]>) -> CheckServer {
        CheckServer { exactly: Some(name.clone()), ..self.clone() }
    }

    /// The server's name is verified.
    pub(crate) fn checks_name(&self) -> bool {
        self.authorities.is_some() && self.names.is_empty() && !self.any_name
    }

    /// The name that certificates must have. Empty if there is none: no certificate matches that.
    fn wanted<'a>(&'a self, name: &'a ServerName<'_>) -> Cow<'a, [u8]> {
        match (&self.exactly, name.to_str()) {
            (Some(exactly), _) => Cow::Borrowed(exactly),
            (None, _) if *name == no_name() => Cow::Borrowed(b""),
            (None, Cow::Borrowed(text)) => Cow::Borrowed(text.as_bytes()),
            (None, Cow::Owned(text)) => Cow::Owned(text.into_bytes()),
        }
    }
}

/// Why an upstream's certificate was refused, as in the log.
pub(crate) struct RefusedCertificate {
    text: String,
    /// The chain is accepted, but the name is another.
    pub(crate) name: bool,
}

impl fmt::Display for RefusedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// rustls and QUIC show this form to users, so it is the same.
impl fmt::Debug for RefusedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for RefusedCertificate {}

impl ServerCertVerifier for CheckServer {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authorities) = &self.authorities else {
            return Ok(ServerCertVerified::assertion());
        };
        let mut chain = vec![leaf.clone()];
        chain.extend_from_slice(others);
        let refused = |text, name| {
            let other = rustls::OtherError(Arc::new(RefusedCertificate { text, name }));
            Error::InvalidCertificate(CertificateError::Other(other))
        };
        if !self.any_path {
            authorities.check(&chain, Purpose::Server).map_err(|fault| {
                refused(format!("upstream SSL certificate verify error: {fault}"), false)
            })?;
        }
        let wanted = self.wanted(name);
        let right = |certificate: Certificate<'_>| match &*self.names {
            [] => host::matches(&certificate, &wanted),
            names => names.iter().any(|name| name.is_of(&certificate)),
        };
        if !self.any_name && !Certificate::parse(leaf).is_some_and(right) {
            let wanted = match &*self.names {
                [] => String::from_utf8_lossy(&wanted).into_owned(),
                names => {
                    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
                    names.join("\" or \"")
                }
            };
            let text = format!("upstream SSL certificate does not match \"{wanted}\"");
            return Err(refused(text, self.names.is_empty()));
        }
        Ok(ServerCertVerified::assertion())
    }

    handshake_signatures!();
}

/// Verifies that the peer has the key of its certificate. Unlike rustls' own check, it accepts
/// certificates of version 1.
fn check_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    tls13: bool,
) -> Result<HandshakeSignatureValid, Error> {
    let certificate = Certificate::parse(certificate)
        .ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
    let scheme = signed.scheme;
    let known = provider().signature_verification_algorithms.mapping;
    if !known.iter().any(|(name, _)| *name == scheme) {
        return Err(PeerIncompatible::NoSignatureSchemesInCommon.into());
    }
    match signature::verify_scheme(&certificate.key, scheme, message, signed.signature(), tls13) {
        true => {
            notes::peer_scheme(scheme);
            Ok(HandshakeSignatureValid::assertion())
        }
        false => Err(Error::InvalidCertificate(CertificateError::BadSignature)),
    }
}
