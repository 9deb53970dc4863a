//! How the authority validates a challenge: it asks the web server, looks at the certificate that a
//! TLS server shows, or reads TXT records.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use serde_json::{Value, json};
use weir_proto::base64::{self, Alphabet};
use weir_testkit::{PATIENCE, ask_until};

use super::resources::ok;
use super::{Answer, Shared};
use crate::anybody::Anybody;

impl Shared {
    /// Asks for the answer at once.
    pub(super) fn challenge(&self, number: usize, at: usize, key: &Value, kind: &str) -> Answer {
        let (token, name) = {
            let world = self.world();
            let order = &world.orders[number];
            (
                order.authorizations[at].token.clone(),
                order.names[at]["value"].as_str().unwrap().to_owned(),
            )
        };
        let canonical =
            format!(r#"{{"crv":"P-256","kty":"EC","x":{},"y":{}}}"#, key["x"], key["y"]);
        let mut thumbprint = Vec::new();
        base64::encode(
            Alphabet::Url,
            digest(&SHA256, canonical.as_bytes()).as_ref(),
            &mut thumbprint,
        );
        let wanted = format!("{token}.{}", String::from_utf8(thumbprint).unwrap());
        let hash = digest(&SHA256, wanted.as_bytes());
        let (is_right, found) = match kind {
            "dns" | "persist" => {
                let name = name.trim_start_matches("*.");
                let prefix = if kind == "dns" { "_acme-challenge" } else { "_validation-persist" };
                let mut value = Vec::new();
                base64::encode(Alphabet::Url, hash.as_ref(), &mut value);
                let value = String::from_utf8(value).unwrap();
                let found = self.names.get().unwrap().texts(&format!("{prefix}.{name}"));
                (kind == "persist" && !found.is_empty() || found.contains(&value), None)
            }
            _ => {
                assert!(
                    ask_until(|| self.web.load(Ordering::SeqCst) != 0),
                    "no test says where it asks"
                );
                let web = self.web.load(Ordering::SeqCst);
                match kind {
                    "tls" => (shows(web, &name, hash.as_ref()), None),
                    _ => {
                        let found = fetch(web, &name, &token);
                        (found.as_deref() == Some(&wanted), found)
                    }
                }
            }
        };
        let mut world = self.world();
        let order = &mut world.orders[number];
        let own = &mut order.authorizations[at];
        let mut shown = json!({
            "type": "http-01",
            "status": if is_right { "valid" } else { "invalid" },
            "url": self.url(&format!("challenge/{number}/{at}")),
            "token": own.token,
        });
        if is_right {
            own.status = "valid";
        } else {
            let error = json!({
                "type": "urn:ietf:params:acme:error:unauthorized",
                "detail": format!("found {found:?}"),
            });
            shown["status"] = "processing".into();
            (own.status, own.error, order.status) = ("invalid", Some(error), "invalid");
        }
        if order.authorizations.iter().all(|own| own.status == "valid") {
            order.status = "ready";
        }
        ok(shown)
    }
}

/// Asks a web server for the answer to a challenge.
fn fetch(port: u16, name: &str, token: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let path = format!("/.well-known/acme-challenge/{token}");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
}

/// Whether a server shows the proof for a name over TLS: by the protocol for it, with the digest in the extension for it.
fn shows(port: u16, name: &str, digest: &[u8]) -> bool {
    const PE_ACME: [u8; 10] = [6, 8, 0x2b, 6, 1, 5, 5, 7, 1, 31];
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let anybody = Arc::new(Anybody::default());
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(anybody).with_no_client_auth();
    config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    while connection.is_handshaking() {
        if connection.complete_io(&mut stream).is_err() {
            return false;
        }
    }
    let leaf = connection.peer_certificates().unwrap()[0].to_vec();
    let has = |bytes: &[u8]| leaf.windows(bytes.len()).any(|part| part == bytes);
    connection.alpn_protocol() == Some(b"acme-tls/1") && has(&PE_ACME) && has(digest)
}
