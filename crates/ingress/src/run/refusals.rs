//! What weir has refused: the object that asked for it is left out, or stays as it was, and all others are served.

use std::collections::{BTreeMap, BTreeSet};
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
    /// Where weir names no line, one of these is looked for: objects that wait until others were offered, the next of them
    /// last.
    waiting: Vec<Vec<ObjectId>>,
    /// Objects that are offered again after they were refused.
    suspects: BTreeSet<ObjectId>,
    /// The objects of the configuration that weir took last, as far as they are in a list by now.
    good: BTreeMap<ObjectId, Subject>,
    /// They are to be listed anew, of these.
    taken: Option<Snapshot>,
    knows_good: bool,
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
        let old = |one: &Refused| now.saturating_duration_since(one.since) > AGAIN;
        let again = self.refused.iter().filter(|(_, one)| old(one)).map(|(id, _)| id.clone());
        self.suspects.extend(again);
        self.refused.retain(|_, one| !old(one));
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
        self.taken = Some(snapshot.clone());
        self.knows_good = true;
        self.suspects.clear();
    }

    /// Lists what weir serves. Only what it refuses needs that.
    fn list_good(&mut self) {
        if let Some(snapshot) = self.taken.take() {
            self.good = subjects(&snapshot);
        }
    }

    /// The object in place of one; `None`: it is left out.
    fn instead(&self, id: &ObjectId, object: Subject) -> Option<Subject> {
        let refused = match self.refused.get(id) {
            Some(refused) => &refused.object,
            None if self.waits(id) => &object,
            None => return Some(object),
        };
        self.good.get(id).filter(|before| !before.same(refused)).cloned()
    }

    fn waits(&self, id: &ObjectId) -> bool {
        self.waiting.iter().any(|some| some.binary_search(id).is_ok())
    }

    /// Whether objects wait until others were offered.
    pub fn searches(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// weir has taken what was offered: some of those that wait are offered next; whether there are any.
    pub fn go_on(&mut self) -> bool {
        self.waiting.pop().is_some()
    }

    /// Offers all that waits.
    pub fn end_search(&mut self) {
        self.waiting.clear();
    }

    /// Lets a part of what weir has refused together wait. Ingresses come first: they need no address or port of their own.
    fn split(&mut self, mut all: Vec<ObjectId>) {
        let begins = self.waiting.is_empty();
        let mut first: Vec<ObjectId> = all.extract_if(.., |id| id.kind == "Ingress").collect();
        if first.is_empty() || all.is_empty() {
            first.append(&mut all);
            all = first.split_off(first.len() / 2);
        }
        self.waiting.push(all);
        if begins {
            // What weir refuses without any of them is the fault of none.
            self.waiting.push(first);
        }
    }

    /// Leaves out all that weir has not taken, since the search takes too long; whether there is anything.
    pub fn give_up(&mut self, snapshot: &Snapshot, why: &str) -> bool {
        self.list_good();
        let (since, before) = (Instant::now(), self.refused.len());
        for (id, object) in subjects(snapshot) {
            if !self.refused.contains_key(&id) && self.is_new(&id, &object) {
                let why = why.to_owned();
                self.refused.insert(id, Refused { object, why, since, parents: Vec::new() });
            }
        }
        self.waiting.clear();
        self.refused.len() > before
    }

    fn is_new(&self, id: &ObjectId, object: &Subject) -> bool {
        self.good.get(id).is_none_or(|good| !object.same(good))
    }

    /// Whether a configuration of this process was taken.
    pub fn knows_good(&self) -> bool {
        self.knows_good
    }

    /// The objects with what weir refused left out, or as it was before; and what is to be said about that.
    pub fn apply(&mut self, mut snapshot: Snapshot) -> (Snapshot, Vec<Finding>) {
        let mut findings = Vec::new();
        if self.refused.is_empty() && self.waiting.is_empty() {
            return (snapshot, findings);
        }
        self.list_good();
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

    /// Leaves out the owner of a refused line. Without one, something is wrong that is new since weir took a
    /// configuration: half of that waits, until one object is left. Whether there is anything to leave out.
    pub fn leave_out(
        &mut self,
        snapshot: &Snapshot,
        statuses: &Statuses,
        owner: Option<&ObjectId>,
        why: &str,
    ) -> bool {
        self.list_good();
        let since = Instant::now();
        let now = subjects(snapshot);
        let mut out: Vec<&ObjectId> = owner.filter(|id| now.contains_key(id)).into_iter().collect();
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Settings, translate};

    /// A Gateway, and routes with a path each.
    fn snapshot(routes: &[(&str, &str)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let group = "gateway.networking.k8s.io/v1";
        let mut objects = vec![
            json!({ "apiVersion": group, "kind": "GatewayClass", "metadata": { "name": "weir" },
                "spec": { "controllerName": "weir.internal/gateway" } }),
            json!({ "apiVersion": group, "kind": "Gateway", "metadata": { "name": "web", "namespace": "a", "generation": 3 },
                "spec": { "gatewayClassName": "weir", "listeners": [{ "name": "l", "port": 80, "protocol": "HTTP" }] } }),
        ];
        objects.extend(routes.iter().map(|(name, path)| {
            json!({ "apiVersion": group, "kind": "HTTPRoute", "metadata": { "name": name, "namespace": "a", "generation": 5 },
                "spec": { "parentRefs": [{ "name": "web" }], "rules": [{ "matches": [{ "path": { "value": path } }] }] } })
        }));
        for object in objects {
            assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
        }
        snapshot
    }

    fn paths(snapshot: &Snapshot) -> Vec<String> {
        let all = snapshot.gateway.http_routes.iter().flat_map(|route| &route.spec.rules);
        let matches = all.flat_map(|rule| &rule.matches);
        matches.filter_map(|one| one.path.as_ref()?.value.clone()).collect()
    }

    fn id(kind: &'static str, name: &str) -> ObjectId {
        ObjectId { kind, namespace: "a".to_owned(), name: name.to_owned() }
    }

    fn statuses(snapshot: &Snapshot) -> Statuses {
        translate(snapshot, &Settings::default()).statuses
    }

    /// The condition as a word: its reason, with ! in front if it does not hold.
    fn told(list: &[Condition], kind: &str) -> String {
        let found = list.iter().find(|one| one.kind == kind);
        found.map(|c| format!("{}{}", if c.holds { "" } else { "!" }, c.reason)).unwrap_or_default()
    }

    #[test]
    fn the_owner_of_a_line_is_left_out_alone_and_told_so() {
        let mut refusals = Refusals::default();
        let all = snapshot(&[("one", "/one"), ("two", "/two")]);
        let route = id("HTTPRoute", "two");
        assert!(refusals.leave_out(&all, &statuses(&all), Some(&route), "no such thing"));
        let (left, findings) = refusals.apply(all.clone());
        assert_eq!(paths(&left), ["/one"]);
        assert_eq!((left.gateway.gateways.len(), left.gateway.classes.len()), (1, 1));
        assert_eq!(findings.len(), 1);
        let mut made = statuses(&left);
        refusals.report(&mut made);
        let parents = &made.routes[&route];
        assert_eq!(told(&parents[0].conditions, "Accepted"), "!UnsupportedValue");
        assert_eq!(told(&parents[0].conditions, "ResolvedRefs"), "ResolvedRefs");
        assert_eq!(made.generations[&route], 5);
        assert_eq!(
            told(&made.routes[&id("HTTPRoute", "one")][0].conditions, "Accepted"),
            "Accepted"
        );
        // Another version has another chance.
        let changed = snapshot(&[("one", "/one"), ("two", "/three")]);
        assert_eq!(paths(&refusals.apply(changed).0), ["/one", "/three"]);
    }

    #[test]
    fn the_version_before_stays_until_it_is_refused_as_well() {
        let mut refusals = Refusals::default();
        let before = snapshot(&[("one", "/old")]);
        refusals.taken(&before);
        let now = snapshot(&[("one", "/new")]);
        let route = id("HTTPRoute", "one");
        assert!(refusals.leave_out(&now, &statuses(&now), Some(&route), "why"));
        let (left, _) = refusals.apply(now.clone());
        assert_eq!(paths(&left), ["/old"]);
        assert!(refusals.leave_out(&left, &statuses(&left), Some(&route), "why"));
        assert_eq!(paths(&refusals.apply(now.clone()).0), Vec::<String>::new());
        assert!(!refusals.leave_out(&left, &statuses(&left), Some(&route), "why"));
        assert!(!refusals.is_due(Instant::now()) && refusals.is_due(Instant::now() + AGAIN * 2));
        refusals.forget_old(Instant::now() + AGAIN * 2);
        assert_eq!(paths(&refusals.apply(now).0), ["/new"]);
    }

    #[test]
    fn without_a_place_all_that_is_new_is_left_out() {
        let mut refusals = Refusals::default();
        refusals.taken(&snapshot(&[("one", "/one")]));
        let now = snapshot(&[("one", "/one"), ("two", "/two")]);
        assert!(refusals.leave_out(&now, &statuses(&now), None, "why"));
        let (left, _) = refusals.apply(now);
        assert_eq!((paths(&left), left.gateway.gateways.len()), (vec!["/one".to_owned()], 1));
        // A Gateway that is new goes, and is told so.
        let mut refusals = Refusals::default();
        let now = snapshot(&[]);
        assert!(refusals.leave_out(&now, &statuses(&now), None, "why"));
        let (left, _) = refusals.apply(now);
        assert!(left.gateway.gateways.is_empty() && left.gateway.classes.len() == 1);
        let mut made = statuses(&left);
        refusals.report(&mut made);
        let web = &made.gateways[&id("Gateway", "web")];
        assert_eq!(told(&web.conditions, "Programmed"), "!Invalid");
        assert_eq!(made.generations[&id("Gateway", "web")], 3);
    }

    #[test]
    fn without_a_line_the_objects_that_weir_refuses_are_found() {
        let names: Vec<String> = (0..100).map(|n| format!("r{n}")).collect();
        let paths_of: Vec<String> = names.iter().map(|name| format!("/{name}")).collect();
        let list: Vec<_> = names
            .iter()
            .zip(&paths_of)
            .map(|(name, path)| (name.as_str(), path.as_str()))
            .collect();
        let all = snapshot(&list);
        let wrong = ["/r7", "/r31", "/r99"];
        for first in [None, Some(snapshot(&list[..50]))] {
            let mut refusals = Refusals::default();
            let known = first.is_some();
            // Of the first fifty, weir serves all: what was right stays right.
            let is_wrong = |path: &String| {
                wrong.contains(&path.as_str()) && !(known && paths_of[..50].contains(path))
            };
            first.iter().for_each(|first| refusals.taken(first));
            let mut offers = 0;
            let left = loop {
                offers += 1;
                let (left, _) = refusals.apply(all.clone());
                if paths(&left).iter().any(is_wrong) {
                    assert!(refusals.leave_out(&left, &statuses(&left), None, "why"));
                    continue;
                }
                refusals.taken(&left);
                assert!(!known || paths_of[..50].iter().all(|path| paths(&left).contains(path)));
                if !refusals.go_on() {
                    break left;
                }
            };
            let right: Vec<String> =
                paths_of.iter().filter(|path| !is_wrong(path)).cloned().collect();
            let mut found = paths(&left);
            found.sort_by_key(|path| paths_of.iter().position(|known| known == path));
            assert_eq!(found, right);
            assert_eq!(refusals.ids().len(), 100 - right.len());
            assert!(offers < 60, "{offers}");
            // They are offered again together, and left out without another search.
            refusals.forget_old(Instant::now() + AGAIN * 2);
            let (again, _) = refusals.apply(all.clone());
            assert_eq!(paths(&again).len(), 100);
            assert!(refusals.leave_out(&again, &statuses(&again), None, "why"));
            assert!(!refusals.searches());
            assert_eq!(paths(&refusals.apply(all.clone()).0).len(), right.len());
        }
    }

    #[test]
    fn a_search_finds_nothing_where_no_object_is_at_fault_and_ends_after_a_while() {
        let all = snapshot(&[("one", "/one"), ("two", "/two")]);
        let mut refusals = Refusals::default();
        let (left, _) = refusals.apply(all.clone());
        assert!(refusals.leave_out(&left, &statuses(&left), None, "why") && refusals.searches());
        let (left, _) = refusals.apply(all.clone());
        assert!(paths(&left).is_empty() && left.gateway.gateways.is_empty());
        // weir refuses what has none of them.
        assert!(!refusals.leave_out(&left, &statuses(&left), None, "why"));
        refusals.end_search();
        assert_eq!(paths(&refusals.apply(all.clone()).0), ["/one", "/two"]);
        refusals.taken(&snapshot(&[("one", "/one")]));
        assert!(refusals.give_up(&all, "why") && !refusals.give_up(&all, "why"));
        assert_eq!(paths(&refusals.apply(all).0), ["/one"]);
    }
}
