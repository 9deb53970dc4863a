//! Gateway API in a running server: what the specification says, asked over HTTP, TLS, TCP and UDP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;

use serde_json::{Value, json};
use weir_ingress::gateway::{Condition, Statuses};
use weir_ingress::{Settings, Snapshot};
use weir_testkit::{Dir, Response, Server};

use super::{behind, service, weir};

/// The class and a Gateway with these listeners.
pub(super) fn gateway(name: &str, listeners: Value) -> String {
    let class = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": { "name": "weir" }, "spec": { "controllerName": "weir.internal/gateway" } });
    let gateway = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": { "name": name, "namespace": "a" },
        "spec": { "gatewayClassName": "weir", "listeners": listeners } });
    format!("---\n{class}\n---\n{gateway}\n")
}

/// A Gateway with one listener for HTTP.
pub(super) fn plain() -> String {
    gateway(
        "web",
        json!([{ "name": "http", "port": 8080, "protocol": "HTTP",
        "allowedRoutes": { "namespaces": { "from": "All" } } }]),
    )
}

pub(super) fn route(
    kind: &str,
    namespace: &str,
    name: &str,
    hosts: &[&str],
    rules: Value,
) -> String {
    let mut object = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "parentRefs": [{ "name": "web", "namespace": "a" }], "rules": rules } });
    if !hosts.is_empty() {
        object["spec"]["hostnames"] = json!(hosts);
    }
    format!("---\n{object}\n")
}

pub(super) fn to(service: &str) -> Value {
    json!([{ "name": service, "port": 80 }])
}

/// Serves manifests; ports 8080 to 8083 of listeners become free ones.
pub(super) fn serve(manifests: &str) -> Option<(Server, Statuses)> {
    let dir = Dir::new();
    serve_in(dir, manifests)
}

pub(super) fn serve_in(dir: Dir, manifests: &str) -> Option<(Server, Statuses)> {
    let settings =
        Settings { gateway_addresses: vec!["127.0.0.1".to_owned()], ..Settings::default() };
    let change = |mut text: String| {
        for (n, name) in ["%%PORT%%", "%%PORT1%%", "%%PORT2%%", "%%PORT3%%"].into_iter().enumerate()
        {
            text = text.replace(&format!("127.0.0.1:{}", 8080 + n), &format!("127.0.0.1:{name}"));
        }
        text
    };
    let (server, made) = super::serve_in(dir, manifests, settings, change)?;
    Some((server, made.statuses))
}

pub(super) fn ask(server: &Server, line: &str, host: &str, headers: &str) -> Response {
    let head = format!("{line} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n");
    server.connect().send(head).response()
}

/// Which server behind answered, or the status.
pub(super) fn from(server: &Server, line: &str, host: &str, headers: &str) -> String {
    let answer = ask(server, line, host, headers);
    match answer.status {
        200 => answer.body().lines().next().unwrap_or_default().to_owned(),
        status => status.to_string(),
    }
}

/// The conditions of a route at its first parent.
fn conditions<'s>(statuses: &'s Statuses, name: &str) -> &'s [Condition] {
    let found = statuses.routes.iter().find(|(id, _)| id.name == name);
    &found.unwrap_or_else(|| panic!("no status of {name}")).1[0].conditions
}

fn reason(statuses: &Statuses, name: &str, kind: &str) -> (bool, &'static str) {
    let found = conditions(statuses, name).iter().find(|one| one.kind == kind);
    found.map(|one| (one.holds, one.reason)).unwrap_or_default()
}

#[test]
fn the_most_specific_match_has_the_request() {
    let services: String =
        ["one", "two", "three", "four"].map(|name| service("a", name, behind(name))).concat();
    let rules = json!([
        { "matches": [{ "path": { "type": "PathPrefix", "value": "/" } }], "backendRefs": to("one") },
        { "matches": [{ "path": { "type": "PathPrefix", "value": "/match" } }], "backendRefs": to("two") },
        { "matches": [{ "path": { "type": "Exact", "value": "/match/exact" } }], "backendRefs": to("three") },
        { "matches": [{ "headers": [{ "name": "Version", "value": "two" }] }], "backendRefs": to("two") },
        { "matches": [{ "headers": [{ "name": "version", "value": "two" }, { "name": "Color", "value": "b l:u\"e" }] }], "backendRefs": to("three") },
        { "matches": [{ "method": "POST" }], "backendRefs": to("four") },
        { "matches": [{ "queryParams": [{ "name": "animal", "value": "a whale" }] }], "backendRefs": to("three") },
        { "matches": [{ "queryParams": [{ "name": "animal", "value": "a whale" }, { "name": "n", "type": "RegularExpression", "value": "[0-9]+" }] }], "backendRefs": to("four") },
        { "matches": [{ "path": { "type": "RegularExpression", "value": "/re/[a-z]+" }, "headers": [{ "name": "Version", "value": "two" }] }], "backendRefs": to("four") },
        { "matches": [{ "path": { "type": "RegularExpression", "value": "/re/.*" } }], "backendRefs": to("three") },
    ]);
    let manifests = [plain(), services, route("HTTPRoute", "a", "rules", &[], rules)].concat();
    let Some((server, statuses)) = serve(&manifests) else { return };
    for (line, headers, wanted) in [
        ("GET /", "", "one"),
        ("GET /x", "", "one"),
        ("GET /match", "", "two"),
        ("GET /match/", "", "two"),
        ("GET /match/x", "", "two"),
        ("GET /matching", "", "one"),
        ("GET /match/exact", "", "three"),
        ("GET /match/exact/", "", "two"),
        ("GET /", "Version: two\r\n", "two"),
        ("GET /", "Version: TWO\r\n", "one"),
        ("GET /", "Version: two\r\nColor: b l:u\"e\r\n", "three"),
        // A longer path comes before headers.
        ("GET /match", "Version: two\r\nColor: b l:u\"e\r\n", "two"),
        // A method comes before headers.
        ("POST /", "Version: two\r\nContent-Length: 0\r\n", "four"),
        ("GET /?animal=a+whale", "", "three"),
        ("GET /?n=5&animal=a%20whale", "", "four"),
        ("GET /?n=x&animal=a%20whale", "", "three"),
        ("GET /?Animal=a+whale", "", "one"),
        // Headers come before query parameters.
        ("GET /?animal=a+whale", "Version: two\r\n", "two"),
        ("GET /re/abc", "Version: two\r\n", "four"),
        ("GET /re/abc", "", "three"),
        ("GET /re/ABC", "Version: two\r\n", "three"),
    ] {
        assert_eq!(from(&server, line, "any.test", headers), wanted, "{line} {headers:?}");
    }
    assert_eq!(reason(&statuses, "rules", "Accepted"), (true, "Accepted"));
    assert_eq!(reason(&statuses, "rules", "ResolvedRefs"), (true, "ResolvedRefs"));
}

