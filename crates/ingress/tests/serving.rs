//! The configuration of a set of manifests, in a running server, asked over HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

#[path = "serving/annotations.rs"]
mod annotations;
#[path = "serving/auth.rs"]
mod auth;
#[path = "serving/config_map.rs"]
mod config_map;
#[path = "serving/counted.rs"]
mod counted;
#[path = "serving/flags.rs"]
mod flags;
#[path = "serving/gateway.rs"]
mod gateway;
#[path = "serving/gateway_newer.rs"]
mod gateway_newer;
#[path = "serving/traces.rs"]
mod traces;

use weir_ingress::{Finding, Settings, Snapshot, Translation, translate};
use weir_testkit::{Dir, Server, listen};

/// The server of the same build, if it is there: this package does not build it.
fn weir() -> Option<String> {
    let own = std::env::current_exe().ok()?;
    let path: PathBuf = own.parent()?.parent()?.join("weir");
    if !path.exists() {
        assert!(
            std::env::var_os("CI").is_none(),
            "there is no weir beside the tests: cargo build -p weir"
        );
        eprintln!("skipped: there is no weir beside the tests (cargo build -p weir)");
        return None;
    }
    Some(path.display().to_string())
}

/// Reads the head of a request. `None` if it does not come whole.
fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut piece) {
            Ok(n) if n > 0 => head.extend_from_slice(&piece[..n]),
            _ => return None,
        }
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// A server behind that answers with its name and the head that it got.
fn behind(name: &'static str) -> u16 {
    listen(move |mut stream| {
        let Some(head) = read_head(&mut stream) else { return };
        let body = format!("{name}\n{head}");
        let length = body.len();
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
    })
}

fn service(namespace: &str, name: &str, port: u16) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{ name: {name}, namespace: {namespace} }}
spec: {{ ports: [{{ port: 80 }}] }}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{ name: {name}-1, namespace: {namespace}, labels: {{ kubernetes.io/service-name: {name} }} }}
addressType: IPv4
ports: [{{ port: {port} }}]
endpoints: [{{ addresses: [127.0.0.1] }}]
"
    )
}

fn ingress(
    namespace: &str,
    name: &str,
    annotations: &[(&str, &str)],
    host: &str,
    paths: &[(&str, &str, &str)],
) -> String {
    let annotations: serde_json::Map<String, serde_json::Value> = annotations
        .iter()
        .map(|(key, value)| (format!("nginx.ingress.kubernetes.io/{key}"), (*value).into()))
        .collect();
    let paths: Vec<_> = paths
        .iter()
        .map(|(kind, path, service)| {
            serde_json::json!({
                "path": path, "pathType": kind,
                "backend": { "service": { "name": service, "port": { "number": 80 } } },
            })
        })
        .collect();
    let object = serde_json::json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": { "name": name, "namespace": namespace, "annotations": annotations },
        "spec": { "rules": [{ "host": host, "http": { "paths": paths } }] },
    });
    format!("---\n{object}\n")
}

/// Serves manifests; the findings come along.
fn serve(manifests: &str) -> Option<(Server, Vec<Finding>)> {
    serve_with(manifests, Settings::default())
}

/// Ingresses are at the first port, and Gateways have an address: see [`gateways_at_second`].
fn both() -> Settings {
    Settings {
        http: vec!["127.0.0.1:%%PORT%%".to_owned()],
        https: Vec::new(),
        gateway_addresses: vec!["127.0.0.1".to_owned()],
        without_class: true,
        ..Settings::default()
    }
}

/// Listeners of Gateways at port 8080 listen at the second port.
fn gateways_at_second(conf: String) -> String {
    conf.replace("127.0.0.1:8080", "127.0.0.1:%%PORT1%%")
}

fn serve_with(manifests: &str, settings: Settings) -> Option<(Server, Vec<Finding>)> {
    let settings = Settings {
        http: vec!["127.0.0.1:%%PORT%%".to_owned()],
        https: Vec::new(),
        without_class: true,
        ..settings
    };
    let (server, made) = serve_in(Dir::new(), manifests, settings, |text| text)?;
    Some((server, made.findings))
}

