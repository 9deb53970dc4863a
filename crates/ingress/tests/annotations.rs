//! Each annotation of ingress-nginx does something, or `check` names it. docs/ingress-nginx-annotations.md has the table, beside what
//! Traefik's migration tool says of the same annotation; WEIR_WRITE_DOCS=1 writes it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use k8s_openapi::ByteString;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use weir_ingress::annotations::{KNOWN, PREFIX, State, state};
use weir_ingress::{Finding, Settings, Severity, Snapshot, translate};

#[path = "annotations/hostile.rs"]
mod hostile;

const LIST: &str = include_str!("annotations.txt");
const PAGE: &str = "docs/ingress-nginx-annotations.md";

/// A line of the list.
struct Case {
    name: &'static str,
    traefik: &'static str,
    value: &'static str,
    needs: Vec<(&'static str, &'static str)>,
}

fn cases() -> Vec<Case> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#'));
    let case = |line: &'static str| {
        let mut parts = line.split(" |").map(str::trim);
        let mut next = || parts.next().unwrap_or_default();
        let (name, traefik, value) = (next(), next(), next());
        let needs = next().split(", ").filter_map(|need| need.split_once('=')).collect();
        Case { name, traefik, value, needs }
    };
    lines.map(case).collect()
}

/// An authority and a certificate of its own, the same in each run.
static PAIR: LazyLock<[String; 2]> = LazyLock::new(|| {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
    [params.self_signed(&key).unwrap().pem(), key.serialize_pem()]
});

fn object(version: &str, kind: &str, name: &str, rest: Value) -> Value {
    let mut object = json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name, "namespace": "a" } });
    merge(&mut object, rest);
    object
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter()
                .for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

/// Secrets, ConfigMaps and Services that the annotations name.
fn beside() -> Vec<Value> {
    let secret = |name, data: &[(&str, &str)]| {
        let data: BTreeMap<_, _> =
            data.iter().map(|(k, v)| (*k, ByteString(v.as_bytes().to_vec()))).collect();
        object("v1", "Secret", name, json!({ "data": data }))
    };
    let [certificate, key] = &*PAIR;
    let mut list = vec![
        object("v1", "ConfigMap", "headers", json!({ "data": { "X-Sent": "yes" } })),
        secret("users", &[("auth", "alice:{PLAIN}word")]),
        secret("map", &[("alice", "{PLAIN}word")]),
        secret("authority", &[("ca.crt", certificate), ("tls.crt", certificate), ("tls.key", key)]),
    ];
    for name in ["shop", "errors"] {
        let spec = json!({ "spec": { "ports": [{ "port": 80 }], "clusterIP": "10.1.0.1" } });
        list.push(object("v1", "Service", name, spec));
        let slice = json!({
            "addressType": "IPv4", "metadata": { "labels": { "kubernetes.io/service-name": name } },
            "ports": [{ "port": 8080 }], "endpoints": [{ "addresses": ["10.0.0.1"] }, { "addresses": ["10.0.0.2"] }],
        });
        list.push(object("discovery.k8s.io/v1", "EndpointSlice", name, slice));
    }
    list
}

fn ingress(name: &str, service: &str, annotations: &[(&str, &str)]) -> Value {
    let full = |(name, value): &(&str, &str)| (format!("{PREFIX}{name}"), (*value).to_owned());
    let annotations: BTreeMap<_, _> = annotations.iter().map(full).collect();
    let backend = json!({ "service": { "name": service, "port": { "number": 80 } } });
    let rule = json!({ "host": "a.test", "http": { "paths": [{ "path": "/", "pathType": "Prefix", "backend": backend }] } });
    let rest = json!({ "metadata": { "annotations": annotations }, "spec": { "tls": [{ "hosts": ["a.test"] }], "rules": [rule] } });
    object("networking.k8s.io/v1", "Ingress", name, rest)
}

/// Whether an annotation belongs to the Ingress of a canary.
fn is_of_canary(name: &str) -> bool {
    ["canary", "affinity-canary-behavior"].contains(&name) || name.starts_with("canary-")
}

