//! The client's unidirectional streams. Each begins with its type (RFC 9114, section 6.2).

use bytes::Bytes;
use weir_proto::http3::qpack::EncoderFeedback;
use weir_proto::http3::varint::PartialVarint;
use weir_proto::http3::{ControlFrames, Role, StreamType};

/// A unidirectional stream of the client, by its type.
pub enum Incoming {
    /// The type is incomplete.
    Untyped(PartialVarint),
    /// The control stream.
    Control(Box<ControlFrames>),
    /// The QPACK encoder stream.
    Encoder,
    /// The QPACK decoder stream.
    Decoder(EncoderFeedback),
    /// A stream of another type, which was stopped.
    Other,
}

/// The result of reading a stream's type.
pub enum Typed {
    /// More bytes are needed.
    More,
    /// The type, and the bytes behind it.
    Is(StreamType, Bytes),
}

impl Incoming {
    /// A new stream.
    pub fn new() -> Incoming {
        Incoming::Untyped(PartialVarint::default())
    }

    /// Reads the stream's type.
    pub fn read_type(number: &mut PartialVarint, bytes: Bytes) -> Typed {
        let mut rest = &bytes[..];
        match number.read(&mut rest) {
            None => Typed::More,
            Some(number) => {
                let taken = bytes.len() - rest.len();
                Typed::Is(number.into(), bytes.slice(taken..))
            }
        }
    }

    /// A stream of this type.
    pub fn of(kind: StreamType) -> Incoming {
        match kind {
            StreamType::Control => Incoming::Control(Box::new(ControlFrames::new(Role::Server))),
            StreamType::QpackEncoder => Incoming::Encoder,
            StreamType::QpackDecoder => Incoming::Decoder(EncoderFeedback::default()),
            StreamType::Push | StreamType::Unknown(_) => Incoming::Other,
        }
    }
}
