//! Idle connections that the loops of a process can take from one another.
//!
//! Each loop has a part with a lock of its own. A loop that finds a connection in its own part
//! needs no other lock. Otherwise it takes a socket out of another loop's part, and wakes that loop
//! so that it drops its entry.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::task::Waker;
use std::time::Instant;

use weir_tls::Secured;

use super::Tag;
use crate::Peer;

/// The parts of all loops of a process, for one group.
#[derive(Debug, Default)]
pub struct SharedPool {
    parts: RwLock<Vec<Arc<PublishedIdle>>>,
    count: AtomicUsize,
}

/// The idle connections that one loop offers.
#[derive(Debug, Default)]
pub struct PublishedIdle {
    /// The loop's number. Parts are sorted by it, so that their order does not depend on the start
    /// of threads.
    number: u32,
    state: Mutex<SharedState>,
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct SharedState {
    /// In order of their last use, the newest last.
    offers: Vec<Offer>,
    /// Wakes the task that watches the loop's connections.
    waker: Option<Waker>,
}

/// An idle connection that other loops may take.
#[derive(Debug)]
pub struct Offer {
    /// The id that its loop gave it.
    pub id: u64,
    /// The socket.
    pub fd: Arc<OwnedFd>,
    /// The TLS state, if any. It moves to the loop that takes the offer.
    pub secured: Option<Secured>,
    /// Requests with the same tag may use the connection.
    pub tag: Tag,
    /// The peer at the other end.
    pub peer: Arc<Peer>,
    /// Requests so far.
    pub requests: u64,
    /// When the connection was opened.
    pub started: Instant,
    /// When its last request ended.
    pub since: Instant,
}

impl SharedPool {
    /// Adds a part for loop `number`.
    pub fn open(&self, number: u32) -> Arc<PublishedIdle> {
        let part = Arc::new(PublishedIdle { number, ..PublishedIdle::default() });
        let mut parts = self.parts.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let at = parts.partition_point(|other| other.number <= number);
        parts.insert(at, part.clone());
        self.count.store(parts.len(), Relaxed);
        part
    }

    /// Removes the part of a loop that ends.
    pub fn close(&self, part: &Arc<PublishedIdle>) {
        let mut parts = self.parts.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        parts.retain(|other| !Arc::ptr_eq(other, part));
        self.count.store(parts.len(), Relaxed);
    }

    /// Whether there is another loop.
    pub fn is_shared(&self) -> bool {
        self.count.load(Relaxed) > 1
    }

    /// Whether all loops together keep fewer connections than `each` times their number. A loop may
    /// keep more than its share if others keep less.
    pub fn has_room(&self, each: usize) -> bool {
        let parts = self.parts.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let kept: usize = parts.iter().map(|part| part.count.load(Relaxed)).sum();
        kept < each.saturating_mul(parts.len())
    }

    /// Takes the newest offer that fits out of another loop's part.
    pub fn take(&self, mine: &Arc<PublishedIdle>, fits: impl Fn(&Offer) -> bool) -> Option<Offer> {
        let parts = self.parts.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let own = parts.iter().position(|part| Arc::ptr_eq(part, mine)).unwrap_or(0);
        // Each loop begins with the next one, so that not all loops take from the first.
        let (before, after) = parts.split_at(own);
        let others = after.iter().chain(before).filter(|part| !Arc::ptr_eq(part, mine));
        others.filter(|part| part.count.load(Relaxed) > 0).find_map(|d| d.take(&fits))
    }
}

impl PublishedIdle {
    /// Offers a connection.
    pub fn offer(&self, offer: Offer) {
        let mut state = self.lock();
        state.offers.push(offer);
        self.count.store(state.offers.len(), Relaxed);
    }

    /// Withdraws an offer. None if another loop has taken it.
    pub fn withdraw(&self, id: u64) -> Option<Offer> {
        let mut state = self.lock();
        let at = state.offers.iter().rposition(|offer| offer.id == id)?;
        let offer = state.offers.remove(at);
        self.count.store(state.offers.len(), Relaxed);
        Some(offer)
    }

