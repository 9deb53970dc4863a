//! Fetches snapshots over HTTP/1.0, so that the end of the connection ends the answer.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use weir_tls::{
    CertificateTrust, ConnectionProgress, HandshakeError, TlsClient, TlsConnection, TlsError,
    TrustError,
};

use crate::snapshot::{Snapshot, read};

/// Where snapshots are fetched.
#[derive(Debug)]
pub(crate) struct SnapshotSource {
    transport: Transport,
    /// TLS settings, for `https`.
    tls: Option<TlsClient>,
    /// The `Host` header.
    host: String,
    /// The paths to try, until one has answered with a snapshot.
    paths: Vec<String>,
    /// How long an answer may take, from the connect to its last byte.
    patience: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Transport {
    Tcp(String),
    Unix(String),
}

/// Why a snapshot could not be fetched.
#[derive(Debug)]
pub(crate) enum FetchError {
    /// TLS cannot be set up.
    Trust(TrustError),
    /// The certificate of this server is not trusted, or the handshake failed otherwise.
    Tls(String, HandshakeError),
    /// The text names no server.
    NoServer(String),
    /// The host name has no address.
    NoAddress(String),
    /// The server at this address or path does not answer.
    Io(String, io::Error),
    /// No path has a snapshot. Each path with its status.
    NoSnapshot(Vec<(String, u16)>),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::Trust(e) => e.fmt(f),
            FetchError::Tls(name, e) => {
                if let HandshakeError::Tls(TlsError::InvalidMessage(_)) = e {
                    return write!(f, "{name}: what listens there speaks no TLS");
                }
                write!(f, "{name}: {e}")?;
                if let HandshakeError::Tls(TlsError::InvalidCertificate(_)) = e {
                    f.write_str("; --cacert FILE names authorities to trust, -k accepts any")?;
                }
                Ok(())
            }
            FetchError::NoServer(text) => write!(f, "\"{text}\" names no server"),
            FetchError::NoAddress(name) => write!(f, "{name} has no address"),
            FetchError::Io(name, e) => write!(f, "{name}: {e}"),
            FetchError::NoSnapshot(tried) => {
                let refused = |(_, status): &&(String, u16)| matches!(status, 401 | 403);
                if let Some((path, status)) = tried.iter().find(refused) {
                    return write!(
                        f,
                        "access denied: {path} answers {status}; its allow, deny or auth_basic must let this client in"
                    );
                }
                let tried: Vec<String> =
                    tried.iter().map(|(path, status)| format!("{path}: {status}")).collect();
                let tried = tried.join(", ");
                write!(
                    f,
                    "no weir_dashboard and no weir_status json there ({tried}); name its path, as in http://127.0.0.1:8080/panel"
                )
            }
        }
    }
}

/// The paths to try if the user names none.
const DEFAULT_PATHS: &[&str] = &["/", "/panel", "/dashboard", "/status", "/weir_status"];
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer in bytes. A snapshot of hundreds of loops is far smaller.
const LONGEST: u64 = 64 << 20;

impl SnapshotSource {
    /// Parses `8080`, `host:8080`, `http://host:8080/path`, `https://host/path`,
    /// `unix:/path/of/socket` or `unix:/path/of/socket:/path`. The trust is used for `https` only.
    pub(crate) fn read(text: &str, trust: &CertificateTrust) -> Result<SnapshotSource, FetchError> {
        let usual = || DEFAULT_PATHS.iter().map(|path| (*path).to_owned()).collect();
        if let Some(rest) = text.strip_prefix("unix:") {
            let (socket, path) = rest.split_once(":/").unwrap_or((rest, ""));
            let paths = if path.is_empty() { usual() } else { vec![format!("/{path}")] };
            return Ok(SnapshotSource {
                transport: Transport::Unix(socket.to_owned()),
                tls: None,
                host: "localhost".into(),
                paths,
                patience: PATIENCE,
            });
        }
        let secured = text.strip_prefix("https://");
        let rest = secured.or_else(|| text.strip_prefix("http://")).unwrap_or(text);
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let address = match host.rsplit_once(':') {
            _ if host.bytes().all(|b| b.is_ascii_digit()) && !host.is_empty() => {
                format!("127.0.0.1:{host}")
            }
            Some((name, port)) if !name.is_empty() && port.parse::<u16>().is_ok() => {
                host.to_owned()
            }
            _ if host.is_empty() => return Err(FetchError::NoServer(text.to_owned())),
            _ => format!("{host}:{}", if secured.is_some() { 443 } else { 80 }),
        };
        let tls = match secured {
            None => None,
            Some(_) => {
                let client = trust.client(b"http/1.1", false).map_err(FetchError::Trust)?;
                let name = address.rsplit_once(':').map_or(host, |(name, _)| name);
                Some(client.named(name.trim_matches(['[', ']']).as_bytes()))
            }
        };
        let paths = if path.len() > 1 { vec![path.to_owned()] } else { usual() };
        let (transport, host) = (Transport::Tcp(address.clone()), address);
        Ok(SnapshotSource { transport, tls, host, paths, patience: PATIENCE })
    }