/// Serves manifests with a directory for the server; its configuration is changed first.
fn serve_in(
    dir: Dir,
    manifests: &str,
    settings: Settings,
    change: impl FnOnce(String) -> String,
) -> Option<(Server, Translation)> {
    let weir = weir()?;
    let mut snapshot = Snapshot::default();
    assert_eq!(snapshot.add_text(manifests), Vec::<String>::new());
    let settings = Settings { loopback: true, state: dir.file("state"), ..settings };
    let made = translate(&snapshot, &settings);
    weir_ingress::state::write(&made.files).unwrap();
    std::fs::create_dir_all(dir.file("state")).unwrap();
    let text = change(String::from_utf8(made.text.print().unwrap()).unwrap());
    // What the test reads of the number of workers.
    let text = text.replace("worker_threads auto;", "worker_threads 1;");
    Some((Server::start_in(dir, &weir, &text), made))
}

fn ask(server: &Server, host: &str, path: &str) -> (String, String) {
    let answer = gateway::ask(server, &format!("GET {path}"), host, "");
    (answer.status.to_string(), answer.body())
}

/// Who answered.
fn from(server: &Server, host: &str, path: &str) -> String {
    let (status, body) = ask(server, host, path);
    if status == "200" { body.lines().next().unwrap_or_default().to_owned() } else { status }
}

#[test]
fn balancers_get_an_answer_at_any_name_of_no_ingress() {
    let one = service("a", "one", behind("one"));
    let site = ingress("a", "site", &[], "a.test", &[("Prefix", "/", "one")]);
    let all = |path| ingress("a", "all", &[], "", &[("Prefix", path, "one")]);
    let pattern = ingress("a", "all", &[("use-regex", "true")], "", &[("Prefix", "/", "one")]);
    for (rest, answers) in [
        (String::new(), ["200", "404", "404"]),
        (all("/"), ["200", "one", "one"]),
        (pattern, ["200", "one", "one"]),
        (all("/healthz"), ["one", "one", "404"]),
    ] {
        let Some((server, _)) = serve(&[one.clone(), site.clone(), rest].concat()) else { return };
        let paths = ["/healthz", "/healthz/x", "/"];
        let got = paths.map(|path| match ask(&server, "192.0.2.1", path) {
            (status, body) if body.is_empty() || status != "200" => status,
            (_, body) => body.lines().next().unwrap_or_default().to_owned(),
        });
        assert_eq!(got, answers);
        assert_eq!(from(&server, "a.test", "/healthz"), "one");
    }
}

#[test]
fn at_a_port_of_both_a_gateway_may_have_the_names_that_no_ingress_has() {
    let settings = || Settings { http: vec!["127.0.0.1:8080".to_owned()], ..both() };
    let first = |conf: String| conf.replace("127.0.0.1:8080", "127.0.0.1:%%PORT%%");
    let services: String = ["one", "two"].map(|name| service("a", name, behind(name))).concat();
    let site = ingress("a", "site", &[], "a.test", &[("Prefix", "/", "one")]);
    let all = ingress("a", "all", &[], "", &[("Prefix", "/", "one")]);
    let listener = |host: &str| {
        let mut one = serde_json::json!({ "name": "l", "port": 8080, "protocol": "HTTP" });
        if !host.is_empty() {
            one["hostname"] = host.into();
        }
        gateway::gateway("web", serde_json::json!([one]))
    };
    let route = |kind: &str, path: &str| {
        let matches = serde_json::json!([{ "path": { "type": kind, "value": path } }]);
        let rules = serde_json::json!([{ "matches": matches, "backendRefs": gateway::to("two") }]);
        gateway::route("HTTPRoute", "a", "two", &[], rules)
    };
    for (rest, wanted) in [
        // Any name, a balancer's question, and a name of the Gateway alone.
        ([listener(""), route("PathPrefix", "/")].concat(), ["two", "", "two"]),
        ([listener(""), route("Exact", "/healthz")].concat(), ["404", "two", "404"]),
        ([listener("b.test"), route("PathPrefix", "/")].concat(), ["404", "", "two"]),
        ([all, listener(""), route("PathPrefix", "/")].concat(), ["one", "", "one"]),
    ] {
        let manifests = [services.clone(), site.clone(), rest].concat();
        let made = serve_in(Dir::new(), &manifests, settings(), first);
        let Some((server, _)) = made else { return };
        let asked = [("192.0.2.1", "/"), ("192.0.2.1", "/healthz"), ("b.test", "/")];
        assert_eq!(asked.map(|(host, path)| from(&server, host, path)), wanted);
        assert_eq!(from(&server, "a.test", "/healthz"), "one");
        assert_eq!(server.logged("conflicting server name"), 0, "{}", server.log());
    }
}

