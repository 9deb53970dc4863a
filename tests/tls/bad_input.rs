//! Hostile or broken clients: what they get, their cost, and what the log says.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use weir_testkit::Server;

use super::clients::programs;
use super::{NAME, Tls, config, dir, start};

/// What `openssl s_client` says, which sends `text` when the handshake is done and reads until the end; none where
/// OpenSSL is missing.
pub fn s_client(server: &Server, args: &[&str], text: &str) -> Option<String> {
    let mut args = args.to_vec();
    args.push("-ign_eof");
    commanded(server, &args, text)
}

/// The same, but lines are its user's commands, and the end of them is the end.
fn commanded(server: &Server, args: &[&str], text: &str) -> Option<String> {
    weir_testkit::s_client(server.dir().path(), server.port(), args, text)
}

const GET: &str = "GET / HTTP/1.1\r\nHost: www.example.org\r\nConnection: close\r\n\r\n";

#[test]
fn openssl_comes_with_a_name_and_without_one() {
    let http = "server { listen 127.0.0.1:%%PORT%% ssl default_server;
        ssl_certificate self.pem; ssl_certificate_key self.key; return 200 nobody; }";
    let server = start(http, "return 200 $ssl_server_name:$ssl_alpn_protocol;");
    let named = ["-servername", NAME, "-alpn", "http/1.1"];
    let Some(said) = s_client(&server, &named, GET) else { return };
    assert!(said.contains("www.example.org:http/1.1") && said.contains("CN = www.example.org"));
    assert!(said.contains("ALPN protocol: http/1.1"), "{said}");
    let said = s_client(&server, &["-noservername"], GET).unwrap();
    // The certificate is the default server's. The answer comes from the server that the request
    // names.
    assert!(said.contains("s:CN = self") && said.contains("No ALPN negotiated"), "{said}");
    assert!(said.contains("\r\n\r\n:"), "{said}");
}

#[test]
fn a_session_is_resumed_under_its_own_name_and_of_tls_1_2_without_its_curve() {
    for http in ["", "ssl_session_tickets off; ssl_session_cache shared:a:1m;"] {
        let server = start(http, "return 200 <$ssl_session_reused$ssl_curve>;");
        for (version, own) in [("-tls1_2", "<r>"), ("-tls1_3", "<rX25519>")] {
            let asked = |more: &[&str]| {
                s_client(&server, &[&[version, "-groups", "X25519:P-256"], more].concat(), GET)
            };
            let Some(first) = asked(&["-sess_out", "session", "-servername", NAME]) else { return };
            assert!(first.contains("<.X25519>"), "{first}");
            for (name, said) in [(NAME, own), ("self", "<.X25519>")] {
                let again = asked(&["-sess_in", "session", "-servername", name]).unwrap();
                assert!(again.contains(said), "{http} {version} {name}: {again}");
            }
        }
    }
}

#[test]
fn openssl_resumes_and_shows_its_certificate() {
    let inside = "ssl_verify_client optional; ssl_client_certificate root.pem;
        return 200 \"<$ssl_session_reused $ssl_client_verify $ssl_client_serial>\";";
    let server = start("", inside);
    for version in ["-tls1_2", "-tls1_3"] {
        let mut args = vec![version, "-cert", "client.pem", "-key", "client.key"];
        args.extend(["-sess_out", "session"]);
        let Some(said) = s_client(&server, &args, GET) else { return };
        assert!(said.contains("<. SUCCESS 04>"), "{version}: {said}");
        let said = s_client(&server, &[version, "-sess_in", "session"], GET).unwrap();
        assert!(said.contains("<r SUCCESS 04>"), "{version}: {said}");
    }
}

#[test]
fn renegotiation_is_refused() {
    let server = start("", "return 200 ok;");
    // A line that begins with R asks s_client to renegotiate.
    let Some(said) = commanded(&server, &["-tls1_2"], "R\n") else { return };
    assert!(said.contains("RENEGOTIATING") && !said.contains("200 OK"), "{said}");
    assert_eq!(Tls::connect(&server, &config(), NAME).text("/"), "ok");
}

#[test]
fn old_protocols_and_ciphers_are_refused_with_a_reason() {
    let server = start("", "error_log %%DIR%%/error.log info; return 200 ok;");
    let old = ["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"];
    let Some(said) = s_client(&server, &old, GET) else { return };
    assert!(said.contains("SSL alert number"), "{said}");
    let weak = ["-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0"];
    let said = s_client(&server, &weak, GET).unwrap();
    assert!(said.contains("SSL alert number 40"), "{said}");
    server.wait_log("SSL_do_handshake() failed (SSL: ", 2);
}

#[test]
fn a_handshake_that_begins_with_another_message_is_refused_with_an_alert() {
    for program in programs() {
        let conf = "events { } http { access_log off;
             ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key;
             server { listen 127.0.0.1:%%PORT%% ssl; return 200; } }";
        let server = Server::start_in(dir(), &program, conf);
        // A Finished, and a type that there is not.
        for kind in [20, 99] {
            let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
            client.write_all(&[22, 3, 1, 0, 5, kind, 0, 0, 1, 0]).unwrap();
            let mut told = Vec::new();
            let _ = client.read_to_end(&mut told);
            // OpenSSL takes the version of the record, rustls that of TLS 1.2.
            assert_eq!((told[0], &told[3..]), (21, &[0, 2, 2, 10][..]), "{program} {kind}");
        }
    }
}

