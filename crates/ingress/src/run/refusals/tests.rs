//! Tests of refusals.

use serde_json::json;

use super::*;
use crate::{Settings, translate};

/// A Gateway, and routes with one path each.
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

/// A condition as a word: its reason, with ! in front if it does not hold.
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
    assert_eq!(told(&made.routes[&id("HTTPRoute", "one")][0].conditions, "Accepted"), "Accepted");
    // A changed object is offered again.
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
    assert!(!refusals.is_due(Instant::now()) && refusals.is_due(Instant::now() + OFFER_AGAIN * 2));
    refusals.forget_old(Instant::now() + OFFER_AGAIN * 2);
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
    // A new Gateway is left out, and its status says so.
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
    let list: Vec<_> =
        names.iter().zip(&paths_of).map(|(name, path)| (name.as_str(), path.as_str())).collect();
    let all = snapshot(&list);
    let wrong = ["/r7", "/r31", "/r99"];
    for first in [None, Some(snapshot(&list[..50]))] {
        let mut refusals = Refusals::default();
        let known = first.is_some();
        // weir serves the first fifty, so none of them is at fault.
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
            if !refusals.offer_next() {
                break left;
            }
        };
        let right: Vec<String> = paths_of.iter().filter(|path| !is_wrong(path)).cloned().collect();
        let mut found = paths(&left);
        found.sort_by_key(|path| paths_of.iter().position(|known| known == path));
        assert_eq!(found, right);
        assert_eq!(refusals.ids().len(), 100 - right.len());
        assert!(offers < 60, "{offers}");
        // They are offered again together, and are refused without another search.
        refusals.forget_old(Instant::now() + OFFER_AGAIN * 2);
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
    // weir refuses the configuration without any of them, too.
    assert!(!refusals.leave_out(&left, &statuses(&left), None, "why"));
    refusals.end_search();
    assert_eq!(paths(&refusals.apply(all.clone()).0), ["/one", "/two"]);
    refusals.taken(&snapshot(&[("one", "/one")]));
    // What is new is held back at first, and refused in groups.
    let mut give_up = |all: &Snapshot| refusals.give_up(all, &statuses(all), None, "why");
    assert!(give_up(&all));
}

/// An Ingress of a namespace.
fn ingress(namespace: &str, name: &str) -> serde_json::Value {
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": { "name": name, "namespace": namespace } })
}

#[test]
fn a_namespace_with_very_many_refusals_takes_no_other_with_it() {
    let mut all = Snapshot::default();
    for n in 0..100 {
        for namespace in ["evil", "good", "other"] {
            let object = ingress(namespace, &format!("i{n:02}"));
            assert_eq!(all.add_text(&object.to_string()), Vec::<String>::new());
        }
    }
    let count = |snapshot: &Snapshot, wanted: &str| {
        let of = |one: &&Arc<Ingress>| one.metadata.namespace.as_deref() == Some(wanted);
        snapshot.ingresses.iter().filter(of).count()
    };
    // weir refuses each second one of the namespace, and says which, or does not.
    for is_named in [true, false] {
        let mut refusals = Refusals::default();
        let (mut offers, mut longest) = (0, 20);
        let left = loop {
            offers += 1;
            let (left, _) = refusals.apply(all.clone());
            let now = subjects(&left);
            let wrong = now
                .keys()
                .find(|id| id.namespace == "evil" && id.name.ends_with(['1', '3', '5', '7', '9']));
            let Some(wrong) = wrong else {
                refusals.taken(&left);
                if refusals.offer_next() {
                    continue;
                }
                break left;
            };
            let owner = is_named.then_some(wrong);
            let searched = refusals.searches();
            let left_out = match offers > longest {
                true => refusals.give_up(&left, &Statuses::default(), owner, "why"),
                false => refusals.leave_out(&left, &Statuses::default(), owner, "why"),
            };
            assert!(left_out);
            if refusals.searches() && !searched {
                longest = offers + 20;
            }
        };
        assert_eq!((count(&left, "good"), count(&left, "other")), (100, 100), "{is_named}");
        assert!(offers < 70, "{offers}");
        // Offered again later, they are refused together.
        refusals.forget_old(Instant::now() + OFFER_AGAIN * 2);
        let (again, _) = refusals.apply(all.clone());
        assert_eq!(again.ingresses.len(), 300);
        let wrong = subjects(&again).into_keys().find(|id| id.name == "i01");
        let owner = wrong.as_ref().filter(|_| is_named);
        assert!(refusals.leave_out(&again, &Statuses::default(), owner, "why"));
        assert!(!refusals.searches());
        assert_eq!(refusals.apply(all.clone()).0.ingresses.len(), left.ingresses.len());
    }
}
