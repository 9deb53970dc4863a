//! Keys of the controller's ConfigMap, asked over HTTP.

use std::io::Write;

use weir_ingress::Settings;
use weir_testkit::listen;

use super::{Dir, behind, gateway, ingress, read_head, serve_in, serve_with, service, weir};

const ALL: [(&str, &str, &str); 1] = [("Prefix", "/", "one")];

fn with(map: &[(&str, &str)]) -> Settings {
    Settings {
        defaults: map.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        ..Settings::default()
    }
}

fn site() -> String {
    [service("a", "one", behind("one")), ingress("a", "site", &[], "a.test", &ALL)].concat()
}

fn ask(server: &weir_testkit::Server, head: &str) -> weir_testkit::Response {
    gateway::ask(server, "GET /", "a.test", head)
}

#[test]
fn clients_programs_and_pages_are_kept_out() {
    let map =
        [("block-user-agents", "~*bad\\/1\\.0, Robot"), ("block-referers", "~*ads\\.test, x")];
    let Some((server, findings)) = serve_with(&site(), with(&map)) else { return };
    for (head, wanted) in [
        ("", "200"),
        ("User-Agent: a BAD/1.0 b\r\n", "403"),
        ("User-Agent: Robot\r\n", "403"),
        ("User-Agent: Robot2\r\n", "200"),
        ("Referer: http://ads.test/\r\n", "403"),
        ("Referer: x\r\n", "403"),
        ("Referer: xy\r\n", "200"),
    ] {
        assert_eq!(ask(&server, head).status.to_string(), wanted, "{head}");
    }
    assert!(findings.is_empty(), "{findings:?}");
    let map = [("block-cidrs", "10.0.0.0/8,127.0.0.0/8")];
    let Some((server, _)) = serve_with(&site(), with(&map)) else { return };
    assert_eq!(ask(&server, "").status.to_string(), "403");
    let map = [("whitelist-source-range", "10.0.0.0/8")];
    let Some((server, _)) = serve_with(&site(), with(&map)) else { return };
    assert_eq!(ask(&server, "").status.to_string(), "403");
}

#[test]
fn what_a_balancer_forwards_is_taken_or_kept_aside() {
    let head = "X-Forwarded-Host: first.test, second.test\r\nX-Forwarded-Proto: own\r\nX-Forwarded-Port: 1234\r\n";
    let map = [("use-forwarded-headers", "true")];
    let Some((server, _)) = serve_with(&site(), with(&map)) else { return };
    let body = ask(&server, head).body();
    for line in [
        "\nHost: first.test\r",
        "X-Forwarded-Host: first.test\r",
        "X-Forwarded-Proto: own\r",
        "X-Forwarded-Port: 1234\r",
    ] {
        assert!(body.contains(line), "{line}: {body}");
    }
    let Some((server, _)) = serve_with(&site(), with(&[])) else { return };
    let body = ask(&server, head).body();
    for line in [
        "\nHost: a.test\r",
        "X-Original-Forwarded-Host: first.test, second.test\r",
        "X-Forwarded-Proto: http\r",
    ] {
        assert!(body.contains(line), "{line}: {body}");
    }
    let map = [("use-proxy-protocol", "true")];
    let Some((server, _)) = serve_with(&site(), with(&map)) else { return };
    let line = "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n";
    let head = format!("{line}GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    let body = server.connect().send(head).response().body();
    for line in
        ["X-Forwarded-Port: 443\r", "X-Forwarded-Proto: https\r", "X-Forwarded-For: 192.168.0.1\r"]
    {
        assert!(body.contains(line), "{line}: {body}");
    }
}

#[test]
fn what_a_client_forwards_counts_behind_the_proxy_protocol_if_it_is_a_proxy_itself() {
    let inner = [("whitelist-source-range", "10.1.1.1")];
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "site", &[], "a.test", &ALL),
        ingress("a", "inner", &inner, "inner.test", &ALL),
    ]
    .concat();
    let map = [
        ("use-proxy-protocol", "true"),
        ("use-forwarded-headers", "true"),
        ("proxy-real-ip-cidr", "127.0.0.0/8, 203.0.113.0/24"),
    ];
    let settings = Settings { own_certificate: weir_ingress::certificate::make(), ..with(&map) };
    let Some((server, findings)) = serve_with(&manifests, settings) else { return };
    assert!(findings.is_empty(), "{findings:?}");
    for (connected, forwarded, client) in [
        ("192.0.2.9", "10.1.1.1", "192.0.2.9"),
        ("203.0.113.5", "10.1.1.1", "10.1.1.1"),
        ("203.0.113.5", "10.1.1.1, 198.51.100.1", "198.51.100.1"),
        ("203.0.113.5", "", "203.0.113.5"),
    ] {
        let asked = |host: &str| {
            let head = format!(
                "PROXY TCP4 {connected} 127.0.0.1 56324 80\r\nGET / HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: {forwarded}\r\n\
                 X-Connected-For: 10.1.1.1\r\nConnection: close\r\n\r\n"
            );
            server.connect().send(head).response()
        };
        let body = asked("a.test").body();
        assert!(
            body.contains(&format!("X-Real-IP: {client}\r")),
            "{connected} {forwarded}: {body}"
        );
        assert!(!body.to_lowercase().contains("\nx-connected-for-"), "{body}");
        let wanted = if client == "10.1.1.1" { 200 } else { 403 };
        assert_eq!(asked("inner.test").status, wanted, "{connected} {forwarded}");
    }
}