/// Operators and their tools look for these words. nginx has them from OpenSSL.
#[test]
fn failed_handshakes_are_told_in_the_words_that_nginx_logs() {
    for program in programs() {
        let server = Server::start_in(
            dir(),
            &program,
            "events { } error_log %%DIR%%/error.log info;
             http { access_log off; ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key;
                 ssl_protocols TLSv1.2 TLSv1.3;
                 ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256;
                 server { listen 127.0.0.1:%%PORT%% ssl; return 200; } }",
        );
        let other = "ECDHE-RSA-CHACHA20-POLY1305:ECDHE-ECDSA-CHACHA20-POLY1305";
        for (args, told, logged) in [
            (
                ["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
                "alert protocol version",
                "unsupported protocol",
            ),
            (["-tls1_2", "-cipher", other], "alert handshake failure", "no shared cipher"),
            (["-tls1_2", "-alpn", "odd"], "alert number 120", "no application protocol"),
            (
                ["-tls1_2", "-fallback_scsv", "-no_ticket"],
                "alert inappropriate fallback",
                "inappropriate fallback",
            ),
            (["-verify_return_error", "-CAfile", "self.pem"], "", "alert unknown ca"),
        ] {
            let Some(said) = s_client(&server, &args, GET) else { return };
            assert!(said.contains(told), "{program} {args:?}: {said}");
            server.wait_log(logged, 1);
        }
        server.wait_log("alert unknown ca:SSL alert number 48) while SSL handshaking", 1);
        // Without a cipher that needs a curve, a client names none.
        let old = ["-tls1_2", "-cipher", "AES128-SHA"];
        let said = s_client(&server, &old, GET).unwrap();
        assert!(said.contains("alert handshake failure"), "{program}: {said}");
        server.wait_log("no shared cipher", 2);
        // There is nothing to fall back from.
        let newest = ["-tls1_3", "-fallback_scsv", "-quiet"];
        let said = s_client(&server, &newest, GET).unwrap();
        assert!(said.contains("200 OK"), "{program}: {said}");
    }
}

#[test]
fn a_flood_of_empty_records_costs_a_connection() {
    let server = start("", "return 200 ok;");
    let mut flood = Tls::connect(&server, &config(), NAME);
    assert_eq!(flood.text("/"), "ok");
    let mut other = Tls::connect(&server, &config(), NAME);
    let ended = (0..10_000).any(|_| {
        let stream = flood.0.get_mut();
        // New keys for each record: work for the server, and nothing for a request.
        stream.conn.refresh_traffic_keys().is_err() || stream.flush().is_err()
    });
    assert_eq!(other.text("/"), "ok");
    assert!(ended, "ten thousand records that carry nothing");
}

#[test]
fn half_a_hello_byte_by_byte_ends_in_time() {
    let server = start("", "client_header_timeout 1s; return 200;");
    let mut socket = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
    // The deadline is the handshake's, not each read's.
    let mut sent = b"\x16\x03\x01\x02\x00".iter().chain(std::iter::repeat(&1u8));
    let mut buf = [0; 64];
    let closed = loop {
        let byte = [*sent.next().unwrap()];
        if socket.write_all(&byte).is_err() {
            break true;
        }
        match socket.read(&mut buf) {
            Ok(0) => break true,
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => break true,
            _ => {}
        }
        if server.logged("while SSL handshaking") > 0 {
            break true;
        }
    };
    assert!(closed);
    server.wait_log("timed out (110: Connection timed out) while SSL handshaking", 1);
}

#[test]
fn a_balancer_that_sends_no_header_has_not_failed_in_a_handshake() {
    let server = start("", "listen 127.0.0.1:%%PORT1%% ssl proxy_protocol; return 200 ok;");
    for (sent, resets, told) in [
        ("", false, "client closed connection while reading PROXY protocol"),
        (
            "PROXY",
            true,
            "recv() failed (104: Connection reset by peer) while reading PROXY protocol",
        ),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", false, "client closed connection while SSL"),
    ] {
        let address = ("127.0.0.1", server.port_at(1));
        let mut balancer = std::net::TcpStream::connect(address).unwrap();
        balancer.write_all(sent.as_bytes()).unwrap();
        // Another connection's answer shows that the loop waits for more of this one.
        assert_eq!(Tls::connect(&server, &config(), NAME).text("/"), "ok");
        if resets {
            let now = Some(std::time::Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(&balancer, now).unwrap();
        }
        drop(balancer);
        server.wait_log(told, 1);
    }
}

#[test]
fn an_expired_certificate_warns_once() {
    let server = start("", "ssl_certificate expired.pem; ssl_certificate_key leaf.key;");
    let said = server.command(&["-t"]);
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(text.contains("expired.pem\" ended on Jan  1 00:00:00 2021 GMT in "), "{text}");
    assert!(text.contains("nginx.conf:"), "{text}");
    assert_eq!(text.matches("[warn]").count(), 1, "{text}");
    assert!(said.status.success());
}

#[test]
fn a_client_that_resets_its_handshake_has_nginxs_line_in_the_log() {
    for program in programs() {
        let server = Server::start_in(
            dir(),
            &program,
            "events { } error_log %%DIR%%/error.log info;
             http { access_log off; ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key;
                 server { listen 127.0.0.1:%%PORT%% ssl; return 200; } }",
        );
        let mut socket = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        let mut hello = ClientConnection::new(config(), name).unwrap();
        hello.write_tls(&mut socket).unwrap();
        // What is not read makes the kernel reset the connection.
        socket.peek(&mut [0]).unwrap();
        drop(socket);
        let reset = "peer closed connection in SSL handshake (104: Connection reset by peer) while";
        server.wait_log(reset, 1);
    }
}
