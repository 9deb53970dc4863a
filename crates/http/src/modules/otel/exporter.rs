//! `otel_exporter { }` and the attributes of the resource, which is this server.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir_conf::{Directive, Error, Word, values};
use weir_proto::otlp::Resource;
use weir_tls::{Authorities, Ciphers, ClientSettings, Curves, TlsClient, Versions};
use weir_upstream::config::Url;

use crate::config::Setup;
use crate::escape::is_name;
use crate::site::main_conf::{BlockEnd, MainDraft, MainKey};

/// The collector, and how spans are batched.
#[derive(Debug)]
pub struct Exporter {
    /// The collector's address.
    pub url: Url,
    /// Set if the connection uses TLS.
    pub tls: Option<TlsClient>,
    /// The head of each request, up to the value of `Content-Length`.
    pub head: Vec<u8>,
    /// The resource, which is in front of the spans.
    pub source: Resource,
    /// How long a span waits for others to fill its batch.
    pub interval: Duration,
    /// The maximum number of spans of a batch.
    pub batch_size: usize,
    /// The maximum number of batches of a loop that wait.
    pub batch_count: usize,
    /// Whether the last batch failed. Each process logs a change once.
    pub failing: AtomicBool,
    /// Limits the log lines about batches that were taken in part.
    pub rejection_log: RejectionLog,
}

/// Limits how often a process logs what a collector reports about batches that it took.
#[derive(Debug, Default)]
pub struct RejectionLog(Mutex<RejectionState>);

#[derive(Debug, Default)]
struct RejectionState {
    /// The time of the last log line.
    logged_at: Option<Instant>,
    /// The rejected spans since then.
    rejected: u64,
}

/// The minimum interval between two log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

impl RejectionLog {
    /// Notes that spans were rejected or that the collector sent a message. Returns the number of
    /// spans to log, if a line is due.
    pub fn note(&self, rejected: u64, has_message: bool, now: Instant) -> Option<u64> {
        if rejected == 0 && !has_message {
            return None;
        }
        let mut this = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        this.rejected += rejected;
        let is_due =
            this.logged_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL);
        is_due.then(|| {
            this.logged_at = Some(now);
            std::mem::take(&mut this.rejected)
        })
    }
}

/// The port of OTLP over HTTP.
pub const PORT: u16 = 4318;
/// The port of OTLP over gRPC.
const GRPC: u16 = 4317;

/// The directives of the configuration that is being read.
#[derive(Debug, Default)]
pub struct Reading {
    draft: Option<Draft>,
    service: Option<Vec<u8>>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug)]
struct Draft {
    url: Url,
    tls: Option<TlsClient>,
    headers: Vec<(Vec<u8>, Vec<u8>)>,
    interval: Duration,
    batch_size: usize,
    batch_count: usize,
}

/// The exporter of the site.
pub static EXPORTER: MainKey<Reading> = MainKey::new();

impl MainDraft for Reading {
    type MainConf = Option<Arc<Exporter>>;

    fn finish(self, _: &mut BlockEnd<'_>) -> Result<Option<Arc<Exporter>>, Error> {
        Ok(self.exporter().map(Arc::new))
    }
}

impl Reading {
    /// Reads `otel_exporter { }`.
    pub fn read(setup: &mut Setup<'_>, d: &Directive) -> Result<(), Error> {
        if EXPORTER.draft(&mut setup.drafts).draft.is_some() {
            return Err(d.problem("is duplicate"));
        }
        let (mut endpoint, mut trusted, mut seen) = (None, None, Vec::new());
        let (mut headers, mut interval) = (Vec::new(), Duration::from_secs(5));
        let (mut batch_size, mut batch_count) = (512, 4);
        for line in d.block() {
            let name = line.name.lossy();
            let wanted = match &*name {
                "endpoint" | "trusted_certificate" | "interval" | "batch_size" | "batch_count" => 1,
                "header" => 2,
                _ => {
                    let text = format!("unknown directive \"{name}\" in \"otel_exporter\"");
                    return Err(line.error(text));
                }
            };
            let [first, second] = [line.arg(0), line.arg(1)];
            let (Some(first), true) = (first, line.args.len() == wanted) else {
                let text = format!(
                    "invalid number of arguments in \"{name}\" directive of \"otel_exporter\""
                );
                return Err(line.error(text));
            };
            if wanted == 1 && seen.contains(&name) {
                return Err(line.problem("is duplicate"));
            }
            match &*name {
                "endpoint" => endpoint = Some((line, first)),
                "trusted_certificate" => trusted = Some((line, first)),
                "interval" => interval = line.duration()?.max(Duration::from_millis(1)),
                "batch_size" => batch_size = count(line, MOST_SPANS)?,
                "batch_count" => batch_count = count(line, MOST_BATCHES)?,
                _ => headers.push(header(line, first, second)?),
            }
            seen.push(name);
        }
        let (line, word) =
            endpoint.ok_or_else(|| d.error("\"otel_exporter\" requires \"endpoint\""))?;
        let (url, secure) = address(line, word)?;
        if url.port == Some(GRPC) {
            let text = "is where collectors take gRPC; weir sends OTLP over HTTP, for which they have 4318";
            setup.warnings.push(line.warning(format!("port {GRPC} {text}")).mark(word.pos));
        }
        let tls = match secure {
            true => Some(client(setup, line, trusted)?.named(bare(&url.host))),
            false => None,
        };
        let read = EXPORTER.draft(&mut setup.drafts);
        read.draft = Some(Draft { url, tls, headers, interval, batch_size, batch_count });
        Ok(())
    }

