//! Connections that are upgraded: they become tunnels between the client and the server behind.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};

use weir_testkit::Server;

use super::start;
use super::talk::upstream;

/// A server before one that says `hello ` and what it is told, line by line. The first line comes with the request's head.
fn upgraded(first: &str) -> (Server, TcpStream, BufReader<TcpStream>) {
    let port = upstream(|talk| {
        let head = talk.head();
        assert!(head.contains("Upgrade: echo\r\n") && head.contains("Connection: upgrade\r\n"));
        talk.say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n");
        talk.say("Connection: upgrade\r\n\r\nhello ");
        let mut line = String::new();
        while talk.reader.read_line(&mut line).unwrap_or(0) > 0 {
            talk.say(&line);
            line.clear();
        }
    });
    let server = start(
        "log_format t '$status $request_completion $body_bytes_sent $upstream_bytes_sent';
         access_log logs/t t;",
        &format!(
            "location / {{ proxy_pass http://127.0.0.1:{port}; proxy_set_header Host a;
                 proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }}"
        ),
    );
    let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: echo\r\n\r\n{first}");
    client.write_all(head.as_bytes()).unwrap();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).unwrap();
    }
    assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, format!("hello {first}"));
    (server, client, reader)
}

/// What [`upgraded`] logs of these lines.
fn passed(completion: &str, lines: &str) -> String {
    let asked = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n";
    let (down, up) = ("hello ".len() + lines.len(), asked.len() + lines.len());
    format!("101 {completion} {down} {up}\n")
}

#[test]
fn an_upgraded_connection_is_a_tunnel() {
    let (server, mut client, mut reader) = upgraded("first\n");
    let mut line = String::new();
    client.write_all(b"second\n").unwrap();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "second\n");
    client.shutdown(Shutdown::Write).unwrap();
    line.clear();
    assert_eq!(reader.read_line(&mut line).unwrap(), 0);
    server.wait_file("logs/t", &passed("OK", "first\nsecond\n"), 1);
}

/// Nothing that a server sends behind 101 can be taken for the next answer.
#[test]
fn a_server_that_switches_unasked_ends_the_connection() {
    let port = upstream(|talk| {
        assert!(talk.head().contains("Upgrade: echo\r\n"));
        talk.say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n");
        talk.say("Connection: upgrade\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen");
    });
    let server = start(
        "",
        &format!(
            "location / {{ proxy_pass http://127.0.0.1:{port}; proxy_set_header Upgrade echo;
                 proxy_set_header Connection upgrade; }}"
        ),
    );
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    let told = client.rest();
    assert!(told.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{told}");
    assert!(told.ends_with("\r\n\r\n") && !told.contains("200 OK"), "{told}");
}

#[test]
fn of_a_tunnel_that_ends_with_its_worker_the_bytes_count() {
    let (mut server, mut client, mut reader) = upgraded("first\n");
    client.write_all(b"second\n").unwrap();
    reader.read_line(&mut String::new()).unwrap();
    server.signal(rustix::process::Signal::TERM);
    server.wait();
    assert_eq!(server.dir().read("logs/t"), passed("", "first\nsecond\n"));
}