    /// Fetches a snapshot. Once a path has one, the other paths are no longer tried.
    pub(crate) fn snapshot(&mut self) -> Result<Snapshot, FetchError> {
        let mut tried = Vec::new();
        for path in self.paths.clone() {
            let (status, body) = self.get(&path)?;
            let found = read(&body).filter(|s| status == 200 && !s.loops.is_empty());
            if let Some(snapshot) = found {
                self.paths = vec![path];
                return Ok(snapshot);
            }
            tried.push((path, status));
        }
        Err(FetchError::NoSnapshot(tried))
    }

    fn get(&self, path: &str) -> Result<(u16, Vec<u8>), FetchError> {
        let request = format!(
            "GET {path} HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\n\r\n",
            self.host
        );
        let failed = |name: &str, e| FetchError::Io(name.to_owned(), e);
        match &self.transport {
            Transport::Tcp(address) => {
                let mut all = address.to_socket_addrs().map_err(|e| failed(address, e))?;
                let to = all.next().ok_or_else(|| FetchError::NoAddress(address.clone()))?;
                let until = Instant::now() + self.patience;
                let stream = TcpStream::connect_timeout(&to, self.patience)
                    .map_err(|e| failed(address, e))?;
                let stream = Bounded { stream, until };
                match &self.tls {
                    None => exchange(stream, &request).map_err(|e| failed(address, e)),
                    Some(client) => {
                        let secured = TlsStream::open(stream, client);
                        let tried = secured.and_then(|secured| exchange(secured, &request));
                        tried.map_err(|e| match e.downcast::<TlsError>() {
                            Ok(e) => FetchError::Tls(address.clone(), HandshakeError::Tls(e)),
                            Err(e) => failed(address, e),
                        })
                    }
                }
            }
            Transport::Unix(path) => {
                let until = Instant::now() + self.patience;
                let stream = connect_unix(path, self.patience).map_err(|e| failed(path, e))?;
                exchange(Bounded { stream, until }, &request).map_err(|e| failed(path, e))
            }
        }
    }
}

/// Connects to a socket. A full accept queue blocks connect(2): unix(7).
fn connect_unix(path: &str, patience: Duration) -> io::Result<UnixStream> {
    let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    let connected = rustix::net::connect(&socket, &SocketAddrUnix::new(path)?);
    connected.map_err(|e| timed_out(e.into()))?;
    Ok(socket.into())
}

/// A stream whose reads and writes end at one time, however many there are. A server that sends a
/// byte now and then cannot hold up its reader.
struct Bounded<S> {
    stream: S,
    until: Instant,
}

impl<S: AsFd> Bounded<S> {
    /// The next read or write ends in time.
    fn bound(&self, which: Timeout) -> io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(set_socket_timeout(&self.stream, which, Some(left))?)
    }
}

impl<S: Read + AsFd> Read for Bounded<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.bound(Timeout::Recv)?;
        self.stream.read(into).map_err(timed_out)
    }
}

impl<S: Write + AsFd> Write for Bounded<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bound(Timeout::Send)?;
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A socket reports its timeout as a call that would block: socket(7).
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

fn exchange(mut stream: impl Read + Write, request: &str) -> io::Result<(u16, Vec<u8>)> {
    stream.write_all(request.as_bytes())?;
    let mut all = Vec::new();
    stream.take(LONGEST).read_to_end(&mut all)?;
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").map_or(all.len(), |at| at + 4);
    let body = all.split_off(end);
    let status = String::from_utf8_lossy(&all).split(' ').nth(1).and_then(|word| word.parse().ok());
    Ok((status.unwrap_or(0), body))
}

