//! Whatever tenants write, the configuration stays well formed, and each of them stays within its own.

use std::path::Path;

use proptest::prelude::*;
use weir_conf::{Directive, is_same, print, read_text};
use weir_ingress::annotations::KNOWN;
use weir_ingress::{Settings, Snapshot, translate};

/// Texts with what could end a word, a line or a block.
fn text() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        Just("true".to_owned()),
        Just("/".to_owned()),
        Just("evil.test".to_owned()),
        Just("10.0.0.0/8".to_owned()),
        Just("\"; }} server {".to_owned()),
        Just("${".to_owned()),
        Just("$host".to_owned()),
        Just("\\".to_owned()),
        Just("\n".to_owned()),
        Just("victim.test".to_owned()),
        Just("http://x.test/$request_uri".to_owned()),
        Just("(".to_owned()),
        Just("b/secret".to_owned()),
        Just("victim/secret".to_owned()),
        Just("5".to_owned()),
        any::<String>(),
    ];
    proptest::collection::vec(pieces, 1..3).prop_map(|pieces| pieces.concat())
}

fn snapshot(annotations: &[(usize, String)], host: &str, path: &str, kind: &str) -> Snapshot {
    let annotations: serde_json::Map<String, serde_json::Value> = annotations
        .iter()
        .map(|(n, value)| {
            let name = KNOWN[n % KNOWN.len()].0;
            (format!("nginx.ingress.kubernetes.io/{name}"), value.clone().into())
        })
        .collect();
    let ingress = |namespace: &str,
                   born: &str,
                   host: &str,
                   path: &str,
                   annotations: serde_json::Value| {
        serde_json::json!({
            "kind": "Ingress", "apiVersion": "networking.k8s.io/v1",
            "metadata": { "name": "site", "namespace": namespace, "creationTimestamp": born, "annotations": annotations },
            "spec": { "rules": [{ "host": host, "http": { "paths": [{
                "path": path, "pathType": if namespace == "evil" { kind } else { "Prefix" }, "backend": { "service": { "name": "app", "port": { "number": 80 } } },
            }] } }] },
        })
    };
    let mut snapshot = Snapshot::default();
    let mut objects = vec![
        ingress("victim", "2020-01-01T00:00:00Z", "victim.test", "/", serde_json::json!({})),
        ingress("evil", "2021-01-01T00:00:00Z", host, path, annotations.into()),
    ];
    for (namespace, address) in [("victim", "10.1.0.1"), ("evil", "10.2.0.1")] {
        objects.push(serde_json::json!({ "kind": "Service", "apiVersion": "v1",
            "metadata": { "name": "app", "namespace": namespace }, "spec": { "ports": [{ "port": 80 }] } }));
        objects.push(serde_json::json!({ "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
            "metadata": { "name": "app-1", "namespace": namespace, "labels": { "kubernetes.io/service-name": "app" } },
            "ports": [{ "port": 80 }], "endpoints": [{ "addresses": [address] }] }));
    }
    for object in objects {
        assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
    }
    snapshot
}

/// The server of a name.
fn server<'t>(tree: &'t [Directive], name: &str) -> Vec<&'t Directive> {
    let http = tree.iter().find(|d| d.name.is("http")).unwrap();
    let named = |d: &&Directive| {
        d.block()
            .iter()
            .any(|line| line.name.is("server_name") && line.args.iter().any(|w| w.is(name)))
    };
    http.block().iter().filter(|d| d.name.is("server")).filter(named).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_tenant_reaches_another(
        annotations in proptest::collection::vec((any::<usize>(), text()), 0..6),
        host in prop_oneof![Just("evil.test".to_owned()), Just("victim.test".to_owned()), text()],
        path in prop_oneof![Just("/".to_owned()), text().prop_map(|t| format!("/{t}")), text()],
        kind in prop_oneof![Just("Exact"), Just("Prefix"), Just("ImplementationSpecific")],
    ) {
        let settings = Settings { without_class: true, ..Settings::default() };
        let made = translate(&snapshot(&annotations, &host, &path, kind), &settings).tree;
        let text = print(&made).unwrap();
        let back = read_text(Path::new("printed.conf"), &text);
        prop_assert!(back.broken.is_none(), "{:?}", back.broken);
        prop_assert!(is_same(&back.main, &made));
        weir_conf::check(&back, &|_, _| true).map_err(|e| TestCaseError::fail(e.message))?;
        // The server of the older tenant is the one that it has alone.
        let alone = translate(&snapshot(&[], "evil.test", "/", "Prefix"), &settings).tree;
        let (now, then) = (server(&made, "victim.test"), server(&alone, "victim.test"));
        prop_assert_eq!((now.len(), then.len()), (1, 1));
        let text = |d: &Directive| String::from_utf8_lossy(&print(std::slice::from_ref(d)).unwrap()).into_owned();
        prop_assert_eq!(text(now[0]), text(then[0]));
    }
}

#[test]
fn the_table_of_annotations_is_in_order_for_its_search() {
    assert!(KNOWN.windows(2).all(|pair| pair[0].0 < pair[1].0));
}
