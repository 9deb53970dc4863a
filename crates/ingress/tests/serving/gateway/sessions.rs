//! TLS, and sessions of TCP and UDP.

use super::*;

/// A policy that verifies a Service's servers by this name, with the authorities of [`roots`].
fn policy(service: &str, hostname: &str) -> String {
    let object = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
        "metadata": { "name": service, "namespace": "a" },
        "spec": { "targetRefs": [{ "group": "", "kind": "Service", "name": service }],
            "validation": { "hostname": hostname,
                "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": "roots" }] } } });
    format!("---\n{object}\n")
}

/// The authorities of a server behind.
fn roots(server: &Server) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "roots", "namespace": "a" },
        "data": { "ca.crt": server.dir().read("root.pem") } })
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

#[test]
fn servers_behind_are_known_by_a_policy() {
    let Some(tls) = weir_behind(
        "listen 127.0.0.1:%%PORT%% ssl; ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key; return 200 safe;",
    ) else {
        return;
    };
    let policy = |name: &str, service: &str, hostname: &str, maps: &str, names: Value| {
        let one = |map: &str| json!({ "group": "", "kind": "ConfigMap", "name": map });
        let maps: Vec<Value> = maps.split(' ').map(one).collect();
        let object = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
            "metadata": { "name": name, "namespace": "a" },
            "spec": { "targetRefs": [{ "group": "", "kind": "Service", "name": service }],
                "validation": { "hostname": hostname, "subjectAltNames": names,
                    "caCertificateRefs": maps } } });
        format!("---\n{object}\n")
    };
    let none = || json!([]);
    let host = |name: &str| json!({ "type": "Hostname", "hostname": name });
    let uri = |name: &str| json!({ "type": "URI", "uri": name });
    let map = roots(&tls);
    let services: String = ["good", "name", "gone", "half", "alt", "uri", "odd"]
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
        policy("half", "half", "www.example.org", "roots missing", none()),
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
                rule("half"),
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
    assert_eq!(from(&server, "GET /half", "a.test", ""), "500");
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
    assert_eq!(told("half"), ("web".to_owned(), true, "Accepted"));
    assert_eq!(told("odd"), ("web".to_owned(), false, "Invalid"));
    assert_eq!(told("late"), ("web".to_owned(), false, "Conflicted"));
}

#[test]
fn copies_of_calls_are_calls_to_servers_that_a_policy_verifies() {
    let call = "access_log %%DIR%%/calls; if ($http_te = trailers) { return 200; } return 400;";
    let tls = "ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key;";
    let start = |ssl: &str, more: &str| {
        weir_behind(&format!("listen 127.0.0.1:%%PORT%% {ssl}; http2 on; {more} {call}"))
    };
    let (Some(clear), Some(secure)) = (start("", ""), start("ssl", tls)) else { return };
    let map = roots(&secure);
    let copy = |service: &str| json!({ "type": "RequestMirror", "requestMirror": { "backendRef": { "name": service, "port": 80 } } });
    let rules = json!([{ "filters": [copy("clear"), copy("good"), copy("bad")], "backendRefs": to("clear") }]);
    let manifests = [
        plain(),
        service("a", "clear", clear.port()),
        service("a", "good", secure.port()),
        service("a", "bad", secure.port()),
        format!("---\n{map}\n"),
        policy("good", "www.example.org"),
        policy("bad", "other.example.org"),
        route("GRPCRoute", "a", "grpc", &["g.test"], rules),
    ]
    .concat();
    let Some((server, _)) = serve(&manifests) else { return };
    let Some(_) = http::curl(&server, "g.test", "/pkg.Echo/Say", &["TE: trailers"]) else { return };
    let called = "\"POST /pkg.Echo/Say HTTP/2.0\" 200 ";
    clear.wait_file("calls", called, 2);
    secure.wait_file("calls", called, 1);
    server.wait_log("upstream SSL certificate does not match \"other.example.org\"", 1);
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
    let map = roots(&tls);
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