#[test]
fn hostnames_of_listeners_and_routes_meet() {
    let services: String =
        ["one", "two", "three"].map(|name| service("a", name, behind(name))).concat();
    let listeners = json!([
        { "name": "any", "port": 8080, "protocol": "HTTP" },
        { "name": "wild", "port": 8080, "protocol": "HTTP", "hostname": "*.w.test" },
        { "name": "exact", "port": 8080, "protocol": "HTTP", "hostname": "x.w.test" },
    ]);
    let at = |section: &str, name: &str, hosts: &[&str], to_service: &str| {
        let object = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": { "name": name, "namespace": "a" },
            "spec": { "parentRefs": [{ "name": "web", "sectionName": section }], "hostnames": hosts,
                "rules": [{ "backendRefs": to(to_service) }] } });
        format!("---\n{object}\n")
    };
    let manifests = [
        gateway("web", listeners),
        services,
        at("any", "any", &["a.test", "x.w.test", "*.deep.w.test"], "one"),
        at("wild", "wild", &["*.w.test", "elsewhere.test"], "two"),
        at("exact", "exact", &["*.test"], "three"),
        at("exact", "nowhere", &["b.test"], "three"),
    ]
    .concat();
    let Some((server, statuses)) = serve(&manifests) else { return };
    for (host, wanted) in [
        ("a.test", "one"),
        ("b.test", "404"),
        ("y.w.test", "two"),
        ("z.y.w.test", "two"),
        // The listener of the name alone serves it, not one that has it among others.
        ("x.deep.w.test", "two"),
        ("x.w.test", "three"),
        ("w.test", "404"),
        ("elsewhere.test", "404"),
        ("X.W.test:8080", "three"),
    ] {
        assert_eq!(from(&server, "GET /", host, ""), wanted, "{host}");
    }
    assert_eq!(reason(&statuses, "nowhere", "Accepted"), (false, "NoMatchingListenerHostname"));
}

#[test]
fn filters_change_requests_and_answers() {
    let filters = |list: Value, path: &str| json!({ "matches": [{ "path": { "type": "PathPrefix", "value": path } }], "filters": list, "backendRefs": to("one") });
    let redirect = |value: Value| json!([{ "type": "RequestRedirect", "requestRedirect": value }]);
    let rewrite = |value: Value| json!([{ "type": "URLRewrite", "urlRewrite": value }]);
    let mut rules = vec![
        filters(
            json!([{ "type": "RequestHeaderModifier", "requestHeaderModifier": {
            "set": [{ "name": "X-Set", "value": "a $host ${x} \"b\"; c" }],
            "add": [{ "name": "X-Add", "value": "more" }],
            "remove": ["X-Gone"] } }]),
            "/headers",
        ),
        filters(
            json!([{ "type": "ResponseHeaderModifier", "responseHeaderModifier": {
            "set": [{ "name": "X-Set", "value": "$uri" }, { "name": "Content-Type", "value": "text/x" }],
            "add": [{ "name": "X-Add", "value": "more" }],
            "remove": ["X-Behind"] } }]),
            "/answer",
        ),
        filters(redirect(json!({ "hostname": "new.test", "statusCode": 301 })), "/moved"),
        filters(redirect(json!({ "scheme": "https", "statusCode": 308 })), "/secure"),
        filters(
            redirect(
                json!({ "port": 8443, "path": { "type": "ReplaceFullPath", "replaceFullPath": "/all$1" } }),
            ),
            "/full",
        ),
        filters(
            redirect(
                json!({ "hostname": "n.test", "port": 80, "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/to" } }),
            ),
            "/prefix",
        ),
        filters(
            rewrite(
                json!({ "hostname": "inner.test", "path": { "type": "ReplaceFullPath", "replaceFullPath": "/all" } }),
            ),
            "/whole",
        ),
        filters(
            rewrite(
                json!({ "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/$to/" } }),
            ),
            "/part",
        ),
        filters(
            rewrite(json!({ "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/" } })),
            "/strip",
        ),
        filters(json!([{ "type": "ExtensionRef" }]), "/unknown"),
        json!({ "matches": [{ "path": { "type": "Exact", "value": "/one" } }], "backendRefs": to("one"),
            "filters": rewrite(json!({ "path": { "type": "ReplaceFullPath", "replaceFullPath": "/other" } })) }),
    ];
    rules.push(json!({ "matches": [{ "path": { "value": "/own" } }], "backendRefs": [{ "name": "one", "port": 80,
        "filters": [{ "type": "RequestHeaderModifier", "requestHeaderModifier": { "set": [{ "name": "X-Own", "value": "1" }] } }] }] }));
    let manifests = [
        plain(),
        service("a", "one", behind("one")),
        route("HTTPRoute", "a", "filters", &[], rules.into()),
    ]
    .concat();
    let Some((server, statuses)) = serve(&manifests) else { return };
    let sent = |line: &str, headers: &str| ask(&server, line, "a.test", headers).body();

    let head = sent("GET /headers", "X-Add: first\r\nX-Gone: 1\r\n");
    assert!(head.contains("X-Set: a $host ${x} \"b\"; c\r\n"), "{head}");
    assert!(head.contains("X-Add: first,more\r\n") && !head.contains("X-Gone"), "{head}");
    assert!(head.contains("Host: a.test\r\n"), "{head}");
    assert!(sent("GET /headers", "").contains("X-Add: more\r\n"));
    assert!(sent("GET /own", "").contains("X-Own: 1\r\n"));

    let answer = ask(&server, "GET /answer", "a.test", "");
    assert_eq!(answer.header("x-set"), Some("$uri"));
    assert_eq!(answer.header("x-add"), Some("more"));
    assert_eq!(answer.header("content-type"), Some("text/x"));

    for (path, code, location) in [
        ("/moved/x?y=1", 301, "http://new.test:8080/moved/x?y=1"),
        ("/secure", 308, "https://a.test/secure"),
        ("/full/x?y", 302, "http://a.test:8443/all$1?y"),
        ("/prefix", 302, "http://n.test/to"),
        ("/prefix/", 302, "http://n.test/to/"),
        ("/prefix/a%20b?q=1", 302, "http://n.test/to/a%20b?q=1"),
    ] {
        let answer = ask(&server, &format!("GET {path}"), "a.test", "");
        assert_eq!((answer.status, answer.header("location")), (code, Some(location)), "{path}");
    }
    for (path, wanted) in [
        ("/whole/x?q=1", "GET /all?q=1 "),
        ("/part", "GET /$to/ "),
        ("/part/a%20b?q", "GET /$to/a%20b?q "),
        ("/strip", "GET / "),
        ("/one", "GET /other "),
        ("/strip/a", "GET /a "),
    ] {
        let head = sent(&format!("GET {path}"), "");
        assert!(head.contains(wanted), "{path}: {head}");
    }
    assert!(sent("GET /whole", "").contains("Host: inner.test\r\n"));
    assert_eq!(ask(&server, "GET /unknown", "a.test", "").status, 500);
    assert_eq!(reason(&statuses, "filters", "PartiallyInvalid"), (true, "UnsupportedValue"));
}

