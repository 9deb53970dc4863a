//! `weir-ingress run` before a double of an API server, and a double of weir.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};
use weir_testkit::{Dir, PATIENCE, Process, free_port, listen};

#[path = "cluster/certificates.rs"]
mod certificates;
#[path = "cluster/events.rs"]
mod events;
#[path = "cluster/process.rs"]
mod process;
#[path = "cluster/statuses.rs"]
mod statuses;

const GATEWAY: &str = "gateway.networking.k8s.io";

/// A request as it came.
#[derive(Debug)]
struct Asked {
    method: String,
    path: String,
    query: String,
    body: String,
}

/// The next request of a connection; none at its end.
fn next(reader: &mut impl BufRead) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut length = 0;
    loop {
        let mut field = String::new();
        reader.read_line(&mut field).ok()?;
        let Some((name, value)) = field.trim().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8_lossy(&body).into_owned();
    Some(Asked { method, path: path.to_owned(), query: query.to_owned(), body })
}

fn answer(writer: &mut impl Write, status: u16, body: &Value) {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    // A client that has gone needs no answer.
    let _ = writer.write_all(format!("{head}{body}").as_bytes());
}

fn failure(code: u16, reason: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": reason, "code": code })
}

fn is(object: &Value, name: &str) -> bool {
    object["metadata"]["name"] == name
}

fn respond(asked: &Asked, objects: &mut BTreeMap<String, Vec<Value>>) -> (u16, Value) {
    let path = asked.path.as_str();
    let (parent, name) = path.rsplit_once('/').unwrap_or_default();
    if objects.contains_key(&format!("{path} busy")) {
        return (503, failure(503, "ServiceUnavailable"));
    }
    if asked.method == "GET" {
        let one = objects.get(parent).into_iter().flatten().find(|object| is(object, name));
        if let Some(object) = one {
            return (200, object.clone());
        }
        let of_namespace = path.split_once("/namespaces/").map(|(_, rest)| rest.split('/').count());
        if of_namespace == Some(3) {
            return (404, failure(404, "NotFound"));
        }
        let wanted = asked
            .query
            .split('&')
            .find_map(|word| word.strip_prefix("fieldSelector=")?.strip_prefix("metadata.name%3D"));
        let mut items = objects.get(path).cloned().unwrap_or_default();
        items.retain(|object| wanted.is_none_or(|name| is(object, name)));
        // The first list is so old that no watch goes on from there.
        let again = objects.insert(format!("{path} listed"), Vec::new()).is_some();
        let version = if again { "1" } else { "old" };
        let metadata = json!({ "resourceVersion": version });
        return (
            200,
            json!({ "kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items }),
        );
    }
    if path.contains("/namespaces/a/") {
        return (403, failure(403, "Forbidden"));
    }
    let object: Value = serde_json::from_str(&asked.body).unwrap_or_default();
    match asked.method.as_str() {
        "POST"
            if objects
                .get(path)
                .into_iter()
                .flatten()
                .any(|known| known["metadata"]["name"] == object["metadata"]["name"]) =>
        {
            return (409, failure(409, "AlreadyExists"));
        }
        "POST" => objects.entry(path.to_owned()).or_default().push(object.clone()),
        "PUT" => {
            let list = objects.entry(parent.to_owned()).or_default();
            list.retain(|known| !is(known, name));
            list.push(object.clone());
        }
        _ => {}
    }
    (200, object)
}

/// Connections that wait for changes of what is below a path.
type Watches = Arc<Mutex<Vec<(String, TcpStream)>>>;

/// Tells of a new object.
fn add(watches: &Watches, path: &str, object: &Value) {
    let event = json!({ "type": "ADDED", "object": object });
    for (_, stream) in watches.lock().unwrap().iter_mut().filter(|(of, _)| of == path) {
        // A client that has gone hears of it in the next list.
        let _ = writeln!(stream, "{event}");
    }
}

/// An API server with these objects below their paths: its port, and what was written, or watched. It denies writes into the
/// namespace `a`, and answers patches of the namespace `slow` once there are four.
fn api(objects: BTreeMap<String, Vec<Value>>, watches: Watches) -> (u16, Receiver<Asked>) {
    let (tell, told) = channel::<Asked>();
    let (objects, four) = (Mutex::new(objects), Barrier::new(4));
    let port = listen(move |stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        while let Some(asked) = next(&mut reader) {
            if asked.query.contains("watch=true") && asked.query.contains("resourceVersion=old") {
                answer(&mut stream, 410, &failure(410, "Expired"));
                continue;
            }
            if asked.query.contains("watch=true") {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n";
                let _ = stream.write_all(head.as_bytes());
                let own = stream.try_clone().unwrap();
                watches.lock().unwrap().push((asked.path.clone(), own));
                let watched = Asked { method: "WATCH".to_owned(), ..asked };
                if tell.send(watched).is_err() {
                    return;
                }
                // What happens is written by the test.
                let _ = reader.read_to_end(&mut Vec::new());
                return;
            }
            if asked.method == "PATCH" && asked.path.contains("/namespaces/slow/") {
                four.wait();
            }
            let (status, body) = respond(&asked, &mut objects.lock().unwrap());
            answer(&mut stream, status, &body);
            if asked.method != "GET" && tell.send(asked).is_err() {
                return;
            }
        }
    });
    (port, told)
}

/// A weir that takes every configuration, but for one with a variable `nosuch`: it does not say where that is.
fn weir(dir: &Dir, taken: Sender<String>) -> String {
    let path = dir.file("weir.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let served = Arc::new(Mutex::new(String::new()));
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (served, taken) = (served.clone(), taken.clone());
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while let Some(asked) = next(&mut reader) {
                    if asked.method == "GET" {
                        let name = served.lock().unwrap().clone();
                        let length = name.len();
                        let head = format!("HTTP/1.1 200 x\r\nContent-Length: {length}\r\n\r\n");
                        let _ = stream.write_all(format!("{head}{name}").as_bytes());
                        continue;
                    }
                    if asked.body.contains("$nosuch") {
                        answer(&mut stream, 422, &json!({ "error": { "text": "unknown" } }));
                        continue;
                    }
                    // The configuration says its name itself.
                    let mut words = asked.body.split("return 200 ").skip(1);
                    let name = words.find_map(|rest| rest.split(';').next());
                    *served.lock().unwrap() = name.unwrap_or_default().to_owned();
                    answer(&mut stream, 200, &json!({ "taken_by": "running workers" }));
                    // Most tests do not look at what was taken.
                    let _ = taken.send(asked.body);
                }
            });
        }
    });
    path.display().to_string()
}

