//! What the administrator sets on the command line.

use serde_json::json;
use weir_ingress::{Settings, Snapshot, certificate, translate};
use weir_testkit::{Client, Dir, Server};

use super::gateway::{self, secured, weir_behind};
use super::{behind, ingress, serve_in, service, weir};

const ALL: [(&str, &str, &str); 1] = [("Prefix", "/", "one")];

/// The text of the configuration, and the reasons of the findings.
fn text(manifests: &str, settings: &Settings) -> (String, Vec<&'static str>) {
    let mut snapshot = Snapshot::default();
    assert_eq!(snapshot.add_text(manifests), Vec::<String>::new());
    let settings = Settings { loopback: true, ..settings.clone() };
    let made = translate(&snapshot, &settings);
    let text = String::from_utf8(made.text.print().unwrap()).unwrap();
    (text, made.findings.iter().map(|f| f.reason).collect())
}

/// An Ingress with an entry of `tls`.
fn with_tls(name: &str, annotations: &[(&str, &str)], host: &str, entry: &str) -> String {
    ingress("a", name, annotations, host, &ALL)
        .replace("\"spec\":{", &format!("\"spec\":{{\"tls\":[{entry}],"))
}

fn every() -> Settings {
    Settings { without_class: true, ..Settings::default() }
}

