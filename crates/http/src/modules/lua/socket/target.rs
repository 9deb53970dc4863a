//! The address that a script connects to, and how its name is resolved.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use weir_engine::SocketAddrAny;
use weir_values::cidr;

use super::SocketError;
use crate::event_loop::LoopState;
use crate::site::core;

/// The address to connect to, as scripts name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketTarget {
    /// `unix:/path`
    Unix(String),
    /// A host and a port.
    Host(String, u16),
}

impl SocketTarget {
    /// Parses host and port.
    pub fn new(host: &[u8], port: Option<u16>) -> Result<SocketTarget, String> {
        let host = std::str::from_utf8(host).map_err(|_| "bad host".to_owned())?;
        if let Some(path) = host.strip_prefix("unix:") {
            return Ok(SocketTarget::Unix(path.to_owned()));
        }
        let port = port.ok_or_else(|| "missing the port number".to_owned())?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        Ok(SocketTarget::Host(host.to_owned(), port))
    }

    /// The peer in a log line: `, upstream: example.com:80(192.0.2.1)`.
    pub(super) fn in_log(&self, to: &SocketAddrAny) -> Rc<str> {
        let name = self.name();
        let name = weir_log::Bytes(&name);
        let of_ip = SocketAddr::try_from(to.clone()).ok();
        let ip = of_ip.map(|to| format!("({})", to.ip())).unwrap_or_default();
        format!(", upstream: {name}{ip}").into()
    }

    /// The name of its default pool.
    pub fn name(&self) -> Vec<u8> {
        match self {
            SocketTarget::Unix(path) => format!("unix:{path}").into_bytes(),
            SocketTarget::Host(host, port) => format!("{host}:{port}").into_bytes(),
        }
    }
}

/// The socket address of a target. A name is resolved by the location's resolver.
pub(super) async fn address(
    event_loop: &Rc<LoopState>,
    core: &'static core::Conf,
    server: &SocketTarget,
) -> Result<SocketAddrAny, SocketError> {
    let (host, port) = match server {
        SocketTarget::Unix(path) => {
            let path = rustix::net::SocketAddrUnix::new(path.as_str());
            return path.map(Into::into).map_err(|error| SocketError::from(io::Error::from(error)));
        }
        SocketTarget::Host(host, port) => (host, *port),
    };
    if let Some(ip) = cidr::parse_ip(host.as_bytes()) {
        return Ok(SocketAddr::new(ip, port).into());
    }
    let Some(conf) = &core.resolver else {
        return Err(SocketError::Other(format!("no resolver defined to resolve \"{host}\"")));
    };
    let resolver = event_loop.resolvers.of(conf);
    let found = resolver.resolve(&event_loop.handle, host, core.resolver_timeout).await;
    let found =
        found.map_err(|why| SocketError::Other(format!("{host} could not be resolved ({why})")))?;
    let first = found.addresses.first();
    let first = first.ok_or_else(|| SocketError::Other(format!("{host} has no address")))?;
    Ok(SocketAddr::new(*first, port).into())
}
