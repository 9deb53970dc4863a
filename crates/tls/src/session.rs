//! Sessions that clients resume: tickets that every worker can open, and tables for those who want none.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{digest, hkdf};
use rustls::pki_types::UnixTime;
use rustls::server::{ProducesTickets, StoresServerSessions};
use weir_zone::{RecordName, Use, Zone, ZoneRef};

use crate::notes;

/// SHA-256 in full.
pub(crate) fn first_32(hash: digest::Digest) -> [u8; 32] {
    hash.as_ref().first_chunk().copied().unwrap_or_default()
}

fn now() -> u64 {
    UnixTime::now().as_secs()
}

/// What ticket keys are derived from.
#[derive(Clone)]
pub enum TicketSecret {
    /// Random, of this process and those that it forks. Keys change with the time, so that all workers
    /// change together and nobody needs to tell them.
    Rotating([u8; 32]),
    /// From files (`ssl_session_ticket_key`): the first seals, all open.
    Fixed(Vec<Vec<u8>>),
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketSecret")
    }
}

impl TicketSecret {
    /// The secret of this process: tickets stay good through reloads. None where there is no randomness for it.
    pub fn process() -> Option<TicketSecret> {
        static SECRET: Mutex<Option<[u8; 32]>> = Mutex::new(None);
        let mut secret = SECRET.lock().unwrap_or_else(PoisonError::into_inner);
        *secret = secret.or_else(|| random(|bytes| aws_lc_rs::rand::fill(bytes).is_ok()));
        secret.map(TicketSecret::Rotating)
    }
}

/// Random bytes, if the source gives any: never what the room for them held before.
fn random<const N: usize>(source: impl FnOnce(&mut [u8]) -> bool) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    source(&mut bytes).then_some(bytes)
}

/// Seals sessions into tickets.
pub struct Tickets {
    secret: TicketSecret,
    /// What a ticket is good for: other servers' tickets do not open.
    context: Vec<u8>,
    lifetime: u64,
    /// The keys of the current time: its number, the sealing key first.
    keys: Mutex<(u64, Arc<[Key]>)>,
}

struct Key {
    name: [u8; 16],
    key: LessSafeKey,
}

/// Key name, nonce, time of sealing.
const NAME: usize = 16;
const NONCE: usize = 12;
const TAG: usize = 16;

impl Tickets {
    /// Tickets for one context, which a client may use for `lifetime`.
    pub fn new(secret: TicketSecret, context: &[u8], lifetime: Duration) -> Tickets {
        let keys = Mutex::new((u64::MAX, Arc::from([])));
        Tickets { secret, context: context.to_vec(), lifetime: lifetime.as_secs().max(1), keys }
    }

    fn keys(&self, now: u64) -> Arc<[Key]> {
        let turn = match &self.secret {
            TicketSecret::Rotating(_) => now / self.lifetime,
            TicketSecret::Fixed(_) => 0,
        };
        let mut known = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != turn {
            let list: Vec<Key> = match &self.secret {
                TicketSecret::Rotating(secret) => [turn, turn.saturating_sub(1)]
                    .into_iter()
                    .filter_map(|turn| Key::derive(secret, &turn.to_be_bytes()))
                    .collect(),
                TicketSecret::Fixed(files) => {
                    files.iter().filter_map(|file| Key::derive(file, b"file")).collect()
                }
            };
            *known = (turn, list.into());
        }
        known.1.clone()
    }

    fn seal(&self, plain: &[u8], now: u64) -> Option<Vec<u8>> {
        let keys = self.keys(now);
        let key = keys.first()?;
        let nonce: [u8; NONCE] = random(|bytes| aws_lc_rs::rand::fill(bytes).is_ok())?;
        let mut ticket = Vec::with_capacity(NAME + NONCE + 8 + plain.len() + TAG);
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&nonce);
        let mut body = Vec::with_capacity(8 + plain.len() + TAG);
        body.extend_from_slice(&now.to_be_bytes());
        body.extend_from_slice(plain);
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.key.seal_in_place_append_tag(nonce, Aad::from(&self.context), &mut body).ok()?;
        ticket.append(&mut body);
        Some(ticket)
    }

    fn open(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME)?;
        let (nonce, body) = rest.split_at_checked(NONCE)?;
        let keys = self.keys(now);
        let key = keys.iter().find(|key| key.name == name)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut body = body.to_vec();
        let plain = key.key.open_in_place(nonce, Aad::from(&self.context), &mut body).ok()?;
        let (sealed, session) = plain.split_first_chunk::<8>()?;
        let age = now.saturating_sub(u64::from_be_bytes(*sealed));
        (age <= self.lifetime).then(|| session.to_vec())
    }
}

