//! Connections that scripts have left for others.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Instant;

use weir_tls::Wire;

/// A connection that nobody uses. It serves another request only if nothing came on it meanwhile.
pub struct Idle {
    /// The connection.
    pub wire: Wire,
    /// How often it was used.
    pub reused: u64,
    /// When it closes; never where there is none.
    pub until: Option<Instant>,
}

impl Idle {
    fn is_good(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until > now) && self.wire.is_silent()
    }
}

/// A loop's idle connections, by the names of their pools.
#[derive(Default)]
pub struct Pools(RefCell<HashMap<Vec<u8>, Vec<Idle>>>);

impl Pools {
    /// The connection that was left last.
    pub fn take(&self, name: &[u8], now: Instant) -> Option<(Wire, u64)> {
        let mut pools = self.0.borrow_mut();
        let pool = pools.get_mut(name)?;
        while let Some(idle) = pool.pop() {
            if idle.is_good(now) {
                return Some((idle.wire, idle.reused));
            }
        }
        pools.remove(name);
        None
    }

    /// Leaves one; the one that has waited longest makes room.
    pub fn put(&self, name: Vec<u8>, idle: Idle, most: usize, now: Instant) {
        let mut pools = self.0.borrow_mut();
        let pool = pools.entry(name).or_default();
        pool.retain(|idle| idle.is_good(now));
        if pool.len() >= most.max(1) {
            pool.remove(0);
        }
        pool.push(idle);
    }

    /// Closes those whose time is over.
    pub fn purge(&self, now: Instant) {
        self.0.borrow_mut().retain(|_, pool| {
            pool.retain(|idle| idle.is_good(now));
            !pool.is_empty()
        });
    }

    /// Closes all.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}