    /// `otel_service_name NAME`
    pub fn service_name(&mut self, d: &Directive) {
        self.service = d.arg(0).map(|word| word.bytes.clone());
    }

    /// `otel_resource_attr NAME VALUE`. The last line for a name counts.
    pub fn resource_attribute(&mut self, d: &Directive) {
        if let (Some(name), Some(value)) = (d.arg(0), d.arg(1)) {
            self.attributes.retain(|(known, _)| *known != name.bytes);
            self.attributes.push((name.bytes.clone(), value.bytes.clone()));
        }
    }

    /// Whether a collector is configured.
    pub fn is_complete(&self) -> bool {
        self.draft.is_some()
    }

    /// The exporter, when the whole configuration was read.
    fn exporter(self) -> Option<Exporter> {
        let Draft { url, tls, headers, interval, batch_size, batch_count } = self.draft?;
        let mut attributes = self.attributes;
        match self.service {
            Some(name) => {
                attributes.retain(|(known, _)| known != NAME);
                attributes.push((NAME.to_vec(), name));
            }
            None if attributes.iter().any(|(known, _)| known == NAME) => {}
            None => attributes.push((NAME.to_vec(), b"unknown_service:weir".to_vec())),
        }
        let pairs = attributes.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
        let source = Resource::new(pairs, "weir", crate::site::core::VERSION);
        let head = head(&url, &headers);
        let (failing, rejection_log) = (AtomicBool::new(false), RejectionLog::default());
        Some(Exporter {
            url,
            tls,
            head,
            source,
            interval,
            batch_size,
            batch_count,
            failing,
            rejection_log,
        })
    }
}

/// The attribute with the server's name.
const NAME: &[u8] = b"service.name";
/// The largest allowed sizes of a batch and of the queue.
const MOST_SPANS: u64 = 65_536;
const MOST_BATCHES: u64 = 1024;

fn count(d: &Directive, most: u64) -> Result<usize, Error> {
    let n = d.number_within(1, Some(most))?;
    Ok(usize::try_from(n).unwrap_or(usize::MAX))
}

/// `[http[s]://]HOST[:PORT][/PATH]`, and whether it uses TLS. The default path is that of the
/// protocol.
fn address(d: &Directive, word: &Word) -> Result<(Url, bool), Error> {
    let starts = |scheme: &[u8]| {
        let start = word.bytes.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme)).then_some(scheme.len())
    };
    let (secure, from) = match (starts(b"https://"), starts(b"http://")) {
        (Some(from), _) => (true, from),
        (None, from) => (false, from.unwrap_or(0)),
    };
    let rest = word.bytes.get(from..).unwrap_or_default();
    let text = word.lossy();
    let invalid = |why: &str| d.error_at(word, format!("{why} in \"endpoint\" \"{text}\""));
    let mut url = Url::parse(rest, true).map_err(invalid)?;
    if !rest.iter().all(u8::is_ascii_graphic) {
        return Err(invalid("invalid character"));
    }
    if matches!(url.uri.as_slice(), b"" | b"/") {
        url.uri = b"/v1/traces".to_vec();
    }
    if url.uri.first() != Some(&b'/') {
        return Err(invalid("invalid path"));
    }
    Ok((url, secure))
}

