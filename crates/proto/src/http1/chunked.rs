//! The chunked transfer coding. nginx: ngx_http_parse_chunked, ngx_http_proxy_process_trailer.

use super::body::BodyError;
use super::fields::{FieldsProgress, FieldsReader};
use super::names::HeaderLine;

/// nginx keeps sizes in a file offset, with room for the bytes that frame the last chunk.
const MAX_SIZE: u64 = i64::MAX as u64 - 9;

/// The limit of framing bytes beyond the allowance of each chunk. More is hostile: extensions are
/// ignored, and so are trailers that are not kept.
const MAX_FRAMING: u64 = 32 * 1024;
/// The allowance of each chunk, besides twice its size.
const USUAL_FRAMING: u64 = 16;

/// Reads chunk heads, chunk ends and trailers.
#[derive(Debug, Default, Clone)]
pub(super) struct ChunkParser {
    state: ChunkState,
    /// The bytes of the current chunk that have not arrived.
    pub(super) size: u64,
    trailers: Option<Box<Trailers>>,
    /// The framing bytes beyond the allowance of the chunks.
    framing: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkState {
    #[default]
    Start,
    Size,
    Extension,
    ExtensionEnd,
    /// In a chunk, or right after it once `size` is 0.
    Data,
    AfterDataEnd,
    LastExtension,
    LastExtensionEnd,
    Trailer,
    TrailerEnd,
    TrailerLine,
    TrailerLineEnd,
    /// Trailers are being collected.
    Kept,
    Done,
}

/// The trailers: field lines after the last chunk.
#[derive(Debug, Default, Clone)]
pub struct Trailers {
    bytes: Vec<u8>,
    limit: usize,
    headers: Vec<HeaderLine>,
    fields: FieldsReader,
}

impl Trailers {
    /// The lines, and the bytes that their spans point into.
    pub fn headers(&self) -> (&[u8], &[HeaderLine]) {
        (&self.bytes, &self.headers)
    }

    /// Takes the bytes that belong to the trailers. Returns their number, and `true` if the
    /// trailers are complete.
    fn take(&mut self, input: &[u8]) -> Result<(usize, bool), BodyError> {
        let before = self.bytes.len();
        let room = self.limit.saturating_sub(before);
        let taken = input.get(..room).unwrap_or(input);
        self.bytes.extend_from_slice(taken);
        loop {
            let progress = self.fields.parse(&self.bytes).map_err(|e| {
                let line = String::from_utf8_lossy(e.line.of(&self.bytes)).into_owned();
                BodyError::InvalidTrailer { line, byte: e.byte }
            })?;
            match progress {
                FieldsProgress::Line { header, .. } => self.headers.push(header),
                FieldsProgress::End => {
                    let end = self.fields.pos();
                    self.bytes.truncate(end);
                    return Ok((end - before, true));
                }
                FieldsProgress::More if self.bytes.len() >= self.limit => {
                    return Err(BodyError::TrailersTooBig);
                }
                FieldsProgress::More => return Ok((taken.len(), false)),
            }
        }
    }
}

impl ChunkParser {
    /// A parser that keeps the trailers, at most `limit` bytes.
    pub(super) fn keeping_trailers(limit: usize) -> ChunkParser {
        let fields = FieldsReader::of_response(0);
        let trailers = Box::new(Trailers { limit, fields, ..Trailers::default() });
        ChunkParser { trailers: Some(trailers), ..ChunkParser::default() }
    }

    pub(super) fn trailers(&self) -> Option<&Trailers> {
        self.trailers.as_deref()
    }

    pub(super) fn done(&self) -> bool {
        self.state == ChunkState::Done
    }

    /// Whether the next bytes are data of a chunk.
    pub(super) fn in_data(&self) -> bool {
        self.state == ChunkState::Data && self.size > 0
    }

    /// Parses up to data or the end, or until the bytes run out. Returns the number of parsed
    /// bytes.
    pub(super) fn parse(&mut self, input: &[u8]) -> Result<usize, BodyError> {
        let mut pos = 0;
        while !self.in_data() && !matches!(self.state, ChunkState::Kept | ChunkState::Done) {
            let Some(&ch) = input.get(pos) else { break };
            self.step(ch)?;
            pos += 1;
        }
        self.count_framing(pos)?;
        if self.state == ChunkState::Kept {
            pos += self.keep(input.get(pos..).unwrap_or_default())?;
        }
        Ok(pos)
    }

