//! BackendTLSPolicies: backends with TLS, and the verification of their certificates.

use std::collections::BTreeMap;

use weir_conf::Directive;

use super::certificates;
use super::grants::Referrer;
use super::listeners::{age, record_generation};
use super::objects::{BackendTlsPolicy, GROUP, ParentReference};
use super::status::{Condition, ParentStatus, Statuses};
use crate::annotations::values;
use crate::report::ObjectId;
use crate::translate::{Work, line};

/// TLS to a backend.
#[derive(Clone, Debug)]
pub(super) struct BackendTls {
    /// The file of the authorities.
    pub(super) authorities: String,
    /// The server name that is sent. It is verified if there are no other names.
    pub(super) hostname: String,
    /// The certificate must have one of these names.
    pub(super) names: Vec<String>,
}

impl BackendTls {
    /// The directives, whose names begin with `prefix` (`proxy_ssl_`).
    pub(super) fn lines(&self, prefix: &str) -> Vec<Directive> {
        let one = |name: &str, value: &str| line(&format!("{prefix}{name}"), [value]);
        let mut list = vec![
            one("verify", "on"),
            one("verify_depth", "9"),
            one("trusted_certificate", &self.authorities),
            one("name", &self.hostname),
            one("server_name", "on"),
        ];
        if !self.names.is_empty() {
            let names = self.names.iter().map(String::as_str);
            list.push(line(&format!("{prefix}verify_names"), names));
        }
        list
    }
}

/// A policy.
pub(super) struct Policy {
    id: ObjectId,
    /// `None` if backends cannot be verified. Nothing is sent to them then.
    pub(super) tls: Option<BackendTls>,
    conditions: Vec<Condition>,
}

/// Namespace, Service, and the name of a port; an empty name is all ports.
type Target = (String, String, String);

/// All policies by their targets.
#[derive(Default)]
pub(super) struct Policies {
    list: Vec<Policy>,
    /// The index of the policy of each target.
    targets: BTreeMap<Target, usize>,
    /// Policies that conflict with an older one, by target.
    rivals: BTreeMap<Target, Vec<usize>>,
    /// The Gateways that use each policy.
    ancestors: BTreeMap<usize, Vec<ObjectId>>,
}

impl Policies {
    /// Reads all policies, oldest first.
    pub(super) fn read(work: &mut Work<'_>) -> Policies {
        let mut sorted: Vec<&BackendTlsPolicy> =
            work.gateway.policies.iter().map(|one| &**one).collect();
        sorted.sort_by_key(|policy| age(&policy.metadata));
        let mut all = Policies::default();
        for policy in sorted {
            let id = ObjectId::of("BackendTLSPolicy", &policy.metadata);
            let number = all.list.len();
            let mut beaten = false;
            for target in &policy.spec.target_refs {
                if !target.group.is_empty() || target.kind != "Service" {
                    continue;
                }
                let port = target.section_name.clone().unwrap_or_default();
                let key = (id.namespace.clone(), target.name.clone(), port);
                if *all.targets.entry(key.clone()).or_insert(number) != number {
                    beaten = true;
                    all.rivals.entry(key).or_default().push(number);
                }
            }
            let (tls, mut conditions) = judge(work, &id, policy);
            if beaten {
                conditions.retain(|condition| condition.kind != "Accepted");
                let text = "an older policy is for the same Service";
                conditions.push(Condition::no("Accepted", "Conflicted", text));
            }
            all.list.push(Policy { id, tls, conditions });
        }
        all
    }

    /// The policy of a Service's port. The Gateways become its ancestors.
    pub(super) fn of(
        &mut self,
        gateways: &[ObjectId],
        namespace: &str,
        service: &str,
        port: &str,
    ) -> Option<&Policy> {
        let key = |port: &str| (namespace.to_owned(), service.to_owned(), port.to_owned());
        let own = key(port);
        let own = if self.targets.contains_key(&own) { own } else { key("") };
        let number = *self.targets.get(&own)?;
        // All policies of the Service get these Gateways as ancestors, also those with conflicts.
        let is_it = |target: &Target| target.0 == namespace && target.1 == service;
        let own = self.targets.iter().filter(|(target, _)| is_it(target)).map(|(_, n)| *n);
        let rivals = self.rivals.iter().filter(|(target, _)| is_it(target));
        let numbers: Vec<usize> =
            own.chain(rivals.flat_map(|(_, list)| list.iter().copied())).collect();
        for number in numbers {
            let list = self.ancestors.entry(number).or_default();
            for gateway in gateways {
                if !list.contains(gateway) {
                    list.push(gateway.clone());
                }
            }
        }
        self.list.get(number)
    }

