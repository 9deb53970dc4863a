//! CONNECT: tunnels to the servers that clients name.

use weir_testkit::{Client, Deaf, Server, free_port};

use super::WEIR;

fn start(locations: &str) -> Server {
    Server::start(
        WEIR,
        &format!(
            "events {{ }}
             http {{
                 log_format l \"$status $bytes_sent $upstream_addr $upstream_bytes_sent\";
                 access_log tunnels l;
                 upstream known {{ server 127.0.0.1:%%PORT1%%; }}
                 server {{ listen 127.0.0.1:%%PORT%%; {locations} }}
                 server {{ listen 127.0.0.1:%%PORT1%%; access_log off; return 200 through; }}
             }}"
        ),
    )
}

fn connect(server: &Server, to: &str) -> Client {
    let mut client = server.connect();
    client.send(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n"));
    client
}

/// The head of an answer that has no body.
fn head(client: &mut Client) -> String {
    let response = client.response();
    assert!(response.header("Transfer-Encoding").is_none());
    format!("{} {:?}", response.status, response.header("Connection"))
}

#[test]
fn bytes_go_through() {
    let server = start("tunnel_pass;");
    let to = format!("127.0.0.1:{}", server.port_at(1));
    let mut raw = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    use std::io::{Read, Write};
    // What is sent behind the head, without waiting, goes through, too.
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    write!(raw, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n{ask}").unwrap();
    let mut all = String::new();
    raw.read_to_string(&mut all).unwrap();
    let (head, inside) = all.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nServer: weir/"), "{head}");
    assert!(head.contains("\r\nDate: "), "{head}");
    assert!(head.ends_with("Connection: close") && !head.contains("chunked"), "{head}");
    assert!(inside.starts_with("HTTP/1.1 200 OK\r\n") && inside.ends_with("through"), "{inside}");
}

#[test]
fn only_connect_and_only_where_it_is_allowed() {
    let server = start("location / { tunnel_pass known; }");
    assert_eq!(server.get("/").status, 405);
    let other = Server::start(WEIR, "events { } http { server { listen 127.0.0.1:%%PORT%%; } }");
    assert_eq!(connect(&other, "a:1").response().status, 405);
}

#[test]
fn a_refused_connect_ends_its_connection() {
    // What follows may be meant for the tunnel's other end, whatever stands in the answer.
    let server = start(
        "error_page 403 =200 /page; location /page { return 200 page; }
         location / { deny all; tunnel_pass; }",
    );
    let mut client = connect(&server, "a:1");
    assert_eq!(client.response().header("Connection"), Some("close"));
    assert!(client.send("GET /page HTTP/1.1\r\nHost: a\r\n\r\n").try_response().is_err());
}

#[test]
fn a_tunnel_asks_for_credentials_as_a_proxy_does() {
    let server = start(
        "location / { tunnel_pass known; auth_basic inside; auth_basic_user_file users;
            location /any { satisfy any; deny all; } }",
    );
    server.dir().write("users", "ann:{PLAIN}secret\n");
    let ask = |header: &str| {
        let mut client = server.connect();
        client.send(format!("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n{header}\r\n"));
        // An answer of the tunnel's other end closes it.
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        client.response()
    };
    let refused = ask("");
    assert_eq!(refused.status, 407);
    assert_eq!(refused.header("Proxy-Authenticate"), Some("Basic realm=\"inside\""));
    assert_eq!(refused.header("WWW-Authenticate"), None);
    // What is meant for the server at the tunnel's other end opens nothing here.
    assert_eq!(ask("Authorization: Basic YW5uOnNlY3JldA==\r\n").status, 407);
    assert_eq!(ask("Proxy-Authorization: Basic YW5uOndyb25n\r\n").status, 407);
    assert_eq!(ask("Proxy-Authorization: Basic YW5uOnNlY3JldA==\r\n").status, 200);
    // Other methods meet a server.
    let plain = server.ask("GET /", "Proxy-Authorization: Basic YW5uOnNlY3JldA==\r\n", "");
    assert_eq!((plain.status, plain.header("Proxy-Authenticate")), (401, None));
}

#[test]
fn a_server_that_is_not_there_is_a_502() {
    let server = start("tunnel_pass;");
    let mut client = connect(&server, &format!("127.0.0.1:{}", free_port()));
    assert_eq!(head(&mut client), "502 Some(\"close\")");
    let text = "connect() failed (111: Connection refused) while connecting to upstream";
    server.wait_log(text, 1);
}

/// The status of a tunnel through these lines, to a group without its first server, and what the
/// tunnel's other end says of its client.
fn through(lines: &str) -> (u16, String) {
    through_after(free_port(), lines)
}

/// The same where the first server is at this port.
fn through_after(dead: u16, lines: &str) -> (u16, String) {
    let server = Server::start(
        WEIR,
        &format!(
            "events {{ }}
             http {{
                 access_log off;
                 upstream two {{ server 127.0.0.1:{dead} max_fails=0; server 127.0.0.1:%%PORT1%% backup; }}
                 server {{ listen 127.0.0.1:%%PORT%%; location / {{ tunnel_pass two; {lines} }} }}
                 server {{ listen 127.0.0.1:%%PORT1%%; return 200 $remote_addr; }}
             }}"
        ),
    );
    let mut client = server.connect();
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    client.send(format!("CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n{ask}"));
    let all = client.rest();
    let status = all.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
    let from = all.rsplit("\r\n\r\n").next().filter(|_| status == 200).unwrap_or_default();
    (status, from.to_owned())
}

#[test]
fn a_tunnel_is_opened_as_the_configuration_says() {
    assert_eq!(through(""), (200, "127.0.0.1".to_owned()));
    assert_eq!(through("tunnel_bind 127.0.0.2;"), (200, "127.0.0.2".to_owned()));
    assert_eq!(through("tunnel_next_upstream off;").0, 502);
    assert_eq!(through("tunnel_next_upstream_tries 1;").0, 502);
}

#[test]
fn a_silent_tunnel_ends() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = silent.local_addr().unwrap().to_string();
    let server = start("location / { tunnel_pass; tunnel_read_timeout 100ms; }");
    let mut client = connect(&server, &to);
    assert_eq!(client.response().status, 200);
    let mut other = silent.accept().unwrap().0;
    assert!(client.is_closed());
    let mut rest = Vec::new();
    assert_eq!(std::io::Read::read_to_end(&mut other, &mut rest).unwrap(), 0);
}

