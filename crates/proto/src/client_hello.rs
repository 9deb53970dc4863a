//! A client's first message of TLS, read without taking part in the conversation: the name that it
//! asks for, the protocols that it would speak, and the version. RFC 8446, section 4.1.2; RFC 6066,
//! section 3; RFC 7301.

mod raw;

pub use raw::{RawHello, is_grease, raw};

/// What the first bytes come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelloProgress {
    /// More must come.
    More,
    /// A client's hello.
    Hello(Hello),
    /// Something else.
    Other,
}

/// What a client's first message says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The name that it asks for; empty where it does not tell.
    pub server_name: Vec<u8>,
    /// What it would speak, with commas between.
    pub alpn: Vec<u8>,
    /// The highest version that it knows.
    pub version: [u8; 2],
    /// Its transport parameters of QUIC, not read. RFC 9001, section 8.2.
    pub quic_parameters: Option<Vec<u8>>,
    /// It would resume a session. RFC 8446, section 4.2.11.
    pub resumes: bool,
}

impl Hello {
    /// The version's name.
    pub fn protocol(&self) -> &'static str {
        match self.version {
            [0, 2] => "SSLv2",
            [3, 0] => "SSLv3",
            [3, 1] => "TLSv1",
            [3, 2] => "TLSv1.1",
            [3, 3] => "TLSv1.2",
            [3, 4] => "TLSv1.3",
            _ => "",
        }
    }
}

/// A record of handshake messages, and its head.
const HANDSHAKE: u8 = 22;
const RECORD: usize = 5;
/// The message, and its head.
const CLIENT_HELLO: u8 = 1;
const MESSAGE: usize = 4;
/// A message that is longer is no ClientHello.
const MOST: usize = 64 * 1024;

/// Reads the bytes that a client began with. The message may come in several records.
pub fn parse(input: &[u8]) -> HelloProgress {
    let mut message = Vec::new();
    let mut rest = input;
    loop {
        match rest.first() {
            None => return HelloProgress::More,
            Some(&HANDSHAKE) => {}
            // The head of SSL 2: its highest bit, a length, and a client's hello.
            Some(first) if first & 0x80 != 0 && message.is_empty() => return old(rest),
            Some(_) => return HelloProgress::Other,
        }
        if rest.get(1).is_some_and(|major| *major != 3) {
            return HelloProgress::Other;
        }
        let Some((head, body)) = rest.split_at_checked(RECORD) else { return HelloProgress::More };
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        let (here, after) = body.split_at(length.min(body.len()));
        message.extend_from_slice(here);
        match whole(&message) {
            Some(HelloProgress::More) if here.len() == length && message.len() < MOST => {
                rest = after
            }
            Some(HelloProgress::More) if message.len() >= MOST => return HelloProgress::Other,
            Some(progress) => return progress,
            None => return HelloProgress::Other,
        }
    }
}

fn old(bytes: &[u8]) -> HelloProgress {
    match bytes {
        [_, _, CLIENT_HELLO, major, minor, ..] => {
            HelloProgress::Hello(Hello { version: [*major, *minor], ..Hello::default() })
        }
        [_, _, _, _, _, ..] => HelloProgress::Other,
        _ => HelloProgress::More,
    }
}

/// The message, if it is whole; none where it is no hello.
fn whole(message: &[u8]) -> Option<HelloProgress> {
    let Some((head, body)) = message.split_at_checked(MESSAGE) else {
        return match message.first() {
            Some(&CLIENT_HELLO) | None => Some(HelloProgress::More),
            Some(_) => None,
        };
    };
    if head[0] != CLIENT_HELLO {
        return None;
    }
    let length = usize::from(head[1]) << 16 | usize::from(head[2]) << 8 | usize::from(head[3]);
    match body.get(..length) {
        Some(body) => hello(body).map(HelloProgress::Hello),
        None if length > MOST => None,
        None => Some(HelloProgress::More),
    }
}

