//! Annotations that change what a client or a server behind sees.

use weir_ingress::Settings;
use weir_testkit::Response;

use super::{behind, ingress, serve, serve_with, service};

const ALL: [(&str, &str, &str); 1] = [("Prefix", "/", "one")];

fn ask(server: &weir_testkit::Server, host: &str, path: &str, head: &str) -> Response {
    super::gateway::ask(server, &format!("GET {path}"), host, head)
}

fn map(name: &str, data: &str) -> String {
    format!(
        "---\n{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"{name}\",\"namespace\":\"a\"}},\"data\":{data}}}\n"
    )
}

#[test]
fn a_cookie_is_for_the_path_of_its_rule() {
    let paths = [("Prefix", "/one", "one"), ("Prefix", "/two", "one")];
    let cookie = [("affinity", "cookie"), ("session-cookie-name", "id")];
    let own = [cookie[0], cookie[1], ("session-cookie-path", "/own")];
    let pattern = [cookie[0], cookie[1], ("use-regex", "true")];
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "paths", &cookie, "p.test", &paths),
        ingress("a", "own", &own, "o.test", &paths),
        ingress("a", "pattern", &pattern, "r.test", &[("ImplementationSpecific", "/x.*", "one")]),
    ]
    .concat();
    let Some((server, findings)) = serve(&manifests) else { return };
    for (host, path, wanted) in [
        ("p.test", "/one", "path=/one"),
        ("p.test", "/two/x", "path=/two"),
        ("o.test", "/one", "path=/own"),
        ("r.test", "/xy", "path=/"),
    ] {
        let answer = ask(&server, host, path, "");
        let cookie = answer.header("set-cookie").unwrap_or_default();
        assert!(cookie.split("; ").any(|part| part == wanted), "{host}{path}: {cookie}");
    }
    let told: Vec<_> = findings.iter().map(|f| (f.reason, f.object.name.as_str())).collect();
    assert_eq!(told, [("NoCookiePath", "pattern")]);
}

#[test]
fn clients_of_a_canary_stay_there() {
    let cookie = [("affinity", "cookie"), ("session-cookie-name", "id")];
    let forced =
        [("canary", "true"), ("canary-by-header", "X-Try"), ("canary-by-header-value", "y")];
    let legacy = [forced[0], forced[1], forced[2], ("affinity-canary-behavior", "legacy")];
    let names = [("canary", "true"), ("canary-by-cookie", "with-hyphen")];
    let wrong = [
        ("canary", "true"),
        ("canary-by-header", "X-Try"),
        ("canary-by-header-pattern", "[][*"),
        ("canary-by-cookie", "c"),
    ];
    let mut manifests =
        [service("a", "one", behind("one")), service("a", "two", behind("two"))].concat();
    for (host, own) in
        [("s.test", &forced[..]), ("l.test", &legacy), ("n.test", &names), ("w.test", &wrong)]
    {
        manifests += &ingress("a", host, &cookie, host, &ALL);
        manifests += &ingress("a", &format!("c.{host}"), own, host, &[("Prefix", "/", "two")]);
    }
    let Some((server, _)) = serve(&manifests) else { return };
    let from = |answer: Response| answer.body().lines().next().unwrap_or_default().to_owned();
    let first = ask(&server, "s.test", "/", "X-Try: y\r\n");
    let kept = first
        .header("set-cookie")
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .to_owned();
    assert!(kept.starts_with("id=canary-"), "{kept}");
    assert_eq!(from(ask(&server, "s.test", "/", &format!("Cookie: a=b; {kept}\r\n"))), "two");
    assert_eq!(from(ask(&server, "s.test", "/", "")), "one");
    assert_eq!(ask(&server, "l.test", "/", "X-Try: y\r\n").header("set-cookie"), None);
    assert_eq!(from(ask(&server, "n.test", "/", "Cookie: x=y; with-hyphen=always\r\n")), "two");
    assert_eq!(from(ask(&server, "n.test", "/", "Cookie: with-hyphen=alwaysnot\r\n")), "one");
    // A wrong pattern lets no cookie decide for who has the header.
    assert_eq!(from(ask(&server, "w.test", "/", "X-Try: a\r\nCookie: c=always\r\n")), "one");
    assert_eq!(from(ask(&server, "w.test", "/", "Cookie: c=always\r\n")), "two");
}