impl Key {
    fn derive(secret: &[u8], label: &[u8]) -> Option<Key> {
        struct Length(usize);
        impl hkdf::KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let base = hkdf::Salt::new(hkdf::HKDF_SHA256, b"weir tickets").extract(secret);
        let mut bytes = [0; 48];
        base.expand(&[label], Length(bytes.len())).and_then(|okm| okm.fill(&mut bytes)).ok()?;
        let (name, key) = bytes.split_first_chunk::<NAME>()?;
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).ok()?);
        Some(Key { name: *name, key })
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.lifetime).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let ticket = self.seal(plain, now())?;
        notes::session(&ticket);
        Some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let session = self.open(ticket, now())?;
        notes::session(ticket);
        Some(session)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tickets")
    }
}

/// Sessions that the server keeps (`ssl_session_cache`).
#[derive(Debug)]
pub struct SessionCache(Place);

#[derive(Debug)]
enum Place {
    /// In this process.
    Own(OwnCache),
    /// In shared memory: all workers have it, and those of the next configuration.
    Zone(ZoneRef),
}

/// What the zone of a cache must give to each record: when its time is over.
const UNTIL: usize = 0;

impl SessionCache {
    /// What a zone of sessions is declared as.
    pub const ZONE: Use = Use { tag: "ssl_session_cache", values: 1, key: String::new() };

    /// A cache of this process, for so many sessions.
    pub fn own(sessions: u64) -> Arc<SessionCache> {
        let room = usize::try_from(sessions).unwrap_or(usize::MAX).max(1);
        Arc::new(SessionCache(Place::Own(OwnCache { room, table: Mutex::default() })))
    }

    /// A cache in a zone that was declared as [`SessionCache::ZONE`].
    pub fn shared(zone: ZoneRef) -> Arc<SessionCache> {
        Arc::new(SessionCache(Place::Zone(zone)))
    }

    fn put(&self, name: &RecordName, value: Vec<u8>, until: u64) -> bool {
        match &self.0 {
            Place::Own(own) => own.put(name, value, until),
            Place::Zone(zone) => zone.get().is_some_and(|zone| put(zone, name, &value, until)),
        }
    }

    fn get(&self, name: &RecordName, now: u64, take: bool) -> Option<Vec<u8>> {
        match &self.0 {
            Place::Own(own) => own.get(name, now, take),
            Place::Zone(zone) => get(zone.get()?, name, now, take),
        }
    }
}

/// The oldest make room.
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
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    sessions: HashMap<RecordName, (u64, Vec<u8>)>,
    /// In the order of their coming; a name that was taken out meanwhile is passed over.
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

/// One server's view of a cache: sessions of other contexts are not found.
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

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_source_of_randomness_that_fails_gives_nothing() {
        assert_eq!(random::<32>(|_| false), None);
        assert_eq!(random(|bytes| bytes.iter_mut().all(|b| *b == 0)), Some([0; 4]));
        assert!(
            matches!(TicketSecret::process(), Some(TicketSecret::Rotating(key)) if key != [0; 32])
        );
    }

    #[test]
    fn a_ticket_opens_for_its_context_until_its_time() {
        let of = |context: &[u8]| Tickets::new(TicketSecret::Rotating([7; 32]), context, HOUR);
        let ticket = of(b"a").seal(b"session", 10_000).unwrap();
        assert_eq!(of(b"a").open(&ticket, 10_000 + 3600).unwrap(), b"session");
        assert_eq!(of(b"b").open(&ticket, 10_000), None);
        assert_eq!(of(b"a").open(&ticket, 10_000 + 3601), None);
    }

    #[test]
    fn the_first_file_seals_and_all_open() {
        let of = |files: &[&[u8]]| {
            let files = files.iter().map(|f| f.to_vec()).collect();
            Tickets::new(TicketSecret::Fixed(files), b"", HOUR)
        };
        let ticket = of(&[b"old"]).seal(b"session", 0).unwrap();
        assert!(of(&[b"new", b"old"]).open(&ticket, 9).is_some());
        assert!(of(&[b"new"]).open(&ticket, 9).is_none());
    }

    #[test]
    fn damaged_tickets_do_not_open() {
        let tickets = Tickets::new(TicketSecret::Rotating([7; 32]), b"", HOUR);
        let ticket = tickets.seal(b"session", 0).unwrap();
        for at in 0..ticket.len() {
            let mut damaged = ticket.clone();
            damaged[at] ^= 1;
            assert_eq!(tickets.open(&damaged, 0), None, "byte {at}");
            assert_eq!(tickets.open(&ticket[..at], 0), None, "length {at}");
        }
    }

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
    fn a_cache_in_a_zone_is_one_for_all_that_open_it() {
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
    fn what_is_larger_than_the_cache_is_not_kept() {
        let all = Declarations::default();
        let zone = all.declare("sessions", 3000, SessionCache::ZONE).unwrap();
        let _open = all.open(&Zones::default()).unwrap();
        let cache = SessionCache::shared(zone);
        assert!(cache.put(&[1; 32], vec![1], 100));
        assert!(!cache.put(&[2; 32], vec![0; 4000], 100));
    }
}