#[test]
fn no_header_that_a_service_of_a_tenant_gets_names_the_client() {
    let (tell, told) = std::sync::mpsc::channel();
    let service_of_tenant = listen(move |mut stream| {
        let Some(head) = read_head(&mut stream) else { return };
        let _ = tell.send(head);
        let _ =
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    });
    let url = format!("http://127.0.0.1:{service_of_tenant}/");
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "inner", &[("whitelist-source-range", "10.1.1.1")], "inner.test", &ALL),
        service("b", "one", behind("one")),
        ingress("b", "own", &[("auth-url", url.as_str())], "own.test", &ALL),
    ]
    .concat();
    let map = [
        ("use-proxy-protocol", "true"),
        ("use-forwarded-headers", "true"),
        ("proxy-real-ip-cidr", "127.0.0.0/8"),
    ];
    let settings = Settings { own_certificate: weir_ingress::certificate::make(), ..with(&map) };
    let Some((server, _)) = serve_with(&manifests, settings) else { return };
    let ask = |host: &str, head: &str| {
        let proxy = "PROXY TCP4 192.0.2.9 127.0.0.1 56324 80";
        let text =
            format!("{proxy}\r\nGET / HTTP/1.1\r\nHost: {host}\r\n{head}Connection: close\r\n\r\n");
        server.connect().send(text).response().status
    };
    assert_eq!(ask("own.test", ""), 200);
    let head = told.recv().unwrap();
    let names = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let names: Vec<&str> = names.map(|(name, _)| name).collect();
    assert!(names.contains(&"X-Real-IP"), "{head}");
    for name in names.into_iter().filter(|name| !matches!(*name, "Host" | "Connection")) {
        assert_eq!(ask("inner.test", &format!("{name}: 10.1.1.1\r\n")), 403, "{name}");
    }
}

#[test]
fn the_administrators_snippets_need_no_list_of_directives() {
    let map = [
        ("server-snippet", "more_set_headers \"Global: yes\";\nif ($arg_stop) { return 418; }"),
        ("http-snippet", "map $arg_a $made { default none; b found; }"),
        ("main-snippet", "# nothing"),
        ("stream-snippet", "} server {"),
        ("server-tokens", "false"),
    ];
    let own = ingress(
        "a",
        "own",
        &[("server-snippet", "more_set_headers \"Own: yes\";")],
        "b.test",
        &ALL,
    );
    let Some((server, findings)) = serve_with(&[site(), own].concat(), with(&map)) else { return };
    let answer = ask(&server, "");
    assert_eq!(answer.header("global"), Some("yes"));
    assert_eq!(answer.header("server"), None);
    let head = "GET /?stop=1 HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n";
    let answer = server.connect().send(head).response();
    assert_eq!((answer.status.to_string().as_str(), answer.header("own")), ("418", None));
    let about: Vec<_> = findings.iter().map(|f| f.about.as_str()).collect();
    assert_eq!(about, ["stream-snippet", "server-snippet"], "{findings:?}");
}

