//! Takes answers out that somebody wants gone: stored ones, and those that are coming in.

use std::io;
use std::path::Path;
use std::sync::Arc;

use weir_engine::Files;

use crate::store::{beside, read_entry, walk};
use crate::{Cache, Key};

/// Which answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The one whose key has this text, in all variants that depend on the request.
    Key(Vec<u8>),
    /// All whose keys' texts begin so.
    Prefix(Vec<u8>),
}

impl Which {
    fn takes(&self, text: &[u8]) -> bool {
        match self {
            Which::Key(key) => key == text,
            Which::Prefix(prefix) => text.starts_with(prefix),
        }
    }
}

/// Removes answers, and says how many. One that is coming in still reaches those who wait for it, but nobody else;
/// another process's is stored when it is whole.
///
/// # Errors
///
/// Where the directory cannot be read.
pub async fn purge(cache: &Arc<Cache>, which: Which, files: &Files) -> io::Result<usize> {
    let wanted = |text: &[u8]| which.takes(text);
    let mut purged = cache.purge_fills(wanted);
    // Of what is at hand, the file may be gone already.
    for at_hand in [&cache.memory, &cache.open] {
        purged.extend(at_hand.purge(wanted));
    }
    let this = cache.clone();
    purged.extend(files.write(move || remove(&this, &which)).await??);
    purged.sort_unstable();
    purged.dedup();
    for key in &purged {
        cache.index.forget(key);
        cache.let_go(key);
    }
    Ok(purged.len())
}

/// Removes files. Their keys. Variants have keys of their own, which only their requests' headers tell, but they lie
/// beside the main answer's file, whether that is there or not.
fn remove(cache: &Cache, which: &Which) -> io::Result<Vec<Key>> {
    let place = &cache.settings.place;
    let mut purged = Vec::new();
    let main = match which {
        Which::Key(text) => Some(Key::of(text)),
        Which::Prefix(_) => None,
    };
    let mut take = |key: Key, path: &Path| {
        if Some(key) == main || read_entry(path).is_some_and(|entry| which.takes(&entry.key)) {
            purged.extend(remove_file(cache, key, path));
        }
    };
    match main {
        Some(main) => beside(place, &main, &mut take)?,
        None => {
            walk(&place.directory, &mut |named| {
                if let Some(key) = named.key {
                    take(key, &named.path);
                }
                true
            })?;
        }
    }
    Ok(purged)
}

/// Removes a file, but not between a look whether it is wanted and its getting a name.
fn remove_file(cache: &Cache, key: Key, path: &Path) -> Option<Key> {
    let _turn = cache.turn(&key);
    std::fs::remove_file(path).is_ok().then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_takes_more_than_a_key() {
        let (key, prefix) = (Which::Key(b"/a".to_vec()), Which::Prefix(b"/a".to_vec()));
        for (text, by_key, by_prefix) in
            [("/a", true, true), ("/ab", false, true), ("/", false, false)]
        {
            assert_eq!(key.takes(text.as_bytes()), by_key, "{text}");
            assert_eq!(prefix.takes(text.as_bytes()), by_prefix, "{text}");
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
}