fn hello(body: &[u8]) -> Option<Hello> {
    let mut at = Cursor(body);
    let version = at.take(2)?;
    let mut hello = Hello { version: [version[0], version[1]], ..Hello::default() };
    at.take(32)?;
    let session = at.byte()?;
    at.take(usize::from(session))?;
    let ciphers = at.length()?;
    at.take(ciphers)?;
    let compressions = at.byte()?;
    at.take(usize::from(compressions))?;
    if at.0.is_empty() {
        return Some(hello);
    }
    let length = at.length()?;
    let mut extensions = Cursor(at.take(length)?);
    let (mut is_named, mut has_protocols) = (false, false);
    while !extensions.0.is_empty() {
        let (kind, length) = (extensions.length()?, extensions.length()?);
        // A last one that claims more than there is is read as far as it goes, as nginx does.
        let data = Cursor(extensions.take(length.min(extensions.0.len()))?);
        // No extension may come twice (RFC 8446, section 4.2). If one does, its first counts, as for nginx.
        match kind {
            0 if !std::mem::replace(&mut is_named, true) => hello.server_name = name(data)?,
            16 if !std::mem::replace(&mut has_protocols, true) => hello.alpn = protocols(data)?,
            43 => hello.version = highest(data)?,
            41 => hello.resumes = true,
            57 => hello.quic_parameters = Some(data.0.to_vec()),
            _ => {}
        }
    }
    Some(hello)
}

/// The first name of the list, which must be a host's. No other kind is defined (RFC 6066, section 3), and a server behind
/// may read what follows one in another way.
fn name(data: Cursor<'_>) -> Option<Vec<u8>> {
    let mut list = list(data)?;
    let (kind, length) = (list.byte()?, list.length()?);
    let name = list.take(length)?;
    (kind == 0).then(|| name.to_vec())
}

/// The names, of which there is at least one (RFC 7301, section 3.1).
fn protocols(data: Cursor<'_>) -> Option<Vec<u8>> {
    let mut list = list(data)?;
    let mut names = Vec::new();
    loop {
        let length = list.byte()?;
        let name = list.take(usize::from(length))?;
        if name.is_empty() {
            return None;
        }
        if !names.is_empty() {
            names.push(b',');
        }
        names.extend_from_slice(name);
        if list.0.is_empty() {
            return Some(names);
        }
    }
}

/// The list that is all of an extension.
fn list(mut data: Cursor<'_>) -> Option<Cursor<'_>> {
    let length = data.length()?;
    let list = data.take(length)?;
    data.0.is_empty().then_some(Cursor(list))
}

/// The highest of the versions that a client lists. Unknown ones are there to be skipped.
fn highest(mut data: Cursor<'_>) -> Option<[u8; 2]> {
    let length = data.byte()?;
    let list = data.take(usize::from(length))?;
    let known = list.chunks_exact(2).filter_map(|v| match v {
        [3, minor @ 0..=4] => Some([3, *minor]),
        // A draft of 1.3.
        [0x7f, _] => Some([3, 4]),
        _ => None,
    });
    Some(known.max().unwrap_or([3, 3]))
}

/// Bytes that are taken from the front.
struct Cursor<'b>(&'b [u8]);