#[test]
fn http2_is_spoken_without_tls_for_grpc() {
    let Some((server, _)) = serve_with(&site(), with(&[])) else { return };
    let mut client = server.connect();
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    // SETTINGS without any, and SETTINGS of a stream, which end the connection.
    client.send([&[0, 0, 0, 4][..], &[0; 5], &[0, 0, 0, 4], &[0, 0, 0, 0, 1]].concat());
    let answer = client.rest_bytes();
    // A frame of the type SETTINGS.
    assert_eq!(answer.get(3), Some(&4), "{answer:?}");
}

/// What no rule is about is logged only where the administrator says so.
#[test]
fn requests_for_unknown_hosts_are_logged_on_request() {
    for (says, logged) in [("false", false), ("true", true)] {
        let map =
            [("access-log-path", "access.log"), ("enable-access-log-for-default-backend", says)];
        let Some((server, _)) = serve_with(&site(), with(&map)) else { return };
        for (host, path) in [("unknown.test", "/first"), ("a.test", "/second")] {
            gateway::ask(&server, &format!("GET {path}"), host, "");
        }
        server.wait_file("access.log", "GET /second", 1);
        let log = server.dir().read("access.log");
        assert_eq!(log.contains("GET /first"), logged, "{log}");
    }
}

#[test]
fn http_3_is_served_where_the_map_asks_for_it() {
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "site", &[("ssl-redirect", "false")], "localhost", &ALL),
    ]
    .concat();
    let settings = |map: &[(&str, &str)]| Settings {
        http: vec!["127.0.0.1:%%PORT%%".to_owned()],
        https: vec!["127.0.0.1:%%PORT1%%".to_owned()],
        own_certificate: weir_ingress::certificate::make(),
        without_class: true,
        ..with(map)
    };
    let start = |map: &[(&str, &str)]| serve_in(Dir::new(), &manifests, settings(map), |text| text);
    let offered = |server: &weir_testkit::Server| {
        let head = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let words = ["-servername", "localhost", "-quiet", "-ign_eof"];
        let said = weir_testkit::s_client(server.dir().path(), server.port_at(1), &words, head);
        said.map(|said| said.contains("Alt-Svc: h3=\":443\"; ma=86400\r"))
    };
    let Some((server, made)) = start(&[("use-http3", "true")]) else { return };
    assert!(made.findings.is_empty(), "{:?}", made.findings);
    assert_ne!(offered(&server), Some(false));
    let plain = ask(&server, "").headers;
    assert!(plain.iter().all(|(name, _)| name != "Alt-Svc"), "over plain HTTP: {plain:?}");
    let url = format!("https://localhost:{}/", server.port_at(1));
    let words = ["bench", "--http3", "--insecure", "-n", "3", "-c", "1", "--json", &url];
    let asked = std::process::Command::new(weir().unwrap()).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&asked.stdout);
    let said: serde_json::Value =
        serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(said["statuses"]["200"], 3, "{said}");
    // Without TLS 1.3 the server would refuse the listener, and with it all hosts.
    let Some((server, made)) = start(&[("use-http3", "true"), ("ssl-protocols", "TLSv1.2")]) else {
        return;
    };
    assert_eq!(made.findings.iter().map(|f| f.about.as_str()).collect::<Vec<_>>(), ["use-http3"]);
    assert_ne!(offered(&server), Some(true));
}

#[test]
fn logs_tell_of_the_ingress_as_those_of_ingress_nginx_do() {
    let manifests = [
        service("a", "one", behind("one")),
        service("a", "new", behind("new")),
        ingress("a", "site", &[], "a.test", &ALL),
        ingress(
            "a",
            "trial",
            &[("canary", "true"), ("canary-by-header", "X-New")],
            "a.test",
            &[("Prefix", "/", "new")],
        ),
    ]
    .concat();
    let Some((server, _)) = serve_with(&manifests, with(&[])) else { return };
    ask(&server, "");
    ask(&server, "X-New: always\r\n");
    gateway::ask(&server, "GET /none", "b.test", "");
    server.wait_file("logs/access.log", "] 127.0.0.1:", 2);
    let log = server.dir().read("logs/access.log");
    assert!(log.contains(" [a-one-80] [] 127.0.0.1:"), "{log}");
    assert!(log.contains(" [a-one-80] [a-new-80] 127.0.0.1:"), "{log}");
    // A format of the administrator's, with what ingress-nginx's documentation names in its own.
    let format = "$namespace|$ingress_name|$service_name|$service_port|$the_real_ip|${location_path}|$proxy_upstream_name|";
    let map = [("log-format-upstream", format), ("access-log-path", "own.log")];
    let Some((server, findings)) = serve_with(&manifests, with(&map)) else { return };
    assert!(findings.is_empty(), "{findings:?}");
    ask(&server, "");
    server.wait_file("own.log", "a|site|one|80|127.0.0.1|/|a-one-80|", 1);
}

