//! Scripts that run before the content: a script that has begun an answer ends the request. This
//! holds over every version of HTTP, in every kind of block, and in a subrequest.

use std::io::{Read, Write};
use std::net::TcpStream;

use weir_proto::http2::frame::{self, FrameHead, FrameType};
use weir_proto::http2::hpack::{self, Decoder, FieldLimits};
use weir_testkit::{Client, PATIENCE, Server};

use super::WEIR;

/// A status and a body.
type StatusAndBody = Option<(u16, String)>;

/// A name, a script that refuses, and what the client sees. Without an answer here it sees an error or the end of its
/// connection.
type Refusal = (&'static str, &'static str, Option<(u16, &'static str)>);

const REFUSALS: &[Refusal] = &[
    ("say", "ngx.status = 403 ngx.say('denied')", Some((403, "denied\n"))),
    ("without_status", "ngx.say('denied')", Some((200, "denied\n"))),
    ("print_nothing", "ngx.status = 403 ngx.print('')", Some((403, ""))),
    ("flush", "ngx.status = 403 ngx.print('denied') ngx.flush(true)", Some((403, "denied"))),
    ("send_headers", "ngx.status = 401 ngx.send_headers()", Some((401, ""))),
    ("headers_and_body", "ngx.status = 401 ngx.send_headers() ngx.print(1)", Some((401, "1"))),
    ("body_and_headers", "ngx.status = 401 ngx.print(1) ngx.send_headers()", Some((401, "1"))),
    ("eof", "ngx.status = 403 ngx.eof()", Some((403, ""))),
    ("say_eof", "ngx.status = 403 ngx.say('denied') ngx.eof()", Some((403, "denied\n"))),
    ("exit_ok", "ngx.status = 403 ngx.say('denied') ngx.exit(ngx.OK)", Some((403, "denied\n"))),
    ("exit_200", "ngx.status = 403 ngx.say('denied') ngx.exit(200)", Some((403, "denied\n"))),
    ("exit_403", "ngx.status = 403 ngx.say('denied') ngx.exit(403)", Some((403, "denied\n"))),
    ("exit_404", "ngx.status = 403 ngx.say('denied') ngx.exit(404)", Some((403, "denied\n"))),
    (
        "length",
        "ngx.status = 403 ngx.header.content_length = 6 ngx.print('denied')",
        Some((403, "denied")),
    ),
    (
        "waits",
        "ngx.sleep(0.001) ngx.status = 403 ngx.say('denied') ngx.sleep(0.001)",
        Some((403, "denied\n")),
    ),
    (
        "thread",
        "ngx.status = 403 ngx.thread.spawn(function() ngx.sleep(0.001) ngx.say('denied') end)",
        Some((403, "denied\n")),
    ),
    (
        "pcall_exec",
        "ngx.status = 403 ngx.say('denied') pcall(ngx.exec, '/open')",
        Some((403, "denied\n")),
    ),
    (
        "pcall_redirect",
        "ngx.status = 403 ngx.say('denied') pcall(ngx.redirect, '/open')",
        Some((403, "denied\n")),
    ),
    ("refused_head", "ngx.status = 499 ngx.say('denied')", Some((410, "gone"))),
    ("exec", "ngx.status = 403 ngx.say('denied') ngx.exec('/open')", None),
    ("redirect", "ngx.status = 403 ngx.say('denied') ngx.redirect('/open')", None),
    ("error", "ngx.status = 403 ngx.say('denied') error('oops')", None),
    ("exit_error", "ngx.status = 403 ngx.say('denied') ngx.exit(ngx.ERROR)", None),
    ("exit_444", "ngx.status = 403 ngx.say('denied') ngx.exit(444)", None),
];

/// The same for the rewrite phase alone.
const JUMP: Refusal = (
    "jump",
    "ngx.status = 403 ngx.say('denied') ngx.req.set_uri('/open', true)",
    Some((403, "denied\n")),
);

/// What must not be reached.
const CONTENT: &[(&str, &str)] = &[
    ("script", "content_by_lua_block { reached = (reached or 0) + 1 ngx.say('SECRET') }"),
    ("proxy", "proxy_pass http://127.0.0.1:%%PORT1%%;"),
    ("echo", "echo SECRET;"),
];

/// Where the script and the content stand: RULE and CONTENT.
const BLOCKS: &[(&str, &str)] = &[
    ("location", "location = PATH { RULE CONTENT }"),
    ("nested", "location PATH { RULE location PATH { CONTENT } }"),
    ("within_if", "location = PATH { if ($arg_if) { RULE CONTENT } }"),
    ("around_if", "location = PATH { RULE if ($arg_if) { CONTENT } }"),
    (
        "around_limit_except",
        "location = PATH { RULE limit_except POST { allow all; WITHIN } CONTENT }",
    ),
    ("satisfy_any", "location = PATH { satisfy any; deny all; RULE CONTENT }"),
];

/// Of content handlers, `limit_except` takes `proxy_pass` alone; others are the outer block's.
fn within(handler: &str) -> &str {
    if handler.starts_with("proxy_pass") { handler } else { "" }
}

fn refusals(phase: &str) -> impl Iterator<Item = &'static Refusal> {
    REFUSALS.iter().chain((phase == "rewrite").then_some(&JUMP))
}

/// One request on a connection of its own.
fn ask(port: u16, version: &str, path: &str) -> StatusAndBody {
    if version == "2" {
        return over_http2(port, path);
    }
    let mut client = Client::connect(port);
    client.send(format!("GET {path} HTTP/{version}\r\nHost: a\r\nConnection: close\r\n\r\n"));
    client.try_response().ok().map(|answer| (answer.status, answer.body()))
}

fn over_http2(port: u16, path: &str) -> StatusAndBody {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut out = frame::PREFACE.to_vec();
    frame::write_settings(&[], &mut out);
    let begin = frame::leave_head(&mut out);
    for (name, value) in
        [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "a")]
    {
        hpack::field(name.as_bytes(), value.as_bytes(), &mut out);
    }
    frame::finish_headers(&mut out, begin, 1, frame::END_STREAM, frame::MAX_PAYLOAD);
    stream.write_all(&out).unwrap();
    let (mut status, mut body) = (0, Vec::new());
    loop {
        let mut head = [0; frame::HEAD];
        stream.read_exact(&mut head).ok()?;
        let head = FrameHead::read(&head).unwrap();
        let mut payload = vec![0; head.len];
        stream.read_exact(&mut payload).ok()?;
        match head.kind {
            FrameType::Data => body.extend_from_slice(&payload),
            FrameType::RstStream | FrameType::Goaway => return None,
            FrameType::Headers => {
                let limits = FieldLimits { field: 1 << 16, block: 1 << 18 };
                let take = |name: &[u8], value: &[u8]| {
                    if name == b":status" {
                        status = String::from_utf8_lossy(value).parse().unwrap();
                    }
                };
                Decoder::default().decode(&payload, limits, take).unwrap();
            }
            _ => continue,
        }
        if head.has(frame::END_STREAM) {
            return Some((status, String::from_utf8_lossy(&body).into_owned()));
        }
    }
}

