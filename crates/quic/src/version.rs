//! The versions of QUIC: 1 (RFC 9000) and 2 (RFC 9369).
//!
//! quinn writes and reads packets of version 1. Version 2 numbers the types of long heads in another way, and its keys have other
//! labels. So the type of a packet that comes is changed to that of version 1 before quinn reads it ([`Version::read_head`]), and its
//! key sees it as it came ([`Version::as_sent`]); the key of a packet that goes writes the version and the type
//! ([`Version::write_head`]). Heads that are short are the same in both.
//!
//! A client that begins with one version may prefer the other (RFC 9368, section 2.3): it lists both among its transport parameters,
//! and the server answers in the one that is chosen. The client's first packets may come in either.

use std::borrow::Cow;

use quinn_proto::{TransportError, TransportErrorCode};
use weir_tls::quic::TlsVersion;

use crate::paths::Frames;

/// A version that clients may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    One,
    Two,
}

/// The types of packets with a long head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LongKind {
    Initial,
    /// 0-RTT.
    Early,
    Handshake,
    Retry,
}

/// The bit of a long head, and those of its type.
const LONG: u8 = 0x80;
const KIND: u8 = 0x30;
/// The first byte and the version.
const START: usize = 1 + 4;
/// The transport parameter that lists versions. RFC 9368, section 3.
const VERSION_INFORMATION: u64 = 0x11;

impl Version {
    /// All, in the order in which clients are told them.
    pub const ALL: [Version; 2] = [Version::One, Version::Two];

    /// By its number.
    pub fn of(number: u32) -> Option<Version> {
        Version::ALL.into_iter().find(|version| version.number() == number)
    }

    /// RFC 9000, section 15; RFC 9369, section 3.1.
    pub const fn number(self) -> u32 {
        match self {
            Version::One => 1,
            Version::Two => 0x6b33_43cf,
        }
    }

    /// As TLS knows it, for keys.
    pub const fn tls(self) -> TlsVersion {
        match self {
            Version::One => TlsVersion::V1,
            Version::Two => TlsVersion::V2,
        }
    }

    /// The version of a packet with a long head; none if the head is short, or the version unknown.
    pub fn of_packet(packet: &[u8]) -> Option<Version> {
        let [first, number @ ..] = packet.first_chunk::<START>()?;
        if first & LONG == 0 {
            return None;
        }
        Version::of(u32::from_be_bytes(*number))
    }

    /// The type of a packet of this version by its first byte. RFC 9000, section 17.2; RFC 9369, section 3.2.
    pub const fn kind(self, first: u8) -> LongKind {
        match (first >> 4).wrapping_sub(self.shift()) & 3 {
            0 => LongKind::Initial,
            1 => LongKind::Early,
            2 => LongKind::Handshake,
            _ => LongKind::Retry,
        }
    }

    /// How far the numbers of types lie behind those of version 1.
    const fn shift(self) -> u8 {
        match self {
            Version::One => 0,
            Version::Two => 1,
        }
    }

    /// Changes the type of a packet that came, which is of this version, to that of version 1.
    pub fn read_head(self, packet: &mut [u8]) {
        turn(packet, 4 - self.shift());
    }

    /// Gives a packet that goes, with a type of version 1, the form of this version. A short head stays.
    pub fn write_head(self, packet: &mut [u8]) {
        if let Some([first, number @ ..]) = packet.first_chunk_mut::<START>()
            && *first & LONG > 0
        {
            number.copy_from_slice(&self.number().to_be_bytes());
            turn(packet, self.shift());
        }
    }

    /// The head that [`Version::read_head`] has changed, as it was sent.
    pub fn as_sent(head: &[u8]) -> Cow<'_, [u8]> {
        match Version::of_packet(head).map_or(0, Version::shift) {
            0 => Cow::Borrowed(head),
            shift => {
                let mut sent = head.to_vec();
                turn(&mut sent, shift);
                Cow::Owned(sent)
            }
        }
    }
}

/// Adds to the number of the type.
fn turn(packet: &mut [u8], by: u8) {
    if let Some(first) = packet.first_mut() {
        *first = *first & !KIND | first.wrapping_add(by << 4) & KIND;
    }
}

/// What a client's first message comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// The connection's version from now on.
    pub version: Version,
    /// The client has listed its versions, and is told the server's.
    pub lists: bool,
}

impl Agreement {
    /// Chooses the first version in the client's list that is known. `first` is that of its first packet; it stays for a client
    /// that lists none, and for one that resumes a session, which belongs to its version (RFC 9369, section 5).
    ///
    /// # Errors
    ///
    /// The list cannot be read, or says that the client has begun with another version.
    pub fn new(
        first: Version,
        parameters: &[u8],
        resumes: bool,
    ) -> Result<Agreement, TransportError> {
        let Some(list) = parameter(parameters, VERSION_INFORMATION) else {
            return Ok(Agreement { version: first, lists: false });
        };
        let (each, rest) = list.as_chunks::<4>();
        let mut numbers = each.iter().map(|number| u32::from_be_bytes(*number));
        let chosen = numbers.next().filter(|_| rest.is_empty() && !each.contains(&[0; 4]));
        let Some(chosen) = chosen else {
            return Err(error(
                TransportErrorCode::TRANSPORT_PARAMETER_ERROR,
                "bad list of versions",
            ));
        };
        if chosen != first.number() {
            const OTHER: &str = "the client says that it has begun with another version";
            return Err(error(TransportErrorCode::PROTOCOL_VIOLATION, OTHER));
        }
        let preferred = numbers.find_map(Version::of).filter(|_| !resumes);
        Ok(Agreement { version: preferred.unwrap_or(first), lists: true })
    }

    /// Appends what the client is told to the server's transport parameters.
    pub fn write(&self, parameters: &mut Vec<u8>) {
        if self.lists {
            let versions = std::iter::once(self.version).chain(Version::ALL);
            let list: Vec<u8> =
                versions.flat_map(|version| version.number().to_be_bytes()).collect();
            // Both numbers take one byte: RFC 9000, section 16.
            parameters.extend([VERSION_INFORMATION as u8, list.len() as u8]);
            parameters.extend(list);
        }
    }
}

fn error(code: TransportErrorCode, reason: &str) -> TransportError {
    TransportError { code, frame: None, reason: reason.to_owned() }
}

/// The value of a transport parameter. RFC 9000, section 18. What cannot be read is left to quinn, which reads all of them.
fn parameter(parameters: &[u8], wanted: u64) -> Option<&[u8]> {
    let mut rest = Frames(parameters);
    loop {
        let (id, value) = (rest.number()?, rest.text()?);
        if id == wanted {
            return Some(value);
        }
    }
}
