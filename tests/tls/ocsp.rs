//! OCSP responders, asked about the server's certificates and about clients'. The responder is
//! weir, too: OpenSSL made its answers.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use weir_testkit::{NameRecord, NameReply, Server, examples, name_server, until};

use super::anybody::Anybody;
use super::{NAME, Tls, WEIR, conf, dir, showing, start};

/// A server on `%%PORT1%%` that answers every question with `file`.
fn responder(file: &str) -> String {
    format!(
        "server {{ listen 127.0.0.1:%%PORT1%%; root %%DIR%%; access_log %%DIR%%/asked;
            default_type application/ocsp-response; location / {{ try_files /{file} =404; }} }}"
    )
}

/// What a new client of this server gets along with the certificate.
fn stapled(server: &Server) -> Vec<u8> {
    let seen = Arc::new(Anybody::default());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(seen.clone())
        .with_no_client_auth();
    assert_eq!(Tls::connect(server, &Arc::new(config), NAME).text("/"), "ok");
    seen.0.lock().unwrap().clone()
}

fn answer(name: &str) -> Vec<u8> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata").join(name);
    std::fs::read(data).unwrap()
}

/// Each handshake leaves a line in the directory, so that a test that waits for a response looks
/// again.
const STAPLING: &str = "ssl_stapling on; ssl_stapling_responder http://127.0.0.1:%%PORT1%%/;
    ssl_trusted_certificate root.pem; access_log %%DIR%%/served;";

#[test]
fn a_response_is_fetched_before_a_client_asks_for_it() {
    let inside = format!("{STAPLING} ssl_stapling_verify on; return 200 ok;");
    for workers in [1, 2] {
        let conf = conf(&responder("good.ocsp"), &inside);
        let conf = format!("worker_processes {workers}; {conf}");
        let server = Server::start_in(dir(), WEIR, &conf);
        assert!(until(server.dir().path(), || stapled(&server) == answer("good.ocsp")));
    }
}

#[test]
fn what_the_issuer_does_not_stand_behind_is_not_stapled() {
    for (file, verify, text) in [
        ("by-root.ocsp", "on", "OCSP_basic_verify() failed (SSL: root ca not trusted) while"),
        ("revoked.ocsp", "off", "certificate status \"revoked\" in the OCSP response while"),
        ("client-good.ocsp", "off", "certificate status not found in the OCSP response while"),
        ("leaf.pem", "off", "d2i_OCSP_RESPONSE() failed (SSL: bad response) while"),
        ("missing", "off", "OCSP responder sent invalid \"Content-Type\" header: \"text/html\""),
    ] {
        let inside = format!("{STAPLING} ssl_stapling_verify {verify}; return 200 ok;");
        let server = start(&responder(file), &inside);
        server.wait_log(text, 1);
        server.wait_log(", responder: 127.0.0.1, peer: 127.0.0.1:", 1);
        assert_eq!(stapled(&server), b"", "{file}");
    }
}

#[test]
fn a_responder_that_comes_later_is_asked_again() {
    let inside = format!("{STAPLING} return 200 ok;");
    let server = start("", &inside);
    server.wait_log("connect() failed (111: Connection refused) while requesting certificate", 2);
    let later = conf(&responder("good.ocsp"), "return 200;").replace("%%PORT%%", "%%PORT2%%");
    let later = later.replace("%%PORT1%%", &server.port_at(1).to_string());
    let _responder = Server::start_in(dir(), WEIR, &later);
    assert!(until(server.dir().path(), || stapled(&server) == answer("good.ocsp")));
}

