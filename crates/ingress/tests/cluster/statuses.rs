//! Statuses of objects that come and go.

use super::*;

fn definition(plural: &str) -> Value {
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{GATEWAY}") },
        "spec": { "versions": [{ "name": "v1", "served": true }] },
        "status": { "conditions": [{ "type": "Established", "status": "True" }] } })
}

#[test]
fn gateways_of_another_installation_keep_their_statuses() {
    let group = format!("{GATEWAY}/v1");
    let object = |kind: &str, name: &str, spec: Value| {
        let metadata =
            json!({ "name": name, "uid": name, "resourceVersion": "1", "generation": 1 });
        let mut object =
            json!({ "apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec });
        if kind == "Gateway" {
            object["metadata"]["namespace"] = json!("b");
        }
        object
    };
    let class = |name: &str, controller: &str| {
        object("GatewayClass", name, json!({ "controllerName": controller }))
    };
    let gateway = |name: &str, class: &str, port: u16| {
        let listeners = json!([{ "name": "l", "port": port, "protocol": "HTTP" }]);
        object("Gateway", name, json!({ "gatewayClassName": class, "listeners": listeners }))
    };
    let kinds = vec![definition("gatewayclasses"), definition("gateways")];
    let classes = vec![class("first", "weir.internal/gateway"), class("own", "x.test/second")];
    let gateways = vec![gateway("first", "first", 8080), gateway("own", "own", 8081)];
    let objects = BTreeMap::from([
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(), kinds),
        (format!("/apis/{group}/gatewayclasses"), classes),
        (format!("/apis/{group}/gateways"), gateways),
    ]);
    let dir = Dir::new();
    let (tell, taken) = channel();
    let more = ["--gateway-controller", "x.test/second"];
    let (_process, told) = start_with(&dir, objects, &more, Watches::default(), tell);
    let mut missing = vec!["gatewayclasses/own/status", "gateways/own/status"];
    while !missing.is_empty() {
        let asked = told.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{missing:?}: {e}"));
        assert!(asked.method != "PATCH" || !asked.path.contains("/first/"), "{}", asked.path);
        missing.retain(|path| asked.method != "PATCH" || !asked.path.ends_with(path));
    }
    let text = taken.recv_timeout(PATIENCE).unwrap();
    assert!(text.contains(":8081") && !text.contains(":8080"), "{text}");
}

#[test]
fn a_gateway_of_another_class_waits_for_a_controller() {
    let group = format!("{GATEWAY}/v1");
    let class = json!({ "apiVersion": group, "kind": "GatewayClass",
        "metadata": { "name": "weir", "resourceVersion": "1", "generation": 1 },
        "spec": { "controllerName": "weir.internal/gateway" } });
    let gateway = |class: &str, generation: u32, status: &Value| {
        let listeners = json!([{ "name": "l", "port": 8080, "protocol": "HTTP" }]);
        json!({ "apiVersion": group, "kind": "Gateway", "status": status,
            "metadata": { "name": "gate", "namespace": "b", "uid": "b",
                "resourceVersion": generation.to_string(), "generation": generation },
            "spec": { "gatewayClassName": class, "listeners": listeners } })
    };
    let gateways = format!("/apis/{group}/gateways");
    let kinds = vec![definition("gatewayclasses"), definition("gateways")];
    let objects = BTreeMap::from([
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(), kinds),
        (format!("/apis/{group}/gatewayclasses"), vec![class]),
        (gateways.clone(), vec![gateway("weir", 1, &json!({}))]),
    ]);
    let (dir, watches) = (Dir::new(), Watches::default());
    let (_process, told) = start_with(&dir, objects, &[], watches.clone(), channel().0);
    let path = format!("/apis/{group}/namespaces/b/gateways/gate/status");
    let status = |asked: &Asked| -> Value {
        serde_json::from_str::<Value>(&asked.body).unwrap()["status"].clone()
    };
    let (mut first, mut watched) = (Value::Null, false);
    while first.is_null() || !watched {
        let asked = told.recv_timeout(PATIENCE).unwrap();
        watched |= asked.method == "WATCH" && asked.path == gateways;
        if asked.method == "PATCH" && asked.path == path {
            first = status(&asked);
        }
    }
    let conditions = |status: &Value| -> Vec<String> {
        let list = status["conditions"].as_array().unwrap().iter();
        let word = |key: &str, one: &Value| one[key].as_str().unwrap_or_default().to_owned();
        list.map(|one| ["type", "status", "reason"].map(|key| word(key, one)).join(" ")).collect()
    };
    assert!(conditions(&first).contains(&"Programmed True Programmed".to_owned()), "{first}");
    add(&watches, &gateways, &gateway("other", 2, &first));
    // The double forgets a status, so the first one may be written again.
    let mut left = first.clone();
    while conditions(&left) == conditions(&first) {
        left = status(&written(&told, "PATCH", &path));
    }
    assert_eq!(conditions(&left), ["Accepted Unknown Pending", "Programmed Unknown Pending"]);
    assert_eq!((&left["listeners"], &left["addresses"]), (&json!([]), &first["addresses"]));
}
