//! Lists in a dictionary. The items follow the key in the record's contents, one after another.

use weir_zone::LockedEntry;

use super::{Dict, DictError, Kind, LIST, NUMBER, NewValue, PREFIX, TEXT, contents_of, name_of};

/// A list as stored.
struct List {
    entry: LockedEntry,
    expires: u64,
    /// The items.
    items: Vec<u8>,
}

/// An item of a list.
struct Item<'i> {
    kind: Kind,
    text: &'i [u8],
    /// Its offset among the items, and its length in bytes.
    at: usize,
    length: usize,
}

/// Iterates over the items of a list.
struct Items<'i> {
    all: &'i [u8],
    at: usize,
}

impl Dict<'_> {
    /// Adds a value to an end of a list, and creates the list if it is missing. Returns the new
    /// length.
    pub fn push(
        &mut self,
        key: &[u8],
        value: NewValue<'_>,
        left: bool,
    ) -> Result<usize, DictError> {
        let item = item_of(value)?;
        let Some(list) = self.list(key)? else {
            // Removes an expired value of the key.
            self.remove(key);
            self.add_list(key, (&item, 0))?;
            return Ok(1);
        };
        let both = if left { [&item, &list.items] } else { [&list.items, &item] };
        self.change_list(key, &list, &both.map(Vec::as_slice).concat())?;
        Ok(Items::of(&list.items).count() + 1)
    }

    /// Removes a value from an end of a list. A string is appended to `out`. An empty list is
    /// removed.
    pub fn pop(
        &mut self,
        key: &[u8],
        left: bool,
        out: &mut Vec<u8>,
    ) -> Result<Option<Kind>, DictError> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let mut items = Items::of(&list.items);
        let Some(item) = (if left { items.next() } else { items.last() }) else {
            self.table.remove(list.entry);
            return Ok(None);
        };
        out.extend_from_slice(item.text);
        let (before, rest) = list.items.split_at_checked(item.at).unwrap_or_default();
        let behind = rest.get(item.length..).unwrap_or_default();
        match left {
            // This was the only item.
            _ if before.is_empty() && behind.is_empty() => self.table.remove(list.entry),
            true => self.change_list(key, &list, behind)?,
            false => self.change_list(key, &list, before)?,
        }
        Ok(Some(item.kind))
    }

    /// The number of values in a list; 0 if there is none.
    pub fn list_length(&mut self, key: &[u8]) -> Result<usize, DictError> {
        Ok(self.list(key)?.map_or(0, |list| Items::of(&list.items).count()))
    }

    fn list(&mut self, key: &[u8]) -> Result<Option<List>, DictError> {
        let Some(entry) = self.find(key) else { return Ok(None) };
        self.table.touch(entry);
        if self.is_stale(entry) {
            return Ok(None);
        }
        if self.table.value(entry, 0) >> 32 != LIST {
            return Err("value not a list");
        }
        let mut items = Vec::new();
        self.table.part(entry, (PREFIX + key.len(), usize::MAX), &mut items);
        Ok(Some(List { entry, expires: self.table.value(entry, 1), items }))
    }

    /// Replaces the items of a list. Without room for them, the list stays as it is.
    fn change_list(&mut self, key: &[u8], list: &List, items: &[u8]) -> Result<(), DictError> {
        let contents = contents_of(key, [items])?;
        if self.table.rewrite(list.entry, &contents, [LIST << 32, list.expires, 0]) {
            return Ok(());
        }
        self.table.remove(list.entry);
        self.add_list(key, (items, list.expires)).inspect_err(|_| {
            // There is room for the previous items.
            let _ = self.add_list(key, (&list.items, list.expires));
        })
    }

    fn add_list(&mut self, key: &[u8], (items, expires): (&[u8], u64)) -> Result<(), DictError> {
        let contents = contents_of(key, [items])?;
        self.add(&name_of(key), (&contents, [LIST << 32, expires, 0]), false).map(drop)
    }
}

/// A value as an item.
fn item_of(value: NewValue<'_>) -> Result<Vec<u8>, DictError> {
    Ok(match value {
        NewValue::Boolean(_) => return Err("bad value type"),
        NewValue::Number(number) => [&[NUMBER as u8], &number.to_le_bytes()[..]].concat(),
        NewValue::Text(text) => {
            [&[TEXT as u8], &(text.len() as u32).to_le_bytes()[..], text].concat()
        }
    })
}

impl<'i> Items<'i> {
    fn of(all: &'i [u8]) -> Items<'i> {
        Items { all, at: 0 }
    }
}

impl<'i> Iterator for Items<'i> {
    type Item = Item<'i>;

    fn next(&mut self) -> Option<Item<'i>> {
        let (kind, rest) = self.all.get(self.at..)?.split_first()?;
        let (kind, text, length) = if u64::from(*kind) == NUMBER {
            let number = f64::from_le_bytes(*rest.first_chunk()?);
            (Kind::Number(number), &[][..], 1 + size_of::<f64>())
        } else {
            let (size, rest) = rest.split_first_chunk()?;
            let text = rest.get(..u32::from_le_bytes(*size) as usize)?;
            (Kind::Text, text, 1 + size_of::<u32>() + text.len())
        };
        let at = self.at;
        self.at += length;
        Some(Item { kind, text, at, length })
    }
}
