//! Assigns addresses to Gateways: each gets its own from a range, and keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::listeners::{age, class_names};
use super::objects::Gateway;
use crate::settings::Settings;
use crate::snapshot::Snapshot;

/// The addresses of all Gateways that weir serves, by namespace and name. The addresses in a
/// Gateway's spec come first, then those in its status, then the lowest free address of each range.
/// The same objects give the same addresses in each pod.
pub(crate) fn assign(
    snapshot: &Snapshot,
    settings: &Settings,
) -> BTreeMap<(String, String), Vec<String>> {
    let objects = &snapshot.gateway;
    let classes = class_names(objects, settings);
    let mut own: Vec<&Gateway> = objects
        .gateways
        .iter()
        .map(|one| &**one)
        .filter(|one| classes.contains(&one.spec.gateway_class_name))
        .collect();
    own.sort_by_key(|gateway| age(&gateway.metadata));
    let key = |gateway: &Gateway| {
        let (_, namespace, name) = age(&gateway.metadata);
        (namespace, name)
    };
    let read = |text: &String| -> Option<IpAddr> {
        let address = text.parse().ok()?;
        settings.gateway_ranges.iter().any(|range| range.has(&address)).then_some(address)
    };
    let mut given: BTreeMap<(String, String), Vec<IpAddr>> = BTreeMap::new();
    let (mut taken, mut shared) = (BTreeSet::new(), BTreeSet::new());
    for gateway in &own {
        let asked: Vec<IpAddr> =
            gateway.spec.addresses.iter().filter_map(|one| read(one.value.as_ref()?)).collect();
        if !asked.is_empty() {
            shared.extend(asked.iter().copied());
            given.insert(key(gateway), asked);
        }
    }
    let asked: BTreeSet<_> = given.keys().cloned().collect();
    let others = || own.iter().filter(|gateway| !asked.contains(&key(gateway)));
    for gateway in others() {
        let Some(kept) = objects.assigned.get(&key(gateway)) else { continue };
        // An address in a spec is not taken from a Gateway whose status has it. Both have it then.
        let kept: Vec<IpAddr> =
            kept.iter().filter_map(read).filter(|address| taken.insert(*address)).collect();
        given.insert(key(gateway), kept);
    }
    taken.extend(&shared);
    for gateway in others() {
        let list = given.entry(key(gateway)).or_default();
        for range in &settings.gateway_ranges {
            if list.iter().any(|address| range.has(address)) {
                continue;
            }
            if let Some(address) = range.free(&taken) {
                taken.insert(address);
                list.push(address);
            }
        }
    }
    let text = |list: Vec<IpAddr>| list.iter().map(IpAddr::to_string).collect();
    given.into_iter().map(|(key, list)| (key, text(list))).collect()
}