#[test]
fn weights_share_requests_out_and_wrong_backends_answer_500() {
    let services: String = ["one", "two"].map(|name| service("a", name, behind(name))).concat();
    let rules = json!([
        { "matches": [{ "path": { "value": "/shares" } }], "backendRefs": [
            { "name": "one", "port": 80, "weight": 9 }, { "name": "two", "port": 80, "weight": 1 }, { "name": "one", "port": 80, "weight": 0 }] },
        { "matches": [{ "path": { "value": "/half" } }], "backendRefs": [
            { "name": "one", "port": 80 }, { "name": "missing", "port": 80 }] },
        { "matches": [{ "path": { "value": "/none" } }] },
        { "matches": [{ "path": { "value": "/zero" } }], "backendRefs": [{ "name": "one", "port": 80, "weight": 0 }] },
        { "matches": [{ "path": { "value": "/kind" } }], "backendRefs": [{ "name": "one", "kind": "Bucket", "group": "x.test", "port": 80 }] },
    ]);
    let manifests = [plain(), services, route("HTTPRoute", "a", "weights", &[], rules)].concat();
    let Some((server, statuses)) = serve(&manifests) else { return };
    let counts = |path: &str| {
        let got: Vec<String> =
            (0..200).map(|_| from(&server, &format!("GET {path}"), "a.test", "")).collect();
        move |name: &str| got.iter().filter(|one| *one == name).count()
    };
    let shares = counts("/shares");
    assert!(
        shares("one") + shares("two") == 200 && (3..60).contains(&shares("two")),
        "{}",
        shares("two")
    );
    let half = counts("/half");
    assert!(
        half("one") + half("500") == 200 && (50..150).contains(&half("500")),
        "{}",
        half("500")
    );
    for path in ["/none", "/zero", "/kind"] {
        assert_eq!(from(&server, &format!("GET {path}"), "a.test", ""), "500", "{path}");
    }
    assert_eq!(reason(&statuses, "weights", "Accepted"), (true, "Accepted"));
    assert_eq!(reason(&statuses, "weights", "ResolvedRefs"), (false, "BackendNotFound"));
}

#[test]
fn another_namespace_is_reached_with_a_grant_alone() {
    let services =
        [service("b", "other", behind("other")), service("c", "closed", behind("closed"))].concat();
    let grant = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant",
        "metadata": { "name": "g", "namespace": "b" },
        "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "a" }],
            "to": [{ "group": "", "kind": "Service", "name": "other" }] } });
    let towards = |namespace: &str, name: &str, path: &str| json!([{ "matches": [{ "path": { "value": path } }], "backendRefs": [{ "name": name, "namespace": namespace, "port": 80 }] }]);
    let manifests = [
        plain(),
        services,
        format!("---\n{grant}\n"),
        route("HTTPRoute", "a", "granted", &[], towards("b", "other", "/granted")),
        route("HTTPRoute", "a", "refused", &[], towards("c", "closed", "/refused")),
        route(
            "GRPCRoute",
            "a",
            "kind",
            &["g.test"],
            json!([{ "backendRefs": [{ "name": "other", "namespace": "b", "port": 80 }] }]),
        ),
    ]
    .concat();
    let Some((server, statuses)) = serve(&manifests) else { return };
    assert_eq!(from(&server, "GET /granted", "a.test", ""), "other");
    assert_eq!(from(&server, "GET /refused", "a.test", ""), "500");
    assert_eq!(reason(&statuses, "granted", "ResolvedRefs"), (true, "ResolvedRefs"));
    assert_eq!(reason(&statuses, "refused", "ResolvedRefs"), (false, "RefNotPermitted"));
    assert_eq!(reason(&statuses, "kind", "ResolvedRefs"), (false, "RefNotPermitted"));
}

