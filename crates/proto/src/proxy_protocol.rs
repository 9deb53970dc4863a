//! The PROXY protocol, versions 1 and 2: a header of a balancer with the client's address, before
//! the client's own bytes.
//!
//! Source: haproxy's doc/proxy-protocol.txt. weir accepts and refuses what nginx does
//! (core/ngx_proxy_protocol.c), except that a header may arrive in pieces.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Version 1 is one line, no longer than this.
const LINE: usize = 107;
/// The fixed part of version 2.
const FIXED: usize = 16;
/// A header of version 2 with all of its extras is refused when longer: it has to be kept while it is read.
const MOST: usize = 4096;
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// What a header said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The address that connected to the balancer, as text: of version 1, as it was sent.
    pub source: Vec<u8>,
    /// From which port.
    pub source_port: u16,
    /// What it connected to.
    pub destination: Vec<u8>,
    /// To which port.
    pub destination_port: u16,
    /// What version 2 adds: type, length in two bytes, value, one after another.
    tlvs: Vec<u8>,
}

/// What the bytes received so far come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyProgress {
    /// More must come.
    More,
    /// The header ends after `len` bytes. It names no client if the balancer speaks for itself, or
    /// of something that is not TCP over IP.
    Done {
        /// Both addresses.
        header: Option<Box<ProxyHeader>>,
        /// Length of the header.
        len: usize,
    },
}

/// Why the connection is to be closed; shown, it is nginx's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// This is no header: its first line.
    Broken(Vec<u8>),
    /// Another version than 2 behind the signature of 2.
    Version(u8),
    /// Longer than anything sensible.
    TooLarge,
    /// Shorter than its addresses.
    TooShort,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeaderError::Broken(line) => {
                write!(f, "broken header: \"{}\"", String::from_utf8_lossy(line))
            }
            HeaderError::Version(version) => {
                write!(f, "unknown PROXY protocol version: {version}")
            }
            HeaderError::TooLarge => f.write_str("header is too large"),
            HeaderError::TooShort => f.write_str("header is too short"),
        }
    }
}

/// Appends a header with the addresses of both ends, of a connection or of datagrams. If they are
/// unknown, it says that it names no client. Version 1 has no word for datagrams, and names the
/// client's family. In version 2 both addresses are of one family, so one of IPv4 beside one of
/// IPv6 is written as one of IPv6.
pub fn write(
    version: u8,
    ends: Option<(SocketAddr, SocketAddr)>,
    datagrams: bool,
    extras: &Extras,
    out: &mut Vec<u8>,
) {
    if version != 2 {
        let line = match ends {
            Some((from, to)) => {
                let family = if from.is_ipv4() { "TCP4" } else { "TCP6" };
                let (source, destination) = (from.ip(), to.ip());
                format!("PROXY {family} {source} {destination} {} {}\r\n", from.port(), to.port())
            }
            None => "PROXY UNKNOWN\r\n".to_owned(),
        };
        return out.extend_from_slice(line.as_bytes());
    }
    let mut addresses = Vec::new();
    let [command, family] = match ends {
        // LOCAL: the connection is this server's own affair.
        None => [0x20, 0],
        Some((from, to)) => {
            let family = match (mapped(from.ip()), mapped(to.ip())) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    addresses.extend_from_slice(&[from.octets(), to.octets()].concat());
                    0x11
                }
                _ => {
                    addresses.extend_from_slice(&[wide(from.ip()), wide(to.ip())].concat());
                    0x21
                }
            };
            addresses.extend_from_slice(&from.port().to_be_bytes());
            addresses.extend_from_slice(&to.port().to_be_bytes());
            [0x21, family + u8::from(datagrams)]
        }
    };
    addresses.extend_from_slice(&extras.0);
    let start = out.len();
    out.extend_from_slice(SIGNATURE);
    out.extend_from_slice(&[command, family]);
    out.extend_from_slice(&((addresses.len() + SUM.len() + 4) as u16).to_be_bytes());
    out.extend_from_slice(&addresses);
    out.extend_from_slice(&SUM);
    out.extend_from_slice(&[0; 4]);
    let sum = crc32c(out.get(start..).unwrap_or_default());
    let at = out.len() - 4;
    out.truncate(at);
    out.extend_from_slice(&sum.to_be_bytes());
}

/// The address of IPv4 that one of IPv6 stands for, if it does.
fn mapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// As an address of IPv6.
fn wide(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
    }
}

/// What is said beside addresses, in headers of version 2.
#[derive(Debug, Default)]
pub struct Extras(Vec<u8>);

/// Longer values are left out.
const LONGEST_EXTRA: usize = 1024;