/// The addresses in a Gateway's spec, or all given ones if it has none; or the reason and message
/// of the refusal.
pub(super) fn wanted(
    gateway: &Gateway,
    given: &[String],
    published: &[String],
) -> (Vec<String>, Option<(&'static str, String)>) {
    let mut wanted = Vec::new();
    for address in &gateway.spec.addresses {
        let kind = address.r#type.as_deref().unwrap_or("IPAddress");
        if kind != "IPAddress" {
            return (
                Vec::new(),
                Some(("UnsupportedAddress", format!("the type {kind} is not supported"))),
            );
        }
        // Addresses of another scope do not satisfy the request.
        if let Some(scope) = address.routability.as_ref().filter(|scope| !scope.is_empty()) {
            let text = format!("addresses of the routability {scope} are not supported");
            return (Vec::new(), Some(("AddressNotAssigned", text)));
        }
        let Some(value) = address.value.as_ref().filter(|value| !value.is_empty()) else {
            continue;
        };
        // A Service in front of weir has this address, and forwards to all listening addresses.
        if published.contains(value) && is_any(given) {
            continue;
        }
        if !given.contains(value) {
            return (
                Vec::new(),
                Some(("AddressNotUsable", format!("{value} is no address of weir"))),
            );
        }
        wanted.push(value.clone());
    }
    if wanted.is_empty() {
        wanted = given.to_vec();
    }
    let none = || ("NoResources", "no address is free".to_owned());
    let refused = wanted.is_empty().then(none);
    (wanted, refused)
}

/// Whether one of the addresses is a wildcard, and so not a Gateway's own.
pub(super) fn is_any(addresses: &[String]) -> bool {
    addresses.iter().any(|address| address.is_empty() || address == "[::]")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The assignment for Gateways with these names, spec addresses and status addresses; the
    /// oldest first.
    fn given(ranges: &[&str], gateways: &[(&str, &[&str], &[&str])]) -> Vec<String> {
        let mut snapshot = Snapshot::default();
        let mut add = |object: serde_json::Value| {
            assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
        };
        for (name, controller) in [("weir", "weir.internal/gateway"), ("other", "x.test/other")] {
            add(json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
                "metadata": { "name": name }, "spec": { "controllerName": controller } }));
        }
        for (n, (name, asks, _)) in gateways.iter().enumerate() {
            let class = if name.starts_with("other") { "other" } else { "weir" };
            let addresses: Vec<_> = asks.iter().map(|one| json!({ "value": one })).collect();
            add(json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": { "name": name, "namespace": "a",
                    "creationTimestamp": format!("2020-01-01T00:00:{n:02}Z") },
                "spec": { "gatewayClassName": class, "addresses": addresses } }));
        }
        for (name, _, has) in gateways {
            let has = has.iter().map(|one| (*one).to_owned()).collect();
            snapshot.gateway.assigned.insert(("a".to_owned(), (*name).to_owned()), has);
        }
        let settings = Settings {
            gateway_ranges: ranges.iter().map(|one| one.parse().unwrap()).collect(),
            ..Settings::default()
        };
        let all = assign(&snapshot, &settings);
        all.into_iter().map(|((_, name), list)| format!("{name} {}", list.join(" "))).collect()
    }

    #[test]
    fn each_gateway_has_an_address_of_its_own_and_keeps_it() {
        let range = &["10.0.0.0/29"][..];
        for (what, gateways, wanted) in [
            (
                "the lowest",
                &[("a", &[][..], &[][..]), ("b", &[], &[])][..],
                "a 10.0.0.1, b 10.0.0.2",
            ),
            ("kept", &[("a", &[], &[]), ("b", &[], &["10.0.0.1"])], "a 10.0.0.2, b 10.0.0.1"),
            (
                "the older one keeps it",
                &[("a", &[], &["10.0.0.3"]), ("b", &[], &["10.0.0.3"])],
                "a 10.0.0.3, b 10.0.0.1",
            ),
            ("asked for", &[("a", &[], &[]), ("b", &["10.0.0.1"], &[])], "a 10.0.0.2, b 10.0.0.1"),
            (
                "asked for by a younger one",
                &[("a", &[], &["10.0.0.1"]), ("b", &["10.0.0.1"], &[])],
                "a 10.0.0.1, b 10.0.0.1",
            ),
            (
                "not of the range",
                &[("a", &["10.0.1.1"], &["10.0.1.1"]), ("b", &[], &[])],
                "a 10.0.0.1, b 10.0.0.2",
            ),
            ("not weir's", &[("other", &[], &["10.0.0.1"]), ("b", &[], &[])], "b 10.0.0.1"),
        ] {
            assert_eq!(given(range, gateways).join(", "), wanted, "{what}");
        }
        let full = [("a", &[][..], &[][..]), ("b", &[], &[]), ("c", &[], &[])];
        assert_eq!(given(&["10.0.0.8/31"], &full), ["a 10.0.0.8", "b 10.0.0.9", "c "]);
        let both = given(&["10.0.0.0/24", "fd00::/64"], &[("a", &[], &["10.0.0.9"])]);
        assert_eq!(both, ["a 10.0.0.9 fd00::"]);
    }
}
