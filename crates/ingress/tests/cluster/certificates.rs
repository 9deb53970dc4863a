//! Certificates of Secrets that change.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::*;

const SECRETS: &str = "/api/v1/secrets";
const CHAIN: &str = include_str!("../../../tls/testdata/leaf.pem");
const KEY: &str = include_str!("../../../tls/testdata/leaf.key");

fn secret(key: &str) -> Value {
    let mut secret = Secret::default();
    secret.metadata.name = Some("cert".to_owned());
    secret.metadata.namespace = Some("b".to_owned());
    secret.metadata.resource_version = Some("2".to_owned());
    let data = [("tls.crt", CHAIN), ("tls.key", key)];
    let data = data.map(|(name, text)| (name.to_owned(), ByteString(text.as_bytes().to_vec())));
    secret.data = Some(data.into());
    serde_json::to_value(secret).unwrap()
}

/// The files of certificates that a configuration names.
fn certificates(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| c == '"' || c == ';' || c.is_whitespace());
    words.filter(|word| word.contains("/state/tls-")).collect()
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
    let note = loop {
        let event = written(&told, "POST", "/apis/events.k8s.io/v1/namespaces/b/events").body;
        let event: Value = serde_json::from_str(&event).unwrap();
        if event["reason"] == "InvalidCertificate" {
            break event["note"].as_str().unwrap().to_owned();
        }
    };
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