#[test]
fn pages_of_other_sites_ask_where_cors_allows_it() {
    let cors = |value: Value, path: &str| {
        json!({ "matches": [{ "path": { "value": path }, "method": "PUT" }, { "path": { "value": path }, "method": "GET" }],
            "filters": [{ "type": "CORS", "cors": value }], "backendRefs": to("one") })
    };
    let rules = json!([
        cors(
            json!({ "allowOrigins": ["https://www.foo.test", "https://*.bar.test"], "allowMethods": ["GET", "PUT"],
            "allowHeaders": ["x-one", "x-two"], "exposeHeaders": ["x-three"], "allowCredentials": true, "maxAge": 60 }),
            "/some"
        ),
        cors(
            json!({ "allowOrigins": ["*"], "allowMethods": ["*"], "allowHeaders": ["*"] }),
            "/any"
        ),
        cors(
            json!({ "allowOrigins": ["*"], "allowMethods": ["*"], "allowHeaders": ["*"], "allowCredentials": true }),
            "/known"
        ),
    ]);
    let manifests =
        [plain(), service("a", "one", behind("one")), route("HTTPRoute", "a", "cors", &[], rules)]
            .concat();
    let Some((server, _)) = serve(&manifests) else { return };
    let preflight = |path: &str, origin: &str| {
        let headers = format!(
            "Origin: {origin}\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-one\r\n"
        );
        ask(&server, &format!("OPTIONS {path}"), "a.test", &headers)
    };
    let allowed = |answer: &Response, name: &str| {
        answer.header(&format!("access-control-allow-{name}")).map(str::to_owned)
    };
    for origin in ["https://www.foo.test", "https://a.bar.test", "https://b.a.bar.test"] {
        let answer = preflight("/some", origin);
        assert_eq!((answer.status, allowed(&answer, "origin")), (204, Some(origin.to_owned())));
        assert_eq!(allowed(&answer, "methods").as_deref(), Some("GET, PUT"));
        assert_eq!(allowed(&answer, "headers").as_deref(), Some("x-one, x-two"));
        assert_eq!(allowed(&answer, "credentials").as_deref(), Some("true"));
        assert_eq!(answer.header("access-control-max-age"), Some("60"));
    }
    for origin in
        ["https://foo.test", "https://bar.test", "https://a.bar.test.evil", "http://www.foo.test"]
    {
        assert_eq!(allowed(&preflight("/some", origin), "origin"), None, "{origin}");
    }
    let answer = preflight("/any", "https://x.test");
    assert_eq!(allowed(&answer, "origin").as_deref(), Some("*"));
    assert_eq!(allowed(&answer, "credentials"), None);
    let answer = preflight("/known", "https://x.test");
    assert_eq!(allowed(&answer, "origin").as_deref(), Some("https://x.test"));
    assert_eq!(allowed(&answer, "methods").as_deref(), Some("PUT"));
    assert_eq!(allowed(&answer, "headers").as_deref(), Some("x-one"));
    let answer = ask(&server, "GET /some", "a.test", "Origin: https://www.foo.test\r\n");
    assert_eq!(
        (answer.status, allowed(&answer, "origin").as_deref()),
        (200, Some("https://www.foo.test"))
    );
    assert_eq!(answer.header("access-control-expose-headers"), Some("x-three"));
    let answer = ask(&server, "GET /some", "a.test", "Origin: https://evil.test\r\n");
    assert_eq!((answer.status, allowed(&answer, "origin")), (200, None));
}

/// A Secret with a certificate of the testkit.
pub(super) fn secret(dir: &Dir, namespace: &str, name: &str, chain: &str, key: &str) -> String {
    let pem = |name: &str| base64(dir.read(name).as_bytes());
    let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": namespace },
        "data": { "tls.crt": pem(chain), "tls.key": pem(key) } });
    format!("---\n{object}\n")
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |group: &[u8]| {
        let word = group.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        let digit = |n: usize| match n <= group.len() {
            true => char::from(DIGITS[(word >> (18 - 6 * n)) as usize & 63]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

/// A request over TLS by OpenSSL's client: which server behind answered, or the status, or nothing.
pub(super) fn secured(server: &Server, port: usize, sni: &str, host: &str) -> Option<String> {
    shown(server, port, (sni, host), &[])
}

/// The same with more arguments of that client.
fn shown(
    server: &Server,
    port: usize,
    (sni, host): (&str, &str),
    extra: &[&str],
) -> Option<String> {
    let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let args = [&["-servername", sni, "-quiet", "-ign_eof"], extra].concat();
    let said = weir_testkit::s_client(server.dir().path(), server.port_at(port), &args, &text)?;
    let Some((_, answer)) = said.split_once("HTTP/1.1 ") else { return Some(String::new()) };
    let status = answer.split(' ').next().unwrap_or_default();
    let body = answer.split("\r\n\r\n").nth(1).and_then(|body| body.lines().next());
    // What OpenSSL says itself comes behind.
    let body = body.and_then(|body| body.split("depth=").next());
    Some(if status == "200" { body.unwrap_or_default() } else { status }.to_owned())
}

#[test]
fn clients_are_asked_for_certificates() {
    let dir = weir_testkit::certified();
    // Another authority with the name of the one that is trusted.
    let script = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout forger.key -out forger.pem \
        -subj '/O=Weir/CN=root' && \
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout forged.key -subj /CN=forged | \
        openssl x509 -req -days 2 -CA forger.pem -CAkey forger.key -CAcreateserial -out forged.pem";
    let made = std::process::Command::new("sh")
        .args(["-c", script])
        .current_dir(dir.path())
        .output()
        .unwrap();
    if !made.status.success() {
        eprintln!("skipped: {}", String::from_utf8_lossy(&made.stderr));
        return;
    }
    let validation = |mode: &str| json!({ "validation": { "mode": mode, "caCertificateRefs": [{ "kind": "ConfigMap", "group": "", "name": "ca" }] } });
    let listener = |name: &str, port: u16| json!({ "name": name, "port": port, "protocol": "HTTPS", "tls": { "certificateRefs": [{ "name": "mine" }] } });
    let object = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": { "name": "web", "namespace": "a" },
        "spec": { "gatewayClassName": "weir",
            "listeners": [{ "name": "http", "port": 8080, "protocol": "HTTP" }, listener("strict", 8081), listener("open", 8082)],
            "tls": { "frontend": { "default": validation("AllowValidOnly"),
                "perPort": [{ "port": 8082, "tls": validation("AllowInsecureFallback") }] } } } });
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "ca", "namespace": "a" },
        "data": { "ca.crt": dir.read("root.pem") } });
    let manifests = [
        gateway("other", json!([])),
        format!("---\n{object}\n---\n{map}\n"),
        secret(&dir, "a", "mine", "chain.pem", "leaf.key"),
        service("a", "one", behind("one")),
        route("HTTPRoute", "a", "all", &[], json!([{ "backendRefs": to("one") }])),
    ]
    .concat();
    let Some((server, _)) = serve_in(dir, &manifests) else { return };
    let good = ["-cert", "client.pem", "-key", "client.key"];
    let forged = ["-cert", "forged.pem", "-key", "forged.key"];
    for (port, args, wanted) in [
        (1, &good[..], "one"),
        (1, &forged, ""),
        (1, &[], ""),
        (2, &good, "one"),
        (2, &forged, "one"),
        (2, &[], "one"),
    ] {
        let Some(got) = shown(&server, port, ("x.test", "x.test"), args) else { return };
        assert_eq!(got, wanted, "{port} {args:?}");
    }
}

