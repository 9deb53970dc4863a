//! The specification's statements about conditions, one table each.

use serde_json::{Value, json};

mod listeners;
mod summaries;

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
    let documents = all.documents("weir.internal/gateway", false);
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

#[test]
fn a_listener_shares_a_port_of_ingresses_in_their_protocol_alone() {
    let listener = |port: u16, protocol: &str| json!([{ "name": "l", "port": port, "protocol": protocol, "tls": { "mode": "Passthrough" } }]);
    let ingress = json!({ "kind": "Ingress", "metadata": { "name": "i", "namespace": "a" },
        "spec": { "rules": [{ "host": "a.test", "http": { "paths": [{ "path": "/", "pathType": "Prefix",
            "backend": { "service": { "name": "app", "port": { "number": 80 } } } }] } }] } });
    for (port, protocol, addresses, with_ingress, wanted) in [
        (80, "HTTP", &["", "[::]"][..], true, "Accepted"),
        (80, "HTTP", &["10.0.0.1"], true, "Accepted"),
        (443, "HTTP", &["", "[::]"], true, "!PortUnavailable"),
        (443, "HTTP", &["10.0.0.1"], true, "!PortUnavailable"),
        (443, "HTTP", &["", "[::]"], false, "Accepted"),
        (80, "TCP", &["", "[::]"], true, "!PortUnavailable"),
        (443, "TLS", &["", "[::]"], true, "!PortUnavailable"),
        (443, "UDP", &["", "[::]"], true, "Accepted"),
        (444, "TCP", &["", "[::]"], true, "Accepted"),
        // The port that listens for another one cannot be used by its own number.
        (8080, "HTTP", &["", "[::]"], true, "!PortUnavailable"),
    ] {
        let mut snapshot = Snapshot::default();
        let mut objects = vec![class(), web(listener(port, protocol))];
        objects.extend(with_ingress.then(|| ingress.clone()));
        for object in objects {
            assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
        }
        let words = |port: &str| vec![port.to_owned(), format!("[::]:{port}")];
        let settings = Settings {
            without_class: true,
            http: words("8080"),
            https: words("8443"),
            gateway_ports: [(80, 8080), (443, 8443)].into(),
            closed_ports: [8080].into(),
            gateway_addresses: addresses.iter().map(|one| (*one).to_owned()).collect(),
            ..Settings::default()
        };
        let all = translate(&snapshot, &settings).statuses;
        let told = of(&listener_of(&all).conditions, "Accepted");
        assert_eq!(told, wanted, "{port} {protocol} {addresses:?} {with_ingress}");
    }
}

fn listener_of(statuses: &Statuses) -> &ListenerStatus {
    listener(statuses, "web", "l")
}

#[test]
fn a_port_may_stand_for_the_one_of_a_listener() {
    let mut snapshot = Snapshot::default();
    for object in [class(), web(json!([http("l", 80), http("m", 81)]))] {
        assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
    }
    let settings = Settings {
        gateway_ports: [(80, 8080)].into(),
        gateway_addresses: vec!["10.0.0.1".to_owned()],
        ..Settings::default()
    };
    let text = translate(&snapshot, &settings).text.print().unwrap();
    let text = String::from_utf8(text).unwrap();
    let has = |word: &str| text.contains(&format!("listen {word} default_server;"));
    assert!(has("10.0.0.1:8080") && has("10.0.0.1:81") && !has("10.0.0.1:80"), "{text}");
}

#[test]
fn addresses_are_told_and_a_gateway_without_one_is_not_served() {
    let listeners = json!([http("l", 80)]);
    for (given, published, asked, addresses, programmed) in [
        (&[""][..], &["192.0.2.1", "x.test"][..], None, &["192.0.2.1", "x.test"][..], "Programmed"),
        (&["10.0.0.1"], &["192.0.2.1"], None, &["10.0.0.1"], "Programmed"),
        (&[""], &["192.0.2.1"], Some("192.0.2.1"), &["192.0.2.1"], "Programmed"),
        (&[""], &["192.0.2.1"], Some("192.0.2.2"), &[], "!AddressNotUsable"),
        (&["10.0.0.1"], &["192.0.2.1"], Some("192.0.2.1"), &[], "!AddressNotUsable"),
        (&[], &["192.0.2.1"], None, &[], "!NoResources"),
    ] {
        let spec = json!({ "gatewayClassName": "weir", "listeners": listeners,
            "addresses": asked.map(|one| json!({ "value": one })).into_iter().collect::<Vec<_>>() });
        let mut snapshot = Snapshot::default();
        for object in [class(), object("Gateway", "a", "web", 0, spec)] {
            assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
        }
        let words = |list: &[&str]| list.iter().map(|one| (*one).to_owned()).collect();
        let settings = Settings {
            gateway_addresses: words(given),
            published: words(published),
            ..Settings::default()
        };
        let made = translate(&snapshot, &settings);
        assert_eq!(gateway(&made.statuses, "Programmed"), programmed, "{given:?} {asked:?}");
        assert_eq!(gateway(&made.statuses, "Accepted"), "Accepted", "{given:?} {asked:?}");
        let status = made.statuses.gateways.values().next().unwrap();
        assert_eq!(status.addresses, addresses, "{given:?} {asked:?}");
        let text = String::from_utf8(made.text.print().unwrap()).unwrap();
        assert_eq!(text.contains("default_server"), !programmed.starts_with('!'), "{text}");
    }
}

