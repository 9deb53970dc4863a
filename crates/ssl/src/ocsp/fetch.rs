//! Asks a responder: one short request over HTTP/1.0, from one address after another.

use std::io;
use std::time::Instant;

use weir_engine::{Chain, ConnectOptions, Handle, Patience, Stream};
use weir_log::{Cause, Level, Log};
use weir_proto::base64::{self, Alphabet};
use weir_proto::http1::{HeaderId, Progress, ResponseHead, ResponseParser};
use weir_proto::uri::{Escape, escape};
use weir_resolver::Resolvers;
use weir_upstream::Endpoint;

use super::LookUp;
use super::responder::Responder;

/// Longer answers are no answers.
const LONGEST: usize = 16 * 1024;

/// Who is asked, and who hears of failures.
pub struct Errand<'a> {
    pub responder: &'a Responder,
    pub look_up: &'a LookUp,
    /// When to give up.
    pub until: Instant,
    pub log: &'a Log,
    /// The number of the client's connection.
    pub connection: Option<u64>,
    /// The name of the certificate's file.
    pub certificate: Option<&'a str>,
}

/// Why there is no answer, for the log.
enum Failure {
    Io(&'static str, io::Error),
    Said(String),
}

impl Errand<'_> {
    /// The responder's answer to a request; what goes wrong is logged.
    pub async fn run(&self, handle: &Handle, request: &[u8]) -> Option<Vec<u8>> {
        let head = self.head(request);
        for address in self.addresses(handle).await? {
            match self.ask(handle, &address, &head).await {
                Ok(answer) => return Some(answer),
                Err(failure) => self.failed(&failure, &address),
            }
        }
        None
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

    async fn addresses(&self, handle: &Handle) -> Option<Vec<Endpoint>> {
        let Responder { host, addresses, .. } = self.responder;
        if self.responder.is_address() {
            return Some(addresses.clone());
        }
        let Some(resolver) = &self.look_up.resolver else {
            let level = if addresses.is_empty() { Level::Error } else { Level::Warn };
            self.say(level, format_args!("no resolver defined to resolve {host}"), None);
            return (!addresses.is_empty()).then(|| addresses.clone());
        };
        let resolver = Resolvers::of_loop().of(resolver);
        match resolver.resolve(handle, host, self.look_up.timeout).await {
            Ok(found) => Some(found.addresses.iter().map(|ip| self.responder.at(*ip)).collect()),
            Err(why) => {
                let text = format_args!("{host} could not be resolved ({why})");
                self.say(Level::Error, text, None);
                None
            }
        }
    }

    async fn ask(
        &self,
        handle: &Handle,
        address: &Endpoint,
        head: &[u8],
    ) -> Result<Vec<u8>, Failure> {
        let options = ConnectOptions { deadline: Some(self.until), ..ConnectOptions::default() };
        let to = address.to_any().map_err(|error| Failure::Io("connect()", error))?;
        let stream = handle.connect(&to, &options).await;
        let stream = stream.map_err(|error| Failure::Io("connect()", error))?;
        let mut chain = Chain::new();
        chain.push(head.to_vec());
        let sent = stream.send(&mut chain, Patience::Until(self.until)).await;
        sent.map_err(|error| Failure::Io("send()", error))?;
        receive(&stream).await
    }

    fn failed(&self, failure: &Failure, peer: &Endpoint) {
        match failure {
            Failure::Io(_, error) if error.kind() == io::ErrorKind::TimedOut => {
                let text = "OCSP responder timed out (110: Connection timed out)";
                self.say(Level::Error, format_args!("{text}"), Some(peer));
            }
            Failure::Io(call, error) => {
                let text = format_args!("{call} failed {}", Cause(error));
                self.say(Level::Error, text, Some(peer));
            }
            Failure::Said(text) => self.say(Level::Error, format_args!("{text}"), Some(peer)),
        }
    }

    /// Writes to the log what stands between the client, or the certificate, and an answer.
    pub fn say(&self, level: Level, text: std::fmt::Arguments<'_>, peer: Option<&Endpoint>) {
        let doing = "while requesting certificate status, responder:";
        let host = &self.responder.host;
        let peer = peer.map(|peer| format!(", peer: {peer}")).unwrap_or_default();
        let of = self.certificate.map(|name| format!(", certificate: \"{name}\""));
        let of = of.unwrap_or_default();
        self.log.write(level, self.connection, format_args!("{text} {doing} {host}{peer}{of}"));
    }
}

async fn receive(stream: &Stream) -> Result<Vec<u8>, Failure> {
    let (mut buf, mut parser, mut ended) = (Vec::with_capacity(4096), ResponseParser::new(), false);
    loop {
        let parsed = parser.parse(&buf);
        let parsed =
            parsed.map_err(|_| Failure::Said("OCSP responder sent invalid response".to_owned()))?;
        if parsed == Progress::Done
            && let Some(body) = body(parser.head(), &buf, ended)?
        {
            return Ok(body.to_vec());
        }
        if ended {
            let text = "OCSP responder prematurely closed connection";
            return Err(Failure::Said(text.to_owned()));
        }
        if buf.len() > LONGEST {
            return Err(Failure::Said("OCSP responder sent too long response".to_owned()));
        }
        buf.reserve(4096);
        let (result, back) = stream.recv(buf).await;
        buf = back;
        ended = result.map_err(|error| Failure::Io("recv()", error))? == 0;
    }
}

/// The body, once all of it is there.
fn body<'b>(head: &ResponseHead, buf: &'b [u8], ended: bool) -> Result<Option<&'b [u8]>, Failure> {
    if let Some(kind) = head.header(HeaderId::ContentType) {
        let kind = kind.value.of(buf);
        if !kind.eq_ignore_ascii_case(b"application/ocsp-response") {
            let kind = String::from_utf8_lossy(kind);
            let text = "OCSP responder sent invalid \"Content-Type\" header";
            return Err(Failure::Said(format!("{text}: \"{kind}\"")));
        }
    }
    if head.status != 200 {
        return Err(Failure::Said(format!("OCSP responder sent status {}", head.status)));
    }
    let body = buf.get(head.end as usize..).unwrap_or_default();
    let length = head.content_length(buf).flatten().and_then(|n| usize::try_from(n).ok());
    Ok(match length {
        Some(length) => body.get(..length),
        None => ended.then_some(body),
    })
}
