//! SCGI and uwsgi, spoken with servers of the tests' own, and uwsgi with uWSGI where that is installed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;

use weir_testkit::{Client, Dir, Process, Server, ask_until, examples, free_port, listen};

use crate::{WEIR, start};

/// Tells what came: the packet with its separators made visible, and the body.
fn echo(read: fn(&mut BufReader<TcpStream>) -> Vec<u8>) -> u16 {
    listen(move |stream| {
        let mut stream = BufReader::new(stream);
        let packet = read(&mut stream);
        let text = String::from_utf8_lossy(&packet).replace('\0', "|");
        let length = text.split("CONTENT_LENGTH|").nth(1).and_then(|rest| rest.split('|').next());
        let mut body = vec![0; length.and_then(|n| n.parse().ok()).unwrap_or(0)];
        stream.read_exact(&mut body).expect("the body");
        let body = String::from_utf8_lossy(&body).into_owned();
        let _ = stream
            .get_mut()
            .write_all(format!("Status: 201 Made\r\nX-A: b\r\n\r\n{text} {body}").as_bytes());
    })
}

fn scgi(stream: &mut BufReader<TcpStream>) -> Vec<u8> {
    let mut head = Vec::new();
    stream.read_until(b':', &mut head).expect("a length");
    head.pop();
    let length: usize = String::from_utf8(head).expect("digits").parse().expect("a number");
    let mut packet = vec![0; length + 1];
    stream.read_exact(&mut packet).expect("the packet");
    assert_eq!(packet.pop(), Some(b','));
    packet
}

/// The packet as SCGI has it, behind the modifiers.
fn uwsgi(stream: &mut BufReader<TcpStream>) -> Vec<u8> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).expect("a head");
    let mut packet = vec![0; usize::from(u16::from_le_bytes([head[1], head[2]]))];
    stream.read_exact(&mut packet).expect("the packet");
    let mut out = format!("{} {} ", head[0], head[3]).into_bytes();
    let mut rest = packet.as_slice();
    while let [low, high, more @ ..] = rest {
        let (text, after) = more.split_at(usize::from(u16::from_le_bytes([*low, *high])));
        out.extend_from_slice(text);
        out.push(0);
        rest = after;
    }
    out
}

#[test]
fn requests_of_scgi_are_netstrings() {
    let server = start(
        "scgi_param SCGI 1; scgi_param URI $uri;",
        &format!("location / {{ scgi_pass 127.0.0.1:{}; }}", echo(scgi)),
    );
    let said = server.ask("POST /a", "Content-Length: 4\r\nX-A: 1\r\n", "body");
    assert_eq!((said.status, said.header("X-A")), (201, Some("b")));
    let expected =
        "CONTENT_LENGTH|4|SCGI|1|URI|/a|HTTP_HOST|localhost|HTTP_CONTENT_LENGTH|4|HTTP_X_A|1| body";
    assert_eq!(said.body(), expected);
}

#[test]
fn requests_of_uwsgi_are_packets() {
    let server = start(
        "uwsgi_param URI $uri; uwsgi_param CONTENT_LENGTH $content_length; uwsgi_modifier1 5; uwsgi_modifier2 7;",
        &format!(
            "location / {{ uwsgi_pass uwsgi://127.0.0.1:{port}; uwsgi_pass_request_headers off; }}
             location /computed {{ set $to uwsgi://127.0.0.1:{port}; uwsgi_pass $to;
                 uwsgi_pass_request_headers off; uwsgi_request_buffering off; }}",
            port = echo(uwsgi)
        ),
    );
    for path in ["/a", "/computed"] {
        let said = server.ask(&format!("POST {path}"), "Content-Length: 4\r\n", "body");
        let expected = format!("5 7 URI|{path}|CONTENT_LENGTH|4|HTTP_HOST|localhost| body");
        assert_eq!((said.status, said.body()), (201, expected));
    }
}

