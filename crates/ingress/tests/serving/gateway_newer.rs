//! What versions of Gateway API after v1.6 ask for, in a running server.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::gateway::{ask, from, gateway, plain, route, secret, serve, serve_in, to};
use super::{Settings, behind, ingress, service, weir};

/// A route at a listener, with its age in seconds.
fn at(section: &str, name: &str, age: u32, host: Option<&str>, rules: Value) -> String {
    let mut object = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": name, "namespace": "a",
            "creationTimestamp": format!("2020-01-01T00:00:{:02}Z", 59 - age) },
        "spec": { "parentRefs": [{ "name": "web", "sectionName": section }], "rules": rules } });
    if let Some(host) = host {
        object["spec"]["hostnames"] = json!([host]);
    }
    format!("---\n{object}\n")
}

#[test]
fn the_route_that_asks_for_fewer_names_comes_first_and_leaves_the_rest() {
    let services: String =
        ["one", "two", "three"].map(|name| service("a", name, behind(name))).concat();
    let listeners = json!([
        { "name": "exact", "port": 8080, "protocol": "HTTP", "hostname": "abc.x.test" },
        { "name": "wild", "port": 8080, "protocol": "HTTP", "hostname": "*.y.test" },
    ]);
    let prefix = |path: &str| json!({ "type": "PathPrefix", "value": path });
    let header = |name: &str| json!([{ "name": name, "value": "yes" }]);
    let rule = |path: &str, header_name: &str, service: &str| {
        json!([
        { "matches": [{ "path": prefix(path), "headers": header(header_name) }], "backendRefs": to(service) }])
    };
    let manifests = [
        gateway("web", listeners),
        services,
        // The oldest route asks for all names, and each younger one for fewer.
        at(
            "exact",
            "any",
            9,
            None,
            json!([{ "matches": [{ "path": { "type": "Exact", "value": "/a/b/c" } }],
            "backendRefs": to("one") }]),
        ),
        at("exact", "wide", 8, Some("*.x.test"), rule("/a/b", "B", "two")),
        at("exact", "narrow", 7, Some("abc.x.test"), rule("/a", "A", "three")),
        at("wild", "wide-below", 8, Some("*.test"), rule("/a/b", "B", "one")),
        at("wild", "narrow-below", 7, Some("*.y.test"), rule("/a", "A", "two")),
    ]
    .concat();
    let Some((server, _)) = serve(&manifests) else { return };
    for (host, path, headers, wanted) in [
        ("abc.x.test", "/a/b/c", "A: yes\r\nB: yes\r\n", "three"),
        ("abc.x.test", "/a/b/c", "B: yes\r\n", "two"),
        ("abc.x.test", "/a/b/c", "", "one"),
        ("abc.x.test", "/a/b/d", "A: yes\r\nB: yes\r\n", "three"),
        ("abc.x.test", "/a/b/d", "B: yes\r\n", "two"),
        ("abc.x.test", "/a/b/d", "", "404"),
        ("any.y.test", "/a/b/c", "A: yes\r\nB: yes\r\n", "two"),
        ("any.y.test", "/a/b/c", "B: yes\r\n", "one"),
        ("any.y.test", "/a/c", "B: yes\r\n", "404"),
    ] {
        assert_eq!(
            from(&server, &format!("GET {path}"), host, headers),
            wanted,
            "{host} {path} {headers:?}"
        );
    }
}

#[test]
fn a_cookie_for_sessions_has_the_name_and_the_path_that_it_is_given() {
    let rule = |path: &str, session: Value| {
        json!({ "matches": [{ "path": { "value": path } }], "sessionPersistence": session,
            "backendRefs": to("one") })
    };
    let rules = json!([
        rule(
            "/new",
            json!({ "type": "Cookie", "absoluteTimeout": "1h",
            "cookie": { "name": "mine", "path": "/new", "lifetimeType": "Permanent" } })
        ),
        rule("/plain", json!({ "type": "Cookie", "cookie": {} })),
        rule("/signs", json!({ "sessionName": "my.app!~1" })),
        rule("/odd", json!({ "cookie": { "name": "a;b", "path": "/x; domain=y" } })),
        rule(
            "/old",
            json!({ "sessionName": "before", "absoluteTimeout": "1h",
            "cookieConfig": { "lifetimeType": "Permanent" } })
        ),
    ]);
    let manifests = [
        plain(),
        service("a", "one", behind("one")),
        route("HTTPRoute", "a", "sessions", &[], rules),
    ];
    let Some((server, _)) = serve(&manifests.concat()) else { return };
    let cookie = |path: &str| {
        let answer = ask(&server, &format!("GET {path}"), "a.test", "");
        answer.header("set-cookie").unwrap_or_default().to_owned()
    };
    for (path, begins, has) in [
        ("/new", "mine=", "; path=/new"),
        ("/new", "mine=", "; max-age=3600"),
        ("/plain", "weir-", "; path=/"),
        ("/signs", "my.app!~1=", "; path=/"),
        ("/odd", "weir-", "; path=/"),
        ("/old", "before=", "; path=/"),
        ("/old", "before=", "; max-age=3600"),
    ] {
        let found = cookie(path);
        let has = found.to_ascii_lowercase().contains(has);
        assert!(found.starts_with(begins) && has, "{path}: {found}");
    }
    assert!(!cookie("/odd").contains("domain"), "{}", cookie("/odd"));
}

