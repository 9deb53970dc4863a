//! TLS of the world's clients and servers: rustls without a socket. Keys and signatures differ
//! between runs but have the same length, so a seed gives the same course.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, HandshakeKind, RootCertStore};
use rustls::{ServerConfig, ServerConnection, SupportedProtocolVersion, version};
use weir_testkit::{Dice, Dir};

use crate::plan::SERVERS;

const CERTIFICATE: &[u8] = include_bytes!("../../testdata/h.pem");
const KEY: &[u8] = include_bytes!("../../testdata/h.key");
const OLD: &[&SupportedProtocolVersion] = &[&version::TLS12];
const NEW: &[&SupportedProtocolVersion] = &[&version::TLS13];
const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS12, &version::TLS13];

/// The TLS settings of all clients and servers. A client that connects again resumes a session.
pub struct TlsSettings {
    clients: [ClientConfig; 2],
    /// Each server keeps its own sessions.
    servers: [ServerConfig; SERVERS],
}

impl TlsSettings {
    pub fn new(dice: &mut Dice) -> TlsSettings {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(CERTIFICATE).expect("a certificate");
        roots.add(certificate.clone()).expect("a root");
        let provider = || Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let clients = [OLD, NEW].map(|versions| {
            let builder = ClientConfig::builder_with_provider(provider());
            let builder = builder.with_protocol_versions(versions).expect("versions");
            builder.with_root_certificates(roots.clone()).with_no_client_auth()
        });
        let servers = [(); SERVERS].map(|()| {
            let builder = ServerConfig::builder_with_provider(provider());
            let versions = dice.pick(&[OLD, NEW, BOTH]);
            let builder = builder.with_protocol_versions(versions).expect("versions");
            let key = PrivateKeyDer::from_pem_slice(KEY).expect("a key");
            let chain = vec![certificate.clone()];
            builder.with_no_client_auth().with_single_cert(chain, key).expect("its key")
        });
        TlsSettings { clients, servers }
    }

    /// The client's end of a connection. ALPN follows from `multiplexed`.
    pub fn connect(&self, dice: &mut Dice, multiplexed: bool) -> Box<TlsEnd> {
        let mut config = self.clients[dice.below(2)].clone();
        config.max_fragment_size = fragments(dice);
        let protocol: &[u8] = if multiplexed { b"h2" } else { b"http/1.1" };
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from("h").expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
        TlsEnd::new(connection.into())
    }

    /// The TLS settings of QUIC clients.
    pub fn tls_13(&self) -> ClientConfig {
        self.clients[1].clone()
    }

    /// The server's end of a connection.
    pub fn accept(&self, dice: &mut Dice, server: usize, multiplexed: bool) -> Box<TlsEnd> {
        let mut config = self.servers[server % SERVERS].clone();
        if multiplexed {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        config.max_fragment_size = fragments(dice);
        let connection = ServerConnection::new(Arc::new(config)).expect("a connection");
        TlsEnd::new(connection.into())
    }
}

fn fragments(dice: &mut Dice) -> Option<usize> {
    dice.pick(&[None, None, Some(64), Some(1_000)])
}

/// Writes the server's certificate and key.
pub fn write_files(dir: &Dir) {
    dir.write("h.pem", CERTIFICATE);
    dir.write("h.key", KEY);
}

pub struct TlsEnd {
    connection: Connection,
    /// The encrypted bytes to send, and how many of them were sent.
    sealed: Vec<u8>,
    at: usize,
    /// Whether the connection is to end after all other bytes, and whether it has.
    ends: bool,
    ended: bool,
}

impl TlsEnd {
    fn new(connection: Connection) -> Box<TlsEnd> {
        Box::new(TlsEnd { connection, sealed: Vec::new(), at: 0, ends: false, ended: false })
    }

    /// Ends the connection with close_notify after all other bytes.
    pub fn ends(&mut self) {
        self.ends = true;
    }

    /// Whether the connection resumed a session.
    pub fn resumed(&self) -> bool {
        self.connection.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    pub fn has_more(&self) -> bool {
        self.at < self.sealed.len() || self.connection.wants_write()
    }

    /// The number of encrypted bytes that were not sent.
    pub fn left(&self) -> usize {
        self.sealed.len() - self.at
    }

    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Encrypts `out`, if the handshake is complete, and collects the bytes to send.
    pub fn seal(&mut self, out: &mut Vec<u8>) {
        if !self.is_handshaking() {
            self.connection.set_buffer_limit(None);
            let _ = self.connection.writer().write_all(out);
            out.clear();
            if self.ends && !std::mem::replace(&mut self.ended, true) {
                self.connection.send_close_notify();
            }
        }
        while self.connection.wants_write() {
            let _ = self.connection.write_tls(&mut self.sealed);
        }
    }

    pub fn sealed(&mut self) -> (&Vec<u8>, &mut usize) {
        (&self.sealed, &mut self.at)
    }

    /// Drops sent bytes. Returns whether all were sent.
    pub fn forget_sent(&mut self) -> bool {
        let all = self.at == self.sealed.len();
        if all {
            self.sealed.clear();
            self.at = 0;
        }
        all
    }

    /// Decrypts received bytes and appends the plain text.
    pub fn open(&mut self, mut sealed: &[u8], into: &mut Vec<u8>) -> Result<(), String> {
        while !sealed.is_empty() {
            self.connection.read_tls(&mut sealed).map_err(|e| e.to_string())?;
            self.connection.process_new_packets().map_err(|e| e.to_string())?;
            let mut plain = [0; 16_384];
            while let Ok(n @ 1..) = self.connection.reader().read(&mut plain) {
                into.extend_from_slice(&plain[..n]);
            }
        }
        Ok(())
    }
}
