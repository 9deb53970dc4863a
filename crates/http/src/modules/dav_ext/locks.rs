//! Write locks in shared memory. A lock is exclusive or shared, and several clients may have a
//! shared lock of the same path. One record has all locks of a path.

use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use weir_zone::{Locked, LockedEntry, RecordName, ZoneRef};

/// The number of words of a record, in addition to its contents.
pub const VALUES: usize = 0;
/// The longest path of a lock: no file has a longer name.
const LONGEST: usize = 4096;
/// The most locks of a path.
const MOST: usize = 32;

/// A zone of locks, and its timeout.
#[derive(Debug, Clone)]
pub struct Locks {
    /// The shared memory.
    pub zone: ZoneRef,
    /// How long a lock lasts unless it is refreshed.
    pub timeout: Duration,
}

/// A requested lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LockRequest {
    /// `Depth: infinity`: the lock also covers everything below.
    pub deep: bool,
    /// Whether the lock is shared, so that others may have shared locks as well.
    pub shared: bool,
    /// The `owner` element of the client, as XML. May be empty.
    pub owner: Vec<u8>,
}

/// A lock in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// The locked path; see [`key`].
    pub root: Vec<u8>,
    /// The token. Requests that send it may write.
    pub token: u128,
    /// The request for the lock.
    pub request: LockRequest,
    /// The end of the lock, in milliseconds of the zone's clock.
    until: u64,
    /// Seconds until the end.
    pub left: u64,
}

/// The locked zone. Other threads wait until it is dropped.
pub struct LockTable<'z> {
    locked: Locked<'z>,
    now: u64,
    timeout: u64,
}

/// The normalized form of a path: always with a slash at the end, and without adjacent slashes.
pub fn key(path: &[u8]) -> Vec<u8> {
    let mut key = [path, b"/"].concat();
    key.dedup_by(|a, b| *a == b'/' && *b == b'/');
    key
}

fn name_of(key: &[u8]) -> RecordName {
    let mut name = RecordName::default();
    name.copy_from_slice(digest(&SHA256, key).as_ref());
    name
}

impl Locks {
    /// Locks the zone, which may wait for other threads. `None` before the configuration is in use.
    pub fn open(&self, now: Instant) -> Option<LockTable<'_>> {
        let zone = self.zone.get()?;
        let timeout = self.timeout.as_millis() as u64;
        Some(LockTable { locked: zone.lock(), now: zone.msec(now), timeout })
    }
}

impl LockTable<'_> {
    /// The locks that restrict a change at `path`: its own, those of its directory, and `deep` ones
    /// further above.
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
            found.extend(self.at(above).into_iter().filter(|lock| lock.request.deep || next));
            next = false;
        }
        found
    }

    /// The locks of everything below a directory. Locks of one path are adjacent.
    pub fn below(&self, path: &[u8]) -> Vec<Lock> {
        let (key, mut found) = (key(path), Vec::new());
        self.each_below(&key, |table, entry| found.extend(table.live(entry)));
        found
    }

    fn each_below(&self, key: &[u8], mut f: impl FnMut(&Self, LockedEntry)) {
        for entry in self.locked.entries() {
            let contents = self.locked.contents(entry);
            let root = read(&contents).map(|(root, _)| root).unwrap_or_default();
            if root.len() > key.len() && root.starts_with(key) {
                f(self, entry);
            }
        }
    }

    fn at(&self, key: &[u8]) -> Vec<Lock> {
        let found = self.locked.find_record(&name_of(key));
        found.map_or_else(Vec::new, |entry| self.live(entry))
    }

    fn live(&self, entry: LockedEntry) -> Vec<Lock> {
        let contents = self.locked.contents(entry);
        let Some((_, mut all)) = read(&contents) else { return Vec::new() };
        all.retain(|lock| lock.until > self.now);
        all.iter_mut().for_each(|lock| lock.left = (lock.until - self.now).div_ceil(1000));
        all
    }

    /// Adds a lock. `None` if the zone or the path has no room for it.
    pub fn add(&mut self, path: &[u8], token: u128, request: LockRequest) -> Option<Lock> {
        while let Some(oldest) = self.locked.oldest().filter(|oldest| self.live(*oldest).is_empty())
        {
            self.locked.remove(oldest);
        }
        let (root, until) = (key(path), self.now + self.timeout);
        let mut all = self.at(&root);
        let left = self.timeout.div_ceil(1000);
        let lock = Lock { root, token, request, until, left };
        all.push(lock.clone());
        (all.len() <= MOST && self.write(&lock.root, &all)).then_some(lock)
    }

    /// Restarts the timeout of a lock.
    pub fn refresh(&mut self, lock: &mut Lock) {
        let mut all = self.at(&lock.root);
        for same in all.iter_mut().filter(|same| same.token == lock.token) {
            same.until = self.now + self.timeout;
        }
        if self.write(&lock.root, &all) {
            lock.left = self.timeout.div_ceil(1000);
        }
    }

    /// Removes a lock.
    pub fn remove(&mut self, lock: &Lock) {
        let mut all = self.at(&lock.root);
        all.retain(|other| other.token != lock.token);
        self.write(&lock.root, &all);
    }

    /// Removes all locks at and below a path.
    pub fn remove_all(&mut self, path: &[u8]) {
        let (key, mut gone) = (key(path), Vec::new());
        self.each_below(&key, |_, entry| gone.push(entry));
        gone.into_iter().for_each(|entry| self.locked.remove(entry));
        self.write(&key, &[]);
    }

    /// Replaces the locks of a path. Returns false without a change if there is no room for more
    /// locks. The new record is added before the old one is removed, so that one of them survives a
    /// killed process.
    fn write(&mut self, root: &[u8], all: &[Lock]) -> bool {
        let name = name_of(root);
        let mut old = self.locked.find_record(&name);
        if !all.is_empty() {
            let contents = written(root, all);
            let mut new = self.locked.add_record(&name, &contents);
            if new.is_none()
                && let Some(entry) = old
                && self.locked.contents(entry).len() >= contents.len()
            {
                self.locked.remove(entry);
                old = None;
                new = self.locked.add_record(&name, &contents);
            }
            if new.is_none() {
                return false;
            }
        }
        old.into_iter().for_each(|entry| self.locked.remove(entry));
        true
    }
}

