//! Reading blocks of fields.

use std::fmt;

use super::table::FIXED;
use crate::compression::{DynamicTable, FieldLimits, huffman};

/// What the dynamic table may hold, unless something else was announced: RFC 9113 section 6.5.2.
const TABLE_SIZE: usize = 4096;
/// Bytes of a number beyond its prefix; more would only write small numbers long.
const NUMBER: usize = 3;

/// Why a block cannot be read: the connection is of no more use, since the tables of both ends differ now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockError {
    /// It ends within a field.
    Truncated,
    /// A number that is written with more bytes than any number needs.
    LongNumber,
    /// An index for which there is no field.
    BadIndex(usize),
    /// The dynamic table is to become larger than was announced.
    BadTableSize(usize),
    /// The size of the table changes behind a field.
    LateTableSize,
    /// A string that is not of the Huffman code.
    BadCode,
    /// A field without a name.
    EmptyName,
    /// A field that is larger than this end accepts.
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

/// Reads the blocks of one connection, in their order.
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable,
    /// How large the peer may make it.
    most: usize,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder::with_table(TABLE_SIZE)
    }
}

impl Decoder {
    /// One that has announced a table of this size.
    pub fn with_table(most: usize) -> Decoder {
        Decoder { table: DynamicTable::new(most), most, name: Vec::new(), value: Vec::new() }
    }

    /// Hands each field of a whole block to `take`: name and value.
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

    /// Looks at the beginning of a block of which more is to come. It returns an error if whatever
    /// comes cannot mend it, otherwise how many bytes of whole fields there are. It checks numbers
    /// only, which need no table.
    pub fn foresee(partial: &[u8]) -> Result<usize, BlockError> {
        let mut input = Input(partial);
        loop {
            let left = input.0.len();
            match input.pass_over() {
                Ok(()) if !input.0.is_empty() => {}
                Ok(()) => return Ok(partial.len()),
                Err(BlockError::Truncated) => return Ok(partial.len() - left),
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives back memory that is not needed between two blocks.
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

    /// A field that is written out, or of which only the name is known.
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

/// The field of an index, counted through both tables.
fn known(table: &DynamicTable, index: usize) -> Result<(&[u8], &[u8]), BlockError> {
    let fixed = index.checked_sub(1).and_then(|index| FIXED.get(index)).copied();
    let field = fixed.or_else(|| table.newest(index.checked_sub(FIXED.len() + 1)?));
    field.ok_or(BlockError::BadIndex(index))
}

/// What is left of a block.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Result<u8, BlockError> {
        let (&byte, rest) = self.0.split_first().ok_or(BlockError::Truncated)?;
        self.0 = rest;
        Ok(byte)
    }

    /// A number that begins in the low bits of the next byte: RFC 7541 section 5.1.
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

    /// Passes over a field, or a change of the table's size.
    fn pass_over(&mut self) -> Result<(), BlockError> {
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

    /// Appends a string, in the Huffman code or not.
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
