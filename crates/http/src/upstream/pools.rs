//! A loop's idle connections to upstream servers.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use weir_upstream::{Pool, SharedPool};

use super::groups::{GROUPS, GroupId};
use super::http2::Links;
use crate::event_loop::{LoopKey, LoopPart, LoopStart, LoopState};

/// A pool for each group that keeps connections.
pub struct Pools(Vec<Option<GroupPools>>);

/// The connections of a group.
#[derive(Clone)]
struct GroupPools {
    /// Idle connections, which serve one request at a time.
    pool: Rc<Pool>,
    /// Multiplexed connections.
    links: Rc<Links>,
}

/// The loop's pools. All loops create theirs before the first request, so that they see one
/// another's offers.
pub static POOLS: LoopKey<Pools> = LoopKey::new(Pools::new);

impl LoopPart for Pools {
    /// Closes the connections of groups that the next site does not have.
    fn replaced(&self, _: &LoopState, next: &LoopState) {
        // Compared by address, through a set, since there may be thousands of each.
        let kept: HashSet<*const Pool> =
            POOLS.of(next).0.iter().flatten().map(|next| Rc::as_ptr(&next.pool)).collect();
        let stays = |own: &GroupPools| kept.contains(&Rc::as_ptr(&own.pool));
        for gone in self.0.iter().flatten().filter(|own| !stays(own)) {
            gone.pool.clear();
            gone.links.clear();
        }
    }

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
        let before = start.before.map(Pools::by_group).unwrap_or_default();
        let each = GROUPS.of(&start.site.main_confs).places().map(|upstream| {
            let upstream = upstream?;
            if upstream.keepalive.is_none() && upstream.extras.chooser.is_none() {
                return None;
            }
            let known = before.get(&Arc::as_ptr(&upstream.shared)).map(|pools| (*pools).clone());
            Some(known.unwrap_or_else(|| GroupPools {
                pool: Rc::new(Pool::new(upstream.shared.clone(), number)),
                links: Rc::default(),
            }))
        });
        Pools(each.collect())
    }

    /// The pools of the last site's groups.
    fn by_group(before: &LoopState) -> HashMap<*const SharedPool, &GroupPools> {
        let groups = GROUPS.of(&before.site.main_confs).places().zip(&POOLS.of(before).0);
        let kept = groups.filter_map(|(group, pools)| Some((group?, pools.as_ref()?)));
        kept.map(|(group, pools)| (Arc::as_ptr(&group.shared), pools)).collect()
    }

    /// The pool of a group. None if it keeps no connections.
    pub fn of(&self, id: GroupId) -> Option<Rc<Pool>> {
        self.0.get(id.index())?.as_ref().map(|kept| kept.pool.clone())
    }

    /// The multiplexed connections of a group.
    pub fn links(&self, id: GroupId) -> Option<Rc<Links>> {
        self.0.get(id.index())?.as_ref().map(|kept| kept.links.clone())
    }
}
