//! A server behind that refuses the certificate shown to it: in TLS 1.3 its alert comes when the handshake is over for
//! the side that asked. nginx (`$WEIR_NGINX`, or `nginx` on the path) counts it as the server's failure, and so does weir.

use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use weir_testkit::Server;

use super::clients::programs;
use super::extensions::backend;
use super::{certificates, dir};

/// A server that wants a certificate of the authority `root`, or none; its port.
fn behind(version: &'static SupportedProtocolVersion, wants: bool) -> u16 {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    let key = PrivateKeyDer::from_pem_file(data.join("leaf.key")).unwrap();
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[version])
        .unwrap();
    let builder = if wants {
        let mut roots = RootCertStore::empty();
        roots.add(certificates("root.pem").remove(0)).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        builder.with_client_cert_verifier(verifier.build().unwrap())
    } else {
        builder.with_no_client_auth()
    };
    backend(builder.with_single_cert(certificates("leaf.pem"), key).unwrap())
}

#[test]
fn a_server_that_refuses_our_certificate_has_failed_as_in_nginx() {
    for program in programs() {
        for version in [&TLS12, &TLS13] {
            let (strict, mild) = (behind(version, true), behind(version, false));
            let server = Server::start_in(
                dir(),
                &program,
                &format!(
                    "events {{ }} http {{ log_format tries '<$upstream_addr $upstream_status>';
                        access_log %%DIR%%/tries.log tries;
                        upstream group {{ server 127.0.0.1:{strict}; server 127.0.0.1:{mild}; }}
                        server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass https://group;
                            proxy_ssl_certificate %%DIR%%/self.pem;
                            proxy_ssl_certificate_key %%DIR%%/self.key; }} }} }}"
                ),
            );
            for _ in 0..3 {
                assert_eq!(server.get("/").status, 200, "{program} {version:?}");
            }
            // It is asked once, and then passed over for a while.
            let first = format!("<127.0.0.1:{strict}, 127.0.0.1:{mild} 502, 200>");
            server.wait_file("tries.log", &first, 1);
            server.wait_file("tries.log", &format!("<127.0.0.1:{mild} 200>"), 2);
            let doing = if version == &TLS13 { "SSL_read()" } else { "SSL_do_handshake()" };
            server.wait_log(&format!("{doing} failed (SSL: "), 1);
            server.wait_log("alert certificate unknown:SSL alert number 46) while ", 1);
        }
    }
}
