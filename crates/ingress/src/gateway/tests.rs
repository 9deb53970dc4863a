//! Sentences of the specification about conditions, one table each.

use serde_json::{Value, json};

use super::{Condition, ListenerStatus, Statuses};
use crate::{Settings, Snapshot, translate};

fn object(kind: &str, namespace: &str, name: &str, born: u32, spec: Value) -> Value {
    json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
        "metadata": { "name": name, "namespace": namespace, "generation": 7,
            "creationTimestamp": format!("2020-01-01T00:00:{born:02}Z") }, "spec": spec })
}

fn class() -> Value {
    object("GatewayClass", "", "weir", 0, json!({ "controllerName": "weir.internal/gateway" }))
}

fn web(listeners: Value) -> Value {
    object("Gateway", "a", "web", 0, json!({ "gatewayClassName": "weir", "listeners": listeners }))
}

fn namespaces() -> Vec<Value> {
    ["a", "b", "c"]
        .map(|name| {
            json!({ "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } } })
        })
        .to_vec()
}

fn statuses(objects: Vec<Value>) -> Statuses {
    let mut snapshot = Snapshot::default();
    for object in objects.into_iter().chain(namespaces()) {
        assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
    }
    translate(&snapshot, &Settings::default()).statuses
}

fn of(list: &[Condition], kind: &str) -> String {
    match list.iter().find(|one| one.kind == kind) {
        Some(one) => format!("{}{}", if one.holds { "" } else { "!" }, one.reason),
        None => String::new(),
    }
}

fn gateway(statuses: &Statuses, kind: &str) -> String {
    let status = statuses.gateways.iter().find(|(id, _)| id.name == "web").unwrap().1;
    of(&status.conditions, kind)
}

fn listener<'s>(statuses: &'s Statuses, owner: &str, name: &str) -> &'s ListenerStatus {
    let mut all = statuses.gateways.iter().chain(&statuses.listener_sets);
    let status = all.find(|(id, _)| id.name == owner).unwrap().1;
    status.listeners.iter().find(|one| one.name == name).unwrap()
}

fn http(name: &str, port: u16) -> Value {
    json!({ "name": name, "port": port, "protocol": "HTTP" })
}

#[test]
fn a_class_of_another_controller_is_not_judged() {
    let other = object("GatewayClass", "", "other", 0, json!({ "controllerName": "x.test/other" }));
    let gateway = object(
        "Gateway",
        "a",
        "theirs",
        0,
        json!({ "gatewayClassName": "other", "listeners": [http("l", 80)] }),
    );
    let params = object(
        "GatewayClass",
        "",
        "params",
        0,
        json!({ "controllerName": "weir.internal/gateway",
        "parametersRef": { "group": "", "kind": "ConfigMap", "name": "x" } }),
    );
    let all = statuses(vec![class(), other, params, gateway]);
    let told: Vec<(String, String)> =
        all.classes.iter().map(|(id, list)| (id.name.clone(), of(list, "Accepted"))).collect();
    assert_eq!(
        told,
        [
            ("params".to_owned(), "!InvalidParameters".to_owned()),
            ("weir".to_owned(), "Accepted".to_owned())
        ]
    );
    assert!(all.gateways.is_empty());
}

