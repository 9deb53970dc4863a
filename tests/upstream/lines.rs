//! A decoded path stays within the line, and the word, that it is written into.

use weir_testkit::{Dir, Server};

use super::{WEIR, origin};

/// A header, a request and a word more, for servers that take it for the end of a line.
const PATH: &str = "/a%0d%0aX-Evil:%20p%0d%0a%0d%0aGET%20/evil";

fn start(http: &str, locations: &str) -> Server {
    let conf = format!(
        "events {{ }} http {{ {http}
             server {{ listen 127.0.0.1:%%PORT%%; {locations} }}
             server {{
                 listen 127.0.0.1:%%PORT1%%; http2 on;
                 location / {{
                     add_header X-Asked \"$request_method $request_uri $http_x_path $host\";
                     add_header X-Evil $http_x_evil;
                     return 200 ok;
                 }}
             }} }}"
    );
    Server::start_in(Dir::new(), WEIR, &conf)
}

#[test]
fn answers_have_the_lines_that_they_are_given() {
    let server = start(
        "",
        "location /return { return 301 https://x$uri; }
         location /own { return 302 $uri; }
         location /rewrite { rewrite (?s)^/rewrite(.*) https://x$1 redirect; }
         location /add { add_header X-Path $uri always; add_header X-Next next; return 200; }
         location /realm { auth_basic $uri; auth_basic_user_file /dev/null; empty_gif; }
         location /trailer { add_trailer X-Path $uri; return 200 text; }
         location /type { set $x $uri; charset $x; return 200 text; }",
    );
    for (place, status) in [
        ("/return", 301),
        ("/own", 302),
        ("/rewrite", 302),
        ("/add", 200),
        ("/realm", 401),
        ("/trailer", 200),
        ("/type", 200),
    ] {
        let mut client = server.connect();
        client.send(format!("GET {place}{PATH} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        let text = client.rest();
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{place}: {text}");
        assert!(!text.contains("\nX-Evil"), "{place}: {text}");
        assert_eq!(text.matches('\n').count(), text.matches("\r\n").count(), "{place}: {text}");
    }
    let answer = server.get(&format!("/add{PATH}"));
    let path = "/add/a%0D%0AX-Evil: p%0D%0A%0D%0AGET /evil";
    assert_eq!(answer.header("X-Path"), Some(path));
    assert_eq!(answer.header("X-Next"), Some("next"));
}

#[test]
fn requests_have_the_lines_and_the_words_that_they_are_given() {
    for version in ["1.0", "1.1", "2"] {
        let port = "%%PORT1%%";
        let server = start(
            &format!("proxy_http_version {version};"),
            &format!(
                "location / {{ proxy_pass http://127.0.0.1:{port}$uri; }}
                 location /header {{ proxy_set_header X-Path $uri; proxy_pass http://127.0.0.1:{port}/; }}
                 location /host {{ proxy_set_header Host $arg_h; set $args $uri; proxy_pass http://127.0.0.1:{port}/; }}
                 location /method {{ proxy_method GET$uri; proxy_pass http://127.0.0.1:{port}/; }}"
            ),
        );
        let asked = |path: &str| {
            let answer = server.get(path);
            assert_eq!(answer.header("X-Evil"), None, "{version} {path}");
            (answer.status, answer.header("X-Asked").unwrap_or_default().trim().to_owned())
        };
        let path = "/a%0D%0AX-Evil:%20p%0D%0A%0D%0AGET%20/evil";
        let (status, line) = asked(PATH);
        assert_eq!(status, 200, "{version}");
        assert!(line.starts_with(&format!("GET {path} ")), "{version} {line}");
        let (status, line) = asked("/b%20c%0d%0aX-Evil:%20p");
        assert_eq!(status, 200, "{version}");
        assert!(line.starts_with("GET /b%20c%0D%0AX-Evil:%20p"), "{version} {line}");
        let (status, line) = asked("/header%0d%0aX-Evil:%20p");
        assert_eq!(status, 200, "{version}");
        assert!(line.contains("/header%0D%0AX-Evil: p"), "{version} {line}");
        let (status, line) = asked("/host/%0d%0aX-Evil:%20p");
        assert_eq!(status, 200, "{version}");
        assert!(line.contains("?/host/%0D%0AX-Evil:%20p"), "{version} {line}");
        // No server knows such a method. Over HTTP/2 the server then resets the stream, so its answer breaks off.
        let mut client = server.connect();
        let path = "/method%20/%20HTTP/1.1%0d%0aX-Evil:%20p%0d%0a%0d%0a";
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        let answer = client.rest();
        let refused =
            ["400", "405", "502"].iter().any(|status| answer.split(' ').nth(1) == Some(status));
        assert!(refused && !answer.contains("\r\nX-Evil"), "{version} {answer}");
    }
}

#[test]
fn a_request_without_the_clients_body_has_no_length() {
    let port = origin::serve(|head| {
        let length = head.lines().filter(|l| l.to_ascii_lowercase().starts_with("content-length"));
        Some(format!("X-Asked: {}, {} lengths\r\n", head.lines().next()?, length.count()))
    });
    let server = start(
        &format!("upstream u {{ server 127.0.0.1:{port}; keepalive 1; }}"),
        "proxy_http_version 1.1; proxy_set_header Connection \"\";
         location /off { proxy_pass_request_body off; proxy_pass http://u; }
         location / { proxy_pass http://u; }",
    );
    let mut client = server.connect();
    let mut asked = |line: &str| {
        let answer = client.ask(line, "Content-Length: 5\r\n", "hello");
        answer.header("X-Asked").unwrap_or_default().to_owned()
    };
    assert_eq!(asked("PUT /off"), "PUT /off HTTP/1.1, 0 lengths");
    assert_eq!(server.get("/next").header("X-Asked"), Some("GET /next HTTP/1.1, 0 lengths"));
}

#[test]
fn the_lines_of_a_server_keep_their_order() {
    const LINES: &str = "Set-Cookie: s\r\nETag: \"e\"\r\nX-A: 1\r\nLocation: http://h/\r\n\
                         Content-Encoding: x\r\nDate: d\r\nX-B: 2\r\nServer: o\r\n";
    let port = origin::serve(|_| Some(LINES.to_owned()));
    let server = start(
        "",
        &format!(
            "proxy_pass_header Server; proxy_pass_header Date;
             location / {{ proxy_pass http://127.0.0.1:{port}; }}"
        ),
    );
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let head = client.rest();
    assert!(head.contains(LINES), "{head}");
}

#[test]
fn names_of_a_server_s_lines_keep_their_case() {
    const LINES: &str = "etag: \"e\"\r\nlocation: http://h/\r\ncontent-encoding: x\r\n\
                         DATE: d\r\nlast-modified: now\r\nsERVER: o\r\n";
    let port = origin::serve(|_| Some(LINES.to_owned()));
    let server = start(
        "",
        &format!(
            "proxy_pass_header Server; proxy_pass_header Date;
             location / {{ proxy_pass http://127.0.0.1:{port}; }}"
        ),
    );
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let head = client.rest();
    assert!(head.contains(LINES), "{head}");
}

#[test]
fn an_empty_coding_is_none() {
    let port = origin::serve(|_| Some("Content-Encoding:\r\nX-A: 1\r\n".to_owned()));
    let server = start(
        "gzip on; gzip_types *; gzip_min_length 0;",
        &format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}"),
    );
    let answer = server.ask("GET /", "Accept-Encoding: gzip\r\n", "");
    assert_eq!(answer.header("Content-Encoding"), Some("gzip"));
}

#[test]
fn the_length_of_a_body_for_a_server_is_a_variable() {
    let port = origin::serve(|head| {
        let line = head.lines().find(|line| line.starts_with("X-Length"))?;
        Some(format!("{line}\r\n"))
    });
    let server = start(
        "",
        &format!(
            "proxy_set_header X-Length \"$proxy_internal_body_length,$proxy_internal_chunked.\";
             location / {{ proxy_pass http://127.0.0.1:{port}; }}
             location /set {{ proxy_set_body four; proxy_pass http://127.0.0.1:{port}; }}
             location /off {{ proxy_pass_request_body off; proxy_pass http://127.0.0.1:{port}; }}"
        ),
    );
    for (path, body, length) in
        [("/", "hello", "5,."), ("/set", "hello", "4,."), ("/off", "hello", ",."), ("/", "", ",.")]
    {
        let announced = match body {
            "" => String::new(),
            body => format!("Content-Length: {}\r\n", body.len()),
        };
        let answer = server.ask(&format!("POST {path}"), &announced, body);
        assert_eq!(answer.header("X-Length"), Some(length), "{path}");
    }
}
