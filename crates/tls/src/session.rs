//! Sessions that the server keeps for clients to resume (`ssl_session_cache`).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::digest;
use rustls::pki_types::UnixTime;
use rustls::server::StoresServerSessions;
use weir_zone::{RecordName, Use, Zone, ZoneRef};

use crate::notes;

/// The 32 bytes of a SHA-256 digest.
pub(crate) fn first_32(hash: digest::Digest) -> [u8; 32] {
    hash.as_ref().first_chunk().copied().unwrap_or_default()
}

fn now() -> u64 {
    UnixTime::now().as_secs()
}

/// Sessions that the server keeps (`ssl_session_cache`).
#[derive(Debug)]
pub struct SessionCache(SessionStorage);

#[derive(Debug)]
enum SessionStorage {
    /// In this process.
    Own(OwnCache),
    /// In shared memory: all workers have it, and those of the next configuration.
    Zone(ZoneRef),
}

/// The one value of a session's record in a zone: when it expires, in seconds since 1970.
const UNTIL: usize = 0;

impl SessionCache {
    /// How a zone for sessions is declared.
    pub const ZONE: Use = Use::of("ssl_session_cache", 1);

    /// A cache of this process alone, for this number of sessions.
    pub fn own(sessions: u64) -> Arc<SessionCache> {
        let room = usize::try_from(sessions).unwrap_or(usize::MAX).max(1);
        Arc::new(SessionCache(SessionStorage::Own(OwnCache { room, table: Mutex::default() })))
    }

    /// A cache in a zone that was declared as [`SessionCache::ZONE`].
    pub fn shared(zone: ZoneRef) -> Arc<SessionCache> {
        Arc::new(SessionCache(SessionStorage::Zone(zone)))
    }

    fn put(&self, name: &RecordName, value: Vec<u8>, until: u64) -> bool {
        match &self.0 {
            SessionStorage::Own(own) => own.put(name, value, until),
            SessionStorage::Zone(zone) => {
                zone.get().is_some_and(|zone| put(zone, name, &value, until))
            }
        }
    }

    fn get(&self, name: &RecordName, now: u64, take: bool) -> Option<Vec<u8>> {
        match &self.0 {
            SessionStorage::Own(own) => own.get(name, now, take),
            SessionStorage::Zone(zone) => get(zone.get()?, name, now, take),
        }
    }
}

/// Stores a session. The oldest ones make room.
fn put(zone: &Zone, name: &RecordName, value: &[u8], until: u64) -> bool {
    let mut table = zone.lock();
    if let Some(old) = table.find_record(name) {
        table.remove(old);
    }
    loop {
        if let Some(record) = table.add_record(name, value) {
            table.set_values(record, [until]);
            return true;
        }
        match table.oldest() {
            Some(oldest) => table.remove(oldest),
            None => return false,
        }
    }
}

fn get(zone: &Zone, name: &RecordName, now: u64, take: bool) -> Option<Vec<u8>> {
    let mut table = zone.lock();
    let record = table.find_record(name)?;
    let good = now <= table.value(record, UNTIL);
    let value = good.then(|| table.contents(record));
    if take || !good {
        table.remove(record);
    }
    value
}

struct OwnCache {
    room: usize,
    table: Mutex<SessionTable>,
}

#[derive(Default)]
struct SessionTable {
    sessions: HashMap<RecordName, (u64, Vec<u8>)>,
    /// Names in the order of insertion. A name whose session was taken is skipped.
    order: VecDeque<RecordName>,
}

impl OwnCache {
    fn put(&self, name: &RecordName, value: Vec<u8>, until: u64) -> bool {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        while table.order.len() >= self.room {
            let Some(oldest) = table.order.pop_front() else { break };
            table.sessions.remove(&oldest);
        }
        if table.sessions.insert(*name, (until, value)).is_none() {
            table.order.push_back(*name);
        }
        true
    }

    fn get(&self, name: &RecordName, now: u64, take: bool) -> Option<Vec<u8>> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let good = table.sessions.get(name).is_some_and(|(until, _)| now <= *until);
        if take || !good {
            return table.sessions.remove(name).filter(|_| good).map(|(_, value)| value);
        }
        table.sessions.get(name).map(|(_, value)| value.clone())
    }
}

impl fmt::Debug for OwnCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnCache of {}", self.room)
    }
}

/// One server's view of a cache. It does not find sessions of other contexts.
#[derive(Debug)]
pub(crate) struct CacheView {
    pub(crate) cache: Arc<SessionCache>,
    pub(crate) context: Vec<u8>,
    pub(crate) lifetime: u64,
}

impl CacheView {
    fn name(&self, id: &[u8]) -> RecordName {
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(&self.context);
        hash.update(id);
        first_32(hash.finish())
    }

    fn find(&self, id: &[u8], take: bool) -> Option<Vec<u8>> {
        let session = self.cache.get(&self.name(id), now(), take)?;
        notes::session(id);
        Some(session)
    }
}

impl StoresServerSessions for CacheView {
    fn put(&self, id: Vec<u8>, value: Vec<u8>) -> bool {
        notes::session(&id);
        self.cache.put(&self.name(&id), value, now() + self.lifetime)
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.find(id, false)
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.find(id, true)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use weir_zone::{Declarations, Zones};

    use super::*;

    fn forgets_the_oldest(cache: &SessionCache, room: u8) {
        let name = |n| [n; 32];
        for n in 0..=room {
            assert!(cache.put(&name(n), vec![n; 100], 100));
        }
        assert_eq!(cache.get(&name(0), 0, false), None);
        assert_eq!(cache.get(&name(1), 0, true), Some(vec![1; 100]));
        assert_eq!(cache.get(&name(1), 0, false), None);
        assert_eq!(cache.get(&name(2), 101, false), None);
        assert_eq!(cache.get(&name(2), 100, false), None);
        assert_eq!(cache.get(&name(3), 100, false), Some(vec![3; 100]));
        assert!(cache.put(&name(3), vec![7; 9], 200));
        assert_eq!(cache.get(&name(3), 200, false), Some(vec![7; 9]));
    }

    #[test]
    fn a_full_cache_forgets_the_oldest() {
        forgets_the_oldest(&SessionCache::own(5), 5);
    }

    #[test]
    fn a_cache_in_a_zone_is_shared_and_survives_a_reload() {
        let zones = |old: &Zones| {
            let all = Declarations::default();
            let zone = all.declare("sessions", 3000, SessionCache::ZONE).unwrap();
            let open = all.open(old).unwrap();
            (SessionCache::shared(zone), open)
        };
        let (first, open) = zones(&Zones::default());
        let most = (0..).find(|n| {
            first.put(&[*n; 32], vec![*n; 100], 100);
            first.get(&[0; 32], 0, false).is_none()
        });
        let (second, _) = zones(&open);
        forgets_the_oldest(&second, most.unwrap());
        assert_eq!(first.get(&[4; 32], 0, false), Some(vec![4; 100]));
    }

    #[test]
    fn a_session_larger_than_the_cache_is_not_kept() {
        let all = Declarations::default();
        let zone = all.declare("sessions", 3000, SessionCache::ZONE).unwrap();
        let _open = all.open(&Zones::default()).unwrap();
        let cache = SessionCache::shared(zone);
        assert!(cache.put(&[1; 32], vec![1], 100));
        assert!(!cache.put(&[2; 32], vec![0; 4000], 100));
    }
}
