//! A client's first message of TLS, read without taking part in the conversation: the name that it
//! asks for, the protocols that it would speak, and the version. RFC 8446, section 4.1.2; RFC 6066,
//! section 3; RFC 7301.

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
    /// It has transport parameters of QUIC. RFC 9001, section 8.2.
    pub has_quic_parameters: bool,
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
        if length == 0 {
            return HelloProgress::Other;
        }
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
    while !extensions.0.is_empty() {
        let (kind, length) = (extensions.length()?, extensions.length()?);
        // A last one that claims more than there is is read as far as it goes, as nginx does.
        let data = Cursor(extensions.take(length.min(extensions.0.len()))?);
        match kind {
            0 => hello.server_name = name(data)?,
            16 => hello.alpn = protocols(data)?,
            43 => hello.version = highest(data)?,
            57 => hello.has_quic_parameters = true,
            _ => {}
        }
    }
    Some(hello)
}

fn name(mut data: Cursor<'_>) -> Option<Vec<u8>> {
    let length = data.length()?;
    let mut list = Cursor(data.take(length)?);
    while !list.0.is_empty() {
        let (kind, length) = (list.byte()?, list.length()?);
        let name = list.take(length)?;
        if kind == 0 {
            return Some(name.to_vec());
        }
    }
    Some(Vec::new())
}

fn protocols(mut data: Cursor<'_>) -> Option<Vec<u8>> {
    let length = data.length()?;
    let mut list = Cursor(data.take(length)?);
    let mut names = Vec::new();
    while !list.0.is_empty() {
        let length = list.byte()?;
        let name = list.take(usize::from(length))?;
        if name.is_empty() {
            return None;
        }
        if !names.is_empty() {
            names.push(b',');
        }
        names.extend_from_slice(name);
    }
    Some(names)
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

    /// A hello that asks for `name` and would speak `alpn`, in version 1.3.
    fn message(name: &[u8], alpn: &[&[u8]]) -> Vec<u8> {
        let with_length = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
        let entry = [&[0u8][..], &with_length(name)].concat();
        let list: Vec<u8> =
            alpn.iter().flat_map(|name| [&[name.len() as u8][..], name].concat()).collect();
        let mut extensions = Vec::new();
        for (kind, data) in [
            (0u16, with_length(&entry)),
            (16, with_length(&list)),
            (43, vec![6, 0x0a, 0x0a, 3, 4, 3, 3]),
        ] {
            extensions.extend_from_slice(&kind.to_be_bytes());
            extensions.extend_from_slice(&with_length(&data));
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
