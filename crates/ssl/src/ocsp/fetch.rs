//! Sends an OCSP request: HTTP/1.0, to one address of the responder after another.

use std::time::{Duration, Instant};
use std::{fmt, io};

use weir_engine::{Chain, ConnectOptions, Handle, Patience};
use weir_log::{Cause, Level, Log};
use weir_proto::base64::{self, Alphabet};
use weir_proto::uri::{Escape, escape};
use weir_resolver::Resolvers;
use weir_tls::Wire;
use weir_upstream::PeerAddress;
use weir_upstream::reply::{BadReply, Reply, Unread};

use super::LookUp;
use super::responder::Responder;

/// The longest accepted response.
const LONGEST: usize = 16 * 1024;

/// One request to a responder, and the log for its failures.
pub struct OcspFetch<'a> {
    pub responder: &'a Responder,
    pub look_up: &'a LookUp,
    /// The deadline.
    pub until: Instant,
    pub log: &'a Log,
    /// The number of the client's connection.
    pub connection: Option<u64>,
    /// The file of the certificate.
    pub certificate: Option<&'a str>,
}

/// Why there is no response. Shown as nginx writes it to the log.
enum FetchError {
    /// A system call failed.
    Io(&'static str, io::Error),
    /// The bytes are no HTTP response.
    Reply(BadReply),
    /// The response is longer than [`LONGEST`].
    TooLong,
    /// The response has this type.
    ContentType(String),
    /// The response has this status.
    Status(u16),
}

impl From<Unread> for FetchError {
    fn from(unread: Unread) -> FetchError {
        match unread {
            Unread::Io(error) => FetchError::Io("recv()", error),
            Unread::Wrong(reply) => FetchError::Reply(reply),
        }
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::Io(_, error) if error.kind() == io::ErrorKind::TimedOut => {
                f.write_str("OCSP responder timed out (110: Connection timed out)")
            }
            FetchError::Io(call, error) => write!(f, "{call} failed {}", Cause(error)),
            FetchError::Reply(BadReply::Closed) => {
                f.write_str("OCSP responder prematurely closed connection")
            }
            FetchError::TooLong | FetchError::Reply(BadReply::HeadTooBig) => {
                f.write_str("OCSP responder sent too long response")
            }
            FetchError::Reply(_) => f.write_str("OCSP responder sent invalid response"),
            FetchError::ContentType(kind) => {
                write!(f, "OCSP responder sent invalid \"Content-Type\" header: \"{kind}\"")
            }
            FetchError::Status(status) => write!(f, "OCSP responder sent status {status}"),
        }
    }
}

impl OcspFetch<'_> {
    /// Sends a request. Returns the response and the address it came from. Failures are logged.
    pub async fn run(&self, handle: &Handle, request: &[u8]) -> Option<(Vec<u8>, PeerAddress)> {
        let head = self.head(request);
        let addresses = self.addresses(handle).await?;
        for (address, left) in addresses.iter().zip((1..=addresses.len()).rev()) {
            // One that is silent leaves time for the others.
            let time = self.time_left(handle) / u32::try_from(left).unwrap_or(u32::MAX);
            match self.ask(handle, address, &head, handle.now() + time).await {
                Ok(answer) => return Some((answer, address.clone())),
                Err(failure) => {
                    self.log_failure(Level::Error, format_args!("{failure}"), Some(address));
                }
            }
        }
        None
    }

    fn time_left(&self, handle: &Handle) -> Duration {
        self.until.saturating_duration_since(handle.now())
    }

    fn head(&self, request: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        base64::encode(Alphabet::Plain, request, &mut text);
        let mut head = b"GET ".to_vec();
        head.extend_from_slice(&self.responder.path);
        escape(Escape::UriComponent, &text, &mut head);
        head.extend_from_slice(b" HTTP/1.0\r\nHost: ");
        head.extend_from_slice(self.responder.host.as_bytes());
        head.extend_from_slice(b"\r\n\r\n");
        head
    }

    async fn addresses(&self, handle: &Handle) -> Option<Vec<PeerAddress>> {
        let Responder { host, addresses, .. } = self.responder;
        if self.responder.is_address() {
            return Some(addresses.clone());
        }
        let Some(resolver) = &self.look_up.resolver else {
            let level = if addresses.is_empty() { Level::Error } else { Level::Warn };
            self.log_failure(level, format_args!("no resolver defined to resolve {host}"), None);
            return (!addresses.is_empty()).then(|| addresses.clone());
        };
        let resolver = Resolvers::of_loop().of(resolver);
        let timeout = self.look_up.timeout.min(self.time_left(handle));
        match resolver.resolve(handle, host, timeout).await {
            Ok(found) => Some(found.addresses.iter().map(|ip| self.responder.at(*ip)).collect()),
            Err(why) => {
                let text = format_args!("{host} could not be resolved ({why})");
                self.log_failure(Level::Error, text, None);
                None
            }
        }
    }

    async fn ask(
        &self,
        handle: &Handle,
        address: &PeerAddress,
        head: &[u8],
        until: Instant,
    ) -> Result<Vec<u8>, FetchError> {
        let options = ConnectOptions { deadline: Some(until), ..ConnectOptions::default() };
        let to = address.to_any().map_err(|error| FetchError::Io("connect()", error))?;
        let stream = handle.connect(&to, &options).await;
        let stream = stream.map_err(|error| FetchError::Io("connect()", error))?;
        let mut chain = Chain::new();
        chain.push(head.to_vec());
        let sent = stream.send(&mut chain, Patience::Until(until)).await;
        sent.map_err(|error| FetchError::Io("send()", error))?;
        stream.set_deadline(Some(until));
        receive(&Wire::from(stream)).await
    }

    /// Logs a failure, with the responder, its address and the certificate.
    pub fn log_failure(
        &self,
        level: Level,
        text: std::fmt::Arguments<'_>,
        peer: Option<&PeerAddress>,
    ) {
        let doing = "while requesting certificate status, responder:";
        let host = &self.responder.host;
        let peer = peer.map(|peer| format!(", peer: {peer}")).unwrap_or_default();
        let of = self.certificate.map(|name| format!(", certificate: \"{name}\""));
        let of = of.unwrap_or_default();
        self.log.write(level, self.connection, format_args!("{text} {doing} {host}{peer}{of}"));
    }
}

async fn receive(wire: &Wire) -> Result<Vec<u8>, FetchError> {
    let mut reply = Reply::read(wire).await?;
    if let Some(kind) = reply.header(b"content-type")
        && !kind.eq_ignore_ascii_case(b"application/ocsp-response")
    {
        let kind = String::from_utf8_lossy(kind).into_owned();
        return Err(FetchError::ContentType(kind));
    }
    if reply.status() != 200 {
        return Err(FetchError::Status(reply.status()));
    }
    let body = reply.body(wire, LONGEST).await?;
    match body.is_whole {
        true if body.bytes.len() <= LONGEST => Ok(body.bytes),
        _ if body.bytes.len() > LONGEST => Err(FetchError::TooLong),
        _ => Err(FetchError::Reply(BadReply::Closed)),
    }
}
