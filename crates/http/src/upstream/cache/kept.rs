//! An answer that the cache has.

use std::sync::Arc;

use bytes::Bytes;
use weir_cache::{CacheEntry, FillReader, Object, Opened, StoredBody, is_short};
use weir_engine::{Files, OpenFile};

use super::rules::Facts;

/// Something that the cache has.
#[derive(Debug)]
pub struct Kept {
    /// What is known of it.
    pub entry: Arc<CacheEntry>,
    /// Its body.
    pub part: Part,
    /// Where it is at hand.
    pub object: Option<Arc<Object>>,
    /// What the standard's rules read in its head, if they have.
    pub facts: Option<Box<Facts>>,
}

/// Where a body is.
#[derive(Debug)]
pub enum Part {
    /// In memory.
    Memory(Bytes),
    /// In a file: where it begins, its length.
    File(Arc<OpenFile>, u64, u64),
    /// On its way; its length, if that is known.
    Coming(FillReader, Option<u64>),
}

impl Kept {
    /// What is at hand; `None` if its file is another one by now.
    pub async fn of_object(files: &Files, object: Arc<Object>) -> Option<Kept> {
        let part = match &object.body {
            StoredBody::Bytes(bytes) => Part::Memory(bytes.clone()),
            StoredBody::Shared(file, length) => Part::File(file.clone(), 0, *length),
            StoredBody::File(range) if !range.stands() => return None,
            StoredBody::File(range) if is_short(range.length) => {
                let room = Vec::with_capacity(range.length as usize);
                let (read, mut bytes) = files.read_at(&range.file, room, range.offset).await;
                bytes.truncate(range.length as usize);
                if read.ok()? < range.length as usize {
                    return None;
                }
                Part::Memory(bytes.into())
            }
            StoredBody::File(range) => Part::File(range.file.clone(), range.offset, range.length),
        };
        Some(Kept { entry: object.entry.clone(), part, object: Some(object), facts: None })
    }

    /// What is in a file; a body that was read with the head need not be read again.
    pub fn of_file(opened: Opened) -> Kept {
        let part = match opened.body() {
            Some(body) => Part::Memory(body),
            None => Part::File(opened.file, opened.stored.body, opened.stored.length),
        };
        Kept { entry: Arc::new(opened.stored.entry), part, object: None, facts: None }
    }

    /// What is known of it.
    pub fn entry(&self) -> &Arc<CacheEntry> {
        &self.entry
    }

    /// How long its body is, if that is known.
    pub fn length(&self) -> Option<u64> {
        match &self.part {
            Part::Memory(bytes) => Some(bytes.len() as u64),
            Part::File(_, _, length) => Some(*length),
            Part::Coming(_, length) => *length,
        }
    }
}
