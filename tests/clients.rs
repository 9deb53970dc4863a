//! The client's address: behind balancers that speak the PROXY protocol, and behind proxies that
//! add headers.

use weir_testkit::{Client, Server};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

const CONF: &str = "
    events { }
    http {
        access_log off;
        add_header X-Who $remote_addr!$remote_port;
        add_header X-Conn $realip_remote_addr;
        add_header X-Balancer $proxy_protocol_addr!$proxy_protocol_server_port!$proxy_protocol_tlv_alpn;
        set_real_ip_from 127.0.0.1;
        set_real_ip_from 10.0.0.0/8;
        server {
            listen 127.0.0.1:%%PORT%% proxy_protocol;
            real_ip_header proxy_protocol;
            location / { return 200; }
        }
        server {
            listen 127.0.0.1:%%PORT1%%;
            real_ip_header X-Forwarded-For;
            real_ip_recursive on;
            location / { return 200; }
        }
        map $proxy_protocol_addr $said { default $proxy_protocol_addr; 192.0.2.1 $http_x_forwarded_for; }
        server {
            listen 127.0.0.1:%%PORT2%% proxy_protocol;
            real_ip_header value=$said;
            real_ip_recursive on;
            location / { return 200; }
        }
    }
";

const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n";

#[test]
fn a_header_may_come_in_pieces_and_holds_for_the_connection() {
    let server = Server::start(WEIR, CONF);
    let mut client = server.connect();
    client.send("PROXY TCP4 192.0.2.1 192.0.2.2 12");
    // Another connection's answer shows that the loop has seen the first piece.
    let mut other = Client::connect(server.port_at(1));
    assert_eq!(other.get("/").status, 200);
    client.send(format!("3 5678\r\n{GET}\r\n"));
    for _ in 0..2 {
        let r = client.response();
        assert_eq!(r.header("X-Who"), Some("192.0.2.1!123"));
        assert_eq!(r.header("X-Conn"), Some("127.0.0.1"));
        assert_eq!(r.header("X-Balancer"), Some("192.0.2.1!5678!"));
        client.send(format!("{GET}\r\n"));
    }
}

#[test]
fn extras_of_version_2() {
    let server = Server::start(WEIR, CONF);
    let mut client = server.connect();
    client.send(
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x11\xc0\0\x02\x01\xc0\0\x02\x02\0\x7b\x16\x2e\x01\0\x02h2",
    );
    client.send(format!("{GET}\r\n"));
    assert_eq!(client.response().header("X-Balancer"), Some("192.0.2.1!5678!h2"));
}

#[test]
fn what_is_no_header_closes_the_connection() {
    let server = Server::start(WEIR, CONF);
    let mut client = server.connect();
    client.send(format!("{GET}\r\n"));
    assert_eq!(client.rest(), "");
    let about = format!("client: 127.0.0.1, server: 127.0.0.1:{}\n", server.port());
    let text = "broken header: \"GET / HTTP/1.1\" while reading PROXY protocol";
    server.wait_log(&format!("{text}, {about}"), 1);
}

/// A sender whose lines end with LF waits for an answer, and there is nothing to wait for.
#[test]
fn a_line_that_ends_without_cr_is_no_header() {
    let server = Server::start(WEIR, CONF);
    for line in ["PROXY TCP4 192.0.2.1 192.0.2.2 123 5678", "PROXY UNKNOWN"] {
        let mut client = server.connect();
        client.send(format!("{line}\n"));
        assert_eq!(client.rest(), "");
        server.wait_log(&format!("broken header: \"{line}\" while reading PROXY protocol"), 1);
    }
}

#[test]
fn the_log_tells_a_missing_header_from_a_missing_request() {
    let server = Server::start(WEIR, CONF);
    // Another connection's answer shows that the loop waits for more of the first one.
    let seen = || assert_eq!(Client::connect(server.port_at(1)).get("/").status, 200);
    let silent = server.connect();
    seen();
    drop(silent);
    server.wait_log("client closed connection while reading PROXY protocol", 1);
    let mut check = server.connect();
    check.send("PROXY TCP4 192.0.2.1 192.0.2.2 123 5678\r\n");
    seen();
    drop(check);
    server.wait_log("client closed connection while waiting for request", 1);
}

#[test]
fn forwarded_lists_are_read_as_far_as_they_are_believed() {
    let server = Server::start(WEIR, CONF);
    let mut client = Client::connect(server.port_at(1));
    let mut ask = |list: &str| {
        client.send(format!("{GET}X-Forwarded-For: {list}\r\n\r\n"));
        client.response().header("X-Who").map(str::to_owned)
    };
    assert_eq!(ask("192.0.2.9, 192.0.2.1:81, 10.1.1.1").as_deref(), Some("192.0.2.1!81"));
    assert_eq!(ask("10.1.1.1").as_deref(), Some("10.1.1.1!"));
}

#[test]
fn a_value_names_the_client_as_a_header_does() {
    let server = Server::start(WEIR, CONF);
    let ask = |from: &str, head: &str| {
        let mut client = Client::connect(server.port_at(2));
        client.send(format!("PROXY TCP4 {from} 192.0.2.2 123 5678\r\n{GET}{head}\r\n"));
        client.response().header("X-Who").map(str::to_owned)
    };
    let said = "X-Forwarded-For: 198.51.100.1, 10.1.1.1\r\n";
    assert_eq!(ask("192.0.2.1", said).as_deref(), Some("198.51.100.1!"));
    assert_eq!(ask("192.0.2.7", said).as_deref(), Some("192.0.2.7!"));
    // The directive's own words are no name of a header.
    let own = "value=$said: 198.51.100.1\r\nvalue: 198.51.100.1\r\nsaid: 198.51.100.1\r\n";
    assert_eq!(ask("192.0.2.7", own).as_deref(), Some("192.0.2.7!"));
}
