//! Reads HTTP/3 responses: their frames, and the status of the head.

use quinn_proto::StreamId;
use weir_proto::http3::qpack::{Decoded, Decoder, FieldLimits};
use weir_proto::http3::{RequestFrames, RequestPart, Role, Section};

/// Longest field section, in bytes. A longer one counts as malformed.
const LONGEST_FIELDS: usize = 256 << 10;

/// The response is not valid HTTP/3.
#[derive(Debug)]
pub(super) struct Malformed;

pub(super) struct Answer {
    frames: RequestFrames,
    /// The bytes received of the current field section.
    section: Vec<u8>,
    status: Option<u16>,
    /// The announced length of the body, and the bytes received of it.
    length: Option<u64>,
    received: u64,
}

impl Default for Answer {
    fn default() -> Answer {
        Answer {
            frames: RequestFrames::new(Role::Client, LONGEST_FIELDS),
            section: Vec::new(),
            status: None,
            length: None,
            received: 0,
        }
    }
}

impl Answer {
    /// Parses received bytes of the stream.
    pub(super) fn read(&mut self, id: StreamId, mut bytes: &[u8]) -> Result<(), Malformed> {
        while !bytes.is_empty() {
            let (used, part) = self.frames.read(bytes).map_err(|_| Malformed)?;
            match part {
                RequestPart::Nothing => {}
                RequestPart::Data { piece, .. } => self.received += piece.len() as u64,
                RequestPart::Fields { section, piece, left } => {
                    self.section.extend_from_slice(bytes.get(piece).unwrap_or_default());
                    if left == 0 {
                        self.fields(id, section)?;
                    }
                }
            }
            bytes = bytes.get(used..).unwrap_or_default();
        }
        Ok(())
    }

    /// Ends the response. Returns the status.
    pub(super) fn end(&self) -> Result<u16, Malformed> {
        self.frames.finish().map_err(|_| Malformed)?;
        // A response to HEAD announces a body that it does not have.
        if self.length.is_some_and(|length| length != self.received && self.received > 0) {
            return Err(Malformed);
        }
        self.status.ok_or(Malformed)
    }

    fn fields(&mut self, id: StreamId, which: Section) -> Result<(), Malformed> {
        let section = std::mem::take(&mut self.section);
        let limits = FieldLimits { field: LONGEST_FIELDS, block: LONGEST_FIELDS };
        let (mut status, mut length) = (None, None);
        let number = |value: &[u8]| std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        let decoded =
            Decoder::default().decode(id.into(), &section, limits, |name, value| match name {
                b":status" => status = number(value).and_then(|n| u16::try_from(n).ok()),
                b"content-length" => length = number(value),
                _ => {}
            });
        if !matches!(decoded, Ok(Decoded::Whole)) {
            return Err(Malformed);
        }
        match (which, status) {
            (Section::Trailers, _) => {}
            (Section::Head, None) => return Err(Malformed),
            (Section::Head, Some(100..200)) => self.frames.expect_another_head(),
            (Section::Head, Some(status)) => {
                (self.status, self.length) = (Some(status), length);
            }
        }
        Ok(())
    }
}