#[test]
fn a_name_of_tls_belongs_to_one_listener() {
    let dir = weir_testkit::certified();
    let listener = |name: &str, host: &str, secret: Value| {
        let mut one = json!({ "name": name, "port": 8081, "protocol": "HTTPS", "tls": { "certificateRefs": [secret] } });
        if !host.is_empty() {
            one["hostname"] = host.into();
        }
        one
    };
    let mine = json!({ "name": "mine" });
    let listeners = json!([
        { "name": "http", "port": 8080, "protocol": "HTTP" },
        listener("any", "", mine.clone()),
        listener("one", "one.test", mine.clone()),
        listener("wild", "*.w.test", mine),
        listener("theirs", "theirs.test", json!({ "name": "theirs", "namespace": "b" })),
        listener("granted", "granted.test", json!({ "name": "granted", "namespace": "b" })),
        listener("none", "none.test", json!({ "name": "none" })),
    ]);
    let grant = json!({ "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant",
        "metadata": { "name": "g", "namespace": "b" },
        "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "a" }],
            "to": [{ "group": "", "kind": "Secret", "name": "granted" }] } });
    let services: String =
        ["one", "two", "three"].map(|name| service("a", name, behind(name))).concat();
    let at = |section: &str, to_service: &str| {
        let object = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": { "name": section, "namespace": "a" },
            "spec": { "parentRefs": [{ "name": "web", "sectionName": section }], "rules": [{ "backendRefs": to(to_service) }] } });
        format!("---\n{object}\n")
    };
    let manifests = [
        gateway("web", listeners),
        secret(&dir, "a", "mine", "chain.pem", "leaf.key"),
        secret(&dir, "b", "theirs", "chain.pem", "leaf.key"),
        secret(&dir, "b", "granted", "chain.pem", "leaf.key"),
        format!("---\n{grant}\n"),
        services,
        at("any", "one"),
        at("one", "two"),
        at("wild", "three"),
        at("granted", "three"),
    ]
    .concat();
    let Some((server, statuses)) = serve_in(dir, &manifests) else { return };
    for (sni, host, wanted) in [
        ("x.test", "x.test", "one"),
        ("one.test", "one.test", "two"),
        ("a.w.test", "a.w.test", "three"),
        ("a.w.test", "b.w.test", "three"),
        ("granted.test", "granted.test", "three"),
        ("one.test", "x.test", "421"),
        ("x.test", "one.test", "421"),
        ("a.w.test", "one.test", "421"),
    ] {
        let Some(got) = secured(&server, 1, sni, host) else { return };
        assert_eq!(got, wanted, "{sni} {host}");
    }
    let web = statuses.gateways.values().next().unwrap();
    let resolved = |name: &str| {
        let listener = web.listeners.iter().find(|one| one.name == name).unwrap();
        let found = |kind: &str| {
            let one = listener.conditions.iter().find(|one| one.kind == kind).unwrap();
            (one.holds, one.reason)
        };
        (found("ResolvedRefs"), found("Programmed").0)
    };
    assert_eq!(resolved("theirs"), ((false, "RefNotPermitted"), false));
    assert_eq!(resolved("none"), ((false, "InvalidCertificateRef"), false));
    assert_eq!(resolved("granted"), ((true, "ResolvedRefs"), true));
}

/// A server behind that speaks TLS as www.example.org, or HTTP/2 without it.
pub(super) fn weir_behind(inside: &str) -> Option<Server> {
    let dir = weir_testkit::certified();
    Some(Server::start_in(dir, &weir()?, &format!("events {{ }} http {{ server {{ {inside} }} }}")))
}

#[test]
fn servers_behind_are_known_by_a_policy() {
    let Some(tls) = weir_behind(
        "listen 127.0.0.1:%%PORT%% ssl; ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key; return 200 safe;",
    ) else {
        return;
    };
    let policy = |name: &str, service: &str, hostname: &str, map: &str, names: Value| {
        let object = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
            "metadata": { "name": name, "namespace": "a" },
            "spec": { "targetRefs": [{ "group": "", "kind": "Service", "name": service }],
                "validation": { "hostname": hostname, "subjectAltNames": names,
                    "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": map }] } } });
        format!("---\n{object}\n")
    };
    let none = || json!([]);
    let host = |name: &str| json!({ "type": "Hostname", "hostname": name });
    let uri = |name: &str| json!({ "type": "URI", "uri": name });
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "roots", "namespace": "a" },
        "data": { "ca.crt": tls.dir().read("root.pem") } });
    let services: String = ["good", "name", "gone", "alt", "uri", "odd"]
        .map(|name| service("a", name, tls.port()))
        .concat();
    let rule = |name: &str| json!({ "matches": [{ "path": { "value": format!("/{name}") } }], "backendRefs": to(name) });
    let manifests = [
        plain(),
        services,
        format!("---\n{map}\n"),
        policy("good", "good", "www.example.org", "roots", none()),
        policy("name", "name", "other.example.org", "roots", none()),
        policy("gone", "gone", "www.example.org", "missing", none()),
        policy("late", "good", "other.example.org", "roots", none()),
        policy(
            "alt",
            "alt",
            "other.example.org",
            "roots",
            json!([uri("a://b"), host("www.example.org")]),
        ),
        policy("uri", "uri", "www.example.org", "roots", json!([uri("spiffe://mesh/www")])),
        policy(
            "odd",
            "odd",
            "www.example.org",
            "roots",
            json!([host("www.example.org"), uri("a b")]),
        ),
        route(
            "HTTPRoute",
            "a",
            "tls",
            &[],
            json!([
                rule("good"),
                rule("name"),
                rule("gone"),
                rule("alt"),
                rule("uri"),
                rule("odd")
            ]),
        ),
    ]
    .concat();
    let Some((server, statuses)) = serve(&manifests) else { return };
    assert_eq!(from(&server, "GET /good", "a.test", ""), "safe");
    assert_eq!(from(&server, "GET /name", "a.test", ""), "502");
    assert_eq!(from(&server, "GET /gone", "a.test", ""), "500");
    assert_eq!(from(&server, "GET /alt", "a.test", ""), "safe");
    assert_eq!(from(&server, "GET /uri", "a.test", ""), "502");
    assert_eq!(from(&server, "GET /odd", "a.test", ""), "500");
    let told = |name: &str| {
        let (_, all) = statuses.policies.iter().find(|(id, _)| id.name == name).unwrap();
        let accepted = all[0].conditions.iter().find(|one| one.kind == "Accepted").unwrap();
        (all[0].parent.name.clone(), accepted.holds, accepted.reason)
    };
    assert_eq!(told("good"), ("web".to_owned(), true, "Accepted"));
    assert_eq!(told("gone"), ("web".to_owned(), false, "NoValidCACertificate"));
    assert_eq!(told("odd"), ("web".to_owned(), false, "Invalid"));
    assert_eq!(told("late"), ("web".to_owned(), false, "Conflicted"));
}