/// The host without the brackets of an IPv6 address.
fn bare(host: &[u8]) -> &[u8] {
    host.strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]")).unwrap_or(host)
}

/// Headers that the exporter sets itself.
const OWN: [&[u8]; 6] = [
    b"host",
    b"connection",
    b"content-type",
    b"content-length",
    b"content-encoding",
    b"transfer-encoding",
];

fn header(d: &Directive, name: &Word, value: Option<&Word>) -> Result<(Vec<u8>, Vec<u8>), Error> {
    if name.bytes.is_empty() || !is_name(&name.bytes) {
        return Err(d.error_at(name, "\"header\" has invalid header name"));
    }
    if OWN.iter().any(|own| name.bytes.eq_ignore_ascii_case(own)) {
        return Err(d.error_at(name, format!("header \"{}\" is weir's own", name.lossy())));
    }
    let value = value.map(|word| word.bytes.clone()).unwrap_or_default();
    if value.iter().any(|b| b.is_ascii_control() && *b != b'\t') {
        return Err(d.error("\"header\" has invalid header value"));
    }
    Ok((name.bytes.clone(), value))
}

fn head(url: &Url, headers: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let host = match &url.port {
        _ if url.host.starts_with(b"unix:") => b"localhost".to_vec(),
        Some(port) => [url.host.as_slice(), format!(":{port}").as_bytes()].concat(),
        None => [url.host.as_slice(), format!(":{PORT}").as_bytes()].concat(),
    };
    let agent = concat!("weir/", env!("CARGO_PKG_VERSION"));
    let mut out = [b"POST ".as_slice(), &url.uri, b" HTTP/1.1\r\nHost: ", &host].concat();
    let fixed = format!("\r\nUser-Agent: {agent}\r\nContent-Type: application/x-protobuf\r\n");
    out.extend_from_slice(fixed.as_bytes());
    for (name, value) in headers {
        out.extend_from_slice(&[name.as_slice(), b": ", value, b"\r\n"].concat());
    }
    out.extend_from_slice(b"Content-Length: ");
    out
}

/// The TLS client for the collector. Its certificate must be signed by the authorities of the file,
/// or by those of the system.
fn client(
    setup: &mut Setup<'_>,
    line: &Directive,
    trusted: Option<(&Directive, &Word)>,
) -> Result<TlsClient, Error> {
    let (line, name) = match trusted {
        Some((line, word)) => (line, word.bytes.clone()),
        None => {
            let store = weir_tls::machine_store().ok_or_else(|| {
                line.error("\"endpoint\" with https needs \"trusted_certificate\" on this machine")
            })?;
            (line, store.into_os_string().into_encoded_bytes())
        }
    };
    let shown = setup.pem_files.shown(&name);
    let text = setup.pem_files.read(&name);
    let text = text.map_err(|why| line.error(format!("failed to open \"{shown}\" {why}")))?;
    let anchors = weir_tls::certificates(&text);
    let anchors =
        anchors.map_err(|why| line.error(format!("failed to read \"{shown}\": {why}")))?;
    let anchors = anchors.into_iter().map(|der| der.to_vec()).collect();
    let settings = ClientSettings {
        versions: Versions::default(),
        ciphers: Ciphers::default(),
        curves: Curves::default(),
        identity: None,
        authorities: Some(Arc::new(Authorities { anchors, lists: Vec::new(), depth: DEPTH })),
        names: Arc::default(),
        send_name: true,
        reuse: true,
        alpn: vec![b"http/1.1".to_vec()],
    };
    settings.build().map_err(|why| line.error(why))
}

/// The most intermediate certificates. OpenSSL's default.
const DEPTH: u32 = 100;

/// Parses the seconds of `Retry-After`.
pub fn seconds(text: &[u8]) -> Option<Duration> {
    values::number(text).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_spans_are_logged_seldom_and_all_are_counted() {
        let (rejection_log, start) = (RejectionLog::default(), Instant::now());
        assert_eq!(rejection_log.note(0, false, start), None);
        assert_eq!(rejection_log.note(0, true, start), Some(0));
        assert_eq!(rejection_log.note(3, true, start + LOG_INTERVAL / 2), None);
        assert_eq!(rejection_log.note(0, false, start + LOG_INTERVAL), None);
        assert_eq!(rejection_log.note(4, true, start + LOG_INTERVAL), Some(7));
        assert_eq!(rejection_log.note(1, false, start + 2 * LOG_INTERVAL), Some(1));
    }
}