/// A blocking TLS connection.
struct TlsStream {
    stream: Bounded<TcpStream>,
    tls: TlsConnection,
    /// Decrypted bytes that are not read yet.
    plain: Vec<u8>,
    /// Nothing more is read: the server has said so, or has closed.
    over: bool,
}

impl TlsStream {
    /// Completes the handshake.
    fn open(stream: Bounded<TcpStream>, client: &TlsClient) -> io::Result<TlsStream> {
        let tls = TlsConnection::client(client).map_err(io::Error::other)?;
        let mut secured = TlsStream { stream, tls, plain: Vec::new(), over: false };
        while secured.advance()? == ConnectionProgress::Handshake {
            if secured.receive()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(secured)
    }

    /// Decrypts received bytes and sends pending ones.
    fn advance(&mut self) -> io::Result<ConnectionProgress> {
        let mut out = Vec::new();
        let progress = self.tls.advance(&mut self.plain, &mut out);
        let sent = self.stream.write_all(&out);
        // The error of TLS says more than a failure to send its alert.
        let progress = progress.map_err(io::Error::other)?;
        sent.map(|()| progress)
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 16 * 1024];
        let n = self.stream.read(&mut buffer)?;
        self.tls.feed(buffer.get(..n).unwrap_or_default());
        Ok(n)
    }
}

impl Read for TlsStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.plain.is_empty() && !self.over {
            // A truncated answer is not valid JSON, so a missing close_notify is accepted as the
            // end.
            self.over = self.receive()? == 0 || self.advance()? == ConnectionProgress::Closed;
        }
        let n = self.plain.len().min(into.len());
        into.iter_mut().zip(self.plain.drain(..n)).for_each(|(to, byte)| *to = byte);
        Ok(n)
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut out = Vec::new();
        self.tls.encrypt(bytes, &mut out).map_err(io::Error::other)?;
        self.stream.write_all(&out)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_parsed_as_people_write_them() {
        let read = |text: &str| SnapshotSource::read(text, &CertificateTrust::Anyone);
        let tcp = |text: &str| match read(text).unwrap() {
            SnapshotSource { transport: Transport::Tcp(address), paths, .. } => (address, paths),
            place => panic!("{place:?}"),
        };
        assert_eq!(tcp("8080").0, "127.0.0.1:8080");
        assert_eq!(tcp("http://a.example/x?y").0, "a.example:80");
        assert_eq!(tcp("http://a.example/x?y").1, ["/x?y"]);
        assert_eq!(tcp("[::1]:81/").0, "[::1]:81");
        assert_eq!(tcp("[::1]:81/").1.len(), DEFAULT_PATHS.len());
        assert_eq!(tcp("https://a.example/x").0, "a.example:443");
        assert_eq!(tcp("https://[::1]:8443").0, "[::1]:8443");
        assert!(read("https://a").unwrap().tls.is_some() && read("a").unwrap().tls.is_none());
        let unix = read("unix:/run/weir.sock:/panel").unwrap();
        assert_eq!(unix.transport, Transport::Unix("/run/weir.sock".into()));
        assert_eq!(unix.paths, ["/panel"]);
        assert!(read("https:///").is_err() && read("http:///x").is_err());
    }

    #[test]
    fn an_answer_that_trickles_ends_in_time() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let trickle = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Until the client has left.
            while stream.write_all(b"x").is_ok() {
                #[expect(clippy::disallowed_methods, reason = "a slow server is what is tested")]
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let mut source = SnapshotSource::read(&place, &CertificateTrust::Anyone).unwrap();
        source.patience = Duration::from_millis(200);
        match source.snapshot().unwrap_err() {
            FetchError::Io(_, e) => assert_eq!(e.kind(), io::ErrorKind::TimedOut),
            other => panic!("{other}"),
        }
        trickle.join().unwrap();
    }

    #[test]
    fn a_unix_socket_that_does_not_accept_is_left_in_time() {
        let path = std::env::temp_dir().join(format!("weir-top-{}", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _queued = UnixStream::connect(&path).unwrap();
        let place = format!("unix:{}", path.display());
        let mut source = SnapshotSource::read(&place, &CertificateTrust::Anyone).unwrap();
        source.patience = Duration::from_millis(100);
        let error = source.snapshot().unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.ends_with(": timed out"), "{error}");
    }
}
