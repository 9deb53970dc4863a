//! Frames: their heads, and how they are written. RFC 9114 section 7.

use std::fmt;

use super::varint::{self, PartialVarint};

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameType {
    /// Bytes of a body.
    Data,
    /// A head or trailers.
    Headers,
    /// A push that is not wanted.
    CancelPush,
    /// What the sender accepts.
    Settings,
    /// A promise of an answer that was not asked for.
    PushPromise,
    /// No new requests.
    Goaway,
    /// How many pushes there may be.
    MaxPushId,
    /// A frame that HTTP/2 alone has.
    Http2(u64),
    /// Something newer, to be ignored.
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
    /// Its number.
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

/// What a stream in one direction is for: RFC 9114 section 6.2, RFC 9204 section 4.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamType {
    /// Frames of the connection. Each end has one, and never closes it.
    Control,
    /// An answer that was not asked for.
    Push,
    /// What the peer's encoder tells our decoder. Each end has one at most, and never closes it.
    QpackEncoder,
    /// What the peer's decoder tells our encoder. Each end has one at most, and never closes it.
    QpackDecoder,
    /// Something newer, to be ignored.
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
    /// Its number, with which the stream begins.
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

/// A frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub kind: FrameType,
    /// Bytes that follow.
    pub len: u64,
}

/// A head of which only some bytes may have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PartialHead {
    kind: Option<FrameType>,
    number: PartialVarint,
}

impl PartialHead {
    /// Takes bytes off `input` until the head is complete, and begins anew then.
    pub(super) fn read(&mut self, input: &mut &[u8]) -> Option<FrameHead> {
        let kind = match self.kind {
            Some(kind) => kind,
            None => *self.kind.insert(self.number.read(input)?.into()),
        };
        let len = self.number.read(input)?;
        self.kind = None;
        Some(FrameHead { kind, len })
    }

    /// Whether some bytes have come, but not all.
    pub(super) fn is_begun(&self) -> bool {
        self.kind.is_some() || self.number.is_begun()
    }
}

/// Appends a frame's head.
fn write_head(kind: FrameType, len: u64, out: &mut Vec<u8>) {
    varint::write(kind.number(), out);
    varint::write(len, out);
}

/// Appends the head of a DATA frame; so many bytes of the body are to follow.
#[inline]
pub fn write_data_head(len: u64, out: &mut Vec<u8>) {
    write_head(FrameType::Data, len, out);
}

/// What [`leave_headers_head`] leaves: enough for 16,383 bytes of fields.
const HEADERS_HEAD: usize = 3;

/// Leaves room for the head of a HEADERS frame, and says where. The section of fields is to follow,
/// then [`finish_headers`].
pub fn leave_headers_head(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; HEADERS_HEAD]);
    out.len() - HEADERS_HEAD
}

/// Writes the head of a HEADERS frame before the section that ends with `out`. `begin` is where
/// [`leave_headers_head`] left room.
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

/// Appends GOAWAY. A server names the first stream that it does not serve, a client the first push that it does not take.
pub fn write_goaway(id: u64, out: &mut Vec<u8>) {
    write_head(FrameType::Goaway, varint::len(id) as u64, out);
    varint::write(id, out);
}

/// Appends the head of a stream in one direction.
pub fn write_stream_type(kind: StreamType, out: &mut Vec<u8>) {
    varint::write(kind.number(), out);
}

pub(super) fn write_settings_head(len: usize, out: &mut Vec<u8>) {
    write_head(FrameType::Settings, len as u64, out);
}
