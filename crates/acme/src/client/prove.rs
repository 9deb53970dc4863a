//! Challenges: proving the names of an order.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use aws_lc_rs::digest::{SHA256, digest};
use instant_acme::{
    AuthorizationStatus, ChallengeStatus, ChallengeType, Error, Identifier, KeyAuthorization, Order,
};
use rcgen::{CertificateParams, CustomExtension};
use serde_json::Value;
use weir_log::log;
use weir_proto::base64::{self, Alphabet};

use super::{Client, Failure, OrderAfterFailure, StepResult, generate};
use crate::dns::{self, Change, DnsFailure, Persistent, TxtRecord};
use crate::settings::{Challenge, KeyKind};
use crate::transport::finish;

/// The responses that an attempt has put in place, and the challenges that it has told the authority to validate.
#[derive(Debug, Default)]
pub struct Answers {
    /// Tokens, each with the name that it proves.
    placed: Vec<(String, String)>,
    records: Vec<TxtRecord>,
    /// Names whose challenges the authority was told to validate.
    told: BTreeSet<String>,
    /// All challenges have their responses.
    pub is_complete: bool,
}

/// A name whose authorization is pending.
struct Unproved {
    /// The name, without `*.`.
    name: String,
    is_wildcard: bool,
    token: String,
    answer: String,
    /// The issuer domain names of the authority, for `dns-persist-01`.
    issuers: Vec<String>,
}

