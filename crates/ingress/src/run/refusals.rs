//! What weir has refused: the object that asked for it is left out, or stays as it was, and all others are served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::networking::v1::Ingress;

use super::cluster::Watched;
use crate::gateway::{AnyObject, Condition, Objects, ParentStatus, Statuses};
use crate::report::{Finding, ObjectId, Severity};
use crate::snapshot::Snapshot;

/// What weir refused is offered again after this time: a file or a name that it lacked may be there now.
pub const AGAIN: Duration = Duration::from_secs(300);

/// An object that can be left out.
#[derive(Clone, Debug)]
enum Subject {
    Ingress(Arc<Ingress>),
    Gateway(AnyObject),
}

impl Subject {
    fn same(&self, other: &Subject) -> bool {
        match (self, other) {
            (Subject::Ingress(one), Subject::Ingress(other)) => one.same(other),
            (Subject::Gateway(one), Subject::Gateway(other)) => one == other,
            _ => false,
        }
    }
}

/// An object that weir refused.
#[derive(Debug)]
struct Refused {
    object: Subject,
    why: String,
    since: Instant,
    /// What it was told at the time: a route's parents.
    parents: Vec<ParentStatus>,
}

/// The objects that weir refused.
#[derive(Debug, Default)]
pub struct Refusals {
    refused: BTreeMap<ObjectId, Refused>,
    /// The objects of the configuration that weir took last.
    good: BTreeMap<ObjectId, Subject>,
}

fn subjects(snapshot: &Snapshot) -> BTreeMap<ObjectId, Subject> {
    let ingresses = snapshot.ingresses.iter();
    let ingresses = ingresses
        .map(|one| (ObjectId::of("Ingress", &one.metadata), Subject::Ingress(one.clone())));
    let objects = snapshot.gateway.all().filter(may_be_left_out);
    let objects = objects.map(|one| (one.id(), Subject::Gateway(one)));
    ingresses.chain(objects).collect()
}

/// Classes and grants ask for no directive.
fn may_be_left_out(object: &AnyObject) -> bool {
    !matches!(object, AnyObject::Class(_) | AnyObject::Grant(_))
}

impl Refusals {
    /// Whether something should be offered again.
    pub fn is_due(&self, now: Instant) -> bool {
        self.refused.values().any(|one| now.saturating_duration_since(one.since) > AGAIN)
    }

    /// Offers again what has waited long enough.
    pub fn forget_old(&mut self, now: Instant) {
        self.refused.retain(|_, one| now.saturating_duration_since(one.since) <= AGAIN);
    }

    /// Those that are refused now.
    pub fn ids(&self) -> Vec<ObjectId> {
        self.refused.keys().cloned().collect()
    }

    /// Keeps only these.
    pub fn only(&mut self, ids: &[ObjectId]) {
        self.refused.retain(|id, _| ids.contains(id));
    }

    /// weir serves these objects.
    pub fn taken(&mut self, snapshot: &Snapshot) {
        self.good = subjects(snapshot);
    }

    /// The object in place of one; `None`: it is left out.
    fn instead(&self, id: &ObjectId, object: Subject) -> Option<Subject> {
        let Some(refused) = self.refused.get(id) else { return Some(object) };
        self.good.get(id).filter(|before| !before.same(&refused.object)).cloned()
    }

    /// The objects with what weir refused left out, or as it was before; and what is to be said about that.
    pub fn apply(&mut self, mut snapshot: Snapshot) -> (Snapshot, Vec<Finding>) {
        let mut findings = Vec::new();
        if self.refused.is_empty() {
            return (snapshot, findings);
        }
        let now = subjects(&snapshot);
        // One that was changed since has another chance.
        self.refused.retain(|id, refused| now.get(id).is_some_and(|one| one.same(&refused.object)));
        for (id, refused) in &self.refused {
            let instead = match self.instead(id, refused.object.clone()) {
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
            match self.instead(&id, object) {
                Some(Subject::Ingress(one)) => snapshot.ingresses.push(one),
                Some(Subject::Gateway(one)) => snapshot.gateway.put(one),
                None => {}
            }
        }
        (snapshot, findings)
    }

    /// Leaves out the owner of a refused line, or all that is new since weir took a configuration; whether there is
    /// anything.
    pub fn leave_out(
        &mut self,
        snapshot: &Snapshot,
        statuses: &Statuses,
        owner: Option<&ObjectId>,
        why: &str,
    ) -> bool {
        let since = Instant::now();
        let now = subjects(snapshot);
        let mut out: Vec<&ObjectId> = owner.filter(|id| now.contains_key(id)).into_iter().collect();
        if out.is_empty() {
            let new = |id: &&ObjectId| {
                let good = self.good.get(*id);
                good.is_none_or(|good| now.get(*id).is_some_and(|one| !one.same(good)))
            };
            out = now.keys().filter(new).collect();
        }
        let mut any = false;
        for id in out {
            // One that is refused already stands here as the version before: then it goes as well.
            if self.refused.contains_key(id) {
                any |= self.good.remove(id).is_some();
                continue;
            }
            let Some(object) = now.get(id).cloned() else { continue };
            any = true;
            let parents = statuses.routes.get(id).cloned().unwrap_or_default();
            self.refused
                .insert(id.clone(), Refused { object, why: why.to_owned(), since, parents });
        }
        any
    }

    /// Tells the objects that weir refused so in their statuses.
    pub fn report(&self, statuses: &mut Statuses) {
        for (id, refused) in &self.refused {
            let Subject::Gateway(object) = &refused.object else { continue };
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
