//! Keep-alive pools of scripts' connections.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use weir_engine::{Handle, Sleep};
use weir_tls::Wire;

use super::SocketError;
use crate::modules::lua::semaphore::Semaphore;

/// An idle connection. It is reused only if nothing arrived on it meanwhile.
pub struct Idle {
    /// The connection.
    pub wire: Wire,
    /// How many times it was reused.
    pub reused: u64,
    /// The peer, for log lines.
    pub peer: Rc<str>,
    /// When it closes; `None` for never.
    pub until: Option<Instant>,
    /// The size of its pool.
    pub size: PoolSize,
}

/// The most idle connections of a pool. The first connection sets it, and it lasts as long as the
/// pool has connections.
pub type PoolSize = Rc<usize>;

impl Idle {
    fn is_good(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until > now) && self.wire.is_silent()
    }

    /// Whether nothing has arrived, not even the end. The task of `cx` is woken when something does.
    fn rests(&self, cx: &mut Context<'_>) -> bool {
        let mut waits = || Pin::new(&mut self.wire.socket().readable()).poll(cx).is_pending();
        // What has arrived may belong to TLS alone, such as a session ticket.
        waits() || self.wire.is_silent() && waits()
    }
}

/// The pool options of `connect`.
pub struct PoolOptions {
    /// Its name.
    pub name: Vec<u8>,
    /// `pool_size`: the most idle connections. With a backlog, the most connections altogether.
    pub size: Option<usize>,
    /// `backlog`: the most coroutines that wait for a connection.
    pub backlog: Option<u64>,
}

/// The limit of a pool with a backlog.
struct PoolLimit {
    free: Rc<Semaphore>,
    backlog: u64,
}

/// The right to use one connection of a pool with a backlog. When it is dropped, the next waiting
/// coroutine gets it.
pub struct Slot(Rc<PoolLimit>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.free.post(1);
    }
}

