//! The server that requests go to, and what TLS is to be there.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_engine::SocketAddrAny;
use weir_tls::{
    Authorities, Ciphers, ClientSettings, Curves, HandshakeError, PemError, TlsError, Versions,
};

use crate::{RequestFailure, Url};

/// Authorities between a certificate and the root, at most; OpenSSL's default.
const DEPTH: u32 = 100;

/// The server to connect to.
#[derive(Clone, Debug)]
pub struct TargetServer {
    /// Its address.
    pub address: SocketAddrAny,
    /// The name that TLS is opened to.
    pub(crate) name: Option<String>,
    pub(crate) tls: Option<weir_tls::TlsClient>,
}

/// Which certificates of servers are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateTrust {
    /// Those that this machine's authorities vouch for.
    Machine,
    /// Those that the authorities in this PEM file vouch for.
    File(PathBuf),
    /// Any.
    Anyone,
}

/// Why TLS cannot be set up; [`fmt::Display`] gives a line for people.
#[derive(Debug)]
pub enum TlsTargetError {
    /// This file cannot be read.
    File(PathBuf, io::Error),
    /// This file holds no certificates that can be read.
    Certificates(PathBuf, PemError),
    /// The machine has no certificates of authorities.
    NoStore,
    /// What the TLS library says.
    Settings(TlsError),
}

impl fmt::Display for TlsTargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsTargetError::File(path, e) => write!(f, "cannot read {}: {e}", path.display()),
            TlsTargetError::Certificates(path, said) => write!(f, "{}: {said}", path.display()),
            TlsTargetError::NoStore => {
                f.write_str("this machine has no certificates of authorities; --cacert names some")
            }
            TlsTargetError::Settings(said) => said.fmt(f),
        }
    }
}

impl std::error::Error for TlsTargetError {}

/// What TLS is to be.
#[derive(Clone, Debug)]
pub struct TlsTarget {
    client: weir_tls::TlsClient,
}

impl TlsTarget {
    /// Reads what is trusted. Sessions are resumed only with `resume`, so that each connection
    /// costs the server a whole handshake.
    pub fn new(
        trust: &CertificateTrust,
        http2: bool,
        resume: bool,
    ) -> Result<TlsTarget, TlsTargetError> {
        let authorities = match trust {
            CertificateTrust::Anyone => None,
            CertificateTrust::File(path) => Some(authorities(path)?),
            CertificateTrust::Machine => {
                let store = weir_tls::machine_store().ok_or(TlsTargetError::NoStore)?;
                Some(authorities(&store)?)
            }
        };
        let settings = ClientSettings {
            versions: Versions::default(),
            ciphers: Ciphers::default(),
            curves: Curves::default(),
            identity: None,
            authorities: authorities.map(Arc::new),
            send_name: true,
            reuse: resume,
            alpn: vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }],
        };
        let client = settings.build().map_err(TlsTargetError::Settings)?;
        Ok(TlsTarget { client })
    }
}

impl TargetServer {
    /// The server of a URL; with `to`, the one there.
    pub(crate) fn of(
        url: &Url,
        to: Option<&SocketAddrAny>,
        secure: Option<&TlsTarget>,
    ) -> io::Result<TargetServer> {
        let address = match to {
            Some(address) => address.clone(),
            None => resolve(&url.host, url.port)?,
        };
        if !url.secure {
            return Ok(TargetServer { address, name: None, tls: None });
        }
        let missing = || io::Error::new(io::ErrorKind::InvalidInput, "TLS is not set up");
        let tls = secure.ok_or_else(missing)?.client.named(url.host.as_bytes());
        Ok(TargetServer { address, name: Some(url.host.clone()), tls: Some(tls) })
    }

    /// True if connections to the one serve requests to the other.
    pub(crate) fn is_same(&self, other: &TargetServer) -> bool {
        self.address == other.address && self.name == other.name
    }

    pub(crate) fn is_unix(&self) -> bool {
        self.address.address_family() == rustix::net::AddressFamily::UNIX
    }
}

/// The first address of a name.
pub(crate) fn resolve(host: &str, port: u16) -> io::Result<SocketAddrAny> {
    let mut all = (host, port).to_socket_addrs()?;
    let nothing = || io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    let first: SocketAddr = all.next().ok_or_else(nothing)?;
    Ok(first.into())
}

/// What a handshake's failure counts as.
pub(crate) fn handshake_failure(error: &HandshakeError, http2: bool) -> RequestFailure {
    use rustls::{AlertDescription, Error};
    match error {
        HandshakeError::TimedOut => RequestFailure::ConnectTimeout,
        HandshakeError::Io(e) if e.kind() == io::ErrorKind::TimedOut => {
            RequestFailure::ConnectTimeout
        }
        HandshakeError::Tls(Error::InvalidCertificate(_)) => RequestFailure::Certificate,
        HandshakeError::Tls(
            Error::NoApplicationProtocol
            | Error::AlertReceived(AlertDescription::NoApplicationProtocol),
        ) if http2 => RequestFailure::NoHttp2,
        HandshakeError::Closed | HandshakeError::Io(_) | HandshakeError::Tls(_) => {
            RequestFailure::Handshake
        }
    }
}

fn authorities(path: &Path) -> Result<Authorities, TlsTargetError> {
    let text = std::fs::read(path).map_err(|e| TlsTargetError::File(path.to_owned(), e))?;
    let anchors = weir_tls::certificates(&text)
        .map_err(|e| TlsTargetError::Certificates(path.to_owned(), e))?;
    let anchors = anchors.iter().map(|der| der.as_ref().to_vec()).collect();
    Ok(Authorities { anchors, lists: Vec::new(), depth: DEPTH })
}
