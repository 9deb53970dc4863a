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
