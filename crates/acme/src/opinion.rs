//! When the authority would renew a certificate (RFC 9773). A thread of its own asks, so that no order waits for the answer.

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

/// An authority that says when to ask again is obeyed within these bounds.
const SHORTEST: Duration = Duration::from_secs(3600);
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The suggested time, and in how long to ask again. None where the authority has no opinion.
type Opinion = Result<Option<(Interval, Duration)>, Failure>;

/// Which certificate the question is about.
#[derive(Debug, Clone)]
pub struct Question {
    id: String,
    der: Vec<u8>,
}

/// A question that is on its way.
#[derive(Debug)]
pub struct Asked {
    question: Question,
    opinion: Receiver<Opinion>,
}

/// What came of it.
#[derive(Debug)]
pub struct Answer {
    /// The question.
    pub question: Question,
    /// The suggested time, if there is one, or why it is not known.
    pub opinion: Result<Option<Interval>, String>,
    /// In how long to ask again.
    pub again: Duration,
}

impl Question {
    /// About this certificate of the order with this id.
    pub fn new(id: &str, der: &[u8]) -> Question {
        Question { id: id.to_owned(), der: der.to_vec() }
    }

    /// It is about this certificate.
    pub fn is_of(&self, id: &str, der: &[u8]) -> bool {
        self.id == id && self.der == der
    }

    /// Sends it.
    pub fn ask(self, issuer: &Arc<Issuer>, state: &StateDirectory, stop: &Arc<Stop>) -> Asked {
        let (answers, opinion) = channel();
        let (question, issuer) = (self.clone(), Arc::clone(issuer));
        let (state, stop) = (state.clone(), Arc::clone(stop));
        let asks = thread::Builder::new().name("weir: acme time".to_owned());
        // Without a thread the channel is closed at once.
        let _ = asks.spawn(move || {
            let opinion = opinion_on(&question.der, &issuer, &state, stop);
            // The keeper has ended otherwise.
            let _ = answers.send(opinion);
        });
        Asked { question: self, opinion }
    }
}

impl Asked {
    /// The answer, once there is one. There is none for a worker that retires.
    pub fn answer(&self) -> Option<Answer> {
        let (opinion, again) = match self.opinion.try_recv() {
            Ok(Ok(Some((window, again)))) => (Ok(Some(window)), again.clamp(SHORTEST, LONGEST)),
            Ok(Ok(None)) => (Ok(None), LONGEST),
            Ok(Err(Failure::Refused { why, .. })) => (Err(why), SHORTEST),
            Err(TryRecvError::Disconnected) => (Err("no thread asks".to_owned()), SHORTEST),
            Ok(Err(Failure::Stopped)) | Err(TryRecvError::Empty) => return None,
        };
        Some(Answer { question: self.question.clone(), opinion, again })
    }
}

/// Asks, and waits for the answer. Nothing that is asked here is signed.
fn opinion_on(der: &[u8], issuer: &Issuer, state: &StateDirectory, stop: Arc<Stop>) -> Opinion {
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
        Ok((info, again)) => {
            let window = info.suggested_window;
            let (start, end) = (window.start.unix_timestamp(), window.end.unix_timestamp());
            Ok(Some((Interval { start, end }, again)))
        }
        Err(Error::Unsupported(_)) => Ok(None),
        Err(e) => Err(Failure::of("the time of renewal", &e, &transport)),
    }
}