#[test]
fn listeners_are_judged_by_protocol_kinds_and_port() {
    let kinds = |list: Value| json!({ "name": "l", "port": 80, "protocol": "HTTP", "allowedRoutes": { "kinds": list } });
    for (what, listeners, accepted, resolved, supported, gateway_says) in [
        (
            "plain",
            json!([http("l", 80)]),
            "Accepted",
            "ResolvedRefs",
            &["HTTPRoute", "GRPCRoute"][..],
            ("Accepted", "Programmed"),
        ),
        (
            "protocol",
            json!([{ "name": "l", "port": 80, "protocol": "SCTP" }]),
            "!UnsupportedProtocol",
            "ResolvedRefs",
            &[],
            ("!ListenersNotValid", "!Invalid"),
        ),
        (
            "one of two",
            json!([{ "name": "l", "port": 81, "protocol": "x.test/P" }, http("m", 80)]),
            "!UnsupportedProtocol",
            "ResolvedRefs",
            &[],
            ("ListenersNotValid", "Programmed"),
        ),
        (
            "kinds",
            json!([kinds(json!([{ "kind": "HTTPRoute" }]))]),
            "Accepted",
            "ResolvedRefs",
            &["HTTPRoute"],
            ("Accepted", "Programmed"),
        ),
        (
            "a wrong kind",
            json!([kinds(json!([{ "kind": "TLSRoute" }]))]),
            "Accepted",
            "!InvalidRouteKinds",
            &[],
            ("Accepted", "!Invalid"),
        ),
        (
            "a wrong group",
            json!([kinds(json!([{ "group": "x.test", "kind": "HTTPRoute" }]))]),
            "Accepted",
            "!InvalidRouteKinds",
            &[],
            ("Accepted", "!Invalid"),
        ),
        (
            "one wrong kind",
            json!([kinds(json!([{ "kind": "Bad" }, { "kind": "HTTPRoute" }]))]),
            "Accepted",
            "!InvalidRouteKinds",
            &["HTTPRoute"],
            ("Accepted", "Programmed"),
        ),
        (
            "no certificate",
            json!([{ "name": "l", "port": 443, "protocol": "HTTPS", "tls": { "certificateRefs": [{ "name": "none" }] } }]),
            "Accepted",
            "!InvalidCertificateRef",
            &["HTTPRoute", "GRPCRoute"],
            ("Accepted", "!Invalid"),
        ),
        (
            "a certificate of another namespace",
            json!([{ "name": "l", "port": 443, "protocol": "HTTPS", "tls": { "certificateRefs": [{ "name": "none", "namespace": "b" }] } }]),
            "Accepted",
            "!RefNotPermitted",
            &["HTTPRoute", "GRPCRoute"],
            ("Accepted", "!Invalid"),
        ),
        (
            "two protocols",
            json!([http("m", 443), { "name": "l", "port": 443, "protocol": "TCP" }]),
            "!ProtocolConflict",
            "ResolvedRefs",
            &["TCPRoute"],
            ("ListenersNotValid", "Programmed"),
        ),
        (
            "two names",
            json!([http("m", 80), http("l", 80)]),
            "!HostnameConflict",
            "ResolvedRefs",
            &["HTTPRoute", "GRPCRoute"],
            ("ListenersNotValid", "Programmed"),
        ),
        (
            "datagrams beside",
            json!([http("m", 80), { "name": "l", "port": 80, "protocol": "UDP" }]),
            "Accepted",
            "ResolvedRefs",
            &["UDPRoute"],
            ("Accepted", "Programmed"),
        ),
    ] {
        let all = statuses(vec![class(), web(listeners)]);
        let one = listener(&all, "web", "l");
        assert_eq!(of(&one.conditions, "Accepted"), accepted, "{what}");
        assert_eq!(of(&one.conditions, "ResolvedRefs"), resolved, "{what}");
        assert_eq!(one.supported_kinds, supported, "{what}");
        let said = (gateway(&all, "Accepted"), gateway(&all, "Programmed"));
        assert_eq!((said.0.as_str(), said.1.as_str()), gateway_says, "{what}");
    }
}

