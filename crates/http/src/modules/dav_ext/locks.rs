//! Locks in shared memory: exclusive ones on writing, which are all that the module has.

use std::time::{Duration, Instant};

use weir_zone::{Entry, Locked, ZoneRef};

/// Words of a lock: two of its token, when it ends, how deep it goes.
pub const VALUES: usize = 4;
/// No file has a longer name.
const LONGEST: usize = 4096;

/// A zone of locks.
#[derive(Debug, Clone)]
pub struct Locks {
    /// The memory.
    pub zone: ZoneRef,
    /// How long a lock lasts unless it is refreshed.
    pub timeout: Duration,
}

/// A lock that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// What was locked; see [`key`].
    pub root: Vec<u8>,
    /// Who knows it may write.
    pub token: u128,
    /// Whether all below is locked, too.
    pub deep: bool,
    /// Seconds until it ends.
    pub left: u64,
}

/// The locks, for this thread alone until dropped.
pub struct Table<'z> {
    locked: Locked<'z>,
    now: u64,
    timeout: u64,
}

/// A path as locks are found by it: the slash behind a directory makes no difference.
pub fn key(path: &[u8]) -> Vec<u8> {
    [path.strip_suffix(b"/").unwrap_or(path), b"/"].concat()
}

impl Locks {
    /// The table, which may have to be waited for; none before the configuration is in use.
    pub fn open(&self, now: Instant) -> Option<Table<'_>> {
        let zone = self.zone.get()?;
        let timeout = self.timeout.as_millis() as u64;
        Some(Table { locked: zone.lock(), now: zone.msec(now), timeout })
    }
}

