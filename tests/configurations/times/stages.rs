//! The stages of a connection in which a timeout may expire.

use weir_proto::http2::frame::Setting;

use super::talk::Talk;

/// A stage, and how a client comes there.
pub struct Stage {
    pub name: &'static str,
    pub over: Over,
    pub act: fn(&mut Talk),
}

/// Which wires have it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Over {
    All,
    Tls,
    Http1,
    Http2,
}

const fn s(name: &'static str, over: Over, act: fn(&mut Talk)) -> Stage {
    Stage { name, over, act }
}

use Over::{All, Http1, Http2, Tls};

const LONG: usize = 16 << 20;

pub const STAGES: &[Stage] = &[
    s("silent", All, |_| {}),
    s("half a greeting", Tls, |t| t.send_raw(b"\x16\x03\x01\x01\x00\x01")),
    s("greeted and silent", Tls, Talk::greet),
    s("silent, then asks", All, |t| {
        t.greet();
        t.pause();
        ask(t, "/return");
    }),
    s("half a head", All, |t| half_a_head(t, "/return")),
    s("a head in pieces", All, |t| in_pieces(t, "/return")),
    s("two blank lines and no head", Http1, |t| t.send(b"\r\n\r\n")),
    s("only a preface", Http2, |t| {
        let preface = t.preface(&[]);
        t.send(&preface);
    }),
    s("half a preface", Http2, |t| t.send(b"PRI * HTTP/2.0\r\n")),
    s("a head without its end", Http2, |t| {
        let mut head = t.head("/return", None);
        // END_HEADERS, in the flags of the last frame.
        let at = head.windows(5).rposition(|w| w[0] == 1 && w[2..] == [0, 0, 0]).unwrap_or(0);
        head[at + 1] &= !4;
        t.send(&head);
    }),
    s("a request", All, |t| ask(t, "/return")),
    s("a file", All, |t| ask(t, "/small")),
    s("an answer of a server", All, |t| ask(t, "/up")),
    s("idle, then asks", All, |t| {
        ask(t, "/return");
        t.answers(1);
        t.pause();
        ask(t, "/up");
    }),
    s("idle, then half a head", All, |t| {
        ask(t, "/return");
        t.answers(1);
        half_a_head(t, "/return");
    }),
    s("idle, then a head in pieces", All, |t| {
        ask(t, "/up");
        t.answers(1);
        in_pieces(t, "/return");
    }),
    s("three at once", All, |t| {
        let bytes = [t.head("/return", None), t.head("/up", None), t.head("/small", None)].concat();
        t.send(&bytes);
    }),
    s("half a body for nobody", All, |t| half_a_body(t, "/return")),
    s("half a body for a server", All, |t| half_a_body(t, "/up")),
    s("half a body on its way", All, |t| half_a_body(t, "/up-at-once")),
    s("half a body of a refusal", All, |t| half_a_body(t, "/refused")),
    s("no body for a server", All, |t| {
        let head = t.head("/up", Some(9));
        t.send(&head);
    }),
    s("half a body, then another asks", Http2, |t| {
        half_a_body(t, "/up");
        t.pause();
        ask(t, "/return");
    }),
    s("a body in pieces for nobody", All, |t| body_in_pieces(t, "/return")),
    s("a body in pieces for a server", All, |t| body_in_pieces(t, "/up")),
    s("a body in pieces on its way", All, |t| body_in_pieces(t, "/up-at-once")),
    s("a body after its last answer", Http1, |t| {
        let head = t.head_with("/return", Some(9), &[("connection", "close")]);
        t.send(&head);
        t.send(b"abc");
        t.pause();
        t.send(b"abc");
    }),
    s("half a chunk", Http1, |t| {
        t.send(
            b"POST /up HTTP/1.1\r\nHost: s1.example\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        );
    }),
    s("no body in spite of 100", Http1, |t| {
        let head = t.head_with("/up", Some(9), &[("expect", "100-continue")]);
        t.send(&head);
    }),
    s("a long file, unread for a while", All, |t| unread(t, "/big")),
    s("a long answer of a server, unread for a while", All, |t| unread(t, "/up-big")),
    s("no window", Http2, |t| {
        let bytes = [t.preface(&[Setting::InitialWindowSize(0)]), t.head("/return", None)].concat();
        t.send(&bytes);
    }),
    s("a window that is used up", Http2, |t| {
        t.takes = false;
        ask(t, "/big");
    }),
    s("a window that is used up, and another asks", Http2, |t| {
        t.takes = false;
        ask(t, "/big");
        t.pause();
        ask(t, "/small");
    }),
    s("a silent server", All, |t| ask(t, "/silent")),
    s("a server with half a head", All, |t| ask(t, "/half-head")),
    s("a server with half a body", All, |t| ask(t, "/half-body")),
    s("a slow server", All, |t| ask(t, "/slow")),
    s("a slow server, unbuffered", All, |t| ask(t, "/slow-at-once")),
    s("a deaf server", All, |t| ask(t, "/deaf")),
    s("a server that reads nothing", All, |t| {
        let head = t.head("/unread", Some(LONG));
        t.send(&head);
        // What the windows of HTTP/2 let through fits into the kernel's buffers: no write waits.
        if !t.is_http2() {
            t.send(&vec![b'x'; LONG]);
        }
    }),
    s("a server whose name nobody knows", All, |t| ask(t, "/name")),
    s("two silent servers", All, |t| ask(t, "/two")),
    s("two deaf servers", All, |t| ask(t, "/two-deaf")),
    s("a silent and a good server", All, |t| ask(t, "/silent-good")),
    s("a tunnel", Http1, |t| {
        let head = t.head_with("/switch", None, &[("upgrade", "x"), ("connection", "upgrade")]);
        t.send(&head);
        t.pause();
        t.send(b"more");
    }),
    s("a slow answer", All, |t| ask(t, "/limited")),
    s("an answer after its subrequest", All, |t| ask(t, "/asked-first")),
    s("a subrequest without an answer", All, |t| ask(t, "/asked-in-vain")),
    s("one that is being fetched", All, |t| {
        let bytes = [t.head("/locked", None), t.head("/locked", None)].concat();
        t.send(&bytes);
    }),
];

fn ask(t: &mut Talk, path: &str) {
    let head = t.head(path, None);
    t.send(&head);
}

fn half_a_head(t: &mut Talk, path: &str) {
    let head = t.head(path, None);
    t.send(&head[..head.len() / 2]);
}

fn in_pieces(t: &mut Talk, path: &str) {
    let head = t.head(path, None);
    for piece in head.chunks(head.len() / 3) {
        t.send(piece);
        t.pause();
    }
}

fn half_a_body(t: &mut Talk, path: &str) {
    let head = t.head(path, Some(9));
    t.send(&head);
    let piece = t.piece(b"abcd", false);
    t.send(&piece);
}

fn body_in_pieces(t: &mut Talk, path: &str) {
    let head = t.head(path, Some(9));
    t.send(&head);
    for piece in [b"abc", b"def", b"ghi"] {
        t.pause();
        let piece = t.piece(piece, piece == b"ghi");
        t.send(&piece);
    }
}

fn unread(t: &mut Talk, path: &str) {
    ask(t, path);
    t.look_away();
}
