//! Fresh against used: whatever others have asked, broken off or got wrong before, a request's answer is that of a
//! server that has served nobody.
//!
//! `WEIR_SEED` replays a run, `WEIR_REQUESTS` makes it longer.

use std::collections::HashMap;
use std::io::Write;

use weir_proto::http2::frame::{self, FrameHead, Kind};
use weir_proto::http2::hpack;
use weir_testkit::{Dice, Dir, Server, number, seed};

use super::hostile::greeted;
use super::{Client, Event, WEIR};

/// Connections that are kept between two requests.
const KEPT: usize = 3;

const ECHO: &str = "$request_method|$request_uri|$uri|$args|$host|$http_host|$http_x_mine|$http_cookie|\
     $content_type|$content_length|$remote_user|$http_user_agent|$request_length|$server_protocol|$scheme|\
     $is_args|$request_body|$http2|$status|$request_completion|$limit_rate|$bytes_sent|$upstream_addr|$1|$name|$v";

fn conf(html: &Dir) -> String {
    let html = html.path().display();
    format!(
        "user root; worker_processes 1; events {{ }}
         http {{
             upstream self {{ server 127.0.0.1:%%PORT%%; keepalive 4; }}
             server {{
                 listen 127.0.0.1:%%PORT%%; http2 on; client_max_body_size 20k;
                 client_body_buffer_size 4k; error_page 400 404 413 /told;
                 location / {{ add_header X-Echo $http_x_mine; return 200 '{ECHO}'; }}
                 location /told {{ return 200 '{ECHO}'; }}
                 location /files/ {{
                     alias {html}/; gzip on; gzip_min_length 1; gzip_types *; charset utf-8;
                 }}
                 location /ssi/ {{ alias {html}/; ssi on; ssi_types *; }}
                 location ~ ^/group/(?<name>[a-z]+)/(.*)$ {{ set $v $2; return 200 '{ECHO}'; }}
                 location /if {{ if ($arg_v) {{ set $v $arg_v; }} return 200 '{ECHO}'; }}
                 location /moved/ {{ rewrite ^/moved/(.*)$ /$1 last; }}
                 location /proxy/ {{
                     proxy_pass http://self/; proxy_set_header Connection ''; proxy_set_header X-Mine $v;
                 }}
                 location /put/ {{ proxy_pass http://self/files/; proxy_request_buffering off; }}
                 location /lua/ {{ content_by_lua_block {{
                     ngx.req.read_body()
                     local seen = ngx.ctx.seen
                     ngx.ctx.seen = ngx.var.uri
                     ngx.say(seen, ngx.req.get_method(), ngx.req.get_body_data())
                 }} }}
             }}
         }}"
    )
}

/// A request, on either protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Ask {
    http2: bool,
    method: &'static str,
    path: &'static str,
    field: (&'static str, &'static str),
    body: &'static str,
    flaw: Option<Flaw>,
}

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Flaw {
    /// Behind all fields stands a byte that does not belong there.
    Byte,
    /// There is a second `Host`, or a second `:path`.
    Twice,
    /// A field is larger than any may be.
    Large,
    /// The body is larger than it may be.
    LargeBody,
}

const PATHS: &[&str] = &[
    "/",
    "/a/../b?x=1",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/c%20d//e?",
    "/group/abc/def",
    "/group/xyz/",
    "/if?v=1",
    "/if",
    "/moved/f?g",
    "/proxy/h?i",
    "/proxy/lua/",
    "/lua/",
    "/files/text",
    "/files/none",
    "/ssi/page",
    "/put/text",
];
const FIELDS: &[(&str, &str)] = &[
    ("x-mine", "1"),
    ("cookie", "a=b; c=d"),
    ("range", "bytes=2-5"),
    ("accept-encoding", "gzip"),
    ("if-none-match", "*"),
    ("content-type", "text/x-mine"),
    ("authorization", "Basic bWU6eA=="),
    ("user-agent", "me"),
    ("expect", "200-ok"),
];

impl Ask {
    fn any(dice: &mut Dice) -> Ask {
        let flaws = [Flaw::Byte, Flaw::Twice, Flaw::Large, Flaw::LargeBody];
        let flaw = (dice.below(4) == 0).then(|| dice.pick(&flaws));
        let with_body = dice.below(3) == 0 || flaw == Some(Flaw::LargeBody);
        Ask {
            http2: dice.below(2) == 0,
            method: if with_body { "POST" } else { "GET" },
            path: dice.pick(PATHS),
            field: dice.pick(FIELDS),
            body: if with_body { dice.pick(&["b", "body=1&c=2"]) } else { "" },
            flaw,
        }
    }

    fn length(&self) -> usize {
        if self.flaw == Some(Flaw::LargeBody) { 1 << 20 } else { self.body.len() }
    }

    fn large(&self) -> String {
        if self.flaw == Some(Flaw::Large) { "l".repeat(9000) } else { "s".to_owned() }
    }

    fn http1(&self) -> Vec<u8> {
        let Ask { method, path, field: (name, value), body, .. } = self;
        let (length, large) = (self.length(), self.large());
        let mut text =
            format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{name}: {value}\r\nx-l: {large}\r\n");
        if length > 0 {
            text += &format!("content-length: {length}\r\n");
        }
        text += match self.flaw {
            Some(Flaw::Byte) => "x\0: y\r\n",
            Some(Flaw::Twice) => "host: b\r\n",
            _ => "",
        };
        (text + "\r\n" + body).into_bytes()
    }

    fn http2(&self, id: u32) -> Vec<u8> {
        let mut out = Vec::new();
        let begin = frame::leave_head(&mut out);
        let (length, large) = (self.length().to_string(), self.large());
        let path = (":path", self.path);
        let again = if self.flaw == Some(Flaw::Twice) { path } else { ("x-n", "") };
        for (name, value) in [
            (":method", self.method),
            (":scheme", "http"),
            path,
            (":authority", "a"),
            self.field,
            ("x-l", &large),
            ("content-length", &length),
            again,
        ] {
            if name != "content-length" || value != "0" {
                hpack::field(name.as_bytes(), value.as_bytes(), &mut out);
            }
        }
        if self.flaw == Some(Flaw::Byte) {
            out.push(0x80);
        }
        let flags = if self.body.is_empty() { frame::END_STREAM } else { 0 };
        frame::finish_headers(&mut out, begin, id, flags, frame::MAX_PAYLOAD);
        if !self.body.is_empty() {
            let flags = frame::END_STREAM;
            FrameHead { len: self.body.len(), kind: Kind::Data, flags, stream: id }.write(&mut out);
            out.extend_from_slice(self.body.as_bytes());
        }
        out
    }
}

/// A server, and connections to it that may be used again.
struct Used {
    server: Server,
    http1: Vec<weir_testkit::Client>,
    http2: Vec<Client>,
}

impl Used {
    fn new(html: &Dir) -> Used {
        let server = Server::start(WEIR, &conf(html));
        Used { server, http1: Vec::new(), http2: Vec::new() }
    }

    /// What comes of a request; on a kept connection, if there is one and `kept` says so.
    fn ask(&mut self, ask: &Ask, kept: bool) -> String {
        let said = if ask.http2 { self.ask_http2(ask, kept) } else { self.ask_http1(ask, kept) };
        said.replace(&self.server.port().to_string(), "PORT")
    }

    fn ask_http1(&mut self, ask: &Ask, kept: bool) -> String {
        let kept = if kept { self.http1.pop() } else { None };
        let mut client = kept.unwrap_or_else(|| self.server.connect());
        client.send(ask.http1());
        let answer = client.response();
        if answer.header("connection") == Some("keep-alive") && self.http1.len() < KEPT {
            self.http1.insert(0, client);
        }
        let known = |name: &str| name.eq_ignore_ascii_case("date");
        let headers: Vec<_> = answer.headers.iter().filter(|(name, _)| !known(name)).collect();
        format!("{} {headers:?} {}", answer.status, answer.body())
    }

    fn ask_http2(&mut self, ask: &Ask, kept: bool) -> String {
        let kept = if kept { self.http2.pop() } else { None };
        let mut client = kept.unwrap_or_else(|| greeted(&self.server));
        let id = if client.last == 0 { 1 } else { client.last + 2 };
        client.last = id;
        client.stream.write_all(&ask.http2(id)).unwrap();
        while !client.ended.get(&id).is_some_and(|answer| answer.ended) {
            match client.event() {
                Event::Goaway(code) => return format!("GOAWAY {code}"),
                Event::Closed => return "closed".to_owned(),
                _ => {}
            }
        }
        let mut answer = client.ended.remove(&id).unwrap();
        answer.heads.iter_mut().for_each(|head| head.retain(|(name, _)| name != "date"));
        if self.http2.len() < KEPT {
            self.http2.insert(0, client);
        }
        format!("{:?} {} reset: {:?}", answer.heads, answer.text(), answer.reset)
    }

    /// Sends a part of a request and leaves, or all of it without waiting for the answer.
    fn break_off(&self, ask: &Ask, dice: &mut Dice) {
        let mut bytes = if ask.http2 { ask.http2(1) } else { ask.http1() };
        if dice.below(4) > 0 {
            bytes.truncate(dice.below(bytes.len()));
        }
        let mut client = if ask.http2 { greeted(&self.server) } else { Client::bare(&self.server) };
        client.stream.write_all(&bytes).unwrap();
        if dice.below(2) == 0 {
            let _ =
                rustix::net::sockopt::set_socket_linger(&client.stream, Some(Default::default()));
        }
    }
}

#[test]
fn a_used_server_answers_as_a_fresh_one() {
    let seed = seed();
    let requests = number("WEIR_REQUESTS").unwrap_or(200);
    let mut dice = Dice::new(seed);
    let html = Dir::new();
    html.write("text", "a file with some text in it, some of it again and again\n".repeat(20));
    html.write("page", "<!--# include virtual=\"/files/text\" -->[<!--# echo var=\"v\" -->]");
    // So many different ones, lest there be a server for each request.
    let asks: Vec<Ask> = (0..requests / 5).map(|_| Ask::any(&mut dice)).collect();
    let (mut used, mut known) = (Used::new(&html), HashMap::new());
    for n in 0..requests {
        let ask = &asks[dice.below(asks.len())];
        if dice.below(3) == 0 {
            used.break_off(ask, &mut dice);
            continue;
        }
        let answer = used.ask(ask, dice.below(2) == 0);
        let fresh = known.entry(ask.clone()).or_insert_with(|| Used::new(&html).ask(ask, false));
        assert_eq!(&answer, fresh, "request {n} of seed {seed}: {ask:?}");
    }
}
