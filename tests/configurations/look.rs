//! What a client sees of a server, made comparable.

use std::io::Read;

use weir_testkit::{Client, Dice, Response, Server, is_signed, unsigned};

const PATHS: &[&str] = &[
    "/p/a.html",
    "/p/b.txt",
    "/p/c.json",
    "/p/",
    "/p",
    "/p/none",
    "/p/ssi.html",
    "/p/link.txt",
    "/p/n/a.html",
    "/p/n/b.txt",
    "/p/n/",
    "/p/n",
    "/p/n/none",
    "/e.txt",
    "/r/b.txt",
    "/r/a.html",
    "/r/",
    "/r/none",
    "/i/b.txt",
    "/i/b.txt?i=1",
    "/i/?i=1",
    "/i/a.html?i=1&s=1",
    "/i/none?i=1",
    "/l/b.txt",
    "/l/",
    "/l/none",
    "/",
    "/none",
    "//p//b.txt",
    "/yes",
];

const HEADERS: &[&str] = &[
    "",
    "",
    "",
    "Accept-Encoding: gzip\r\n",
    "Accept-Encoding: gzip\r\nVia: 1.1 x\r\nUser-Agent: agent\r\n",
    "Range: bytes=1-3\r\n",
    "Range: bytes=0-0,2-3\r\n",
    "If-Modified-Since: Sun, 13 Sep 2020 12:26:40 GMT\r\n",
    "If-None-Match: \"5f5e1000-7d0\"\r\n",
    "Authorization: Basic dTpw\r\n",
    "Authorization: Basic dTp3\r\n",
    "X-Forwarded-For: 1.2.3.4\r\nX-Real-IP: 10.1.1.1\r\n",
    "X-Forwarded-For: 1.2.3.4, 10.1.1.1, 127.0.0.1\r\nX: 1.2.3.4\r\n",
    "Referer: http://s1.example/x\r\n",
    "Referer: garbage\r\n",
    "X_Under: y\r\nX: a\r\nX: b\r\n",
    "User-Agent: Mozilla/4.0 (compatible; MSIE 6.0; Windows)\r\n",
    "Cookie: a=b\r\nCookie: c=d\r\n",
];

/// A request of the kind that the generated sites know, for a connection of its own.
pub fn request(dice: &mut Dice, old: bool) -> String {
    let method = dice.pick(&["GET", "GET", "GET", "GET", "GET", "HEAD", "POST", "PUT", "OPTIONS"]);
    let mut path = dice.pick(PATHS).to_owned();
    let more = dice
        .pick(&["", "", "", "s=1", "up=404", "up=move", "up=accel", "up=odd", "up=500", "up=304"]);
    if !more.is_empty() {
        path += if path.contains('?') { "&" } else { "?" };
        path += more;
    }
    let version = dice.pick(&["1.1", "1.1", "1.1", "1.1", "1.0"]);
    let close = dice.pick(&["Connection: close\r\n", "Connection: keep-alive\r\n", ""]);
    let mut headers = dice.pick(HEADERS).to_owned();
    if old {
        // `$http_x` joins the values of several lines only since nginx 1.23.
        headers = headers.replace("X: a\r\nX: b", "X: a");
    }
    let body =
        if matches!(method, "POST" | "PUT") { dice.pick(&["", "body", "0123456789"]) } else { "" };
    let length = if matches!(method, "POST" | "PUT") {
        format!("Content-Length: {}\r\nContent-Type: text/sent\r\n", body.len())
    } else {
        String::new()
    };
    format!(
        "{method} {path} HTTP/{version}\r\nHost: s1.example\r\n{headers}{length}{close}\r\n{body}"
    )
}

/// What the server answers, as text in which nothing may differ.
pub fn answer(server: &Server, request: &str) -> String {
    let mut client = Client::connect(server.port());
    let _ = client.try_send(request);
    if request.starts_with("HEAD ") {
        return head_only(client, server);
    }
    match client.try_response() {
        Ok(mut response) => {
            unpack(&mut response);
            told(&response, server)
        }
        Err(error) => format!("no answer: {:?}", error.kind()),
    }
}

/// An answer without a body has a length that nothing follows.
fn head_only(mut client: Client, server: &Server) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut text = String::new();
    while let Ok(line) = client.try_line() {
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let page = lines.iter().any(|l| l.starts_with("Content-Type: text/html"))
        && !lines.first().is_some_and(|l| l.contains(" 200"));
    let first = 1.min(lines.len());
    let name = |line: &String| line.split(':').next().unwrap_or_default().to_ascii_lowercase();
    lines[first..].sort_by_key(name);
    for line in lines {
        put(&mut text, &line, page);
    }
    plain(text, server)
}

fn told(response: &Response, server: &Server) -> String {
    let body = String::from_utf8_lossy(&response.bytes).into_owned();
    let signed = is_signed(&body);
    let mut text = String::new();
    put(&mut text, &format!("{}", response.status), signed);
    // Which header comes first has no meaning (RFC 9110 section 5.3), but among those of one name.
    let mut headers = response.headers.clone();
    headers.sort_by_key(|(name, _)| name.to_ascii_lowercase());
    for (name, value) in &headers {
        put(&mut text, &format!("{name}: {value}"), signed);
    }
    text.push('\n');
    text += &body;
    plain(text, server)
}

/// Adds a line, unless it is one that may differ: dates, names, and the length of a page that is signed.
fn put(text: &mut String, line: &str, signed: bool) {
    let lower = line.to_ascii_lowercase();
    let own =
        lower.starts_with("date:") || (lower.starts_with("server:") && !lower.contains("behind"));
    if own || (signed && lower.starts_with("content-length:")) {
        return;
    }
    let now = lower.starts_with("expires:") && !lower.contains("1970") && !lower.contains("2037");
    *text += if now { "Expires: a time" } else { line };
    text.push('\n');
}

fn plain(text: String, server: &Server) -> String {
    let text = text.replace(&format!(":{}", server.port()), ":PORT");
    let text = text.replace(&server.dir().path().display().to_string(), "DIR");
    unsigned(&text)
}

/// Two compressors write different bytes for the same text.
fn unpack(response: &mut Response) {
    if response.header("Content-Encoding") != Some("gzip") {
        return;
    }
    let mut plain = Vec::new();
    if flate2::read::GzDecoder::new(&response.bytes[..]).read_to_end(&mut plain).is_ok() {
        response.bytes = plain;
    }
}
