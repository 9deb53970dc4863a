//! The program on its command line.

use std::process::Command;

use weir_testkit::Dir;

#[test]
fn a_printed_configuration_has_the_config_map_that_is_named() {
    let dir = Dir::new();
    let map = r#"{ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "controller", "namespace": "a" },
        "data": { "proxy-body-size": "3m", "keep-alive": "33" } }"#;
    std::fs::write(dir.file("map.json"), map).unwrap();
    let print = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-ingress"));
        command.arg("print").arg(dir.file("map.json")).args(args).output().unwrap()
    };
    let text = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!text(&print(&[])).contains("keepalive_timeout 33s"));
    assert!(text(&print(&["--configmap", "a/controller"])).contains("keepalive_timeout 33s"));
    let other = print(&["--configmap", "a/other"]);
    let why = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success() && why.contains("no ConfigMap a/other"), "{why}");
}

#[test]
fn an_object_that_stands_in_the_manifests_twice_counts_once() {
    let dir = Dir::new();
    let group = "gateway.networking.k8s.io/v1";
    let gateway = |port: u16| {
        format!(
            r#"{{ "apiVersion": "{group}", "kind": "Gateway", "metadata": {{ "name": "web", "namespace": "a" }},
            "spec": {{ "gatewayClassName": "weir", "listeners": [{{ "name": "http", "port": {port}, "protocol": "HTTP" }}] }} }}"#
        )
    };
    let class = |controller: &str| {
        format!(
            r#"{{ "apiVersion": "{group}", "kind": "GatewayClass", "metadata": {{ "name": "weir" }}, "spec": {{ "controllerName": "{controller}" }} }}"#
        )
    };
    let print = |first: u16, controller: &str| {
        let manifests = dir.file("manifests");
        std::fs::create_dir_all(&manifests).unwrap();
        std::fs::write(manifests.join("0.json"), class(controller)).unwrap();
        std::fs::write(manifests.join("a.json"), gateway(first)).unwrap();
        std::fs::write(manifests.join("b.json"), gateway(8081)).unwrap();
        std::fs::write(manifests.join("c.json"), class("weir.internal/gateway")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-ingress"));
        let output = command.arg("print").arg(manifests).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (text(output.stdout), text(output.stderr))
    };
    let (text, said) = print(8080, "other.test/gateway");
    assert!(text.contains("listen 8081") && !text.contains("listen 8080"), "{text}");
    for object in ["Gateway a/web", "GatewayClass weir"] {
        let twice = format!("{object} is defined several times: the last definition counts");
        assert!(said.contains(&twice), "{said}");
    }
    // The same object needs no word. No log stands in a directory that may be missing.
    let (same, said) = print(8081, "weir.internal/gateway");
    assert_eq!((same.as_str(), said.as_str()), (text.as_str(), ""));
    assert!(same.contains("access_log /dev/stdout"), "{same}");
}

#[test]
fn ingresses_of_any_class_are_checked_where_no_class_is_among_the_manifests() {
    let dir = Dir::new();
    let ingress = r#"{ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": { "name": "web", "namespace": "a" },
        "spec": { "ingressClassName": "public", "rules": [{ "host": "a.test", "http": { "paths": [
            { "path": "/", "pathType": "Prefix", "backend": { "service": { "name": "web", "port": { "number": 80 } } } }] } }] } }"#;
    let class = r#"{ "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": { "name": "public" },
        "spec": { "controller": "example.com/another" } }"#;
    let manifests = dir.file("manifests");
    std::fs::create_dir(&manifests).unwrap();
    std::fs::write(manifests.join("web.json"), ingress).unwrap();
    let check = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-ingress"));
        let output = command.arg("check").arg(&manifests).args(args).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("Ingress a/web")
    };
    assert!(check(&[]));
    assert!(!check(&["--ingress-class", "other"]), "the class that is served is named");
    std::fs::write(manifests.join("class.json"), class).unwrap();
    assert!(!check(&[]), "the class is another controller's");
}

