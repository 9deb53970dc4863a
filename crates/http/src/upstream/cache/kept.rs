//! An answer that the cache has.

use std::cell::OnceCell;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use weir_cache::{CacheEntry, FillReader, Object, Opened, StoredBody, is_short};
use weir_engine::{Files, OpenFile};

use super::judge::is_ignored;
use super::rules::Facts;
use crate::upstream::names::Names;
use crate::upstream::passing::UpstreamConf;
use crate::upstream::protocol::Answer;

/// An answer from the cache: stored, or being received.
#[derive(Debug)]
pub struct Kept {
    /// Its metadata and head.
    pub entry: Arc<CacheEntry>,
    /// Its body.
    pub part: Part,
    /// The answer in the memory tier, if it is there.
    object: Option<Arc<Object>>,
    /// What RFC 9111's rules need of the head, once it was parsed for them.
    facts: OnceCell<Arc<Facts>>,
}

/// Values parsed from the head of an answer in the memory tier.
#[derive(Debug, Default)]
pub struct Read {
    /// For its protocol.
    pub answer: OnceLock<Answer>,
    /// For the rules of RFC 9111, in the scope of the first location that used them.
    facts: OnceLock<(Scope, Arc<Facts>)>,
}

/// The settings that decide which fields count. Locations with equal scopes parse the same facts
/// from a head.
#[derive(Debug, PartialEq, Eq)]
struct Scope {
    /// `..._ignore_headers`
    ignored: Names,
    /// `..._cache_control_field`
    own: Option<Vec<u8>>,
}

impl Scope {
    fn is_of(&self, passing: &UpstreamConf) -> bool {
        self.ignored == passing.ignored && self.own == passing.caching.control_field
    }
}

/// The body of an answer from the cache.
#[derive(Debug)]
pub enum Part {
    /// In memory.
    Memory(Bytes),
    /// In a file: offset and length.
    File(Arc<OpenFile>, u64, u64),
    /// Being received; its length, if known.
    Coming(FillReader, Option<u64>),
}

impl Kept {
    /// An answer in the memory tier. `None` if its file was replaced.
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
        let mut kept = Kept::new(object.entry.clone(), part);
        kept.object = Some(object);
        Some(kept)
    }

    /// An answer that is not in the memory tier.
    pub fn new(entry: Arc<CacheEntry>, part: Part) -> Kept {
        Kept { entry, part, object: None, facts: OnceCell::new() }
    }

    /// An answer in a file. A body that was read with the head is not read again.
    pub fn of_file(opened: Opened) -> Kept {
        let part = match opened.body() {
            Some(body) => Part::Memory(body),
            None => Part::File(opened.file, opened.stored.body, opened.stored.length),
        };
        Kept::new(Arc::new(opened.stored.entry), part)
    }

    /// Its metadata and head.
    pub fn entry(&self) -> &Arc<CacheEntry> {
        &self.entry
    }

    /// Values parsed from the head, if the answer is in the memory tier.
    pub fn read(&self) -> Option<&Read> {
        self.object.as_ref()?.derived()
    }

    /// What RFC 9111's rules need of the head. For an answer in the memory tier, it is parsed once.
    pub fn facts(&self, passing: &UpstreamConf) -> &Arc<Facts> {
        self.facts.get_or_init(|| {
            let facts = || Arc::new(facts_of(&self.entry, passing));
            let Some(read) = self.read() else { return facts() };
            let scope = || {
                let (ignored, own) = (passing.ignored.clone(), &passing.caching.control_field);
                Scope { ignored, own: own.clone() }
            };
            match read.facts.get_or_init(|| (scope(), facts())) {
                (scope, known) if scope.is_of(passing) => known.clone(),
                _ => facts(),
            }
        })
    }

    /// The length of its body, if known.
    pub fn length(&self) -> Option<u64> {
        match &self.part {
            Part::Memory(bytes) => Some(bytes.len() as u64),
            Part::File(_, _, length) => Some(*length),
            Part::Coming(_, length) => *length,
        }
    }

    /// The length of its body, if it is complete.
    pub fn whole_length(&self) -> Option<u64> {
        match &self.part {
            Part::Coming(..) => None,
            _ => self.length(),
        }
    }
}

/// What RFC 9111's rules need of the head of a stored answer.
pub fn facts_of(entry: &CacheEntry, passing: &UpstreamConf) -> Facts {
    let own = passing.caching.control_field.as_deref();
    Facts::of_head(&entry.head, |name| is_ignored(passing, name), own)
}
