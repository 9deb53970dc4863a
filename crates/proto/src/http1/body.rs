//! Message bodies: finds their bytes among the received bytes, and writes chunks.

use std::ops::Range;

use super::chunked::{ChunkParser, Trailers};

/// Why a body is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// The chunked coding is broken.
    InvalidChunk,
    /// A trailer line has a byte that is not allowed at its place.
    InvalidTrailer {
        /// The line up to the byte.
        line: String,
        /// The byte.
        byte: u8,
    },
    /// The trailers have more bytes than are kept.
    TrailersTooBig,
    /// Far more bytes of framing than of data: chunk extensions, or trailers that are discarded.
    FramingTooBig,
}

/// The result of one call of [`BodyDecoder::decode`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyStep {
    /// The number of input bytes that are consumed, including the data.
    pub consumed: usize,
    /// The range of the body's bytes in the input. It may be empty.
    pub data: Range<usize>,
    /// The body is complete. What follows in the input belongs to the next message.
    pub done: bool,
}

/// Finds the body in the bytes after a head.
#[derive(Debug, Clone)]
pub struct BodyDecoder(BodyFraming);

#[derive(Debug, Clone)]
enum BodyFraming {
    Length(u64),
    Chunked(ChunkParser),
    UntilClose,
}

impl BodyDecoder {
    /// A body of `n` bytes.
    pub fn length(n: u64) -> BodyDecoder {
        BodyDecoder(BodyFraming::Length(n))
    }

    /// A chunked body whose trailers are discarded, as nginx does with those of requests.
    pub fn chunked() -> BodyDecoder {
        BodyDecoder(BodyFraming::Chunked(ChunkParser::default()))
    }

    /// A chunked body whose trailers are kept, at most `limit` bytes.
    pub fn chunked_with_trailers(limit: usize) -> BodyDecoder {
        BodyDecoder(BodyFraming::Chunked(ChunkParser::keeping_trailers(limit)))
    }

    /// A body that ends with the connection.
    pub fn until_close() -> BodyDecoder {
        BodyDecoder(BodyFraming::UntilClose)
    }

    /// Decodes the next bytes. The caller passes the rest again until a step has neither data nor
    /// the end, and then more bytes. A body of length 0 is complete before its first byte.
    pub fn decode(&mut self, input: &[u8]) -> Result<BodyStep, BodyError> {
        match &mut self.0 {
            BodyFraming::Length(left) => {
                let len = clamp(*left, input.len());
                *left -= len as u64;
                Ok(BodyStep { consumed: len, data: 0..len, done: *left == 0 })
            }
            BodyFraming::UntilClose => {
                Ok(BodyStep { consumed: input.len(), data: 0..input.len(), done: false })
            }
            BodyFraming::Chunked(chunks) => {
                let start = chunks.parse(input)?;
                let mut end = start;
                if chunks.in_data() {
                    end += clamp(chunks.size, input.len() - start);
                    chunks.size -= (end - start) as u64;
                }
                Ok(BodyStep { consumed: end, data: start..end, done: chunks.done() })
            }
        }
    }

    /// The fewest bytes that must still arrive before the body is complete. `None` if unknown.
    pub fn expected(&self) -> Option<u64> {
        match &self.0 {
            BodyFraming::Length(left) => Some(*left),
            BodyFraming::Chunked(chunks) => Some(chunks.expected()),
            BodyFraming::UntilClose => None,
        }
    }

    /// The number of data bytes that certainly come next. They may be passed on without parsing.
    pub fn data_left(&self) -> u64 {
        match &self.0 {
            BodyFraming::Length(left) => *left,
            BodyFraming::Chunked(chunks) if chunks.in_data() => chunks.size,
            BodyFraming::Chunked(_) => 0,
            BodyFraming::UntilClose => u64::MAX,
        }
    }

    /// The trailers, if they are kept. They are complete once the body is.
    pub fn trailers(&self) -> Option<&Trailers> {
        match &self.0 {
            BodyFraming::Chunked(chunks) => chunks.trailers(),
            _ => None,
        }
    }
}

fn clamp(wanted: u64, available: usize) -> usize {
    usize::try_from(wanted).unwrap_or(usize::MAX).min(available)
}

/// Writes the line before a chunk of `len` bytes. `len` must not be 0, which would end the body.
pub fn chunk_head(len: u64, out: &mut Vec<u8>) {
    debug_assert!(len > 0);
    let digits = (64 - len.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        let nibble = (len >> (digit * 4)) as u8 & 0xf;
        out.push(if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 });
    }
    chunk_end(out);
}

/// Writes the line end after a chunk.
pub fn chunk_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// Writes the last chunk and the trailers.
pub fn last_chunk<'a>(trailers: impl IntoIterator<Item = (&'a [u8], &'a [u8])>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}