#[test]
fn a_certificate_of_the_programs_own_making_stands_in() {
    let site = with_tls("site", &[], "a.test", r#"{"hosts":["a.test"],"secretName":"none"}"#);
    let manifests = [service("a", "one", 80), site].concat();
    let (plain, _) = text(&manifests, &every());
    assert!(plain.contains("ssl_reject_handshake on;") && !plain.contains("return 308"), "{plain}");
    let settings = Settings { own_certificate: certificate::make(), ..every() };
    let (own, _) = text(&manifests, &settings);
    // The default server and the host's.
    assert_eq!(own.matches("ssl_certificate_key").count(), 2, "{own}");
    assert!(!own.contains("ssl_reject_handshake") && own.contains("return 308 https://"), "{own}");
}

#[test]
fn a_host_that_no_entry_lists_gets_a_certificate_that_is_for_it() {
    let secret = |name: &str, common: &str, names: &[&str]| {
        let key = rcgen::KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, common);
        let chain = params.self_signed(&key).unwrap().pem();
        let pem = |text: String| gateway::base64(text.as_bytes());
        let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": "a" },
            "data": { "tls.crt": pem(chain), "tls.key": pem(key.serialize_pem()) } });
        format!("---\n{object}\n")
    };
    let manifests = [
        service("a", "one", 80),
        secret("wild", "x", &["*.c.test"]),
        secret("old", "old.test", &[]),
        with_tls("any", &[], "a.c.test", r#"{"secretName":"wild"}"#),
        with_tls("pattern", &[], "b.c.test", r#"{"hosts":["*.c.test"],"secretName":"wild"}"#),
        with_tls("common", &[], "old.test", r#"{"hosts":["old.test"],"secretName":"old"}"#),
        with_tls("other", &[], "d.test", r#"{"hosts":["e.c.test"],"secretName":"wild"}"#),
        with_tls("empty", &[], "f.test", "{}"),
        ingress("a", "open", &[], "g.c.test", &ALL),
    ]
    .concat();
    let settings = Settings { own_certificate: certificate::make(), ..every() };
    let (text, reasons) = text(&manifests, &settings);
    for (host, certificate, redirects) in [
        ("a.c.test", "tls-", true),
        ("b.c.test", "tls-", true),
        ("old.test", "tls-", true),
        ("d.test", "own-", true),
        ("f.test", "own-", true),
        ("g.c.test", "own-", false),
    ] {
        let name = format!("server_name {host};");
        let server = text.split("\n    server {").find(|server| server.contains(&name)).unwrap();
        let line = server.lines().find(|line| line.contains("ssl_certificate ")).unwrap();
        assert!(line.contains(&format!("/{certificate}")), "{host}: {line}");
        assert_eq!(server.contains("return 308 https://"), redirects, "{host}: {server}");
    }
    assert_eq!(reasons, ["DefaultCertificate"]);
}

#[test]
fn classes_are_named_in_both_ways() {
    let of = |class: &str, host: &str| {
        let annotation = format!("\"kubernetes.io/ingress.class\":\"{class}\"");
        ingress("a", host, &[], host, &ALL)
            .replace("\"annotations\":{", &format!("\"annotations\":{{{annotation}"))
    };
    let by_class = ingress("a", "spec.test", &[], "spec.test", &ALL)
        .replace("\"spec\":{", "\"spec\":{\"ingressClassName\":\"old\",");
    let manifests =
        [service("a", "one", 80), of("old", "old.test"), of("other", "other.test"), by_class]
            .concat();
    let served = |settings: &Settings| {
        let (text, _) = text(&manifests, settings);
        ["old.test", "other.test", "spec.test"]
            .map(|host| text.contains(&format!("server_name {host};")))
    };
    assert_eq!(served(&Settings::default()), [false, false, false]);
    let old = Settings { class: Some("old".to_owned()), ..Settings::default() };
    assert_eq!(served(&old), [true, false, false]);
    assert_eq!(served(&Settings { class_by_name: true, ..old }), [true, false, true]);
}

#[test]
fn what_is_for_all_hosts_and_names_outside_can_be_left_out() {
    let all = r#"--- {"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"name":"all","namespace":"a"},
        "spec":{"defaultBackend":{"service":{"name":"one","port":{"number":80}}}}}"#;
    let outside = "---\n{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"out\",\"namespace\":\"a\"},\"spec\":{\"type\":\"ExternalName\",\"externalName\":\"10.0.0.1\"}}\n";
    let site = ingress("a", "site", &[], "a.test", &[("Prefix", "/", "out")]);
    let manifests =
        [service("a", "one", 80), all.replace("--- ", "---\n") + "\n", outside.to_owned(), site]
            .concat();
    let (with, reasons) = text(&manifests, &every());
    assert!(with.contains("http://a_one_80;") && with.contains("10.0.0.1:80"), "{with}");
    assert!(reasons.is_empty(), "{reasons:?}");
    let settings = Settings { no_catch_all: true, no_external_names: true, ..every() };
    let (without, reasons) = text(&manifests, &settings);
    assert!(!without.contains("http://a_one_80;") && !without.contains("10.0.0.1:80"), "{without}");
    assert_eq!(reasons, ["ExternalName"]);
}

#[test]
fn ports_of_tcp_and_udp_lead_to_services() {
    let map = |name: &str, data: &str| {
        format!(
            "---\n{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"{name}\",\"namespace\":\"a\"}},\"data\":{data}}}\n"
        )
    };
    let tcp = map(
        "tcp",
        r#"{"9000":"a/one:80:PROXY:PROXY","9001":"a/none:80","word":"a/one:80","9002":"a/one"}"#,
    );
    let manifests = [service("a", "one", 8080), tcp, map("udp", r#"{"53":"a/one:80"}"#)].concat();
    let named = |name: &str| Some(("a".to_owned(), name.to_owned()));
    let settings = Settings { sessions: [named("tcp"), named("udp")], ..every() };
    let (text, reasons) = text(&manifests, &settings);
    for line in [
        "listen 9000 proxy_protocol;",
        "proxy_protocol on;",
        "listen 53 udp;",
        "proxy_responses 1;",
        "proxy_pass a_one_80;",
        "server 127.0.0.1:8080;",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("listen 9001") && !text.contains("listen 9002"), "{text}");
    assert_eq!(reasons, ["InvalidKey"; 3]);
}

#[test]
fn lists_of_ciphers_are_those_of_the_host_or_of_all() {
    let own = [
        ("ssl-ciphers", "HIGH:!aNULL"),
        ("ssl-prefer-server-ciphers", "false"),
        ("proxy-ssl-ciphers", "HIGH:!AES"),
    ];
    let manifests = [service("a", "one", 80), ingress("a", "site", &own, "a.test", &ALL)].concat();
    let defaults = [("ssl-ciphers".to_owned(), "ECDHE+AESGCM".to_owned())].into();
    let settings = Settings { own_certificate: certificate::make(), defaults, ..every() };
    let (text, reasons) = text(&manifests, &settings);
    for line in [
        "    ssl_ciphers ECDHE+AESGCM;",
        "        ssl_ciphers HIGH:!aNULL;",
        "ssl_prefer_server_ciphers off;",
        "proxy_ssl_ciphers HIGH:!AES;",
    ] {
        assert!(text.replace('"', "").contains(line), "{line}: {text}");
    }
    assert!(reasons.is_empty(), "{reasons:?}");
}

#[test]
fn namespaces_are_chosen_by_their_labels() {
    let namespace = |name: &str, labels: &str| {
        format!(
            "---\n{{\"apiVersion\":\"v1\",\"kind\":\"Namespace\",\"metadata\":{{\"name\":\"{name}\",\"labels\":{labels}}}}}\n"
        )
    };
    let site = |name: &str| {
        [service(name, "one", 80), ingress(name, "site", &[], &format!("{name}.test"), &ALL)]
            .concat()
    };
    let manifests = [
        namespace("a", r#"{"team":"x","stage":"live"}"#),
        namespace("b", r#"{"team":"x"}"#),
        site("a"),
        site("b"),
        site("unknown"),
    ]
    .concat();
    let served = |labels: &[(&str, &str)]| {
        let namespace_labels =
            labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (text, _) = text(&manifests, &Settings { namespace_labels, ..every() });
        ["a", "b", "unknown"].map(|name| text.contains(&format!("server_name {name}.test;")))
    };
    assert_eq!(served(&[]), [true, true, true]);
    assert_eq!(served(&[("team", "x")]), [true, true, false]);
    assert_eq!(served(&[("team", "x"), ("stage", "live")]), [true, false, false]);
}

#[test]
fn hidden_headers_are_those_of_ingresses() {
    let manifests = [service("a", "one", 80), ingress("a", "site", &[], "a.test", &ALL)].concat();
    let defaults = [("hide-headers".to_owned(), "X-Inner".to_owned())].into();
    let (text, _) = text(&manifests, &Settings { defaults, ..every() });
    let lines = |line: &str| text.lines().filter(|other| *other == line).count();
    // What holds for all, and what servers of Ingresses say again beside their own.
    assert_eq!(lines("    proxy_hide_header X-Inner;"), 1, "{text}");
    assert_eq!(lines("        proxy_hide_header X-Inner;"), 1, "{text}");
    assert_eq!(lines("        proxy_hide_header Strict-Transport-Security;"), 1, "{text}");
    assert_eq!(lines("    proxy_hide_header Strict-Transport-Security;"), 0, "{text}");
}

#[test]
fn tls_of_a_host_ends_behind_weir_where_that_is_allowed() {
    let Some(inner) = weir_behind(
        "listen 127.0.0.1:%%PORT%% ssl; ssl_certificate %%DIR%%/self.pem; ssl_certificate_key %%DIR%%/self.key; return 200 passed;",
    ) else {
        return;
    };
    let asks = [("ssl-passthrough", "true")];
    let manifests = [
        service("a", "inner", inner.port()),
        service("a", "one", behind("one")),
        ingress("a", "through", &asks, "through.test", &[("Prefix", "/", "inner")]),
        ingress("a", "site", &[], "mine.test", &ALL),
        // Only the owner of a host decides, and only the path / has a Service for connections.
        ingress("b", "thief", &asks, "mine.test", &ALL),
        ingress("a", "x-later", &asks, "mine.test", &[("Prefix", "/later", "inner")]),
        // A pattern would take the connections of other hosts.
        ingress("a", "wild", &asks, "*.test", &[("Prefix", "/", "inner")]),
        ingress("a", "deep", &asks, "deep.test", &[("Prefix", "/deep", "inner")]),
    ]
    .concat();
    let dir = Dir::new();
    std::fs::create_dir_all(dir.file("state")).unwrap();
    let settings = Settings {
        http: vec!["127.0.0.1:%%PORT%%".to_owned()],
        https: vec!["127.0.0.1:%%PORT1%%".to_owned()],
        own_certificate: certificate::make(),
        passthrough: true,
        loopback: true,
        state: dir.file("state"),
        ..every()
    };
    let mut snapshot = Snapshot::default();
    assert_eq!(snapshot.add_text(&manifests), Vec::<String>::new());
    let made = translate(&snapshot, &settings);
    weir_ingress::state::write(&made.files).unwrap();
    let told: Vec<_> = made.findings.iter().map(|f| (f.object.name.as_str(), f.reason)).collect();
    assert_eq!(
        told,
        [
            ("deep", "NoService"),
            ("wild", "NoPassthrough"),
            ("x-later", "NoPassthrough"),
            ("thief", "HostTaken")
        ]
    );
    let text = String::from_utf8(made.text.print().unwrap()).unwrap();
    let server = Server::start_in(dir, &weir().unwrap(), &text);
    for (name, wanted) in [
        ("through.test", "passed"),
        ("mine.test", "one"),
        ("deep.test", ""),
        ("x.other.test", "404"),
    ] {
        let Some(got) = secured(&server, 1, name, name) else { return };
        assert_eq!(got, wanted, "{name}");
    }
    // Servers behind see the client's address, not that of a socket in between.
    let head = "GET / HTTP/1.1\r\nHost: mine.test\r\nConnection: close\r\n\r\n";
    let words = ["-servername", "mine.test", "-quiet", "-ign_eof"];
    let said = weir_testkit::s_client(server.dir().path(), server.port_at(1), &words, head);
    assert!(said.is_some_and(|said| said.contains("X-Real-IP: 127.0.0.1")));
    let without = Settings { passthrough: false, ..settings };
    let made = translate(&snapshot, &without);
    let none: Vec<_> = made.findings.iter().filter(|f| f.reason == "NoPassthrough").collect();
    assert_eq!(none.len(), 4, "{none:?}");
    let text = String::from_utf8(made.text.print().unwrap()).unwrap();
    assert!(!text.lines().any(|line| line == "stream {"));
}

#[test]
fn servers_behind_get_the_ports_that_clients_know() {
    let rules = json!([{ "backendRefs": gateway::to("one") }]);
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "site", &[("ssl-redirect", "false")], "a.test", &ALL),
        gateway::plain(),
        gateway::route("HTTPRoute", "a", "gate", &["gate.test"], rules),
    ]
    .concat();
    let own = |text: String| text.replace("127.0.0.1:8080", "127.0.0.1:%%PORT2%%");
    let got = |text: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix("X-Forwarded-Port: "));
        found.map(|port| port.trim().to_owned())
    };
    for passthrough in [false, true] {
        let dir = Dir::new();
        let settings = Settings {
            http: vec!["127.0.0.1:%%PORT%%".to_owned()],
            https: vec!["127.0.0.1:%%PORT1%%".to_owned()],
            http_port: passthrough.then_some(80),
            https_port: 4443,
            gateway_addresses: vec!["127.0.0.1".to_owned()],
            own_certificate: certificate::make(),
            passthrough,
            ..every()
        };
        let Some((server, _)) = serve_in(dir, &manifests, settings, own) else { return };
        let asked = |port, host: &str| {
            let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            got(&Client::connect(server.port_at(port)).send(head).response().body())
        };
        let plain = if passthrough { 80 } else { server.port() };
        assert_eq!(asked(0, "a.test"), Some(plain.to_string()));
        // A listener has the port that it says.
        assert_eq!(asked(2, "gate.test"), Some(server.port_at(2).to_string()));
        let head = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
        let words = ["-servername", "a.test", "-quiet", "-ign_eof"];
        let said = weir_testkit::s_client(server.dir().path(), server.port_at(1), &words, head);
        let Some(said) = said else { return };
        assert_eq!(got(&said).as_deref(), Some("4443"), "{passthrough}");
    }
}

#[test]
fn hosts_without_a_secret_ask_an_issuer_where_there_is_one() {
    let names = [("server-alias", "b.test,other.test"), ("from-to-www-redirect", "true")];
    let manifests = [
        service("a", "one", 80),
        with_tls("plain", &names, "a.test", r#"{"hosts":["a.test","b.test","of-nobody.test"]}"#),
        with_tls("wild", &[], "*.c.test", r#"{"hosts":["*.c.test"]}"#),
        // A Secret that is not there yet may be cert-manager's to make.
        with_tls("named", &[], "d.test", r#"{"hosts":["d.test"],"secretName":"soon"}"#),
        ingress("a", "open", &[], "e.test", &ALL),
        // The host is another Ingress's.
        with_tls("guest", &[], "f.test", r#"{"hosts":["e.test"]}"#),
    ]
    .concat();
    let asked = |settings: &Settings| {
        let (text, reasons) = text(&manifests, settings);
        let lines = text.lines().filter(|line| line.contains("acme_certificate"));
        let lines: Vec<String> = lines.map(|line| line.trim().to_owned()).collect();
        (lines, reasons.into_iter().filter(|reason| *reason == "NoCertificate").count(), text)
    };
    let with = |lines: &str| {
        let text = format!("http {{ acme_issuer ours {{ uri https://acme.test/dir; {lines} }} }}");
        let base = weir_conf::read_fragment(std::path::Path::new("base"), text.as_bytes());
        Settings { base: base.main, acme_issuer: Some("ours".to_owned()), ..every() }
    };
    let (lines, wrong, text) = asked(&with(""));
    let both = "acme_certificate ours a.test b.test;";
    assert_eq!(lines, [both, "acme_certificate ours www.a.test;"], "{text}");
    assert_eq!(wrong, 1, "{text}");
    assert_eq!(text.matches("listen 443 ssl;").count(), 2, "{text}");
    assert_eq!(text.matches("return 308 https://").count(), 1, "{text}");
    let (lines, wrong, text) = asked(&with("challenge dns-01;"));
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines.contains(&"acme_certificate ours *.c.test;".to_owned()), "{lines:?}");
    assert_eq!(wrong, 0);
    let (lines, _, _) = asked(&Settings { acme_issuer: None, ..with("") });
    assert_eq!(lines.len(), 0);
}

#[test]
fn a_host_without_a_secret_becomes_a_listener_that_asks() {
    let manifests = [
        service("a", "one", 80),
        with_tls("asks", &[], "a.test", r#"{"hosts":["a.test","b.test"]}"#),
        with_tls("named", &[], "b.test", r#"{"hosts":["b.test"],"secretName":"own"}"#),
        with_tls("wild", &[], "x.c.test", r#"{"hosts":["*.c.test"],"secretName":"wild"}"#),
        with_tls("all", &[], "d.test", r#"{"secretName":"all"}"#),
        with_tls("other", &[], "e.test", r#"{"hosts":["f.test"],"secretName":"own"}"#),
    ]
    .concat();
    let mut snapshot = Snapshot::default();
    assert_eq!(snapshot.add_text(&manifests), Vec::<String>::new());
    let converted = weir_ingress::convert::convert(&snapshot, &every());
    let gateway = converted.objects.iter().find(|object| object["kind"] == "Gateway").unwrap();
    let tls = |host: &str| {
        let listeners = gateway["spec"]["listeners"].as_array().unwrap();
        let one = listeners.iter().find(|one| one["hostname"] == host).unwrap();
        one["tls"].to_string()
    };
    assert_eq!(tls("a.test"), r#"{"options":{"weir.internal/acme":"true"}}"#);
    assert_eq!(tls("b.test"), r#"{"certificateRefs":[{"name":"own"}]}"#);
    // No entry lists these hosts.
    assert_eq!(tls("x.c.test"), r#"{"certificateRefs":[{"name":"wild"}]}"#);
    assert_eq!(tls("d.test"), r#"{"certificateRefs":[{"name":"all"}]}"#);
    let told: Vec<_> = converted.findings.iter().map(|one| (one.reason, &*one.about)).collect();
    assert_eq!(told, [("NoCertificate", "a.test"), ("NoCertificate", "e.test")]);
}