impl PoolLimit {
    /// Waits for a slot.
    async fn wait_for_slot(
        self: Rc<Self>,
        handle: &Handle,
        time: Duration,
    ) -> Result<Slot, SocketError> {
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

/// A loop's idle connections, by pool name. The order of names makes the order in which expired
/// ones close deterministic, for the simulated world.
#[derive(Default)]
pub struct Pools {
    pools: RefCell<BTreeMap<Vec<u8>, Vec<Idle>>>,
    /// The sizes of pools with connections.
    sizes: RefCell<BTreeMap<Vec<u8>, Weak<usize>>>,
    /// The limits of pools with a backlog, as long as a connection of theirs is in use.
    limits: RefCell<BTreeMap<Vec<u8>, Weak<PoolLimit>>>,
    /// Whether an [`IdleWatch`] runs.
    is_watched: Cell<bool>,
    /// Wakes it, once it has looked at the connections.
    waker: RefCell<Option<Waker>>,
    /// When it looks at them again by itself.
    next: Cell<Option<Instant>>,
}

impl Pools {
    /// Takes the most recently used connection.
    pub fn take(&self, name: &[u8], now: Instant) -> Option<(Wire, u64, Rc<str>)> {
        let mut pools = self.pools.borrow_mut();
        let pool = pools.get_mut(name)?;
        let last = std::iter::from_fn(|| pool.pop()).find(|idle| idle.is_good(now));
        // Names may come from clients, so unused ones are removed.
        if pool.is_empty() {
            pools.remove(name);
        }
        last.map(|idle| (idle.wire, idle.reused, idle.peer))
    }

    /// Waits for a slot of the pool. `None` if the pool has no backlog.
    pub async fn wait_for_slot(
        &self,
        pool: &PoolOptions,
        usual: usize,
        handle: &Handle,
        time: Duration,
    ) -> Result<Option<Slot>, SocketError> {
        match self.limit(pool, usual) {
            Some(limit) => limit.wait_for_slot(handle, time).await.map(Some),
            None => Ok(None),
        }
    }

    /// The limit of a pool, which its first connection has set.
    fn limit(&self, pool: &PoolOptions, usual: usize) -> Option<Rc<PoolLimit>> {
        let mut limits = self.limits.borrow_mut();
        if let Some(known) = limits.get(&pool.name).and_then(Weak::upgrade) {
            return Some(known);
        }
        let backlog = pool.backlog?;
        let free = Rc::new(Semaphore::new(pool.size.unwrap_or(usual) as u64));
        let limit = Rc::new(PoolLimit { free, backlog });
        // Names may come from clients, so unused ones are removed.
        limits.retain(|_, limit| limit.strong_count() > 0);
        limits.insert(pool.name.clone(), Rc::downgrade(&limit));
        Some(limit)
    }

    /// The size of a pool: the known one, or else `size`.
    pub fn size(&self, name: &[u8], size: usize) -> PoolSize {
        self.known_size(name).unwrap_or_else(|| {
            let mut sizes = self.sizes.borrow_mut();
            let size = Rc::new(size.max(1));
            // Names may come from clients, so unused ones are removed.
            sizes.retain(|_, size| size.strong_count() > 0);
            sizes.insert(name.to_vec(), Rc::downgrade(&size));
            size
        })
    }

    /// The known size of a pool that has connections.
    pub fn known_size(&self, name: &[u8]) -> Option<PoolSize> {
        self.sizes.borrow().get(name).and_then(Weak::upgrade)
    }

    /// Puts a connection into a pool, and watches it. If the pool is full, the oldest one closes.
    pub fn put(self: &Rc<Self>, handle: &Handle, name: Vec<u8>, idle: Idle) {
        let now = handle.now();
        self.watch(handle, &idle);
        let mut pools = self.pools.borrow_mut();
        let pool = pools.entry(name).or_default();
        pool.retain(|idle| idle.is_good(now));
        if pool.len() >= *idle.size {
            pool.remove(0);
        }
        pool.push(idle);
    }

    /// One task watches all connections: one for each would add up.
    fn watch(self: &Rc<Self>, handle: &Handle, idle: &Idle) {
        if !self.is_watched.replace(true) {
            let (pools, handle) = (self.clone(), handle.clone());
            return handle.clone().spawn(IdleWatch { pools, handle, sleep: None });
        }
        // Without a waker, the task will look at all.
        if let Some(waker) = &*self.waker.borrow() {
            let rests = idle.rests(&mut Context::from_waker(waker));
            let is_first = self.next.get().is_none_or(|next| idle.until.is_some_and(|u| u < next));
            if !rests || is_first && idle.until.is_some() {
                waker.wake_by_ref();
            }
        }
    }

    /// Closes the connections that have expired or on which something has arrived. False if none
    /// remains.
    fn close_ended(&self, now: Instant, cx: &mut Context<'_>) -> bool {
        let mut pools = self.pools.borrow_mut();
        pools.retain(|_, pool| {
            pool.retain(|idle| idle.until.is_none_or(|until| until > now) && idle.rests(cx));
            !pool.is_empty()
        });
        self.next.set(pools.values().flatten().filter_map(|idle| idle.until).min());
        !pools.is_empty()
    }

    /// Closes all.
    pub fn clear(&self) {
        self.pools.borrow_mut().clear();
        // The watch has nothing to wait for, and ends.
        self.waker.borrow().iter().for_each(Waker::wake_by_ref);
    }
}

/// Closes idle connections that have expired or that their peers have closed.
struct IdleWatch {
    pools: Rc<Pools>,
    handle: Handle,
    sleep: Option<Sleep>,
}

impl Future for IdleWatch {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if !this.pools.close_ended(this.handle.now(), cx) {
            this.pools.is_watched.set(false);
            this.pools.waker.take();
            return Poll::Ready(());
        }
        this.pools.waker.replace(Some(cx.waker().clone()));
        this.sleep = this.pools.next.get().map(|next| this.handle.sleep_until(next));
        if this.sleep.as_mut().is_some_and(|sleep| Pin::new(sleep).poll(cx).is_ready()) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use weir_engine::{Loop, Options};

    use super::*;

    #[test]
    fn the_name_of_a_pool_without_connections_is_forgotten() {
        let (own, now) = (Loop::new(&Options::default()).unwrap(), Instant::now());
        let (client, _server) = std::os::unix::net::UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        let wire = Wire::from(own.handle().stream(client.into()).unwrap());
        let pools = Rc::new(Pools::default());
        let size = pools.size(b"a", 1);
        let idle = Idle { wire, reused: 0, peer: "".into(), until: None, size };
        pools.put(&own.handle(), b"a".to_vec(), idle);
        assert!(pools.take(b"a", now).is_some());
        assert!(pools.pools.borrow().is_empty());
    }
}
