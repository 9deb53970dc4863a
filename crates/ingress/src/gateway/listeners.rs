//! Reads the listeners of Gateways and ListenerSets: which are served, and why others are not.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::addresses;
use super::certificates::{self, ClientCheck};
use super::grants::{Referrer, Refused};
use super::kinds::Objects;
use super::names;
use super::objects::{
    Filter, FromNamespaces, GROUP, Gateway, GatewayClass, ListenerSet, ListenerSpec,
};
use super::ports;
use super::status::{Condition, GatewayStatus, Statuses};
use super::versions;
use crate::annotations::values;
use crate::report::ObjectId;
use crate::settings::Settings;
use crate::translate::Work;

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Protocol {
    Http,
    Https,
    /// TLS that the backend terminates.
    Passthrough,
    /// TLS that weir terminates, around any protocol.
    Tls,
    Tcp,
    Udp,
}

impl Protocol {
    fn of(spec: &ListenerSpec) -> Option<Protocol> {
        let mode = spec.tls.as_ref().and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate");
        match (spec.protocol.as_str(), mode) {
            ("HTTP", _) => Some(Protocol::Http),
            ("HTTPS", "Terminate") => Some(Protocol::Https),
            ("TLS", "Terminate") => Some(Protocol::Tls),
            ("TLS", "Passthrough") => Some(Protocol::Passthrough),
            ("TCP", _) => Some(Protocol::Tcp),
            ("UDP", _) => Some(Protocol::Udp),
            _ => None,
        }
    }

    /// The kinds of routes that may attach.
    pub(super) fn kinds(self) -> &'static [&'static str] {
        match self {
            Protocol::Http | Protocol::Https => &["HTTPRoute", "GRPCRoute"],
            Protocol::Passthrough | Protocol::Tls => &["TLSRoute"],
            Protocol::Tcp => &["TCPRoute"],
            Protocol::Udp => &["UDPRoute"],
        }
    }

    /// Protocols of one family can share a port. TLS connections are told apart by their server
    /// names.
    fn family(self) -> u8 {
        match self {
            Protocol::Http => 0,
            Protocol::Https | Protocol::Passthrough | Protocol::Tls => 1,
            Protocol::Tcp => 2,
            Protocol::Udp => 3,
        }
    }

    pub(super) fn has_names(self) -> bool {
        self.family() < 2
    }
}

/// A listener and its state.
pub(super) struct Listener<'a> {
    /// The Gateway or ListenerSet that has it.
    pub(super) owner: ObjectId,
    /// The index of the Gateway.
    pub(super) gateway: usize,
    /// The namespace of the Gateway.
    pub(super) home: String,
    pub(super) spec: &'a ListenerSpec,
    /// `None` if it is not supported.
    pub(super) protocol: Option<Protocol>,
    /// In lower case; empty for all names.
    pub(super) hostname: String,
    pub(super) port: u16,
    pub(super) certificates: Vec<String>,
    /// Whether its certificate is requested by ACME.
    pub(super) requests_certificate: bool,
    /// Whether HTTP/3 is served at its port, which its answers offer.
    pub(super) http3: bool,
    pub(super) clients: Option<ClientCheck>,
    pub(super) kinds: Vec<&'static str>,
    pub(super) attached: u32,
    /// Whether routes may attach.
    pub(super) accepted: bool,
    /// Whether it is accepted and its references can be used.
    pub(super) valid: bool,
    /// Whether requests can be served.
    pub(super) programmed: bool,
    pub(super) conditions: Vec<Condition>,
}

impl Listener<'_> {
    /// Whether a name belongs to this listener, so that a Gateway of another namespace with the
    /// same address does not get it. A wildcard hostname claims its names; a listener without a
    /// hostname claims none.
    pub(super) fn claims_against(&self, other: &Listener<'_>, name: &str) -> bool {
        self.home != other.home && !self.hostname.is_empty() && names::covers(&self.hostname, name)
    }
}