const DEEP: u8 = 1;
const SHARED: u8 = 2;

/// Serializes a record: the root, then each lock.
fn written(root: &[u8], all: &[Lock]) -> Vec<u8> {
    let mut out = (root.len() as u32).to_le_bytes().to_vec();
    out.extend_from_slice(root);
    for Lock { token, request, until, .. } in all {
        let flags = u8::from(request.deep) * DEEP + u8::from(request.shared) * SHARED;
        out.extend_from_slice(&token.to_le_bytes());
        out.extend_from_slice(&until.to_le_bytes());
        out.push(flags);
        out.extend_from_slice(&(request.owner.len() as u32).to_le_bytes());
        out.extend_from_slice(&request.owner);
    }
    out
}

/// Parses a record. `None` if it is malformed.
fn read(mut text: &[u8]) -> Option<(Vec<u8>, Vec<Lock>)> {
    let text = &mut text;
    let (root, mut all) = (bytes(text)?.to_vec(), Vec::new());
    while !text.is_empty() {
        let token = u128::from_le_bytes(array(text)?);
        let until = u64::from_le_bytes(array(text)?);
        let [flags] = array(text)?;
        let owner = bytes(text)?.to_vec();
        let request = LockRequest { deep: flags & DEEP != 0, shared: flags & SHARED != 0, owner };
        all.push(Lock { root: root.clone(), token, request, until, left: 0 });
    }
    Some((root, all))
}

fn array<const N: usize>(text: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = text.split_first_chunk()?;
    *text = rest;
    Some(*first)
}

/// Reads bytes with their length in front.
fn bytes<'t>(text: &mut &'t [u8]) -> Option<&'t [u8]> {
    let length = u32::from_le_bytes(array(text)?) as usize;
    let (first, rest) = text.split_at_checked(length)?;
    *text = rest;
    Some(first)
}

#[cfg(test)]
mod tests {
    use weir_zone::{Declarations, Use, Zones};

    use super::*;

    const ALONE: LockRequest = LockRequest { deep: false, shared: false, owner: Vec::new() };
    const DEEP: LockRequest = LockRequest { deep: true, shared: false, owner: Vec::new() };

    fn locks(zones: &Declarations) -> Locks {
        let purpose = Use::of("dav_ext", VALUES);
        let zone = zones.declare("l", 65536, purpose).unwrap();
        zones.open(&Zones::default()).unwrap();
        let locks = Locks { zone, timeout: Duration::from_secs(60) };
        // The zone's clock starts at its first use.
        assert!(locks.open(Instant::now()).unwrap().below(b"/").is_empty());
        locks
    }

