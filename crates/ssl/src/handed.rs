//! Connections that go on at another listener.

use weir_proto::proxy_protocol::ProxyHeader;
use weir_tls::Wire;
use weir_values::Address;

use crate::server::Shown;

/// A connection that another listener of the same loop takes over, with what is known of it.
pub struct Handed {
    /// The socket, with or without TLS.
    pub wire: Wire,
    /// What the handshake has shown.
    pub shown: Option<Box<Shown>>,
    /// The peer's address.
    pub peer: Address,
    /// The address that it was passed to.
    pub local: Address,
    /// What a balancer in front said of the client.
    pub proxy: Option<Box<ProxyHeader>>,
    /// What was read of the client, for the code that takes over.
    pub bytes: Vec<u8>,
    /// How often it was handed over, this time included.
    pub times: u32,
}
