//! Servers behind that delay their answers, each in its own way.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use weir_testkit::{Deaf, listen};

use super::talk::{PAUSE, pass};

/// What waits in vain for as long as the process lives.
pub struct Behind {
    /// As configurations name them, in the order of [`WAYS`].
    addresses: Vec<(&'static str, String)>,
    _deaf: Deaf,
    _mute: UdpSocket,
}

type Way = fn(TcpStream);

/// What each does with a connection that has asked.
const WAYS: &[(&str, Way)] = &[
    ("%%GOOD%%", |stream| {
        serve(stream, &[b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"], true)
    }),
    ("%%SILENT%%", |stream| serve(stream, &[], true)),
    ("%%HALFHEAD%%", |stream| serve(stream, &[b"HTTP/1.1 200 OK\r\nX: "], true)),
    ("%%HALFBODY%%", |stream| {
        serve(stream, &[b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok\n"], true);
    }),
    ("%%SLOW%%", |stream| {
        let pieces: [&[u8]; 4] =
            [b"HTTP/1.1 200 OK\r\nX: ", b"y\r\nContent-Length: 6\r\n\r\n", b"ok\n", b"ok\n"];
        serve(stream, &pieces, true);
    }),
    ("%%SWITCHES%%", |stream| {
        let head = b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhi";
        serve(stream, &[head], true);
    }),
    ("%%UNREAD%%", |stream| {
        pass(Duration::from_secs(60));
        drop(stream);
    }),
];

impl Behind {
    pub fn start() -> Behind {
        let mut addresses: Vec<(&str, String)> =
            WAYS.iter().map(|(name, way)| (*name, format!("127.0.0.1:{}", listen(*way)))).collect();
        let deaf = Deaf::new();
        addresses.push(("%%DEAF%%", format!("127.0.0.1:{}", deaf.port())));
        let mute = UdpSocket::bind("127.0.0.1:0").expect("a port for a name server");
        addresses.push(("%%MUTE%%", mute.local_addr().expect("its address").to_string()));
        Behind { addresses, _deaf: deaf, _mute: mute }
    }

    pub fn fill(&self, text: &str) -> String {
        self.addresses.iter().fold(text.to_owned(), |text, (name, at)| text.replace(name, at))
    }
}

/// Answers with each request's head, then stays until the other end goes.
fn serve(mut stream: TcpStream, pieces: &[&[u8]], stays: bool) {
    let (mut got, mut buf) = (Vec::new(), [0; 16 * 1024]);
    while let Ok(n) = stream.read(&mut buf)
        && n > 0
        && stays
    {
        got.extend_from_slice(&buf[..n]);
        while let Some(len) = request(&got) {
            got.drain(..len);
            for (n, piece) in pieces.iter().enumerate() {
                if n > 0 {
                    pass(PAUSE);
                }
                if stream.write_all(piece).is_err() {
                    return;
                }
            }
        }
    }
}

/// The length of the request that has come whole.
fn request(got: &[u8]) -> Option<usize> {
    let end = got.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&got[..end]).to_ascii_lowercase();
    if head.contains("transfer-encoding: chunked") {
        return got[end..].windows(5).position(|five| five == b"0\r\n\r\n").map(|at| end + at + 5);
    }
    let length = head.split("content-length: ").nth(1);
    let length: usize =
        length.and_then(|rest| rest.split("\r\n").next()?.parse().ok()).unwrap_or(0);
    (got.len() >= end + length).then_some(end + length)
}
