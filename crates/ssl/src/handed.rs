//! Connections that are handed to another listener.

use weir_proto::proxy_protocol::ProxyHeader;
use weir_tls::Wire;
use weir_values::Address;

use crate::server::Shown;

/// A connection that another listener of the same loop takes over.
pub struct HandedConnection {
    /// The socket, with or without TLS.
    pub wire: Wire,
    /// The result of the handshake.
    pub shown: Option<Box<Shown>>,
    /// The peer's address.
    pub peer: Address,
    /// The address of the listener that takes over.
    pub local: Address,
    /// The PROXY header of a balancer in front.
    pub proxy: Option<Box<ProxyHeader>>,
    /// Bytes that were received and belong to the code that takes over.
    pub bytes: Vec<u8>,
    /// How often the connection was handed over, this time included.
    pub times: u32,
}