#[test]
fn check_takes_the_own_certificate_for_granted_that_a_cluster_has() {
    let dir = Dir::new();
    let root = include_str!("../../tls/testdata/root.pem");
    let indented: String = root.lines().map(|line| format!("    {line}\n")).collect();
    let manifests = format!(
        r#"{{ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {{ "name": "site", "namespace": "a", "annotations": {{ "nginx.ingress.kubernetes.io/auth-tls-secret": "a/roots" }} }},
            "spec": {{ "tls": [{{ "hosts": ["a.test"] }}], "rules": [{{ "host": "a.test" }}] }} }}
---
apiVersion: v1
kind: Secret
metadata: {{ name: roots, namespace: a }}
stringData:
  ca.crt: |
{indented}"#
    );
    std::fs::write(dir.file("site.yaml"), manifests).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-ingress"));
    let output = command.arg("check").arg(dir.file("site.yaml")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "Ingress a/site: works the same\n");
}

#[test]
fn what_an_ingress_does_not_serve_is_not_converted_and_the_rest_is_yaml() {
    let dir = Dir::new();
    let ingress = r#"{ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": { "name": "web", "namespace": "a", "annotations": {
            "nginx.ingress.kubernetes.io/enable-cors": "true",
            "nginx.ingress.kubernetes.io/cors-allow-origin": "https://wrong/, https://good.test" } },
        "spec": { "rules": [{ "host": "a.test", "http": { "paths": [
            { "path": "/good\uffff", "pathType": "ImplementationSpecific", "backend": { "service": { "name": "web", "port": { "number": 80 } } } },
            { "path": "/wrong\u007f", "pathType": "ImplementationSpecific", "backend": { "service": { "name": "web", "port": { "number": 80 } } } }] } }] } }"#;
    std::fs::write(dir.file("web.json"), ingress).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-ingress"));
    let output = command.arg("convert").arg(dir.file("web.json")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(r"/good\uffff") && text.contains("https://good.test"), "{text}");
    assert!(!text.contains("wrong"), "{text}");
    assert!(text.is_ascii(), "{text}");
}

#[test]
fn switches_of_ingress_nginx_may_have_a_value() {
    let dir = Dir::new();
    let ingress = r#"{ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": { "name": "web", "namespace": "a" },
        "spec": { "rules": [{ "host": "a.test", "http": { "paths": [{ "path": "/", "pathType": "Prefix",
        "backend": { "service": { "name": "web", "port": { "number": 80 } } } }] } }] } }"#;
    let class = r#"{ "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": { "name": "weir" },
        "spec": { "controller": "weir.internal/ingress" } }"#;
    std::fs::write(dir.file("all.json"), format!("{ingress}\n---\n{class}\n")).unwrap();
    let print = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-ingress"));
        command.arg("print").arg(dir.file("all.json")).args(args).output().unwrap()
    };
    let serves = |word: &str| {
        let output = print(&[word]);
        assert!(output.status.success(), "{word}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).contains("server_name a.test")
    };
    assert!(serves("--watch-ingress-without-class"));
    assert!(serves("--watch-ingress-without-class=true"));
    assert!(!serves("--watch-ingress-without-class=false"));
    for name in ["disable-catch-all", "disable-svc-external-name", "enable-ssl-passthrough"] {
        assert!(!serves(&format!("--{name}=true")) && !serves(&format!("--{name}=false")));
    }
    let more = ["--ingress-class", "nginx", "--ingress-class-by-name=true"];
    assert!(print(&more).status.success());
    assert!(!print(&["--ingress-class-by-name=true"]).status.success());
    assert!(!print(&["--disable-catch-all=maybe"]).status.success());
}