#[test]
fn a_certificate_s_proof_is_asked_for_without_tls_whatever_redirects() {
    let proof = "/.well-known/acme-challenge/x";
    let paths = [("Prefix", "/", "one"), ("Exact", proof, "one")];
    let manifests = [
        service("a", "one", behind("one")),
        ingress("a", "site", &[("force-ssl-redirect", "true")], "a.test", &paths),
    ]
    .concat();
    let Some((server, _)) = serve_with(&manifests, with(&[])) else { return };
    for (path, status) in [("/", 308), (proof, 200)] {
        let answer = gateway::ask(&server, &format!("GET {path}"), "a.test", "");
        assert_eq!(answer.status, status, "{path}");
    }
}

#[test]
fn keys_change_a_part_of_what_is_there() {
    let secured = [
        service("a", "one", behind("one")),
        ingress("a", "site", &[], "a.test", &ALL),
        ingress("a", "moved", &[("force-ssl-redirect", "true")], "b.test", &ALL),
    ]
    .concat();
    let map = [
        ("access-log-path", "own.log"),
        ("access-log-params", "buffer=1k flush=1ms"),
        ("disable-ipv6", "true"),
        ("generate-request-id", "false"),
        ("http-redirect-code", "301"),
        ("location-snippet", "add_header X-Place $uri;"),
        ("proxy-add-original-uri-header", "true"),
        ("skip-access-log-urls", "/healthz,default,~^/quiet"),
    ];
    let Some((server, findings)) = serve_with(&secured, with(&map)) else { return };
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!(gateway::ask(&server, "GET /", "b.test", "").status, 301);
    for path in ["/healthz", "/quiet/one", "/healthz2"] {
        let answer = gateway::ask(&server, &format!("GET {path}"), "a.test", "");
        let body = answer.body();
        assert!(!body.to_lowercase().contains("x-request-id"), "{body}");
        assert!(body.contains(&format!("X-Original-Uri: {path}\r")), "{body}");
        assert_eq!(answer.header("X-Place"), Some(path));
    }
    server.wait_file("own.log", "GET /healthz2 ", 1);
    let log = server.dir().read("own.log");
    assert!(!log.contains("/healthz ") && !log.contains("/quiet"), "{log}");
}

#[test]
fn a_default_that_weir_does_not_have_is_told_of() {
    for (key, value) in
        [("enable-modsecurity", "true"), ("modsecurity-snippet", "SecRuleEngine On")]
    {
        let Some((_, findings)) = serve_with(&site(), with(&[(key, value)])) else { return };
        let told: Vec<_> =
            findings.iter().map(|f| (f.object.kind, f.about.as_str(), f.severity)).collect();
        assert_eq!(told, [("ConfigMap", key, weir_ingress::Severity::Warning)]);
    }
}

#[test]
fn requests_that_are_not_repeated_by_themselves_are_where_the_map_says_so() {
    let closes = weir_testkit::listen(drop);
    let manifests =
        [site(), service("a", "one", closes).replace("name: one-1", "name: one-2")].concat();
    for (says, lost) in [("false", true), ("true", false)] {
        let map = [("retry-non-idempotent", says)];
        let Some((server, findings)) = serve_with(&manifests, with(&map)) else { return };
        assert!(findings.is_empty(), "{findings:?}");
        let post = |_| gateway::ask(&server, "POST /", "a.test", "Content-Length: 0\r\n").status;
        let statuses: Vec<u16> = (0..4).map(post).collect();
        assert_eq!(statuses.contains(&502), lost, "{statuses:?}");
    }
}

#[test]
fn limits_count_by_what_the_map_says() {
    let limited = [
        service("a", "one", behind("one")),
        ingress(
            "a",
            "site",
            &[("limit-rpm", "1"), ("limit-burst-multiplier", "1")],
            "a.test",
            &ALL,
        ),
    ]
    .concat();
    let map = [("limit-conn-zone-variable", "$http_x_client")];
    let Some((server, findings)) = serve_with(&limited, with(&map)) else { return };
    assert!(findings.is_empty(), "{findings:?}");
    let asks = |name: &str| ask(&server, &format!("X-Client: {name}\r\n")).status;
    assert_eq!(["a", "a", "b", "b", "a"].map(asks), [200, 200, 200, 200, 503]);
}

