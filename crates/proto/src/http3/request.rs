//! One side of a request stream: a request as the server reads it, or an answer as the client does.

use std::ops::Range;

use super::Role;
use super::error::FrameError;
use super::frame::{FrameHead, FrameType, PartialHead};

/// What a section of fields is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The head of a request or an answer.
    Head,
    /// What follows the body.
    Trailers,
}

/// What some of the bytes are. Ranges are offsets into the bytes that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestPart {
    /// Nothing more: all bytes were taken.
    Nothing,
    /// Bytes of a section of fields. The section is complete when none are left. A section that
    /// comes with one chunk is one piece, which need not be copied.
    Fields {
        /// Which section.
        section: Section,
        /// The bytes.
        piece: Range<usize>,
        /// How many are to follow.
        left: usize,
    },
    /// Bytes of the body.
    Data {
        /// The bytes; at least one.
        piece: Range<usize>,
        /// How many are to follow in the same frame.
        left: u64,
    },
}

/// What the stream may bring next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A head.
    Head,
    /// A body, or trailers.
    Body,
    /// Nothing that this end knows.
    End,
}

/// Reads the frames of one side of a request stream: a head, a body in pieces, trailers. Frames of
/// unknown types are passed over.
#[derive(Clone, Debug)]
pub struct RequestFrames {
    role: Role,
    stage: Stage,
    head: PartialHead,
    /// The frame whose payload comes, and how much of it is left.
    frame: Option<(FrameType, u64)>,
    /// Bytes that a section of fields may take as it comes, compressed.
    largest_section: usize,
}

impl RequestFrames {
    /// At the beginning of a stream. `role` is that of this end, which reads. `largest_section` is
    /// how many bytes a section of fields may take as it comes, compressed: a caller that collects
    /// one keeps no more.
    pub fn new(role: Role, largest_section: usize) -> RequestFrames {
        let (stage, head) = (Stage::Head, PartialHead::default());
        RequestFrames { role, stage, head, frame: None, largest_section }
    }

    /// Reads the next piece of interest, and says how many bytes that took. An error ends the
    /// connection; but after [`FrameError::LargeSection`] it is enough to end the stream.
    pub fn read(&mut self, input: &[u8]) -> Result<(usize, RequestPart), FrameError> {
        let mut rest = input;
        loop {
            let (kind, left) = match self.frame {
                Some(frame) => frame,
                None => {
                    let Some(head) = self.head.read(&mut rest) else {
                        return Ok((input.len(), RequestPart::Nothing));
                    };
                    self.check(head)?;
                    (head.kind, head.len)
                }
            };
            let start = input.len() - rest.len();
            let piece = rest.get(..usize::try_from(left).unwrap_or(usize::MAX)).unwrap_or(rest);
            rest = rest.get(piece.len()..).unwrap_or_default();
            let end = start + piece.len();
            let left = left - piece.len() as u64;
            self.frame = Some((kind, left)).filter(|_| left > 0);
            match kind {
                FrameType::Data if !piece.is_empty() => {
                    return Ok((end, RequestPart::Data { piece: start..end, left }));
                }
                FrameType::Headers if !piece.is_empty() || left == 0 => {
                    let section = match self.stage {
                        Stage::Head => Section::Head,
                        Stage::Body | Stage::End => Section::Trailers,
                    };
                    if left == 0 {
                        self.stage = match section {
                            Section::Head => Stage::Body,
                            Section::Trailers => Stage::End,
                        };
                    }
                    let left = left as usize;
                    return Ok((end, RequestPart::Fields { section, piece: start..end, left }));
                }
                _ if left > 0 => return Ok((input.len(), RequestPart::Nothing)),
                _ => {}
            }
        }
    }

    /// The head that was read is that of an interim answer: another one follows.
    pub fn expect_another_head(&mut self) {
        self.stage = Stage::Head;
    }

    /// The stream ends here: whether it may.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.frame.is_some() || self.head.is_begun() {
            return Err(FrameError::Truncated);
        }
        if self.stage == Stage::Head { Err(FrameError::NoHead) } else { Ok(()) }
    }

    /// A frame begins: whether it may.
    fn check(&self, head: FrameHead) -> Result<(), FrameError> {
        let FrameHead { kind, len } = head;
        match (kind, self.stage) {
            (FrameType::Unknown(_), _) | (FrameType::Data, Stage::Body) => Ok(()),
            (FrameType::Headers, Stage::Head | Stage::Body) => {
                if len > self.largest_section as u64 {
                    return Err(FrameError::LargeSection(len));
                }
                Ok(())
            }
            // Never allowed by this end.
            (FrameType::PushPromise, _) if self.role == Role::Client => {
                Err(FrameError::UnknownPush(kind))
            }
            _ => Err(FrameError::Unexpected(kind)),
        }
    }
}
