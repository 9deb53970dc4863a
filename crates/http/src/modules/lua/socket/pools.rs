//! Connections that scripts have left for others.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Instant;

use weir_tls::Wire;

/// An idle connection. It serves another request only if nothing came on it meanwhile.
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

/// A loop's idle connections, by the names of their pools. Expired ones close in the order of names, so that a simulated
/// course is the same each time.
#[derive(Default)]
pub struct Pools {
    pools: RefCell<BTreeMap<Vec<u8>, Vec<Idle>>>,
    /// When expired connections are closed next.
    next: Cell<Option<Instant>>,
}

impl Pools {
    /// The connection that was left last.
    pub fn take(&self, name: &[u8], now: Instant) -> Option<(Wire, u64)> {
        let mut pools = self.pools.borrow_mut();
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
        let mut pools = self.pools.borrow_mut();
        let pool = pools.entry(name).or_default();
        pool.retain(|idle| idle.is_good(now));
        if pool.len() >= most.max(1) {
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