fn start(
    dir: &Dir,
    objects: BTreeMap<String, Vec<Value>>,
    more: &[&str],
) -> (Process, Receiver<Asked>) {
    start_with(dir, objects, more, Watches::default(), channel().0)
}

fn start_with(
    dir: &Dir,
    objects: BTreeMap<String, Vec<Value>>,
    more: &[&str],
    watches: Watches,
    taken: Sender<String>,
) -> (Process, Receiver<Asked>) {
    let (port, told) = api(objects, watches);
    let cluster = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://127.0.0.1:{port}") } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "users": [{ "name": "u", "user": {} }] });
    let kubeconfig = dir.write("kubeconfig", cluster.to_string());
    let base = dir.write("base.conf", "events { } http { }");
    let health = format!("127.0.0.1:{}", free_port());
    let own = if more.contains(&"--health") { vec![] } else { vec!["--health", &health] };
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-ingress"));
    command.env("KUBECONFIG", kubeconfig).env_remove("POD_NAME").arg("run");
    command.arg("--base").arg(base).args(["--weir", &weir(dir, taken)]).args(own);
    command.arg("--state").arg(dir.file("state")).args(["--lease", "own/lease"]);
    // No load balancer has to see first that it ends.
    let drain: &[&str] = if more.contains(&"--drain") { &[] } else { &["--drain", "0"] };
    command.args(drain).args(more);
    (Process::start(&mut command), told)
}