    fn roots(locks: &[Lock]) -> Vec<&str> {
        locks.iter().map(|lock| std::str::from_utf8(&lock.root).unwrap()).collect()
    }

    #[test]
    fn locks_cover_what_is_below_them() {
        let zones = Declarations::default();
        let (locks, now) = (locks(&zones), Instant::now());
        let mut table = locks.open(now).unwrap();
        table.add(b"/a/", 1, DEEP).unwrap();
        table.add(b"/b", 2 << 64, ALONE).unwrap();
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
        table.add(b"/", 3, DEEP).unwrap();
        assert_eq!(roots(&table.over(b"/any/thing")), ["/"]);
    }

    #[test]
    fn locks_end_unless_they_are_refreshed() {
        let zones = Declarations::default();
        let (locks, now) = (locks(&zones), Instant::now());
        let after = |secs| locks.open(now + Duration::from_secs(secs)).unwrap();
        let mut lock = after(0).add(b"/a", 1, DEEP).unwrap();
        assert_eq!(after(59).over(b"/a")[0].left, 1);
        after(59).refresh(&mut lock);
        assert_eq!((after(60).over(b"/a")[0].left, lock.left), (59, 60));
        assert!(after(119).over(b"/a").is_empty());
        after(119).add(b"/a", 2, DEEP).unwrap();
        assert_eq!(after(120).below(b"/").len(), 1);
    }

    #[test]
    fn several_clients_share_a_path() {
        let zones = Declarations::default();
        let (locks, now) = (locks(&zones), Instant::now());
        let mut table = locks.open(now).unwrap();
        let request = |owner: &str| LockRequest { shared: true, owner: owner.into(), ..DEEP };
        let first = table.add(b"/a", 1, request("one")).unwrap();
        table.add(b"/a", 2, request("two")).unwrap();
        let shown = |table: &LockTable<'_>| {
            let all = table.over(b"/a/x").into_iter();
            all.map(|lock| (lock.token, lock.request.owner)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&table), [(1, b"one".to_vec()), (2, b"two".to_vec())]);
        assert_eq!(table.below(b"/").len(), 2);
        table.remove(&first);
        assert_eq!(shown(&table), [(2, b"two".to_vec())]);
        drop(table);
        let later = now + Duration::from_secs(30);
        locks.open(later).unwrap().add(b"/a", 3, request("three")).unwrap();
        let table = locks.open(now + Duration::from_secs(61)).unwrap();
        assert_eq!(shown(&table), [(3, b"three".to_vec())]);
        drop(table);
        let mut table = locks.open(later).unwrap();
        let more = (4..100).take_while(|n| table.add(b"/a", *n, request("")).is_some()).count();
        assert_eq!(more, MOST - 2);
    }

    #[test]
    fn one_of_several_locks_can_be_removed_in_a_full_zone() {
        let zones = Declarations::default();
        let (locks, now) = (locks(&zones), Instant::now());
        let mut table = locks.open(now).unwrap();
        let shared = || LockRequest { shared: true, ..ALONE };
        let first = table.add(b"/a", 1, shared()).unwrap();
        table.add(b"/a", 2, shared()).unwrap();
        for n in 0..100_000 {
            if table.add(format!("/{n}").as_bytes(), 1, ALONE).is_none() {
                break;
            }
        }
        assert!(table.add(b"/a", 3, shared()).is_none());
        assert_eq!(table.over(b"/a").len(), 2);
        table.remove(&first);
        assert_eq!(table.over(b"/a").len(), 1);
    }

    #[test]
    fn records() {
        bolero::check!().for_each(|text: &[u8]| {
            if let Some((root, all)) = read(text) {
                let text = written(&root, &all);
                assert_eq!(read(&text), Some((root, all)));
            }
        });
    }

    #[test]
    fn a_full_zone_refuses_new_locks_and_keeps_the_others() {
        let zones = Declarations::default();
        let (locks, now) = (locks(&zones), Instant::now());
        let mut table = locks.open(now).unwrap();
        let full = (0..100_000).find(|n| table.add(format!("/{n}").as_bytes(), 1, DEEP).is_none());
        let full = full.expect("no end");
        assert_eq!(table.below(b"/").len(), full);
        drop(table);
        let mut table = locks.open(now + Duration::from_secs(60)).unwrap();
        assert!(table.add(b"/new", 1, DEEP).is_some());
    }
}