const VERSIONS: [&str; 3] = ["1.0", "1.1", "2"];

/// A server with these locations, and what no request may come to.
fn start(locations: &str) -> Server {
    let conf = format!(
        "events {{ }}
         http {{
             access_log off; default_type text/plain;
             server {{
                 listen 127.0.0.1:%%PORT%%; http2 on;
                 header_filter_by_lua_block {{ if ngx.status == 499 then return ngx.exit(410) end }}
                 error_page 410 @gone;
                 location @gone {{ return 410 gone; }}
                 location = /open {{ content_by_lua_block {{ reached = (reached or 0) + 1 ngx.say('SECRET') }} }}
                 location = /reached {{ content_by_lua_block {{ ngx.print(reached) }} }}
                 {locations}
             }}
             server {{
                 listen 127.0.0.1:%%PORT1%%;
                 location / {{ content_by_lua_block {{ reached = (reached or 0) + 1 ngx.say('SECRET') }} }}
             }}
         }}"
    );
    Server::start(WEIR, &conf)
}

#[test]
fn a_script_that_answers_ends_the_request_in_every_block_and_version() {
    let (mut locations, mut cases) = (String::new(), Vec::new());
    for phase in ["rewrite", "access"] {
        for (refusal, script, expected) in refusals(phase) {
            for (block, text) in BLOCKS {
                for (content, handler) in CONTENT {
                    let path = format!("/{phase}/{refusal}/{block}/{content}");
                    let rule = format!("{phase}_by_lua_block {{ {script} }}");
                    let text = text.replace("PATH", &path).replace("RULE", &rule);
                    let text = text.replace("WITHIN", within(handler));
                    locations.push_str(&text.replace("CONTENT", handler));
                    locations.push('\n');
                    cases.push((path, expected));
                }
            }
        }
    }
    let server = start(&locations);
    let mut wrong = Vec::new();
    for (path, expected) in &cases {
        for version in VERSIONS {
            let seen = ask(server.port(), version, &format!("{path}?if=1"));
            let shown = seen.as_ref().map(|(status, body)| (*status, body.as_str()));
            let is_right = match expected {
                Some(_) => shown == **expected,
                None => !shown.is_some_and(|(_, body)| body.contains("SECRET")),
            };
            if !is_right {
                wrong.push(format!("{path} over {version}: {shown:?}"));
            }
        }
    }
    assert_eq!(server.get("/reached").body(), "nil", "{} wrong: {wrong:#?}", wrong.len());
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), 3 * cases.len());
}