/// Waits for a write to a path that begins so.
fn written(told: &Receiver<Asked>, method: &str, path: &str) -> Asked {
    let end = Instant::now() + PATIENCE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let asked = told.recv_timeout(left).unwrap_or_else(|e| panic!("{method} {path}: {e}"));
        if asked.method == method && asked.path.starts_with(path) {
            return asked;
        }
    }
}

/// Waits for requests to paths that begin so, in any order.
fn come(told: &Receiver<Asked>, method: &str, paths: &[&str]) {
    let end = Instant::now() + PATIENCE;
    let mut missing = paths.to_vec();
    while !missing.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        let asked = told.recv_timeout(left).unwrap_or_else(|e| panic!("{method} {missing:?}: {e}"));
        missing.retain(|path| asked.method != method || !asked.path.starts_with(path));
    }
}

#[test]
fn a_namespace_that_denies_writes_holds_up_no_other() {
    let group = format!("{GATEWAY}/v1");
    let both = |version: &str, kind: &str, name: &str, spec: Value| -> Vec<Value> {
        let one = |space: &str| {
            json!({ "apiVersion": version, "kind": kind, "spec": spec,
                "metadata": { "name": name, "namespace": space, "uid": space, "resourceVersion": "1", "generation": 1 } })
        };
        vec![one("a"), one("b")]
    };
    let definition = |plural: &str| {
        json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{GATEWAY}") },
            "spec": { "versions": [{ "name": "v1", "served": true }] },
            "status": { "conditions": [{ "type": "Established", "status": "True" }] } })
    };
    let class = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass",
        "metadata": { "name": "weir" }, "spec": { "controller": "weir.internal/ingress" } });
    let gateway_class = json!({ "apiVersion": group, "kind": "GatewayClass",
        "metadata": { "name": "weir", "resourceVersion": "1", "generation": 1 },
        "spec": { "controllerName": "weir.internal/gateway" } });
    let rule = json!({ "host": "x.test", "http": { "paths": [{ "path": "/", "pathType": "Prefix",
        "backend": { "service": { "name": "web", "port": { "number": 80 } } } }] } });
    let mut objects = BTreeMap::from([
        ("/apis/networking.k8s.io/v1/ingressclasses".to_owned(), vec![class]),
        (
            "/apis/networking.k8s.io/v1/ingresses".to_owned(),
            both(
                "networking.k8s.io/v1",
                "Ingress",
                "site",
                json!({ "ingressClassName": "weir", "rules": [rule] }),
            ),
        ),
        (
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(),
            vec![definition("gatewayclasses"), definition("gateways")],
        ),
        (format!("/apis/{group}/gatewayclasses"), vec![gateway_class]),
        (
            format!("/apis/{group}/gateways"),
            both(&group, "Gateway", "gate", json!({ "gatewayClassName": "weir", "listeners": [] })),
        ),
    ]);
    // Namespaces cannot share all hosts of a port.
    for (port, gateway) in
        objects.values_mut().flatten().filter(|one| one["kind"] == "Gateway").enumerate()
    {
        let port = 8080 + port;
        gateway["spec"]["listeners"] = json!([{ "name": "l", "port": port, "protocol": "HTTP" }]);
    }
    let dir = Dir::new();
    let more = ["--publish-status-address", "192.0.2.1", "--gateway-services"];
    let (_process, told) = start(&dir, objects, &more);
    let status = format!("/apis/{group}/namespaces/b/gateways/gate/status");
    let all = [
        "/apis/networking.k8s.io/v1/namespaces/b/ingresses/site/status",
        "/api/v1/namespaces/b/services/",
        &status,
    ];
    come(&told, "PATCH", &all);
}

/// A class and Ingresses of a namespace, each with a host of its own.
fn sites(namespace: &str, many: u32) -> BTreeMap<String, Vec<Value>> {
    let ingresses = (0..many).map(|n| {
        json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": { "name": format!("site{n}"), "namespace": namespace, "uid": n.to_string() },
            "spec": { "ingressClassName": "weir", "rules": [{ "host": format!("{n}.test"), "http": { "paths": [
                { "path": "/", "pathType": "Prefix", "backend": { "service": { "name": "web", "port": { "number": 80 } } } }] } }] } })
    });
    let class = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass",
        "metadata": { "name": "weir" }, "spec": { "controller": "weir.internal/ingress" } });
    BTreeMap::from([
        ("/apis/networking.k8s.io/v1/ingressclasses".to_owned(), vec![class]),
        ("/apis/networking.k8s.io/v1/ingresses".to_owned(), ingresses.collect()),
    ])
}