/// A Gateway that weir serves.
pub(super) struct Served<'a> {
    pub(super) id: ObjectId,
    pub(super) gateway: &'a Gateway,
    /// The addresses that it listens on, as in `listen`.
    pub(super) addresses: Vec<String>,
    /// ListenerSets that are attached to it.
    pub(super) sets: Vec<(ObjectId, &'a ListenerSet)>,
    /// ListenerSets that ask to be attached, without its leave.
    pub(super) refused_sets: Vec<ObjectId>,
    /// The file of the certificate for backends, if the Gateway names one. If the one before stays
    /// in use, there is an error, too.
    pub(super) client: Option<Result<(String, Option<Refused>), Refused>>,
    pub(super) refused: Option<(&'static str, String)>,
}

/// The order of precedence: creation time, then namespace and name.
pub(super) fn age(meta: &ObjectMeta) -> (i128, String, String) {
    let born = meta.creation_timestamp.as_ref().map(|time| time.0.as_nanosecond());
    let namespace = meta.namespace.clone().unwrap_or_else(|| "default".to_owned());
    (born.unwrap_or(i128::MAX), namespace, meta.name.clone().unwrap_or_default())
}

/// The names of the classes that weir serves.
pub(super) fn class_names(objects: &Objects, settings: &Settings) -> Vec<String> {
    let own = |class: &&Arc<GatewayClass>| {
        settings.gateway_controllers.contains(&class.spec.controller_name)
            && class.spec.parameters_ref.is_none()
    };
    let classes = objects.classes.iter().filter(own);
    classes.filter_map(|class| class.metadata.name.clone()).collect()
}

/// The Gateways of weir's classes, oldest first. Adds the statuses of those classes.
pub(super) fn gateways<'a>(work: &Work<'a>, statuses: &mut Statuses) -> Vec<Served<'a>> {
    let objects = work.gateway;
    let classes = class_names(work.gateway, work.settings);
    for class in &objects.classes {
        if !work.settings.gateway_controllers.contains(&class.spec.controller_name) {
            continue;
        }
        let id = ObjectId::of("GatewayClass", &class.metadata);
        let condition = match class.spec.parameters_ref.is_none() {
            true => Condition::yes("Accepted", "Accepted"),
            false => Condition::no("Accepted", "InvalidParameters", "weir takes no parameters"),
        };
        record_generation(statuses, &id, &class.metadata);
        let version = versions::condition(&objects.bundles);
        statuses.classes.insert(id, std::iter::once(condition).chain(version).collect());
    }
    let mut list: Vec<&Gateway> = objects.gateways.iter().map(|one| &**one).collect();
    list.sort_by_key(|gateway| age(&gateway.metadata));
    let own = |gateway: &&Gateway| classes.contains(&gateway.spec.gateway_class_name);
    list.into_iter().filter(own).filter_map(|gateway| served(work, gateway)).collect()
}

fn served<'a>(work: &Work<'a>, gateway: &'a Gateway) -> Option<Served<'a>> {
    let id = ObjectId::of("Gateway", &gateway.metadata);
    if !values::is_object_name(&id.name) || !values::is_label(&id.namespace) {
        return None;
    }
    let settings = work.settings;
    let key = (id.namespace.clone(), id.name.clone());
    let given = settings.addresses_of.get(&key).unwrap_or(&settings.gateway_addresses);
    let (addresses, mut refused) = addresses::wanted(gateway, given, &settings.published);
    if gateway.spec.infrastructure.as_ref().is_some_and(|i| i.parameters_ref.is_some()) {
        refused = Some(("InvalidParameters", "weir takes no parameters".to_owned()));
    }
    Some(Served {
        id,
        gateway,
        addresses,
        sets: Vec::new(),
        refused_sets: Vec::new(),
        client: None,
        refused,
    })
}

/// Records the generation of an object, which its conditions are about.
pub(super) fn record_generation(statuses: &mut Statuses, id: &ObjectId, meta: &ObjectMeta) {
    statuses.generations.insert(id.clone(), meta.generation.unwrap_or_default());
}

