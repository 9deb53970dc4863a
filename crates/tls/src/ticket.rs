//! Session tickets: sessions that clients keep, encrypted with keys that all workers have.
//!
//! A key encrypts for one period, and decrypts for one more. The next period's key and secret are
//! derived from the present secret by a one-way function (a ratchet). An attacker who reads the
//! memory of a process opens tickets of two periods, and none that were encrypted before. All
//! processes of a server count periods by the same clock. Each has its own copy of the secret, so
//! they agree without communication. Each advances its copy in time, whether or not clients come
//! ([`turn_ticket_keys`]), and wipes the old keys.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use rustls::pki_types::UnixTime;
use rustls::server::ProducesTickets;
use weir_engine::beside;
use weir_sys::beginning::beginning;
use zeroize::Zeroizing;

use crate::notes;

/// Bytes of a ticket: name of the key, nonce, time of encryption, session, tag.
const NAME: usize = 16;
const NONCE: usize = 12;
const TAG: usize = 16;
const TIME: usize = 8;
/// A key of AES-256, behind its name.
const KEY: usize = 32;
/// Bytes of the secret that a period's key is derived from.
const SECRET: usize = 32;

/// The longest lifetime that a client may be told, in seconds. RFC 8446, section 4.6.1.
const LONGEST_TOLD: u32 = 7 * 24 * 3600;

/// The shortest period. Shorter lifetimes of sessions do not make keys change more often.
const SHORTEST: u64 = 60;

/// Bytes that are wiped when they are freed. They stay in place: a copy on a stack would not be
/// wiped.
type Wiped = Zeroizing<Vec<u8>>;

/// The keys of tickets.
#[derive(Clone)]
pub enum TicketSecret {
    /// Random, shared by this process and those that it forks.
    Rotating(Arc<Ratchet>),
    /// From files (`ssl_session_ticket_key`): the first encrypts, all decrypt.
    Fixed(Vec<Vec<u8>>),
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketSecret")
    }
}

impl TicketSecret {
    /// The random keys of this process for sessions of this lifetime. A reload keeps them. `None`
    /// if there is no randomness.
    pub fn rotating(lifetime: Duration) -> Option<TicketSecret> {
        let period = lifetime.as_secs().max(SHORTEST);
        let mut known = lock(&RATCHETS);
        known.retain(|ratchet| ratchet.strong_count() > 0);
        let same = known.iter().filter_map(Weak::upgrade).find(|ratchet| ratchet.period == period);
        let ratchet = match same {
            Some(ratchet) => ratchet,
            None => {
                let fill = |bytes: &mut [u8]| aws_lc_rs::rand::fill(bytes).is_ok();
                let ratchet = Arc::new(Ratchet::new(period, random(SECRET, fill)?, steady())?);
                known.push(Arc::downgrade(&ratchet));
                MADE.fetch_add(1, Ordering::Relaxed);
                ratchet
            }
        };
        Some(TicketSecret::Rotating(ratchet))
    }
}

/// The ratchets of this process, one for each period.
static RATCHETS: Mutex<Vec<Weak<Ratchet>>> = Mutex::new(Vec::new());

/// How many random secrets this process has made. Processes that it forked before do not share the
/// later ones.
pub fn ticket_secrets_made() -> u64 {
    MADE.load(Ordering::Relaxed)
}

static MADE: AtomicU64 = AtomicU64::new(0);

/// Advances all random keys to the present period. Returns how long they last, or `None` if there
/// are none.
pub fn turn_ticket_keys() -> Option<Duration> {
    let now = steady();
    let known = lock(&RATCHETS);
    let ratchets = known.iter().filter_map(Weak::upgrade);
    let next = ratchets.map(|ratchet| {
        drop(ratchet.turned(now));
        ratchet.period - now % ratchet.period
    });
    next.min().map(Duration::from_secs)
}