impl<'b> Cursor<'b> {
    fn take(&mut self, n: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn length(&mut self) -> Option<usize> {
        self.take(2).map(|bytes| usize::from(u16::from_be_bytes([bytes[0], bytes[1]])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_length(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
    }

    /// The extension of a name of this kind.
    fn named(kind: u8, name: &[u8]) -> (u16, Vec<u8>) {
        (0, with_length(&[&[kind][..], &with_length(name)].concat()))
    }

    /// The extension of protocols.
    fn speaking(alpn: &[&[u8]]) -> (u16, Vec<u8>) {
        let names = alpn.iter().flat_map(|name| [&[name.len() as u8][..], name].concat());
        (16, with_length(&names.collect::<Vec<u8>>()))
    }

    /// A hello that asks for `name` and would speak `alpn`, in version 1.3.
    fn message(name: &[u8], alpn: &[&[u8]]) -> Vec<u8> {
        message_with(&[named(0, name), speaking(alpn), (43, vec![6, 0x0a, 0x0a, 3, 4, 3, 3])])
    }

    /// A hello with these extensions.
    fn message_with(all: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut extensions = Vec::new();
        for (kind, data) in all {
            extensions.extend_from_slice(&kind.to_be_bytes());
            extensions.extend_from_slice(&with_length(data));
        }
        let mut body = vec![3, 3];
        body.extend_from_slice(&[7; 32]);
        body.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
        body.extend_from_slice(&with_length(&extensions));
        let length = (body.len() as u32).to_be_bytes();
        [&[CLIENT_HELLO][..], &length[1..], &body].concat()
    }

    fn records(message: &[u8], piece: usize) -> Vec<u8> {
        let record = |part: &[u8]| {
            [&[HANDSHAKE, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat()
        };
        message.chunks(piece).flat_map(record).collect()
    }

    #[test]
    fn what_a_client_says() {
        let message = message(b"a.example", &[b"h2", b"http/1.1"]);
        for piece in [message.len(), 40, 1] {
            let bytes = records(&message, piece);
            for end in 0..bytes.len() {
                assert_eq!(parse(&bytes[..end]), HelloProgress::More, "{end} of {piece}");
            }
            let HelloProgress::Hello(hello) = parse(&bytes) else { panic!("{:?}", parse(&bytes)) };
            assert_eq!(hello.server_name, b"a.example");
            assert_eq!(hello.alpn, b"h2,http/1.1");
            assert_eq!(hello.protocol(), "TLSv1.3");
        }
    }

    /// What such a hello says of names: its server's, and its protocols.
    fn said(extensions: &[(u16, Vec<u8>)]) -> Option<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match parse(&records(&message_with(extensions), usize::MAX)) {
            HelloProgress::Hello(hello) => Some((text(&hello.server_name), text(&hello.alpn))),
            _ => None,
        }
    }

    #[test]
    fn the_first_of_two_extensions_counts() {
        let twice = [named(0, b"a"), speaking(&[b"h2"]), named(0, b"b"), speaking(&[b"h3"])];
        assert_eq!(said(&twice), Some(("a".to_owned(), "h2".to_owned())));
        // A first one without a name is one, too.
        let empty = [named(0, b""), named(0, b"b")];
        assert_eq!(said(&empty), Some((String::new(), String::new())));
    }

    #[test]
    fn a_list_that_servers_may_read_in_another_way_makes_no_hello() {
        let behind = |(kind, data): (u16, Vec<u8>)| (kind, [&data[..], b"x"].concat());
        for wrong in [
            named(1, b"a"),
            (0, with_length(&[1, 0, 1, b'a', 0, 0, 1, b'b'])),
            (0, with_length(b"")),
            behind(named(0, b"a")),
            speaking(&[]),
            speaking(&[b"h2", b""]),
            behind(speaking(&[b"h2"])),
        ] {
            assert_eq!(said(&[wrong.clone(), named(0, b"c")]), None, "{wrong:?}");
        }
        // What follows the first name belongs to no name.
        let two = (0, with_length(&[0, 0, 1, b'a', 1, 0, 1, b'b']));
        assert_eq!(said(&[two]), Some(("a".to_owned(), String::new())));
    }

    #[test]
    fn a_record_may_be_empty() {
        let bytes = records(&message(b"a.example", &[b"h2"]), usize::MAX);
        let begun = [&[HANDSHAKE, 3, 1, 0, 0][..], &bytes].concat();
        assert_eq!(parse(&begun), parse(&bytes));
        assert_eq!(parse(&begun[..RECORD]), HelloProgress::More);
    }

    #[test]
    fn all_of_a_hello_is_shown_as_it_stands_there() {
        let extensions =
            [named(0, b"a"), (43, vec![4, 0x0a, 0x0a, 3, 4]), (0x2a2a, vec![]), (41, vec![1])];
        let message = message_with(&extensions);
        for piece in [message.len(), 40, 1] {
            let bytes = records(&message, piece);
            assert!((0..bytes.len()).all(|end| raw(&bytes[..end]).is_none()));
            let hello = raw(&bytes).unwrap();
            assert_eq!((hello.random, &hello.ciphers[..]), ([7; 32], &[0x1301][..]));
            assert_eq!(hello.extensions, extensions);
            assert_eq!(hello.versions(), Some(vec![0x0a0a, 0x0304]));
            assert!(hello.resumes());
        }
        let plain = raw(&records(&message_with(&[named(0, b"a"), (35, vec![])]), 99)).unwrap();
        assert_eq!((plain.versions(), plain.resumes()), (None, false));
        assert!(is_grease(0x2a2a) && !is_grease(0x1301) && !is_grease(0x0a1a));
    }

    #[test]
    fn what_is_no_hello() {
        assert_eq!(parse(b"GET / HTTP/1.0\r\n"), HelloProgress::Other);
        assert_eq!(parse(&[HANDSHAKE, 2, 0]), HelloProgress::Other);
        assert_eq!(parse(&[HANDSHAKE, 3, 1, 0, 1, 2]), HelloProgress::Other);
        assert_eq!(parse(&[0x80, 40, 1, 0, 2]), {
            HelloProgress::Hello(Hello { version: [0, 2], ..Hello::default() })
        });
    }
}
