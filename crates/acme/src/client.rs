//! One attempt to get a certificate, from wherever an earlier one was interrupted.
//!
//! Before each step that the authority remembers, what is needed to go on after it is on disk: the account's key, the
//! order's place, and the key of the certificate.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use instant_acme::{
    Account, AccountBuilder, AccountCredentials, AuthorizationStatus, CertificateIdentifier,
    ChallengeStatus, ChallengeType, Error, ExternalAccountKey, Identifier, Key, NewAccount,
    NewOrder, Order, OrderStatus,
};
use rcgen::{
    CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair, PublicKeyData,
    RsaKeySize,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::pem::Pem;

use crate::policy::{Interval, poll_after};
use crate::settings::{CertificateOrder, Challenge, Issuer, KeyKind, short_hash};
use crate::state::{PlacedOrder, StateDirectory, validity};
use crate::stop::Stop;
use crate::transport::{Transport, TransportError, finish};

/// An attempt takes no longer.
const LONGEST: Duration = Duration::from_secs(300);
/// A request whose nonce is refused is made again so often.
const NONCES: u32 = 8;

/// Why there is no certificate.
#[derive(Debug)]
pub enum Failure {
    /// The worker retires; another one goes on.
    Stopped,
    /// For this reason. `asked`: for how long the authority wants to be left alone.
    Refused {
        /// The reason.
        why: String,
        /// How long.
        asked: Option<Duration>,
    },
}

/// The conversation with one authority.
pub struct Client<'a> {
    issuer: &'a Issuer,
    state: &'a StateDirectory,
    stop: &'a Arc<Stop>,
    transport: Transport,
}

/// What an attempt does to an order that was placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// It is of no use any more.
    Drop,
    /// The next attempt goes on with it.
    Keep,
}

/// A step that failed, and what becomes of the order.
type StepResult<T> = Result<T, (Failure, Then)>;

