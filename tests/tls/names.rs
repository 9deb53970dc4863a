//! Names in the handshake (SNI), byte by byte as nginx sees them, where there is one to compare with.

use weir_testkit::{Server, s_client};

use super::clients::programs;
use super::dir;

const CONF: &str = "events { } http { access_log off; ssl_certificate %%DIR%%/chain.pem;
    ssl_certificate_key %%DIR%%/leaf.key; ssl_verify_client optional_no_ca;
    ssl_client_certificate %%DIR%%/root.pem;
    server { listen 127.0.0.1:%%PORT%% ssl; return 200 \"<$ssl_server_name default>\"; }
    server { listen 127.0.0.1:%%PORT%% ssl; server_name www.example.org; return 200 \"<$ssl_server_name www>\"; }
    server { listen 127.0.0.1:%%PORT%% ssl; server_name 127.0.0.1; return 200 \"<$ssl_server_name address>\"; }
    server { listen 127.0.0.1:%%PORT%% ssl; server_name ::1; return 200 \"<$ssl_server_name never>\"; } }";

/// What a server says to a client that gives this name in the handshake, and this host over HTTP.
fn said(server: &Server, name: &str, host: &str) -> Option<String> {
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let args = ["-quiet", "-servername", name];
    s_client(server.dir().path(), server.port(), &args, &request)
}

#[test]
fn a_name_in_the_handshake_is_shown_as_the_client_wrote_it() {
    for program in programs() {
        let server = Server::start_in(dir(), &program, CONF);
        for (name, host, expected) in [
            ("www.example.org", "www.example.org", "www"),
            ("WWW.Example.ORG", "www.example.org", "www"),
            ("www.example.org.", "www.Example.org", "www"),
            ("Under_Score.test", "nobody", "default"),
            ("127.0.0.1", "127.0.0.1", "address"),
            ("127.0.0.2", "nobody", "default"),
            ("::1", "nobody", "default"),
            ("Nobody", "127.0.0.1", "address"),
        ] {
            let Some(said) = said(&server, name, host) else { return };
            let expected = format!("<{name} {expected}>");
            assert!(said.contains(&expected), "{program}: {name} {host}: {said}");
        }
        // The name chose a server, and its certificate is not good for another one.
        for name in ["WWW.example.org", "127.0.0.1"] {
            let Some(said) = said(&server, name, "nobody") else { return };
            assert!(said.contains("421 Misdirected"), "{program}: {name}: {said}");
        }
    }
}

/// nginx takes the default server's curves for all.
#[test]
fn curves_are_those_of_the_server_that_is_named() {
    let server = |name, curve| {
        format!(
            "server {{ listen 127.0.0.1:%%PORT%% ssl; server_name {name}; ssl_ecdh_curve {curve};
                return 200 \"<$ssl_curve>\"; }}"
        )
    };
    let servers = server("first", "X25519") + &server("www.example.org", "secp384r1");
    let conf = format!(
        "events {{ }} http {{ access_log off; ssl_certificate %%DIR%%/chain.pem;
            ssl_certificate_key %%DIR%%/leaf.key; {servers} }}"
    );
    let server = Server::start_in(dir(), super::WEIR, &conf);
    for (name, curve) in [("first", "<X25519>"), ("www.example.org", "<secp384r1>")] {
        let Some(said) = said(&server, name, name) else { return };
        assert!(said.contains(curve), "{name}: {said}");
    }
}

/// rustls reads no such names; nginx goes on with the default server.
#[test]
fn a_name_that_no_host_can_have_is_refused_with_an_alert() {
    let server = Server::start_in(dir(), super::WEIR, CONF);
    for name in ["*.a", "foo-.a", "x..y", "a b", "www.example.org:443"] {
        let Some(said) = said(&server, name, "nobody") else { return };
        assert!(said.contains("alert illegal parameter"), "{name}: {said}");
    }
    server.wait_log("while SSL handshaking", 5);
}

/// A server that wants to know its clients is not asked by one that another server has let in, not even for an error page.
#[test]
fn a_misdirected_request_stays_with_the_server_of_its_handshake() {
    for program in programs() {
        let server = Server::start_in(
            dir(),
            &program,
            "events { } http { ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key;
                 ssl_client_certificate %%DIR%%/root.pem; log_format name '$server_name $status';
                 server {
                     listen 127.0.0.1:%%PORT%% ssl default_server; server_name open.test;
                     access_log %%DIR%%/open.log name; error_page 421 /page; location = /page { return 200 open; }
                 }
                 server {
                     listen 127.0.0.1:%%PORT%% ssl; server_name closed.test; ssl_verify_client on;
                     access_log %%DIR%%/closed.log name; error_page 421 /page; location = /page { return 200 closed; }
                 } }",
        );
        let request = "GET / HTTP/1.1\r\nHost: closed.test\r\n\r\nGET /page HTTP/1.1\r\nHost: open.test\r\n\r\n";
        let args = ["-quiet", "-servername", "open.test"];
        let Some(said) = s_client(server.dir().path(), server.port(), &args, request) else {
            return;
        };
        assert!(said.contains("421 Misdirected") && said.contains("\r\n\r\nopen"), "{said}");
        // What follows is no request.
        assert!(
            said.contains("Connection: close") && !said.contains("200 OK"),
            "{program}: {said}"
        );
        server.wait_file("open.log", "open.test 421\n", 1);
        assert_eq!(server.dir().read("closed.log"), "", "{program}");
    }
}

/// The name of the handshake is no name of a request.
#[test]
fn a_request_without_a_host_over_tls_is_one_without_a_name() {
    for program in programs() {
        let server = Server::start_in(
            dir(),
            &program,
            "events { } http { access_log off;
                 ssl_certificate %%DIR%%/chain.pem; ssl_certificate_key %%DIR%%/leaf.key;
                 server { listen 127.0.0.1:%%PORT%% ssl; server_name one.test; return 200 one; }
                 server { listen 127.0.0.1:%%PORT%% ssl; server_name two.test; return 200 two; }
                 server { listen 127.0.0.1:%%PORT%% ssl; server_name \"\"; return 200 none; } }",
        );
        let args = ["-quiet", "-servername", "two.test"];
        let request = "GET / HTTP/1.0\r\n\r\n";
        let Some(said) = s_client(server.dir().path(), server.port(), &args, request) else {
            return;
        };
        assert!(said.contains("\r\n\r\nnone"), "{program}: {said}");
    }
}