#[test]
fn a_route_does_not_say_where_a_message_ends() {
    let rule = |path: &str, kind: &str, value: Value| {
        let key = format!("{}{}", kind[..1].to_lowercase(), &kind[1..]);
        json!({ "matches": [{ "path": { "value": path } }], "backendRefs": to("one"),
            "filters": [{ "type": kind, key: value }] })
    };
    let (asked, answered) = ("RequestHeaderModifier", "ResponseHeaderModifier");
    let mut host =
        rule("/host", asked, json!({ "set": [{ "name": "host", "value": "set.test" }] }));
    let rewrite = json!({ "type": "URLRewrite", "urlRewrite": { "hostname": "inner.test" } });
    host["filters"].as_array_mut().unwrap().push(rewrite);
    let length = json!([{ "name": "content-length", "value": "1" }]);
    let rules = json!([
        rule("/set", asked, json!({ "set": length })),
        rule(
            "/add",
            asked,
            json!({ "add": [{ "name": "Transfer-Encoding", "value": "chunked" }] })
        ),
        rule("/remove", asked, json!({ "remove": ["Content-Length"] })),
        rule("/answer", answered, json!({ "set": length })),
        host,
    ]);
    let manifests =
        [plain(), service("a", "one", behind("one")), route("HTTPRoute", "a", "r", &[], rules)];
    let Some((server, statuses)) = serve(&manifests.concat()) else { return };
    for path in ["/set", "/add", "/remove", "/answer"] {
        let answer = ask(&server, &format!("GET {path}"), "a.test", "");
        assert_eq!(answer.status, 500, "{path}");
    }
    let told = &statuses.routes.values().next().unwrap()[0].conditions;
    assert!(told.iter().any(|one| one.kind == "PartiallyInvalid" && one.holds), "{told:?}");
    // The last of two filters that name the host has it.
    let head = ask(&server, "GET /host", "a.test", "").body().to_ascii_lowercase();
    assert_eq!(head.matches("\nhost: ").count(), 1, "{head}");
    assert!(head.contains("\nhost: inner.test\r"), "{head}");
}

#[test]
fn attempts_follow_with_a_pause_and_end_with_the_time_of_the_request() {
    let answering = |good: fn(usize) -> bool| {
        let asked = AtomicUsize::new(0);
        weir_testkit::listen(move |mut stream| {
            let _ = stream.read(&mut [0; 1000]);
            let good = good(asked.fetch_add(1, Ordering::Relaxed));
            let status = if good { "200 OK" } else { "500 Wrong" };
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: 4\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(format!("{head}body").as_bytes());
        })
    };
    let rule = |path: &str, retry: Value, timeouts: Value, service: &str| {
        json!({ "matches": [{ "path": { "value": path } }], "retry": retry, "timeouts": timeouts,
            "backendRefs": to(service) })
    };
    let rules = json!([
        rule(
            "/third",
            json!({ "codes": [500], "attempts": 2, "backoff": "1ms" }),
            json!({}),
            "third"
        ),
        rule(
            "/late",
            json!({ "codes": [500], "attempts": 9, "backoff": "1h" }),
            json!({ "request": "300ms" }),
            "never"
        ),
        rule("/once", json!({ "codes": [500], "attempts": 0 }), json!({}), "second"),
    ]);
    let manifests = [
        plain(),
        service("a", "third", answering(|n| n == 2)),
        service("a", "second", answering(|n| n == 1)),
        service("a", "never", answering(|_| false)),
        route("HTTPRoute", "a", "retries", &[], rules),
    ];
    let Some((server, _)) = serve(&manifests.concat()) else { return };
    for (path, wanted) in [("/third", 200), ("/late", 504), ("/once", 500)] {
        assert_eq!(ask(&server, &format!("GET {path}"), "a.test", "").status, wanted, "{path}");
    }
}

