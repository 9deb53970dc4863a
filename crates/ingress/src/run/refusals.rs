//! Objects that weir refused. Each keeps its earlier version in service or is left out, and the
//! others are served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::networking::v1::Ingress;

use super::cluster::Watched;
use crate::gateway::{AnyObject, Condition, Objects, ParentStatus, Statuses};
use crate::report::{Finding, ObjectId, Severity};
use crate::snapshot::Snapshot;

/// How long until a refused object is offered again. A file or a name that it lacked may exist by
/// then.
pub const OFFER_AGAIN: Duration = Duration::from_secs(300);

/// How many objects of a namespace are left out one by one before the others of the namespace come
/// under suspicion.
const FEW: usize = 8;

/// An object that can be left out.
#[derive(Clone, Debug)]
enum RefusableObject {
    Ingress(Arc<Ingress>),
    Gateway(AnyObject),
}

impl RefusableObject {
    fn same(&self, other: &RefusableObject) -> bool {
        match (self, other) {
            (RefusableObject::Ingress(one), RefusableObject::Ingress(other)) => one.same(other),
            (RefusableObject::Gateway(one), RefusableObject::Gateway(other)) => one == other,
            _ => false,
        }
    }
}

/// A refused object.
#[derive(Debug)]
struct Refused {
    object: RefusableObject,
    why: String,
    since: Instant,
    /// The parents of a route, with their conditions when it was refused.
    parents: Vec<ParentStatus>,
}

/// The refused objects, and the search for objects at fault.
#[derive(Debug, Default)]
pub struct Refusals {
    refused: BTreeMap<ObjectId, Refused>,
    /// The search, if weir names no line: groups of objects that are held back. The last group is
    /// offered next.
    held_back: Vec<Vec<ObjectId>>,
    /// How many objects of each namespace were refused by their lines since the search began.
    named: BTreeMap<String, usize>,
    /// Objects that are offered again after they were refused.
    suspects: BTreeSet<ObjectId>,
    /// The objects of the last accepted configuration, unless `accepted_snapshot` has them.
    accepted: BTreeMap<ObjectId, RefusableObject>,
    /// The objects of the last accepted configuration, if `accepted` is not made of them yet.
    accepted_snapshot: Option<Snapshot>,
    /// Whether weir has accepted a configuration of this process.
    knows_accepted: bool,
}

fn subjects(snapshot: &Snapshot) -> BTreeMap<ObjectId, RefusableObject> {
    let ingresses = snapshot.ingresses.iter();
    let ingresses = ingresses
        .map(|one| (ObjectId::of("Ingress", &one.metadata), RefusableObject::Ingress(one.clone())));
    let objects = snapshot.gateway.all().filter(may_be_left_out);
    let objects = objects.map(|one| (one.id(), RefusableObject::Gateway(one)));
    ingresses.chain(objects).collect()
}

/// Whether an object can cause directives. Classes and grants cannot.
fn may_be_left_out(object: &AnyObject) -> bool {
    !matches!(object, AnyObject::Class(_) | AnyObject::Grant(_))
}

/// Where a sorted list of objects is divided: between two namespaces, so that those without an
/// object at fault are soon served, or else in the middle.
fn middle(list: &[ObjectId]) -> usize {
    let half = list.len() / 2;
    let is_edge = |(_, two): &(usize, &[ObjectId])| match two {
        [one, next] => (one.kind, &one.namespace) != (next.kind, &next.namespace),
        _ => false,
    };
    let edges = list.windows(2).enumerate().filter(is_edge).map(|(at, _)| at + 1);
    edges.min_by_key(|at| at.abs_diff(half)).unwrap_or(half)
}

impl Refusals {
    /// Whether a refused object is due to be offered again.
    pub fn is_due(&self, now: Instant) -> bool {
        self.refused.values().any(|one| now.saturating_duration_since(one.since) > OFFER_AGAIN)
    }

    /// Forgets refusals that are due, so that their objects are offered again.
    pub fn forget_old(&mut self, now: Instant) {
        let old = |one: &Refused| now.saturating_duration_since(one.since) > OFFER_AGAIN;
        let again = self.refused.iter().filter(|(_, one)| old(one)).map(|(id, _)| id.clone());
        self.suspects.extend(again);
        self.refused.retain(|_, one| !old(one));
    }

    /// The refused objects.
    pub fn ids(&self) -> Vec<ObjectId> {
        self.refused.keys().cloned().collect()
    }

    /// Forgets the refusals of all other objects.
    pub fn retain_only(&mut self, ids: &[ObjectId]) {
        self.refused.retain(|id, _| ids.contains(id));
    }

