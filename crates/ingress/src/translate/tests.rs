//! A translation with memory has the same result as one without.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use weir_conf::Parts;

use super::{Memory, Translation};
use crate::annotations::PREFIX;
use crate::{Settings, Snapshot, translate, translate_next};

const CHAIN: &str = include_str!("../../../tls/testdata/leaf.pem");
const KEY: &str = include_str!("../../../tls/testdata/leaf.key");
const OTHER_KEY: &str = include_str!("../../../tls/testdata/root.key");

/// Hosts that meet: one of them is in the certificate of the tests.
const HOSTS: &[&str] = &["", "a.test", "www.a.test", "b.test", "*.b.test", "weir.test", "no host"];

/// What Ingresses ask for beside their paths; each looks at other objects or hosts.
const WISHES: &[&[(&str, &str)]] = &[
    &[],
    &[("from-to-www-redirect", "true")],
    &[("server-alias", "b.test, c.test")],
    &[("canary", "true"), ("canary-weight", "30")],
    &[("affinity", "cookie")],
    &[("auth-type", "basic"), ("auth-secret", "s0")],
    &[("auth-tls-secret", "a/s1")],
    &[("custom-headers", "m0"), ("default-backend", "s1")],
    &[("ssl-passthrough", "true"), ("force-ssl-redirect", "true")],
    &[("limit-rps", "5"), ("limit-allowlist", "10.0.0.0/8")],
    &[("proxy-body-size", "much"), ("no-such", "x")],
    &[("use-regex", "true"), ("rewrite-target", "/$1"), ("service-upstream", "true")],
    &[("backend-protocol", "HTTPS"), ("proxy-ssl-secret", "a/s1")],
    &[("server-snippet", "add_header X-A b;"), ("configuration-snippet", "proxy_pass http://x;")],
    &[("auth-url", "http://auth.test/x"), ("auth-proxy-set-headers", "m1")],
];

fn ingress(namespace: &str, name: usize, n: usize) -> Value {
    let pick = |by: usize, of: usize| n / by % of;
    let annotations: BTreeMap<String, &str> =
        WISHES[pick(1, WISHES.len())].iter().map(|(k, v)| (format!("{PREFIX}{k}"), *v)).collect();
    let kind = ["Prefix", "Exact", "ImplementationSpecific"][pick(15, 3)];
    let path = |path: &str, service: usize| {
        json!({ "path": path, "pathType": kind,
            "backend": { "service": { "name": format!("s{service}"), "port": { "number": 80 } } } })
    };
    let paths = [path("/", pick(45, 3)), path("/more", pick(135, 3))];
    let rule = |host: &str| json!({ "host": host, "http": { "paths": paths } });
    let hosts = [HOSTS[pick(405, HOSTS.len())], HOSTS[pick(2835, HOSTS.len())]];
    let tls = match pick(19845, 3) {
        0 => json!(null),
        n => json!([{ "hosts": hosts, "secretName": format!("s{n}") }]),
    };
    json!({ "kind": "Ingress",
        "metadata": { "name": format!("i{name}"), "namespace": namespace, "annotations": annotations,
            "creationTimestamp": format!("2020-01-01T00:00:0{}Z", pick(7, 3)) },
        "spec": { "rules": hosts.map(rule), "tls": tls } })
}

