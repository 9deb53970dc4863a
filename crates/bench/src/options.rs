//! The options of `weir bench` and `weir histogram`, and the plan that they describe.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, TryFromFloatSecsError};

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use weir_engine::SocketAddrAny;

use crate::peer::resolve;
use crate::url::host_and_port;
use crate::{
    CertificateTrust, Closing, LoadPlan, Pace, Protocol, RequestShape, TlsTarget, TrustError, Url,
    UrlError,
};

/// The duration of a run without `-n` and `-d`.
const DEFAULT_DURATION: Duration = Duration::from_secs(10);

/// Loads a web server and says what its clients see.
///
/// A closed loop, in which each connection sends its next request when the last one is answered;
/// with --rate an open loop, in which requests begin on time whatever the answers do, and latency
/// counts from the intended start.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir bench", bin_name = "weir bench")]
pub struct Options {
    /// What to request, in turn
    #[arg(required_unless_present = "urls")]
    url: Vec<String>,
    /// A file with more URLs, one a line; # begins a comment
    #[arg(long, value_name = "FILE")]
    urls: Option<PathBuf>,
    /// End after N requests
    #[arg(short = 'n', long, value_name = "N", value_parser = at_least_one::<u64>())]
    requests: Option<u64>,
    /// Begin no request after this time: 10s, 500ms, 2m; with --rate, those due within it are still sent [default: 10s without -n]
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// Connections at a time
    #[arg(short, long, value_name = "N", default_value_t = 50, value_parser = at_least_one::<usize>())]
    connections: usize,
    /// Threads of this client [default: a thread per CPU, 4 at most]
    #[arg(short, long, value_name = "N", value_parser = at_least_one::<usize>())]
    threads: Option<usize>,
    /// Close with the probability 1/N after a request; 0: never, as without it
    #[arg(short, long, value_name = "N")]
    keepalive: Option<u32>,
    /// A connection for each request
    #[arg(long, conflicts_with_all = ["keepalive", "pipeline"])]
    close: bool,
    /// Connect here whatever the URL says: host:port, or unix:/path [default port: the first URL's]
    #[arg(short, long, value_name = "ADDRESS")]
    route: Option<String>,
    /// Requests a second, due on time: an open loop
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// Requests sent at once on a connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one::<usize>())]
    pipeline: usize,
    /// Speak HTTP/2: agreed on in the TLS handshake, and with http:// from the first byte
    #[arg(long, conflicts_with = "pipeline")]
    http2: bool,
    /// Speak HTTP/3: over QUIC, at the URL's port
    #[arg(long, conflicts_with_all = ["http2", "pipeline"])]
    http3: bool,
    /// HTTP/3: take datagrams of at most so many bytes [default: 1472, what Ethernet carries]
    #[arg(long, value_name = "BYTES", requires = "http3", value_parser = clap::value_parser!(u16).range(1200..=65_507))]
    datagrams: Option<u16>,
    /// HTTP/2 or HTTP/3 requests at a time on each connection [default: 1]
    #[arg(short = 'm', long, value_name = "N", value_parser = at_least_one::<usize>())]
    streams: Option<usize>,
    /// Accept any certificate
    #[arg(long)]
    insecure: bool,
    /// Accept certificates that these authorities vouch for (PEM) [default: this machine's]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    cacert: Option<PathBuf>,
    /// Resume TLS sessions on new connections
    #[arg(long)]
    resume: bool,
    /// Open all connections before the first request, so far apart
    #[arg(long, value_name = "TIME", value_parser = time)]
    connect_first: Option<Duration>,
    /// A header line of each request: "Name: value"
    #[arg(short = 'H', long = "header", value_name = "LINE")]
    headers: Vec<String>,
    /// The method [default: GET, with a body POST]
    #[arg(short = 'X', long, value_name = "NAME")]
    method: Option<String>,
    /// The body of each request
    #[arg(short, long, value_name = "TEXT", conflicts_with = "body_file")]
    body: Option<String>,
    /// A file with the body of each request
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
    /// Longest wait for a connection, and for an answer
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    timeout: Duration,
    /// A line "time_in_ms status_code" for each request on standard output
    #[arg(long)]
    pub(crate) raw: bool,
    /// The histogram of the latencies in ms, in rows that double
    #[arg(long)]
    pub(crate) histogram: bool,
    /// The title of the histogram
    #[arg(long, value_name = "TEXT", default_value = "Duration in ms")]
    pub(crate) title: String,
    /// Write the distribution in HdrHistogram's text form
    #[arg(long, value_name = "FILE")]
    pub(crate) hdr: Option<PathBuf>,
    /// Draw the distribution
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// The summary as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads numbers from standard input, the first word of each line, and prints their histogram.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir histogram", bin_name = "weir histogram")]
pub struct HistogramOptions {
    /// What the numbers are
    #[arg(short, long, value_name = "TEXT", default_value = "Values")]
    pub(crate) title: String,
}

/// Why the options are not a valid plan.
#[derive(Debug)]
pub(crate) enum PlanError {
    /// The file cannot be read.
    File(PathBuf, io::Error),
    /// Not a valid URL.
    Url(String, UrlError),
    /// Neither a URL nor a file with URLs.
    NoUrl,
    /// `--route` is not a valid host and port.
    Route(String, UrlError),
    /// The address of `--route` cannot be resolved, or its path is too long.
    RouteAddress(String, io::Error),
    /// A URL's host cannot be resolved.
    Resolve(io::Error),
    /// TLS cannot be set up.
    Tls(TrustError),
    /// Not a header line.
    Header(String),
    /// Not a method.
    Method(String),
    /// `--rate` is not above 0.
    Rate,
    /// `--pipeline` was combined with `--rate`.
    PipelineRate,
    /// A method, URL or header line cannot be sent over HTTP/2 or HTTP/3.
    NoForm,
    /// `--streams` without `--http2` or `--http3`.
    Streams,
    /// `--http3` with an `http` URL or a Unix-domain socket.
    NoQuic,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::File(path, e) => write!(f, "cannot read {}: {e}", path.display()),
            PlanError::Url(text, e) | PlanError::Route(text, e) => write!(f, "{text}: {e}"),
            PlanError::NoUrl => f.write_str("there is no URL"),
            PlanError::RouteAddress(text, e) => write!(f, "{text}: {e}"),
            PlanError::Resolve(e) => write!(f, "cannot resolve {e}"),
            PlanError::Tls(e) => e.fmt(f),
            PlanError::Header(line) => write!(f, "{line:?} is no header line"),
            PlanError::Method(name) => write!(f, "{name:?} is no method"),
            PlanError::Rate => f.write_str("--rate must be above 0"),
            PlanError::PipelineRate => f.write_str("--pipeline and --rate contradict each other"),
            PlanError::NoForm => {
                f.write_str("HTTP/2 and HTTP/3 cannot send this method, URL or header line")
            }
            PlanError::Streams => f.write_str("--streams needs --http2 or --http3"),
            PlanError::NoQuic => f.write_str("--http3 needs https://, and goes to no unix socket"),
        }
    }
}

