//! A loop's idle connections to upstream servers.

use std::cell::RefCell;
use std::rc::Rc;

use weir_upstream::Pool;

use super::groups::GroupId;

/// A pool for each group, made when it is first needed.
#[derive(Default)]
pub struct Pools(RefCell<Vec<Option<Rc<Pool>>>>);

impl Pools {
    /// The pool of a group.
    pub fn of(&self, id: GroupId) -> Rc<Pool> {
        let mut pools = self.0.borrow_mut();
        if pools.len() <= id.index() {
            pools.resize(id.index() + 1, None);
        }
        match pools.get_mut(id.index()) {
            Some(place) => place.get_or_insert_with(Rc::default).clone(),
            None => Rc::default(),
        }
    }

    /// Closes all connections: the loop is about to end.
    pub fn clear(&self) {
        for pool in self.0.borrow().iter().flatten() {
            pool.clear();
        }
    }
}
