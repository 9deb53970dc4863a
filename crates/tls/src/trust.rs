//! Which servers a tool's client trusts: `--cacert FILE`, `--insecure`, or this machine's authorities.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::client::{ClientSettings, TlsClient};
use crate::names::{Ciphers, Curves, Versions};
use crate::pem::PemError;
use crate::server::certificates;
use crate::verifier::{Authorities, machine_store};

/// Authorities between a certificate and the root, at most; OpenSSL's default.
const DEPTH: u32 = 100;

/// The certificates of servers that a client accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateTrust {
    /// Those with a chain to an authority of this machine.
    Machine,
    /// Those with a chain to an authority in this PEM file.
    File(PathBuf),
    /// Any.
    Anyone,
}

/// Why there is no client. [`fmt::Display`] gives a line for the user.
#[derive(Debug)]
pub enum TrustError {
    /// This file cannot be read.
    File(PathBuf, io::Error),
    /// This file holds no certificates, or malformed ones.
    Certificates(PathBuf, PemError),
    /// The machine has no file of authorities.
    NoStore,
    /// rustls refuses the settings.
    Settings(rustls::Error),
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrustError::File(path, e) => write!(f, "cannot read {}: {e}", path.display()),
            TrustError::Certificates(path, said) => write!(f, "{}: {said}", path.display()),
            TrustError::NoStore => {
                f.write_str("this machine has no certificates of authorities; --cacert names some")
            }
            TrustError::Settings(said) => said.fmt(f),
        }
    }
}

impl std::error::Error for TrustError {}

impl CertificateTrust {
    /// The meaning of `--cacert` and `--insecure`.
    pub fn of(cacert: Option<&Path>, insecure: bool) -> CertificateTrust {
        match cacert {
            _ if insecure => CertificateTrust::Anyone,
            Some(file) => CertificateTrust::File(file.to_owned()),
            None => CertificateTrust::Machine,
        }
    }

    /// A client that offers one protocol, without a name yet. Without `resume` it resumes no
    /// sessions, so each connection costs the server a full handshake.
    pub fn client(&self, alpn: &[u8], resume: bool) -> Result<TlsClient, TrustError> {
        let authorities = match self {
            CertificateTrust::Anyone => None,
            CertificateTrust::File(path) => Some(authorities(path)?),
            CertificateTrust::Machine => {
                Some(authorities(&machine_store().ok_or(TrustError::NoStore)?)?)
            }
        };
        let settings = ClientSettings {
            versions: Versions::default(),
            ciphers: Ciphers::default(),
            curves: Curves::default(),
            identity: None,
            authorities: authorities.map(Arc::new),
            names: Arc::default(),
            send_name: true,
            reuse: resume,
            alpn: vec![alpn.to_vec()],
        };
        settings.build().map_err(TrustError::Settings)
    }
}

fn authorities(path: &Path) -> Result<Authorities, TrustError> {
    let text = weir_conf::read_file(path).map_err(|e| TrustError::File(path.to_owned(), e))?;
    let anchors = certificates(&text).map_err(|e| TrustError::Certificates(path.to_owned(), e))?;
    let anchors = anchors.iter().map(|der| der.as_ref().to_vec()).collect();
    Ok(Authorities { anchors, lists: Vec::new(), depth: DEPTH })
}
