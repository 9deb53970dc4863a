//! Sessions that clients resume: tickets that every worker can open, and a table for those who want none.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{digest, hkdf};
use rustls::pki_types::UnixTime;
use rustls::server::{ProducesTickets, StoresServerSessions};

thread_local! {
    static RESUMED: Cell<Option<[u8; 32]>> = const { Cell::new(None) };
}

/// Takes note of which session a client brought. rustls asks for it in the midst of a step of the handshake
/// and does not tell; whoever makes that step asks here right after it.
fn note_resumed(id: &[u8]) {
    let hash = digest::digest(&digest::SHA256, id);
    RESUMED.set(hash.as_ref().first_chunk::<32>().copied());
}

/// The session that the last step on this thread has looked up: `$ssl_session_id`.
pub(crate) fn take_resumed() -> Option<[u8; 32]> {
    RESUMED.take()
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
    /// The secret of this process: tickets stay good through reloads.
    pub fn process() -> TicketSecret {
        static SECRET: OnceLock<[u8; 32]> = OnceLock::new();
        let secret = SECRET.get_or_init(|| {
            let mut bytes = [0; 32];
            // Without randomness nothing else of TLS would work either.
            let _ = aws_lc_rs::rand::fill(&mut bytes);
            bytes
        });
        TicketSecret::Rotating(*secret)
    }
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
        let mut nonce = [0; NONCE];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
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
        self.seal(plain, now())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let session = self.open(ticket, now())?;
        note_resumed(ticket);
        Some(session)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tickets")
    }
}

/// Sessions that the server keeps (`ssl_session_cache`), shared by the loops of a process.
pub struct SessionCache {
    room: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    sessions: HashMap<Vec<u8>, (u64, Vec<u8>)>,
    /// In the order of their coming; a key that was taken out meanwhile is passed over.
    order: VecDeque<Vec<u8>>,
}

/// What a session takes, as nginx's documentation counts it: 4000 in a megabyte.
const SESSION_BYTES: usize = 256;

impl SessionCache {
    /// A cache of this many bytes.
    pub fn new(bytes: u64) -> Arc<SessionCache> {
        let room = usize::try_from(bytes).unwrap_or(usize::MAX) / SESSION_BYTES;
        Arc::new(SessionCache { room: room.max(1), table: Mutex::default() })
    }

    fn put(&self, key: Vec<u8>, value: Vec<u8>, until: u64) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        while table.order.len() >= self.room {
            let Some(oldest) = table.order.pop_front() else { break };
            table.sessions.remove(&oldest);
        }
        if table.sessions.insert(key.clone(), (until, value)).is_none() {
            table.order.push_back(key);
        }
    }

    fn get(&self, key: &[u8], now: u64, take: bool) -> Option<Vec<u8>> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let good = table.sessions.get(key).is_some_and(|(until, _)| now <= *until);
        if take || !good {
            return table.sessions.remove(key).filter(|_| good).map(|(_, value)| value);
        }
        table.sessions.get(key).map(|(_, value)| value.clone())
    }
}

impl fmt::Debug for SessionCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionCache of {}", self.room)
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
    fn key(&self, id: &[u8]) -> Vec<u8> {
        [self.context.as_slice(), id].concat()
    }

    fn find(&self, id: &[u8], take: bool) -> Option<Vec<u8>> {
        let session = self.cache.get(&self.key(id), now(), take)?;
        note_resumed(id);
        Some(session)
    }
}

impl StoresServerSessions for CacheView {
    fn put(&self, id: Vec<u8>, value: Vec<u8>) -> bool {
        self.cache.put(self.key(&id), value, now() + self.lifetime);
        true
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
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

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

    #[test]
    fn a_full_cache_forgets_the_oldest() {
        let cache = SessionCache::new(2 * SESSION_BYTES as u64);
        for key in [b"a", b"b", b"c"] {
            cache.put(key.to_vec(), vec![1], 100);
        }
        assert_eq!(cache.get(b"a", 0, false), None);
        assert_eq!(cache.get(b"b", 0, true), Some(vec![1]));
        assert_eq!(cache.get(b"b", 0, false), None);
        assert_eq!(cache.get(b"c", 101, false), None);
    }
}
