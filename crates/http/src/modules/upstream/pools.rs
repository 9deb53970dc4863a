//! A loop's idle connections to upstream servers.

use std::rc::Rc;

use weir_upstream::Pool;

use super::groups::{GroupId, Upstreams};

/// A pool for each group that keeps connections.
#[derive(Default)]
pub struct Pools(Vec<Option<Rc<Pool>>>);

impl Pools {
    /// A loop's pools. All loops make theirs before the first request, so that what one keeps the others see.
    pub fn new(upstreams: &Upstreams) -> Pools {
        let each = upstreams.all().iter().map(|upstream| {
            upstream.keepalive.as_ref().map(|_| Rc::new(Pool::new(upstream.shelf.clone())))
        });
        Pools(each.collect())
    }

    /// The pool of a group; none where it keeps nothing.
    pub fn of(&self, id: GroupId) -> Option<Rc<Pool>> {
        self.0.get(id.index()).cloned().flatten()
    }

    /// Closes all connections: the loop is about to end.
    pub fn clear(&self) {
        for pool in self.0.iter().flatten() {
            pool.clear();
        }
    }
}
