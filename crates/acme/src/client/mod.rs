//! One attempt to get a certificate. It goes on where an earlier one was interrupted.
//!
//! Before each step that changes state at the authority, the state that a later attempt needs is written to disk: the
//! account's key, the order's URL, and the certificate's key.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use instant_acme::{
    Account, AccountBuilder, AccountCredentials, CertificateIdentifier, Error, ExternalAccountKey,
    Identifier, NewAccount, NewOrder, Order, OrderStatus,
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, RsaKeySize};
use rustls::pki_types::CertificateDer;
use weir_log::Log;

use crate::policy::poll_after;
use crate::settings::{AccountKey, CertificateOrder, Issuer, KeyKind, short_hash};
use crate::signer::Signer;
use crate::state::{PlacedOrder, StateDirectory, is_of};
use crate::stop::Stop;
use crate::transport::{Transport, TransportError, finish};

mod chain;
mod prove;

use chain::check;
use prove::{Answers, is_named, is_problem, said};

/// The deadline of an attempt, without the time for DNS.
const LONGEST: Duration = Duration::from_secs(300);
/// How often a request is repeated that was refused because of its nonce (RFC 8555, section 6.5).
const NONCES: u32 = 8;

/// Why there is no certificate.
#[derive(Debug)]
pub enum Failure {
    /// The worker retires. Another worker goes on.
    Stopped,
    /// The authority refused, or could not be reached.
    Refused {
        /// The reason.
        why: String,
        /// The `Retry-After` of the authority.
        asked: Option<Duration>,
        /// The reason concerns all certificates of the issuer.
        of_all: bool,
    },
}

impl Failure {
    /// The failure of the transport's last request, which was for `what`.
    pub fn of(what: &str, error: &Error, transport: &Transport) -> Failure {
        if let Error::Other(other) = error
            && matches!(other.downcast_ref(), Some(TransportError::Stopped))
        {
            return Failure::Stopped;
        }
        let why = match error {
            Error::Api(problem) => said(problem),
            other => other.to_string(),
        };
        let asked = transport.refused_for();
        Failure::Refused { why: format!("{what}: {why}"), asked, of_all: false }
    }

    /// The same failure, for a reason that concerns all certificates of the issuer.
    fn of_all(self) -> Failure {
        match self {
            Failure::Refused { why, asked, .. } => Failure::Refused { why, asked, of_all: true },
            Failure::Stopped => Failure::Stopped,
        }
    }
}

/// The client of one authority.
pub struct Client<'a> {
    issuer: &'a Issuer,
    state: &'a StateDirectory,
    stop: &'a Arc<Stop>,
    log: &'a Log,
    transport: Transport,
    /// Signs requests if the library cannot use the account's key.
    signer: Option<Arc<Signer>>,
}

/// What happens to an order when a step has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OrderAfterFailure {
    /// It is dropped, since it can never be completed.
    Drop,
    /// The next attempt resumes it.
    Keep,
}

/// The result of a step. An error says what happens to the order.
type StepResult<T> = Result<T, (Failure, OrderAfterFailure)>;

