//! A client's connection with small buffers in its socket.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use weir_testkit::{Dice, PATIENCE};

use crate::anybody::Anybody;

/// Where a case enters.
#[derive(Clone, Copy)]
pub enum Door {
    /// HTTP/1.1, with TLS or without.
    Http,
    /// HTTP/2, with TLS or without.
    Http2,
    /// The port of this number, as it is.
    Port(usize),
    /// The same, with TLS.
    Secured(usize),
}

/// After so long without room the server takes no more.
const ROOM: Duration = Duration::from_millis(100);

pub enum Line {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Line {
    pub fn connect(door: Door, ports: [u16; 10], dice: &mut Dice) -> Line {
        let secured = dice.one_in(2);
        let (port, secured, http2) = match door {
            Door::Http => (usize::from(secured), secured, false),
            Door::Http2 => (usize::from(secured), secured, true),
            Door::Port(n) => (n, false, false),
            Door::Secured(n) => (n, true, false),
        };
        let room = 1024 << dice.below(4);
        if !secured {
            return Line::Plain(socket(ports[port], room));
        }
        let config = if http2 { &*HTTP2 } else { &*TLS };
        // On a busy machine a handshake may take longer than the server waits.
        let mut tries = std::iter::from_fn(|| Some(secure(config, socket(ports[port], room))));
        tries.by_ref().take(20).find_map(Result::ok).expect("a handshake")
    }

    /// Sends as much of it as the server takes.
    pub fn push(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let sent = match self {
                Line::Plain(socket) => socket.write(bytes),
                Line::Tls(tls) => tls.write(bytes),
            };
            match sent {
                Ok(n) if n > 0 => bytes = &bytes[n..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return false,
            }
        }
        true
    }

    /// The server has its end. It may have closed it though the client has not heard of that: the end comes behind
    /// bytes for which there is no room.
    pub fn is_open(&self) -> bool {
        let socket = match self {
            Line::Plain(socket) => socket,
            Line::Tls(tls) => &tls.sock,
        };
        let own = format!("0100007F:{:04X}", socket.local_addr().unwrap().port());
        // proc(5), `net/tcp`: behind the ninth field stands the inode, 0 where no process has the socket.
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.filter(|row| row[2] == own).any(|row| row[9] != "0")
    }
}

fn secure(config: &Arc<ClientConfig>, mut socket: TcpStream) -> std::io::Result<Line> {
    let mut tls = client(config);
    while tls.is_handshaking() {
        tls.complete_io(&mut socket)?;
    }
    Ok(Line::Tls(Box::new(StreamOwned::new(tls, socket))))
}

fn client(config: &Arc<ClientConfig>) -> ClientConnection {
    let name = "www.example.org".try_into().unwrap();
    ClientConnection::new(config.clone(), name).unwrap()
}

fn socket(port: u16, room: usize) -> TcpStream {
    let (inet, stream) = (AddressFamily::INET, SocketType::STREAM);
    let socket = rustix::net::socket_with(inet, stream, SocketFlags::CLOEXEC, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, room).unwrap();
    rustix::net::connect(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    let socket = TcpStream::from(socket);
    socket.set_write_timeout(Some(ROOM)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// What a client says first.
pub fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    client(&TLS).write_tls(&mut bytes).unwrap();
    bytes
}

static TLS: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| config(&[]));
static HTTP2: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| config(&[b"h2".to_vec()]));

fn config(alpn: &[Vec<u8>]) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody::default()))
        .with_no_client_auth();
    config.alpn_protocols = alpn.to_vec();
    Arc::new(config)
}
