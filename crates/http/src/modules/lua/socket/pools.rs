//! Connections that scripts have left for others.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use weir_engine::Handle;
use weir_tls::Wire;

use super::SocketError;
use crate::modules::lua::semaphore::Semaphore;

/// An idle connection. It serves another request only if nothing came on it meanwhile.
pub struct Idle {
    /// The connection.
    pub wire: Wire,
    /// How often it was used.
    pub reused: u64,
    /// Its server, as lines of the log name it.
    pub peer: Rc<str>,
    /// When it closes; never where there is none.
    pub until: Option<Instant>,
    /// How many connections rest in its pool.
    pub size: PoolSize,
}

/// How many connections rest in a pool, as the first that names it says: as long as one of its connections is there.
pub type PoolSize = Rc<usize>;

impl Idle {
    fn is_good(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until > now) && self.wire.is_silent()
    }
}

/// What `connect` says of a pool.
pub struct PoolOptions {
    /// Its name.
    pub name: Vec<u8>,
    /// `pool_size`: how many connections rest in it, and with a backlog, how many there are at all.
    pub size: Option<usize>,
    /// `backlog`: how many more may wait until one of them is free.
    pub backlog: Option<u64>,
}

/// A pool with a backlog: so many of its connections may be in use at once.
struct PoolLimit {
    free: Rc<Semaphore>,
    backlog: u64,
}

/// The right to use one connection of a pool with a backlog. The next one that waits gets it when this ends.
pub struct Slot(Rc<PoolLimit>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.free.post(1);
    }
}

impl PoolLimit {
    /// Waits for a slot.
    async fn slot(self: Rc<Self>, handle: &Handle, time: Duration) -> Result<Slot, SocketError> {
        if self.free.try_take() {
            return Ok(Slot(self));
        }
        if self.free.count().unsigned_abs() >= self.backlog {
            return Err(SocketError::PoolFull);
        }
        match self.free.clone().take(handle.clone(), time).await {
            true => Ok(Slot(self)),
            false => Err(SocketError::Timeout),
        }
    }
}

/// A loop's idle connections, by the names of their pools. Expired ones close in the order of names, so that a simulated
/// course is the same each time.
#[derive(Default)]
pub struct Pools {
    pools: RefCell<BTreeMap<Vec<u8>, Vec<Idle>>>,
    /// The sizes of the pools with connections.
    sizes: RefCell<BTreeMap<Vec<u8>, Weak<usize>>>,
    /// The pools with a backlog, as long as a connection of theirs is in use.
    limits: RefCell<BTreeMap<Vec<u8>, Weak<PoolLimit>>>,
    /// When expired connections are closed next.
    next: Cell<Option<Instant>>,
}

impl Pools {
    /// The connection that was left last.
    pub fn take(&self, name: &[u8], now: Instant) -> Option<(Wire, u64, Rc<str>)> {
        let mut pools = self.pools.borrow_mut();
        let pool = pools.get_mut(name)?;
        while let Some(idle) = pool.pop() {
            if idle.is_good(now) {
                return Some((idle.wire, idle.reused, idle.peer));
            }
        }
        pools.remove(name);
        None
    }

    /// Waits until a connection of the pool may be used; `None` where any number may.
    pub async fn slot(
        &self,
        pool: &PoolOptions,
        usual: usize,
        handle: &Handle,
        time: Duration,
    ) -> Result<Option<Slot>, SocketError> {
        match self.limit(pool, usual) {
            Some(limit) => limit.slot(handle, time).await.map(Some),
            None => Ok(None),
        }
    }

    /// The limit that the first of its connections has set.
    fn limit(&self, pool: &PoolOptions, usual: usize) -> Option<Rc<PoolLimit>> {
        let mut limits = self.limits.borrow_mut();
        if let Some(known) = limits.get(&pool.name).and_then(Weak::upgrade) {
            return Some(known);
        }
        let backlog = pool.backlog?;
        let free = Rc::new(Semaphore::new(pool.size.unwrap_or(usual) as u64));
        let limit = Rc::new(PoolLimit { free, backlog });
        // Names may come from clients.
        limits.retain(|_, limit| limit.strong_count() > 0);
        limits.insert(pool.name.clone(), Rc::downgrade(&limit));
        Some(limit)
    }

    /// The size of a pool: this one, unless it is known.
    pub fn size(&self, name: &[u8], size: usize) -> PoolSize {
        self.known_size(name).unwrap_or_else(|| {
            let mut sizes = self.sizes.borrow_mut();
            let size = Rc::new(size.max(1));
            // Names may come from clients.
            sizes.retain(|_, size| size.strong_count() > 0);
            sizes.insert(name.to_vec(), Rc::downgrade(&size));
            size
        })
    }

    /// The size of a pool with connections.
    pub fn known_size(&self, name: &[u8]) -> Option<PoolSize> {
        self.sizes.borrow().get(name).and_then(Weak::upgrade)
    }

    /// Leaves one; the one that has waited longest makes room.
    pub fn put(&self, name: Vec<u8>, idle: Idle, now: Instant) {
        let mut pools = self.pools.borrow_mut();
        let pool = pools.entry(name).or_default();
        pool.retain(|idle| idle.is_good(now));
        if pool.len() >= *idle.size {
            pool.remove(0);
        }
        pool.push(idle);
    }

    /// Whether the caller has to arrange a look at this time, since no earlier one is arranged. One task serves all
    /// connections: a task for each would pile up.
    pub fn wants_look(&self, until: Instant) -> bool {
        let wants = self.next.get().is_none_or(|next| until < next);
        if wants {
            self.next.set(Some(until));
        }
        wants
    }

    /// Closes expired connections, and returns when the next look is due. A look that an earlier one has replaced does
    /// nothing and ends its task.
    pub fn look(&self, arranged: Instant, now: Instant) -> Option<Instant> {
        if self.next.get() != Some(arranged) {
            return None;
        }
        let mut pools = self.pools.borrow_mut();
        pools.retain(|_, pool| {
            pool.retain(|idle| idle.is_good(now));
            !pool.is_empty()
        });
        let next = pools.values().flatten().filter_map(|idle| idle.until).min();
        self.next.set(next);
        next
    }

    /// Closes all.
    pub fn clear(&self) {
        self.pools.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_task_looks_after_all_connections() {
        let (pools, start) = (Pools::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(pools.wants_look(at(60)));
        assert!((60..1_000).all(|seconds| !pools.wants_look(at(seconds))));
        // An earlier look replaces the one that was arranged.
        assert!(pools.wants_look(at(10)));
        assert_eq!(pools.look(at(60), at(60)), None);
        assert_eq!(pools.next.get(), Some(at(10)));
        // Nothing is left to look after.
        assert_eq!(pools.look(at(10), at(10)), None);
        assert!(pools.wants_look(at(70)));
    }
}
