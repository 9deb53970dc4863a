//! Purges answers: stored ones and those that are being received.

use std::io;
use std::path::Path;
use std::sync::Arc;

use weir_engine::{Files, Rank};

use crate::head::fields;
use crate::store::{beside, read_entry, walk};
use crate::tags::Tags;
use crate::{Cache, CacheEntry, CacheKey, tag_index};

/// The answers to purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The answer with this key, in all variants.
    Key(Vec<u8>),
    /// All answers whose keys have this prefix.
    Prefix(Vec<u8>),
    /// All answers with one of these tags. Groups belong to this origin.
    Tagged(Tags, Vec<u8>),
}

impl Which {
    /// The main key, if one is purged.
    fn main(&self) -> Option<CacheKey> {
        match self {
            Which::Key(text) => Some(CacheKey::of(text)),
            Which::Prefix(_) | Which::Tagged(..) => None,
        }
    }

    fn takes(&self, entry: &CacheEntry) -> bool {
        match self {
            Which::Key(key) => *key == entry.key,
            Which::Prefix(prefix) => entry.key.starts_with(prefix),
            Which::Tagged(tags, origin) => Tags::of(fields(&entry.head), origin).meets(tags),
        }
    }
}

/// Purges answers and returns how many. An answer that is being received still reaches the requests
/// that wait for it, but no others.
///
/// Once a key is purged, no process stores an answer to an earlier request. An answer under a
/// prefix or with a tag may still be stored if another process has received it completely. The file
/// pool does the work, since there may be very many answers. But a key counts as removed at once,
/// however busy the pool is.
///
/// # Errors
///
/// The directory cannot be read, or the pool takes no more work. In the latter case, the file of a
/// removed key is removed later.
pub async fn purge(cache: &Arc<Cache>, which: Which, files: &Files) -> io::Result<usize> {
    // From here on, no answer to an earlier request is stored.
    let had = which.main().is_some_and(|main| cache.index.remove(&main));
    let work = || {
        let (cache, which) = (cache.clone(), which.clone());
        move || take_out(&cache, &which)
    };
    match files.write(work()).await {
        Ok(done) => done,
        Err(busy) => {
            let work = work();
            if had {
                files.default_pool().insist(Rank::Later, move || drop(work()));
            }
            Err(busy)
        }
    }
}

fn take_out(cache: &Cache, which: &Which) -> io::Result<usize> {
    let wanted = |entry: &CacheEntry| which.takes(entry);
    // Answers in the memory tiers may have lost their files already.
    let mut at_hand = cache.purge_fills(which.main(), wanted);
    // The tag index also has the answers that are in memory.
    let memories =
        if let Which::Tagged(..) = which { &[][..] } else { &[&cache.memory, &cache.open] };
    for memory in memories {
        at_hand.extend(memory.purge(wanted));
    }
    let mut removed = remove(cache, which)?;
    removed.sort_unstable();
    removed.dedup();
    at_hand.retain(|key| removed.binary_search(key).is_err());
    at_hand.sort_unstable();
    at_hand.dedup();
    at_hand.iter().for_each(|key| forget(cache, which, key));
    Ok(removed.len() + at_hand.len())
}

fn forget(cache: &Cache, which: &Which, key: &CacheKey) {
    match which {
        // There may be very many, and marks of their removal would fill the index.
        Which::Prefix(_) => cache.index.forget(key),
        Which::Key(_) | Which::Tagged(..) => cache.index.remove(key),
    };
    cache.remove_from_memory(key);
}

/// Removes files, and the index entry with each: a new answer with that key may arrive before the
/// last file is gone. Returns the keys.
///
/// The keys of variants depend on their requests' headers and cannot be computed. But their files
/// are in the directory of the main answer's file, whether that exists or not.
fn remove(cache: &Cache, which: &Which) -> io::Result<Vec<CacheKey>> {
    let place = &cache.settings.place;
    let mut removed = Vec::new();
    let main = which.main();
    let mut take = |key: CacheKey, path: &Path| {
        let wanted = Some(key) == main || read_entry(path).is_some_and(|entry| which.takes(&entry));
        if wanted && remove_file(cache, key, path) {
            forget(cache, which, &key);
            removed.push(key);
        }
    };
    match (main, which) {
        (Some(main), _) => beside(place, &main, &mut take)?,
        (None, Which::Tagged(tags, _)) => {
            tag_index::keys(place, tags)?.into_iter().for_each(|key| take(key, &place.path(&key)));
        }
        (None, _) => {
            walk(&place.directory, &mut |named| {
                if let Some(key) = named.key {
                    take(key, &named.path);
                }
                true
            })?;
        }
    }
    Ok(removed)
}