impl<'a> Client<'a> {
    /// A client for this issuer.
    ///
    /// # Errors
    ///
    /// The account's key cannot be read or made.
    pub fn new(
        issuer: &'a Issuer,
        state: &'a StateDirectory,
        stop: &'a Arc<Stop>,
        log: &'a Log,
    ) -> Result<Client<'a>, Failure> {
        let signer = signer(issuer, state)?.map(Arc::new);
        let transport = Transport::new(&issuer.trust, Arc::clone(stop), signer.clone());
        Ok(Client { issuer, state, stop, log, transport, signer })
    }

    /// Gets a certificate and stores it. `replaces` is the certificate to be renewed, in DER (RFC 9773, section 5).
    pub fn obtain(
        &self,
        wanted: &CertificateOrder,
        replaces: Option<&[u8]>,
    ) -> Result<(), Failure> {
        let account = self.account().map_err(Failure::of_all)?;
        self.sweep()?;
        let mut answers = Answers::default();
        let attempt = self.place(&account, wanted, replaces).and_then(|(mut order, key)| {
            let chain = self.follow((&account, &mut order), wanted, &key, &mut answers)?;
            let key = key.serialize_pem();
            let kept = self.state.keep_certificate(&wanted.id, &self.issuer.uri, &chain, &key);
            kept.map_err(|error| (self.no_write(&error), OrderAfterFailure::Keep))
        });
        let (result, then) = match attempt {
            Ok(()) => (Ok(()), OrderAfterFailure::Drop),
            Err((failure, then)) => (Err(failure), then),
        };
        let dropped = match then {
            OrderAfterFailure::Drop => self.state.drop_order(&wanted.id),
            OrderAfterFailure::Keep => Ok(()),
        };
        if !matches!(result, Err(Failure::Stopped)) {
            self.withdraw(&answers);
        }
        result.and(dropped.map_err(|error| self.no_write(&error)))
    }

    fn builder(&self) -> AccountBuilder {
        Account::builder_with_http(Box::new(self.transport.clone()))
    }

    /// Loads the account, or creates it at the authority.
    fn account(&self) -> Result<Account, Failure> {
        let name = account_name(self.issuer);
        if let Some(credentials) = self.state.account::<AccountCredentials>(&name) {
            let account = finish(self.builder().from_credentials(credentials));
            return account.map_err(|e| self.refused("the directory", &e));
        }
        let uri = self.issuer.uri.clone();
        let contacts: Vec<&str> = self.issuer.contacts.iter().map(String::as_str).collect();
        let new = NewAccount {
            contact: &contacts,
            terms_of_service_agreed: self.issuer.accepts_terms,
            only_return_existing: false,
        };
        let external = self.issuer.external.as_ref();
        let external =
            external.map(|external| ExternalAccountKey::new(external.kid.clone(), &external.key));
        let created =
            self.again(|| finish(self.builder().create(&new, uri.clone(), external.as_ref())));
        let (account, credentials) = created.map_err(|e| self.refused("the account", &e))?;
        let kept = self.state.keep_account(&name, &credentials);
        kept.map_err(|error| self.no_write(&error))?;
        Ok(account)
    }

    /// Resumes the stored order if it can still be completed. Otherwise places a new one.
    fn place(
        &self,
        account: &Account,
        wanted: &CertificateOrder,
        replaces: Option<&[u8]>,
    ) -> StepResult<(Order, KeyPair)> {
        let placed = self.state.order(&wanted.id);
        let placed = placed.filter(|o| o.uri == self.issuer.uri && o.account == account.id());
        if let Some(placed) = placed
            && let Ok(key) = KeyPair::from_pem(&placed.key)
            // A worker that ended between two writes left the finished order of the certificate that is to be renewed.
            && !replaces.is_some_and(|der| is_of(der, &key))
        {
            match self.again(|| finish(account.order(placed.url.clone()))) {
                Ok(mut order) => {
                    if order.state().status != OrderStatus::Invalid {
                        return Ok((order, key));
                    }
                }
                Err(Error::Api(_)) => {}
                Err(e) => return Err((self.refused("the order", &e), OrderAfterFailure::Keep)),
            }
        }
        let key = generate(wanted.key);
        let key =
            key.map_err(|e| (self.failed(format!("no key: {e}")), OrderAfterFailure::Drop))?;
        let order = self.new_order(account, wanted, replaces);
        let order = order.map_err(|e| {
            if is_problem(&e, "accountDoesNotExist") {
                // The next attempt creates another one.
                let _ = self.state.drop_account(&account_name(self.issuer));
            }
            (self.refused("the order", &e), OrderAfterFailure::Drop)
        })?;
        let placed = PlacedOrder {
            uri: self.issuer.uri.clone(),
            account: account.id().to_owned(),
            url: order.url().to_owned(),
            key: key.serialize_pem(),
        };
        let kept = self.state.keep_order(&wanted.id, &placed);
        kept.map_err(|error| (self.no_write(&error), OrderAfterFailure::Keep))?;
        Ok((order, key))
    }

    fn new_order(
        &self,
        account: &Account,
        wanted: &CertificateOrder,
        replaces: Option<&[u8]>,
    ) -> Result<Order, Error> {
        let identifiers: Vec<Identifier> =
            wanted.identifiers.iter().map(String::as_str).map(identifier).collect();
        let profile = self.issuer.profile.as_ref().filter(|profile| {
            profile.required || account.profiles().any(|known| known.name == profile.name)
        });
        let order = || {
            let order = NewOrder::new(&identifiers);
            match profile {
                Some(profile) => order.profile(&profile.name),
                None => order,
            }
        };
        let replaced = replaces.map(CertificateDer::from_slice);
        let replaced = replaced.as_ref().and_then(|der| CertificateIdentifier::try_from(der).ok());
        if let Some(replaced) = replaced {
            // A server that refuses an order with `replaces` takes the order without it.
            let hinted =
                self.again(|| finish(account.new_order(&order().replaces(replaced.clone()))));
            match hinted {
                Err(Error::Unsupported(_) | Error::Other(_)) => {}
                Err(Error::Api(e)) if !is_named(&e, "rateLimited") => {}
                other => return other,
            }
        }
        self.again(|| finish(account.new_order(&order())))
    }

    /// Takes the steps that the order's status asks for, until the certificate is issued.
    fn follow(
        &self,
        (account, order): (&Account, &mut Order),
        wanted: &CertificateOrder,
        key: &KeyPair,
        answers: &mut Answers,
    ) -> StepResult<String> {
        let (mut until, mut polls) = (Instant::now() + LONGEST, 0);
        loop {
            match order.state().status {
                OrderStatus::Pending if !answers.is_complete => {
                    self.prove(order, account.id(), answers)?;
                    until = Instant::now() + LONGEST;
                }
                OrderStatus::Pending | OrderStatus::Processing => {}
                OrderStatus::Ready => {
                    let csr =
                        self.request(wanted, key).map_err(|why| (why, OrderAfterFailure::Drop))?;
                    let sent = self.again(|| finish(order.finalize_csr(&csr)));
                    sent.map_err(|e| self.step("the request", &e))?;
                    if order.state().status == OrderStatus::Ready {
                        let why = "the server took the request and forgot it".to_owned();
                        return Err((self.failed(why), OrderAfterFailure::Drop));
                    }
                }
                OrderStatus::Valid => {
                    let chain = self.again(|| finish(order.certificate()));
                    let chain = chain.map_err(|e| self.step("the certificate", &e))?;
                    let chain = self.preferred(account, chain.unwrap_or_default());
                    let chain = chain.map_err(|why| (why, OrderAfterFailure::Keep))?;
                    return match check(&chain, key) {
                        Ok(()) => Ok(chain),
                        Err(why) => Err((self.failed(why.to_owned()), OrderAfterFailure::Drop)),
                    };
                }
                OrderStatus::Invalid => return Err((self.why(order), OrderAfterFailure::Drop)),
            }
            if matches!(order.state().status, OrderStatus::Pending | OrderStatus::Processing) {
                if Instant::now() > until {
                    let why = "the server has not decided within five minutes".to_owned();
                    return Err((self.failed(why), OrderAfterFailure::Keep));
                }
                let wait = poll_after(polls, self.transport.retry_after());
                self.stop.wait(wait).map_err(|_| (Failure::Stopped, OrderAfterFailure::Keep))?;
                polls += 1;
                let told = self.again(|| finish(async { order.refresh().await.map(|_| ()) }));
                told.map_err(|e| self.step("the order", &e))?;
            }
        }
    }

    /// The certificate signing request.
    fn request(&self, wanted: &CertificateOrder, key: &KeyPair) -> Result<Vec<u8>, Failure> {
        let made = CertificateParams::new(wanted.identifiers.clone()).and_then(|mut params| {
            params.distinguished_name = DistinguishedName::new();
            if let Some(first) = wanted.identifiers.first().filter(|_| self.issuer.common_name) {
                params.distinguished_name.push(DnType::CommonName, first.as_str());
            }
            params.serialize_request(key)
        });
        match made {
            Ok(request) => Ok(request.der().to_vec()),
            Err(e) => Err(self.failed(format!("no certificate request: {e}"))),
        }
    }

    /// Makes a request, and repeats it if its nonce was refused.
    fn again<T>(&self, mut ask: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        for _ in 0..NONCES {
            match ask() {
                Err(e) if is_problem(&e, "badNonce") => {}
                other => return other,
            }
        }
        ask()
    }

    /// The failure of a step. The order is dropped if the authority refused it for good, and kept otherwise.
    fn step(&self, what: &str, error: &Error) -> (Failure, OrderAfterFailure) {
        let is_final = matches!(error, Error::Api(problem) if !is_named(problem, "rateLimited"));
        (
            self.refused(what, error),
            if is_final { OrderAfterFailure::Drop } else { OrderAfterFailure::Keep },
        )
    }

    fn refused(&self, what: &str, error: &Error) -> Failure {
        Failure::of(what, error, &self.transport)
    }

    fn failed(&self, why: String) -> Failure {
        Failure::Refused { why, asked: None, of_all: false }
    }

    fn no_write(&self, error: &io::Error) -> Failure {
        let directory = self.state.path().display();
        self.failed(format!("cannot write in the state_path \"{directory}\": {error}"))
    }
}