/// Ways in which a guarded location, `PATH/guarded`, is asked on behalf of another request.
const BEHIND: &[(&str, &str)] = &[
    (
        "capture",
        "content_by_lua_block {
             local answer = ngx.location.capture('PATH/guarded')
             ngx.status = answer.status ngx.print(answer.body)
         }",
    ),
    ("auth_request", "auth_request PATH/guarded; root %%DIR%%;"),
    ("include", "ssi on; ssi_types *; return 200 '<!--#include virtual=\"PATH/guarded\" -->';"),
    ("addition", "add_before_body PATH/guarded; addition_types *; return 200 x;"),
    ("echo", "echo_location PATH/guarded;"),
    ("mirror", "mirror PATH/guarded; root %%DIR%%;"),
    ("error_page", "error_page 404 PATH/guarded; return 404;"),
    ("exec", "content_by_lua_block { ngx.exec('PATH/guarded') }"),
    ("post_action", "post_action PATH/guarded; root %%DIR%%;"),
];

#[test]
fn a_script_that_answers_ends_a_subrequest_and_a_request_that_goes_on_inside() {
    let (mut locations, mut cases) = (String::new(), Vec::new());
    for (refusal, script, expected) in refusals("rewrite") {
        for (way, outer) in BEHIND {
            let path = format!("/{refusal}/{way}");
            let outer = outer.replace("PATH", &path);
            let (_, content) = CONTENT[cases.len() % CONTENT.len()];
            locations.push_str(&format!(
                "location = {path} {{ {outer} }}
                 location = {path}/guarded {{ rewrite_by_lua_block {{ {script} }} {content} }}\n"
            ));
            // Other ways show the answer in part.
            let expected = expected.filter(|_| *way == "capture" && *refusal != "refused_head");
            cases.push((path, expected));
        }
    }
    let server = start(&locations);
    let mut wrong = Vec::new();
    for (path, expected) in &cases {
        for version in VERSIONS {
            let seen = ask(server.port(), version, path);
            let shown = seen.as_ref().map(|(status, body)| (*status, body.as_str()));
            let is_secret = shown.is_some_and(|(_, body)| body.contains("SECRET"));
            if is_secret || expected.is_some() && shown != *expected {
                wrong.push(format!("{path} over {version}: {shown:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), 3 * cases.len());
    // What the client does not see has an effect all the same.
    assert_eq!(server.get("/reached").body(), "nil");
}

/// A condition may give a location a script that it has not, and `limit_except` inherits those of its location.
#[test]
fn a_block_may_have_a_script_of_its_own_in_each_phase() {
    let server = start(
        "location = /if {
             if ($arg_if) {
                 rewrite_by_lua_block { ngx.ctx.way = (ngx.ctx.way or '') .. ngx.get_phase() }
                 access_by_lua_block { ngx.ctx.way = ngx.ctx.way .. ' ' .. ngx.get_phase() }
                 header_filter_by_lua_block { ngx.header['X-Way'] = ngx.ctx.way }
                 body_filter_by_lua_block { ngx.arg[1] = ngx.arg[1]:upper() }
                 log_by_lua_block { ngx.log(ngx.ERR, 'way: ', ngx.ctx.way, ' ', ngx.get_phase()) }
                 content_by_lua_block { ngx.print('within') }
             }
             content_by_lua_block { ngx.print('outside') }
         }
         location = /own {
             rewrite_by_lua_block { ngx.header['X-Own'] = 'outer' }
             if ($arg_if) { rewrite_by_lua_block { ngx.header['X-Own'] = 'inner' } }
             content_by_lua_block { ngx.print('own') }
         }",
    );
    let within = server.get("/if?if=1");
    assert_eq!(
        (within.header("X-Way"), within.body().as_str()),
        (Some("rewrite access"), "WITHIN")
    );
    server.wait_log("way: rewrite access log", 1);
    assert_eq!(server.get("/if").body(), "outside");
    assert_eq!(server.get("/own").header("X-Own"), Some("outer"));
    assert_eq!(server.get("/own?if=1").header("X-Own"), Some("inner"));
}

/// As in lua-nginx-module, a script takes what is no HTTP for an answer with 200; `auth_request` does not.
#[test]
fn an_answer_without_a_head_is_captured_as_one_with_200() {
    let port = weir_testkit::listen(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9\r\n");
    });
    let server = super::server(&format!(
        r#"location / {{ content_by_lua_block {{
               local answer = ngx.location.capture("/ask")
               ngx.print(answer.status, " ", answer.body)
           }} }}
           location = /ask {{ proxy_pass http://127.0.0.1:{port}; }}"#
    ));
    assert_eq!(server.get("/").body(), "200 SSH-2.0-OpenSSH_9\r\n");
}