impl Extras {
    /// Adds a value of this type: PP2_TYPE_..., see `extras`.
    pub fn add(&mut self, kind: u8, value: &[u8]) {
        if value.len() <= LONGEST_EXTRA {
            self.0.push(kind);
            self.0.extend_from_slice(&(value.len() as u16).to_be_bytes());
            self.0.extend_from_slice(value);
        }
    }

    /// Adds what is said of a client's TLS: whether it has shown a certificate, now or when its session began, what is
    /// wrong with that (OpenSSL's number; 1 where there is none), and these values.
    pub fn add_tls(&mut self, shown: bool, now: bool, fault: u32, values: &Extras) {
        let client = 1 | u8::from(shown && now) << 1 | u8::from(shown) << 2;
        let head = [&[client][..], &fault.to_be_bytes(), &values.0].concat();
        self.add(extras::SSL, &head);
    }
}

/// Types of what is said beside addresses.
pub mod extras {
    /// The protocol that was agreed on.
    pub const ALPN: u8 = 0x01;
    /// The name that the client gave.
    pub const AUTHORITY: u8 = 0x02;
    /// What is known of the client's TLS.
    pub const SSL: u8 = 0x20;
    /// Of that, the version.
    pub const SSL_VERSION: u8 = 0x21;
    /// The common name in the client's certificate.
    pub const SSL_CN: u8 = 0x22;
    /// The cipher.
    pub const SSL_CIPHER: u8 = 0x23;
    /// How the server's certificate is signed.
    pub const SSL_SIGNATURE: u8 = 0x24;
    /// The kind and size of its key.
    pub const SSL_KEY: u8 = 0x25;
}

/// What follows is the header's checksum, counted with zeros in its place: PP2_TYPE_CRC32C, 4 bytes.
const SUM: [u8; 3] = [3, 0, 4];

/// CRC-32C, of few bytes (RFC 3720, appendix B.4).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg())
        })
    })
}

/// Reads a header at the start of what was received.
///
/// # Errors
///
/// It is none; nothing that could follow makes it one.
pub fn parse(input: &[u8]) -> Result<ProxyProgress, HeaderError> {
    let common = input.len().min(SIGNATURE.len());
    if input[..common] == SIGNATURE[..common] {
        return if input.len() < FIXED { Ok(ProxyProgress::More) } else { version_2(input) };
    }
    version_1(input).map_err(|NoLine| broken(input))
}

/// What is wrong with a header after whose first bytes nothing follows.
pub fn cut_short(input: &[u8]) -> HeaderError {
    match input.len() >= FIXED && input.starts_with(SIGNATURE) {
        // It says that it is longer than all that came.
        true => HeaderError::TooLarge,
        false => broken(input),
    }
}

/// What came is no header: the first line of it.
fn broken(input: &[u8]) -> HeaderError {
    let end = input.iter().position(|b| matches!(b, b'\r' | b'\n'));
    HeaderError::Broken(input[..end.unwrap_or(input.len())].to_vec())
}

struct NoLine;

fn version_1(input: &[u8]) -> Result<ProxyProgress, NoLine> {
    let start = b"PROXY ";
    let common = input.len().min(start.len());
    if input[..common] != start[..common] {
        return Err(NoLine);
    }
    let line = &input[..input.len().min(LINE)];
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else {
        // A sender of LF alone waits for an answer and sends nothing more.
        let may_end = input.len() < LINE && !line.contains(&b'\n');
        return if may_end { Ok(ProxyProgress::More) } else { Err(NoLine) };
    };
    let len = end + 2;
    let rest = input.get(start.len()..end).ok_or(NoLine)?;
    if rest.starts_with(b"UNKNOWN") {
        return Ok(ProxyProgress::Done { header: None, len });
    }
    let rest = rest.strip_prefix(b"TCP4 ").or_else(|| rest.strip_prefix(b"TCP6 "));
    let mut words = rest.ok_or(NoLine)?.split(|b| *b == b' ');
    let mut address = || {
        let word = words.next().ok_or(NoLine)?;
        let valid = word.iter().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'));
        if valid { Ok(word.to_vec()) } else { Err(NoLine) }
    };
    let (source, destination) = (address()?, address()?);
    let mut port = || words.next().and_then(number).ok_or(NoLine);
    let (source_port, destination_port) = (port()?, port()?);
    if words.next().is_some() {
        return Err(NoLine);
    }
    let header =
        ProxyHeader { source, source_port, destination, destination_port, tlvs: Vec::new() };
    Ok(ProxyProgress::Done { header: Some(Box::new(header)), len })
}