#[test]
fn hosts_and_paths_choose_the_service() {
    let (one, two) = (behind("one"), behind("two"));
    let manifests = [
        service("a", "one", one),
        service("a", "two", two),
        ingress(
            "a",
            "site",
            &[],
            "a.test",
            &[
                ("Prefix", "/foo", "one"),
                ("Exact", "/bar", "two"),
                ("ImplementationSpecific", "/raw", "two"),
            ],
        ),
        ingress("a", "wild", &[], "*.w.test", &[("Prefix", "/", "two")]),
    ]
    .concat();
    let Some((server, _)) = serve(&manifests) else { return };
    let cases = [
        ("a.test", "/foo", "one"),
        ("a.test", "/foo/x", "one"),
        ("a.test", "/foobar", "404"),
        ("a.test", "/bar", "two"),
        ("a.test", "/bar/", "404"),
        ("a.test", "/rawer", "two"),
        ("b.test", "/foo", "404"),
        ("x.w.test", "/", "two"),
        ("y.x.w.test", "/", "404"),
    ];
    for (host, path, wanted) in cases {
        assert_eq!(from(&server, host, path), wanted, "{host}{path}");
    }
}

#[test]
fn names_of_objects_may_be_as_long_as_kubernetes_allows() {
    let long = |first: &str| format!("{first}{}", "a".repeat(253 - first.len()));
    let options = [("limit-rps", "1000"), ("affinity", "cookie")];
    let class = serde_json::json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": { "name": "weir" }, "spec": { "controllerName": "weir.internal/gateway" } });
    let gateway = serde_json::json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": { "name": long("g"), "namespace": "a" }, "spec": { "gatewayClassName": "weir",
            "listeners": [{ "name": long("l"), "port": 8080, "protocol": "HTTP" }] } });
    let route = serde_json::json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": long("r"), "namespace": "a" }, "spec": {
            "parentRefs": [{ "name": long("g") }], "hostnames": ["route.test"],
            "rules": [{ "backendRefs": [{ "name": "one", "port": 80 }] }] } });
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", &long("i"), &options, "a.test", &[("Prefix", "/", "one")]),
        format!("---\n{class}\n---\n{gateway}\n---\n{route}\n"),
    ]
    .concat();
    let Some((server, _)) = serve_in(Dir::new(), &manifests, both(), gateways_at_second) else {
        return;
    };
    assert_eq!(from(&server, "a.test", "/"), "one");
    let mut routed = weir_testkit::Client::connect(server.port_at(1));
    routed.send("GET / HTTP/1.1\r\nHost: route.test\r\nConnection: close\r\n\r\n");
    assert_eq!(routed.response().status, 200);
}

#[test]
fn another_namespace_takes_neither_host_nor_service() {
    let (one, two) = (behind("one"), behind("two"));
    let manifests = [
        service("a", "one", one),
        service("b", "two", two),
        ingress("a", "site", &[], "a.test", &[("Prefix", "/", "one")]),
        ingress("b", "thief", &[("use-regex", "true")], "a.test", &[("Prefix", "/stolen", "two")]),
        ingress("b", "reach", &[], "b.test", &[("Prefix", "/", "one")]),
    ]
    .concat();
    let Some((server, findings)) = serve(&manifests) else { return };
    assert_eq!(from(&server, "a.test", "/stolen"), "one");
    assert_eq!(from(&server, "b.test", "/"), "503");
    assert!(
        findings.iter().any(|f| f.reason == "HostTaken" && f.object.namespace == "b"),
        "{findings:?}"
    );
    assert!(findings.iter().any(|f| f.reason == "NoService"), "{findings:?}");
}

