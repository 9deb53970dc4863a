//! HTTP/0.9 over QUIC, which tests of QUIC speak: asked by quinn.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, TokioRuntime};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use weir_testkit::{PATIENCE, under_strace};

use super::*;

/// A client of quinn's that trusts the server's authority and speaks `protocol`; to be used in a runtime.
pub fn client(server: &Server, protocol: &str) -> Endpoint {
    client_with(server, protocol, EndpointConfig::default())
}

pub fn client_with(server: &Server, protocol: &str, config: EndpointConfig) -> Endpoint {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut endpoint = Endpoint::new(config, None, socket, Arc::new(TokioRuntime)).unwrap();
    let tls = QuicClientConfig::try_from(client_config(server, protocol)).unwrap();
    endpoint.set_default_client_config(ClientConfig::new(Arc::new(tls)));
    endpoint
}

/// The TLS of such a client.
pub fn client_config(server: &Server, protocol: &str) -> rustls::ClientConfig {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_file(server.dir().file("root.pem")).unwrap();
    roots.add(root).unwrap();
    let mut tls =
        rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    tls
}

/// Says all of a request at once, on a stream of its own: where its answer comes.
pub async fn request(connection: &Connection, bytes: &[u8]) -> RecvStream {
    let (mut send, receive) = connection.open_bi().await.unwrap();
    send.write_all(bytes).await.unwrap();
    send.finish().unwrap();
    receive
}

/// Runs what a client does to its end, which comes within some waits of [`PATIENCE`].
pub fn run_client<F: Future>(client: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bounded = async { tokio::time::timeout(3 * PATIENCE, client).await };
    runtime.block_on(bounded).expect("a client that waits for nothing in vain")
}

/// What a client that speaks `protocol` gets for each of these lines, on a stream each of one connection; none where the
/// handshake fails.
fn ask_lines(server: &Server, protocol: &str, lines: &[&str]) -> Option<Vec<String>> {
    let address: SocketAddr = ([127, 0, 0, 1], server.port()).into();
    run_client(async {
        let endpoint = client(server, protocol);
        let connection = endpoint.connect(address, "www.example.org").unwrap().await.ok()?;
        let mut answers = Vec::new();
        for line in lines {
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            // In two pieces, as a network may bring them.
            let (a, b) = line.split_at(line.len() / 2);
            send.write_all(a.as_bytes()).await.unwrap();
            send.write_all(b.as_bytes()).await.unwrap();
            send.finish().unwrap();
            let answer = receive.read_to_end(1 << 20).await;
            answers.push(answer.map_or_else(|e| e.to_string(), |b| String::from_utf8(b).unwrap()));
        }
        connection.close(0u32.into(), b"");
        endpoint.wait_idle().await;
        Some(answers)
    })
}

#[test]
fn a_line_is_answered_by_a_body() {
    let inside =
        "http3_hq on; root .; location /said { return 200 \"$http3 $request_method $uri $arg_a\"; }
                  location = /none { access_log own.log own; return 204; }";
    let server = start("log_format own '$server_protocol $request_uri';", inside);
    server.dir().write("large", "large\n".repeat(20_000));
    let lines = ["GET /said?a=b\r\n", "GET /large\n", "GET /none\r\n"];
    let answers = ask_lines(&server, "hq-interop", &lines).unwrap();
    assert_eq!(answers[0], "hq GET /said b");
    assert_eq!(answers[1], "large\n".repeat(20_000));
    assert_eq!(answers[2], "");
    server.wait_file("seen.log", " hq 200 /said?a=b ", 1);
    server.wait_file("own.log", "- /none\n", 1);
    let Some(got) = ask(&server, server.port(), &[], &["/said"]) else { return };
    assert_eq!(got.read("said"), "h3 GET /said ");
}

#[test]
fn what_is_no_line_is_refused() {
    let server = start("", "http3_hq on; location / { return 200 good; }");
    let long = format!("GET /{}\r\n", "a".repeat(20_000));
    let lines = ["POST /\r\n", "GET / HTTP/1.1\r\n", "GET", &long, "GET /good\r\n"];
    let answers = ask_lines(&server, "hq-interop", &lines).unwrap();
    assert!(answers[0].contains("400 Bad Request"), "{}", answers[0]);
    assert!(answers[1].contains("400 Bad Request"), "{}", answers[1]);
    assert!(answers[2].contains("reset"), "{}", answers[2]);
    assert!(answers[3].contains("reset"), "{}", answers[3]);
    assert_eq!(answers[4], "good");
}

#[test]
fn each_protocol_is_spoken_where_it_is_wanted_alone() {
    let server = start("", "http3 off; http3_hq on; location / { return 200 fine; }");
    assert_eq!(ask_lines(&server, "hq-interop", &["GET /\r\n"]).unwrap(), ["fine"]);
    assert!(ask_lines(&server, "h3", &[]).is_none());
    let server = start("", "location / { return 200 fine; }");
    assert!(ask_lines(&server, "hq-interop", &[]).is_none());
}

/// A sandbox may forbid the call that receives several datagrams.
#[test]
fn datagrams_are_received_one_by_one_where_recvmmsg_is_refused() {
    for error in ["error=EPERM", "error=ENOSYS"] {
        let dir = certified();
        let Some(weir) = under_strace(&dir, WEIR, "recvmmsg", error) else { return };
        let inside = "http3_hq on; location / { return 200 \"$http3 $arg_a\"; }";
        let server = Server::start_in(dir, &weir, &conf("", inside));
        // More than a datagram.
        let long = "a".repeat(5_000);
        let line = format!("GET /?a={long}\r\n");
        let answers = ask_lines(&server, "hq-interop", &[&line, "GET /?a=b\r\n"]).unwrap();
        assert_eq!(answers, [format!("hq {long}"), "hq b".to_owned()]);
    }
}
