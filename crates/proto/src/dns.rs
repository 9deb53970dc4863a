//! DNS messages (RFC 1035, RFC 3596, RFC 2782): queries for addresses, their names and services, and the
//! answers.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[cfg(test)]
mod tests;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum QueryType {
    /// IPv4 addresses.
    A = 1,
    /// The name of an address.
    Ptr = 12,
    /// IPv6 addresses.
    Aaaa = 28,
    /// The servers of a service.
    Srv = 33,
}

/// A name that cannot be asked for: empty, or with labels that are empty or too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadName;

/// A message that is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The query's number.
    pub id: u16,
    /// How it went: 0 well, 2 server failure, 3 no such name ...
    pub code: u8,
    /// Not all of it fitted: ask again over TCP.
    pub truncated: bool,
    /// The name that was asked for, in lower case. Bytes that are no UTF-8 are `U+FFFD`.
    pub name: String,
    /// The type that was asked for.
    pub kind: u16,
    /// The answers, in order.
    pub records: Vec<ResourceRecord>,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRecord {
    /// The name that it belongs to, in lower case. Bytes that are no UTF-8 are `U+FFFD`.
    pub name: String,
    /// How many seconds it holds.
    pub ttl: u32,
    /// What it says.
    pub data: Data,
}

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// An IPv4 address.
    A(Ipv4Addr),
    /// An IPv6 address.
    Aaaa(Ipv6Addr),
    /// The name is another name for this one.
    Cname(String),
    /// The name of the address.
    Ptr(String),
    /// A server of a service.
    Srv {
        /// Lower ones come first.
        priority: u16,
        /// Share among those of one priority.
        weight: u16,
        /// Its port.
        port: u16,
        /// Its name.
        target: String,
    },
    /// Anything else, also a name that is no UTF-8.
    Other,
}

const HEAD: usize = 12;
const CLASS_IN: u16 = 1;
const CNAME: u16 = 5;
const RESPONSE: u16 = 0x8000;
const TRUNCATED: u16 = 0x0200;
const RECURSION_DESIRED: u16 = 0x0100;
/// Longest name, with its dots: four labels of 63, which is two bytes more than RFC 1035 allows, and what
/// nginx lets pass.
const NAME_MAX: usize = 255;
/// Most references in a name. As many as it may have labels; as in nginx.
const REFERENCES: usize = 128;

/// The name under which the name of an address is asked for (RFC 1035, section 3.5; RFC 3596, section 2.5).
pub fn reverse(ip: IpAddr) -> String {
    let mut name = String::new();
    // Writing to a string does not fail.
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            let _ = write!(name, "{d}.{c}.{b}.{a}.in-addr.arpa");
        }
        IpAddr::V6(ip) => {
            for byte in ip.octets().iter().rev() {
                let _ = write!(name, "{:x}.{:x}.", byte & 0xf, byte >> 4);
            }
            name.push_str("ip6.arpa");
        }
    }
    name
}

/// Appends a query to `out`.
pub fn query(id: u16, name: &str, kind: QueryType, out: &mut Vec<u8>) -> Result<(), BadName> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(BadName);
    }
    let start = out.len();
    for word in [id, RECURSION_DESIRED, 1, 0, 0, 0] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    for label in name.split('.') {
        let len = u8::try_from(label.len()).ok().filter(|n| (1..64).contains(n));
        let Some(len) = len else {
            out.truncate(start);
            return Err(BadName);
        };
        out.push(len);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out.extend_from_slice(&(kind as u16).to_be_bytes());
    out.extend_from_slice(&CLASS_IN.to_be_bytes());
    Ok(())
}

/// Reads an answer. Records of other classes are left out.
pub fn parse(message: &[u8]) -> Result<Message, Malformed> {
    let mut reader = MessageReader { message, at: 0 };
    let id = reader.word()?;
    let flags = reader.word()?;
    let (questions, answers) = (reader.word()?, reader.word()?);
    reader.at = HEAD;
    if flags & RESPONSE == 0 || questions != 1 {
        return Err(Malformed);
    }
    let name = reader.shown_name()?;
    let kind = reader.word()?;
    if reader.word()? != CLASS_IN {
        return Err(Malformed);
    }
    let mut records = Vec::new();
    for _ in 0..answers {
        match reader.record() {
            Ok(Some(record)) => records.push(record),
            Ok(None) => {}
            // What was cut off is asked for again.
            Err(Malformed) if flags & TRUNCATED != 0 => break,
            Err(Malformed) => return Err(Malformed),
        }
    }
    let truncated = flags & TRUNCATED != 0;
    Ok(Message { id, code: (flags & 0xf) as u8, truncated, name, kind, records })
}