    /// Whether the offer still stands.
    pub fn has(&self, id: u64) -> bool {
        self.lock().offers.iter().any(|offer| offer.id == id)
    }

    /// Withdraws all offers.
    pub fn clear(&self) {
        let offers = std::mem::take(&mut self.lock().offers);
        self.count.store(0, Relaxed);
        drop(offers);
    }

    /// Sets the waker that is called when an offer was taken or a connection is to be watched.
    pub fn set_waker(&self, waker: Option<Waker>) {
        self.lock().waker = waker;
    }

    /// Wakes the task that watches the loop's connections.
    pub fn wake(&self) {
        let waker = self.lock().waker.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn take(&self, fits: &impl Fn(&Offer) -> bool) -> Option<Offer> {
        let mut state = self.lock();
        let at = state.offers.iter().rposition(fits)?;
        let offer = state.offers.remove(at);
        self.count.store(state.offers.len(), Relaxed);
        let waker = state.waker.clone();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(offer)
    }

    fn lock(&self) -> MutexGuard<'_, SharedState> {
        // No change can be half done, so the state is valid after a panic.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PeerAddress, PeerOptions};

    fn peer(port: u16) -> Arc<Peer> {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        Arc::new(Peer::new(PeerAddress::Inet(address), "server", PeerOptions::default()))
    }

    fn offer(id: u64, peer: &Arc<Peer>) -> Offer {
        let (fd, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let (fd, peer) = (Arc::new(OwnedFd::from(fd)), peer.clone());
        Offer {
            id,
            fd,
            secured: None,
            tag: Tag::default(),
            peer,
            requests: 1,
            started: Instant::now(),
            since: Instant::now(),
        }
    }

    #[test]
    fn what_one_takes_the_other_does_not_have() {
        let shared = SharedPool::default();
        let (a, b) = (shared.open(0), shared.open(1));
        let (here, there) = (peer(1), peer(2));
        a.offer(offer(1, &here));
        a.offer(offer(2, &there));
        a.offer(offer(3, &here));
        assert!(shared.take(&a, |_| true).is_none(), "its own are not another's");
        assert!(shared.has_room(2) && !shared.has_room(1), "three of four, or of two");
        assert_eq!(shared.take(&b, |o| *o.peer == *here).map(|o| o.id), Some(3));
        assert!(!a.has(3) && a.withdraw(3).is_none() && a.withdraw(1).is_some());
        assert!(shared.take(&b, |o| *o.peer == *here).is_none());
        shared.close(&a);
        assert!(shared.take(&b, |_| true).is_none() && !shared.is_shared());
    }

    #[test]
    fn the_next_loop_is_asked_first_in_any_order_of_starts() {
        let shared = SharedPool::default();
        let peer = peer(1);
        let [c, a, b] = [2, 0, 1].map(|number| shared.open(number));
        c.offer(offer(2, &peer));
        b.offer(offer(1, &peer));
        assert_eq!(shared.take(&a, |_| true).map(|o| o.id), Some(1));
    }

    #[test]
    fn each_offer_has_one_taker() {
        let shared = SharedPool::default();
        let peer = peer(1);
        let owner = shared.open(0);
        (0..300).for_each(|id| owner.offer(offer(id, &peer)));
        let thieves = [shared.open(1), shared.open(2)];
        let taken: Vec<u64> = std::thread::scope(|s| {
            let each = |thief: &Arc<PublishedIdle>| -> Vec<u64> {
                std::iter::from_fn(|| shared.take(thief, |_| true)).map(|o| o.id).collect()
            };
            let runs = thieves.each_ref().map(|thief| s.spawn(move || each(thief)));
            let own: Vec<u64> = (0..300).filter(|id| owner.withdraw(*id).is_some()).collect();
            runs.into_iter().flat_map(|run| run.join().unwrap()).chain(own).collect()
        });
        let mut sorted = taken.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..300).collect::<Vec<_>>());
    }
}