#[test]
fn a_gateway_waits_for_the_address_of_the_service_in_front() {
    let mut snapshot = Snapshot::default();
    let spec = json!({ "gatewayClassName": "weir", "listeners": [http("l", 80)] });
    for object in [class(), object("Gateway", "a", "web", 0, spec)] {
        assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
    }
    let settings = Settings { awaits_address: true, ..Settings::default() };
    let made = translate(&snapshot, &settings);
    assert_eq!(gateway(&made.statuses, "Accepted"), "Accepted");
    assert_eq!(gateway(&made.statuses, "Programmed"), "!AddressNotAssigned");
    // It is served all the same: the load balancer may forward before its address is known.
    let text = String::from_utf8(made.text.print().unwrap()).unwrap();
    assert!(text.contains("default_server"), "{text}");
}

#[test]
fn each_line_leads_to_the_route_or_gateway_that_asked_for_it() {
    let route = |name: &str, path: &str, kind: &str| {
        let matches = json!([{ "path": { "type": kind, "value": path }, "method": "PUT" }]);
        object(
            "HTTPRoute",
            "a",
            name,
            1,
            json!({ "parentRefs": [{ "name": "web" }],
            "rules": [{ "matches": matches, "filters": [{ "type": "RequestRedirect",
                "requestRedirect": { "hostname": format!("{name}.test") } }] }] }),
        )
    };
    let tcp = json!({ "name": "t", "port": 81, "protocol": "TCP" });
    let raw = object(
        "TCPRoute",
        "a",
        "raw",
        1,
        json!({ "parentRefs": [{ "name": "web", "sectionName": "t" }],
        "rules": [{ "backendRefs": [{ "name": "app", "port": 80 }] }] }),
    );
    let mut snapshot = Snapshot::default();
    for object in [
        class(),
        web(json!([http("l", 80), tcp])),
        route("one", "/one", "Exact"),
        route("two", "/two.*", "RegularExpression"),
        raw,
    ] {
        assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
    }
    let made = translate(&snapshot, &Settings::default());
    let text = String::from_utf8(made.text.print().unwrap()).unwrap();
    let owner = |of: &str, after: u32| {
        let line = text.lines().position(|line| line.contains(of)).unwrap() as u32 + 1 + after;
        made.text.owner(line).map(|id| id.name.clone()).unwrap_or_default()
    };
    for (of, after, wanted) in [
        ("location = /one", 1, "one"),
        ("location ~ ", 0, "two"),
        ("location ~ ", 1, "two"),
        ("location @http_a_one_0", 1, "one"),
        ("location = /one", 0, "web"),
        ("listen 81", 0, "web"),
        ("server_tokens", 0, ""),
    ] {
        assert_eq!(owner(of, after), wanted, "{of} + {after}: {text}");
    }
}

#[test]
fn a_listener_set_whose_listeners_name_what_they_may_not_is_not_accepted() {
    let gateway = object(
        "Gateway",
        "a",
        "web",
        0,
        json!({ "gatewayClassName": "weir",
        "listeners": [http("own", 80)], "allowedListeners": { "namespaces": { "from": "All" } } }),
    );
    let secret = json!([{ "name": "c", "namespace": "c" }]);
    let https = json!({ "name": "x", "port": 443, "protocol": "HTTPS", "tls": { "certificateRefs": secret } });
    for (listeners, accepted, programmed) in [
        (json!([https]), "!ListenersNotValid", "!ListenersNotValid"),
        (json!([https, http("y", 81)]), "ListenersNotValid", "Programmed"),
        (json!([http("y", 81)]), "Accepted", "Programmed"),
    ] {
        let spec =
            json!({ "parentRef": { "name": "web", "namespace": "a" }, "listeners": listeners });
        let set = object("ListenerSet", "b", "set", 1, spec);
        let all = statuses(vec![class(), gateway.clone(), set]);
        let (_, status) = all.listener_sets.iter().next().unwrap();
        let told = (of(&status.conditions, "Accepted"), of(&status.conditions, "Programmed"));
        assert_eq!((told.0.as_str(), told.1.as_str()), (accepted, programmed), "{listeners}");
        let joined = all.gateways.values().next().unwrap().attached_listener_sets;
        assert_eq!(joined, u32::from(!accepted.starts_with('!')), "{listeners}");
    }
}
