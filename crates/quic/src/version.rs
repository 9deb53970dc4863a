//! The versions of QUIC: 1 (RFC 9000) and 2 (RFC 9369).
//!
//! quinn reads and writes packets of version 1. Version 2 has other type bits in long headers, and other key labels. So weir
//! converts the type bits of a received packet before quinn reads it ([`Version::read_header`]). The packet key needs the original
//! header as associated data ([`Version::as_sent`]). When quinn encrypts a packet, the key first writes the version and its type bits
//! ([`Version::write_header`]). Short headers are the same in both versions.
//!
//! A client of one version may prefer the other (compatible version negotiation: RFC 9368, section 2.3). It lists both in a transport
//! parameter, and the server answers in the version that it chooses. The client's Initial packets may have either version.

use std::borrow::Cow;

use quinn_proto::coding::Codec;
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

/// The bits of the first byte: long header, and packet type.
const LONG_HEADER: u8 = 0x80;
const TYPE_BITS: u8 = 0x30;
/// The length of the first byte and the version field.
const PREFIX: usize = 1 + 4;
/// The transport parameter `version_information`: RFC 9368, section 3.
const VERSION_INFORMATION: u64 = 0x11;
/// A variable-length integer of one byte.
const VERSION_NEGOTIATION_ERROR: u8 = 0x11;

impl Version {
    /// All versions, in the order of Version Negotiation packets and of `version_information`.
    pub const ALL: [Version; 2] = [Version::One, Version::Two];

    /// The version with this number.
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

    /// The version in rustls, for keys.
    pub const fn tls(self) -> TlsVersion {
        match self {
            Version::One => TlsVersion::V1,
            Version::Two => TlsVersion::V2,
        }
    }

    /// The version of a packet with a long header. `None` for a short header and for an unknown version.
    pub fn of_packet(packet: &[u8]) -> Option<Version> {
        let [first, number @ ..] = packet.first_chunk::<PREFIX>()?;
        if first & LONG_HEADER == 0 {
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

    /// The difference between the type bits of this version and those of version 1, modulo 4.
    const fn shift(self) -> u8 {
        match self {
            Version::One => 0,
            Version::Two => 1,
        }
    }

    /// Converts the type bits of a received packet of this version to version 1. The version field stays.
    pub fn read_header(self, packet: &mut [u8]) {
        add_to_type(packet, 4 - self.shift());
    }

    /// Converts a packet with type bits of version 1 to this version, before it is encrypted. A short header stays.
    pub fn write_header(self, packet: &mut [u8]) {
        if let Some([first, number @ ..]) = packet.first_chunk_mut::<PREFIX>()
            && *first & LONG_HEADER > 0
        {
            number.copy_from_slice(&self.number().to_be_bytes());
            add_to_type(packet, self.shift());
        }
    }

    /// The original of a header that [`Version::read_header`] has converted.
    pub fn as_sent(head: &[u8]) -> Cow<'_, [u8]> {
        match Version::of_packet(head).map_or(0, Version::shift) {
            0 => Cow::Borrowed(head),
            shift => {
                let mut sent = head.to_vec();
                add_to_type(&mut sent, shift);
                Cow::Owned(sent)
            }
        }
    }
}

/// Adds to the type bits, modulo 4.
fn add_to_type(packet: &mut [u8], by: u8) {
    if let Some(first) = packet.first_mut() {
        *first = *first & !TYPE_BITS | first.wrapping_add(by << 4) & TYPE_BITS;
    }
}

/// The result of version negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// The negotiated version.
    pub version: Version,
    /// The client has sent `version_information`, so the server does, too.
    pub lists: bool,
}

impl Agreement {
    /// Chooses the first known version in the client's list. `first` is the version of its first packet. It stays if the client sends
    /// no list, and if it resumes a session, since a session belongs to a version (RFC 9369, section 5).
    ///
    /// # Errors
    ///
    /// The list is malformed or lacks its chosen version, or that version is not `first` (RFC 9368, section 4).
    pub fn new(
        first: Version,
        parameters: &[u8],
        resumes: bool,
    ) -> Result<Agreement, TransportError> {
        let Some(list) = parameter(parameters, VERSION_INFORMATION) else {
            return Ok(Agreement { version: first, lists: false });
        };
        let (each, rest) = list.as_chunks::<4>();
        let is_valid = rest.is_empty() && !each.contains(&[0; 4]);
        let parts = each.split_first().filter(|_| is_valid);
        let Some((chosen, available)) = parts.filter(|(chosen, rest)| rest.contains(chosen)) else {
            return Err(error(
                TransportErrorCode::TRANSPORT_PARAMETER_ERROR,
                "bad list of versions",
            ));
        };
        if u32::from_be_bytes(*chosen) != first.number() {
            const OTHER: &str = "the client says that it has begun with another version";
            return Err(error(version_negotiation_error(), OTHER));
        }
        let mut numbers = available.iter().map(|number| u32::from_be_bytes(*number));
        let preferred = numbers.find_map(Version::of).filter(|_| !resumes);
        Ok(Agreement { version: preferred.unwrap_or(first), lists: true })
    }

    /// Appends `version_information` to the server's transport parameters, if the client has sent it.
    pub fn write(&self, parameters: &mut Vec<u8>) {
        if self.lists {
            let versions = std::iter::once(self.version).chain(Version::ALL);
            let list: Vec<u8> =
                versions.flat_map(|version| version.number().to_be_bytes()).collect();
            // Both numbers are below 64: variable-length integers of one byte (RFC 9000, section 16).
            parameters.extend([VERSION_INFORMATION as u8, list.len() as u8]);
            parameters.extend(list);
        }
    }
}

/// RFC 9368, section 10.2. quinn has no constant for it.
fn version_negotiation_error() -> TransportErrorCode {
    let mut code = [VERSION_NEGOTIATION_ERROR].as_slice();
    TransportErrorCode::decode(&mut code).unwrap_or(TransportErrorCode::PROTOCOL_VIOLATION)
}

fn error(code: TransportErrorCode, reason: &str) -> TransportError {
    TransportError { code, frame: None, reason: reason.to_owned() }
}

/// The value of a transport parameter: RFC 9000, section 18. `None` also behind a malformed one: quinn reports the error.
fn parameter(parameters: &[u8], wanted: u64) -> Option<&[u8]> {
    let mut rest = Frames(parameters);
    loop {
        let (id, value) = (rest.varint()?, rest.length_prefixed()?);
        if id == wanted {
            return Some(value);
        }
    }
}