impl fmt::Debug for Client<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("issuer", &self.issuer.name).finish_non_exhaustive()
    }
}

fn identifier(text: &str) -> Identifier {
    text.parse().map_or_else(|_| Identifier::Dns(text.to_owned()), Identifier::Ip)
}

fn generate(kind: KeyKind) -> Result<KeyPair, rcgen::Error> {
    match kind {
        KeyKind::P256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
        KeyKind::P384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
        KeyKind::P521 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512),
        KeyKind::Rsa2048 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048),
        KeyKind::Rsa3072 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_3072),
        KeyKind::Rsa4096 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_4096),
    }
}

/// The name under which the account is stored: a hash of the authority's URL and of the configured key.
pub fn account_name(issuer: &Issuer) -> String {
    let key = match &issuer.account_key {
        AccountKey::Generated(KeyKind::P256) => Vec::new(),
        AccountKey::Generated(kind) => format!("{kind:?}").into_bytes(),
        AccountKey::File { pkcs8, .. } => pkcs8.clone(),
    };
    short_hash(&[issuer.uri.as_bytes(), b"\n", &key].concat())
}

/// The signer of an account whose key the library cannot use.
fn signer(issuer: &Issuer, state: &StateDirectory) -> Result<Option<Signer>, Failure> {
    let refused = |why: String| {
        let why = format!("the account's key: {why}");
        Failure::Refused { why, asked: None, of_all: true }
    };
    let external = issuer.external.as_ref().map(|external| &external.key[..]);
    let of = |pkcs8: &[u8]| Signer::new(pkcs8, external);
    let kind = match &issuer.account_key {
        AccountKey::Generated(KeyKind::P256) => return Ok(None),
        AccountKey::File { pkcs8, .. } => {
            return of(pkcs8).map(Some).ok_or_else(|| refused("it cannot be used".to_owned()));
        }
        AccountKey::Generated(kind) => *kind,
    };
    let name = account_name(issuer);
    let kept = state.account_key(&name).and_then(|pem| KeyPair::from_pem(&pem).ok());
    if let Some(signer) = kept.and_then(|pair| of(&pair.serialize_der())) {
        return Ok(Some(signer));
    }
    let made = generate(kind).map_err(|e| refused(e.to_string()))?;
    let written = state.keep_account_key(&name, &made.serialize_pem());
    // The key is new, so a stored account belongs to another key.
    let written = written.and_then(|()| state.drop_account(&name));
    written.map_err(|e| refused(e.to_string()))?;
    of(&made.serialize_der()).map(Some).ok_or_else(|| refused("it cannot be used".to_owned()))
}
