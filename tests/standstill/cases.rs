//! What clients send before they stop.

use weir_testkit::Dice;

use crate::line::{Door, Line, hello};

/// A point at which a client, or the server behind, stands still.
pub struct Case {
    pub name: &'static str,
    pub door: Door,
    pub say: fn(&mut Line, &mut Dice),
}

const fn case(name: &'static str, door: Door, say: fn(&mut Line, &mut Dice)) -> Case {
    Case { name, door, say }
}

/// A request for which the server behind stands still, or with an answer that the client does not
/// read: `case!(path)`.
macro_rules! gets {
    ($($path:literal)*) => {
        &[$(case($path, Door::Http, |line, _| get(line, $path))),*]
    };
}

/// The same over HTTP/2, with windows that are open or shut.
macro_rules! gets_over_http2 {
    ($($path:literal)*) => {
        &[$(case(concat!("http2 ", $path), Door::Http2, |line, dice| stream(line, dice, $path))),*]
    };
}

/// An upload of which the server behind reads nothing: the whole of it, or a part.
macro_rules! uploads {
    ($($path:literal)*) => {
        &[$(case(concat!("upload ", $path), Door::Http, |line, dice| upload(line, dice, $path))),*]
    };
}

/// The same over HTTP/2.
macro_rules! uploads_over_http2 {
    ($($path:literal)*) => {
        &[$(case(concat!("http2 upload ", $path), Door::Http2, |line, dice| send(line, dice, $path))),*]
    };
}

pub const CASES: &[&[Case]] = &[
    gets!(
        "/big" "/error" "/gzip" "/rate" "/flood" "/flood/memory" "/flood/unbuffered" "/cached" "/cached?again"
        "/silent" "/deaf" "/https" "/http2" "/grpc" "/fastcgi" "/uwsgi" "/scgi" "/memcached" "/checked"
        "/named?name=a.test" "/auth" "/mirror" "/lua/print" "/lua/socket" "/lua/eof"
        "/head" "/body" "/chunk" "/continue" "/hint" "/hints" "/unbuffered/head" "/unbuffered/body"
        "/unbuffered/chunk" "/unbuffered/continue" "/unbuffered/hint" "/unbuffered/hints"
    ),
    gets_over_http2!(
        "/big" "/error" "/gzip" "/rate" "/flood" "/flood/memory" "/flood/unbuffered" "/cached" "/silent" "/deaf"
        "/http2" "/grpc" "/named?name=b.test" "/auth" "/lua/print" "/lua/socket" "/head" "/body" "/hints"
        "/unbuffered/chunk" "/unbuffered/hint"
    ),
    uploads!(
        "/ok" "/small" "/silent" "/unbuffered/silent" "/deaf" "/http2" "/grpc" "/fastcgi" "/answers" "/lua/body"
        "/unbuffered/answers" "/unbuffered/body" "/unbuffered/hint" "/mirror" "/memcached"
    ),
    uploads_over_http2!(
        "/ok" "/small" "/silent" "/unbuffered/silent" "/http2" "/grpc" "/lua/body" "/unbuffered/body"
    ),
    OTHERS,
];

