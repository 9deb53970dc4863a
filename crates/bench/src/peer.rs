//! The server that requests go to, and what TLS is to be there.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use weir_engine::SocketAddrAny;
use weir_tls::{CertificateTrust, HandshakeError, TrustError};

use crate::{Protocol, RequestFailure, Url};

/// The server to connect to.
#[derive(Clone, Debug)]
pub struct TargetServer {
    /// Its address.
    pub address: SocketAddrAny,
    /// The name that TLS is opened to.
    pub(crate) name: Option<String>,
    pub(crate) tls: Option<weir_tls::TlsClient>,
}

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
        protocol: Protocol,
        resume: bool,
    ) -> Result<TlsTarget, TrustError> {
        let client = trust.client(protocol.alpn(), resume)?;
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
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{host}: {e}"));
    let mut all = (host, port).to_socket_addrs().map_err(named)?;
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
        HandshakeError::Silent
        | HandshakeError::Closed
        | HandshakeError::Io(_)
        | HandshakeError::Tls(_) => RequestFailure::Handshake,
    }
}
