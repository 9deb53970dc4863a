//! Converts the charset of a body piece by piece.

use std::collections::HashMap;
use std::io::Write;

use bytes::Bytes;
use weir_engine::Chain;

use super::maps::CharsetTable;
use crate::answer::filters::{BodyFilter, Filtered, into_bytes};
use crate::request::Request;

/// Why bytes could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// The rest of the character has not arrived.
    Incomplete,
    /// The bytes are not a character.
    Invalid,
}

/// The body filter.
pub struct Recode {
    table: CharsetTable,
    /// An incomplete character at the end of the last piece.
    incomplete: Vec<u8>,
}

impl Recode {
    /// A filter at the beginning of a body.
    pub fn new(table: CharsetTable) -> Recode {
        Recode { table, incomplete: Vec::new() }
    }

    /// Converts the next piece.
    pub fn run(&mut self, input: Bytes) -> Bytes {
        match &self.table {
            CharsetTable::Bytes(_) | CharsetTable::ToUtf8(_) if input.is_empty() => input,
            CharsetTable::Bytes(table) => {
                input.iter().map(|byte| table[usize::from(*byte)]).collect::<Vec<u8>>().into()
            }
            CharsetTable::ToUtf8(table) => {
                let mut out = Vec::with_capacity(input.len() * 2);
                for byte in &input {
                    out.extend_from_slice(&table[usize::from(*byte)]);
                }
                out.into()
            }
            CharsetTable::FromUtf8(_) if self.incomplete.is_empty() && input.is_ascii() => input,
            CharsetTable::FromUtf8(table) => {
                let bytes = [self.incomplete.as_slice(), &input].concat();
                let mut rest = bytes.as_slice();
                let mut out = Vec::with_capacity(bytes.len());
                from_utf8(&mut rest, table, &mut out);
                self.incomplete = rest.to_vec();
                out.into()
            }
        }
    }

    /// Ends the body. An incomplete character becomes `?`.
    pub fn end(&mut self) -> Bytes {
        if std::mem::take(&mut self.incomplete).is_empty() {
            return Bytes::new();
        }
        Bytes::from_static(b"?")
    }
}

impl BodyFilter for Recode {
    fn module(&self) -> &'static str {
        "charset_filter"
    }

    fn filter<'a>(&'a mut self, r: &'a mut Request, mut input: Chain, _: bool) -> Filtered<'a> {
        let mut out = Chain::new();
        while let Some(segment) = input.pop() {
            out.push(self.run(into_bytes(segment)));
        }
        if r.output.filters.ends_body() {
            out.push(self.end());
        }
        Filtered::Now(Ok(out))
    }
}

/// Converts all complete characters. An incomplete one at the end stays in `rest`.
fn from_utf8(rest: &mut &[u8], table: &HashMap<u32, u8>, out: &mut Vec<u8>) {
    while let Some(&byte) = rest.first() {
        if byte < 0x80 {
            out.push(byte);
            *rest = &rest[1..];
            continue;
        }
        match decode(rest) {
            Ok(character) => match table.get(&character) {
                Some(byte) => out.push(*byte),
                None => {
                    // Writing to a vector cannot fail.
                    let _ = write!(out, "&#{character};");
                }
            },
            Err(DecodeError::Invalid) => out.push(b'?'),
            Err(DecodeError::Incomplete) => return,
        }
    }
}

/// Takes one non-ASCII character, or an invalid sequence, from the beginning of `bytes`. An
/// incomplete character stays. nginx: ngx_utf8_decode.
pub fn decode(bytes: &mut &[u8]) -> Result<u32, DecodeError> {
    let first = bytes.first().copied().ok_or(DecodeError::Incomplete)?;
    let (mut value, more, above) = match first {
        0xf0..=0xf7 => (u32::from(first & 7), 3, 0xffff),
        0xe0..=0xef => (u32::from(first & 0xf), 2, 0x7ff),
        0xc2..=0xdf => (u32::from(first & 0x1f), 1, 0x7f),
        _ => {
            *bytes = &bytes[1..];
            return Err(DecodeError::Invalid);
        }
    };
    if bytes.len() <= more {
        return Err(DecodeError::Incomplete);
    }
    for i in 1..=more {
        let byte = bytes[i];
        if byte < 0x80 {
            *bytes = &bytes[i + 1..];
            return Err(DecodeError::Invalid);
        }
        value = value << 6 | u32::from(byte & 0x3f);
    }
    *bytes = &bytes[more + 1..];
    if value > above && value <= 0x10_ffff { Ok(value) } else { Err(DecodeError::Invalid) }
}
