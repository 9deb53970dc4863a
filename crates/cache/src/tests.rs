//! The cache as a whole: which of several answers to a key stays.

use bytes::Bytes;
use weir_engine::FilePool;
use weir_zone::{Declarations, Use, Zones};

use super::*;

/// A cache with a directory of its own, which goes with it.
pub(crate) struct Trial {
    pub(crate) cache: Arc<Cache>,
    _zones: Zones,
}

impl Trial {
    pub(crate) fn new(name: &str) -> Trial {
        let all = Declarations::default();
        let purpose = Use::of("cache", index::VALUES);
        let zone = all.declare("one", 65536, purpose).unwrap();
        let zones = all.open(&Zones::default()).unwrap();
        let name = format!("weir-cache-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let settings = CacheSettings {
            place: CacheDirectory { directory, levels: Vec::new() },
            use_temp_path: false,
            inactive: Duration::from_secs(600),
            max_size: None,
            min_free: 0,
            loader: Pace::default(),
            manager: Pace::default(),
        };
        Trial { cache: Arc::new(Cache::new(settings, zone)), _zones: zones }
    }

    /// Puts a file there.
    pub(crate) fn store(&self, text: &[u8]) -> CacheKey {
        let place = &self.cache.settings.place;
        let (key, entry) = (CacheKey::of(text), entry(text));
        let pool = FilePool::new(1, 1);
        let growing = store::TemporaryFile::create(&place.directory, &key, &pool).unwrap();
        growing.publish(&entry.encode(0), &place.path(&key)).unwrap();
        key
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.cache.settings.place.directory);
    }
}

fn entry(text: &[u8]) -> Arc<CacheEntry> {
    Arc::new(CacheEntry { status: 200, key: text.to_vec(), ..CacheEntry::default() })
}

fn fill(text: &[u8]) -> Arc<Fill> {
    let fill = Fill::new(1000, Asked::default());
    fill.set_head(entry(text), None);
    fill.push(Bytes::from_static(b"body"));
    fill
}

#[test]
fn of_two_whole_answers_the_later_one_stays() {
    let trial = Trial::new("two");
    let (cache, key) = (&trial.cache, CacheKey::of(b"a"));
    let (slow, quick) = (fill(b"a"), fill(b"a"));
    cache.begin(key, slow.clone());
    cache.begin(key, quick.clone());
    quick.finish(FillEnd::Whole);
    cache.received_whole(key, &quick, 0);
    assert!(slow.is_storable() && quick.is_storable());
    slow.finish(FillEnd::Whole);
    cache.received_whole(key, &slow, 0);
    assert!(slow.is_storable() && !quick.is_storable());
    assert!(Arc::ptr_eq(&cache.fill(&key).unwrap(), &slow));
    // It does not come back.
    cache.received_whole(key, &quick, 0);
    assert!(Arc::ptr_eq(&cache.fill(&key).unwrap(), &slow));
}

#[test]
fn an_answer_on_its_way_into_its_file_is_known_until_another_one_is_whole() {
    let trial = Trial::new("another");
    let (cache, key) = (&trial.cache, CacheKey::of(b"a"));
    let (first, second) = (fill(b"a"), fill(b"a"));
    cache.begin(key, first.clone());
    first.finish(FillEnd::Whole);
    cache.received_whole(key, &first, 0);
    cache.begin(key, second.clone());
    assert!(Arc::ptr_eq(&cache.whole(&key).unwrap(), &first));
    assert!(Arc::ptr_eq(&cache.fill(&key).unwrap(), &second));
    second.finish(FillEnd::Whole);
    cache.received_whole(key, &second, 0);
    // The disk may be slower with the first than with the second, and must not put it last.
    assert!(!first.is_storable() && second.is_storable());
    assert!(Arc::ptr_eq(&cache.whole(&key).unwrap(), &second));
    cache.end(&key, &first);
    assert!(cache.whole(&key).is_some());
    cache.end(&key, &second);
    assert!(cache.fill(&key).is_none() && cache.fills().is_empty());
}

#[test]
fn what_comes_in_is_purged_too() {
    let trial = Trial::new("coming");
    let cache = &trial.cache;
    let (one, other) = (fill(b"/a/1"), fill(b"/b"));
    cache.begin(CacheKey::of(b"/a/1"), one.clone());
    cache.begin(CacheKey::of(b"/b"), other.clone());
    assert_eq!(
        cache.purge_fills(None, |entry| entry.key.starts_with(b"/a")),
        [CacheKey::of(b"/a/1")]
    );
    assert!(!one.is_storable() && other.is_storable());
    assert!(cache.fill(&CacheKey::of(b"/a/1")).is_none());
    assert!(one.reader().is_some());
}

/// Nothing is known of the answer yet, and its key is removed: it is neither shared nor stored, but the next one is.
#[test]
fn what_was_asked_for_before_a_removal_does_not_count() {
    let trial = Trial::new("before");
    let (cache, key) = (&trial.cache, CacheKey::of(b"a"));
    cache.index.look_up(&key, 0, 0, 1, &mut Vec::new());
    let asks = || Fill::new(1000, Asked { key, since: cache.index.last() });
    let old = asks();
    cache.begin(key, old.clone());
    cache.index.remove(&key);
    assert!(cache.fill(&key).is_none() && cache.is_removed(&old));
    let new = asks();
    cache.begin(key, new.clone());
    new.set_head(entry(b"a"), None);
    new.finish(FillEnd::Whole);
    cache.received_whole(key, &new, 0);
    // However late it comes, it takes no place.
    cache.begin(key, old.clone());
    old.finish(FillEnd::Whole);
    cache.received_whole(key, &old, 0);
    assert!(new.is_storable() && Arc::ptr_eq(&cache.whole(&key).unwrap(), &new));
    assert!(Arc::ptr_eq(&cache.fill(&key).unwrap(), &new));
    let third = asks();
    cache.begin(key, third.clone());
    assert_eq!(cache.purge_fills(Some(CacheKey::of(b"b")), |_| false), []);
    assert_eq!(cache.purge_fills(Some(key), |_| false), [key]);
    assert!(!third.is_storable() && new.is_storable());
}