    /// Records that weir serves these objects.
    pub fn taken(&mut self, snapshot: &Snapshot) {
        self.accepted_snapshot = Some(snapshot.clone());
        self.knows_accepted = true;
        self.suspects.clear();
    }

    /// Makes `accepted` of the last accepted snapshot. Only a refusal needs it.
    fn list_accepted(&mut self) {
        if let Some(snapshot) = self.accepted_snapshot.take() {
            self.accepted = subjects(&snapshot);
        }
    }

    /// The version of an object to serve: itself, its earlier version, or none if it is refused or
    /// held back.
    fn replacement(&self, id: &ObjectId, object: RefusableObject) -> Option<RefusableObject> {
        let refused = match self.refused.get(id) {
            Some(refused) => &refused.object,
            None if self.is_held_back(id) => &object,
            None => return Some(object),
        };
        self.accepted.get(id).filter(|before| !before.same(refused)).cloned()
    }

    fn is_held_back(&self, id: &ObjectId) -> bool {
        self.held_back.iter().any(|some| some.binary_search(id).is_ok())
    }

    /// Whether objects are held back by a search.
    pub fn searches(&self) -> bool {
        !self.held_back.is_empty()
    }

    /// Offers the next group of a search, after weir accepted what was offered. Returns whether
    /// there is one.
    pub fn offer_next(&mut self) -> bool {
        self.held_back.pop().is_some()
    }

    /// Ends the search: nothing is held back.
    pub fn end_search(&mut self) {
        self.held_back.clear();
        self.named.clear();
    }

    /// Holds back a part of the objects among which one is at fault. Ingresses are offered first:
    /// they need no address or port of their own.
    fn split(&mut self, mut all: Vec<ObjectId>) {
        let begins = self.held_back.is_empty();
        let mut first: Vec<ObjectId> = all.extract_if(.., |id| id.kind == "Ingress").collect();
        if first.is_empty() || all.is_empty() {
            first.append(&mut all);
            all = first.split_off(middle(&first));
        }
        self.held_back.push(all);
        if begins {
            // First all are held back. If weir still refuses the rest, none of them is at fault.
            self.held_back.push(first);
        }
    }

    /// Goes on where leaving objects out one by one takes too long. `snapshot` is what weir has
    /// refused. First the new objects of the owner's namespace are held back, or all new ones if
    /// there is no owner, so that the others are served. They are offered again in groups. A group
    /// that takes too long, too, is refused as a whole. Returns whether another configuration is to
    /// be offered.
    pub fn give_up(
        &mut self,
        snapshot: &Snapshot,
        statuses: &Statuses,
        owner: Option<&ObjectId>,
        why: &str,
    ) -> bool {
        self.list_accepted();
        let now = subjects(snapshot);
        let owner = owner.filter(|id| now.contains_key(id));
        let named = owner.and_then(|id| self.named.get(&id.namespace)).copied().unwrap_or_default();
        if owner.is_some() && named < FEW {
            return self.leave_out(snapshot, statuses, owner, why);
        }
        let is_under_suspicion = |id: &ObjectId| match owner {
            Some(owner) => owner.namespace == id.namespace,
            None => true,
        };
        let new = now.iter().filter(|(id, one)| {
            is_under_suspicion(id) && !self.refused.contains_key(id) && self.is_new(id, one)
        });
        let new: Vec<ObjectId> = new.map(|(id, _)| id.clone()).collect();
        if !self.searches() && new.len() > 1 {
            self.split(new);
            return true;
        }
        if new.is_empty() {
            return self.leave_out(snapshot, statuses, owner, why);
        }
        new.iter().for_each(|id| self.refuse(id, &now, statuses, why));
        true
    }

    fn refuse(
        &mut self,
        id: &ObjectId,
        now: &BTreeMap<ObjectId, RefusableObject>,
        statuses: &Statuses,
        why: &str,
    ) {
        let Some(object) = now.get(id).cloned() else { return };
        let parents = statuses.routes.get(id).cloned().unwrap_or_default();
        let (why, since) = (why.to_owned(), Instant::now());
        self.refused.insert(id.clone(), Refused { object, why, since, parents });
    }

    fn is_new(&self, id: &ObjectId, object: &RefusableObject) -> bool {
        self.accepted.get(id).is_none_or(|good| !object.same(good))
    }

    /// Whether weir has accepted a configuration of this process.
    pub fn knows_accepted(&self) -> bool {
        self.knows_accepted
    }

