//! Content codings: selects them by `Accept-Encoding` and encodes bodies.
//! nginx: ngx_http_gzip_accept_encoding.

use std::io::{self, Write};

use weir_engine::{Chain, Handle, Segment, operation};
use weir_proto::http1::HeaderId;

use crate::answer::filters::{BodyFilter, Filtered, Then};
use crate::answer::headers::Place;
use crate::request::Request;

#[cfg(test)]
pub mod samples;
mod settings;

pub(crate) use settings::coding_directives;
pub use settings::{Common, power_of_two};

/// Whether `Accept-Encoding` names the coding with a quality above zero.
pub fn accepts(r: &Request, coding: &str) -> bool {
    r.header(HeaderId::AcceptEncoding).is_some_and(|header| is_listed(header, coding.as_bytes()))
}

fn is_listed(header: &[u8], coding: &[u8]) -> bool {
    let mut from = 0;
    while let Some(rest) = header.get(from..)
        && rest.len() >= coding.len()
    {
        let begins = from == 0 || matches!(header[from - 1], b',' | b' ');
        if begins && rest[..coding.len()].eq_ignore_ascii_case(coding) {
            return has_quality(&rest[coding.len()..]);
        }
        from += 1;
    }
    false
}

/// Whether the coding's name ends here, and its quality is above zero or missing.
fn has_quality(rest: &[u8]) -> bool {
    let rest = rest.trim_ascii_start();
    let parameter = match rest.first() {
        None | Some(b',') => return true,
        Some(b';') => rest[1..].trim_ascii_start(),
        Some(_) => return false,
    };
    match parameter {
        [] => true,
        [b'q' | b'Q', b'=', value @ ..] if !value.is_empty() => quality(value) > 0,
        _ => false,
    }
}

/// Parses `0`, `0.5`, `1` or `1.000`. The result is above 0 if the quality is. An invalid one
/// counts as 0.
fn quality(value: &[u8]) -> u32 {
    let end = value.iter().position(|b| matches!(b, b',' | b' ')).unwrap_or(value.len());
    let (whole, digits) = match &value[..end] {
        [whole @ (b'0' | b'1')] => (*whole, b"".as_slice()),
        [whole @ (b'0' | b'1'), b'.', digits @ ..] => (*whole, digits),
        _ => return 0,
    };
    if digits.len() > 3 || !digits.iter().all(u8::is_ascii_digit) {
        return 0;
    }
    let parts = digits.iter().map(|d| u32::from(d - b'0')).sum::<u32>();
    let sum = u32::from(whole - b'0') * 100 + parts;
    if sum > 100 { 0 } else { sum }
}

/// Encodes a body piece by piece.
pub trait Encoder {
    /// Encodes more of the body.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Tells that the next piece comes at an unknown time. The encoder then keeps no more output
    /// than the coding requires.
    fn pause(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Makes all output of the input so far available.
    fn flush(&mut self) -> io::Result<()>;
    /// Ends the body.
    fn finish(&mut self) -> io::Result<()>;
    /// Takes the available output.
    fn take(&mut self) -> Vec<u8>;
}

/// A compressor of another crate that writes to memory.
pub trait Compress: Write {
    /// The output so far.
    fn out(&mut self) -> &mut Vec<u8>;
    /// Ends the stream and returns the rest of the output.
    fn end(self) -> io::Result<Vec<u8>>;
}

/// An [`Encoder`] over such a compressor. `writer` is `None` once the body has ended. The last
/// output is then in `rest`.
pub struct Compressor<W> {
    writer: Option<W>,
    rest: Vec<u8>,
}

impl<W: Compress> Compressor<W> {
    /// Wraps a compressor without output so far.
    pub fn over(writer: W) -> Self {
        Compressor { writer: Some(writer), rest: Vec::new() }
    }
}

impl<W: Compress> Encoder for Compressor<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.as_mut().map_or(Ok(()), |writer| writer.write_all(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.as_mut().map_or(Ok(()), Write::flush)
    }

    fn finish(&mut self) -> io::Result<()> {
        if let Some(writer) = self.writer.take() {
            self.rest = writer.end()?;
        }
        Ok(())
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.writer.as_mut().map_or(&mut self.rest, W::out))
    }
}

/// Encodes the response: changes its head accordingly and adds the body filter.
pub fn encode(r: &mut Request, coding: &'static Coding, encoder: impl Encoder + 'static) {
    r.response.content_encoding = Some(coding.name.to_vec());
    r.response.headers.mark(Place::ContentEncoding, b"Content-Encoding");
    r.response.expect_changes();
    r.response.weaken_etag();
    r.add_body_filter(Box::new(Encoded { coding, encoder, read: 0, written: 0 }));
}

/// A content coding, and its module.
pub struct Coding {
    /// In `Content-Encoding`.
    pub name: &'static [u8],
    /// See [`BodyFilter::module`].
    pub module: &'static str,
}

struct Encoded<E> {
    coding: &'static Coding,
    encoder: E,
    read: u64,
    written: u64,
}

impl<E: Encoder> Encoded<E> {
    fn run(&mut self, mut input: Chain, then: Then, handle: &Handle) -> io::Result<Chain> {
        while let Some(segment) = input.pop() {
            let memory = segment.memory().unwrap_or_default();
            self.read += memory.len() as u64;
            self.encoder.write(memory)?;
            if let Segment::Buf { buf, .. } = segment {
                handle.give_buf(buf);
            }
        }
        match then {
            Then::More | Then::Part => {}
            Then::Pause => self.encoder.pause()?,
            Then::Flush => self.encoder.flush()?,
            Then::End => self.encoder.finish()?,
        }
        let coded = self.encoder.take();
        self.written += coded.len() as u64;
        let mut out = Chain::new();
        out.push(coded);
        Ok(out)
    }
}

impl<E: Encoder> BodyFilter for Encoded<E> {
    fn module(&self) -> &'static str {
        self.coding.module
    }

    fn filter<'a>(&'a mut self, r: &'a mut Request, input: Chain, _: bool) -> Filtered<'a> {
        let (then, handle) = (r.output.filters.then(), &r.event_loop.handle);
        let out = operation("compress", || self.run(input, then, handle));
        r.contexts.gzip_ratio = Some((self.read, self.written));
        Filtered::Now(out)
    }
}

#[cfg(test)]
mod tests {
    use super::is_listed;

    fn gzip(header: &str) -> bool {
        is_listed(header.as_bytes(), b"gzip")
    }

    #[test]
    fn a_coding_is_accepted_if_its_quality_is_above_zero() {
        for yes in [
            "gzip",
            "GZIP",
            "deflate, gzip",
            "gzip;q=1",
            "gzip; q=0.001",
            "a,gzip ;q=0.5 ,b",
            "gzip;",
        ] {
            assert!(gzip(yes), "{yes}");
        }
        for no in [
            "",
            "gzi",
            "xgzip",
            "gzipx",
            "gzip;q=0",
            "gzip; q=0.000",
            "gzip;q=2",
            "gzip;q=1.001",
            "gzip;q=0.0001",
            "gzip;q=",
            "gzip;x=1",
            "deflate",
            "gzip;q=x",
        ] {
            assert!(!gzip(no), "{no}");
        }
    }
}
