//! Servers behind, which send as fast as they can.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_testkit::{fastcgi, listen};

/// Bytes that they have sent.
pub static SENT: AtomicU64 = AtomicU64::new(0);

/// Their ports.
pub struct Sources {
    pub http: u16,
    pub http2: u16,
    pub fastcgi: u16,
    pub memcached: u16,
    pub echo: u16,
    pub names: u16,
}

impl Sources {
    pub fn new() -> Sources {
        Sources {
            http: listen(|stream| {
                http(stream);
            }),
            http2: listen(|stream| {
                http2(stream);
            }),
            fastcgi: listen(|mut stream| {
                while fastcgi::request(&mut stream).is_some() {
                    let head = fastcgi::record(fastcgi::STDOUT, b"Status: 200\r\n\r\n", 0);
                    let record = fastcgi::record(fastcgi::STDOUT, b"x", 7);
                    forever(&mut stream, &head, &record);
                }
            }),
            memcached: listen(|mut stream| {
                let mut line = String::new();
                let read = stream.try_clone().map(BufReader::new);
                if read.is_ok_and(|mut reader| reader.read_line(&mut line).is_ok()) {
                    forever(&mut stream, b"VALUE /m/ 0 1000000000000\r\n", &[b'x'; 64]);
                }
            }),
            echo: listen(echo),
            names: names(),
        }
    }
}

/// `first`, then `more` until the peer stops reading.
fn forever(stream: &mut TcpStream, first: &[u8], more: &[u8]) -> Option<()> {
    stream.write_all(first).ok()?;
    let many = more.repeat(1 + (64 << 10) / more.len());
    loop {
        stream.write_all(&many).ok()?;
        SENT.fetch_add(many.len() as u64, Ordering::Relaxed);
    }
}

fn http(mut stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    let has = |word: &str| head.lines().next().is_some_and(|line| line.contains(word));
    if has("/upload") {
        let mut room = vec![0; 1 << 16];
        while reader.read(&mut room).ok()? > 0 {}
        return None;
    }
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    match () {
        () if has("/chunks") => forever(&mut stream, chunked, b"1\r\nx\r\n"),
        () if has("/extensions") => forever(&mut stream, chunked, b"1;abcdefgh\r\nx\r\n"),
        () if has("/trailers") => {
            forever(&mut stream, &[&chunked[..], b"0\r\n"].concat(), b"a: b\r\n")
        }
        () if has("/hints") => forever(&mut stream, b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        () if has("/switch") => {
            let head = b"HTTP/1.1 101 Echo\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
            forever(&mut stream, head, b"x")
        }
        () => forever(&mut stream, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", &[b'x'; 65536]),
    }
}

/// A frame without flags on stream 1 or none.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (payload.len() as u16).to_be_bytes();
    [&[0, high, low, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Says what is HTTP/2 to one request, then frames of no use.
fn http2(mut stream: TcpStream) -> Option<()> {
    let mut room = [0; 4096];
    let mut came = Vec::new();
    stream.write_all(&frame(4, 0, 0, b"")).ok()?;
    // A head may be in more than one piece, with what stands in front of it.
    while !came.windows(3).any(|path| [&b"/g/"[..], b"/f/"].contains(&path)) {
        let n = stream.read(&mut room).ok().filter(|n| *n > 0)?;
        came.extend_from_slice(&room[..n]);
        if came.len() > 200 {
            break;
        }
    }
    // What it says meanwhile is of no interest, but must be read.
    let mut reading = stream.try_clone().ok()?;
    thread::spawn(move || while reading.read(&mut [0; 65536]).is_ok_and(|n| n > 0) {});
    let head = frame(1, 4, 1, &[0x88]);
    forever(&mut stream, &head, &[frame(0, 0, 1, b""), frame(8, 0, 0, &[0, 0, 0, 1])].concat())
}

fn echo(mut stream: TcpStream) {
    let mut room = vec![0; 1 << 16];
    while let Ok(n) = stream.read(&mut room)
        && n > 0
        && stream.write_all(&room[..n]).is_ok()
    {}
}

/// Answers each question with a rush of answers to others, then its own.
fn names() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = socket.local_addr().expect("its address").port();
    thread::spawn(move || {
        let mut room = [0; 512];
        while let Ok((n, from)) = socket.recv_from(&mut room) {
            let mut answer = room[..n].to_vec();
            answer[2..4].copy_from_slice(&[0x81, 0x80]);
            let mut other = answer.clone();
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(20) {
                other[0] = other[0].wrapping_add(1);
                let sent = socket.send_to(&other, from).unwrap_or(0);
                SENT.fetch_add(sent as u64, Ordering::Relaxed);
            }
            answer[7] = 1;
            answer.extend_from_slice(b"\xc0\x0c\0\x01\0\x01\0\0\0\x01\0\x04\x7f\0\0\x01");
            let _ = socket.send_to(&answer, from);
        }
    });
    port
}
