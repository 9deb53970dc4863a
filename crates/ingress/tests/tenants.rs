//! Whatever tenants write, the configuration stays well formed, and each of them stays within its own.

use std::path::Path;

use proptest::prelude::*;
use weir_conf::{ConfigTree, Directive, print, read_text};
use weir_ingress::annotations::KNOWN;
use weir_ingress::{Settings, Snapshot, Translation, translate};

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

/// The text as it is read. In a build of tests, printing checks that a text reads back as the directives that it was made of.
fn tree(made: &Translation) -> ConfigTree {
    read_text(Path::new("printed.conf"), &made.text.print().unwrap())
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

/// Paths of objects begin with a slash.
#[test]
fn no_path_takes_the_name_of_a_location_for_subrequests() {
    let asked = ["auth-url", "mirror-target"].map(|name| {
        let number = KNOWN.iter().position(|(known, _)| *known == name).unwrap();
        (number, "http://10.2.0.9/x".to_owned())
    });
    let settings = Settings { without_class: true, ..Settings::default() };
    let made = tree(&translate(&snapshot(&asked, "evil.test", "/", "Prefix"), &settings)).main;
    let servers = server(&made, "evil.test");
    let locations = servers.iter().flat_map(|server| server.block());
    let internal = |d: &&Directive| d.block().iter().any(|line| line.name.is("internal"));
    let locations: Vec<_> = locations.filter(internal).collect();
    assert_eq!(locations.len(), 2);
    assert!(locations.iter().all(|d| !d.args.iter().any(|word| word.bytes.starts_with(b"/"))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_tenant_reaches_another(
        annotations in proptest::collection::vec((any::<usize>(), text()), 0..6),
        host in prop_oneof![Just("evil.test".to_owned()), Just("victim.test".to_owned()), text()],
        path in prop_oneof![Just("/".to_owned()), text().prop_map(|t| format!("/{t}")), text()],
        kind in prop_oneof![Just("Exact"), Just("Prefix"), Just("ImplementationSpecific")],
        (passthrough, asks) in any::<(bool, bool)>(),
    ) {
        let settings = Settings { without_class: true, passthrough, ..Settings::default() };
        let mut annotations = annotations;
        if asks {
            let number = KNOWN.iter().position(|(name, _)| *name == "ssl-passthrough");
            annotations.push((number.unwrap(), "true".to_owned()));
        }
        let back = tree(&translate(&snapshot(&annotations, &host, &path, kind), &settings));
        prop_assert!(back.broken.is_none(), "{:?}", back.broken);
        weir_conf::check(&back, &|_, _| true).map_err(|e| TestCaseError::fail(e.message))?;
        let made = back.main;
        // The server of the older tenant is the one that it has alone.
        let alone = tree(&translate(&snapshot(&[], "evil.test", "/", "Prefix"), &settings)).main;
        let (now, then) = (server(&made, "victim.test"), server(&alone, "victim.test"));
        prop_assert_eq!((now.len(), then.len()), (1, 1));
        let text = |d: &Directive| String::from_utf8_lossy(&print(std::slice::from_ref(d)).unwrap()).into_owned();
        prop_assert_eq!(text(now[0]), text(then[0]));
        // Connections of TLS reach the owner's Service, too.
        let front = made.iter().filter(|d| d.name.is("stream")).flat_map(|d| d.block());
        for line in front.filter(|d| d.name.is("server")).flat_map(|server| server.block()) {
            let victims = |word: &str| {
                word == "victim.test" || word.starts_with("victim_") || word.starts_with(['~', '*'])
            };
            prop_assert!(!line.args.iter().any(|word| victims(&word.lossy())), "{:?}", line);
        }
    }
}

#[test]
fn the_table_of_annotations_is_in_order_for_its_search() {
    assert!(KNOWN.windows(2).all(|pair| pair[0].0 < pair[1].0));
}

/// Names of the objects of two tenants, one of which has done nothing wrong.
fn gateway_snapshot(evil: &[serde_json::Value]) -> Snapshot {
    let group = "gateway.networking.k8s.io/v1";
    let listener = |name: &str, host: &str, from: &str| {
        serde_json::json!({ "name": name, "port": 443, "protocol": "HTTPS", "hostname": host,
            "tls": { "certificateRefs": [{ "name": "secret" }] },
            "allowedRoutes": { "namespaces": { "from": "Selector", "selector": { "matchLabels": { "tenant": from } } } } })
    };
    let mut objects = vec![
        serde_json::json!({ "apiVersion": group, "kind": "GatewayClass", "metadata": { "name": "weir" },
            "spec": { "controllerName": "weir.internal/gateway" } }),
        serde_json::json!({ "apiVersion": group, "kind": "Gateway",
            "metadata": { "name": "web", "namespace": "victim", "creationTimestamp": "2020-01-01T00:00:00Z" },
            "spec": { "gatewayClassName": "weir", "listeners": [
                listener("victim", "victim.test", "victim"), listener("wild", "*.victim.test", "victim"), listener("evil", "evil.test", "evil") ] } }),
        serde_json::json!({ "apiVersion": group, "kind": "HTTPRoute",
            "metadata": { "name": "site", "namespace": "victim", "creationTimestamp": "2020-01-01T00:00:00Z" },
            "spec": { "parentRefs": [{ "name": "web" }], "hostnames": ["victim.test", "a.victim.test"],
                "rules": [{ "backendRefs": [{ "name": "app", "port": 80 }] }] } }),
    ];
    let (chain, key) =
        (include_str!("../../tls/testdata/leaf.pem"), include_str!("../../tls/testdata/leaf.key"));
    for (tenant, address) in [("victim", "10.1.0.1"), ("evil", "10.2.0.1")] {
        objects.extend([
            serde_json::json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": tenant, "labels": { "tenant": tenant } } }),
            serde_json::json!({ "kind": "Service", "apiVersion": "v1",
                "metadata": { "name": "app", "namespace": tenant }, "spec": { "ports": [{ "port": 80 }] } }),
            serde_json::json!({ "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
                "metadata": { "name": "app-1", "namespace": tenant, "labels": { "kubernetes.io/service-name": "app" } },
                "ports": [{ "port": 80 }], "endpoints": [{ "addresses": [address] }] }),
        ]);
    }
    objects.extend(evil.iter().cloned());
    let mut snapshot = Snapshot::default();
    for object in objects {
        assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new(), "{object}");
    }
    let data = [("tls.crt", chain), ("tls.key", key)];
    for tenant in ["victim", "evil"] {
        let mut secret = k8s_openapi::api::core::v1::Secret::default();
        secret.metadata.name = Some("secret".to_owned());
        secret.metadata.namespace = Some(tenant.to_owned());
        // The victim's is told apart by a comment.
        let text = |text: &str| k8s_openapi::ByteString(format!("{tenant}\n{text}").into_bytes());
        secret.data =
            Some(data.iter().map(|(name, pem)| ((*name).to_owned(), text(pem))).collect());
        snapshot.secrets.push(std::sync::Arc::new(secret));
    }
    snapshot
}

/// Objects that a tenant may write, with any text in each place.
fn evil_objects() -> impl Strategy<Value = Vec<serde_json::Value>> {
    let name = || {
        prop_oneof![
            Just("app".to_owned()),
            Just("web".to_owned()),
            Just("secret".to_owned()),
            text()
        ]
    };
    let namespace = || prop_oneof![Just("victim".to_owned()), Just("evil".to_owned()), text()];
    let host = || {
        prop_oneof![
            Just("victim.test".to_owned()),
            Just("a.victim.test".to_owned()),
            Just("b.victim.test".to_owned()),
            Just("*.victim.test".to_owned()),
            Just("*.test".to_owned()),
            Just("evil.test".to_owned()),
            Just(String::new()),
            text(),
        ]
    };
    let kinds = || {
        prop_oneof![
            Just("HTTPRoute"),
            Just("GRPCRoute"),
            Just("TLSRoute"),
            Just("TCPRoute"),
            Just("UDPRoute"),
            Just("Gateway"),
            Just("ListenerSet"),
            Just("BackendTLSPolicy"),
            Just("ReferenceGrant"),
        ]
    };
    let words = proptest::collection::vec(text(), 12);
    let one = (kinds(), namespace(), name(), host(), host(), words, any::<u8>(), "[a-c]");
    let object = one.prop_map(|(kind, namespace, name, host, other, words, dice, own)| {
        let word = |n: usize| words[n].clone();
        let reference = serde_json::json!({ "name": name, "namespace": namespace, "port": 80 });
        let header = serde_json::json!([{ "name": "x-a", "value": word(0) }, { "name": word(1), "value": word(2) }]);
        let change = serde_json::json!({ "set": header, "add": header, "remove": [word(3)] });
        let path = serde_json::json!({ "type": if dice & 1 == 0 { "ReplaceFullPath" } else { "ReplacePrefixMatch" },
            "replaceFullPath": word(4), "replacePrefixMatch": word(4) });
        let filters = serde_json::json!([
            { "type": "RequestHeaderModifier", "requestHeaderModifier": change },
            { "type": "ResponseHeaderModifier", "responseHeaderModifier": change },
            { "type": if dice & 2 == 0 { "RequestRedirect" } else { "URLRewrite" },
              "requestRedirect": { "hostname": host, "scheme": "https", "path": path },
              "urlRewrite": { "hostname": host, "path": path } },
            { "type": if dice & 4 == 0 { "CORS" } else { "RequestMirror" },
              "cors": { "allowOrigins": [word(5), "https://*.o.test"], "allowHeaders": [word(6)] },
              "requestMirror": { "backendRef": reference } },
        ]);
        let filters: Vec<serde_json::Value> =
            filters.as_array().unwrap().iter().enumerate().filter(|(n, _)| dice & (8 << n) != 0).map(|(_, f)| f.clone()).collect();
        let matches = match kind {
            "GRPCRoute" => serde_json::json!([{ "method": { "service": word(7), "method": word(8) }, "headers": header }]),
            _ => serde_json::json!([
                { "path": { "type": (["Exact", "PathPrefix", "RegularExpression"][usize::from(dice) % 3]), "value": format!("/{}", word(7)) },
                  "headers": header, "queryParams": [{ "name": "q", "value": word(8) }, { "name": word(9), "value": word(10) }] },
                { "path": { "type": "RegularExpression", "value": word(7) } } ]),
        };
        let listeners = serde_json::json!([
            { "name": "l", "port": 443, "protocol": (["HTTPS", "TLS", "HTTP"][usize::from(dice) % 3]), "hostname": host,
              "tls": { "mode": if dice & 1 == 0 { "Terminate" } else { "Passthrough" }, "certificateRefs": [reference, { "name": "secret", "namespace": "victim" }] },
              "allowedRoutes": { "namespaces": { "from": "All" } } },
            { "name": "m", "port": 443, "protocol": "HTTPS", "hostname": other,
              "tls": { "certificateRefs": [{ "name": "secret", "namespace": "victim" }] } } ]);
        let spec = match kind {
            "Gateway" => serde_json::json!({ "gatewayClassName": "weir", "listeners": listeners,
                "tls": { "backend": { "clientCertificateRef": { "name": "secret", "namespace": "victim" } } } }),
            "ListenerSet" => serde_json::json!({ "parentRef": { "name": "web", "namespace": namespace }, "listeners": listeners }),
            "BackendTLSPolicy" => serde_json::json!({ "targetRefs": [{ "group": "", "kind": "Service", "name": name }],
                "validation": { "hostname": host, "wellKnownCACertificates": "System", "caCertificateRefs": [] } }),
            "ReferenceGrant" => serde_json::json!({ "from": [{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "evil" }],
                "to": [{ "group": "", "kind": "Service" }, { "group": "", "kind": "Secret" }] }),
            _ => serde_json::json!({ "hostnames": [host, other],
                "parentRefs": [{ "name": "web", "namespace": "victim" }, { "name": own, "namespace": "evil" },
                    { "name": "web", "namespace": "victim", "sectionName": "victim" },
                    { "kind": "ListenerSet", "name": own, "namespace": namespace }],
                "rules": [{ "matches": matches, "filters": filters, "backendRefs": [reference, { "name": "app", "port": 80, "filters": filters }],
                    "sessionPersistence": { "sessionName": word(11) } }] }),
        };
        serde_json::json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
            "metadata": { "name": own, "namespace": "evil", "creationTimestamp": if dice & 128 == 0 { "2021-01-01T00:00:00Z" } else { "2020-06-01T00:00:00Z" } },
            "spec": spec })
    });
    proptest::collection::vec(object, 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_route_reaches_a_host_or_secret_of_another_tenant(objects in evil_objects()) {
        let settings = Settings::default();
        let made = translate(&gateway_snapshot(&objects), &settings);
        let back = tree(&made);
        prop_assert!(back.broken.is_none(), "{:?}", back.broken);
        weir_conf::check(&back, &|_, _| true).map_err(|e| TestCaseError::fail(e.message))?;
        let shown = |d: &Directive| String::from_utf8_lossy(&print(std::slice::from_ref(d)).unwrap()).into_owned();
        // The victim's servers are those that it has alone.
        let alone = tree(&translate(&gateway_snapshot(&[]), &settings)).main;
        for name in ["victim.test", "a.victim.test", "*.victim.test"] {
            let (now, then) = (server(&back.main, name), server(&alone, name));
            prop_assert_eq!((now.len(), then.len()), (1, 1), "{}", name);
            // A front that reads names may stand before it.
            let inside = |d: &Directive| -> Vec<String> {
                d.block().iter().filter(|line| !line.name.is("listen")).map(shown).collect()
            };
            prop_assert_eq!(inside(now[0]), inside(then[0]));
        }
        prop_assert!(server(&back.main, "b.victim.test").is_empty());
        // A handshake with one of its names belongs to a listener of the victim.
        let http = back.main.iter().find(|d| d.name.is("http")).unwrap();
        let maps = http.block().iter().filter(|d| d.name.is("map"));
        let listeners = maps.filter(|d| d.arg(0).is_some_and(|w| w.is("$ssl_server_name")));
        for row in listeners.flat_map(Directive::block) {
            if row.name.is("victim.test") || row.name.is("a.victim.test") || row.name.is("*.victim.test") {
                let number = row.arg(0).and_then(|w| w.str()).unwrap_or_default();
                prop_assert!(matches!(number, "0" | "1"), "{}", shown(row));
            }
        }
        // No server but the victim's has its certificate, or a way to its Service.
        let victim = made.files.iter().filter(|(_, content)| content.starts_with(b"victim"));
        let files: Vec<String> = victim.map(|(path, _)| path.display().to_string()).collect();
        for block in back.main.iter().filter(|d| d.name.is("http") || d.name.is("stream")) {
            for one in block.block().iter().filter(|d| d.name.is("server")) {
                let names = one.block().iter().find(|line| line.name.is("server_name"));
                let name = names.and_then(|line| line.arg(0)).map(|w| w.lossy().into_owned()).unwrap_or_default();
                let text = shown(one);
                if matches!(name.as_str(), "victim.test" | "a.victim.test" | "*.victim.test" | "evil.test") {
                    prop_assert!(!block.name.is("stream") || text.contains("pass unix:"), "{}", text);
                    continue;
                }
                prop_assert!(!files.iter().any(|file| text.contains(file)), "{}", text);
                prop_assert!(!text.contains("victim_app"), "{}", text);
            }
        }
        let own = server(&back.main, "evil.test");
        prop_assert!(own.iter().all(|d| !shown(d).contains("victim_app")));
    }
}

/// Each path of an Ingress has the lists of its annotations for itself.
#[test]
fn long_lists_and_many_paths_make_no_endless_configuration() {
    let site = |name: &str, networks: usize, paths: usize| {
        let list: Vec<String> =
            (0..networks).map(|n| format!("10.0.{}.{}", n / 256, n % 256)).collect();
        let backend = serde_json::json!({ "service": { "name": "app", "port": { "number": 80 } } });
        let paths = (0..paths).map(|n| {
            serde_json::json!({ "path": format!("/{n}"), "pathType": "Exact", "backend": backend })
        });
        let paths: Vec<serde_json::Value> = paths.collect();
        let annotations = serde_json::json!({
            "nginx.ingress.kubernetes.io/allowlist-source-range": list.join(",") });
        serde_json::json!({ "kind": "Ingress", "apiVersion": "networking.k8s.io/v1",
            "metadata": { "name": name, "namespace": "evil", "annotations": annotations },
            "spec": { "rules": [{ "host": format!("{name}.test"), "http": { "paths": paths } }] } })
    };
    let settings = Settings { without_class: true, ..Settings::default() };
    for (name, networks, paths, is_taken) in
        [("small", 100, 100, true), ("lists", 2000, 10, true), ("large", 1500, 1500, false)]
    {
        let mut snapshot = Snapshot::default();
        let object = site(name, networks, paths).to_string();
        assert_eq!(snapshot.add_text(&object), Vec::<String>::new());
        let made = translate(&snapshot, &settings);
        let told: Vec<_> = made.findings.iter().filter(|one| one.reason == "TooLarge").collect();
        assert_eq!(told.is_empty(), is_taken, "{name}");
        let text = String::from_utf8(made.text.print().unwrap()).unwrap();
        assert_eq!(text.contains("allow 10.0.0.7;"), is_taken, "{name}");
        assert!(text.len() < 2_000_000, "{name}: {}", text.len());
        // No request passes where the list is not.
        if !is_taken {
            assert!(text.matches("return 503;").count() >= paths, "{name}");
        }
    }
}

/// Each host of an Ingress has its snippet for servers.
#[test]
fn a_snippet_for_very_many_hosts_makes_no_endless_configuration() {
    let settings = Settings {
        without_class: true,
        snippet_directives: ["add_header".to_owned()].into(),
        ..Settings::default()
    };
    for (hosts, is_taken) in [(3, true), (300, false)] {
        let rule = |n: usize| {
            let backend =
                serde_json::json!({ "service": { "name": "app", "port": { "number": 80 } } });
            let path = serde_json::json!({ "path": "/", "pathType": "Prefix", "backend": backend });
            serde_json::json!({ "host": format!("h{n}.test"), "http": { "paths": [path] } })
        };
        let rules: Vec<serde_json::Value> = (0..hosts).map(rule).collect();
        let snippet = "add_header X-Own y;\n".repeat(1500);
        let object = serde_json::json!({ "kind": "Ingress", "apiVersion": "networking.k8s.io/v1",
            "metadata": { "name": "many", "namespace": "evil",
                "annotations": { "nginx.ingress.kubernetes.io/server-snippet": snippet } },
            "spec": { "rules": rules } });
        let mut snapshot = Snapshot::default();
        assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
        let made = translate(&snapshot, &settings);
        let told = made.findings.iter().any(|one| one.reason == "TooLarge");
        let text = String::from_utf8(made.text.print().unwrap()).unwrap();
        assert_eq!((told, text.contains("X-Own")), (!is_taken, is_taken), "{hosts}");
        // No request passes where the snippet is not.
        let closed = text.matches("\n        return 503;").count();
        assert_eq!(closed, if is_taken { 0 } else { hosts }, "{hosts}");
    }
}