/// Seconds since [`beginning`], which all processes of a server share. This clock is never set.
fn steady() -> u64 {
    beside::now().saturating_duration_since(beginning()).as_secs()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Random bytes. `None` if the source fails, so that a zeroed buffer never becomes a key.
fn random(length: usize, source: impl FnOnce(&mut [u8]) -> bool) -> Option<Wiped> {
    let mut bytes = Zeroizing::new(vec![0; length]);
    source(&mut bytes).then_some(bytes)
}

/// Keys that replace each other, one for each period.
pub struct Ratchet {
    /// In seconds.
    period: u64,
    turn: Mutex<KeyPeriod>,
}

/// The keys of one period, in one process.
struct KeyPeriod {
    /// The number of periods before it, since [`beginning`].
    number: u64,
    /// The next period's key and secret are derived from it.
    secret: Wiped,
    /// Encrypts and decrypts tickets.
    key: Wiped,
    /// Decrypts tickets: the key of the period before.
    before: Option<Wiped>,
}

impl Ratchet {
    fn new(period: u64, secret: Wiped, now: u64) -> Option<Ratchet> {
        let (key, secret) =
            (derive(&secret, b"key", NAME + KEY)?, derive(&secret, b"next", SECRET)?);
        let turn = KeyPeriod { number: now / period, secret, key, before: None };
        Some(Ratchet { period, turn: Mutex::new(turn) })
    }

    /// The keys of this time.
    fn turned(&self, now: u64) -> MutexGuard<'_, KeyPeriod> {
        let mut turn = lock(&self.turn);
        turn.advance(now / self.period);
        turn
    }
}

impl KeyPeriod {
    fn advance(&mut self, number: u64) {
        while self.number < number {
            let key = derive(&self.secret, b"key", NAME + KEY);
            let next = derive(&self.secret, b"next", SECRET);
            // Neither fails with lengths like these.
            let (Some(key), Some(next)) = (key, next) else { return };
            self.before = Some(std::mem::replace(&mut self.key, key));
            self.secret = next;
            self.number += 1;
        }
    }

    /// The key with this name.
    fn find(&self, name: &[u8]) -> Option<LessSafeKey> {
        let mut keys = [Some(&self.key), self.before.as_ref()].into_iter().flatten();
        keys.find(|key| key.starts_with(name)).and_then(|key| ready(key))
    }
}

/// Derives `length` bytes from a secret, for the purpose that `label` names.
fn derive(secret: &[u8], label: &[u8], length: usize) -> Option<Wiped> {
    struct Length(usize);
    impl hkdf::KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let base = hkdf::Salt::new(hkdf::HKDF_SHA256, b"weir tickets").extract(secret);
    let mut bytes = Zeroizing::new(vec![0; length]);
    base.expand(&[label], Length(length)).and_then(|okm| okm.fill(&mut bytes)).ok()?;
    Some(bytes)
}

/// The cipher with a key, which follows its name in `key`. AWS-LC wipes its copy.
fn ready(key: &[u8]) -> Option<LessSafeKey> {
    Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.get(NAME..)?).ok()?))
}

/// Encrypts sessions into tickets.
pub struct Tickets {
    keys: Keys,
    /// Tickets of other contexts cannot be decrypted.
    context: Vec<u8>,
    lifetime: u64,
}

enum Keys {
    Rotating(Arc<Ratchet>),
    Fixed(Vec<Wiped>),
}

/// A moment by both clocks. A ticket has the Unix time of its encryption, since keys from files
/// outlive a server.
#[derive(Clone, Copy)]
struct Now {
    unix: u64,
    steady: u64,
}

impl Now {
    fn read() -> Now {
        Now { unix: UnixTime::now().as_secs(), steady: steady() }
    }
}

impl Tickets {
    /// Tickets for one context, valid for `lifetime`.
    pub fn new(secret: &TicketSecret, context: &[u8], lifetime: Duration) -> Tickets {
        let keys = match secret {
            TicketSecret::Rotating(ratchet) => Keys::Rotating(ratchet.clone()),
            TicketSecret::Fixed(files) => {
                let keys = files.iter().filter_map(|file| derive(file, b"file", NAME + KEY));
                Keys::Fixed(keys.collect())
            }
        };
        Tickets { keys, context: context.to_vec(), lifetime: lifetime.as_secs().max(1) }
    }

    /// The key that encrypts. Its name is appended to `ticket`.
    fn sealing_key(&self, now: Now, ticket: &mut Vec<u8>) -> Option<LessSafeKey> {
        let mut take = |key: &[u8]| {
            ticket.extend_from_slice(key.get(..NAME)?);
            ready(key)
        };
        match &self.keys {
            Keys::Rotating(ratchet) => take(&ratchet.turned(now.steady).key),
            Keys::Fixed(keys) => take(keys.first()?),
        }
    }

