//! Requests that come with a client's first flight, with OpenSSL as the client.

use std::path::Path;
use std::sync::Arc;

use rustls::version;
use weir_testkit::{Server, examples};

use super::bad_input::s_client;
use super::{NAME, Tls, WEIR, builder, dir, start};

const GET: &str = "GET /first HTTP/1.1\r\nHost: www.example.org\r\n\r\n";
const LAST: &str = "GET /last HTTP/1.1\r\nHost: www.example.org\r\nConnection: close\r\n\r\n";
const INSIDE: &str = "return 200 \"<$request_uri $ssl_session_reused$ssl_early_data>\";";

/// A session, then a request before the handshake with it and one behind, then the same session again.
fn twice_with_one_session(server: &Server) -> Option<[String; 2]> {
    server.dir().write("first", GET);
    s_client(server, &["-tls1_3", "-sess_out", "session"], LAST)?;
    let early = ["-tls1_3", "-sess_in", "session", "-early_data", "first"];
    let said = [(); 2].map(|()| s_client(server, &early, LAST).unwrap());
    Some(said)
}

#[test]
fn a_request_with_the_first_flight_is_served_before_the_handshake_is_complete() {
    for http in [
        "",
        "ssl_session_tickets off; ssl_session_cache shared:a:1m;",
        "ssl_session_cache builtin;",
    ] {
        let early = format!("{http} ssl_early_data on;");
        let Some([first, again]) = twice_with_one_session(&start(&early, INSIDE)) else { return };
        assert!(first.contains("Early data was accepted"), "{http}: {first}");
        assert!(first.contains("</first r1>") && first.contains("</last r>"), "{http}: {first}");
        // A session is good for one connection: what was recorded cannot be played again.
        assert!(again.contains("Early data was rejected"), "{http}: {again}");
        assert!(again.contains("</last .>") && !again.contains("</first"), "{http}: {again}");
    }
}

#[test]
fn without_the_directive_it_is_not_read() {
    for http in ["", "ssl_session_tickets off; ssl_session_cache shared:a:1m;"] {
        let Some([first, _]) = twice_with_one_session(&start(http, INSIDE)) else { return };
        assert!(first.contains("</last r>") && !first.contains("</first"), "{http}: {first}");
    }
}

/// TLS 1.2 has no early data, and its clients resume sessions as before.
#[test]
fn clients_of_tls_1_2_resume_beside_it() {
    let server = start("ssl_early_data on;", INSIDE);
    let config = Arc::new(builder(&[&version::TLS12]).with_no_client_auth());
    assert_eq!(Tls::connect(&server, &config, NAME).text("/"), "</ .>");
    assert_eq!(Tls::connect(&server, &config, NAME).text("/"), "</ r>");
}

/// The server behind is told of it.
#[test]
fn the_example_of_the_docs_marks_early_requests() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tls.md");
    let page = std::fs::read_to_string(page).unwrap();
    let example = examples(&page).find(|text| text.contains("ssl_early_data")).unwrap();
    let example = example.replace("8443", "127.0.0.1:%%PORT%%").replace("8081", "%%PORT1%%");
    let behind = "server { listen 127.0.0.1:%%PORT1%%;
        if ($http_early_data) { return 425; } return 200 \"<$request_uri>\"; }";
    let example = example.replacen("server {", &format!("{behind} server {{"), 1);
    let server = Server::start_in(dir(), WEIR, &example);
    let Some([first, _]) = twice_with_one_session(&server) else { return };
    assert!(first.contains("HTTP/1.1 425") && first.contains("</last>"), "{first}");
}