const OTHERS: &[Case] = &[
    case("nothing", Door::Http, |_, _| {}),
    case("half a head", Door::Http, |line, dice| {
        part(line, dice, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r");
    }),
    case("a kept connection", Door::Http, |line, _| {
        line.push(b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n");
    }),
    case("many requests", Door::Http, |line, _| {
        line.push(&b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n".repeat(20_000));
    }),
    case("continue", Door::Http, |line, dice| {
        let path = dice.pick(&["/answers", "/unbuffered/answers", "/lua/body"]);
        let head = "HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\ny";
        line.push(format!("POST {path} {head}").repeat(20_000).as_bytes());
    }),
    case("no body behind a continue", Door::Http, |line, dice| {
        let path = dice.pick(&["/answers", "/unbuffered/answers", "/lua/body", "/memcached"]);
        let head = "HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n";
        line.push(format!("POST {path} {head}").as_bytes());
    }),
    case("early bytes behind 101", Door::Http, |line, _| upgrade(line, "/early")),
    case("a silent tunnel", Door::Http, |line, _| upgrade(line, "/switch")),
    case("a tunnel that is not read", Door::Http, |line, _| {
        upgrade(line, "/switch");
        line.push(&[b'x'; 8_000_000]);
    }),
    case("half a client hello", Door::Port(1), |line, dice| part(line, dice, &hello())),
    case("a client hello", Door::Port(1), |line, _| _ = line.push(&hello())),
    case("half a PROXY header", Door::Port(2), |line, dice| {
        part(line, dice, b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r");
    }),
    case("a PROXY header alone", Door::Port(2), |line, _| {
        line.push(b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n");
    }),
    case("half a preface", Door::Http2, |line, dice| part(line, dice, PREFACE)),
    case("a preface", Door::Http2, |line, _| _ = line.push(PREFACE)),
    case("settings", Door::Http2, |line, _| _ = line.push(&[PREFACE, &SETTINGS].concat())),
    case("half a frame", Door::Http2, |line, dice| {
        line.push(&[PREFACE, &SETTINGS].concat());
        part(line, dice, &headers(1, 0x82, "/ok", 5));
    }),
    case("half a header block", Door::Http2, |line, _| {
        line.push(&[PREFACE, &SETTINGS, &headers(1, 0x82, "/ok", 1)].concat());
    }),
    case("many pings", Door::Http2, |line, _| {
        let ping = frame(6, 0, 0, &[0; 8]);
        line.push(&[PREFACE, &SETTINGS, &ping.repeat(200_000)].concat());
    }),
    case("many settings", Door::Http2, |line, _| {
        line.push(&[PREFACE, &SETTINGS.repeat(200_000)].concat());
    }),
    case("many streams", Door::Http2, |line, _| {
        let streams = (0..100).flat_map(|n| headers(2 * n + 1, 0x82, "/big", 5));
        line.push(&[PREFACE, &SETTINGS, &streams.collect::<Vec<_>>()].concat());
    }),
    case("session: nothing is read", Door::Port(3), |_, _| {}),
    case("session: the server is silent", Door::Port(4), |_, _| {}),
    case("session: the server reads nothing", Door::Port(4), |line, _| {
        line.push(&[b'x'; 8_000_000]);
    }),
    case("session: return", Door::Port(5), |_, _| {}),
    case("session: nothing to look at", Door::Port(6), |_, _| {}),
    case("session: half a hello to look at", Door::Port(6), |line, dice| {
        part(line, dice, &hello())
    }),
    case("session: half a PROXY header", Door::Port(7), |line, dice| {
        part(line, dice, b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r");
    }),
    case("session: half a client hello", Door::Port(8), |line, dice| part(line, dice, &hello())),
    case("session: a client hello", Door::Port(8), |line, _| _ = line.push(&hello())),
    case("session: nothing is read of TLS", Door::Secured(8), |_, _| {}),
    case("session: no handshake behind", Door::Port(9), |_, _| {}),
];

fn part(line: &mut Line, dice: &mut Dice, bytes: &[u8]) {
    line.push(&bytes[..1 + dice.below(bytes.len() - 1)]);
}

fn get(line: &mut Line, path: &str) {
    line.push(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
}

fn upgrade(line: &mut Line, path: &str) {
    let head = "HTTP/1.1\r\nHost: a\r\nUpgrade: ws\r\nConnection: upgrade\r\n\r\n";
    line.push(format!("GET {path} {head}").as_bytes());
}

/// A body of which all, or some, or nothing comes.
fn upload(line: &mut Line, dice: &mut Dice, path: &str) {
    let length = dice.pick(&[100, 50_000, 6_000_000]);
    let body = vec![b'x'; length - dice.pick(&[0, 1, length / 2, length])];
    let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\n");
    if dice.one_in(2) {
        line.push(format!("{head}Content-Length: {length}\r\n\r\n").as_bytes());
    } else {
        line.push(format!("{head}Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n").as_bytes());
    }
    line.push(&body);
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// SETTINGS_INITIAL_WINDOW_SIZE is 0.
const SHUT: [u8; 15] = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
/// It is 1 GiB, and so is the connection's.
const OPEN: [u8; 28] =
    [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0x40, 0, 0, 0, 0, 0, 4, 8, 0, 0, 0, 0, 0, 0x3f, 0, 0, 0];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = &(payload.len() as u32).to_be_bytes()[1..];
    [length, &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A request's head: END_STREAM is 1, END_HEADERS 4.
fn headers(stream: u32, method: u8, path: &str, flags: u8) -> Vec<u8> {
    let block = [&[method, 0x86, 0x04, path.len() as u8], path.as_bytes(), b"\x01\x01a"].concat();
    frame(1, flags, stream, &block)
}

fn stream(line: &mut Line, dice: &mut Dice, path: &str) {
    let settings: &[u8] = if dice.one_in(2) { &SHUT } else { &OPEN };
    line.push(&[PREFACE, settings, &headers(1, 0x82, path, 5)].concat());
}

/// A body of which some comes, and no end.
fn send(line: &mut Line, dice: &mut Dice, path: &str) {
    line.push(&[PREFACE, &SETTINGS, &headers(1, 0x83, path, 4)].concat());
    for _ in 0..dice.below(4) {
        line.push(&frame(0, 0, 1, &[b'x'; 10_000]));
    }
}
