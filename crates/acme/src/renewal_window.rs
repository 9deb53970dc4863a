//! The renewal window that the authority suggests for a certificate (RFC 9773). A thread of its own asks for it, so that no
//! order waits for the answer.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use instant_acme::{Account, AccountCredentials, CertificateIdentifier, Error};
use rustls::pki_types::CertificateDer;

use crate::client::{Failure, account_name};
use crate::policy::Interval;
use crate::settings::Issuer;
use crate::state::StateDirectory;
use crate::stop::Stop;
use crate::transport::{Transport, finish};

/// The bounds of the authority's `Retry-After`.
const SHORTEST: Duration = Duration::from_secs(3600);
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The suggested window and the time until the next request. `None` if the authority suggests none.
type WindowResult = Result<Option<(Interval, Duration)>, Failure>;

/// Identifies the certificate of a request.
#[derive(Debug, Clone)]
pub struct WindowRequest {
    id: String,
    der: Vec<u8>,
}

/// A request that is under way.
#[derive(Debug)]
pub struct PendingRequest {
    request: WindowRequest,
    window: Receiver<WindowResult>,
}

/// The result of a request.
#[derive(Debug)]
pub struct WindowAnswer {
    /// The certificate of the request.
    pub request: WindowRequest,
    /// The suggested window, if there is one. The error is the reason that it is not known.
    pub window: Result<Option<Interval>, String>,
    /// The time until the next request.
    pub next_request_in: Duration,
}

impl WindowRequest {
    /// Identifies this certificate, in DER, of the order with this id.
    pub fn new(id: &str, der: &[u8]) -> WindowRequest {
        WindowRequest { id: id.to_owned(), der: der.to_vec() }
    }

    /// Whether it identifies this certificate.
    pub fn is_of(&self, id: &str, der: &[u8]) -> bool {
        self.id == id && self.der == der
    }

    /// Sends the request on a new thread.
    pub fn send(
        self,
        issuer: &Arc<Issuer>,
        state: &StateDirectory,
        stop: &Arc<Stop>,
    ) -> PendingRequest {
        let (results, window) = channel();
        let (request, issuer) = (self.clone(), Arc::clone(issuer));
        let (state, stop) = (state.clone(), Arc::clone(stop));
        let builder = thread::Builder::new().name("weir: acme time".to_owned());
        // Without a thread the channel is closed at once.
        let _ = builder.spawn(move || {
            let window = request_window(&request.der, &issuer, &state, stop);
            // A send fails only if the keeper has ended.
            let _ = results.send(window);
        });
        PendingRequest { request: self, window }
    }
}

impl PendingRequest {
    /// The result, if there is one yet. A retiring worker gets none.
    pub fn answer(&self) -> Option<WindowAnswer> {
        let (window, next_request_in) = match self.window.try_recv() {
            Ok(Ok(Some((window, next_request_in)))) => {
                (Ok(Some(window)), next_request_in.clamp(SHORTEST, LONGEST))
            }
            Ok(Ok(None)) => (Ok(None), LONGEST),
            Ok(Err(Failure::Refused { why, .. })) => (Err(why), SHORTEST),
            Err(TryRecvError::Disconnected) => (Err("no thread asks".to_owned()), SHORTEST),
            Ok(Err(Failure::Stopped)) | Err(TryRecvError::Empty) => return None,
        };
        Some(WindowAnswer { request: self.request.clone(), window, next_request_in })
    }
}

/// Sends the request and waits for the answer. The requests need no signature.
fn request_window(
    der: &[u8],
    issuer: &Issuer,
    state: &StateDirectory,
    stop: Arc<Stop>,
) -> WindowResult {
    let Some(credentials) = state.account::<AccountCredentials>(&account_name(issuer)) else {
        return Ok(None);
    };
    let transport = Transport::new(&issuer.trust, stop, None);
    let account = Account::builder_with_http(Box::new(transport.clone()));
    let account = finish(account.from_credentials(credentials));
    let account = account.map_err(|e| Failure::of("the account", &e, &transport))?;
    let der = CertificateDer::from_slice(der);
    let Ok(id) = CertificateIdentifier::try_from(&der) else { return Ok(None) };
    match finish(account.renewal_info(&id)) {
        Ok((info, next_request_in)) => {
            let window = info.suggested_window;
            let (start, end) = (window.start.unix_timestamp(), window.end.unix_timestamp());
            Ok(Some((Interval { start, end }, next_request_in)))
        }
        Err(Error::Unsupported(_)) => Ok(None),
        Err(e) => Err(Failure::of("the time of renewal", &e, &transport)),
    }
}
