//! HTTP/2 to clients, spoken frame by frame.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting};
use weir_proto::http2::hpack::{self, Decoder, FieldLimits};
use weir_testkit::{Dir, PATIENCE, Server, ask_until, examples};

#[path = "tls/anybody.rs"]
mod anybody;
#[path = "http2/as_new/mod.rs"]
mod as_new;
#[path = "http2/behind.rs"]
mod behind;
#[path = "http2/h2spec.rs"]
mod h2spec;
#[path = "http2/hostile.rs"]
mod hostile;
#[path = "http2/many.rs"]
mod many;
#[path = "http2/pieces.rs"]
mod pieces;
#[path = "http2/records.rs"]
mod records;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A server with `inside` in its block.
fn start(inside: &str) -> Server {
    start_in(Dir::new(), inside)
}

fn start_in(dir: Dir, inside: &str) -> Server {
    Server::start_in(dir, WEIR, &conf(inside))
}

fn conf(inside: &str) -> String {
    format!(
        "user root; events {{ }}
         http {{ server {{ listen 127.0.0.1:%%PORT%%; http2 on; {inside} }} }}"
    )
}

/// A connection over HTTP/2.
struct Client {
    stream: TcpStream,
    decoder: Decoder,
    last: u32,
    /// Whether the client gives windows for the frames that it reads.
    gives_windows: bool,
    ended: HashMap<u32, Answer>,
    settings: Vec<Setting>,
}

