//! The servers that requests are sent to, and their TLS settings.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use weir_engine::SocketAddrAny;
use weir_tls::{CertificateTrust, HandshakeError, TrustError};

use crate::{Protocol, RequestFailure, Url};

/// The server to connect to.
#[derive(Clone, Debug)]
pub struct TargetServer {
    /// Its address.
    pub address: SocketAddrAny,
    /// The host name for SNI and for the certificate.
    pub(crate) name: Option<String>,
    pub(crate) tls: Option<weir_tls::TlsClient>,
}

/// TLS settings that all servers share.
#[derive(Clone, Debug)]
pub struct TlsTarget {
    client: weir_tls::TlsClient,
}

impl TlsTarget {
    /// Reads the trusted certificates. Without `resume`, each connection costs the server a full
    /// handshake.
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
    /// The server of a URL. With `to`, connections go to that address instead.
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

    /// Whether both servers can share a connection: they have the same address and TLS name.
    pub(crate) fn is_same(&self, other: &TargetServer) -> bool {
        self.address == other.address && self.name == other.name
    }

    pub(crate) fn is_unix(&self) -> bool {
        self.address.address_family() == rustix::net::AddressFamily::UNIX
    }
}

/// Resolves a name to one of its addresses.
pub(crate) fn resolve(host: &str, port: u16) -> io::Result<SocketAddrAny> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{host}: {e}"));
    let all: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(named)?.collect();
    let nothing = || io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    choose(&all).map(Into::into).ok_or_else(nothing)
}

/// Chooses the first address that accepts a connection, or the first one if none does. `localhost`
/// often means `::1` first, where a server of IPv4 does not listen.
fn choose(all: &[SocketAddr]) -> Option<SocketAddr> {
    let accepts = |at: &&SocketAddr| TcpStream::connect_timeout(at, TRIAL).is_ok();
    let first = all.first()?;
    let found = if all.len() > 1 { all.iter().find(accepts) } else { None };
    Some(*found.unwrap_or(first))
}

/// How long an address may take to accept a connection, if there are several.
const TRIAL: Duration = Duration::from_secs(1);

/// The failure for an error of a TLS handshake.
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_that_accepts_is_chosen() {
        let at = |listener: &TcpListener| listener.local_addr().unwrap();
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (open, other) = (listen(), listen());
        let [closed, also_closed] = [listen(), listen()].map(|listener| at(&listener));
        assert_eq!(choose(&[closed, at(&open), at(&other)]), Some(at(&open)));
        assert_eq!(choose(&[closed, also_closed]), Some(closed));
        assert_eq!(choose(&[closed]), Some(closed));
        assert_eq!(choose(&[]), None);
    }
}
