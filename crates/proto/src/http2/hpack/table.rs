//! The tables of known fields: the fixed one of RFC 7541 appendix A, and the one that grows with a connection.

use std::collections::VecDeque;

/// What an entry takes beside its bytes: RFC 7541 section 4.1.
const OVERHEAD: usize = 32;

/// The fixed table; its first entry has the index 1.
pub(super) static FIXED: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// Fields of earlier blocks, the newest first.
#[derive(Debug, Default)]
pub(super) struct DynamicTable {
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
    pub(super) fn new(max: usize) -> DynamicTable {
        DynamicTable { entries: VecDeque::new(), size: 0, max }
    }

    /// The field of an index, counted through both tables.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let index = index.checked_sub(1)?;
        match index.checked_sub(FIXED.len()) {
            None => FIXED.get(index).copied(),
            Some(index) => self.entries.get(index).map(DynamicField::field),
        }
    }

    /// Adds a field. One that is larger than the table empties it.
    pub(super) fn add(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + OVERHEAD;
        self.shrink(self.max.saturating_sub(size));
        if size <= self.max {
            self.size += size;
            let bytes = [name, value].concat().into_boxed_slice();
            self.entries.push_front(DynamicField { name: name.len(), bytes });
        }
    }

    /// The table holds this much from now on.
    pub(super) fn resize(&mut self, max: usize) {
        self.max = max;
        self.shrink(max);
    }

    /// Keeps no more memory than its fields take.
    pub(super) fn release(&mut self) {
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