    fn seal(&self, plain: &[u8], now: Now) -> Option<Vec<u8>> {
        let mut ticket = Vec::with_capacity(NAME + NONCE + TIME + plain.len() + TAG);
        let key = self.sealing_key(now, &mut ticket)?;
        let mut nonce = [0; NONCE];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
        ticket.extend_from_slice(&nonce);
        let mut body = Vec::with_capacity(TIME + plain.len() + TAG);
        body.extend_from_slice(&now.unix.to_be_bytes());
        body.extend_from_slice(plain);
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, Aad::from(&self.context), &mut body).ok()?;
        ticket.append(&mut body);
        Some(ticket)
    }

    fn open(&self, ticket: &[u8], now: Now) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME)?;
        let (nonce, body) = rest.split_at_checked(NONCE)?;
        let key = match &self.keys {
            Keys::Rotating(ratchet) => ratchet.turned(now.steady).find(name),
            Keys::Fixed(keys) => {
                keys.iter().find(|key| key.starts_with(name)).and_then(|key| ready(key))
            }
        }?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut body = body.to_vec();
        let plain = key.open_in_place(nonce, Aad::from(&self.context), &mut body).ok()?;
        let (sealed, session) = plain.split_first_chunk::<TIME>()?;
        let age = now.unix.saturating_sub(u64::from_be_bytes(*sealed));
        (age <= self.lifetime).then(|| session.to_vec())
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.lifetime).map_or(LONGEST_TOLD, |lifetime| lifetime.min(LONGEST_TOLD))
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let ticket = self.seal(plain, Now::read())?;
        notes::session(&ticket);
        Some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let session = self.open(ticket, Now::read())?;
        notes::session(ticket);
        Some(session)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tickets")
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;
    use std::os::unix::fs::FileExt;

    use super::*;

    const HOUR: u64 = 3600;
    const LIFETIME: Duration = Duration::from_secs(HOUR);

    fn at(seconds: u64) -> Now {
        Now { unix: 1_000_000 + seconds, steady: seconds }
    }

    fn bytes(of: u8) -> Wiped {
        Zeroizing::new(vec![of; SECRET])
    }

    /// The same keys as in another process that was forked with them.
    fn process(secret: Wiped) -> TicketSecret {
        TicketSecret::Rotating(Arc::new(Ratchet::new(HOUR, secret, 0).unwrap()))
    }

    fn tickets() -> Tickets {
        Tickets::new(&process(bytes(7)), b"", LIFETIME)
    }

    #[test]
    fn a_source_of_randomness_that_fails_gives_nothing() {
        assert!(random(SECRET, |_| false).is_none());
        assert!(random(4, |bytes| bytes.iter().all(|b| *b == 0)).is_some());
    }

    #[test]
    fn a_ticket_opens_for_its_context_until_its_time() {
        let of = |context: &[u8]| Tickets::new(&process(bytes(7)), context, LIFETIME);
        let ticket = of(b"a").seal(b"session", at(10_000)).unwrap();
        assert_eq!(of(b"a").open(&ticket, at(10_000 + HOUR)).unwrap(), b"session");
        assert_eq!(of(b"b").open(&ticket, at(10_000)), None);
        assert_eq!(of(b"a").open(&ticket, at(10_000 + HOUR + 1)), None);
    }

    #[test]
    fn a_client_is_told_a_week_at_most() {
        let told = |seconds| {
            Tickets::new(&process(bytes(7)), b"", Duration::from_secs(seconds)).lifetime()
        };
        assert_eq!((told(300), told(604_800)), (300, 604_800));
        assert_eq!((told(604_801), told(u64::MAX)), (604_800, 604_800));
    }

    #[test]
    fn the_first_file_seals_and_all_open() {
        let of = |files: &[&[u8]]| {
            let files = files.iter().map(|f| f.to_vec()).collect();
            Tickets::new(&TicketSecret::Fixed(files), b"", LIFETIME)
        };
        let ticket = of(&[b"old"]).seal(b"session", at(0)).unwrap();
        assert!(of(&[b"new", b"old"]).open(&ticket, at(9)).is_some());
        assert!(of(&[b"new"]).open(&ticket, at(9)).is_none());
    }

    #[test]
    fn damaged_tickets_do_not_open() {
        let tickets = tickets();
        let ticket = tickets.seal(b"session", at(0)).unwrap();
        for place in 0..ticket.len() {
            let mut damaged = ticket.clone();
            damaged[place] ^= 1;
            assert_eq!(tickets.open(&damaged, at(0)), None, "byte {place}");
            assert_eq!(tickets.open(&ticket[..place], at(0)), None, "length {place}");
        }
    }

    /// Neither the keys that a process then has nor any that it can derive from them open the ticket.
    #[test]
    fn keys_of_two_later_periods_open_no_earlier_ticket() {
        let secret = process(bytes(7));
        let tickets = Tickets::new(&secret, b"", LIFETIME);
        let first = tickets.seal(b"session", at(HOUR - 1)).unwrap();
        assert!(tickets.open(&first, at(HOUR)).is_some());
        tickets.seal(b"session", at(2 * HOUR)).unwrap();
        // The clock of the attacker does not matter.
        for later in [0, HOUR - 1, 2 * HOUR, 3 * HOUR, 1000 * HOUR] {
            assert_eq!(tickets.open(&first, Now { unix: 1_000_000 + HOUR, steady: later }), None);
        }
        let Keys::Rotating(ratchet) = &tickets.keys else { unreachable!() };
        let mut turn = ratchet.turned(0);
        for _ in 0..100 {
            let number = turn.number + 1;
            turn.advance(number);
            assert!(turn.find(&first[..NAME]).is_none());
        }
    }

    /// How often bytes occur in the memory of this process. `hidden` is their complement, so that the
    /// argument itself is not counted.
    fn finds(hidden: &[u8]) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let written = maps.lines().filter(|line| line.contains(" rw"));
        let ranges = written.filter_map(|line| line.split(' ').next()?.split_once('-'));
        let mut found = 0;
        let mut part = vec![0; 1 << 20];
        for (from, to) in ranges {
            let hex = |text| u64::from_str_radix(text, 16).unwrap();
            let (mut place, end) = (hex(from), hex(to));
            while place < end {
                let most = part.len().min((end - place) as usize);
                let Ok(n @ 1..) = memory.read_at(&mut part[..most], place) else { break };
                let mut rest = &part[..n];
                // In a build without optimization, `skip_until` is faster than a loop over bytes.
                while rest.skip_until(!hidden[0]).is_ok_and(|n| n > 0) {
                    let window = rest.iter().zip(&hidden[1..]);
                    found += usize::from(
                        rest.len() >= hidden.len() && window.clone().all(|(a, b)| *a == !*b),
                    );
                }
                place += n as u64;
            }
        }
        found
    }

    #[test]
    fn old_keys_and_secrets_are_wiped_from_memory() {
        let fill = |bytes: &mut [u8]| aws_lc_rs::rand::fill(bytes).is_ok();
        let seed = random(SECRET, fill).unwrap();
        let hide = |bytes: &[u8]| bytes.iter().map(|byte| !byte).collect::<Vec<u8>>();
        let hidden_seed = hide(&seed);
        let tickets = Tickets::new(&process(seed), b"", LIFETIME);
        tickets.seal(b"session", at(0)).unwrap();
        let Keys::Rotating(ratchet) = &tickets.keys else { unreachable!() };
        let (hidden_key, hidden_secret) = {
            let turn = ratchet.turned(0);
            (hide(&turn.key[NAME..]), hide(&turn.secret))
        };
        assert!(finds(&hidden_key) > 0, "it finds what is there");
        for now in [HOUR, 2 * HOUR] {
            tickets.seal(b"session", at(now)).unwrap();
        }
        for (what, hidden) in
            [("the seed", hidden_seed), ("a key", hidden_key), ("a secret", hidden_secret)]
        {
            assert_eq!(finds(&hidden), 0, "{what}");
        }
    }

    proptest::proptest! {
        /// Processes that have clients at other times, and turn their keys at other times, open each other's tickets.
        #[test]
        fn processes_agree_at_any_moment(
            steps in proptest::collection::vec((0..3usize, 0..3usize, 0..HOUR, 0..=HOUR), 1..40),
        ) {
            let all: Vec<Tickets> = (0..3).map(|_| tickets()).collect();
            let mut now = 0;
            for (one, other, pause, age) in steps {
                now += pause;
                let ticket = all[one].seal(b"session", at(now)).unwrap();
                now += age;
                proptest::prop_assert!(all[other].open(&ticket, at(now)).is_some());
            }
        }
    }

    #[test]
    fn a_reload_finds_the_keys_of_its_process() {
        let of = |seconds| TicketSecret::rotating(Duration::from_secs(seconds)).unwrap();
        let (old, other) = (of(7_777), of(7_778));
        let ticket = Tickets::new(&old, b"", LIFETIME).seal(b"session", Now::read()).unwrap();
        let opens = |secret: &TicketSecret| {
            Tickets::new(secret, b"", LIFETIME).open(&ticket, Now::read()).is_some()
        };
        assert!(opens(&of(7_777)));
        assert!(!opens(&other));
        assert!(turn_ticket_keys().is_some_and(|rest| rest <= Duration::from_secs(7_777)));
    }
}
