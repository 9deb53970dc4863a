//! Blocking requests to an ACME server. They run on threads that a retiring worker does not wait for.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LINK, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use crate::settings::Trust;
use crate::signer::Signer;
use crate::stop::{Stop, Stopped};

/// The deadline of a request with its answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The largest answer, in bytes. A chain of certificates has a few thousand.
const LARGEST: u64 = 1 << 20;
/// The waits before a request is repeated that the server may not have received.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// The most POST requests in a row without an answer. Each may have placed an order all the same.
const MOST_LOST: u32 = 3;

/// A connection to one ACME server.
#[derive(Debug, Clone)]
pub struct Transport(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    agent: Agent,
    stop: Arc<Stop>,
    /// Signs requests if the library cannot use the account's key.
    signer: Option<Arc<Signer>>,
    last: Mutex<LastAnswer>,
    /// POST requests without an answer since the last answer.
    lost: AtomicU32,
}

/// The parts of the last answer that the library does not pass on.
#[derive(Debug, Clone, Default)]
struct LastAnswer {
    status: Option<StatusCode>,
    retry_after: Option<Duration>,
    /// `Link: <URL>;rel="alternate"`
    alternates: Vec<String>,
    /// The body.
    body: Bytes,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum TransportError {
    /// The worker retires.
    Stopped,
    /// The connection failed for this reason.
    Failed(String),
    /// The answer is an HTTP error without an ACME problem document.
    Status(StatusCode),
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransportError::Stopped => f.write_str("the worker retires"),
            TransportError::Failed(text) => f.write_str(text),
            TransportError::Status(status) => write!(f, "the server answered {status}"),
        }
    }
}

impl std::error::Error for TransportError {}

impl From<Stopped> for TransportError {
    fn from(_: Stopped) -> Self {
        TransportError::Stopped
    }
}

impl Transport {
    /// A transport that verifies the server's certificate by `trust`.
    pub fn new(trust: &Trust, stop: Arc<Stop>, signer: Option<Arc<Signer>>) -> Transport {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(provider);
        let tls = match trust {
            Trust::Anyone => tls.disable_verification(true),
            Trust::Anchors(anchors) => {
                let anchors = anchors.iter().map(|der| Certificate::from_der(der).to_owned());
                tls.root_certs(RootCerts::Specific(Arc::new(anchors.collect())))
            }
        };
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .proxy(None)
            .build();
        let (last, lost) = (Mutex::default(), AtomicU32::new(0));
        Transport(Arc::new(Shared { agent: config.new_agent(), stop, signer, last, lost }))
    }

    /// The `Retry-After` of the last answer.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.last().retry_after
    }

    /// The URLs of the alternates of the last answer, a chain of certificates.
    pub fn alternates(&self) -> Vec<String> {
        self.0.last().alternates
    }

    /// The body of the last answer.
    pub fn body(&self) -> Bytes {
        self.0.last().body
    }

    /// The `Retry-After` of the last answer, if its status explains the failure of a request.
    pub fn refused_for(&self) -> Option<Duration> {
        let last = self.0.last();
        let refused = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
        last.retry_after.filter(|_| last.status.is_some_and(|status| refused.contains(&status)))
    }
}

impl HttpClient for Transport {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let Ok(mut body) = body.collect().await.map(Collected::to_bytes);
            if let Some(signer) = shared.signer.as_ref().filter(|_| parts.method == Method::POST) {
                body = signer.sign_again(&body).map(Bytes::from).ok_or(Error::Crypto)?;
            }
            let answer = shared.ask(&Request::from_parts(parts, body));
            let (parts, body) = answer.map_err(|why| Error::Other(Box::new(why)))?.into_parts();
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

impl Shared {
    /// Sends a request, more than once if the connection fails.
    fn ask(&self, request: &Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let mut waits = AGAIN.iter();
        let is_post = *request.method() == Method::POST;
        *self.lock() = LastAnswer::default();
        loop {
            let (agent, sent) = (self.agent.clone(), request.clone());
            let failed = match self.stop.run(move || exchange(&agent, sent))? {
                Some(Ok(answer)) => {
                    if is_post && answer.status().is_success() {
                        self.lost.store(0, Relaxed);
                    }
                    return self.note(answer);
                }
                Some(Err(error)) => error.to_string(),
                None => "no thread for the request".to_owned(),
            };
            let lost = if is_post { self.lost.fetch_add(1, Relaxed) + 1 } else { 0 };
            let wait = waits.next().filter(|_| lost < MOST_LOST);
            let Some(wait) = wait else { return Err(TransportError::Failed(failed)) };
            self.stop.wait(*wait)?;
        }
    }

    fn note(&self, answer: Response<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let status = answer.status();
        let retry_after = answer.headers().get(RETRY_AFTER).and_then(|value| {
            let text = value.to_str().ok()?.trim();
            text.parse().ok().map(Duration::from_secs).or_else(|| until_date(text))
        });
        let links = answer.headers().get_all(LINK).iter().filter_map(|link| link.to_str().ok());
        let alternates = links.flat_map(|link| link.split(',')).filter_map(alternate).collect();
        let body = answer.body().clone();
        *self.lock() = LastAnswer { status: Some(status), retry_after, alternates, body };
        let kind = answer.headers().get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
        let is_problem = kind.starts_with(b"application/problem+json");
        match status.is_success() || is_problem {
            true => Ok(answer),
            false => Err(TransportError::Status(status)),
        }
    }

    fn last(&self) -> LastAnswer {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LastAnswer> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The target of a link to an alternate representation (RFC 8288).
fn alternate(link: &str) -> Option<String> {
    let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
    let is_alternate = parameters.split(';').any(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or_default();
        name.trim().eq_ignore_ascii_case("rel") && value.trim().trim_matches('"') == "alternate"
    });
    is_alternate.then(|| target.to_owned())
}

/// `Retry-After` as a date.
fn until_date(text: &str) -> Option<Duration> {
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO))
}

fn exchange(agent: &Agent, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
    let bodiless = matches!(*request.method(), Method::GET | Method::HEAD);
    let (parts, body) = request.into_parts();
    let answer = match bodiless {
        true => agent.run(Request::from_parts(parts, ())),
        false => agent.run(Request::from_parts(parts, &body[..])),
    }?;
    let (parts, mut body) = answer.into_parts();
    let bytes = body.with_config().limit(LARGEST).read_to_vec()?;
    Ok(Response::from_parts(parts, bytes.into()))
}

/// The result of a future over a [`Transport`], which blocks and so never returns `Pending`.
pub fn finish<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(Error::Str("a request that waits for no server")),
    }
}
