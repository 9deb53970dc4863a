//! Recodes a body that comes in pieces.

use std::collections::HashMap;
use std::io::Write;

use bytes::Bytes;
use weir_engine::Chain;

use super::maps::CharsetTable;
use crate::answer::filters::{BodyFilter, Filtered, into_bytes};
use crate::request::Request;

/// What bytes are if they are no character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// The rest of the character is still to come.
    Incomplete,
    /// No character.
    Invalid,
}

/// The filter.
pub struct Recode {
    table: CharsetTable,
    /// The begin of a character that a piece ended with.
    saved: Vec<u8>,
}

impl Recode {
    /// At the begin of a body.
    pub fn new(table: CharsetTable) -> Recode {
        Recode { table, saved: Vec::new() }
    }

    /// Recodes the next piece.
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
            CharsetTable::FromUtf8(_) if self.saved.is_empty() && input.is_ascii() => input,
            CharsetTable::FromUtf8(table) => {
                let bytes = [self.saved.as_slice(), &input].concat();
                let mut rest = bytes.as_slice();
                let mut out = Vec::with_capacity(bytes.len());
                from_utf8(&mut rest, table, &mut out);
                self.saved = rest.to_vec();
                out.into()
            }
        }
    }

    /// The body has ended; a character that has not is none.
    pub fn end(&mut self) -> Bytes {
        if std::mem::take(&mut self.saved).is_empty() {
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

/// Recodes all whole characters; an incomplete one at the end stays.
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
                    // A vector takes all that is written.
                    let _ = write!(out, "&#{character};");
                }
            },
            Err(Bad::Invalid) => out.push(b'?'),
            Err(Bad::Incomplete) => return,
        }
    }
}

/// Takes one character beyond ASCII, or what is none, off the begin of `bytes`. An incomplete one stays.
pub fn decode(bytes: &mut &[u8]) -> Result<u32, Bad> {
    let first = bytes.first().copied().ok_or(Bad::Incomplete)?;
    let (mut value, more, above) = match first {
        0xf0..=0xf7 => (u32::from(first & 7), 3, 0xffff),
        0xe0..=0xef => (u32::from(first & 0xf), 2, 0x7ff),
        0xc2..=0xdf => (u32::from(first & 0x1f), 1, 0x7f),
        _ => {
            *bytes = &bytes[1..];
            return Err(Bad::Invalid);
        }
    };
    if bytes.len() <= more {
        return Err(Bad::Incomplete);
    }
    for i in 1..=more {
        let byte = bytes[i];
        if byte < 0x80 {
            *bytes = &bytes[i + 1..];
            return Err(Bad::Invalid);
        }
        value = value << 6 | u32::from(byte & 0x3f);
    }
    *bytes = &bytes[more + 1..];
    if value > above && value <= 0x10_ffff { Ok(value) } else { Err(Bad::Invalid) }
}
