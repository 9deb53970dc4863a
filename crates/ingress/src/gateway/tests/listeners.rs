//! Listeners with more than a port and a name.

use serde_json::{Value, json};

use super::{class, gateway, http, listener, namespaces, object, of, statuses, web};
use crate::{Settings, Snapshot, translate};

#[test]
fn a_listener_may_ask_for_its_certificate() {
    let asks = |protocol: &str, host: Option<&str>, value: &str| {
        let mut one = json!({ "name": "l", "port": 443, "protocol": protocol,
            "tls": { "options": { "weir.internal/acme": value } } });
        if let Some(host) = host {
            one["hostname"] = json!(host);
        }
        one
    };
    let route = json!({ "parentRefs": [{ "name": "web" }] });
    let judged = |issuer: Option<&str>, listener_spec: &Value| {
        let mut snapshot = Snapshot::default();
        let objects = [
            class(),
            web(json!([listener_spec])),
            object("HTTPRoute", "a", "route", 0, route.clone()),
        ];
        for object in objects.into_iter().chain(namespaces()) {
            assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
        }
        let base = "http { acme_issuer ours { uri https://acme.test/dir; } }";
        let base = weir_conf::read_fragment(std::path::Path::new("base"), base.as_bytes()).main;
        let acme_issuer = issuer.map(str::to_owned);
        let made = translate(&snapshot, &Settings { base, acme_issuer, ..Settings::default() });
        let text = String::from_utf8(made.text.print().unwrap()).unwrap();
        let lines = text.lines().filter(|line| line.contains("acme_certificate"));
        let lines: Vec<String> = lines.map(|line| line.trim().to_owned()).collect();
        let conditions = &listener(&made.statuses, "web", "l").conditions;
        (of(conditions, "ResolvedRefs"), of(conditions, "Programmed"), lines.join(" "))
    };
    let good = asks("HTTPS", Some("a.test"), "true");
    let told = judged(Some("ours"), &good);
    let line = "acme_certificate ours a.test;".to_owned();
    assert_eq!(told, ("ResolvedRefs".to_owned(), "Programmed".to_owned(), line));
    for (issuer, listener_spec) in [
        (None, good.clone()),
        (Some("ours"), asks("HTTPS", Some("a.test"), "false")),
        (Some("ours"), asks("HTTPS", Some("*.a.test"), "true")),
        (Some("ours"), asks("HTTPS", None, "true")),
        (Some("ours"), asks("TLS", Some("a.test"), "true")),
    ] {
        let told = judged(issuer, &listener_spec);
        let wanted = ("!InvalidCertificateRef".to_owned(), "!Invalid".to_owned(), String::new());
        assert_eq!(told, wanted, "{issuer:?} {listener_spec}");
    }
}

#[test]
fn a_listener_with_filters_before_routes_is_not_served() {
    let filtered = |filters: Value| {
        let mut one = http("l", 80);
        one["filters"] = filters;
        one
    };
    let auth = json!({ "type": "ExternalAuth", "externalAuth": { "protocol": "HTTP",
        "backendRef": { "name": "judge", "port": 80 } } });
    let other = json!({ "type": "ExtensionRef", "extensionRef":
        { "group": "x.test", "kind": "Filter", "name": "f" } });
    let told = |listener_spec: Value| {
        let all = statuses(vec![class(), web(json!([listener_spec]))]);
        let conditions = &listener(&all, "web", "l").conditions;
        let message = conditions.iter().find(|one| one.kind == "Accepted").unwrap().message.clone();
        (
            of(conditions, "Accepted"),
            gateway(&all, "Accepted"),
            gateway(&all, "Programmed"),
            message,
        )
    };
    for (filters, named) in [
        (json!({ "requests": [auth.clone()] }), "filters.requests[0]: ExternalAuth"),
        (json!({ "requests": [other, auth] }), "filters.requests[0]: ExtensionRef"),
    ] {
        let (accepted, gateway_accepted, programmed, message) = told(filtered(filters));
        assert_eq!(
            (accepted.as_str(), gateway_accepted.as_str(), programmed.as_str()),
            ("!UnsupportedValue", "!ListenersNotValid", "!Invalid")
        );
        assert!(message.starts_with(named), "{message}");
    }
    for none in [json!({}), json!({ "requests": [] })] {
        assert_eq!(told(filtered(none)).0, "Accepted");
    }
}

#[test]
fn a_gateway_that_asks_for_another_scope_of_addresses_is_not_served() {
    let told = |routability: &str| {
        let spec = json!({ "gatewayClassName": "weir", "listeners": [http("l", 80)],
            "addresses": [{ "type": "IPAddress", "routability": routability }] });
        let all = statuses(vec![class(), object("Gateway", "a", "web", 0, spec)]);
        let addresses = all.gateways.values().next().unwrap().addresses.len();
        (gateway(&all, "Accepted"), gateway(&all, "Programmed"), addresses)
    };
    let refused = ("Accepted".to_owned(), "!AddressNotAssigned".to_owned(), 0);
    assert_eq!(told("Cluster"), refused);
    assert_eq!(told("example.com/inside"), refused);
    assert_eq!(told("").1, "Programmed");
}