impl Client<'_> {
    /// Puts the responses in place and tells the authority to validate them.
    pub(super) fn prove(
        &self,
        order: &mut Order,
        account: &str,
        answers: &mut Answers,
    ) -> StepResult<()> {
        let unproved = self.unproved(order)?;
        match self.issuer.challenge {
            Challenge::Http | Challenge::TlsAlpn => self.place_answers(&unproved, answers)?,
            Challenge::Dns => self.publish(&unproved, answers)?,
            Challenge::DnsPersist => self.check_persistent(&unproved, account)?,
        }
        let told = self.again(|| {
            finish(async {
                let mut authorizations = order.authorizations();
                while let Some(authorization) = authorizations.next().await {
                    let mut authorization = authorization?;
                    let shown = authorization.identifier().to_string();
                    if authorization.status != AuthorizationStatus::Pending
                        || answers.told.contains(&shown)
                    {
                        continue;
                    }
                    let challenge = authorization.challenge(self.kind());
                    let pending = challenge.filter(|c| c.status == ChallengeStatus::Pending);
                    if let Some(mut challenge) = pending {
                        challenge.set_ready().await?;
                        answers.told.insert(shown);
                    }
                }
                Ok(())
            })
        });
        told.map_err(|e| self.step("a challenge", &e))?;
        answers.is_complete = true;
        Ok(())
    }

    /// Removes the responses.
    pub(super) fn withdraw(&self, answers: &Answers) {
        for (token, name) in &answers.placed {
            let _ = self.state.forget(token, name);
        }
        for record in &answers.records {
            if self.remove(record).is_err() {
                // The next worker does it.
                return;
            }
        }
    }

    /// Removes records that an earlier process has left.
    pub fn sweep(&self) -> Result<(), Failure> {
        let left = self.state.records();
        left.iter().try_for_each(|record| self.remove(record))
    }

    fn remove(&self, record: &TxtRecord) -> Result<(), Failure> {
        let removed = match &self.issuer.dns.publisher {
            Some(publisher) => publisher.change(Change::Remove, record, self.stop),
            None => Ok(()),
        };
        match removed {
            Err(DnsFailure::Stopped) => Err(Failure::Stopped),
            Err(DnsFailure::Failed(why)) => {
                let (name, record) = (&self.issuer.name, &record.name);
                log!(
                    self.log,
                    Warn,
                    None,
                    "acme issuer \"{name}\": the TXT record \"{record}\" is not removed: {why}"
                );
                Ok(())
            }
            Ok(()) => {
                let _ = self.state.drop_record(record);
                Ok(())
            }
        }
    }

    fn kind(&self) -> ChallengeType {
        match self.issuer.challenge {
            Challenge::Http => ChallengeType::Http01,
            Challenge::TlsAlpn => ChallengeType::TlsAlpn01,
            Challenge::Dns => ChallengeType::Dns01,
            Challenge::DnsPersist => {
                ChallengeType::Unknown(Challenge::DnsPersist.name().to_owned())
            }
        }
    }

    /// The names whose authorizations are pending.
    fn unproved(&self, order: &mut Order) -> StepResult<Vec<Unproved>> {
        let (mut found, mut missing) = (Vec::new(), None);
        // If the walk is repeated because of a nonce, authorizations that were already read are not read again.
        let mut all_issuers: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let walked = self.again(|| {
            found.clear();
            finish(async {
                let mut authorizations = order.authorizations();
                while let Some(authorization) = authorizations.next().await {
                    let mut authorization = authorization?;
                    if authorization.status != AuthorizationStatus::Pending {
                        continue;
                    }
                    let shown = authorization.identifier().to_string();
                    let name = match authorization.identifier().identifier {
                        Identifier::Dns(name) => name.clone(),
                        _ => shown.clone(),
                    };
                    let is_wildcard = authorization.identifier().wildcard;
                    let issuers = issuer_names(&self.transport.body(), &name);
                    let known = all_issuers.entry(shown.clone()).or_default();
                    if known.is_empty() {
                        *known = issuers;
                    }
                    let issuers = known.clone();
                    let Some(challenge) = authorization.challenge(self.kind()) else {
                        missing = Some(shown);
                        return Ok(());
                    };
                    let token = challenge.token.clone();
                    let answer = self.answer(&token, &challenge.key_authorization());
                    found.push(Unproved { name, is_wildcard, token, answer, issuers });
                }
                Ok(())
            })
        });
        walked.map_err(|e| self.step("a challenge", &e))?;
        match missing {
            None => Ok(found),
            Some(name) => {
                let kind = self.issuer.challenge.name();
                let why = format!("the server offers no {kind} for \"{name}\"");
                Err((self.failed(why), OrderAfterFailure::Drop))
            }
        }
    }

    /// The key authorization of a token (RFC 8555, section 8.1).
    fn answer(&self, token: &str, of_library: &KeyAuthorization) -> String {
        match &self.signer {
            Some(signer) => signer.key_authorization(token),
            None => of_library.as_str().to_owned(),
        }
    }

    /// Puts the responses to http-01 and tls-alpn-01 challenges in place.
    fn place_answers(&self, unproved: &[Unproved], answers: &mut Answers) -> StepResult<()> {
        for Unproved { name, token, answer, .. } in unproved {
            let written = match self.issuer.challenge {
                Challenge::TlsAlpn => proof(name, digest(&SHA256, answer.as_bytes()).as_ref())
                    .and_then(|pem| self.state.answer_over_tls(name, &pem)),
                _ => self.state.answer(token, answer),
            };
            written.map_err(|error| (self.no_write(&error), OrderAfterFailure::Keep))?;
            answers.placed.push((token.clone(), name.clone()));
        }
        Ok(())
    }

    /// Publishes the TXT records of dns-01 challenges, and waits until the name servers serve them.
    fn publish(&self, unproved: &[Unproved], answers: &mut Answers) -> StepResult<()> {
        let Some(publisher) = &self.issuer.dns.publisher else {
            let why = "neither \"dns_hook\" nor \"dns_update\" publishes records".to_owned();
            return Err((self.failed(why), OrderAfterFailure::Keep));
        };
        let failed = |failure: DnsFailure| match failure {
            DnsFailure::Stopped => (Failure::Stopped, OrderAfterFailure::Keep),
            DnsFailure::Failed(why) => (self.failed(why), OrderAfterFailure::Keep),
        };
        let mut awaited = Vec::new();
        for Unproved { name, answer, .. } in unproved {
            let asked = format!("_acme-challenge.{name}");
            let mut value = Vec::new();
            let hash = digest(&SHA256, answer.as_bytes());
            base64::encode(Alphabet::Url, hash.as_ref(), &mut value);
            let value = String::from_utf8(value).unwrap_or_default();
            let target = dns::targets(&self.issuer.dns, self.stop, &asked).map_err(failed)?;
            let changed = if publisher.follows_aliases() { &target } else { &asked };
            let record = TxtRecord { name: changed.clone(), value: value.clone() };
            let kept = self.state.keep_record(&record);
            kept.map_err(|error| (self.no_write(&error), OrderAfterFailure::Keep))?;
            answers.records.push(record.clone());
            publisher.change(Change::Publish, &record, self.stop).map_err(failed)?;
            awaited.push(TxtRecord { name: target, value });
        }
        dns::until_visible(&self.issuer.dns, self.stop, &awaited).map_err(failed)
    }

    /// Checks that the records of `dns-persist-01` exist: the authority would count a failure otherwise.
    fn check_persistent(&self, unproved: &[Unproved], account: &str) -> StepResult<()> {
        if self.issuer.dns.wait.is_none() {
            return Ok(());
        }
        let mut missing = Vec::new();
        for Unproved { name, is_wildcard, issuers, .. } in unproved {
            let (name, account) = (name.clone(), account.to_owned());
            let of =
                Persistent { name, is_wildcard: *is_wildcard, issuers: issuers.clone(), account };
            match dns::is_published(&self.issuer.dns, self.stop, &of) {
                Ok(true) => {}
                Ok(false) => {
                    let TxtRecord { name, value } = of.wanted();
                    missing.push(format!("{name}. TXT \"{value}\""));
                }
                Err(DnsFailure::Stopped) => {
                    return Err((Failure::Stopped, OrderAfterFailure::Keep));
                }
                Err(DnsFailure::Failed(why)) => {
                    return Err((self.failed(why), OrderAfterFailure::Keep));
                }
            }
        }
        match missing.is_empty() {
            true => Ok(()),
            false => {
                let why = format!("DNS lacks the record {}", missing.join(" and "));
                Err((self.failed(why), OrderAfterFailure::Keep))
            }
        }
    }

    /// The reasons that the authority gives for an invalid order.
    pub(super) fn why(&self, order: &mut Order) -> Failure {
        let mut reasons = Vec::new();
        // If the walk is repeated because of a nonce, reasons are not collected twice.
        let looked = self.again(|| {
            finish(async {
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
            })
        });
        if let Err(e) = looked
            && let Failure::Stopped = self.refused("", &e)
        {
            return Failure::Stopped;
        }
        // An order's own error mostly repeats that of a challenge.
        if let Some(problem) = order.state().error.as_ref().filter(|_| reasons.is_empty()) {
            reasons.push(said(problem));
        }
        match reasons.is_empty() {
            true => self.failed("the server rejected the order and gave no reason".to_owned()),
            false => self.failed(reasons.join("; ")),
        }
    }
}

