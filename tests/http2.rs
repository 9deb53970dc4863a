//! HTTP/2 to clients, spoken frame by frame.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;

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
#[path = "http2/limits.rs"]
mod limits;
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
fn answers_in_frames_have_no_headers_about_the_connection_nor_variables_of_them() {
    let server = start(
        "keepalive_timeout 65 20; return 200 \"$sent_http_connection $sent_http_keep_alive\";",
    );
    let mut client = Client::connect(&server);
    let id = client.get("/");
    let answer = client.answer(id);
    assert_eq!((answer.field("connection"), answer.field("keep-alive")), (None, None));
    assert_eq!(answer.text(), " ");
    // HTTP/1 on the same port has them.
    assert_eq!(server.connect().get("/").body(), "keep-alive timeout=20");
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