#[test]
fn headers_of_a_config_map_are_as_they_are_written() {
    let manifests = [
        service("a", "one", behind("one")),
        map("sent", r#"{"X-One":"$remote_addr costs 1$","X-Two":"2"}"#),
        ingress("a", "with", &[("custom-headers", "sent")], "w.test", &ALL),
        ingress("a", "gone", &[("custom-headers", "gone")], "g.test", &ALL),
    ]
    .concat();
    let defaults = [("global-allowed-response-headers".to_owned(), "x-one".to_owned())].into();
    let settings = Settings { defaults, ..Settings::default() };
    let Some((server, _)) = serve_with(&manifests, settings) else { return };
    let answer = ask(&server, "w.test", "/", "");
    assert_eq!(answer.header("x-one"), Some("$remote_addr costs 1$"));
    assert_eq!(answer.header("x-two"), None);
    assert_eq!(ask(&server, "g.test", "/", "").status.to_string(), "503");
}

#[test]
fn a_default_backend_is_told_what_is_missing() {
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "site", &[("default-backend", "one")], "a.test", &[("Prefix", "/", "gone")]),
    ]
    .concat();
    let Some((server, _)) = serve(&manifests) else { return };
    let body = ask(&server, "a.test", "/x", "").body();
    for line in ["X-Code: 503\r", "X-Service-Name: gone\r", "X-Ingress-Name: site\r", "GET /x "] {
        assert!(body.contains(line), "{line}: {body}");
    }
}

#[test]
fn one_wrong_origin_takes_nothing_from_the_others() {
    let origins = [("enable-cors", "true"), ("cors-allow-origin", "wrong, https://a.test")];
    let any = [("enable-cors", "true"), ("cors-allow-origin", "*, wrong")];
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "some", &origins, "s.test", &ALL),
        ingress("a", "any", &any, "any.test", &ALL),
    ]
    .concat();
    let Some((server, findings)) = serve(&manifests) else { return };
    let origin = |host: &str, origin: &str| {
        let answer = ask(&server, host, "/", &format!("Origin: {origin}\r\n"));
        answer.header("access-control-allow-origin").map(str::to_owned)
    };
    assert_eq!(origin("s.test", "https://a.test").as_deref(), Some("https://a.test"));
    assert_eq!(origin("s.test", "wrong"), None);
    assert_eq!(origin("any.test", "https://b.test").as_deref(), Some("*"));
    let told: Vec<_> = findings.iter().map(|f| f.object.name.as_str()).collect();
    assert_eq!(told, ["some"]);
}

#[test]
fn the_administrator_forbids_words_and_signs_of_paths() {
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "bad", &[("upstream-vhost", "forbidden.test")], "b.test", &ALL),
        ingress(
            "a",
            "sign",
            &[],
            "s.test",
            &[("Prefix", "/a[0-9]", "one"), ("Exact", "/good", "one")],
        ),
        ingress(
            "a",
            "alias",
            &[("server-alias", "other.test")],
            "s.test",
            &[("Prefix", "/alias", "one")],
        ),
    ]
    .concat();
    let map = [
        ("annotation-value-word-blocklist", "x, forbidden"),
        ("strict-validate-path-type", "true"),
    ];
    let defaults = map.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let settings = Settings { defaults, ..Settings::default() };
    let Some((server, findings)) = serve_with(&manifests, settings) else { return };
    let status = |host: &str, path: &str| ask(&server, host, path, "").status.to_string();
    assert_eq!(status("b.test", "/"), "404");
    assert_eq!(status("s.test", "/good"), "200");
    // An alias of a younger Ingress is one of the whole host.
    assert_eq!(status("other.test", "/good"), "200");
    let told: Vec<_> = findings.iter().map(|f| f.reason).collect();
    assert!(told.contains(&"InvalidAnnotation") && told.contains(&"InvalidPath"), "{findings:?}");
}