/// What curl says over HTTP/2 without TLS: body and status.
fn curl(server: &Server, host: &str, path: &str, headers: &[&str]) -> Option<String> {
    let url = format!("http://127.0.0.1:{}{path}", server.port());
    let mut command = Command::new("curl");
    command.args(["-s", "--max-time", "20", "--http2-prior-knowledge", "-X", "POST", "-d", "x"]);
    command.args([
        "-H",
        &format!("Host: {host}"),
        "-H",
        "Content-Type: application/grpc",
        "-w",
        "%{http_code}",
    ]);
    for header in headers {
        command.args(["-H", header]);
    }
    let said = command.arg(url).output().ok()?;
    Some(String::from_utf8_lossy(&said.stdout).into_owned())
}

#[test]
fn calls_of_grpc_go_by_service_method_and_headers() {
    let h2c = |name: &str| {
        weir_behind(&format!("listen 127.0.0.1:%%PORT%%; http2 on; return 200 {name}:;"))
    };
    let (Some(one), Some(two), Some(three)) = (h2c("one"), h2c("two"), h2c("three")) else {
        return;
    };
    let services: String = [("one", &one), ("two", &two), ("three", &three)]
        .map(|(name, server)| service("a", name, server.port()))
        .concat();
    let rules = json!([
        { "matches": [{ "method": { "service": "pkg.Echo", "method": "Say" } }], "backendRefs": to("one") },
        { "matches": [{ "method": { "service": "pkg.Echo" } }], "backendRefs": to("two") },
        { "matches": [{ "method": { "method": "Any" } }], "backendRefs": to("three") },
        { "matches": [{ "headers": [{ "name": "color", "value": "red" }] }], "backendRefs": to("one") },
    ]);
    let late =
        route("HTTPRoute", "a", "z-late", &["g.test"], json!([{ "backendRefs": to("one") }]));
    let manifests =
        [plain(), services, route("GRPCRoute", "a", "grpc", &["g.test"], rules), late].concat();
    let Some((server, statuses)) = serve(&manifests) else { return };
    for (path, headers, wanted) in [
        ("/pkg.Echo/Say", &[][..], "one:200"),
        ("/pkg.Echo/Other", &[], "two:200"),
        ("/pkg.Echo/Any", &[], "two:200"),
        ("/pkg.Other/Any", &[], "three:200"),
        ("/pkg.Other/Some", &["color: red"], "one:200"),
        ("/pkg.Other/Some", &[], "404"),
    ] {
        let Some(got) = curl(&server, "g.test", path, headers) else { return };
        assert!(got.ends_with(wanted), "{path} {got}");
    }
    // The younger route of the other kind does not get the name.
    assert_eq!(reason(&statuses, "z-late", "Accepted"), (false, "NotAllowedByListeners"));
    assert_eq!(reason(&statuses, "grpc", "Accepted"), (true, "Accepted"));
}

/// A listener of connections that says its name.
fn says(name: &'static str) -> u16 {
    weir_testkit::listen(move |mut stream| {
        let _ = stream.write_all(name.as_bytes());
    })
}

#[test]
fn connections_and_datagrams_go_to_their_routes() {
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp = datagrams.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut piece = [0; 100];
        while let Ok((n, from)) = datagrams.recv_from(&mut piece) {
            let _ = datagrams.send_to(&[b"udp:", &piece[..n]].concat(), from);
        }
    });
    let listeners = json!([
        { "name": "tcp", "port": 8080, "protocol": "TCP" },
        { "name": "udp", "port": 8081, "protocol": "UDP" },
        { "name": "shares", "port": 8082, "protocol": "TCP" },
    ]);
    let at = |kind: &str, section: &str, backends: Value| {
        let object = json!({ "apiVersion": "gateway.networking.k8s.io/v1alpha2", "kind": kind,
            "metadata": { "name": section, "namespace": "a" },
            "spec": { "parentRefs": [{ "name": "web", "sectionName": section }], "rules": [{ "backendRefs": backends }] } });
        format!("---\n{object}\n")
    };
    let shares = json!([{ "name": "tcp", "port": 80, "weight": 1 }, { "name": "two", "port": 80, "weight": 1 }, { "name": "none", "port": 80, "weight": 2 }]);
    let manifests = [
        gateway("web", listeners),
        service("a", "tcp", says("tcp")),
        service("a", "two", says("two")),
        service("a", "udp", udp).replace("port: 80 }", "port: 80, protocol: UDP }"),
        at("TCPRoute", "tcp", to("tcp")),
        at("UDPRoute", "udp", to("udp")),
        at("TCPRoute", "shares", shares),
    ]
    .concat();
    let Some((server, statuses)) = serve(&manifests) else { return };
    let said = |n: usize| {
        let mut text = String::new();
        let mut stream = TcpStream::connect(("127.0.0.1", server.port_at(n))).unwrap();
        let _ = stream.read_to_string(&mut text);
        text
    };
    assert_eq!(said(0), "tcp");
    let got: Vec<String> = (0..100).map(|_| said(2)).collect();
    let count = |name: &str| got.iter().filter(|one| *one == name).count();
    assert!(count("tcp") > 5 && count("two") > 5 && count("") > 15, "{got:?}");
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(weir_testkit::PATIENCE)).unwrap();
    client.send_to(b"hello", ("127.0.0.1", server.port_at(1))).unwrap();
    let mut piece = [0; 100];
    let n = client.recv(&mut piece).unwrap();
    assert_eq!(&piece[..n], b"udp:hello");
    assert_eq!(reason(&statuses, "shares", "ResolvedRefs"), (false, "BackendNotFound"));
}