/// The same where the API server is asked for one namespace.
fn sites_of_the_only_namespace(namespace: &str, many: u32) -> BTreeMap<String, Vec<Value>> {
    let own = format!("v1/namespaces/{namespace}/ingresses");
    let place = |path: String| path.replace("v1/ingresses", &own);
    let list = sites(namespace, many).into_iter().map(|(path, list)| (place(path), list));
    let objects: BTreeMap<_, _> = list.collect();
    assert!(objects.keys().any(|path| path.ends_with(&own)), "{objects:?}");
    objects
}

fn status_of(namespace: &str, n: u32) -> String {
    format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/ingresses/site{n}/status")
}

#[test]
fn statuses_of_several_ingresses_are_written_at_once() {
    let dir = Dir::new();
    let more = ["--publish-status-address", "192.0.2.1"];
    let (_process, told) = start(&dir, sites("slow", 4), &more);
    let all: Vec<String> = (0..4).map(|n| status_of("slow", n)).collect();
    come(&told, "PATCH", &all.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn of_many_new_ingresses_the_one_that_weir_refuses_without_a_line_is_left_out_alone() {
    only_one_is_left_out(("server-snippet", "add_header X $nosuch;"), BTreeMap::new());
}

#[test]
fn of_many_new_ingresses_one_with_a_word_that_is_too_long_is_left_out_alone() {
    // Each dollar becomes the name of a variable.
    let headers = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "X": "$".repeat(1000) },
        "metadata": { "name": "headers", "namespace": "b" } });
    let maps = BTreeMap::from([(MAPS.to_owned(), vec![headers])]);
    only_one_is_left_out(("custom-headers", "headers"), maps);
}

/// Of 20 Ingresses, one has an annotation that is at fault.
fn only_one_is_left_out((name, value): (&str, &str), more: BTreeMap<String, Vec<Value>>) {
    let mut objects = sites("b", 20);
    for ingress in objects.values_mut().flatten().filter(|one| is(one, "site13")) {
        ingress["metadata"]["annotations"] =
            json!({ (format!("nginx.ingress.kubernetes.io/{name}")): value });
    }
    objects.extend(more);
    let dir = Dir::new();
    let more = ["--publish-status-address", "192.0.2.1", "--allow-snippet-directive", "add_header"];
    let (_process, told) = start(&dir, objects, &more);
    let mut others: Vec<String> = (0..20).filter(|n| *n != 13).map(|n| status_of("b", n)).collect();
    let mut refused = Vec::new();
    let end = Instant::now() + PATIENCE;
    while !others.is_empty() || refused.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        let asked = told.recv_timeout(left);
        let asked = asked.unwrap_or_else(|e| panic!("{others:?} {refused:?}: {e}"));
        others.retain(|path| *path != asked.path);
        if asked.method == "POST" && asked.path.ends_with("/events") {
            let event: Value = serde_json::from_str(&asked.body).unwrap();
            if event["reason"] == "Refused" {
                refused.push(event["regarding"]["name"].as_str().unwrap().to_owned());
            }
        }
    }
    assert_eq!(refused, ["site13"]);
}

const MAPS: &str = "/api/v1/configmaps";

/// The controller's ConfigMap.
fn map(data: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": { "name": "map", "namespace": "own", "uid": "u", "resourceVersion": "2" } })
}

/// The flags of a pod that follows this ConfigMap.
const WITH_MAP: [&str; 4] = ["--publish-status-address", "192.0.2.1", "--configmap", "own/map"];

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/own/events";

/// An Event about the ConfigMap: reason and note.
fn about_map(asked: &Asked) -> (String, String) {
    let event: Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(event["regarding"]["kind"], "ConfigMap");
    let word = |name: &str| event[name].as_str().unwrap().to_owned();
    (word("reason"), word("note"))
}