/// The object of a place. Each number is another one.
fn object(place: usize, n: usize) -> Value {
    let namespace = if n & 1 == 0 { "a" } else { "b" };
    let own = |kind: &str, version: &str, name: String| json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name, "namespace": namespace } });
    let with = |mut object: Value, rest: Value| {
        let Value::Object(rest) = rest else { return object };
        rest.into_iter().for_each(|(key, value)| object[key.as_str()] = value);
        object
    };
    let group = "gateway.networking.k8s.io/v1";
    match place {
        0..6 => ingress(["a", "a", "b"][place % 3], place, n),
        6..9 => {
            let spec = match n % 5 {
                0 => json!({ "type": "ExternalName", "externalName": "away.test" }),
                n => {
                    json!({ "clusterIP": format!("10.3.0.{n}"), "ports": [{ "port": 80, "name": "web" }] })
                }
            };
            with(own("Service", "v1", format!("s{}", place - 6)), json!({ "spec": spec }))
        }
        9..12 => {
            let mut slice = own("EndpointSlice", "discovery.k8s.io/v1", format!("e{place}"));
            slice["metadata"]["labels"] =
                json!({ "kubernetes.io/service-name": format!("s{}", n % 3) });
            let endpoint = json!({ "addresses": [format!("10.0.{place}.{}", n % 250)],
                "conditions": { "ready": !n.is_multiple_of(4) } });
            with(
                slice,
                json!({ "addressType": "IPv4", "endpoints": [endpoint],
                "ports": [{ "port": 8080, "name": "web" }] }),
            )
        }
        12..14 => {
            let data = json!({ "X-Sent": format!("v{n}"), "PORT 5": "x", "9000": format!("a/s{}:80", n % 3) });
            with(own("ConfigMap", "v1", format!("m{}", place - 12)), json!({ "data": data }))
        }
        14..16 => {
            let mut secret = k8s_openapi::api::core::v1::Secret::default();
            secret.metadata.name = Some(format!("s{}", place - 13));
            secret.metadata.namespace = Some(namespace.to_owned());
            let bytes = |text: &str| k8s_openapi::ByteString(text.as_bytes().to_vec());
            let key = if n.is_multiple_of(3) { OTHER_KEY } else { KEY };
            let data = [("tls.crt", CHAIN), ("tls.key", key), ("ca.crt", CHAIN)];
            secret.data = Some(data.map(|(name, text)| (name.to_owned(), bytes(text))).into());
            with(json!({ "kind": "Secret" }), serde_json::to_value(secret).unwrap())
        }
        16 => json!({ "apiVersion": group, "kind": "GatewayClass", "metadata": { "name": "weir" },
            "spec": { "controllerName": "weir.internal/gateway" } }),
        17 => with(
            own("Gateway", group, "web".to_owned()),
            json!({ "spec": { "gatewayClassName": "weir",
            "listeners": [{ "name": "l", "port": 80, "protocol": "HTTP", "hostname": HOSTS[1 + n % 3] }] } }),
        ),
        _ => with(
            own("HTTPRoute", group, "r".to_owned()),
            json!({ "spec": { "parentRefs": [{ "name": "web" }],
            "rules": [{ "backendRefs": [{ "name": format!("s{}", n % 3), "port": 80 }] }] } }),
        ),
    }
}

const PLACES: usize = 19;

/// Objects that stay the same between snapshots, as those of a cluster do.
#[derive(Default)]
struct World {
    objects: BTreeMap<usize, Snapshot>,
    settings: Settings,
}

impl World {
    fn change(&mut self, place: usize, n: Option<usize>) {
        match n {
            None => drop(self.objects.remove(&place)),
            Some(n) => {
                let mut one = Snapshot::default();
                assert_eq!(one.add_text(&object(place, n).to_string()), Vec::<String>::new());
                self.objects.insert(place, one);
            }
        }
    }