/// Attaches ListenerSets to their Gateways. Those that are not allowed get their status here.
pub(super) fn attach_sets<'a>(
    work: &Work<'a>,
    gateways: &mut [Served<'a>],
    statuses: &mut Statuses,
) {
    let mut sets: Vec<&ListenerSet> = work.gateway.listener_sets.iter().map(|one| &**one).collect();
    sets.sort_by_key(|set| age(&set.metadata));
    for set in sets {
        let id = ObjectId::of("ListenerSet", &set.metadata);
        if !values::is_object_name(&id.name) || !values::is_label(&id.namespace) {
            continue;
        }
        let parent = &set.spec.parent_ref;
        if parent.group.as_deref().is_some_and(|group| group != GROUP)
            || parent.kind.as_deref().is_some_and(|kind| kind != "Gateway")
        {
            continue;
        }
        let namespace = parent.namespace.as_deref().unwrap_or(&id.namespace);
        let found = gateways
            .iter_mut()
            .find(|one| one.id.namespace == namespace && one.id.name == parent.name);
        let Some(gateway) = found else { continue };
        record_generation(statuses, &id, &set.metadata);
        let allowed = gateway.gateway.spec.allowed_listeners.as_ref();
        let allowed = allowed.and_then(|allowed| allowed.namespaces.as_ref());
        if is_allowed(work, allowed, "None", &gateway.id.namespace, &id.namespace) {
            gateway.sets.push((id, set));
            continue;
        }
        let text = "the Gateway does not allow ListenerSets of this namespace";
        let conditions =
            ["Accepted", "Programmed"].map(|kind| Condition::no(kind, "NotAllowed", text));
        let status = GatewayStatus { conditions: conditions.to_vec(), ..GatewayStatus::default() };
        statuses.listener_sets.insert(id.clone(), status);
        gateway.refused_sets.push(id);
    }
}

/// Whether a Gateway or listener allows a namespace.
pub(super) fn is_allowed(
    work: &Work<'_>,
    wanted: Option<&FromNamespaces>,
    usual: &str,
    own: &str,
    namespace: &str,
) -> bool {
    match wanted.and_then(|wanted| wanted.from.as_deref()).unwrap_or(usual) {
        "All" => true,
        "Same" => own == namespace,
        "Selector" => {
            let selector = wanted.and_then(|wanted| wanted.selector.as_ref());
            selector.is_some_and(|selector| is_selected(work, selector, namespace))
        }
        _ => false,
    }
}