#[test]
fn a_plain_answer_may_be_wrong() {
    let port = listen(|mut stream| {
        let mut buf = [0; 4096];
        let n = stream.read(&mut buf).unwrap_or(0);
        let asked = String::from_utf8_lossy(&buf[..n]).into_owned();
        let lie: &[u8] = match asked {
            text if text.contains("/status") => b"Status: many\r\n\r\n",
            text if text.contains("/short") => b"Content-Length: 9\r\n\r\nshort",
            text if text.contains("/more") => {
                b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nand more"
            }
            text if text.contains("/endless") => &[b'a'; 100_000],
            _ => b"",
        };
        let _ = stream.write_all(lie);
    });
    for name in ["scgi", "uwsgi"] {
        let locations =
            format!("location / {{ {name}_pass 127.0.0.1:{port}; {name}_param URI $uri; }}");
        let server = start("", &locations);
        let cases = [
            ("/status", 502, "upstream sent invalid status \"many\""),
            ("/endless", 502, "upstream sent too big header"),
            (
                "/nothing",
                502,
                "upstream prematurely closed connection while reading response header",
            ),
        ];
        for (path, status, line) in cases {
            assert_eq!(server.get(path).status, status, "{name} {path}");
            server.wait_log(line, 1);
        }
        let mut client = server.connect();
        client.send("GET /short HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.try_response().is_err(), "{name}: a whole answer");
        assert_eq!(server.get("/more").body(), "and", "{name}");
        server.wait_log("upstream sent more data than specified", 1);
    }
}

#[test]
fn a_python_application_answers() {
    if Command::new("uwsgi").arg("--version").output().is_err() {
        return eprintln!("skipped: uwsgi is not installed");
    }
    let dir = Dir::new();
    dir.write(
        "app.py",
        "def application(env, start):\n    body = env['wsgi.input'].read()\n    start('202 Taken', [('X-Path', env['PATH_INFO'])])\n    \
         yield env['REQUEST_METHOD'].encode() + b' ' + env['QUERY_STRING'].encode() + b' '\n    yield str(sum(body)).encode()\n",
    );
    let port = free_port();
    let mut command = Command::new("uwsgi");
    command.current_dir(dir.path()).args(["--plugin", "python3", "--wsgi-file", "app.py"]);
    command.args(["--die-on-term", "--socket", &format!("127.0.0.1:{port}")]);
    command.stderr(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    let _application = Process::start(&mut command);
    assert!(ask_until(|| Client::try_connect(port).is_ok()), "uwsgi does not start");
    let page = include_str!("../../docs/uwsgi.md");
    let example = examples(page).next();
    let example =
        example.expect("its example").replace("127.0.0.1:3031", &format!("127.0.0.1:{port}"));
    dir.write("uwsgi_params", PARAMS);
    let server = Server::with_locations(dir, WEIR, "client_max_body_size 100m;", &example);
    let said = server.get("/some/path?a=1");
    assert_eq!((said.status, said.header("X-Path")), (202, Some("/some/path")));
    assert_eq!(said.body(), "GET a=1 0");
    let body = "b".repeat(5_000_000);
    let said = server.ask("POST /", &format!("Content-Length: {}\r\n", body.len()), &body);
    assert_eq!(said.body(), format!("POST  {}", body.len() * usize::from(b'b')));
}

#[test]
fn an_application_behind_tls_is_verified() {
    let Ok(out) = Command::new("uwsgi").arg("--help").output() else {
        return eprintln!("skipped: uwsgi is not installed");
    };
    if !String::from_utf8_lossy(&out.stdout).contains("--suwsgi-socket") {
        return eprintln!("skipped: this uwsgi has no TLS");
    }
    let dir = Dir::new();
    let mut make = Command::new("openssl");
    make.current_dir(dir.path())
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
    make.args(["-keyout", "key", "-out", "certificate", "-subj", "/CN=app.example"]);
    make.args(["-addext", "subjectAltName=DNS:app.example"]);
    assert!(make.output().is_ok_and(|out| out.status.success()), "openssl makes no certificate");
    dir.write(
        "app.py",
        "def application(env, start):\n    body = env['wsgi.input'].read()\n    start('200 OK', [])\n    \
         yield env['REQUEST_METHOD'].encode() + b' ' + str(sum(body)).encode()\n",
    );
    let port = free_port();
    let mut command = Command::new("uwsgi");
    command.current_dir(dir.path()).args(["--plugin", "python3", "--wsgi-file", "app.py"]);
    command.args([
        "--die-on-term",
        "--suwsgi-socket",
        &format!("127.0.0.1:{port},certificate,key"),
    ]);
    command.stderr(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    let _application = Process::start(&mut command);
    assert!(ask_until(|| Client::try_connect(port).is_ok()), "uwsgi does not start");
    dir.write("uwsgi_params", PARAMS);
    let trusted = "uwsgi_ssl_verify on; uwsgi_ssl_trusted_certificate %%DIR%%/certificate;";
    let locations = format!(
        "include uwsgi_params; uwsgi_pass_request_headers off;
         location / {{ uwsgi_pass suwsgi://127.0.0.1:{port}; {trusted} uwsgi_ssl_name app.example; }}
         location /blind {{ uwsgi_pass suwsgi://127.0.0.1:{port}; }}
         location /computed {{ set $to suwsgi://127.0.0.1:{port}; uwsgi_pass $to; {trusted} uwsgi_ssl_name app.example; }}
         location /other {{ uwsgi_pass suwsgi://127.0.0.1:{port}; {trusted} uwsgi_ssl_name other.example; }}
         location /plain {{ uwsgi_pass 127.0.0.1:{port}; }}"
    );
    let server = Server::with_locations(dir, WEIR, "client_max_body_size 10m;", &locations);
    for path in ["/", "/blind", "/computed"] {
        assert_eq!(server.get(path).body(), "GET 0", "{path}");
        let body = "b".repeat(500_000);
        let said = server.ask(&format!("POST {path}"), "Content-Length: 500000\r\n", &body);
        assert_eq!(said.body(), format!("POST {}", body.len() * usize::from(b'b')), "{path}");
    }
    assert_eq!(server.get("/other").status, 502);
    server.wait_log("upstream SSL certificate does not match \"other.example\"", 1);
    assert_eq!(server.get("/plain").status, 502);
}

/// As it comes with nginx.
const PARAMS: &str = "uwsgi_param QUERY_STRING $query_string;
uwsgi_param REQUEST_METHOD $request_method;
uwsgi_param CONTENT_TYPE $content_type;
uwsgi_param CONTENT_LENGTH $content_length;
uwsgi_param REQUEST_URI $request_uri;
uwsgi_param PATH_INFO $document_uri;
uwsgi_param DOCUMENT_ROOT $document_root;
uwsgi_param SERVER_PROTOCOL $server_protocol;
uwsgi_param REMOTE_ADDR $remote_addr;
uwsgi_param REMOTE_PORT $remote_port;
uwsgi_param SERVER_PORT $server_port;
uwsgi_param SERVER_NAME $server_name;
";

/// Answers requests of SCGI with a head that names itself, its length and its state; to HEAD with nothing else.
fn with_state() -> u16 {
    listen(|stream| {
        let mut stream = BufReader::new(stream);
        let packet = String::from_utf8_lossy(&scgi(&mut stream)).replace('\0', "|");
        let body = if packet.contains("REQUEST_METHOD|HEAD|") { "" } else { "whole" };
        let head = "Status: 200 OK\r\nX-Own: yes\r\nETag: \"a\"\r\nContent-Length: 5\r\n\r\n";
        let _ = stream.get_mut().write_all(format!("{head}{body}").as_bytes());
    })
}

#[test]
fn the_head_of_an_answer_is_asked_for_where_answers_are_kept() {
    let server = start(
        "scgi_cache_path %%DIR%%/cache keys_zone=c:1m; scgi_param REQUEST_METHOD $request_method;",
        &format!(
            "location / {{ scgi_pass 127.0.0.1:{}; scgi_cache c; scgi_cache_key $uri; scgi_cache_valid 1m; }}",
            with_state()
        ),
    );
    let mut client = server.connect();
    for path in ["/a", "/b"] {
        client.send(format!("HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let answer = client.try_response_to("HEAD").unwrap();
        assert_eq!((answer.status, answer.header("Content-Length")), (200, Some("5")));
    }
    assert_eq!(client.get("/a").body(), "whole");
    assert!(!server.log().contains("[error]"), "{}", server.log());
}

#[test]
fn of_an_answer_whose_condition_fails_nothing_is_sent() {
    let server = start(
        "scgi_cache_path %%DIR%%/cache keys_zone=c:1m;",
        &format!(
            "location / {{ scgi_pass 127.0.0.1:{}; scgi_cache c; scgi_cache_key $uri; scgi_cache_valid 1m; }}",
            with_state()
        ),
    );
    for _ in 0..2 {
        let refused = server.ask("GET /", "If-Match: \"b\"\r\n", "");
        assert_eq!(
            (refused.status, refused.header("X-Own"), refused.header("ETag")),
            (412, None, None)
        );
        let sent = server.ask("GET /", "If-Match: \"a\"\r\n", "");
        assert_eq!((sent.status, sent.header("X-Own")), (200, Some("yes")));
    }
}
