//! A loop's idle connections to upstream servers.

use std::rc::Rc;

use weir_upstream::Pool;

use super::groups::{GROUPS, GroupId};
use super::http2::Links;
use crate::event_loop::{LoopKey, LoopPart, LoopStart, LoopState};

/// A pool for each group that keeps connections.
pub struct Pools(Vec<Option<GroupPools>>);

/// The idle connections of a group.
struct GroupPools {
    /// Connections that serve one request after another.
    pool: Rc<Pool>,
    /// Connections that serve many at once.
    links: Rc<Links>,
}

/// The loop's pools. All loops make theirs before the first request, so that what one keeps the others see.
pub static POOLS: LoopKey<Pools> = LoopKey::new(Pools::new);

impl LoopPart for Pools {
    /// Closes all connections: the loop is about to end.
    fn retire(&self, _: &LoopState) {
        for kept in self.0.iter().flatten() {
            kept.pool.clear();
            kept.links.clear();
        }
    }
}

impl Pools {
    fn new(start: &LoopStart<'_>) -> Pools {
        let number = start.identity.index;
        let each = GROUPS.of(&start.site.main_confs).all().iter().map(|upstream| {
            upstream.keepalive.as_ref().map(|_| GroupPools {
                pool: Rc::new(Pool::new(upstream.shared.clone(), number)),
                links: Rc::default(),
            })
        });
        Pools(each.collect())
    }

    /// The pool of a group; none where it keeps nothing.
    pub fn of(&self, id: GroupId) -> Option<Rc<Pool>> {
        self.0.get(id.index())?.as_ref().map(|kept| kept.pool.clone())
    }

    /// Its connections that serve many requests at once.
    pub fn links(&self, id: GroupId) -> Option<Rc<Links>> {
        self.0.get(id.index())?.as_ref().map(|kept| kept.links.clone())
    }
}