#[test]
fn annotations_mean_what_they_mean_in_ingress_nginx() {
    let port = behind("one");
    let path = [("ImplementationSpecific", "/api(/|$)(.*)", "one")];
    let all = [("Prefix", "/", "one")];
    let manifests = [
        service("a", "one", port),
        ingress(
            "a",
            "rewrite",
            &[("rewrite-target", "/$2"), ("x-forwarded-prefix", "/api")],
            "r.test",
            &path,
        ),
        ingress("a", "closed", &[("allowlist-source-range", "10.0.0.0/8")], "c.test", &all),
        ingress("a", "wrong", &[("whitelist-source-range", "10.0.0.0/99")], "w.test", &all),
        ingress("a", "moved", &[("permanent-redirect", "https://new.test")], "m.test", &all),
        ingress("a", "forced", &[("force-ssl-redirect", "true")], "f.test", &all),
        ingress("a", "vhost", &[("upstream-vhost", "inner.test")], "v.test", &all),
        ingress(
            "a",
            "cors",
            &[("enable-cors", "true"), ("cors-allow-origin", "https://*.o.test")],
            "o.test",
            &all,
        ),
        ingress("a", "root", &[("app-root", "/app")], "root.test", &all),
        ingress("a", "www", &[("from-to-www-redirect", "true")], "site.test", &all),
        ingress(
            "a",
            "limit",
            &[("limit-rps", "1"), ("limit-burst-multiplier", "1")],
            "l.test",
            &all,
        ),
        ingress(
            "a",
            "buffers",
            &[
                ("proxy-buffer-size", "16k"),
                ("proxy-buffering", "on"),
                ("proxy-read-timeout", "5"),
                ("proxy-body-size", "8m"),
                ("load-balance", "ewma"),
                ("affinity", "cookie"),
                ("proxy-next-upstream", "error http_502"),
            ],
            "buf.test",
            &all,
        ),
        ingress(
            "a",
            "hash",
            &[
                ("upstream-hash-by", "$request_uri"),
                ("limit-connections", "5"),
                ("limit-whitelist", "127.0.0.0/8"),
                ("limit-rate", "100"),
            ],
            "h.test",
            &all,
        ),
    ]
    .concat();
    let Some((server, findings)) = serve(&manifests) else { return };
    let (status, body) = ask(&server, "r.test", "/API/x/y");
    assert!(status == "200" && body.contains("GET /x/y HTTP/1.1"), "{status} {body}");
    assert!(body.contains("X-Forwarded-Prefix: /api"), "{body}");
    assert_eq!(from(&server, "c.test", "/"), "403");
    assert_eq!(from(&server, "w.test", "/"), "503");
    assert_eq!(from(&server, "m.test", "/x"), "301");
    assert_eq!(from(&server, "f.test", "/x"), "308");
    assert!(ask(&server, "v.test", "/").1.contains("Host: inner.test"));
    assert_eq!(from(&server, "root.test", "/"), "302");
    assert_eq!(from(&server, "www.site.test", "/"), "308");
    assert_eq!(from(&server, "buf.test", "/"), "one");
    assert_eq!(from(&server, "h.test", "/"), "one");
    let statuses: Vec<String> = (0..6).map(|_| from(&server, "l.test", "/")).collect();
    assert!(statuses.contains(&"503".to_owned()), "{statuses:?}");
    let preflight = |origin: &str| {
        let head = format!(
            "OPTIONS / HTTP/1.1\r\nHost: o.test\r\nOrigin: {origin}\r\nConnection: close\r\n\r\n"
        );
        server
            .connect()
            .send(head)
            .response()
            .header("access-control-allow-origin")
            .map(str::to_owned)
    };
    assert_eq!(preflight("https://x.o.test").as_deref(), Some("https://x.o.test"));
    assert_eq!(preflight("https://x.o.test.evil"), None);
    let wrong: Vec<_> = findings
        .iter()
        .filter(|f| f.severity > weir_ingress::Severity::Note && f.object.name != "wrong")
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn a_canary_takes_the_requests_that_its_rules_name() {
    let (main, canary) = (behind("main"), behind("canary"));
    let all = [("Prefix", "/", "canary")];
    let rules = [("canary", "true"), ("canary-by-header", "X-Try"), ("canary-by-cookie", "try")];
    let weight = [("canary", "true"), ("canary-weight", "50")];
    let manifests = [
        service("a", "main", main),
        service("a", "canary", canary),
        ingress("a", "main", &[], "a.test", &[("Prefix", "/", "main")]),
        ingress("a", "try", &rules, "a.test", &all),
        ingress("a", "half", &[], "h.test", &[("Prefix", "/", "main")]),
        ingress("a", "other-half", &weight, "h.test", &all),
        ingress("a", "alone", &weight, "alone.test", &all),
    ]
    .concat();
    let Some((server, findings)) = serve(&manifests) else { return };
    let ask = |header: &str| {
        let head = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{header}Connection: close\r\n\r\n");
        let body = server.connect().send(head).response().body();
        body.lines().next().unwrap_or_default().to_owned()
    };
    for (header, wanted) in [
        ("", "main"),
        ("X-Try: always\r\n", "canary"),
        ("X-Try: Always\r\n", "main"),
        ("Cookie: try=always\r\n", "canary"),
        ("X-Try: never\r\nCookie: try=always\r\n", "main"),
    ] {
        assert_eq!(ask(header), wanted, "{header}");
    }
    let both: std::collections::BTreeSet<String> =
        (0..60).map(|_| from(&server, "h.test", "/")).collect();
    assert!(both.iter().eq(["canary", "main"]), "{both:?}");
    assert_eq!(from(&server, "alone.test", "/"), "404");
    assert!(findings.iter().any(|f| f.reason == "CanaryAlone" && f.object.name == "alone"));
}

#[test]
fn the_administrator_decides_over_snippets_and_all_hosts() {
    let port = behind("one");
    let all = [("Prefix", "/", "one")];
    let good = [
        ("configuration-snippet", "more_set_headers \"X-S: a; b\"; proxy_set_header X-Own yes;"),
        ("server-snippet", "if ($arg_stop) { return 418; }"),
    ];
    let manifests = [
        service("a", "one", port),
        ingress("a", "good", &good, "g.test", &all),
        ingress("a", "bad", &[("configuration-snippet", "root /;")], "b.test", &all),
    ]
    .concat();
    let map = [("use-forwarded-headers", "true"), ("proxy-body-size", "1k"), ("no-such", "x")];
    let settings = Settings {
        snippet_directives: ["if", "more_set_headers", "proxy_set_header", "return"]
            .map(str::to_owned)
            .into(),
        defaults: map.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..Settings::default()
    };
    let Some((server, findings)) = serve_with(&manifests, settings) else { return };
    let head = "GET / HTTP/1.1\r\nHost: g.test\r\nX-Forwarded-Proto: https\r\nX-Forwarded-For: 203.0.113.7\r\nConnection: close\r\n\r\n";
    let answer = server.connect().send(head).response();
    assert_eq!(answer.header("X-S"), Some("a; b"));
    let body = answer.body();
    // The snippet's header stands beside those that all servers behind get.
    for line in ["X-Own: yes", "X-Forwarded-Proto: https", "X-Real-IP: 203.0.113.7", "Host: g.test"]
    {
        assert!(body.contains(line), "{line}: {body}");
    }
    assert_eq!(from(&server, "g.test", "/?stop=1"), "418");
    assert_eq!(from(&server, "b.test", "/"), "one");
    let told = |reason: &str| findings.iter().find(|f| f.reason == reason);
    let why = told("InvalidSnippet").map(|f| f.message.clone()).unwrap_or_default();
    assert!(why.contains("\"root\" directive is not among those") && why.contains('^'), "{why}");
    assert!(told("InvalidKey").is_some_and(|f| f.about == "no-such"), "{findings:?}");
}