fn number(digits: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(digits).ok()?;
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn version_2(input: &[u8]) -> Result<ProxyProgress, HeaderError> {
    let (fixed, rest) = input.split_at(FIXED);
    let [command, family, high, low] = fixed[12..] else { return Ok(ProxyProgress::More) };
    if command >> 4 != 2 {
        return Err(HeaderError::Version(command >> 4));
    }
    let size = usize::from(u16::from_be_bytes([high, low]));
    if size > MOST {
        return Err(HeaderError::TooLarge);
    }
    let Some(body) = rest.get(..size) else { return Ok(ProxyProgress::More) };
    let header = match (command & 0xf, family) {
        (1, 0x11) => Some(addresses::<4>(body, |ip| Ipv4Addr::from(ip).to_string())?),
        (1, 0x21) => Some(addresses::<16>(body, |ip| Ipv6Addr::from(ip).to_string())?),
        _ => None,
    };
    Ok(ProxyProgress::Done { header: header.map(Box::new), len: FIXED + size })
}

/// Two addresses of `N` bytes, two ports, and extras.
fn addresses<const N: usize>(
    body: &[u8],
    show: impl Fn([u8; N]) -> String,
) -> Result<ProxyHeader, HeaderError> {
    let short = HeaderError::TooShort;
    let (source, rest) = body.split_first_chunk::<N>().ok_or(short.clone())?;
    let (destination, rest) = rest.split_first_chunk::<N>().ok_or(short.clone())?;
    let (ports, tlvs) = rest.split_first_chunk::<4>().ok_or(short)?;
    Ok(ProxyHeader {
        source: show(*source).into_bytes(),
        source_port: u16::from_be_bytes([ports[0], ports[1]]),
        destination: show(*destination).into_bytes(),
        destination_port: u16::from_be_bytes([ports[2], ports[3]]),
        tlvs: tlvs.to_vec(),
    })
}

/// What is wrong with an extra that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlvError {
    /// The name is a number that is none.
    Invalid,
    /// Nothing has this name.
    Unknown,
    /// The extras do not add up.
    Broken,
}

/// Bytes in front of what the extra `ssl` holds: what the client used, and how its certificate was judged.
const SSL_FIXED: usize = 5;
const SSL: u64 = 0x20;

impl ProxyHeader {
    /// The extra of this name, as `$proxy_protocol_tlv_NAME` asks for it: a word, a number `0x..`, and both of
    /// what `ssl` holds with `ssl_` in front.
    ///
    /// # Errors
    ///
    /// The name or the extras are no good.
    pub fn tlv(&self, name: &[u8]) -> Result<Option<Vec<u8>>, TlvError> {
        let Some(name) = name.strip_prefix(b"ssl_") else {
            let number = match name {
                b"alpn" => 0x01,
                b"authority" => 0x02,
                b"unique_id" => 0x05,
                b"ssl" => SSL,
                b"netns" => 0x30,
                name => hexadecimal(name)?,
            };
            return Ok(find(&self.tlvs, number)?.map(<[u8]>::to_vec));
        };
        let Some(ssl) = find(&self.tlvs, SSL)? else { return Ok(None) };
        let (fixed, rest) = ssl.split_first_chunk::<SSL_FIXED>().ok_or(TlvError::Broken)?;
        let number = match name {
            b"verify" => {
                let [_, verify @ ..] = *fixed;
                return Ok(Some(u32::from_be_bytes(verify).to_string().into_bytes()));
            }
            b"version" => 0x21,
            b"cn" => 0x22,
            b"cipher" => 0x23,
            b"sig_alg" => 0x24,
            b"key_alg" => 0x25,
            name => hexadecimal(name)?,
        };
        Ok(find(rest, number)?.map(<[u8]>::to_vec))
    }
}

fn hexadecimal(name: &[u8]) -> Result<u64, TlvError> {
    let digits = name.strip_prefix(b"0x").ok_or(TlvError::Unknown)?;
    let text = std::str::from_utf8(digits).map_err(|_| TlvError::Invalid)?;
    if text.starts_with('+') {
        return Err(TlvError::Invalid);
    }
    u64::from_str_radix(text, 16).map_err(|_| TlvError::Invalid)
}

fn find(mut tlvs: &[u8], wanted: u64) -> Result<Option<&[u8]>, TlvError> {
    while let Some((head, rest)) = tlvs.split_first_chunk::<3>() {
        let len = usize::from(u16::from_be_bytes([head[1], head[2]]));
        let (value, behind) = rest.split_at_checked(len).ok_or(TlvError::Broken)?;
        if u64::from(head[0]) == wanted {
            return Ok(Some(value));
        }
        tlvs = behind;
    }
    if tlvs.is_empty() { Ok(None) } else { Err(TlvError::Broken) }
}

#[cfg(test)]
mod tests;
