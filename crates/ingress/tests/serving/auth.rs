//! Authentication services: of an Ingress, and of the administrator for all.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;
use weir_ingress::Settings;
use weir_testkit::{Dir, NameRecord, NameReply, Server, ask_until, listen, name_server};

use super::{behind, gateway, ingress, read_head, serve_in, serve_with, service};

/// A service that lets in requests with `X-Ticket: valid`, sets headers, and counts what it is asked.
fn judge() -> (u16, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let asked = count.clone();
    let port = listen(move |mut stream| {
        use std::io::{Read, Write};
        let (mut head, mut piece) = (Vec::new(), [0; 1024]);
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            match stream.read(&mut piece) {
                Ok(n) if n > 0 => head.extend_from_slice(&piece[..n]),
                _ => return,
            }
        }
        asked.fetch_add(1, Ordering::Relaxed);
        let text = String::from_utf8_lossy(&head).to_lowercase();
        let status = if text.contains("x-ticket: valid") { "200 OK" } else { "401 No" };
        let _ = write!(
            stream,
            "HTTP/1.1 {status}\r\nX-User: someone\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    });
    (port, count)
}

fn status(server: &Server, path: &str, head: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{head}Connection: close\r\n\r\n");
    server.connect().send(head).response().status.to_string()
}

const VALID: &str = "X-Ticket: valid\r\n";

#[test]
fn one_service_guards_all_hosts_but_the_places_that_are_free() {
    let (port, _) = judge();
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "site", &[], "a.test", &[("Prefix", "/", "one"), ("Prefix", "/open", "one")]),
        ingress(
            "a",
            "own",
            &[("enable-global-auth", "false")],
            "a.test",
            &[("Prefix", "/own", "one")],
        ),
    ]
    .concat();
    let map = [
        ("global-auth-url", format!("http://127.0.0.1:{port}/")),
        ("global-auth-response-headers", "X-User".to_owned()),
        ("global-auth-snippet", "proxy_set_header X-Mine yes;".to_owned()),
        ("no-auth-locations", "/open".to_owned()),
    ];
    let defaults = map.map(|(key, value)| (key.to_owned(), value)).into();
    let Some((server, findings)) =
        serve_with(&manifests, Settings { defaults, ..Settings::default() })
    else {
        return;
    };
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!(status(&server, "/", ""), "401");
    assert_eq!(status(&server, "/", VALID), "200");
    assert_eq!(status(&server, "/open", ""), "200");
    assert_eq!(status(&server, "/own", ""), "200");
    let head =
        format!("GET / HTTP/1.1\r\nHost: a.test\r\nX-User: me\r\n{VALID}Connection: close\r\n\r\n");
    let body = server.connect().send(head).response().body();
    assert!(body.contains("X-User: someone") && !body.contains("X-User: me"), "{body}");
}

#[test]
fn answers_of_the_service_are_kept_for_a_location() {
    let (port, count) = judge();
    let url = format!("http://127.0.0.1:{port}/");
    let annotations = [
        ("auth-url", url.as_str()),
        ("auth-cache-key", "$http_x_ticket"),
        ("auth-cache-duration", "200 5m"),
    ];
    let manifests = [
        service("a", "one", behind("one")),
        ingress(
            "a",
            "site",
            &annotations,
            "a.test",
            &[("Prefix", "/", "one"), ("Prefix", "/b", "one")],
        ),
    ]
    .concat();
    let Some((server, findings)) = serve_with(&manifests, Settings::default()) else { return };
    assert!(findings.is_empty(), "{findings:?}");
    for path in ["/", "/", "/b", "/b"] {
        assert_eq!(status(&server, path, VALID), "200");
    }
    assert_eq!(count.load(Ordering::Relaxed), 2);
    assert_eq!(status(&server, "/", ""), "401");
    assert_eq!(status(&server, "/", ""), "401");
    assert_eq!(count.load(Ordering::Relaxed), 4);
}

