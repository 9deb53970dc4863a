//! Tables that convert one charset to another.

use std::collections::HashMap;
use std::sync::Arc;

use weir_conf::{Directive, Error};

use super::recode::decode;

/// The most bytes of a UTF-8 character in a table, which has only the basic multilingual plane.
const UTF8: usize = 3;

/// All charsets and tables of the configuration.
#[derive(Debug, Default)]
pub struct Maps {
    /// Charsets that a directive names.
    names: Vec<Vec<u8>>,
    tables: Vec<(Vec<u8>, Vec<u8>, CharsetTable)>,
    /// Pairs of charsets that a block needs a table for.
    needed: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Converts bytes to another charset.
#[derive(Debug, Clone)]
pub enum CharsetTable {
    /// Each byte becomes one byte.
    Bytes(Arc<[u8; 256]>),
    /// Each byte becomes a character of UTF-8.
    ToUtf8(Arc<Vec<Vec<u8>>>),
    /// A character of UTF-8 becomes a byte. One that is not in the table becomes a numeric
    /// character reference.
    FromUtf8(Arc<HashMap<u32, u8>>),
}

impl CharsetTable {
    /// Whether the conversion may change the length of a body.
    pub fn changes_length(&self) -> bool {
        !matches!(self, CharsetTable::Bytes(_))
    }
}

impl Maps {
    /// Adds a charset.
    pub fn add(&mut self, name: &[u8]) {
        if !self.knows(name) {
            self.names.push(name.to_vec());
        }
    }

    /// Whether the configuration names the charset.
    pub fn knows(&self, name: &[u8]) -> bool {
        self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Notes that a block converts between these charsets.
    pub fn need(&mut self, from: &[u8], to: &[u8]) {
        if !from.eq_ignore_ascii_case(to) {
            self.needed.push((from.to_vec(), to.to_vec()));
        }
    }

    /// The first pair that is needed and has no table.
    pub fn missing(&self) -> Option<(&[u8], &[u8])> {
        let missing = self.needed.iter().find(|(from, to)| self.table(from, to).is_none());
        missing.map(|(from, to)| (from.as_slice(), to.as_slice()))
    }

    /// The table that converts `from` to `to`.
    pub fn table(&self, from: &[u8], to: &[u8]) -> Option<CharsetTable> {
        let same = |(f, t): (&Vec<u8>, &Vec<u8>)| {
            f.eq_ignore_ascii_case(from) && t.eq_ignore_ascii_case(to)
        };
        self.tables.iter().find(|(f, t, _)| same((f, t))).map(|(_, _, table)| table.clone())
    }

    /// Reads `charset_map from to { byte bytes; ... }`.
    pub fn read(&mut self, d: &Directive) -> Result<(), Error> {
        let [from, to] = d.args.as_slice() else { return Ok(()) };
        self.add(&from.bytes);
        self.add(&to.bytes);
        let (source, target) = (from.lossy(), to.lossy());
        if source.eq_ignore_ascii_case(&target) {
            return Err(d.error(format!(
                "\"charset_map\" between the same charsets \"{source}\" and \"{target}\""
            )));
        }
        if source.eq_ignore_ascii_case("utf-8") {
            return Err(d.error(
                "\"charset_map\" with \"utf-8\" charset should be given in the second column",
            ));
        }
        if self.table(&from.bytes, &to.bytes).is_some() {
            return Err(d.error(format!(
                "duplicate \"charset_map\" between \"{source}\" and \"{target}\""
            )));
        }
        let utf8 = target.eq_ignore_ascii_case("utf-8");
        let (there, back) = if utf8 { read_utf8(d.block())? } else { read_bytes(d.block())? };
        self.tables.push((from.bytes.clone(), to.bytes.clone(), there));
        self.tables.push((to.bytes.clone(), from.bytes.clone(), back));
        Ok(())
    }
}

fn read_bytes(lines: &[Directive]) -> Result<(CharsetTable, CharsetTable), Error> {
    let mut there = [b'?'; 256];
    for (byte, to) in there.iter_mut().enumerate().take(128) {
        *to = byte as u8;
    }
    let mut back = there;
    for line in lines {
        let (from, text) = columns(line)?;
        let to = hex(text).ok_or_else(|| invalid(line, text))?;
        there[usize::from(from)] = to;
        back[usize::from(to)] = from;
    }
    Ok((CharsetTable::Bytes(Arc::new(there)), CharsetTable::Bytes(Arc::new(back))))
}

fn read_utf8(lines: &[Directive]) -> Result<(CharsetTable, CharsetTable), Error> {
    let mut there: Vec<Vec<u8>> =
        (0..=255u8).map(|byte| vec![if byte < 128 { byte } else { b'?' }]).collect();
    let mut back: HashMap<u32, u8> = (0..128).map(|byte| (u32::from(byte), byte)).collect();
    for line in lines {
        let (from, text) = columns(line)?;
        let digits = text.chunks_exact(2);
        let is_whole = digits.remainder().is_empty();
        let bytes: Option<Vec<u8>> = digits.map(hex).collect();
        let bytes = bytes.filter(|bytes| is_whole && !bytes.is_empty() && bytes.len() <= UTF8);
        let bytes = bytes.ok_or_else(|| invalid(line, text))?;
        let character = match bytes.as_slice() {
            [ascii @ 0..=0x7f] => Some(u32::from(*ascii)),
            bytes => decode(&mut &*bytes).ok(),
        };
        let character = character.filter(|c| *c <= 0xffff);
        back.insert(character.ok_or_else(|| invalid(line, text))?, from);
        there[usize::from(from)] = bytes;
    }
    Ok((CharsetTable::ToUtf8(Arc::new(there)), CharsetTable::FromUtf8(Arc::new(back))))
}

/// The byte in the first column of a line, and the text in the second.
fn columns(line: &Directive) -> Result<(u8, &[u8]), Error> {
    let [word] = line.args.as_slice() else {
        return Err(line.error("invalid parameters number"));
    };
    let from = hex(&line.name.bytes).ok_or_else(|| invalid(line, &line.name.bytes))?;
    Ok((from, &word.bytes))
}

fn invalid(line: &Directive, text: &[u8]) -> Error {
    line.error(format!("invalid value \"{}\"", String::from_utf8_lossy(text)))
}

fn hex(text: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(text).ok().filter(|t| !t.starts_with('+'))?;
    u8::from_str_radix(text, 16).ok()
}
