//! Decodes field sections, and reads the peer's encoder stream.

use super::instruction::{Input, PartialInstruction};
use super::static_table::STATIC;
use super::{FieldLimits, OVERHEAD, QpackError, QpackFault};
use crate::compression::{DynamicTable, write_number};

/// The result of decoding a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// All fields were passed on.
    Whole,
    /// The section is blocked until the insert count reaches this Required Insert Count.
    Blocked(u64),
    /// The section is larger than this end accepts. The connection may go on.
    TooLarge,
}

/// Decodes the field sections of a connection, in any order.
#[derive(Debug, Default)]
pub struct Decoder {
    table: DynamicTable,
    /// SETTINGS_QPACK_MAX_TABLE_CAPACITY
    capacity: usize,
    /// The insert count: all entries that were ever added.
    inserted: u64,
    /// The peer's Known Received Count.
    acknowledged: u64,
    /// The blocked streams, with their Required Insert Counts.
    blocked: Vec<(u64, u64)>,
    most_blocked: usize,
    /// The largest name and the largest value of an entry, if there is a limit below the table's size.
    largest_field: Option<usize>,
    /// The start of an incomplete encoder instruction.
    partial: PartialInstruction,
    /// Decoder instructions that are not written yet.
    feedback: Vec<u8>,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Decoder {
    /// A decoder for these values of SETTINGS_QPACK_MAX_TABLE_CAPACITY and SETTINGS_QPACK_BLOCKED_STREAMS.
    pub fn new(capacity: usize, most_blocked: usize) -> Decoder {
        Decoder { capacity, most_blocked, ..Decoder::default() }
    }

    /// Limits the name and the value of an entry. A larger one is a connection error, since all fields
    /// that refer to it would be too large.
    pub fn with_largest_field(self, largest_field: usize) -> Decoder {
        Decoder { largest_field: Some(largest_field), ..self }
    }

    /// Passes the name and value of each field of a stream's section to `take`. A blocked section
    /// passes none, and a section that is too large may pass some. An error is a connection error; a
    /// Stream Cancellation is written before.
    pub fn decode(
        &mut self,
        stream: u64,
        section: &[u8],
        limits: FieldLimits,
        mut take: impl FnMut(&[u8], &[u8]),
    ) -> Result<Decoded, QpackError> {
        self.section(stream, section, limits, &mut take).map_err(|fault| {
            self.cancel(stream);
            fault.of_section()
        })
    }

    /// Writes a Stream Cancellation: the stream ends before all of its sections were decoded.
    pub fn cancel(&mut self, stream: u64) {
        self.blocked.retain(|(blocked, _)| *blocked != stream);
        if self.capacity > 0 {
            write_number(0x40, 6, stream, &mut self.feedback);
        }
    }

    /// Reads bytes of the peer's encoder stream. They may unblock sections.
    pub fn read_encoder(&mut self, bytes: &[u8]) -> Result<(), QpackError> {
        let mut partial = std::mem::take(&mut self.partial);
        let read = partial.read(bytes, |input| self.instruction(input));
        self.partial = partial;
        read.map_err(QpackFault::of_encoder)
    }

    /// A stream whose section is not blocked any more. Each is returned once.
    pub fn next_unblocked(&mut self) -> Option<u64> {
        let at = self.blocked.iter().position(|(_, required)| *required <= self.inserted)?;
        Some(self.blocked.remove(at).0)
    }

    /// Appends decoder instructions, for the decoder stream. The caller calls it after field sections
    /// and after encoder instructions; once for several is enough.
    pub fn write_feedback(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.feedback);
        if self.acknowledged < self.inserted {
            write_number(0, 6, self.inserted - self.acknowledged, out);
            self.acknowledged = self.inserted;
        }
    }

    /// Frees memory that an idle connection does not need.
    pub fn release(&mut self) {
        (self.name, self.value) = (Vec::new(), Vec::new());
        self.feedback.shrink_to_fit();
        self.partial.release();
        self.blocked.shrink_to_fit();
        self.table.release();
    }
}

/// The prefix of a section, which bounds its references to the dynamic table.
#[derive(Clone, Copy)]
struct References {
    /// The Required Insert Count.
    required: u64,
    /// The Base.
    base: u64,
}

impl References {
    /// The absolute index of a relative index: RFC 9204, section 3.2.5.
    fn relative(self, index: u64) -> Result<u64, QpackFault> {
        let entry = self.base.checked_sub(index + 1);
        entry.filter(|entry| *entry < self.required).ok_or(QpackFault::BadIndex(index))
    }

    /// The absolute index of a post-Base index: RFC 9204, section 3.2.6.
    fn post_base(self, index: u64) -> Result<u64, QpackFault> {
        let entry = Some(self.base + index);
        entry.filter(|entry| *entry < self.required).ok_or(QpackFault::BadIndex(index))
    }
}