#[test]
fn snippets_may_name_the_ingress_and_its_service() {
    let snippet = "more_set_headers \"X-Names: $namespace $ingress_name $service_name $service_port $location_path\";";
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "site", &[("configuration-snippet", snippet)], "a.test", &ALL),
    ]
    .concat();
    let snippet_directives = ["more_set_headers".to_owned()].into();
    let settings = Settings { snippet_directives, ..Settings::default() };
    let Some((server, _)) = serve_with(&manifests, settings) else { return };
    assert_eq!(ask(&server, "a.test", "/", "").header("x-names"), Some("a site one 80 /"));
}

#[test]
fn fastcgi_and_grpc_have_settings_of_their_own() {
    let cgi = [
        ("backend-protocol", "FCGI"),
        ("fastcgi-index", "index.php"),
        ("fastcgi-params-configmap", "params"),
    ];
    let grpc = [("backend-protocol", "GRPC"), ("proxy-read-timeout", "7")];
    let redirect = [("proxy-redirect-from", "default"), ("proxy-redirect-to", "off")];
    let manifests = [
        service("a", "one", 9000),
        map("params", r#"{"SCRIPT_FILENAME":"/app$fastcgi_script_name","SERVER_NAME":"own"}"#),
        ingress("a", "cgi", &cgi, "c.test", &ALL),
        ingress("a", "grpc", &grpc, "g.test", &ALL),
        ingress("a", "redirect", &redirect, "r.test", &ALL),
    ]
    .concat();
    let mut snapshot = weir_ingress::Snapshot::default();
    snapshot.add_text(&manifests);
    let settings = Settings { without_class: true, loopback: true, ..Settings::default() };
    let made = weir_ingress::translate(&snapshot, &settings);
    let text = String::from_utf8(made.text.print().unwrap()).unwrap();
    for line in [
        "fastcgi_param REQUEST_METHOD $request_method;",
        "fastcgi_param SCRIPT_FILENAME /app$fastcgi_script_name;",
        "fastcgi_param SERVER_NAME own;",
        "fastcgi_index index.php;",
        "grpc_read_timeout 7s;",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(text.matches("fastcgi_param SERVER_NAME").count(), 1);
    assert!(text.find("proxy_redirect default;") > text.find("server_name r.test;"), "{text}");
    // `default` is only known where the server behind is.
    assert!(
        text.contains("proxy_pass http://a_one_80;\n            proxy_redirect default;"),
        "{text}"
    );
}

#[test]
fn annotations_beyond_the_risk_that_is_allowed_leave_their_ingress_out() {
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "high", &[("upstream-hash-by", "$uri")], "h.test", &ALL),
        ingress("a", "medium", &[("denylist-source-range", "10.0.0.0/8")], "m.test", &ALL),
    ]
    .concat();
    for (level, wanted) in [("Medium", ["404", "200"]), ("High", ["200", "200"])] {
        let defaults = [("annotations-risk-level".to_owned(), level.to_owned())].into();
        let settings = Settings { defaults, ..Settings::default() };
        let Some((server, _)) = serve_with(&manifests, settings) else { return };
        let status = |host: &str| ask(&server, host, "/", "").status.to_string();
        assert_eq!([status("h.test"), status("m.test")], wanted, "{level}");
    }
}

#[test]
fn a_redirect_may_name_parts_of_the_request() {
    let to = |name, url| [(name, url)];
    let moved = to("permanent-redirect", "https://new.test$request_uri");
    let found = to("temporal-redirect", "https://$host.new.test/x");
    let wrong = to("permanent-redirect", "https://new.test$ssl_client_cert");
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "moved", &moved, "a.test", &[("Prefix", "/", "one")]),
        ingress("a", "found", &found, "b.test", &[("Prefix", "/", "one")]),
        ingress("a", "wrong", &wrong, "c.test", &[("Prefix", "/", "one")]),
    ]
    .concat();
    let Some((server, findings)) = serve_with(&manifests, Settings::default()) else { return };
    let location =
        |host: &str| ask(&server, host, "/p?q=1", "").header("Location").map(str::to_owned);
    assert_eq!(location("a.test").as_deref(), Some("https://new.test/p?q=1"));
    assert_eq!(location("b.test").as_deref(), Some("https://b.test.new.test/x"));
    let told: Vec<_> = findings.iter().map(|f| f.object.name.as_str()).collect();
    assert_eq!(told, ["wrong"], "{findings:?}");
}