#[test]
fn routes_are_told_why_a_parent_does_not_take_them() {
    let selector = json!({ "namespaces": { "from": "Selector", "selector": { "matchExpressions": [
        { "key": "kubernetes.io/metadata.name", "operator": "In", "values": ["b"] }] } } });
    let listeners = json!([
        { "name": "same", "port": 80, "protocol": "HTTP", "hostname": "*.same.test" },
        { "name": "b", "port": 81, "protocol": "HTTP", "allowedRoutes": selector },
        { "name": "tcp", "port": 82, "protocol": "TCP", "allowedRoutes": { "namespaces": { "from": "All" } } },
    ]);
    for (kind, namespace, parent, hosts, wanted) in [
        ("HTTPRoute", "a", json!({ "name": "web" }), json!(["x.same.test"]), "Accepted"),
        ("HTTPRoute", "a", json!({ "name": "web" }), json!([]), "Accepted"),
        (
            "HTTPRoute",
            "a",
            json!({ "name": "web" }),
            json!(["same.test"]),
            "!NoMatchingListenerHostname",
        ),
        (
            "HTTPRoute",
            "a",
            json!({ "name": "web", "sectionName": "none" }),
            json!([]),
            "!NoMatchingParent",
        ),
        ("HTTPRoute", "a", json!({ "name": "web", "port": 8080 }), json!([]), "!NoMatchingParent"),
        (
            "HTTPRoute",
            "a",
            json!({ "name": "web", "sectionName": "same", "port": 81 }),
            json!([]),
            "!NoMatchingParent",
        ),
        (
            "HTTPRoute",
            "a",
            json!({ "name": "web", "sectionName": "same", "port": 80 }),
            json!([]),
            "Accepted",
        ),
        (
            "HTTPRoute",
            "b",
            json!({ "name": "web", "namespace": "a", "sectionName": "same" }),
            json!([]),
            "!NotAllowedByListeners",
        ),
        ("HTTPRoute", "b", json!({ "name": "web", "namespace": "a" }), json!([]), "Accepted"),
        (
            "HTTPRoute",
            "c",
            json!({ "name": "web", "namespace": "a" }),
            json!([]),
            "!NotAllowedByListeners",
        ),
        (
            "HTTPRoute",
            "c",
            json!({ "name": "web", "namespace": "a", "sectionName": "tcp" }),
            json!([]),
            "!NotAllowedByListeners",
        ),
        ("TCPRoute", "c", json!({ "name": "web", "namespace": "a" }), json!([]), "Accepted"),
        (
            "TCPRoute",
            "a",
            json!({ "name": "web", "sectionName": "same" }),
            json!([]),
            "!NotAllowedByListeners",
        ),
        ("TLSRoute", "a", json!({ "name": "web" }), json!(["x.test"]), "!NotAllowedByListeners"),
        ("HTTPRoute", "a", json!({ "name": "unknown" }), json!([]), ""),
        ("HTTPRoute", "b", json!({ "name": "web" }), json!([]), ""),
        ("HTTPRoute", "a", json!({ "name": "web", "kind": "Service", "group": "" }), json!([]), ""),
    ] {
        let route = object(
            kind,
            namespace,
            "r",
            1,
            json!({ "parentRefs": [parent], "hostnames": hosts,
            "rules": [{ "backendRefs": [{ "name": "s", "port": 80 }] }] }),
        );
        let all = statuses(vec![class(), web(listeners.clone()), route]);
        let told = all.routes.values().next().map(|parents| of(&parents[0].conditions, "Accepted"));
        assert_eq!(told.unwrap_or_default(), wanted, "{kind} {namespace} {parent} {hosts}");
        let attached: u32 =
            all.gateways.values().flat_map(|g| &g.listeners).map(|l| l.attached_routes).sum();
        assert_eq!(attached > 0, wanted == "Accepted", "{parent}");
    }
}