#[test]
fn the_service_is_followed_by_its_name() {
    let (port, _) = judge();
    let at = Arc::new(AtomicU8::new(0));
    let now = at.clone();
    let names = name_server(move |name| match (name, now.load(Ordering::Relaxed)) {
        ("judge.d.svc.cluster.test", last) if last > 0 => {
            NameReply::Records(1, vec![NameRecord::Address(Ipv4Addr::new(127, 0, 0, last))])
        }
        _ => NameReply::NoSuchName,
    });
    let url = format!("http://judge.d.svc:{port}/check");
    let kept = [("auth-url", url.as_str()), ("auth-keepalive", "2")];
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "site", &kept[..1], "a.test", &[("Prefix", "/", "one")]),
        ingress("a", "kept", &kept, "a.test", &[("Prefix", "/kept", "one")]),
    ]
    .concat();
    let settings = || Settings {
        resolver: vec![format!("127.0.0.1:{names}"), "ipv6=off".to_owned()],
        cluster_domain: Some("cluster.test".to_owned()),
        ..Settings::default()
    };
    let without_http2 = [("use-http2".to_owned(), "false".to_owned())].into();
    // A group asks again for a name that is unknown after half a minute.
    for (path, first, settings) in
        [("/", 0, settings()), ("/kept", 9, Settings { defaults: without_http2, ..settings() })]
    {
        at.store(first, Ordering::Relaxed);
        let Some((server, findings)) = serve_with(&manifests, settings) else { return };
        assert!(findings.is_empty(), "{findings:?}");
        for (last, wanted) in [(first, "500"), (1, "200"), (9, "500")] {
            at.store(last, Ordering::Relaxed);
            let done = ask_until(|| status(&server, path, VALID) == wanted);
            assert!(done, "{path}: never {wanted} with the service at 127.0.0.{last}");
        }
    }
}

#[test]
fn connections_to_the_service_are_kept_without_http2() {
    let (port, _) = judge();
    let url = format!("http://127.0.0.1:{port}/");
    let annotations = [("auth-url", url.as_str()), ("auth-keepalive", "7")];
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "site", &annotations, "a.test", &[("Prefix", "/", "one")]),
    ]
    .concat();
    let mut snapshot = weir_ingress::Snapshot::default();
    snapshot.add_text(&manifests);
    let text = |defaults: &[(&str, &str)]| {
        let defaults = defaults.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let settings =
            Settings { without_class: true, loopback: true, defaults, ..Settings::default() };
        let made = weir_ingress::translate(&snapshot, &settings);
        String::from_utf8(made.text.print().unwrap()).unwrap()
    };
    assert!(!text(&[]).contains("keepalive 7;"));
    assert!(text(&[("use-http2", "false")]).contains("keepalive 7;"));
}

#[test]
fn a_revoked_certificate_of_a_client_is_refused() {
    const REVOKED: &str = include_str!("../../../tls/testdata/root.crl");
    let answer = |list: Option<&str>| {
        let dir = weir_testkit::certified();
        let mut data =
            serde_json::json!({ "ca.crt": gateway::base64(dir.read("root.pem").as_bytes()) });
        if let Some(list) = list {
            data["ca.crl"] = gateway::base64(list.as_bytes()).into();
        }
        let roots = serde_json::json!({ "apiVersion": "v1", "kind": "Secret", "data": data,
            "metadata": { "name": "roots", "namespace": "a" } });
        let host = "www.example.org";
        let asks = [("auth-tls-secret", "a/roots")];
        let site = ingress("a", "site", &asks, host, &[("Prefix", "/", "one")]);
        let tls = r#""spec":{"tls":[{"hosts":["www.example.org"],"secretName":"mine"}],"#;
        let manifests = [
            service("a", "one", behind("one")),
            gateway::secret(&dir, "a", "mine", "chain.pem", "leaf.key"),
            format!("---\n{roots}\n"),
            site.replace("\"spec\":{", tls),
        ];
        let settings = Settings {
            http: vec!["127.0.0.1:%%PORT%%".to_owned()],
            https: vec!["127.0.0.1:%%PORT1%%".to_owned()],
            without_class: true,
            ..Settings::default()
        };
        let (server, _) = serve_in(dir, &manifests.concat(), settings, |text| text)?;
        let client = ["-cert", "client.pem", "-key", "client.key"];
        gateway::shown(&server, 1, (host, host), &client)
    };
    for (list, wanted) in [(None, "one"), (Some(REVOKED), "400"), (Some("none"), "403")] {
        let Some(got) = answer(list) else { return };
        assert_eq!(got, wanted, "{list:?}");
    }
}

