//! Lines of heads: what the configuration writes in several lines arrives as one, with spaces; what a request brings
//! arrives escaped; and no client writes a line of its own. Every directive and function that writes a line, towards
//! clients and servers, over every protocol, with values drawn of both kinds of text.

use std::fmt::Write;
use std::process::Command;

use weir_testkit::{Dice, Server, ask_until, number, seed};

use crate::ask::{Ask, Framing, Wire};
use crate::back::Back;
use crate::{WEIR, files};

/// Where a value arrives.
#[derive(Clone, Copy, Debug)]
enum Arrives {
    /// In this header of the answer.
    Answer(&'static str),
    /// In a trailer.
    Trailer,
    /// In this header of a request to the server behind.
    Asked(&'static str),
    /// In a request line: as a word, so that it is escaped otherwise.
    Word,
}

/// What a directive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Anything,
    /// No variables.
    Text,
    /// One variable.
    Variable,
}

use Arrives::{Answer, Asked, Trailer, Word};
use Takes::{Anything, Text, Variable};

/// Directives of a location, with VALUE where the value stands.
const WRITERS: &[(&str, Takes, Arrives)] = &[
    ("add_header X-Line \"VALUE\" always; return 404;", Anything, Answer("X-Line")),
    ("add_header ETag \"VALUE\"; empty_gif;", Anything, Answer("ETag")),
    ("add_header Last-Modified \"VALUE\"; empty_gif;", Anything, Answer("Last-Modified")),
    ("add_trailer X-Line \"VALUE\"; return 200 x;", Anything, Trailer),
    ("more_set_headers \"X-Line: VALUE\"; return 200 x;", Anything, Answer("X-Line")),
    ("more_set_headers -a \"X-Line: VALUE\"; return 200 x;", Anything, Answer("X-Line")),
    ("more_set_headers \"Server: VALUE\"; return 200 x;", Anything, Answer("Server")),
    ("more_set_headers \"Content-Type: VALUE\"; return 200 x;", Anything, Answer("Content-Type")),
    (
        "set $v \"VALUE\"; header_filter_by_lua_block { ngx.header['X-Line'] = ngx.var.v } return 200 x;",
        Anything,
        Answer("X-Line"),
    ),
    ("return 302 \"http://h/VALUE\";", Anything, Answer("Location")),
    ("return 302 \"/h/VALUE\";", Anything, Answer("Location")),
    ("rewrite ^ \"http://h/VALUE?\" redirect;", Anything, Answer("Location")),
    ("error_page 404 \"http://h/VALUE\"; return 404;", Anything, Answer("Location")),
    (
        "auth_basic \"VALUE\"; auth_basic_user_file %%DIR%%/users; empty_gif;",
        Anything,
        Answer("WWW-Authenticate"),
    ),
    ("charset \"VALUE\"; default_type text/plain; return 200 x;", Text, Answer("Content-Type")),
    ("charset VALUE; default_type text/plain; return 200 x;", Variable, Answer("Content-Type")),
    ("default_type \"VALUE\"; types { } return 200 x;", Text, Answer("Content-Type")),
    ("types { \"VALUE\" x; } rewrite ^ /x.x; return 200 x;", Text, Answer("Content-Type")),
    ("userid on; userid_domain \"VALUE\"; return 200 x;", Text, Answer("Set-Cookie")),
    ("userid on; userid_path \"VALUE\"; return 200 x;", Text, Answer("Set-Cookie")),
    ("userid on; userid_name \"VALUE\"; return 200 x;", Text, Answer("Set-Cookie")),
    ("userid on; userid_p3p \"VALUE\"; return 200 x;", Text, Answer("P3P")),
    (
        "proxy_redirect ~^http://[^/]+/ \"http://h/VALUE\"; proxy_pass http://back/?up=move&x=;",
        Anything,
        Answer("Location"),
    ),
    ("proxy_cookie_path / \"/VALUE\"; proxy_pass http://back;", Anything, Answer("Set-Cookie")),
    (
        "proxy_cookie_domain up.example \"VALUE\"; proxy_pass http://back;",
        Anything,
        Answer("Set-Cookie"),
    ),
    ("proxy_set_header X-Line \"VALUE\"; proxy_pass http://back;", Anything, Asked("X-Line")),
    (
        "proxy_set_header X-Line \"VALUE\"; proxy_http_version 1.0; proxy_pass http://back;",
        Anything,
        Asked("X-Line"),
    ),
    (
        "proxy_set_header X-Line \"VALUE\"; proxy_http_version 2; proxy_pass http://relay;",
        Anything,
        Asked("X-Line"),
    ),
    ("proxy_set_header Host \"VALUE\"; proxy_pass http://back;", Anything, Asked("Host")),
    ("grpc_set_header X-Line \"VALUE\"; grpc_pass relay;", Anything, Asked("X-Line")),
    (
        "more_set_input_headers \"X-Line: VALUE\"; proxy_pass http://back;",
        Anything,
        Asked("X-Line"),
    ),
    (
        "more_set_input_headers \"X-Line: VALUE\"; proxy_http_version 2; proxy_pass http://relay;",
        Anything,
        Asked("X-Line"),
    ),
    ("more_set_input_headers \"X-Line: VALUE\"; grpc_pass relay;", Anything, Asked("X-Line")),
    (
        "set $v \"VALUE\"; access_by_lua_block { ngx.req.set_header('X-Line', ngx.var.v) } proxy_pass http://back;",
        Anything,
        Asked("X-Line"),
    ),
    (
        "set $v \"VALUE\"; access_by_lua_block { ngx.req.set_header('X-' .. ngx.var.v, 'x') } proxy_pass http://back;",
        Anything,
        Word,
    ),
    (
        "set $v \"VALUE\"; access_by_lua_block { ngx.req.set_uri('/' .. ngx.var.v) } proxy_pass http://back;",
        Anything,
        Word,
    ),
    (
        "set $v \"VALUE\"; access_by_lua_block { ngx.req.set_uri_args('a=' .. ngx.var.v) } proxy_pass http://back;",
        Anything,
        Word,
    ),
    (
        "set $v \"VALUE\"; access_by_lua_block { ngx.req.set_uri('/' .. ngx.var.v) } grpc_pass relay;",
        Anything,
        Word,
    ),
    (
        "set $v \"VALUE\"; header_filter_by_lua_block { ngx.header['X-' .. ngx.var.v] = 'x' } return 200 x;",
        Anything,
        Word,
    ),
    ("set $args \"VALUE\"; proxy_pass http://back;", Anything, Word),
    ("proxy_method \"VALUE\"; proxy_pass http://back;", Anything, Word),
    ("proxy_pass \"http://back/VALUE\";", Anything, Word),
    (
        "auth_request_set $v \"VALUE\"; auth_request /asked; add_header X-Line $v; empty_gif;",
        Text,
        Answer("X-Line"),
    ),
];

/// A part of a value.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// In the configuration.
    written: &'static str,
    /// As it arrives, but for the number of blanks.
    arrives: &'static str,
}