/// Parses a number that is at least 1.
fn at_least_one<T: TryFrom<u64> + Clone + Send + Sync>() -> RangedU64ValueParser<T> {
    RangedU64ValueParser::new().range(1..)
}

impl Options {
    /// Builds the plan.
    pub(crate) fn plan(&self) -> Result<LoadPlan, PlanError> {
        if self.streams.is_some() && !self.http2 && !self.http3 {
            return Err(PlanError::Streams);
        }
        let urls = self.all_urls()?;
        let port = urls.first().map_or(80, |url| url.port);
        let to = self.route.as_deref().map(|text| route(text, port)).transpose()?;
        let secure = urls.iter().any(|url| url.secure).then(|| self.secure()).transpose()?;
        let mut plan = LoadPlan::new(&urls, &self.shape()?, to.as_ref(), secure.as_ref())
            .map_err(PlanError::Resolve)?;
        plan.protocol = self.protocol();
        plan.connections = self.connections;
        plan.threads = self.threads.unwrap_or_else(default_threads);
        plan.requests = self.requests;
        plan.duration = self.duration.or(self.requests.is_none().then_some(DEFAULT_DURATION));
        plan.pace = match self.rate {
            None => Pace::Closed,
            Some(rate) if rate.is_finite() && rate > 0.0 => Pace::Open { rate },
            Some(_) => return Err(PlanError::Rate),
        };
        plan.pipeline = self.pipeline.clamp(1, 1024);
        plan.closing = match self.keepalive {
            None if self.close => Closing::Always,
            None | Some(0) => Closing::Never,
            Some(n) => Closing::OneIn(n),
        };
        if plan.pipeline > 1 && self.rate.is_some() {
            return Err(PlanError::PipelineRate);
        }
        if plan.protocol != Protocol::Http1 && plan.calls.iter().any(|call| call.head.is_none()) {
            return Err(PlanError::NoForm);
        }
        if self.http3 && plan.peers.iter().any(|peer| peer.tls.is_none() || peer.is_unix()) {
            return Err(PlanError::NoQuic);
        }
        plan.timeout = self.timeout;
        plan.connect_first = self.connect_first;
        plan.longest_datagram = self.datagrams;
        plan.samples = self.raw;
        Ok(plan)
    }

