//! Clients that send, or read, as fast as they can.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use weir_testkit::Server;

/// The server that a client floods, and until when.
pub struct Target<'t> {
    pub server: &'t Server,
    pub stop: &'t AtomicBool,
    /// Bytes that were sent or read.
    pub moved: &'t AtomicU64,
}

/// How often it is looked whether that is enough.
const LOOK: Duration = Duration::from_millis(50);

impl Target<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn moved(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn connect(&self, port: usize) -> Option<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.server.port_at(port))).ok()?;
        stream.set_read_timeout(Some(LOOK)).ok()?;
        stream.set_write_timeout(Some(LOOK)).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(stream)
    }

    /// Opens connections and closes them.
    pub fn knock(&self) {
        while !self.stopped() {
            self.moved(self.connect(0).map_or(0, |_| 1024));
        }
    }

    /// Sends `first` once, then `more` again and again, and reads what comes; from the beginning where the server ends it.
    pub fn pour(&self, port: usize, first: &[u8], more: &[u8]) {
        self.pour_all(port, |stream| {
            self.write(stream, first)?;
            while !self.stopped() {
                self.write(stream, more)?;
            }
            Some(())
        });
    }

    /// Sends `bytes`, each time on a connection of its own.
    pub fn pour_once(&self, port: usize, bytes: &[u8]) {
        self.pour_all(port, |stream| self.write(stream, bytes));
    }

    fn pour_all(&self, port: usize, send: impl Fn(&TcpStream) -> Option<()>) {
        while !self.stopped() {
            let Some(stream) = self.connect(port) else { continue };
            let Ok(reading) = stream.try_clone() else { continue };
            thread::scope(|scope| {
                scope.spawn(|| self.read(reading));
                send(&stream);
                let _ = stream.shutdown(Shutdown::Both);
            });
        }
    }

    /// Sends all of it; `None` when it is enough.
    fn write(&self, mut stream: &TcpStream, mut bytes: &[u8]) -> Option<()> {
        while !bytes.is_empty() {
            match stream.write(bytes) {
                Ok(n) => {
                    self.moved(n);
                    bytes = &bytes[n..];
                }
                Err(_) if self.stopped() => return None,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
        Some(())
    }

    /// Reads until the end.
    fn read(&self, mut stream: impl Read) {
        let mut room = vec![0; 1 << 18];
        loop {
            match stream.read(&mut room) {
                Ok(0) => return,
                Ok(n) => self.moved(n),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
            if self.stopped() {
                return;
            }
        }
    }

    /// Asks, and reads all that comes, over `connections` connections in turn, `piece` bytes of each.
    pub fn drink(&self, ask: impl Fn(u64) -> Vec<u8>, connections: usize, piece: usize) {
        let (mut open, mut asked) = (Vec::new(), 0);
        let mut room = vec![0; piece];
        while !self.stopped() {
            while open.len() < connections && !self.stopped() {
                let Some(stream) = self.connect(0) else { break };
                asked += 1;
                if (&stream).write_all(&ask(asked)).is_ok() {
                    open.push(stream);
                }
            }
            open.retain_mut(|stream| match stream.read(&mut room) {
                Ok(n) => {
                    self.moved(n);
                    n > 0
                }
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            });
        }
    }

    fn secure(&self) -> Option<StreamOwned<ClientConnection, TcpStream>> {
        let mut roots = RootCertStore::empty();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata/root.pem");
        roots.add(CertificateDer::from_pem_file(root).ok()?).ok()?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .ok()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("www.example.org").ok()?;
        let mut connection = ClientConnection::new(Arc::new(config), name).ok()?;
        let mut socket = self.connect(1)?;
        socket.set_read_timeout(None).ok()?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket).ok()?;
        }
        socket.set_read_timeout(Some(LOOK)).ok()?;
        Some(StreamOwned::new(connection, socket))
    }

    /// Opens connections with TLS and closes them.
    pub fn shake_hands(&self) {
        while !self.stopped() {
            self.moved(self.secure().map_or(0, |_| 1024));
        }
    }

    /// A request's head, then its body in records of one byte.
    pub fn pour_records(&self, head: &[u8]) {
        while !self.stopped() {
            let Some(mut tls) = self.secure() else { continue };
            let mut send = |bytes: &[u8], piece: usize| {
                for byte in bytes.chunks(piece) {
                    tls.conn.writer().write_all(byte).ok()?;
                }
                while tls.conn.wants_write() {
                    match tls.conn.write_tls(&mut tls.sock) {
                        Ok(n) => self.moved(n),
                        Err(_) if self.stopped() => return None,
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                        Err(_) => return None,
                    }
                }
                Some(())
            };
            let mut sent = send(head, head.len());
            while sent.is_some() && !self.stopped() {
                sent = send(&[b'x'; 1024], 1);
            }
        }
    }
}