struct MessageReader<'a> {
    message: &'a [u8],
    at: usize,
}

impl MessageReader<'_> {
    fn take(&mut self, n: usize) -> Result<&[u8], Malformed> {
        let end = self.at.checked_add(n).ok_or(Malformed)?;
        let bytes = self.message.get(self.at..end).ok_or(Malformed)?;
        self.at = end;
        Ok(bytes)
    }

    fn word(&mut self) -> Result<u16, Malformed> {
        let bytes = self.take(2)?;
        bytes.try_into().map(u16::from_be_bytes).map_err(|_| Malformed)
    }

    fn record(&mut self) -> Result<Option<ResourceRecord>, Malformed> {
        let name = self.shown_name()?;
        let (kind, class) = (self.word()?, self.word()?);
        let ttl = u32::from(self.word()?) << 16 | u32::from(self.word()?);
        let len = usize::from(self.word()?);
        let end = self.at + len;
        if end > self.message.len() {
            return Err(Malformed);
        }
        let data = match kind {
            1 => Data::A(self.array::<4>(len)?.into()),
            28 => Data::Aaaa(self.array::<16>(len)?.into()),
            CNAME => self.name()?.map_or(Data::Other, Data::Cname),
            12 => self.name()?.map_or(Data::Other, Data::Ptr),
            33 => {
                let (priority, weight, port) = (self.word()?, self.word()?, self.word()?);
                let server = |target| Data::Srv { priority, weight, port, target };
                self.name()?.map_or(Data::Other, server)
            }
            _ => Data::Other,
        };
        if self.at > end {
            return Err(Malformed);
        }
        self.at = end;
        Ok((class == CLASS_IN).then_some(ResourceRecord { name, ttl, data }))
    }

    fn array<const N: usize>(&mut self, len: usize) -> Result<[u8; N], Malformed> {
        if len != N {
            return Err(Malformed);
        }
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    /// A name that is only compared or shown.
    fn shown_name(&mut self) -> Result<String, Malformed> {
        Ok(String::from_utf8_lossy(&self.name_bytes()?).into_owned())
    }

    /// A name that may be asked for. None if it is no UTF-8.
    fn name(&mut self) -> Result<Option<String>, Malformed> {
        Ok(String::from_utf8(self.name_bytes()?).ok())
    }

    /// A name, which may end with a reference to an earlier place. References lead backwards
    /// only, so that they cannot lead in a circle.
    fn name_bytes(&mut self) -> Result<Vec<u8>, Malformed> {
        let mut name = Vec::new();
        let (mut at, mut behind, mut bound, mut references) = (self.at, None, self.at, 0);
        loop {
            let len = *self.message.get(at).ok_or(Malformed)?;
            match len >> 6 {
                0 if len == 0 => break,
                0 => {
                    let label = at + 1..at + 1 + usize::from(len);
                    at = label.end;
                    if !name.is_empty() {
                        name.push(b'.');
                    }
                    name.extend_from_slice(self.message.get(label).ok_or(Malformed)?);
                    if name.len() > NAME_MAX {
                        return Err(Malformed);
                    }
                }
                3 => {
                    let low = *self.message.get(at + 1).ok_or(Malformed)?;
                    let target = usize::from(len & 0x3f) << 8 | usize::from(low);
                    behind.get_or_insert(at + 2);
                    references += 1;
                    if target >= bound || references > REFERENCES {
                        return Err(Malformed);
                    }
                    (at, bound) = (target, target);
                }
                _ => return Err(Malformed),
            }
        }
        self.at = behind.unwrap_or(at + 1);
        name.make_ascii_lowercase();
        Ok(name)
    }
}