#[test]
fn one_port_ends_tls_or_passes_it_on_by_name() {
    let Some(inner) = weir_behind(
        "listen 127.0.0.1:%%PORT%% ssl; ssl_certificate %%DIR%%/self.pem; ssl_certificate_key %%DIR%%/self.key; return 200 passed;",
    ) else {
        return;
    };
    let dir = weir_testkit::certified();
    let mine = json!({ "mode": "Terminate", "certificateRefs": [{ "name": "mine" }] });
    let listeners = json!([
        { "name": "through", "port": 8080, "protocol": "TLS", "hostname": "through.test", "tls": { "mode": "Passthrough" } },
        { "name": "ends", "port": 8080, "protocol": "TLS", "hostname": "*.ends.test", "tls": mine.clone() },
        { "name": "https", "port": 8080, "protocol": "HTTPS", "hostname": "https.test", "tls": mine.clone() },
        { "name": "alone", "port": 8081, "protocol": "TLS", "tls": { "mode": "Passthrough" } },
        { "name": "end", "port": 8082, "protocol": "TLS", "hostname": "end.test", "tls": mine },
    ]);
    let at = |kind: &str, section: &str, hosts: &[&str], to_service: &str| {
        let object = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
            "metadata": { "name": section, "namespace": "a" },
            "spec": { "parentRefs": [{ "name": "web", "sectionName": section }], "hostnames": hosts, "rules": [{ "backendRefs": to(to_service) }] } });
        format!("---\n{object}\n")
    };
    let manifests = [
        gateway("web", listeners),
        secret(&dir, "a", "mine", "chain.pem", "leaf.key"),
        service("a", "inner", inner.port()),
        service("a", "plain", behind("plain")),
        at("TLSRoute", "through", &["through.test"], "inner"),
        at("TLSRoute", "ends", &["x.ends.test"], "plain"),
        at("HTTPRoute", "https", &["https.test"], "plain"),
        at("TLSRoute", "alone", &["alone.test"], "inner"),
        at("TLSRoute", "end", &["end.test"], "plain"),
    ]
    .concat();
    let Some((server, statuses)) = serve_in(dir, &manifests) else { return };
    for (port, name, wanted) in [
        (0, "through.test", "passed"),
        (0, "x.ends.test", "plain"),
        (0, "y.ends.test", ""),
        (0, "https.test", "plain"),
        (0, "other.test", ""),
        (1, "alone.test", "passed"),
        (1, "other.test", ""),
        (2, "end.test", "plain"),
        (2, "other.test", ""),
    ] {
        let Some(got) = secured(&server, port, name, name) else { return };
        assert_eq!(got, wanted, "{port} {name}");
    }
    for name in ["through", "ends", "https", "alone", "end"] {
        assert_eq!(reason(&statuses, name, "Accepted"), (true, "Accepted"), "{name}");
    }
}

#[test]
fn backends_of_one_tls_route_have_their_own_policies() {
    let Some(tls) = weir_behind(
        "listen 127.0.0.1:%%PORT%% ssl; ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key; return 200 safe;",
    ) else {
        return;
    };
    let dir = weir_testkit::certified();
    let listeners = json!([{ "name": "end", "port": 8080, "protocol": "TLS", "hostname": "end.test",
        "tls": { "mode": "Terminate", "certificateRefs": [{ "name": "mine" }] } }]);
    let policy = |service: &str, hostname: &str| {
        let object = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
            "metadata": { "name": service, "namespace": "a" },
            "spec": { "targetRefs": [{ "group": "", "kind": "Service", "name": service }],
                "validation": { "hostname": hostname,
                    "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": "roots" }] } } });
        format!("---\n{object}\n")
    };
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "roots", "namespace": "a" },
        "data": { "ca.crt": tls.dir().read("root.pem") } });
    let backends = ["good", "plain", "odd", "none"].map(|name| json!({ "name": name, "port": 80 }));
    let route = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute",
        "metadata": { "name": "end", "namespace": "a" },
        "spec": { "parentRefs": [{ "name": "web" }], "hostnames": ["end.test"], "rules": [{ "backendRefs": backends }] } });
    let manifests = [
        gateway("web", listeners),
        secret(&dir, "a", "mine", "chain.pem", "leaf.key"),
        format!("---\n{map}\n---\n{route}\n"),
        service("a", "good", tls.port()),
        service("a", "plain", behind("plain")),
        service("a", "odd", tls.port()),
        policy("good", "www.example.org"),
        policy("odd", "other.example.org"),
    ]
    .concat();
    let Some((server, _)) = serve_in(dir, &manifests) else { return };
    let mut got = Vec::new();
    for _ in 0..60 {
        let Some(answer) = secured(&server, 0, "end.test", "end.test") else { return };
        got.push(answer);
    }
    let count = |name: &str| got.iter().filter(|one| *one == name).count();
    assert!(count("safe") > 2 && count("plain") > 2 && count("") > 5, "{got:?}");
    assert_eq!(count("safe") + count("plain") + count(""), got.len(), "{got:?}");
}

#[test]
fn copies_timeouts_attempts_and_sessions() {
    let (sender, copies) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let copied = weir_testkit::listen(move |mut stream| {
        let mut piece = [0; 1000];
        let n = stream.read(&mut piece).unwrap_or(0);
        let _ = sender.lock().unwrap().send(String::from_utf8_lossy(&piece[..n]).into_owned());
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    });
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let weak = weir_testkit::listen(move |mut stream| {
        let mut piece = [0; 1000];
        let _ = stream.read(&mut piece);
        let n = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let status = if n % 3 == 2 { "200 OK" } else { "500 Wrong" };
        let _ = stream.write_all(
            format!("HTTP/1.1 {status}\r\nContent-Length: 4\r\nConnection: close\r\n\r\nweak")
                .as_bytes(),
        );
    });
    let deaf = [0, 0].map(|port| TcpListener::bind(("127.0.0.1", port)).unwrap());
    let [first, second] = deaf.each_ref().map(|one| one.local_addr().unwrap().port());
    let other =
        service("a", "deaf", second).split("---\n").nth(2).unwrap().replace("deaf-1", "deaf-2");
    let services = [
        service("a", "one", behind("one")),
        service("a", "copy", copied),
        service("a", "weak", weak),
        service("a", "deaf", first),
        format!("---\n{other}"),
    ]
    .concat();
    let mirror = |value: Value| json!({ "type": "RequestMirror", "requestMirror": value });
    let copy = json!({ "name": "copy", "port": 80 });
    let rules = json!([
        { "matches": [{ "path": { "value": "/copy" } }], "filters": [mirror(json!({ "backendRef": copy }))], "backendRefs": to("one") },
        { "matches": [{ "path": { "value": "/never" } }], "filters": [mirror(json!({ "backendRef": copy, "percent": 0 }))], "backendRefs": to("one") },
        { "matches": [{ "path": { "value": "/slow" } }], "timeouts": { "request": "200ms" }, "backendRefs": to("deaf") },
        { "matches": [{ "path": { "value": "/again" } }], "retry": { "codes": [500], "attempts": 2 }, "backendRefs": to("weak") },
        { "matches": [{ "path": { "value": "/session" } }], "sessionPersistence": { "sessionName": "mine" }, "backendRefs": to("one") },
    ]);
    let manifests = [plain(), services, route("HTTPRoute", "a", "more", &[], rules)].concat();
    let Some((server, _)) = serve(&manifests) else { return };
    assert_eq!(from(&server, "GET /never/x", "a.test", ""), "one");
    assert_eq!(from(&server, "GET /copy/x?y=1", "a.test", ""), "one");
    let seen = copies.recv_timeout(weir_testkit::PATIENCE).unwrap();
    assert!(
        seen.starts_with("GET /copy/x?y=1 HTTP/1.1\r\n") && seen.contains("Host: a.test"),
        "{seen}"
    );
    // Servers that are too slow for this rule stay in use: each of them may be asked again.
    for _ in 0..4 {
        assert_eq!(from(&server, "GET /slow", "a.test", ""), "504");
    }
    assert_eq!(from(&server, "GET /again", "a.test", ""), "weak");
    let cookie = ask(&server, "GET /session", "a.test", "");
    assert!(
        cookie.header("set-cookie").is_some_and(|value| value.starts_with("mine=")),
        "{cookie:?}"
    );
    let head = ask(&server, "GET /_mirror-x", "a.test", "");
    assert_eq!(head.status, 404);
}