    fn count_framing(&mut self, bytes: usize) -> Result<(), BodyError> {
        self.framing += bytes as u64;
        if self.framing > MAX_FRAMING {
            return Err(BodyError::FramingTooBig);
        }
        if bytes > 0 && self.in_data() {
            let right = USUAL_FRAMING.saturating_add(self.size.saturating_mul(2));
            self.framing = self.framing.saturating_sub(right);
        }
        Ok(())
    }

    fn keep(&mut self, input: &[u8]) -> Result<usize, BodyError> {
        let Some(trailers) = &mut self.trailers else {
            return Ok(0);
        };
        let (taken, done) = trailers.take(input)?;
        if done {
            self.state = ChunkState::Done;
        }
        Ok(taken)
    }

    fn step(&mut self, ch: u8) -> Result<(), BodyError> {
        self.state = match (self.state, ch) {
            (ChunkState::Start, _) => {
                self.size = hex(ch).ok_or(BodyError::InvalidChunk)?;
                ChunkState::Size
            }
            (ChunkState::Size, _) => self.size_byte(ch)?,
            (ChunkState::Extension, b'\r') => ChunkState::ExtensionEnd,
            (ChunkState::LastExtension, b'\r') => ChunkState::LastExtensionEnd,
            (ChunkState::TrailerLine, b'\r') => ChunkState::TrailerLineEnd,
            (
                ChunkState::Extension
                | ChunkState::LastExtension
                | ChunkState::TrailerLine
                | ChunkState::Trailer,
                b'\n',
            ) => {
                return Err(BodyError::InvalidChunk);
            }
            (ChunkState::Extension | ChunkState::LastExtension | ChunkState::TrailerLine, _) => {
                self.state
            }
            (ChunkState::ExtensionEnd, b'\n') => ChunkState::Data,
            (ChunkState::Data, b'\r') => ChunkState::AfterDataEnd,
            (ChunkState::AfterDataEnd, b'\n') => ChunkState::Start,
            (ChunkState::LastExtensionEnd, b'\n') if self.trailers.is_some() => ChunkState::Kept,
            (ChunkState::LastExtensionEnd | ChunkState::TrailerLineEnd, b'\n') => {
                ChunkState::Trailer
            }
            (ChunkState::Trailer, b'\r') => ChunkState::TrailerEnd,
            (ChunkState::Trailer, _) => ChunkState::TrailerLine,
            (ChunkState::TrailerEnd, b'\n') => ChunkState::Done,
            _ => return Err(BodyError::InvalidChunk),
        };
        Ok(())
    }

    fn size_byte(&mut self, ch: u8) -> Result<ChunkState, BodyError> {
        // nginx makes this check before it looks at the byte, so 2^59 and more never pass.
        if self.size > i64::MAX as u64 / 16 {
            return Err(BodyError::InvalidChunk);
        }
        if let Some(digit) = hex(ch) {
            self.size = self.size * 16 + digit;
            if self.size > MAX_SIZE {
                return Err(BodyError::InvalidChunk);
            }
            return Ok(ChunkState::Size);
        }
        match (ch, self.size) {
            (b'\r', 0) => Ok(ChunkState::LastExtensionEnd),
            (b'\r', _) => Ok(ChunkState::ExtensionEnd),
            (b';' | b' ' | b'\t', 0) => Ok(ChunkState::LastExtension),
            (b';' | b' ' | b'\t', _) => Ok(ChunkState::Extension),
            _ => Err(BodyError::InvalidChunk),
        }
    }

    /// The fewest bytes that must still arrive: of this chunk, and of a last chunk.
    pub(super) fn expected(&self) -> u64 {
        const END_AND_LAST: u64 = 7;
        let least = match self.state {
            ChunkState::Start => 5,
            ChunkState::Size if self.size == 0 => 4,
            ChunkState::Size | ChunkState::Extension => 2 + self.size + END_AND_LAST,
            ChunkState::ExtensionEnd => 1 + self.size + END_AND_LAST,
            ChunkState::Data => self.size + END_AND_LAST,
            ChunkState::AfterDataEnd => 6,
            ChunkState::LastExtension | ChunkState::TrailerLine => 4,
            ChunkState::LastExtensionEnd | ChunkState::TrailerLineEnd => 3,
            ChunkState::Trailer => 2,
            // A part of the line end may have arrived.
            ChunkState::Kept | ChunkState::TrailerEnd => 1,
            ChunkState::Done => 0,
        };
        // Trailers that are kept may end with a bare line feed.
        match self.trailers.is_some() && !matches!(self.state, ChunkState::Kept | ChunkState::Done)
        {
            true => least - 1,
            false => least,
        }
    }
}

fn hex(ch: u8) -> Option<u64> {
    (ch as char).to_digit(16).map(u64::from)
}
