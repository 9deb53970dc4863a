//! Attaches routes to listeners, and makes their conditions.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::listeners::{Listener, Served, age, is_allowed, record_generation};
use super::names::{self, Patterns};
use super::objects::{GROUP, GrpcRouteSpec, HttpRouteSpec, ParentReference, StreamRouteSpec};
use super::status::{Condition, ParentStatus, Statuses};
use crate::annotations::values;
use crate::report::ObjectId;
use crate::translate::Work;

/// The spec of a route.
#[derive(Clone, Copy)]
pub(super) enum Spec<'a> {
    Http(&'a HttpRouteSpec),
    Grpc(&'a GrpcRouteSpec),
    Stream(&'a StreamRouteSpec),
}

/// A route of any kind.
pub(super) struct Route<'a> {
    pub(super) id: ObjectId,
    meta: &'a ObjectMeta,
    pub(super) spec: Spec<'a>,
    /// Its hostnames, in lower case.
    hostnames: Vec<String>,
    /// Its errors, independent of its parents.
    pub(super) faults: Faults,
}

/// The errors of a route.
#[derive(Default)]
pub(super) struct Faults {
    /// The reason of a failed `ResolvedRefs`.
    pub(super) unresolved: Option<super::grants::Refused>,
    /// The messages about rules that are left out or answer 500.
    pub(super) dropped: Vec<String>,
    /// The messages about fields that are left out of rules that are served.
    pub(super) ignored: Vec<String>,
    /// Whether none of the rules is served.
    pub(super) none_left: bool,
}

/// A route attached to a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attachment {
    pub(super) route: usize,
    pub(super) listener: usize,
    /// The names that both have.
    pub(super) hosts: Vec<Shared>,
}

/// A name that a listener and a route have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) name: String,
    /// The route's hostname. The listener may have only some of its names.
    pub(super) requested: String,
}

/// A parent of a route that weir serves, and whether it accepts the route.
pub(super) struct Parent<'a> {
    route: usize,
    reference: &'a ParentReference,
    accepted: Condition,
}

impl<'a> Route<'a> {
    fn new(
        kind: &'static str,
        meta: &'a ObjectMeta,
        spec: Spec<'a>,
        hostnames: &[String],
    ) -> Option<Route<'a>> {
        let id = ObjectId::of(kind, meta);
        let good = values::is_object_name(&id.name) && values::is_label(&id.namespace);
        let hostnames = hostnames.iter().map(|name| name.to_ascii_lowercase()).collect();
        good.then(|| Route { id, meta, spec, hostnames, faults: Faults::default() })
    }

    fn parents(&self) -> &'a [ParentReference] {
        match self.spec {
            Spec::Http(spec) => &spec.parent_refs,
            Spec::Grpc(spec) => &spec.parent_refs,
            Spec::Stream(spec) => &spec.parent_refs,
        }
    }
}

/// All routes, oldest first.
pub(super) fn routes<'a>(work: &Work<'a>) -> Vec<Route<'a>> {
    let objects = work.gateway;
    let http = objects.http_routes.iter().filter_map(|route| {
        Route::new("HTTPRoute", &route.metadata, Spec::Http(&route.spec), &route.spec.hostnames)
    });
    let grpc = objects.grpc_routes.iter().filter_map(|route| {
        Route::new("GRPCRoute", &route.metadata, Spec::Grpc(&route.spec), &route.spec.hostnames)
    });
    let streams = [
        ("TLSRoute", &objects.tls_routes),
        ("TCPRoute", &objects.tcp_routes),
        ("UDPRoute", &objects.udp_routes),
    ];
    let streams = streams.into_iter().flat_map(|(kind, list)| {
        list.iter().filter_map(move |route| {
            Route::new(kind, &route.metadata, Spec::Stream(&route.spec), &route.spec.hostnames)
        })
    });
    let mut all: Vec<Route<'a>> = http.chain(grpc).chain(streams).collect();
    all.sort_by_key(|route| (age(route.meta), route.id.kind));
    all
}