#[test]
fn stapling_that_cannot_be_is_ignored_with_a_warning() {
    let server = start("", "ssl_stapling on; return 200 ok;");
    let said = server.command(&["-t"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("\"ssl_stapling\" ignored, no OCSP responder URL in the certificate"));
    assert_eq!(stapled(&server), b"");
    let wrong = "ssl_stapling on; ssl_stapling_file %%DIR%%/leaf.pem;";
    server.configure(&conf("", wrong));
    let said = server.command(&["-t"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.contains("successful") && said.contains("d2i_OCSP_RESPONSE_bio("), "{said}");
}

const CLIENTS: &str = "ssl_verify_client on; ssl_client_certificate root.pem; ssl_ocsp on;
    ssl_ocsp_responder http://127.0.0.1:%%PORT1%%/; return 200 $ssl_client_verify;";

#[test]
fn clients_are_asked_about() {
    let client = showing("client.pem", "client.key");
    let server = start(&responder("client-good.ocsp"), CLIENTS);
    assert_eq!(Tls::connect(&server, &client, NAME).text("/"), "SUCCESS");
    for (file, fault) in [
        ("client-revoked.ocsp", "certificate revoked"),
        ("good.ocsp", "certificate status request failed"),
        ("missing", "certificate status request failed"),
    ] {
        let inside = CLIENTS.replace("return 200", "error_page 495 =200 /; return 200");
        let server = start(&responder(file), &inside);
        // A session that is resumed is looked at again.
        for _ in 0..2 {
            let said = Tls::connect(&server, &client, NAME).text("/");
            assert_eq!(said, format!("FAILED:{fault}"), "{file}");
        }
        server.wait_log(&format!("client SSL certificate verify error: {fault}"), 2);
    }
}

#[test]
fn a_silent_address_of_a_responder_leaves_time_for_another() {
    let silent = Ipv4Addr::new(127, 0, 0, 2);
    let names = name_server(move |_| {
        let addresses = [silent, Ipv4Addr::LOCALHOST].map(NameRecord::Address);
        NameReply::Records(60, addresses.to_vec())
    });
    let inside = CLIENTS.replace("//127.0.0.1:", "//ocsp.test:");
    let inside = format!(
        "resolver 127.0.0.1:{names} ipv6=off; client_header_timeout 4s;
        error_page 495 =200 /; {inside}"
    );
    let server = start(&responder("client-good.ocsp"), &inside);
    let _accepts_nothing = TcpListener::bind((silent, server.port_at(1))).unwrap();
    let client = showing("client.pem", "client.key");
    // Each look-up begins with another address.
    for _ in 0..2 {
        assert_eq!(Tls::connect(&server, &client, NAME).text("/"), "SUCCESS");
    }
    server.wait_log("OCSP responder timed out (110: Connection timed out)", 1);
}

#[test]
fn what_was_said_of_a_client_is_kept_for_all_workers() {
    let client = showing("client.pem", "client.key");
    let inside = format!("ssl_ocsp_cache shared:said:100k; {CLIENTS}");
    let conf = conf(&responder("client-good.ocsp"), &inside);
    let server = Server::start_in(dir(), WEIR, &format!("worker_processes 2; {conf}"));
    for _ in 0..8 {
        assert_eq!(Tls::connect(&server, &client, NAME).text("/"), "SUCCESS");
    }
    // The responses also serve the workers after them, even if no responder answers any more.
    server.configure(&format!("worker_processes 2; {}", super::conf("", &inside)));
    server.reload();
    for _ in 0..4 {
        assert_eq!(Tls::connect(&server, &client, NAME).text("/"), "SUCCESS");
    }
    assert_eq!(server.dir().read("asked").lines().count(), 1);
}

#[test]
fn the_example_of_the_docs_serves() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tls.md");
    let page = std::fs::read_to_string(page).unwrap();
    let example = examples(&page).next().unwrap();
    let example = example.replace("8443", "127.0.0.1:%%PORT%%").replace("8081", "%%PORT1%%");
    let server = Server::start_in(dir(), WEIR, &example);
    assert!(Tls::connect(&server, &super::config(), NAME).get("/", NAME).0.starts_with("HTTP/1.1"));
    server
        .wait_log("while requesting certificate status, responder: 127.0.0.1, peer: 127.0.0.1:", 1);
}
