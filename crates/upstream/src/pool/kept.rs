//! The pools of a loop that hold idle connections. Their places are freed when other connections
//! need them.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use super::Pool;

thread_local! {
    static POOLS: RefCell<Vec<Weak<Pool>>> = const { RefCell::new(Vec::new()) };
}

/// A pool of this thread's loop has an idle connection from now on.
pub(super) fn enter(pool: &Rc<Pool>) {
    POOLS.with_borrow_mut(|pools| {
        pools.retain(|other| {
            !std::ptr::eq(other.as_ptr(), Rc::as_ptr(pool)) && other.strong_count() > 0
        });
        pools.push(Rc::downgrade(pool));
    });
}

/// Closes at most so many idle connections to servers of this thread's loop, the oldest of a pool first: how many.
pub fn close_idle(most: usize) -> usize {
    let pools =
        POOLS.with_borrow(|pools| pools.iter().filter_map(Weak::upgrade).collect::<Vec<_>>());
    let close = || {
        let oldest = pools.iter().filter_map(|pool| Some((pool.oldest()?, pool)));
        let (_, pool) = oldest.min_by_key(|(until, _)| *until)?;
        pool.close_oldest();
        Some(())
    };
    std::iter::from_fn(close).take(most).count()
}