#[test]
fn listener_sets_join_where_they_are_allowed_and_the_oldest_wins() {
    let set = |namespace: &str, name: &str, born: u32, listeners: Value| {
        object(
            "ListenerSet",
            namespace,
            name,
            born,
            json!({ "parentRef": { "name": "web", "namespace": "a" }, "listeners": listeners }),
        )
    };
    let allowing = |from: &str| {
        object(
            "Gateway",
            "a",
            "web",
            0,
            json!({ "gatewayClassName": "weir", "listeners": [http("own", 80)],
            "allowedListeners": { "namespaces": { "from": from } } }),
        )
    };
    for (from, namespace, accepted, programmed) in [
        ("None", "a", "!NotAllowed", "!NotAllowed"),
        ("Same", "a", "Accepted", "Programmed"),
        ("Same", "b", "!NotAllowed", "!NotAllowed"),
        ("All", "b", "Accepted", "Programmed"),
    ] {
        let all = statuses(vec![
            class(),
            allowing(from),
            set(namespace, "set", 1, json!([http("more", 81)])),
        ]);
        let (_, status) = all.listener_sets.iter().next().unwrap();
        let told = (of(&status.conditions, "Accepted"), of(&status.conditions, "Programmed"));
        assert_eq!(
            (told.0.as_str(), told.1.as_str()),
            (accepted, programmed),
            "{from} {namespace}"
        );
        let joined = all.gateways.values().next().unwrap().attached_listener_sets;
        assert_eq!(joined, u32::from(accepted == "Accepted"));
    }
    // The Gateway's own listeners come first, then older sets, then names in order.
    let route = object(
        "HTTPRoute",
        "b",
        "r",
        5,
        json!({ "parentRefs": [{ "kind": "ListenerSet", "name": "old", "namespace": "b" }],
        "rules": [{}] }),
    );
    let all = statuses(vec![
        class(),
        allowing("All"),
        set("b", "young", 3, json!([http("l", 90)])),
        set("b", "old", 2, json!([http("l", 90), http("taken", 80)])),
        route,
    ]);
    assert_eq!(of(&listener(&all, "old", "l").conditions, "Accepted"), "Accepted");
    assert_eq!(listener(&all, "old", "l").attached_routes, 1);
    for kind in ["Accepted", "Programmed"] {
        assert_eq!(of(&listener(&all, "old", "taken").conditions, kind), "!HostnameConflict");
        assert_eq!(of(&listener(&all, "young", "l").conditions, kind), "!HostnameConflict");
    }
    assert_eq!(of(&listener(&all, "young", "l").conditions, "Conflicted"), "HostnameConflict");
    let told = |name: &str, kind: &str| {
        of(&all.listener_sets.iter().find(|(id, _)| id.name == name).unwrap().1.conditions, kind)
    };
    assert_eq!(
        (told("old", "Accepted"), told("old", "Programmed")),
        ("ListenersNotValid".to_owned(), "Programmed".to_owned())
    );
    assert_eq!(
        (told("young", "Accepted"), told("young", "Programmed")),
        ("!ListenersNotValid".to_owned(), "!ListenersNotValid".to_owned())
    );
    assert_eq!(listener(&all, "web", "own").attached_routes, 0);
}

#[test]
fn statuses_are_documents_of_the_api() {
    let route = object(
        "HTTPRoute",
        "a",
        "r",
        1,
        json!({ "parentRefs": [{ "name": "web", "sectionName": "l" }], "rules": [{}] }),
    );
    let all = statuses(vec![class(), web(json!([http("l", 80)])), route]);
    let documents = all.documents("weir.internal/gateway");
    let of = |kind: &str| &documents.iter().find(|(id, _)| id.kind == kind).unwrap().1;
    assert_eq!(of("GatewayClass")["conditions"][0]["type"], "Accepted");
    let listener = &of("Gateway")["listeners"][0];
    assert_eq!((&listener["attachedRoutes"], &listener["name"]), (&json!(1), &json!("l")));
    assert_eq!(
        listener["supportedKinds"][0],
        json!({ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute" })
    );
    let parent = &of("HTTPRoute")["parents"][0];
    assert_eq!(parent["parentRef"], json!({ "name": "web", "sectionName": "l" }));
    assert_eq!(parent["controllerName"], "weir.internal/gateway");
    assert_eq!(parent["conditions"][0]["observedGeneration"], 7);
    assert_eq!(parent["conditions"][0]["status"], "True");
}
