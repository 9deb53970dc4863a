//! Integers and strings in field sections and instructions: RFC 9204, section 4.1.

use super::QpackFault;
use crate::compression::huffman;
use crate::http3::varint;

/// The rest of a section, or of received instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a>(pub &'a [u8]);

/// The bytes of an incomplete instruction.
#[derive(Debug, Default)]
pub(super) struct PartialInstruction(Vec<u8>);

impl PartialInstruction {
    /// Executes the instructions that are complete with `bytes`, and keeps the rest.
    pub(super) fn read(
        &mut self,
        bytes: &[u8],
        mut execute: impl FnMut(&mut Input<'_>) -> Result<(), QpackFault>,
    ) -> Result<(), QpackFault> {
        if self.0.is_empty() {
            let taken = execute_complete(bytes, &mut execute)?;
            self.0.extend_from_slice(bytes.get(taken..).unwrap_or_default());
        } else {
            self.0.extend_from_slice(bytes);
            let taken = execute_complete(&self.0, &mut execute)?;
            self.0.drain(..taken);
        }
        Ok(())
    }

    /// Frees memory that an idle connection does not need.
    pub(super) fn release(&mut self) {
        self.0.shrink_to_fit();
    }
}

/// Executes the complete instructions, and returns their length.
fn execute_complete(
    bytes: &[u8],
    execute: &mut impl FnMut(&mut Input<'_>) -> Result<(), QpackFault>,
) -> Result<usize, QpackFault> {
    let mut input = Input(bytes);
    while !input.0.is_empty() {
        let mut ahead = input;
        match execute(&mut ahead) {
            Ok(()) => input = ahead,
            Err(QpackFault::Truncated) => break,
            Err(fault) => return Err(fault),
        }
    }
    Ok(bytes.len() - input.0.len())
}

/// An encoded string.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodedString<'a> {
    huffman: bool,
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    fn byte(&mut self) -> Result<u8, QpackFault> {
        let (&byte, rest) = self.0.split_first().ok_or(QpackFault::Truncated)?;
        self.0 = rest;
        Ok(byte)
    }

    /// An integer with a prefix of this many bits: RFC 7541, section 5.1.
    pub(super) fn number(&mut self, prefix: u32) -> Result<u64, QpackFault> {
        let most = (1 << prefix) - 1;
        let mut number = u64::from(self.byte()?) & most;
        if number < most {
            return Ok(number);
        }
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            // Below 2^63, since no shift is above 56.
            number += u64::from(byte & 0x7f) << shift;
            if number > varint::MAX {
                break;
            }
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(QpackFault::LongNumber)
    }

    /// A name or value of an entry. `None` if it cannot fit into an entry of `most` bytes after decoding.
    pub(super) fn part(
        &mut self,
        prefix: u32,
        most: usize,
    ) -> Result<Option<CodedString<'a>>, QpackFault> {
        let huffman = self.0.first().is_some_and(|byte| byte >> prefix & 1 == 1);
        self.string(prefix, if huffman { huffman::longest_code(most) } else { most })
    }

    /// A string whose length has a prefix of this many bits; the bit above is the Huffman flag. `None` if it is encoded in more than
    /// `most` bytes.
    pub(super) fn string(
        &mut self,
        prefix: u32,
        most: usize,
    ) -> Result<Option<CodedString<'a>>, QpackFault> {
        let huffman = self.0.first().is_some_and(|byte| byte >> prefix & 1 == 1);
        let len = self.number(prefix)?;
        let Some(len) = usize::try_from(len).ok().filter(|len| *len <= most) else {
            return Ok(None);
        };
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(QpackFault::Truncated)?;
        self.0 = rest;
        Ok(Some(CodedString { huffman, bytes }))
    }
}

impl<'a> CodedString<'a> {
    /// The decoded string. A Huffman-coded one is decoded into `room`.
    pub(super) fn text<'b>(self, room: &'b mut Vec<u8>) -> Result<&'b [u8], QpackFault>
    where
        'a: 'b,
    {
        if !self.huffman {
            return Ok(self.bytes);
        }
        room.clear();
        huffman::decode(self.bytes, room).map_err(|huffman::BadCode| QpackFault::BadCode)?;
        Ok(room)
    }
}
