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
    /// The response is to a HEAD, so that it may announce a body that it does not have.
    is_to_head: bool,
    /// The announced length of the body, and the bytes received of it.
    length: Option<u64>,
    received: u64,
}

impl Answer {
    pub(super) fn new(is_to_head: bool) -> Answer {
        Answer {
            frames: RequestFrames::new(Role::Client, LONGEST_FIELDS),
            section: Vec::new(),
            status: None,
            is_to_head,
            length: None,
            received: 0,
        }
    }

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
        // RFC 9114, section 4.1.2. A 304 announces the body of a 200.
        let has_no_body = self.is_to_head || self.status == Some(304);
        let expected = if has_no_body { Some(0) } else { self.length };
        if expected.is_some_and(|length| length != self.received) {
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

#[cfg(test)]
mod tests {
    use weir_proto::http3::{frame, qpack};

    use super::*;

    /// Whether a response of this head and of these bytes of a body is complete.
    fn is_whole(status: &str, length: &str, body: &[u8], is_to_head: bool) -> bool {
        let mut bytes = Vec::new();
        let begin = frame::leave_headers_head(&mut bytes);
        qpack::begin_section(&mut bytes);
        qpack::field(b":status", status.as_bytes(), &mut bytes);
        qpack::field(b"content-length", length.as_bytes(), &mut bytes);
        frame::finish_headers(&mut bytes, begin);
        if !body.is_empty() {
            frame::write_data_head(body.len() as u64, &mut bytes);
            bytes.extend_from_slice(body);
        }
        let id = StreamId::new(quinn_proto::Side::Client, quinn_proto::Dir::Bi, 0);
        let mut answer = Answer::new(is_to_head);
        answer.read(id, &bytes).is_ok() && answer.end().is_ok()
    }

    #[test]
    fn a_body_of_another_length_is_no_answer() {
        assert!(is_whole("200", "5", b"hello", false));
        for body in [&b""[..], b"hell", b"hello!"] {
            assert!(!is_whole("200", "5", body, false), "{body:?}");
        }
        assert!(is_whole("200", "5", b"", true) && is_whole("304", "5", b"", false));
        assert!(!is_whole("200", "5", b"hello", true));
    }
}
