//! Decodes field blocks.

use std::fmt;

use super::table::STATIC;
use crate::compression::{DynamicTable, FieldLimits, huffman};
use crate::http2::frame::DEFAULT_TABLE;

/// The most bytes of an integer behind its prefix. nginx: NGX_HTTP_V2_INT_OCTETS, which counts the prefix.
const NUMBER: usize = 3;

/// A decoding error. It is a connection error, since the dynamic tables of both ends differ after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockError {
    /// The block ends within a field.
    Truncated,
    /// An integer has too many bytes.
    LongNumber,
    /// An index beyond both tables.
    BadIndex(usize),
    /// A table size update above SETTINGS_HEADER_TABLE_SIZE.
    BadTableSize(usize),
    /// A table size update after a field.
    LateTableSize,
    /// A string with an invalid Huffman code.
    BadCode,
    /// A field without a name.
    EmptyName,
    /// A field is larger than this end accepts.
    LargeField,
    /// All fields together are larger than this end accepts.
    LargeBlock,
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockError::Truncated => f.write_str("header block with incorrect length"),
            BlockError::LongNumber => f.write_str("header block with too long header index value"),
            BlockError::BadIndex(index) => write!(f, "invalid hpack table index {index}"),
            BlockError::BadTableSize(size) => write!(f, "invalid table size update: {size}"),
            BlockError::LateTableSize => f.write_str("table size update behind a field"),
            BlockError::BadCode => f.write_str("invalid encoded header field"),
            BlockError::EmptyName => f.write_str("zero header name length"),
            BlockError::LargeField => f.write_str("too large header field"),
            BlockError::LargeBlock => f.write_str("too large header"),
        }
    }
}

/// Decodes the field blocks of a connection, in their order.
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable,
    /// The largest size of the dynamic table: SETTINGS_HEADER_TABLE_SIZE.
    most: usize,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder::with_table(DEFAULT_TABLE as usize)
    }
}

impl Decoder {
    /// A decoder for this SETTINGS_HEADER_TABLE_SIZE.
    pub fn with_table(most: usize) -> Decoder {
        Decoder { table: DynamicTable::new(most), most, name: Vec::new(), value: Vec::new() }
    }

    /// Passes the name and value of each field of a complete block to `take`.
    pub fn decode(
        &mut self,
        block: &[u8],
        limits: FieldLimits,
        mut take: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), BlockError> {
        let mut input = Input(block);
        let (mut begun, mut left) = (false, limits.block);
        while let Some(&first) = input.0.first() {
            if first & 0xe0 == 0x20 {
                if begun {
                    return Err(BlockError::LateTableSize);
                }
                self.resize(input.number(5)?)?;
                continue;
            }
            begun = true;
            let size = if first & 0x80 != 0 {
                let index = input.number(7)?;
                let (name, value) = known(&self.table, index)?;
                take(name, value);
                name.len() + value.len()
            } else {
                self.literal(&mut input, first, limits.field, &mut take)?
            };
            left = left.checked_sub(size).ok_or(BlockError::LargeBlock)?;
        }
        Ok(())
    }

    /// Checks the start of an incomplete block. Fails if the block is malformed whatever follows.
    /// Otherwise returns the length of the complete fields. It checks integers only, which need no
    /// table.
    pub fn check_partial(partial: &[u8]) -> Result<usize, BlockError> {
        let mut input = Input(partial);
        loop {
            let left = input.0.len();
            match input.skip() {
                Ok(()) if !input.0.is_empty() => {}
                Ok(()) => return Ok(partial.len()),
                Err(BlockError::Truncated) => return Ok(partial.len() - left),
                Err(error) => return Err(error),
            }
        }
    }

    /// Frees memory that is not needed between two blocks.
    pub fn release(&mut self) {
        (self.name, self.value) = (Vec::new(), Vec::new());
        self.table.release();
    }

    fn resize(&mut self, size: usize) -> Result<(), BlockError> {
        if size > self.most {
            return Err(BlockError::BadTableSize(size));
        }
        self.table.resize(size);
        Ok(())
    }

    /// Decodes a literal field: RFC 7541, section 6.2.
    fn literal(
        &mut self,
        input: &mut Input<'_>,
        first: u8,
        limit: usize,
        take: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<usize, BlockError> {
        let kept = first & 0x40 != 0;
        let index = input.number(if kept { 6 } else { 4 })?;
        self.name.clear();
        if index > 0 {
            let (name, _) = known(&self.table, index)?;
            self.name.extend_from_slice(name);
        } else {
            input.string(&mut self.name, limit)?;
            if self.name.is_empty() {
                return Err(BlockError::EmptyName);
            }
        }
        self.value.clear();
        input.string(&mut self.value, limit)?;
        take(&self.name, &self.value);
        if kept {
            self.table.add(&self.name, &self.value);
        }
        Ok(self.name.len() + self.value.len())
    }
}

/// The field of an index in the static or the dynamic table: RFC 7541, section 2.3.3.
fn known(table: &DynamicTable, index: usize) -> Result<(&[u8], &[u8]), BlockError> {
    let fixed = index.checked_sub(1).and_then(|index| STATIC.get(index)).copied();
    let field = fixed.or_else(|| table.newest(index.checked_sub(STATIC.len() + 1)?));
    field.ok_or(BlockError::BadIndex(index))
}

/// The rest of a block.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Result<u8, BlockError> {
        let (&byte, rest) = self.0.split_first().ok_or(BlockError::Truncated)?;
        self.0 = rest;
        Ok(byte)
    }

    /// An integer with a prefix of this many bits: RFC 7541, section 5.1.
    fn number(&mut self, prefix: u32) -> Result<usize, BlockError> {
        let most = (1 << prefix) - 1;
        let mut number = usize::from(self.byte()?) & most;
        if number < most {
            return Ok(number);
        }
        for i in 0..NUMBER {
            let byte = self.byte()?;
            number += usize::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(BlockError::LongNumber)
    }

    /// Skips a field or a table size update.
    fn skip(&mut self) -> Result<(), BlockError> {
        let first = *self.0.first().ok_or(BlockError::Truncated)?;
        let strings = match first {
            0x80.. => self.number(7).map(|_| 0)?,
            0x40.. => 1 + usize::from(self.number(6)? == 0),
            0x20.. => self.number(5).map(|_| 0)?,
            _ => 1 + usize::from(self.number(4)? == 0),
        };
        for _ in 0..strings {
            let len = self.number(7)?;
            self.0 = self.0.get(len..).ok_or(BlockError::Truncated)?;
        }
        Ok(())
    }

    /// Appends a string literal: RFC 7541, section 5.2.
    fn string(&mut self, out: &mut Vec<u8>, limit: usize) -> Result<(), BlockError> {
        let huffman = self.0.first().is_some_and(|byte| byte & 0x80 != 0);
        let len = self.number(7)?;
        if len > limit {
            return Err(BlockError::LargeField);
        }
        let (text, rest) = self.0.split_at_checked(len).ok_or(BlockError::Truncated)?;
        self.0 = rest;
        if !huffman {
            out.extend_from_slice(text);
            return Ok(());
        }
        huffman::decode(text, out).map_err(|huffman::BadCode| BlockError::BadCode)
    }
}
