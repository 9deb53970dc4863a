//! Error codes, and the faults of frames.

use std::fmt;

use super::frame::FrameType;
use super::settings::SettingsError;

/// An error code: RFC 9114, section 8.1; RFC 9204, section 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum ErrorCode {
    /// No error.
    NoError = 0x100,
    /// The peer has violated the protocol.
    GeneralProtocol = 0x101,
    /// This end has failed.
    Internal = 0x102,
    /// The peer has opened a stream that this end does not accept.
    StreamCreation = 0x103,
    /// The peer has closed a stream that the connection needs.
    ClosedCriticalStream = 0x104,
    /// A frame that is not permitted here.
    FrameUnexpected = 0x105,
    /// A frame of a wrong size, or with wrong contents.
    Frame = 0x106,
    /// The peer causes too much load.
    ExcessiveLoad = 0x107,
    /// A stream or push ID that the peer must not use.
    Id = 0x108,
    /// An error in the payload of SETTINGS.
    Settings = 0x109,
    /// The control stream begins with another frame than SETTINGS.
    MissingSettings = 0x10a,
    /// The request was not processed, and may be repeated.
    RequestRejected = 0x10b,
    /// The request or its answer is not needed any more.
    RequestCancelled = 0x10c,
    /// The client's stream ended before a complete request.
    RequestIncomplete = 0x10d,
    /// A malformed request or answer.
    Message = 0x10e,
    /// The TCP connection of a CONNECT request was reset or failed.
    Connect = 0x10f,
    /// The request must be repeated over HTTP/1.1.
    VersionFallback = 0x110,
    /// A field section that cannot be decoded.
    QpackDecompressionFailed = 0x200,
    /// An invalid instruction on the encoder stream.
    QpackEncoderStream = 0x201,
    /// An invalid instruction on the decoder stream.
    QpackDecoderStream = 0x202,
}

/// A fault of a stream's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// A frame that is not permitted on this stream, or not here.
    Unexpected(FrameType),
    /// The control stream begins with another frame than SETTINGS.
    MissingSettings(FrameType),
    /// A frame whose length does not fit its contents.
    Length(FrameType, u64),
    /// A field section that is larger than this end accepts. A stream error suffices.
    LargeSection(u64),
    /// A SETTINGS frame that is larger than this end accepts.
    LargeSettings(u64),
    /// A fault of a SETTINGS payload.
    Settings(SettingsError),
    /// A frame with the ID of a push that was neither made nor allowed.
    UnknownPush(FrameType),
    /// MAX_PUSH_ID with a lower ID than before.
    LowerPushLimit(u64),
    /// GOAWAY with a higher ID than before.
    HigherGoaway(u64),
    /// A server's GOAWAY with the ID of a stream that is not a request stream.
    GoawayStream(u64),
    /// The stream ends within a frame.
    Truncated,
    /// The stream ends before the head.
    NoHead,
}

impl FrameError {
    /// The error code for this fault.
    pub fn code(self) -> ErrorCode {
        match self {
            FrameError::Unexpected(_) => ErrorCode::FrameUnexpected,
            FrameError::MissingSettings(_) => ErrorCode::MissingSettings,
            FrameError::Length(..) | FrameError::Truncated => ErrorCode::Frame,
            FrameError::LargeSection(_) | FrameError::LargeSettings(_) => ErrorCode::ExcessiveLoad,
            FrameError::Settings(_) => ErrorCode::Settings,
            FrameError::UnknownPush(_)
            | FrameError::LowerPushLimit(_)
            | FrameError::HigherGoaway(_)
            | FrameError::GoawayStream(_) => ErrorCode::Id,
            FrameError::NoHead => ErrorCode::RequestIncomplete,
        }
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Unexpected(kind) => write!(f, "unexpected {kind} frame"),
            FrameError::MissingSettings(kind) => write!(f, "{kind} frame before SETTINGS"),
            FrameError::Length(kind, len) => {
                write!(f, "{kind} frame with incorrect length {len}")
            }
            FrameError::LargeSection(len) => write!(f, "too large header of {len} bytes"),
            FrameError::LargeSettings(len) => write!(f, "too large SETTINGS frame of {len} bytes"),
            FrameError::Settings(error) => write!(f, "SETTINGS frame with {error}"),
            FrameError::UnknownPush(kind) => write!(f, "{kind} frame for an unknown push"),
            FrameError::LowerPushLimit(id) => {
                write!(f, "MAX_PUSH_ID frame with lower id {id} than before")
            }
            FrameError::HigherGoaway(id) => {
                write!(f, "GOAWAY frame with higher id {id} than before")
            }
            FrameError::GoawayStream(id) => {
                write!(f, "GOAWAY frame with id {id}, which is no request's")
            }
            FrameError::Truncated => f.write_str("incomplete frame at the end of a stream"),
            FrameError::NoHead => f.write_str("a stream without a head"),
        }
    }
}