const fn piece(written: &'static str, arrives: &'static str) -> Piece {
    Piece { written, arrives }
}

/// Texts of the configuration.
const TEXTS: &[Piece] = &[
    piece("one", "one"),
    piece("a 'b';\n        c;", "a 'b'; c;"),
    piece("\n    lead", " lead"),
    piece("x\r\n\ty", "x y"),
    piece("end;\n", "end; "),
    piece("nul\0nul", "nul nul"),
];

/// Variables with values from the configuration, alone or beside those of requests.
const OWN: &[Piece] = &[
    piece("${by_map}", "map a; map b; "),
    piece("${by_nested}", "nested PATH nested end"),
    piece("${by_split}", "split a; split b"),
    piece("${by_geo}", "geo a; geo b"),
    piece("${by_set}", "set a; set b"),
];

/// Variables with values from requests. PATH and ARGUMENT stand for what is sent.
const BROUGHT: &[Piece] =
    &[piece("${uri}", "PATH"), piece("${tail}", "TAIL"), piece("${by_lua}", "ARGUMENT")];

const TAIL: &str = "a\r\nX-Evil: yes HTTP/1.1\r\n\r\nGET /evil";
const ARGUMENT: &str = "l\r\nX-Evil: lua\0z\n";

const HTTP: &str = "
    map $host $by_map { default \"map a;\n      map b;\n\"; }
    map $host $by_nested { default \"nested\n   ${uri}\n   nested\n end\"; }
    split_clients $host $by_split { * \"split a;\r\n  split b\"; }
    geo $by_geo { default \"geo a;\n  geo b\"; }";

/// A directive with a value.
struct Case {
    writer: &'static str,
    arrives: Arrives,
    value: Vec<Piece>,
}

fn draw(dice: &mut Dice) -> Vec<Case> {
    let each = number("WEIR_CASES").unwrap_or(4);
    let mut cases = Vec::new();
    for &(writer, takes, arrives) in WRITERS {
        for _ in 0..each {
            let one = |dice: &mut Dice| match (takes, dice.below(3)) {
                (Text, _) | (Anything, 0) => dice.pick(TEXTS),
                (_, 1) => dice.pick(OWN),
                _ => dice.pick(BROUGHT),
            };
            let many = if takes == Variable { 1 } else { 1 + dice.below(4) };
            cases.push(Case { writer, arrives, value: (0..many).map(|_| one(dice)).collect() });
        }
    }
    cases
}

impl Case {
    fn location(&self, n: usize) -> String {
        let value: String = self.value.iter().map(|piece| piece.written).collect();
        format!(
            "location /c{n}/ {{
                 set $by_set \"set a;\n    set b\"; set_by_lua_block $by_lua {{ return ngx.unescape_uri(ngx.var.arg_v) }}
                 {} }}\n",
            self.writer.replace("VALUE", &value)
        )
    }

    fn expected(&self, n: usize) -> String {
        let text: String = self.value.iter().map(|piece| piece.arrives).collect();
        let path = format!("/c{n}/{TAIL}");
        let text = text.replace("PATH", &escaped(&path)).replace("TAIL", &escaped(TAIL));
        plain(&text.replace("ARGUMENT", &escaped(ARGUMENT)))
    }
}

fn escaped(text: &str) -> String {
    text.replace('\r', "%0D").replace('\n', "%0A").replace('\0', "%00")
}

fn plain(text: &str) -> String {
    text.split([' ', '\t']).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn is_injected(name: &str, value: &str) -> bool {
    name.eq_ignore_ascii_case("x-evil")
        || [name, value].iter().any(|t| t.contains(['\r', '\n', '\0']))
}

fn conf(cases: &[Case], back: &str) -> String {
    let mut locations = String::new();
    for (n, case) in cases.iter().enumerate() {
        let _ = write!(locations, "{}", case.location(n));
    }
    format!(
        "events {{ }}
         http {{
             access_log off; underscores_in_headers on; ignore_invalid_headers off;
             large_client_header_buffers 8 16k; {HTTP}
             upstream back {{ server {back}; }}
             upstream relay {{ server 127.0.0.1:%%PORT3%%; }}
             server {{
                 listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:%%PORT1%% ssl; listen 127.0.0.1:%%PORT2%%; http2 on;
                 ssl_certificate %%DIR%%/self.pem; ssl_certificate_key %%DIR%%/self.key;
                 if ($uri ~ \"(?s)^/c[0-9]+/(?<tail>.*)$\") {{ set $is_case yes; }}
                 location = /asked {{ return 204; }}
                 {locations}
             }}
             server {{ listen 127.0.0.1:%%PORT3%%; http2 on;
                 location / {{ proxy_http_version 1.1; proxy_pass http://back; }} }}
         }}"
    )
}

#[test]
fn text_of_the_configuration_is_folded_and_text_of_requests_escaped() {
    let seed = seed();
    let cases = draw(&mut Dice::new(seed));
    let back = Back::start();
    let server = Server::start_in(files(), WEIR, &conf(&cases, &back.address));
    let mut wrong = Vec::new();
    for (n, case) in cases.iter().enumerate() {
        for wire in [Wire::Plain, Wire::Http2] {
            let came = crate::wire::ask(&request(wire, n), crate::look::ports(&server));
            let asked = back.take();
            let asked: Vec<(&str, &str)> = asked.iter().flat_map(|asked| lines(asked)).collect();
            let mut all: Vec<(&str, &str)> = asked.clone();
            all.extend(
                came.head.iter().chain(&came.trailers).map(|(n, v)| (n.as_str(), v.as_str())),
            );
            if let Some((name, value)) = all.iter().find(|(name, value)| is_injected(name, value)) {
                wrong.push(format!(
                    "{n} {}: {wire:?}: a line of the client's: {name:?}: {value:?}",
                    case.writer
                ));
                continue;
            }
            let expected = case.expected(n);
            let found = match case.arrives {
                Word => continue,
                Answer(name) => came.field(name).map(str::to_owned),
                Trailer => came
                    .trailers
                    .iter()
                    .find(|(n, _)| n.eq_ignore_ascii_case("x-line"))
                    .map(|(_, v)| v.clone()),
                Asked(name) => asked
                    .iter()
                    .find(|(n, _)| n.eq_ignore_ascii_case(name))
                    .map(|(_, v)| (*v).to_owned()),
            };
            if !found.as_deref().is_some_and(|found| plain(found).contains(&expected)) {
                wrong.push(format!(
                    "{n} {}: {wire:?}: {expected:?} was expected: {found:?}",
                    case.writer
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn request(wire: Wire, n: usize) -> Ask {
    let percent = |text: &str| {
        let escape = |b: u8| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b':' | b'.' => {
                char::from(b).to_string()
            }
            b => format!("%{b:02x}"),
        };
        text.bytes().map(escape).collect::<String>()
    };
    Ask {
        wire,
        method: "GET",
        target: format!("/c{n}/{}?v={}", percent(TAIL), percent(ARGUMENT)),
        host: "s1.example".to_owned(),
        version: "1.1",
        fields: vec![("Connection", "close".to_owned()), ("TE", "trailers".to_owned())],
        body: "",
        framing: Framing::None,
    }
}

/// The lines of a head as a server sees it, but the first.
fn lines(head: &str) -> impl Iterator<Item = (&str, &str)> {
    let head = head.split("\n\n").next().unwrap_or_default().trim_end_matches(['\r', '\n']);
    let lines = head.split("\r\n").skip(1).filter(|line| !line.is_empty());
    lines.map(|line| line.split_once(": ").unwrap_or((line, "")))
}

#[test]
fn a_check_of_a_server_has_the_lines_that_it_is_given() {
    for version in ["1.1", "2"] {
        let back = Back::start();
        let server = if version == "2" { "127.0.0.1:%%PORT1%%" } else { &back.address };
        let conf = format!(
            "events {{ }}
             http {{
                 upstream u {{ zone u 64k; server {server}; }}
                 server {{
                     listen 127.0.0.1:%%PORT%%;
                     location / {{
                         proxy_pass http://u; proxy_http_version {version};
                         proxy_set_header X-Line \"a;\n     b;\n\";
                         health_check interval=100ms \"uri=/a b\nX-Evil: yes\";
                     }}
                 }}
                 server {{ listen 127.0.0.1:%%PORT1%%; http2 on; location / {{ proxy_pass http://{}; }} }}
             }}",
            back.address
        );
        let _server = Server::start_in(files(), WEIR, &conf);
        let mut heard = Vec::new();
        assert!(ask_until(|| {
            heard = back.take();
            !heard.is_empty()
        }));
        let all: Vec<_> = heard.iter().flat_map(|heard| lines(heard)).collect();
        assert!(
            all.iter().any(|(n, v)| n.eq_ignore_ascii_case("x-line") && *v == "a; b;"),
            "{heard:?}"
        );
        assert!(!all.iter().any(|(name, value)| is_injected(name, value)), "{heard:?}");
        assert!(
            heard.iter().all(|heard| heard.starts_with("GET /a%20b%0AX-Evil:%20yes ")),
            "{heard:?}"
        );
    }
}

#[test]
fn a_header_of_several_lines_is_warned_of_with_its_place() {
    let conf = "events { }
http {
    map $host $policy {
        default \"a;
            b;\";
    }
    map $host $body { default \"c
d\"; }
    server {
        listen 127.0.0.1:%%PORT%%;
        add_header Content-Security-Policy \"
            default-src 'self';
        \" always;
        add_header X-Policy $policy;
        add_header X-Frame-Options: DENY;
        proxy_set_header \"X A\" b;
        return 200 \"$body\";
    }
}";
    let dir = files();
    dir.write("nginx.conf", conf.replace("%%PORT%%", "1"));
    let said = Command::new(WEIR)
        .args(["-t", "-p"])
        .arg(dir.path())
        .arg("-c")
        .arg(dir.file("nginx.conf"))
        .output();
    let said = said.expect("weir runs");
    assert!(said.status.success());
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    let warnings: Vec<_> = text.lines().filter(|line| line.contains("[warn]")).collect();
    let wanted = [
        ("the value of \"add_header\" become spaces in the header in ", 13),
        ("\"X-Frame-Options:\" is no name of a header, ignored in ", 15),
        ("\"X A\" is no name of a header, ignored in ", 16),
        ("become spaces where its variable is used in a header in ", 5),
    ];
    assert_eq!(warnings.len(), wanted.len(), "{text}");
    for (words, line) in wanted {
        let place = format!("{words}{}:{line}", dir.file("nginx.conf").display());
        assert!(warnings.iter().any(|warning| warning.contains(&place)), "{place}: {text}");
    }
    let server = Server::start_in(files(), WEIR, conf);
    let answer = server.get("/");
    assert_eq!(answer.header("Content-Security-Policy"), Some("default-src 'self';"));
    assert_eq!(answer.header("X-Policy"), Some("a; b;"));
    assert_eq!(answer.header("X-Frame-Options"), None);
    assert_eq!(answer.body(), "c\nd");
}

/// Words in the names of directives that write lines of heads.
const WORDS: &[&str] = &[
    "add_header",
    "add_trailer",
    "set_header",
    "more_set",
    "cookie",
    "userid_",
    "charset",
    "redirect",
    "auth_basic",
    "default_type",
    "error_page",
    "sticky",
];

/// Directives with such a name that write no text of theirs into a head, or that have a test of their own.
const NO_WRITERS: &[&str] = &[
    "absolute_redirect",
    "add_header_inherit",
    "add_trailer_inherit",
    "auth_basic_user_file",
    "charset_map",
    "charset_types",
    "lua_use_default_type",
    "override_charset",
    "port_in_redirect",
    "proxy_cookie_flags",
    "recursive_error_pages",
    "server_name_in_redirect",
    "source_charset",
    "sticky",
    "userid_expires",
    "userid_flags",
    "userid_mark",
    "userid_service",
];

#[test]
fn every_directive_that_sounds_like_a_writer_of_lines_is_drawn() {
    let text: String = WRITERS.iter().map(|(text, _, _)| format!(" {text}")).collect();
    let built = crate::witness::built();
    let sounding = built.iter().filter(|name| WORDS.iter().any(|word| name.contains(word)));
    let missing: Vec<_> = sounding
        .filter(|name| !NO_WRITERS.contains(name) && !text.contains(&format!(" {name} ")))
        .collect();
    assert!(missing.is_empty(), "not drawn here: {missing:?}");
}

#[test]
fn a_cookie_that_binds_is_on_one_line() {
    let back = Back::start();
    let conf = format!(
        "events {{ }}
         http {{
             upstream u {{ server {}; sticky cookie id \"domain=a;\n  b\" \"path=/c\n\td\n\"; }}
             server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://u; }} }}
         }}",
        back.address
    );
    let server = Server::start_in(files(), WEIR, &conf);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let text = client.rest();
    assert!(text.contains("; domain=a; b; path=/c d\r\n"), "{text}");
}
