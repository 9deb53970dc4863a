//! Lists in a dictionary: entries whose values are items of the zone. An item is the text, or the
//! eight bytes of a number, followed by a byte for the kind.

use weir_zone::{End, LockedEntry};

use super::{Dict, DictError, Kind, LIST, NUMBER, NewValue, TEXT, contents_of, name_of};

impl Dict<'_> {
    /// Adds a value to an end of a list, and creates the list if it is missing. Returns the new
    /// length.
    pub fn push(&mut self, key: &[u8], value: NewValue<'_>, end: End) -> Result<usize, DictError> {
        let item = item_of(value)?;
        let list = match self.list(key)? {
            Some(list) => list,
            None => self.add_list(key)?,
        };
        while !self.table.push_item(list, &item, end) {
            let room = match self.table.oldest() {
                Some(oldest) if oldest != list => self.make_room(false),
                _ => Err("no memory"),
            };
            if room.is_err() && self.table.items(list) == 0 {
                self.remove(key);
            }
            room?;
        }
        Ok(self.table.items(list) as usize)
    }

    /// Removes a value from an end of a list. A string is appended to `out`. An empty list is
    /// removed.
    pub fn pop(
        &mut self,
        key: &[u8],
        end: End,
        out: &mut Vec<u8>,
    ) -> Result<Option<Kind>, DictError> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let from = out.len();
        let kind = match self.table.item(list, end, out) {
            true => kind_of(out, from),
            false => None,
        };
        match self.table.items(list) {
            0 | 1 => self.table.remove(list),
            _ => self.table.remove_item(list, end),
        }
        Ok(kind)
    }

    /// The number of values in a list; 0 if there is none.
    pub fn list_length(&mut self, key: &[u8]) -> Result<usize, DictError> {
        Ok(self.list(key)?.map_or(0, |list| self.table.items(list) as usize))
    }

    fn list(&mut self, key: &[u8]) -> Result<Option<LockedEntry>, DictError> {
        let Some(entry) = self.find(key) else { return Ok(None) };
        self.table.touch(entry);
        if self.is_stale(entry) {
            return Ok(None);
        }
        if self.table.value(entry, 0) >> 32 != LIST {
            return Err("value not a list");
        }
        Ok(Some(entry))
    }

    /// Adds a list without items, in place of an expired value of the key.
    fn add_list(&mut self, key: &[u8]) -> Result<LockedEntry, DictError> {
        self.remove(key);
        let contents = contents_of(key, [])?;
        self.add(&name_of(key), (&contents, [LIST << 32, 0, 0]), false).map(|(list, _)| list)
    }
}

/// A value as an item.
fn item_of(value: NewValue<'_>) -> Result<Vec<u8>, DictError> {
    Ok(match value {
        NewValue::Boolean(_) => return Err("bad value type"),
        NewValue::Number(number) => [&number.to_le_bytes()[..], &[NUMBER as u8]].concat(),
        NewValue::Text(text) => [text, &[TEXT as u8]].concat(),
    })
}

/// The kind of the item that `out` has from `from` on. What remains there is its text.
fn kind_of(out: &mut Vec<u8>, from: usize) -> Option<Kind> {
    if out.pop().map(u64::from) != Some(NUMBER) {
        return Some(Kind::Text);
    }
    let number = out.get(from..).and_then(|bytes| bytes.first_chunk()).copied();
    out.truncate(from);
    number.map(|bytes| Kind::Number(f64::from_le_bytes(bytes)))
}
