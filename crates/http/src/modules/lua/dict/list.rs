//! Lists of a dictionary. The items of a list stand one behind the other, behind its key, and are changed there as bytes.

use weir_zone::LockedEntry;

use super::{Dict, DictError, Kind, LIST, NUMBER, NewValue, PREFIX, TEXT, contents_of, name_of};

/// A list as it stands in the table.
struct List {
    entry: LockedEntry,
    expires: u64,
    /// The items.
    items: Vec<u8>,
}

/// A part of a list.
struct Item<'i> {
    kind: Kind,
    text: &'i [u8],
    /// Where it begins among the items, and how many bytes it takes.
    at: usize,
    length: usize,
}

/// The items of a list, in their order.
struct Items<'i> {
    all: &'i [u8],
    at: usize,
}

impl Dict<'_> {
    /// Adds to one end of a list, and begins it if there is none: its new length.
    pub fn push(
        &mut self,
        key: &[u8],
        value: NewValue<'_>,
        left: bool,
    ) -> Result<usize, DictError> {
        let item = item_of(value)?;
        let Some(list) = self.list(key)? else {
            // What stands there has had its time.
            self.remove(key);
            self.add_list(key, (&item, 0))?;
            return Ok(1);
        };
        let both = if left { [&item, &list.items] } else { [&list.items, &item] };
        self.change_list(key, &list, &both.map(Vec::as_slice).concat())?;
        Ok(Items::of(&list.items).count() + 1)
    }

    /// Takes a value from one end of a list; a text is appended to `out`. The list goes with its last value.
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
            // A list that is one item.
            _ if before.is_empty() && behind.is_empty() => self.table.remove(list.entry),
            true => self.change_list(key, &list, behind)?,
            false => self.change_list(key, &list, before)?,
        }
        Ok(Some(item.kind))
    }

    /// How many values a list has; 0 if there is none.
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

    /// Gives a list other items. Without room for them it stays as it is.
    fn change_list(&mut self, key: &[u8], list: &List, items: &[u8]) -> Result<(), DictError> {
        let contents = contents_of(key, [items])?;
        if self.table.rewrite(list.entry, &contents, [LIST << 32, list.expires, 0]) {
            return Ok(());
        }
        self.table.remove(list.entry);
        self.add_list(key, (items, list.expires)).inspect_err(|_| {
            // There is room for what was there.
            let _ = self.add_list(key, (&list.items, list.expires));
        })
    }

    fn add_list(&mut self, key: &[u8], (items, expires): (&[u8], u64)) -> Result<(), DictError> {
        let contents = contents_of(key, [items])?;
        self.add(&name_of(key), (&contents, [LIST << 32, expires, 0]), false).map(drop)
    }
}

/// A value as it stands in a list.
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
