//! Gets snapshots: over HTTP/1.0, so that the answer ends with its connection.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::snapshot::Snapshot;

/// Where snapshots come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotSource {
    way: Transport,
    /// What is sent as `Host`.
    host: String,
    /// The paths that are tried, until one has answered.
    paths: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Transport {
    Tcp(String),
    Unix(String),
}

/// Why there is no snapshot.
#[derive(Debug)]
pub(crate) enum FetchError {
    /// The place begins with `https:`.
    Https,
    /// A place without a server.
    NoServer(String),
    /// The server's name has no address.
    NoAddress(String),
    /// The server at this address or path does not answer.
    Io(String, io::Error),
    /// No path has a snapshot; each with its status.
    NoSnapshot(Vec<(String, u16)>),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::Https => f.write_str(
                "https is not spoken here; a location of a unix socket, or of a port on 127.0.0.1, will do",
            ),
            FetchError::NoServer(text) => write!(f, "\"{text}\" names no server"),
            FetchError::NoAddress(name) => write!(f, "{name} has no address"),
            FetchError::Io(name, e) => write!(f, "{name}: {e}"),
            FetchError::NoSnapshot(asked) => {
                let asked: Vec<String> =
                    asked.iter().map(|(path, status)| format!("{path}: {status}")).collect();
                let asked = asked.join(", ");
                write!(
                    f,
                    "no weir_dashboard and no weir_status json there ({asked}); name its path, as in http://127.0.0.1:8080/panel"
                )
            }
        }
    }
}

/// Where `weir_dashboard` or `weir_status json` usually stand, unless the user says it.
const USUAL: &[&str] = &["/", "/panel", "/dashboard", "/status", "/weir_status"];
const PATIENCE: Duration = Duration::from_secs(5);
/// A snapshot of hundreds of loops is far smaller.
const LONGEST: u64 = 64 << 20;

impl SnapshotSource {
    /// `8080`, `host:8080`, `http://host:8080/path`, `unix:/path/of/socket`, `unix:/path/of/socket:/path`.
    pub(crate) fn read(text: &str) -> Result<SnapshotSource, FetchError> {
        let usual = || USUAL.iter().map(|path| (*path).to_owned()).collect();
        if let Some(rest) = text.strip_prefix("unix:") {
            let (socket, path) = rest.split_once(":/").unwrap_or((rest, ""));
            let paths = if path.is_empty() { usual() } else { vec![format!("/{path}")] };
            return Ok(SnapshotSource {
                way: Transport::Unix(socket.to_owned()),
                host: "localhost".into(),
                paths,
            });
        }
        if text.starts_with("https:") {
            return Err(FetchError::Https);
        }
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let address = match host.rsplit_once(':') {
            _ if host.bytes().all(|b| b.is_ascii_digit()) && !host.is_empty() => {
                format!("127.0.0.1:{host}")
            }
            Some((name, port)) if !name.is_empty() && port.parse::<u16>().is_ok() => {
                host.to_owned()
            }
            _ if host.is_empty() => return Err(FetchError::NoServer(text.to_owned())),
            _ => format!("{host}:80"),
        };
        let paths = if path.len() > 1 { vec![path.to_owned()] } else { usual() };
        Ok(SnapshotSource { way: Transport::Tcp(address.clone()), host: address, paths })
    }

    /// One snapshot. From then on only the path that had one is asked.
    pub(crate) fn snapshot(&mut self) -> Result<Snapshot, FetchError> {
        let mut asked = Vec::new();
        for path in self.paths.clone() {
            let (status, body) = self.get(&path)?;
            let found: Option<Snapshot> = serde_json::from_slice(&body).ok();
            if let Some(snapshot) =
                found.filter(|s: &Snapshot| status == 200 && !s.loops.is_empty())
            {
                self.paths = vec![path];
                return Ok(snapshot);
            }
            asked.push((path, status));
        }
        Err(FetchError::NoSnapshot(asked))
    }

    fn get(&self, path: &str) -> Result<(u16, Vec<u8>), FetchError> {
        let request = format!(
            "GET {path} HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\n\r\n",
            self.host
        );
        let failed = |name: &str, e| FetchError::Io(name.to_owned(), e);
        match &self.way {
            Transport::Tcp(address) => {
                let mut all = address.to_socket_addrs().map_err(|e| failed(address, e))?;
                let to = all.next().ok_or_else(|| FetchError::NoAddress(address.clone()))?;
                let stream =
                    TcpStream::connect_timeout(&to, PATIENCE).map_err(|e| failed(address, e))?;
                let _ = stream.set_read_timeout(Some(PATIENCE));
                ask(stream, &request).map_err(|e| failed(address, e))
            }
            Transport::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(|e| failed(path, e))?;
                let _ = stream.set_read_timeout(Some(PATIENCE));
                ask(stream, &request).map_err(|e| failed(path, e))
            }
        }
    }
}

fn ask(mut stream: impl Read + Write, request: &str) -> io::Result<(u16, Vec<u8>)> {
    stream.write_all(request.as_bytes())?;
    let mut all = Vec::new();
    stream.take(LONGEST).read_to_end(&mut all)?;
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").map_or(all.len(), |at| at + 4);
    let body = all.split_off(end);
    let status = String::from_utf8_lossy(&all).split(' ').nth(1).and_then(|word| word.parse().ok());
    Ok((status.unwrap_or(0), body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_people_write_them() {
        let tcp = |text: &str| match SnapshotSource::read(text).unwrap() {
            SnapshotSource { way: Transport::Tcp(address), paths, .. } => (address, paths),
            place => panic!("{place:?}"),
        };
        assert_eq!(tcp("8080").0, "127.0.0.1:8080");
        assert_eq!(tcp("http://a.example/x?y").0, "a.example:80");
        assert_eq!(tcp("http://a.example/x?y").1, ["/x?y"]);
        assert_eq!(tcp("[::1]:81/").0, "[::1]:81");
        assert_eq!(tcp("[::1]:81/").1.len(), USUAL.len());
        let unix = SnapshotSource::read("unix:/run/weir.sock:/panel").unwrap();
        assert_eq!(unix.way, Transport::Unix("/run/weir.sock".into()));
        assert_eq!(unix.paths, ["/panel"]);
        assert!(
            SnapshotSource::read("https://a/").is_err()
                && SnapshotSource::read("http:///x").is_err()
        );
    }
}
