//! Why streams and connections end.

use std::fmt;

use super::frame::FrameType;
use super::settings::SettingsError;

/// Why a stream or a connection ends: RFC 9114 section 8.1 and RFC 9204 section 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum ErrorCode {
    /// In order.
    NoError = 0x100,
    /// The peer broke the protocol.
    GeneralProtocol = 0x101,
    /// This end failed.
    Internal = 0x102,
    /// The peer opened a stream that it may not open.
    StreamCreation = 0x103,
    /// The peer closed a stream that the connection needs.
    ClosedCriticalStream = 0x104,
    /// A frame where it may not be.
    FrameUnexpected = 0x105,
    /// A frame of a wrong size, or with wrong contents.
    Frame = 0x106,
    /// The peer does too much of something.
    ExcessiveLoad = 0x107,
    /// The id of a stream or push that the peer may not use.
    Id = 0x108,
    /// Settings that contradict each other or the protocol.
    Settings = 0x109,
    /// The control stream begins with another frame than SETTINGS.
    MissingSettings = 0x10a,
    /// A request that was not looked at, and may be made again.
    RequestRejected = 0x10b,
    /// The request or its answer is not wanted any more.
    RequestCancelled = 0x10c,
    /// The stream ended before the request did.
    RequestIncomplete = 0x10d,
    /// A malformed request or answer.
    Message = 0x10e,
    /// The connection that was made for CONNECT failed.
    Connect = 0x10f,
    /// The request is to be made over another version.
    VersionFallback = 0x110,
    /// A section of fields that cannot be read.
    QpackDecompressionFailed = 0x200,
    /// An instruction of the encoder that cannot be carried out.
    QpackEncoderStream = 0x201,
    /// An instruction of the decoder that makes no sense.
    QpackDecoderStream = 0x202,
}

/// What is wrong with the frames of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// A frame that the stream does not have, or not at this place.
    Unexpected(FrameType),
    /// The control stream begins with another frame than SETTINGS.
    MissingSettings(FrameType),
    /// A frame with more or fewer bytes than what it holds.
    Length(FrameType, u64),
    /// A section of fields with more bytes than this end accepts. That need not end the connection.
    LargeSection(u64),
    /// Settings with more bytes than any peer needs.
    LargeSettings(u64),
    /// What is wrong with settings.
    Settings(SettingsError),
    /// The id of a push that was neither made nor allowed.
    UnknownPush(FrameType),
    /// A limit of pushes that is lower than an earlier one.
    LowerPushLimit(u64),
    /// GOAWAY with a higher id than an earlier one.
    HigherGoaway(u64),
    /// GOAWAY with the id of a stream that is no request's.
    GoawayStream(u64),
    /// The stream ends within a frame.
    Truncated,
    /// The stream ends before the head.
    NoHead,
}

impl FrameError {
    /// The code with which the connection ends.
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