/// The next one.
fn told_of_map(told: &Receiver<Asked>) -> (String, String) {
    about_map(&written(told, "POST", EVENTS))
}

/// Waits until weir takes a configuration with these words.
fn takes(taken: &Receiver<String>, words: &str) {
    while !taken.recv_timeout(PATIENCE).unwrap().contains(words) {}
}

#[test]
fn a_key_of_the_map_that_weir_refuses_is_left_out_alone_and_told_of() {
    let mut objects = sites("b", 2);
    objects.insert(MAPS.to_owned(), vec![map(&json!({ "server-snippet": "set $a b;" }))]);
    let dir = Dir::new();
    let (watches, (tell, taken)) = (Watches::default(), channel());
    let (_process, told) = start_with(&dir, objects, &WITH_MAP, watches.clone(), tell);
    come(&told, "WATCH", &[MAPS]);
    takes(&taken, "set $a b");
    let data = json!({ "http-snippet": "geo $nosuch { }", "server-snippet": "set $a c;", "no-such-key": "1" });
    add(&watches, MAPS, &map(&data));
    // Weir names no line: all that is new is left out, and what it takes comes back.
    let mut events = vec![told_of_map(&told), told_of_map(&told)];
    events.sort();
    let wanted = [
        ("InvalidKey", "no-such-key: weir-ingress does not know this key; it has no effect"),
        ("Refused", "http-snippet: it is left out: unknown"),
    ];
    assert_eq!(events, wanted.map(|(reason, note)| (reason.to_owned(), note.to_owned())));
    takes(&taken, "set $a c");
}

#[test]
fn a_pod_that_starts_waits_until_the_snippets_of_the_map_are_right() {
    for wrong in ["geo $nosuch { }", "deny 192.0.2.9"] {
        let mut objects = sites("b", 2);
        objects.insert(MAPS.to_owned(), vec![map(&json!({ "http-snippet": wrong }))]);
        let dir = Dir::new();
        let (watches, (tell, taken)) = (Watches::default(), channel());
        let (_process, told) = start_with(&dir, objects, &WITH_MAP, watches.clone(), tell);
        // The first Event may come before the watch that goes on.
        let (mut event, mut is_watched) = (None, false);
        while event.is_none() || !is_watched {
            let asked = told.recv_timeout(PATIENCE).unwrap();
            is_watched |= asked.method == "WATCH" && asked.path == MAPS;
            event = event.or_else(|| (asked.path == EVENTS).then(|| about_map(&asked)));
        }
        let (reason, note) = event.unwrap();
        let waits = "http-snippet: it may keep clients out, so this pod waits until it is right: ";
        assert!(reason == "Refused" && note.starts_with(waits), "{reason}: {note}");
        assert!(taken.try_recv().is_err(), "nothing is served without the snippet");
        add(&watches, MAPS, &map(&json!({ "http-snippet": "deny 192.0.2.9;" })));
        takes(&taken, "deny 192.0.2.9");
        come(&told, "PATCH", &[&status_of("b", 0), &status_of("b", 1)]);
    }
}

#[test]
fn a_snippet_of_the_map_that_cannot_be_read_stays_as_it_was() {
    let mut objects = sites("b", 1);
    objects.insert(MAPS.to_owned(), vec![map(&json!({ "http-snippet": "deny 192.0.2.9;" }))]);
    let dir = Dir::new();
    let (watches, (tell, taken)) = (Watches::default(), channel());
    let (_process, told) = start_with(&dir, objects, &WITH_MAP, watches.clone(), tell);
    come(&told, "WATCH", &[MAPS]);
    takes(&taken, "deny 192.0.2.9");
    add(&watches, MAPS, &map(&json!({ "http-snippet": "deny 192.0.2.9", "gzip-level": "7" })));
    let (reason, note) = told_of_map(&told);
    let stays = "http-snippet: the value before stays in service: ";
    assert!(reason == "Refused" && note.starts_with(stays), "{reason}: {note}");
    takes(&taken, "gzip_comp_level 7");
}

