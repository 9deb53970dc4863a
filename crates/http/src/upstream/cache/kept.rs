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

/// Something that the cache has.
#[derive(Debug)]
pub struct Kept {
    /// What is known of it.
    pub entry: Arc<CacheEntry>,
    /// Its body.
    pub part: Part,
    /// Where it is at hand.
    object: Option<Arc<Object>>,
    /// What the standard's rules read in its head, if they have.
    facts: OnceCell<Arc<Facts>>,
}

/// What was read in the head of an answer at hand.
#[derive(Debug, Default)]
pub struct Read {
    /// By its protocol.
    pub answer: OnceLock<Answer>,
    /// By the standard's rules, at the first location that asked.
    facts: OnceLock<(Scope, Arc<Facts>)>,
}

/// Which fields count where: two locations with the same scope read the same facts in a head.
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
        let mut kept = Kept::new(object.entry.clone(), part);
        kept.object = Some(object);
        Some(kept)
    }

    /// What is not at hand.
    pub fn new(entry: Arc<CacheEntry>, part: Part) -> Kept {
        Kept { entry, part, object: None, facts: OnceCell::new() }
    }

    /// What is in a file; a body that was read with the head need not be read again.
    pub fn of_file(opened: Opened) -> Kept {
        let part = match opened.body() {
            Some(body) => Part::Memory(body),
            None => Part::File(opened.file, opened.stored.body, opened.stored.length),
        };
        Kept::new(Arc::new(opened.stored.entry), part)
    }

    /// What is known of it.
    pub fn entry(&self) -> &Arc<CacheEntry> {
        &self.entry
    }

    /// What was read in the head of an answer at hand.
    pub fn read(&self) -> Option<&Read> {
        self.object.as_ref()?.made()
    }

    /// What the standard's rules read in the head. Of an answer at hand they read it once.
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

    /// How long its body is, if that is known.
    pub fn length(&self) -> Option<u64> {
        match &self.part {
            Part::Memory(bytes) => Some(bytes.len() as u64),
            Part::File(_, _, length) => Some(*length),
            Part::Coming(_, length) => *length,
        }
    }

    /// How long its body is, if all of it is there.
    pub fn whole_length(&self) -> Option<u64> {
        match &self.part {
            Part::Coming(..) => None,
            _ => self.length(),
        }
    }
}

/// What the standard's rules read in the head of a stored answer.
pub fn facts_of(entry: &CacheEntry, passing: &UpstreamConf) -> Facts {
    let own = passing.caching.control_field.as_deref();
    Facts::of_head(&entry.head, |name| is_ignored(passing, name), own)
}
