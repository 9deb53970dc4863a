//! A client's connection over TLS after its handshake.

use std::io;
use std::net::TcpStream;
use std::sync::{Arc, LazyLock};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::anybody::Anybody;

/// Asks for `name`, believes any certificate, and speaks HTTP/2 or HTTP/1.1.
pub fn secured(
    socket: TcpStream,
    name: &'static str,
    is_http2: bool,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let config = if is_http2 { &HTTP2 } else { &HTTP1 };
    let name = ServerName::try_from(name).map_err(io::Error::other)?;
    let connection = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

static HTTP1: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| config(b"http/1.1"));
static HTTP2: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| config(b"h2"));

fn config(protocol: &[u8]) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .expect("versions of TLS")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody::default()))
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(config)
}
