//! Values that try to become more than a word of the configuration.

use std::collections::BTreeSet;

use weir_conf::{Directive, read_text};

use super::*;

/// The name of a directive and of a variable that no configuration has.
const MARK: &str = "evilmarker";

/// A value with what could end a word, a line, a block or a header, or begin a variable.
fn hostile(value: &str) -> Vec<String> {
    let all = "\"'\\\n\r\0;}{#$\u{7f}\u{2028}";
    let mut list = vec![
        format!("${MARK}"),
        format!("{value}${{{MARK}}}"),
        format!("{value}${MARK}"),
        format!("{all}{MARK}{all}{value}"),
    ];
    for sign in ["\"; ", "'; ", "\n", "\r\n", ";", "};", "\\\";"] {
        list.push(format!("{value}{sign} {MARK} on; #"));
        list.push(format!("{value},{sign} {MARK} on;,{value}"));
    }
    list
}

/// What of a configuration came from a hostile value. The rows of a map are no directives, but some
/// of their first words have a meaning.
fn reached(list: &[Directive], rows: bool, found: &mut Vec<String>) {
    for one in list {
        if one.name.lossy().contains(MARK) && !rows {
            found.push(format!("the name {:?}", one.name.lossy()));
        }
        // The patterns of these take no variables, and are nothing that is sent.
        let args = if one.name.is("if") || one.name.is("location") { &[] } else { &one.args[..] };
        for word in args {
            let text = word.lossy();
            let is_variable =
                text.contains(&format!("${MARK}")) || text.contains(&format!("${{{MARK}"));
            // A line of a header cannot be ended.
            let ends_line = text.contains(['\n', '\r', '\0']);
            if is_variable || ends_line {
                found.push(format!("{} {text:?}", one.name.lossy()));
            }
        }
        let rows = ["map", "geo", "split_clients"].iter().any(|name| one.name.is(name));
        reached(one.block(), rows, found);
    }
}

/// The configuration of these objects beside those that annotations name.
fn tree_of(objects: Vec<Value>, settings: &Settings) -> Vec<Directive> {
    let mut snapshot = Snapshot::default();
    // YAML has no DEL, but for its escape.
    let text = |object: Value| format!("---\n{object}\n").replace('\u{7f}', "\\u007f");
    let text: String = beside().into_iter().chain(objects).map(text).collect();
    assert_eq!(snapshot.add_text(&text), Vec::<String>::new());
    let text = translate(&snapshot, settings).text.print().unwrap();
    let tree = read_text(Path::new("printed.conf"), &text);
    assert!(tree.broken.is_none(), "{:?}", tree.broken);
    weir_conf::check(&tree, &|_, _| true).unwrap_or_else(|error| panic!("{}", error.message));
    tree.main
}

/// Ingresses of a host of their own, with a value of an annotation.
fn site(number: usize, case: &Case, value: &str) -> Vec<Value> {
    let annotations = [&case.needs[..], &[(case.name, value)]].concat();
    let (canary, main): (Vec<_>, Vec<_>) = annotations.iter().partition(|one| is_of_canary(one.0));
    let host = json!({ "spec": { "tls": [{ "hosts": [format!("h{number}.test")] }] } });
    let mut list = vec![ingress(&format!("main{number}"), "shop", &main)];
    if !canary.is_empty() {
        list.push(ingress(&format!("second{number}"), "errors", &canary));
    }
    for object in &mut list {
        merge(object, host.clone());
        object["spec"]["rules"][0]["host"] = host["spec"]["tls"][0]["hosts"][0].clone();
    }
    list
}

