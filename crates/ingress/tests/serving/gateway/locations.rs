//! The locations that rules of HTTPRoutes are made of.

use super::*;

#[test]
fn no_path_takes_the_name_of_a_location_for_copies() {
    let services: String =
        ["one", "two", "copy"].map(|name| service("a", name, behind(name))).concat();
    let copy = json!({ "backendRef": { "name": "copy", "port": 80 } });
    let copied = json!([{ "backendRefs": to("one"),
        "filters": [{ "type": "RequestMirror", "requestMirror": copy }] }]);
    let manifests = [plain(), services, route("HTTPRoute", "a", "copied", &[], copied)].concat();
    let Some((server, _)) = serve(&manifests) else { return };
    let text = server.dir().read("nginx.conf");
    let at = text.find("mirror-").unwrap();
    let name = text[at..].split([' ', ';', '"']).next().unwrap();
    for path in [format!("/{name}"), format!("/_{name}")] {
        let rules = json!([{ "matches": [{ "path": { "type": "Exact", "value": path } }], "backendRefs": to("two") }]);
        let taking = [manifests.clone(), route("HTTPRoute", "a", "taking", &[], rules)].concat();
        let Some((server, _)) = serve(&taking) else { return };
        assert_eq!(from(&server, &format!("GET {path}"), "a.test", ""), "two");
        assert_eq!(from(&server, "GET /", "a.test", ""), "one");
    }
}

/// The lines of the rules that come last are in a location that all patterns share.
#[test]
fn of_very_many_patterns_the_first_that_matches_has_the_request() {
    let services: String =
        ["one", "two", "three"].map(|name| service("a", name, behind(name))).concat();
    let headers = |n: usize| json!([{ "name": "N", "value": n.to_string() }]);
    let pattern =
        |n: usize| json!({ "type": "RegularExpression", "value": format!("/p(/|{n:03})*x") });
    let rules = |from: usize, service: &str| {
        let matches =
            (from..from + 50).map(|n| json!({ "path": pattern(n), "headers": headers(n) }));
        let matches: Vec<Value> = matches.collect();
        json!([{ "matches": matches, "backendRefs": to(service) }])
    };
    let last = json!([{ "matches": [{ "path": { "value": "/p" }, "headers": headers(100) }], "backendRefs": to("three") }]);
    let manifests = [
        plain(),
        services,
        route("HTTPRoute", "a", "first", &[], rules(0, "one")),
        route("HTTPRoute", "a", "later", &[], rules(50, "two")),
        route("HTTPRoute", "a", "last", &[], last),
    ]
    .concat();
    let Some((server, _)) = serve(&manifests) else { return };
    for (n, wanted) in
        [(0, "one"), (40, "one"), (50, "two"), (99, "two"), (100, "three"), (101, "404")]
    {
        for path in ["/p/x", "/p//x"] {
            let header = format!("N: {n}\r\n");
            assert_eq!(from(&server, &format!("GET {path}"), "a.test", &header), wanted, "{n}");
        }
    }
    assert_eq!(from(&server, "GET /p/x", "a.test", ""), "404");
    let lines = server.dir().read("nginx.conf").matches(" route ").count();
    assert!(lines < 100 * 40, "{lines}");
}

/// Patterns are as long as the API lets them be, and each path and hostname of a route could repeat
/// them all.
#[test]
fn long_patterns_and_many_names_make_no_endless_configuration() {
    let services: String = ["one", "two"].map(|name| service("a", name, behind(name))).concat();
    let of = |kind: &str, n: usize, path: String| {
        json!({ "path": { "type": kind, "value": path },
            "headers": [{ "name": "N", "value": n.to_string() }] })
    };
    let patterns: Vec<Value> = (0..32)
        .map(|n| of("RegularExpression", n, format!("/p({}|{n})", "x".repeat(900))))
        .collect();
    let exact: Vec<Value> = (0..96).map(|n| of("Exact", n, format!("/p{n}"))).collect();
    let rules = json!([{ "matches": exact, "backendRefs": to("one") },
        { "matches": patterns, "backendRefs": to("two") }]);
    let names: Vec<String> = (0..16).map(|n| format!("h{n}.test")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let manifests = [plain(), services, route("HTTPRoute", "a", "many", &names, rules)].concat();
    let Some((server, _)) = serve(&manifests) else { return };
    for host in ["h0.test", "h15.test"] {
        for (path, n, wanted) in [
            ("/p7", 7, "one"),
            ("/p95", 95, "one"),
            ("/p8", 8, "one"),
            ("/p31", 31, "one"),
            ("/p31", 30, "404"),
            ("/p32", 32, "one"),
        ] {
            let header = format!("N: {n}\r\n");
            assert_eq!(from(&server, &format!("GET {path}"), host, &header), wanted, "{path} {n}");
        }
        let long = format!("GET /p{}", "x".repeat(900));
        assert_eq!(from(&server, &long, host, "N: 31\r\n"), "two");
        assert_eq!(from(&server, &long, host, "N: 32\r\n"), "404");
    }
    assert_eq!(from(&server, "GET /p7", "h16.test", "N: 7\r\n"), "404");
    let size = server.dir().read("nginx.conf").len();
    assert!(size < 40 * manifests.len(), "{size} of {}", manifests.len());
}
