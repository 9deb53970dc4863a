//! A loop's cache of certificates that were loaded for a request or a handshake.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use weir_conf::{Directive as Line, Error, values};

/// `..._certificate_cache`
#[derive(Debug, Clone, Copy)]
pub struct CacheLimits {
    max: u64,
    inactive: Duration,
    valid: Duration,
}

impl CacheLimits {
    /// For files that never change: room for the one in use and the one before.
    pub const UNCHANGING_FILES: CacheLimits = CacheLimits {
        max: 4,
        inactive: Duration::from_secs(86400),
        valid: Duration::from_secs(86400),
    };
}

/// The certificates that a loop has loaded.
#[derive(Debug)]
pub struct CertificateCache<T>(RefCell<HashMap<SettingsKey, CachedSettings<T>>>);

/// The address of the settings, and the names of the files in order.
pub type SettingsKey = (usize, Vec<(Vec<u8>, Vec<u8>)>);

#[derive(Debug)]
struct CachedSettings<T> {
    value: T,
    loaded: Instant,
    used: Instant,
}

impl<T> Default for CertificateCache<T> {
    fn default() -> Self {
        CertificateCache(RefCell::default())
    }
}

impl<T: Clone> CertificateCache<T> {
    /// A loaded value, if it is not too old.
    pub fn find(&self, key: &SettingsKey, keep: &CacheLimits, now: Instant) -> Option<T> {
        let mut entries = self.0.borrow_mut();
        let entry = entries.get_mut(key)?;
        // nginx counts whole seconds.
        let since = |at| now.saturating_duration_since(at).as_secs();
        let old = since(entry.loaded) > keep.valid.as_secs()
            || since(entry.used) > keep.inactive.as_secs();
        if old {
            entries.remove(key);
            return None;
        }
        entry.used = now;
        Some(entry.value.clone())
    }

    /// Adds a value. Of the same settings, the least recently used values make room.
    pub fn keep(&self, key: SettingsKey, value: T, keep: &CacheLimits, now: Instant) {
        let mut entries = self.0.borrow_mut();
        // nginx counts certificates and keys separately.
        let weight = |k: &SettingsKey| 2 * k.1.len() as u64;
        let others = |k: &&SettingsKey| k.0 == key.0 && **k != key;
        while entries.keys().filter(others).map(weight).sum::<u64>() + weight(&key) > keep.max {
            let own = entries.iter().filter(|(k, _)| others(k));
            let oldest = own.min_by_key(|(_, e)| e.used).map(|(k, _)| k.clone());
            let Some(oldest) = oldest else { break };
            entries.remove(&oldest);
        }
        entries.insert(key, CachedSettings { value, loaded: now, used: now });
    }
}

/// Reads `off | max=N [inactive=TIME] [valid=TIME]`
pub fn read(d: &Line) -> Result<Option<CacheLimits>, Error> {
    let (mut max, mut off) = (None, false);
    let (mut inactive, mut valid) = (Duration::from_secs(10), Duration::from_secs(60));
    for word in &d.args {
        let bad = || d.invalid("parameter", word);
        let seconds = |text| values::sec(text).map(Duration::from_secs).ok_or_else(bad);
        let text = word.bytes.as_slice();
        if text == b"off" {
            off = true;
        } else if let Some(n) = text.strip_prefix(b"max=") {
            max = Some(values::number(n).filter(|n| *n > 0).ok_or_else(bad)?);
        } else if let Some(time) = text.strip_prefix(b"inactive=") {
            inactive = seconds(time)?;
        } else if let Some(time) = text.strip_prefix(b"valid=") {
            valid = seconds(time)?;
        } else {
            return Err(bad());
        }
    }
    match (off, max) {
        (true, _) => Ok(None),
        (false, Some(max)) => Ok(Some(CacheLimits { max, inactive, valid })),
        (false, None) => {
            let name = d.name.lossy();
            Err(d.error(format!("\"{name}\" must have the \"max\" parameter")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn key(name: &str) -> SettingsKey {
        (1, vec![(name.as_bytes().to_vec(), Vec::new())])
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let keep = CacheLimits { max: 4, inactive: 10 * SECOND, valid: 60 * SECOND };
        let (loaded, now) = (CertificateCache::default(), Instant::now());
        loaded.keep(key("a"), 'a', &keep, now);
        loaded.keep(key("b"), 'b', &keep, now + SECOND);
        assert_eq!(loaded.find(&key("a"), &keep, now + 2 * SECOND), Some('a'));
        loaded.keep(key("c"), 'c', &keep, now + 3 * SECOND);
        assert_eq!(loaded.find(&key("b"), &keep, now + 3 * SECOND), None);
        assert_eq!(loaded.find(&key("a"), &keep, now + 3 * SECOND), Some('a'));
    }

    #[test]
    fn old_and_idle_certificates_are_loaded_again() {
        let keep = CacheLimits { max: 2, inactive: 10 * SECOND, valid: 15 * SECOND };
        let (loaded, now) = (CertificateCache::default(), Instant::now());
        loaded.keep(key("a"), 'a', &keep, now);
        assert_eq!(loaded.find(&key("a"), &keep, now + 9 * SECOND), Some('a'));
        assert_eq!(loaded.find(&key("a"), &keep, now + 16 * SECOND), None);
        loaded.keep(key("a"), 'a', &keep, now);
        assert_eq!(loaded.find(&key("a"), &keep, now + 11 * SECOND), None);
    }
}