#[test]
fn a_tunnel_is_opened_in_the_time_that_is_said() {
    let deaf = Deaf::new();
    let through = |lines: &str| through_after(deaf.port(), lines).0;
    assert_eq!(through("tunnel_connect_timeout 100ms;"), 200);
    assert_eq!(through("tunnel_connect_timeout 100ms; tunnel_next_upstream_timeout 50ms;"), 504);
}

#[test]
fn a_tunnel_whose_other_end_reads_nothing_ends() {
    use std::io::{Read, Write};
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = silent.local_addr().unwrap().to_string();
    let server =
        start("location / { tunnel_pass; tunnel_send_timeout 100ms; tunnel_read_timeout 1h; }");
    let mut client = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    client.set_write_timeout(Some(weir_testkit::PATIENCE)).unwrap();
    write!(client, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
    let _unread = silent.accept().unwrap();
    client.read_exact(&mut [0; 12]).unwrap();
    let begun = std::time::Instant::now();
    while client.write_all(&[b'x'; 65536]).is_ok() {}
    assert!(begun.elapsed() < weir_testkit::PATIENCE, "it does not end");
}

#[test]
fn a_slow_reader_of_a_tunnel_may_be_silent() {
    use std::io::{Read, Write};
    const MUCH: usize = 8 << 20;
    let to = weir_testkit::listen(|mut stream| {
        let _ = stream.write_all(&vec![b'x'; MUCH]);
        let _ = stream.read(&mut [0]);
    });
    let server = start("location / { tunnel_pass; tunnel_read_timeout 1s; }");
    let mut client = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    client.set_read_timeout(Some(weir_testkit::PATIENCE)).unwrap();
    write!(client, "CONNECT 127.0.0.1:{to} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    client.read_exact(&mut [0; 12]).unwrap();
    // Longer than a server may be silent: one that is ends its tunnel.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let quiet = connect(&server, &silent.local_addr().unwrap().to_string()).rest();
    assert!(quiet.starts_with("HTTP/1.1 200"));
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert!(all.iter().filter(|byte| **byte == b'x').count() >= MUCH, "{} bytes", all.len());
}

/// The server's next bytes wait for a client that reads nothing; what ends the tunnel is the client's fault.
#[test]
fn a_client_of_a_tunnel_that_reads_nothing_takes_too_long() {
    use std::io::{Read, Write};
    let to = weir_testkit::listen(|mut stream| while stream.write_all(&[b'x'; 65536]).is_ok() {});
    let server =
        start("location / { tunnel_pass; send_timeout 300ms; reset_timedout_connection on; }");
    let mut client = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    client.set_read_timeout(Some(weir_testkit::PATIENCE)).unwrap();
    write!(client, "CONNECT 127.0.0.1:{to} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let late = "client timed out (110: Connection timed out) while proxying upgraded connection";
    server.wait_log(late, 1);
    assert_eq!(server.logged("upstream timed out"), 0);
    let end = client.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
    assert_eq!(end.unwrap_err(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_client_that_resets_its_tunnel_is_no_fault_of_the_server() {
    use std::io::{Read, Write};
    let to = weir_testkit::listen(|mut stream| _ = stream.read(&mut [0]));
    let server = start("location / { tunnel_pass; }");
    let mut client = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    write!(client, "CONNECT 127.0.0.1:{to} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    client.read_exact(&mut [0; 12]).unwrap();
    // Bytes that were not read make its end a reset.
    drop(client);
    let text = "recv() failed (104: Connection reset by peer) while proxying upgraded connection";
    server.wait_log(text, 1);
    assert!(server.log().lines().any(|line| line.contains("[info]") && line.contains(text)));
}
