//! TLS as a client of the world speaks it: rustls, without a socket. Keys and signatures are as long each time, so that a
//! seed's course is the same, though they are not.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion, version};
use weir_testkit::{Dice, Dir};

const CERTIFICATE: &[u8] = include_bytes!("../../testdata/h.pem");
const KEY: &[u8] = include_bytes!("../../testdata/h.key");
const VERSIONS: [&[&SupportedProtocolVersion]; 2] = [&[&version::TLS12], &[&version::TLS13]];

/// What clients have in common: who asks again resumes a session.
#[derive(Clone)]
pub struct Secrets([Arc<ClientConfig>; 2]);

impl Secrets {
    pub fn new() -> Secrets {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(CERTIFICATE).expect("a certificate");
        roots.add(certificate).expect("a root");
        Secrets(VERSIONS.map(|versions| {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let builder = ClientConfig::builder_with_provider(provider);
            let builder = builder.with_protocol_versions(versions).expect("versions");
            Arc::new(builder.with_root_certificates(roots.clone()).with_no_client_auth())
        }))
    }

    /// A connection, which does not know yet whether it will speak HTTP/2.
    pub fn connect(&self, dice: &mut Dice, multiplexed: bool) -> Box<Secured> {
        let mut config = (*self.0[dice.below(2)]).clone();
        config.max_fragment_size = dice.pick(&[None, None, Some(64), Some(1_000)]);
        let protocol: &[u8] = if multiplexed { b"h2" } else { b"http/1.1" };
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from("h").expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
        Box::new(Secured { connection, sealed: Vec::new(), at: 0 })
    }
}

/// The server's files.
pub fn write_files(dir: &Dir) {
    dir.write("h.pem", CERTIFICATE);
    dir.write("h.key", KEY);
}

pub struct Secured {
    connection: ClientConnection,
    /// What is to be sent, and how much of it was.
    sealed: Vec<u8>,
    at: usize,
}

impl Secured {
    pub fn has_more(&self) -> bool {
        self.at < self.sealed.len() || self.connection.wants_write()
    }

    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Takes what can be sent.
    pub fn seal(&mut self, out: &mut Vec<u8>) {
        if !self.is_handshaking() {
            self.connection.set_buffer_limit(None);
            let _ = self.connection.writer().write_all(out);
            out.clear();
        }
        while self.connection.wants_write() {
            let _ = self.connection.write_tls(&mut self.sealed);
        }
    }

    pub fn sealed(&mut self) -> (&Vec<u8>, &mut usize) {
        (&self.sealed, &mut self.at)
    }

    /// Whether all was sent.
    pub fn forget_sent(&mut self) -> bool {
        let all = self.at == self.sealed.len();
        if all {
            self.sealed.clear();
            self.at = 0;
        }
        all
    }

    /// What came, and what stood in it.
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