/// weir refuses some of these values without a line, so that its Ingress would have to be looked for among all.
#[test]
fn values_that_weir_would_refuse_are_told_and_the_rest_is_served() {
    let garbage = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCloyRnlZbUZuWlE9PQotLS0tLUVORCBDRVJUSUZJQ0FURS0tLS0tCg==";
    let secret = format!(
        "---\n{{\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"metadata\":{{\"name\":\"ca\",\"namespace\":\"a\"}},\"data\":{{\"ca.crt\":\"{garbage}\"}}}}\n"
    );
    let again = [("backend-protocol", "FCGI"), ("proxy-next-upstream", "error http_502 http_504")];
    let manifests = [
        service("a", "one", behind("one")),
        secret,
        ingress("a", "files", &[("proxy-max-temp-file-size", "1")], "f.test", &ALL),
        ingress(
            "a",
            "large",
            &[("proxy-max-temp-file-size", "5000"), ("proxy-buffer-size", "16k")],
            "l.test",
            &ALL,
        ),
        ingress(
            "a",
            "redirect",
            &[("proxy-redirect-from", "~+"), ("proxy-redirect-to", "/")],
            "r.test",
            &ALL,
        ),
        ingress("a", "many", &[("limit-connections", "65536")], "m.test", &ALL),
        ingress("a", "again", &again, "a.test", &ALL),
        ingress(
            "a",
            "secret",
            &[("backend-protocol", "HTTPS"), ("proxy-ssl-secret", "ca")],
            "s.test",
            &ALL,
        ),
    ]
    .concat();
    let Some((server, findings)) = serve(&manifests) else { return };
    let told: Vec<_> =
        findings.iter().map(|f| (f.object.name.as_str(), f.about.as_str())).collect();
    assert_eq!(
        told,
        [
            ("files", "proxy-max-temp-file-size"),
            ("large", "proxy-max-temp-file-size"),
            ("many", "limit-connections"),
            ("redirect", "proxy-redirect-from"),
            ("secret", "proxy-ssl-secret"),
        ]
    );
    for host in ["f.test", "l.test", "m.test", "r.test"] {
        assert_eq!(super::from(&server, host, "/"), "one", "{host}");
    }
    assert_eq!(ask(&server, "s.test", "/", "").status, 503);
}

#[test]
fn a_path_may_name_the_port_of_the_pods() {
    let with = |name: &str, target: &str, named: &str| {
        let one = service("a", name, behind("one"));
        let one = one.replace("[{ port: 80 }]", &format!("[{{ port: 80, targetPort: {target} }}]"));
        let site = ingress("a", name, &[], &format!("{name}.test"), &[("Prefix", "/", name)]);
        one + &site.replace("\"port\":{\"number\":80}", &format!("\"port\":{{{named}}}"))
    };
    let manifests = [
        with("number", "8080", "\"number\":8080"),
        with("word", "web", "\"name\":\"web\""),
        with("usual", "8080", "\"number\":80"),
        with("neither", "8080", "\"number\":81"),
    ];
    let Some((server, findings)) = serve(&manifests.concat()) else { return };
    for (name, wanted) in [("number", 200), ("word", 200), ("usual", 200), ("neither", 503)] {
        assert_eq!(ask(&server, &format!("{name}.test"), "/", "").status, wanted, "{name}");
    }
    let told: Vec<_> = findings.iter().map(|f| (f.reason, f.object.name.as_str())).collect();
    assert_eq!(told, [("NoPort", "neither"), ("TargetPort", "number"), ("TargetPort", "word")]);
}

