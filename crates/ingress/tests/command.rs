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