    /// Writes the statuses of policies, with an entry for each Gateway that uses them.
    pub(super) fn report(&self, work: &Work<'_>, statuses: &mut Statuses) {
        for policy in &work.gateway.policies {
            record_generation(
                statuses,
                &ObjectId::of("BackendTLSPolicy", &policy.metadata),
                &policy.metadata,
            );
        }
        for (number, gateways) in &self.ancestors {
            let Some(policy) = self.list.get(*number) else { continue };
            let parents = gateways.iter().map(|gateway| ParentStatus {
                parent: ParentReference {
                    group: Some(GROUP.to_owned()),
                    kind: Some("Gateway".to_owned()),
                    namespace: Some(gateway.namespace.clone()),
                    name: gateway.name.clone(),
                    ..ParentReference::default()
                },
                conditions: policy.conditions.clone(),
            });
            statuses.policies.insert(policy.id.clone(), parents.collect());
        }
    }
}

/// A URI with a scheme and an authority. RFC 3986, section 4.3.
fn is_absolute(uri: &str) -> bool {
    let scheme = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    uri.len() <= values::LONGEST
        && uri.bytes().all(|b| b.is_ascii_graphic() && b != b'$')
        && uri.split_once("://").is_some_and(|(before, after)| scheme(before) && !after.is_empty())
}

fn judge(
    work: &mut Work<'_>,
    id: &ObjectId,
    policy: &BackendTlsPolicy,
) -> (Option<BackendTls>, Vec<Condition>) {
    let wanted = &policy.spec.validation;
    let resolved = Condition::yes("ResolvedRefs", "ResolvedRefs");
    let invalid =
        |text: &str| (None, vec![Condition::no("Accepted", "Invalid", text), resolved.clone()]);
    let hostname = wanted.hostname.to_ascii_lowercase();
    if !values::is_host(&hostname, false) {
        return invalid("the hostname is no host name");
    }
    let mut names = Vec::new();
    for name in &wanted.subject_alt_names {
        match name.kind.as_str() {
            "Hostname" if values::is_host(&name.hostname.to_ascii_lowercase(), true) => {
                names.push(name.hostname.to_ascii_lowercase());
            }
            "URI" if is_absolute(&name.uri) => names.push(name.uri.clone()),
            _ => {
                return invalid(
                    "a name of subjectAltNames is neither a host name nor an absolute URI",
                );
            }
        }
    }
    if wanted.ca_certificate_refs.is_empty() {
        return match wanted.well_known.as_deref() {
            Some("System") => {
                let authorities = work.settings.system_authorities.display().to_string();
                let accepted = Condition::yes("Accepted", "Accepted");
                (Some(BackendTls { authorities, hostname, names }), vec![accepted, resolved])
            }
            _ => invalid("no known authorities are named"),
        };
    }
    let from = Referrer { kind: "BackendTLSPolicy", namespace: &id.namespace };
    let reasons = ("InvalidCACertificateRef", "InvalidKind");
    let refs: Vec<_> = wanted
        .ca_certificate_refs
        .iter()
        .map(|one| super::objects::Reference { namespace: None, ..one.clone() })
        .collect();
    let (file, error) = certificates::authorities(work, from, &refs, reasons);
    let resolved = match error {
        None => resolved,
        Some(refused) => Condition::no("ResolvedRefs", refused.reason, refused.message),
    };
    let Some(authorities) = file else {
        let text = "servers behind cannot be checked: answers are 500";
        return (None, vec![Condition::no("Accepted", "NoValidCACertificate", text), resolved]);
    };
    // With one wrong reference among several, connections fail all the same.
    let tls = resolved.holds.then_some(BackendTls { authorities, hostname, names });
    (tls, vec![Condition::yes("Accepted", "Accepted"), resolved])
}