/// Appends the head of a request.
fn write_head(
    stream: u32,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    ended: bool,
    out: &mut Vec<u8>,
) {
    let begin = frame::leave_head(out);
    let pseudo =
        [(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost")];
    for (name, value) in pseudo.iter().chain(fields) {
        hpack::field(name.as_bytes(), value.as_bytes(), out);
    }
    let flags = if ended { frame::END_STREAM } else { 0 };
    frame::finish_headers(out, begin, stream, flags, frame::MAX_PAYLOAD);
}

/// What came of a stream.
#[derive(Debug, Default)]
struct Answer {
    heads: Vec<Vec<(String, String)>>,
    body: Vec<u8>,
    reset: Option<u32>,
    ended: bool,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let of = |head: &'_ Vec<(String, String)>| head.iter().position(|(n, _)| n == name);
        let head = self.heads.first()?;
        of(head).map(|at| head[at].1.as_str())
    }

    fn status(&self) -> &str {
        self.field(":status").unwrap_or_default()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A frame that is not of a stream's answer.
#[derive(Debug, PartialEq)]
enum Event {
    Stream(u32),
    Goaway(u32),
    Pong(Vec<u8>),
    /// More may be sent of a stream, or of all of them (0).
    Window(u32, usize),
    Other,
    Closed,
}

impl Client {
    fn connect(server: &Server) -> Client {
        let mut client = Client::bare(server);
        client.write(|out| {
            out.extend_from_slice(frame::PREFACE);
            frame::write_settings(&[], out);
        });
        client
    }

    /// One that has not greeted.
    fn bare(server: &Server) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client {
            stream,
            decoder: Decoder::default(),
            last: 0,
            gives_windows: true,
            ended: HashMap::new(),
            settings: Vec::new(),
        }
    }

    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        write(&mut out);
        self.stream.write_all(&out).unwrap();
    }

    fn get(&mut self, path: &str) -> u32 {
        self.ask("GET", path, &[], true)
    }

    /// Opens a stream.
    fn ask(&mut self, method: &str, path: &str, fields: &[(&str, &str)], ended: bool) -> u32 {
        let mut out = Vec::new();
        let id = self.request(method, path, fields, ended, &mut out);
        self.stream.write_all(&out).unwrap();
        id
    }

    fn request(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        ended: bool,
        out: &mut Vec<u8>,
    ) -> u32 {
        let id = if self.last == 0 { 1 } else { self.last + 2 };
        self.last = id;
        write_head(id, method, path, fields, ended, out);
        id
    }

    /// Appends a PING, or its beginning.
    fn ping(payload: &[u8], out: &mut Vec<u8>) {
        FrameHead { len: 8, kind: FrameType::Ping, flags: 0, stream: 0 }.write(out);
        out.extend_from_slice(payload);
    }

    fn data(&mut self, stream: u32, data: &[u8], ended: bool) {
        let flags = if ended { frame::END_STREAM } else { 0 };
        self.write(|out| {
            FrameHead { len: data.len(), kind: FrameType::Data, flags, stream }.write(out);
            out.extend_from_slice(data);
        });
    }

    /// Reads one frame.
    fn event(&mut self) -> Event {
        let mut head = [0; frame::HEAD];
        if self.stream.read_exact(&mut head).is_err() {
            return Event::Closed;
        }
        let head = FrameHead::read(&head).unwrap();
        let mut payload = vec![0; head.len];
        if self.stream.read_exact(&mut payload).is_err() {
            return Event::Closed;
        }
        match head.kind {
            FrameType::Headers | FrameType::Data | FrameType::RstStream => {
                self.of_stream(head, &payload)
            }
            FrameType::Goaway => Event::Goaway(frame::word(&payload[4..8]).unwrap()),
            FrameType::Ping => Event::Pong(payload),
            FrameType::WindowUpdate => {
                Event::Window(head.stream, frame::word(&payload).unwrap() as usize)
            }
            FrameType::Settings if !head.has(frame::ACK) => {
                self.settings = frame::settings(&payload).collect();
                self.write(frame::write_settings_ack);
                Event::Other
            }
            _ => Event::Other,
        }
    }

    fn of_stream(&mut self, head: FrameHead, payload: &[u8]) -> Event {
        let answer = self.ended.entry(head.stream).or_default();
        match head.kind {
            FrameType::Data => {
                answer.body.extend_from_slice(payload);
                answer.ended |= head.has(frame::END_STREAM);
                if self.gives_windows && !payload.is_empty() {
                    let len = payload.len() as u32;
                    self.write(|out| {
                        frame::write_window_update(0, len, out);
                        frame::write_window_update(head.stream, len, out);
                    });
                }
            }
            FrameType::RstStream => {
                answer.reset = frame::word(payload);
                answer.ended = true;
            }
            _ => {
                assert!(head.has(frame::END_HEADERS));
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let mut fields = Vec::new();
                let limits = FieldLimits { field: 1 << 16, block: 1 << 18 };
                let take = |n: &[u8], v: &[u8]| fields.push((text(n), text(v)));
                self.decoder.decode(payload, limits, take).unwrap();
                answer.heads.push(fields);
                answer.ended |= head.has(frame::END_STREAM);
            }
        }
        Event::Stream(head.stream)
    }

    /// Reads until a stream has ended.
    fn answer(&mut self, stream: u32) -> Answer {
        while !self.ended.get(&stream).is_some_and(|answer| answer.ended) {
            let event = self.event();
            assert_ne!(event, Event::Closed, "closed before stream {stream} ended");
        }
        self.ended.remove(&stream).unwrap()
    }

    /// Reads until the server takes its leave.
    fn goaway(&mut self) -> u32 {
        loop {
            match self.event() {
                Event::Goaway(code) => return code,
                Event::Closed => panic!("closed without GOAWAY"),
                _ => {}
            }
        }
    }

    /// Reads until the connection is closed.
    fn closed(&mut self) {
        while self.event() != Event::Closed {}
    }
}

#[test]
fn streams_that_begin_after_a_change_are_served_by_it_and_older_ones_end_as_they_began() {
    let site = |n: usize| {
        format!(
            "add_header X-Site {n}; location / {{ return 200 {n}; }}
             location = /slow {{ root .; try_files /slow =404; limit_rate 200k; }}
             location /api {{ weir_api config; allow 127.0.0.1; deny all; }}
             location = /metrics {{ weir_status; }}"
        )
    };
    let server = start(&site(0));
    server.dir().write("slow", vec![b'x'; 300_000]);
    let mut client = Client::connect(&server);
    let (first, slow) = (client.get("/"), client.get("/slow"));
    assert_eq!(client.answer(first).text(), "0");
    for n in 1..20 {
        let text = conf(&site(n)).replace("%%PORT%%", &server.port().to_string());
        let headers = format!("Content-Type: text/plain\r\nContent-Length: {}\r\n", text.len());
        let taken = server.ask("PUT /api/config", &headers, &text);
        assert!(taken.body().contains("running workers"), "{}", taken.body());
        let stream = client.get("/");
        assert_eq!(client.answer(stream).text(), n.to_string());
    }
    let slow = client.answer(slow);
    assert_eq!((slow.field("x-site"), slow.body.len()), (Some("0"), 300_000));
    // The connection stays, and keeps no older site.
    let freed = ask_until(|| server.get("/metrics").body().contains("\nweir_sites 1\n"));
    assert!(freed, "{}", server.get("/metrics").body());
    let last = client.get("/");
    assert_eq!(client.answer(last).text(), "19");
}

#[test]
fn a_silent_client_is_answered_though_the_server_ends() {
    let mut server = start("return 200 yes;");
    let (mut greeted, mut silent) = (hostile::greeted(&server), Client::bare(&server));
    // Both are in by then.
    let mut other = Client::connect(&server);
    let stream = other.get("/");
    assert_eq!(other.answer(stream).text(), "yes");
    server.signal(rustix::process::Signal::QUIT);
    // A client that has greeted and asks nothing is sent elsewhere and loses nothing.
    assert_eq!(greeted.goaway(), ErrorCode::NoError as u32);
    let mut bytes = frame::PREFACE.to_vec();
    frame::write_settings(&[], &mut bytes);
    let stream = silent.request("GET", "/", &[], true, &mut bytes);
    silent.write(|out| out.extend_from_slice(&bytes));
    assert_eq!(silent.answer(stream).text(), "yes");
    drop((greeted, silent, other));
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_request_is_a_request() {
    let server = start(
        "location / { return 200 \"$http2 $server_protocol $request_method $host $args\"; }
         location /gone { return 404; }",
    );
    let mut client = Client::connect(&server);
    let id = client.get("/a%20b?x=1");
    let answer = client.answer(id);
    assert_eq!(answer.status(), "200");
    assert_eq!(answer.text(), "h2c HTTP/2.0 GET localhost x=1");
    assert_eq!(answer.field("content-length"), Some("30"));
    assert_eq!(answer.field("server"), Some("weir/0.1.0"));
    assert_eq!(answer.field("connection"), None);
    let id = client.get("/gone");
    let answer = client.answer(id);
    assert_eq!(answer.status(), "404");
    assert!(answer.text().contains("404 Not Found"));
    // HTTP/1 is spoken on the same port.
    assert_eq!(server.get("/").body(), " HTTP/1.1 GET localhost ");
}

#[test]
fn many_streams_share_a_connection_and_its_windows() {
    let dir = Dir::new();
    let big: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    dir.write("html/big", &big);
    let server = start_in(dir, "root html;");
    let mut client = Client::connect(&server);
    let ids: Vec<u32> = (0..20).map(|_| client.get("/big")).collect();
    for id in ids {
        let answer = client.answer(id);
        assert_eq!(answer.status(), "200");
        assert!(answer.body == big, "stream {id} has other bytes");
    }
}

#[test]
fn files_arrive_as_they_are_in_frames_of_any_size() {
    let dir = Dir::new();
    let sizes = [1, 999, 1000, 8191, 8192, 8193, 65_535, 65_536, 300_000];
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    sizes.iter().for_each(|&size| drop(dir.write(&format!("html/{size}"), &bytes[..size])));
    let chunked =
        |chunk| format!("location /{chunk}/ {{ alias html/; http2_chunk_size {chunk}; }}");
    let chunks = ["7", "1000", "8k", "64k"];
    let server = start_in(dir, &chunks.map(chunked).concat());
    let mut client = Client::connect(&server);
    for chunk in chunks {
        for size in sizes.into_iter().filter(|&size| chunk != "7" || size < 10_000) {
            // Alone, and three at a time.
            let alone = client.get(&format!("/{chunk}/{size}"));
            assert!(client.answer(alone).body == bytes[..size], "{size} in frames of {chunk}");
            for id in [0; 3].map(|_| client.get(&format!("/{chunk}/{size}"))) {
                let answer = client.answer(id);
                assert_eq!(answer.status(), "200");
                assert!(answer.body == bytes[..size], "{size} in frames of {chunk}, of three");
            }
        }
    }
}

/// A client may let a stream go on before it lets the connection: others that wait come first all the same.
#[test]
fn a_stream_whose_window_grows_first_does_not_hold_others_up() {
    let dir = Dir::new();
    dir.write("html/big", vec![b'x'; 600_000]);
    let server = start_in(dir, "root html;");
    let mut client = Client::connect(&server);
    client.gives_windows = false;
    let first = client.get("/big");
    let received =
        |client: &Client, id| client.ended.get(&id).map_or(0, |answer| answer.body.len());
    while received(&client, first) < frame::DEFAULT_WINDOW as usize {
        assert_ne!(client.event(), Event::Closed);
    }
    let all = [first, client.get("/big"), client.get("/big")];
    while client.ended.len() < all.len() {
        assert_ne!(client.event(), Event::Closed);
    }
    let grow = |client: &mut Client, id, by| {
        client.write(|out| {
            frame::write_window_update(id, by, out);
            frame::write_window_update(0, by, out);
        });
    };
    grow(&mut client, first, 8192);
    while !client.ended.values().any(|answer| answer.ended) {
        let before = all.map(|id| received(&client, id));
        assert_ne!(client.event(), Event::Closed);
        for (id, before) in all.into_iter().zip(before) {
            let by = received(&client, id) - before;
            if by > 0 {
                grow(&mut client, id, by as u32);
            }
        }
    }
    let each = all.map(|id| received(&client, id));
    assert!(each.iter().all(|n| *n > 400_000), "{each:?} when one of them has ended");
}

#[test]
fn a_slow_reader_gets_no_more_than_its_window() {
    let dir = Dir::new();
    dir.write("html/big", vec![b'x'; 200_000]);
    let server = start_in(dir, "root html; location = /small { return 200 small; }");
    let mut client = Client::connect(&server);
    client.gives_windows = false;
    client.write(|out| frame::write_window_update(0, 1 << 20, out));
    let big = client.get("/big");
    let small = client.get("/small");
    // The stream that waits for its window does not hold the other one up.
    assert_eq!(client.answer(small).text(), "small");
    client.write(|out| frame::write_window_update(big, 1, out));
    while client.ended.get(&big).is_none_or(|answer| answer.body.len() < 65_536) {
        assert_ne!(client.event(), Event::Closed);
    }
    client.write(|out| frame::write_window_update(big, 200_000, out));
    assert_eq!(client.answer(big).body.len(), 200_000);
}

#[test]
fn bodies_come_with_and_without_a_length() {
    let server = start("location / { root %%DIR%%; dav_methods PUT; client_max_body_size 1m; }");
    let mut client = Client::connect(&server);
    let body = vec![b'b'; 20_000];
    let len = body.len().to_string();
    let id = client.ask("PUT", "/known", &[("content-length", &len)], false);
    client.data(id, &body[..10_000], false);
    client.data(id, &body[10_000..], true);
    assert_eq!(client.answer(id).status(), "201");
    let id = client.ask("PUT", "/unknown", &[], false);
    client.data(id, &body[..10_000], false);
    client.data(id, &body[10_000..], false);
    client.data(id, b"", true);
    assert_eq!(client.answer(id).status(), "201");
    for name in ["known", "unknown"] {
        assert!(server.dir().read(name).into_bytes() == body, "{name}");
    }
    // Less, or more, than was announced.
    for data in [&b"abc"[..], b"abcdef"] {
        let id = client.ask("PUT", "/other", &[("content-length", "4")], false);
        client.data(id, data, true);
        assert_eq!(client.answer(id).status(), "400");
    }
    // The end may come with the head, before the server has read.
    let mut out = Vec::new();
    let id = client.request("PUT", "/other", &[("content-length", "4")], false, &mut out);
    FrameHead { len: 0, kind: FrameType::Data, flags: frame::END_STREAM, stream: id }
        .write(&mut out);
    client.stream.write_all(&out).unwrap();
    assert_eq!(client.answer(id).status(), "400");
}

#[test]
fn a_body_that_is_too_large_has_the_sites_page() {
    let server = start(
        "client_max_body_size 3; error_page 413 /page; location /page { alias %%DIR%%/page; }",
    );
    server.dir().write("page", "too large");
    let mut client = Client::connect(&server);
    let id = client.ask("PUT", "/", &[("content-length", "10")], false);
    client.data(id, b"0123456789", true);
    let answer = client.answer(id);
    assert_eq!((answer.status(), answer.text().as_str()), ("413", "too large"));
}

#[test]
fn a_client_that_is_shut_out_is_told_on_its_stream() {
    let server = start("location / { return 444; } location /other { return 200 yes; }");
    let mut client = Client::connect(&server);
    let id = client.get("/");
    assert_eq!(client.answer(id).reset, Some(ErrorCode::Protocol as u32));
    let id = client.get("/other");
    assert_eq!(client.answer(id).text(), "yes");
}

/// The server that a request names may allow more than that of the connection, or less.
#[test]
fn a_head_is_held_to_the_limits_of_the_server_that_it_names() {
    let both = |default: &str, named: &str| {
        let conf = format!(
            "user root; events {{ }} http {{ http2 on;
             server {{ listen 127.0.0.1:%%PORT%%; {default} return 200 default; }}
             server {{ listen 127.0.0.1:%%PORT%%; server_name localhost; {named}
                 return 200 \"named $http_a_b\"; }} }}"
        );
        let server = Server::start_in(Dir::new(), WEIR, &conf);
        let mut client = Client::connect(&server);
        let id = client.ask("GET", "/", &[("a_b", "1"), ("c", "2"), ("d", "3")], true);
        let answer = client.answer(id);
        match answer.status() {
            "200" => answer.text(),
            status => status.to_owned(),
        }
    };
    assert_eq!(both("max_headers 1;", "underscores_in_headers on;"), "named 1");
    assert_eq!(both("underscores_in_headers on;", ""), "named ");
    assert_eq!(both("", "max_headers 1;"), "400");
}

#[test]
fn heads_that_are_wrong_are_refused_one_by_one() {
    let server = start("return 200;");
    let mut client = Client::connect(&server);
    for field in [("X-Upper", "x"), ("connection", "close"), (":path", "/late"), ("te", "gzip")] {
        // The encoder folds names: an upper-case one is written by hand.
        let mut out = Vec::new();
        let id = client.request("GET", "/", &[], true, &mut out);
        let mut block = out.split_off(frame::HEAD);
        block.extend_from_slice(&[0, field.0.len() as u8]);
        block.extend_from_slice(field.0.as_bytes());
        block.push(field.1.len() as u8);
        block.extend_from_slice(field.1.as_bytes());
        client.write(|out| {
            let begin = frame::leave_head(out);
            out.extend_from_slice(&block);
            frame::finish_headers(out, begin, id, frame::END_STREAM, frame::MAX_PAYLOAD);
        });
        assert_eq!(client.answer(id).status(), "400", "{field:?}");
    }
    let id = client.get("/");
    assert_eq!(client.answer(id).status(), "200");
}

/// What the log says of a head without a request line, or with one that leads nowhere.
#[test]
fn of_a_head_that_is_wrong_the_log_says_what_is_known() {
    let server = Server::start(
        env!("CARGO_BIN_EXE_weir"),
        "events { } http { http2 on; root %%DIR%%;
             log_format known '$request_method|$request_uri|$uri|$server_protocol|$status';
             access_log %%DIR%%/known known; server { listen 127.0.0.1:%%PORT%%; } }",
    );
    let mut client = Client::connect(&server);
    let (method, scheme, path) = ((":method", "GET"), (":scheme", "http"), (":path", "/x"));
    for fields in [[scheme, path], [method, path], [method, scheme]] {
        let id = if client.last == 0 { 1 } else { client.last + 2 };
        client.last = id;
        client.write(|out| {
            let begin = frame::leave_head(out);
            for (name, value) in fields {
                hpack::field(name.as_bytes(), value.as_bytes(), out);
            }
            frame::finish_headers(out, begin, id, frame::END_STREAM, frame::MAX_PAYLOAD);
        });
        assert_eq!(client.answer(id).status(), "400", "{fields:?}");
    }
    let id = client.get("/../x");
    assert_eq!(client.answer(id).status(), "400");
    let all =
        "-|/x||HTTP/2.0|400\nGET|/x||HTTP/2.0|400\nGET||-|HTTP/2.0|400\nGET|/../x||HTTP/2.0|400\n";
    server.wait_file("known", all, 1);
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let server =
        start("http2_max_concurrent_streams 2; location / { limit_rate 1; return 200 xy; }");
    let mut client = Client::connect(&server);
    let _held: Vec<u32> = (0..2).map(|_| client.ask("POST", "/", &[], false)).collect();
    while !client.settings.contains(&Setting::MaxConcurrentStreams(2)) {
        client.event();
    }
    let more = client.ask("POST", "/", &[], false);
    let refused = client.answer(more);
    assert_eq!(refused.reset, Some(ErrorCode::RefusedStream as u32));
}

#[test]
fn requests_are_counted_and_the_last_one_is_answered() {
    let server = start("keepalive_requests 3; return 200 $connection_requests;");
    let mut client = Client::connect(&server);
    for n in 1..=3 {
        let id = client.get("/");
        if n == 3 {
            // As with nginx, the client is told so before it has the last answer.
            assert_eq!(client.goaway(), ErrorCode::NoError as u32);
            assert!(!client.ended.contains_key(&id));
        }
        assert_eq!(client.answer(id).text(), n.to_string());
    }
    client.closed();
}

#[test]
fn streams_at_once_have_their_own_numbers() {
    let dir = Dir::new();
    dir.write("html/big", vec![b'x'; 100_000]);
    let server = start_in(
        dir,
        "root html; access_log %%DIR%%/numbers number; }
         log_format number '$arg_n $connection_requests'; server { listen 127.0.0.1:%%PORT1%%;",
    );
    let mut client = Client::connect(&server);
    client.gives_windows = false;
    let streams = [1, 2, 3].map(|n| client.get(&format!("/big?n={n}")));
    // Until now none has ended.
    client.write(|out| frame::write_window_update(0, 300_000, out));
    for stream in streams {
        client.write(|out| frame::write_window_update(stream, 100_000, out));
        assert_eq!(client.answer(stream).body.len(), 100_000);
    }
    server.wait_file("numbers", "\n", 3);
    assert_eq!(server.dir().read("numbers"), "1 1\n2 2\n3 3\n");
}

/// The client may have sent them before GOAWAY reached it.
#[test]
fn streams_behind_goaway_are_ignored_and_the_others_are_answered() {
    let dir = Dir::new();
    dir.write("html/big", vec![b'x'; 100_000]);
    let server = start_in(dir, "root html; keepalive_requests 1;");
    let mut client = Client::connect(&server);
    client.gives_windows = false;
    let asked = client.get("/big");
    assert_eq!(client.goaway(), ErrorCode::NoError as u32);
    let late = client.ask("POST", "/", &[], false);
    client.data(late, b"body", false);
    client.write(|out| frame::write_window_update(late, 1, out));
    // The fields behind its body.
    let mut trailers = Vec::new();
    let begin = frame::leave_head(&mut trailers);
    hpack::field(b"x-sum", b"1", &mut trailers);
    let ends = frame::END_STREAM;
    frame::finish_headers(&mut trailers, begin, late, ends, frame::MAX_PAYLOAD);
    client.write(|out| out.extend_from_slice(&trailers));
    let cancelled = client.ask("POST", "/", &[], false);
    client.write(|out| frame::write_reset(cancelled, ErrorCode::Cancel, out));
    // Until now the answer was held up by its window.
    for stream in [0, asked] {
        client.write(|out| frame::write_window_update(stream, 100_000, out));
    }
    assert_eq!(client.answer(asked).body.len(), 100_000);
    client.closed();
    assert!(client.ended.is_empty(), "{:?}", client.ended);
}

#[test]
fn a_reload_says_goodbye_and_answers_what_was_asked() {
    let server = start(
        "location / { return 200 old; }
         location = /slow { limit_rate 60; return 200 'twenty bytes of text'; }",
    );
    let mut idle = Client::connect(&server);
    let id = idle.get("/");
    assert_eq!(idle.answer(id).text(), "old");
    let mut new = Client::connect(&server);
    let mut busy = Client::connect(&server);
    let slow = busy.get("/slow");
    while !busy.ended.contains_key(&slow) {
        busy.event();
    }
    server.configure(&conf("return 200 new;"));
    assert!(server.command(&["-s", "reload"]).status.success());
    assert_eq!(idle.goaway(), ErrorCode::NoError as u32);
    idle.closed();
    // A client that has come and not asked yet is not sent away.
    let id = new.get("/");
    assert_eq!(new.answer(id).text(), "old");
    new.closed();
    assert_eq!(busy.answer(slow).text(), "twenty bytes of text");
    busy.closed();
}

#[test]
fn pings_are_answered_and_bad_greetings_are_not() {
    let server = start("return 200;");
    let mut client = Client::connect(&server);
    client.write(|out| {
        Client::ping(b"are you?", out);
    });
    loop {
        match client.event() {
            Event::Pong(payload) => break assert_eq!(payload, b"are you?"),
            Event::Closed => panic!("closed"),
            _ => {}
        }
    }
    let mut client = Client::bare(&server);
    client.write(|out| {
        out.extend_from_slice(frame::PREFACE);
        FrameHead { len: 0, kind: FrameType::Data, flags: 0, stream: 0 }.write(out);
    });
    assert_eq!(client.goaway(), ErrorCode::Protocol as u32);
}

#[test]
fn the_example_of_the_page_works() {
    let page = include_str!("../docs/http2.md");
    let example = examples(page).next().unwrap();
    let server = Server::start(WEIR, &example.replace("8080", "%%PORT%%"));
    let mut client = Client::connect(&server);
    let id = client.get("/");
    let answer = client.answer(id);
    assert_eq!(answer.text(), "h2c HTTP/2.0\n");
    assert_eq!(answer.heads[1], [("x-status".to_owned(), "200".to_owned())]);
    assert!(client.settings.contains(&Setting::MaxConcurrentStreams(100)));
}

#[test]
fn a_client_that_is_not_kept_gets_one_answer() {
    let server = start("keepalive_timeout 0; return 200 once;");
    let mut client = hostile::greeted(&server);
    // Whenever the request comes.
    let id = client.get("/");
    assert_eq!(client.answer(id).text(), "once");
    client.closed();
    let server = start("keepalive_timeout 0; client_header_timeout 1s; return 200;");
    hostile::greeted(&server).closed();
}

/// Frames that begin no request do not keep a connection, neither before the first request nor after one.
#[test]
fn frames_without_a_request_do_not_prolong_an_idle_connection() {
    let timeouts = [
        ("keepalive_timeout 800ms; client_header_timeout 1h;", true),
        ("keepalive_timeout 1h; client_header_timeout 800ms;", false),
    ];
    let frames: [fn(&mut Vec<u8>); 4] = [
        |out| {
            Client::ping(&[0; 8], out);
        },
        |out| frame::write_settings(&[], out),
        |out| frame::write_window_update(0, 1, out),
        |out| FrameHead { len: 0, kind: FrameType::Unknown(0xee), flags: 0, stream: 0 }.write(out),
    ];
    let all: Vec<_> = frames.into_iter().flat_map(|f| timeouts.map(|t| (f, t))).collect();
    std::thread::scope(|scope| {
        for (write, (timeouts, asks)) in all {
            scope.spawn(move || {
                let server = start(&format!("{timeouts} return 200;"));
                let mut client = hostile::greeted(&server);
                if asks {
                    let id = client.get("/");
                    client.answer(id);
                }
                let mut writing = client.stream.try_clone().unwrap();
                let ended = std::sync::mpsc::channel::<()>();
                // Much more often than the time-out, until the server closes, for a quarter of a minute at most.
                let talking = std::thread::spawn(move || {
                    let mut out = Vec::new();
                    write(&mut out);
                    (0..150).all(|_| {
                        let goes_on = ended.1.recv_timeout(Duration::from_millis(100));
                        goes_on == Err(RecvTimeoutError::Timeout) && writing.write_all(&out).is_ok()
                    })
                });
                assert_eq!(client.goaway(), ErrorCode::NoError as u32);
                drop(ended.0);
                assert!(!talking.join().unwrap(), "{timeouts}: frames kept the connection");
            });
        }
    });
}