/// The authority's issuer domain names for `dns-persist-01`, if a body is the authorization of this name.
fn issuer_names(body: &[u8], name: &str) -> Vec<String> {
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return Vec::new() };
    if body["identifier"]["value"] != name {
        return Vec::new();
    }
    let challenges = body["challenges"].as_array().into_iter().flatten();
    let own = challenges.filter(|challenge| challenge["type"] == Challenge::DnsPersist.name());
    let names = own.flat_map(|challenge| challenge["issuer-domain-names"].as_array());
    names.flatten().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
}

/// The certificate and key of a tls-alpn-01 challenge, in PEM (RFC 8737, section 3).
fn proof(name: &str, digest: &[u8]) -> io::Result<String> {
    let made = CertificateParams::new(vec![name.to_owned()]).and_then(|mut params| {
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let key = generate(KeyKind::P256)?;
        Ok(params.self_signed(&key)?.pem() + &key.serialize_pem())
    });
    made.map_err(io::Error::other)
}

/// A problem document as one line (RFC 7807).
pub(super) fn said(problem: &instant_acme::Problem) -> String {
    let kind = problem.r#type.as_deref().unwrap_or("a problem without a type");
    let kind = kind.rsplit(':').next().unwrap_or(kind);
    let detail = problem.detail.as_deref().unwrap_or("no detail");
    let mut text = format!("{detail} ({kind})");
    for part in &problem.subproblems {
        text.push_str(&format!(", {part}"));
    }
    text.replace(|c: char| c.is_control(), " ")
}

/// Whether an error is the ACME problem of this name, such as `badNonce`.
pub(super) fn is_problem(error: &Error, name: &str) -> bool {
    matches!(error, Error::Api(problem) if is_named(problem, name))
}

pub(super) fn is_named(problem: &instant_acme::Problem, name: &str) -> bool {
    let kind = problem.r#type.as_deref().and_then(|kind| kind.rsplit(':').next());
    kind == Some(name)
}
