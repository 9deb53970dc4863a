//! Atoms: a size, a name of four letters, and content, often atoms again.

use super::Problem;

/// The start of an atom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomHeader {
    /// Its name.
    pub name: [u8; 4],
    /// Length of the header: 8, or 16 with a size of 64 bits.
    pub len: u64,
    /// Length of header and content.
    pub size: u64,
}

/// Reads the header of an atom from its first bytes (16 of them, if there are so many); `room`: what is left of
/// the file or atom around it. `None`: an atom of size 0, the end.
///
/// # Errors
///
/// It is cut off, or its size is smaller than its header or larger than the room.
pub fn header(bytes: &[u8], room: u64) -> Result<Option<AtomHeader>, Problem> {
    let truncated = || Problem::of("mp4 file truncated");
    let size = u64::from(u32::from_be_bytes(*bytes.first_chunk().ok_or_else(truncated)?));
    if size == 0 {
        return Ok(None);
    }
    let (len, size) = match size {
        1 => (16, field_64(bytes.get(..16).ok_or_else(truncated)?, 8)),
        size => (8, size),
    };
    if size < len {
        return Err(Problem::of(format!("mp4 atom is too small:{size}")));
    }
    let name = *bytes.get(4..).and_then(<[u8]>::first_chunk).ok_or_else(truncated)?;
    if size > room {
        return Err(Problem::of(format!("mp4 atom too large:{size}")));
    }
    Ok(Some(AtomHeader { name, len, size }))
}

/// An atom in memory.
#[derive(Clone, Copy, Debug)]
pub struct Atom<'a> {
    pub name: [u8; 4],
    pub body: &'a [u8],
}

/// The atoms in a piece of memory.
pub fn atoms(mut rest: &[u8]) -> impl Iterator<Item = Result<Atom<'_>, Problem>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let header = match header(rest, rest.len() as u64) {
            Ok(header) => header?,
            Err(problem) => {
                rest = &[];
                return Some(Err(problem));
            }
        };
        let (atom, behind) = rest.split_at_checked(header.size as usize)?;
        rest = behind;
        Some(Ok(Atom { name: header.name, body: atom.get(header.len as usize..)? }))
    })
}

/// A number of 32 bits; 0 where there is none.
pub fn field_32(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(<[u8]>::first_chunk);
    field.map_or(0, |field| u32::from_be_bytes(*field))
}

/// A number of 64 bits; 0 where there is none.
pub fn field_64(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..).and_then(<[u8]>::first_chunk);
    field.map_or(0, |field| u64::from_be_bytes(*field))
}