    /// Other settings, or other objects that say the same.
    fn turn(&mut self, n: usize) {
        let settings = &mut self.settings;
        match n % 10 {
            0 => settings.shared_hosts ^= true,
            1 => settings.passthrough ^= true,
            2 => settings.servers_in_files ^= true,
            3 => settings.published = vec![format!("10.9.0.{}", n % 200)],
            4 => {
                settings.defaults =
                    BTreeMap::from([("proxy-read-timeout".to_owned(), (n % 100).to_string())])
            }
            5 => {
                settings.defaults =
                    BTreeMap::from([("proxy-set-headers".to_owned(), "a/m0".to_owned())])
            }
            6 => {
                settings.defaults =
                    BTreeMap::from([("use-proxy-protocol".to_owned(), "true".to_owned())])
            }
            7 => settings.sessions = [Some(("a".to_owned(), "m1".to_owned())), None],
            8 => settings.default_backend = Some(("a".to_owned(), "s2".to_owned())),
            _ => {
                for one in self.objects.values_mut() {
                    one.ingresses.iter_mut().for_each(|one| *one = Arc::new((**one).clone()));
                    one.services.iter_mut().for_each(|one| *one = Arc::new((**one).clone()));
                    one.slices.iter_mut().for_each(|one| *one = Arc::new((**one).clone()));
                    one.secrets.iter_mut().for_each(|one| *one = Arc::new((**one).clone()));
                }
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let mut all = Snapshot::default();
        for one in self.objects.values().cloned() {
            all.ingresses.extend(one.ingresses);
            all.services.extend(one.services);
            all.slices.extend(one.slices);
            all.secrets.extend(one.secrets);
            all.config_maps.extend(one.config_maps);
            one.gateway.all().for_each(|object| all.gateway.put(object));
        }
        all
    }
}

fn world() -> World {
    let settings = Settings {
        without_class: true,
        snippet_directives: ["add_header".to_owned()].into(),
        own_certificate: Some(b"own".to_vec()),
        ..Settings::default()
    };
    World { settings, ..World::default() }
}

/// All that a translation says.
fn told(made: &Translation) -> String {
    let text = made.text.print().map(|text| String::from_utf8_lossy(&text).into_owned());
    let Translation { files, findings, served, statuses, groups, .. } = made;
    format!("{}\n{files:?}\n{findings:#?}\n{served:?}\n{statuses:#?}\n{groups:#?}", text.unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_remembered_translation_is_that_of_a_fresh_memory(
        begin in proptest::collection::vec(any::<u32>(), PLACES),
        steps in proptest::collection::vec((0..PLACES + 3, proptest::option::weighted(0.8, any::<u32>())), 1..25),
    ) {
        let (mut world, mut memory) = (world(), Memory::default());
        let (mut parts, mut handed) = (Parts::default(), None);
        for (place, n) in begin.into_iter().enumerate() {
            world.change(place, Some(n as usize));
        }
        for (place, n) in steps {
            match place {
                0..PLACES => world.change(place, n.map(|n| n as usize)),
                _ => world.turn(n.unwrap_or(9) as usize),
            }
            let snapshot = world.snapshot();
            let (next, fresh) = (
                translate_next(&mut memory, &snapshot, &world.settings),
                translate(&snapshot, &world.settings),
            );
            prop_assert_eq!(told(&next), told(&fresh));
            // With the owners of lines.
            prop_assert_eq!(&next.text, &fresh.text);
            // In parts it is the same configuration.
            let body = next.text.parts(handed.as_ref()).unwrap();
            let (tree, taken) = parts.read(&body, None).unwrap();
            let whole = weir_conf::read_text(Path::new("/t"), &next.text.print().unwrap());
            prop_assert!(tree.broken.is_none() && weir_conf::is_same(&tree.main, &whole.main));
            (parts, handed) = (taken, Some(next.text));
        }
    }
}

/// An Ingress with one host and one Service, both of this name.
fn simple(name: &str) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let backend = json!({ "service": { "name": name, "port": { "number": 80 } } });
    for object in [
        json!({ "kind": "Ingress", "metadata": { "name": name, "namespace": "a" },
            "spec": { "rules": [{ "host": format!("{name}.test"), "http": { "paths": [{ "path": "/", "pathType": "Prefix", "backend": backend }] } }] } }),
        json!({ "kind": "Service", "metadata": { "name": name, "namespace": "a" }, "spec": { "ports": [{ "port": 80 }] } }),
    ] {
        assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
    }
    snapshot
}

#[test]
fn a_host_is_made_once_and_forgotten_when_it_is_gone() {
    let (mut world, mut memory) = (world(), Memory::default());
    for (place, name) in ["one", "two", "three"].into_iter().enumerate() {
        world.objects.insert(place, simple(name));
    }
    let mut made = |world: &World| {
        translate_next(&mut memory, &world.snapshot(), &world.settings);
        let sites = memory.hosts.sites.iter();
        // A piece that is kept shares its place with no other.
        let piece = |part: &super::work::Part| part.http.clone().unwrap();
        let list: BTreeMap<_, _> =
            sites.map(|site| (site.of.host.name.to_string(), piece(&site.part))).collect();
        (list, memory.ingresses.len())
    };
    let (first, _) = made(&world);
    // Other objects that say the same change nothing, and neither does a status.
    world.turn(9);
    let (again, _) = made(&world);
    assert!(first.iter().all(|(name, piece)| Arc::ptr_eq(piece, &again[name])));
    assert_eq!(again.len(), first.len());
    // The host of a Service that has changed is made again, and no other.
    let mut service = (*world.objects[&1].services[0]).clone();
    service.metadata.generation = Some(7);
    world.objects.get_mut(&1).unwrap().services[0] = Arc::new(service);
    let (second, _) = made(&world);
    let same = first.iter().filter(|(name, piece)| Arc::ptr_eq(piece, &second[*name]));
    let same: Vec<&str> = same.map(|(name, _)| name.as_str()).collect();
    assert_eq!(same, ["one.test", "three.test"]);
    world.objects.remove(&0);
    let (third, ingresses) = made(&world);
    assert_eq!(third.keys().collect::<Vec<_>>(), ["three.test", "two.test"]);
    assert_eq!(ingresses, 2);
}

#[test]
fn an_endless_word_of_the_config_map_takes_nothing_from_others() {
    let long = "x".repeat(100_000);
    let map = [
        ("hide-headers", long.clone()),
        ("http-snippet", format!("add_header A {long};")),
        ("location-snippet", format!("if ($a) {{ set $b {long}; }}")),
        ("log-format-upstream", long.clone()),
    ];
    let defaults = map.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    let settings = Settings { defaults, ..Settings::default() };
    let made = translate(&Snapshot::default(), &settings);
    let text = String::from_utf8(made.text.print().unwrap()).unwrap();
    assert!(text.contains("$upstream_status $req_id"), "{text}");
    let about: Vec<&str> = made.findings.iter().map(|f| f.about.as_str()).collect();
    let wanted = ["hide-headers", "log-format-upstream", "http-snippet", "location-snippet"];
    assert_eq!(about, wanted);
}