#[test]
fn one_namespace_is_watched_and_what_the_command_line_names_elsewhere() {
    let mut objects = sites_of_the_only_namespace("b", 1);
    let other = json!({ "metadata": { "name": "other", "namespace": "own" }, "data": {} });
    let own = map(&json!({ "http-snippet": "deny 192.0.2.9;" }));
    objects.insert("/api/v1/namespaces/own/configmaps".to_owned(), vec![other, own]);
    let front = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "front", "namespace": "own" },
        "spec": { "type": "LoadBalancer" }, "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.7" }] } } });
    objects.insert("/api/v1/namespaces/own/services".to_owned(), vec![front]);
    let dir = Dir::new();
    let (tell, taken) = channel();
    let more =
        ["--watch-namespace", "b", "--configmap", "own/map", "--publish-service", "own/front"];
    let (_process, told) = start_with(&dir, objects, &more, Watches::default(), tell);
    // The first configuration has it: the map was waited for.
    assert!(taken.recv_timeout(PATIENCE).unwrap().contains("deny 192.0.2.9"));
    let status = written(&told, "PATCH", &status_of("b", 0)).body;
    assert!(status.contains("192.0.2.7"), "{status}");
}

#[test]
fn nothing_is_asked_of_the_cluster_where_one_namespace_is_all() {
    let dir = Dir::new();
    let (tell, taken) = channel();
    let alone = ["--watch-namespace", "b", "--disable-cluster-scope-resources"];
    // No class is known: a name is enough.
    let class = ["--ingress-class", "weir", "--ingress-class-by-name"];
    let more = [&alone[..], &class, &["--publish-status-address", "192.0.2.7"]].concat();
    let objects = sites_of_the_only_namespace("b", 1);
    let (_process, told) = start_with(&dir, objects, &more, Watches::default(), tell);
    assert!(taken.recv_timeout(PATIENCE).unwrap().contains("0.test"));
    // All lists come before the first configuration, and a watch follows each.
    loop {
        let asked = told.recv_timeout(PATIENCE).unwrap();
        assert!(asked.path.contains("/namespaces/"), "{asked:?}");
        if asked.method == "PATCH" {
            break;
        }
    }
}

#[test]
fn a_service_may_come_after_its_ingress_and_its_pods_after_that() {
    let dir = Dir::new();
    let (watches, (tell, taken)) = (Watches::default(), channel());
    let (_process, told) = start_with(&dir, sites("b", 1), &[], watches.clone(), tell);
    let (services, slices) = ("/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices");
    let happens = |mut missing: Vec<(&str, &str)>| {
        let end = Instant::now() + PATIENCE;
        while !missing.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            let asked = told.recv_timeout(left).unwrap_or_else(|e| panic!("{missing:?}: {e}"));
            let is = |method: &str, what: &str| {
                asked.method == method && (asked.path == what || asked.body.contains(what))
            };
            missing.retain(|(method, what)| !is(method, what));
        }
    };
    happens(vec![("WATCH", services), ("WATCH", slices), ("POST", "NoService")]);
    let metadata = |name: &str| {
        json!({ "name": name, "namespace": "b", "resourceVersion": "2",
            "labels": { "kubernetes.io/service-name": "web" } })
    };
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata("web"),
        "spec": { "ports": [{ "port": 80 }] } });
    add(&watches, services, &service);
    // Answers are the same as before, 503.
    happens(vec![("POST", "NoEndpoints")]);
    let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata("web-1"),
        "addressType": "IPv4", "ports": [{ "port": 8080 }], "endpoints": [{ "addresses": ["10.1.0.1"] }] });
    add(&watches, slices, &slice);
    let is_served = || taken.recv_timeout(PATIENCE).unwrap().contains("servers_file");
    while !is_served() {}
}

#[test]
fn a_watch_that_is_refused_as_too_old_begins_with_a_list() {
    let dir = Dir::new();
    let (_process, told) = start(&dir, BTreeMap::new(), &[]);
    let all = [
        "/apis/networking.k8s.io/v1/ingresses",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    ];
    come(&told, "WATCH", &all);
}