    fn protocol(&self) -> Protocol {
        let streams = self.streams.unwrap_or(1).clamp(1, 1024);
        match () {
            () if self.http3 => Protocol::Http3(streams),
            () if self.http2 => Protocol::Http2(streams),
            () => Protocol::Http1,
        }
    }

    fn secure(&self) -> Result<TlsTarget, PlanError> {
        let trust = CertificateTrust::of(self.cacert.as_deref(), self.insecure);
        TlsTarget::new(&trust, self.protocol(), self.resume).map_err(PlanError::Tls)
    }

    fn all_urls(&self) -> Result<Vec<Url>, PlanError> {
        let file = match &self.urls {
            None => String::new(),
            Some(path) => {
                std::fs::read_to_string(path).map_err(|e| PlanError::File(path.clone(), e))?
            }
        };
        let lines = file.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        let all = self.url.iter().map(String::as_str).chain(lines);
        let parse = |text: &str| Url::parse(text).map_err(|e| PlanError::Url(text.to_owned(), e));
        let urls: Vec<Url> = all.map(parse).collect::<Result<_, _>>()?;
        if urls.is_empty() { Err(PlanError::NoUrl) } else { Ok(urls) }
    }

    fn shape(&self) -> Result<RequestShape, PlanError> {
        let body = match (&self.body, &self.body_file) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(path)) => {
                std::fs::read(path).map_err(|e| PlanError::File(path.clone(), e))?
            }
            (None, None) => Vec::new(),
        };
        if let Some(odd) = self.headers.iter().find(|line| !is_header(line)) {
            return Err(PlanError::Header(odd.clone()));
        }
        let usual = if body.is_empty() { "GET" } else { "POST" };
        let method = self.method.as_deref().unwrap_or(usual).to_owned();
        if method.is_empty() || !method.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(PlanError::Method(method));
        }
        Ok(RequestShape { method, headers: self.headers.clone(), body })
    }
}

fn is_header(line: &str) -> bool {
    let name = line.split_once(':').map_or("", |(name, _)| name);
    !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_graphic())
        && !line.bytes().any(|b| b == b'\r' || b == b'\n')
}

fn route(text: &str, default_port: u16) -> Result<SocketAddrAny, PlanError> {
    let address = match text.strip_prefix("unix:") {
        Some(path) => {
            rustix::net::SocketAddrUnix::new(path).map(Into::into).map_err(io::Error::from)
        }
        None => {
            let (host, port) =
                host_and_port(text).map_err(|e| PlanError::Route(text.to_owned(), e))?;
            resolve(&host, port.unwrap_or(default_port))
        }
    };
    address.map_err(|e| PlanError::RouteAddress(text.to_owned(), e))
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(4))
}

/// Why a text is not a time.
#[derive(Debug)]
enum TimeError {
    /// Unknown unit.
    Unit,
    /// Not a number.
    Number,
    /// The number is negative or too large.
    Range(TryFromFloatSecsError),
    /// The time is zero.
    Zero,
}

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimeError::Unit => f.write_str("the unit may be: us, ms, s, m, h"),
            TimeError::Number => f.write_str("that is no time"),
            TimeError::Range(e) => e.fmt(f),
            TimeError::Zero => f.write_str("that is no time at all"),
        }
    }
}

impl std::error::Error for TimeError {}