fn settings() -> Settings {
    Settings {
        without_class: true,
        passthrough: true,
        snippet_directives: ["add_header", "proxy_set_header", "proxy_buffer_size"]
            .map(str::to_owned)
            .into(),
        own_certificate: Some(PAIR.concat().into_bytes()),
        defaults: [
            ("global-auth-url", "http://10.0.0.7/"),
            ("use-http2", "false"),
            ("otlp-collector-host", "10.0.0.8"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
        ..Settings::default()
    }
}

/// The configuration and the findings of a site with these annotations. Those of a canary stand at a second Ingress.
fn made(annotations: &[(&str, &str)]) -> (String, Vec<Finding>) {
    let (canary, main): (Vec<_>, Vec<_>) = annotations.iter().partition(|one| is_of_canary(one.0));
    let mut list = beside();
    list.push(ingress("main", "shop", &main));
    if !canary.is_empty() {
        list.push(ingress("second", "errors", &canary));
    }
    let settings = settings();
    let mut snapshot = Snapshot::default();
    let text: String = list.iter().map(|object| format!("---\n{object}\n")).collect();
    assert_eq!(snapshot.add_text(&text), Vec::<String>::new());
    let made = translate(&snapshot, &settings);
    (String::from_utf8(made.text.print().unwrap()).unwrap(), made.findings)
}

#[test]
fn each_annotation_does_something_or_is_told_of() {
    let mut wrong = Vec::new();
    for case in cases() {
        let (before, _) = made(&case.needs);
        let (after, findings) = made(&[&case.needs[..], &[(case.name, case.value)]].concat());
        let reasons: Vec<_> =
            findings.iter().filter(|f| f.about == case.name).map(|f| f.reason).collect();
        let (changes, wanted): (bool, &[&str]) = match state(case.name) {
            Some(State::Built | State::Alias(_)) => (true, &[]),
            Some(State::Needless(_)) => (false, &["NeedlessAnnotation"]),
            Some(State::Unbuilt(_)) => (false, &["UnbuiltAnnotation"]),
            Some(State::Gone(_)) => (false, &["GoneAnnotation"]),
            None => (false, &["UnknownAnnotation"]),
        };
        if (before != after, &reasons[..]) != (changes, wanted) {
            wrong.push((case.name, before != after, reasons));
        }
    }
    assert!(wrong.is_empty(), "name, whether it changes something, what is told: {wrong:#?}");
}

#[test]
fn an_annotation_alone_that_needs_another_does_something_or_is_told_of() {
    let (before, _) = made(&[]);
    // What else there is in the cluster, or the value of another annotation, decides.
    let elsewhere =
        ["affinity-canary-behavior", "default-backend", "force-ssl-redirect", "proxy-ssl-verify"];
    let silent = |case: &Case| {
        let (after, findings) = made(&[(case.name, case.value)]);
        let told = findings.iter().any(|f| f.about == case.name);
        before == after && !told && !elsewhere.contains(&case.name)
    };
    let wrong: Vec<_> = cases().iter().filter(|case| silent(case)).map(|case| case.name).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    // Clients are not kept out.
    for alone in [("auth-tls-verify-client", "optional"), ("auth-secret", "users")] {
        let (_, findings) = made(&[alone]);
        let found = findings.iter().find(|f| f.reason == "IneffectiveAnnotation");
        assert_eq!(found.map(|f| f.severity), Some(Severity::Warning), "{alone:?}");
    }
    let (_, findings) = made(&[("affinity", "cookie"), ("session-cookie-name", "shop")]);
    assert!(findings.is_empty(), "{findings:?}");
}

#[test]
fn certificates_of_clients_that_no_secret_proves_close_the_paths() {
    for (annotations, closed) in [
        (&[("auth-tls-verify-client", "on")], true),
        (&[("auth-tls-match-cn", "CN=shop")], true),
        (&[("auth-tls-verify-client", "optional")], false),
        (&[("auth-tls-verify-client", "off")], false),
    ] {
        let (text, findings) = made(annotations);
        let told =
            findings.iter().any(|f| f.reason == "AccessClosed" && f.about == "auth-tls-secret");
        assert_eq!((told, text.contains("return 503")), (closed, closed), "{annotations:?}");
    }
}

#[test]
fn a_service_whose_headers_cannot_be_read_closes_the_paths() {
    let url = ("auth-url", "http://10.0.0.9/check");
    for (more, closed) in [
        (("auth-response-headers", "X-User, X-Mail"), false),
        (("auth-response-headers", "X-User; X-Mail"), true),
        (("auth-method", "BREW"), true),
    ] {
        let (text, findings) = made(&[url, more]);
        let told = findings.iter().any(|f| f.reason == "AccessClosed" && f.about == "auth-url");
        assert_eq!((told, text.contains("return 503")), (closed, closed), "{more:?}");
        let named = findings.iter().any(|f| f.reason == "InvalidAnnotation" && f.about == more.0);
        assert_eq!(named, closed, "{more:?}");
    }
}

#[test]
fn a_service_is_told_of_the_client_s_certificate_by_weir_alone() {
    let url = ("auth-url", "http://10.0.0.9/check");
    let tls = ("auth-tls-secret", "a/authority");
    let pass = ("auth-tls-pass-certificate-to-upstream", "true");
    for (more, sent) in [(&[][..], [0, 0]), (&[tls], [1, 0]), (&[tls, pass], [1, 1])] {
        let (text, _) = made(&[&[url], more].concat());
        let asked = text.split("location = external-auth-").nth(1).unwrap();
        let asked = asked.split("\n        }").next().unwrap();
        let names = ["ssl-client-verify $ssl_client_verify;", "ssl-client-cert "];
        assert_eq!(names.map(|name| asked.matches(name).count()), sent, "{more:?}: {asked}");
    }
}

#[test]
fn sizes_of_a_snippet_and_of_annotations_do_not_mix() {
    let all = [("auth-url", "http://10.0.0.9/check"), ("proxy-buffer-size", "8k")];
    let snippet = ("auth-snippet", "proxy_buffer_size 32k;");
    let names = ["proxy_buffer_size 8192;", "proxy_busy_buffers_size ", "proxy_buffer_size 32k;"];
    for (more, has) in [(&[][..], [true, true, false]), (&[snippet], [false, false, true])] {
        let (text, _) = made(&[&all, more].concat());
        let asked = text.split("location = external-auth-").nth(1).unwrap();
        let asked = asked.split("\n        }").next().unwrap();
        assert_eq!(names.map(|name| asked.contains(name)), has, "{asked}");
    }
}

#[test]
fn a_client_of_another_origin_is_sent_to_the_login() {
    let url = ("auth-url", "http://10.0.0.9/check");
    let login = ("auth-signin", "https://login.test/");
    for (more, sent) in [(&[][..], false), (&[("enable-cors", "true")], true)] {
        let (text, _) = made(&[&[url, login], more].concat());
        let to_login = text.split("location @signin-").nth(1).unwrap();
        let to_login = to_login.split("\n        }").next().unwrap();
        assert_eq!(to_login.contains("Access-Control-Allow-Origin"), sent, "{to_login}");
    }
}

#[test]
fn of_several_aliases_a_wrong_one_is_left_out_alone() {
    let (text, findings) = made(&[("server-alias", "one.test, ~^www\\d+$, two.test,")]);
    let names = text.lines().find(|line| line.contains("one.test")).unwrap();
    assert!(names.ends_with(" one.test two.test;"), "{names}");
    let told: Vec<_> = findings.iter().map(|f| (f.reason, f.about.as_str())).collect();
    assert_eq!(told, [("InvalidAnnotation", "server-alias")]);
}

#[test]
fn a_cookie_for_sessions_may_have_the_name_of_any_framework() {
    let (text, findings) =
        made(&[("affinity", "cookie"), ("session-cookie-name", ".App.Session~1")]);
    assert!(text.contains("sticky cookie .App.Session~1 ") && findings.is_empty(), "{findings:?}");
}

#[test]
fn a_check_of_servers_behind_without_authorities_is_told_of() {
    let told = |annotations: &[(&str, &str)]| {
        let (_, findings) = made(annotations);
        findings.iter().any(|f| f.reason == "NoAuthorities" && f.about == "proxy-ssl-verify")
    };
    let [https, on] = [("backend-protocol", "HTTPS"), ("proxy-ssl-verify", "on")];
    assert!(told(&[https, on]));
    assert!(!told(&[https, ("proxy-ssl-verify", "off")]));
    assert!(!told(&[https, on, ("proxy-ssl-secret", "a/authority")]));
}

#[test]
fn a_name_with_variables_behind_it_that_nothing_resolves_is_told_of() {
    for about in ["auth-url", "mirror-target"] {
        for (url, told) in [
            ("http://shop.test/check$request_uri", true),
            ("http://shop.test/check", false),
            ("http://10.0.0.9/check$request_uri", false),
        ] {
            let (_, findings) = made(&[(about, url)]);
            let found = findings.iter().any(|f| f.reason == "NoResolver" && f.about == about);
            assert_eq!(found, told, "{about}: {url}");
        }
    }
}

/// What becomes of a service of `auth-url` or `global-auth-url` under a rule for a host: where
/// requests go, or why paths are closed.
fn asked(host: &str, (name, url): (&str, &str)) -> Result<String, String> {
    let global = name == "global-auth-url";
    let own: &[(&str, &str)] = if global { &[] } else { &[(name, url)] };
    let mut site = ingress("main", "shop", own);
    site["spec"]["rules"][0]["host"] = host.into();
    let mut snapshot = Snapshot::default();
    let text: String =
        beside().iter().chain([&site]).map(|object| format!("---\n{object}\n")).collect();
    assert_eq!(snapshot.add_text(&text), Vec::<String>::new());
    let mut settings = Settings { without_class: true, ..Settings::default() };
    settings.defaults.extend(global.then(|| (name.to_owned(), url.to_owned())));
    let made = translate(&snapshot, &settings);
    let text = String::from_utf8(made.text.print().unwrap()).unwrap();
    let closed = made.findings.iter().find(|f| f.reason == "AccessClosed" && f.about == name);
    if let Some(finding) = closed {
        assert!(!text.contains("auth_request"), "{text}");
        return Err(finding.message.clone());
    }
    let (_, location) = text.split_once("proxy_pass_request_body").unwrap();
    let (_, passed) = location.split_once("proxy_pass ").unwrap();
    Ok(passed.split(';').next().unwrap().trim_matches('"').to_owned())
}

#[test]
fn the_host_of_a_service_may_be_that_of_the_rule() {
    for (url, wanted) in [
        ("https://$host/oauth2/auth", "https://a.test/oauth2/auth"),
        ("HTTP://$host:8443/check?of=$host", "http://a.test:8443/check?of=$host"),
        ("https://$host", "https://a.test"),
        ("https://$host$request_uri", "https://a.test$request_uri"),
        ("http://b.test/?x=http://$host/", "http://b.test/?x=http://$host/"),
    ] {
        for name in ["auth-url", "global-auth-url"] {
            assert_eq!(asked("a.test", (name, url)).as_deref(), Ok(wanted));
        }
    }
    for url in [
        "https://$http_host/",
        "https://$hostname/",
        "https://${host}/",
        "https://$host.test/",
        "https://$host$uri",
        "https://www.$host/",
        "https://$host@b.test/",
        "https://$host:80@b.test/",
        "https://$host:$server_port/",
        "https://$host:/",
        "ftp://$host/",
    ] {
        assert!(asked("a.test", ("auth-url", url)).is_err(), "{url}");
    }
    // A client chooses the first two, and the others are this machine.
    for host in ["", "*.a.test", "localhost", "a.localhost", "127.0.0.1", "169.254.169.254", "0"] {
        for name in ["auth-url", "global-auth-url"] {
            assert!(asked(host, (name, "https://$host/oauth2/auth")).is_err(), "{host}");
        }
    }
}

#[test]
fn a_service_below_the_path_that_it_guards_is_told_of() {
    let told = |url: &str, path: &str, more: &[(&str, &str)]| {
        let guard = ingress("main", "shop", &[&[("auth-url", url)], more].concat());
        let mut service = ingress("other", "errors", &[]);
        service["spec"]["rules"][0]["http"]["paths"][0]["path"] = path.into();
        let objects = beside().into_iter().chain([guard, service]);
        let text: String = objects.map(|object| format!("---\n{object}\n")).collect();
        let mut snapshot = Snapshot::default();
        assert_eq!(snapshot.add_text(&text), Vec::<String>::new());
        let settings = Settings { without_class: true, ..Settings::default() };
        let findings = translate(&snapshot, &settings).findings;
        assert!(findings.iter().all(|f| f.reason == "AsksItself"), "{findings:?}");
        !findings.is_empty()
    };
    let url = "https://$host/oauth2/auth?a=b";
    assert!(!told(url, "/oauth2", &[]));
    assert!(!told(url, "/oauth2/auth", &[]));
    assert!(told(url, "/oauth", &[]));
    assert!(told("https://$host/", "/oauth2", &[]));
    // Another port may be another server's, and so may another name.
    assert!(!told("https://$host:4180/", "/oauth2", &[]));
    assert!(!told("https://b.test/", "/oauth2", &[]));
    // What a pattern serves is not known.
    assert!(!told(url, "/oauth", &[("use-regex", "true")]));
}

#[test]
fn a_service_may_be_at_an_address_of_ipv6() {
    for about in ["auth-url", "mirror-target"] {
        for url in ["http://[fd00::9]/check", "http://[FD00::9]:81/check$request_uri"] {
            let (text, findings) = made(&[(about, url)]);
            assert!(findings.is_empty(), "{findings:?}");
            let passed = format!("proxy_pass \"{}\";", url.to_lowercase());
            assert!(text.contains(&passed), "{passed}: {text}");
        }
        for url in
            ["http://[::1]/", "http://[fe80::1]/", "http://[::ffff:127.0.0.1]:81/", "http://[]/"]
        {
            let (_, findings) = made(&[(about, url)]);
            let told = findings.iter().any(|f| f.reason == "InvalidAnnotation" && f.about == about);
            assert!(told, "{url}");
        }
    }
}

/// The servers of the site's Service with this `spec`, and the findings about it.
fn servers_of(spec: &Value, annotations: &[(&str, &str)]) -> (Vec<String>, Vec<Finding>) {
    let mut list = beside();
    for service in list.iter_mut().filter(|one| one["kind"] == "Service") {
        service["spec"] = spec.clone();
    }
    list.push(ingress("main", "shop", annotations));
    let mut snapshot = Snapshot::default();
    let text: String = list.iter().map(|object| format!("---\n{object}\n")).collect();
    assert_eq!(snapshot.add_text(&text), Vec::<String>::new());
    let resolver = vec!["10.0.0.53".to_owned()];
    let settings = Settings { without_class: true, resolver, ..Settings::default() };
    let made = translate(&snapshot, &settings);
    let text = String::from_utf8(made.text.print().unwrap()).unwrap();
    let servers = text.split("upstream a_shop_").nth(1).unwrap_or_default();
    let servers = servers.split('}').next().unwrap_or_default();
    let servers = servers.lines().filter_map(|line| line.trim().strip_prefix("server "));
    (servers.map(|line| line.trim_end_matches(';').to_owned()).collect(), made.findings)
}

#[test]
fn a_service_without_an_address_of_its_own_is_its_pods() {
    let wanted = [("service-upstream", "true")];
    let spec = |address: &str| json!({ "ports": [{ "port": 80 }], "clusterIP": address });
    let (servers, findings) = servers_of(&spec("10.1.0.1"), &wanted);
    assert_eq!(servers, ["10.1.0.1:80"], "{findings:?}");
    assert!(findings.is_empty(), "{findings:?}");
    let (servers, findings) = servers_of(&spec("None"), &wanted);
    assert_eq!(servers, ["10.0.0.1:8080", "10.0.0.2:8080"], "{findings:?}");
    assert_eq!(findings.iter().map(|f| f.reason).collect::<Vec<_>>(), ["NoClusterIP"]);
}

#[test]
fn a_port_of_a_name_outside_may_lead_to_another() {
    for (ports, wanted) in [
        (json!([]), 80),
        (json!([{ "port": 80, "targetPort": 8080 }]), 8080),
        (json!([{ "port": 80, "targetPort": "web" }]), 80),
        (json!([{ "port": 81, "targetPort": 8081 }]), 80),
    ] {
        let outside =
            json!({ "type": "ExternalName", "externalName": "away.test", "ports": ports });
        let (servers, findings) = servers_of(&outside, &[]);
        assert_eq!(servers, [format!("away.test:{wanted} resolve")], "{ports} {findings:?}");
    }
}

#[test]
fn the_list_has_each_annotation_once() {
    let listed: Vec<&str> = cases().iter().map(|case| case.name).collect();
    let known: Vec<&str> = KNOWN.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, known);
}

/// The page, as the table of annotations and the list say it.
fn page() -> String {
    let cases = cases();
    let mut rows = String::new();
    let [mut works, mut needless, mut theirs, mut both] = [0; 4];
    for case in &cases {
        let traefik = match case.traefik {
            "-" => "not listed".to_owned(),
            "no" => "no".to_owned(),
            version => version.to_owned(),
        };
        let ours = match state(case.name) {
            Some(State::Built) => "yes".to_owned(),
            Some(State::Alias(of)) => format!("yes, as `{of}`"),
            Some(State::Needless(why)) => format!("not needed: {why}"),
            Some(State::Unbuilt(why)) => format!("no: {why}"),
            Some(State::Gone(version)) => format!("no, like ingress-nginx since v{version}"),
            None => "unknown".to_owned(),
        };
        let supported = case.traefik.contains('.');
        works += usize::from(ours.starts_with("yes"));
        needless += usize::from(ours.starts_with("not needed"));
        theirs += usize::from(supported);
        both += usize::from(supported && !ours.starts_with("no:"));
        rows.push_str(&format!("| `{}` | {ours} | {traefik} |\n", case.name));
    }
    PAGE_HEAD
        .replace("ALL", &cases.len().to_string())
        .replace("WORKS", &works.to_string())
        .replace("NEEDLESS", &needless.to_string())
        .replace("THEIRS", &theirs.to_string())
        .replace("BOTH", &both.to_string())
        + &rows
}

const PAGE_HEAD: &str = "# The annotations of ingress-nginx

This page is for those who want to know what becomes of one annotation. `weir-ingress check` says the same of a cluster's own Ingresses: [what it says](kubernetes.md#what-check-says).

Of ALL annotations that ingress-nginx has or had, WORKS work and NEEDLESS are not needed. The other column is what Traefik's tool for the same move
(traefik/ingress-nginx-migration) lists: the version of Traefik from which an annotation is supported. It lists THEIRS as supported, of which weir-ingress takes BOTH.
`auth-type: digest` is refused: its paths are closed. `auth-keepalive` counts with `use-http2: false` alone, as in ingress-nginx.
A test gives each annotation a value: it changes the configuration, or `check` has a line that names it.
<!-- tests: each_annotation_does_something_or_is_told_of -->

| annotation | weir-ingress | Traefik |
|---|---|---|
";

#[test]
fn the_page_of_annotations_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        fs::write(&path, page()).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        there,
        page(),
        "{PAGE} is out of date: WEIR_WRITE_DOCS=1 cargo test -p weir-ingress --test annotations"
    );
}
