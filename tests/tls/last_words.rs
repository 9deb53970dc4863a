//! What one end says last, and that it has ended, in one packet, while its socket stays open.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use rustls::pki_types::{PrivateKeyDer, ServerName, pem::PemObject};
use rustls::{ClientConnection, ConnectionCommon, ServerConfig, ServerConnection, StreamOwned};
use weir_testkit::{PATIENCE, Server, certified, listen};

use super::{NAME, Tls, WEIR, certificates, config};

/// A connection after its handshake.
fn shaken(port: u16) -> StreamOwned<ClientConnection, TcpStream> {
    let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    let mut tls = StreamOwned::new(ClientConnection::new(config(), name).unwrap(), socket);
    tls.conn.complete_io(&mut tls.sock).unwrap();
    tls
}

/// Sends this and the end of TLS at once.
fn send_last<D>(tls: &mut ConnectionCommon<D>, mut socket: &TcpStream, text: &str) {
    let mut records = Vec::new();
    tls.writer().write_all(text.as_bytes()).unwrap();
    tls.send_close_notify();
    while tls.wants_write() {
        tls.write_tls(&mut records).unwrap();
    }
    socket.write_all(&records).unwrap();
}

/// A server that answers what it hears first. Its socket stays open until the other end closes.
fn says_last() -> u16 {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    let key = PrivateKeyDer::from_pem_file(data.join("leaf.key")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates("leaf.pem"), key)
        .unwrap();
    let config = Arc::new(config);
    listen(move |socket| {
        let mut tls = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), socket);
        if tls.read(&mut [0; 16]).is_ok() {
            send_last(&mut tls.conn, &tls.sock, "said");
            let _ = tls.sock.read_to_end(&mut Vec::new());
        }
    })
}

/// All that comes until the server has closed its socket.
fn rest(mut tls: StreamOwned<ClientConnection, TcpStream>) -> String {
    let mut text = String::new();
    tls.read_to_string(&mut text).unwrap();
    assert_eq!(tls.sock.read(&mut [0]).unwrap(), 0, "the socket stays open");
    text
}

#[test]
fn the_end_of_tls_is_noticed_behind_data_of_the_same_packet() {
    let (told, hears) = channel();
    let told = Mutex::new(told);
    // It says what it has heard when that has ended.
    let to = listen(move |mut socket| {
        let mut text = String::new();
        let _ = socket.read_to_string(&mut text);
        let _ = told.lock().unwrap().send(text.clone());
        let _ = socket.write_all(text.as_bytes());
    });
    let switches = listen(|mut socket| {
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            text.push(byte[0]);
        }
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: u\r\n";
        socket.write_all(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()).unwrap();
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let says_last = says_last();
    let conf = format!(
        "events {{ }}
         http {{
            ssl_certificate chain.pem; ssl_certificate_key leaf.key; keepalive_timeout 1h;
            server {{ listen 127.0.0.1:%%PORT%% ssl; location / {{ return 200 answer; }}
                location /tunnel {{ proxy_pass http://127.0.0.1:{switches}; proxy_http_version 1.1;
                    proxy_read_timeout 1h; proxy_set_header Connection upgrade;
                    proxy_set_header Upgrade u; }} }}
         }}
         stream {{
            ssl_certificate chain.pem; ssl_certificate_key leaf.key; proxy_timeout 1h;
            server {{ listen 127.0.0.1:%%PORT1%% ssl; proxy_pass 127.0.0.1:{to}; }}
            server {{ listen 127.0.0.1:%%PORT2%% ssl; proxy_pass 127.0.0.1:{to};
                proxy_half_close on; }}
            server {{ listen 127.0.0.1:%%PORT3%%; proxy_pass 127.0.0.1:{says_last}; proxy_ssl on; }}
         }}"
    );
    let server = Server::start_in(certified(), WEIR, &conf);

    let mut tls = shaken(server.port_at(1));
    send_last(&mut tls.conn, &tls.sock, "words");
    assert_eq!(rest(tls), "");
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), "words");

    let mut tls = shaken(server.port_at(2));
    send_last(&mut tls.conn, &tls.sock, "words");
    assert_eq!(rest(tls), "words");

    let mut plain = TcpStream::connect(("127.0.0.1", server.port_at(3))).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain.write_all(b"ask").unwrap();
    let mut text = String::new();
    plain.read_to_string(&mut text).unwrap();
    assert_eq!(text, "said");

    let mut tls = shaken(server.port());
    send_last(&mut tls.conn, &tls.sock, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(rest(tls).ends_with("\r\n\r\nanswer"));

    let mut tls = Tls::connect(&server, &config(), NAME);
    tls.send("GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: u\r\n\r\n")
        .unwrap();
    assert!(tls.answer().0.starts_with("HTTP/1.1 101 "));
    let mut tls = tls.0.into_inner();
    send_last(&mut tls.conn, &tls.sock, "words");
    assert_eq!(rest(tls), "");
}

/// nginx tells its idle clients at the reload itself.
#[test]
fn an_idle_client_is_told_when_the_time_to_end_is_over() {
    let server = Server::start_in(
        certified(),
        WEIR,
        "worker_shutdown_timeout 100ms; events { }
         http { server { listen 127.0.0.1:%%PORT%% ssl; return 200 answer;
            ssl_certificate chain.pem; ssl_certificate_key leaf.key; keepalive_timeout 1h; } }",
    );
    let mut tls = Tls::connect(&server, &config(), NAME);
    tls.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(tls.answer().0.starts_with("HTTP/1.1 200 "));
    server.reload();
    assert_eq!(rest(tls.0.into_inner()), "");
}
