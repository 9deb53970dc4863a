//! Parts of an answer: 206 and 416. nginx: ngx_http_range_filter_module.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_engine::{Chain, Segment};
use weir_proto::conditional;
use weir_proto::http1::{HeaderId, Version};
use weir_proto::range::{self, ByteRange, Ranges};

use crate::answer::output::write_number;
use crate::phases::Step;
use crate::request::Request;
use weir_values::Subject;

/// Cuts the ranges that were asked for out of a body on its way out.
#[derive(Debug)]
pub struct Cutter {
    ranges: Vec<ByteRange>,
    /// What stands between the parts of a multipart answer; none for a single range.
    multipart: Option<Multipart>,
    /// How much of the body went by.
    offset: u64,
    done: bool,
}

#[derive(Debug)]
struct Multipart {
    boundary: String,
    /// `Content-Type: ...` and the line end, if the answer has a type.
    content_type: Vec<u8>,
    length: u64,
}

/// The header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let response = &r.response;
    let Some(length) = response.content_length else { return Ok(()) };
    if !(r.is_main() || response.is_slice)
        || !response.allow_ranges
        || response.status != 200
        || r.version < Version::Http10
    {
        return Ok(());
    }
    let max = r.conf().core.max_ranges;
    if max == Some(0) {
        return Ok(());
    }
    let max = if response.single_range { Some(1) } else { max };
    let mut ranges = Vec::new();
    match wanted(r, length, max, &mut ranges) {
        Ranges::Partial => partial(r, length, ranges),
        Ranges::NotSatisfiable => {
            r.response.headers.set(b"Content-Range", &content_range(None, length));
            r.response.content_length = None;
            return Err(Step::Status(416));
        }
        Ranges::Whole => r.response.headers.add(b"Accept-Ranges", b"bytes"),
    }
    Ok(())
}

fn wanted(r: &Request, length: u64, max: Option<u64>, out: &mut Vec<ByteRange>) -> Ranges {
    let Some(range) = r.header(HeaderId::Range) else { return Ranges::Whole };
    let (etag, modified) = (r.response.etag.as_deref(), r.response.last_modified);
    if let Some(condition) = r.header(HeaderId::IfRange)
        && !conditional::range_applies(condition, etag, modified)
    {
        return Ranges::Whole;
    }
    range::parse(range, length, max.and_then(|n| usize::try_from(n).ok()), out)
}

fn partial(r: &mut Request, length: u64, ranges: Vec<ByteRange>) {
    r.response.status = 206;
    r.response.status_line = None;
    let offset = r.response.content_offset;
    let multipart = match ranges.as_slice() {
        [only] => {
            r.response.headers.set(b"Content-Range", &content_range(Some(*only), length));
            r.response.content_length = Some(only.end - only.start);
            r.response.content_offset = only.start;
            None
        }
        several => {
            let multipart = Multipart::new(r, length);
            r.response.content_length = Some(multipart.total(several));
            r.response.headers.remove(b"Content-Range");
            Some(multipart)
        }
    };
    r.output.cut(Cutter { ranges, multipart, offset, done: false });
}

/// `bytes 0-9/100`, or `bytes */100` where no range fits.
fn content_range(range: Option<ByteRange>, length: u64) -> Vec<u8> {
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
    /// Takes the answer's type for the parts and puts that of the whole in its place.
    fn new(r: &mut Request, length: u64) -> Multipart {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let boundary = format!("{:020}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut content_type = Vec::new();
        if !r.response.content_type.is_empty() {
            content_type.extend_from_slice(b"Content-Type: ");
            let start = content_type.len();
            r.response.write_content_type(&mut content_type);
            r.within_line(&mut content_type, start);
            content_type.extend_from_slice(b"\r\n");
        }
        r.response.content_type.clear();
        r.response.charset.clear();
        let whole = format!("multipart/byteranges; boundary={boundary}");
        r.response.content_type.extend_from_slice(whole.as_bytes());
        Multipart { boundary, content_type, length }
    }

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

    fn total(&self, ranges: &[ByteRange]) -> u64 {
        let part =
            |range: &ByteRange| self.part_head(*range).len() as u64 + (range.end - range.start);
        ranges.iter().map(part).sum::<u64>() + self.end().len() as u64
    }
}

impl Cutter {
    /// Takes the next piece of the body and gives back what of it is to be sent.
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

    /// Ranges may overlap and go back, so the whole body must be in this one piece; it is, for files and
    /// what is in memory.
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
        let mut cutter = Cutter { ranges, multipart: Some(multipart()), offset: 0, done: false };
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
            let mut cutter =
                Cutter { ranges: vec![range], multipart: None, offset: 0, done: false };
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