/// Parses `10s`, `500ms`, `2m` or `1.5` (seconds).
fn time(text: &str) -> Result<Duration, TimeError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..).unwrap_or_default() {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(TimeError::Unit),
    };
    let number: f64 = digits.parse().map_err(|_| TimeError::Number)?;
    let time = Duration::try_from_secs_f64(number * unit).map_err(TimeError::Range)?;
    if time.is_zero() { Err(TimeError::Zero) } else { Ok(time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str) -> Result<LoadPlan, String> {
        let all = line.split_whitespace();
        let parsed = Options::try_parse_from(std::iter::once("bench").chain(all));
        parsed.map_err(|e| e.to_string())?.plan().map_err(|e| e.to_string())
    }

    #[test]
    fn the_published_command_line_is_read() {
        let plan = plan("-n 100000 -c 200 --close -r 127.0.0.1:8181 http://a.a/").unwrap();
        assert_eq!((plan.requests, plan.connections), (Some(100_000), 200));
        assert_eq!((plan.closing, plan.duration), (Closing::Always, None));
        let peer: std::net::SocketAddr = "127.0.0.1:8181".parse().unwrap();
        assert_eq!(plan.peers.len(), 1);
        assert_eq!(plan.peers[0].address, peer.into());
        let text = String::from_utf8(plan.calls[0].closing.to_vec()).unwrap();
        assert!(text.starts_with("GET / HTTP/1.1\r\nHost: a.a\r\n"), "{text}");
        assert!(text.ends_with("Connection: close\r\n\r\n"), "{text}");
    }

    #[test]
    fn connections_are_kept_by_default() {
        let closing = |line: &str| plan(&format!("{line} 127.0.0.1:1/")).unwrap().closing;
        assert_eq!(closing(""), Closing::Never);
        assert_eq!(closing("-k 0"), Closing::Never);
        assert_eq!(closing("-k 7"), Closing::OneIn(7));
        assert_eq!(closing("--close"), Closing::Always);
    }

    #[test]
    fn keep_alive_and_time() {
        let plan = plan("-k 3 --rate 10 -d 1.5m -t 2 127.0.0.1:1/").unwrap();
        assert_eq!(plan.closing, Closing::OneIn(3));
        assert_eq!(plan.pace, Pace::Open { rate: 10.0 });
        assert_eq!(plan.duration, Some(Duration::from_secs(90)));
        assert_eq!(plan.threads, 2);
    }

    #[test]
    fn bodies_are_posted() {
        let plan = plan("-b x=1 -H Host:y -r unix:/tmp/s a/").unwrap();
        let text = String::from_utf8(plan.calls[0].kept.to_vec()).unwrap();
        let want = "POST / HTTP/1.1\r\nUser-Agent: weir-bench\r\nHost:y\r\nContent-Length: 3\r\n\
                    \r\nx=1";
        assert_eq!(text, want);
    }

    #[test]
    fn http2_keeps_its_connections() {
        let plan =
            plan("--http2 -m 7 -H Connection:x -H A:1 -r 127.0.0.1:1 https://b.c/?d --insecure");
        let plan = plan.unwrap();
        assert_eq!((plan.protocol, plan.closing), (Protocol::Http2(7), Closing::Never));
        let head = plan.calls[0].head.as_ref().unwrap();
        assert_eq!(head.uri(), "https://b.c/?d");
        assert_eq!((&head.headers()["a"], head.headers().len()), (&"1".parse().unwrap(), 2));
    }

    #[test]
    fn a_name_and_its_scheme_make_a_peer() {
        let plan = plan("-r 127.0.0.1:1 --insecure https://a/1 https://b/ http://a/ https://a/2");
        let plan = plan.unwrap();
        assert_eq!(plan.calls.iter().map(|c| c.peer).collect::<Vec<_>>(), [0, 1, 2, 0]);
        assert_eq!(
            plan.peers.iter().map(|p| p.tls.is_some()).collect::<Vec<_>>(),
            [true, true, false]
        );
    }

    #[test]
    fn the_user_of_a_url_is_told_the_server() {
        let sent = |line: &str| {
            let plan = plan(&format!("{line} http://u:p@127.0.0.1/")).unwrap();
            let h2 = plan.calls[0].head.as_ref().unwrap().headers()["authorization"].clone();
            (String::from_utf8(plan.calls[0].kept.to_vec()).unwrap(), h2)
        };
        let (text, h2) = sent("");
        assert!(text.contains("\r\nAuthorization: Basic dTpw\r\n"), "{text}");
        assert_eq!(h2, "Basic dTpw");
        let (text, h2) = sent("-H authorization:x");
        assert!(text.contains("authorization:x\r\n") && !text.contains("Basic"), "{text}");
        assert_eq!(h2, "x");
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "",
            "-d 5y a/",
            "-n 0 127.0.0.1/",
            "-c 0 127.0.0.1/",
            "-t 0 127.0.0.1/",
            "--pipeline 0 127.0.0.1/",
            "--http2 -m 0 127.0.0.1/",
            "--rate 0 127.0.0.1/",
            "-H x 127.0.0.1/",
            "-m 2 127.0.0.1/",
            "--http2 --pipeline 2 127.0.0.1/",
            "--close -k 3 127.0.0.1/",
            "--close --pipeline 3 127.0.0.1/",
            "--cacert /no/such/file https://127.0.0.1/",
            "--cacert x --insecure https://127.0.0.1/",
            "--http2 -X A<B 127.0.0.1/",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
    }
}