/// Attaches each route to the listeners of its parents. The attachments are in the order of the
/// routes.
pub(super) fn attach<'a>(
    work: &Work<'a>,
    gateways: &[Served<'_>],
    listeners: &[Listener<'_>],
    routes: &[Route<'a>],
) -> (Vec<Attachment>, Vec<Parent<'a>>) {
    let (mut attachments, mut parents) = (Vec::<Attachment>::new(), Vec::new());
    let mut taken = TakenNames::default();
    for (number, route) in routes.iter().enumerate() {
        for reference in route.parents() {
            let Some(owner) = owner(gateways, route, reference) else { continue };
            let found =
                owner.and_then(|owner| candidates(work, listeners, route, reference, &owner));
            let accepted = match found {
                Err((reason, text)) => Condition::no("Accepted", reason, text),
                Ok(found) => {
                    let kind = route.id.kind;
                    attach_to((&mut attachments, &mut taken), (number, kind), found)
                }
            };
            parents.push(Parent { route: number, reference, accepted });
        }
    }
    (attachments, parents)
}

/// The reason and message of a refusal.
type Refusal = (&'static str, &'static str);

/// The Gateway or ListenerSet that a reference names, if it is weir's. Routes cannot attach to a
/// ListenerSet that its Gateway does not allow.
fn owner(
    gateways: &[Served<'_>],
    route: &Route<'_>,
    reference: &ParentReference,
) -> Option<Result<ObjectId, Refusal>> {
    if reference.group.as_deref().is_some_and(|group| group != GROUP) {
        return None;
    }
    let namespace = reference.namespace.as_deref().unwrap_or(&route.id.namespace);
    let is_it = |id: &&ObjectId| id.namespace == namespace && id.name == reference.name;
    match reference.kind.as_deref().unwrap_or("Gateway") {
        "Gateway" => gateways.iter().map(|one| &one.id).find(is_it).cloned().map(Ok),
        "ListenerSet" => {
            let mut attached = gateways.iter().flat_map(|one| one.sets.iter().map(|(id, _)| id));
            let mut refused = gateways.iter().flat_map(|one| &one.refused_sets);
            let text = "the Gateway does not allow the ListenerSet";
            let found = attached.find(is_it).cloned().map(Ok);
            found.or_else(|| refused.find(is_it).map(|_| Err(("NoMatchingParent", text))))
        }
        _ => None,
    }
}

/// The index of a listener that may accept a route, with the names that both have.
type Candidate = (usize, Vec<Shared>);

/// The listeners that may accept a route.
fn candidates(
    work: &Work<'_>,
    listeners: &[Listener<'_>],
    route: &Route<'_>,
    reference: &ParentReference,
    owner: &ObjectId,
) -> Result<Vec<Candidate>, Refusal> {
    let named = |listener: &Listener<'_>| {
        listener.owner == *owner
            && reference.section_name.as_ref().is_none_or(|name| *name == listener.spec.name)
            && reference.port.is_none_or(|port| port == listener.spec.port)
    };
    let mut left: Vec<usize> = (0..listeners.len()).filter(|n| named(&listeners[*n])).collect();
    if left.is_empty() {
        return Err(("NoMatchingParent", "the parent has no such listener"));
    }
    left.retain(|n| {
        let listener = &listeners[*n];
        let wanted = listener.spec.allowed_routes.as_ref().and_then(|all| all.namespaces.as_ref());
        listener.accepted
            && listener.kinds.contains(&route.id.kind)
            && is_allowed(work, wanted, "Same", &listener.owner.namespace, &route.id.namespace)
    });
    if left.is_empty() {
        return Err((
            "NotAllowedByListeners",
            "no listener takes routes of this kind and namespace",
        ));
    }
    let good: Vec<&str> = route
        .hostnames
        .iter()
        .map(String::as_str)
        .filter(|name| values::is_host(name, true))
        .collect();
    let of =
        |name: &str, asked: &str| Shared { name: name.to_owned(), requested: asked.to_owned() };
    let shared = |n: usize| -> Vec<Shared> {
        let listener = &listeners[n];
        if !listener.protocol.is_some_and(|protocol| protocol.has_names()) {
            return vec![of("", "")];
        }
        let own: Vec<&str> = if route.hostnames.is_empty() { vec![""] } else { good.clone() };
        own.into_iter()
            .filter_map(|asked| Some(of(names::intersection(&listener.hostname, asked)?, asked)))
            .collect()
    };
    let with_names: Vec<Candidate> =
        left.into_iter().map(|n| (n, shared(n))).filter(|(_, hosts)| !hosts.is_empty()).collect();
    match with_names.is_empty() {
        true => Err(("NoMatchingListenerHostname", "no listener has one of the hostnames")),
        false => Ok(with_names),
    }
}

/// The names of the routes of HTTP that are attached to a listener, by the listener and the kind of
/// the routes.
type TakenNames = HashMap<(usize, &'static str), Patterns>;

/// Attaches a route to listeners, except those where an older HTTPRoute or GRPCRoute of the other
/// kind has its names.
fn attach_to(
    (attachments, names): (&mut Vec<Attachment>, &mut TakenNames),
    (number, kind): (usize, &'static str),
    found: Vec<Candidate>,
) -> Condition {
    let other = match kind {
        "HTTPRoute" => Some("GRPCRoute"),
        "GRPCRoute" => Some("HTTPRoute"),
        _ => None,
    };
    let mut taken = false;
    let mut any = false;
    for (listener, hosts) in found {
        let others = other.and_then(|other| names.get(&(listener, other)));
        if others.is_some_and(|others| hosts.iter().any(|host| others.meet(&host.name))) {
            taken = true;
            continue;
        }
        any = true;
        if other.is_some() {
            let own = names.entry((listener, kind)).or_default();
            hosts.iter().for_each(|host| own.insert(&host.name));
        }
        let mut own = attachments.iter_mut().rev().take_while(|one| one.route == number);
        match own.find(|one| one.listener == listener) {
            Some(one) => one.hosts.extend(hosts),
            None => attachments.push(Attachment { route: number, listener, hosts }),
        }
    }
    match any || !taken {
        true => Condition::yes("Accepted", "Accepted"),
        false => Condition::no(
            "Accepted",
            "NotAllowedByListeners",
            "an older route of the other kind for HTTP has the same hostnames",
        ),
    }
}

/// Counts the routes of each listener, after their rules were read. A route without a rule that is
/// served is not accepted, and does not count.
pub(super) fn count(
    routes: &[Route<'_>],
    attachments: &[Attachment],
    listeners: &mut [Listener<'_>],
) {
    for one in attachments.iter().filter(|one| !routes[one.route].faults.none_left) {
        listeners[one.listener].attached += 1;
    }
}

/// Writes the statuses of routes, after their rules were read.
pub(super) fn report(routes: &[Route<'_>], parents: Vec<Parent<'_>>, statuses: &mut Statuses) {
    for parent in parents {
        let route = &routes[parent.route];
        let faults = &route.faults;
        let mut conditions = Vec::new();
        let dropped = faults.dropped.join("; ");
        let accepted = match parent.accepted.holds && !faults.ignored.is_empty() {
            true => Condition {
                message: format!("left out: {}", faults.ignored.join("; ")),
                ..Condition::yes("Accepted", "UnsupportedField")
            },
            false => parent.accepted,
        };
        match (accepted.holds, faults.dropped.is_empty()) {
            (true, false) if faults.none_left => {
                conditions.push(Condition::no("Accepted", "UnsupportedValue", dropped));
            }
            (true, false) => {
                conditions.push(accepted);
                conditions.push(Condition {
                    message: format!("Dropped Rule: {dropped}"),
                    ..Condition::yes("PartiallyInvalid", "UnsupportedValue")
                });
            }
            _ => conditions.push(accepted),
        }
        conditions.push(match &faults.unresolved {
            None => Condition::yes("ResolvedRefs", "ResolvedRefs"),
            Some(refused) => {
                Condition::no("ResolvedRefs", refused.reason, refused.message.as_str())
            }
        });
        record_generation(statuses, &route.id, route.meta);
        let status = ParentStatus { parent: parent.reference.clone(), conditions };
        statuses.routes.entry(route.id.clone()).or_default().push(status);
    }
}
