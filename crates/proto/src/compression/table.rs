//! The table of fields that grows with a connection.

use std::collections::VecDeque;

/// What an entry takes beside its bytes: RFC 7541 section 4.1, RFC 9204 section 3.2.1.
pub(crate) const OVERHEAD: usize = 32;

/// Fields of earlier blocks, the newest first.
#[derive(Debug, Default)]
pub(crate) struct DynamicTable {
    entries: VecDeque<DynamicField>,
    size: usize,
    max: usize,
}

#[derive(Debug)]
struct DynamicField {
    name: usize,
    bytes: Box<[u8]>,
}

impl DynamicField {
    fn size(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }

    fn field(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at_checked(self.name).unwrap_or_default()
    }
}

impl DynamicTable {
    pub(crate) fn new(max: usize) -> DynamicTable {
        DynamicTable { entries: VecDeque::new(), size: 0, max }
    }

    /// What it may hold.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// A field by its age: 0 is the newest.
    pub(crate) fn newest(&self, age: usize) -> Option<(&[u8], &[u8])> {
        self.entries.get(age).map(DynamicField::field)
    }

    /// Adds a field, and says whether it could. One that is larger than the table empties it.
    pub(crate) fn add(&mut self, name: &[u8], value: &[u8]) -> bool {
        let size = name.len() + value.len() + OVERHEAD;
        self.shrink(self.max.saturating_sub(size));
        if size <= self.max {
            self.size += size;
            let bytes = [name, value].concat().into_boxed_slice();
            self.entries.push_front(DynamicField { name: name.len(), bytes });
        }
        size <= self.max
    }

    /// The table holds this much from now on.
    pub(crate) fn resize(&mut self, max: usize) {
        self.max = max;
        self.shrink(max);
    }

    /// Keeps no more memory than its fields take.
    pub(crate) fn release(&mut self) {
        self.entries.shrink_to_fit();
    }

    fn shrink(&mut self, max: usize) {
        while self.size > max
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size();
        }
    }
}