#[test]
fn no_value_of_an_annotation_becomes_more_than_a_word() {
    let settings = settings();
    let mut wrong = Vec::new();
    for case in cases() {
        let values = hostile(case.value);
        let sites = values.iter().enumerate().flat_map(|(n, value)| site(n, &case, value));
        let tree = tree_of(sites.collect(), &settings);
        let mut found = Vec::new();
        reached(&tree, false, &mut found);
        if !found.is_empty() {
            wrong.push((case.name, found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// An Ingress that says this at a place of it.
fn with(number: usize, place: &str, value: &str) -> Value {
    let mut object = ingress(&format!("main{number}"), "shop", &[]);
    let host = format!("h{number}.test");
    object["spec"]["tls"] = json!([{ "hosts": [host], "secretName": "authority" }]);
    object["spec"]["rules"][0]["host"] = host.into();
    let kinds = ["Exact", "Prefix", "ImplementationSpecific"];
    object["spec"]["rules"][0]["http"]["paths"][0]["pathType"] = kinds[number % 3].into();
    if number.is_multiple_of(2) {
        object["metadata"]["annotations"] = json!({ format!("{PREFIX}use-regex"): "true" });
    }
    *object.pointer_mut(place).unwrap() = value.into();
    object
}

#[test]
fn no_part_of_an_ingress_becomes_more_than_a_word() {
    let first = "/spec/rules/0/http/paths/0";
    for (place, value) in [
        ("/spec/rules/0/host", "a.test"),
        ("/spec/tls/0/hosts/0", "a.test"),
        ("/spec/tls/0/secretName", "authority"),
        ("/metadata/name", "site"),
        ("/metadata/namespace", "a"),
        (&format!("{first}/path"), "/a"),
        (&format!("{first}/backend/service/name"), "shop"),
    ] {
        let values = hostile(value);
        let sites = values.iter().enumerate().map(|(n, value)| with(n, place, value));
        let mut found = Vec::new();
        reached(&tree_of(sites.collect(), &settings()), false, &mut found);
        // The API server takes names of Services alone. A variable has this one, for logs.
        found.retain(|one| !(place.ends_with("/service/name") && one.starts_with("set ")));
        assert!(found.is_empty(), "{place}: {found:#?}");
    }
}

#[test]
fn no_map_that_an_annotation_names_becomes_more_than_words() {
    let url = ("auth-url", "http://10.0.0.9/check");
    for annotations in [
        &[("custom-headers", "evil")][..],
        &[url, ("auth-proxy-set-headers", "evil")],
        &[("backend-protocol", "FCGI"), ("fastcgi-params-configmap", "evil")],
    ] {
        for value in hostile("word") {
            for data in [json!({ "X-Sent": value }), json!({ (value.clone()): "word" })] {
                let map = object("v1", "ConfigMap", "evil", json!({ "data": data }));
                let tree = tree_of(vec![map, ingress("main", "shop", annotations)], &settings());
                let mut found = Vec::new();
                reached(&tree, false, &mut found);
                assert!(found.is_empty(), "{annotations:?}: {data}: {found:#?}");
            }
        }
    }
}

#[test]
fn no_key_of_the_map_becomes_more_than_a_word() {
    let page = include_str!("../../../../docs/kubernetes.md");
    let (_, keys) = page.split_once("\n## The ConfigMap\n").unwrap();
    let (keys, _) = keys.split_once("\n## ").unwrap();
    let is_key = |key: &&str| {
        key.contains('-')
            && !key.contains(|c: char| !"-_".contains(c) && !c.is_ascii_alphanumeric())
    };
    let keys: BTreeSet<&str> = keys.split('`').skip(1).step_by(2).filter(is_key).collect();
    assert!(keys.len() > 50 && keys.contains("proxy-real-ip-cidr"), "{keys:?}");
    let mut wrong = Vec::new();
    // Snippets are the administrator's own directives.
    for key in keys.iter().filter(|key| !key.ends_with("-snippet")) {
        for (n, value) in hostile("true").into_iter().enumerate() {
            let mut settings = settings();
            let on = ["use-forwarded-headers", "hsts", "use-http3", "enable-syslog"];
            settings.defaults.extend(on.map(|key| (key.to_owned(), "true".to_owned())));
            settings.defaults.insert((*key).to_owned(), value.clone());
            let mut found = Vec::new();
            reached(
                &tree_of(vec![with(n, "/metadata/name", "site")], &settings),
                false,
                &mut found,
            );
            // Formats of the log and patterns have variables, and formats may have several lines.
            found.retain(|one| one.starts_with("the name "));
            if !found.is_empty() {
                wrong.push((key, value, found));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
