//! Routes of HTTP and gRPC.

use super::*;

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
            "set": [{ "name": "X-Set", "value": "$uri" }, { "name": "Content-Type", "value": "text/x" },
                { "name": "-t", "value": "no option" }],
            "add": [{ "name": "X-Add", "value": "more" }],
            "remove": ["X-Behind", "-s"] } }]),
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
    assert_eq!(answer.header("-t"), Some("no option"));
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

/// What curl says over HTTP/2 without TLS: body and status.
pub(super) fn curl(server: &Server, host: &str, path: &str, headers: &[&str]) -> Option<String> {
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
    let page = include_str!("../../../../../docs/gateway.md");
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
    let ingress = crate::ingress;
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
    let Some((before, _)) = crate::serve(&manifests) else { return };
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
