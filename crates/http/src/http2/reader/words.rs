//! What a client is told of a frame that breaks the protocol, and the log, in nginx's words.

use weir_http2::{Broken, Wrong};
use weir_proto::http2::frame::{ErrorCode, FrameHead, FrameType};
use weir_proto::http2::hpack::BlockError;

/// HPACK's static table has so many fields. Behind them begins the dynamic table, which nginx counts from 0.
const STATIC_FIELDS: usize = 61;

/// What is told of a wrong frame.
pub fn wrong(head: FrameHead, wrong: Wrong) -> Broken {
    let (name, len) = (name(head.kind), head.len);
    let (code, text) = match wrong {
        Wrong::Large => {
            (ErrorCode::FrameSize, format!("client sent frame with too large length {len}"))
        }
        Wrong::Length if head.kind == FrameType::Data => {
            let text = format!("client sent padded {name} frame with incorrect length: {len}");
            (ErrorCode::FrameSize, text)
        }
        Wrong::Length => {
            (ErrorCode::FrameSize, format!("client sent {name} frame with incorrect length {len}"))
        }
        Wrong::Acknowledgement => {
            let text = format!("client sent {name} frame with the ACK flag and nonzero length");
            (ErrorCode::FrameSize, text)
        }
        Wrong::Padding(padding) => {
            let text = format!("client sent padded {name} frame with incorrect length");
            (ErrorCode::Protocol, format!("{text}: {len}, padding: {padding}"))
        }
        Wrong::Stream => {
            (ErrorCode::Protocol, format!("client sent {name} frame with incorrect identifier"))
        }
        Wrong::Unexpected(None) => {
            (ErrorCode::Protocol, format!("client sent unexpected {name} frame"))
        }
        Wrong::Unexpected(Some(_)) if head.kind == FrameType::Continuation => {
            (ErrorCode::Protocol, format!("client sent {name} frame with incorrect identifier"))
        }
        Wrong::Unexpected(Some(_)) => {
            let text = "client sent inappropriate frame while CONTINUATION was expected";
            (ErrorCode::Protocol, text.to_owned())
        }
        Wrong::Push => (ErrorCode::Protocol, format!("client sent {name} frame")),
        Wrong::Block => (ErrorCode::EnhanceYourCalm, "client sent too large header".to_owned()),
        Wrong::Fields(BlockError::BadIndex(index)) if index > STATIC_FIELDS => {
            let index = index - STATIC_FIELDS - 1;
            let text = format!("client sent out of bound hpack table index: {index}");
            (ErrorCode::Compression, text)
        }
        Wrong::Fields(error) => (code_of(error), format!("client sent {error}")),
        Wrong::Window(window) => {
            let text = "client violated connection flow control: received";
            let text = format!("{text} {name} frame length {len}, available window {window}");
            (ErrorCode::FlowControl, text)
        }
    };
    Broken { code, text, stream: None }
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