/// Sections.
impl Decoder {
    fn section(
        &mut self,
        stream: u64,
        section: &[u8],
        limits: FieldLimits,
        take: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<Decoded, QpackFault> {
        let mut input = Input(section);
        let (required, base) = self.prefix(&mut input)?;
        if required > self.inserted {
            return self.block(stream, required);
        }
        self.blocked.retain(|(blocked, _)| *blocked != stream);
        let whole = self.fields(input, References { required, base }, limits, take)?;
        if required > 0 {
            write_number(0x80, 7, stream, &mut self.feedback);
            self.acknowledged = self.acknowledged.max(required);
        }
        Ok(if whole { Decoded::Whole } else { Decoded::TooLarge })
    }

    /// Reads the Required Insert Count and the Base: RFC 9204, section 4.5.1.
    fn prefix(&self, input: &mut Input<'_>) -> Result<(u64, u64), QpackFault> {
        let required = self.required(input.number(8)?)?;
        let before = input.0.first().is_some_and(|byte| byte & 0x80 != 0);
        let delta = input.number(7)?;
        let base = if before {
            required.checked_sub(delta + 1).ok_or(QpackFault::BadBase)?
        } else {
            required + delta
        };
        Ok((required, base))
    }

    /// Decodes the Required Insert Count, which is sent modulo twice the most entries of the table: RFC 9204, section 4.5.1.1.
    fn required(&self, encoded: u64) -> Result<u64, QpackFault> {
        if encoded == 0 {
            return Ok(0);
        }
        let bad = Err(QpackFault::BadInsertCount(encoded));
        let most = (self.capacity / OVERHEAD) as u64;
        let round = 2 * most;
        if encoded > round {
            return bad;
        }
        let highest = self.inserted + most;
        let mut required = highest / round * round + encoded - 1;
        if required > highest {
            if required <= round {
                return bad;
            }
            required -= round;
        }
        if required == 0 { bad } else { Ok(required) }
    }

    fn block(&mut self, stream: u64, required: u64) -> Result<Decoded, QpackFault> {
        self.blocked.retain(|(blocked, _)| *blocked != stream);
        if self.blocked.len() >= self.most_blocked {
            return Err(QpackFault::ManyBlocked);
        }
        self.blocked.push((stream, required));
        Ok(Decoded::Blocked(required))
    }

    /// Decodes all fields. False if they are too large.
    fn fields(
        &mut self,
        mut input: Input<'_>,
        references: References,
        limits: FieldLimits,
        take: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<bool, QpackFault> {
        let Decoder { table, inserted, name: name_room, value: value_room, .. } = self;
        let entry = |absolute: u64| {
            let newest = inserted.checked_sub(absolute + 1);
            let field = newest.and_then(|index| table.newest(usize::try_from(index).ok()?));
            field.ok_or(QpackFault::BadIndex(absolute))
        };
        let mut left = limits.block;
        while let Some(&first) = input.0.first() {
            let known = match first {
                0xc0.. => Some(static_entry(input.number(6)?)?),
                0x80.. => Some(entry(references.relative(input.number(6)?)?)?),
                0x10..0x20 => Some(entry(references.post_base(input.number(4)?)?)?),
                _ => None,
            };
            let (name, value) = match known {
                Some(field) => field,
                None => {
                    let name = match first {
                        0x50..0x60 | 0x70..0x80 => static_entry(input.number(4)?)?.0,
                        0x40..0x80 => entry(references.relative(input.number(4)?)?)?.0,
                        0x20..0x40 => {
                            let Some(name) = input.string(3, limits.field)? else {
                                return Ok(false);
                            };
                            name.text(name_room)?
                        }
                        _ => entry(references.post_base(input.number(3)?)?)?.0,
                    };
                    let Some(value) = input.string(7, limits.field)? else { return Ok(false) };
                    (name, value.text(value_room)?)
                }
            };
            match left.checked_sub(name.len() + value.len()) {
                Some(rest) => left = rest,
                None => return Ok(false),
            }
            take(name, value);
        }
        Ok(true)
    }
}

/// Encoder instructions: RFC 9204, section 4.3.
impl Decoder {
    fn instruction(&mut self, input: &mut Input<'_>) -> Result<(), QpackFault> {
        let Decoder { table, capacity, largest_field, name: name_room, value: value_room, .. } =
            self;
        let newest = |index: u64| {
            let field = usize::try_from(index).ok().and_then(|index| table.newest(index));
            field.ok_or(QpackFault::BadIndex(index))
        };
        let most = table.max();
        let (name, value) = match input.0.first().copied().unwrap_or_default() {
            0xc0.. => {
                let (name, _) = static_entry(input.number(6)?)?;
                (name, part(input.part(7, most)?)?.text(value_room)?)
            }
            // The name is copied: the new entry may evict the entry that it refers to.
            0x80.. => {
                let (name, _) = newest(input.number(6)?)?;
                let value = part(input.part(7, most)?)?;
                (copy(name, name_room), value.text(value_room)?)
            }
            0x40.. => {
                let name = part(input.part(5, most)?)?;
                let value = part(input.part(7, most)?)?;
                (name.text(name_room)?, value.text(value_room)?)
            }
            0x20.. => {
                let size = input.number(5)?;
                let fits = usize::try_from(size).ok().filter(|size| size <= capacity);
                table.resize(fits.ok_or(QpackFault::BadCapacity(size))?);
                return Ok(());
            }
            _ => {
                let (name, value) = newest(input.number(5)?)?;
                (copy(name, name_room), copy(value, value_room))
            }
        };
        if largest_field.is_some_and(|largest| name.len().max(value.len()) > largest) {
            return Err(QpackFault::LargeField);
        }
        if !table.add(name, value) {
            return Err(QpackFault::LargeEntry);
        }
        self.inserted += 1;
        Ok(())
    }
}

/// A name or value, unless it is too large for the table.
fn part<T>(text: Option<T>) -> Result<T, QpackFault> {
    text.ok_or(QpackFault::LargeEntry)
}

fn copy<'a>(text: &[u8], room: &'a mut Vec<u8>) -> &'a [u8] {
    room.clear();
    room.extend_from_slice(text);
    room
}

/// The field of an index in the static table.
fn static_entry(index: u64) -> Result<(&'static [u8], &'static [u8]), QpackFault> {
    let field = usize::try_from(index).ok().and_then(|index| STATIC.get(index));
    field.copied().ok_or(QpackFault::BadIndex(index))
}