/// Removes a file, but not between a look whether it is wanted and its getting a name.
fn remove_file(cache: &Cache, key: CacheKey, path: &Path) -> bool {
    let _naming = cache.lock_naming(&key);
    crate::store::remove_file(path).is_ok()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::time::{Duration, Instant};

    use bytes::Bytes;
    use weir_engine::{FilePool, Loop, Options};

    use super::*;
    use crate::{Object, StoredBody};

    #[test]
    fn a_prefix_takes_more_than_a_key() {
        let (key, prefix) = (Which::Key(b"/a".to_vec()), Which::Prefix(b"/a".to_vec()));
        for (text, by_key, by_prefix) in
            [("/a", true, true), ("/ab", false, true), ("/", false, false)]
        {
            let entry = CacheEntry { key: text.as_bytes().to_vec(), ..CacheEntry::default() };
            assert_eq!(key.takes(&entry), by_key, "{text}");
            assert_eq!(prefix.takes(&entry), by_prefix, "{text}");
        }
    }

    #[test]
    fn a_prefix_is_removed() {
        let trial = crate::tests::Trial::new("prefix");
        let [one, two, other] = [b"/a/1".as_slice(), b"/a/2", b"/b"].map(|text| trial.store(text));
        let mut purged = remove(&trial.cache, &Which::Prefix(b"/a/".to_vec())).unwrap();
        purged.sort();
        let mut expected = vec![one, two];
        expected.sort();
        assert_eq!(purged, expected);
        let place = &trial.cache.settings.place;
        assert!(place.path(&other).exists() && !place.path(&one).exists());
        assert_eq!(remove(&trial.cache, &Which::Key(b"/b".to_vec())).unwrap(), [other]);
    }

    /// The loop hands the work over and hears of its end. Other requests of the loop do not wait, however many answers go.
    #[test]
    fn a_purge_leaves_its_loop_alone() {
        const ANSWERS: u32 = 100;
        let trial = crate::tests::Trial::new("pooled");
        let cache = &trial.cache;
        cache.memory.provide(1 << 20);
        let text = |n: u32| format!("/{n}").into_bytes();
        for n in 0..ANSWERS {
            let key = trial.store(&text(n));
            let generation = cache.index.stored(&key, 1, 0, &mut Vec::new());
            let entry = Arc::new(CacheEntry { key: text(n), ..CacheEntry::default() });
            let body = StoredBody::Bytes(Bytes::from_static(b"x"));
            cache.memory.put(key, Object::new(entry, body, generation, 1, 0));
        }
        let at_hand = || {
            let versions = 1..=ANSWERS;
            let found = (0..ANSWERS).zip(versions).filter(|(n, version)| {
                cache.memory.get(&CacheKey::of(&text(*n)), &text(*n), *version).is_some()
            });
            found.count() as u32
        };
        let files = FilePool::new(1, 10);
        let event_loop = Loop::new(&Options { files, ..Options::default() }).unwrap();
        let handle = event_loop.handle();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let _busy = handle.files().run(move || held.recv());
        let mut cx = Context::from_waker(Waker::noop());
        let mut purging = pin!(purge(cache, Which::Prefix(Vec::new()), handle.files()));
        assert!(purging.as_mut().poll(&mut cx).is_pending());
        assert_eq!((at_hand(), cache.index.fill().1), (ANSWERS, u64::from(ANSWERS)));
        drop(release);
        let began = Instant::now();
        while (at_hand(), cache.index.fill().1) != (0, 0) {
            assert!(began.elapsed() < Duration::from_secs(60), "the purge waits for its loop");
            std::thread::yield_now();
        }
    }

    /// The pool takes no more work. The key counts as removed all the same, and its file goes when the pool has time.
    #[test]
    fn a_key_is_removed_though_the_pool_is_busy() {
        let trial = crate::tests::Trial::new("busy");
        let (cache, text) = (&trial.cache, b"/a".to_vec());
        let key = trial.store(&text);
        let before = cache.index.last();
        cache.index.stored(&key, 1, 0, &mut Vec::new());
        let files = FilePool::new(1, 1);
        let event_loop = Loop::new(&Options { files, ..Options::default() }).unwrap();
        let handle = event_loop.handle();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = std::sync::mpsc::channel::<()>();
        let _busy = handle.files().run(move || {
            let _ = begun.send(());
            let _ = held.recv();
        });
        begins.recv().unwrap();
        let _waits = handle.files().write(|| {});
        let mut cx = Context::from_waker(Waker::noop());
        let mut purging = pin!(purge(cache, Which::Key(text), handle.files()));
        let refused = match purging.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(done) => done.is_err(),
            std::task::Poll::Pending => false,
        };
        assert!(refused && cache.index.is_removed(&key, before));
        assert_eq!(cache.index.look_up(&key, 0, 0, 1, &mut Vec::new()), crate::Lookup::Absent);
        let path = cache.settings.place.path(&key);
        assert!(path.exists());
        drop(release);
        let began = Instant::now();
        while path.exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "the file stays");
            std::thread::yield_now();
        }
    }
}