#[test]
fn a_service_may_answer_as_much_as_the_location_has_buffers_for() {
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let port = listen(move |mut stream| {
        use std::io::Write;
        let Some(head) = read_head(&mut stream) else { return };
        let _ = tell.lock().unwrap().send(head);
        let cookie = "c".repeat(6000);
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nX-Cookie: {cookie}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    });
    let url = format!("http://127.0.0.1:{port}/");
    let asks = [("auth-url", url.as_str()), ("auth-method", "GET")];
    let large = [asks[0], asks[1], ("proxy-buffer-size", "16k")];
    let all = [("Prefix", "/", "one")];
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "small", &asks, "b.test", &all),
        ingress("a", "large", &large, "a.test", &all),
    ];
    let Some((server, _)) = serve_with(&manifests.concat(), Settings::default()) else { return };
    assert_eq!(status(&server, "/x?y=1", ""), "200");
    let head = told.recv_timeout(weir_testkit::PATIENCE).unwrap();
    assert!(head.contains("X-Original-URI: /x?y=1\r\n"), "{head}");
    assert!(head.contains("X-Scheme: http\r\n"), "{head}");
    assert_eq!(gateway::ask(&server, "GET /", "b.test", "").status, 500);
}

#[test]
fn headers_of_a_config_map_that_is_not_there_close_their_paths() {
    let (port, asked) = judge();
    let url = format!("http://127.0.0.1:{port}/");
    let guarded = |map| [("auth-url", url.as_str()), ("auth-proxy-set-headers", map)];
    let all = [("Prefix", "/", "one")];
    let scripts = [("backend-protocol", "FCGI"), ("fastcgi-params-configmap", "none")];
    let map = |name: &str, data: serde_json::Value| {
        let metadata = json!({ "name": name, "namespace": "a" });
        let map =
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
        format!("---\n{map}\n")
    };
    let manifests = [
        service("a", "one", behind("one")),
        map("good", json!({ "X-Tenant": "a" })),
        map("wrong", json!({ "X-Tenant": "a\u{1}" })),
        ingress("a", "good", &guarded("good"), "a.test", &all),
        ingress("a", "none", &guarded("none"), "none.test", &all),
        ingress("a", "wrong", &guarded("wrong"), "wrong.test", &all),
        ingress("a", "scripts", &scripts, "scripts.test", &all),
    ];
    let Some((server, findings)) = serve_with(&manifests.concat(), Settings::default()) else {
        return;
    };
    assert_eq!(status(&server, "/", VALID), "200");
    for host in ["none.test", "wrong.test", "scripts.test"] {
        assert_eq!(gateway::ask(&server, "GET /", host, VALID).status, 503, "{host}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    let told: Vec<_> = findings.iter().map(|one| (one.object.name.as_str(), one.reason)).collect();
    let wanted = [("none", "AccessClosed"), ("scripts", "NoConfigMap"), ("wrong", "AccessClosed")];
    assert_eq!(told, wanted, "{findings:?}");
}

/// An OAuth2 proxy: it lets in requests with the cookie `ticket=valid`, and names their user.
fn oauth() -> u16 {
    listen(|mut stream| {
        use std::io::Write;
        let Some(head) = read_head(&mut stream) else { return };
        let path = head.split(' ').nth(1).unwrap_or_default();
        let status = match (path, head.contains("Cookie: ticket=valid\r\n")) {
            ("/oauth2/auth", true) => "202 Accepted\r\nX-Auth-Request-User: someone",
            ("/oauth2/auth", false) => "401 Unauthorized",
            _ => "200 OK",
        };
        let length = head.len();
        let _ = write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{head}"
        );
    })
}

#[test]
fn a_service_at_the_host_of_the_rule_lets_clients_in() {
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    let all = asked.clone();
    let names = name_server(move |name| {
        all.lock().unwrap().insert(name.to_owned());
        NameReply::Records(1, vec![NameRecord::Address(Ipv4Addr::LOCALHOST)])
    });
    let annotations = [
        ("auth-url", "http://$host:8443/oauth2/auth"),
        ("auth-signin", "https://$host/oauth2/start?rd=$escaped_request_uri"),
        ("auth-response-headers", "X-Auth-Request-User, X-Auth-Request-Email"),
        ("server-alias", "alias.test, *.alias.test"),
    ];
    let app = [("Prefix", "/", "app")];
    let oauth2 = [("Prefix", "/oauth2", "oauth")];
    let manifests = [
        service("a", "app", behind("app")),
        service("a", "oauth", oauth()),
        ingress("a", "app", &annotations, "app.test", &app),
        ingress("a", "oauth", &[], "app.test", &oauth2),
        ingress("a", "wild", &annotations[..3], "*.wild.test", &app),
        ingress("a", "any", &annotations[..3], "", &app),
    ];
    let settings = Settings {
        http: vec!["127.0.0.1:%%PORT%%".to_owned()],
        https: Vec::new(),
        without_class: true,
        resolver: vec![format!("127.0.0.1:{names}"), "ipv6=off".to_owned()],
        ..Settings::default()
    };
    // The service is asked through the same server, as a balancer in front would lead there.
    let own = |text: String| text.replace(":8443", ":%%PORT%%");
    let Some((server, made)) = serve_in(Dir::new(), &manifests.concat(), settings, own) else {
        return;
    };
    let told: Vec<_> = made
        .findings
        .iter()
        .map(|f| (f.object.name.as_str(), f.reason, f.about.as_str()))
        .collect();
    let closed = |name| (name, "AccessClosed", "auth-url");
    assert_eq!(told, [closed("any"), closed("wild")]);
    assert!(made.findings.iter().all(|f| f.message.contains("name the host in the rule")));

    let ticket = "Cookie: ticket=valid\r\nX-Auth-Request-User: me\r\nX-Auth-Request-Email: me\r\n";
    for host in ["app.test", "APP.TEST:80", "alias.test", "b.alias.test"] {
        let answer = gateway::ask(&server, "GET /x?y=1", host, ticket);
        assert_eq!(answer.status, 200, "{host}");
        let body = answer.body();
        assert!(body.starts_with("app\nGET /x?y=1 "), "{body}");
        assert!(body.contains("X-Auth-Request-User: someone\r\n"), "{body}");
        assert!(!body.contains(": me\r\n"), "{body}");
        let answer = gateway::ask(&server, "GET /x?y=1", host, "");
        let to = answer.header("Location").unwrap_or_default().to_owned();
        let name = host.trim_end_matches(":80").to_lowercase();
        let wanted = format!("https://{name}/oauth2/start?rd=%2Fx%3Fy%3D1");
        assert_eq!((answer.status, to.as_str()), (302, wanted.as_str()), "{host}");
    }
    // The service itself is open.
    let answer = gateway::ask(&server, "GET /oauth2/start", "app.test", "");
    assert_eq!(answer.status, 200);
    for host in ["b.wild.test", "other.test", "127.0.0.1"] {
        assert_eq!(gateway::ask(&server, "GET /", host, ticket).status, 503, "{host}");
    }
    let asked = asked.lock().unwrap();
    assert_eq!(asked.iter().map(String::as_str).collect::<Vec<_>>(), ["app.test"]);
}
