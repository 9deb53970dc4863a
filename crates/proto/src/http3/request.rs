//! One direction of a request stream: a request as a server reads it, or an answer as a client reads it.

use std::ops::Range;

use super::Role;
use super::error::FrameError;
use super::frame::{FrameHead, FrameType, PartialHead};

/// The kind of a field section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The header section of a request or an answer.
    Head,
    /// The trailer section.
    Trailers,
}

/// The result of a read. Ranges are offsets into the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestPart {
    /// All bytes were read. They contain nothing of interest.
    Nothing,
    /// Bytes of a field section, which is complete when `left` is 0. A section that arrives in one
    /// chunk is one piece, which need not be copied.
    Fields {
        /// The kind of the section.
        section: Section,
        /// The bytes.
        piece: Range<usize>,
        /// The number of missing bytes.
        left: usize,
    },
    /// Bytes of the body.
    Data {
        /// The bytes; at least one.
        piece: Range<usize>,
        /// The number of missing bytes of the frame.
        left: u64,
    },
}

/// The part of the message that may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A header section.
    Head,
    /// A body or a trailer section.
    Body,
    /// Only frames of unknown types.
    End,
}

/// Parses the frames of one direction of a request stream: a header section, a body in pieces, a
/// trailer section. Frames of unknown types are skipped.
#[derive(Clone, Debug)]
pub struct RequestFrames {
    role: Role,
    stage: Stage,
    head: PartialHead,
    /// The frame whose payload is incomplete, and the length of the missing part.
    frame: Option<(FrameType, u64)>,
    /// The largest encoded field section.
    largest_section: usize,
}

impl RequestFrames {
    /// A parser at the start of a stream. `role` is this end's. `largest_section` is the largest
    /// encoded field section, which bounds the buffer of a caller that collects one.
    pub fn new(role: Role, largest_section: usize) -> RequestFrames {
        let (stage, head) = (Stage::Head, PartialHead::default());
        RequestFrames { role, stage, head, frame: None, largest_section }
    }

    /// Reads up to the end of the next piece of interest. Returns the number of bytes. An error is a
    /// connection error, but after [`FrameError::LargeSection`] a stream error suffices.
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

    /// Another header section follows: the last one was of an interim answer.
    pub fn expect_another_head(&mut self) {
        self.stage = Stage::Head;
    }

    /// Checks that the stream may end here.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.frame.is_some() || self.head.is_begun() {
            return Err(FrameError::Truncated);
        }
        if self.stage == Stage::Head { Err(FrameError::NoHead) } else { Ok(()) }
    }

    /// Checks that a frame may begin here.
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
            // This end sends no MAX_PUSH_ID, so no push is allowed.
            (FrameType::PushPromise, _) if self.role == Role::Client => {
                Err(FrameError::UnknownPush(kind))
            }
            _ => Err(FrameError::Unexpected(kind)),
        }
    }
}
