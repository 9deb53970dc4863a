//! A loop's idle connections to upstream servers.

use std::rc::Rc;

use weir_upstream::Pool;

use super::groups::{GroupId, Upstreams};
use super::http2::Links;

/// A pool for each group that keeps connections.
#[derive(Default)]
pub struct Pools(Vec<Option<GroupPools>>);

/// The idle connections of a group.
struct GroupPools {
    /// Connections that serve one request after another.
    pool: Rc<Pool>,
    /// Connections that serve many at once.
    links: Rc<Links>,
}

impl Pools {
    /// The pools of loop `number`. All loops make theirs before the first request, so that what one keeps the others see.
    pub fn new(upstreams: &Upstreams, number: u32) -> Pools {
        let each = upstreams.all().iter().map(|upstream| {
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

    /// Closes all connections: the loop is about to end.
    pub fn clear(&self) {
        for kept in self.0.iter().flatten() {
            kept.pool.clear();
            kept.links.clear();
        }
    }
}