impl<'a> Client<'a> {
    /// For the certificates of this issuer.
    pub fn new(issuer: &'a Issuer, state: &'a StateDirectory, stop: &'a Arc<Stop>) -> Client<'a> {
        let transport = Transport::new(&issuer.trust, Arc::clone(stop));
        Client { issuer, state, stop, transport }
    }

    /// Gets a certificate and keeps it. `replaces`: the one that it takes the place of, in DER.
    pub fn obtain(
        &self,
        wanted: &CertificateOrder,
        replaces: Option<&[u8]>,
    ) -> Result<(), Failure> {
        let account = self.account()?;
        let attempt = self.place(&account, wanted, replaces).and_then(|(mut order, key)| {
            let mut answered = BTreeMap::new();
            let chain = self.follow(&mut order, wanted, &key, &mut answered);
            for (token, name) in &answered {
                // It answers nothing that is asked again.
                let _ = self.state.forget(token, name);
            }
            let (chain, key) = (chain?, key.serialize_pem());
            let kept = self.state.keep_certificate(&wanted.id, &self.issuer.uri, &chain, &key);
            kept.map_err(|error| (self.no_write(&error), Then::Keep))
        });
        let (result, then) = match attempt {
            Ok(()) => (Ok(()), Then::Drop),
            Err((failure, then)) => (Err(failure), then),
        };
        if then == Then::Drop {
            let dropped = self.state.drop_order(&wanted.id);
            return result.and(dropped.map_err(|error| self.no_write(&error)));
        }
        result
    }

    /// When the authority suggests to renew a certificate, and in how long to ask again. None where it has no opinion.
    pub fn renewal(&self, der: &[u8]) -> Result<Option<(Interval, Duration)>, Failure> {
        let Some(credentials) = self.state.account(&self.account_name()) else { return Ok(None) };
        let account = finish(self.builder().from_credentials(credentials));
        let account = account.map_err(|e| self.refused("the account", &e))?;
        let der = CertificateDer::from_slice(der);
        let Ok(id) = CertificateIdentifier::try_from(&der) else { return Ok(None) };
        match finish(account.renewal_info(&id)) {
            Ok((info, again)) => {
                let window = info.suggested_window;
                let (start, end) = (window.start.unix_timestamp(), window.end.unix_timestamp());
                Ok(Some((Interval { start, end }, again)))
            }
            Err(Error::Unsupported(_)) => Ok(None),
            Err(e) => Err(self.refused("the time of renewal", &e)),
        }
    }

    fn builder(&self) -> AccountBuilder {
        Account::builder_with_http(Box::new(self.transport.clone()))
    }

    /// Accounts differ by the authority and by the key that the configuration names.
    fn account_name(&self) -> String {
        let key = self.issuer.account_key.as_ref().map_or(&b""[..], |key| &key.pkcs8);
        short_hash(&[self.issuer.uri.as_bytes(), b"\n", key].concat())
    }

    /// The account, which is created if there is none.
    fn account(&self) -> Result<Account, Failure> {
        let name = self.account_name();
        if let Some(credentials) = self.state.account::<AccountCredentials>(&name) {
            let account = finish(self.builder().from_credentials(credentials));
            return account.map_err(|e| self.refused("the directory", &e));
        }
        let uri = self.issuer.uri.clone();
        let contacts: Vec<&str> = self.issuer.contacts.iter().map(String::as_str).collect();
        let created = match &self.issuer.account_key {
            None => {
                let new = NewAccount {
                    contact: &contacts,
                    terms_of_service_agreed: self.issuer.accepts_terms,
                    only_return_existing: false,
                };
                let external = self.issuer.external.as_ref();
                let external = external
                    .map(|external| ExternalAccountKey::new(external.kid.clone(), &external.key));
                self.again(|| finish(self.builder().create(&new, uri.clone(), external.as_ref())))
            }
            Some(own) => {
                let pkcs8 = || PrivatePkcs8KeyDer::from(own.pkcs8.clone());
                self.again(|| {
                    let key = Key::from_pkcs8_der(pkcs8())?;
                    let key = (key, PrivateKeyDer::Pkcs8(pkcs8()));
                    let (account, credentials) =
                        finish(self.builder().create_from_key(key, uri.clone()))?;
                    if !contacts.is_empty() {
                        finish(account.update_contacts(&contacts))?;
                    }
                    Ok((account, credentials))
                })
            }
        };
        let (account, credentials) = created.map_err(|e| self.refused("the account", &e))?;
        let kept = self.state.keep_account(&name, &credentials);
        kept.map_err(|error| self.no_write(&error))?;
        Ok(account)
    }

    /// The order that was placed before, if it is still good for something, or a new one.
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
        {
            match self.again(|| finish(account.order(placed.url.clone()))) {
                Ok(mut order) => {
                    if order.state().status != OrderStatus::Invalid {
                        return Ok((order, key));
                    }
                }
                Err(Error::Api(_)) => {}
                Err(e) => return Err((self.refused("the order", &e), Then::Keep)),
            }
        }
        let key = generate(wanted.key);
        let key = key.map_err(|e| (self.failed(format!("no key: {e}")), Then::Drop))?;
        let order = self.new_order(account, wanted, replaces);
        let order = order.map_err(|e| {
            if is_problem(&e, "accountDoesNotExist") {
                // The next attempt creates another one.
                let _ = self.state.drop_account(&self.account_name());
            }
            (self.refused("the order", &e), Then::Drop)
        })?;
        let placed = PlacedOrder {
            uri: self.issuer.uri.clone(),
            account: account.id().to_owned(),
            url: order.url().to_owned(),
            key: key.serialize_pem(),
        };
        let kept = self.state.keep_order(&wanted.id, &placed);
        kept.map_err(|error| (self.no_write(&error), Then::Keep))?;
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
            // A server that does not take the hint takes the order without it.
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

    /// Does what the order's state asks for, until there is a certificate.
    fn follow(
        &self,
        order: &mut Order,
        wanted: &CertificateOrder,
        key: &KeyPair,
        answered: &mut BTreeMap<String, String>,
    ) -> StepResult<String> {
        let (until, mut polls) = (Instant::now() + LONGEST, 0);
        loop {
            match order.state().status {
                OrderStatus::Pending => self.prove(order, answered)?,
                OrderStatus::Processing => {}
                OrderStatus::Ready => {
                    let csr = self.request(wanted, key).map_err(|why| (why, Then::Drop))?;
                    let sent = self.again(|| finish(order.finalize_csr(&csr)));
                    sent.map_err(|e| self.step("the request", &e))?;
                    if order.state().status == OrderStatus::Ready {
                        let why = "the server took the request and forgot it".to_owned();
                        return Err((self.failed(why), Then::Drop));
                    }
                }
                OrderStatus::Valid => {
                    let chain = self.again(|| finish(order.certificate()));
                    let chain = chain.map_err(|e| self.step("the certificate", &e))?;
                    let chain = chain.unwrap_or_default();
                    return match check(&chain, key) {
                        Ok(()) => Ok(chain),
                        Err(why) => Err((self.failed(why.to_owned()), Then::Drop)),
                    };
                }
                OrderStatus::Invalid => return Err((self.why(order), Then::Drop)),
            }
            if matches!(order.state().status, OrderStatus::Pending | OrderStatus::Processing) {
                if Instant::now() > until {
                    let why = "the server has not decided within five minutes".to_owned();
                    return Err((self.failed(why), Then::Keep));
                }
                let wait = poll_after(polls, self.transport.retry_after());
                self.stop.wait(wait).map_err(|_| (Failure::Stopped, Then::Keep))?;
                polls += 1;
                let told = self.again(|| finish(async { order.refresh().await.map(|_| ()) }));
                told.map_err(|e| self.step("the order", &e))?;
            }
        }
    }

    /// Answers the challenges that were not answered yet.
    fn prove(&self, order: &mut Order, answered: &mut BTreeMap<String, String>) -> StepResult<()> {
        let mut failure = None;
        let walked = self.again(|| {
            finish(async {
                let mut authorizations = order.authorizations();
                while let Some(authorization) = authorizations.next().await {
                    let mut authorization = authorization?;
                    if authorization.status != AuthorizationStatus::Pending {
                        continue;
                    }
                    let name = authorization.identifier().to_string();
                    let (kind, shown) = match self.issuer.challenge {
                        Challenge::Http => (ChallengeType::Http01, "http-01"),
                        Challenge::TlsAlpn => (ChallengeType::TlsAlpn01, "tls-alpn-01"),
                    };
                    let Some(mut challenge) = authorization.challenge(kind) else {
                        let why = format!("the server offers no {shown} for \"{name}\"");
                        failure = Some((self.failed(why), Then::Drop));
                        return Ok(());
                    };
                    let token = challenge.token.clone();
                    if challenge.status != ChallengeStatus::Pending || answered.contains_key(&token)
                    {
                        continue;
                    }
                    let answer = challenge.key_authorization();
                    let written = match self.issuer.challenge {
                        Challenge::Http => self.state.answer(&token, answer.as_str()),
                        Challenge::TlsAlpn => proof(&name, answer.digest().as_ref())
                            .and_then(|pem| self.state.answer_over_tls(&name, &pem)),
                    };
                    if let Err(error) = written {
                        failure = Some((self.no_write(&error), Then::Keep));
                        return Ok(());
                    }
                    challenge.set_ready().await?;
                    answered.insert(token, name);
                }
                Ok(())
            })
        });
        match (failure, walked) {
            (Some(failure), _) => Err(failure),
            (None, walked) => walked.map_err(|e| self.step("a challenge", &e)),
        }
    }

    /// Why an order is invalid, as far as the authority says.
    fn why(&self, order: &mut Order) -> Failure {
        let mut reasons = Vec::new();
        let looked = finish(async {
            let mut authorizations = order.authorizations();
            while let Some(authorization) = authorizations.next().await {
                let mut authorization = authorization?;
                let state = authorization.refresh().await?;
                let name = state.identifier().to_string();
                let problems = state.challenges.iter().filter_map(|c| c.error.as_ref());
                for problem in problems {
                    let reason = format!("\"{name}\": {}", said(problem));
                    if !reasons.contains(&reason) {
                        reasons.push(reason);
                    }
                }
            }
            Ok(())
        });
        if let Err(e) = looked
            && let Failure::Stopped = self.refused("", &e)
        {
            return Failure::Stopped;
        }
        // An order mostly repeats what is wrong with a challenge.
        if let Some(problem) = order.state().error.as_ref().filter(|_| reasons.is_empty()) {
            reasons.push(said(problem));
        }
        match reasons.is_empty() {
            true => self.failed("the server rejected the order and gave no reason".to_owned()),
            false => self.failed(reasons.join("; ")),
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

    /// Makes a request again whose nonce was refused.
    fn again<T>(&self, mut ask: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        for _ in 0..NONCES {
            match ask() {
                Err(e) if is_problem(&e, "badNonce") => {}
                other => return other,
            }
        }
        ask()
    }

    /// A step has failed: what the authority says of the order is final, a connection may come back.
    fn step(&self, what: &str, error: &Error) -> (Failure, Then) {
        let is_final = matches!(error, Error::Api(problem) if !is_named(problem, "rateLimited"));
        (self.refused(what, error), if is_final { Then::Drop } else { Then::Keep })
    }

    fn refused(&self, what: &str, error: &Error) -> Failure {
        if let Error::Other(other) = error
            && matches!(other.downcast_ref(), Some(TransportError::Stopped))
        {
            return Failure::Stopped;
        }
        let why = match error {
            Error::Api(problem) => said(problem),
            other => other.to_string(),
        };
        Failure::Refused { why: format!("{what}: {why}"), asked: self.transport.refused_for() }
    }

    fn failed(&self, why: String) -> Failure {
        Failure::Refused { why, asked: None }
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

/// The certificate with its key that proves a name over TLS.
fn proof(name: &str, digest: &[u8]) -> io::Result<String> {
    let made = CertificateParams::new(vec![name.to_owned()]).and_then(|mut params| {
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let key = generate(KeyKind::P256)?;
        Ok(params.self_signed(&key)?.pem() + &key.serialize_pem())
    });
    made.map_err(io::Error::other)
}

/// Whether a chain can be used with this key.
fn check(chain: &str, key: &KeyPair) -> Result<(), &'static str> {
    let first = Pem::iter_from_buffer(chain.as_bytes()).next().and_then(Result::ok);
    let first = first.filter(|section| section.label == "CERTIFICATE");
    let first = first.ok_or("the server sent no certificate")?;
    let parsed = x509_parser::parse_x509_certificate(&first.contents);
    let (_, certificate) =
        parsed.map_err(|_| "the server sent a certificate that cannot be read")?;
    if certificate.public_key().raw != key.subject_public_key_info() {
        return Err("the server sent a certificate of another key");
    }
    validity(&first.contents).map(|_| ()).ok_or("the server sent a certificate without a time")
}

/// What a problem says, in one line.
fn said(problem: &instant_acme::Problem) -> String {
    let kind = problem.r#type.as_deref().unwrap_or("a problem without a type");
    let kind = kind.rsplit(':').next().unwrap_or(kind);
    let detail = problem.detail.as_deref().unwrap_or("no detail");
    let mut text = format!("{detail} ({kind})");
    for part in &problem.subproblems {
        text.push_str(&format!(", {part}"));
    }
    text.replace(|c: char| c.is_control(), " ")
}

fn is_named(problem: &instant_acme::Problem, name: &str) -> bool {
    let kind = problem.r#type.as_deref().and_then(|kind| kind.rsplit(':').next());
    kind == Some(name)
}

fn is_problem(error: &Error, name: &str) -> bool {
    matches!(error, Error::Api(problem) if is_named(problem, name))
}
