//! All that a client's first message holds, as it stands there.

use super::{CLIENT_HELLO, Cursor, HANDSHAKE, MESSAGE, RECORD};

/// A client's hello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawHello {
    /// The client's random bytes.
    pub random: [u8; 32],
    /// The session that it would resume in the way of TLS 1.2.
    pub session: Vec<u8>,
    /// Ciphers by number, in its order.
    pub ciphers: Vec<u16>,
    /// Extensions by number, in its order, with their contents.
    pub extensions: Vec<(u16, Vec<u8>)>,
}

/// The extension with versions.
const SUPPORTED_VERSIONS: u16 = 43;
/// The extension with a ticket of TLS 1.2.
const SESSION_TICKET: u16 = 35;
/// The extension with tickets of TLS 1.3.
const PRE_SHARED_KEY: u16 = 41;

/// Reads the whole message out of its records.
pub fn raw(input: &[u8]) -> Option<RawHello> {
    let mut message = Vec::new();
    let mut rest = input;
    while let Some((&[HANDSHAKE, _, _, high, low], body)) = rest.split_first_chunk::<RECORD>() {
        let (here, after) = body.split_at_checked(usize::from(u16::from_be_bytes([high, low])))?;
        message.extend_from_slice(here);
        rest = after;
    }
    let (head, body) = message.split_first_chunk::<MESSAGE>()?;
    let [CLIENT_HELLO, a, b, c] = *head else { return None };
    read(body.get(..usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c))?)
}

fn read(body: &[u8]) -> Option<RawHello> {
    let mut at = Cursor(body);
    at.take(2)?;
    let random = *at.take(32)?.first_chunk()?;
    let session = at.byte()?;
    let session = at.take(usize::from(session))?.to_vec();
    let ciphers = at.length()?;
    let ciphers = at.take(ciphers)?.chunks_exact(2);
    let ciphers = ciphers.map(|id| u16::from_be_bytes([id[0], id[1]])).collect();
    let compressions = at.byte()?;
    at.take(usize::from(compressions))?;
    let mut hello = RawHello { random, session, ciphers, extensions: Vec::new() };
    if at.0.is_empty() {
        return Some(hello);
    }
    let length = at.length()?;
    let mut all = Cursor(at.take(length)?);
    while !all.0.is_empty() {
        let (kind, length) = (all.length()?, all.length()?);
        let kind = u16::try_from(kind).ok()?;
        hello.extensions.push((kind, all.take(length)?.to_vec()));
    }
    Some(hello)
}

/// Values that clients add so that servers keep to the rules for unknown ones. RFC 8701
pub fn is_grease(id: u16) -> bool {
    id & 0x0f0f == 0x0a0a && id >> 8 == id & 0xff
}

impl RawHello {
    /// The contents of an extension.
    pub fn extension(&self, kind: u16) -> Option<&[u8]> {
        let found = self.extensions.iter().find(|(known, _)| *known == kind);
        found.map(|(_, contents)| contents.as_slice())
    }

    /// The versions that it lists, in its order; none if it has no list.
    pub fn versions(&self) -> Option<Vec<u16>> {
        let (length, list) = self.extension(SUPPORTED_VERSIONS)?.split_first()?;
        let list = list.get(..usize::from(*length))?.chunks_exact(2);
        Some(list.map(|id| u16::from_be_bytes([id[0], id[1]])).collect())
    }

    /// Whether it would resume a session: it has a ticket, or names a session in the way of TLS 1.2.
    pub fn resumes(&self) -> bool {
        let has = |kind| self.extension(kind).is_some_and(|contents| !contents.is_empty());
        // With TLS 1.3 the name of a session means nothing.
        let names_one = self.versions().is_none() && !self.session.is_empty();
        names_one || has(SESSION_TICKET) || has(PRE_SHARED_KEY)
    }
}
