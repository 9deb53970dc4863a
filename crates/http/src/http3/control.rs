//! Streams in one direction: what they begin with says what they are.

use bytes::Bytes;
use weir_proto::http3::qpack::EncoderFeedback;
use weir_proto::http3::varint::PartialVarint;
use weir_proto::http3::{ControlFrames, Role, StreamType};

/// One that the client has opened.
pub enum Incoming {
    /// Its type is not known yet.
    Untyped(PartialVarint),
    /// Frames of the connection.
    Control(Box<ControlFrames>),
    /// Instructions for the decoder of fields.
    Encoder,
    /// What the client's decoder says of our fields.
    Decoder(EncoderFeedback),
    /// It means nothing to us, and was stopped.
    Other,
}

/// What the first bytes of a stream come to.
pub enum Typed {
    /// More must come.
    More,
    /// It is one of these, with what follows its type.
    Is(StreamType, Bytes),
}

impl Incoming {
    /// A new one.
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

    /// What it is from now on.
    pub fn of(kind: StreamType) -> Incoming {
        match kind {
            StreamType::Control => Incoming::Control(Box::new(ControlFrames::new(Role::Server))),
            StreamType::QpackEncoder => Incoming::Encoder,
            StreamType::QpackDecoder => Incoming::Decoder(EncoderFeedback::default()),
            StreamType::Push | StreamType::Unknown(_) => Incoming::Other,
        }
    }
}