#[test]
fn logs_go_to_a_server_where_the_map_says_so() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(weir_testkit::PATIENCE)).unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    let map = [("enable-syslog", "true"), ("syslog-host", "127.0.0.1"), ("syslog-port", &port)];
    let Some((server, findings)) = serve_with(&site(), with(&map)) else { return };
    assert!(findings.is_empty(), "{findings:?}");
    ask(&server, "");
    loop {
        let mut line = [0; 4096];
        let length = socket.recv(&mut line).unwrap();
        if String::from_utf8_lossy(&line[..length]).contains(" [a-one-80] ") {
            break;
        }
    }
    let Some((_, findings)) = serve_with(&site(), with(&map[..1])) else { return };
    let about: Vec<_> = findings.iter().map(|f| (f.about.as_str(), f.severity)).collect();
    assert_eq!(about, [("syslog-host", weir_ingress::Severity::Error)]);
}

#[test]
fn sessions_and_staples_have_their_keys() {
    let map = [
        ("enable-ocsp", "true"),
        ("log-format-stream", "[$remote_addr] own"),
        ("log-format-escape-json", "true"),
        ("proxy-stream-next-upstream-timeout", "7s"),
        ("proxy-stream-next-upstream-tries", "2"),
        ("stream-access-log-path", "sessions.log"),
    ];
    let ports = "---\n{ kind: ConfigMap, metadata: { name: tcp, namespace: a }, data: { '8096': 'a/one:80' } }\n";
    let manifests = [site(), ports.to_owned()].concat();
    let settings = |map: &[(&str, &str)]| Settings {
        sessions: [Some(("a".to_owned(), "tcp".to_owned())), None],
        ..with(map)
    };
    let change = |text: String| {
        for line in [
            "ssl_stapling on;",
            "log_format log_stream escape=json \"[$remote_addr] own\";",
            "proxy_next_upstream_timeout 7s;",
            "proxy_next_upstream_tries 2;",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let text = text.replace("listen 8096;", "listen 127.0.0.1:%%PORT%%;");
        text.replace("listen \"[::]:8096\";", "")
    };
    let own =
        Settings { http: Vec::new(), https: Vec::new(), without_class: true, ..settings(&map) };
    let Some((server, made)) = serve_in(Dir::new(), &manifests, own, change) else { return };
    assert!(made.findings.is_empty(), "{:?}", made.findings);
    assert!(ask(&server, "").body().starts_with("one\n"));
    server.wait_file("sessions.log", "[127.0.0.1] own", 1);
    // It is on without the key, as in ingress-nginx.
    let text = |map: &[(&str, &str)]| {
        let mut snapshot = weir_ingress::Snapshot::default();
        assert_eq!(snapshot.add_text(&manifests), Vec::<String>::new());
        let made =
            weir_ingress::translate(&snapshot, &Settings { loopback: true, ..settings(map) });
        String::from_utf8(made.text.print().unwrap()).unwrap()
    };
    assert!(text(&[]).contains("proxy_next_upstream_timeout 600s;"));
    assert!(text(&[("proxy-stream-next-upstream", "false")]).contains("proxy_next_upstream off;"));
}

#[test]
fn what_the_map_asks_for_and_weir_has_not_is_told_of_unless_it_is_off() {
    let map = [
        ("allow-cross-namespace-resources", "false"),
        ("enable-owasp-modsecurity-crs", "true"),
        ("enable-serial-reloads", "true"),
        ("use-geoip2", "true"),
    ];
    let Some((_, findings)) = serve_with(&site(), with(&map)) else { return };
    let told: Vec<_> = findings.iter().map(|f| (f.about.as_str(), f.severity)).collect();
    use weir_ingress::Severity::{Note, Warning};
    let wanted = [
        ("allow-cross-namespace-resources", Note),
        ("enable-serial-reloads", Note),
        ("enable-owasp-modsecurity-crs", Warning),
        ("use-geoip2", Warning),
    ];
    assert_eq!(told, wanted);
}