impl Table<'_> {
    /// The locks that stand in the way of a change at `path`: its own, that of its directory, and deep ones further above.
    pub fn over(&self, path: &[u8]) -> Vec<Lock> {
        let key = key(path);
        let mut found = Vec::new();
        if self.locked.is_empty() || key.len() > LONGEST {
            return found;
        }
        found.extend(self.at(&key));
        let (mut above, mut next) = (key.as_slice(), true);
        while let Some(slash) = above.split_last().and_then(|(_, name)| memchr::memrchr(b'/', name))
        {
            above = &above[..=slash];
            found.extend(self.at(above).filter(|lock| lock.deep || next));
            next = false;
        }
        found
    }

    /// Those of what is in a directory.
    pub fn below(&self, path: &[u8]) -> Vec<Lock> {
        let (key, mut found) = (key(path), Vec::new());
        self.each_below(&key, |table, entry| found.extend(table.live(entry)));
        found
    }

    fn each_below(&self, key: &[u8], mut f: impl FnMut(&Self, Entry)) {
        let (mut at, mut root) = (self.locked.oldest(), Vec::new());
        while let Some(entry) = at {
            at = self.locked.newer(entry);
            root.clear();
            self.locked.key(entry, &mut root);
            if root.len() > key.len() && root.starts_with(key) {
                f(self, entry);
            }
        }
    }

    fn at(&self, key: &[u8]) -> Option<Lock> {
        self.live(self.locked.find(key)?)
    }

    fn live(&self, entry: Entry) -> Option<Lock> {
        let left = self.locked.value(entry, 2).checked_sub(self.now).filter(|left| *left > 0)?;
        let token = [self.locked.value(entry, 0), self.locked.value(entry, 1)].map(u128::from);
        let mut root = Vec::new();
        self.locked.key(entry, &mut root);
        let deep = self.locked.value(entry, 3) != 0;
        Some(Lock { root, token: token[0] << 64 | token[1], deep, left: left.div_ceil(1000) })
    }

    /// A lock on what has none; `None` without room for it.
    pub fn add(&mut self, path: &[u8], token: u128, deep: bool) -> Option<Lock> {
        while let Some(oldest) = self.locked.oldest().filter(|oldest| self.live(*oldest).is_none())
        {
            self.locked.remove(oldest);
        }
        let key = key(path);
        self.remove(&key);
        let entry = self.locked.add(&key)?;
        let until = self.now + self.timeout;
        let words = [(token >> 64) as u64, token as u64, until, u64::from(deep)];
        self.locked.set_values(entry, words);
        self.live(entry)
    }

    /// The lock lasts as long again as at its beginning.
    pub fn refresh(&mut self, lock: &mut Lock) {
        let Some(entry) = self.locked.find(&lock.root) else { return };
        self.locked.set_value(entry, 2, self.now + self.timeout);
        self.locked.touch(entry);
        lock.left = self.timeout.div_ceil(1000);
    }

    /// The lock with this root ends.
    pub fn remove(&mut self, root: &[u8]) {
        if let Some(entry) = self.locked.find(root) {
            self.locked.remove(entry);
        }
    }

    /// What has stood there is gone, and so are its locks.
    pub fn remove_all(&mut self, path: &[u8]) {
        let (key, mut gone) = (key(path), Vec::new());
        self.each_below(&key, |_, entry| gone.push(entry));
        gone.into_iter().for_each(|entry| self.locked.remove(entry));
        self.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use weir_zone::{Declarations, Use, Zones};

    use super::*;

    fn locks(zones: &Declarations) -> Locks {
        let purpose = Use { tag: "dav_ext", values: VALUES, key: String::new() };
        let zone = zones.declare("l", 65536, purpose).unwrap();
        zones.open(&Zones::default()).unwrap();
        let locks = Locks { zone, timeout: Duration::from_secs(60) };
        // The clock of zones begins when it is asked first.
        assert!(locks.open(Instant::now()).unwrap().below(b"/").is_empty());
        locks
    }

    fn roots(locks: &[Lock]) -> Vec<&str> {
        locks.iter().map(|lock| std::str::from_utf8(&lock.root).unwrap()).collect()
    }

    #[test]
    fn locks_bind_what_is_under_them() {
        let zones = Declarations::default();
        let (locks, now) = (locks(&zones), Instant::now());
        let mut table = locks.open(now).unwrap();
        table.add(b"/a/", 1, true).unwrap();
        table.add(b"/b", 2 << 64, false).unwrap();
        assert_eq!(roots(&table.over(b"/a")), ["/a/"]);
        assert_eq!(roots(&table.over(b"/a/x/y")), ["/a/"]);
        assert_eq!(table.over(b"/b/x")[0].token, 2 << 64);
        for free in ["/", "/ab", "/b/x/y", "/x/a"] {
            assert!(table.over(free.as_bytes()).is_empty(), "{free}");
        }
        assert_eq!(roots(&table.below(b"/")), ["/a/", "/b/"]);
        assert!(table.below(b"/a").is_empty());
        table.remove_all(b"/");
        assert!(table.below(b"/").is_empty());
        table.add(b"/", 3, true).unwrap();
        assert_eq!(roots(&table.over(b"/any/thing")), ["/"]);
    }

    #[test]
    fn locks_end_unless_they_are_refreshed() {
        let zones = Declarations::default();
        let (locks, now) = (locks(&zones), Instant::now());
        let after = |secs| locks.open(now + Duration::from_secs(secs)).unwrap();
        let mut lock = after(0).add(b"/a", 1, true).unwrap();
        assert_eq!(after(59).over(b"/a")[0].left, 1);
        after(59).refresh(&mut lock);
        assert_eq!((after(60).over(b"/a")[0].left, lock.left), (59, 60));
        assert!(after(119).over(b"/a").is_empty());
        after(119).add(b"/a", 2, true).unwrap();
        assert_eq!(after(120).below(b"/").len(), 1);
    }

    #[test]
    fn a_full_zone_takes_no_more_and_forgets_none() {
        let zones = Declarations::default();
        let (locks, now) = (locks(&zones), Instant::now());
        let mut table = locks.open(now).unwrap();
        let full = (0..100_000).find(|n| table.add(format!("/{n}").as_bytes(), 1, true).is_none());
        let full = full.expect("no end");
        assert_eq!(table.below(b"/").len(), full);
        drop(table);
        let mut table = locks.open(now + Duration::from_secs(60)).unwrap();
        assert!(table.add(b"/new", 1, true).is_some());
    }
}
