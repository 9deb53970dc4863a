//! What clients of connections that outlive a change have shown: certificates, TLS at all, a balancer's header.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use weir_testkit::{Client, Dir, PATIENCE, Server};

use super::anybody::Anybody;
use super::{WEIR, certify, conf, json, put, take};

/// An authority, and a client's certificate from it.
struct Authority {
    pem: String,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let own_key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&own_key).unwrap().pem();
    let issuer = Issuer::new(params, own_key);
    let key = KeyPair::generate().unwrap();
    let mut client = CertificateParams::new(Vec::<String>::new()).unwrap();
    client.distinguished_name.push(DnType::CommonName, "client");
    let certificate = client.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    Authority { pem, chain: vec![certificate.der().clone()], key }
}

type Secured = StreamOwned<ClientConnection, TcpStream>;

fn connect(port: u16, by: &Authority) -> Secured {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let config = builder.with_protocol_versions(rustls::ALL_VERSIONS).unwrap();
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(Anybody::default()));
    let config = config.with_client_auth_cert(by.chain.clone(), by.key.clone_key()).unwrap();
    let name = ServerName::try_from("secure.test").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(connection, socket)
}

/// The answer to a request on a kept connection: its head, and a body that ends with a full stop.
fn ask(secured: &mut Secured) -> String {
    secured.write_all(b"GET / HTTP/1.1\r\nHost: secure.test\r\n\r\n").unwrap();
    let (mut said, mut room) = (Vec::new(), [0; 4096]);
    while !said.ends_with(b".") {
        match secured.read(&mut room) {
            Ok(n) if n > 0 => said.extend_from_slice(&room[..n]),
            _ => break,
        }
    }
    String::from_utf8(said).unwrap()
}

#[test]
fn certificates_of_clients_on_kept_connections_are_judged_by_the_new_authorities() {
    let dir = Dir::new();
    certify(&dir, "secure.test");
    let (one, two) = (authority("one"), authority("two"));
    dir.write("one", &one.pem);
    dir.write("two", &two.pem);
    dir.write("both", format!("{}{}", one.pem, two.pem));
    let own = dir.path().display().to_string();
    for mode in ["on", "optional"] {
        let text = |authorities: &str, word: &str| {
            let http = format!(
                "server {{ listen 127.0.0.1:%%PORT1%% ssl; ssl_certificate {own}/secure.test.crt; ssl_certificate_key {own}/secure.test.key;
                     ssl_verify_client {mode}; ssl_client_certificate {own}/{authorities};
                     location / {{ return 200 \"$ssl_client_verify {word}.\"; }} }}"
            );
            conf("", &http, "")
        };
        let server = Server::start(WEIR, &text("one", "first"));
        let port = server.port_at(1);
        let place = |text: String| text.replace("%%PORT1%%", &port.to_string());
        let mut kept = [connect(port, &one), connect(port, &one)];
        for secured in &mut kept {
            assert!(ask(secured).ends_with("\r\n\r\nSUCCESS first."), "{mode}");
        }
        // Both sets of authorities vouch for this client.
        take(&server, &place(text("both", "second")));
        for secured in &mut kept {
            assert!(ask(secured).ends_with("\r\n\r\nSUCCESS second."), "{mode}");
        }
        take(&server, &place(text("two", "third")));
        for secured in &mut kept {
            let refused = ask(secured);
            assert!(refused.starts_with("HTTP/1.1 421 "), "{mode}: {refused}");
            assert!(refused.contains("\r\nConnection: close\r\n"), "{mode}: {refused}");
        }
        assert!(ask(&mut connect(port, &two)).ends_with("\r\n\r\nSUCCESS third."), "{mode}");
    }
}

#[test]
fn a_port_that_gets_tls_serves_nothing_new_on_earlier_connections() {
    let dir = Dir::new();
    certify(&dir, "secure.test");
    let own = dir.path().display();
    let tls = format!(
        "ssl_certificate {own}/secure.test.crt; ssl_certificate_key {own}/secure.test.key; ssl_client_certificate {own}/secure.test.crt;
         ssl_verify_client on;"
    );
    for (word, lines) in [("ssl", tls.as_str()), ("proxy_protocol", "")] {
        let text = |listen: &str, lines: &str, word: &str| {
            let http = format!("server {{ {listen} {lines} location / {{ return 200 {word}; }} }}");
            conf("", &http, "")
        };
        // Once the address itself gets another protocol, and once an address of a wildcard's socket.
        for (old, new) in [
            ("listen 127.0.0.1:%%PORT1%%;", "listen 127.0.0.1:%%PORT1%% WORD;"),
            ("listen %%PORT1%%;", "listen %%PORT1%%; listen 127.0.0.1:%%PORT1%% WORD;"),
        ] {
            let server = Server::start(WEIR, &text(old, "", "old"));
            let port = server.port_at(1);
            let place = |text: String| text.replace("%%PORT1%%", &port.to_string());
            let workers = server.workers();
            let mut kept = Client::connect(port);
            assert_eq!(kept.get("/").body(), "old");
            let answer = put(&server, &place(text(&new.replace("WORD", word), lines, "new")));
            assert_eq!(answer.status, 200, "{}", answer.body());
            assert_eq!(json(&answer)["taken_by"], "new workers", "{word}: {}", answer.body());
            // As at a reload, the old workers may serve one more request.
            let asked = kept.try_send("GET / HTTP/1.1\r\nHost: secure.test\r\n\r\n");
            if let Ok(last) = asked.and_then(|()| kept.try_response()) {
                assert_eq!(last.body(), "old", "{word}");
            }
            workers.iter().for_each(|pid| server.wait_gone(*pid));
            // Without a change of that, running workers take the text.
            let text = text(&new.replace("WORD", word), lines, "newer");
            take(&server, &place(text));
        }
    }
}

#[test]
fn a_change_serves_the_first_request_of_a_handshake_that_was_before_it() {
    let dir = Dir::new();
    certify(&dir, "secure.test");
    let own = dir.path().display();
    let text = |word: &str| {
        let http = format!(
            "server {{ listen 127.0.0.1:%%PORT1%% ssl; ssl_certificate {own}/secure.test.crt; ssl_certificate_key {own}/secure.test.key;
                 location / {{ return 200 {word}$pipe; }} }}"
        );
        conf("", &http, "")
    };
    let server = Server::start(WEIR, &text("old"));
    let port = server.port_at(1);
    let place = |text: String| text.replace("%%PORT1%%", &port.to_string());
    let by = authority("nobody");
    let mut silent: Vec<Secured> = (0..4).map(|_| connect(port, &by)).collect();
    for secured in &mut silent {
        // Tickets come once the server's handshake is over.
        while secured.conn.is_handshaking() || secured.conn.tls13_tickets_received() == 0 {
            secured.conn.complete_io(&mut secured.sock).unwrap();
        }
    }
    take(&server, &place(text("new")));
    for secured in &mut silent {
        for _ in 0..2 {
            let said = ask(secured);
            assert!(said.ends_with("\r\n\r\nnew."), "{said}");
        }
    }
}
