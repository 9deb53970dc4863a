//! TLS: which certificates are accepted, and how handshakes fail. The server is rustls.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::{OK, failures, outcome, server};
use crate::{
    CertificateTrust, Closing, LoadPlan, Protocol, RequestFailure, RequestShape, RunOutcome,
    TlsTarget, Url, json, text,
};

const NAME: &str = "https://www.example.org/";

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata").join(name)
}

/// Serves one request per connection over TLS, as the host of [`NAME`].
fn tls() -> SocketAddr {
    let chain = ["leaf.pem", "inter.pem"].map(|name| CertificateDer::from_pem_file(file(name)));
    let chain = chain.into_iter().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(file("leaf.key")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let config = Arc::new(config);
    server(move |socket| {
        let mut tls = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), socket);
        if tls.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
            let _ = tls.write_all(OK);
            tls.conn.send_close_notify();
            let _ = tls.flush();
        }
    })
}

fn visit(
    address: SocketAddr,
    url: &str,
    trust: &CertificateTrust,
    protocol: Protocol,
) -> RunOutcome {
    let secure = TlsTarget::new(trust, protocol, false).unwrap();
    let url = Url::parse(url).unwrap();
    let to = address.into();
    let mut plan =
        LoadPlan::new(&[url], &RequestShape::default(), Some(&to), Some(&secure)).unwrap();
    plan.requests = Some(6);
    (plan.connections, plan.closing, plan.protocol) = (2, Closing::Always, protocol);
    outcome(&plan)
}

#[test]
fn certificates_are_verified_unless_told_otherwise() {
    let address = tls();
    let root = CertificateTrust::File(file("root.pem"));
    for (url, trust, is_good) in [
        (NAME, &root, true),
        ("https://other.example/", &root, false),
        (NAME, &CertificateTrust::File(file("self.pem")), false),
        ("https://other.example/", &CertificateTrust::Anyone, true),
    ] {
        let run = visit(address, url, trust, Protocol::Http1);
        if is_good {
            assert_eq!(
                (run.tally.requests(), run.tally.handshake.len()),
                (6, 6),
                "{url} {trust:?}"
            );
            assert!(json(&run).contains("\"tls_handshake_ms\": {"));
        } else {
            assert_eq!(failures(&run, RequestFailure::Certificate), 6, "{url} {trust:?}");
            assert!(text(&run).contains("not accepted: 6 (certificate "), "{}", text(&run));
        }
    }
}

#[test]
fn handshakes_fail_in_their_own_ways() {
    assert_eq!(
        failures(
            &visit(tls(), NAME, &CertificateTrust::Anyone, Protocol::Http2(2)),
            RequestFailure::NoHttp2
        ),
        6
    );
    let other = server(|mut socket| {
        let _ = socket.write_all(b"220 mail.example.org\r\n");
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let plain = visit(other, NAME, &CertificateTrust::Anyone, Protocol::Http1);
    assert_eq!(failures(&plain, RequestFailure::Handshake), 6);
    let hasty = server(drop);
    assert_eq!(
        failures(
            &visit(hasty, NAME, &CertificateTrust::Anyone, Protocol::Http1),
            RequestFailure::Handshake
        ),
        6
    );
}

#[test]
fn a_failed_connection_is_tried_once_for_all_its_streams() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    let hasty = server(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let run = visit(hasty, NAME, &CertificateTrust::Anyone, Protocol::Http2(3));
    assert_eq!(failures(&run, RequestFailure::Handshake), 6);
    assert_eq!(seen.load(Ordering::Relaxed), 2);
}

#[test]
fn https_needs_tls_settings() {
    let to = tls().into();
    assert!(LoadPlan::get(&[Url::parse(NAME).unwrap()], Some(&to)).is_err());
}
