//! Error codes and log texts for faulty frames, in nginx's words.

use weir_http2::{ConnectionError, FrameFault};
use weir_proto::http2::frame::{ErrorCode, FrameHead, FrameType};
use weir_proto::http2::hpack::BlockError;

/// The number of entries in HPACK's static table. The dynamic table begins behind it; nginx counts its entries from 0.
const STATIC_FIELDS: usize = 61;

/// The connection error for a fault of a frame.
pub fn connection_error(head: FrameHead, fault: FrameFault) -> ConnectionError {
    let (name, len) = (name(head.kind), head.len);
    let (code, text) = match fault {
        FrameFault::Large => {
            (ErrorCode::FrameSize, format!("client sent frame with too large length {len}"))
        }
        FrameFault::Length if head.kind == FrameType::Data => {
            let text = format!("client sent padded {name} frame with incorrect length: {len}");
            (ErrorCode::FrameSize, text)
        }
        FrameFault::Length => {
            (ErrorCode::FrameSize, format!("client sent {name} frame with incorrect length {len}"))
        }
        FrameFault::Acknowledgement => {
            let text = format!("client sent {name} frame with the ACK flag and nonzero length");
            (ErrorCode::FrameSize, text)
        }
        FrameFault::Padding(padding) => {
            let text = format!("client sent padded {name} frame with incorrect length");
            (ErrorCode::Protocol, format!("{text}: {len}, padding: {padding}"))
        }
        FrameFault::Stream => {
            (ErrorCode::Protocol, format!("client sent {name} frame with incorrect identifier"))
        }
        FrameFault::Unexpected(None) => {
            (ErrorCode::Protocol, format!("client sent unexpected {name} frame"))
        }
        FrameFault::Unexpected(Some(_)) if head.kind == FrameType::Continuation => {
            (ErrorCode::Protocol, format!("client sent {name} frame with incorrect identifier"))
        }
        FrameFault::Unexpected(Some(_)) => {
            let text = "client sent inappropriate frame while CONTINUATION was expected";
            (ErrorCode::Protocol, text.to_owned())
        }
        FrameFault::Push => (ErrorCode::Protocol, format!("client sent {name} frame")),
        FrameFault::Block => {
            (ErrorCode::EnhanceYourCalm, "client sent too large header".to_owned())
        }
        FrameFault::Fields(BlockError::BadIndex(index)) if index > STATIC_FIELDS => {
            let index = index - STATIC_FIELDS - 1;
            let text = format!("client sent out of bound hpack table index: {index}");
            (ErrorCode::Compression, text)
        }
        FrameFault::Fields(error) => (code_of(error), format!("client sent {error}")),
        FrameFault::Window(window) => {
            let text = "client violated connection flow control: received";
            let text = format!("{text} {name} frame length {len}, available window {window}");
            (ErrorCode::FlowControl, text)
        }
    };
    ConnectionError { code, text, stream: None }
}

fn name(kind: FrameType) -> &'static str {
    match kind {
        FrameType::Data => "DATA",
        FrameType::Headers => "HEADERS",
        FrameType::Priority => "PRIORITY",
        FrameType::RstStream => "RST_STREAM",
        FrameType::Settings => "SETTINGS",
        FrameType::PushPromise => "PUSH_PROMISE",
        FrameType::Ping => "PING",
        FrameType::Goaway => "GOAWAY",
        FrameType::WindowUpdate => "WINDOW_UPDATE",
        FrameType::Continuation => "CONTINUATION",
        FrameType::Unknown(_) => "unknown",
    }
}

fn code_of(error: BlockError) -> ErrorCode {
    match error {
        BlockError::LargeField | BlockError::LargeBlock => ErrorCode::EnhanceYourCalm,
        BlockError::EmptyName => ErrorCode::Protocol,
        BlockError::Truncated => ErrorCode::FrameSize,
        _ => ErrorCode::Compression,
    }
}