#[test]
fn a_listener_has_http_3_where_its_options_ask_for_it() {
    let listeners = |more: Value| {
        let tls = json!({ "certificateRefs": [{ "name": "mine" }], "options": { "weir.internal/http3": "true" } });
        let mut list = vec![
            json!({ "name": "http", "port": 8080, "protocol": "HTTP" }),
            json!({ "name": "asks", "port": 8081, "protocol": "HTTPS", "tls": tls }),
            json!({ "name": "none", "port": 8081, "protocol": "HTTPS", "hostname": "weir.test",
                "tls": { "certificateRefs": [{ "name": "mine" }] } }),
        ];
        list.extend(more.as_array().into_iter().flatten().cloned());
        json!(list)
    };
    let start = |more: Value| {
        let dir = weir_testkit::certified();
        let manifests = [
            gateway("web", listeners(more)),
            secret(&dir, "a", "mine", "chain.pem", "leaf.key"),
            service("a", "one", behind("one")),
            route("HTTPRoute", "a", "all", &[], json!([{ "backendRefs": to("one") }])),
        ];
        serve_in(dir, &manifests.concat())
    };
    let offered = |server: &weir_testkit::Server, name: &str| {
        let head = format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
        let words = ["-servername", name, "-quiet", "-ign_eof"];
        let said = weir_testkit::s_client(server.dir().path(), server.port_at(1), &words, &head);
        said.map(|said| {
            (said.contains("one\n"), said.contains("Alt-Svc: h3=\":8081\"; ma=86400\r"))
        })
    };
    let udp = |statuses: &weir_ingress::gateway::Statuses| -> Vec<u16> {
        let ports = statuses.gateways.values().flat_map(|status| &status.ports);
        ports.filter(|port| port.udp).map(|port| port.number).collect()
    };
    let Some((server, statuses)) = start(json!([])) else { return };
    assert_eq!(udp(&statuses), [8081]);
    assert!(matches!(offered(&server, "localhost"), None | Some((true, true))));
    assert!(matches!(offered(&server, "weir.test"), None | Some((true, false))));
    let said = over_http_3(&server);
    assert_eq!(said["200"], 3, "{said}");
    // The port of UDP is another's: all but HTTP/3 goes on.
    let taken = json!([{ "name": "udp", "port": 8081, "protocol": "UDP" }]);
    let Some((server, statuses)) = start(taken) else { return };
    assert_eq!(udp(&statuses), [8081]);
    assert!(matches!(offered(&server, "localhost"), None | Some((true, false))));
}

/// Asks the second port three times over HTTP/3. Returns the number of answers of each status.
fn over_http_3(server: &weir_testkit::Server) -> Value {
    let url = format!("https://localhost:{}/", server.port_at(1));
    let words = ["bench", "--http3", "--insecure", "-n", "3", "-c", "1", "--json", &url];
    let asked = std::process::Command::new(weir().unwrap()).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&asked.stdout);
    let said: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    said["statuses"].clone()
}

#[test]
fn a_gateway_for_all_names_at_a_port_of_ingresses_has_them_over_http_3_too() {
    let start = |option: &str| {
        let dir = weir_testkit::certified();
        let tls = json!({ "certificateRefs": [{ "name": "mine" }], "options": { "weir.internal/http3": option } });
        let listeners = json!([{ "name": "all", "port": 8081, "protocol": "HTTPS", "tls": tls }]);
        let manifests = [
            gateway("web", listeners),
            secret(&dir, "a", "mine", "chain.pem", "leaf.key"),
            ["one", "two"].map(|name| service("a", name, behind(name))).concat(),
            ingress("a", "site", &[], "a.test", &[("Prefix", "/", "one")]),
            route("HTTPRoute", "a", "all", &[], json!([{ "backendRefs": to("two") }])),
        ];
        let settings = Settings {
            https: vec!["127.0.0.1:8081".to_owned()],
            own_certificate: weir_ingress::certificate::make(),
            defaults: [("use-http3".to_owned(), "true".to_owned())].into(),
            ..super::both()
        };
        let first = |conf: String| conf.replace("127.0.0.1:8081", "127.0.0.1:%%PORT1%%");
        super::serve_in(dir, &manifests.concat(), settings, first)
    };
    let Some((server, _)) = start("true") else { return };
    assert_eq!(over_http_3(&server), json!({ "200": 3 }));
    // Without HTTP/3 the listener leaves it to the Ingresses.
    let Some((server, _)) = start("false") else { return };
    assert_eq!(over_http_3(&server), json!({ "404": 3 }));
}