#[test]
fn a_port_that_weir_listens_on_is_mapped_to_no_service() {
    let dir = Dir::new();
    let object = |version: &str, kind: &str, name: &str, rest: &str| {
        format!(
            r#"{{ "apiVersion": "{version}", "kind": "{kind}", "metadata": {{ "name": "{name}", "namespace": "a",
            "labels": {{ "kubernetes.io/service-name": "db" }} }}, {rest} }}"#
        )
    };
    let tcp =
        r#""data": { "08080": "a/db:1", "8443": "a/db:1", "9000": "a/db:1", "09000": "a/db:1" }"#;
    let pods = r#""addressType": "IPv4", "ports": [{ "port": 1 }], "endpoints": [{ "addresses": ["10.0.0.1"] }]"#;
    let all = [
        object("v1", "ConfigMap", "tcp", tcp),
        object("v1", "ConfigMap", "udp", r#""data": { "8443": "a/db:1" }"#),
        object("v1", "Service", "db", r#""spec": { "ports": [{ "port": 1 }] }"#),
        object("discovery.k8s.io/v1", "EndpointSlice", "db", pods),
    ];
    std::fs::write(dir.file("all.json"), all.join("\n---\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-ingress"));
    command.arg("print").arg(dir.file("all.json"));
    command.args(["--http", "8080", "--https", "127.0.0.1:8443"]);
    command.args(["--tcp-services-configmap", "a/tcp", "--udp-services-configmap", "a/udp"]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, streams) = text.split_once("\nstream {").unwrap();
    let listens = streams.lines().filter_map(|line| line.trim().strip_prefix("listen "));
    let listens: Vec<_> = listens.filter(|word| !word.starts_with('"')).collect();
    assert_eq!(listens, ["9000;", "8443 udp;"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for key in ["08080", "8443", "9000"] {
        let told = format!(
            "ConfigMap a/tcp: error {key}: weir listens on this port already; the port is not served"
        );
        assert!(said.contains(&told), "{said}");
    }
}

#[test]
fn a_number_of_a_service_leads_to_its_port_of_the_same_protocol() {
    let dir = Dir::new();
    let all = r#"{ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "both", "namespace": "a" }, "data": { "53": "a/dns:53" } }
---
{ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "dns", "namespace": "a" }, "spec": { "ports": [
    { "name": "dns", "port": 53, "protocol": "UDP", "targetPort": 5301 }, { "name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 5302 } ] } }
---
{ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "metadata": { "name": "dns", "namespace": "a",
    "labels": { "kubernetes.io/service-name": "dns" } }, "endpoints": [{ "addresses": ["10.0.0.1"] }],
    "ports": [{ "name": "dns", "port": 5301, "protocol": "UDP" }, { "name": "dns-tcp", "port": 5302, "protocol": "TCP" }] }
---
{ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": { "name": "web", "namespace": "a" }, "spec": { "rules": [{ "host": "a.test",
    "http": { "paths": [{ "path": "/", "pathType": "Prefix", "backend": { "service": { "name": "dns", "port": { "number": 53 } } } }] } }] } }"#;
    std::fs::write(dir.file("all.json"), all).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-ingress"));
    command.arg("print").arg(dir.file("all.json"));
    command.args(["--tcp-services-configmap", "a/both", "--udp-services-configmap", "a/both"]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (sites, streams) = text.split_once("\nstream {").unwrap();
    // The server of a group.
    let of = |text: &str, group: &str| {
        let (_, block) = text.split_once(&format!("upstream {group} {{")).unwrap();
        let mut lines = block.lines().filter_map(|line| line.trim().strip_prefix("server "));
        lines.next().map(str::to_owned)
    };
    assert_eq!(of(sites, "a_dns_53").as_deref(), Some("10.0.0.1:5302;"));
    let (_, servers) = streams.split_once("server {").unwrap();
    let mut groups = Vec::new();
    for server in servers.split("server {") {
        let listen = server.lines().find_map(|line| line.trim().strip_prefix("listen ")).unwrap();
        let group = server.lines().find_map(|line| line.trim().strip_prefix("proxy_pass "));
        groups.push((listen, of(streams, group.unwrap().trim_end_matches(';')).unwrap()));
    }
    let wanted = [("53;", "10.0.0.1:5302;"), ("53 udp;", "10.0.0.1:5301;")];
    assert_eq!(groups, wanted.map(|(listen, server)| (listen, server.to_owned())));
}
