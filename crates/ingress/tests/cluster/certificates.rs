//! Certificates of Secrets that change.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::*;

const SECRETS: &str = "/api/v1/secrets";
const CHAIN: &str = include_str!("../../../tls/testdata/leaf.pem");
const KEY: &str = include_str!("../../../tls/testdata/leaf.key");

fn secret(key: &str) -> Value {
    secret_with(&[("tls.crt", CHAIN), ("tls.key", key)])
}

fn secret_with(data: &[(&str, &str)]) -> Value {
    let mut secret = Secret::default();
    secret.metadata.name = Some("cert".to_owned());
    secret.metadata.namespace = Some("b".to_owned());
    secret.metadata.resource_version = Some("2".to_owned());
    let data = data.iter();
    let data = data.map(|(name, text)| ((*name).to_owned(), ByteString(text.as_bytes().to_vec())));
    secret.data = Some(data.collect());
    serde_json::to_value(secret).unwrap()
}

/// The files of certificates that a configuration names.
fn certificates(text: &str) -> Vec<&str> {
    files(text, "/state/tls-")
}

/// The files with this in their names that a configuration names.
fn files<'t>(text: &'t str, kind: &str) -> Vec<&'t str> {
    let words = text.split(|c: char| c == '"' || c == ';' || c.is_whitespace());
    words.filter(|word| word.contains(kind)).collect()
}

/// Waits for the Event of a finding: its note.
fn event(told: &Receiver<Asked>, reason: &str) -> String {
    loop {
        let event = written(told, "POST", "/apis/events.k8s.io/v1/namespaces/b/events").body;
        let event: Value = serde_json::from_str(&event).unwrap();
        if event["reason"] == reason {
            return event["note"].as_str().unwrap().to_owned();
        }
    }
}

#[test]
fn a_certificate_that_cannot_be_used_does_not_replace_one_that_can() {
    let mut objects = sites("b", 1);
    for site in objects.values_mut().flatten().filter(|one| is(one, "site0")) {
        site["spec"]["rules"][0]["host"] = json!("www.example.org");
        site["spec"]["tls"] = json!([{ "hosts": ["www.example.org"], "secretName": "cert" }]);
    }
    objects.insert(SECRETS.to_owned(), vec![secret(KEY)]);
    let dir = Dir::new();
    let (watches, (tell, taken)) = (Watches::default(), channel());
    let (_process, told) = start_with(&dir, objects, &[], watches.clone(), tell);
    come(&told, "WATCH", &[SECRETS, "/apis/networking.k8s.io/v1/ingresses"]);
    let first = taken.recv_timeout(PATIENCE).unwrap();
    let files = certificates(&first);
    assert!(!files.is_empty(), "{first}");
    add(&watches, SECRETS, &secret(&KEY[..KEY.len() / 2]));
    let note = event(&told, "InvalidCertificate");
    let wanted = "cert: the certificate before stays in use: tls.key is cut off";
    assert!(note.starts_with(wanted), "{note}");
    // The configuration that has this finding is the one before.
    assert!(taken.try_recv().is_err());
    // It ends with its Secret.
    let gone = json!({ "type": "DELETED", "object": secret("") });
    for (_, stream) in watches.lock().unwrap().iter_mut().filter(|(of, _)| of == SECRETS) {
        writeln!(stream, "{gone}").unwrap();
    }
    let last = taken.recv_timeout(PATIENCE).unwrap();
    assert!(certificates(&last).iter().all(|file| !files.contains(file)), "{last}");
}

#[test]
fn a_certificate_for_servers_behind_stays_and_its_authorities_do_not() {
    const ROOT: &str = include_str!("../../../tls/testdata/root.pem");
    let mut objects = sites("b", 1);
    for site in objects.values_mut().flatten().filter(|one| is(one, "site0")) {
        let name = |name: &str| format!("nginx.ingress.kubernetes.io/{name}");
        site["metadata"]["annotations"] =
            json!({ name("backend-protocol"): "HTTPS", name("proxy-ssl-secret"): "b/cert" });
    }
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": "b" },
        "spec": { "ports": [{ "port": 80, "targetPort": 8080 }] } });
    let pods = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "web", "namespace": "b", "labels": { "kubernetes.io/service-name": "web" } },
        "ports": [{ "port": 8080, "protocol": "TCP" }], "endpoints": [{ "addresses": ["10.0.0.1"] }] });
    let of = |key: &str, authorities: &str| {
        secret_with(&[("tls.crt", CHAIN), ("tls.key", key), ("ca.crt", authorities)])
    };
    objects.insert("/api/v1/services".to_owned(), vec![service]);
    objects.insert("/apis/discovery.k8s.io/v1/endpointslices".to_owned(), vec![pods]);
    objects.insert(SECRETS.to_owned(), vec![of(KEY, &[CHAIN, ROOT].concat())]);
    let dir = Dir::new();
    let (watches, (tell, taken)) = (Watches::default(), channel());
    let (_process, told) = start_with(&dir, objects, &[], watches.clone(), tell);
    come(&told, "WATCH", &[SECRETS, "/apis/networking.k8s.io/v1/ingresses"]);
    let first = taken.recv_timeout(PATIENCE).unwrap();
    let presented = |text: &str| {
        let lines = text.lines().filter(|line| line.contains("proxy_ssl_certificate"));
        lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(presented(&first).len(), 2, "{first}");
    // The key is cut off, and an authority is removed.
    add(&watches, SECRETS, &of(&KEY[..KEY.len() / 2], ROOT));
    let second = taken.recv_timeout(PATIENCE).unwrap();
    assert_eq!(presented(&second), presented(&first), "{second}");
    let authorities = files(&first, "/state/ca-");
    let left = files(&second, "/state/ca-");
    assert!(!left.is_empty() && left.iter().all(|file| !authorities.contains(file)), "{second}");
    let note = event(&told, "InvalidCertificate");
    let wanted = "proxy-ssl-secret: the certificate before stays in use: tls.key is cut off";
    assert!(note.starts_with(wanted), "{note}");
    // Nothing stands in for authorities that cannot be read.
    add(&watches, SECRETS, &of(KEY, &ROOT[..ROOT.len() / 2]));
    let third = taken.recv_timeout(PATIENCE).unwrap();
    assert!(files(&third, "/state/ca-").is_empty() && third.contains("return 503"), "{third}");
}