#[test]
fn the_example_of_gateway_api_works() {
    let page = include_str!("../../../../docs/gateway.md");
    let example = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let example = example.replace("    port: 80\n    protocol", "    port: 8080\n    protocol");
    let services: String =
        ["pages", "api", "api-canary"].map(|name| service("shop", name, behind(name))).concat();
    let Some((server, statuses)) = serve(&format!("{example}{services}")) else { return };
    let host = "shop.example.com";
    assert_eq!(from(&server, "GET /", host, ""), "pages");
    assert_eq!(from(&server, "GET /api/x", host, ""), "pages");
    assert_eq!(from(&server, "GET /api/x", "other.example.com", ""), "404");
    let answer = ask(&server, "GET /api/x", host, "X-Version: 2\r\n").body();
    assert!(answer.starts_with("api") && answer.contains("GET /x HTTP/1.1"), "{answer}");
    let (table, good) = statuses.table();
    assert!(
        good && table.contains("HTTPRoute shop/shop at web: Accepted, ResolvedRefs\n"),
        "{table}"
    );
}

#[test]
fn converted_ingresses_answer_the_same() {
    let services: String = ["one", "two"].map(|name| service("a", name, behind(name))).concat();
    let ingress = super::ingress;
    let ingresses = [
        ingress(
            "a",
            "plain",
            &[],
            "a.test",
            &[("Prefix", "/foo", "one"), ("Exact", "/bar", "two")],
        ),
        ingress(
            "a",
            "rewrite",
            &[("rewrite-target", "/$2"), ("use-regex", "true")],
            "r.test",
            &[("ImplementationSpecific", "/api(/|$)(.*)", "one")],
        ),
        ingress("a", "all", &[("rewrite-target", "/all")], "all.test", &[("Prefix", "/x", "two")]),
        ingress(
            "a",
            "vhost",
            &[("upstream-vhost", "inner.test")],
            "v.test",
            &[("Prefix", "/", "one")],
        ),
        ingress(
            "a",
            "moved",
            &[("permanent-redirect", "https://new.test/x")],
            "m.test",
            &[("Prefix", "/", "one")],
        ),
        ingress(
            "a",
            "canary",
            &[("canary", "true"), ("canary-weight", "0")],
            "a.test",
            &[("Prefix", "/foo", "two")],
        ),
        ingress(
            "a",
            "guarded",
            &[("whitelist-source-range", "10.0.0.0/8")],
            "g.test",
            &[("Prefix", "/", "one")],
        ),
    ]
    .concat();
    let manifests = [services.clone(), ingresses].concat();
    let Some((before, _)) = super::serve(&manifests) else { return };
    let mut snapshot = Snapshot::default();
    assert_eq!(snapshot.add_text(&manifests), Vec::<String>::new());
    let settings = Settings { without_class: true, ..Settings::default() };
    let converted = weir_ingress::convert::convert(&snapshot, &settings);
    let told: Vec<&str> = converted.findings.iter().map(|one| one.about.as_str()).collect();
    assert!(told.contains(&"whitelist-source-range"), "{told:?}");
    assert!(told.contains(&"canary"), "{told:?}");
    let objects: String =
        converted.objects.iter().map(|object| format!("---\n{object}\n")).collect();
    let objects =
        objects.replace("\"port\":80,\"protocol\":\"HTTP\"", "\"port\":8080,\"protocol\":\"HTTP\"");
    let Some((after, statuses)) = serve(&[services, objects].concat()) else { return };
    let seen = |server: &Server, host: &str, path: &str| {
        let answer = ask(server, &format!("GET {path}"), host, "");
        let line = |n: usize| answer.body().lines().nth(n).unwrap_or_default().to_owned();
        let host = answer.body().lines().find(|line| line.starts_with("Host:")).map(str::to_owned);
        let behind = (answer.status == 200).then(|| (line(0), line(1), host));
        (answer.status, behind, answer.header("location").map(str::to_owned))
    };
    for (host, path) in [
        ("a.test", "/foo"),
        ("a.test", "/foo/x?y"),
        ("a.test", "/foobar"),
        ("a.test", "/bar"),
        ("a.test", "/bar/"),
        ("b.test", "/foo"),
        ("r.test", "/api"),
        ("r.test", "/api/x/y?z"),
        ("r.test", "/apix"),
        ("all.test", "/x/y"),
        ("v.test", "/"),
        ("m.test", "/"),
        ("m.test", "/some"),
    ] {
        assert_eq!(seen(&before, host, path), seen(&after, host, path), "{host}{path}");
    }
    // What restricts access has no counterpart: nothing is served rather than all.
    assert_eq!(ask(&after, "GET /", "g.test", "").status, 404);
    let (table, good) = statuses.table();
    assert!(good, "{table}");
}
