//! Reading sections of fields, and the stream of the peer's encoder.

use super::instruction::{Input, PartialInstruction};
use super::static_table::STATIC;
use super::{FieldLimits, OVERHEAD, QpackError, QpackFault};
use crate::compression::{DynamicTable, write_number};

/// What became of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// All of its fields were handed over.
    Whole,
    /// It refers to entries that have not come. There must be this many before it can be read.
    Blocked(u64),
    /// It is larger than this end accepts. The connection may go on.
    TooLarge,
}

/// Reads the sections of one connection, in any order.
#[derive(Debug, Default)]
pub struct Decoder {
    table: DynamicTable,
    /// How large the peer may make the table.
    capacity: usize,
    /// Entries that were ever added to the table.
    inserted: u64,
    /// As many of them as the peer knows to have arrived.
    acknowledged: u64,
    /// Streams whose sections wait, and how many entries there must be for each.
    blocked: Vec<(u64, u64)>,
    most_blocked: usize,
    /// Bytes of the name and of the value of an entry, where there is a limit beside the table's.
    largest_field: Option<usize>,
    /// The beginning of an instruction of the encoder.
    partial: PartialInstruction,
    /// What the peer's encoder is to be told.
    feedback: Vec<u8>,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Decoder {
    /// One that has announced a table of `capacity` bytes, and that `most_blocked` streams may wait.
    pub fn new(capacity: usize, most_blocked: usize) -> Decoder {
        Decoder { capacity, most_blocked, ..Decoder::default() }
    }

    /// The same one, that takes no entries with a longer name or value. Such an entry ends the
    /// connection, since fields that refer to it would be refused.
    pub fn with_largest_field(self, largest_field: usize) -> Decoder {
        Decoder { largest_field: Some(largest_field), ..self }
    }

    /// Hands each field of the section of a stream to `take`: name and value. Nothing is handed over
    /// of a section that is blocked. Of one that is too large, some fields may have been. An error
    /// ends the connection, and the peer's encoder hears that the stream is cancelled before.
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

    /// A stream ends before all of its sections were decoded.
    pub fn cancel(&mut self, stream: u64) {
        self.blocked.retain(|(blocked, _)| *blocked != stream);
        if self.capacity > 0 {
            write_number(0x40, 6, stream, &mut self.feedback);
        }
    }

    /// Takes bytes of the stream of the peer's encoder. Sections that waited may be readable then.
    pub fn read_encoder(&mut self, bytes: &[u8]) -> Result<(), QpackError> {
        let mut partial = std::mem::take(&mut self.partial);
        let read = partial.read(bytes, |input| self.instruction(input));
        self.partial = partial;
        read.map_err(QpackFault::of_encoder)
    }

    /// A stream whose section waited for entries that are there now. Each is named once.
    pub fn next_unblocked(&mut self) -> Option<u64> {
        let at = self.blocked.iter().position(|(_, required)| *required <= self.inserted)?;
        Some(self.blocked.remove(at).0)
    }

    /// Appends what the peer's encoder is to be told, for the stream of our decoder. To call once in
    /// a turn is enough, but it must be called after instructions of the encoder, too.
    pub fn write_feedback(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.feedback);
        if self.acknowledged < self.inserted {
            write_number(0, 6, self.inserted - self.acknowledged, out);
            self.acknowledged = self.inserted;
        }
    }

    /// Gives back memory that is not needed while nothing comes.
    pub fn release(&mut self) {
        (self.name, self.value) = (Vec::new(), Vec::new());
        self.feedback.shrink_to_fit();
        self.partial.release();
        self.blocked.shrink_to_fit();
        self.table.release();
    }
}

/// What fields of a section may refer to.
#[derive(Clone, Copy)]
struct References {
    /// The entries that must be there.
    required: u64,
    /// Where indices begin.
    base: u64,
}

impl References {
    /// The entry at an index below the base.
    fn before(self, index: u64) -> Result<u64, QpackFault> {
        let entry = self.base.checked_sub(index + 1);
        entry.filter(|entry| *entry < self.required).ok_or(QpackFault::BadIndex(index))
    }

    /// The entry at an index from the base on.
    fn behind(self, index: u64) -> Result<u64, QpackFault> {
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

    /// How many entries a section needs, and where its indices begin: RFC 9204 section 4.5.1.
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

    /// The peer sends this count modulo twice the number of entries that fit into the table.
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

    /// Reads all fields, unless they are too large.
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
                0xc0.. => Some(fixed(input.number(6)?)?),
                0x80.. => Some(entry(references.before(input.number(6)?)?)?),
                0x10..0x20 => Some(entry(references.behind(input.number(4)?)?)?),
                _ => None,
            };
            let (name, value) = match known {
                Some(field) => field,
                None => {
                    let name = match first {
                        0x50..0x60 | 0x70..0x80 => fixed(input.number(4)?)?.0,
                        0x40..0x80 => entry(references.before(input.number(4)?)?)?.0,
                        0x20..0x40 => {
                            let Some(name) = input.string(3, limits.field)? else {
                                return Ok(false);
                            };
                            name.text(name_room)?
                        }
                        _ => entry(references.behind(input.number(3)?)?)?.0,
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

/// Instructions of the peer's encoder: RFC 9204 section 4.3.
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
                let (name, _) = fixed(input.number(6)?)?;
                (name, part(input.part(7, most)?)?.text(value_room)?)
            }
            // The entry that is named may have to make room for the new one.
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

/// A part of an entry, if it is not too large to be one.
fn part<T>(text: Option<T>) -> Result<T, QpackFault> {
    text.ok_or(QpackFault::LargeEntry)
}

fn copy<'a>(text: &[u8], room: &'a mut Vec<u8>) -> &'a [u8] {
    room.clear();
    room.extend_from_slice(text);
    room
}

/// The field of an index of the static table.
fn fixed(index: u64) -> Result<(&'static [u8], &'static [u8]), QpackFault> {
    let field = usize::try_from(index).ok().and_then(|index| STATIC.get(index));
    field.copied().ok_or(QpackFault::BadIndex(index))
}