#[test]
fn a_prefix_that_is_a_pattern_ends_as_it_is_written() {
    let paths = [("Prefix", "/bar/", "one"), ("Prefix", "/", "two")];
    let canary = [("canary", "true"), ("canary-by-header", "X-Try")];
    let manifests = [
        ["one", "two", "new"].map(|name| service("a", name, behind(name))).concat(),
        ingress("a", "regex", &[("use-regex", "true")], "x.test", &paths),
        ingress("a", "rewrite", &[("rewrite-target", "/to")], "r.test", &paths),
        ingress("a", "plain", &[], "p.test", &paths),
        ingress("a", "canary", &canary, "x.test", &[("Prefix", "/bar/", "new")]),
    ]
    .concat();
    let Some((server, findings)) = serve(&manifests) else { return };
    assert!(findings.is_empty(), "{findings:?}");
    let from = |host: &str, path: &str, head: &str| {
        ask(&server, host, path, head).body().lines().next().unwrap_or_default().to_owned()
    };
    for (host, path, wanted) in [
        ("x.test", "/bar/a", "one"),
        ("x.test", "/BAR/", "one"),
        ("x.test", "/bar", "two"),
        ("x.test", "/barber", "two"),
        ("r.test", "/bar/a", "one"),
        ("r.test", "/barber", "two"),
        ("p.test", "/bar", "one"),
        ("p.test", "/barber", "two"),
    ] {
        assert_eq!(from(host, path, ""), wanted, "{host}{path}");
    }
    assert_eq!(from("x.test", "/bar/a", "X-Try: always\r\n"), "new");
    assert_eq!(from("x.test", "/barber", "X-Try: always\r\n"), "two");
}

#[test]
fn a_canary_with_the_smallest_weight_is_served() {
    let weight = [("canary", "true"), ("canary-weight", "1"), ("canary-weight-total", "1000000")];
    let header = [weight[0], weight[1], weight[2], ("canary-by-header", "X-Try")];
    let manifests = [
        ["one", "two"].map(|name| service("a", name, behind(name))).concat(),
        ingress("a", "site", &[], "a.test", &ALL),
        ingress("a", "canary", &header, "a.test", &[("Prefix", "/", "two")]),
    ]
    .concat();
    let Some((server, findings)) = serve(&manifests) else { return };
    for (value, wanted) in [("always", "two"), ("never", "one")] {
        let answer = ask(&server, "a.test", "/", &format!("X-Try: {value}\r\n"));
        assert_eq!(answer.body().lines().next(), Some(wanted));
    }
    let told: Vec<_> = findings.iter().map(|f| (f.reason, f.about.as_str())).collect();
    assert_eq!(told, [("SmallWeight", "canary-weight")]);
}

#[test]
fn a_refused_value_says_what_to_write() {
    for (name, value, words) in [
        ("auth-url", "https://$http_host/oauth2/auth", "http://NAME.NAMESPACE.svc.cluster.local"),
        ("mirror-target", "https://$host$request_uri", "http://NAME.NAMESPACE.svc.cluster.local"),
        ("whitelist-source-range", "10.0.0.0/8;192.0.2.1", "10.0.0.0/8,192.0.2.1"),
        ("configuration-snippet", "add_header X a;", "--allow-snippet-directive"),
        ("proxy-body-size", "8 megabytes", "8m"),
        ("proxy-ssl-secret", "b/cert", "of its own"),
    ] {
        let mut snapshot = weir_ingress::Snapshot::default();
        let text = service("a", "one", 1) + &ingress("a", "site", &[(name, value)], "a.test", &ALL);
        assert_eq!(snapshot.add_text(&text), Vec::<String>::new());
        let settings = Settings { without_class: true, loopback: true, ..Settings::default() };
        let findings = weir_ingress::translate(&snapshot, &settings).findings;
        assert!(findings.iter().any(|f| f.message.contains(words)), "{name}: {findings:?}");
    }
}
