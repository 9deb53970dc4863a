//! Cuts the requested ranges out of a body. The range filter decides on the ranges and the head.

use std::io;

use weir_engine::{Chain, Segment};
use weir_proto::range::ByteRange;
use weir_values::builtin::write_number;

/// Cuts the requested ranges out of a body while it is sent.
#[derive(Debug)]
pub struct Cutter {
    ranges: Vec<ByteRange>,
    /// The separators of a multipart answer. None for a single range.
    multipart: Option<Multipart>,
    /// The offset in the body that was reached.
    offset: u64,
    done: bool,
}

/// The separators of a multipart answer.
#[derive(Debug)]
pub struct Multipart {
    /// Separates the parts.
    pub boundary: String,
    /// `Content-Type: ...` and the line end, if the answer has a type.
    pub content_type: Vec<u8>,
    /// The length of the whole body.
    pub length: u64,
}

/// `bytes 0-9/100`, or `bytes */100` if no range can be satisfied.
pub fn content_range(range: Option<ByteRange>, length: u64) -> Vec<u8> {
    let mut out = b"bytes ".to_vec();
    match range {
        Some(range) => write_range(range, &mut out),
        None => out.push(b'*'),
    }
    out.push(b'/');
    write_number(length, &mut out);
    out
}

fn write_range(range: ByteRange, out: &mut Vec<u8>) {
    write_number(range.start, out);
    out.push(b'-');
    write_number(range.end - 1, out);
}

impl Multipart {
    fn part_head(&self, range: ByteRange) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(b"\r\n--");
        out.extend_from_slice(self.boundary.as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.content_type);
        out.extend_from_slice(b"Content-Range: ");
        out.extend_from_slice(&content_range(Some(range), self.length));
        out.extend_from_slice(b"\r\n\r\n");
        out
    }

    fn end(&self) -> Vec<u8> {
        format!("\r\n--{}--\r\n", self.boundary).into_bytes()
    }

    /// The length of an answer with these parts.
    pub fn total(&self, ranges: &[ByteRange]) -> u64 {
        let part =
            |range: &ByteRange| self.part_head(*range).len() as u64 + (range.end - range.start);
        ranges.iter().map(part).sum::<u64>() + self.end().len() as u64
    }
}

impl Cutter {
    /// Cuts these ranges out of a body that begins at this offset.
    pub fn new(ranges: Vec<ByteRange>, multipart: Option<Multipart>, offset: u64) -> Cutter {
        Cutter { ranges, multipart, offset, done: false }
    }

    /// Takes the next piece of the body. Returns the parts of it that are sent.
    pub fn cut(&mut self, input: Chain) -> io::Result<Chain> {
        if self.done {
            return Ok(Chain::new());
        }
        if self.multipart.is_some() { self.cut_parts(input) } else { Ok(self.cut_one(input)) }
    }

    fn cut_one(&mut self, mut input: Chain) -> Chain {
        let mut out = Chain::new();
        let Some(&range) = self.ranges.first() else { return out };
        while let Some(segment) = input.pop() {
            let start = self.offset;
            self.offset += segment.len();
            let from = range.start.clamp(start, self.offset) - start;
            let to = range.end.clamp(start, self.offset) - start;
            if let Some(piece) = slice(&segment, from, to) {
                out.push(piece);
            }
        }
        self.done = self.offset >= range.end;
        out
    }

    /// Cuts several ranges. They may overlap and need not be in order, so the whole body must be in this one piece. That is so
    /// for files and bodies in memory.
    fn cut_parts(&mut self, input: Chain) -> io::Result<Chain> {
        let mut out = Chain::new();
        let Some(multipart) = &self.multipart else { return Ok(out) };
        if input.len() < multipart.length {
            return Err(io::Error::other("range in overlapped buffers"));
        }
        for range in &self.ranges {
            out.push(multipart.part_head(*range));
            let mut start = 0;
            for segment in input.segments() {
                let end = start + segment.len();
                let from = range.start.clamp(start, end) - start;
                let to = range.end.clamp(start, end) - start;
                if let Some(piece) = slice(segment, from, to) {
                    out.push(piece);
                }
                start = end;
            }
        }
        out.push(multipart.end());
        self.done = true;
        Ok(out)
    }
}

/// Bytes `from..to` of a segment.
fn slice(segment: &Segment, from: u64, to: u64) -> Option<Segment> {
    if from >= to {
        return None;
    }
    let memory = from as usize..to as usize;
    Some(match segment {
        Segment::Bytes(bytes) => {
            Segment::Bytes(bytes.slice(memory.start..memory.end.min(bytes.len())))
        }
        Segment::Buf { buf, start } => {
            let bytes = buf.get(start + memory.start..start + memory.end)?;
            Segment::from(bytes.to_vec())
        }
        Segment::File { file, offset, .. } => {
            Segment::File { file: file.clone(), offset: offset + from, len: to - from }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flat(chain: &Chain) -> Vec<u8> {
        chain.segments().filter_map(Segment::memory).flatten().copied().collect()
    }

    fn multipart() -> Multipart {
        let content_type = b"Content-Type: text/plain\r\n".to_vec();
        Multipart { boundary: "7".to_owned(), content_type, length: 10 }
    }

    #[test]
    fn parts_stand_between_boundaries() {
        let ranges = vec![ByteRange { start: 0, end: 2 }, ByteRange { start: 8, end: 10 }];
        let total = multipart().total(&ranges);
        let mut cutter = Cutter::new(ranges, Some(multipart()), 0);
        let mut input = Chain::new();
        input.push(b"01234".to_vec());
        input.push(&b"56789"[..]);
        let out = flat(&cutter.cut(input).unwrap());
        let text = String::from_utf8(out.clone()).unwrap();
        assert_eq!(
            text,
            "\r\n--7\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-1/10\r\n\r\n01\
             \r\n--7\r\nContent-Type: text/plain\r\nContent-Range: bytes 8-9/10\r\n\r\n89\
             \r\n--7--\r\n"
        );
        assert_eq!(out.len() as u64, total);
    }

    proptest! {
        #[test]
        fn one_range_is_cut_out_of_any_pieces(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 1..8),
            start in 0usize..100,
            len in 1usize..100,
            split in any::<prop::sample::Index>(),
        ) {
            let body = pieces.concat();
            let start = start % body.len();
            let end = (start + len).min(body.len());
            let range = ByteRange { start: start as u64, end: end as u64 };
            let mut cutter = Cutter::new(vec![range], None, 0);
            let mut out = Vec::new();
            let at = split.index(pieces.len());
            for part in [&pieces[..at], &pieces[at..]] {
                let mut input = Chain::new();
                part.iter().for_each(|piece| input.push(piece.clone()));
                out.extend(flat(&cutter.cut(input).unwrap()));
            }
            prop_assert_eq!(out, &body[start..end]);
        }
    }
}
