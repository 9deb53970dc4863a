//! Locks in shared memory, on writing: exclusive ones, and shared ones that several clients have at once. One record has
//! all locks of a path.

use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use weir_zone::{Locked, LockedEntry, RecordName, ZoneRef};

/// Words of a record beside its contents.
pub const VALUES: usize = 0;
/// No file has a longer name.
const LONGEST: usize = 4096;
/// So many clients may share a path.
const MOST: usize = 32;

/// A zone of locks.
#[derive(Debug, Clone)]
pub struct Locks {
    /// The memory.
    pub zone: ZoneRef,
    /// How long a lock lasts unless it is refreshed.
    pub timeout: Duration,
}

/// The lock that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LockRequest {
    /// Whether all below is locked, too.
    pub deep: bool,
    /// Whether others may have a shared lock, too.
    pub shared: bool,
    /// What the client says of itself: XML, or nothing.
    pub owner: Vec<u8>,
}

/// A lock that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// What was locked; see [`key`].
    pub root: Vec<u8>,
    /// Requests that carry it may write.
    pub token: u128,
    /// What was asked for.
    pub wish: LockRequest,
    /// When it ends, in milliseconds of the zone's clock.
    until: u64,
    /// Seconds until it ends.
    pub left: u64,
}

/// The locks, for this thread alone until dropped.
pub struct LockTable<'z> {
    locked: Locked<'z>,
    now: u64,
    timeout: u64,
}

/// A path as locks are found by it: the slash behind a directory makes no difference.
pub fn key(path: &[u8]) -> Vec<u8> {
    [path.strip_suffix(b"/").unwrap_or(path), b"/"].concat()
}

fn name_of(key: &[u8]) -> RecordName {
    let mut name = RecordName::default();
    name.copy_from_slice(digest(&SHA256, key).as_ref());
    name
}

impl Locks {
    /// The table, which may have to be waited for; none before the configuration is in use.
    pub fn open(&self, now: Instant) -> Option<LockTable<'_>> {
        let zone = self.zone.get()?;
        let timeout = self.timeout.as_millis() as u64;
        Some(LockTable { locked: zone.lock(), now: zone.msec(now), timeout })
    }
}

impl LockTable<'_> {
    /// The locks that stand in the way of a change at `path`: its own, those of its directory, and deep ones further
    /// above.
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
            found.extend(self.at(above).into_iter().filter(|lock| lock.wish.deep || next));
            next = false;
        }
        found
    }

    /// Those of what is in a directory; those of one path follow each other.
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

    /// A lock beside those that there are; `None` without room for it.
    pub fn add(&mut self, path: &[u8], token: u128, wish: LockRequest) -> Option<Lock> {
        while let Some(oldest) = self.locked.oldest().filter(|oldest| self.live(*oldest).is_empty())
        {
            self.locked.remove(oldest);
        }
        let (root, until) = (key(path), self.now + self.timeout);
        let mut all = self.at(&root);
        let left = self.timeout.div_ceil(1000);
        let lock = Lock { root, token, wish, until, left };
        all.push(lock.clone());
        (all.len() <= MOST && self.write(&lock.root, &all)).then_some(lock)
    }

    /// The lock lasts as long again as at its beginning.
    pub fn refresh(&mut self, lock: &mut Lock) {
        let mut all = self.at(&lock.root);
        for same in all.iter_mut().filter(|same| same.token == lock.token) {
            same.until = self.now + self.timeout;
        }
        if self.write(&lock.root, &all) {
            lock.left = self.timeout.div_ceil(1000);
        }
    }

    /// The lock ends.
    pub fn remove(&mut self, lock: &Lock) {
        let mut all = self.at(&lock.root);
        all.retain(|other| other.token != lock.token);
        self.write(&lock.root, &all);
    }

    /// What has stood there is gone, and so are its locks.
    pub fn remove_all(&mut self, path: &[u8]) {
        let (key, mut gone) = (key(path), Vec::new());
        self.each_below(&key, |_, entry| gone.push(entry));
        gone.into_iter().for_each(|entry| self.locked.remove(entry));
        self.write(&key, &[]);
    }

    /// Replaces the locks of a path; false, and nothing is changed, without room for more than there was. The new record
    /// comes before the old one goes, so that a process that is killed in between leaves one of them.
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

/// The contents of a record: the root, then each lock.
fn written(root: &[u8], all: &[Lock]) -> Vec<u8> {
    let mut out = (root.len() as u32).to_le_bytes().to_vec();
    out.extend_from_slice(root);
    for Lock { token, wish, until, .. } in all {
        let flags = u8::from(wish.deep) * DEEP + u8::from(wish.shared) * SHARED;
        out.extend_from_slice(&token.to_le_bytes());
        out.extend_from_slice(&until.to_le_bytes());
        out.push(flags);
        out.extend_from_slice(&(wish.owner.len() as u32).to_le_bytes());
        out.extend_from_slice(&wish.owner);
    }
    out
}

/// What [`written`] wrote; `None` for anything else.
fn read(mut text: &[u8]) -> Option<(Vec<u8>, Vec<Lock>)> {
    let text = &mut text;
    let (root, mut all) = (bytes(text)?.to_vec(), Vec::new());
    while !text.is_empty() {
        let token = u128::from_le_bytes(array(text)?);
        let until = u64::from_le_bytes(array(text)?);
        let [flags] = array(text)?;
        let owner = bytes(text)?.to_vec();
        let wish = LockRequest { deep: flags & DEEP != 0, shared: flags & SHARED != 0, owner };
        all.push(Lock { root: root.clone(), token, wish, until, left: 0 });
    }
    Some((root, all))
}

fn array<const N: usize>(text: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = text.split_first_chunk()?;
    *text = rest;
    Some(*first)
}

/// Bytes with their number before them.
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
        let wish = |owner: &str| LockRequest { shared: true, owner: owner.into(), ..DEEP };
        let first = table.add(b"/a", 1, wish("one")).unwrap();
        table.add(b"/a", 2, wish("two")).unwrap();
        let shown = |table: &LockTable<'_>| {
            let all = table.over(b"/a/x").into_iter();
            all.map(|lock| (lock.token, lock.wish.owner)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&table), [(1, b"one".to_vec()), (2, b"two".to_vec())]);
        assert_eq!(table.below(b"/").len(), 2);
        table.remove(&first);
        assert_eq!(shown(&table), [(2, b"two".to_vec())]);
        drop(table);
        let later = now + Duration::from_secs(30);
        locks.open(later).unwrap().add(b"/a", 3, wish("three")).unwrap();
        let table = locks.open(now + Duration::from_secs(61)).unwrap();
        assert_eq!(shown(&table), [(3, b"three".to_vec())]);
        drop(table);
        let mut table = locks.open(later).unwrap();
        let more = (4..100).take_while(|n| table.add(b"/a", *n, wish("")).is_some()).count();
        assert_eq!(more, MOST - 2);
    }

    #[test]
    fn a_full_zone_lets_a_lock_of_several_end() {
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
    fn a_full_zone_takes_no_more_and_forgets_none() {
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
