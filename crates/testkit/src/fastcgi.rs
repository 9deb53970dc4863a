//! A FastCGI server for tests. It can break the protocol.

use std::collections::BTreeMap;
use std::io::{Read, Write};

/// Types of records from a FastCGI server.
pub const STDOUT: u8 = 6;
/// See [`STDOUT`].
pub const STDERR: u8 = 7;
/// See [`STDOUT`].
pub const END: u8 = 3;

/// A received request.
#[derive(Debug, Default)]
pub struct FastcgiRequest {
    /// Whether the server is to keep the connection.
    pub keep: bool,
    /// The parameters.
    pub params: BTreeMap<String, String>,
    /// The body.
    pub body: Vec<u8>,
}

/// A valid record with padding.
pub fn record(kind: u8, content: &[u8], padding: u8) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).expect("a record's length").to_be_bytes();
    let mut out = vec![1, kind, 0, 1, high, low, padding, 0];
    out.extend_from_slice(content);
    out.resize(out.len() + usize::from(padding), 0xff);
    out
}

/// A complete answer: output, and the end of the request.
pub fn answer(output: &str) -> Vec<u8> {
    [record(STDOUT, output.as_bytes(), 0), record(STDOUT, b"", 0), record(END, &[0; 8], 0)].concat()
}

/// Reads a request. `None` at the end of the connection.
pub fn request(stream: &mut (impl Read + ?Sized)) -> Option<FastcgiRequest> {
    let (mut asked, mut params) = (FastcgiRequest::default(), Vec::new());
    loop {
        let (kind, content) = read_record(stream)?;
        match kind {
            1 => asked.keep = content.get(2).is_some_and(|flags| flags & 1 == 1),
            4 => params.extend_from_slice(&content),
            5 if content.is_empty() => break,
            5 => asked.body.extend_from_slice(&content),
            other => panic!("a record of type {other}"),
        }
    }
    let mut rest = params.as_slice();
    while !rest.is_empty() {
        let (name, value) = (length(&mut rest), length(&mut rest));
        let mut text = |length: usize| {
            let (text, after) = rest.split_at(length);
            rest = after;
            String::from_utf8_lossy(text).into_owned()
        };
        let (name, value) = (text(name), text(value));
        assert!(asked.params.insert(name.clone(), value).is_none(), "{name} came twice");
    }
    Some(asked)
}

/// Reads a record. Returns its type and content.
pub fn read_record(stream: &mut (impl Read + ?Sized)) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 8];
    stream.read_exact(&mut head).ok()?;
    assert_eq!((head[0], head[2], head[3]), (1, 0, 1), "version and id");
    let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let mut content = vec![0; length + usize::from(head[6])];
    stream.read_exact(&mut content).ok()?;
    content.truncate(length);
    Some((head[1], content))
}

fn length(bytes: &mut &[u8]) -> usize {
    let short = usize::from(bytes[0]);
    if short < 128 {
        *bytes = &bytes[1..];
        return short;
    }
    let long = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) & 0x7fff_ffff;
    *bytes = &bytes[4..];
    long as usize
}

/// Sends bytes. False if the peer has closed.
pub fn say(stream: &mut (impl Write + ?Sized), bytes: &[u8]) -> bool {
    stream.write_all(bytes).is_ok()
}