fn is_selected(work: &Work<'_>, selector: &LabelSelector, namespace: &str) -> bool {
    let mut all = work.gateway.namespaces.iter();
    let Some(found) = all.find(|one| one.metadata.name.as_deref() == Some(namespace)) else {
        return false;
    };
    let label = |key: &String| found.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let equal =
        selector.match_labels.iter().flatten().all(|(key, value)| label(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|rule| {
            let values = rule.values.as_deref().unwrap_or_default();
            let value = label(&rule.key);
            match rule.operator.as_str() {
                "In" => value.is_some_and(|value| values.contains(value)),
                "NotIn" => !value.is_some_and(|value| values.contains(value)),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// All listeners. Those of older Gateways come first, and a Gateway's own before those of its
/// ListenerSets. `taken` are the arguments of `listen` that Ingresses have.
pub(super) fn listeners<'a>(
    work: &mut Work<'a>,
    gateways: &[Served<'a>],
    taken: &BTreeSet<String>,
) -> Vec<Listener<'a>> {
    let mut list: Vec<Listener<'a>> = Vec::new();
    for (number, served) in gateways.iter().enumerate() {
        let own = served.gateway.spec.listeners.iter().map(|spec| (&served.id, spec));
        let joined = served
            .sets
            .iter()
            .flat_map(|(id, set)| set.spec.listeners.iter().map(move |spec| (id, spec)));
        for (owner, spec) in own.chain(joined) {
            let mut listener = listener(owner.clone(), (number, &served.id.namespace), spec);
            judge(work, served, taken, &mut listener);
            refuse_conflicts(&list, gateways, &mut listener);
            let resolved = listener.conditions.iter().all(|c| c.kind != "ResolvedRefs" || c.holds);
            let usable =
                resolved || !listener.kinds.is_empty() && !is_without_certificate(&listener);
            listener.valid = listener.accepted && usable;
            listener.programmed = listener.valid && served.refused.is_none();
            complete_conditions(&mut listener);
            list.push(listener);
        }
    }
    report_overlaps(&mut list);
    list
}

fn is_without_certificate(listener: &Listener<'_>) -> bool {
    matches!(listener.protocol, Some(Protocol::Https | Protocol::Tls))
        && listener.certificates.is_empty()
        && !listener.requests_certificate
}

fn listener<'a>(
    owner: ObjectId,
    (gateway, home): (usize, &str),
    spec: &'a ListenerSpec,
) -> Listener<'a> {
    let protocol = Protocol::of(spec);
    let hostname = spec.hostname.as_deref().unwrap_or_default().to_ascii_lowercase();
    let hostname = if protocol.is_some_and(Protocol::has_names) { hostname } else { String::new() };
    Listener {
        owner,
        gateway,
        home: home.to_owned(),
        spec,
        protocol,
        hostname,
        port: u16::try_from(spec.port).unwrap_or_default(),
        certificates: Vec::new(),
        requests_certificate: false,
        http3: false,
        clients: None,
        kinds: Vec::new(),
        attached: 0,
        accepted: true,
        valid: false,
        programmed: false,
        conditions: Vec::new(),
    }
}

/// The first of the filters before routes. weir supports none.
fn first_filter(spec: &ListenerSpec) -> Option<&Filter> {
    spec.filters.as_ref().and_then(|filters| filters.requests.first())
}

/// Judges a listener by itself.
fn judge(
    work: &mut Work<'_>,
    served: &Served<'_>,
    taken: &BTreeSet<String>,
    listener: &mut Listener<'_>,
) {
    let mut refuse = |reason, text: &str| {
        listener.accepted = false;
        listener.conditions.push(Condition::no("Accepted", reason, text));
    };
    let Some(protocol) = listener.protocol else {
        refuse("UnsupportedProtocol", "the protocol is none of HTTP, HTTPS, TLS, TCP, UDP");
        listener.conditions.push(Condition::yes("ResolvedRefs", "ResolvedRefs"));
        return;
    };
    if listener.port == 0 || work.settings.closed_ports.contains(&listener.port) {
        refuse("PortUnavailable", "the port cannot be used");
    } else if ports::is_of_ingresses(
        work.settings,
        taken,
        &served.addresses,
        (listener.port, protocol),
    ) {
        refuse("PortUnavailable", "Ingresses are served at the port, in another protocol");
    } else if !listener.hostname.is_empty() && !values::is_host(&listener.hostname, true) {
        refuse("UnsupportedValue", "the hostname is no host name");
    } else if let Some(filter) = first_filter(listener.spec) {
        // Without the filter, requests that it keeps out would pass.
        let text = format!("filters.requests[0]: {} is not supported", filter.r#type);
        refuse("UnsupportedValue", &text);
    }
    let allowed = listener.spec.allowed_routes.as_ref().map(|allowed| allowed.kinds.as_slice());
    let allowed = allowed.unwrap_or_default();
    let is_one = |kind: &&&str| {
        allowed
            .iter()
            .any(|one| one.kind == **kind && one.group.as_deref().is_none_or(|g| g == GROUP))
    };
    let all = protocol.kinds();
    listener.kinds = match allowed.is_empty() {
        true => all.to_vec(),
        false => all.iter().filter(is_one).copied().collect(),
    };
    let mut wrong = (!allowed.is_empty() && listener.kinds.len() < allowed.len())
        .then(|| Refused::new("InvalidRouteKinds", "a kind of routes does not fit the protocol"));
    if matches!(protocol, Protocol::Https | Protocol::Tls) {
        let from = Referrer { kind: listener.owner.kind, namespace: &listener.owner.namespace };
        let tls = listener.spec.tls.as_ref();
        let refs = tls.map(|tls| tls.certificate_refs.as_slice()).unwrap_or_default();
        let option = tls.and_then(|tls| tls.options.get(certificates::ACME_OPTION));
        let is_wanted = refs.is_empty() && option.is_some_and(|value| value == "true");
        if is_wanted && protocol == Protocol::Https && work.settings.acme_issuer.is_some() {
            let refused = certificates::unproved(work, &listener.hostname);
            listener.requests_certificate = refused.is_none();
            wrong = refused.or(wrong);
        } else {
            let (files, error) = certificates::of_listener(work, from, refs);
            listener.certificates = files;
            wrong = error.or(wrong);
        }
        certificates::of_clients(work, served, listener, &mut wrong);
    }
    listener.conditions.push(match wrong {
        None => Condition::yes("ResolvedRefs", "ResolvedRefs"),
        Some(refused) => Condition::no("ResolvedRefs", refused.reason, refused.message),
    });
}

/// Refuses a listener that conflicts with an earlier one on the same port and address.
fn refuse_conflicts(before: &[Listener<'_>], gateways: &[Served<'_>], listener: &mut Listener<'_>) {
    let Some(protocol) = listener.protocol else { return };
    let addresses = |number: usize| gateways.get(number).map(|one| one.addresses.as_slice());
    let own = addresses(listener.gateway);
    for other in before.iter().filter(|other| other.accepted && other.port == listener.port) {
        let Some(theirs) = other.protocol else { continue };
        let apart = (theirs == Protocol::Udp) != (protocol == Protocol::Udp);
        if apart || addresses(other.gateway) != own {
            continue;
        }
        let reason = match theirs.family() == protocol.family() {
            false => "ProtocolConflict",
            true if other.hostname == listener.hostname => "HostnameConflict",
            true if other.claims_against(listener, &listener.hostname) => "HostnameConflict",
            true => continue,
        };
        listener.accepted = false;
        if other.gateway == listener.gateway {
            let text = "a listener before this one has the same port";
            listener.conditions.push(Condition::no("Accepted", reason, text));
            listener.conditions.push(Condition::no("Programmed", reason, text));
            listener
                .conditions
                .push(Condition { holds: true, ..Condition::no("Conflicted", reason, text) });
        } else {
            let text = "an older Gateway with the same address has this port and name";
            listener.conditions.push(Condition::no("Accepted", "PortUnavailable", text));
        }
        return;
    }
}

/// Adds the conditions that follow from the others.
fn complete_conditions(listener: &mut Listener<'_>) {
    let has = |listener: &Listener<'_>, kind| listener.conditions.iter().any(|c| c.kind == kind);
    if !has(listener, "Accepted") {
        listener.conditions.push(Condition::yes("Accepted", "Accepted"));
    }
    if !has(listener, "Conflicted") {
        listener.conditions.push(Condition::no("Conflicted", "NoConflicts", ""));
    }
    if !has(listener, "Programmed") {
        listener.conditions.push(match listener.programmed {
            true => Condition::yes("Programmed", "Programmed"),
            false => Condition::no("Programmed", "Invalid", "see the other conditions"),
        });
    }
}

/// Adds the condition of TLS listeners of one port whose hostnames overlap.
fn report_overlaps(list: &mut [Listener<'_>]) {
    let secured =
        |one: &Listener<'_>| one.accepted && one.protocol.is_some_and(|p| p.family() == 1);
    let shares: Vec<bool> = list
        .iter()
        .enumerate()
        .map(|(n, one)| {
            secured(one)
                && list.iter().enumerate().any(|(m, other)| {
                    n != m
                        && secured(other)
                        && other.gateway == one.gateway
                        && other.port == one.port
                        && names::intersection(&one.hostname, &other.hostname).is_some()
                })
        })
        .collect();
    for (listener, _) in list.iter_mut().zip(shares).filter(|(_, shares)| *shares) {
        let text = "another listener of the port has names in common";
        listener.conditions.push(Condition {
            holds: true,
            ..Condition::no("OverlappingTLSConfig", "OverlappingHostnames", text)
        });
    }
}