    /// The objects to serve, without refused ones or with their earlier versions, and the findings
    /// about those.
    pub fn apply(&mut self, mut snapshot: Snapshot) -> (Snapshot, Vec<Finding>) {
        let mut findings = Vec::new();
        if self.refused.is_empty() && self.held_back.is_empty() {
            return (snapshot, findings);
        }
        self.list_accepted();
        let now = subjects(&snapshot);
        // An object that has changed since is offered again.
        self.refused.retain(|id, refused| now.get(id).is_some_and(|one| one.same(&refused.object)));
        for (id, refused) in &self.refused {
            let instead = match self.replacement(id, refused.object.clone()) {
                Some(_) => "the version before stays in service",
                None => "it is not served",
            };
            findings.push(Finding {
                object: id.clone(),
                severity: Severity::Error,
                reason: "Refused",
                about: "configuration".to_owned(),
                message: format!("{instead}: {}", refused.why),
            });
        }
        snapshot.ingresses.clear();
        let Objects { namespaces, assigned, classes, grants, .. } =
            std::mem::take(&mut snapshot.gateway);
        snapshot.gateway = Objects { namespaces, assigned, classes, grants, ..Objects::default() };
        for (id, object) in now {
            match self.replacement(&id, object) {
                Some(RefusableObject::Ingress(one)) => snapshot.ingresses.push(one),
                Some(RefusableObject::Gateway(one)) => snapshot.gateway.put(one),
                None => {}
            }
        }
        (snapshot, findings)
    }

    /// Refuses the owner of a refused line. Without an owner, an object that is new since the last
    /// accepted configuration is at fault. Then a part of those is held back, again and again,
    /// until one is left. Returns whether another configuration is to be offered.
    pub fn leave_out(
        &mut self,
        snapshot: &Snapshot,
        statuses: &Statuses,
        owner: Option<&ObjectId>,
        why: &str,
    ) -> bool {
        self.list_accepted();
        let now = subjects(snapshot);
        let mut out: Vec<&ObjectId> = owner.filter(|id| now.contains_key(id)).into_iter().collect();
        if let Some(id) = out.first().copied() {
            *self.named.entry(id.namespace.clone()).or_default() += 1;
            // Very many that are offered again are not tried one by one.
            let is_again = |other: &ObjectId| {
                self.suspects.contains(other) && !self.refused.contains_key(other)
            };
            let again: Vec<&ObjectId> = now
                .keys()
                .filter(|other| other.namespace == id.namespace && is_again(other))
                .collect();
            if is_again(id) && again.len() > FEW {
                out = again;
            }
        }
        if out.is_empty() {
            let new = now.iter().filter(|(id, one)| self.is_new(id, one));
            out = new.map(|(id, _)| id).filter(|id| !self.refused.contains_key(*id)).collect();
            let again = out.iter().copied().filter(|id| self.suspects.contains(*id));
            let again: Vec<&ObjectId> = again.collect();
            if !again.is_empty() {
                out = again;
            } else if out.len() > 1 {
                self.split(out.into_iter().cloned().collect());
                return true;
            }
        }
        let mut any = false;
        for id in out {
            // The object is refused already, so its earlier version is at fault, too.
            if self.refused.contains_key(id) {
                any |= self.accepted.remove(id).is_some();
                continue;
            }
            any = true;
            self.refuse(id, &now, statuses, why);
        }
        any
    }

    /// Writes the refusals into the statuses of the objects.
    pub fn report(&self, statuses: &mut Statuses) {
        for (id, refused) in &self.refused {
            let RefusableObject::Gateway(object) = &refused.object else { continue };
            let generation = object.metadata().generation.unwrap_or_default();
            let why = &refused.why;
            if !refused.parents.is_empty() {
                let mut parents = refused.parents.clone();
                for parent in &mut parents {
                    parent
                        .conditions
                        .retain(|one| !matches!(one.kind, "Accepted" | "PartiallyInvalid"));
                    parent.conditions.push(Condition::no("Accepted", "UnsupportedValue", why));
                }
                statuses.routes.insert(id.clone(), parents);
                statuses.generations.insert(id.clone(), generation);
            } else if matches!(id.kind, "Gateway" | "ListenerSet") {
                let list = match id.kind {
                    "Gateway" => &mut statuses.gateways,
                    _ => &mut statuses.listener_sets,
                };
                let status = list.entry(id.clone()).or_default();
                status.conditions.retain(|one| !matches!(one.kind, "Accepted" | "Programmed"));
                let reason = if id.kind == "Gateway" { "Invalid" } else { "ListenersNotValid" };
                let accepted = Condition::no("Accepted", "ListenersNotValid", why);
                status.conditions.extend([accepted, Condition::no("Programmed", reason, why)]);
                statuses.generations.insert(id.clone(), generation);
            }
        }
    }
}

#[cfg(test)]
mod tests;