#[test]
fn a_listener_may_have_a_name_that_is_a_word_of_a_map() {
    let names = ["default", "hostnames", "include", "volatile"];
    let listeners = names.map(|name| {
        json!({ "name": name, "port": 443, "protocol": "HTTPS", "hostname": name,
            "tls": { "options": { "weir.internal/acme": "true" } } })
    });
    let mut snapshot = Snapshot::default();
    let objects = [class(), web(json!(listeners))].into_iter().chain(namespaces());
    for object in objects {
        assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
    }
    let base = "http { acme_issuer ours { uri https://acme.test/dir; } }";
    let base = weir_conf::read_fragment(std::path::Path::new("base"), base.as_bytes()).main;
    let acme_issuer = Some("ours".to_owned());
    let made = translate(&snapshot, &Settings { base, acme_issuer, ..Settings::default() });
    let text = String::from_utf8(made.text.print().unwrap()).unwrap();
    for (n, name) in names.iter().enumerate() {
        assert!(text.contains(&format!("\"\\\\{name}\" {n};")), "{name}: {text}");
    }
}

#[test]
fn a_route_of_a_listener_set_that_is_not_allowed_is_told_so() {
    let told = |from: &str| {
        let spec = json!({ "gatewayClassName": "weir", "listeners": [http("own", 80)],
            "allowedListeners": { "namespaces": { "from": from } } });
        let set = json!({ "parentRef": { "name": "web" }, "listeners": [http("more", 81)] });
        let parent = json!({ "kind": "ListenerSet", "name": "set" });
        let all = statuses(vec![
            class(),
            object("Gateway", "a", "web", 0, spec),
            object("ListenerSet", "a", "set", 1, set),
            object("HTTPRoute", "a", "r", 2, json!({ "parentRefs": [parent], "rules": [{}] })),
        ]);
        let parents: Vec<_> = all.routes.values().flatten().collect();
        parents.iter().map(|one| of(&one.conditions, "Accepted")).collect::<Vec<_>>()
    };
    assert_eq!(told("None"), ["!NoMatchingParent"]);
    assert_eq!(told("Same"), ["Accepted"]);
}

#[test]
fn a_listener_keeps_the_certificate_before_where_its_secret_cannot_be_used() {
    let secret = |key: &str| {
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "cert", "namespace": "a" },
            "stringData": { "tls.crt": include_str!("../../../../tls/testdata/leaf.pem"), "tls.key": key } })
    };
    let key = include_str!("../../../../tls/testdata/leaf.key");
    let spec = json!([{ "name": "l", "port": 443, "protocol": "HTTPS", "tls": { "certificateRefs": [{ "name": "cert" }] } }]);
    let mut snapshot = Snapshot::default();
    let objects = [class(), web(spec), secret(&key[..100])];
    for object in objects.into_iter().chain(namespaces()) {
        assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
    }
    let told = |snapshot: &Snapshot| {
        let made = translate(snapshot, &Settings::default());
        let conditions = &listener(&made.statuses, "web", "l").conditions;
        let text = String::from_utf8(made.text.print().unwrap()).unwrap();
        let served = text.lines().any(|line| line.contains("ssl_certificate "));
        (of(conditions, "ResolvedRefs"), of(conditions, "Programmed"), served)
    };
    let wrong = "!InvalidCertificateRef".to_owned();
    assert_eq!(told(&snapshot), (wrong.clone(), "!Invalid".to_owned(), false));
    let mut before = Snapshot::default();
    before.add_text(&secret(key).to_string());
    snapshot.kept_secrets = before.secrets;
    assert_eq!(told(&snapshot), (wrong, "Programmed".to_owned(), true));
}

#[test]
fn a_certificate_for_servers_behind_that_stays_in_use_is_told_of() {
    let secret = |key: &str| {
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "cert", "namespace": "a" },
            "stringData": { "tls.crt": include_str!("../../../../tls/testdata/leaf.pem"), "tls.key": key } })
    };
    let key = include_str!("../../../../tls/testdata/leaf.key");
    let mut gateway = web(json!([http("l", 80)]));
    gateway["spec"]["tls"] = json!({ "backend": { "clientCertificateRef": { "name": "cert" } } });
    let mut snapshot = Snapshot::default();
    let objects = [class(), gateway, secret(&key[..100])];
    for object in objects.into_iter().chain(namespaces()) {
        assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
    }
    let mut before = Snapshot::default();
    before.add_text(&secret(key).to_string());
    snapshot.kept_secrets = before.secrets;
    let made = translate(&snapshot, &Settings::default());
    let (_, status) = made.statuses.gateways.iter().next().unwrap();
    let condition = status.conditions.iter().find(|one| one.kind == "ResolvedRefs").unwrap();
    assert_eq!((condition.holds, condition.reason), (false, "InvalidClientCertificateRef"));
    let wanted = "a/cert: the certificate before stays in use: tls.key is cut off";
    assert!(condition.message.starts_with(wanted), "{}", condition.message);
}
