//! Frames of HTTP/3: their headers, and how they are written. RFC 9114, section 7.

use std::fmt;

use super::varint::{self, PartialVarint};

/// The type of a frame: RFC 9114, section 7.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameType {
    /// DATA
    Data,
    /// HEADERS
    Headers,
    /// CANCEL_PUSH
    CancelPush,
    /// SETTINGS
    Settings,
    /// PUSH_PROMISE
    PushPromise,
    /// GOAWAY
    Goaway,
    /// MAX_PUSH_ID
    MaxPushId,
    /// A type of HTTP/2 that is reserved in HTTP/3: RFC 9114, section 7.2.8.
    Http2(u64),
    /// An unknown type. Such frames are ignored.
    Unknown(u64),
}

impl From<u64> for FrameType {
    fn from(number: u64) -> FrameType {
        match number {
            0x0 => FrameType::Data,
            0x1 => FrameType::Headers,
            0x3 => FrameType::CancelPush,
            0x4 => FrameType::Settings,
            0x5 => FrameType::PushPromise,
            0x7 => FrameType::Goaway,
            0xd => FrameType::MaxPushId,
            0x2 | 0x6 | 0x8 | 0x9 => FrameType::Http2(number),
            other => FrameType::Unknown(other),
        }
    }
}

impl FrameType {
    /// The number of the type.
    pub fn number(self) -> u64 {
        match self {
            FrameType::Data => 0x0,
            FrameType::Headers => 0x1,
            FrameType::CancelPush => 0x3,
            FrameType::Settings => 0x4,
            FrameType::PushPromise => 0x5,
            FrameType::Goaway => 0x7,
            FrameType::MaxPushId => 0xd,
            FrameType::Http2(number) | FrameType::Unknown(number) => number,
        }
    }
}

impl fmt::Display for FrameType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameType::Data => f.write_str("DATA"),
            FrameType::Headers => f.write_str("HEADERS"),
            FrameType::CancelPush => f.write_str("CANCEL_PUSH"),
            FrameType::Settings => f.write_str("SETTINGS"),
            FrameType::PushPromise => f.write_str("PUSH_PROMISE"),
            FrameType::Goaway => f.write_str("GOAWAY"),
            FrameType::MaxPushId => f.write_str("MAX_PUSH_ID"),
            FrameType::Http2(number) | FrameType::Unknown(number) => write!(f, "{number:#x}"),
        }
    }
}

/// The type of a unidirectional stream: RFC 9114, section 6.2; RFC 9204, section 4.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamType {
    /// The control stream. Each end opens one, and never closes it.
    Control,
    /// A push stream.
    Push,
    /// The encoder stream of QPACK. Each end opens one at most, and never closes it.
    QpackEncoder,
    /// The decoder stream of QPACK. Each end opens one at most, and never closes it.
    QpackDecoder,
    /// An unknown type. Such streams are not read.
    Unknown(u64),
}

impl From<u64> for StreamType {
    fn from(number: u64) -> StreamType {
        match number {
            0x0 => StreamType::Control,
            0x1 => StreamType::Push,
            0x2 => StreamType::QpackEncoder,
            0x3 => StreamType::QpackDecoder,
            other => StreamType::Unknown(other),
        }
    }
}

impl StreamType {
    /// The number of the type. The stream begins with it.
    pub fn number(self) -> u64 {
        match self {
            StreamType::Control => 0x0,
            StreamType::Push => 0x1,
            StreamType::QpackEncoder => 0x2,
            StreamType::QpackDecoder => 0x3,
            StreamType::Unknown(number) => number,
        }
    }
}

/// A frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub kind: FrameType,
    /// The length of the payload.
    pub len: u64,
}

/// A frame header that may be incomplete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PartialHead {
    kind: Option<FrameType>,
    number: PartialVarint,
}

impl PartialHead {
    /// Takes bytes from the start of `input` until the header is complete. Then the next call begins another header.
    pub(super) fn read(&mut self, input: &mut &[u8]) -> Option<FrameHead> {
        let kind = match self.kind {
            Some(kind) => kind,
            None => *self.kind.insert(self.number.read(input)?.into()),
        };
        let len = self.number.read(input)?;
        self.kind = None;
        Some(FrameHead { kind, len })
    }

    /// The header has begun and is incomplete.
    pub(super) fn is_begun(&self) -> bool {
        self.kind.is_some() || self.number.is_begun()
    }
}

/// Appends a frame header.
fn write_head(kind: FrameType, len: u64, out: &mut Vec<u8>) {
    varint::write(kind.number(), out);
    varint::write(len, out);
}

/// Appends the header of a DATA frame with a payload of this length.
#[inline]
pub fn write_data_head(len: u64, out: &mut Vec<u8>) {
    write_head(FrameType::Data, len, out);
}

/// The space that [`leave_headers_head`] reserves. It suffices for a field section of 16,383 bytes.
const HEADERS_HEAD: usize = 3;

/// Reserves space for the header of a HEADERS frame, and returns its offset. The caller appends the
/// field section, and then calls [`finish_headers`].
pub fn leave_headers_head(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; HEADERS_HEAD]);
    out.len() - HEADERS_HEAD
}

/// Writes the header of a HEADERS frame before its field section, which ends with `out`. `begin` is
/// the result of [`leave_headers_head`].
pub fn finish_headers(out: &mut Vec<u8>, begin: usize) {
    let start = begin + HEADERS_HEAD;
    let len = out.len().saturating_sub(start) as u64;
    let kind = FrameType::Headers.number() as u8;
    match u16::try_from(len) {
        Ok(short @ ..0x4000) => {
            let [high, low] = (short | 1 << 14).to_be_bytes();
            if let Some(room) = out.get_mut(begin..start) {
                room.copy_from_slice(&[kind, high, low]);
            }
        }
        _ => {
            let mut head = vec![kind];
            varint::write(len, &mut head);
            drop(out.splice(begin..start, head));
        }
    }
}

/// Appends GOAWAY. `id` is the first request stream that a server does not process, or the first push that a client does not
/// accept.
pub fn write_goaway(id: u64, out: &mut Vec<u8>) {
    write_head(FrameType::Goaway, varint::len(id) as u64, out);
    varint::write(id, out);
}

/// Appends the type of a unidirectional stream.
pub fn write_stream_type(kind: StreamType, out: &mut Vec<u8>) {
    varint::write(kind.number(), out);
}

pub(super) fn write_settings_head(len: usize, out: &mut Vec<u8>) {
    write_head(FrameType::Settings, len as u64, out);
}
